"""Contributions over one and several PS tasks, in process: one set of contributors, one step, exactly once."""

from __future__ import annotations

import random
import threading
from dataclasses import replace

import numpy as np
import pytest
from counting_run import RATE, USES, initialize, state
from served_tasks import joining, starting

from globalstep.cluster.run_policy import RunPolicy
from globalstep.errors import InvalidArgumentError, LostStateError, NotFiniteGradientError
from globalstep.ps.aggregates.step_waits import ParkedCall
from globalstep.ps.local import LocalPS
from globalstep.ps.members.presence import LINGER_SECS, UNLEASED_SECS, Standing
from globalstep.ps.shard import events
from globalstep.ps.shard.layouts import LayoutMemory
from globalstep.ps.shard.shard import Shard
from globalstep.ps.shard.validation import problems
from globalstep.runtime.clock import ManualClock
from globalstep.wire.declarations import Increment, Op, OpKind, OutcomeKind, Push, Read, StopLimit
from globalstep.wire.message import Message
from globalstep.worker.client.client import ClusterClient
from globalstep.worker.client.heartbeat import LEASE_SECS
from globalstep.worker.waits.contributing import CLAIMED


@pytest.fixture
def connected():
    """Make clients, and close them at the end."""
    clients = []

    def make(ps, **more):
        clients.append(ClusterClient(ps.transports(), rng=random.Random(len(clients)), member=False, **more))
        clients[-1].refresh()
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def begun(shards, connected):
    """PS tasks with the run of counting_run, their clock, and who began it."""
    clock = ManualClock()
    ps = LocalPS(shards, clock=clock)
    chief = connected(ps, clock=clock)
    chief.begin(sequencer=shards - 1, open=True)
    initialize(chief)
    yield ps, clock, chief
    for control in ps.controls:
        assert not problems(control.handler.shard.now)
        assert not control.handler.shard.resources.of_nothing


def contribution(base, scale, wanted=2, most=0, reads=()):
    """A gradient of `scale` for all of w, b and e."""
    shapes = {"w": (3,), "b": (), "e": (5, 2)}
    return Push(
        ops=[
            Op(OpKind.APPLY, name, np.full(shape, scale, np.float32), optimizer="sgd") for name, shape in shapes.items()
        ],
        increments=[Increment("global_step", 1, wanted, most)],
        uses=list(USES),
        reads=[Read(name) for name in reads],
        seen_steps={"global_step": base},
        layout=("contribution", reads),
    )


def everywhere(step, value):
    return {"global_step": step, "w": np.full(3, value).tolist(), "b": value, "e": np.full((5, 2), value).tolist()}


def sequencer(ps):
    shard = ps.controls[0].handler.shard.now.sequencer
    return ps.controls[shard].handler.shard


def test_one_client_counts_once_for_a_step_unless_more_is_asked_for(begun, connected):
    ps, clock, one = begun
    two = connected(ps, clock=clock)
    assert one.push(contribution(0, -1.0), at_once=True).outcome.kind is OutcomeKind.ACCEPTED
    again = one.push(contribution(0, -1.0), at_once=True).outcome
    assert (again.kind, again.steps) == (OutcomeKind.LATE, {"global_step": 0})
    two.push(contribution(0, -1.0), at_once=True)
    for scale, client in ((-1.0, one), (-2.0, one), (-3.0, two)):
        client.push(contribution(1, scale, wanted=3, most=2), at_once=True)
    assert state(one) == everywhere(2, RATE + 2.0 * RATE)


@pytest.mark.parametrize("given", [(3, 3), (5, 1), (6, 0)], ids=str)
def test_more_gradients_than_workers_come_from_whoever_gives_them(begun, connected, given):
    ps, clock, one = begun
    two = connected(ps, clock=clock)
    one.run.joined.workers = two.run.joined.workers = 2
    for step in range(2):
        scales = iter(range(1, 7))
        for client, count in zip((one, two), given, strict=True):
            for _ in range(count):
                # None of them waits: the clock stands still.
                found = client.push(contribution(step, -next(scales), wanted=6, most=1, reads=("b",)))
                assert found.outcome.kind is OutcomeKind.ACCEPTED
        assert state(one) == everywhere(step + 1, pytest.approx(3.5 * RATE * (step + 1)))


