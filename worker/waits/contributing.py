"""Contributions: pushes that count for a step together with those of other workers, and the wait for that step.

docs/design/push-protocol.md, "Aggregates", is the specification.

Layer: worker. Threads: a Contributing is thread-safe; several threads may wait at once, without any lock.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from globalstep.errors import FailedPreconditionError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import Clock
from globalstep.wire.declarations import Increment, Outcome, OutcomeKind, Push
from globalstep.worker.client.joined_run import JoinedRun
from globalstep.worker.protocol.push_result import PushResult
from globalstep.worker.waits.asking import Asking, Ways

__all__ = ["Contributing", "is_contribution"]

#: How long a question whether a step has moved on may wait for its answer; other calls of the client wait meanwhile.
_PATIENCE_MS = 20


def is_contribution(push: Push) -> bool:
    """Whether a push is one."""
    return any(item.contributions for item in push.increments)


class Contributing:
    """Contributes for a client.

    Args:
        ways: The client's.
        run: What it knows of the run.
        clock: Time.
    """

    def __init__(self, ways: Ways, run: JoinedRun, clock: Clock) -> None:
        self._ways = ways
        self._run = run
        self._asking = Asking(ways, run, clock)
        # Guards _given; a leaf.
        self._lock = threading.Lock()
        # Step -> (incarnation, value that it was computed from, how many were given for what follows).
        self._given: dict[str, tuple[int, int, int]] = {}

    def contribute(self, push: Push) -> PushResult:
        """Push a contribution, exactly once, and wait until its step has been made.

        A client that may give several for one step waits after the last of them.

        Returns:
            The outcome, with the steps as they are after the wait, and values as of then.

        Raises:
            FailedPreconditionError: If a PS task does not know of contributions.
            AbortedError: If the run's incarnation is over: what was contributed to an open step is lost with it.
            OpError: As for a push.
        """
        if not self._run.aggregates:
            raise FailedPreconditionError(
                "A PS task of this cluster is of an older version, which knows nothing of contributions: "
                "SyncReplicasOptimizer needs PS tasks of this version. Start them again with it."
            )
        (wanted,) = push.increments
        shards = {shard for op in push.ops for shard in self._ways.shards_of(op.variable)}
        # Whichever rows of a partitioned Variable a worker has: all contributions have parts on the same tasks.
        part = replace(push, reads=[], beside=tuple(sorted(shards)))
        result = self._ways.push(part)
        outcome = result.outcome
        base = part.seen_steps[wanted.step]
        waits = outcome.kind is OutcomeKind.LATE
        if outcome.kind is OutcomeKind.ACCEPTED and not self._may_give_more(wanted, base):
            waits = outcome.steps.get(wanted.step) == base
        if waits:
            outcome = replace(outcome, steps=self._await(part, wanted, base))
        if outcome.kind is not OutcomeKind.ACCEPTED:
            return PushResult(outcome, [], result.applied)
        return PushResult(outcome, self._ways.pull(push.reads) if push.reads else [], result.applied)

    def _may_give_more(self, wanted: Increment, base: int) -> bool:
        """Take note of an accepted contribution; says whether the client may give another one for the same step."""
        with self._lock:
            incarnation, of, count = self._given.get(wanted.step, (0, 0, 0))
            count = count + 1 if (incarnation, of) == (self._run.incarnation, base) else 1
            self._given[wanted.step] = self._run.incarnation, base, count
            return count < wanted.most_of_client

    def _await(self, part: Push, wanted: Increment, base: int) -> dict[str, int]:
        """Wait until a step has moved on from `base`, or will not; gives the steps."""
        request = pb.Request()
        message = request.await_step
        message.incarnation, message.client = self._run.incarnation, self._run.client
        message.step, message.base, message.patience_ms = wanted.step, base, _PATIENCE_MS
        found = pb.AwaitStepReply()

        def over(reply: pb.Reply) -> bool | None:
            nonlocal found
            found = reply.await_step
            if found.due and not found.over:
                self._close(part, wanted)
                return None
            return None if found.waited and not found.over else found.over

        self._asking.until(request, over, f"step {base + 1} of {wanted.step}", lambda: _why(found))
        return dict(found.steps)

    def _close(self, part: Push, wanted: Increment) -> Outcome:
        """Ask that the step be made of the contributions that are there: no other will come."""
        closing = replace(part, ops=[], increments=[replace(wanted, closes=True)], layout=None)
        return self._ways.push(closing).outcome


def _why(found: pb.AwaitStepReply) -> str:
    """Say whom a wait is for."""
    names = "; ".join(found.waits_for) or "nobody: it is about to be made"
    return f"{found.contributions} of {found.wanted} contributions are there, and it waits for {names}"
