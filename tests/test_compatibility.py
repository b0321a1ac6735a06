"""What docs/compatibility.md says: how much of what programs use is there, and what is said of the rest."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

import globalstep as gs
from globalstep.tf1 import absent

ROOT = Path(__file__).resolve().parents[1]


def _script():
    spec = importlib.util.spec_from_file_location("compatibility", ROOT / "scripts" / "compatibility.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


compatibility = _script()
USED = compatibility.counts()
MISSING = [name for name in USED if compatibility.problem(name)]


def test_enough_programs_were_read_and_none_twice():
    programs = [(program["repository"], program["path"]) for program in compatibility.programs()]
    assert len(set(programs)) == len(programs) >= 30
    assert all(len(program["names"]) == len(set(program["names"])) >= 5 for program in compatibility.programs())


def test_nine_tenths_of_what_the_programs_use_is_there():
    by_use, by_name = compatibility.share()
    assert by_use >= 0.9
    assert by_name >= 0.9


def test_a_name_that_is_not_there_is_noticed():
    assert "has no attribute 'no_such_thing'" in compatibility.problem("train.no_such_thing")
    assert compatibility.problem("train.Saver.no_such_thing")
    assert not compatibility.problem("Session.graph")


@pytest.mark.parametrize("name", MISSING)
def test_each_missing_name_says_what_to_use_instead(name):
    assert len(compatibility.hint(name)) > 10


def test_the_tables_of_the_site_have_every_name():
    tables = compatibility.tables()
    for name in ("`train.Supervisor`", "`audio`", "**`gs.nn.rnn_cell`**", "`globalstep.python.framework.ops`"):
        assert name in tables


@pytest.mark.parametrize(
    "name",
    [
        "nn.conv2d",
        "layers.dense",
        "layers.conv3d",
        "cond",
        "while_loop",
        "data.Dataset",
        "estimator.Estimator",
        "train.SyncReplicasOptimizer",
        "contrib.slim",
        "contrib.learn",
        "examples.tutorials.mnist.input_data",
    ],
)
def test_what_people_ask_for_is_named_in_or_out(name):
    by_hand = compatibility.PAGE.read_text()
    first, second = (*name.split("."), "")[:2]
    assert re.search(rf"tf\.{first}\b|`{first}`|tensorflow\.{first}", by_hand)
    assert second in by_hand or f"`tf.{first}`" in by_hand
    if compatibility.problem(name):
        assert compatibility.hint(name)


def test_hints_name_what_is_there():
    wrong = []
    for hints in compatibility.ABSENT_FROM.values():
        for text in hints.values():
            named = re.findall(r"\bgs\.([\w.]*\w)", text)
            wrong += [name for name in named if compatibility.problem(name)]
    assert not wrong


def test_what_is_without_effect_is_there():
    assert not [name for name in absent.WITHOUT_EFFECT if compatibility.problem(name)]


def test_names_that_only_old_programs_use():
    assert gs.mul is gs.multiply
    assert gs.sub is gs.subtract
    assert gs.neg is gs.negative
    assert gs.select is gs.where
    assert gs.initialize_all_tables().is_operation
    with gs.Session() as session:
        assert session.run(gs.tables_initializer()) is None
        assert session.run(gs.sparse_to_dense([1, 3], [4], 2.0, -1.0)).tolist() == [-1, 2, -1, 2]
        assert session.run(gs.sparse_to_dense([[0, 1], [1, 1]], [2, 2], [5, 6])).tolist() == [[0, 5], [0, 6]]
        assert session.run(gs.sparse_to_dense(1, [3], 7)).tolist() == [0, 7, 0]


def test_a_program_that_asks_for_the_version_takes_the_new_names():
    assert tuple(int(part) for part in gs.VERSION.split(".")) >= (0, 12, 0)


def test_names_of_dtypes_mean_what_they_mean_to_tensorflow():
    kinds = {"half": gs.float16, "float": gs.float32, "double": gs.float64, "float32_ref": gs.float32}
    assert {name: gs.placeholder(name).dtype for name in kinds} == kinds


def test_a_dtype_equals_what_names_it_and_nothing_else():
    assert all(gs.float64 == other for other in ("float64", np.float64, np.dtype("float64")))
    assert gs.float64 != None  # noqa: E711  numpy takes None for float64
    assert gs.float64 != gs.constant(1.0)
    with pytest.raises(TypeError, match="Cannot convert value"):
        gs.as_dtype(gs.constant(1.0))


def test_options_of_a_run_are_accepted():
    with gs.Session() as session:
        options = gs.RunOptions(trace_level=gs.RunOptions.FULL_TRACE)
        metadata = gs.RunMetadata()
        assert session.run(gs.constant(1), options=options) == 1
        assert session.run(gs.constant(1), run_metadata=metadata) == 1
        assert not metadata.HasField("step_stats")
        assert session.run(gs.constant(1), options=options, run_metadata=metadata) == 1
        assert [device.device for device in metadata.step_stats.dev_stats] == ["session"]


def test_a_summary_made_by_hand():
    summary = gs.Summary(value=[gs.Summary.Value(tag="reward", simple_value=2.5)])
    again = gs.Summary.FromString(summary.SerializeToString())
    assert again.value[0].simple_value == 2.5


def _float_step():
    return gs.get_variable("global_step", [], initializer=gs.constant_initializer(0), trainable=False)


def test_a_floating_step_is_counted():
    step, w = _float_step(), gs.Variable(1.0)
    loss = gs.square(w - 3.0)
    rate = gs.train.exponential_decay(0.1, step, 1, 0.5)
    train_op = gs.train.GradientDescentOptimizer(rate).minimize(loss, global_step=step)
    with gs.Session() as session:
        session.run(gs.global_variables_initializer())
        for expected in (1.4, 1.56):
            session.run(train_op)
            np.testing.assert_allclose(session.run(w), expected, rtol=1e-6)
        assert session.run(step) == 2.0


def test_a_floating_step_is_counted_without_gating_too():
    step, w = _float_step(), gs.Variable(1.0)
    optimizer = gs.train.GradientDescentOptimizer(0.1)
    pairs = optimizer.compute_gradients(gs.square(w), gate_gradients=optimizer.GATE_NONE)
    train_op = optimizer.apply_gradients(pairs, global_step=step)
    with gs.Session() as session:
        session.run(gs.global_variables_initializer())
        session.run(train_op)
        assert session.run(step) == 1.0


def test_a_supervisor_takes_a_floating_step(tmp_path, caplog):
    step, w = _float_step(), gs.Variable(1.0)
    train_op = gs.train.GradientDescentOptimizer(0.1).minimize(gs.square(w), global_step=step)
    supervisor = gs.train.Supervisor(logdir=str(tmp_path), global_step=step, init_op=gs.global_variables_initializer())
    with supervisor.managed_session() as session:
        counted = 0
        while not supervisor.should_stop() and counted < 3:
            _, counted = session.run([train_op, step])
    assert [message for message in caplog.messages if "does not have integer type: float32" in message]


def test_a_step_of_a_wrong_shape_is_refused():
    step, w = gs.Variable([0.0], trainable=False), gs.Variable(1.0)
    with pytest.raises(TypeError, match="does not have integer type"):
        gs.train.GradientDescentOptimizer(0.1).minimize(gs.square(w), global_step=step)
