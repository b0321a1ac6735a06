"""One safetensors file: the part of a checkpoint that one shard holds.

The format is the safetensors package's (a file written here is read by that package alone), written
here because the package's serializer wants all tensors in memory at once and a local path, while a
checkpoint streams, goes to any `Storage`, and takes each tensor's checksum on the way:

    8 bytes   length of the header, little-endian unsigned
    header    JSON: {name: {"dtype", "shape", "data_offsets"}}, padded by spaces
    data      the tensors' raw little-endian bytes without gaps, widest dtypes first so that all are aligned

Layer: shared. Imports nothing of globalstep but errors and storage. Threads: functions only.
"""

from __future__ import annotations

import json
import math
import struct
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from globalstep.errors import CheckpointError, InvalidArgumentError, NotFoundError
from globalstep.files.storage import Storage, atomic_write, path_error

Array = npt.NDArray[Any]

#: How many bytes of tensors a streaming writer asks for at a time.
PIECE_BYTES = 64 << 20
#: What a checksum is computed of at a time: it stays in the processor's cache.
_BLOCK_BYTES = 256 << 10
#: numpy's name of a dtype that has NaN -> how its elements lie in a file.
_FLOATS = {"float16": "<f2", "float32": "<f4", "float64": "<f8"}

_TO_FILE = {
    "bool": "BOOL",
    "int8": "I8",
    "uint8": "U8",
    "int16": "I16",
    "uint16": "U16",
    "float16": "F16",
    "int32": "I32",
    "uint32": "U32",
    "float32": "F32",
    "int64": "I64",
    "uint64": "U64",
    "float64": "F64",
}
_FROM_FILE = {code: name for name, code in _TO_FILE.items()}
_LENGTH = struct.Struct("<Q")
# Some 300,000 tensors. The package takes up to 100 MB, whose JSON may take gigabytes as objects.
_MAX_HEADER_BYTES = 32 << 20
#: Of a tensor; numpy has no more.
_MOST_AXES = 64


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor to be written: numpy's name of its dtype, and its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor as it was written."""

    name: str
    #: numpy's name.
    dtype: str
    shape: tuple[int, ...]
    #: CRC-32 (zlib) of the raw bytes.
    crc32: int
    nbytes: int
    #: Some element is NaN.
    has_nan: bool = False


@dataclass(frozen=True, slots=True)
class ShardWritten:
    """A shard's file as it was written."""

    tensors: tuple[SavedTensor, ...]
    #: Size of the whole file.
    file_bytes: int


def check_dtype(name: str, dtype: Any) -> str:
    """Give numpy's name of a dtype that a checkpoint can hold.

    Args:
        name: The tensor's name, for the error.
        dtype: Anything numpy takes for a dtype.

    Raises:
        InvalidArgumentError: For strings, complex numbers and whatever else safetensors does not hold.

    >>> check_dtype("w", np.float32)
    'float32'
    """
    kind = str(np.dtype(dtype).name)
    if kind not in _TO_FILE:
        raise InvalidArgumentError(
            f"The Variable {name!r} has dtype {kind}, which a checkpoint cannot hold: safetensors files "
            f"hold {', '.join(sorted(_TO_FILE))}. Leave it out of the Saver's var_list."
        )
    return kind


def write_shard(storage: Storage, directory: str, file: str, tensors: Iterable[tuple[str, Array]]) -> ShardWritten:
    """Write arrays that are in memory already as one safetensors file.

    Nothing is copied but arrays that are not contiguous or not little-endian, one at a time.

    Raises:
        InvalidArgumentError: For a dtype that safetensors does not hold, or a name given twice.
        OpError: If the storage refuses; then there is no such file.
    """
    arrays: dict[str, Array] = {}
    for name, value in tensors:
        if name in arrays:
            raise InvalidArgumentError(f"The tensor {name!r} was given twice for {file!r}.")
        arrays[name] = np.asarray(value)
    specs = [TensorSpec(name, check_dtype(name, value.dtype), value.shape) for name, value in arrays.items()]
    # One piece: what is in memory already need not wait for the checksums of what went before.
    return write_shard_from(
        storage,
        directory,
        file,
        specs,
        lambda names: [arrays[name] for name in names],
        piece_bytes=sum(spec.nbytes for spec in specs),
    )


