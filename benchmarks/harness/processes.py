"""The processes of a benchmark: started on free ports, spoken to by lines, killed whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_SERVING = "serving on "
#: A child that says nothing for so long has hung.
_PATIENCE_SECS = 120.0
#: What is asked to end gets so long before it is killed.
_GRACE_SECS = 5.0


def family(pid: int) -> list[int]:
    """Give a process and all that descend from it."""
    out = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            for child in task.read_text().split():
                out += family(int(child))
    return out


class Child:
    """A Python process whose stdin and stdout are lines of ours.

    Args:
        args: Arguments of the interpreter, e.g. ["-m", "globalstep.ps"].
        environ: Its whole environment.
        python: The interpreter; default this one.
        log: Where its stderr goes; default where ours does.
        folder: Where it works: the benchmark's own modules are those of this checkout.
    """

    def __init__(
        self,
        args: Sequence[str],
        environ: Mapping[str, str],
        python: str = sys.executable,
        log: Path | None = None,
        folder: Path = ROOT,
    ) -> None:
        # Its parent's death ends it even when the benchmark is killed outright.
        guard = [setpriv, "--pdeathsig", "KILL"] if (setpriv := shutil.which("setpriv")) else []
        self._called = " ".join(args)
        self._says_why = str(log or "above")
        with contextlib.ExitStack() as stack:
            self._process = subprocess.Popen(
                [*guard, python, *args], env=environ, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=stack.enter_context(log.open("ab")) if log else None, text=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def tell(self, command: Mapping[str, Any]) -> None:
        """Send a command, and do not wait."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait for the answer to a command."""
        reply: dict[str, Any] = json.loads(self._line())
        return reply

    def ask(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Send a command and wait for the answer."""
        self.tell(command)
        return self.answer()

    def address(self) -> str:
        """Wait until a PS says where it serves."""
        line = self._line()
        if not line.startswith(_SERVING):
            raise RuntimeError(f"{self._called} said {line!r}; {_SERVING!r} was expected.")
        return line.removeprefix(_SERVING).strip()

    def _line(self) -> str:
        # At most one line is on its way, so that none can hide in the buffer from select.
        stdout = self._process.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], _PATIENCE_SECS)[0]:
            raise RuntimeError(f"{self._called} has said nothing for {_PATIENCE_SECS:.0f} s.")
        line = stdout.readline()
        if not line:
            raise RuntimeError(f"{self._called} ended with code {self._process.wait()}; see {self._says_why}.")
        return line

    @property
    def gone(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def end(self) -> None:
        """Close its stdin, which it takes as a request to end; kill it if it does not."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_SECS)
        self.kill()

    def kill(self) -> None:
        """End it at once, with all that it has started, and wait until it is gone."""
        started = family(self.pid)[1:] if not self.gone else []
        self._process.kill()
        for pid in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            # What was still to be written to it has nobody to read it.
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def resident_bytes(children: Sequence[Child], what: str) -> int:
    """Memory of some processes together: VmRSS is what they have now, VmHWM the most that they had."""
    total = 0
    for child in children:
        lines = Path(f"/proc/{child.pid}/status").read_text().splitlines()
        total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith(what))
    return total


def forget_peaks(children: Sequence[Child]) -> None:
    """Let VmHWM begin anew."""
    for child in children:
        Path(f"/proc/{child.pid}/clear_refs").write_text("5")


class Children:
    """Starts processes, within `children()`. Main thread only: it takes SIGTERM and SIGINT meanwhile."""

    def __init__(self) -> None:
        self._all: list[Child] = []
        # While True a signal waits: a process that has been forked but is not yet in the list would be lost.
        self._not_now = False
        self._asked_by = 0

    def on_signal(self, signum: int, frame: FrameType | None) -> None:
        """End the program as an exception, so that the processes are killed on the way out."""
        self._asked_by = signum
        if not self._not_now:
            sys.exit(128 + signum)

    def start(
        self,
        args: Sequence[str],
        environ: Mapping[str, str],
        python: str = sys.executable,
        log: Path | None = None,
        folder: Path = ROOT,
    ) -> Child:
        """Start one; see Child."""
        self._not_now = True
        try:
            child = Child(args, environ, python, log, folder)
            self._all.append(child)
        finally:
            self._not_now = False
        if self._asked_by:
            sys.exit(128 + self._asked_by)
        return child

    def kill(self) -> None:
        """End all of them, even if one more signal comes."""
        self._not_now = True
        for child in self._all:
            child.kill()


@contextlib.contextmanager
def children() -> Iterator[Children]:
    """Kill at the end of the block whatever was started in it."""
    started = Children()
    before = {signum: signal.signal(signum, started.on_signal) for signum in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield started
    finally:
        started.kill()
        for signum, handler in before.items():
            signal.signal(signum, handler)
