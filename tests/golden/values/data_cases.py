"""Cases of tf.data: the elements of a pipeline, one after the other.

What is drawn at random (`shuffle`) is not here: TensorFlow's numbers are its own.
"""

import numpy as np


def _elements(dataset, count):
    """The first elements of a Dataset, whose elements are one component each."""
    following = dataset.make_one_shot_iterator()
    return {f"element-{at}": following.get_next() for at in range(count)}


def _sources(tf):
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    return tf.data.Dataset.from_tensor_slices((rows, {"b": [1, 2, 3, 4, 5, 6], "a": ["u", "v", "w", "x", "y", "z"]}))


def slices(tf):
    """Components of a nest, and the order of a dict."""
    source = _sources(tf)
    return {
        **_elements(source.map(lambda row, others: row), 2),
        **{f"b-{key}": node for key, node in _elements(source.map(lambda row, others: others["b"]), 2).items()},
        **{f"a-{key}": node for key, node in _elements(source.map(lambda row, others: others["a"]), 2).items()},
    }


def whole(tf):
    return _elements(tf.data.Dataset.from_tensors([[1.5, 2.5]]).repeat(), 3)


def batches(tf):
    return _elements(_sources(tf).map(lambda row, others: row * 2).batch(4), 2)


def whole_batches(tf):
    return _elements(tf.data.Dataset.range(7).repeat(2).batch(3, drop_remainder=True), 4)


def batches_of_text(tf):
    return _elements(_sources(tf).map(lambda row, others: tf.string_join([others["a"], "!"])).batch(4), 2)


def padded_batches(tf):
    ranges = tf.data.Dataset.range(1, 6).map(lambda n: tf.fill([tf.cast(n, tf.int32)], n))
    return {
        **_elements(ranges.padded_batch(2, [None]), 3),
        **{f"seven-{key}": node for key, node in _elements(ranges.padded_batch(2, [7]), 2).items()},
        **{
            f"minus-{key}": node
            for key, node in _elements(
                ranges.padded_batch(3, [-1], padding_values=tf.constant(-1, tf.int64)), 2
            ).items()
        },
    }  # fmt: skip


def interleaved(tf):
    repeated = lambda n: tf.data.Dataset.from_tensors(n).repeat(6)  # noqa: E731
    return _elements(tf.data.Dataset.range(1, 6).interleave(repeated, cycle_length=2, block_length=4).batch(30), 1)


def interleaved_of_different_lengths(tf):
    counted = lambda n: tf.data.Dataset.range(n * 10, n * 10 + n)  # noqa: E731
    source = tf.data.Dataset.range(1, 8)
    return {
        **_elements(source.interleave(counted, cycle_length=3).batch(28), 1),
        **{f"flat-{key}": node for key, node in _elements(source.flat_map(counted).batch(28), 1).items()},
        **{
            f"two-{key}": node
            for key, node in _elements(source.interleave(counted, cycle_length=3, block_length=2).batch(28), 1).items()
        },
    }  # fmt: skip


def nested_functions(tf):
    """A function of elements within a function of elements, which uses what the outer one was given."""
    return _elements(
        tf.data.Dataset.range(3).flat_map(lambda n: tf.data.Dataset.range(4).map(lambda m: n * 10 + m)).batch(12), 1
    )


def filtered(tf):
    return _elements(tf.data.Dataset.range(20).filter(lambda n: tf.equal(n % 3, 1)).batch(7), 1)


def parts(tf):
    numbers = tf.data.Dataset.range(10)
    return {
        **_elements(numbers.shard(3, 1).batch(3), 1),
        **{f"skip-{key}": node for key, node in _elements(numbers.skip(7).batch(3), 1).items()},
        **{f"take-{key}": node for key, node in _elements(numbers.take(2).repeat(2).batch(4), 1).items()},
        **{f"all-{key}": node for key, node in _elements(numbers.take(-1).batch(10), 1).items()},
        **{f"step-{key}": node for key, node in _elements(tf.data.Dataset.range(9, 0, -4).batch(3), 1).items()},
    }


def joined(tf):
    numbers = tf.data.Dataset.range(3)
    other = tf.data.Dataset.from_tensor_slices(np.array([7, 8], np.int64))
    zipped = tf.data.Dataset.zip((numbers, {"x": other}))
    return {
        **_elements(numbers.concatenate(other).batch(5), 1),
        **{f"zip-{key}": node for key, node in _elements(zipped.map(lambda n, m: n + m["x"]), 2).items()},
        **{f"number-{key}": node for key, node in _elements(other.enumerate(5).map(lambda at, n: at), 2).items()},
    }


def generated(tf):
    def pairs():
        for n in range(3):
            yield n, [n] * n

    made = tf.data.Dataset.from_generator(pairs, (tf.float32, tf.int32), (tf.TensorShape([]), tf.TensorShape([None])))
    return {
        **_elements(made.map(lambda n, several: n / 2), 3),
        **{f"second-{key}": node for key, node in _elements(made.map(lambda n, several: several), 3).items()},
    }


def applied(tf):
    numbers = tf.data.Dataset.range(6)
    doubled = tf.data.experimental.map_and_batch(lambda n: n * 2, 4)
    return {
        **_elements(numbers.apply(doubled), 2),
        **{
            f"un-{key}": node
            for key, node in _elements(numbers.batch(3).apply(tf.data.experimental.unbatch()), 2).items()
        },
    }  # fmt: skip


CASES = {
    case.__name__: case
    for case in (
        slices, whole, batches, whole_batches, batches_of_text, padded_batches, interleaved,
        interleaved_of_different_lengths, nested_functions, filtered, parts, joined, generated, applied,
    )
}  # fmt: skip
