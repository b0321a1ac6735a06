"""The identity of a client's process, by which two processes of one task differ, and a dead one is known.

A process can be looked for only from where its pid means the same: on its machine, since that started, in its PID
namespace. Containers of one machine have namespaces of their own.

Layer: shared. Thread-safe.
"""

from __future__ import annotations

import functools
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from globalstep.proto import globalstep_pb2 as pb


#: A process that lives gives a sign of it every second. A process that
#: takes its place treats one that has given none for so long as dead.
ALIVE_SECS = 2.5
#: States of a process that does nothing any more, as in /proc/PID/stat.
_ENDED = frozenset({"Z", "X", "x"})


@dataclass(frozen=True, slots=True)
class Process:
    """A process of a client."""

    host: str = ""
    #: 0 where it is not known.
    pid: int = 0
    #: Processes with the same place, and only they, can look whether the process is there; "" for none.
    place: str = ""
    #: When it started, in the place's own units: a pid comes again.
    started: str = ""

    @classmethod
    def decode(cls, message: pb.ProcessInfo) -> Process:
        """Read one from its message."""
        return cls(message.host, message.pid, message.place, message.started)

    def encode(self) -> pb.ProcessInfo:
        """Give its message."""
        from globalstep.proto import globalstep_pb2 as pb  # the ledger and the shard's tables know no wire

        return pb.ProcessInfo(host=self.host, pid=self.pid, place=self.place, started=self.started)

    def __bool__(self) -> bool:
        return bool(self.pid)

    def __str__(self) -> str:
        return f"host {self.host}, pid {self.pid}" if self.pid else "a process that does not say which"


#: An unknown process.
NO_PROCESS = Process()


def this_process() -> Process:
    """Say which process this is."""
    return _of_pid(os.getpid())


def is_gone(process: Process) -> bool:
    """Whether a process has ended for sure; False where that cannot be seen from this machine."""
    if not process.pid or not process.place or process.place != _place():
        return False
    state, started = _stat(process.pid)
    return state in _ENDED or started != process.started


@functools.lru_cache(maxsize=1)
def _of_pid(pid: int) -> Process:
    return Process(socket.gethostname(), pid, _place(), _stat(pid)[1])


@functools.cache
def _place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _stat(pid: int) -> tuple[str, str]:
    """Give a process's state, and when it started; ("X", "") where there is none."""
    try:
        # The name, in parentheses, may contain anything.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return fields[0], fields[19]
    except (OSError, IndexError):
        return "X", ""
