"""What a run's policy makes of late pushes and of gradients that are not finite, over one and several PS tasks and
every transport (rung 2)."""

from __future__ import annotations

import contextlib
import random

import numpy as np
import pytest
from counting_run import RATE, SHAPES, FaultPlan, declarations, expected, initialize, state, step_push
from served_tasks import starting

import globalstep as gs
from globalstep.cluster.run_policy import RunPolicy
from globalstep.errors import NotFiniteGradientError
from globalstep.ps.local import LocalPS
from globalstep.runtime.clock import ManualClock
from globalstep.runtime.faults import AFTER, BEFORE
from globalstep.wire.declarations import Increment, Op, OpKind, OptimizerDecl, OptimizerUse, OutcomeKind, Push
from globalstep.wire.expressions import constant
from globalstep.worker.client.client import ClusterClient, connect

DROP = RunPolicy(staleness="drop", max_staleness=2)
SCALE = RunPolicy(staleness="scale")
NAN_DROP = RunPolicy(on_nan="drop", spread_above=0)
NAN_STOP = RunPolicy(on_nan="stop")


@pytest.fixture(params=["1 here", "3 here", "1 grpc", "2 grpc", "1 auto", "2 auto", "2 tcp"])
def cluster(request):
    """Makes clients of new PS tasks, reached in some way."""
    count, transport = request.param.split()
    with contextlib.ExitStack() as stack:
        if transport == "here":
            ps = LocalPS(int(count))

            def client(policy):
                return ClusterClient(ps.transports(), rng=random.Random(1), policy=policy)
        else:
            servers = stack.enter_context(starting())(int(count))
            target = "grpc://" + ",".join(server.address for server in servers)

            def client(policy):
                return connect(target, transport=transport, policy=policy)

        def make(policy):
            made = client(policy)
            stack.callback(made.close)
            return made

        yield make


def late_push(seen, value=-1.0, **more):
    push = step_push(value, **more)
    push.seen_steps = {"global_step": seen}
    return push


def held(client):
    """How many parts wait for a decision on the shards."""
    return sum(len(connection._control.handler.shard.now.staged) for connection in client.run.transports)


# ---- Staleness ------------------------------------------------------------------------------


def test_a_push_that_is_too_late_has_no_effect(cluster):
    client = cluster(DROP)
    initialize(client)
    for _ in range(3):
        assert client.push(late_push(0)).outcome.kind is OutcomeKind.ACCEPTED
    before = state(client)
    result = client.push(late_push(0, reads=("w",)))
    assert (result.outcome.kind, result.outcome.index) == (OutcomeKind.DROPPED_STALE, 0)
    assert (result.outcome.staleness, result.outcome.steps, result.values) == (3, {"global_step": 3}, [])
    assert state(client) == before == expected(3)
    assert client.push(late_push(1)).outcome.kind is OutcomeKind.ACCEPTED
    assert state(client) == expected(4)
    counted = client.statuses()[client.sequencer].statistics
    assert (counted.dropped_stale, counted.dropped_nan, counted.refused) == (1, 0, 0)


def test_a_late_push_has_a_smaller_rate(cluster):
    client = cluster(SCALE)
    initialize(client)
    rates = []
    for seen, staleness in ((0, 0), (0, 1), (2, 0), (0, 3)):
        outcome = client.push(late_push(seen)).outcome
        assert (outcome.kind, outcome.staleness) == (OutcomeKind.ACCEPTED, staleness)
        rates.append(RATE / (1 + staleness))
    value = np.float32(0)
    for rate in rates:
        value += np.float32(rate)
    found = state(client)
    assert found["global_step"] == 4
    for name, shape in SHAPES.items():
        assert found[name] == np.full(shape, value).tolist()


def test_the_default_accepts_all(cluster):
    client = cluster(RunPolicy())
    initialize(client)
    for _ in range(5):
        client.push(late_push(0))
    assert state(client) == expected(5)


