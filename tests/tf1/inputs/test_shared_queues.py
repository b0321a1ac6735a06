"""Queues on PS tasks, which tasks share, as programs use them: sessions of several tasks in one process."""

from __future__ import annotations

import contextlib
import threading

import numpy as np
import pytest
from faulty_transport import FaultyTransport

import globalstep as gs
from globalstep.chief.sessions.coordinator import Coordinator
from globalstep.errors import (
    AbortedError,
    CancelledError,
    DeadlineExceededError,
    InvalidArgumentError,
    JobDoneError,
    OutOfRangeError,
    UnavailableError,
)
from globalstep.ps.local import LocalPS
from globalstep.runtime.clock import ManualClock
from globalstep.runtime.faults import AFTER, BEFORE, NO_FAULTS, REPLY, SEND, ConnectionCutError, TransportFault
from globalstep.tf1.inputs.queue_runner import QueueRunner
from globalstep.worker.client import queue_calls
from globalstep.worker.client.client import ClusterClient


class Cluster(contextlib.ExitStack):
    """PS tasks in this process, and sessions of several tasks on them, each with a graph of its own."""

    def __init__(self, shards=2, faults=None, ps_faults=NO_FAULTS):
        super().__init__()
        self.ps = LocalPS(shards, faults=ps_faults)
        self.faults = faults

    def session(self, task="/job:worker/task:1", clock=None):
        transports = self.ps.transports()
        if self.faults is not None:
            transports = [FaultyTransport(transport, self.faults) for transport in transports]
        client = ClusterClient(transports, task=task, retry_secs=5.0)
        if clock is not None:
            client.queues._clock = clock
        self.callback(client.close)
        graph = gs.Graph()
        return graph, self.enter_context(gs.Session(graph=graph, cluster=client, task=task))


@pytest.fixture
def cluster():
    with Cluster() as made:
        yield made


def on_ps(graph, task, *args, **kwargs):
    with graph.as_default(), gs.device(f"/job:ps/task:{task}"):
        return gs.FIFOQueue(*args, **kwargs)


def test_tasks_share_a_queue_by_its_name(cluster):
    (one, first), (two, second) = cluster.session("/job:worker/task:0"), cluster.session()
    mine, theirs = (on_ps(graph, 1, 4, "int32", shared_name="done", name=str(n)) for n, graph in enumerate((one, two)))
    with one.as_default():
        first.run(mine.enqueue(7))
    with two.as_default():
        assert second.run(theirs.size()) == 1
        assert second.run(theirs.dequeue()) == 7
        second.run(theirs.enqueue(8))
        second.run(theirs.close())
    with one.as_default():
        assert first.run(mine.is_closed())
        assert first.run(mine.dequeue()) == 8
        with pytest.raises(OutOfRangeError, match=r"FIFOQueue 'done' is closed and has insufficient elements"):
            first.run(mine.dequeue())
        with pytest.raises(CancelledError, match="FIFOQueue 'done' is closed"):
            first.run(mine.enqueue(9))
    assert [[info.name for info in control.brief_status().queues] for control in cluster.ps.controls] == [[], ["done"]]


def test_queues_of_other_names_and_tasks_are_others(cluster):
    graph, session = cluster.session()
    queues = [on_ps(graph, task, 4, "int32", shared_name=name) for task in (0, 1) for name in ("a", "b")]
    with graph.as_default():
        for number, queue in enumerate(queues):
            session.run(queue.enqueue(number))
        assert [session.run(queue.dequeue()) for queue in queues] == [0, 1, 2, 3]


