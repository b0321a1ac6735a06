"""Polling wait: paces a polling loop, logs what it waits for, quiet at first, and ends at a limit.

PS tasks of a job start in any order, and its sessions wait so for all of them.

Layer: worker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from globalstep.errors import DeadlineExceededError, JobDoneError, UnavailableError
from globalstep.runtime.clock import Clock

if TYPE_CHECKING:
    from globalstep.worker.client.client import ClusterClient


_log = logging.getLogger("globalstep")

_QUIET_SECS = 5.0
_REMIND_SECS = 30.0
_FIRST_POLL_SECS = 0.1
_LAST_POLL_SECS = 1.0
_POLL_GROWTH = 1.5


class PollingWait:
    """One wait: paces a polling loop, reports, and says when time is up.

    Args:
        clock: Where time comes from.
        max_wait_secs: When to give up; infinity for never.
        client: Of the cluster; when its process is asked to end, so does the wait.
    """

    def __init__(self, clock: Clock, max_wait_secs: float, client: ClusterClient | None = None) -> None:
        self._clock = clock
        self._max_wait_secs = max_wait_secs
        self._client = client
        self._since = clock.monotonic()
        self._next_report = self._since + _QUIET_SECS
        self._poll_secs = _FIRST_POLL_SECS

    @property
    def waited_secs(self) -> float:
        """Seconds since the wait began."""
        return self._clock.monotonic() - self._since

    def pause(self, waiting_for: str, why: Callable[[], str] = str) -> bool:
        """Wait a moment before the next poll; report when due.

        Args:
            waiting_for: What is missing, for people: which task, at which address.
            why: Asked when a report is due: the likeliest reasons; "" where none are known.

        Returns:
            False, without a wait, once the time is up; else True.

        Raises:
            UnavailableError: If the process has been asked to end.
        """
        if self._client is not None and self._client.shutdown.asked:
            raise UnavailableError(f"This process has been asked to end, after {self.waited_secs:.0f} s: {waiting_for}")
        left = self._max_wait_secs - self.waited_secs
        if left <= 0:
            return False
        now = self._clock.monotonic()
        if now >= self._next_report:
            from globalstep.runtime.waiting import likeliest

            # A user who started a task alone by hand is to see why nothing happens, whatever the verbosity.
            _log.warning("Waited %.0f s so far: %s%s", self.waited_secs, waiting_for, likeliest(why))
            self._next_report = now + _REMIND_SECS
        self._clock.sleep(min(self._poll_secs, left))
        self._poll_secs = min(self._poll_secs * _POLL_GROWTH, _LAST_POLL_SECS)
        return True


def wait_for_answers(
    client: ClusterClient, clock: Clock, max_wait_secs: float, why_over: Callable[[], str] = str
) -> list[Any]:
    """Ask every PS task for its status, and wait for those that do not answer.

    Args:
        client: The cluster's client.
        clock: Where time comes from.
        max_wait_secs: How long to wait.
        why_over: Says what shows that the job has come to its end; "" for nothing. It is asked where some PS tasks are
            silent and another one says that the job is done: they have ended, and that one waits for this client.

    Raises:
        DeadlineExceededError: If some never answered; the text names them.
        JobDoneError: If the job has come to its end, and some have ended with it.
        UnavailableError: If the process has been asked to end.
    """
    wait = PollingWait(clock, max_wait_secs, client)
    while True:
        try:
            return list(client.refresh())
        except UnavailableError as error:
            from globalstep.worker.client.causes import why_no_answer

            if client.job_done() and (over := why_over()):
                raise JobDoneError(
                    f"Nothing is left to do: {over}. Waiting for the parameter servers: {error}"
                ) from error
            if not wait.pause(f"waiting for the parameter servers: {error}", lambda: why_no_answer(client)):
                raise DeadlineExceededError(
                    f"Session was not ready after waiting {max_wait_secs:.0f} secs. {error}"
                ) from error
