"""Datasets: what golden values cannot show: ends, errors, orders at random, what is used of the graph."""

import gzip
import threading
import zlib

import numpy as np
import pytest

import globalstep as gs

Dataset = gs.data.Dataset


def elements(dataset):
    following = dataset.make_one_shot_iterator().get_next()
    found = []
    with gs.Session() as sess:
        try:
            while True:
                found.append(sess.run(following))
        except gs.errors.OutOfRangeError:
            return found


def numbers(dataset):
    return [int(one) for one in elements(dataset)]


def test_the_end_stays_the_end():
    following = Dataset.range(1).make_one_shot_iterator().get_next()
    with gs.Session() as sess:
        sess.run(following)
        for _ in range(2):
            with pytest.raises(gs.errors.OutOfRangeError, match="End of sequence"):
                sess.run(following)


def test_one_run_takes_one_element_and_two_nodes_take_two():
    iterator = Dataset.range(10).make_one_shot_iterator()
    one, other = iterator.get_next(), iterator.get_next()
    with gs.Session() as sess:
        assert sess.run([one, one + 100]) == [0, 100]
        assert sorted(sess.run([one, other])) == [1, 2]


def test_static_shapes_and_types():
    source = Dataset.from_tensor_slices((np.zeros((6, 2), np.float32), {"y": [1] * 6}))
    assert source.output_types == (gs.float32, {"y": gs.int32})
    batches = source.batch(4)
    assert batches.output_shapes[0].as_list() == [None, 2]
    assert source.batch(4, drop_remainder=True).output_shapes[1]["y"].as_list() == [4]
    rows, others = batches.make_one_shot_iterator().get_next()
    assert (rows.shape.as_list(), others["y"].dtype) == ([None, 2], gs.int32)
    assert batches.output_classes == (gs.Tensor, {"y": gs.Tensor})
    assert gs.layers.dense(rows, 3).shape.as_list() == [None, 3]


@pytest.mark.parametrize("reshuffle", [None, True, False])
def test_shuffling_gives_each_element_once_in_each_repetition(reshuffle):
    found = numbers(Dataset.range(20).shuffle(8, seed=3, reshuffle_each_iteration=reshuffle).repeat(2))
    assert sorted(found[:20]) == sorted(found[20:]) == list(range(20)) != found[:20]
    assert (found[:20] == found[20:]) is (reshuffle is False)
    # The first is one of the 8 that were read.
    assert found[0] < 8


def test_an_initialization_gives_the_same_order_again():
    iterator = Dataset.range(20).shuffle(20, seed=3).repeat(2).batch(40).make_initializable_iterator()
    following = iterator.get_next()
    with gs.Session() as sess:
        found = []
        for _ in range(2):
            sess.run(iterator.initializer)
            found.append(sess.run(following).tolist())
    assert found[0] == found[1]


def test_repeat_for_ever_and_not_at_all():
    assert numbers(Dataset.range(2).repeat().take(5)) == [0, 1, 0, 1, 0]
    assert numbers(Dataset.range(0).repeat()) == numbers(Dataset.range(3).repeat(0)) == []


def test_an_iterator_is_initialized_with_what_is_fed_and_with_variables():
    rows, size = gs.placeholder(gs.float32, [None]), gs.placeholder(gs.int64, [])
    factor = gs.Variable(10.0)
    iterator = Dataset.from_tensor_slices(rows).map(lambda x: x * factor).batch(size).make_initializable_iterator()
    following = iterator.get_next()
    with gs.Session() as sess:
        sess.run(gs.global_variables_initializer())
        with pytest.raises(gs.errors.FailedPreconditionError, match="has not been initialized"):
            sess.run(following)
        sess.run(iterator.initializer, {rows: [1, 2, 3], size: 2})
        assert sess.run(following).tolist() == [10, 20]
        sess.run(iterator.initializer, {rows: [4, 5, 6], size: 3})
        assert sess.run(following).tolist() == [40, 50, 60]


def test_a_one_shot_iterator_uses_neither_variables_nor_placeholders():
    with pytest.raises(ValueError, match="capture stateful objects"):
        Dataset.range(3).map(lambda x: gs.cast(x, gs.float32) * gs.Variable(1.0)).make_one_shot_iterator()
    with pytest.raises(ValueError, match="Cannot capture a placeholder"):
        Dataset.from_tensor_slices(gs.placeholder(gs.float32, [None])).make_one_shot_iterator()
    with pytest.raises(ValueError, match="does not have an initializer"):
        _ = Dataset.range(3).make_one_shot_iterator().initializer


