"""Pushes that their caller does not wait for: it computes while they are on their way.

Layer: worker. Threads: one, named "globalstep-pusher", owned by the PushesInFlight, which sends one push after
another in their order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from globalstep.errors import CancelledError, JobDoneError
from globalstep.runtime.waiting import wait_announced

T = TypeVar("T")


class PushTicket(Generic[T]):
    """Stands for the answer of a push that is sent in the background. Thread-safe.

    A PushesInFlight makes them; `ClusterClient.push(push, wait=False)` gives one.
    """

    def __init__(self, send: Callable[[], T], pushes: PushesInFlight) -> None:
        self._send = send
        self._pushes = pushes
        # Set once, by the sending thread, before _answered is.
        self._found: list[T] = []
        self._error: BaseException | None = None
        self._answered = threading.Event()

    def done(self) -> bool:
        """Whether the push was answered, has failed, or will never be sent."""
        return self._answered.is_set()

    def result(self) -> T:
        """Wait until the push is answered; says now and then whom it waits for.

        Returns:
            What came of it.

        Raises:
            OpError: What went wrong with it; the next push does not bring that to light once more.
            CancelledError: If one before it has failed: this one was not sent.
        """
        wait_announced(self._answered.wait, "the PS tasks to answer a push in flight", why=self._pushes.why)
        if self._error is not None:
            self._pushes.heard(self._error)
            raise self._error
        return self._found[0]

    def run(self) -> BaseException | None:
        """Send the push, and take its answer. For the sending thread; gives what went wrong."""
        try:
            self._found.append(self._send())
        except BaseException as raised:  # it comes to light at the owner's next call
            self._error = raised
        return self._error

    def settle(self) -> None:
        """Let those go on who wait for the answer."""
        self._answered.set()

    def cancel(self, error: BaseException) -> None:
        """Take note that the push will not be sent, since one before it has failed."""
        self._error = CancelledError(
            f"This push was not sent, since one before it failed, and what it brings was computed without that: {error}"
        )
        self._answered.set()


class PushesInFlight:
    """Sends pushes in the background, a bounded number at a time. Thread-safe.

    What goes wrong comes to light where its ticket is asked for the result, else at the next `submit` or `wait`. That
    the job is done is no error to who only waits: it comes to light when something is to be pushed.

    Args:
        most: How many may be unanswered when `submit` returns, at least 1.
        why: Says why answers take long, for who waits for them; see wait_announced.
    """

    def __init__(self, most: int, why: Callable[[], str] = str) -> None:
        self.why = why
        self._most = most
        # Guards the attributes below; a leaf: pushes are sent without it.
        self._changed = threading.Condition()
        self._waiting: deque[PushTicket[object]] = deque()
        self._sending = False
        self._error: BaseException | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def submit(self, send: Callable[[], T]) -> PushTicket[T]:
        """Have a push sent after those before it; waits while too many are unanswered.

        Args:
            send: Sends it and gives its answer.

        Returns:
            Its ticket, which need not be kept.

        Raises:
            OpError: What went wrong with an earlier one; this one is not sent then.
        """
        ticket = PushTicket(send, self)
        while True:
            self._until(lambda: self._unanswered() < self._most)
            with self._changed:
                self._raise(always=True)
                if self._unanswered() >= self._most:
                    continue  # another thread has taken the place
                self._waiting.append(ticket)  # type: ignore[arg-type]
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="globalstep-pusher", daemon=True)
                    self._thread.start()
                self._changed.notify_all()
                return ticket

    def wait(self) -> None:
        """Wait until all are answered; a push that is sent in the background waits for none.

        Raises:
            OpError: What went wrong with one; not JobDoneError.
        """
        if threading.current_thread() is self._thread:
            return
        self._until(lambda: self._unanswered() == 0)
        with self._changed:
            self._raise(always=False)

    def heard(self, error: BaseException) -> None:
        """Take note that somebody has been told of an error: the next `submit` or `wait` need not raise it."""
        with self._changed:
            if self._error is error and not isinstance(error, JobDoneError):
                self._error = None

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

        wait_announced(over, "the PS tasks to answer the pushes in flight", why=self.why)

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
                ticket = self._waiting.popleft()
                self._sending = True
            error = ticket.run()
            with self._changed:
                self._sending = False
                if error is not None:
                    # What was to follow was computed from what this one has not brought about.
                    for following in self._waiting:
                        following.cancel(error)
                    self._waiting.clear()
                    self._error = error
                # Not before the error is kept here: who hears of it from the ticket takes it away again.
                ticket.settle()
                self._changed.notify_all()