def test_only_learning_rates_are_scaled(cluster):
    client = cluster(SCALE)
    variables, optimizers = declarations(client.shards)
    average = OptimizerDecl("average", "moving_average", {"decay": constant(0.75)}, {"w": ()})
    client.declare(variables, [*optimizers, average])
    client.push(Push(ops=[Op(OpKind.ASSIGN, name, fill=0.0) for name in ("global_step", *SHAPES)]))
    client.push(late_push(0))
    push = Push(
        ops=[
            Op(OpKind.APPLY, "w", np.full(3, 8, np.float32), optimizer="average"),
            Op(OpKind.ASSIGN_ADD, "b", np.float32(4).reshape(())),
            Op(OpKind.APPLY, "e", np.full((5, 2), -1, np.float32), optimizer="sgd"),
        ],
        increments=[Increment("global_step")],
        uses=[OptimizerUse("sgd"), OptimizerUse("average")],
        seen_steps={"global_step": 0},
    )
    assert client.push(push).outcome.staleness == 1
    found = state(client)
    assert found["w"] == [RATE + (8 - RATE) * 0.25] * 3
    assert found["b"] == RATE + 4
    assert found["e"] == np.full((5, 2), RATE + RATE / 2).tolist()


@pytest.mark.parametrize("shards", [1, 3])
def test_no_part_of_a_dropped_push_is_left_behind(shards):
    client = ClusterClient(LocalPS(shards).transports(), clock=ManualClock(), member=False, policy=DROP)
    initialize(client)
    for _ in range(4):
        client.push(late_push(client.global_steps()["global_step"]))
    for _ in range(10):
        assert client.push(late_push(0)).outcome.kind is OutcomeKind.DROPPED_STALE
    assert held(client) == 0
    client.close()


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("point", [BEFORE, AFTER])
@pytest.mark.parametrize("policy", [DROP, NAN_DROP], ids=["stale", "nan"])
def test_what_was_recorded_is_what_retries_hear(shards, point, policy):
    faults = FaultPlan(point, frozenset({"push", "stage", "commit"}))
    ps = LocalPS(shards, faults=faults)
    client = ClusterClient(ps.transports(), clock=ManualClock(), member=False, retry_secs=1e9, policy=policy)
    initialize(client)
    good, dropped = 0, 0
    for turn in range(40):
        now = client.global_steps()["global_step"]
        bad = turn % 3 == 2
        seen = now - 5 if bad and policy is DROP else now
        outcome = client.push(late_push(seen, np.nan if bad and policy is NAN_DROP else -1.0)).outcome
        good += outcome.kind is OutcomeKind.ACCEPTED
        dropped += outcome.kind in (OutcomeKind.DROPPED_STALE, OutcomeKind.DROPPED_NAN)
    assert (good, dropped) == (27, 13)
    assert state(client) == expected(27)
    assert faults.fired > 20
    counted = client.statuses()[client.sequencer].statistics
    assert counted.dropped_stale + counted.dropped_nan == 13
    client.close()


# ---- Gradients that are not finite ----------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_is_dropped_and_named(cluster, bad):
    client = cluster(NAN_DROP)
    initialize(client)
    client.push(step_push())
    for name, shape in SHAPES.items():
        push = step_push()
        gradient = np.full(shape, -1, np.float32)
        gradient.reshape(-1)[-1] = bad
        next(op for op in push.ops if op.variable == name).value = gradient
        outcome = client.push(push).outcome
        assert (outcome.kind, outcome.not_finite, outcome.index) == (OutcomeKind.DROPPED_NAN, name, 0)
        assert state(client) == expected(1)
    client.push(step_push())
    assert state(client) == expected(2)
    assert client.statuses()[client.sequencer].statistics.dropped_nan == 3


def test_rows_are_looked_at_too(cluster):
    client = cluster(NAN_DROP)
    initialize(client)
    rows = np.array([[1, 2], [3, np.nan]], np.float32)
    push = Push(
        ops=[Op(OpKind.APPLY, "e", rows, indices=np.array([0, 3]), optimizer="sgd")],
        increments=[Increment("global_step")],
        uses=[OptimizerUse("sgd")],
    )
    outcome = client.push(push).outcome
    assert (outcome.kind, outcome.not_finite) == (OutcomeKind.DROPPED_NAN, "e")
    assert state(client) == expected(0)