def test_tuples_of_arrays_and_strings_come_as_they_were_put(cluster):
    (one, first), (two, second) = cluster.session("/job:worker/task:0"), cluster.session()
    form = {"dtypes": ["float32", "string", "bool"], "shapes": [[2], [], [None]], "shared_name": "unrolls"}
    with one.as_default(), gs.device("/job:ps/task:0"):
        put = gs.PaddingFIFOQueue(10, names=["x", "text", "ends"], **form)
        first.run(put.enqueue({"x": [1.0, 2.0], "text": "a", "ends": [True]}))
        texts = np.array([b"b", "ç"], object)
        first.run(put.enqueue_many({"x": np.ones([2, 2]), "text": texts, "ends": np.ones([2, 3], bool)}))
    with two.as_default(), gs.device("/job:ps/task:0"):
        taken = gs.PaddingFIFOQueue(10, names=["x", "text", "ends"], **form).dequeue_many(3)
        found = second.run(taken)
    assert found["x"].tolist() == [[1, 2], [1, 1], [1, 1]]
    assert found["x"].dtype == np.float32
    assert found["text"].tolist() == [b"a", b"b", "ç".encode()]
    assert found["ends"].tolist() == [[True, False, False], [True] * 3, [True] * 3]


def test_a_queue_of_a_worker_lives_on_a_ps(cluster):
    (one, first), (two, second) = cluster.session("/job:learner/task:0"), cluster.session("/job:actor/task:3")
    with one.as_default(), gs.device("/job:learner/task:0"):
        unrolls = gs.FIFOQueue(2, "int32", shared_name="unrolls")
        taken = unrolls.dequeue()
    with two.as_default():
        with gs.device("/job:learner/task:0"):
            put = gs.FIFOQueue(2, "int32", shared_name="unrolls").enqueue(5)
        with gs.device("/job:actor/task:3"):
            own = gs.FIFOQueue(2, "int32", shared_name="own").enqueue(1)
        second.run([put, own])
    with one.as_default(), gs.device("/job:actor/task:3"):
        actors = gs.FIFOQueue(2, "int32", shared_name="own").dequeue()
    assert first.run([taken, actors]) == [5, 1]
    names = [info.name for info in cluster.ps.controls[0].brief_status().queues]
    assert names == ["actor:3/own", "learner:0/unrolls"]


def test_on_no_device_a_queue_of_a_ps_program_is_that_tasks(cluster):
    (one, first), (two, second) = cluster.session("/job:ps/task:1"), cluster.session()
    with one.as_default():
        done = gs.FIFOQueue(2, "int32", shared_name="done").dequeue()
    with two.as_default():
        private = gs.FIFOQueue(2, "int32", shared_name="done")
        second.run(private.enqueue(2))
        assert private.state.size() == 1
    second.run(on_ps(two, 1, 2, "int32", shared_name="done").enqueue(1))
    assert first.run(done) == 1


def test_without_a_shared_name_or_a_cluster_a_queue_is_private(cluster, caplog):
    (one, first), (two, second) = cluster.session("/job:worker/task:0"), cluster.session()
    mine, theirs = on_ps(one, 0, 4, "int32"), on_ps(two, 0, 4, "int32")
    assert "without a shared_name" in caplog.text
    with one.as_default():
        first.run(mine.enqueue(1))
    with two.as_default():
        assert second.run(theirs.size()) == 0
    with gs.Graph().as_default(), gs.device("/job:ps/task:0"), gs.Session() as alone:
        queue = gs.FIFOQueue(4, "int32", shared_name="done")
        alone.run(queue.enqueue(1))
        assert queue.state.size() == 1


def test_queues_that_do_not_fit_are_refused(cluster):
    (one, first), (two, second) = cluster.session("/job:worker/task:0"), cluster.session()
    with one.as_default():
        first.run(on_ps(one, 0, 4, "int32", shared_name="q").enqueue(1))
    with two.as_default():
        for other in (on_ps(two, 0, 5, "int32", shared_name="q"), on_ps(two, 0, 4, "int64", shared_name="q")):
            with pytest.raises(InvalidArgumentError, match="Shared queue 'q' has"):
                second.run(other.size())
        with pytest.raises(InvalidArgumentError, match=r"/job:ps/task:2, but the cluster has 2 PS task"):
            second.run(on_ps(two, 2, 4, "int32", shared_name="q").size())
        with pytest.raises(InvalidArgumentError, match="cannot name a queue"):
            second.run(on_ps(two, 0, 4, "int32", shared_name="a\nb").size())


