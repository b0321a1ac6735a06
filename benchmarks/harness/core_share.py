"""Gives a process no more than a share of one processor, without the rights that control groups need."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import TracebackType

__all__ = ["CoreShare"]

#: As long as the period of the kernel's own quota for control groups.
_PERIOD_SECS = 0.1


class CoreShare:
    """Stops a process for a part of every tenth of a second, as a quota does, and binds it to one core.

    Use it in a `with` block. Threads: one named "core-share".

    Args:
        pid: The process.
        share: Part of the time that it may run, above 0 up to 1.
    """

    def __init__(self, pid: int, share: float) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"A share of a core is above 0 and at most 1, not {share}.")
        self._pid = pid
        self._share = share
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="core-share")

    def __enter__(self) -> CoreShare:
        core = {min(os.sched_getaffinity(self._pid))}
        # Threads that are there keep what they had, unless they are told one by one.
        for task in os.listdir(f"/proc/{self._pid}/task"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(task), core)
        if self._share < 1:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._share < 1:
            self._thread.join()

    def _run(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            try:
                while not self._stop.wait(self._share * _PERIOD_SECS):
                    os.kill(self._pid, signal.SIGSTOP)
                    self._stop.wait((1 - self._share) * _PERIOD_SECS)
                    os.kill(self._pid, signal.SIGCONT)
            finally:
                os.kill(self._pid, signal.SIGCONT)
