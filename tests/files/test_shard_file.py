import json
import struct
import zlib

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from globalstep.errors import CheckpointError, InvalidArgumentError, NotFoundError
from globalstep.files.shard_file import ShardReader, TensorSpec, check_dtype, write_shard, write_shard_from
from globalstep.files.storage import LocalStorage, storage_for

STORAGE = LocalStorage()
DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "float16", "int32", "uint32", "float32", "int64",
          "uint64", "float64"]  # fmt: skip


def some_tensors():
    rng = np.random.default_rng(1)
    tensors = {f"t/{name}": (rng.normal(size=(3, 5)) * 9).astype(name) for name in DTYPES}
    tensors["scalar"] = np.array(7, np.int64)
    tensors["empty"] = np.zeros((0, 4), np.float32)
    tensors["odd"] = np.arange(3, dtype=np.uint8)
    return tensors


def test_the_safetensors_package_alone_reads_it(tmp_path):
    tensors = some_tensors()
    write_shard(STORAGE, str(tmp_path), "a.safetensors", tensors.items())
    read = safetensors.numpy.load_file(tmp_path / "a.safetensors")
    assert set(read) == set(tensors)
    for name, value in tensors.items():
        assert read[name].dtype == value.dtype
        np.testing.assert_array_equal(read[name], value)
        assert read[name].shape == value.shape


def test_what_it_returns_is_what_was_written(tmp_path):
    tensors = some_tensors()
    written = write_shard(STORAGE, str(tmp_path), "a", tensors.items())
    assert written.file_bytes == (tmp_path / "a").stat().st_size
    assert {t.name for t in written.tensors} == set(tensors)
    for saved in written.tensors:
        value = tensors[saved.name]
        assert (saved.dtype, saved.shape, saved.nbytes) == (value.dtype.name, value.shape, value.nbytes)
        assert saved.crc32 == zlib.crc32(value.tobytes())


def test_what_the_package_writes_is_read(tmp_path):
    tensors = some_tensors()
    safetensors.numpy.save_file(tensors, tmp_path / "a", {"by": "package"})
    with ShardReader(STORAGE, str(tmp_path / "a")) as reader:
        for name, value in tensors.items():
            np.testing.assert_array_equal(reader.read(name), value)
            assert reader.read(name).dtype == value.dtype


def test_big_endian_and_strided_arrays_are_written_little_endian_and_dense(tmp_path):
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    write_shard(STORAGE, str(tmp_path), "a", [("big", base.astype(">f4")), ("strided", base[:, ::2])])
    read = safetensors.numpy.load_file(tmp_path / "a")
    np.testing.assert_array_equal(read["big"], base)
    np.testing.assert_array_equal(read["strided"], base[:, ::2])


def test_no_tensors_make_a_readable_file(tmp_path):
    write_shard(STORAGE, str(tmp_path), "a", [])
    assert safetensors.numpy.load_file(tmp_path / "a") == {}


@pytest.mark.parametrize("dtype", ["complex64", "U4", "O"])
def test_a_dtype_that_safetensors_lacks_is_refused_and_leaves_nothing(tmp_path, dtype):
    with pytest.raises(InvalidArgumentError, match=r"Variable 'w' has dtype"):
        write_shard(STORAGE, str(tmp_path), "a", [("w", np.zeros(2, dtype))])
    assert list(tmp_path.iterdir()) == []


def test_a_name_given_twice_is_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="twice"):
        write_shard(STORAGE, str(tmp_path), "a", [("w", np.zeros(1)), ("w", np.ones(1))])


def test_streaming_asks_for_few_bytes_at_a_time_and_in_the_files_order(tmp_path):
    values = {f"v{i}": np.full(100, i, np.float32) for i in range(10)}
    asked = []

    def read(names):
        asked.append(list(names))
        return [values[name] for name in names]

    specs = [TensorSpec(name, "float32", (100,)) for name in values]
    write_shard_from(STORAGE, str(tmp_path), "a", specs, read, piece_bytes=900)
    assert [len(names) for names in asked] == [2, 2, 2, 2, 2]
    for name, value in safetensors.numpy.load_file(tmp_path / "a").items():
        np.testing.assert_array_equal(value, values[name])


def test_a_streamed_array_that_is_not_as_announced_is_refused_and_leaves_nothing(tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"'w' came as float64\[3\], but float32\[2\]"):
        write_shard_from(STORAGE, str(tmp_path), "a", [TensorSpec("w", "float32", (2,))], lambda _: [np.zeros(3)])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("keep", [0, 4, 8, 20, -1])
def test_a_truncated_file_is_named(tmp_path, keep):
    path = tmp_path / "a.safetensors"
    write_shard(STORAGE, str(tmp_path), path.name, some_tensors().items())
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"a\.safetensors"):
        ShardReader(STORAGE, str(path))


@pytest.mark.parametrize(
    "header",
    [
        b"[1]     ",
        b"{bad}   ",
        json.dumps({"w": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}).encode(),
        json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}).encode(),
        json.dumps({name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for name in "vw"}).encode(),
        json.dumps({"w": {"dtype": "F16", "shape": [1], "data_offsets": [2, 4]}}).encode(),
    ],
)
def test_a_corrupt_header_is_named(tmp_path, header):
    (tmp_path / "a").write_bytes(struct.pack("<Q", len(header)) + header + b"1234")
    with pytest.raises(CheckpointError, match="/a"):
        ShardReader(STORAGE, str(tmp_path / "a"))


def test_a_missing_file_and_a_missing_tensor(tmp_path):
    with pytest.raises(NotFoundError, match="nothere"):
        ShardReader(STORAGE, str(tmp_path / "nothere"))
    write_shard(STORAGE, str(tmp_path), "a", [("w", np.zeros(1))])
    with ShardReader(STORAGE, str(tmp_path / "a")) as reader, pytest.raises(NotFoundError, match="Key b not"):
        reader.read("b")


def test_fsspec_url():
    directory = "memory://test_shard_file"
    storage = storage_for(directory)
    tensors = some_tensors()
    write_shard(storage, directory, "a", tensors.items())
    with ShardReader(storage, f"{directory}/a") as reader:
        for name, value in tensors.items():
            np.testing.assert_array_equal(reader.read(name), value)
    assert storage.list(directory) == ["a"]


def test_check_dtype_names_the_dtypes_that_work():
    with pytest.raises(InvalidArgumentError, match="float32"):
        check_dtype("w", np.complex128)
