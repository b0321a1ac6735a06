"""The index of a checkpoint: what it says, and how it is written and read.

A checkpoint with the prefix `my-model-1000` is

    my-model-1000.shard-00000-of-00002.safetensors   the tensors of PS task 0
    my-model-1000.shard-00001-of-00002.safetensors   the tensors of PS task 1
    my-model-1000.index.json                         what is where; written last

It exists once its index does. When a prefix is saved again, the shard files get other names
(`...-of-00002.r1.safetensors`), so the old checkpoint stays whole until the new index has replaced its own.

What a chief with a term writes bears that term in its name, and its shard files a random word besides:

    my-model-1000.shard-00000-of-00002.term-17-9f3a01bc.safetensors
    my-model-1000.index.term-17.json                 the index that counts: of several, the one of the greatest term
    my-model-1000.index.json                         a copy of it, for people and older releases

So no two chiefs ever write one file, and one that was replaced in its sleep finds nothing of its successor's under the
names that it replaces or deletes, whatever it was about to do.

docs/checkpoints.md describes the format for other programs. Layer: chief. Threads: functions only.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import re
import secrets
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from globalstep.errors import CheckpointError, NotFoundError, OpError
from globalstep.files.shard_file import SavedTensor, check_dtype
from globalstep.files.storage import Storage, atomic_write, directory_of, path_error
from globalstep.wire.declarations import VariableDecl

INDEX_SUFFIX = ".index.json"
FORMAT_VERSION = 1
_FORMAT = "globalstep checkpoint"
_INDEX = re.compile(r"(?P<base>.+)\.index(?:\.term-(?P<term>\d{1,20}))?\.json")
#: Size of an index: some hundred bytes a Variable, and a ledger.
_MOST_INDEX_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class ShardFile:
    """One file of tensors; its name is relative to the index's directory, so a checkpoint can be moved."""

    file: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class SavedPart:
    """A tensor in one of the files: a Variable, or a part of a partitioned one."""

    #: Its name in the file.
    tensor: str
    #: Position in CheckpointIndex.files.
    file: int
    #: Where in the whole it begins, on each axis.
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    #: CRC-32 (zlib) of its raw bytes.
    crc32: int
    nbytes: int

    @classmethod
    def of(cls, file: int, saved: SavedTensor, offset: Sequence[int] | None = None) -> SavedPart:
        """Make the entry for what was written; without `offset` it is a whole."""
        begin = (0,) * len(saved.shape) if offset is None else tuple(offset)
        return cls(saved.name, file, begin, saved.shape, saved.crc32, saved.nbytes)


