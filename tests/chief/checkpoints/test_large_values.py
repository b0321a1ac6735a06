"""Values that are passed on in pieces: restored, read from a checkpoint, and pulled; as if they were small."""

import numpy as np
import pytest

import globalstep as gs
from globalstep.chief.checkpoints import checkpoint, cluster_saver
from globalstep.chief.checkpoints.checkpoint import CheckpointReader
from globalstep.errors import CheckpointError
from globalstep.files import disk_arrays
from globalstep.worker.client import row_pieces

pytestmark = pytest.mark.usefixtures("graph")

ROWS, WIDTH = 1000, 7
VALUES = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    for module in (checkpoint, cluster_saver, row_pieces):
        monkeypatch.setattr(module, "IN_MEMORY_BYTES", 100)
    for module in (checkpoint, row_pieces):
        monkeypatch.setattr(module, "PIECE_BYTES", 3000)


def saved(tmp_path, partitioner=None):
    table = gs.get_variable("table", [ROWS, WIDTH], partitioner=partitioner)
    gs.Variable(2.0, name="other")
    parts = list(table) if partitioner else [table]
    with gs.Session() as sess:
        sess.run(gs.global_variables_initializer())
        at = 0
        for part in parts:
            rows = int(part.shape[0])
            sess.run(part.assign(VALUES[at : at + rows]))
            at += rows
        return gs.train.Saver().save(sess, str(tmp_path / "m"))


@pytest.mark.parametrize(("saved_in", "restored_in"), [(0, 0), (3, 0), (0, 3), (3, 2)])
def test_a_table_is_restored_whatever_parts_it_is_in(tmp_path, saved_in, restored_in):
    path = saved(tmp_path, gs.fixed_size_partitioner(saved_in) if saved_in else None)
    with gs.Graph().as_default(), gs.Session() as sess:
        partitioner = gs.fixed_size_partitioner(restored_in) if restored_in else None
        table = gs.get_variable("table", [ROWS, WIDTH], partitioner=partitioner)
        gs.Variable(0.0, name="other")
        gs.train.Saver().restore(sess, path)
        assert not sess.run(gs.report_uninitialized_variables()).size
        np.testing.assert_array_equal(sess.run(gs.convert_to_tensor(table)), VALUES)


def test_a_corrupt_table_changes_nothing(tmp_path):
    path = saved(tmp_path)
    file = next(tmp_path.glob("*.safetensors"))
    raw = bytearray(file.read_bytes())
    raw[-9] ^= 1
    file.write_bytes(raw)
    with gs.Graph().as_default(), gs.Session() as sess:
        table = gs.Variable(np.ones((ROWS, WIDTH), np.float32), name="table")
        other = gs.Variable(0.0, name="other")
        sess.run(gs.global_variables_initializer())
        with pytest.raises(CheckpointError, match="'.*' is corrupt"):
            gs.train.Saver().restore(sess, path)
        assert sess.run(other) == 0
        np.testing.assert_array_equal(sess.run(table), 1)


@pytest.mark.parametrize("parts", [0, 3])
def test_a_large_tensor_of_a_checkpoint_is_an_array_on_disk(tmp_path, parts):
    path = saved(tmp_path, gs.fixed_size_partitioner(parts) if parts else None)
    with CheckpointReader(path) as reader:
        found = reader.get_on_disk("table")
        assert reader.get_on_disk("other") == 2
    np.testing.assert_array_equal(found, VALUES)
    found[3] = 0
    assert not found.flags.owndata
    assert not disk_arrays.array_on_disk((0, 3), "float32").size


def test_a_table_is_pulled_in_pieces(tmp_path):
    with gs.Session() as sess:
        table = gs.Variable(VALUES, name="table")
        sess.run(table.initializer)
        np.testing.assert_array_equal(row_pieces.pull_table(sess.cluster, "table"), VALUES)
