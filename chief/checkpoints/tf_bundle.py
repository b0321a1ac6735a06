"""Reader and writer of TensorFlow's own checkpoints (V2, "tensor bundles"), without TensorFlow.

`<prefix>.index` is a sorted string table as LevelDB writes it: blocks of prefix-compressed entries, an
index of the blocks, a footer. The entry "" is a BundleHeader, every other one a BundleEntry that says in
which `<prefix>.data-?????-of-?????` file a tensor's bytes are. A partitioned Variable has an entry of its
whole shape and a list of its slices; each slice has an entry of its own under an encoded key.

Source of the formats: tensorflow/core/util/tensor_bundle/tensor_bundle.h, core/lib/io/table_format.txt,
core/lib/strings/ordered_code.h.

Layer: chief. Threads: a TensorBundle belongs to one thread at a time.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tensorboard.compat.proto import types_pb2

from globalstep.chief.checkpoints.checkpoint import Box, overlap
from globalstep.chief.checkpoints.tf_messages import BundleEntry, BundleHeader
from globalstep.errors import CheckpointError, InvalidArgumentError, NotFoundError, OpError
from globalstep.files.records import masked_crc32c
from globalstep.files.storage import Storage, atomic_write, path_error, storage_for
from globalstep.wire.frames import varint

Array = npt.NDArray[Any]

#: The last eight bytes of an index.
MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES = 48
#: Limits of what one index may unfold to: keys share prefixes, so a small file could name gigabytes. TensorFlow's own
#: tables begin a key anew every 16 entries.
_MOST_KEY_BYTES = 4096
_MOST_KEY_BYTES_PER_BYTE = 64
#: Of a tensor; numpy has no more.
_MOST_AXES = 64
#: TensorFlow's name in types.proto -> numpy's.
NAMES = {
    "DT_BOOL": "bool",
    "DT_INT8": "int8",
    "DT_UINT8": "uint8",
    "DT_INT16": "int16",
    "DT_UINT16": "uint16",
    "DT_HALF": "float16",
    "DT_INT32": "int32",
    "DT_UINT32": "uint32",
    "DT_FLOAT": "float32",
    "DT_INT64": "int64",
    "DT_UINT64": "uint64",
    "DT_DOUBLE": "float64",
}
_DATA_TYPES = types_pb2.DESCRIPTOR.enum_types_by_name["DataType"]
_DTYPES = {_DATA_TYPES.values_by_name[name].number: dtype for name, dtype in NAMES.items()}


class TensorBundle:
    """A TensorFlow checkpoint, opened for reading.

    Attributes:
        shapes: Name -> shape, of the tensors that numpy has a dtype for.
        dtypes: Name -> numpy's name of the dtype, of the same.
        unreadable: Name -> TensorFlow's dtype, of the others (strings, complex numbers, bfloat16, ...).

    Raises:
        NotFoundError: If there is no `<prefix>.index`.
        CheckpointError: If that is corrupt, or compressed.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._storage = storage_for(prefix)
        path = f"{prefix}.index"
        entries = dict(_table(path, _read(self._storage, path)))
        header = BundleHeader.FromString(entries.pop(b"", b""))
        self._shards = header.num_shards
        self._big_endian = bool(header.endianness)
        self._entries: dict[bytes, Any] = {key: BundleEntry.FromString(value) for key, value in entries.items()}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, str] = {}
        self.unreadable: dict[str, str] = {}
        for key, entry in self._entries.items():
            # Keys of slices begin with the number 0, which is the byte 0; no name does.
            if key.startswith(b"\0"):
                continue
            name = key.decode()
            if entry.dtype in _DTYPES:
                shape = _shape(entry)
                if any(size < 0 for size in shape) or len(shape) > _MOST_AXES:
                    raise CheckpointError(f"{path}: the tensor {name!r} has the impossible shape {list(shape)}.")
                self.shapes[name] = shape
                self.dtypes[name] = _DTYPES[entry.dtype]
            else:
                self.unreadable[name] = _tf_name(entry.dtype)

    def read(self, name: str) -> Array:
        """Read a tensor; one in slices is put together.

        Raises:
            NotFoundError: If there is none of that name.
            CheckpointError: If its bytes are missing or changed; the text names file and tensor.
        """
        if name not in self.shapes:
            raise NotFoundError(f"Key {name} not found in checkpoint {self._prefix}")
        entry = self._entries[name.encode()]
        if not entry.slices:
            return self._read_entry(name, entry)
        slices = self._slices(name, entry)
        value = np.empty(self.shapes[name], self.dtypes[name])
        for (offset, _), part in slices:
            data = self._read_entry(name, part)
            value[tuple(slice(at, at + length) for at, length in zip(offset, data.shape, strict=True))] = data
        return value

    def _slices(self, name: str, entry: Any) -> list[tuple[Box, Any]]:
        """Give the slices of a tensor, after checking that together they are the whole of it."""
        shape = self.shapes[name]
        slices: list[tuple[Box, Any]] = []
        for part in entry.slices:
            stored = self._entries.get(_slice_key(name, part))
            if stored is None:
                raise CheckpointError(f"{self._prefix}.index: a slice of {name!r} is missing: {part}.")
            box = _box(part, shape)
            if box is None or (box[1], stored.dtype) != (_shape(stored), entry.dtype):
                raise CheckpointError(
                    f"{self._prefix}.index: a slice does not fit {name!r} of shape {list(shape)}: {part}."
                )
            slices.append((box, stored))
        covered, whole = sum(math.prod(box[1]) for box, _ in slices), math.prod(shape)
        if covered != whole or overlap([box for box, _ in slices]):
            raise CheckpointError(
                f"{self._prefix}.index: the slices of {name!r} overlap, or hold {covered} of its {whole} elements."
            )
        return slices

    def _read_entry(self, name: str, entry: Any) -> Array:
        path = f"{self._prefix}.data-{entry.shard_id:05d}-of-{self._shards:05d}"
        dtype = np.dtype(_DTYPES[entry.dtype])
        shape = _shape(entry)
        if entry.size != dtype.itemsize * math.prod(shape):
            raise CheckpointError(
                f"{self._prefix}.index: {name!r} has {entry.size} bytes, which do not fit {dtype.name}{list(shape)}."
            )
        data = _read(self._storage, path, entry.offset, entry.size)
        if len(data) != entry.size:
            raise CheckpointError(f"{path} ends within the tensor {name!r}, or its entry is corrupt.")
        if masked_crc32c(data) != entry.crc32c:
            raise CheckpointError(f"{path}: the tensor {name!r} is corrupt: its checksum does not fit.")
        return np.frombuffer(data, dtype.newbyteorder(">" if self._big_endian else "<")).reshape(shape).astype(dtype)


