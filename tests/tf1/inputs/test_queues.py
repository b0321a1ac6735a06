"""Queues: order, capacity, closing and cancelling, shapes, names, padding; threads meet at events."""

import threading

import numpy as np
import pytest

import globalstep as gs
from globalstep.errors import CancelledError, DeadlineExceededError, InvalidArgumentError, OutOfRangeError
from globalstep.tf1.graph.graph import Graph, Node, name_scope
from globalstep.tf1.inputs.queue_state import QueueState
from globalstep.tf1.inputs.queues import FIFOQueue, PaddingFIFOQueue, RandomShuffleQueue


class Attempt:
    """A call in a thread of its own; `wait` gives its value or raises its error."""

    def __init__(self, call, *args):
        self.outcome = None
        self.error = None
        self.thread = threading.Thread(target=self._run, args=(call, *args), name="attempt", daemon=True)
        self.thread.start()

    def _run(self, call, *args):
        try:
            self.outcome = call(*args)
        except Exception as error:
            self.error = error

    def is_waiting(self):
        self.thread.join(0.05)
        return self.thread.is_alive()

    def wait(self):
        self.thread.join(10)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.outcome


def test_elements_come_in_the_order_in_which_they_went(sess):
    queue = FIFOQueue(10, "float32")
    feed = Node("Placeholder", dtype="float32", shape=())
    enqueue, dequeue, size = queue.enqueue(feed), queue.dequeue(), queue.size()
    assert enqueue.is_operation
    assert dequeue.name == "fifo_queue_Dequeue:0"
    for value in (1.0, 2.0, 3.0):
        assert sess.run(enqueue, {feed: value}) is None
    assert sess.run(size) == 3
    assert sess.run(size).dtype == np.int32
    assert [float(sess.run(dequeue)) for _ in range(3)] == [1.0, 2.0, 3.0]


def test_elements_of_several_components_stay_together(sess):
    queue = FIFOQueue(10, ["int32", "string"], shapes=[[2], []])
    numbers, words = queue.dequeue()
    sess.run(queue.enqueue([[1, 2], "a"]))
    sess.run(queue.enqueue_many([[[3, 4], [5, 6]], ["b", "c"]]))
    first = sess.run([numbers, words])
    assert first[0].tolist() == [1, 2]
    assert first[1] == b"a"
    rows, names = sess.run(queue.dequeue_many(2))
    assert rows.tolist() == [[3, 4], [5, 6]]
    assert rows.dtype == np.int32
    assert names.tolist() == [b"b", b"c"]
    assert numbers.shape == [2]
    assert queue.dequeue_many(2)[0].shape == [2, 2]
    assert queue.dequeue_up_to(2)[0].shape == [None, 2]


def test_elements_with_names_are_dicts(sess):
    queue = FIFOQueue(10, ["int32", "float32"], shapes=[(), ()], names=["i", "f"])
    sess.run(queue.enqueue({"f": 0.5, "i": 1}))
    sess.run(queue.enqueue_many({"f": [1.5], "i": [2]}))
    assert sess.run(queue.dequeue()) == {"i": 1, "f": 0.5}
    assert {name: rows.tolist() for name, rows in sess.run(queue.dequeue_many(1)).items()} == {"i": [2], "f": [1.5]}
    with pytest.raises(ValueError, match="You must enqueue a dictionary in a Queue with names"):
        queue.enqueue([1, 2.0])
    with pytest.raises(ValueError, match="Keys in dictionary to enqueue do not match names of Queue"):
        queue.enqueue({"i": 1})
    with pytest.raises(ValueError, match="Queue must have names to enqueue a dictionary"):
        FIFOQueue(1, "int32").enqueue({"i": 1})


