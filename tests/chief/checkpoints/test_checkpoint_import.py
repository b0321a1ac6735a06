import pathlib
import shutil

import numpy as np
import pytest

import globalstep as gs
from globalstep.chief.checkpoints.checkpoint import CheckpointReader, verify
from globalstep.chief.checkpoints.checkpoint_state import get_checkpoint_state, latest_checkpoint
from globalstep.chief.checkpoints.tf_bundle import TensorBundle
from globalstep.chief.checkpoints.tf_checkpoints import import_checkpoint
from globalstep.errors import AlreadyExistsError, CheckpointError, NotFoundError

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "tf_checkpoints"
with np.load(GOLDEN / "expected.npz") as _file:
    EXPECTED = dict(_file)


def expected(checkpoint):
    start = f"{checkpoint}/"
    return {key.removeprefix(start): EXPECTED[key] for key in EXPECTED if key.startswith(start)}


@pytest.mark.parametrize("checkpoint", ["plain-3", "sharded-0", "partitioned-1", "recurrent-0"])
def test_every_tensor_is_what_tensorflow_reads(tmp_path, checkpoint):
    made = import_checkpoint(str(GOLDEN / checkpoint), str(tmp_path / "new"))
    assert made.prefix == latest_checkpoint(str(tmp_path / "new")) == str(tmp_path / "new" / checkpoint)
    verify(made.prefix)
    wanted = expected(checkpoint)
    assert len(wanted) >= 5
    with CheckpointReader(made.prefix) as reader:
        assert set(reader.get_variable_to_shape_map()) == set(wanted) == set(made.names)
        for name, value in wanted.items():
            read = reader.get_tensor(name)
            assert read.dtype == value.dtype
            np.testing.assert_array_equal(read, value)


def test_steps_and_slots_are_recognized_and_what_has_no_place_is_told(tmp_path):
    made = import_checkpoint(str(GOLDEN / "plain-3.index"), str(tmp_path))
    assert made.left_out == {"text": "string", "complex": "complex64"}
    index = verify(made.prefix)
    assert index.steps == {"global_step": 3}
    kinds = {name: saved.kind for name, saved in index.variables.items()}
    assert kinds["layer/weights/Adam_1"] == "slot"
    assert index.variables["layer/weights/Adam_1"].primary == "layer/weights"
    assert kinds["layer/weights"] == "variable"
    assert kinds["global_step"] == "step"
    assert kinds["beta1_power"] == "scalar"


def test_imports_into_one_directory_are_listed_and_never_overwrite(tmp_path):
    for checkpoint in ("plain-3", "sharded-0"):
        import_checkpoint(str(GOLDEN / checkpoint), str(tmp_path))
    state = get_checkpoint_state(str(tmp_path))
    assert list(state.all_model_checkpoint_paths) == [str(tmp_path / "plain-3"), str(tmp_path / "sharded-0")]
    with pytest.raises(AlreadyExistsError, match="plain-3"):
        import_checkpoint(str(GOLDEN / "plain-3"), str(tmp_path))


def test_a_missing_checkpoint(tmp_path):
    with pytest.raises(NotFoundError, match=r"nothing\.index"):
        import_checkpoint(str(tmp_path / "nothing"), str(tmp_path / "new"))


def copies(tmp_path, checkpoint):
    for path in GOLDEN.glob(f"{checkpoint}.*"):
        shutil.copy(path, tmp_path)
    return str(tmp_path / checkpoint)


def why_not(prefix):
    try:
        bundle = TensorBundle(prefix)
        for name in bundle.shapes:
            bundle.read(name)
    except CheckpointError as error:
        return error.message
    return None


@pytest.mark.parametrize("checkpoint", ["plain-3", "partitioned-1"])
def test_a_flipped_byte_is_found_and_its_file_named(tmp_path, checkpoint):
    prefix = copies(tmp_path, checkpoint)
    assert why_not(prefix) is None
    unseen = 0
    for path in sorted(tmp_path.glob(f"{checkpoint}.*")):
        whole = path.read_bytes()
        for position in range(0, len(whole), 13):
            damaged = bytearray(whole)
            damaged[position] ^= 0x04
            path.write_bytes(damaged)
            reason = why_not(prefix)
            if reason is None:
                unseen += 1
            else:
                assert path.name in reason
        path.write_bytes(whole)
    # Bytes that nothing is read from: the footer's padding, the empty block, the tensors left out.
    assert unseen < 8


@pytest.mark.parametrize("suffix", [".index", ".data-00000-of-00001"])
@pytest.mark.parametrize("keep", [0, 30, -1])
def test_a_truncated_file_is_named(tmp_path, suffix, keep):
    prefix = copies(tmp_path, "partitioned-1")
    path = pathlib.Path(prefix + suffix)
    path.write_bytes(path.read_bytes()[:keep])
    assert path.name in why_not(prefix)


def test_a_failed_import_leaves_no_checkpoint(tmp_path):
    prefix = copies(tmp_path, "plain-3")
    pathlib.Path(f"{prefix}.data-00000-of-00001").write_bytes(b"")
    with pytest.raises(CheckpointError):
        import_checkpoint(prefix, str(tmp_path / "new"))
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.usefixtures("graph")
def test_training_goes_on_as_tensorflow_does(tmp_path):
    prefix = import_checkpoint(str(GOLDEN / "plain-3"), str(tmp_path)).prefix
    w = gs.Variable(np.zeros((4, 5), np.float32), name="layer/weights")
    b = gs.Variable(np.zeros(5, np.float32), name="layer/biases")
    step = gs.train.get_or_create_global_step()
    loss = gs.reduce_sum(gs.square(w)) + gs.reduce_sum(gs.square(b))
    train = gs.train.AdamOptimizer(0.1).minimize(loss, global_step=step)
    with gs.Session() as session:
        gs.train.Saver().restore(session, prefix)
        for _ in range(4):
            session.run(train)
        wanted = expected("plain-3, four steps on")
        assert session.run(step) == wanted["global_step"] == 7
        np.testing.assert_allclose(session.run(w), wanted["layer/weights"], rtol=2e-6)
        np.testing.assert_allclose(session.run(b), wanted["layer/biases"], rtol=2e-6)


@pytest.mark.usefixtures("graph")
def test_recurrent_cells_give_what_they_gave_in_tensorflow(tmp_path):
    prefix = import_checkpoint(str(GOLDEN / "recurrent-0"), str(tmp_path)).prefix
    wanted, cells = expected("recurrent-0, outputs"), gs.nn.rnn_cell
    layers = [cells.LSTMCell(4, use_peepholes=True, num_proj=3), cells.BasicLSTMCell(2)]
    inputs = gs.constant(wanted["inputs"])
    hidden, _ = gs.nn.dynamic_rnn(cells.MultiRNNCell(layers), inputs, sequence_length=[4, 2], dtype=gs.float32)
    outputs, _ = gs.nn.bidirectional_dynamic_rnn(cells.GRUCell(2), cells.GRUCell(3), hidden, dtype=gs.float32)
    gs.train.get_or_create_global_step()
    with gs.Session() as session:
        gs.train.Saver().restore(session, prefix)
        np.testing.assert_allclose(session.run(gs.concat(outputs, 2)), wanted["outputs"], rtol=1e-5, atol=1e-6)
