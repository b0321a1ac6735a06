"""QueueRunner: filling, ending, stopping, reporting, and going on in another session."""

import threading

import numpy as np
import pytest

from globalstep.chief.sessions.coordinator import Coordinator
from globalstep.errors import CancelledError, InvalidArgumentError, OutOfRangeError
from globalstep.tf1.graph.graph import Graph, GraphKeys, Node, get_collection
from globalstep.tf1.inputs.inputs import limit_epochs, range_input_producer
from globalstep.tf1.inputs.queue_runner import QueueRunner, add_queue_runner, start_queue_runners
from globalstep.tf1.inputs.queues import FIFOQueue
from globalstep.tf1.sessions.session import Session


def counted_to(limit):
    """A queue of ones and the operation that puts `limit` of them in, all in all."""
    queue = FIFOQueue(10, "int32", shapes=[()])
    return queue, queue.enqueue(limit_epochs(np.int32(1), limit))


def drain(sess, node):
    found = []
    while True:
        try:
            found.append(sess.run(node))
        except OutOfRangeError:
            return found


def join(threads):
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_it_fills_the_queue_and_closes_it_at_the_end(sess):
    queue, enqueue = counted_to(25)
    runner = QueueRunner(queue, [enqueue, enqueue])
    assert runner.name == queue.name
    threads = runner.create_threads(sess)
    assert [thread.is_alive() for thread in threads] == [False, False]
    assert [thread.daemon for thread in threads] == [False, False]
    for thread in threads:
        thread.start()
    assert len(drain(sess, queue.dequeue())) == 25
    join(threads)
    assert runner.exceptions_raised == []
    assert sess.run(queue.is_closed())


def test_arguments_are_checked(sess):
    queue, enqueue = counted_to(1)
    with pytest.raises(ValueError, match="Must provide queue and enqueue_ops"):
        QueueRunner(queue)
    with pytest.raises(ValueError, match="Must provide queue and enqueue_ops"):
        QueueRunner(enqueue_ops=[enqueue])
    with pytest.raises(TypeError, match="must be a tuple of error types"):
        QueueRunner(queue, [enqueue], queue_closed_exception_types=(1,))


def test_a_stop_of_the_coordinator_cancels_what_waits(sess):
    queue = FIFOQueue(2, "int32", shapes=[()])
    runner = QueueRunner(queue, [queue.enqueue(1)])
    coord = Coordinator()
    threads = runner.create_threads(sess, coord, start=True)
    assert len(threads) == 2
    assert sess.run(queue.dequeue()) == 1
    coord.request_stop()
    coord.join(stop_grace_period_secs=10)
    join(threads)
    assert sess.run(queue.is_closed())
    with pytest.raises(CancelledError):
        sess.run(queue.enqueue(1))


def test_a_stop_ends_what_waits_in_a_session_that_the_program_closed(sess):
    queue = FIFOQueue(2, "int32", shapes=[()])
    runner = QueueRunner(queue, [queue.enqueue(1)])
    coord = Coordinator()
    session = Session(graph=sess.graph)
    threads = runner.create_threads(session, coord, start=True)
    assert session.run(queue.dequeue()) == 1
    session.close()
    coord.request_stop()
    coord.join(stop_grace_period_secs=30)
    join(threads)


def failing(error):
    def fail():
        raise error

    return Node("Fails", (), fn=fail, dtype="int32", shape=(), stateful=True)


def test_another_error_stops_the_coordinator_and_is_raised_by_join(sess):
    queue = FIFOQueue(2, "int32")
    runner = QueueRunner(queue, [queue.enqueue(failing(InvalidArgumentError("bad record")))])
    coord = Coordinator()
    threads = runner.create_threads(sess, coord, start=True)
    with pytest.raises(InvalidArgumentError, match="bad record"):
        coord.join(threads, stop_grace_period_secs=10)
    assert runner.exceptions_raised == []
    with pytest.raises(OutOfRangeError):
        sess.run(queue.dequeue())


def test_a_session_gets_its_threads_once_at_a_time(sess):
    queue, enqueue = counted_to(3)
    runner = QueueRunner(queue, [enqueue])
    threads = runner.create_threads(sess)
    assert runner.create_threads(sess) == []
    for thread in threads:
        thread.start()
    join(threads)
    again = runner.create_threads(sess, start=True)
    assert len(again) == 1
    join(again)


def test_runners_are_collected_and_started(sess):
    queue, enqueue = counted_to(2)
    add_queue_runner(QueueRunner(queue, [enqueue]))
    other, other_enqueue = counted_to(2)
    add_queue_runner(QueueRunner(other, [other_enqueue]), collection="mine")
    assert len(get_collection(GraphKeys.QUEUE_RUNNERS)) == 1
    threads = start_queue_runners(sess)
    assert [thread.daemon for thread in threads] == [True]
    assert "fifo_queue" in threads[0].name
    assert len(drain(sess, queue.dequeue())) == 2
    join(threads)
    with sess.as_default():
        (thread,) = start_queue_runners(collection="mine", start=False, daemon=False)
    assert not thread.is_alive()


def test_runners_need_a_session():
    with pytest.raises(ValueError, match="Cannot start queue runners: No default session is registered"):
        start_queue_runners()
    with pytest.raises(TypeError, match=r"sess must be a `tf.Session` object. Given class: <class 'str'>"):
        start_queue_runners("no session")


def run_for(graph, queue, count=None):
    """One session's life with a coordinator: `count` elements, or all that there are."""
    node = graph.get_tensor_by_name("taken:0")
    coord = Coordinator()
    with Session(graph=graph) as session:
        threads = start_queue_runners(session, coord)
        if count is None:
            found = [int(value) for value in drain(session, node)]
        else:
            found = [int(session.run(node)) for _ in range(count)]
        coord.request_stop()
        coord.join(threads, stop_grace_period_secs=10)
    return found


def test_another_session_goes_on_where_a_stop_came_and_starts_anew_after_the_end():
    with Graph().as_default() as graph:
        queue = range_input_producer(100, num_epochs=1, shuffle=False, capacity=4)
        queue.dequeue(name="taken")
        graph.finalize()
    assert run_for(graph, queue, 10) == list(range(10))
    assert run_for(graph, queue, 20) == list(range(10, 30))
    assert run_for(graph, queue) == list(range(30, 100))
    assert run_for(graph, queue) == list(range(100))


def test_an_error_after_the_stop_is_nobodys_problem(sess):
    started, stopped = threading.Event(), threading.Event()

    def late():
        started.set()
        stopped.wait(10)
        raise RuntimeError("Attempted to use a closed Session.")

    node = Node("Late", (), fn=late, dtype="int32", shape=(), stateful=True)
    queue = FIFOQueue(2, "int32")
    coord = Coordinator()
    threads = QueueRunner(queue, [queue.enqueue(node)]).create_threads(sess, coord, start=True)
    assert started.wait(10)
    coord.request_stop()
    stopped.set()
    coord.join(threads, stop_grace_period_secs=10)