def test_a_closed_queue_gives_what_is_left_and_then_says_so(sess):
    with name_scope("input"):
        queue = FIFOQueue(10, "float32", shapes=[()])
    sess.run(queue.enqueue_many([[1.0, 2.0, 3.0]]))
    assert not sess.run(queue.is_closed())
    sess.run(queue.close())
    assert sess.run(queue.is_closed())
    with pytest.raises(CancelledError, match="FIFOQueue '_0_input/fifo_queue' is closed"):
        sess.run(queue.enqueue(1.0))
    with pytest.raises(CancelledError, match="FIFOQueue '_0_input/fifo_queue' is already closed"):
        sess.run(queue.close())
    with pytest.raises(
        OutOfRangeError,
        match=r"FIFOQueue '_0_input/fifo_queue' is closed and has insufficient elements \(requested 4, "
        r"current size 3\)",
    ):
        sess.run(queue.dequeue_many(4))
    assert sess.run(queue.dequeue()) == 1.0
    assert sess.run(queue.dequeue_up_to(4)).tolist() == [2.0, 3.0]
    with pytest.raises(OutOfRangeError, match=r"\(requested 1, current size 0\)"):
        sess.run(queue.dequeue())


def test_a_dequeue_waits_for_elements():
    state = QueueState("FIFOQueue", "_0_q", 10)
    attempt = Attempt(state.dequeue, 3)
    state.enqueue([(1,), (2,)])
    assert attempt.is_waiting()
    state.enqueue([(3,)])
    assert attempt.wait() == [(1,), (2,), (3,)]


def test_an_enqueue_waits_for_room_and_closing_lets_it_in():
    state = QueueState("FIFOQueue", "_0_q", 1)
    state.enqueue([(1,)])
    enqueue = Attempt(state.enqueue, [(2,), (3,)])
    assert enqueue.is_waiting()
    close = Attempt(state.close)
    assert close.is_waiting()
    assert not state.is_closed()
    late = Attempt(state.enqueue, [(4,)])
    assert [state.dequeue(1)[0][0] for _ in range(3)] == [1, 2, 3]
    enqueue.wait()
    close.wait()
    with pytest.raises(CancelledError, match="is closed"):
        late.wait()
    assert state.is_closed()
    with pytest.raises(OutOfRangeError):
        state.dequeue(1)


def test_closing_can_turn_pending_enqueues_away():
    state = QueueState("FIFOQueue", "_0_q", 1)
    state.enqueue([(1,)])
    enqueue = Attempt(state.enqueue, [(2,)])
    assert enqueue.is_waiting()
    state.close(cancel_pending_enqueues=True)
    with pytest.raises(CancelledError, match="Enqueue operation was cancelled"):
        enqueue.wait()
    state.close(cancel_pending_enqueues=True)
    assert state.dequeue(1) == [(1,)]
    with pytest.raises(OutOfRangeError):
        state.dequeue(1)


def test_a_waiting_dequeue_ends_when_the_queue_is_closed_and_gives_back_what_it_had():
    state = QueueState("FIFOQueue", "_0_q", 10)
    attempt = Attempt(state.dequeue, 3)
    state.enqueue([(1,), (2,)])
    assert attempt.is_waiting()
    state.close()
    with pytest.raises(OutOfRangeError, match=r"\(requested 3, current size 2\)"):
        attempt.wait()
    assert state.dequeue(5, allow_fewer=True) == [(1,), (2,)]


def test_who_waits_is_served_in_turn():
    state = QueueState("FIFOQueue", "_0_q", 10)
    first = Attempt(state.dequeue, 2)
    assert first.is_waiting()
    second = Attempt(state.dequeue, 1)
    assert second.is_waiting()
    state.enqueue([(1,)])
    assert second.is_waiting()
    state.enqueue([(2,), (3,)])
    assert first.wait() == [(1,), (2,)]
    assert second.wait() == [(3,)]


def test_a_cancelled_queue_goes_on_without_a_loss():
    state = QueueState("FIFOQueue", "_0_q", 2)
    enqueue = Attempt(state.enqueue, [(1,), (2,), (3,), (4,)])
    assert enqueue.is_waiting()
    state.close(cancel_pending_enqueues=True)
    with pytest.raises(CancelledError):
        enqueue.wait()
    assert not state.is_drained()
    state.resume()
    assert not state.is_closed()
    assert [item for (item,) in state.dequeue(4)] == [1, 2, 3, 4]
    state.close()
    state.resume()
    assert state.is_closed()
    assert state.is_drained()
    state.restart()
    state.enqueue([(5,)])
    assert state.dequeue(1) == [(5,)]


