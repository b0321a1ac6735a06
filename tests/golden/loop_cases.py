"""Loops whose number of iterations is data, and TensorArrays; see program_cases."""

import numpy as np
from program_cases import Program, array


def _fed(tf, *shape):
    x = tf.placeholder(tf.float32, shape)
    return x, array("x", *(3 if size is None else size for size in shape))


def power(tf, cells):
    x, value = _fed(tf, 2)
    count = tf.placeholder(tf.int32, [])
    _, found = tf.while_loop(lambda i, p: i < count, lambda i, p: (i + 1, p * x), [0, tf.ones([2])])
    return Program([(x, value), (count, np.int32(5))], [found], tf.reduce_sum(found * [1.0, 3.0]), [x])


def network(tf, cells):
    x, value = _fed(tf, None, 3)
    weights, bias = tf.get_variable("w", [3, 3]), tf.get_variable("b", [3])

    def body(i, h, total):
        h = tf.tanh(tf.matmul(h, weights) + bias)
        return i + 1, h, total + tf.reduce_sum(h)

    _, h, total = tf.while_loop(lambda i, *_: i < 4, body, [tf.constant(0), x, 0.0])
    return Program([(x, value)], [h, total], total + tf.reduce_sum(tf.square(h)), [x])


def until_small(tf, cells):
    """The number of iterations depends on what is computed."""
    x, value = _fed(tf, 3)
    factor = tf.get_variable("factor", [])
    found = tf.while_loop(lambda h: tf.reduce_sum(tf.abs(h)) > 0.1, lambda h: h * tf.sigmoid(factor), [x])
    return Program([(x, value)], [found], tf.reduce_sum(tf.square(found)), [x])


def no_iteration(tf, cells):
    x, value = _fed(tf, 3)
    weights = tf.get_variable("w", [3])
    _, found = tf.while_loop(lambda i, h: i < 0, lambda i, h: (i + 1, h * weights), [0, x * weights])
    return Program([(x, value)], [found], tf.reduce_sum(found), [x])


def at_most(tf, cells):
    x, value = _fed(tf, 3)
    found = tf.while_loop(lambda h: True, lambda h: h * 1.5, [x], maximum_iterations=3)
    return Program([(x, value)], [found], tf.reduce_sum(tf.square(found)), [x])


def growing(tf, cells):
    x, value = _fed(tf, 2, 2)
    _, found = tf.while_loop(
        lambda i, h: i < 3,
        lambda i, h: (i + 1, tf.concat([h, 2 * h[-1:]], 0)),
        [tf.constant(0), x],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, 2])],
    )
    return Program([(x, value)], [found], tf.reduce_sum(tf.square(found)), [x])


def nested(tf, cells):
    x, value = _fed(tf, 2, 2)
    weights = tf.get_variable("w", [2, 2])

    def inner(h, times):
        return tf.while_loop(lambda j, g: j < times, lambda j, g: (j + 1, tf.sin(tf.matmul(g, weights))), [0, h])[1]

    _, found = tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, inner(h, i) + h), [0, x])
    return Program([(x, value)], [found], tf.reduce_sum(found), [x])


def in_a_nest(tf, cells):
    x, value = _fed(tf, 3)

    def body(i, pair):
        a, rest = pair
        return i + 1, (a * rest["b"], {"b": rest["b"] + 0.1 * a})

    _, (a, rest) = tf.while_loop(lambda i, pair: i < 3, body, (tf.constant(0), (x, {"b": 2 * x})))
    return Program([(x, value)], [a, rest["b"]], tf.reduce_sum(a + 2 * rest["b"]), [x])


def stopped(tf, cells):
    x, value = _fed(tf, 3)
    _, found = tf.while_loop(
        lambda i, h: i < 3, lambda i, h: (i + 1, h * x + tf.stop_gradient(h * h)), [0, x]
    )  # fmt: skip
    return Program([(x, value)], [found], tf.reduce_sum(found), [x])


def chosen(tf, cells):
    x, value = _fed(tf, 3)

    def body(i, h):
        return i + 1, tf.cond(tf.equal(i % 2, 0), lambda: h * x, lambda: h + x)

    _, found = tf.while_loop(lambda i, h: i < 5, body, [0, x])
    return Program([(x, value)], [found], tf.reduce_sum(found), [x])


def gathering(tf, cells):
    """An embedding is looked up inside of the loop, and parts are taken apart and joined."""
    table = tf.get_variable("table", [5, 4])
    start = tf.placeholder(tf.int32, [2])

    def body(i, ids, total):
        rows = tf.nn.embedding_lookup(table, ids)
        a, b = tf.split(rows, 2, axis=1)
        return i + 1, (ids + 2) % 5, total + tf.nn.softmax(tf.concat([b, a * a], 1))

    _, ids, total = tf.while_loop(lambda i, *_: i < 4, body, [0, start, tf.zeros([2, 4])])
    return Program([(start, np.array([1, 4], np.int32))], [ids, total], tf.reduce_sum(tf.square(total)))


