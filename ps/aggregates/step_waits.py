"""Calls that wait for a step that is made of several workers' contributions: AWAIT_STEP, and contributions themselves.

Where a connection can have a call wait without a thread, the call is answered once the step has moved on, or its
patience is over; elsewhere at once, and the client pauses before it asks again. A contribution whose step is made while
it waits is answered with what it reads, as of then; else without, and its client asks AWAIT_STEP.

Layer: ps. Threads: a StepWaits is thread-safe. A ParkedCall is resumed once, by the thread that has taken it out of
where it waited; the thread that serves its connection makes its reply.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.budget import Kind, MemoryClaim
from globalstep.ps.shard.events import AwaitSlower, AwaitStep, Pull, ReadMade
from globalstep.ps.shard.layouts import Layout, LayoutMemory, PushParts
from globalstep.ps.shard.replies import Answer, Packing, StepWait, bytes_of
from globalstep.ps.shard.shard import Shard
from globalstep.wire.codec import TensorWriter
from globalstep.wire.declarations import Increment, Read

#: Longest patience: meanwhile nobody looks whether a contributor is gone.
_MOST_PATIENCE_MS = 1000
#: See StepWaits._is_over.
_BELIEVED_SECS = 1.0


#: Writes a reply.
Make = Callable[[pb.Reply, TensorWriter], None]


class ParkedCall:
    """A call that waits.

    Args:
        since: When it began to wait, by the clock's monotonic reading.
        wake: Has the thread that serves its connection make the reply.

    Attributes:
        since: As given.
        make: Makes the reply; None before it is resumed.
    """

    __slots__ = ("_wake", "make", "since")

    def __init__(self, since: float, wake: Callable[[ParkedCall], None]) -> None:
        self.since = since
        self._wake = wake
        self.make: Make | None = None

    def resume(self, make: Make) -> None:
        """Have the reply made."""
        self.make = make
        self._wake(self)


class ServedLine(Protocol):
    """A connection, as far as a handler needs to know it."""

    def park(self, call: OpenCall) -> ParkedCall | None:
        """Have a call wait without a thread; None where it cannot."""
        ...


@dataclass(slots=True, eq=False)
class OpenCall:
    """A request that is being carried out, and may have to wait.

    Attributes:
        request: The message.
        memory: What its stream remembers.
        line: Its connection; None for one on which no call waits without a thread.
        number: Of the call on its connection.
        parked: It, while it waits.
    """

    request: pb.Request
    memory: LayoutMemory
    line: ServedLine | None = None
    number: int = 0
    parked: ParkedCall | None = None


class _Asked(NamedTuple):
    """The fields of the request, as an AwaitStep has them."""

    incarnation: int
    client: str
    step: str
    base: int
    units: int = 0

    @classmethod
    def of(cls, message: pb.AwaitRequest) -> _Asked:
        """Read it from its message."""
        return cls(message.incarnation, message.client, message.step, message.base, message.units)


class _Wanted(NamedTuple):
    """The values that a contribution reads of its step."""

    reads: Sequence[Read]
    #: Its layout, where it has one.
    layout: Layout | None
    #: Whether its client knows where in the answer the values lie.
    known: bool
    #: What it takes.
    claim: MemoryClaim | None = None


class _Waiting(NamedTuple):
    """A call that waits."""

    parked: ParkedCall
    asked: _Asked
    #: When its patience ends, by the clock's monotonic reading.
    until: float
    #: Makes its reply.
    make: Make


class StepWaits:
    """The AWAIT_STEPs of one PS task.

    Args:
        shard: Its state.
        encode: Writes the reads of a push into its reply.

    Attributes:
        parked: The calls that wait; appended to and taken from at its ends only, which is atomic.
    """

    def __init__(self, shard: Shard, encode: Callable[[Answer, pb.PushReply, TensorWriter], None]) -> None:
        self._shard = shard
        self._encode_answer = encode
        self.parked: deque[_Waiting] = deque()
        # Step -> until when somebody is believed to be waited for, in which incarnation; see _is_over.
        self._believed: dict[str, tuple[int, float]] = {}

    def await_step(
        self, message: pb.AwaitRequest, data: memoryview, reply: pb.Reply, tensors: TensorWriter, call: OpenCall
    ) -> None:
        """Carry out an AWAIT_STEP, or have it parked, as a method of a Handler."""
        asked = _Asked.of(message)
        wait = self._ask(asked)
        over = wait.over or wait.due or wait.unit
        if over or not self._park(asked, message.patience_ms, call, partial(self._answer, asked)):
            _encode(wait, reply.await_step)

    def await_made(
        self, increments: Sequence[Increment], parts: PushParts, reply: pb.Reply, tensors: TensorWriter, call: OpenCall
    ) -> None:
        """Have the answer to a contribution wait until its step has been made.

        Args:
            increments: By which it is one.
            parts: Its: with what its client wants to read of the step that it makes.
            reply: With its outcome, and values if it has made the step by itself.
            tensors: Of the reply.
            call: The PUSH.
        """
        push, outcome = call.request.push, reply.push.outcome
        step = next((item.step for item in increments if item.contributions), "")
        base = push.seen_steps.get(step)
        if base is None or outcome.kind != pb.OUTCOME_ACCEPTED or outcome.steps.get(step) != base:
            return
        asked = _Asked(push.incarnation, push.id.client, step, base)
        reads, claim = parts.reads, None
        if parts.layout is None:  # what they name lies in the request's memory
            reads = [read if read.indices is None else Read(read.variable, read.indices.copy()) for read in reads]
            account = call.memory.account
            claim = account.budget.try_claim(Kind.KEPT, account, bytes_of(reads))
        wanted = _Wanted(reads, parts.layout, parts.known, claim)
        waits = push.patience_ms if parts.layout is not None or claim is not None else 0
        made = partial(self._answer_made, asked, reply.push, wanted, call)
        self._shard.secure(self._shard.log)  # others may hear of it while it waits
        if self._is_over(asked) or not self._park(asked, waits, call, made):
            self._tell_made(asked, wanted, call, reply, tensors)

    def _is_over(self, asked: _Asked) -> bool:
        """Whether a contribution need not wait: its step is made, or nobody is left to wait for.

        To find that out takes as long as to decide on the contribution. So where somebody was waited for, that is
        believed for a second: if it is wrong by then, the call's patience ends, and its client asks. It is not
        believed once a step was made of fewer contributions than wanted.
        """
        if self._has_moved_on(asked):
            return True
        now, at = self._shard.now, self._shard.resources.clock.monotonic()
        incarnation, until = self._believed.get(asked.step, (0, at))
        if incarnation == asked.incarnation and at < until and asked.step not in now.fewer:
            return False
        wait = self._ask(asked)
        if wait.over or wait.due:
            return True
        self._believed[asked.step] = asked.incarnation, at + _BELIEVED_SECS
        return False

    def _park(self, asked: _Asked, patience_ms: int, call: OpenCall, make: Make) -> bool:
        """Have a call wait, where it can; says whether it does."""
        if patience_ms and call.line is not None:
            call.parked = call.line.park(call)
        if call.parked is None:
            return False
        call.request = pb.Request(reply_form=call.request.reply_form)  # what else it says is not kept
        until = call.parked.since + min(patience_ms, _MOST_PATIENCE_MS) / 1000
        self.parked.append(_Waiting(call.parked, asked, until, make))
        return True

    def now(self) -> float:
        """Give the time, by the clock that parked calls are looked after by."""
        return self._shard.resources.clock.monotonic()

    def look_after(self) -> float | None:
        """Answer calls whose step has moved on, or that have waited for long enough.

        Returns:
            When to look again, in seconds; None for not at all.
        """
        soonest, now = None, self.now()
        for _ in range(len(self.parked)):
            waiting = self.parked.popleft()
            left = waiting.until - now
            if left <= 0.0 or self._has_moved_on(waiting.asked):
                waiting.parked.resume(waiting.make)
            else:
                self.parked.append(waiting)
                soonest = left if soonest is None else min(soonest, left)
        return soonest

    def _has_moved_on(self, asked: _Asked) -> bool:
        """Whether a step has left the value that a call waits at. Takes no lock: it is asked often."""
        now = self._shard.now
        ledger = now.ledger
        if now.number != asked.incarnation or ledger is None:
            return True
        return ledger.visible.get(asked.step) != asked.base

    def _ask(self, asked: _Asked) -> StepWait:
        return self._shard.handle(AwaitStep(*asked))

    def _answer(self, asked: _Asked, reply: pb.Reply, tensors: TensorWriter) -> None:
        _encode(self._ask(asked), reply.await_step)
        reply.await_step.waited = True

    def _answer_made(
        self,
        asked: _Asked,
        answer: pb.PushReply,
        wanted: _Wanted,
        call: OpenCall,
        reply: pb.Reply,
        tensors: TensorWriter,
    ) -> None:
        reply.push.CopyFrom(answer)
        self._tell_made(asked, wanted, call, reply, tensors)

    def _tell_made(
        self, asked: _Asked, wanted: _Wanted, call: OpenCall, reply: pb.Reply, tensors: TensorWriter
    ) -> None:
        """Tell a contribution whose step has been made so, with what it reads."""
        memory, steps = call.memory, reply.push.outcome.steps
        if wanted.layout is not None:
            made = self._shard.handle(ReadMade(*asked[:4], wanted.layout, memory.buffer))
            if made is not None:
                steps.update(made.steps)
                answer = Answer(wanted.reads, made.values, Packing(made.places, wanted.known))
                self._encode_answer(answer, reply.push, tensors)
                return
        wait = self._ask(asked)
        if wait.steps.get(asked.step) == asked.base:
            return
        steps.update(wait.steps)
        answer = self._shard.handle(Pull(asked.incarnation, asked.client, wanted.reads, {}, memory.buffer))
        self._encode_answer(answer, reply.push, tensors)


def _encode(wait: StepWait, found: pb.AwaitReply) -> None:
    found.over, found.contributions, found.wanted, found.due = wait.over, wait.contributions, wait.wanted, wait.due
    found.unit = wait.unit
    found.waits_for.extend(wait.waits_for)
    for name, value in wait.steps.items():
        found.steps[name] = value


def await_slower(
    shard: Shard,
    message: pb.AwaitRequest,
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
