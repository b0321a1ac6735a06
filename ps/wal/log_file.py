"""The files of a write-ahead log: segments of records that are numbered, checksummed, and whole or not there.

    segment   32 bytes  magic, number of the segment, number of its first record, CRC-32 of these, 0
    record    48 bytes  marker, number, last record known to be on disk before, lengths of head and data,
                        CRC-32 of the four and of what follows, 0
              head      padded to a multiple of 8 bytes, as is
              data

A process that is killed leaves a record that is not whole at the end of its last segment; a machine that fails
may leave several, with holes. The task acknowledged none of them, so they are truncated. A record that is damaged
after it was known to be on disk is another matter: everything behind it hangs in the air, and the whole log is
refused. Later records say what was on disk when they were written: that distinguishes the two.

A recovery writes to no old segment: it begins a new one. That a record can be read does not say that it is on the
disk: the process may have been killed before its sync, and after a sync that failed the system may take pages for
written that are not. So what was read behind the last record that is known to be on the disk is copied into the new
segment, and synced there, before the task acknowledges it. A segment ends where the next one begins, whatever it holds.

Layer: ps. Threads: an object belongs to one thread at a time.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import struct
import weakref
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from globalstep.errors import DataLossError
from globalstep.files.storage import Storage, storage_for
from globalstep.wire.declarations import padded

_MAGIC: Final = b"GSLOG\x00\x03\n"
#: Of versions whose records say something else.
_OLDER: Final = (b"GSLOG\x00\x01\n", b"GSLOG\x00\x02\n")
_MARKER: Final = b"\xf5GSREC\xa7\n"
_START = struct.Struct("<8sQQII")
_RECORD = struct.Struct("<8sQQQQII")
_SUMMED = struct.Struct("<QQQQ")
#: Buffers that one writev takes.
_MOST_BUFFERS = 512
#: Of a record that has more, the disk begins with so many bytes while the next are written.
_STARTED_BYTES = 1 << 20
#: What writing fails with where the disk is full; nothing else is wrong then.
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_MOST_SMALL_BYTES = 4096
_SEGMENT = re.compile(r"segment-\d+\.log")
#: Of a damaged segment, looked through at a time; a multiple of 8.
_SEARCHED_BYTES = 1 << 20
#: What `link` fails with on file systems that know no second names.
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK)


class LogFiles:
    """Every system call with which a write-ahead log changes what is on a disk; errors are OSErrors.

    A test gives the log another one: to make a call fail, to end the process at it, or to forget what was not synced.
    Files are descriptors, as in `os`.

    Attributes:
        storage: Writes the files of a log that are like a checkpoint's: bases, and their notes.
    """

    def __init__(self) -> None:
        self.storage: Storage = storage_for("")

    def create(self, path: Path) -> int:
        """Make a file for writing, which must not be there yet, also not as a link."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def write(self, file: int, buffers: Sequence[memoryview]) -> int:
        """Write some of the bytes of buffers, the first ones first; gives how many."""
        return os.writev(file, buffers)

    def sync(self, file: int) -> None:
        """Bring a file to the disk."""
        os.fsync(file)

    def sync_data(self, file: int) -> None:
        """Sync a file to the disk, without metadata that reading it does not need."""
        os.fdatasync(file)

    def start_sync(self, file: int, offset: int, size: int) -> None:
        """Have the system begin to bring a part of a file to the disk; nothing waits for it."""
        os.posix_fadvise(file, offset, size, os.POSIX_FADV_DONTNEED)

    def allocate(self, file: int, offset: int, size: int) -> None:
        """Allocate disk space for a part of a file; the file grows to hold it."""
        os.posix_fallocate(file, offset, size)

    def truncate(self, file: int, size: int) -> None:
        """Truncate a file, and write on from there."""
        os.ftruncate(file, size)
        os.lseek(file, size, os.SEEK_SET)

    def close(self, file: int) -> None:
        """Close a file."""
        os.close(file)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name, which must not be there yet."""
        os.link(source, target, follow_symlinks=False)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file or a directory another name; a file of that name is replaced."""
        os.replace(source, target)

    def unlink(self, path: Path) -> None:
        """Delete a file; if it is not there, nothing happens."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def lock(self, path: Path) -> int:
        """Open a file, made where it is missing, and lock it until it is closed.

        Raises:
            BlockingIOError: If another process holds it.
        """
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(file)
            raise
        return file

    def read(self, path: Path) -> bytes:
        """Give what is in a small file."""
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(file, _MOST_SMALL_BYTES)
        finally:
            os.close(file)

    def make_directory(self, path: Path) -> None:
        """Make a directory, which must not be there yet; only its user may look into it."""
        os.mkdir(path, 0o700)

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        os.rmdir(path)

    def sync_directory(self, directory: Path) -> None:
        """Bring the names in a directory to the disk."""
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    # ---- Made of these ---------------------------------------------------------------------------

    def write_all(self, file: int, buffers: Sequence[bytes | memoryview]) -> None:
        """Write all bytes of buffers."""
        left = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
        while left:
            written = self.write(file, left[:_MOST_BUFFERS])
            while left and written >= left[0].nbytes:
                written -= left.pop(0).nbytes
            if written:
                left[0] = left[0][written:]

    def create_whole(self, path: Path, text: bytes = b"") -> None:
        """Make a small file that is on the disk, whole, when this returns; its name too.

        Raises:
            FileExistsError: If there is one of that name.
        """
        unborn = path.with_name(f"{path.name}.new")
        self.unlink(unborn)  # of a process that was killed just then
        file = self.create(unborn)
        try:
            self.write_all(file, [text])
            self.sync(file)
        finally:
            self.close(file)
        self.publish(unborn, path)

    def replace_small(self, path: Path, text: bytes) -> None:
        """Put a small file in the place of what is there; it need not outlive the machine."""
        unborn = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
        file = self.create(unborn)
        try:
            self.write_all(file, [text])
            self.close(file)
            file = -1
            self.rename(unborn, path)
        except BaseException:
            if file >= 0:
                self.close(file)
            with contextlib.suppress(OSError):
                self.unlink(unborn)
            raise

    def publish(self, unborn: Path, path: Path) -> None:
        """Give a whole file its name, in no other file's place; the name is on the disk when this returns.

        Raises:
            FileExistsError: If there is one of that name.
        """
        try:
            self.link(unborn, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if path.exists():
                raise FileExistsError(errno.EEXIST, "There is such a file", str(path)) from None
            self.rename(unborn, path)
        self.unlink(unborn)
        self.sync_directory(path.parent)

    def make_directories(self, path: Path) -> None:
        """Make a directory and those above it that are missing, each with its name on the disk."""
        if path.is_dir():
            return
        self.make_directories(path.parent)
        with contextlib.suppress(FileExistsError):  # another task made it meanwhile
            self.make_directory(path)
        self.sync_directory(path.parent)

    def remove_tree(self, folder: Path) -> None:
        """Delete a folder of files, and those in it."""
        for path in sorted(folder.iterdir()):
            if path.is_dir() and not path.is_symlink():
                self.remove_tree(path)
            else:
                self.unlink(path)
        self.remove_directory(folder)


LOG_FILES = LogFiles()


@dataclass(frozen=True, slots=True)
class LoggedRecord:
    """A record as it was read."""

    number: int
    head: bytes
    #: Readonly, from a multiple of 8 bytes; valid as long as it is held.
    data: memoryview


class SegmentWriter:
    """Writes a new segment.

    Args:
        directory: Where; the file must not be there yet.
        segment: Its number.
        first: The number of its first record.
        files: Writes.
        copied: Records that it begins with, in order: they are on the disk when it appears.

    Raises:
        FileExistsError: If there is such a segment.
        OSError: If it cannot be written.

    Attributes:
        path: Its file.
        first: The number of its first record.
        written_bytes: Its length.
    """

    def __init__(
        self,
        directory: Path,
        segment: int,
        first: int,
        files: LogFiles = LOG_FILES,
        copied: Sequence[LoggedRecord] = (),
    ) -> None:
        self._files = files
        self.path = segment_path(directory, segment)
        self.first = first
        start = _START.pack(_MAGIC, segment, first, zlib.crc32(struct.pack("<QQ", segment, first)), 0)
        unborn = self.path.with_suffix(".new")
        files.unlink(unborn)  # of a process that was killed just then
        self._file = files.create(unborn)
        try:
            files.write_all(self._file, [start])
            self.written_bytes = self._synced_bytes = len(start)
            for record in copied:
                self.write(record.number, first - 1, record.head, [record.data])
            files.sync(self._file)
            self._synced_bytes = self.written_bytes
            # It appears under its name when its head is whole, and in no other's place.
            files.publish(unborn, self.path)
        except BaseException:
            self.close()
            with contextlib.suppress(OSError):
                files.unlink(unborn)
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
        if data_bytes < _STARTED_BYTES:
            self._files.write_all(self._file, [start, *buffers])
        else:
            self._write_in_parts([start, *buffers])
        self.written_bytes += sum(map(len, [start, head])) + -len(head) % 8 + data_bytes

    def _write_in_parts(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Write buffers of many bytes: the disk begins with the first ones while the others are written."""
        part: list[memoryview] = []
        begin, size = self.written_bytes, 0
        for view in (memoryview(buffer).cast("B") for buffer in buffers if len(buffer)):
            for at in range(0, view.nbytes, _STARTED_BYTES):
                part.append(view[at : at + _STARTED_BYTES])
                size += part[-1].nbytes
                if size >= _STARTED_BYTES:
                    self._files.write_all(self._file, part)
                    self._files.start_sync(self._file, begin, size)
                    begin, size, part = begin + size, 0, []
        self._files.write_all(self._file, part)

    def sync(self) -> None:
        """Bring what was written to the disk.

        Raises:
            OSError: If that failed; what is on disk is not known then.
        """
        self._files.sync_data(self._file)
        self._synced_bytes = self.written_bytes

    def take_back(self) -> None:
        """Truncate what was written since the last sync that succeeded.

        Raises:
            OSError: If that failed.
        """
        self._files.truncate(self._file, self._synced_bytes)
        self.written_bytes = self._synced_bytes

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        if self._file >= 0:
            self._files.close(self._file)
            self._file = -1