def write_shard_from(
    storage: Storage,
    directory: str,
    file: str,
    specs: Sequence[TensorSpec],
    read: Callable[[list[str]], Sequence[Array]],
    piece_bytes: int = PIECE_BYTES,
) -> ShardWritten:
    """Write one safetensors file of tensors that are fetched piece by piece.

    Args:
        storage: Where `directory` lies.
        directory: Directory of the file.
        file: The file's name in it.
        specs: The tensors, in any order.
        read: Gives the arrays for some names, in that order. Called for about `piece_bytes` at a time.
        piece_bytes: See `read`; a larger tensor comes alone.

    Raises:
        InvalidArgumentError: For a dtype that safetensors does not hold, or an array that is not what
            its spec says.
        OpError: If the storage refuses; then there is no such file.
    """
    checked = [TensorSpec(spec.name, check_dtype(spec.name, spec.dtype), tuple(spec.shape)) for spec in specs]
    ordered = sorted(checked, key=lambda spec: (-np.dtype(spec.dtype).itemsize, spec.name))
    head = _header(ordered)
    checksums: list[Future[tuple[int, bool]]] = []
    # A tensor's checksum is computed while it, or the fsync, is being written: all leave the GIL.
    with ThreadPoolExecutor(1, thread_name_prefix="checkpoint-crc") as pool:
        with atomic_write(storage, storage.join(directory, file)) as out:
            out.write(head)
            held = 0
            for piece in _pieces(ordered, piece_bytes):
                # At most two pieces are in memory: the one to come, and the one being summed up.
                wait(checksums[:held])
                held = len(checksums)
                for spec, value in zip(piece, read([spec.name for spec in piece]), strict=True):
                    raw = _raw_bytes(spec, value)
                    checksums.append(_submitted(pool, raw, spec.dtype))
                    out.write(raw)
        saved = tuple(
            SavedTensor(spec.name, spec.dtype, spec.shape, crc, spec.nbytes, has_nan)
            for spec, (crc, has_nan) in zip(ordered, [future.result() for future in checksums], strict=True)
        )
    return ShardWritten(saved, len(head) + sum(tensor.nbytes for tensor in saved))


def _submitted(pool: ThreadPoolExecutor, raw: memoryview, dtype: str) -> Future[tuple[int, bool]]:
    """Sum a tensor up beside this thread; in it, where the program's main thread is over and pools are closed."""
    try:
        return pool.submit(_sum_up, raw, dtype)
    except RuntimeError:
        summed: Future[tuple[int, bool]] = Future()
        summed.set_result(_sum_up(raw, dtype))
        return summed


def _sum_up(raw: memoryview, dtype: str) -> tuple[int, bool]:
    """Give the checksum of a tensor, and whether some element is NaN; block by block, while it is in the cache."""
    crc, has_nan = 0, False
    for at in range(0, raw.nbytes, _BLOCK_BYTES):
        block = raw[at : at + _BLOCK_BYTES]
        crc = zlib.crc32(block, crc)
        if dtype in _FLOATS and not has_nan:
            # The least element is NaN if any is: no array of answers is made.
            with np.errstate(invalid="ignore"):
                has_nan = bool(np.isnan(np.minimum.reduce(np.frombuffer(block, _FLOATS[dtype]))))
    return crc, has_nan


