"""The processes of a benchmark: started on free ports, spoken to by lines, killed whatever happens."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from benchmarks.harness.line_process import LineProcess

ROOT = Path(__file__).resolve().parents[2]
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


class Child(LineProcess):
    """A process that ends with all that it has started. Arguments are those of LineProcess."""

    def end(self, grace_secs: float = _GRACE_SECS) -> None:
        """See LineProcess.end."""
        super().end(grace_secs)

    def kill(self) -> None:
        """End it at once, with all that it has started, and wait until it is gone."""
        started = family(self.pid)[1:] if not self.gone else []
        for pid in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        super().kill()


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
        by: Sequence[str] = (),
    ) -> Child:
        """Start one, by `by` if there is something to put before the command.

        The benchmark's own modules are those of `folder`, by default of this checkout.
        """
        self._not_now = True
        try:
            child = Child(args, environ, by=by, python=python, log=log, folder=folder)
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
