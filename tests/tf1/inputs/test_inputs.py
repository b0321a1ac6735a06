"""Input producers and batches: what they give, in which order, how often, and what they refuse."""

import numpy as np
import pytest
from tensorboard.compat.proto.summary_pb2 import Summary

from globalstep.chief.sessions.coordinator import Coordinator
from globalstep.errors import InvalidArgumentError, OutOfRangeError
from globalstep.tf1.graph.graph import Graph, GraphKeys, Node, get_collection
from globalstep.tf1.inputs import batching, inputs
from globalstep.tf1.inputs.queue_runner import start_queue_runners
from globalstep.tf1.ops.summaries import merge_all
from globalstep.tf1.sessions.session import Session


def everything(sess, node):
    """Runs `node` until the input ends; all threads have then ended too."""
    coord = Coordinator()
    threads = start_queue_runners(sess, coord)
    found = []
    try:
        while True:
            found.append(sess.run(node))
    except OutOfRangeError:
        coord.request_stop()
    coord.join(threads, stop_grace_period_secs=10)
    return found


def test_strings_come_in_order_as_often_as_asked(sess):
    queue = inputs.string_input_producer(["a", "b", "c"], num_epochs=2, shuffle=False)
    assert everything(sess, queue.dequeue()) == [b"a", b"b", b"c"] * 2
    assert queue.name == "input_producer"
    (summary,) = get_collection(GraphKeys.SUMMARIES)
    assert summary.op.name == "input_producer/fraction_of_32_full"


def test_each_epoch_has_an_order_of_its_own_that_follows_the_seed(sess):
    first = inputs.range_input_producer(20, num_epochs=2, seed=3).dequeue()
    with Graph().as_default() as other, Session(graph=other) as twin:
        second = inputs.range_input_producer(20, num_epochs=2, seed=3).dequeue()
        repeated = [int(value) for value in everything(twin, second)]
    numbers = [int(value) for value in everything(sess, first)]
    assert numbers == repeated
    assert sorted(numbers[:20]) == sorted(numbers[20:]) == list(range(20))
    assert numbers[:20] != numbers[20:]
    assert numbers[:20] != list(range(20))


def test_producers_check_their_arguments(sess):
    with pytest.raises(ValueError, match="string_input_producer requires a non-null input tensor"):
        inputs.string_input_producer([])
    with pytest.raises(ValueError, match="num_epochs must be > 0 not 0."):
        inputs.string_input_producer(["a"], num_epochs=0)
    with pytest.raises(ValueError, match=r"Expected at least one tensor in slice_input_producer\(\)."):
        inputs.slice_input_producer([])
    with pytest.raises(ValueError, match="Either `input_tensor` must have a fully defined shape"):
        inputs.input_producer(Node("Placeholder", dtype="float32"))
    with pytest.raises(ValueError, match="are not compatible"):
        inputs.input_producer(np.zeros((2, 3)), element_shape=[4])


def test_names_that_turn_out_to_be_none_are_an_error(sess):
    names = Node("Empty", (), lambda: np.zeros(0, object), dtype="string", shape=[None])
    node = inputs.string_input_producer(names, num_epochs=1).dequeue()
    coord = Coordinator()
    threads = start_queue_runners(sess, coord)
    with pytest.raises(OutOfRangeError):
        sess.run(node)
    with pytest.raises(InvalidArgumentError, match="string_input_producer requires a non-null input tensor"):
        coord.join(threads, stop_grace_period_secs=10)


def test_slices_stay_together(sess):
    images = np.arange(12, dtype=np.float32).reshape(4, 3)
    image, label = inputs.slice_input_producer([images, [0, 1, 2, 3]], num_epochs=1)
    assert image.shape == [3]
    found = everything(sess, [image, label])
    assert sorted(int(label) for _, label in found) == [0, 1, 2, 3]
    assert all(np.array_equal(row, images[int(number)]) for row, number in found)


def test_a_limit_counts_runs(sess):
    limited = inputs.limit_epochs(np.float32(5.0), 2)
    assert [sess.run(limited), sess.run(limited)] == [5.0, 5.0]
    with pytest.raises(OutOfRangeError, match="Reached limit of 2"):
        sess.run(limited)
    assert sess.run(inputs.limit_epochs(7)) == 7


def test_files_are_matched_once(sess, tmp_path):
    for name in ("b.csv", "a.csv", "other"):
        (tmp_path / name).write_text("")
    node = inputs.match_filenames_once(str(tmp_path / "*.csv"))
    expected = [bytes(tmp_path / "a.csv"), bytes(tmp_path / "b.csv")]
    assert sess.run(node).tolist() == expected
    (tmp_path / "c.csv").write_text("")
    assert sess.run(node).tolist() == expected
    assert sorted(everything(sess, inputs.string_input_producer(node, num_epochs=1).dequeue())) == expected


def numbers(count, epochs=1):
    return inputs.range_input_producer(count, num_epochs=epochs, shuffle=False).dequeue()