class SegmentReader:
    """Reads a segment from its beginning.

    Args:
        path: The file.
        until: The number of the record that the next segment begins with; None for the last segment. What is here from
            there on was copied to that one, or never acknowledged.

    Attributes:
        segment: Its number.
        first: The number of its first record.
        end: Where the records end that were read so far.
        on_disk: The last record that those read so far say was on the disk, by a sync that succeeded.
        cut_bytes: After all were read: bytes behind the last whole record, which the task did not acknowledge.

    Raises:
        DataLossError: If its head is damaged.
        OSError: If it cannot be read now.
    """

    def __init__(self, path: Path, until: int | None = None) -> None:
        self._path = path
        self._until = until
        # Read by calls, not through a map: a disk that fails gives an error then, not a signal that ends the process.
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)
        self._size = size = os.fstat(self._file).st_size
        if size < _START.size:
            raise DataLossError(f"{path} is damaged: it has {size} bytes, and its head alone takes {_START.size}.")
        magic, self.segment, self.first, crc, zero = _START.unpack(os.pread(self._file, _START.size, 0))
        if magic in _OLDER:
            raise DataLossError(
                f"An older version of globalstep wrote the log {path}, and this one cannot read it. Go back to that "
                "version, or move the log away: the run goes on from its newest checkpoint."
            )
        if zero or magic != _MAGIC or crc != zlib.crc32(struct.pack("<QQ", self.segment, self.first)):
            raise DataLossError(f"{path} is damaged: its head is not that of a log's segment.")
        self.end = _START.size
        self.on_disk = self.first - 1
        self.cut_bytes = 0
        self._next: int = self.first

    @property
    def next_number(self) -> int:
        """One more than the number of the last record that was read."""
        return self._next

    def records(self) -> Iterator[LoggedRecord]:
        """Give the records, in order.

        Raises:
            DataLossError: If one is damaged that had been on disk; those before it have been given.
            OSError: If it cannot be read now.
        """
        while self.end < self._size and self._next != self._until:
            entry = self._record_at(self.end)
            if entry is None or entry[0].number != self._next:
                self._judge_damage()
                return
            record, size, on_disk = entry
            self.end += size
            self.on_disk = max(self.on_disk, on_disk)
            self._next += 1
            yield record

    def _record_at(self, at: int) -> tuple[LoggedRecord, int, int] | None:
        """Give the record at a place, its size, and what was on disk before it; None if none is whole there."""
        start = os.pread(self._file, _RECORD.size, at)
        if len(start) < _RECORD.size:
            return None
        marker, number, on_disk, head_bytes, data_bytes, crc, zero = _RECORD.unpack(start)
        middle = padded(head_bytes)
        size = _RECORD.size + middle + data_bytes
        if zero or marker != _MARKER or data_bytes % 8 or at + size > self._size:
            return None
        expected = zlib.crc32(_SUMMED.pack(number, on_disk, head_bytes, data_bytes))
        # Its bytes begin at a multiple of 8: those of a `bytes` do.
        body = _read_all(self._file, at + _RECORD.size, middle + data_bytes)
        if zlib.crc32(body, expected) != crc:
            return None
        return LoggedRecord(number, body[:head_bytes], memoryview(body)[middle:]), size, on_disk

    def _judge_damage(self) -> None:
        """Decide whether what is at the end is torn off, or something in the middle was damaged."""
        for later in self._records_behind(self.end):
            if later >= self._next:
                raise DataLossError(
                    f"{self._path} is damaged at byte {self.end}: record {self._next} was on disk once, and later "
                    "records build on it. The log cannot be used; nothing of it was loaded."
                )
        self.cut_bytes = self._size - self.end

    def _records_behind(self, at: int) -> Iterator[int]:
        """Give, for every whole record behind a place, the number of the last one that was on disk before it."""
        at += 8  # of the marker that is there, if one is; all are at multiples of 8
        while at < self._size:
            searched = os.pread(self._file, _SEARCHED_BYTES, at)
            if not searched:
                return
            place = searched.find(_MARKER)
            while place >= 0:
                entry = self._record_at(at + place) if (at + place) % 8 == 0 else None
                if entry is not None:
                    yield entry[2]
                place = searched.find(_MARKER, place + 1)
            at += len(searched) - len(searched) % 8 or len(searched)


