"""AWAIT_STEPs and contributions that wait without a thread: answered by the step, by the end of the run, or by time."""

from __future__ import annotations

import random

import numpy as np
import pytest
from counting_run import RATE, SHAPES, USES, initialize

from globalstep.errors import AbortedError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.aggregates.step_waits import OpenCall, ParkedCall
from globalstep.ps.local import LocalPS
from globalstep.ps.members.presence import LINGER_SECS
from globalstep.ps.shard.layouts import LayoutMemory
from globalstep.runtime.clock import ManualClock
from globalstep.wire import codec
from globalstep.wire.codec import TensorWriter
from globalstep.wire.declarations import Increment, Op, OpKind, OutcomeKind, Push, Read
from globalstep.worker.client.client import ClusterClient

PATIENCE_MS = 20
READS = (Read("b"), Read("global_step"))


class PlayedLine:
    """A connection whose calls wait, if they may; says which were resumed."""

    def __init__(self, clock, parks=True):
        self.clock = clock
        self.parks = parks
        self.resumed = []

    def park(self, call):
        self.call = call
        return ParkedCall(self.clock.monotonic(), lambda _: self.resumed.append(call)) if self.parks else None


class Job:
    """A PS task, a client that has contributed once, and its AWAIT_STEPs."""

    def __init__(self):
        self.clock = ManualClock()
        self.ps = LocalPS(1, clock=self.clock)
        self.client = ClusterClient(self.ps.transports(), rng=random.Random(1), member=False, clock=self.clock)
        self.client.begin(sequencer=0, open=True)
        initialize(self.client)
        self.handler = self.ps.controls[0].handler
        self.waits = self.handler.step_waits
        self.line = PlayedLine(self.clock)

    def contribute(self, base, wanted=2):
        ops = [Op(OpKind.APPLY, name, np.ones(shape, np.float32), optimizer="sgd") for name, shape in SHAPES.items()]
        step = [Increment("global_step", 1, wanted, 2)]
        self.client.push(
            Push(ops=ops, increments=step, uses=list(USES), seen_steps={"global_step": base}), at_once=True
        )

    def ask(self, base, patience_ms=PATIENCE_MS, line=None):
        """Ask; gives the reply to a call that does not wait."""
        request = pb.Request()
        message = request.await_step
        message.incarnation, message.client = self.client.incarnation, self.client.client_id
        message.step, message.base, message.patience_ms = "global_step", base, patience_ms
        call = OpenCall(request, LayoutMemory(), self.line if line is None else line)
        reply, tensors = pb.Reply(), TensorWriter()
        self.waits.await_step(message, memoryview(b""), reply, tensors, call)
        return reply.await_step if call.parked is None else None

    def look(self):
        return self.waits.look_after()

    def push(
        self, wanted=2, base=0, patience_ms=PATIENCE_MS, line=None, client="another", number=1, memory=None,
        known=False, knows=False, reads=READS,
    ):  # fmt: skip
        """Push a contribution of another client, which reads `reads`; gives the reply unless the call waits."""
        request, tensors = pb.Request(), TensorWriter()
        push = request.push
        push.incarnation, push.id.client, push.id.sequence = self.client.incarnation, client, number
        for name, shape in SHAPES.items():
            gradient = Op(OpKind.APPLY, name, np.ones(shape, np.float32), optimizer="sgd")
            codec.encode_op(gradient, push.ops.add(), tensors)
        push.increments.extend(codec.encode_increments([Increment("global_step", 1, wanted)]))
        push.uses.extend(codec.encode_use(use) for use in USES)
        codec.encode_reads(reads, push.reads, tensors)
        push.seen_steps["global_step"] = base
        push.patience_ms = patience_ms
        if memory is not None:
            push.layout, push.known_layout, push.knows_places = 1, known, knows
        if known:
            for field in ("ops", "increments", "uses", "reads"):
                push.ClearField(field)
        data = memoryview(b"".join(bytes(piece) + bytes(-piece.nbytes % 8) for piece in tensors.pieces))
        found = self.handler.begin(request, data, memory or LayoutMemory(), line=line or self.line)
        return None if found is None else told(*found)

    def finish(self):
        """Give the reply to the call that was resumed."""
        (call,) = self.line.resumed
        return told(*self.handler.finish(call))


def told(reply, pieces):
    """What a reply to a push says: the outcome's kind, the steps, and the values that were read."""
    assert not reply.HasField("error"), reply.error
    data = memoryview(b"".join(bytes(piece) + bytes(-piece.nbytes % 8) for piece in pieces))
    values = [value.tolist() for value in codec.decode_values(reply.push.values, data)]
    return OutcomeKind(reply.push.outcome.kind), dict(reply.push.outcome.steps), values


def reply_of(make):
    reply = pb.Reply()
    make(reply, TensorWriter())
    return reply.await_step


@pytest.fixture
def job():
    made = Job()
    yield made
    made.client.close()


def test_a_call_waits_until_the_step_has_moved_on(job):
    job.contribute(0)
    assert job.ask(0) is None
    assert job.look() == pytest.approx(PATIENCE_MS / 1000)
    assert job.line.resumed == []
    job.contribute(0)
    assert job.look() is None
    (call,) = job.line.resumed
    found = reply_of(call.parked.make)
    assert (found.over, found.waited, dict(found.steps)) == (True, True, {"global_step": 1})
    assert not job.waits.parked


