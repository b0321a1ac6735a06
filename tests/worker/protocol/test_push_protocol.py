"""The protocol between client and PS tasks, in process (rung 2): I1, I2, I4, I5 under lost and doubled messages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from counting_run import RATE, SHAPES, STEP, USES, FaultPlan, declarations, expected, initialize, state, step_push
from served_tasks import joining, starting

from globalstep.cluster.run_policy import RunPolicy
from globalstep.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
)
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.local import LocalPS
from globalstep.ps.shard import events
from globalstep.ps.shard.layouts import PushParts
from globalstep.runtime.clock import ManualClock
from globalstep.runtime.faults import AFTER, BEFORE
from globalstep.wire.declarations import (
    Increment,
    Op,
    OpKind,
    OptimizerDecl,
    OptimizerUse,
    OutcomeKind,
    Push,
    PushId,
    Read,
    StopLimit,
    VariableDecl,
)
from globalstep.wire.expressions import Expr, constant, step
from globalstep.wire.wire_options import WireOptions
from globalstep.worker.client.client import ClusterClient
from globalstep.worker.protocol.error_feedback import ErrorFeedback

ALL_METHODS = frozenset({"pull", "push", "stage", "commit"})


def test_what_was_pushed_over_several_tasks_is_seen_once_the_client_is_back(shards, connected):
    """The client says itself what is applied, at once: nobody has to push again for it."""
    ps = LocalPS(shards)
    client, other = connected(ps), connected(ps)
    initialize(client)
    other.refresh()
    for count in range(1, 4):
        client.push(step_push())
        assert other.global_steps() == {"global_step": count}


def test_a_read_over_several_shards_takes_one_message_to_each(connected):
    client = connected(LocalPS(3))
    initialize(client)
    client.push(step_push())
    sent = watched(client)
    names = ["global_step", *SHAPES]
    values = client.pull([Read(name) for name in names])
    assert [value.tolist() for value in values] == [1, *(expected(1)[name] for name in SHAPES)]
    assert kinds_of(sent) == ["pull"] * len({client.where[name] for name in names})
    assert len(sent) > 1


@pytest.mark.parametrize("between", [1, 2])
def test_a_read_between_whose_parts_a_push_comes_is_taken_again(connected, between):
    """At once, at first; as of a place in the order where a push has come between again."""
    ps = LocalPS(2)
    client, other = connected(ps), connected(ps)
    initialize(client)
    other.refresh()
    client.push(step_push())
    sent = watched(client)
    transport = client.run.transports[1]
    send, pushes = transport.send, [other.push] * between

    def after_a_push(request, pieces):
        if pushes:
            pushes.pop()(step_push())
        return send(request, pieces)

    transport.send = after_a_push
    assert [value.tolist() for value in client.pull([Read("e"), Read("global_step"), Read("w")])] == [
        expected(1 + between)["e"], 1 + between, expected(1 + between)["w"],
    ]  # fmt: skip
    assert kinds_of(sent)[:4] == ["pull"] * 4
    assert ("push" in kinds_of(sent)) is (between == 2)


def test_a_read_of_one_task_has_what_was_decided_before_though_its_client_died_between(connected):
    """The simulation found it: what a client had seen counted was missing in its next read, until somebody settled."""

    class DiesBeforeCommit:
        def at(self, point: str, called: str) -> None:
            if dying and point == BEFORE and called == "commit":
                dying.pop()
                raise InvalidArgumentError("as if it had died")

    dying: list[bool] = []
    ps = LocalPS(2, faults=DiesBeforeCommit())
    client, other = connected(ps), connected(ps)
    initialize(client)
    other.refresh()
    far = next(name for name in SHAPES if client.where[name] != client.sequencer)
    dying.append(True)
    with pytest.raises(InvalidArgumentError, match="as if it had died"):
        client.push(step_push())
    other.push(Push(increments=STEP))
    assert other.pull([Read(far)])[0].tolist() == expected(1)[far]


def test_a_task_names_no_last_entry_of_a_shard_that_is_not_there(connected):
    ps = LocalPS(2)
    client = connected(ps)
    initialize(client)
    with pytest.raises(InvalidArgumentError, match="no shard 2"):
        ps.controls[client.sequencer].handler.shard.handle(
            events.Pull(client.incarnation, client.client_id, [], shards=[2])
        )


def watched(client):
    """Give what a client sends from now on."""
    sent: list[pb.Request] = []

    def recording(send):
        def recorded(request, pieces):
            sent.append(request)
            return send(request, pieces)

        return recorded

    for transport in client.run.transports:
        transport.send = recording(transport.send)
    return sent


def kinds_of(sent):
    return [request.WhichOneof("kind") for request in sent]


@pytest.mark.parametrize("point", [BEFORE, AFTER])
def test_lost_requests_and_lost_replies_change_nothing_twice(shards, connected, point):
    faults = FaultPlan(point, ALL_METHODS)
    client = connected(LocalPS(shards, faults=faults), clock=ManualClock(), member=False, retry_secs=1e9)
    initialize(client)
    for _ in range(50):
        client.push(step_push())
    assert state(client) == expected(50)
    assert faults.fired > 50


@pytest.mark.parametrize("wire", [WireOptions("int8"), WireOptions("bfloat16", 0.1, error_feedback=True)])
def test_a_push_that_is_tried_again_sends_the_same_bytes_and_its_rest_goes_once(shards, connected, wire):
    faults = FaultPlan(AFTER, frozenset({"push", "stage"}))
    client = connected(LocalPS(shards, faults=faults), clock=ManualClock(), member=False, retry_secs=1e9, wire=wire)
    client.declare(
        [VariableDecl("global_step", "int64", (), 0, is_step=True), VariableDecl("w", "float32", (4096,), shards - 1)],
        [OptimizerDecl("sgd", "gradient_descent", {"learning_rate": constant(-1.0)}, {"w": ()})],
    )
    client.push(Push([Op(OpKind.ASSIGN, name, fill=0.0) for name in ("global_step", "w")]))
    sent: dict[int, set[bytes]] = {}
    tries = []
    for transport in client.run.transports:

        def send(request, pieces, send=transport.send):
            message = getattr(request, request.WhichOneof("kind"))
            if request.spans:
                tries.append(message.id.sequence)
                sent.setdefault(message.id.sequence, set()).add(b"".join(map(bytes, pieces)))
            return send(request, pieces)

        transport.send = send
    alone = ErrorFeedback(wire.top_k, pb.FORM_INT8 if wire.dtype == "int8" else pb.FORM_BFLOAT16)
    random, expected = np.random.default_rng(1), np.zeros(4096, np.float32)
    for _ in range(12):
        gradient = Op(OpKind.APPLY, "w", random.normal(size=4096).astype(np.float32), optimizer="sgd")
        assert client.push(Push([gradient], STEP, USES, layout="w")).outcome.kind is OutcomeKind.ACCEPTED
        (op,), rest = alone.thin([gradient])
        alone.keep(rest)
        expected += op.value
    assert len(tries) > len(sent) == 12
    assert all(len(each) == 1 for each in sent.values())
    with client.snapshot() as cut:
        np.testing.assert_array_equal(cut.read(["w"])[0], expected)


def test_a_push_that_is_dropped_takes_nothing_of_what_was_kept_with_it(shards, connected):
    policy = RunPolicy(staleness="drop", max_staleness=0)
    client = connected(LocalPS(shards), policy=policy, wire=WireOptions("int8"))
    initialize(client)
    for at in range(200):
        late = at % 2
        push = step_push()
        # Beside 1.0 only multiples of 1/64 can be sent.
        given = np.array([1.0, 0.003, 0.0], np.float32) if not late else np.array([1.0, -0.009, 0.005], np.float32)
        push.ops[0] = replace(push.ops[0], value=given)
        push.seen_steps = {"global_step": at // 2}
        kind = client.push(push).outcome.kind
        assert kind is (OutcomeKind.DROPPED_STALE if late else OutcomeKind.ACCEPTED)
    with client.snapshot() as cut:
        (found,) = cut.read(["w"])
    np.testing.assert_allclose(found, -RATE * np.array([100, 0.3, 0.0]), rtol=0, atol=RATE / 64)


@pytest.mark.parametrize(("count", "method"), [(1, "push"), (2, "push"), (2, "commit")])
def test_a_client_that_was_taken_for_gone_before_its_retry_gets_values_all_the_same(connected, count, method):
    """The simulation found it: a worker that slept past its lease woke up in the middle of a push."""

    class Forget:
        def __init__(self) -> None:
            self.struck = False

        def at(self, point: str, called: str) -> None:
            if armed and point == AFTER and called == method and not self.struck:
                self.struck = True
                for control in ps.controls:
                    control.handler.shard.now.replies.by_client.pop(client.client_id, None)
                raise UnavailableError("injected")

    armed: list[bool] = []
    faults = Forget()
    ps = LocalPS(count, faults=faults)
    client = connected(ps, clock=ManualClock(), member=False)
    initialize(client)
    armed.append(True)
    result = client.push(step_push(reads=tuple(SHAPES)))
    assert faults.struck
    assert [value.tolist() for value in result.values] == [expected(1)[name] for name in SHAPES]


def test_a_push_without_a_step_is_accepted_at_the_limit(shards, connected):
    client = connected(LocalPS(shards))
    initialize(client)
    client.open([StopLimit("global_step", last_step=0)])
    assert client.push(Push(ops=[Op(OpKind.ASSIGN, "w", fill=4.0)])).outcome.kind is OutcomeKind.ACCEPTED


@pytest.mark.parametrize(
    ("op", "kind", "text"),
    [
        (Op(OpKind.APPLY, "w", np.ones(2, np.float32), optimizer="sgd"), InvalidArgumentError, r"\[2\].*\[3\]"),
        (Op(OpKind.APPLY, "w", np.ones(3), optimizer="sgd"), InvalidArgumentError, "float64.*float32"),
        (Op(OpKind.APPLY, "zzz", np.ones(3, np.float32), optimizer="sgd"), FailedPreconditionError, "zzz"),
        (Op(OpKind.APPLY, "w", np.ones(3, np.float32), optimizer="adam"), NotFoundError, "adam"),
        (Op(OpKind.ASSIGN_ADD, "global_step", fill=1.0), InvalidArgumentError, "increment"),
    ],
)
def test_one_wrong_part_refuses_the_whole_push(shards, connected, op, kind, text):
    client = connected(LocalPS(shards))
    initialize(client)
    push = step_push()
    push.ops.append(op)
    with pytest.raises(kind, match=text):
        client.push(push)
    assert state(client) == expected(0)
    client.push(step_push())
    assert state(client) == expected(1)


def test_an_unknown_optimizer_use_or_step_refuses_the_whole_push(shards, connected):
    client = connected(LocalPS(shards))
    initialize(client)
    for wrong in (
        Push(ops=step_push().ops, increments=[Increment("w")], uses=USES),
        Push(ops=step_push().ops, increments=list(STEP), uses=[OptimizerUse("sgd"), OptimizerUse("nope")]),
    ):
        with pytest.raises((InvalidArgumentError, NotFoundError)):
            client.push(wrong)
    assert state(client) == expected(0)


def test_a_vacant_ps_serves_nothing(connected):
    client = connected(LocalPS(2))
    with pytest.raises(FailedPreconditionError, match="Attempting to use uninitialized value w"):
        client.pull([Read("w")])


def test_rates_are_evaluated_at_the_step_before_the_push(shards, connected):
    client = connected(LocalPS(shards))
    variables, _ = declarations(shards)
    decay = Expr("mul", (constant(8.0), Expr("pow", (constant(0.5), step("global_step")))))
    client.declare(
        variables, [OptimizerDecl("sgd", "gradient_descent", {"learning_rate": decay}, dict.fromkeys(SHAPES, ()))]
    )
    client.push(Push(ops=[Op(OpKind.ASSIGN, name, fill=0.0) for name in ("global_step", *SHAPES)]))
    seen = [float(client.push(step_push(reads=("w", "b"))).values[1]) for _ in range(4)]
    assert seen == [8.0, 12.0, 14.0, 15.0]


def test_overrides_beat_the_declared_rate(shards, connected):
    client = connected(LocalPS(shards))
    initialize(client)
    push = step_push(reads=("w",))
    push.uses = [OptimizerUse("sgd", overrides={"learning_rate": 3.0})]
    assert client.push(push).values[0].tolist() == [3.0] * 3


def test_a_snapshot_that_is_closed_twice_is_closed(connected):
    client = connected(LocalPS(2))
    initialize(client)
    snapshot = client.snapshot()
    assert [value.tolist() for value in snapshot.read(["w"])] == [expected(0)["w"]]
    snapshot.close()
    snapshot.close()


def test_unreachable_tasks_are_given_up_after_the_limit(connected):
    faults = FaultPlan(BEFORE, frozenset({"push"}), every=1)
    clock = ManualClock()
    client = connected(LocalPS(1, faults=faults), clock=clock, retry_secs=5.0, member=False)
    client.declare(*declarations(1))
    with pytest.raises(UnavailableError, match=r"push to /job:ps/task:0 .* failed for \d+ s"):
        initialize(client)
    assert clock.monotonic() >= 5.0


def test_several_steps_live_side_by_side(connected):
    client = connected(LocalPS(1))
    client.declare([VariableDecl(f"{n}_global_step", "int64", (), is_step=True) for n in "GD"], [])
    client.push(Push(ops=[Op(OpKind.ASSIGN, f"{n}_global_step", fill=0.0) for n in "GD"]))
    client.open([StopLimit("G_global_step", last_step=1)])
    client.push(Push(increments=[Increment("G_global_step")]))
    assert client.push(Push(increments=[Increment("G_global_step")])).outcome.kind is OutcomeKind.REFUSED_DONE
    client.push(Push(increments=[Increment("D_global_step", 5)]))
    assert client.global_steps() == {"G_global_step": 1, "D_global_step": 5}


def test_an_assign_moves_the_step_back(shards, connected):
    client = connected(LocalPS(shards))
    initialize(client)
    client.push(step_push())
    client.push(Push(ops=[Op(OpKind.ASSIGN, "global_step", fill=10.0)]))
    client.push(step_push())
    assert client.global_steps() == {"global_step": 11}


def test_a_known_layout_is_told_once_and_again_on_a_stream_that_does_not_know_it(shards, connected):
    ps = LocalPS(shards)
    client = connected(ps)
    initialize(client)
    sent = watched(client)
    for count in range(1, 4):
        values = client.push(step_push(reads=("e", "w"))).values
        assert [value.tolist() for value in values] == [expected(count)["e"], expected(count)["w"]]
    told = [request for request in sent if request.WhichOneof("kind") in ("push", "stage")]
    bare = [request for request in told if getattr(request, request.WhichOneof("kind")).known_layout]
    assert (len(told) - len(bare)) * 2 == len(bare), "told in full once, named twice"
    assert not any(getattr(request, request.WhichOneof("kind")).ops for request in bare)
    for transport in client.run.transports:
        transport._memory._layouts.clear()
    client.push(step_push(reads=("e", "w")))
    assert state(client) == expected(4)


def test_reads_that_come_again_are_told_once_and_again_to_a_stream_that_does_not_know_them(shards, connected):
    client = connected(LocalPS(shards))
    initialize(client)
    names = ["e", "w", "global_step"]
    whole, rows = [Read(name) for name in names], [Read("e", np.array([1, 0]))]
    sent = watched(client)
    for count in range(1, 5):
        client.push(step_push())
        wanted = expected(count)
        assert [value.tolist() for value in client.pull(whole, "whole")] == [wanted["e"], wanted["w"], count]
        assert client.pull(rows, "rows")[0].tolist() == [wanted["e"][1], wanted["e"][0]]
        if count == 3:
            for transport in client.run.transports:
                transport._memory._layouts.clear()
                transport._memory._row_layouts.clear()
    told = [request.pull for request in sent if request.pull.layout]
    known = [pull for pull in told if pull.known_layout]
    assert not any(pull.reads for pull in known)
    assert 2 * len(known) == 3 * (len(told) - len(known)) > 0, "told, named twice, named in vain, told again"


def test_reads_that_come_again_are_read_as_declared_since(connected):
    ps = LocalPS(1)
    client, other = connected(ps), connected(ps)
    initialize(client)
    other.run.refresh()
    for _ in range(2):
        assert other.pull([Read("b")], "b")[0].tolist() == expected(0)["b"]
    client.declare([VariableDecl("late", "float32", (2,))], [])
    other.run.refresh()
    with pytest.raises(FailedPreconditionError, match="uninitialized value late"):
        other.pull([Read("late")], "late")
    client.push(Push(ops=[Op(OpKind.ASSIGN, "late", fill=2.0)]))
    for _ in range(2):
        assert other.pull([Read("late")], "late")[0].tolist() == [2.0, 2.0]
        assert other.pull([Read("b")], "b")[0].tolist() == expected(0)["b"]


def test_a_push_that_brings_no_tensors_is_told_once_too(shards, connected):
    client = connected(LocalPS(shards))
    initialize(client)
    sent = watched(client)
    counting, reading = Push([], [Increment("global_step", 1)], layout="c"), Push(reads=[Read("e")], layout="r")
    counts = []
    for _ in range(3):
        sent.clear()
        client.push(counting)
        client.push(reading)
        counts.append(len(sent))
    assert client.global_steps() == {"global_step": 3}
    assert counts == counts[:1] * 3, "none was asked for again"


@pytest.mark.parametrize("forgetful", [0, 1, 2])
def test_a_layout_that_one_of_several_shards_has_forgotten_is_told_again(connected, forgetful):
    """The others have staged the push already, as one of a known layout, and answer so."""
    client = connected(LocalPS(3))
    initialize(client)
    for count in range(1, 7):
        values = client.push(step_push(reads=("e", "w", "b"))).values
        assert [value.tolist() for value in values] == [expected(count)[name] for name in ("e", "w", "b")]
        if count > 2:
            client.run.transports[forgetful]._memory._layouts.clear()


def test_a_refused_push_says_nothing_of_its_layout(shards, connected):
    client = connected(LocalPS(shards))
    initialize(client)
    client.open([StopLimit("global_step", last_step=0)])
    assert client.push(step_push(reads=("e", "w"))).outcome.kind is OutcomeKind.REFUSED_DONE
    client.open([StopLimit("global_step", last_step=9)])
    for count in range(1, 4):
        values = client.push(step_push(reads=("e", "w"))).values
        assert [value.tolist() for value in values] == [expected(count)["e"], expected(count)["w"]]


def test_a_layout_is_planned_anew_after_a_declaration(shards, connected):
    client = connected(LocalPS(shards))
    initialize(client)
    for _ in range(3):
        client.push(step_push(reads=("w",)))
    client.declare([VariableDecl("late", "float32", (2,), shards - 1)], [])
    assert client.push(step_push(reads=("w",))).values[0].tolist() == expected(4)["w"]


def test_a_push_with_and_without_a_layout_is_the_same(shards, connected):
    client = connected(LocalPS(shards))
    initialize(client)
    for layout in (None, "a", "a", None, "a"):
        push = step_push(reads=("w",))
        push.layout = layout
        client.push(push)
    assert state(client) == expected(5)


def test_pushes_that_are_refused_with_an_error_leave_no_parts_behind():
    """Else they waited for the settlers, and 64 of them kept the worker out."""
    ps = LocalPS(2, clock=ManualClock())
    client = ClusterClient(ps.transports(), clock=ManualClock(), member=False)
    initialize(client)
    shards = [control.handler.shard for control in ps.controls]
    wrong = step_push()
    wrong.increments = [Increment("no_step")]
    for _ in range(70):
        with pytest.raises(InvalidArgumentError, match="no_step"):
            client.push(wrong)
    assert [shard.load().staged_parts for shard in shards] == [0, 0]
    # A copy of the refused message that comes late finds the push fenced: its parts are gone.
    late = PushId(client.client_id, client._protocol.next_id().sequence - 1)
    admitted = shards[1].handle(events.Push(client.incarnation, late, PushParts(), STEP, (), {}, (0,)))
    assert admitted.outcome.kind is OutcomeKind.ABANDONED
    client.push(step_push())
    assert state(client) == expected(1)
    client.close()


@pytest.mark.parametrize("transport", ["local", "grpc", "shm", "tcp"])
@pytest.mark.parametrize(
    ("refusing", "why"), [(0, "wrong"), (1, "wrong"), (2, "wrong"), (0, "no memory"), (1, "no memory")]
)
def test_a_part_that_one_task_refuses_leaves_none_on_the_others(transport, refusing, why):
    """They would keep others' parts out until the settlers drop them."""

    class OnceMore(ManualClock):
        """Gives a client that tries again one try more."""

        def wait(self, event, timeout_secs):
            return super().wait(event, max(timeout_secs, 1000.0))

    with starting() as serving, joining() as join:
        if transport == "local":
            ps = LocalPS(3)
            shards = [control.handler.shard for control in ps.controls]
            client = ClusterClient(ps.transports(), clock=OnceMore(), member=False)
        else:
            servers = serving(3)
            shards = [server.shard for server in servers]
            client = join(servers, transport, clock=OnceMore(), member=False)
        initialize(client)
        client.push(step_push())
        push, most = step_push(), shards[refusing].resources.budget.limit_bytes
        if why == "wrong":
            name = next(name for name in SHAPES if client.where[name] == refusing)
            push.layout = None
            push.ops.append(Op(OpKind.APPLY, name, np.ones((7, 7), np.float32), optimizer="sgd"))
            refused = pytest.raises(InvalidArgumentError, match=r"\[7, 7\]")
        else:
            # Another's part has all the memory there.
            part = PushParts(data=memoryview(bytes(64)))
            shards[refusing].handle(events.Stage(client.incarnation, PushId("another", 1), part))
            shards[refusing].resources.budget.limit_bytes = 0
            refused = pytest.raises(ResourceExhaustedError, match="--max-inflight-bytes")
        with refused:
            client.push(push)
        # What comes later over a connection is later there.
        for name in SHAPES:
            client.pull([Read(name)])
        staged = [push.client for shard in shards for push in shard.now.staged]
        assert staged == (["another"] if why == "no memory" else [])
        shards[refusing].resources.budget.limit_bytes = most
        client.push(step_push())
        assert state(client) == expected(2)


