"""Choices in the run; see value_cases."""

import numpy as np
from value_cases import Values, fed


def chosen(holds):
    """Give the case of two branches of which one is taken."""

    def case(tf):
        x, value = fed(tf, "x", 3, 2)
        flag, w = tf.placeholder(tf.bool, []), tf.Variable(np.full((2, 2), 0.5, np.float32))
        outside = tf.matmul(x, w)
        first, second = tf.cond(
            flag,
            lambda: [tf.tanh(outside) * x, tf.reduce_sum(w)],
            lambda: [tf.stop_gradient(x) * x, tf.reduce_sum(tf.matmul(outside, w))],
        )
        return Values({"first": first, "second": second}, [(x, value), (flag, holds)], [x, w], [w.initializer])

    return case


def changing(holds):
    """Give the case of branches that change a Variable; each run changes it once more."""

    def case(tf):
        flag, w = tf.placeholder(tf.bool, []), tf.Variable([1.0, 2.0], use_resource=False)
        with tf.control_dependencies([w.initializer]):
            start = tf.identity(3.0)

        def branch():
            with tf.control_dependencies([tf.assign_add(w, [start, start])]):
                return tf.identity(w) * 2

        y = tf.cond(flag, branch, lambda: w - 1)
        return Values({"y": y, "again": y}, [(flag, holds)], [], [w.initializer])

    return case


def cases(number):
    """Give the case of several conditions."""

    def case(tf):
        x = tf.placeholder(tf.float32, [])
        y = tf.case([(x < 0, lambda: -x * 3), (x < 10, lambda: x * x)], default=lambda: tf.sqrt(x))
        return Values({"y": y}, [(x, np.float32(number))], [x])

    return case


def nested(outer, inner):
    """Give the case of a choice within a choice."""

    def case(tf):
        x, value = fed(tf, "x", 3)
        a, b = tf.placeholder(tf.bool, []), tf.placeholder(tf.bool, [])
        y = tf.cond(a, lambda: tf.cond(b, lambda: x * x, lambda: tf.exp(x)) * x, lambda: x + 1)
        return Values({"y": y}, [(x, value), (a, outer), (b, inner)], [x])

    return case


CASES = {
    **{f"chosen {holds}": chosen(holds) for holds in (True, False)},
    **{f"changing {holds}": changing(holds) for holds in (True, False)},
    **{f"case {number}": cases(number) for number in (-2, 3, 20)},
    **{f"nested {outer} {inner}": nested(outer, inner) for outer in (True, False) for inner in (True, False)},
}