def mapped(tf, cells):
    x, value = _fed(tf, None, 2)
    weights = tf.get_variable("w", [2])
    found = tf.map_fn(lambda row: tf.tanh(row * weights) + tf.reduce_max(row), x)
    return Program([(x, value)], [found], tf.reduce_sum(tf.square(found)), [x])


def mapped_nest(tf, cells):
    x, value = _fed(tf, 3, 2)
    ids = tf.constant([2, 0, 1])
    a, b = tf.map_fn(lambda item: (item[0] * 2, tf.cast(item[1], tf.float32) * tf.reduce_sum(item[0])), (x, ids),
                     dtype=(tf.float32, tf.float32))  # fmt: skip
    return Program([(x, value)], [a, b], tf.reduce_sum(a) + tf.reduce_sum(b * b), [x])


def mapped_ids(tf, cells):
    """Another dtype comes out than goes in."""
    found = tf.map_fn(lambda i: tf.cast(i, tf.float32) / 2, tf.constant([1, 2, 3]), dtype=tf.float32)
    x, value = _fed(tf, 3)
    return Program([(x, value)], [found], tf.reduce_sum(found * x), [x])


def mapped_nothing(tf, cells):
    x = tf.placeholder(tf.float32, [None, 2])
    found = tf.map_fn(lambda row: row * 2, x)
    # TensorFlow has no gradient of it.
    return Program([(x, np.zeros((0, 2), np.float32))], [found], tf.reduce_sum(found))


def scanned(options, tf, cells):
    x, value = _fed(tf, None, 2)
    weights = tf.get_variable("w", [2])
    options = dict(options)
    if options.pop("start", False):
        options["initializer"] = weights * 2
    found = tf.scan(lambda total, row: total * weights + row, x, **options)
    return Program([(x, value)], [found], tf.reduce_sum(tf.square(found)), [x])


def scanned_nest(tf, cells):
    x, value = _fed(tf, 3, 2)
    a, b = tf.scan(
        lambda held, row: (held[0] + row, held[1] * tf.reduce_sum(row)),
        x,
        initializer=(tf.zeros([2]), tf.constant(1.0)),
    )
    return Program([(x, value)], [a, b], tf.reduce_sum(a) + tf.reduce_sum(b * b), [x])


def folded(tf, cells):
    x, value = _fed(tf, None)
    outputs = [
        tf.foldl(lambda a, e: a * 2 + e * e, x),
        tf.foldr(lambda a, e: a * 2 + e * e, x),
        tf.foldl(lambda a, e: a * e, x, initializer=10.0),
        tf.foldr(lambda a, e: a / 2 + e, x, initializer=tf.constant(3.0)),
    ]
    return Program([(x, value)], outputs, tf.add_n(outputs), [x])


def written(tf, cells):
    x, value = _fed(tf, 4, 2)
    rows = tf.TensorArray(tf.float32, 4, clear_after_read=False).unstack(x)

    def body(i, out):
        return i + 1, out.write(i, rows.read(3 - i) * tf.cast(i, tf.float32) + rows.read(0))

    _, out = tf.while_loop(lambda i, _: i < 4, body, [0, tf.TensorArray(tf.float32, 4, clear_after_read=False)])
    outputs = [out.stack(), out.gather([2, 0]), out.read(1)]
    return Program([(x, value)], outputs, sum(tf.reduce_sum(tf.square(o)) for o in outputs), [x])


def grown(tf, cells):
    x, value = _fed(tf, 2)
    count = tf.placeholder(tf.int32, [])
    array_ = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
    _, _, array_ = tf.while_loop(
        lambda i, *_: i < count, lambda i, h, a: (i + 1, h * x, a.write(i, h)), [0, x, array_]
    )  # fmt: skip
    found = array_.stack()
    return Program([(x, value), (count, np.int32(3))], [found, array_.size()], tf.reduce_sum(found), [x])


def scattered(tf, cells):
    x, value = _fed(tf, 3, 2)
    outputs = [
        tf.TensorArray(tf.float32, 4).scatter([3, 0, 2], x).write(1, x[0] * x[1]).stack(),
        tf.TensorArray(tf.float32, 2, infer_shape=False).split(x, [2, 1]).concat(),
    ]
    return Program([(x, value)], outputs, sum(tf.reduce_sum(o * o) for o in outputs), [x])


CASES = {
    "power": power,
    "network": network,
    "until_small": until_small,
    "no_iteration": no_iteration,
    "at_most": at_most,
    "growing": growing,
    "nested": nested,
    "in_a_nest": in_a_nest,
    "stopped": stopped,
    "chosen": chosen,
    "gathering": gathering,
    "mapped": mapped,
    "mapped_nest": mapped_nest,
    "mapped_ids": mapped_ids,
    "mapped_nothing": mapped_nothing,
    "scan": lambda tf, cells: scanned({}, tf, cells),
    "scan-start": lambda tf, cells: scanned({"start": True}, tf, cells),
    "scan-reverse": lambda tf, cells: scanned({"reverse": True}, tf, cells),
    "scan-start-reverse": lambda tf, cells: scanned({"start": True, "reverse": True}, tf, cells),
    "scan-nest": scanned_nest,
    "folded": folded,
    "written": written,
    "grown": grown,
    "scattered": scattered,
}