def test_an_enqueue_waits_for_space_and_a_dequeue_for_elements(cluster):
    (one, first), (two, second) = cluster.session("/job:worker/task:0"), cluster.session()
    put, taken = (
        on_ps(one, 0, 1, "float32", [[20000]], shared_name="q"),
        on_ps(two, 0, 1, "float32", [[20000]], shared_name="q"),
    )
    with one.as_default():
        op = put.enqueue_many(np.arange(5.0)[:, None] * np.ones(20000))
    producer = threading.Thread(target=first.run, args=(op,), name="producer")
    producer.start()
    with two.as_default():
        found = second.run(taken.dequeue_many(5))
    producer.join(30.0)
    assert not producer.is_alive()
    assert found[:, 0].tolist() == [0, 1, 2, 3, 4]


def test_a_queue_runner_fills_a_shared_queue_and_closes_it(cluster):
    (one, first), (two, second) = cluster.session("/job:worker/task:0"), cluster.session()
    with one.as_default():
        numbers = gs.train.range_input_producer(5, num_epochs=1, shuffle=False).dequeue()
        queue = on_ps(one, 0, 2, "int32", [()], shared_name="q")
        gs.train.add_queue_runner(QueueRunner(queue, [queue.enqueue(numbers)]))
        coord = Coordinator()
        threads = gs.train.start_queue_runners(first, coord)
    with two.as_default():
        taken = on_ps(two, 0, 2, "int32", [()], shared_name="q").dequeue()
        found = [int(second.run(taken)) for _ in range(5)]
        with pytest.raises(OutOfRangeError):
            second.run(taken)
    coord.request_stop()
    coord.join(threads)
    assert found == [0, 1, 2, 3, 4]


# ---- Messages that are lost, and come twice or late --------------------------------------------


class Nth:
    """Makes something of the n-th call to a queue that passes a point."""

    def __init__(self, point, number, verdict):
        self.point, self.number, self.verdict, self.passed = point, number, verdict, 0

    def at(self, point, method):
        if (point, method) != (self.point, "queue"):
            return None
        self.passed += 1
        if self.passed != self.number:
            return None
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    ("point", "verdict"),
    [
        (SEND, TransportFault.CUT),
        (SEND, TransportFault.TWICE),
        (SEND, TransportFault.LATE),
        (REPLY, TransportFault.CUT),
        (SEND, UnavailableError("no way")),
    ],
    ids=lambda value: getattr(value, "value", str(value)),
)
def test_every_element_comes_once_whatever_becomes_of_a_message(point, verdict, number):
    faults = Nth(point, number, verdict)
    with Cluster(1, faults) as cluster:
        graph, session = cluster.session()
        queue = on_ps(graph, 0, 10, "int32", [()], shared_name="q")
        with graph.as_default():
            value = gs.placeholder("int32")
            put, taken = queue.enqueue(value), queue.dequeue()
            found = []
            for at in range(4):
                session.run(put, {value: at})
                if at % 2:
                    found += [int(session.run(taken)), int(session.run(taken))]
            assert found == [0, 1, 2, 3]
            assert session.run(queue.size()) == 0
    assert faults.passed >= number


@pytest.mark.parametrize("point", [BEFORE, AFTER])
def test_an_answer_that_a_ps_task_never_sent_is_made_again(point):
    faults = Nth(point, 2, ConnectionCutError("gone"))
    with Cluster(1, ps_faults=faults) as cluster:
        graph, session = cluster.session()
        queue = on_ps(graph, 0, 10, "int32", [()], shared_name="q")
        with graph.as_default():
            session.run(queue.enqueue_many(np.arange(1, 4)))
            assert session.run(queue.dequeue_many(2)).tolist() == [1, 2]
            assert session.run(queue.dequeue()) == 3