def test_batches_keep_structure_and_drop_what_is_left(sess):
    number = numbers(7)
    square = Node("Square", [number], lambda value: value * value, dtype="int32", shape=())
    plain, squares = batching.batch([number, square], 3)
    assert plain.shape == [3]
    found = everything(sess, [plain, squares])
    assert [rows.tolist() for rows, _ in found] == [[0, 1, 2], [3, 4, 5]]
    assert found[1][1].tolist() == [9, 16, 25]
    with Graph().as_default() as graph, Session(graph=graph) as other:
        named = batching.batch({"n": numbers(4)}, 2, allow_smaller_final_batch=False)
        assert list(named) == ["n"]
        assert named["n"].name == "batch:0"
        assert len(everything(other, named)) == 2


def test_the_last_batch_may_be_smaller(sess):
    single = batching.batch(numbers(5), 2, allow_smaller_final_batch=True)
    assert isinstance(single, Node)
    assert single.shape == [None]
    assert [rows.tolist() for rows in everything(sess, single)] == [[0, 1], [2, 3], [4]]


def test_batches_of_batches_and_of_what_varies(sess):
    rows = batching.batch([[[1, 2], [3, 4], [5, 6]]], 2, enqueue_many=True, capacity=4)
    assert rows.shape == [2, 2]
    coord = Coordinator()
    threads = start_queue_runners(sess, coord)
    assert [sess.run(rows).tolist() for _ in range(3)] == [[[1, 2], [3, 4]], [[5, 6], [1, 2]], [[3, 4], [5, 6]]]
    coord.request_stop()
    coord.join(threads, stop_grace_period_secs=10)


def test_batches_can_be_padded(sess):
    ragged = Node("Ragged", [numbers(4)], lambda n: np.full(int(n), n), dtype="int32", shape=[None])
    padded = batching.batch([ragged], 2, dynamic_pad=True)
    found = [rows.tolist() for rows in everything(sess, padded)]
    assert found == [[[0], [1]], [[2, 2, 0], [3, 3, 3]]]


def test_shuffled_batches_lose_nothing_whatever_the_threads(sess):
    node = batching.shuffle_batch([numbers(100)], 7, 30, 10, num_threads=3, allow_smaller_final_batch=True)
    found = np.concatenate(everything(sess, node)).tolist()
    assert sorted(found) == list(range(100))
    assert found != list(range(100))
    names = [summary.op.name for summary in get_collection(GraphKeys.SUMMARIES)]
    assert "shuffle_batch/fraction_over_10_of_20_full" in names


def test_sources_are_joined_one_thread_each(sess):
    sources = [[numbers(10)], [numbers(20)]]
    node = batching.batch_join(sources, 5)
    assert node.name == "batch_join:0"
    assert sorted(np.concatenate(everything(sess, node)).tolist()) == sorted([*range(10), *range(20)])
    for refused, keep, error, text in (
        ([], True, ValueError, "Expected at least one set of tensors"),
        ([[1.0], [1]], True, TypeError, "Expected types to be consistent"),
        ([{"a": 1}, {"b": 1}], True, ValueError, "must have the same keys"),
        ([[1]], [True], ValueError, "`keep_input` cannot be a vector when"),
    ):
        with pytest.raises(error, match=text):
            batching.maybe_shuffle_batch_join(refused, 5, 10, 2, keep)


def test_only_what_is_to_be_kept_goes_in(sess):
    number = numbers(10)
    is_even = Node("IsEven", [number], lambda value: value % 2 == 0, dtype="bool", shape=())
    node = batching.maybe_batch([number], is_even, 2)
    assert [rows.tolist() for rows in everything(sess, node)] == [[0, 2], [4, 6]]
    with Graph().as_default() as graph, Session(graph=graph) as other:
        rows = inputs.limit_epochs(np.arange(6), 1)
        kept = batching.maybe_shuffle_batch(
            [rows], 3, 20, 1, [True, False] * 3, enqueue_many=True, allow_smaller_final_batch=True
        )
        assert sorted(np.concatenate(everything(other, kept)).tolist()) == [0, 2, 4]


def test_only_what_is_to_be_kept_goes_in_from_several_sources(sess):
    sources = [inputs.limit_epochs(np.arange(first, first + 4), 1) for first in (0, 10)]
    keep = [False, True, True, False]
    node = batching.maybe_batch_join([[rows] for rows in sources], keep, 1, enqueue_many=True)
    assert sorted(np.concatenate(everything(sess, node)).tolist()) == [1, 2, 11, 12]
    with Graph().as_default() as graph, Session(graph=graph) as other:
        sources = [inputs.limit_epochs(np.arange(first, first + 4), 1) for first in (0, 10)]
        kept = batching.maybe_shuffle_batch_join([[rows] for rows in sources], 2, 20, 1, keep, enqueue_many=True)
        assert sorted(np.concatenate(everything(other, kept)).tolist()) == [1, 2, 11, 12]


def test_how_full_queues_are_is_a_summary(sess):
    queue = inputs.string_input_producer(["a"] * 8, capacity=16, name="files")
    merged = merge_all()
    (value,) = Summary.FromString(sess.run(merged)).value
    assert value.tag == "files/fraction_of_16_full"
    assert value.simple_value == 0.0
    sess.run(queue.enqueue_many([["a"] * 4]))
    (value,) = Summary.FromString(sess.run(merged)).value
    assert value.simple_value == 0.25
