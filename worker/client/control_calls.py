"""Calls of the control plane, each tried again as its method's policy says (`worker/client/retry.py`).

Layer: worker. Threads: a ControlCalls is thread-safe; calls run in the caller's.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from globalstep.errors import LostStateError, OpError, UnavailableError
from globalstep.runtime.clock import Clock
from globalstep.worker.client.joined_run import Run
from globalstep.worker.client.retry import POLICIES, Retry, RetryCount

__all__ = ["ControlCalls"]

#: Calls with deadlines up to this are answered at once by a task that is well; one that is about to end, and has little
#: time for that, waits no longer for them than so.
_SHORT_CALL_SECS = 10.0
_HASTY_SECS = 3.0


class ControlCalls:
    """Makes unary calls to PS tasks of a run.

    Args:
        run: The run; its transports are used, and it mends what can be mended.
        limit_secs: How long an unreachable task is tried, where the method does not give up before.
        clock: Time.
        rng: Jitter.

    Attributes:
        count: Tries after the first, by method.
    """

    def __init__(self, run: Run, limit_secs: float, clock: Clock, rng: random.Random) -> None:
        self._run = run
        self._limit_secs = limit_secs
        self._clock = clock
        self._rng = rng
        self.count = RetryCount()

    def one(self, method: str, shard: int, request: Any, deadline_secs: float | None = None) -> Any:
        """Call one task, as `each` does several."""
        return self.each(method, {shard: request}, deadline_secs)[shard]

    def each(self, method: str, requests: Mapping[int, Any], deadline_secs: float | None = None) -> dict[int, Any]:
        """Call several tasks at once and wait for all; try each again that is not reached.

        Args:
            method: The RPC.
            requests: Shard -> message.
            deadline_secs: Of a try; default the method's.

        Returns:
            Shard -> reply.

        Raises:
            OpError: The first error that a task answered; the others have been waited for.
        """
        secs = POLICIES[method].deadline_secs if deadline_secs is None else deadline_secs
        if self._run.haste.asked and secs <= _SHORT_CALL_SECS:
            secs = min(secs, _HASTY_SECS)
        calls = {shard: self._run.transports[shard].unary(method, item, secs) for shard, item in requests.items()}
        replies: dict[int, Any] = {}
        failed: OpError | None = None
        for shard, request in requests.items():
            retry: Retry | None = None
            while shard not in replies:
                try:
                    replies[shard] = calls[shard].result()
                    if retry is not None:
                        retry.answered()
                except (UnavailableError, LostStateError) as error:
                    if retry is None:
                        retry = Retry(method, self._limit_secs, self._clock, self._rng, method, self.count)
                    try:
                        retry.wait(self._run.mend(error))
                    except OpError as final:
                        failed = failed or final
                        break
                    calls[shard] = self._run.transports[shard].unary(method, request, secs)
                except OpError as error:
                    failed = failed or error
                    break
        try:
            if failed is not None:
                raise failed
            return replies
        finally:
            # An error that its own frame refers to would keep everything below it, values too, until a collection.
            del failed
