"""Draining of a session when its process is asked to end, by SIGTERM or Ctrl-C.

The present step is finished, `should_stop()` is True after it, and at the end of the session the process
exits with 143, so that an engine starts it again, or with 130 after Ctrl-C. Where the program's main thread is over and
its other threads train, the process exits once they have closed the session. A program that handles the signal itself
is left alone, and so is Ctrl-C at Python's prompt.

Layer: chief. Threads: belongs to the main thread, where Python runs signal handlers.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from globalstep.runtime.log_format import end_process

if TYPE_CHECKING:
    from globalstep.chief.sessions.coordinator import Coordinator
    from globalstep.worker.client.client import ClusterClient


_log = logging.getLogger("globalstep")

#: How long threads of a process that has been asked to end may take to do so.
_HASTY_JOIN_SECS = 5.0
_POLL_SECS = 0.05
#: What a shell gives for a process that SIGTERM has ended.
EXIT_DRAINED = 128 + signal.SIGTERM
#: The signals, and what handles them in a program that does not care.
_DEFAULTS: dict[int, Any] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
_NAMES = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}
_PATIENCE = b"\nCtrl-C: the present step is finished, then this task ends; press it again to end at once.\n"


class InterruptedRun(SystemExit, KeyboardInterrupt):
    """Ends a process after Ctrl-C, with 130 and without a traceback; `except KeyboardInterrupt` catches it."""


class Drain:
    """Whether the process has been asked to end.

    A second signal of the same kind ends the process at once.

    Attributes:
        asked: Whether it has been.
        by: The signal's name, for people.
        leaves: Whether the session is being closed. The session sets it when it begins to close.
        on_ask: Called within the signal handler, so it may take no lock.
    """

    def __init__(self) -> None:
        self.asked = False
        self.by = ""
        self.leaves = False
        self._number: int = signal.SIGTERM
        # Children that were forked have the handler too, but not this session.
        self._pid = os.getpid()
        self.on_ask: Callable[[], None] = lambda: None
        self._interruptible = False
        # The signals that are watched.
        self._watched: set[int] = set()

    @property
    def exit_code(self) -> int:
        """The exit status of the process: the one that a shell gives after an end by the signal."""
        return 128 + self._number

    def exit(self) -> SystemExit:
        """Give the exception that ends the process."""
        return (InterruptedRun if self._number == signal.SIGINT else SystemExit)(self.exit_code)

    def watch(self) -> None:
        """Notice the signals from now on: in the main thread, and unless the program has handlers of its own."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number, default in _DEFAULTS.items():
            handler = signal.getsignal(number)
            if number == signal.SIGINT and (hasattr(sys, "ps1") or sys.flags.interactive):
                continue
            if handler == default:
                # The signal came to the sessions before this one, or the program has taken it from them.
                for session in _SESSIONS:
                    session._watched.discard(number)
            if handler in (default, _on_signal):
                self._watched.add(number)
                signal.signal(number, _on_signal)
        _SESSIONS.append(self)

    def unwatch(self) -> None:
        """Leave the signals as they were found, where that can be done: in the main thread. Safe to call twice."""
        watched, self._watched = self._watched, set()
        if self in _SESSIONS:
            _SESSIONS.remove(self)
        if threading.current_thread() is not threading.main_thread():
            return
        for number in watched:
            # The default action: the signal came. A program that goes on all the same has Python's own handler again.
            if not _watching(number) and signal.getsignal(number) in (_on_signal, signal.SIG_DFL):
                signal.signal(number, _DEFAULTS[number])

    def attend(self, cluster: ClusterClient | None) -> None:
        """Notify a client when the process is asked to end, or has been.

        The exception of `interruptible` may be lost, in a finalizer say: so what waits for a task looks for itself.
        """
        if cluster is not None:
            self.on_ask = cluster.shutdown.ask
        if self.asked:
            self.on_ask()

    @contextlib.contextmanager
    def interruptible(self, doing: str) -> Iterator[None]:
        """Exit at once, within the block, when asked: no step is running that could be finished."""
        before = self._interruptible
        try:
            if self.asked:
                raise self.exit()
            self._interruptible = True
            yield
        except SystemExit:
            if self.asked:
                _log.warning("%s came while this task %s: it stops waiting.", self.by, doing)
            raise
        finally:
            self._interruptible = before

    @contextlib.contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Hold off a handler of SIGCHLD within the block: torch's raises when a DataLoader's process was ended."""
        handler = signal.getsignal(signal.SIGCHLD)
        if not callable(handler) or threading.current_thread() is not threading.main_thread():
            yield
            return
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            yield
        finally:
            signal.signal(signal.SIGCHLD, handler)

    def join(self, coord: Coordinator, grace_secs: float) -> None:
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


#: The sessions of this process that watch signals, and of a parent that it was forked from; the newest comes last.
_SESSIONS: list[Drain] = []


def _watching(number: int) -> list[Drain]:
    """Give the sessions of this process that watch a signal, the newest first."""
    return [drain for drain in reversed(_SESSIONS) if number in drain._watched and drain._pid == os.getpid()]


def _on_signal(number: int, frame: FrameType | None) -> None:
    drains = _watching(number)
    if not drains:
        # A child that was forked, of a pool say, or another thread has closed the session: nothing is to hand over.
        signal.signal(number, _DEFAULTS[number])
        os.kill(os.getpid(), number)
        return
    signal.signal(number, signal.SIG_DFL)
    if number == signal.SIGINT:
        with contextlib.suppress(OSError):
            os.write(2, _PATIENCE)
    for drain in drains:
        if not drain.asked:
            drain.asked, drain.by, drain._number = True, _NAMES[signal.Signals(number)], number
            drain.on_ask()
    if not threading.main_thread().is_alive():
        # The program's last line is behind it: the interpreter waits, here, for threads that may never end. The process
        # ends once they have closed their sessions, or have not begun to for a while.
        patience_ends = time.monotonic() + _HASTY_JOIN_SECS
        while any(drain in _SESSIONS for drain in drains):
            if time.monotonic() >= patience_ends and not any(drain.leaves for drain in drains):
                break
            time.sleep(_POLL_SECS)
        atexit._run_exitfuncs()
        # A SystemExit would be printed, and ignored, by the interpreter, which waits for the threads again.
        end_process(drains[0].exit_code)
    if drains[0]._interruptible:
        raise drains[0].exit()
    atexit.register(_end_as_asked, drains)


def _end_as_asked(drains: Sequence[Drain]) -> None:
    """End the process, whose interpreter ends, with the signal's code, if no session has noticed the signal.

    It came within the program's last line. Of a program that has failed the code is that of its error.
    """
    if any(drain in _SESSIONS for drain in drains) and getattr(sys, "last_value", None) is None:
        atexit.unregister(_end_as_asked)
        atexit._run_exitfuncs()
        end_process(drains[0].exit_code)
