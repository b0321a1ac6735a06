"""Pushes that a run does not wait for: the next run computes while they are on their way.

Layer: worker. Threads: one, named "globalstep-pusher", owned by the PushesInFlight, which sends one push after
another in their order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from globalstep.errors import JobDoneError
from globalstep.runtime.waiting import wait_announced

__all__ = ["PushesInFlight"]


class PushesInFlight:
    """Sends pushes in the background, a bounded number at a time. Thread-safe.

    What goes wrong comes to light at the next `submit` or `wait`. That the job is done is no error to who only
    waits: it comes to light when something is to be pushed.

    Args:
        most: How many may be unanswered when `submit` returns, at least 1.
        why: Says why answers take long, for who waits for them; see wait_announced.
    """

    def __init__(self, most: int, why: Callable[[], str] = str) -> None:
        self._most = most
        self._why = why
        # Guards the attributes below; a leaf: pushes are sent without it.
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], object]] = deque()
        self._sending = False
        self._error: BaseException | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def submit(self, send: Callable[[], object]) -> None:
        """Have a push sent after those before it; waits while too many are unanswered.

        Args:
            send: Sends it and takes its answer.

        Raises:
            OpError: What went wrong with an earlier one; this one is not sent then.
        """
        while True:
            self._until(lambda: self._unanswered() < self._most)
            with self._changed:
                self._raise(always=True)
                if self._unanswered() >= self._most:
                    continue  # another thread has taken the place
                self._waiting.append(send)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="globalstep-pusher", daemon=True)
                    self._thread.start()
                self._changed.notify_all()
                return

    def wait(self) -> None:
        """Wait until all are answered.

        Raises:
            OpError: What went wrong with one; not JobDoneError.
        """
        self._until(lambda: self._unanswered() == 0)
        with self._changed:
            self._raise(always=False)

    def close(self) -> BaseException | None:
        """Wait until all are answered, and end the thread; gives an error that was not raised yet."""
        self._until(lambda: self._unanswered() == 0)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread, error = self._thread, self._error
        if thread is not None:
            thread.join()
        return None if isinstance(error, JobDoneError) else error

    def _until(self, reached: Callable[[], bool]) -> None:
        """Wait until something is so, or a push has failed; says now and then why that takes so long."""

        def over(secs: float) -> bool:
            with self._changed:
                return self._changed.wait_for(lambda: self._error is not None or reached(), secs)

        wait_announced(over, "the PS tasks to answer the pushes in flight", why=self._why)

    def _unanswered(self) -> int:
        return len(self._waiting) + self._sending

    def _raise(self, always: bool) -> None:
        """Raise what went wrong. Caller holds the condition."""
        error = self._error
        if error is not None and (always or not isinstance(error, JobDoneError)):
            # A job that is done stays so; after anything else the program may try again.
            if not isinstance(error, JobDoneError):
                self._error = None
            raise error

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                send = self._waiting.popleft()
                self._sending = True
            error: BaseException | None = None
            try:
                send()
            except BaseException as raised:  # it comes to light at the owner's next call
                error = raised
            with self._changed:
                self._sending = False
                if error is not None:
                    # What was to follow was computed from what this one has not brought about.
                    self._waiting.clear()
                    self._error = error
                self._changed.notify_all()
