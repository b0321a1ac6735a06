"""Batches of SparseTensors; the numbers are those of TensorFlow's compat.v1."""

import itertools

import numpy as np
import pytest

import globalstep as gs
from globalstep.chief.sessions.coordinator import Coordinator
from globalstep.errors import InvalidArgumentError, OutOfRangeError
from globalstep.tf1.graph.graph import Node
from globalstep.tf1.graph.sparse_tensor import SparseTensor, SparseTensorValue
from globalstep.tf1.inputs import batching, inputs
from globalstep.tf1.inputs.queue_runner import start_queue_runners


def taken(sess, node, times=1):
    """Gives what `node` gives so often; all threads have then ended."""
    coord = Coordinator()
    threads = start_queue_runners(sess, coord)
    try:
        return [sess.run(node) for _ in range(times)]
    finally:
        coord.request_stop()
        coord.join(threads, stop_grace_period_secs=10)


def plain(value):
    return value.indices.tolist(), value.values.tolist(), value.dense_shape.tolist()


def example():
    """Of number i: a vector of i + 1 elements, the last of which is 10 i."""
    number = inputs.range_input_producer(3, shuffle=False).dequeue()
    sparse = SparseTensor(
        gs.cast(gs.stack([[number]]), gs.int64), gs.stack([number * 10]), gs.cast(gs.stack([number + 1]), gs.int64)
    )
    return number, sparse


def test_examples_become_the_rows_of_one_that_is_as_large_as_the_largest(sess):
    numbers, batch = batching.batch(list(example()), 2)
    assert isinstance(batch, SparseTensor)
    assert batch.dtype == gs.int32
    assert batch.get_shape().as_list() == [None, None]
    found = taken(sess, [numbers, batch], 2)
    assert [one.tolist() for one, _ in found] == [[0, 1], [2, 0]]
    assert plain(found[0][1]) == ([[0, 0], [1, 1]], [0, 10], [2, 2])
    assert plain(found[1][1]) == ([[0, 2], [1, 0]], [20, 0], [2, 3])


def test_the_structure_is_that_of_the_example(sess):
    number, sparse = example()
    assert isinstance(batching.batch(sparse, 2), SparseTensor)
    named = batching.batch({"sparse": sparse, "dense": number}, 2)
    assert {name: isinstance(batch, SparseTensor) for name, batch in named.items()} == {"sparse": True, "dense": False}
    value = batching.batch([SparseTensorValue([[1]], ["a"], [2])], 2)
    assert plain(taken(sess, value)[0]) == ([[0, 1], [1, 1]], [b"a", b"a"], [2, 2])


def test_rows_may_be_examples_and_may_be_empty(sess):
    many = SparseTensor([[0, 0], [0, 3], [2, 1]], ["x\0", "y", "z"], [3, 5])
    batch = batching.batch([many], 4, enqueue_many=True)
    assert batch.get_shape().as_list() == [None, None]
    first, second = taken(sess, batch, 2)
    assert plain(first) == ([[0, 0], [0, 3], [2, 1], [3, 0], [3, 3]], [b"x\0", b"y", b"z", b"x\0", b"y"], [4, 5])
    assert plain(second) == ([[1, 1], [2, 0], [2, 3]], [b"z", b"x\0", b"y"], [4, 5])


def test_what_is_not_kept_is_left_out(sess):
    number, sparse = example()
    batch = batching.maybe_batch([sparse], gs.equal(number % 2, 0), 2)
    assert plain(taken(sess, batch)[0]) == ([[0, 0], [1, 2]], [0, 20], [2, 3])


def test_rows_that_are_not_kept_are_left_out(sess):
    many = SparseTensor([[0, 0], [0, 3], [2, 1]], [1, 2, 3], [3, 5])
    batch = batching.maybe_batch([many], [True, False, True], 4, enqueue_many=True)
    expected = [[0, 0], [0, 3], [1, 1], [2, 0], [2, 3], [3, 1]], [1, 2, 3, 1, 2, 3], [4, 5]
    assert plain(taken(sess, batch)[0]) == expected


def test_shuffled_and_joined_and_with_shapes(sess):
    sparse = SparseTensor([[1, 2]], [5], [2, 4])
    shuffled, dense = batching.shuffle_batch([sparse, gs.constant([3, 4])], 2, 10, 2, shapes=[(2, 4), (2,)])
    joined = batching.batch_join([[sparse], [sparse]], 2, dynamic_pad=True)
    expected = [[0, 1, 2], [1, 1, 2]], [5, 5], [2, 2, 4]
    ((one, numbers, other),) = taken(sess, [shuffled, dense, joined])
    assert plain(one) == plain(other) == expected
    assert numbers.tolist() == [[3, 4], [3, 4]]


def test_a_list_of_one_gives_what_is_in_it(sess):
    """As in TensorFlow, for sparse and dense ones and for all that make batches."""
    number, sparse = example()
    assert isinstance(batching.batch([number], 2), Node)
    assert isinstance(batching.shuffle_batch_join([(sparse,), (sparse,)], 2, 10, 2), SparseTensor)
    assert list(batching.batch({"only": number}, 2)) == ["only"]


def test_the_last_batch_may_be_smaller(sess):
    number = inputs.range_input_producer(3, num_epochs=1, shuffle=False).dequeue()
    places = gs.zeros([1, 1], gs.int64)
    batch = batching.batch(SparseTensor(places, gs.stack([number]), [4]), 2, allow_smaller_final_batch=True)
    coord = Coordinator()
    threads = start_queue_runners(sess, coord)
    assert [sess.run(batch).dense_shape.tolist() for _ in range(2)] == [[2, 4], [1, 4]]
    with pytest.raises(OutOfRangeError):
        sess.run(batch)
    coord.request_stop()
    coord.join(threads, stop_grace_period_secs=10)


def test_what_is_refused(sess):
    sparse = SparseTensor([[0]], [1], [3])
    with pytest.raises(TypeError, match="consistent: .*'int32'.* vs .*'SparseTensor of int32'"):
        batching.batch_join([[sparse], [gs.constant([1])]], 2)
    ranks = itertools.cycle([1, 2])
    rank = Node("Rank", (), lambda: next(ranks), stateful=True, dtype="int64", shape=())
    ones = gs.ones(gs.stack([rank]), gs.int64)
    mixed = batching.batch(SparseTensor(gs.zeros(gs.stack([1, rank]), gs.int64), [1.0], ones), 2)
    coord = Coordinator()
    threads = start_queue_runners(sess, coord)
    with pytest.raises(InvalidArgumentError, match=r"SparseTensor\[1\] was: 2 but rank of SparseTensor\[1\] is: 3"):
        sess.run(mixed)
    coord.request_stop()
    coord.join(threads, stop_grace_period_secs=10)


def test_rows_of_a_vector_are_refused(sess):
    batching.batch(SparseTensor([[0]], [1], [3]), 2, enqueue_many=True)
    coord = Coordinator()
    threads = start_queue_runners(sess, coord)
    with pytest.raises(InvalidArgumentError, match="should be > 1, but saw rank: 1"):
        coord.join(threads, stop_grace_period_secs=10)


def test_a_batch_goes_into_a_product(sess):
    """As programs use it: a batch of sparse features times weights."""
    _, sparse = example()
    batch = batching.batch(SparseTensor(sparse.indices, gs.cast(sparse.values, gs.float32), [3]), 3)
    product = gs.sparse_tensor_dense_matmul(batch, np.array([[1.0], [2.0], [3.0]], np.float32))
    assert taken(sess, product)[0].tolist() == [[0.0], [20.0], [60.0]]
