"""tf.contrib.slim.prefetch_queue: batches that are ready before they are asked for."""

import numpy as np
import pytest

import globalstep as gs
from globalstep.errors import OutOfRangeError

slim = gs.contrib.slim


def _all_of(taken):
    """Run `taken` to the end of its input."""
    found = []

    def take(session):
        while True:
            found.append(session.run(taken))

    with gs.Session() as session:
        session.run([gs.global_variables_initializer(), gs.local_variables_initializer()])
        coordinator = gs.train.Coordinator()
        threads = gs.train.start_queue_runners(session, coordinator)
        with pytest.raises(OutOfRangeError, match="is closed and has insufficient elements"):
            take(session)
        coordinator.request_stop()
        coordinator.join(threads)
    return found


def test_batches_come_in_order_until_the_input_ends():
    number = gs.train.range_input_producer(6, num_epochs=1, shuffle=False).dequeue()
    queue = slim.prefetch_queue.prefetch_queue(gs.train.batch([number, number * 2], 3))
    batches = _all_of(queue.dequeue())
    assert [[part.tolist() for part in batch] for batch in batches] == [[[0, 1, 2], [0, 2, 4]], [[3, 4, 5], [6, 8, 10]]]


def test_a_dict_comes_back_as_one():
    number = gs.train.range_input_producer(2, num_epochs=1, shuffle=False).dequeue()
    queue = slim.prefetch_queue.prefetch_queue({"x": number, "a": gs.cast(number, "float32") / 2}, num_threads=1)
    assert queue.name.startswith("prefetch_queue/")
    assert queue.names == ["a", "x"]
    assert _all_of(queue.dequeue()) == [{"x": 0, "a": 0.0}, {"x": 1, "a": 0.5}]


def test_one_node_of_varying_length_is_padded():
    number = gs.train.range_input_producer(3, num_epochs=1, shuffle=False).dequeue()
    ones = gs.fill(gs.reshape(number, [1]), 1.0)
    ones.set_shape([None])
    (batch,) = _all_of(slim.prefetch_queue.prefetch_queue(ones, dynamic_pad=True).dequeue_many(3))
    np.testing.assert_array_equal(batch, [[0, 0], [1, 0], [1, 1]])