def test_many_threads_lose_and_double_nothing():
    state = QueueState("RandomShuffleQueue", "_0_q", 7, shuffle=True, min_after_dequeue=3)
    taken = []

    def produce(start):
        for number in range(start, start + 100):
            state.enqueue([(number,)])

    def consume():
        while True:
            try:
                taken.extend(state.dequeue(2, allow_fewer=True))
            except OutOfRangeError:
                return

    producers = [Attempt(produce, 100 * index) for index in range(3)]
    consumers = [Attempt(consume) for _ in range(3)]
    for producer in producers:
        producer.wait()
    state.close()
    for consumer in consumers:
        consumer.wait()
    assert sorted(number for (number,) in taken) == list(range(300))


def test_shuffling_keeps_min_after_dequeue_inside_and_follows_its_seed(sess):
    queue = RandomShuffleQueue(100, 10, "int32", shapes=[()], seed=1)
    twin = RandomShuffleQueue(100, 10, "int32", shapes=[()], seed=1)
    for each in (queue, twin):
        sess.run(each.enqueue_many([np.arange(50)]))
    first = sess.run(queue.dequeue_many(40))
    assert first.tolist() != list(range(40))
    assert first.tolist() == sess.run(twin.dequeue_many(40)).tolist()
    attempt = Attempt(sess.run, queue.dequeue())
    assert attempt.is_waiting()
    sess.run(queue.close())
    left = [int(attempt.wait()), *sess.run(queue.dequeue_many(9)).tolist()]
    assert sorted([*first.tolist(), *left]) == list(range(50))
    with pytest.raises(
        OutOfRangeError, match="RandomShuffleQueue '_0_random_shuffle_queue' is closed and has insufficient"
    ):
        sess.run(queue.dequeue())


def test_padding_fills_up_to_the_largest_of_a_batch(sess):
    queue = PaddingFIFOQueue(10, ["int32", "string"], shapes=[[None], []])
    sess.run(queue.enqueue([[1], "a"]))
    sess.run(queue.enqueue([[2, 3, 4], "b"]))
    numbers, words = sess.run(queue.dequeue_many(2))
    assert numbers.tolist() == [[1, 0, 0], [2, 3, 4]]
    assert words.tolist() == [b"a", b"b"]
    strings = PaddingFIFOQueue(10, "string", shapes=[[None]])
    sess.run(strings.enqueue([["x"]]))
    sess.run(strings.enqueue([["y", "z"]]))
    assert sess.run(strings.dequeue_many(2)).tolist() == [[b"x", b""], [b"y", b"z"]]
    with pytest.raises(ValueError, match="Shapes must be provided for all components"):
        PaddingFIFOQueue(10, "int32", shapes=None)
    with pytest.raises(ValueError, match="Queue shapes must have the same length as dtypes"):
        PaddingFIFOQueue(10, ["int32", "int32"], shapes=[[None]])


def test_shapes_are_checked_before_and_while_running(sess):
    queue = FIFOQueue(10, "float32", shapes=[[2]])
    with pytest.raises(ValueError, match=r"Shapes \(3,\) and \(2,\) are incompatible"):
        queue.enqueue([[1.0, 2.0, 3.0]])
    feed = Node("Placeholder", dtype="float32")
    with pytest.raises(InvalidArgumentError, match=r"Expected \(2,\), got \[1\]"):
        sess.run(queue.enqueue(feed), {feed: [1.0]})
    with pytest.raises(InvalidArgumentError, match=r"Expected \(2,\), got \[3\]"):
        sess.run(queue.enqueue_many(feed), {feed: np.zeros((2, 3))})
    pair = FIFOQueue(10, ["int32", "int32"], shapes=[(), ()])
    with pytest.raises(InvalidArgumentError, match="Component 1 has 3, and should have 2"):
        sess.run(pair.enqueue_many([[1, 2], [1, 2, 3]]))
    assert sess.run(queue.size()) == 0
    with pytest.raises(InvalidArgumentError, match="require the components to have specified shapes"):
        sess.run(FIFOQueue(10, "float32").dequeue_many(1))
    with pytest.raises(ValueError, match="has elements of 2 components, got 1"):
        pair.enqueue([1])


def test_what_waits_in_a_queue_is_not_changed_from_outside(sess):
    queue = FIFOQueue(10, "float32", shapes=[[1]])
    feed = Node("Placeholder", dtype="float32", shape=[1])
    mine = np.zeros(1, np.float32)
    sess.run(queue.enqueue(feed), {feed: mine})
    mine[0] = 7.0
    assert sess.run(queue.dequeue()).tolist() == [0.0]


