import json

import numpy as np
import pytest

from globalstep.chief.checkpoints.checkpoint import (
    NewCheckpointReader,
    delete_checkpoint,
    is_complete,
    remove_leftovers,
    verify,
)
from globalstep.chief.checkpoints.checkpoint_format import (
    CheckpointIndex,
    SavedPart,
    SavedVariable,
    ShardFile,
    read_index,
    shard_file_name,
    write_index,
)
from globalstep.chief.checkpoints.checkpoint_state import update_checkpoint_state
from globalstep.errors import CheckpointError, NotFoundError
from globalstep.files.shard_file import write_shard
from globalstep.files.storage import LocalStorage
from globalstep.tf1.variables.checkpoint_variables import list_variables, load_checkpoint, load_variable

STORAGE = LocalStorage()
TENSORS = [
    {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "empty": np.zeros((0, 2), np.int32)},
    {"b/x": np.float64(2.5), "flag": np.array([True, False])},
]


def write_checkpoint(prefix, rewrite=0):
    """Write TENSORS as a checkpoint of two shards."""
    directory, _, base = str(prefix).rpartition("/")
    files, variables = [], {}
    for shard, tensors in enumerate(TENSORS):
        name = shard_file_name(base, shard, len(TENSORS), rewrite)
        written = write_shard(STORAGE, directory, name, tensors.items())
        files.append(ShardFile(name, written.file_bytes))
        variables |= {
            saved.name: SavedVariable(saved.dtype, saved.shape, (SavedPart.of(shard, saved),))
            for saved in written.tensors
        }
    index = CheckpointIndex(tuple(files), variables, {"global_step": 5}, 9, b"\x00ledger\xff", 12.5, rewrite)
    write_index(STORAGE, str(prefix), index)
    return index


@pytest.fixture
def prefix(tmp_path):
    write_checkpoint(tmp_path / "m-5")
    return str(tmp_path / "m-5")


def test_the_index_reads_back_as_written(tmp_path):
    index = write_checkpoint(tmp_path / "m-5")
    assert read_index(STORAGE, str(tmp_path / "m-5")) == index


def test_the_reader_gives_tensors_shapes_and_dtypes(prefix):
    reader = NewCheckpointReader(prefix)
    assert reader.has_tensor("w")
    assert not reader.has_tensor("v")
    assert reader.get_variable_to_shape_map() == {"w": [2, 3], "empty": [0, 2], "b/x": [], "flag": [2]}
    assert {name: dtype.name for name, dtype in reader.get_variable_to_dtype_map().items()} == {
        "w": "float32",
        "empty": "int32",
        "b/x": "float64",
        "flag": "bool",
    }
    for tensors in TENSORS:
        for name, value in tensors.items():
            np.testing.assert_array_equal(reader.get_tensor(name), value)
    assert b"w (DT_FLOAT) [2,3]\n" in reader.debug_string()
    with pytest.raises(NotFoundError, match="Key v not found in checkpoint"):
        reader.get_tensor("v")
    reader.close()


def test_directory_or_prefix(prefix, tmp_path):
    with pytest.raises(ValueError, match="Couldn't find 'checkpoint' file or checkpoints in given directory"):
        load_checkpoint(str(tmp_path))
    update_checkpoint_state(str(tmp_path), prefix)
    for path in (prefix, str(tmp_path)):
        assert list_variables(path) == [("b/x", []), ("empty", [0, 2]), ("flag", [2]), ("w", [2, 3])]
        assert load_variable(path, "b/x:0") == 2.5
    with pytest.raises(NotFoundError, match="Failed to find any matching files for"):
        load_checkpoint(str(tmp_path / "none"))


def test_verify_and_is_complete_accept_a_whole_checkpoint(prefix):
    assert is_complete(prefix)
    assert verify(prefix).steps == {"global_step": 5}


def why_not(prefix):
    try:
        verify(prefix)
    except CheckpointError as error:
        return error.message
    return None


def test_every_single_flipped_byte_is_found_and_its_file_named(prefix, tmp_path):
    found = 0
    for path in sorted(tmp_path.iterdir()):
        whole = path.read_bytes()
        for position in range(0, len(whole), 7):
            damaged = bytearray(whole)
            damaged[position] ^= 0x10
            path.write_bytes(damaged)
            reason = why_not(prefix)
            if path.suffix == ".json" and reason is None:
                continue  # white space
            assert reason is not None
            assert path.name in reason
            found += 1
        path.write_bytes(whole)
    assert found > 100
    verify(prefix)


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("damage", ["truncate", "append", "delete"])
def test_a_file_of_the_wrong_size_is_incomplete_and_named(prefix, tmp_path, shard, damage):
    path = tmp_path / shard_file_name("m-5", shard, 2)
    data = path.read_bytes()
    if damage == "delete":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if damage == "truncate" else data + b"x")
    assert not is_complete(prefix)
    with pytest.raises(CheckpointError, match=path.name):
        verify(prefix)


def test_files_of_two_checkpoints_mixed_are_noticed(prefix, tmp_path):
    write_checkpoint(tmp_path / "n-5")
    name = shard_file_name("m-5", 0, 2)
    other = {"w": np.zeros((3, 2), np.float32), "empty": np.zeros((0, 2), np.int32)}
    written = write_shard(STORAGE, str(tmp_path), name, other.items())
    assert written.file_bytes == read_index(STORAGE, prefix).files[0].nbytes
    with pytest.raises(CheckpointError, match=rf"{name}.*'w' is float32\[3, 2\].*float32\[2, 3\]"):
        verify(prefix)


def test_an_index_of_a_later_version_says_so(prefix, tmp_path):
    path = tmp_path / "m-5.index.json"
    document = json.loads(path.read_text())
    document["version"] = 2
    path.write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match="format version 2"):
        verify(prefix)
    assert not is_complete(prefix)


def test_delete_takes_all_files_of_the_checkpoint_and_no_other(prefix, tmp_path):
    write_checkpoint(tmp_path / "m-55")
    write_checkpoint(tmp_path / "m")
    (tmp_path / "m-5.meta").write_bytes(b"")
    delete_checkpoint(prefix)
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith("m-5.")]
    verify(str(tmp_path / "m-55"))
    verify(str(tmp_path / "m"))
    delete_checkpoint(prefix)


def test_leftovers_are_removed_and_checkpoints_are_not(prefix, tmp_path):
    write_checkpoint(tmp_path / "other-5")
    (tmp_path / "other-5.index.json").unlink()
    write_checkpoint(tmp_path / "m-6")
    (tmp_path / "m-6.index.json").unlink()
    write_checkpoint(tmp_path / "m-7")
    (tmp_path / "m-7.index.json").write_text("{")
    left = [
        shard_file_name("m-5", 0, 2, 1),
        f"{shard_file_name('m-8', 0, 2)}.tmp-00aa11bb",
        "m-8.index.json.tmp-00aa11bb",
        "checkpoint.tmp-00aa11bb",
        ".globalstep-probe-00aa11bb",
        shard_file_name("m-6", 0, 2),
        shard_file_name("m-6", 1, 2),
    ]
    for name in left:
        (tmp_path / name).write_bytes(b"")
    for name in ("m-notes.txt", "m.tmp-00", "checkpoint"):
        (tmp_path / name).write_bytes(b"")
    before = {path.name for path in tmp_path.iterdir()}
    assert sorted(remove_leftovers(STORAGE, str(tmp_path / "m"))) == sorted(left)
    assert {path.name for path in tmp_path.iterdir()} == before - set(left)
    verify(prefix)
