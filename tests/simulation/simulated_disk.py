"""A simulated machine's disk, below the real write-ahead log: what was synced survives a crash, the rest may not.

The log writes real files, in a folder of the simulation. When only its process is killed, they are as it left them,
but no more of them is on the disk than before. When its machine fails, each segment keeps what had been
brought to the disk, and of what was written since a beginning of any length; that may have holes. Segments are the
only files it does this to: a base, and the marks beside it, appear whole, by a rename, once they are on the disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from globalstep.errors import DataLossError
from globalstep.ps.wal import durability
from globalstep.ps.wal.log_file import LogFiles, SegmentReader

__all__ = ["Crashed", "Disk", "disks"]


class Crashed(BaseException):
    """The process was killed within a call; nobody will hear of what it did."""


class Disk:
    """The disk of one PS task, which outlives its processes.

    Args:
        folder: Where the task's logs are.
        rng: Decides what survives.

    Attributes:
        files: Writes to it.
        readable: Whether logs can be read now, and written on.
        at: Called with "append" when a record has been written, and with "fsync" when it is on the disk.
    """

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder = folder
        self.at: Callable[[str], None] = lambda point: None
        self.readable = True
        self.synced: dict[Path, int] = {}
        self.files = _Files(self)
        self._rng = rng

    def damage(self) -> bool:
        """Change a byte of a record that was on the disk, as later records say; False where there is no such one."""
        for path in sorted(self.folder.glob("*/*/*/segment-*.log"), reverse=True):
            whole, at = [], 0
            try:
                reader = SegmentReader(path)
            except DataLossError:
                continue  # its head had not come to the disk, and nothing after it
            while (found := reader._record_at(reader.end)) is not None:
                record, size, on_disk = found
                whole.append((reader.end, record.number))
                reader.end, at = reader.end + size, max(at, on_disk)
            known = [place for place, number in whole if number <= at]
            if known:
                with path.open("r+b") as file:
                    file.seek(self._rng.choice(known) + 20)
                    byte = file.read(1)
                    file.seek(-1, os.SEEK_CUR)
                    file.write(bytes([byte[0] ^ 0x40]))
                return True
        return False

    def crash(self) -> None:
        """End the machine: what was not on the disk is lost, or some of it."""
        rng = self._rng
        for path in sorted(self.folder.glob("*/*/*/segment-*.log")):
            kept, size = self.synced.get(path, 0), path.stat().st_size
            if size > kept:
                left = rng.choice([kept, size, rng.randrange(kept, size + 1)])
                os.truncate(path, left)
                if left > kept and rng.random() < 0.5:
                    with path.open("r+b") as file:
                        hole = rng.randrange(kept, left)
                        file.seek(hole)
                        file.write(bytes(min(left - hole, rng.choice([8, 512]))))
            # What is there now is there for good.
            self.synced[path] = path.stat().st_size


class _Files(LogFiles):
    """The log's files on a simulated disk, which knows how much of each segment was synced."""

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self._disk = disk
        self._paths: dict[int, Path] = {}

    def create(self, path: Path) -> int:
        file = super().create(path)
        self._paths[file] = path
        return file

    def close(self, file: int) -> None:
        self._paths.pop(file, None)
        super().close(file)

    def lock(self, path: Path) -> int:
        self._look(path)
        return super().lock(path)

    def read(self, path: Path) -> bytes:
        self._look(path)
        return super().read(path)

    def _look(self, path: Path) -> None:
        if not self._disk.readable:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    def write(self, file: int, buffers: Sequence[memoryview]) -> int:
        written = super().write(file, buffers)
        if self._paths[file].suffix == ".log":
            self._disk.at("append")
        return written

    def sync(self, file: int) -> None:
        self.sync_data(file)

    def sync_data(self, file: int) -> None:
        # Its name may be gone: the log of a job that is done is deleted.
        self._disk.synced[self._paths[file]] = os.fstat(file).st_size
        if self._paths[file].suffix == ".log":
            self._disk.at("fsync")

    def link(self, source: Path, target: Path) -> None:
        super().link(source, target)
        for file, path in self._paths.items():
            if path == source:
                self._paths[file] = target
        if source in self._disk.synced:
            self._disk.synced[target] = self._disk.synced.pop(source)

    def allocate(self, file: int, offset: int, size: int) -> None:
        """There is always room."""

    def sync_directory(self, directory: Path) -> None:
        """Names are on the disk at once."""


@contextlib.contextmanager
def disks() -> Iterator[None]:
    """Put simulated disks below the logs, and spare the real one."""

    def spared(file: Any) -> None:
        """Nothing real depends on it."""

    with (
        mock.patch.object(os, "fsync", spared),
        mock.patch.object(os, "fdatasync", spared),
        mock.patch.object(durability, "_log", mock.MagicMock()),
    ):
        yield
