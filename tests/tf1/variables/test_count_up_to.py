"""Counting to a limit, as queues of TensorFlow's programs do."""

import pytest

import globalstep as gs
from globalstep.errors import OutOfRangeError


def test_each_run_gives_the_next_number_until_the_limit():
    counter = gs.Variable(0, dtype=gs.int64, name="counter")
    count = counter.count_up_to(3)
    with gs.Session() as session:
        session.run(gs.global_variables_initializer())
        assert [session.run(count) for _ in range(3)] == [0, 1, 2]
        for _ in range(2):
            with pytest.raises(OutOfRangeError, match="Reached limit of 3"):
                session.run(count)


def test_a_queue_is_filled_from_it():
    counter = gs.Variable(5, name="counter")
    queue = gs.FIFOQueue(10, gs.int32, [[]])
    runner = gs.train.QueueRunner(queue, [queue.enqueue(gs.count_up_to(counter, 8))])
    with gs.Session() as session:
        session.run(gs.global_variables_initializer())
        coordinator = gs.train.Coordinator()
        threads = runner.create_threads(session, coordinator, start=True)
        assert session.run(queue.dequeue_many(3)).tolist() == [5, 6, 7]
        with pytest.raises(OutOfRangeError):
            session.run(queue.dequeue())
        coordinator.request_stop()
        coordinator.join(threads)


def test_it_counts_integers():
    with pytest.raises(TypeError, match=r"'T' has DataType float32 not in list of allowed values: int32, int64"):
        gs.Variable(0.0).count_up_to(3)
