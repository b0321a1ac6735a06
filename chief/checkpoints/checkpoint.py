"""Reading and checking checkpoints; `checkpoint_format` says what they are.

Layer: chief. A CheckpointReader belongs to one thread at a time.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.chief.checkpoints.checkpoint_format import (
    INDEX_SUFFIX,
    CheckpointIndex,
    SavedPart,
    SavedVariable,
    delete_indexes,
    find_index,
    index_path,
    prefixes_in,
    read_index,
)
from globalstep.dtypes import DType, as_dtype
from globalstep.errors import CheckpointError, NotFoundError, OpError
from globalstep.files.disk_arrays import IN_MEMORY_BYTES, PIECE_BYTES, array_on_disk
from globalstep.files.shard_file import ShardReader
from globalstep.files.storage import PROBE, TEMPORARY, Storage, directory_of, storage_for

Array = npt.NDArray[Any]


class CheckpointReader:
    """Reads single tensors of one checkpoint; each is checked against its checksum as it is read.

    Close it, or use it in a `with` block. Not thread-safe.

    Attributes:
        prefix: As given.
        index: The checkpoint's index.

    Raises:
        NotFoundError: If there is no such checkpoint.
        CheckpointError: If its index is corrupt.
    """

    def __init__(self, prefix: str, storage: Storage | None = None) -> None:
        self.prefix = prefix
        self._storage = storage if storage is not None else storage_for(prefix)
        self.index: CheckpointIndex = read_index(self._storage, prefix)
        self._files: dict[int, ShardReader] = {}

    def has_tensor(self, tensor_str: str) -> bool:
        """Say whether the checkpoint has a tensor of that name."""
        return tensor_str in self.index.variables

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        """Give the shape of every tensor, by name."""
        return {name: list(saved.shape) for name, saved in self.index.variables.items()}

    def get_variable_to_dtype_map(self) -> dict[str, DType]:
        """Give the dtype of every tensor, by name."""
        return {name: as_dtype(saved.dtype) for name, saved in self.index.variables.items()}

    def get_tensor(self, tensor_str: str) -> Array:
        """Read a tensor.

        Raises:
            NotFoundError: If the checkpoint has none of that name.
            CheckpointError: If its file is missing, cut off or changed; the text names file and tensor.
        """
        saved = self._saved(tensor_str)
        return self.get_slice(tensor_str, (0,) * len(saved.shape), saved.shape)

    def get_slice(self, name: str, offset: Sequence[int], shape: Sequence[int]) -> Array:
        """Read a part of a tensor, from no more files than hold it.

        Raises:
            NotFoundError: If the checkpoint has no tensor of that name.
            CheckpointError: As for `get_tensor`, or if only other parts of it were saved.
        """
        saved = self._saved(name)
        for part in saved.parts:
            if (part.offset, part.shape) == (tuple(offset), tuple(shape)):
                return self._read(saved, part)
        pieces = self._covered(name, offset, shape)
        value = np.empty(tuple(shape), saved.dtype)
        for into, found in self._found(saved, pieces, offset):
            value[into] = found
        return value

    def _covered(self, name: str, offset: Sequence[int], shape: Sequence[int]) -> list[tuple[Box, SavedPart]]:
        """Give the parts that a part of a tensor lies in, with what of it each has.

        Raises:
            CheckpointError: If they are not all of it, or overlap.
        """
        pieces: list[tuple[Box, SavedPart]] = []
        for part in self._saved(name).parts:
            begin = [max(ours, its) for ours, its in zip(offset, part.offset, strict=True)]
            end = [
                min(ours + size, its + length)
                for ours, size, its, length in zip(offset, shape, part.offset, part.shape, strict=True)
            ]
            if all(low < high for low, high in zip(begin, end, strict=True)):
                sizes = tuple(high - low for low, high in zip(begin, end, strict=True))
                pieces.append(((tuple(begin), sizes), part))
        covered = sum(math.prod(sizes) for (_, sizes), _ in pieces)
        # Before memory is taken for it: a shape is what the index says.
        if not pieces or covered != math.prod(shape) or overlap([box for box, _ in pieces]):
            raise CheckpointError(
                f"{index_path(self.prefix)}: the saved parts of {name!r} hold {covered} of the {math.prod(shape)} "
                f"elements from {list(offset)} on, or overlap; the Saver that wrote it did not have all parts."
            )
        return pieces

    def get_on_disk(self, name: str) -> Array:
        """Read a tensor as `get_tensor` does; a large one into an unnamed temporary file, a piece at a time.

        The array is like any other and may be changed; of it, memory holds only what is being looked at. TMPDIR says
        where the file is; it is gone with the array.
        """
        saved = self._saved(name)
        if saved.nbytes <= IN_MEMORY_BYTES:
            return self.get_tensor(name)
        value, whole = array_on_disk(saved.shape, saved.dtype), (0,) * len(saved.shape)
        for into, found in self._found(saved, self._covered(name, whole, saved.shape), whole):
            value[into] = found
        return value

    def checked_rows(self, name: str, offset: Sequence[int], shape: Sequence[int]) -> Iterator[tuple[int, Array]]:
        """Compare the checksums of a part of a tensor, and read it some rows at a time.

        Returns:
            Pieces of rows, each with the number of its first row in the part.

        Raises:
            NotFoundError, CheckpointError: As for `get_slice`; at once.
        """
        saved, pieces = self._saved(name), self._covered(name, offset, shape)
        for _, part in pieces:
            self._check(saved, part)
        if any(sizes[1:] != tuple(shape[1:]) for (_, sizes), _ in pieces):
            # In parts by another axis than rows.
            return iter([(0, self.get_slice(name, offset, shape))])
        return ((into[0].start, rows) for into, rows in self._found(saved, pieces, offset))

    def _found(
        self, saved: SavedVariable, pieces: Sequence[tuple[Box, SavedPart]], offset: Sequence[int]
    ) -> Iterator[tuple[tuple[slice, ...], Array]]:
        """Read pieces of a part of a tensor, some rows at a time; yield each with where in the part it belongs."""
        for (begin, sizes), part in pieces:
            axes = list(zip(begin, sizes, offset, part.offset, strict=True))[1:]
            into = tuple(slice(at - whole, at - whole + size) for at, size, whole, _ in axes)
            out_of = tuple(slice(at - own, at - own + size) for at, size, _, own in axes)
            at = part.offset[0]
            for rows in self._pieces(saved, part):
                low, high = max(at, begin[0]), min(at + len(rows), begin[0] + sizes[0])
                if low < high:
                    yield (slice(low - offset[0], high - offset[0]), *into), rows[(slice(low - at, high - at), *out_of)]
                at += len(rows)

    def place_of(self, name: str, offset: Sequence[int], shape: Sequence[int]) -> tuple[str, int] | None:
        """Say where the bytes of a part of a tensor are, if they are in one piece.

        Returns:
            The file's name, relative to the checkpoint's directory, and where in it the bytes begin; None if they
            are in several pieces, or in a part of a larger one.
        """
        for part in self._saved(name).parts:
            if (part.offset, part.shape) == (tuple(offset), tuple(shape)):
                return self.index.files[part.file].file, self._open(part.file).offset_of(part.tensor)
        return None

    def debug_string(self) -> bytes:
        """Give a line for every tensor as TensorFlow does: name, dtype, shape."""
        kinds = {"float16": "half", "float32": "float", "float64": "double"}
        return "".join(
            f"{name} (DT_{kinds.get(saved.dtype, saved.dtype).upper()}) {list(saved.shape)}\n".replace(", ", ",")
            for name, saved in sorted(self.index.variables.items())
        ).encode()

    def close(self) -> None:
        """Close the files that were opened."""
        for reader in self._files.values():
            reader.close()
        self._files.clear()

    def __enter__(self) -> CheckpointReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # TensorFlow's readers have no close(), so programs written for it never call ours.
        if hasattr(self, "_files"):
            self.close()

    def _saved(self, name: str) -> SavedVariable:
        saved = self.index.variables.get(name)
        if saved is None:
            raise NotFoundError(f"Key {name} not found in checkpoint {self.prefix}")
        return saved

    def _read(self, saved: SavedVariable, part: SavedPart) -> Array:
        """Read one part, and compare its checksum."""
        reader = self._reader(saved, part)
        value = reader.read(part.tensor)
        self._compare(part, zlib.crc32(value.reshape(-1).view(np.uint8).data) if value.size else 0)
        return value

    def _pieces(self, saved: SavedVariable, part: SavedPart) -> Iterator[Array]:
        """Read one part some rows at a time, and compare its checksum after the last."""
        reader, crc = self._reader(saved, part), 0
        for rows in reader.pieces(part.tensor, PIECE_BYTES):
            crc = zlib.crc32(rows.reshape(-1).view(np.uint8).data, crc) if rows.size else crc
            yield rows
        self._compare(part, crc)

    def _check(self, saved: SavedVariable, part: SavedPart) -> None:
        """Compare a part's checksum, with no more of it in memory than a piece."""
        if not part.shape:
            self._read(saved, part)
            return
        for _ in self._pieces(saved, part):
            pass

    def _reader(self, saved: SavedVariable, part: SavedPart) -> ShardReader:
        path = self._path(part.file)
        reader = self._open(part.file)
        spec = reader.specs.get(part.tensor)
        if spec is None or (spec.dtype, spec.shape) != (saved.dtype, part.shape):
            state = "is not there" if spec is None else f"is {spec.dtype}{list(spec.shape)}"
            raise CheckpointError(
                f"{path}: the tensor {part.tensor!r} {state}, but the index {index_path(self.prefix)} says "
                f"{saved.dtype}{list(part.shape)}: they are not of one checkpoint."
            )
        return reader

    def _compare(self, part: SavedPart, crc: int) -> None:
        if crc != part.crc32:
            raise CheckpointError(
                f"{self._path(part.file)}: the tensor {part.tensor!r} is corrupt: its checksum is {crc:#010x}, the "
                f"index says {part.crc32:#010x}. Restore an older checkpoint, or a copy of this one."
            )

    def _path(self, number: int) -> str:
        return self._storage.join(directory_of(self.prefix), self.index.files[number].file)

    def _open(self, number: int) -> ShardReader:
        if number not in self._files:
            path, expected = self._path(number), self.index.files[number].nbytes
            size = _size(self._storage, path)
            if size != expected:
                raise CheckpointError(
                    f"The checkpoint {self.prefix} is not complete: {path} "
                    + ("is missing." if size is None else f"has {size} bytes instead of {expected}.")
                )
            self._files[number] = ShardReader(self._storage, path)
        return self._files[number]


