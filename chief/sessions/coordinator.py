"""Coordinator: stops the threads of one process together.

Follows TensorFlow 1.15, python/training/coordinator.py.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from globalstep.errors import OutOfRangeError
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock

_log = logging.getLogger("globalstep")

_FIRST_STOP_WAIT_SECS = 0.001


class Coordinator:
    """Lets any thread of a group ask all to stop, and raises the first error in `join`.

    Thread-safe, but for `join`, which one thread calls.

    Args:
        clean_stop_exception_types: Exceptions that stop the group without being an error. Default:
            OutOfRangeError, which is how an input says that it has ended.
        clock: Where time comes from.

    >>> coord = Coordinator()
    >>> with coord.stop_on_exception():
    ...     raise OutOfRangeError("no more input")
    >>> coord.should_stop()
    True
    >>> coord.join()
    """

    def __init__(
        self, clean_stop_exception_types: Sequence[type[BaseException]] | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._clean_types: tuple[type[BaseException], ...] = (
            (OutOfRangeError,) if clean_stop_exception_types is None else tuple(clean_stop_exception_types)
        )
        self._clock = clock
        self._stop_event = threading.Event()
        # Guards what follows; a leaf: nothing else is taken under it.
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._joined = False
        self._threads: set[threading.Thread] = set()

    @property
    def joined(self) -> bool:
        """Whether `join` has ended since the last `clear_stop`."""
        with self._lock:
            return self._joined

    def request_stop(self, ex: Any = None) -> None:
        """Ask all threads to stop; the first error given is raised by `join`.

        Args:
            ex: An exception, or what sys.exc_info() returned. After `join` no call is left to report
                it, so it is raised here and now.
        """
        error = ex[1] if isinstance(ex, tuple) and len(ex) == 3 else ex
        if error is not None and not isinstance(error, BaseException):
            error = ValueError(f"ex must be an exception or sys.exc_info(), not {ex!r}")
        error = None if isinstance(error, self._clean_types) else error
        with self._lock:
            joined = self._joined
            first = not joined and not self._stop_event.is_set()
            if first:
                self._error = error
                self._stop_event.set()
        if joined and error is not None:
            raise error
        if first and error is not None:
            _log.info("Error reported to Coordinator: %s, %s", type(error), error)

    def clear_stop(self) -> None:
        """Forget the stop and its error, for another round."""
        with self._lock:
            self._joined = False
            self._error = None
            self._stop_event.clear()

    def should_stop(self) -> bool:
        """Say whether a stop was requested."""
        return self._stop_event.is_set()

    @contextlib.contextmanager
    def stop_on_exception(self) -> Iterator[None]:
        """Turn an exception of the block into `request_stop(exception)`; the block ends quietly.

        Every exception is taken, also SystemExit: a thread that ends by one must stop its group.
        """
        try:
            yield
        except BaseException:
            self.request_stop(sys.exc_info())

    def wait_for_stop(self, timeout: float | None = None) -> bool:
        """Wait until a stop is requested.

        Args:
            timeout: Longest wait in seconds; None for no limit.

        Returns:
            Whether a stop was requested.
        """
        if timeout is None:
            return self._stop_event.wait()
        return self._clock.wait(self._stop_event, max(timeout, 0.0))

    def register_thread(self, thread: threading.Thread) -> None:
        """Count a thread among those that `join` waits for; those that have ended are forgotten."""
        with self._lock:
            self._threads = {one for one in self._threads if one.is_alive() or one.ident is None}
            self._threads.add(thread)

    def join(
        self,
        threads: Iterable[threading.Thread] | None = None,
        stop_grace_period_secs: float = 120,
        ignore_live_threads: bool = False,
    ) -> None:
        """Wait until all threads have ended, or a stop was requested and the grace period is over.

        Args:
            threads: Threads to wait for besides the registered ones.
            stop_grace_period_secs: Time for threads to end after a stop was requested, in seconds.
            ignore_live_threads: Only log the threads that outlive the grace period.

        Raises:
            RuntimeError: If threads still run after the grace period, unless these are to be ignored.
            BaseException: The first error given to `request_stop`; it comes before the RuntimeError.
        """
        with self._lock:
            waited_for = list(self._threads.union(threads or ()))
        while any(thread.is_alive() for thread in waited_for) and not self.wait_for_stop(1.0):
            pass
        grace_secs, wait_secs = stop_grace_period_secs, _FIRST_STOP_WAIT_SECS
        while grace_secs >= 0.0 and any(thread.is_alive() for thread in waited_for):
            self._clock.sleep(wait_secs)
            grace_secs -= wait_secs
            wait_secs = max(min(2 * wait_secs, grace_secs), _FIRST_STOP_WAIT_SECS)
        stragglers = " ".join(thread.name for thread in waited_for if thread.is_alive())
        with self._lock:
            self._joined = True
            self._threads = set()
            error = self._error
        if error is not None:
            raise error
        if stragglers:
            if not ignore_live_threads:
                raise RuntimeError(f"Coordinator stopped with threads still running: {stragglers}")
            _log.info("Coordinator stopped with threads still running: %s", stragglers)

    def raise_requested_exception(self) -> None:
        """Raise the error that was given to `request_stop`, if there is one."""
        error = self._error  # one attribute: every step of a monitored session asks, and needs no lock
        if error is not None:
            raise error
