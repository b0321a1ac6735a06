"""Checkpoints in TensorFlow's own format: read back by our reader, and by TensorFlow where it is installed."""

import hashlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import globalstep as gs
from globalstep.chief.checkpoints.tf_bundle import TensorBundle, write_bundle
from globalstep.chief.checkpoints.tf_checkpoints import export_checkpoint
from globalstep.deploy.cli import main
from globalstep.errors import AlreadyExistsError, CheckpointError, InvalidArgumentError, NotFoundError
from globalstep.files.storage import LocalStorage

ROOT = Path(__file__).resolve().parents[3]
READ_BACK = ROOT / "tests" / "golden" / "tf_checkpoints" / "read_back.py"


def tensors(more=0):
    """Every dtype, no axes, no elements, names that share beginnings, and `more` of them."""
    rng = np.random.default_rng(1)
    dtypes = ("float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "int64", "bool")
    found = {f"types/{dtype}": (rng.normal(size=(3, 2)) * 5).astype(dtype) for dtype in dtypes}
    found |= {"empty": np.zeros((0, 4), np.float32), "global_step": np.int64(7), "types": np.float32(1.5)}
    return found | {f"many/variable_with_a_long_name_{i:05d}": np.float32(i) for i in range(more)}


def written(path, values):
    write_bundle(LocalStorage(), str(path), values, values.__getitem__)
    return TensorBundle(str(path))


@pytest.mark.parametrize("more", [0, 3, 9000])
def test_our_reader_reads_what_our_writer_writes(tmp_path, more):
    values = tensors(more)
    bundle = written(tmp_path / "m", values)
    assert bundle.unreadable == {}
    assert bundle.shapes == {name: value.shape for name, value in values.items()}
    for name, value in values.items():
        found = bundle.read(name)
        assert found.dtype == value.dtype
        np.testing.assert_array_equal(found, value)


def test_the_bytes_are_those_that_tensorflow_has_read(tmp_path):
    """Digests of files that TensorFlow 2.21 restored; other bytes have to be read back by it (see READ_BACK) first."""
    written(tmp_path / "m", tensors(40))
    files = [tmp_path / "m.index", tmp_path / "m.data-00000-of-00001"]
    assert [hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in files] == DIGESTS


DIGESTS = ["275d21e2114e456c", "4e21f1a8fbd23395"]


def read_all(path):
    bundle = TensorBundle(str(path))
    return [bundle.read(name) for name in bundle.shapes]


def test_a_changed_byte_is_noticed(tmp_path):
    written(tmp_path / "m", tensors())
    for name, word in (("m.index", "corrupt"), ("m.data-00000-of-00001", "its checksum does not fit")):
        data = bytearray((tmp_path / name).read_bytes())
        data[20] ^= 1
        (tmp_path / name).write_bytes(bytes(data))
        with pytest.raises(CheckpointError, match=word):
            read_all(tmp_path / "m")
        data[20] ^= 1
        (tmp_path / name).write_bytes(bytes(data))


def test_a_dtype_that_is_not_written_leaves_nothing(tmp_path):
    with pytest.raises(InvalidArgumentError, match="'c' has the dtype complex64, which is not written"):
        written(tmp_path / "m", {"a": np.float32(1), "c": np.complex64(1j)})
    assert list(tmp_path.iterdir()) == []


def trained(path):
    """Save a program with slots, a step and a Variable in parts; give the prefix and the values."""
    with gs.Graph().as_default(), gs.Session() as sess:
        w = gs.Variable(np.arange(6, dtype=np.float32).reshape(2, 3), name="layer/weights")
        parts = gs.get_variable("in_parts", [5, 2], partitioner=gs.fixed_size_partitioner(3))
        step = gs.train.get_or_create_global_step()
        loss = gs.reduce_sum(w * w) + gs.reduce_sum(gs.square(gs.convert_to_tensor(parts)))
        train_op = gs.train.AdamOptimizer(0.1).minimize(loss, global_step=step)
        sess.run(gs.global_variables_initializer())
        for _ in range(3):
            sess.run(train_op)
        prefix = gs.train.Saver().save(sess, str(path / "model"), global_step=step)
        expected = {"layer/weights": sess.run(w), "in_parts": sess.run(gs.convert_to_tensor(parts)), "global_step": 3}
        expected |= {
            name: sess.run(f"{name}:0") for name in ("layer/weights/Adam", "layer/weights/Adam_1", "beta1_power")
        }
    return prefix, expected


def test_a_checkpoint_is_exported_with_its_slots_and_its_parts_as_one(tmp_path, capsys):
    prefix, expected = trained(tmp_path)
    target = tmp_path / "tf" / "model.ckpt-3"
    assert main(["checkpoint", "export", "--tensorflow", str(tmp_path), str(target)]) == 0
    assert f"Exported 9 tensors of {prefix} as {target}, for TensorFlow." in capsys.readouterr().out
    bundle = TensorBundle(str(target))
    assert set(expected) < set(bundle.shapes)
    for name, value in expected.items():
        np.testing.assert_array_equal(bundle.read(name), value)
    assert (tmp_path / "tf" / "checkpoint").read_text().startswith('model_checkpoint_path: "model.ckpt-3"\n')
    assert main(["checkpoint", "export", "--tensorflow", prefix, str(target)]) == 1
    assert "model.ckpt-3 already" in capsys.readouterr().err
    assert main(["checkpoint", "import", str(target), str(tmp_path / "again")]) == 0


def test_what_is_missing_or_damaged_or_there_already_is_not_exported(tmp_path):
    with pytest.raises(NotFoundError):
        export_checkpoint(str(tmp_path / "none"), str(tmp_path / "tf" / "m"))
    prefix, _ = trained(tmp_path)
    export_checkpoint(prefix, str(tmp_path / "beside"))
    assert gs.train.latest_checkpoint(str(tmp_path)) == prefix
    with pytest.raises(AlreadyExistsError, match="beside already"):
        export_checkpoint(prefix, str(tmp_path / "beside.index"))
    (shard,) = tmp_path.glob("model-3.shard*")
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match="is corrupt"):
        export_checkpoint(prefix, str(tmp_path / "tf" / "m"))
    assert list((tmp_path / "tf").iterdir()) == []


def tensorflow():
    """A Python that has TensorFlow: this one, that of `make bench-peers`, or the one that the environment names."""
    named = os.environ.get("GLOBALSTEP_TENSORFLOW_PYTHON")
    if named:
        return named
    if importlib.util.find_spec("tensorflow"):
        return sys.executable
    peers = ROOT / ".venv-peers" / "bin" / "python"
    if peers.exists():
        return str(peers)
    pytest.skip("no TensorFlow: `make bench-peers` installs it, or GLOBALSTEP_TENSORFLOW_PYTHON names a Python with it")


@pytest.mark.long
@pytest.mark.parametrize("of", ["tensors", "program"])
def test_tensorflow_restores_it(tmp_path, of):
    python = tensorflow()
    target = tmp_path / "tf" / "model.ckpt-3"
    if of == "program":
        prefix, expected = trained(tmp_path)
        export_checkpoint(prefix, str(target))
    else:
        expected = tensors(40)
        target.parent.mkdir()
        written(target, expected)
        (target.parent / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-3"\n')
    done = subprocess.run(
        [python, str(READ_BACK), str(target), str(tmp_path / "read.npz")], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr[-2000:]
    with np.load(tmp_path / "read.npz") as found:
        for name, value in expected.items():
            got = found[name.replace("/", "|")]
            assert got.dtype == np.asarray(value).dtype or name == "global_step"
            np.testing.assert_array_equal(got, value)
