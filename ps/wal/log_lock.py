"""The right to write a log: one process at a time has it.

Two things keep a second writer out. The file `lock` is held, by flock, for as long as the log is open. Where that does
not work (NFS without locks, a lock that its server has taken away), the file `writer` does: a process that begins to
write a log, or comes back from it, first puts its own name there, and only then reads. A writer looks there after each
sync, before it acknowledges what it wrote. If its own name is still there, then a process that comes back from the
log later reads what was synced; if not, it tells no client, and gives the log up.

Layer: ps. Threads: `check` any number at once.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import socket
import weakref
from collections.abc import Callable
from pathlib import Path

from globalstep.errors import LostStateError, UnavailableError
from globalstep.ps.wal.log_file import LOG_FILES, LogFiles

_log = logging.getLogger(__name__)

_LOCK = "lock"
_WRITER = "writer"
#: What flock fails with on file systems without locks.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


class LogLock:
    """The right to write a log, from when it is made until it is closed.

    Args:
        directory: Of the log.
        files: Of the log.

    Raises:
        UnavailableError: If another process has it, or another log of this one; the text says who.
        OSError: If the directory cannot be written to.
    """

    def __init__(self, directory: Path, files: LogFiles = LOG_FILES) -> None:
        self._files = files
        self._path = directory / _WRITER
        self._close: Callable[[], object] = lambda: None
        try:
            file = files.lock(directory / _LOCK)
        except BlockingIOError:
            raise UnavailableError(
                f"The write-ahead log in {directory} belongs to {self._who()}: one process writes it at a time. If "
                "this PS task was started in its place: it has not ended yet."
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            _log.warning("There are no locks in %s (%s): the file %r says who writes there.", directory, error, _WRITER)
        else:
            self._close = weakref.finalize(self, files.close, file)
        try:
            self._name = f"pid {os.getpid()} on {socket.gethostname()}, {secrets.token_hex(8)}\n".encode()
            files.replace_small(self._path, self._name)
        except BaseException:
            self.close()
            raise

    def check(self) -> None:
        """Make sure that no other process has begun to write the log.

        Raises:
            LostStateError: If one has, or if the log was moved away or deleted.
            OSError: If that cannot be found out.
        """
        try:
            owner = self._files.read(self._path)
        except FileNotFoundError:
            raise LostStateError(
                f"The write-ahead log in {self._path.parent} was given up: a later life of the run was opened since."
            ) from None
        if owner != self._name:
            raise LostStateError(
                f"The write-ahead log in {self._path.parent} belongs to {self._who()} now, which took this process for "
                "dead. What was not acknowledged by then is not applied."
            )

    def _who(self) -> str:
        with contextlib.suppress(OSError):
            return f"the PS task of {self._files.read(self._path).decode(errors='replace').partition(',')[0]}"
        return "another process"

    def close(self) -> None:
        """Give the log free. Safe to call twice."""
        self._close()
