"""When and how often a call is tried again: one table for every method of the service.

A call may be tried again because it is idempotent: reads by nature, pushes by their id, control calls because the
second one finds what the first one did. Tried again is what was not answered (UNAVAILABLE), and what a task refused
that had lost its state, once that is recovered from, or that had no memory left and said when to come back; every other
answer is an answer.

Layer: worker. Threads: a Retry belongs to one call; a RetryCount is thread-safe.
"""

from __future__ import annotations

import copy
import logging
import math
import random
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from globalstep.errors import OpError, ResourceExhaustedError
from globalstep.runtime.clock import Clock

_log = logging.getLogger(__name__)

_SAY_AFTER_SECS = 1.0
_SAY_EVERY_SECS = 10.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How one method is called.

    Args:
        deadline_secs: After so long without an answer a try counts as UNAVAILABLE.
        limit_secs: How long tries go on after the first that failed, where the session does not give up before;
            infinity for as long as the session allows; 0 for one try, because something else makes up for it.
        first_secs: Pause after the first try; each further one doubles it, and each is shortened by chance.
        longest_secs: Longest pause.
    """

    deadline_secs: float
    limit_secs: float
    first_secs: float = 0.02
    longest_secs: float = 0.5


#: How long a client puts up with a task that says that it is busy.
_BUSY_SECS = 600.0
_AS_LONG_AS_THE_SESSION = math.inf
_ONCE = 0.0

#: RPC -> how it is called, and why it may be called again, or what makes up for one try. Every method is here.
POLICIES: Mapping[str, RetryPolicy] = {
    # A client that waits for a task asks anew; for the others, this bridges a short outage.
    "Status": RetryPolicy(10.0, 1.0),
    "Begin": RetryPolicy(10.0, 30.0),  # The second finds its own incarnation in force.
    # The same again changes nothing. A PS task compiles the kernels of a rule that is not in its machine's cache.
    "Declare": RetryPolicy(120.0, 30.0),
    "Open": RetryPolicy(10.0, 30.0),  # Limits are absolute: the client counts `num_steps` from the step first.
    # The next one comes in a second.
    "Heartbeat": RetryPolicy(4.0, _ONCE),
    # The candidate asks anew.
    "ClaimChief": RetryPolicy(5.0, _ONCE),
    # The lease ends it.
    "Leave": RetryPolicy(2.0, _ONCE),
    "Finish": RetryPolicy(10.0, 60.0),  # A job that is done stays so.
    "GetGlobalStep": RetryPolicy(10.0, _AS_LONG_AS_THE_SESSION),  # A read; floors only rise.
    # Pushes bear an id; COMMIT, floors and reads change nothing twice. The next call opens the stream anew.
    "Exchange": RetryPolicy(60.0, _AS_LONG_AS_THE_SESSION),
    # Calls go over gRPC.
    "OpenLane": RetryPolicy(5.0, _ONCE),
    # The settler asks again in 2 s.
    "Settle": RetryPolicy(5.0, _ONCE),
    "WriteSnapshot": RetryPolicy(3600.0, 30.0),  # The same file again, under another temporary name.
    # The client asks again before its next snapshot; those of a client that is gone are freed then.
    "ReleaseSnapshot": RetryPolicy(10.0, _ONCE),
    # The journal's keeper asks again in 5 s.
    "ReadJournal": RetryPolicy(10.0, _ONCE),
    # Who finds a task without its state asks anew, and may find it recovered. A log of many gigabytes takes its time.
    "Recover": RetryPolicy(3600.0, _ONCE),
    "FindLog": RetryPolicy(10.0, _ONCE),
    # Calls bear the number of their slot; one that waits is answered within a second.
    "Queue": RetryPolicy(30.0, _AS_LONG_AS_THE_SESSION),
    # A person asks again.
    "Stop": RetryPolicy(10.0, _ONCE),
}


class RetryCount:
    """How often a client has tried again, by method. Thread-safe."""

    def __init__(self) -> None:
        # Guards the counts; a leaf.
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, method: str) -> None:
        """Count a try after the first."""
        with self._lock:
            self._counts[method] += 1

    def view(self) -> dict[str, int]:
        """Give the counts so far."""
        with self._lock:
            return dict(self._counts)


class Retry:
    """Backs off between the tries of one call: exponentially, with jitter, up to a limit.

    Args:
        what: The call, for messages.
        limit_secs: From the first failure until it gives up; the method's own limit may be shorter.
        clock: Time.
        rng: Jitter.
        method: The RPC.
        count: Where tries are counted.
    """

    def __init__(
        self,
        what: str,
        limit_secs: float,
        clock: Clock,
        rng: random.Random,
        method: str = "Exchange",
        count: RetryCount | None = None,
    ) -> None:
        self._what = what
        self._policy = POLICIES[method]
        self._limit_secs = min(limit_secs, self._policy.limit_secs)
        self._method = method
        self._count = count
        self._clock = clock
        self._rng = rng
        self._first: float | None = None
        self._busy = False
        self._said: float | None = None
        self._tries = 0

    def wait(self, error: OpError) -> None:
        """Wait before the next try.

        Raises:
            OpError: One of the type of `error`, once the limit has passed.
        """
        # Errors are raised again as copies: one that a frame of its own refers to keeps what its frames hold, values
        # too, until a collection.
        busy = isinstance(error, ResourceExhaustedError)
        if isinstance(error, ResourceExhaustedError) and not error.retry_secs:
            raise copy.copy(error) from None  # waiting does not help
        now = self._clock.monotonic()
        if busy != self._busy:
            self._busy, self._first = busy, None
        if self._first is None:
            self._first = now
        elapsed = now - self._first
        if self._policy.limit_secs == _ONCE:
            raise copy.copy(error) from None
        # A task that answers is there: it is slow, and its clients are to be as slow.
        limit_secs = max(self._limit_secs, _BUSY_SECS) if busy else self._limit_secs
        if elapsed >= limit_secs:
            raise type(error)(
                f"{self._what} failed for {elapsed:.0f} s ({self._tries + 1} tries); the last answer: {error.message}"
            )
        since, quiet_secs = (self._first, _SAY_AFTER_SECS) if self._said is None else (self._said, _SAY_EVERY_SECS)
        if now - since >= quiet_secs:
            self._said = now
            # "push to ps:0: trying again ...: ps:0: gone" names the task once too often.
            reason = str(error).removeprefix(f"{self._what.rpartition(' to ')[2]}: ")
            _log.warning("%s: trying again for up to %.0f s more: %s", self._what, limit_secs - elapsed, reason)
        longest = min(self._policy.longest_secs, self._policy.first_secs * 2 ** min(self._tries, 16))
        self._tries += 1
        if self._count is not None:
            self._count.add(self._method)
        pause = longest * (0.5 + 0.5 * self._rng.random())
        if isinstance(error, ResourceExhaustedError):
            # The task says when there may be memory; all come back at different times.
            pause = max(pause, error.retry_secs * (1.0 + self._rng.random()))
        self._clock.sleep(pause)

    def answered(self) -> None:
        """Take note that the call was answered; the log says so if it has said that the call was retried."""
        if self._said is not None and self._first is not None:
            _log.warning("%s: answered after %.0f s.", self._what, self._clock.monotonic() - self._first)
