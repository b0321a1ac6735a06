"""Calls that wait for a step that is made of several workers' contributions: AWAIT_STEP, and contributions themselves.

Where a connection can have a call wait without a thread, the call is answered once the step has moved on, or its
patience is over; elsewhere at once, and the client pauses before it asks again. A contribution whose step is made while
it waits is answered with what it reads, as of then; else without, and its client asks AWAIT_STEP.

Layer: ps. Threads: a StepWaits is thread-safe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial

from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.links.parked_call import Make, OpenCall, ParkedCall
from globalstep.ps.shard.events import AwaitSlower, AwaitStep, Pull
from globalstep.ps.shard.layouts import LayoutMemory
from globalstep.ps.shard.replies import StepWait
from globalstep.ps.shard.shard import Shard
from globalstep.wire import codec
from globalstep.wire.codec import TensorWriter
from globalstep.wire.declarations import Increment, Read

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
        # Calls that wait, for what, and what makes their replies; appended to and taken from at its ends only, each of
        # which is atomic.
        self._parked: deque[tuple[ParkedCall, pb.AwaitStepRequest, Make]] = deque()

    @property
    def is_idle(self) -> bool:
        """Whether no call waits."""
        return not self._parked

    def await_step(
        self, message: pb.AwaitStepRequest, data: memoryview, reply: pb.Reply, tensors: TensorWriter, call: OpenCall
    ) -> None:
        """Carry out an AWAIT_STEP, or have it parked, as a method of a Handler."""
        wait = self._ask(message)
        if not self._park(wait, message, call, partial(self._answer, message)):
            _encode(wait, reply.await_step)

    def await_made(
        self,
        increments: Sequence[Increment],
        reads: Sequence[Read],
        reply: pb.Reply,
        tensors: TensorWriter,
        call: OpenCall,
    ) -> None:
        """Have the answer to a contribution wait until its step has been made.

        Args:
            increments: By which it is one.
            reads: What its client wants to read of the step that it makes.
            reply: With its outcome, and values if it has made the step by itself.
            tensors: Of the reply.
            call: The PUSH.
        """
        push, outcome = call.request.push, reply.push.outcome
        step = next((item.step for item in increments if item.contributions), "")
        base = push.seen_steps.get(step)
        if base is None or outcome.kind != pb.OUTCOME_ACCEPTED or outcome.steps.get(step) != base:
            return
        message = pb.AwaitStepRequest(
            incarnation=push.incarnation, client=push.id.client, step=step, base=base, patience_ms=push.patience_ms
        )
        wait = self._ask(message)
        # What they name lies in the request's memory.
        reads = [read if read.indices is None else Read(read.variable, read.indices.copy()) for read in reads]
        made = partial(self._answer_made, message, reply.push, reads, call)
        self._shard.secure(self._shard.log)  # others may hear of it while it waits
        if not self._park(wait, message, call, made):
            self._tell_made(wait, message, reads, call, reply, tensors)

    def _park(self, wait: StepWait, message: pb.AwaitStepRequest, call: OpenCall, make: Make) -> bool:
        """Have a call wait, where there is something to wait for, and it can; says whether it does."""
        if message.patience_ms and not (wait.over or wait.due or wait.unit) and call.line is not None:
            call.parked = call.line.park(call)
        if call.parked is None:
            return False
        self._parked.append((call.parked, message, make))
        return True

    def look_after(self, now: float) -> float | None:
        """Answer calls whose step has moved on, or that have waited for long enough.

        Args:
            now: The clock's monotonic reading.

        Returns:
            When to look again, in seconds; None for not at all.
        """
        soonest = None
        for _ in range(len(self._parked)):
            parked, message, make = self._parked.popleft()
            left = parked.since + min(message.patience_ms, _MOST_PATIENCE_MS) / 1000 - now
            if left <= 0.0 or self._has_moved_on(message):
                parked.resume(make)
            else:
                self._parked.append((parked, message, make))
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

    def _answer(self, message: pb.AwaitStepRequest, reply: pb.Reply, tensors: TensorWriter) -> None:
        _encode(self._ask(message), reply.await_step)
        reply.await_step.waited = True

    def _answer_made(
        self,
        message: pb.AwaitStepRequest,
        answer: pb.PushReply,
        reads: Sequence[Read],
        call: OpenCall,
        reply: pb.Reply,
        tensors: TensorWriter,
    ) -> None:
        reply.push.CopyFrom(answer)
        self._tell_made(self._ask(message), message, reads, call, reply, tensors)

    def _tell_made(
        self,
        wait: StepWait,
        message: pb.AwaitStepRequest,
        reads: Sequence[Read],
        call: OpenCall,
        reply: pb.Reply,
        tensors: TensorWriter,
    ) -> None:
        """Tell a contribution whose step has been made so, with what it reads."""
        if wait.steps.get(message.step) == message.base:
            return
        for name, value in wait.steps.items():
            reply.push.outcome.steps[name] = value
        memory = call.memory
        buffer = memory.buffer if memory.pull_buffer is None else memory.pull_buffer
        values, _ = self._shard.handle(Pull(message.incarnation, message.client, reads, {}, buffer))
        codec.encode_values(reads, values, reply.push.values, tensors)


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
