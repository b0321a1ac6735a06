"""Calls to the PS tasks of a run: several at once, each tried again as its method's policy says, in one table.

A call may be tried again because it is idempotent: reads by nature, pushes by their id, control calls because the
second one finds what the first one did. Tried again is what was not answered (UNAVAILABLE), and what a task refused
that had lost its state, once that is recovered from, or that had no memory left and said when to come back; every other
answer is an answer. A Retrying is what the control plane and the data plane wait for answers by.

Layer: worker. Threads: a Retry belongs to one call; all else is thread-safe. Calls run in the caller's.
"""

from __future__ import annotations

import copy
import logging
import math
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from globalstep.errors import LostStateError, OpError, ResourceExhaustedError, UnavailableError
from globalstep.runtime.clock import Clock
from globalstep.wire.transports import Pending, Ticket
from globalstep.worker.client.joined_run import SHUTDOWN_SECS, JoinedRun

_log = logging.getLogger(__name__)

#: What any call is tried again after.
RETRIED: tuple[type[OpError], ...] = (UnavailableError, LostStateError)

#: Calls with deadlines up to this are answered at once by a task that is well; a process that is to end gives them
#: SHUTDOWN_SECS.
_SHORT_CALL_SECS = 10.0

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


@dataclass(frozen=True, slots=True)
class Retrying:
    """A client's retries of calls: for how long, and at what pace.

    Attributes:
        limit_secs: How long an unreachable task is tried, where the method does not give up before.
        clock: Time.
        rng: Jitter.
        count: Tries after the first, by method.
    """

    limit_secs: float
    clock: Clock
    rng: random.Random
    count: RetryCount = field(default_factory=RetryCount)

    def beside(self) -> Retrying:
        """Make one for another thread, which counts for itself."""
        return Retrying(self.limit_secs, self.clock, random.Random(self.rng.random()))

    def retry(self, what: str, method: str = "Exchange") -> Retry:
        """Begin to try a call again."""
        return Retry(what, self.limit_secs, self.clock, self.rng, method, self.count)

    def outcomes(
        self,
        calls: Mapping[int, Any],
        run: JoinedRun,
        again: Callable[[int], Pending | Ticket],
        retry: Callable[[int], Retry],
        retried: tuple[type[OpError], ...] = RETRIED,
    ) -> dict[int, Any]:
        """Wait for calls that were sent to several tasks; retry each that does not reach its task.

        Args:
            calls: Shard -> its call.
            run: The run; it recovers from what can be recovered from.
            again: Sends a shard's call once more.
            retry: Begins to try one again.
            retried: What is tried again.

        Returns:
            Shard -> reply, or the error that the task answered.
        """
        replies: dict[int, Any] = {}
        for shard, call in calls.items():
            trying: Retry | None = None
            while True:
                try:
                    replies[shard] = call.result()
                    if trying is not None:
                        trying.answered()
                    break
                except retried as error:
                    if trying is None:
                        trying = retry(shard)
                    try:
                        trying.wait(run.recover_from(error, shard))
                    except OpError as final:
                        # Without what it came of: an error that its own frame refers to would keep everything below it.
                        final.__context__ = None
                        replies[shard] = final.with_traceback(None)
                        break
                    call = again(shard)
                except Exception as error:
                    replies[shard] = error.with_traceback(None)
                    break
        return replies


class ControlCalls:
    """Makes unary calls to PS tasks of a run.

    Args:
        run: The run; its transports are used.
        retrying: Tries them again.
    """

    def __init__(self, run: JoinedRun, retrying: Retrying) -> None:
        self._run = run
        self._retrying = retrying

    def one(self, method: str, shard: int, request: Any, deadline_secs: float | None = None) -> Any:
        """Call one task, as `each` does several."""
        return self.each(method, {shard: request}, deadline_secs)[shard]

    def all(self, method: str, request: Any, deadline_secs: float | None = None) -> list[Any]:
        """Call every task with the same message, as `each` does several; gives the replies in order."""
        return list(self.each(method, dict.fromkeys(range(len(self._run.transports)), request), deadline_secs).values())

    def each(self, method: str, requests: Mapping[int, Any], deadline_secs: float | None = None) -> dict[int, Any]:
        """Call several tasks at once and wait for all; try each again that is not reached.

        Returns:
            Shard -> reply, in the order of the requests.

        Raises:
            OpError: The first error that a task answered; the others have been waited for.
        """
        self._run.check_process()
        secs = POLICIES[method].deadline_secs if deadline_secs is None else deadline_secs
        if self._run.shutdown.asked and secs <= _SHORT_CALL_SECS:
            secs = min(secs, SHUTDOWN_SECS)

        def send(shard: int) -> Pending:
            return self._run.transports[shard].unary(method, requests[shard], secs)

        calls = {shard: send(shard) for shard in requests}
        replies = self._retrying.outcomes(calls, self._run, send, lambda shard: self._retrying.retry(method, method))
        failed = next((reply for reply in replies.values() if isinstance(reply, Exception)), None)
        try:
            if failed is not None:
                raise failed
            return replies
        finally:
            # An error that its own frame refers to would keep everything below it, values too, until a collection.
            del failed, replies, calls
