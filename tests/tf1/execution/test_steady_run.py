"""Runs after the first one of a plan do what the first does, in fewer steps."""

import contextlib
import gc
import threading
import weakref

import numpy as np
import pytest
from recording_cluster import recorded

import globalstep as gs
from globalstep.errors import InvalidArgumentError, JobDoneError
from globalstep.runtime.clock import ManualClock
from globalstep.tf1.execution.executor import REUSE_SECS
from globalstep.tf1.execution.run import SteadyRun
from globalstep.tf1.graph.graph import Node
from globalstep.wire.declarations import Outcome, OutcomeKind
from globalstep.worker.protocol.push_result import PushResult


@pytest.fixture
def clock():
    return ManualClock()


cluster = pytest.fixture(recorded)


@pytest.fixture
def session(cluster, clock):
    with gs.Session(cluster=cluster, clock=clock, reuse_values=True) as session:
        yield session


@pytest.fixture
def steady(monkeypatch):
    """What runs that a SteadyRun made have given."""
    made = []
    results = SteadyRun.results

    def counted(*given):
        made.append(results(*given))
        return made[-1]

    monkeypatch.setattr(SteadyRun, "results", counted)
    return made


def _program():
    """A step that moves w by a fed x, and the loss before it."""
    x = gs.placeholder(gs.float32, [2], name="x")
    w = gs.get_variable("w", [2], initializer=gs.zeros_initializer())
    step = gs.train.get_or_create_global_step()
    loss = gs.reduce_sum(w * x, name="loss")
    train = gs.train.GradientDescentOptimizer(1.0).minimize(loss, global_step=step)
    return x, w, loss, train


def _initialized(session, cluster):
    session.run(gs.global_variables_initializer())
    cluster.forget()


def test_further_runs_give_what_runs_that_read_give(session, cluster, steady):
    x, w, loss, train = _program()
    _initialized(session, cluster)
    losses = [session.run([loss, train], {x: [1.0, number]})[0] for number in range(4)]
    assert losses == [0.0, -1.0, -4.0, -12.0]
    assert len(steady) == 3
    # One message a step: the first read, and then what each push has brought.
    assert len(cluster.pulls) == 1
    assert [dict(push.seen_steps) for push in cluster.pushes] == [{"global_step": number} for number in range(4)]
    assert session.run(w).tolist() == [-4.0, -6.0]


def test_values_of_a_second_ago_are_read_anew(session, cluster, clock, steady):
    x, _, loss, train = _program()
    _initialized(session, cluster)
    for _ in range(2):
        session.run([loss, train], {x: [1.0, 1.0]})
    clock.advance(REUSE_SECS)
    assert session.run([loss, train], {x: [1.0, 1.0]})[0] == -4.0
    assert len(steady) == 2
    assert len(cluster.pulls) == 2


def test_what_waits_for_input_comes_before_the_read_and_once(session, cluster, clock, steady):
    _, w, _, _ = _program()
    pulls = []

    def dequeue():
        pulls.append(len(cluster.pulls))
        return np.float32(len(pulls))

    taken = Node("QueueDequeueV2", (), dequeue, dtype=gs.float32, shape=[], stateful=True)
    change = gs.assign_add(w, gs.fill([2], taken))
    fetches = [taken * gs.reduce_sum(w), gs.group(change)]
    _initialized(session, cluster)
    found = []
    for _ in range(3):
        found.append(session.run(fetches)[0])
        clock.advance(REUSE_SECS)
    # w is 0, then 1, then 3.
    assert found == [0.0, 4.0, 18.0]
    assert pulls == [0, 1, 2]
    assert len(steady) == 2


def test_a_push_of_another_thread_is_seen(session, cluster, steady):
    x, w, loss, train = _program()
    other = gs.assign_add(w, [10.0, 10.0])
    _initialized(session, cluster)
    for _ in range(2):
        session.run([loss, train], {x: [1.0, 1.0]})
    thread = threading.Thread(target=session.run, args=(other.op,))
    thread.start()
    thread.join()
    assert session.run([loss, train], {x: [1.0, 1.0]})[0] == 16.0
    assert len(steady) == 2


