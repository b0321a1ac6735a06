"""Functions that go by themselves; see value_cases."""

import functools

import numpy as np
from value_cases import Values, fed


def part(**options):
    """Give the case of strided_slice with masks, of numbers and of nodes."""

    def case(tf):
        x, value = fed(tf, "x", 4, 5, 6)
        begin, end = tf.placeholder(tf.int32, []), tf.placeholder(tf.int32, [2])
        return Values(
            {
                "numbers": tf.strided_slice(x, [1, 0, 2], [3, 4, 6], [1, 2, 1], **options),
                "nodes": tf.strided_slice(x, [begin, 0, 2], [3, end[0], end[1]], [1, 2, 1], **options),
            },
            [(x, value), (begin, np.int32(1)), (end, np.array([4, 6], np.int32))],
            [x],
        )

    return case


def slices(tf):
    x, value = fed(tf, "x", 4, 5, 6)
    i, j = tf.placeholder(tf.int32, []), tf.placeholder(tf.int32, [])
    outputs = {
        "range": x[i:j],
        "index": x[:, i],
        "from the end": x[..., -j:],
        "new axis": x[i, tf.newaxis, ..., j],
        "new axis last": x[i:, 0, :, tf.newaxis],
        "step": x[::i],
    }
    return Values(outputs, [(x, value), (i, np.int32(1)), (j, np.int32(3))], [x])


def confusion(**options):
    """Give the case of a confusion matrix."""

    def case(tf):
        return {"matrix": tf.confusion_matrix([1, 2, 4, 2], [2, 2, 4, 1], **options)}

    return case


CASES = {
    "part": part(),
    **{
        f"part {name} {bits}": functools.partial(lambda tf, made: made(tf), made=part(**{name: bits}))
        for name, several in (
            ("begin_mask", (1, 4)),
            ("end_mask", (2, 5)),
            ("ellipsis_mask", (1, 2, 4)),
            ("new_axis_mask", (1, 2)),
            ("shrink_axis_mask", (1, 5)),
        )
        for bits in several
    },
    "slices": slices,
    "confusion": confusion(),
    "confusion of seven": confusion(num_classes=7),
    "confusion weighted": confusion(weights=[0.5, 2.0, 1.0, 3.0], dtype="float32"),
}