def test_by_default_it_is_applied_as_in_tensorflow(cluster):
    client = cluster(RunPolicy())
    initialize(client)
    assert client.push(step_push(np.nan)).outcome.kind is OutcomeKind.ACCEPTED
    assert np.isnan(state(client)["w"]).all()


def test_an_assigned_value_may_be_infinite(cluster):
    client = cluster(NAN_STOP)
    initialize(client)
    client.push(Push(ops=[Op(OpKind.ASSIGN, "w", np.full(3, np.inf, np.float32))]))
    assert np.isinf(state(client)["w"]).all()


def test_a_stop_ends_the_job_for_all(cluster):
    client = cluster(NAN_STOP)
    initialize(client)
    client.push(step_push())
    assert client.push(step_push(np.inf)).outcome.kind is OutcomeKind.STOPPED_NAN
    assert client.push(step_push()).outcome.kind is OutcomeKind.REFUSED_DONE
    client.open([gs.train.StopAtStepHook(last_step=10).store_limit("global_step")])
    assert client.push(step_push()).outcome.kind is OutcomeKind.REFUSED_DONE
    assert state(client) == expected(1)


# ---- Through a session ----------------------------------------------------------------------


@pytest.fixture
def model():
    """A model whose gradient is what is fed."""
    with gs.Graph().as_default():
        variable = gs.Variable(np.zeros(3, np.float32), name="v")
        fed = gs.placeholder(gs.float32, [3])
        step = gs.train.get_or_create_global_step()
        train_op = gs.train.GradientDescentOptimizer(1.0).minimize(gs.reduce_sum(variable * fed), global_step=step)
        yield variable, fed, step, train_op


@pytest.mark.parametrize("shards", [1, 2])
def test_a_run_whose_push_is_dropped_returns_normally(model, shards, caplog):
    variable, fed, step, train_op = model
    ps = LocalPS(shards)
    cluster = ClusterClient(ps.transports(), task="/job:worker/task:3", policy=NAN_DROP)
    with gs.Session(cluster=cluster) as session:
        session.run(gs.global_variables_initializer())
        session.run(train_op, {fed: [1, 1, 1]})
        assert session.run([train_op, variable], {fed: [1, np.nan, 1]})[0] is None
        assert session.last_outcome.kind is OutcomeKind.DROPPED_NAN
        assert session.last_outcome.not_finite == "v"
        assert session.run(step) == 1
        assert session.run(variable).tolist() == [-1, -1, -1]
        session.run(train_op, {fed: [1, 1, 1]})
        assert session.run(step) == 2
    cluster.close()
    assert "Variable 'v' that /job:worker/task:3 pushed at global_step = 1 is not finite" in caplog.text


def test_hooks_see_a_dropped_push_as_a_run_without_a_step(model):
    _, fed, _, train_op = model
    config = gs.ConfigProto(run_policy=NAN_DROP)
    hook = gs.train.StopAtStepHook(last_step=3)
    with gs.train.MonitoredTrainingSession(hooks=[hook], config=config) as session:
        runs = 0
        while not session.should_stop():
            session.run(train_op, {fed: [1, np.inf if runs % 2 else 1, 1]})
            runs += 1
    assert runs == 5


def test_a_stop_raises_in_its_worker(model):
    _, fed, _, train_op = model
    config = gs.ConfigProto(run_policy=NAN_STOP)
    said = r"Variable 'v' .* global_step = 1 is not finite; nothing was applied"
    with gs.train.MonitoredTrainingSession(config=config) as session:
        session.run(train_op, {fed: [1, 1, 1]})
        with pytest.raises(NotFiniteGradientError, match=said):
            session.run(train_op, {fed: [1, 1, np.nan]})