class LostThenFull:
    """Loses the reply to the first PUSH, and refuses those after it for want of memory, so many times."""

    def __init__(self, refusals):
        self.refusals = refusals
        self.armed = self.lost = False

    def at(self, point, method):
        if not self.armed or method != "push":
            return
        if point == AFTER and not self.lost:
            self.lost = True
            raise UnavailableError("injected: the reply is lost")
        if point == BEFORE and self.lost and self.refusals:
            self.refusals -= 1
            raise ResourceExhaustedError("injected: no memory", retry_secs=0.5)


@pytest.mark.parametrize("refusals", [1, 1_000_000])
def test_a_push_that_comes_again_without_memory_for_it_counts_once_and_whole(connected, refusals):
    """Under another id it would be applied twice; and a part that was taken back would be missing."""
    faults = LostThenFull(refusals)
    ps = LocalPS(3, faults=faults)
    client, other = (connected(ps, clock=ManualClock(), member=False) for _ in range(2))
    initialize(client)
    other.refresh()
    faults.armed = True
    if refusals == 1:
        client.push(step_push())
    else:
        with pytest.raises(ResourceExhaustedError, match="no memory"):
            client.push(step_push())
    assert faults.lost
    faults.armed = False
    other.push(step_push())
    assert state(other) == expected(2)
    assert not any(control.handler.shard.resources.of_nothing for control in ps.controls)
