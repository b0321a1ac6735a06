"""When and how often a call is tried again.

A call may be retried because it is idempotent: reads by nature, pushes by their id. What is retried is
only UNAVAILABLE, and the loss of a state that comes back from its log; every other answer is an answer.

Floor: worker. Threads: a Retry belongs to one call.
"""

from __future__ import annotations

import logging
import random
import threading

from globalstep.clock import Clock
from globalstep.errors import OpError

__all__ = ["Retry"]

_log = logging.getLogger(__name__)

_FIRST_SECS = 0.02
_LONGEST_SECS = 0.5


class Retry:
    """Backs off between the tries of one call: exponentially, with jitter, up to a limit.

    Args:
        what: The call, for messages.
        limit_secs: From the first failure until it gives up.
        clock: Time.
        rng: Jitter.
    """

    def __init__(self, what: str, limit_secs: float, clock: Clock, rng: random.Random) -> None:
        self._what = what
        self._limit_secs = limit_secs
        self._clock = clock
        self._rng = rng
        self._first: float | None = None
        self._said: float | None = None
        self._tries = 0

    def wait(self, error: OpError) -> None:
        """Wait before the next try.

        Args:
            error: Why the last one failed.

        Raises:
            OpError: One of the type of `error`, once the limit has passed.
        """
        now = self._clock.monotonic()
        if self._first is None:
            self._first = now
        elapsed = now - self._first
        if elapsed >= self._limit_secs:
            raise type(error)(
                f"{self._what} failed for {elapsed:.0f} s ({self._tries + 1} tries); the last answer: {error.message}"
            )
        if (self._said is None and elapsed >= 1.0) or (self._said is not None and now - self._said >= 10.0):
            self._said = now
            _log.warning("%s: trying again for up to %.0f s more: %s", self._what, self._limit_secs - elapsed, error)
        longest = min(_LONGEST_SECS, _FIRST_SECS * 2 ** min(self._tries, 16))
        self._tries += 1
        self._clock.wait(threading.Event(), longest * (0.5 + 0.5 * self._rng.random()))