def readers(directory: Path, segments: Sequence[int]) -> Iterator[SegmentReader]:
    """Give readers of consecutive segments: each ends where the next one begins.

    Raises:
        DataLossError: If the head of one is damaged.
        OSError: If one cannot be read now.
    """
    firsts: list[int | None] = [SegmentReader(segment_path(directory, segment)).first for segment in segments[1:]]
    for segment, until in zip(segments, [*firsts, None], strict=True):
        yield SegmentReader(segment_path(directory, segment), until)


def segment_path(directory: Path, segment: int) -> Path:
    """Return the path of a segment."""
    return directory / f"segment-{segment:08d}.log"


def segments_in(directory: Path) -> list[int]:
    """Give the numbers of the segments in a directory, in order; none if it is not there.

    Raises:
        OSError: If it cannot be read now.
    """
    # Not by glob, which takes a directory that cannot be read now for an empty one.
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(int(name[8:-4]) for name in names if _SEGMENT.fullmatch(name))


def _read_all(file: int, at: int, size: int) -> bytes:
    read = os.pread(file, size, at)
    if len(read) == size or not read:
        return read
    # More than one call gives, 2 GiB on Linux.
    pieces = [read]
    while read and sum(map(len, pieces)) < size:
        read = os.pread(file, size - sum(map(len, pieces)), at + sum(map(len, pieces)))
        pieces.append(read)
    return b"".join(pieces)