def NewCheckpointReader(filepattern: str) -> CheckpointReader:  # noqa: N802 (TensorFlow's name)
    """Open a checkpoint for reading, under TensorFlow's name.

    Args:
        filepattern: The checkpoint's prefix.
    """
    return CheckpointReader(filepattern)


def is_complete(prefix: str, storage: Storage | None = None) -> bool:
    """Say whether a checkpoint's index reads and all its files are there with the right sizes.

    Cheap: no tensor is read. `verify` is thorough.
    """
    storage = storage if storage is not None else storage_for(prefix)
    try:
        index = read_index(storage, prefix)
    except OpError:
        return False
    directory = directory_of(prefix)
    return all(_size(storage, storage.join(directory, file.file)) == file.nbytes for file in index.files)


def verify(prefix: str, storage: Storage | None = None) -> CheckpointIndex:
    """Read a whole checkpoint and compare every checksum.

    Raises:
        NotFoundError: If there is no such checkpoint.
        CheckpointError: If anything is missing or changed; the text names the file, and the tensor.
    """
    with CheckpointReader(prefix, storage) as reader:
        for number in range(len(reader.index.files)):
            reader._open(number)
        for saved in reader.index.variables.values():
            for part in saved.parts:
                reader._check(saved, part)
        return reader.index