def test_an_error_in_a_function_is_that_elements_alone():
    def odd(n):
        if n == 1:
            raise ValueError("not this one")
        return n

    mapped = Dataset.range(3).map(lambda n: gs.py_func(odd, [n], gs.int64))
    following = mapped.make_one_shot_iterator().get_next()
    with gs.Session() as sess:
        assert sess.run(following) == 0
        with pytest.raises(ValueError, match="not this one"):
            sess.run(following)
        assert sess.run(following) == 2
    assert numbers(mapped.apply(gs.data.experimental.ignore_errors())) == [0, 2]


def test_a_function_may_not_change_variables():
    kept = gs.Variable(0.0)
    with pytest.raises(ValueError, match="may not change Variables"):
        Dataset.range(3).map(lambda n: gs.assign_add(kept, 1.0))


def test_a_function_with_random_numbers_draws_anew():
    found = elements(Dataset.range(4).map(lambda n: gs.random_uniform([])))
    assert len(set(map(float, found))) == 4


def test_cached_elements_are_made_once():
    calls = []
    counted = Dataset.range(3).map(lambda n: gs.py_func(lambda value: calls.append(value) or value, [n], gs.int64))
    assert numbers(counted.cache().repeat(3)) == [0, 1, 2] * 3
    assert len(calls) == 3


