"""A simulated machine's disk, below the real write-ahead log: what was synced survives a crash, the rest may not.

The log writes real files, in a folder of the simulation. When its process is killed, each segment keeps what had been
brought to the disk, and of what was written since a beginning of any length; that may have holes. Segments are the
only files it does this to: a base, and the marks beside it, appear whole, by a rename, once they are on the disk.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from globalstep.ps import durability, write_ahead_log
from globalstep.ps.log_file import SegmentWriter

__all__ = ["Crashed", "Disk", "disks"]

#: Folder of a task's logs -> its disk.
_DISKS: dict[Path, Disk] = {}


class Crashed(BaseException):
    """The process was killed within a call; nobody will hear of what it did."""


class Disk:
    """The disk of one PS task, which outlives its processes.

    Args:
        folder: Where the task's logs are.
        rng: Decides what survives.

    Attributes:
        at: Called with "append" when a record has been written, and with "fsync" when it is on the disk.
    """

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder = folder
        self.at: Callable[[str], None] = lambda point: None
        self.synced: dict[Path, int] = {}
        self._rng = rng
        _DISKS[folder] = self

    def crash(self) -> None:
        """Lose what was not on the disk, or some of it."""
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

    def close(self) -> None:
        """Forget it."""
        del _DISKS[self.folder]


class _Writer(SegmentWriter):
    """A segment whose disk is simulated."""

    def __init__(self, directory: Path, segment: int, first: int) -> None:
        super().__init__(directory, segment, first)
        self._disk = _DISKS[directory.parent.parent.parent]
        self._disk.synced[self.path] = os.fstat(self._file).st_size

    def write(self, number: int, on_disk: int, head: bytes, pieces: Sequence[memoryview]) -> None:
        super().write(number, on_disk, head, pieces)
        self._disk.at("append")

    def sync(self) -> None:
        # Its name may be gone: the log of a job that is done is deleted.
        self._disk.synced[self.path] = os.fstat(self._file).st_size
        self._disk.at("fsync")


@contextlib.contextmanager
def disks() -> Iterator[None]:
    """Put simulated disks below the logs, and spare the real one."""

    def spared(file: Any) -> None:
        """Nothing real depends on it."""

    with (
        mock.patch.object(write_ahead_log, "SegmentWriter", _Writer),
        mock.patch.object(os, "fsync", spared),
        mock.patch.object(os, "fdatasync", spared),
        mock.patch.object(durability, "_log", mock.MagicMock()),
    ):
        yield