def test_a_call_that_waits_keeps_nothing_of_its_message_that_is_not_counted(job):
    account = LayoutMemory().account
    memory = LayoutMemory(account=account)
    assert job.push(memory=memory, wanted=3, reads=[Read("e", np.arange(5))]) is None
    assert job.line.call.request.ByteSize() < 8
    assert account.budget.view()[0]["kept replies"] == 5 * 8
    account.budget.limit_bytes = 8
    assert job.push(client="a third", memory=memory, wanted=3, reads=[Read("e", np.arange(5))]) is not None


def test_a_call_waits_no_longer_than_its_patience(job):
    job.contribute(0)
    assert job.ask(0) is None
    job.clock.advance(PATIENCE_MS / 1000)
    assert job.look() is None
    found = reply_of(job.line.resumed[0].parked.make)
    assert (found.over, found.waited, found.contributions, found.wanted) == (False, True, 1, 2)


def test_a_step_that_has_moved_on_already_is_told_at_once(job):
    job.contribute(0)
    job.contribute(0)
    assert job.ask(0).over


def test_who_cannot_wait_or_does_not_ask_to_is_answered_at_once(job):
    job.contribute(0)
    for found in (job.ask(0, line=PlayedLine(job.clock, parks=False)), job.ask(0, patience_ms=0)):
        assert (found.over, found.waited, found.contributions) == (False, False, 1)
    assert not job.waits.parked


def test_a_call_whose_run_has_ended_is_told_so(job):
    job.contribute(0)
    assert job.ask(0) is None
    job.client.begin(sequencer=0, open=True)
    job.look()
    with pytest.raises(AbortedError):
        reply_of(job.line.resumed[0].parked.make)


def test_calls_are_answered_in_the_order_in_which_they_came(job):
    job.contribute(0)
    lines = [PlayedLine(job.clock) for _ in range(3)]
    for line in lines:
        assert job.ask(0, line=line) is None
    job.clock.advance(PATIENCE_MS / 2000)
    assert job.ask(0) is None
    job.clock.advance(PATIENCE_MS / 2000)
    assert job.look() == pytest.approx(PATIENCE_MS / 2000)
    assert [len(line.resumed) for line in (*lines, job.line)] == [1, 1, 1, 0]


def test_a_contribution_is_answered_once_its_step_is_made_with_the_values_of_then(job):
    assert job.push() is None
    assert job.look() == pytest.approx(PATIENCE_MS / 1000)
    job.contribute(0)
    assert job.look() is None
    assert job.finish() == (OutcomeKind.ACCEPTED, {"global_step": 1}, [-RATE, 1])


def test_a_contribution_whose_step_is_not_made_in_time_is_answered_without_values(job):
    assert job.push() is None
    job.clock.advance(PATIENCE_MS / 1000)
    assert job.look() is None
    assert job.finish() == (OutcomeKind.ACCEPTED, {"global_step": 0}, [])


def test_the_contribution_that_makes_the_step_is_answered_at_once(job):
    job.contribute(0)
    assert job.push() == (OutcomeKind.ACCEPTED, {"global_step": 1}, [-RATE, 1])
    assert not job.waits.parked


def test_a_contribution_that_cannot_wait_or_does_not_ask_to_is_answered_without_values(job):
    for number, how in enumerate(({"line": PlayedLine(job.clock, parks=False)}, {"patience_ms": 0})):
        assert job.push(wanted=3, client=f"client {number}", **how) == (OutcomeKind.ACCEPTED, {"global_step": 0}, [])
    assert not job.waits.parked


def test_a_waiting_contribution_is_told_only_the_values_where_its_client_knows_where_they_lie(job):
    memory, bare = LayoutMemory(), []
    for base, (known, knows) in enumerate([(False, False), (True, False), (True, True)]):
        assert job.push(base=base, number=base + 1, memory=memory, known=known, knows=knows) is None
        job.contribute(base)
        job.look()
        reply, pieces = job.handler.finish(job.line.resumed.pop())
        assert dict(reply.push.outcome.steps) == {"global_step": base + 1}
        assert b"".join(map(bytes, pieces))[:4] == np.float32(-(base + 1) * RATE).tobytes()
        bare.append((reply.push.bare, len(reply.push.values)))
    assert bare == [(False, 2), (False, 2), (True, 0)]


def test_whom_a_step_waits_for_is_looked_at_once_a_second(job, monkeypatch):
    asked = []
    ask = job.waits._ask
    monkeypatch.setattr(job.waits, "_ask", lambda what: asked.append(what) or ask(what))
    for client in "abc":
        assert job.push(wanted=5, client=client) is None
    assert len(asked) == 1
    job.clock.advance(1.0)
    assert job.push(wanted=5, client="d") is None
    assert len(asked) == 2


def test_a_contribution_that_comes_again_waits_and_is_told_of_its_step_too(job):
    assert job.push() is None
    assert job.push() is None
    job.contribute(0)
    job.look()
    assert [told(*job.handler.finish(call)) for call in job.line.resumed] == [
        (OutcomeKind.ACCEPTED, {"global_step": 1}, [-RATE, 1])
    ] * 2
    assert job.push() == (OutcomeKind.ACCEPTED, {"global_step": 1}, [-RATE, 1])


def test_a_contribution_whose_run_ends_while_it_waits_is_told_so(job):
    assert job.push() is None
    job.client.begin(sequencer=0, open=True)
    job.look()
    reply, _ = job.handler.finish(job.line.resumed[0])
    assert reply.error.type == "AbortedError"


def test_a_contribution_does_not_wait_where_no_other_one_will_come(job):
    job.contribute(0, wanted=1)
    job.clock.advance(2 * LINGER_SECS)
    assert job.push(base=1) == (OutcomeKind.ACCEPTED, {"global_step": 1}, [])
