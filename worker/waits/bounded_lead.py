"""Bounded staleness: a worker that is too far ahead of the slowest waits, after its push and before it reads again.

docs/design/steps-of-several-workers.md, "Bounded staleness", is the specification.

Layer: worker. Threads: a BoundedLead is thread-safe; several threads may wait at once, without any lock.
"""

from __future__ import annotations

import threading

from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import Clock
from globalstep.wire.declarations import OutcomeKind, Push
from globalstep.worker.client.joined_run import JoinedRun
from globalstep.worker.protocol.push_result import PushResult
from globalstep.worker.waits.asking import Asking, Ways


class BoundedLead:
    """Waits for a client after its pushes, where the run's policy says so.

    Args:
        ways: The client's.
        run: What it knows of the run.
        clock: Time.
    """

    def __init__(self, ways: Ways, run: JoinedRun, clock: Clock) -> None:
        self._ways = ways
        self._run = run
        self._asking = Asking(ways, run, clock)
        # Guards _free; a leaf.
        self._lock = threading.Lock()
        # (incarnation, how many pushes of it need no question).
        self._free: tuple[int, int] = (0, 0)

    def follow(self, push: Push, result: PushResult) -> PushResult:
        """Wait, after a push, until this worker is no more than `max_lead` pushes ahead.

        Returns:
            The outcome; after a wait with values as of then.

        Raises:
            OpError: As for a pull.
        """
        kind = result.outcome.kind
        if not push.increments:
            return result
        if kind not in (OutcomeKind.ACCEPTED, OutcomeKind.DROPPED_NAN) or self._took_free() or not self._wait():
            return result
        values = self._ways.pull(push.reads) if push.reads and kind is OutcomeKind.ACCEPTED else []
        return PushResult(result.outcome, values, result.applied)

    def _took_free(self) -> bool:
        """Whether the last answer allowed this push as well."""
        with self._lock:
            incarnation, free = self._free
            if incarnation != self._run.incarnation or not free:
                return False
            self._free = incarnation, free - 1
            return True

    def _wait(self) -> bool:
        """Ask until this worker may go on; says whether what it has read is too old for that."""
        request = pb.Request()
        request.await_slower.incarnation, request.await_slower.client = self._run.incarnation, self._run.client
        found = pb.AwaitReply()

        def over(reply: pb.Reply) -> bool:
            nonlocal found
            found = reply.await_slower
            return found.over

        def why() -> str:
            names = "; ".join(found.waits_for) or "nobody: it is about to go on"
            return f"it is {found.lead} pushes ahead, where {self._run.max_lead} are allowed, and waits for {names}"

        self._asking.until(request, over, "slower workers (max_staleness)", why)
        with self._lock:
            self._free = self._run.incarnation, found.free_pushes
        return found.waited
