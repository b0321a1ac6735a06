"""AWAIT_STEP: how it stands with a step that is made of several workers' contributions, and calls that wait for it.

Where a connection can have a call wait without a thread, the call is answered once the step has moved on, or its
patience is over; elsewhere at once, and the client pauses before it asks again.

Layer: ps. Threads: a StepWaits is thread-safe.
"""

from __future__ import annotations

from collections import deque

from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.links.parked_call import Make, OpenCall, ParkedCall
from globalstep.ps.shard.events import AwaitSlower, AwaitStep
from globalstep.ps.shard.layouts import LayoutMemory
from globalstep.ps.shard.replies import StepWait
from globalstep.ps.shard.shard import Shard
from globalstep.wire.codec import TensorWriter

__all__ = ["StepWaits", "await_slower"]

#: Longest patience: meanwhile nobody looks whether a contributor is gone.
_MOST_PATIENCE_MS = 1000


class StepWaits:
    """The AWAIT_STEPs of one PS task.

    Args:
        shard: Its state.
    """

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        # Calls that wait; appended to and taken from at its ends only, each of which is atomic.
        self._parked: deque[tuple[ParkedCall, pb.AwaitStepRequest]] = deque()

    @property
    def is_idle(self) -> bool:
        """Whether no call waits."""
        return not self._parked

    def await_step(
        self, message: pb.AwaitStepRequest, data: memoryview, reply: pb.Reply, tensors: TensorWriter, call: OpenCall
    ) -> None:
        """Carry out an AWAIT_STEP, or have it parked, as a method of a Handler."""
        wait = self._ask(message)
        if message.patience_ms and not (wait.over or wait.due or wait.unit) and call.line is not None:
            call.parked = call.line.park(call)
        if call.parked is not None:
            self._parked.append((call.parked, message))
        else:
            _encode(wait, reply.await_step)

    def look_after(self, now: float) -> float | None:
        """Answer calls whose step has moved on, or that have waited for long enough.

        Args:
            now: The clock's monotonic reading.

        Returns:
            When to look again, in seconds; None for not at all.
        """
        soonest = None
        for _ in range(len(self._parked)):
            parked, message = self._parked.popleft()
            left = parked.since + min(message.patience_ms, _MOST_PATIENCE_MS) / 1000 - now
            if left <= 0.0 or self._has_moved_on(message):
                parked.resume(self._answer(message))
            else:
                self._parked.append((parked, message))
                soonest = left if soonest is None else min(soonest, left)
        return soonest

    def _has_moved_on(self, message: pb.AwaitStepRequest) -> bool:
        """Whether a step has another value than the one that is waited at. Takes no lock: it is asked often."""
        now = self._shard.now
        ledger = now.ledger
        if now.number != message.incarnation or ledger is None:
            return True
        return ledger.visible.get(message.step) != message.base

    def _ask(self, message: pb.AwaitStepRequest) -> StepWait:
        return self._shard.handle(
            AwaitStep(message.incarnation, message.client, message.step, message.base, message.units)
        )

    def _answer(self, message: pb.AwaitStepRequest) -> Make:
        def make(reply: pb.Reply, tensors: TensorWriter) -> None:
            _encode(self._ask(message), reply.await_step)
            reply.await_step.waited = True

        return make


def _encode(wait: StepWait, found: pb.AwaitStepReply) -> None:
    found.over, found.contributions, found.wanted, found.due = wait.over, wait.contributions, wait.wanted, wait.due
    found.unit = wait.unit
    found.waits_for.extend(wait.waits_for)
    for name, value in wait.steps.items():
        found.steps[name] = value


def await_slower(
    shard: Shard,
    message: pb.AwaitSlowerRequest,
    data: memoryview,
    reply: pb.Reply,
    tensors: TensorWriter,
    memory: LayoutMemory,
) -> None:
    """Carry out an AWAIT_SLOWER, as a method of a Handler: whether a worker may go on, or is too far ahead."""
    wait = shard.handle(AwaitSlower(message.incarnation, message.client))
    found = reply.await_slower
    found.over, found.free_pushes, found.lead, found.waited = wait.over, wait.free_pushes, wait.lead, wait.waited
    found.waits_for.extend(wait.waits_for)