def _tf_name(number: int) -> str:
    value = _DATA_TYPES.values_by_number.get(number)
    return f"type {number}" if value is None else value.name.removeprefix("DT_").lower()


def _shape(entry: Any) -> tuple[int, ...]:
    return tuple(dim.size for dim in entry.shape.dim)


def _box(part: Any, shape: tuple[int, ...]) -> Box | None:
    """Give where a slice begins and its shape; None if it is not within the tensor."""
    if len(part.extent) != len(shape):
        return None
    offset, lengths = [], []
    for extent, size in zip(part.extent, shape, strict=True):
        length = extent.length if extent.HasField("length") else size - extent.start
        if extent.start < 0 or length < 0 or extent.start + length > size:
            return None
        offset.append(extent.start)
        lengths.append(length)
    return tuple(offset), tuple(lengths)


def _read(storage: Storage, path: str, offset: int = 0, nbytes: int | None = None) -> bytes:
    """Read a file's bytes from `offset` on; fewer than `nbytes` where the file ends before."""
    try:
        # A length that is not true takes no more memory than there are bytes.
        left = max(storage.size(path) - offset, 0)
        with storage.open_read(path) as file:
            file.seek(offset)
            return file.read(left if nbytes is None else min(nbytes, left))
    except OSError as error:
        raise path_error(error, path, "read") from error


