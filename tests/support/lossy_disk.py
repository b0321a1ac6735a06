"""A disk below write-ahead logs that remembers what was synced: power can be lost, and a sync can fail.

The files that the log writes are real; what a process reads is what it wrote. A loss of power leaves the bytes of each
file that a sync brought to the disk, under the names that a sync of their directory did. A sync that fails leaves its
bytes readable, and never brings them to the disk again: the system takes them for written.
"""

from __future__ import annotations

import errno
import itertools
import os
from dataclasses import dataclass, field

from globalstep.ps.wal.log_file import LogFiles


@dataclass(eq=False)
class _Held:
    synced: bytearray = field(default_factory=bytearray)
    #: Where, and what: None to cut the file off there.
    waiting: list = field(default_factory=list)


class LossyDisk(LogFiles):
    """See above.

    Attributes:
        failing: Errors that the next syncs fail with, the first one first.
        full: Writing fails with ENOSPC.
    """

    def __init__(self):
        super().__init__()
        self.failing = []
        self.full = False
        # The descriptors of a process that was killed are no file's ever again.
        self._numbers = itertools.count(1 << 20)
        self._open = {}
        self._named = {}
        self._synced_names = {}

    def create(self, path):
        return self._opened(super().create(path), self._named.setdefault(path, _Held()))

    def lock(self, path):
        return self._opened(super().lock(path), _Held())

    def _opened(self, file, held):
        number = next(self._numbers)
        self._open[number] = file, held
        return number

    def close(self, file):
        if file in self._open:
            super().close(self._open.pop(file)[0])

    def start_sync(self, file, offset, size):
        pass  # what is on the disk without a sync is chance

    def write(self, file, buffers):
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real, held = self._open[file]
        at = os.lseek(real, 0, os.SEEK_CUR)
        written = super().write(real, buffers)
        held.waiting.append((at, b"".join(map(bytes, buffers))[:written]))
        return written

    def allocate(self, file, offset, size):
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().allocate(self._open[file][0], offset, size)

    def truncate(self, file, size):
        real, held = self._open[file]
        super().truncate(real, size)
        held.waiting.append((size, None))

    def sync(self, file):
        self.sync_data(file)

    def sync_data(self, file):
        _, held = self._open[file]
        waiting, held.waiting = held.waiting, []
        if self.failing:
            raise self.failing.pop(0)
        for at, data in waiting:
            if data is None:
                del held.synced[at:]
                continue
            held.synced.extend(bytes(max(at + len(data) - len(held.synced), 0)))
            held.synced[at : at + len(data)] = data

    def link(self, source, target):
        super().link(source, target)
        self._named[target] = self._named[source]

    def rename(self, source, target):
        super().rename(source, target)
        if source in self._named:
            self._named[target] = self._named.pop(source)

    def unlink(self, path):
        super().unlink(path)
        self._named.pop(path, None)

    def sync_directory(self, directory):
        super().sync_directory(directory)
        for path in [path for path in self._synced_names if path.parent == directory]:
            del self._synced_names[path]
        self._synced_names.update({path: held for path, held in self._named.items() if path.parent == directory})

    def kill(self):
        """End the process that writes: what it has written stays readable, synced or not."""
        for file in list(self._open):
            self.close(file)

    def lose_power(self):
        """End the process, and the machine's memory with it."""
        self.kill()
        for path in self._named.keys() - self._synced_names.keys():
            path.unlink(missing_ok=True)
        for path, held in self._synced_names.items():
            path.write_bytes(held.synced)
            held.waiting.clear()
        self._named = dict(self._synced_names)
