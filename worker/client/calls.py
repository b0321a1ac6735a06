"""Calls to the PS tasks of a run: several at once, each tried again as its method's policy says.

`worker/client/retry.py` has the policies; a Retrying is what the control plane and the data plane wait for answers by.

Layer: worker. Threads: Retrying and ControlCalls are thread-safe; calls run in the caller's.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from globalstep.errors import LostStateError, OpError, UnavailableError
from globalstep.runtime.clock import Clock
from globalstep.wire.transports import Pending, Ticket
from globalstep.worker.client.joined_run import SHUTDOWN_SECS, JoinedRun
from globalstep.worker.client.retry import POLICIES, Retry, RetryCount

#: What any call is tried again after.
RETRIED: tuple[type[OpError], ...] = (UnavailableError, LostStateError)

#: Calls with deadlines up to this are answered at once by a task that is well; a process that is to end gives them
#: SHUTDOWN_SECS.
_SHORT_CALL_SECS = 10.0


@dataclass(frozen=True, slots=True)
class Retrying:
    """How long, and at what pace, a client tries calls again.

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
        """Wait for calls to several tasks, all of which were sent; try each again that is not reached.

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
        failed = next((found for found in replies.values() if isinstance(found, Exception)), None)
        try:
            if failed is not None:
                raise failed
            return replies
        finally:
            # An error that its own frame refers to would keep everything below it, values too, until a collection.
            del failed, replies, calls
