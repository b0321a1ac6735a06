"""The files of a write-ahead log: segments of records that are numbered, checksummed, and whole or not there.

    segment   32 bytes  magic, number of the segment, number of its first record, CRC-32 of these, 0
    record    48 bytes  marker, number, last record known to be on disk before, lengths of head and data,
                        CRC-32 of the four and of what follows, 0
              head      padded to a multiple of 8 bytes, as is
              data

A process that is killed leaves a record that is not whole at the end of its last segment; a machine that fails
may leave several, with holes. Nobody was told of any of them, so they are cut off. A record that is damaged
after it was known to be on disk is another matter: everything behind it hangs in the air, and the whole log is
refused. The two are told apart by what later records say was on disk when they were written.

Floor: ps. Threads: an object belongs to one thread at a time.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from globalstep.errors import DataLossError
from globalstep.frames import padded

__all__ = ["LoggedRecord", "SegmentReader", "SegmentWriter", "segment_path", "segments_in", "sync_directory"]

_MAGIC: Final = b"GSLOG\x00\x01\n"
_MARKER: Final = b"\xf5GSREC\xa7\n"
_START = struct.Struct("<8sQQII")
_RECORD = struct.Struct("<8sQQQQII")
_SUMMED = struct.Struct("<QQQQ")
#: Buffers that one writev takes.
_MOST_BUFFERS = 512


@dataclass(frozen=True, slots=True)
class LoggedRecord:
    """A record as it was read."""

    number: int
    head: bytes
    #: Readonly, from a multiple of 8 bytes; valid as long as somebody holds it.
    data: memoryview


class SegmentWriter:
    """Writes a new segment.

    Args:
        directory: Where; the file must not be there yet.
        segment: Its number.
        first: The number of its first record.

    Raises:
        OSError: If it cannot be written.
    """

    def __init__(self, directory: Path, segment: int, first: int) -> None:
        self.path = segment_path(directory, segment)
        start = _START.pack(_MAGIC, segment, first, zlib.crc32(struct.pack("<QQ", segment, first)), 0)
        # It appears under its name when its head is whole.
        if self.path.exists():
            raise FileExistsError(f"{self.path} is there already")
        unborn = self.path.with_suffix(".new")
        unborn.unlink(missing_ok=True)  # of a process that was killed just then
        self._file = os.open(unborn, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            _write_all(self._file, [start])
            os.fsync(self._file)
            unborn.rename(self.path)
            sync_directory(directory)
        except BaseException:
            self.close()
            raise

    def write(self, number: int, on_disk: int, head: bytes, pieces: Sequence[memoryview]) -> None:
        """Write a record; it is on disk after `sync`.

        Args:
            number: Its number.
            on_disk: The last record that is known to be on disk now.
            head: Anything.
            pieces: The data; each piece is padded to a multiple of 8 bytes.

        Raises:
            OSError: If it cannot be written, or not as a whole.
        """
        data_bytes = sum(padded(piece.nbytes) for piece in pieces)
        buffers: list[bytes | memoryview] = [head, bytes(-len(head) % 8)]
        for piece in pieces:
            buffers.append(piece)
            if padding := -piece.nbytes % 8:
                buffers.append(bytes(padding))
        crc = zlib.crc32(_SUMMED.pack(number, on_disk, len(head), data_bytes))
        for buffer in buffers:
            crc = zlib.crc32(buffer, crc)
        start = _RECORD.pack(_MARKER, number, on_disk, len(head), data_bytes, crc, 0)
        _write_all(self._file, [start, *buffers])

    def sync(self) -> None:
        """Bring what was written to the disk.

        Raises:
            OSError: If that failed; what is on disk is not known then.
        """
        os.fdatasync(self._file)

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class SegmentReader:
    """Reads a segment from its beginning.

    Args:
        path: The file.

    Attributes:
        segment: Its number.
        first: The number of its first record.
        end: Where the records end that were read so far.
        cut_bytes: After all were read: bytes behind the last whole record, which nobody was told of.

    Raises:
        DataLossError: If its head is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < _START.size:
                raise DataLossError(f"{path} is damaged: it has {size} bytes, and its head alone takes {_START.size}.")
            # Never closed by hand: it lives as long as a view of a record's data.
            self._view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        magic, self.segment, self.first, crc, zero = _START.unpack_from(self._view)
        if zero or magic != _MAGIC or crc != zlib.crc32(struct.pack("<QQ", self.segment, self.first)):
            raise DataLossError(f"{path} is damaged: its head is not that of a log's segment.")
        self.end = _START.size
        self.cut_bytes = 0
        self._next: int = self.first

    @property
    def next_number(self) -> int:
        """The number after that of the last record that was read."""
        return self._next

    def records(self) -> Iterator[LoggedRecord]:
        """Give the records, in order.

        Raises:
            DataLossError: If one is damaged that had been on disk; those before it have been given.
        """
        while self.end < len(self._view):
            found = self._record_at(self.end)
            if found is None or found[0].number != self._next:
                self._judge_damage()
                return
            record, size, _ = found
            self.end += size
            self._next += 1
            yield record

    def _record_at(self, at: int) -> tuple[LoggedRecord, int, int] | None:
        """Give the record at a place, its size, and what was on disk before it; None if none is whole there."""
        if at + _RECORD.size > len(self._view):
            return None
        marker, number, on_disk, head_bytes, data_bytes, crc, zero = _RECORD.unpack_from(self._view, at)
        begin = at + _RECORD.size
        middle = begin + padded(head_bytes)
        end = middle + data_bytes
        if zero or marker != _MARKER or data_bytes % 8 or end > len(self._view):
            return None
        expected = zlib.crc32(_SUMMED.pack(number, on_disk, head_bytes, data_bytes))
        if zlib.crc32(self._view[begin:end], expected) != crc:
            return None
        head = bytes(self._view[begin : begin + head_bytes])
        return LoggedRecord(number, head, self._view[middle:end]), end - at, on_disk

    def _judge_damage(self) -> None:
        """Decide whether what is at the end is torn off, or something in the middle was damaged."""
        for later in self._records_behind(self.end):
            if later >= self._next:
                raise DataLossError(
                    f"{self._path} is damaged at byte {self.end}: record {self._next} was on disk once, and later "
                    "records build on it. The log cannot be used; nothing of it was loaded."
                )
        self.cut_bytes = len(self._view) - self.end

    def _records_behind(self, at: int) -> Iterator[int]:
        """Of every whole record behind a place: the last one that was on disk before it."""
        source = self._view.obj
        assert isinstance(source, mmap.mmap)
        while (at := source.find(_MARKER, at + 1)) >= 0:
            found = self._record_at(at) if at % 8 == 0 else None
            if found is not None:
                yield found[2]


def segment_path(directory: Path, segment: int) -> Path:
    """Where a segment is."""
    return directory / f"segment-{segment:08d}.log"


def segments_in(directory: Path) -> list[int]:
    """Give the numbers of the segments in a directory, in order; none if it is not there."""
    return sorted(int(path.stem.partition("-")[2]) for path in directory.glob("segment-*.log"))


def sync_directory(directory: Path) -> None:
    """Bring the names in a directory to the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(file: int, buffers: Sequence[bytes | memoryview]) -> None:
    left = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
    while left:
        written = os.writev(file, left[:_MOST_BUFFERS])
        while left and written >= left[0].nbytes:
            written -= left.pop(0).nbytes
        if written:
            left[0] = left[0][written:]