@pytest.mark.parametrize(("wanted", "most"), [(2, 1), (4, 2)])
def test_with_as_many_workers_as_gradients_each_gives_its_share(begun, connected, wanted, most):
    ps, clock, one = begun
    two = connected(ps, clock=clock)
    one.run.joined.workers = two.run.joined.workers = 2
    for _ in range(most):
        one.push(contribution(0, -1.0, wanted=wanted, most=most), at_once=True)
    assert one.push(contribution(0, -1.0, wanted=wanted, most=most), at_once=True).outcome.kind is OutcomeKind.LATE
    for _ in range(most):
        two.push(contribution(0, -1.0, wanted=wanted, most=most))
    assert state(one) == everywhere(1, RATE)


def test_sparse_gradients_make_the_mean_that_dense_ones_would(begun, connected):
    ps, clock, one = begun
    two = connected(ps, clock=clock)

    def sparse(ids, rows):
        value = np.array(rows, np.float32)[:, None] * np.ones((1, 2), np.float32)
        push = contribution(0, 0.0)
        push.ops = [Op(OpKind.APPLY, "e", value, indices=np.array(ids), optimizer="sgd")]
        push.layout = None
        return push

    one.push(sparse([3, 1, 3], [-30.0, -10.0, -2.0]), at_once=True)
    two.push(sparse([1, 4], [-2.0, -50.0]), at_once=True)
    expected = np.zeros((5, 2), np.float32)
    expected[1], expected[3], expected[4] = 6 * RATE, 16 * RATE, 25 * RATE
    assert np.array_equal(one.pull([Read("e")])[0], expected)


class Waiting:
    """A connection to a PS task on which calls wait, and that counts its requests."""

    def __init__(self, transport, handler, clock):
        self._transport, self._handler, self._clock = transport, handler, clock
        self._memory = LayoutMemory()
        self.label, self.address = transport.label, ""
        self.asked = []
        #: A call waits.
        self.waits = threading.Event()

    def __getattr__(self, name):
        return getattr(self._transport, name)

    def park(self, call):
        resumed = threading.Event()
        self._parked = call, resumed
        return ParkedCall(self._clock.monotonic(), lambda _: resumed.set())

    def send(self, request, pieces):
        self.asked.append(request.WhichOneof("kind"))
        data = memoryview(b"".join(bytes(piece) + bytes(-piece.nbytes % 8) for piece in pieces))
        answered = self._handler.begin(request, data, self._memory, line=self)
        if answered is None:
            call, resumed = self._parked
            self.waits.set()
            assert resumed.wait(100.0)
            answered = self._handler.finish(call)
        else:
            self._handler.step_waits.look_after()
        reply, pieces = answered
        data = memoryview(b"".join(bytes(piece) + bytes(-piece.nbytes % 8) for piece in pieces))
        return Answered(Message(0, None, reply, data))


class Answered:
    """The ticket of a call that has been answered."""

    def __init__(self, message):
        self._message = message

    def result(self):
        return self._message


def test_a_step_takes_one_request_of_each_worker(connected):
    clock = ManualClock()  # stands still: no patience comes to its end
    ps = LocalPS(1, clock=clock)
    chief = connected(ps, clock=clock)
    chief.begin(sequencer=0, open=True)
    initialize(chief)
    lines = [Waiting(ps.transports()[0], ps.controls[0].handler, clock) for _ in range(2)]
    one, two = (ClusterClient([line], rng=random.Random(9), member=False, clock=clock) for line in lines)
    found = []

    def work():
        for step in range(3):
            found.append(one.push(contribution(step, -1.0, reads=("w", "global_step"))))

    first = threading.Thread(target=work)
    try:
        for client in (one, two):
            client.refresh()
        first.start()
        for step in range(3):
            assert lines[0].waits.wait(100.0)
            lines[0].waits.clear()
            found.append(two.push(contribution(step, -3.0, reads=("w", "global_step"))))
        first.join()
    finally:
        one.close()
        two.close()
    assert [line.asked for line in lines] == [["push"] * 3] * 2
    assert sorted((int(w[0] / RATE), int(step)) for w, step in (result.values for result in found)) == [
        (2 * step, step) for step in (1, 1, 2, 2, 3, 3)
    ]
    assert sorted(result.outcome.steps["global_step"] for result in found) == [1, 1, 2, 2, 3, 3]