def _header(ordered: Sequence[TensorSpec]) -> bytes:
    entries: dict[str, Any] = {}
    offset = 0
    for spec in ordered:
        end = offset + spec.nbytes
        entries[spec.name] = {
            "dtype": _TO_FILE[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _MAX_HEADER_BYTES:
        raise InvalidArgumentError(
            f"{len(ordered)} tensors make a header of {len(text)} bytes; there may be "
            f"{_MAX_HEADER_BYTES}. Spread the Variables over more PS tasks."
        )
    return _LENGTH.pack(len(text)) + text


def _pieces(ordered: Sequence[TensorSpec], piece_bytes: int) -> Iterator[list[TensorSpec]]:
    piece: list[TensorSpec] = []
    size = 0
    for spec in ordered:
        if piece and size + spec.nbytes > piece_bytes:
            yield piece
            piece, size = [], 0
        piece.append(spec)
        size += spec.nbytes
    if piece:
        yield piece


def _raw_bytes(spec: TensorSpec, value: Array) -> memoryview:
    if value.dtype.name != spec.dtype or value.shape != spec.shape:
        raise InvalidArgumentError(
            f"The tensor {spec.name!r} came as {value.dtype.name}{list(value.shape)}, "
            f"but {spec.dtype}{list(spec.shape)} was announced."
        )
    # reshape(-1) first: a memoryview of a scalar or of an empty array cannot be cast.
    flat = np.ascontiguousarray(value.reshape(-1), dtype=value.dtype.newbyteorder("<"))
    return flat.view(np.uint8).data if flat.size else memoryview(b"")


class ShardReader:
    """Reads single tensors of a safetensors file, from any storage.

    Not thread-safe; close it, or use it in a `with` block.

    Raises:
        CheckpointError: If it is not a whole safetensors file; the text names it.
        NotFoundError: If it is not there.
    """

    def __init__(self, storage: Storage, path: str) -> None:
        self._path = path
        try:
            self._file: BinaryIO = storage.open_read(path)
        except OSError as error:
            raise path_error(error, path, "read") from error
        try:
            self.specs: dict[str, TensorSpec] = {}
            self._offsets: dict[str, int] = {}
            self._read_header(storage.size(path))
        except BaseException:
            self._file.close()
            raise

    def _read_header(self, file_bytes: int) -> None:
        length_bytes = self._file.read(_LENGTH.size)
        length = _LENGTH.unpack(length_bytes)[0] if len(length_bytes) == _LENGTH.size else -1
        if not 0 < length <= min(_MAX_HEADER_BYTES, file_bytes - _LENGTH.size):
            raise CheckpointError(f"{self._path} is not a safetensors file, or is cut off in its header.")
        self._data_start = _LENGTH.size + length
        try:
            entries = json.loads(self._file.read(length))
            entries.pop("__metadata__", None)  # of other programs; this one writes none
            for name, entry in entries.items():
                spec = TensorSpec(name, _FROM_FILE[entry["dtype"]], tuple(entry["shape"]))
                begin, stop = entry["data_offsets"]
                sizes = (begin, stop, *spec.shape)
                if len(sizes) > _MOST_AXES or any(type(n) is not int or not 0 <= n < 1 << 48 for n in sizes):
                    raise ValueError(f"{name!r} is at {begin} to {stop} and of shape {list(spec.shape)}")
                if stop - begin != spec.nbytes:
                    raise ValueError(f"{name!r} has {stop - begin} bytes instead of {spec.nbytes}")
                self.specs[name] = spec
                self._offsets[name] = begin
                name.encode()
            # Each begins where the one before it ends, as safetensors has it.
            end = 0
            for name in sorted(self.specs, key=lambda name: (self._offsets[name], self.specs[name].nbytes)):
                if self._offsets[name] != end:
                    raise ValueError(f"{name!r} begins at {self._offsets[name]}; the tensor before it ends at {end}")
                end += self.specs[name].nbytes
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise CheckpointError(f"The header of {self._path} is corrupt: {error!r}.") from error
        if self._data_start + end != file_bytes:
            raise CheckpointError(
                f"{self._path} has {file_bytes} bytes, but its header tells of {self._data_start + end}: "
                "it was cut off or appended to."
            )

    def offset_of(self, name: str) -> int:
        """Give where in the file the bytes of a tensor begin."""
        return self._data_start + self._offsets[name]

    def read(self, name: str) -> Array:
        """Read one tensor.

        Raises:
            NotFoundError: If the file has no such tensor.
            CheckpointError: If the file ends too early.
        """
        spec = self._spec(name)
        return self._read(spec, self._offsets[name], spec.shape)

    def _spec(self, name: str) -> TensorSpec:
        spec = self.specs.get(name)
        if spec is None:
            raise NotFoundError(f"Key {name} not found in {self._path}")
        return spec

    def _read(self, spec: TensorSpec, offset: int, shape: tuple[int, ...]) -> Array:
        value = np.empty(shape, dtype=np.dtype(spec.dtype).newbyteorder("<"))
        if value.size:
            into = value.reshape(-1).view(np.uint8).data
            self._file.seek(self._data_start + offset)
            while into:
                # Object stores give what they have at hand, so one call may not fill it.
                count = self._file.readinto(into)  # type: ignore[attr-defined]
                if not count:
                    raise CheckpointError(f"{self._path} ends within the tensor {spec.name!r}.")
                into = into[count:]
        return value if sys.byteorder == "little" else value.astype(spec.dtype)

    def pieces(self, name: str, piece_bytes: int = PIECE_BYTES) -> Iterator[Array]:
        """Read one tensor some rows at a time.

        Args:
            name: Its name in the file; it has at least one axis.
            piece_bytes: Of a piece, at most; a row of more comes alone.

        Returns:
            Arrays of rows, one behind the other.

        Raises:
            NotFoundError: If the file has no such tensor.
            CheckpointError: If the file ends too early.
        """
        spec = self._spec(name)
        row_bytes = np.dtype(spec.dtype).itemsize * math.prod(spec.shape[1:])
        rows = max(1, piece_bytes // max(1, row_bytes))
        for at in range(0, spec.shape[0], rows):
            count = min(rows, spec.shape[0] - at)
            yield self._read(spec, self._offsets[name] + at * row_bytes, (count, *spec.shape[1:]))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> ShardReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