def delete_checkpoint(
    prefix: str, storage: Storage | None = None, meta_graph_suffix: str = "meta", term: int = 0
) -> None:
    """Delete a checkpoint's files, its index first: what a crash leaves is no checkpoint any more.

    Args:
        prefix: The checkpoint's prefix; one that is not there is no error.
        storage: Where it lies; by default as the prefix says.
        meta_graph_suffix: Its `<prefix>.<suffix>` file goes too.
        term: Of the chief that deletes: files of greater terms stay; 0 for all files.
    """
    storage = storage if storage is not None else storage_for(prefix)
    directory = directory_of(prefix)
    delete_indexes(storage, prefix, term)
    base = _base(prefix)
    pattern = _shard_pattern(re.escape(base))
    for name in storage.list(directory):
        match = pattern.fullmatch(name)
        if (match and (not term or int(match["term"] or 0) <= term)) or name == f"{base}.{meta_graph_suffix}":
            storage.delete(storage.join(directory, name))


def remove_leftovers(storage: Storage, prefix: str, latest_filename: str = "checkpoint", term: int = 0) -> list[str]:
    """Delete what saves that were cut short left in a directory.

    Files under temporary names, and shard files that no index names, of the checkpoints
    `<prefix>` and `<prefix>-<number>`; probes; temporary state files. Files that bear a term are of a chief that may
    be at work: only a chief of a greater term deletes them. For the others, only the one process that saves under
    `prefix` may call this.

    Args:
        storage: Where the directory lies.
        prefix: Path of the checkpoints without their step.
        latest_filename: Name of the state file.
        term: Of the chief that cleans up; 0 for a program without one.
    """
    directory = directory_of(prefix)
    names = storage.list(directory)
    numbered = rf"(?P<base>{re.escape(_base(prefix))}(?:-\d+)?)"
    shard = _shard_pattern(numbered)
    index = numbered.replace("<base>", "<of_index>") + rf"(?:{re.escape(INDEX_SUFFIX)}|\.index\.term-\d+\.json)"
    graph = numbered.replace("<base>", "<of_graph>") + r"\.meta"
    temporary = re.compile(
        rf"(?:{shard.pattern}|{index}|{graph}|{re.escape(latest_filename)}){re.escape(TEMPORARY)}"
        r"(?:(?P<owner>\d+)-)?[0-9a-f]+"
        rf"|{re.escape(PROBE)}(?:(?P<asker>\d+)-)?[0-9a-f]+"
    )
    named: dict[str, set[str]] = {}
    removed = []
    for name in names:
        unnamed = False
        left = temporary.fullmatch(name)
        match = shard.fullmatch(name)
        words = {**(left.groupdict() if left else {}), **(match.groupdict() if match else {})}
        its = max(int(words.get(key) or 0) for key in ("term", "owner", "asker"))
        if its and its >= term:
            continue
        if match:
            owner = storage.join(directory, match["base"])
            if owner not in named:
                named[owner] = _files_of(storage, owner, names)
            unnamed = name not in named[owner]
        if unnamed or left:
            storage.delete(storage.join(directory, name))
            removed.append(name)
    return removed