def test_a_ps_task_that_was_started_again_says_once_that_its_queues_are_lost(cluster):
    graph, session = cluster.session()
    queue = on_ps(graph, 0, 10, "int32", shared_name="q")
    with graph.as_default():
        session.run(queue.enqueue(1))
        other = LocalPS(1).controls[0]
        cluster.ps.controls[0]._queues = other.queues
        with pytest.raises(AbortedError, match="was started again: what was in its queues is lost"):
            session.run(queue.dequeue())
        session.run(queue.enqueue(2))
        assert session.run(queue.dequeue()) == 2


# ---- Waits that end -------------------------------------------------------------------------


@pytest.fixture
def at_once(monkeypatch):
    """Calls that wait are answered at once, and clients pause on a clock that runs by itself."""
    monkeypatch.setattr(queue_calls, "_WAIT_MILLIS", 0)
    return ManualClock()


def test_a_wait_says_what_for(cluster, at_once, caplog):
    graph, session = cluster.session(clock=at_once)
    queue = on_ps(graph, 0, 1, "int32", shared_name="q")
    with graph.as_default():
        session.cluster.queues.while_waiting = closes_after(session, at_once, 40.0)
        with pytest.raises(CancelledError, match=r"Dequeue from FIFOQueue 'q' was cancelled: its session was closed"):
            session.run(queue.dequeue())
    assert "s now for 1 elements of FIFOQueue 'q' on a PS task, which holds 0" in caplog.text


def closes_after(session, clock, secs):
    def look():
        if clock.monotonic() > secs:
            session.cluster.queues.close()

    return look


def test_a_call_does_not_wait_beyond_the_end_of_the_job(cluster, at_once):
    graph, session = cluster.session(clock=at_once)
    queue = on_ps(graph, 0, 1, "int32", shared_name="q")
    with graph.as_default():
        session.run(queue.enqueue(1))
        session.cluster.heartbeat.job_done = True
        with pytest.raises(JobDoneError, match="Enqueue into FIFOQueue 'q' would wait for ever: the job was declared"):
            session.run(queue.enqueue(2))
        assert session.run(queue.dequeue()) == 1


def test_a_call_does_not_wait_in_a_process_that_is_to_end(cluster, at_once):
    graph, session = cluster.session(clock=at_once)
    queue = on_ps(graph, 0, 1, "int32", shared_name="q")
    with graph.as_default():
        session.cluster.shutdown.ask()
        with pytest.raises(CancelledError, match="this process was asked to end"):
            session.run(queue.dequeue())
        # What it would have taken is not lost.
        session.run(queue.enqueue(1))
        assert session.run(queue.dequeue()) == 1


def test_an_element_that_is_too_large_is_refused(cluster, monkeypatch):
    monkeypatch.setattr(queue_calls, "MOST_ELEMENT_BYTES", 100)
    graph, session = cluster.session()
    queue = on_ps(graph, 0, 1, "float32", shared_name="q")
    with graph.as_default(), pytest.raises(InvalidArgumentError, match="too large for queue 'q' on a PS task"):
        session.run(queue.enqueue(np.ones(100)))


def test_many_elements_go_in_several_messages(cluster, monkeypatch):
    monkeypatch.setattr(queue_calls, "_MESSAGE_BYTES", 100)
    graph, session = cluster.session()
    queue = on_ps(graph, 0, 100, "float32", [[10]], shared_name="q")
    with graph.as_default():
        session.run(queue.enqueue_many(np.arange(50.0).reshape(5, 10)))
        assert session.run(queue.dequeue_many(5)).tolist() == np.arange(50.0).reshape(5, 10).tolist()


def test_a_run_waits_no_longer_than_its_timeout(cluster):
    graph, session = cluster.session()
    queue = on_ps(graph, 0, 2, ["int32"], shapes=[[]], shared_name="jobs")
    options = gs.RunOptions(timeout_in_ms=50)
    with graph.as_default():
        one, two, put = queue.dequeue(), queue.dequeue_many(2), queue.enqueue(7)
    session.run(put)
    with pytest.raises(DeadlineExceededError, match=r"Timed out waiting.*2 elements of FIFOQueue 'jobs' on a PS task"):
        session.run(two, options=options)
    # Its next call gives back what it had gathered.
    assert session.run(one) == 7