def test_one_shared_name_is_one_queue(sess):
    one = FIFOQueue(10, "int32", shared_name="both")
    two = FIFOQueue(10, "int32", shared_name="both")
    other = FIFOQueue(10, "int32")
    sess.run(one.enqueue(5))
    assert sess.run(two.dequeue()) == 5
    assert sess.run(other.size()) == 0


def test_a_queue_on_a_ps_is_warned_about(caplog):
    with Graph().as_default() as graph, graph.device("/job:ps/task:0"):
        FIFOQueue(10, "int32", name="done")
    assert "Queue 'done' is placed on /job:ps/task:0" in caplog.text


def test_a_shuffle_queue_keeps_no_fewer_than_none_back():
    with pytest.raises(InvalidArgumentError, match="min_after_dequeue -1 must be >= 0"):
        RandomShuffleQueue(4, -1, "int32")


def test_a_run_waits_no_longer_than_its_timeout(sess):
    queue = gs.FIFOQueue(2, ["int32"], shapes=[[]])
    options = gs.RunOptions(timeout_in_ms=50)
    sess.run(queue.enqueue(1))
    with pytest.raises(DeadlineExceededError, match=r"Timed out waiting for notification.*2 elements of FIFOQueue"):
        sess.run(queue.dequeue_many(2), options=options)
    # What it had taken is back, and other runs have no limit.
    assert sess.run([queue.size()], options=gs.RunOptions(timeout_in_ms=100_000)) == [1]
    sess.run(queue.enqueue(2), options=options)
    with pytest.raises(DeadlineExceededError, match="space in FIFOQueue"):
        sess.run(queue.enqueue(3), options=options)
    assert sess.run(queue.dequeue_many(2)).tolist() == [1, 2]


def test_a_traced_run_has_a_timeout_too(sess):
    taken = gs.FIFOQueue(2, ["int32"]).dequeue()
    options = gs.RunOptions(trace_level=gs.RunOptions.FULL_TRACE, timeout_in_ms=50)
    with pytest.raises(DeadlineExceededError):
        sess.run(taken, options=options, run_metadata=gs.RunMetadata())


def test_strings_keep_the_zeros_at_their_ends(sess):
    """numpy's own strings lose them: a serialized example may end with some."""
    queue = FIFOQueue(10, [gs.string], [()])
    sess.run(queue.enqueue_many([[b"a\0", b"\0\0"]]))
    sess.run(queue.enqueue([b"b\0"]))
    assert sess.run(queue.dequeue_many(3)).tolist() == [b"a\0", b"\0\0", b"b\0"]


def test_a_queue_of_a_list_is_the_one_that_a_run_chooses(sess):
    queues = [FIFOQueue(3, "float32", [shape], name=f"q{shape[0]}") for shape in ([3, 2], [4, 2])]
    index = gs.placeholder("int32", [])
    chosen = gs.QueueBase.from_list(index, queues)
    assert (chosen.dtypes, chosen.names) == ([gs.float32], None)
    assert chosen.shapes[0].as_list() == [None, 2]
    value = gs.placeholder("float32")
    put, taken = chosen.enqueue(value), chosen.dequeue()
    sess.run(put, {index: 1, value: np.ones([4, 2])})
    assert sess.run([queue.size() for queue in queues]) == [0, 1]
    assert sess.run(chosen.size(), {index: 1}) == 1
    assert sess.run(taken, {index: 1}).shape == (4, 2)
    with pytest.raises(InvalidArgumentError, match=r"indices = 2 is not in \[0, 2\)"):
        sess.run(put, {index: 2, value: np.ones([4, 2])})


def test_queues_of_a_list_have_the_same_dtypes_and_names(sess):
    floats, ints = FIFOQueue(3, "float32"), FIFOQueue(3, "int32")
    with pytest.raises(TypeError, match="A list of queues expected"):
        gs.QueueBase.from_list(0, [])
    with pytest.raises(TypeError, match="matching component dtypes"):
        gs.QueueBase.from_list(0, [floats, ints])
    with pytest.raises(TypeError, match="matching component names"):
        gs.QueueBase.from_list(0, [floats, FIFOQueue(3, "float32", names=["a"])])
