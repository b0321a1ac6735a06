"""Changes of elements of Variables, one after another; see value_cases."""

import numpy as np
from value_cases import Values, array


def case(op, indices, updates, *shape, dtype=np.float32, times=2):
    """Give the case of an op on one Variable, run several times."""

    def build(tf):
        variable = tf.Variable(array("variable", *shape, dtype=dtype), name="w", use_resource=False)
        at = tf.placeholder(tf.int32, np.shape(indices))
        by = tf.placeholder(tf.as_dtype(np.dtype(dtype).name), np.shape(updates))
        feeds = [(at, np.array(indices, np.int32)), (by, np.array(updates, dtype))]
        made = getattr(tf, op)(variable, at, by)
        outputs = {f"run {number}": tf.identity(made) for number in range(times)}
        return Values({**outputs, "after": variable}, feeds, first=[variable.initializer])

    return build


ROWS = ([[2], [0]], [[1, 2, 3], [4, 5, 6]], 4, 3)
ELEMENTS = ([[2, 1], [0, 0], [0, 2]], [10, 20, 30], 4, 3)
PAIRS = ([[[2, 1], [0, 0]], [[1, 0], [0, 2]]], [[[1, 2], [3, 4]], [[5, 6], [7, 8]]], 4, 3, 2)
TWICE = ([[2, 1], [2, 1], [0, 2]], [10, 20, 30], 4, 3)
VECTOR = ([[3], [1]], [10, 20], 5)

CASES = {
    **{
        f"{op} of {name}": case(op, *what)
        for op in ("scatter_nd_add", "scatter_nd_sub", "scatter_nd_update")
        for name, what in {"rows": ROWS, "elements": ELEMENTS, "pairs": PAIRS, "a vector": VECTOR}.items()
    },
    "scatter_nd_add twice": case("scatter_nd_add", *TWICE),
    "scatter_nd_sub twice": case("scatter_nd_sub", *TWICE),
    "scatter_nd_update of integers": case("scatter_nd_update", *ELEMENTS, dtype=np.int32),
    **{
        f"{op} {name}": case(op, *what)
        for op in ("scatter_mul", "scatter_div", "scatter_min", "scatter_max")
        for name, what in {
            "of rows": ([2, 0], [[0.1, 2, 3], [0.4, 5, 0.6]], 4, 3),
            "twice": ([2, 0, 2], [[0.1, 2, 3], [0.4, 5, 0.6], [2, 2, 2]], 4, 3),
            "by a number": ([2, 0], 0.5, 4, 3),
        }.items()
    },
    "scatter_div of integers": case("scatter_div", [1, 1], [7, 3], 4, dtype=np.int32),
}