def test_batches_refuse_elements_of_different_shapes():
    ragged = Dataset.range(1, 3).map(lambda n: gs.fill([gs.cast(n, gs.int32)], n))
    following = ragged.batch(2).make_one_shot_iterator().get_next()
    with (
        gs.Session() as sess,
        pytest.raises(
            gs.errors.InvalidArgumentError,
            match=r"in component 0. First element had shape \[1\] and element 1 had shape \[2\]",
        ),
    ):
        sess.run(following)
    following = ragged.padded_batch(2, [1]).make_one_shot_iterator().get_next()
    with gs.Session() as sess, pytest.raises(gs.errors.DataLossError, match="smaller size than the input"):
        sess.run(following)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Dataset.from_tensor_slices(1), ValueError, "insufficient rank for batching"),
        (lambda: Dataset.from_tensor_slices(([1, 2], [1, 2, 3])), ValueError, "Dimensions 2 and 3 are not compatible"),
        (lambda: Dataset.range(3).batch(0), gs.errors.InvalidArgumentError, "Batch size must be greater than zero"),
        (lambda: Dataset.range(3).shuffle(0), gs.errors.InvalidArgumentError, "buffer_size must be greater than zero"),
        (lambda: Dataset.range(3).shard(3, 3), gs.errors.InvalidArgumentError, "between 0 and 2 .currently index = 3"),
        (lambda: Dataset.range(3).map(lambda n: None), TypeError, "Dataset.map..: None"),
        (lambda: Dataset.range(3).flat_map(lambda n: n), TypeError, "must return a `Dataset`"),
        (lambda: Dataset.range(3).filter(lambda n: n), ValueError, "scalar boolean"),
        (lambda: Dataset.zip([Dataset.range(3)]), TypeError, "tuple or dict"),
        (lambda: Dataset.range(3).concatenate(Dataset.from_tensors(1.0)), TypeError, "different types"),
        (lambda: Dataset.from_generator(3, gs.int32), TypeError, "must be callable"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_built(make, error, text):
    with pytest.raises(error, match=text):
        make()


@pytest.mark.parametrize(
    ("yielded", "text"),
    [
        ((1, 2, 3), "did not match the expected structure"),
        (("x", [1]), "could not be converted to the expected type"),
        ((1, 2), "an element of shape .* was expected"),
    ],
)
def test_a_generator_must_yield_what_was_said(yielded, text):
    made = Dataset.from_generator(lambda: iter([yielded]), (gs.int32, gs.int32), ([], [None]))
    following = made.make_one_shot_iterator().get_next()
    with gs.Session() as sess, pytest.raises(TypeError, match=text):
        sess.run(following)


def test_a_generator_is_called_anew_for_each_repetition_and_with_arguments():
    calls = []

    def count(most):
        calls.append(most)
        yield from range(int(most))

    assert numbers(Dataset.from_generator(count, gs.int32, [], args=[3]).repeat(2)) == [0, 1, 2] * 2
    assert len(calls) == 2


def test_iterators_of_one_structure_and_by_handle():
    iterator = gs.data.Iterator.from_structure(gs.int64, gs.TensorShape([]))
    few, many = (iterator.make_initializer(Dataset.range(start, 100)) for start in (1, 50))
    handle = gs.placeholder(gs.string, [])
    following, fed = iterator.get_next(), gs.data.Iterator.from_string_handle(handle, gs.int64, []).get_next()
    one_shot = Dataset.range(7, 9).make_one_shot_iterator()
    with pytest.raises(TypeError, match="Expected output types"):
        iterator.make_initializer(Dataset.from_tensors(1.0))
    with gs.Session() as sess:
        for start, first in ((few, 1), (many, 50), (few, 1)):
            sess.run(start)
            assert sess.run(following) == first
        handles = sess.run([iterator.string_handle(), one_shot.string_handle()])
        assert [sess.run(fed, {handle: which}) for which in (*handles, *handles)] == [2, 7, 3, 8]
        with pytest.raises(gs.errors.InvalidArgumentError, match="no iterator of this process"):
            sess.run(fed, {handle: b"other"})


def test_threads_get_elements_of_their_own():
    following = Dataset.range(200).make_one_shot_iterator().get_next()
    found = []
    with gs.Session() as sess:

        def take():
            for _ in range(50):
                found.append(int(sess.run(following)))

        threads = [threading.Thread(target=take, name=f"take-{n}") for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found) == list(range(200))


def test_a_monitored_session_ends_with_the_input():
    following = Dataset.range(3).make_one_shot_iterator().get_next()
    found = []
    with gs.train.MonitoredTrainingSession() as sess:
        while not sess.should_stop():
            found.append(int(sess.run(following)))
    assert found == [0, 1, 2]


def test_an_initializer_may_be_among_those_of_tables():
    iterator = Dataset.range(3).make_initializable_iterator()
    gs.add_to_collection(gs.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    following = iterator.get_next()
    with gs.train.MonitoredTrainingSession() as sess:
        assert sess.run(following) == 0


def test_lines_of_files(tmp_path):
    text = b"one\r\n\ntwo"
    for name, data in (("a", text), ("b.gz", gzip.compress(text)), ("c.z", zlib.compress(text))):
        (tmp_path / name).write_bytes(data)
    wanted = [b"one", b"", b"two"]
    assert elements(gs.data.TextLineDataset(str(tmp_path / "a"))) == wanted
    assert elements(gs.data.TextLineDataset([str(tmp_path / "b.gz")] * 2, "GZIP")) == wanted * 2
    assert elements(gs.data.TextLineDataset(str(tmp_path / "c.z"), "ZLIB")) == wanted
    with pytest.raises(ValueError, match="compression"):
        gs.data.TextLineDataset("a", "RAR")
    following = gs.data.TextLineDataset(str(tmp_path / "none")).make_one_shot_iterator().get_next()
    with gs.Session() as sess, pytest.raises(gs.errors.NotFoundError):
        sess.run(following)


def test_names_of_files(tmp_path):
    for name in ("f1", "f10", "f2"):
        (tmp_path / name).write_text(name)
    pattern = str(tmp_path / "f*")
    names = elements(Dataset.list_files(pattern, shuffle=False))
    assert [name.decode().rpartition("/")[2] for name in names] == ["f1", "f10", "f2"]
    assert sorted(elements(Dataset.list_files(pattern, seed=1))) == sorted(names)
    lines = gs.data.TextLineDataset(Dataset.list_files(pattern, shuffle=False))
    assert elements(lines) == elements(Dataset.list_files(pattern, False).flat_map(gs.data.TextLineDataset))
    assert elements(lines) == [b"f1", b"f10", b"f2"]
    following = Dataset.list_files(str(tmp_path / "none*")).make_one_shot_iterator().get_next()
    with gs.Session() as sess, pytest.raises(gs.errors.InvalidArgumentError, match="No files matched pattern"):
        sess.run(following)


def test_records_of_files(tmp_path):
    path = str(tmp_path / "records")
    with gs.python_io.TFRecordWriter(path) as writer:
        for value in (1, 2, 3):
            feature = gs.train.Feature(int64_list=gs.train.Int64List(value=[value]))
            example = gs.train.Example(features=gs.train.Features(feature={"x": feature}))
            writer.write(example.SerializeToString())

    def parse(record):
        return gs.parse_single_example(record, {"x": gs.FixedLenFeature([], gs.int64)})

    assert [int(found["x"]) for found in elements(gs.data.TFRecordDataset([path]).map(parse))] == [1, 2, 3]
    fixed = tmp_path / "fixed"
    fixed.write_bytes(b"hh" + b"abcdef" + b"f")
    assert elements(gs.data.FixedLengthRecordDataset(str(fixed), 3, 2, 1)) == [b"abc", b"def"]
    following = gs.data.FixedLengthRecordDataset(str(fixed), 4).make_one_shot_iterator().get_next()
    with (
        gs.Session() as sess,
        pytest.raises(gs.errors.InvalidArgumentError, match=r"body length 9 bytes.*record length \(4 bytes\)"),
    ):
        sess.run(following)


def test_what_is_applied():
    experimental = gs.data.experimental
    assert numbers(Dataset.range(4).apply(experimental.shuffle_and_repeat(4, 2, seed=1)).take(8).batch(8).apply(
        experimental.unbatch()).filter(lambda n: gs.equal(n, 3))) == [3, 3]  # fmt: skip
    interleaved = experimental.parallel_interleave(lambda n: Dataset.from_tensors(n).repeat(2), 2, sloppy=True)
    assert numbers(Dataset.range(2).apply(interleaved)) == [0, 1, 0, 1]
    dropped = gs.contrib.data.batch_and_drop_remainder(2)
    assert [one.tolist() for one in elements(Dataset.range(5).apply(dropped))] == [[0, 1], [2, 3]]
    assert numbers(Dataset.range(3).prefetch(experimental.AUTOTUNE)) == [0, 1, 2]


def test_sparse_components_are_sliced_mapped_and_batched():
    sparse = gs.SparseTensor([[0, 1], [1, 0], [1, 2]], [5, 6, 7], [3, 4])
    rows = gs.data.Dataset.from_tensor_slices(sparse)
    assert rows.output_classes is gs.SparseTensor
    assert rows.output_shapes.as_list() == [4]
    whole = rows.map(lambda row: gs.SparseTensor(row.indices, row.values * 2, row.dense_shape)).batch(2)
    following = whole.make_one_shot_iterator().get_next()
    with gs.Session() as session:
        first, second = session.run(following), session.run(following)
    np.testing.assert_array_equal(first.indices, [[0, 1], [1, 0], [1, 2]])
    np.testing.assert_array_equal(first.values, [10, 12, 14])
    assert (first.dense_shape.tolist(), second.dense_shape.tolist(), len(second.values)) == ([2, 4], [1, 4], 0)
    with pytest.raises(TypeError, match="Batching of padded sparse tensors is not currently supported"):
        rows.padded_batch(2, [4])


def test_windows_of_elements_with_the_same_key():
    group = gs.data.experimental.group_by_window
    pairs = Dataset.range(11).apply(group(lambda x: x % 3, lambda key, window: window.batch(2), 3))
    found = [batch.tolist() for batch in elements(pairs)]
    assert found == [[0, 3], [6], [1, 4], [7], [2, 5], [8], [9], [10]]
    sums = Dataset.range(11).apply(
        group(lambda x: x % 3, lambda key, window: window.map(lambda x: x * 10 + key), window_size_func=lambda k: k + 1)
    )
    assert numbers(sums) == [0, 30, 11, 41, 60, 22, 52, 82, 90, 71, 101]
    with pytest.raises(ValueError, match="Must pass either window_size or window_size_func"):
        group(lambda x: x, lambda key, window: window)
    with pytest.raises(TypeError, match="`reduce_func` must return a `Dataset` object"):
        Dataset.range(2).apply(group(lambda x: x, lambda key, window: key, 1))
    with pytest.raises(gs.errors.InvalidArgumentError, match="Window size must be greater than zero, but got 0"):
        elements(Dataset.range(2).apply(group(lambda x: x, lambda key, window: window, window_size_func=lambda k: k)))


@pytest.mark.parametrize(
    ("options", "batches"),
    [
        ({}, [[1, 1], [3, 4, 5], [9, 6], [5, 3, 5], [2], [8]]),
        ({"drop_remainder": True}, [[1, 1], [3, 4, 5], [9, 6], [5, 3, 5]]),
    ],
)
def test_batches_of_about_the_same_length(options, batches):
    lengths = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
    rows = Dataset.from_tensor_slices(lengths).map(lambda n: (gs.range(n), n))
    bucket = gs.contrib.data.bucket_by_sequence_length
    found = elements(rows.apply(bucket(lambda row, n: n, [3, 6], [2, 3, 2], **options)))
    assert [of.tolist() for _, of in found] == batches
    assert [row.shape for row, _ in found] == [(len(of), max(of)) for of in batches]
    same = Dataset.from_tensors(([1, 2], 2)).repeat(3).apply(bucket(lambda row, n: n, [], [2], no_padding=True))
    assert [row.tolist() for row, _ in elements(same)] == [[[1, 2]] * 2, [[1, 2]]]
    with pytest.raises(ValueError, match="bucket_batch_sizes. must equal len.bucket_boundaries. . 1"):
        bucket(lambda x: x, [1], [1])
    with pytest.raises(ValueError, match="pad_to_bucket_boundary must be False"):
        bucket(lambda x: x, [1], [1, 2], pad_to_bucket_boundary=True)
