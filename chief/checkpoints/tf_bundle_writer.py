"""Writer of TensorFlow's own checkpoints (V2, "tensor bundles"), without TensorFlow; `tf_bundle` says what they are.

Layer: chief. Threads: functions only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tensorboard.compat.proto import types_pb2

from globalstep.chief.checkpoints.tf_bundle import MAGIC, NAMES
from globalstep.chief.checkpoints.tf_messages import BundleEntry, BundleHeader
from globalstep.errors import InvalidArgumentError
from globalstep.files.records import masked_crc32c
from globalstep.files.storage import Storage, atomic_write
from globalstep.wire.frames import varint

Array = npt.NDArray[Any]

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
        for part in _table(entries):
            file.write(part)


def _table(entries: Sequence[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """A sorted string table of entries whose keys are in order."""
    at, handles = 0, []
    for last, block in _blocks(entries):
        yield block
        handles.append((last, _handle(at, block)))
        at += len(block)
    nothing, index = _block([]), _block(handles, restart_interval=1)
    yield nothing
    yield index
    footer = _handle(at, nothing) + _handle(at + len(nothing), index)
    yield footer.ljust(40, b"\0") + struct.pack("<Q", MAGIC)


def _blocks(entries: Sequence[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """The blocks of a table, each with its last key."""
    held: list[tuple[bytes, bytes]] = []
    size = 0
    for key, value in entries:
        held.append((key, value))
        size += len(key) + len(value)
        if size >= _BLOCK_BYTES:
            yield key, _block(held)
            held, size = [], 0
    if held:
        yield held[-1][0], _block(held)


def _block(entries: Sequence[tuple[bytes, bytes]], restart_interval: int = _RESTART_INTERVAL) -> bytes:
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


def _handle(offset: int, block: bytes) -> bytes:
    """The place of a block, without its trailer."""
    return varint(offset) + varint(len(block) - 5)
