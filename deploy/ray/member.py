"""One task of a cluster as an actor of Ray: it runs the task's process on its node, and both end together.

Ray starts an actor that died anew, without its state; its caller then calls `run` again.

Layer: deploy. Does not import Ray. Threads: Ray calls `run` on one thread and `signal` on others; see the lock.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from globalstep.runtime.process_env import tuned

#: Given by `run` instead of an exit code: others would look for the task at a place where it cannot be any more.
MOVED = -1
#: How long what a process has left behind may go on writing after its end.
_REST_MSECS = 2000
#: Becomes the task's program, which is killed when its actor dies: the next actor serves at the same address.
_GUARD = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv[1]) or os._exit(137); os.execv(sys.argv[2], sys.argv[2:])"
)


@dataclass(frozen=True)
class TaskAddress:
    """A task's address: its node's, and a port that is free there."""

    host: str
    port: int


class Member:
    """A task of the cluster.

    Args:
        where: Gives the address of the node that this is on.
    """

    def __init__(self, where: Callable[[], str]) -> None:
        self._where = where
        self._held: socket.socket | None = None
        # Guards the three below: a process is started, or asked to end, not both. Nothing is taken under it.
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._asked = 0

    def place(self) -> TaskAddress:
        """Say where this is, before the job begins; the port is held as long as the actor lives."""
        with self._lock:
            # It was asked to end if the job begins again.
            self._asked = 0
        self._hold(0 if self._held is None else self._held.getsockname()[1])
        assert self._held is not None
        return TaskAddress(self._where(), self._held.getsockname()[1])

    def answer(self) -> bool:
        """Say that it lives."""
        return True

    def run(
        self,
        program: Sequence[str],
        environ: Mapping[str, str],
        threads: int,
        folder: str,
        stay: TaskAddress | None,
        secrets: Mapping[str, str] | None = None,
    ) -> Iterator[list[str] | int]:
        """Run the task's process to its end.

        Args:
            program: Arguments of Python.
            environ: What to add to the environment of this node.
            threads: For linear algebra.
            folder: The current folder, where this node has it.
            stay: Where others know the task; None if no task looks for it.
            secrets: What else to add to the environment of the process alone.

        Yields:
            Lines of its output, as they come, and last its exit code, 128 + n after signal n, or MOVED.
        """
        if stay is not None:
            if self._where() != stay.host:
                yield MOVED
                return
            self._hold(stay.port)
        own = {
            name: value
            for name, value in os.environ.items()
            if name != "TF_CONFIG" and not name.startswith("GLOBALSTEP_")
        }
        process = None
        with self._lock:
            asked = self._asked
            if not asked:
                process = self._process = subprocess.Popen(
                    [sys.executable, "-c", _GUARD, str(os.getpid()), sys.executable, *program],
                    env=tuned({**own, **environ, **(secrets or {})}, threads),
                    cwd=folder if os.path.isdir(folder) else None,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        if process is None:
            yield 128 + asked
            return
        yield from _lines(process)
        code = process.wait()
        yield 128 - code if code < 0 else code

    def signal(self, number: int) -> None:
        """Send a signal to the process, SIGKILL to all that it started too; where there is none yet, none will be."""
        with self._lock:
            self._asked = number
            if self._process is not None and self._process.poll() is None:
                send = os.killpg if number == signal.SIGKILL else os.kill
                send(self._process.pid, number)

    def close(self) -> None:
        """Give up the port; an actor's end does that too."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def _hold(self, port: int) -> None:
        """Keep others from a port; PS tasks can bind it all the same, since both set SO_REUSEPORT."""
        if self._held is not None and self._held.getsockname()[1] == port:
            return
        self.close()
        self._held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._held.bind(("", port))


def _lines(process: subprocess.Popen[bytes]) -> Iterator[list[str]]:
    """Give a process's lines, as many at a time as are there; ends soon after the process, whatever holds its pipe."""
    assert process.stdout is not None
    rest = b""
    ended = os.pidfd_open(process.pid)
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    poll.register(ended, select.POLLIN)
    has_ended = False
    try:
        while events := dict(poll.poll(_REST_MSECS if has_ended else None)):
            if process.stdout.fileno() in events:
                chunk = os.read(process.stdout.fileno(), 1 << 16)
                if not chunk:
                    break
                *lines, rest = (rest + chunk).split(b"\n")
                if lines:
                    yield list(map(_text, lines))
            elif not has_ended:
                has_ended = True
                poll.unregister(ended)
                # What the task left running goes with it. It was not waited for, so its group's id is still its own.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
    finally:
        os.close(ended)
        process.stdout.close()
    if rest:
        yield [_text(rest)]


def _text(line: bytes) -> str:
    """Decode a line; if it was redrawn with carriage returns, take its last form."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