@dataclass(frozen=True, slots=True)
class SavedVariable:
    """The entry of a checkpoint under one name."""

    #: numpy's name.
    dtype: str
    #: Of the whole.
    shape: tuple[int, ...]
    #: One, unless the Variable was partitioned.
    parts: tuple[SavedPart, ...]
    #: "variable", "slot", "step" or "scalar" (an optimizer's scalar state).
    kind: str = "variable"
    #: For a slot: its Variable's name, its optimizer's and its own.
    primary: str = ""
    optimizer: str = ""
    slot: str = ""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return sum(part.nbytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class CheckpointIndex:
    """All that a checkpoint says of itself."""

    files: tuple[ShardFile, ...]
    #: By their names in the checkpoint.
    variables: Mapping[str, SavedVariable]
    #: Every step as of the snapshot, by the step Variable's name.
    steps: Mapping[str, int] = field(default_factory=dict)
    #: The snapshot's place in the cluster's mutation sequence.
    mutation_index: int = 0
    #: The sequencer's record of answered pushes as of the snapshot; opaque here.
    ledger: bytes = b""
    #: When it was written, seconds since the epoch.
    written_at: float = 0.0
    #: How often the prefix had been saved before.
    rewrite: int = 0
    #: Whether the state file was to name it; others are never deleted by a Saver.
    in_state: bool = True
    #: Of the chief that saved it; 0 for one without a term.
    term: int = 0

    @property
    def nbytes(self) -> int:
        """Size of all shard files."""
        return sum(file.nbytes for file in self.files)


def kind_of(decl: VariableDecl) -> str:
    """Say whether a declared Variable is a step, a slot, an optimizer's scalar or a plain variable."""
    if decl.is_step:
        return "step"
    if decl.optimizer and decl.slot:
        return "slot"
    return "scalar" if decl.optimizer else "variable"


def index_path(prefix: str, term: int = 0) -> str:
    """Give the path of a checkpoint's index: the common one, or the one of a chief's term."""
    return f"{prefix}.index.term-{term}.json" if term else prefix + INDEX_SUFFIX


def find_index(storage: Storage, prefix: str) -> str | None:
    """Give the path of the valid index, the one of the greatest term; None where there is no such checkpoint."""
    terms = [term for its, term in _indexes_in(storage, directory_of(prefix)) if its == prefix]
    return index_path(prefix, max(terms)) if terms else None


def prefixes_in(storage: Storage, directory: str) -> dict[str, int]:
    """Give the prefixes of all checkpoints of a directory, each with the greatest term that has an index of it."""
    prefixes: dict[str, int] = {}
    for prefix, term in _indexes_in(storage, directory):
        prefixes[prefix] = max(term, prefixes.get(prefix, 0))
    return prefixes


def _indexes_in(storage: Storage, directory: str) -> Iterator[tuple[str, int]]:
    """Yield the prefix and the term of each index of a directory; the term 0 for a copy, or one without."""
    for match in filter(None, map(_INDEX.fullmatch, storage.list(directory))):
        yield storage.join(directory, match["base"]), int(match["term"] or 0)


def delete_indexes(storage: Storage, prefix: str, term: int = 0, but: Sequence[str] = ()) -> None:
    """Delete the indexes of a checkpoint; a chief with a term deletes no index of a greater term.

    Args:
        storage: Where the checkpoint lies.
        prefix: Its prefix.
        term: The chief's; 0 for all.
        but: Paths of indexes that stay.
    """
    for its, named in _indexes_in(storage, directory_of(prefix)):
        path = index_path(prefix, named)
        if its == prefix and path not in but and (not term or (named or _term_in(storage, path)) <= term):
            storage.delete(path)


def _term_in(storage: Storage, path: str) -> int:
    """The term in an index; 0 for none, or where it cannot be read."""
    try:
        return _read(storage, path).term
    except (OSError, OpError):
        return 0


def shard_file_name(base: str, shard: int, shards: int, rewrite: int = 0, term: int = 0) -> str:
    """Give the name of a shard's file; with a term it is unique to this save.

    >>> shard_file_name("my-model-1000", 0, 2)
    'my-model-1000.shard-00000-of-00002.safetensors'
    """
    again = f".term-{term}-{secrets.token_hex(4)}" if term else f".r{rewrite}" if rewrite else ""
    return f"{base}.shard-{shard:05d}-of-{shards:05d}{again}.safetensors"


def write_index(storage: Storage, prefix: str, index: CheckpointIndex) -> None:
    """Write a checkpoint's index, which commits the checkpoint: under the name of its term, where it has one.

    Raises:
        OpError: If the storage refuses.
    """
    _write(storage, index_path(prefix, index.term), index)


def publish_index(storage: Storage, prefix: str, index: CheckpointIndex) -> None:
    """Copy an index that was written under its term's name to the name that everybody knows.

    A copy of a greater term stays. Nothing depends on the copy: one that a chief in its sleep puts there all the same
    is not looked at, since its successor's index has a name of its own.

    Raises:
        OpError: If the storage refuses.
    """
    if index.term and _term_in(storage, index_path(prefix)) <= index.term:
        _write(storage, index_path(prefix), index)


def _write(storage: Storage, path: str, index: CheckpointIndex) -> None:
    body = {
        "written_at": index.written_at,
        "rewrite": index.rewrite,
        "in_state": index.in_state,
        "term": index.term,
        "steps": dict(index.steps),
        "mutation_index": index.mutation_index,
        "files": [{"file": file.file, "nbytes": file.nbytes} for file in index.files],
        "variables": {name: _entry(saved) for name, saved in sorted(index.variables.items())},
        "ledger": base64.b64encode(index.ledger).decode(),
    }
    document = {"format": _FORMAT, "version": FORMAT_VERSION, "crc32": _crc(body), "checkpoint": body}
    with atomic_write(storage, path, index.term) as file:
        file.write(json.dumps(document, indent=1).encode() + b"\n")


def read_index(storage: Storage, prefix: str) -> CheckpointIndex:
    """Read a checkpoint's index: that of the greatest term.

    Raises:
        NotFoundError: If there is none.
        CheckpointError: If it is corrupt, or of a version that this release does not read.
    """
    path = find_index(storage, prefix) or index_path(prefix)
    try:
        return _read(storage, path)
    except FileNotFoundError as error:
        raise NotFoundError(_missing(storage, prefix)) from error
    except OSError as error:
        raise path_error(error, path, "read") from error


def _read(storage: Storage, path: str) -> CheckpointIndex:
    """Read an index by its path.

    Raises:
        OSError: If it is not there, or the storage refuses.
        CheckpointError: As for `read_index`.
    """
    size = storage.size(path)
    if size > _MOST_INDEX_BYTES:
        raise CheckpointError(f"{path} has {size} bytes; an index has {_MOST_INDEX_BYTES} at the most.")
    with storage.open_read(path) as file:
        text = file.read()
    try:
        document = json.loads(text)
        if document["format"] != _FORMAT:
            raise ValueError(f"its format is {document['format']!r}")
        version = document["version"]
        if version == FORMAT_VERSION and document["crc32"] != _crc(document["checkpoint"]):
            raise ValueError("its checksum does not fit")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a whole checkpoint index: {error!r}.") from error
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has format version {version}; this release of globalstep reads {FORMAT_VERSION}. "
            "Read it with the release that wrote it."
        )
    try:
        return _index_of(document["checkpoint"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"{path} is whole, but says what no checkpoint is: {error!r}.") from error


def _index_of(body: Any) -> CheckpointIndex:
    """Read what an index says; raises ValueError, KeyError, TypeError or AttributeError where it cannot be."""
    index = CheckpointIndex(
        files=tuple(ShardFile(_file_name(file["file"]), _count(file["nbytes"])) for file in body["files"]),
        variables={name: _variable(entry) for name, entry in body["variables"].items()},
        steps={name: int(value) for name, value in body["steps"].items()},
        mutation_index=_count(body["mutation_index"]),
        ledger=base64.b64decode(body["ledger"], validate=True),
        written_at=float(body["written_at"]),
        rewrite=_count(body["rewrite"]),
        in_state=bool(body["in_state"]),
        term=_count(body.get("term", 0)),  # indexes of before have none
    )
    for name, saved in index.variables.items():
        name.encode()  # what cannot be written cannot be a name
        for part in saved.parts:
            if part.file >= len(index.files):
                raise ValueError(f"{name!r} has a part in file {part.file} of {len(index.files)}")
    listed = sum(part.nbytes for saved in index.variables.values() for part in saved.parts)
    held = sum(file.nbytes for file in index.files)
    if listed > held:
        raise ValueError(f"its parts have {listed} bytes, its files {held}")
    return index


def _file_name(name: Any) -> str:
    """Check the name of a file beside the index; a path elsewhere is refused."""
    if not isinstance(name, str) or not name or name in (".", "..") or any(sign in name for sign in "/\\\0"):
        raise ValueError(f"{name!r} is not a file name")
    name.encode()
    return name


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ValueError(f"{value!r} is not a count")
    return value


def _entry(saved: SavedVariable) -> dict[str, Any]:
    entry = dataclasses.asdict(saved)
    return {key: value for key, value in entry.items() if value != "" or key == "dtype"}


def _variable(entry: dict[str, Any]) -> SavedVariable:
    shape = tuple(map(_count, entry["shape"]))
    parts = tuple(
        SavedPart(
            str(part["tensor"]), _count(part["file"]), tuple(map(_count, part["offset"])),
            tuple(map(_count, part["shape"])), _count(part["crc32"]), _count(part["nbytes"]),
        )
        for part in entry["parts"]
    )  # fmt: skip
    check_dtype("", entry["dtype"])
    for part in parts:
        if not len(part.offset) == len(part.shape) == len(shape):
            raise ValueError(f"a part at {part.offset} of shape {part.shape} has not the rank of {shape}")
        if any(at + size > whole for at, size, whole in zip(part.offset, part.shape, shape, strict=True)):
            raise ValueError(f"a part at {part.offset} of shape {part.shape} is not within {shape}")
        if part.nbytes != math.prod(part.shape) * np.dtype(entry["dtype"]).itemsize:
            raise ValueError(f"{part.nbytes} bytes do not fit a part of {entry['dtype']} {part.shape}")
    words = {key: str(value) for key, value in entry.items() if key not in ("shape", "parts")}
    return SavedVariable(**words, shape=shape, parts=parts)


def _crc(body: Any) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())


def _missing(storage: Storage, prefix: str) -> str:
    text = f"Unsuccessful TensorSliceReader constructor: Failed to find any matching files for {prefix}"
    if storage.exists(f"{prefix}.index"):
        return f"{text}. It is a TensorFlow checkpoint: run `globalstep checkpoint import {prefix} DIR` first."
    return f"{text}: there is no {index_path(prefix)}."