def _table(path: str, data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The entries of a sorted string table."""
    try:
        if len(data) < _FOOTER_BYTES or struct.unpack("<Q", data[-8:])[0] != MAGIC:
            raise CheckpointError(f"{path} is not the index of a TensorFlow V2 checkpoint, or is cut off.")
        footer = data[-_FOOTER_BYTES:]
        _, position = _handle(footer, 0)  # of a block that is always empty
        blocks, _ = _handle(footer, position)
        key_bytes, end, last = 0, 0, b""
        for _, value in _block(path, data, *blocks):
            (offset, size), _ = _handle(value, 0)
            if offset < end:
                raise ValueError(f"the block at {offset} begins before the end of the one before it")
            end = offset + size
            for key, entry in _block(path, data, offset, size):
                if key_bytes and key <= last:
                    raise ValueError(f"its keys are not in order: {key!r} comes after {last!r}")
                last, key_bytes = key, key_bytes + max(len(key), 1)
                if key_bytes > _MOST_KEY_BYTES_PER_BYTE * len(data):
                    raise ValueError(f"its {len(data)} bytes unfold to {key_bytes} bytes of names")
                yield key, entry
    except OpError:
        raise
    except Exception as error:
        raise CheckpointError(f"{path} is corrupt: {error!r}.") from error


def _block(path: str, data: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    block = data[offset : offset + size]
    kind, crc = struct.unpack_from("<BI", data, offset + size)
    if masked_crc32c(data[offset : offset + size + 1]) != crc:
        raise CheckpointError(f"{path} is corrupt: the checksum of its block at {offset} does not fit.")
    if kind != 0:
        raise CheckpointError(
            f"{path} is compressed (kind {kind}), as TensorFlow's own saver never writes it: save the "
            "checkpoint again with TensorFlow."
        )
    (restarts,) = struct.unpack_from("<I", block, size - 4)
    end = size - 4 * (restarts + 1)
    position, key = 0, b""
    while position < end:
        shared, position = _varint(block, position)
        fresh, position = _varint(block, position)
        length, position = _varint(block, position)
        if shared + fresh > _MOST_KEY_BYTES:
            raise ValueError(f"a name of {shared + fresh} bytes; the longest are of {_MOST_KEY_BYTES}")
        key = key[:shared] + block[position : position + fresh]
        position += fresh
        yield key, block[position : position + length]
        position += length


def _handle(data: bytes, position: int) -> tuple[tuple[int, int], int]:
    offset, position = _varint(data, position)
    size, position = _varint(data, position)
    return (offset, size), position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _slice_key(name: str, part: Any) -> bytes:
    """The key under which a slice of a partitioned Variable is stored."""
    key = _ordered_number(0) + name.encode().replace(b"\xff", b"\xff\0").replace(b"\0", b"\0\xff") + b"\0\1"
    key += _ordered_number(len(part.extent))
    for extent in part.extent:
        key += _ordered_signed(extent.start)
        key += _ordered_signed(extent.length if extent.HasField("length") else -1)
    return key


def _ordered_number(value: int) -> bytes:
    raw = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return bytes([len(raw)]) + raw


def _ordered_signed(value: int) -> bytes:
    """Two's complement in n bytes whose first n bits, inverted sign bits, tell n."""
    size = (value if value >= 0 else ~value).bit_length() // 7 + 1
    marks = ((1 << size) - 1) << (8 * size - size)
    return ((value & ((1 << 8 * size) - 1)) ^ marks).to_bytes(size, "big")


_NUMBERS = {dtype: types_pb2.DataType.Value(name) for name, dtype in NAMES.items()}
#: A key is written whole every so many entries, and a block ends when it has grown so large, as in TensorFlow.
_RESTART_INTERVAL = 16
_BLOCK_BYTES = 262_144
#: The header's version: VersionDef(producer=1), in field 3, which readers of today compare.
_VERSION = b"\x1a\x02\x08\x01"


def write_bundle(storage: Storage, prefix: str, names: Iterable[str], read: Callable[[str], Array]) -> None:
    """Write a checkpoint of one data file; the index, which makes it one, comes last.

    Raises:
        InvalidArgumentError: If a tensor has a dtype that is not written; no file is left.
        OpError: If a file cannot be written.
    """
    entries = [(b"", BundleHeader(num_shards=1).SerializeToString() + _VERSION)]
    offset = 0
    with atomic_write(storage, f"{prefix}.data-00000-of-00001") as file:
        for key, name in sorted((name.encode(), name) for name in names):
            value = np.asarray(read(name))
            number = _NUMBERS.get(value.dtype.name)
            if number is None:
                raise InvalidArgumentError(f"The tensor {name!r} has the dtype {value.dtype}, which is not written.")
            flat = np.ascontiguousarray(value, value.dtype.newbyteorder("<")).reshape(-1)
            # A view: a copy would be a second tensor in memory, or one that lies on disk.
            data: Any = flat.view(np.uint8) if flat.size else b""
            entry = BundleEntry(dtype=number, offset=offset, size=len(data), crc32c=masked_crc32c(data))
            entry.shape.SetInParent()
            for size in value.shape:
                entry.shape.dim.add(size=size)
            entries.append((key, entry.SerializeToString()))
            file.write(data)
            offset += len(data)
    with atomic_write(storage, f"{prefix}.index") as file:
        for part in _written_table(entries):
            file.write(part)


def _written_table(entries: Sequence[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """A sorted string table of entries whose keys are in order."""
    at, handles = 0, []
    for last, block in _written_blocks(entries):
        yield block
        handles.append((last, _written_handle(at, block)))
        at += len(block)
    nothing, index = _written_block([]), _written_block(handles, restart_interval=1)
    yield nothing
    yield index
    footer = _written_handle(at, nothing) + _written_handle(at + len(nothing), index)
    yield footer.ljust(40, b"\0") + struct.pack("<Q", MAGIC)


def _written_blocks(entries: Sequence[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """The blocks of a table, each with its last key."""
    held: list[tuple[bytes, bytes]] = []
    size = 0
    for key, value in entries:
        held.append((key, value))
        size += len(key) + len(value)
        if size >= _BLOCK_BYTES:
            yield key, _written_block(held)
            held, size = [], 0
    if held:
        yield held[-1][0], _written_block(held)


def _written_block(entries: Sequence[tuple[bytes, bytes]], restart_interval: int = _RESTART_INTERVAL) -> bytes:
    """A block with its trailer: the kind, not compressed, and a checksum."""
    body, restarts, before = bytearray(), [], b""
    for place, (key, value) in enumerate(entries):
        shared = 0
        if place % restart_interval == 0:
            restarts.append(len(body))
        else:
            while shared < min(len(key), len(before)) and key[shared] == before[shared]:
                shared += 1
        body += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        before = key
    restarts = restarts or [0]
    body += struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts)) + b"\0"
    return bytes(body) + struct.pack("<I", masked_crc32c(bytes(body)))


def _written_handle(offset: int, block: bytes) -> bytes:
    """The place of a block, without its trailer."""
    return varint(offset) + varint(len(block) - 5)