def test_a_contribution_is_described_once_though_its_step_takes_long(connected):
    ps = LocalPS(1)  # no call waits
    one = connected(ps)
    one.begin(sequencer=0, open=True)
    initialize(one)
    sent, described = one._protocol.run.transports[0].send, []

    def send(request, pieces):
        if request.HasField("push"):
            described.append(len(request.push.ops))
        return sent(request, pieces)

    one._protocol.run.transports[0].send = send
    two = connected(ps)
    for step in range(3):
        patient = replace(contribution(step, -1.0, reads=("w",)), patience_ms=20)
        assert one.push(patient, at_once=True).values == []
        two.push(contribution(step, -1.0), at_once=True)
    assert described == [3, 0, 0]


def test_where_the_values_lie_is_told_until_the_client_knows_it(connected):
    ps = LocalPS(1)  # no call waits
    one, two = connected(ps), connected(ps)
    one.begin(sequencer=0, open=True)
    initialize(one)
    two.refresh()
    sent, knew, told = one._protocol.run.transports[0].send, [], []

    def send(request, pieces):
        ticket = sent(request, pieces)
        if request.HasField("push") and request.push.patience_ms:
            knew.append(request.push.knows_places)
            told.append(ticket.result().reply.push.bare)
        return ticket

    one._protocol.run.transports[0].send = send

    def patient(step):
        return one.push(replace(contribution(step, -1.0, reads=("w",)), patience_ms=20), at_once=True)

    assert patient(0).values == []
    two.push(contribution(0, -1.0), at_once=True)
    for step in (1, 2):
        two.push(contribution(step, -1.0), at_once=True)
        (value,) = patient(step).values
        assert value.tolist() == np.full(3, (step + 1) * RATE).tolist()
    assert (knew, told) == ([False, False, True], [False, False, True])


def heartbeat(ps, client, task):
    for control in ps.controls:
        control.handler.shard.handle(events.Heartbeat(client.client_id, task, 15.0, Standing(takes_task=True)))


class BeatingClock(ManualClock):
    """A clock whose waits are as long as a heartbeat's pause at most: what beats does so meanwhile."""

    def __init__(self):
        super().__init__()
        self.beats = []

    def wait(self, event, timeout_secs):
        for beat in self.beats:
            beat()
        return super().wait(event, min(timeout_secs, 1.0))


@pytest.mark.parametrize("contributed", [False, True])
def test_nobody_waits_for_a_worker_that_is_stopped_longer_than_its_lease(shards, connected, contributed):
    clock = BeatingClock()
    ps = LocalPS(shards, clock=clock)
    one, two, stopped = (connected(ps, clock=clock) for _ in range(3))
    one.begin(sequencer=shards - 1, open=True)
    initialize(one)
    for client in (two, stopped):
        client.refresh()
    tasks = {client: f"/job:worker/task:{at}" for at, client in enumerate((one, two, stopped))}
    for client, task in tasks.items():
        heartbeat(ps, client, task)
        client.push(contribution(0, -1.0, wanted=3), at_once=True)
    clock.beats = [lambda client=client: heartbeat(ps, client, tasks[client]) for client in (one, two)]
    step, since = 1, clock.monotonic()
    if contributed:
        # It is stopped while it waits for the step, which the others make.
        stopped.push(contribution(1, -1.0, wanted=3), at_once=True)
    waits = []
    while step < 6:
        two.push(contribution(step, -1.0, wanted=3), at_once=True)
        began = clock.monotonic()
        made = one.push(contribution(step, -1.0, wanted=3)).outcome
        assert (made.kind, made.steps) == (OutcomeKind.ACCEPTED, {"global_step": step + 1})
        waits.append(clock.monotonic() - began)
        step += 1
    assert LEASE_SECS <= clock.monotonic() - since <= LEASE_SECS + 2.0
    # One step waits, from there on none does.
    assert [wait > 0 for wait in waits] == [at == int(contributed) for at in range(5)]
    assert state(one) == everywhere(6, 6 * RATE)
    # It goes on: what it has is late, and the next step is made of all three.
    heartbeat(ps, stopped, tasks[stopped])
    late = stopped.push(contribution(1 + contributed, -100.0, wanted=3)).outcome
    assert (late.kind, late.steps) == (OutcomeKind.LATE, {"global_step": 6})
    for client in (stopped, two):
        assert client.push(contribution(6, -1.0, wanted=3), at_once=True).outcome.steps == {"global_step": 6}
    assert one.push(contribution(6, -4.0, wanted=3)).outcome.steps == {"global_step": 7}
    assert state(one) == everywhere(7, 8 * RATE)


