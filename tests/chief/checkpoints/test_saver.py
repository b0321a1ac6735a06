import logging
import os

import numpy as np
import pytest
import safetensors.numpy

from globalstep.chief.checkpoints.checkpoint import CheckpointReader, verify
from globalstep.chief.checkpoints.checkpoint_state import get_checkpoint_state, latest_checkpoint
from globalstep.errors import (
    CheckpointError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from globalstep.runtime.clock import ManualClock
from globalstep.tf1.graph.graph import Graph, as_node
from globalstep.tf1.sessions.saver import Saver
from globalstep.tf1.variables.variables import Variable

pytestmark = pytest.mark.usefixtures("graph")


@pytest.fixture
def model():
    """Two Variables, a slot and a step."""
    w = Variable(np.arange(6, dtype=np.float32).reshape(2, 3), name="w")
    Variable(np.float64([1.5]), name="b")
    Variable(np.zeros((2, 3), np.float32), name="w/Momentum", primary=w, optimizer="Momentum",
             slot="momentum", trainable=False)  # fmt: skip
    return Variable(np.int64(7), name="global_step", trainable=False, is_step=True)


@pytest.fixture
def session(model, make_session):
    made = make_session(shards=2)
    made.initialize()
    return made


def files_in(path):
    return sorted(entry.name for entry in path.iterdir())


def test_a_checkpoint_is_a_file_for_each_ps_an_index_and_the_state_file(session, tmp_path):
    prefix = Saver().save(session, str(tmp_path / "my-model"), global_step=1000)
    assert prefix == str(tmp_path / "my-model-1000")
    assert files_in(tmp_path) == [
        "checkpoint",
        "my-model-1000.index.json",
        "my-model-1000.meta",
        "my-model-1000.shard-00000-of-00002.safetensors",
        "my-model-1000.shard-00001-of-00002.safetensors",
    ]
    index = verify(prefix)
    assert {name: saved.kind for name, saved in index.variables.items()} == {
        "b": "variable",
        "global_step": "step",
        "w": "variable",
        "w/Momentum": "slot",
    }
    slot = index.variables["w/Momentum"]
    assert (slot.primary, slot.optimizer, slot.slot) == ("w", "Momentum", "momentum")
    assert index.variables["w"].parts[0].file == slot.parts[0].file
    assert index.steps == {"global_step": 7}
    assert index.ledger == b"ledger 0"
    together = {}
    for file in index.files:
        together |= safetensors.numpy.load_file(tmp_path / file.file)
    assert set(together) == set(session.cluster.values)
    for name, value in together.items():
        np.testing.assert_array_equal(value, session.cluster.values[name])


def test_the_journal_is_asked_for_again_when_a_reply_of_it_got_lost(session, tmp_path):
    """What a checkpoint holds is to be in the journal before the checkpoint is there."""

    class Journal:
        answers = [False, True]

        def catch_up(self):
            assert latest_checkpoint(str(tmp_path)) is None
            return self.answers.pop(0)

    session.cluster.journal = Journal()
    Saver().save(session, str(tmp_path / "my-model"))
    assert not Journal.answers
    session.cluster.journal = None


def test_restore_gives_every_value_back_in_one_push(session, tmp_path):
    saver = Saver()
    path = saver.save(session, str(tmp_path / "m"))
    saved = {name: value.copy() for name, value in session.cluster.values.items()}
    for value in session.cluster.values.values():
        value += 1
    saver.restore(session, path)
    assert len(session.cluster.pushes) == 1
    for name, value in saved.items():
        np.testing.assert_array_equal(session.cluster.values[name], value)


@pytest.mark.parametrize("shards", [1, 3])
def test_restoring_onto_another_number_of_ps_declares_and_assigns(session, make_session, tmp_path, shards):
    path = Saver().save(session, str(tmp_path / "m"))
    other = make_session(shards=shards)
    Saver().restore(other, path)
    assert set(other.cluster.variables) == set(session.cluster.variables)
    for name, value in session.cluster.values.items():
        np.testing.assert_array_equal(other.cluster.values[name], value)
        assert other.cluster.values[name].dtype == value.dtype


def test_a_step_variable_names_the_checkpoint_by_its_value_in_the_cut(session, model, tmp_path):
    def others_push(cluster):
        cluster.values["global_step"] += 1

    session.cluster.on_snapshot = others_push
    path = Saver().save(session, str(tmp_path / "m"), global_step=model)
    assert path.endswith("m-8")
    with CheckpointReader(path) as reader:
        assert reader.get_tensor("global_step") == 8


@pytest.mark.parametrize("step", [12, np.int64(12), "node"])
def test_a_number_or_a_tensor_names_the_checkpoint(session, tmp_path, step):
    step = as_node(np.int64(12)) if step == "node" else step
    assert Saver().save(session, str(tmp_path / "m"), global_step=step).endswith("m-12")


def test_pad_step_number(session, tmp_path):
    saver = Saver(pad_step_number=True)
    assert saver.save(session, str(tmp_path / "m"), global_step=7).endswith("m-00000007")


def test_max_to_keep_deletes_the_oldest_with_all_its_files(session, tmp_path):
    saver = Saver(max_to_keep=2)
    paths = [saver.save(session, str(tmp_path / "m"), global_step=step) for step in range(4)]
    assert saver.last_checkpoints == paths[2:]
    assert {name.split(".")[0] for name in files_in(tmp_path)} == {"checkpoint", "m-2", "m-3"}
    state = get_checkpoint_state(str(tmp_path))
    assert list(state.all_model_checkpoint_paths) == paths[2:]
    assert state.model_checkpoint_path == paths[3]


@pytest.mark.parametrize("max_to_keep", [None, 0])
def test_without_a_limit_all_are_kept_and_listed(session, tmp_path, max_to_keep):
    saver = Saver(max_to_keep=max_to_keep)
    paths = [saver.save(session, str(tmp_path / "m"), global_step=step) for step in range(7)]
    assert saver.last_checkpoints == paths
    assert list(get_checkpoint_state(str(tmp_path)).all_model_checkpoint_paths) == paths
    assert all(os.path.exists(f"{path}.index.json") for path in paths)


def test_one_every_so_many_hours_is_kept_for_good(session, tmp_path):
    clock = ManualClock(1e9)
    saver = Saver(max_to_keep=1, keep_checkpoint_every_n_hours=2, clock=clock)
    for step in range(6):
        clock.advance(3601)
        saver.save(session, str(tmp_path / "m"), global_step=step)
    kept = {name.split(".")[0] for name in files_in(tmp_path)} - {"checkpoint"}
    # Written after 1, 2, 3, ... hours: the first past 2 h and the first past 4 h stay, and the last.
    assert kept == {"m-1", "m-3", "m-5"}
    assert saver.last_checkpoints == [str(tmp_path / "m-5")]


def test_a_restarted_saver_goes_on_with_the_list_of_the_one_before(session, tmp_path):
    for step in range(3):
        Saver(max_to_keep=2).save(session, str(tmp_path / "m"), global_step=step)
    kept = {name.split(".")[0] for name in files_in(tmp_path)} - {"checkpoint"}
    assert kept == {"m-1", "m-2"}


def test_a_restarted_saver_leaves_other_savers_checkpoints_alone(session, tmp_path):
    best = Saver(max_to_keep=1).save(session, str(tmp_path / "best"), global_step=1)
    Saver(max_to_keep=1).save(session, str(tmp_path / "m"), global_step=1)
    Saver(max_to_keep=1).save(session, str(tmp_path / "m"), global_step=2)
    verify(best)


def test_a_restarted_saver_finds_what_was_committed_but_not_recorded(session, tmp_path):
    paths = [Saver(max_to_keep=3).save(session, str(tmp_path / "m"), global_step=step) for step in (1, 2)]
    state = (tmp_path / "checkpoint").read_bytes()
    paths.append(Saver(max_to_keep=3).save(session, str(tmp_path / "m"), global_step=3))
    (tmp_path / "checkpoint").write_bytes(state)
    apart = Saver().save(session, str(tmp_path / "m"), global_step=4, write_state=False)
    saver = Saver(max_to_keep=3)
    saver.recover_last_checkpoints(paths[:2])
    paths.append(saver.save(session, str(tmp_path / "m"), global_step=5))
    assert saver.last_checkpoints == paths[1:]
    verify(apart)


def test_recover_and_set_last_checkpoints(session, tmp_path):
    old = Saver()
    paths = [old.save(session, str(tmp_path / "m"), global_step=step) for step in range(3)]
    saver = Saver(max_to_keep=3)
    saver.recover_last_checkpoints([*paths[:2], str(tmp_path / "gone-1"), paths[2]])
    assert saver.last_checkpoints == paths
    saver.set_last_checkpoints_with_time([(paths[1], 5.0), (paths[2], 6.0)])
    assert saver.last_checkpoints == paths[1:]
    saver.set_last_checkpoints([paths[2]])
    assert saver.last_checkpoints == paths[2:]


def test_saving_the_same_path_again_replaces_it_and_leaves_nothing_behind(session, tmp_path):
    saver = Saver()
    for value in (1, 2, 3):
        session.cluster.values["b"][:] = value
        path = saver.save(session, str(tmp_path / "m"))
    assert saver.last_checkpoints == [path]
    assert [name for name in files_in(tmp_path) if "shard-00000" in name] == ["m.shard-00000-of-00002.r2.safetensors"]
    verify(path)
    with CheckpointReader(path) as reader:
        assert reader.get_tensor("b") == [3.0]


def test_ps_that_do_not_see_the_directory_are_written_by_the_chief(model, make_session, tmp_path, caplog):
    session = make_session(shards=3, blind={0, 2})
    session.initialize()
    saver = Saver()
    with caplog.at_level(logging.INFO, logger="globalstep"):
        paths = [saver.save(session, str(tmp_path / "m"), global_step=step) for step in range(2)]
    assert [verify(path).steps for path in paths] == [{"global_step": 7}] * 2
    told = [record.message for record in caplog.records if "do not see" in record.message]
    assert len(told) == 1
    assert "0, 2" in told[0]
    assert str(tmp_path) in told[0]


def test_names_in_the_file_may_be_others(session, graph, tmp_path):
    w, b = (graph.as_graph_element(name) for name in ("w", "b"))
    path = Saver({"weights": w, "bias": b}).save(session, str(tmp_path / "m"))
    before = session.cluster.values["w"].copy()
    session.cluster.values["w"] += 1
    Saver({"weights": w}).restore(session, path)
    np.testing.assert_array_equal(session.cluster.values["w"], before)
    with CheckpointReader(path) as reader:
        assert sorted(reader.get_variable_to_shape_map()) == ["bias", "weights"]
    with pytest.raises(NotFoundError, match=r"(?s)Restoring from checkpoint failed.*Key w not found in ch"):
        Saver([w]).restore(session, path)


def test_restore_refuses_another_shape_or_dtype_and_changes_nothing(session, make_session, tmp_path):
    path = Saver().save(session, str(tmp_path / "m"))
    with Graph().as_default():
        b = Variable(np.float64([2.5]), name="b")
        w = Variable(np.zeros((3, 2), np.float32), name="w")
        c = Variable(np.zeros(1, np.float32), name="c")
        other = make_session()
        with pytest.raises(InvalidArgumentError, match=r"lhs shape= \[3,2\] rhs shape= \[2,3\].*'w'") as caught:
            Saver([b, w]).restore(other, path)
        assert "a mismatch between the current graph and the graph from the checkpoint" in str(caught.value)
        with pytest.raises(InvalidArgumentError, match=r"expected dtype float32 does not equal .* float64"):
            Saver({"b": c}).restore(other, path)
        assert (other.cluster.variables, other.cluster.values) == ({}, {})
        Saver([b, w], reshape=True).restore(other, path)
        np.testing.assert_array_equal(other.cluster.values["w"], np.arange(6).reshape(3, 2))


def test_restore_of_a_corrupt_checkpoint_names_file_and_tensor_and_changes_nothing(session, tmp_path):
    saver = Saver()
    path = saver.save(session, str(tmp_path / "m"))
    file = next(tmp_path.glob("*shard-00000*"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"{file.name}.*'\w+' is corrupt"):
        saver.restore(session, path)
    assert session.cluster.pushes == []


def test_restore_of_what_is_not_there(session, tmp_path):
    with pytest.raises(ValueError, match="Can't load save_path when it is None"):
        Saver().restore(session, None)
    with pytest.raises(ValueError, match=r"The passed save_path is not a valid checkpoint: .*nothing"):
        Saver().restore(session, str(tmp_path / "nothing"))
    (tmp_path / "tf.index").write_bytes(b"")
    with pytest.raises(ValueError, match="globalstep checkpoint import"):
        Saver().restore(session, str(tmp_path / "tf"))


def test_wrong_arguments_of_save(session, tmp_path):
    path = str(tmp_path / "m")
    with pytest.raises(ValueError, match="'latest_filename' must not contain path components"):
        Saver().save(session, path, latest_filename="a/b")
    with pytest.raises(ValueError, match="'latest_filename' collides with 'save_path'"):
        Saver().save(session, str(tmp_path / "checkpoint"))
    with pytest.raises(TypeError, match="'sess' must be a Session"):
        Saver().save(object(), path)
    with pytest.raises(ValueError, match=r"Parent directory of .*nowhere/a/m doesn't exist, can't save\."):
        Saver().save(session, str(tmp_path / "nowhere" / "a" / "m"))
    assert files_in(tmp_path) == []


def test_a_directory_in_one_that_is_there_is_made(session, tmp_path):
    path = Saver().save(session, str(tmp_path / "last" / "epoch"), global_step=1)
    assert latest_checkpoint(str(tmp_path / "last")) == path


def test_wrong_arguments_of_the_constructor(graph):
    with Graph().as_default():
        with pytest.raises(ValueError, match="No variables to save"):
            Saver()
        twin = Variable(1.0, name="w")
    w = Variable(1.0, name="w")
    with pytest.raises(ValueError, match="At least two variables have the same name: w"):
        Saver([w, twin])
    with pytest.raises(TypeError, match="Variable to save is not a Variable"):
        Saver([as_node(1.0)])
    with pytest.raises(ValueError, match="max_to_keep"):
        Saver([w], max_to_keep=-1)
    with pytest.raises(ValueError, match="build cannot be deferred"):
        Saver([w], defer_build=True)
    with pytest.raises(ValueError, match="is local to each session"):
        Saver([Variable(1.0, name="l", collections=["local_variables"])])
    with pytest.raises(InvalidArgumentError, match="'c' has dtype complex64"):
        Saver([Variable(np.zeros(1, np.complex64), name="c")])


def test_an_empty_saver_does_nothing_where_that_is_allowed(make_session, tmp_path):
    saver = Saver(allow_empty=True)
    assert saver.save(make_session(), str(tmp_path / "m")) is None
    saver.restore(make_session(), str(tmp_path / "m"))
    assert files_in(tmp_path) == []


def test_a_deferred_saver_takes_the_variables_at_build(make_session, tmp_path):
    saver = Saver(defer_build=True)
    with pytest.raises(RuntimeError, match="`build\\(\\)` should be called before save"):
        saver.save(None, "x")
    Variable(1.0, name="late")
    saver.build()
    session = make_session()
    session.initialize()
    assert sorted(verify(saver.save(session, str(tmp_path / "m"))).variables) == ["late"]


def test_saving_an_uninitialized_variable(make_session, tmp_path):
    Variable(1.0, name="w")
    with pytest.raises(FailedPreconditionError, match="Attempting to use uninitialized value w"):
        Saver().save(make_session(), str(tmp_path / "m"))


def test_write_state_false_leaves_the_state_and_the_list(session, tmp_path):
    saver = Saver()
    path = saver.save(session, str(tmp_path / "m"), write_state=False)
    verify(path)
    assert saver.last_checkpoints == []
    assert latest_checkpoint(str(tmp_path)) is None


def test_relative_paths_make_a_directory_that_can_be_moved(session, tmp_path):
    (tmp_path / "a").mkdir()
    saver = Saver(save_relative_paths=True)
    for step in (1, 2):
        saver.save(session, str(tmp_path / "a" / "m"), global_step=step)
    assert 'model_checkpoint_path: "m-2"' in (tmp_path / "a" / "checkpoint").read_text()
    (tmp_path / "a").rename(tmp_path / "b")
    assert latest_checkpoint(str(tmp_path / "b")) == str(tmp_path / "b" / "m-2")
    verify(str(tmp_path / "b" / "m-2"))


def test_a_relative_save_path(session, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Saver().save(session, "m", global_step=1) == "m-1"
    assert latest_checkpoint(".") == "./m-1"
    Saver(max_to_keep=1).save(session, "./m", global_step=2)
    assert latest_checkpoint("") == "m-2"


def test_a_url(model, make_session):
    from globalstep.files.storage import storage_for

    url = "memory://test_saver/run"
    session = make_session(shards=2, storage=storage_for(url))
    session.initialize()
    saver = Saver(max_to_keep=2)
    paths = [saver.save(session, f"{url}/m", global_step=step) for step in range(3)]
    assert latest_checkpoint(url) == paths[2] == f"{url}/m-2"
    verify(paths[1])
    assert not any(name.startswith("m-0") for name in storage_for(url).list(url))
    before = session.cluster.values["w"].copy()
    session.cluster.values["w"] += 1
    saver.restore(session, paths[2])
    np.testing.assert_array_equal(session.cluster.values["w"], before)


def partitioned(parts, rows=7):
    """A graph with a partitioned Variable whose parts have a slot each."""
    from globalstep.tf1.optimizers.slots import slot_variable
    from globalstep.tf1.variables.named_variables import get_variable
    from globalstep.tf1.variables.partitioned_variables import fixed_size_partitioner

    values = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
    whole = get_variable("p", initializer=values, partitioner=fixed_size_partitioner(parts))
    for part in whole:
        slot_variable(part, "Momentum", initial=0.5, optimizer="Momentum", slot="momentum")
    return whole, values


@pytest.mark.parametrize("parts_after", [1, 2, 3, 4])
def test_a_partitioned_variable_restores_in_other_parts(make_session, tmp_path, parts_after):
    with Graph().as_default():
        whole, values = partitioned(3)
        session = make_session(shards=2)
        session.initialize()
        path = Saver().save(session, str(tmp_path / "m"))
        index = verify(path)
        assert {name: len(saved.parts) for name, saved in index.variables.items()} == {"p": 3, "p/Momentum": 3}
        slot = index.variables["p/Momentum"]
        assert (slot.kind, slot.primary, slot.shape) == ("slot", "p", (7, 2))
        with CheckpointReader(path) as reader:
            np.testing.assert_array_equal(reader.get_tensor("p"), values)
            np.testing.assert_array_equal(reader.get_slice("p", (2, 1), (4, 1)), values[2:6, 1:])
    with Graph().as_default():
        whole, _ = partitioned(parts_after)
        other = make_session(shards=3)
        Saver().restore(other, path)
        together = [other.cluster.values[part.op_name] for part in whole]
        np.testing.assert_array_equal(np.concatenate(together), values)
        assert all((other.cluster.values[f"{part.op_name}/Momentum"] == 0.5).all() for part in whole)


def test_a_partitioned_variable_restores_as_a_whole_and_under_another_name(make_session, tmp_path):
    with Graph().as_default():
        whole, values = partitioned(2)
        session = make_session()
        session.initialize()
        path = Saver({"q": whole}).save(session, str(tmp_path / "m"))
    with Graph().as_default():
        q = Variable(np.zeros((7, 2), np.float32), name="q")
        other = make_session()
        Saver([q]).restore(other, path)
        np.testing.assert_array_equal(other.cluster.values["q"], values)
        with Graph().as_default(), pytest.raises(InvalidArgumentError, match=r"lhs shape= \[9,2\] rhs shape= \[7,2\]"):
            Saver({"q": partitioned(2, rows=9)[0]}).restore(make_session(), path)


def test_a_part_alone_can_be_saved_but_not_be_read_as_the_whole(make_session, tmp_path):
    whole, values = partitioned(3)
    session = make_session()
    session.initialize()
    path = Saver([whole[0], whole[2]]).save(session, str(tmp_path / "m"))
    verify(path)
    with CheckpointReader(path) as reader:
        np.testing.assert_array_equal(reader.get_slice("p", (5, 0), (2, 2)), values[5:])
        with pytest.raises(CheckpointError, match="'p' hold 10 of the 14 elements"):
            reader.get_tensor("p")
    with pytest.raises(ValueError, match="At least two variables have the same name: p"):
        Saver({"p": [whole[0], Variable(1.0, name="y")]})
