"""Pushes that runs do not wait for: what overlaps, what stays exact, and where errors come to light."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import globalstep as gs
from globalstep.errors import AbortedError, CancelledError, InvalidArgumentError, JobDoneError
from globalstep.ps.local import drop, named
from globalstep.runtime import waiting
from globalstep.tf1.graph.graph import Graph
from globalstep.tf1.ops.summaries import SummaryWriterCache
from globalstep.worker.protocol.pushes_in_flight import PushesInFlight

LONG = 30.0


@pytest.fixture
def pushes():
    made = PushesInFlight(1)
    yield made
    made.close()


class Push:
    """A push that is answered when the test says so."""

    def __init__(self, done, error=None):
        self.begun, self.may_end = threading.Event(), threading.Event()
        self._done, self._error = done, error

    def __call__(self):
        self.begun.set()
        assert self.may_end.wait(LONG)
        if self._error is not None:
            raise self._error
        self._done.append(self)


def test_one_is_in_flight_while_the_next_is_computed_and_no_more(pushes):
    done = []
    first, second = Push(done), Push(done)
    pushes.submit(first)
    assert first.begun.wait(LONG)
    returned = threading.Event()

    def submit_second():
        pushes.submit(second)
        returned.set()

    thread = threading.Thread(target=submit_second)
    thread.start()
    assert not returned.wait(0.05)
    first.may_end.set()
    assert returned.wait(LONG)
    second.may_end.set()
    thread.join()
    pushes.wait()
    assert done == [first, second]


def test_that_the_job_is_done_is_an_error_only_to_who_pushes(pushes):
    refused = Push([], JobDoneError("done"))
    refused.may_end.set()
    pushes.submit(refused)
    pushes.wait()
    for _ in range(2):
        with pytest.raises(JobDoneError):
            pushes.submit(Push([]))
    assert pushes.close() is None


def test_what_follows_a_push_that_failed_is_not_sent():
    made = PushesInFlight(3)
    done = []
    failing = Push(done, AbortedError("lost"))
    tickets = [made.submit(failing), *(made.submit(Push(done)) for _ in range(2))]
    failing.may_end.set()
    for ticket in tickets[1:]:
        with pytest.raises(CancelledError, match="one before it failed.*lost"):
            ticket.result()
    assert isinstance(made.close(), AbortedError)
    assert not done


@pytest.fixture
def target():
    named("under-way", 2)
    yield "local://under-way"
    drop("under-way")


def build():
    w = gs.Variable(np.zeros(4, np.float32), name="w")
    by = gs.placeholder(gs.float32, [4])
    step = gs.train.get_or_create_global_step()
    optimizer = gs.train.GradientDescentOptimizer(1.0)
    return w, by, step, optimizer.apply_gradients([(by, w)], global_step=step)


CONFIG = gs.ConfigProto(pushes_in_flight=1)


def test_all_pushes_arrive_in_order_and_a_run_that_reads_waits_for_them(target):
    with Graph().as_default(), gs.Session(target, config=CONFIG) as session:
        w, by, step, train = build()
        session.run(gs.global_variables_initializer())
        given, total = np.zeros(4, np.float32), np.zeros(4)
        for count in range(1, 40):
            given[:] = count  # the same memory each time: the push has a copy
            session.run(train, {by: given})
            total -= count
            if count % 10 == 0:
                assert session.run(step) == count
                np.testing.assert_array_equal(session.run(w), total)
        assert session.run([w, step])[1] == 39


def test_a_run_sees_the_newest_that_has_come_and_its_staleness_says_so(target):
    config = gs.ConfigProto(pushes_in_flight=1)
    with Graph().as_default(), gs.Session(target, config=config, reuse_values=True) as session:
        _, by, step, train = build()
        session.run(gs.global_variables_initializer())
        lags = set()
        for _ in range(30):
            session.run(train, {by: np.ones(4)})
            if session.last_outcome is not None:
                lags.add(session.last_outcome.staleness)
        assert session.run(step) == 30
        assert lags <= {0, 1}


def test_what_a_push_did_wrong_is_told_by_the_next_run(target):
    with Graph().as_default(), gs.Session(target, config=CONFIG) as session:
        table = gs.Variable(np.zeros((4, 2), np.float32), name="table")
        ids = gs.placeholder(gs.int64, [None])
        slices = gs.IndexedSlices(gs.ones([1, 2]), ids)
        train = gs.train.GradientDescentOptimizer(1.0).apply_gradients([(slices, table)])
        session.run(gs.global_variables_initializer())
        session.run(train, {ids: [9]})
        with pytest.raises(InvalidArgumentError):
            session.run(table)
        session.run(train, {ids: [1]})
        np.testing.assert_array_equal(session.run(table)[1], [-1, -1])


def test_the_last_step_is_exact(target, tmp_path, caplog):
    with Graph().as_default():
        _, by, _, train = build()
        hooks = [gs.train.StopAtStepHook(last_step=25)]
        runs = 0
        with gs.train.MonitoredTrainingSession(
            target, checkpoint_dir=str(tmp_path), hooks=hooks, config=CONFIG
        ) as session:
            while not session.should_stop():
                session.run(train, {by: np.ones(4)})
                runs += 1
        assert 25 <= runs <= 28
        SummaryWriterCache.clear()
    assert "has not been increased" not in caplog.text
    prefix = gs.train.latest_checkpoint(str(tmp_path))
    assert prefix.endswith("-25")
    np.testing.assert_array_equal(gs.train.load_variable(prefix, "w"), np.full(4, -25))


def test_a_run_that_wants_what_its_push_brings_waits(target):
    with Graph().as_default(), gs.Session(target, config=CONFIG) as session:
        step = gs.train.get_or_create_global_step()
        session.run(gs.global_variables_initializer())
        assert [session.run(step.assign_add(1)) for _ in range(3)] == [1, 2, 3]


def test_who_waits_for_an_answer_is_told_why_that_takes_long(monkeypatch, caplog):
    monkeypatch.setattr(waiting, "SAY_SECS", 0.01)
    answered = threading.Event()
    told = threading.Event()
    made = PushesInFlight(1, lambda: told.set() or "the PS task sleeps")
    made.submit(lambda: answered.wait(30))
    waiter = threading.Thread(target=made.wait, name="waiter")
    waiter.start()
    assert told.wait(30)
    answered.set()
    waiter.join(30)
    assert "for the PS tasks to answer the pushes in flight. Most likely the PS task sleeps." in caplog.text
    assert made.close() is None