def test_who_is_expected_and_has_not_come_is_waited_for_but_not_for_ever(shards, connected):
    clock = ManualClock()
    ps = LocalPS(shards, clock=clock)
    one = connected(ps, clock=clock)
    one.begin(sequencer=shards - 1, open=True, expected_tasks=["/job:worker/task:0", "/job:worker/task:1"])
    initialize(one)
    heartbeat(ps, one, "/job:worker/task:0")
    one.push(contribution(0, -1.0), at_once=True)
    ask = events.AwaitStep(one.incarnation, one.client_id, "global_step", 0)
    assert sequencer(ps).handle(ask).waits_for == ["/job:worker/task:1, which has not come yet"]
    clock.advance(LINGER_SECS)
    assert sequencer(ps).handle(ask).due


def test_a_contributor_without_a_lease_is_waited_for_a_while(begun, connected):
    ps, clock, one = begun
    two = connected(ps, clock=clock)
    for step, client in ((0, one), (0, two), (1, one)):
        client.push(contribution(step, -1.0), at_once=True)
    ask = events.AwaitStep(one.incarnation, one.client_id, "global_step", 1)
    assert sequencer(ps).handle(ask).waits_for == [f"client {two.client_id}, which contributed 0 s ago"]
    clock.advance(UNLEASED_SECS)
    assert sequencer(ps).handle(ask).due


def test_who_has_left_is_not_waited_for(begun, connected):
    ps, clock, one = begun
    two = connected(ps, clock=clock)
    for step, client in ((0, one), (0, two)):
        heartbeat(ps, client, f"/job:worker/task:{int(client is two)}")
        client.push(contribution(step, -1.0), at_once=True)
    for control in ps.controls:
        control.handler.shard.handle(events.Leave(two.client_id))
    assert one.push(contribution(1, -1.0)).outcome.steps == {"global_step": 2}


def test_an_assigned_step_drops_what_was_for_another_value_of_it(begun, connected):
    ps, clock, one = begun
    two = connected(ps, clock=clock)
    one.push(contribution(0, -100.0), at_once=True)
    one.push(Push(ops=[Op(OpKind.ASSIGN, "global_step", np.array(7))]))
    one.push(contribution(7, -1.0), at_once=True)
    two.push(contribution(7, -3.0), at_once=True)
    assert state(one) == everywhere(8, 2 * RATE)


def test_contributions_must_fit(begun, connected):
    ps, clock, one = begun
    two = connected(ps, clock=clock)
    one.push(contribution(0, -1.0), at_once=True)
    with pytest.raises(InvalidArgumentError, match="to be made of 3 contributions, by this one, and of 2 by those"):
        two.push(contribution(0, -1.0, wanted=3), at_once=True)
    wrong = contribution(0, -1.0)
    wrong.seen_steps = {}
    with pytest.raises(InvalidArgumentError, match="does not say from which value"):
        two.push(wrong, at_once=True)
    assert two.push(contribution(0, -1.0), at_once=True).outcome.steps == {"global_step": 1}
    assert state(one) == everywhere(1, RATE)


def test_who_waits_notices_that_any_ps_task_has_lost_its_state(begun, connected):
    ps, clock, one = begun
    two = connected(ps, clock=clock)
    for step, client in ((0, one), (0, two)):
        heartbeat(ps, client, f"/job:worker/task:{int(client is two)}")
        client.push(contribution(step, -1.0), at_once=True)
    for at, control in enumerate(ps.controls):
        shard = control.handler.shard
        if len(ps.controls) == 1 or at != shard.now.sequencer:
            contributed = one.push(contribution(1, -1.0), at_once=True).outcome
            assert contributed.kind is OutcomeKind.ACCEPTED
            control.handler.shard = Shard(clock)
            break
    with pytest.raises(LostStateError, match="holds no state"):
        one.contributing._await(contribution(1, -1.0), Increment("global_step", 1, 2), 1)


class Hurrying(ManualClock):
    """A clock that goes on by itself, and ends what a client waits for after a minute."""

    client = None

    def monotonic(self):
        self.advance(0.2)
        now = super().monotonic()
        if now > 60.0 and self.client is not None:
            self.client.shutdown.ask()
        return now