def remove_incomplete(storage: Storage, like: str, below: int, listed: Sequence[str]) -> list[str]:
    """Delete what a chief that was replaced while it saved has left: indexes whose files its successor had deleted.

    A checkpoint stays where anything cannot be read now, and one that a list names stays in any case.

    Args:
        storage: Where the directory lies.
        like: A checkpoint of the same name; others of other steps are looked at, too.
        below: Only checkpoints of chiefs of lesser terms.
        listed: Prefixes of checkpoints that the state file names.
    """
    base = re.sub(r"-\d+$", "", like)
    removed = []
    for prefix, term in prefixes_in(storage, directory_of(like)).items():
        ours = re.sub(r"-\d+$", "", prefix) == base and prefix not in listed
        if ours and 0 < term < below and lacks_a_file(storage, prefix):
            delete_checkpoint(prefix, storage, term=term)
            removed.append(prefix)
    return removed


def lacks_a_file(storage: Storage, prefix: str) -> bool:
    """Return whether a file is not there that the checkpoint's index names; what cannot be read now is there."""
    try:
        files = read_index(storage, prefix).files
        for file in files:
            storage.size(storage.join(directory_of(prefix), file.file))
    except FileNotFoundError:
        return True
    except (OSError, OpError):
        return False
    return False


def _files_of(storage: Storage, prefix: str, names: Sequence[str]) -> set[str]:
    """The files that a checkpoint's index names; all of `names` if it cannot be read: they may be rescued."""
    if find_index(storage, prefix) is None:
        return set()
    try:
        return {file.file for file in read_index(storage, prefix).files}
    except OpError:
        return set(names)


def _base(prefix: str) -> str:
    directory = directory_of(prefix)
    return prefix[len(directory) :].lstrip("/") if directory else prefix


def _shard_pattern(base: str) -> re.Pattern[str]:
    term = r"\.term-(?P<term>\d{1,20})-[0-9a-f]{8}"
    return re.compile(rf"{base}\.shard-\d{{5}}-of-\d{{5}}(?:{term}|\.r\d+)?\.safetensors")


def _size(storage: Storage, path: str) -> int | None:
    try:
        return storage.size(path)
    except OSError:
        return None


#: Where a part begins on each axis, and its shape.
Box = tuple[tuple[int, ...], tuple[int, ...]]


def overlap(boxes: Sequence[Box]) -> bool:
    """Say whether two of some boxes have an element in common.

    >>> overlap([((0, 0), (2, 3)), ((2, 0), (1, 3))])
    False
    >>> overlap([((0, 0), (2, 3)), ((1, 2), (1, 3))])
    True
    """
    # In the order of where they begin on the first axis, so that a box is compared only with those that reach it
    # there: parts of rows, the usual ones, with none or one.
    reaching: list[Box] = []
    for box in sorted((box for box in boxes if 0 not in box[1]), key=lambda box: box[0]):
        offset, shape = box
        reaching = [other for other in reaching if not offset or other[0][0] + other[1][0] > offset[0]]
        for other_offset, other_shape in reaching:
            if all(
                at < other_at + other_size and other_at < at + size
                for at, size, other_at, other_size in zip(offset, shape, other_offset, other_shape, strict=True)
            ):
                return True
        reaching.append(box)
    return False
