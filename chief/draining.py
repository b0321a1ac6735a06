"""How a session notices that its process has been asked to end, by SIGTERM, without any code of the program's.

The step that is under way is finished, `should_stop()` is True after it, and at the end of the session the process
exits with 143, so that an engine starts it again. A program that handles SIGTERM itself is left alone.

Floor: chief. Threads: belongs to the main thread, where Python runs signal handlers.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

__all__ = ["EXIT_DRAINED", "Drain"]

_log = logging.getLogger("globalstep")

#: How long threads of a process that has been asked to end may take to do so.
_HASTY_JOIN_SECS = 5.0
#: What a shell gives for a process that SIGTERM has ended.
EXIT_DRAINED = 128 + signal.SIGTERM


class Drain:
    """Whether the process has been asked to end.

    A second SIGTERM ends the process at once.

    Attributes:
        asked: Whether it has been.
        on_ask: Called within the signal handler, so it may take no lock.
    """

    def __init__(self) -> None:
        self.asked = False
        self.on_ask: Callable[[], None] = _nothing
        self._installed = False
        self._interruptible = False
        #: What was there before: nothing, or another session's handler.
        self._before: Any = signal.SIG_DFL

    def watch(self) -> None:
        """Notice SIGTERM from now on: in the main thread, and unless the program has a handler of its own."""
        if threading.current_thread() is not threading.main_thread():
            return
        handler = signal.getsignal(signal.SIGTERM)
        if handler is signal.SIG_DFL or _session_of(handler) is not None:
            self._before = handler
            signal.signal(signal.SIGTERM, self._on_signal)
            self._installed = True

    def unwatch(self) -> None:
        """Leave SIGTERM as it was found. Safe to call twice."""
        if not self._installed or threading.current_thread() is not threading.main_thread():
            return
        self._installed = False
        if signal.getsignal(signal.SIGTERM) == self._on_signal:
            other = self._other()
            signal.signal(signal.SIGTERM, signal.SIG_DFL if other is None else other._on_signal)

    def _other(self) -> Drain | None:
        """The session that watched before this one, and still does."""
        other = _session_of(self._before)
        while other is not None and not other._installed:
            other = _session_of(other._before)
        return other

    def attend(self, cluster: Any) -> None:
        """Have a client told when the process is asked to end, or has been.

        The exception of `interruptible` may be lost, in a finalizer say: so what waits for a task looks for itself.
        """
        self.on_ask = getattr(cluster, "hurry", self.on_ask)
        if self.asked:
            self.on_ask()

    @contextlib.contextmanager
    def interruptible(self, doing: str) -> Iterator[None]:
        """Exit at once, within the block, when asked: nothing is under way that could be finished.

        Args:
            doing: What the task does meanwhile, for the log.
        """
        before = self._interruptible
        try:
            if self.asked:
                raise SystemExit(EXIT_DRAINED)
            self._interruptible = True
            yield
        except SystemExit:
            if self.asked:
                _log.warning("SIGTERM came while this task %s: it waits for nothing any more.", doing)
            raise
        finally:
            self._interruptible = before

    def join(self, coord: Any, grace_secs: float) -> None:
        """Wait for a session's threads; not for long where the process has been asked to end, now or meanwhile.

        Args:
            coord: The session's Coordinator; a stop has been requested of it.
            grace_secs: How long to wait otherwise.
        """
        if not self.asked:
            try:
                with self.interruptible("waited for its threads"):
                    coord.join(stop_grace_period_secs=grace_secs, ignore_live_threads=True)
                return
            except SystemExit:
                if not self.asked:
                    raise
        coord.join(stop_grace_period_secs=min(grace_secs, _HASTY_JOIN_SECS), ignore_live_threads=True)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        drain: Drain | None = self
        while drain is not None:
            drain.asked = True
            drain.on_ask()
            drain = drain._other()
        if self._interruptible:
            raise SystemExit(EXIT_DRAINED)


def _session_of(handler: Any) -> Drain | None:
    """The Drain whose handler it is; None for another one."""
    owner = getattr(handler, "__self__", None)
    return owner if isinstance(owner, Drain) else None


def _nothing() -> None:
    pass