@pytest.mark.parametrize("transport", ["grpc", "shm", "unix", "tcp"])
def test_who_waits_over_a_connection_notices_that_any_ps_task_has_lost_its_state(transport):
    with starting() as serving, joining() as join:
        servers, clock = serving(2), Hurrying()
        client = join(servers, transport, clock=clock, member=False)
        client.begin(sequencer=1, open=True)
        initialize(client)
        assert client.push(contribution(0, -1.0), at_once=True).outcome.kind is OutcomeKind.ACCEPTED
        servers[0].control.handler.shard = Shard(ManualClock())
        clock.client = client
        with pytest.raises(LostStateError, match="holds no state"):
            client.contributing._await(contribution(0, -1.0), Increment("global_step", 1, 2), 0)


def unit(work, scale, reads=()):
    """The gradient of a unit of work that was claimed, of three."""
    push = contribution(work.base, scale, 3, 0, reads)
    return replace(push, increments=[Increment("global_step", 1, 3, unit=CLAIMED)])


def test_a_unit_that_is_in_changes_nothing_and_is_told_so(begun, connected):
    ps, clock, one = begun
    two = connected(ps, clock=clock)
    work = one.contributing.take_unit("global_step", 3, 0)
    assert work == (0, 1)
    clock.advance(60.0)  # it is taken for lost
    works = [work, two.contributing.take_unit("global_step", 3, 0)]
    assert works[1] == (0, 2)
    with two.contributing._lock:
        two.contributing._claimed["global_step"] = two.incarnation, work
    assert one.push(unit(work, -1.0)).outcome.kind is OutcomeKind.ACCEPTED
    assert two.push(unit(work, -100.0)).outcome.kind is OutcomeKind.LATE
    assert sequencer(ps).now.ledger.aggregates.open("global_step", 0).units == {1}
    assert state(one) == everywhere(0, 0.0)


def test_a_unit_whose_values_are_of_another_step_is_not_pushed(begun, connected):
    ps, _, one = begun
    work = one.contributing.take_unit("global_step", 3, 0)
    index = sequencer(ps).now.ledger.index
    outcome = one.push(unit(work._replace(base=7), -1.0)).outcome
    assert (outcome.kind, sequencer(ps).now.ledger.index) == (OutcomeKind.LATE, index)
    # Nor one that was not claimed.
    assert one.push(unit(work, -1.0)).outcome.kind is OutcomeKind.LATE
    assert one.contributing.take_unit("global_step", 3, 0) == work


def test_a_unit_is_given_for_the_step_as_it_is(begun):
    _, _, one = begun
    assert one.contributing.take_unit("global_step", 3, 99) == (0, 1)


def test_no_unit_is_given_once_the_last_step_is_made(begun):
    _, _, one = begun
    one.open([StopLimit("global_step", last_step=1)])
    for _ in range(3):
        one.push(unit(one.contributing.take_unit("global_step", 3, 0), -1.0))
    assert one.contributing.take_unit("global_step", 3, 1) == (1, 0)


def test_units_and_other_contributions_do_not_mix(begun, connected):
    ps, clock, one = begun
    two = connected(ps, clock=clock)
    one.push(unit(one.contributing.take_unit("global_step", 3, 0), -1.0))
    with pytest.raises(InvalidArgumentError, match="is no unit of work, and those that are there are units"):
        two.push(contribution(0, -1.0, wanted=3), at_once=True)
    wrong = replace(contribution(0, -1.0), increments=[Increment("global_step", 1, 3, unit=4)])
    with pytest.raises(InvalidArgumentError, match="Unit 4 of a value of 'global_step' that is made of 3 units"):
        two.push(replace(wrong, layout=None), at_once=True)
    assert sequencer(ps).now.ledger.aggregates.open("global_step", 0).units == {1}


def test_a_unit_that_is_not_finite_ends_the_wait_for_it(connected):
    ps = LocalPS(1)
    one = connected(ps, policy=RunPolicy(on_nan="drop"))
    one.begin(sequencer=0, open=True)
    initialize(one)
    with pytest.raises(NotFiniteGradientError, match="of unit 1 of step 1 is not finite"):
        one.push(unit(one.contributing.take_unit("global_step", 3, 0), float("nan")))