@pytest.mark.usefixtures("steady")
def test_a_job_that_is_done_gives_what_was_computed(session, cluster):
    x, _, loss, train = _program()
    _initialized(session, cluster)
    for _ in range(2):
        session.run([loss, train], {x: [1.0, 2.0]})
    cluster.results = [PushResult(Outcome(OutcomeKind.REFUSED_DONE, steps={"global_step": 2}))]
    with pytest.raises(JobDoneError) as done:
        session.run([loss, train], {x: [1.0, 2.0]})
    assert done.value.values == [-10.0, None]


def test_a_dropped_push_is_nothing_to_start_from(session, cluster, steady):
    x, _, loss, train = _program()
    _initialized(session, cluster)
    for _ in range(2):
        session.run([loss, train], {x: [1.0, 0.0]})
    cluster.results = [PushResult(Outcome(OutcomeKind.DROPPED_STALE))]
    session.run([loss, train], {x: [1.0, 0.0]})
    assert session.run([loss, train], {x: [1.0, 0.0]})[0] == -2.0
    assert len(steady) == 3
    assert len(cluster.pulls) == 2


@pytest.mark.parametrize("wanted", ["read", "local"])
def test_what_asks_for_more_than_changes_is_left_alone(session, cluster, steady, wanted):
    _, w, _, _ = _program()
    if wanted == "read":
        fetch = gs.assign_add(w, w + 1.0)
    else:
        count = gs.Variable(0.0, collections=[gs.GraphKeys.LOCAL_VARIABLES])
        fetch = gs.group(gs.assign_add(w, w + 1.0).op, gs.assign_add(count, 1.0).op)
        session.run(gs.local_variables_initializer())
    _initialized(session, cluster)
    for _ in range(3):
        session.run(fetch)
    assert session.run(w).tolist() == [7.0, 7.0]
    assert steady == []


class TestErrors:
    """The node that fails is named in the first run and in all others."""

    def _runs(self, session, cluster, make, value):
        x, w, _, _ = _program()
        _initialized(session, cluster)
        train = gs.train.GradientDescentOptimizer(1.0).apply_gradients([(make(x + 0.0 * w), w)])
        found = []
        with pytest.raises(Exception) as first:
            session.run(train, {x: value})
        for _ in range(2):
            session.run(train, {x: [1.0, 1.0]})
        with pytest.raises(Exception) as later:
            session.run(train, {x: value})
        for error in (first.value, later.value):
            found.append((type(error), str(error), getattr(error, "__notes__", [])))
        return found

    def test_a_function_that_cannot_take_its_inputs(self, session, cluster, steady):
        def make(x):
            return gs.reshape(gs.add(gs.boolean_mask(x, x > 0.0), [1.0, 1.0], name="wrong"), [2])

        first, later = self._runs(session, cluster, make, [-1.0, -1.0])
        assert first == later
        assert later[0] is InvalidArgumentError
        assert "[node 'wrong' (Add), inputs of shapes (0,), (2,)" in later[1]
        assert len(steady) == 1


def test_an_error_that_is_dealt_with_leaves_nothing_behind(session, cluster, steady):
    x, w, _, _ = _program()
    sizes = gs.boolean_mask(x, x > 0.0) + gs.constant([1.0, 1.0])
    train = gs.train.GradientDescentOptimizer(1.0).apply_gradients([(sizes + w, w)])
    _initialized(session, cluster)
    for _ in range(2):
        session.run(train, {x: [1.0, 1.0]})
    assert len(steady) == 1
    fed = np.array([-1.0, -1.0], np.float32)
    left = weakref.ref(fed)
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(InvalidArgumentError):
            session.run(train, {x: fed})
        del fed
        assert left() is None
    finally:
        gc.enable()
    assert len(steady) == 1


def test_a_value_is_freed_once_nothing_needs_it():
    seen = []

    def make(like):
        value = np.ones_like(like)
        seen.append(weakref.ref(value))
        return value

    def look(total):
        seen.append(seen[0]())
        return total

    w = gs.Variable(np.ones(4, np.float32))
    made = Node("Make", (w,), make, dtype="float32", shape=[4])
    looked = Node("Look", (gs.reduce_sum(made),), look, dtype="float32", shape=[])
    train = w.assign_sub(gs.fill([4], looked)).op
    with gs.Session() as session:
        session.run(gs.global_variables_initializer())
        for _ in range(3):  # the first plans, the others are steady
            seen.clear()
            session.run(train)
            assert seen[1:] == [None]
