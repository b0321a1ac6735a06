"""Functions of sparse tensors; see value_cases."""

import numpy as np
from value_cases import Values, array, fed

PLACES = np.array([[0, 1], [0, 3], [2, 0], [2, 2], [4, 3]], np.int64)
SHAPE = [5, 4]


def _sparse(tf):
    values, given = fed(tf, "values", 5)
    return tf.SparseTensor(PLACES, values, SHAPE), values, given


def _parts(found):
    return {"indices": found.indices, "values": found.values, "dense_shape": found.dense_shape}


def one(build):
    """Give the case of a function of one sparse matrix."""

    def case(tf):
        sparse, values, given = _sparse(tf)
        found = build(tf, sparse)
        outputs = _parts(found) if isinstance(found, tf.SparseTensor) else {"found": found}
        return Values(outputs, [(values, given)], [values])

    return case


def product(adjoint_a, adjoint_b):
    """Give the case of a product with a dense matrix."""

    def case(tf):
        sparse, values, given = _sparse(tf)
        rows = 5 if adjoint_a else 4
        b, dense = fed(tf, "b", *((3, rows) if adjoint_b else (rows, 3)))
        y = tf.sparse_tensor_dense_matmul(sparse, b, adjoint_a, adjoint_b)
        return Values({"y": y}, [(values, given), (b, dense)], [values, b])

    return case


def unsorted(tf):
    sparse = tf.SparseTensor(PLACES[::-1].copy(), array("u", 5), SHAPE)
    return _parts(tf.sparse_reorder(sparse))


def sums(tf):
    sparse, values, given = _sparse(tf)
    other = tf.SparseTensor([[0, 1], [1, 1]], [-float(given[0]), 2.0], SHAPE)
    dense = tf.ones(SHAPE)
    found = tf.sparse_add(sparse, other, 0.5)
    return Values({**_parts(found), "dense": tf.sparse_add(sparse, dense)}, [(values, given)], [values])


def rows_filled(tf):
    sparse, values, given = _sparse(tf)
    found, bare = tf.sparse_fill_empty_rows(sparse, 7.0)
    return Values({**_parts(found), "bare": bare}, [(values, given)], [values])


def texts(tf):
    words = tf.string_split(["a b", "", "c"])
    found, bare = tf.sparse_fill_empty_rows(words, "none")
    return {**_parts(found), "bare": bare, "dense": tf.sparse_tensor_to_dense(words, default_value="-")}


def placeholder(tf):
    x = tf.sparse_placeholder(tf.float32, [None, 4])
    y = tf.sparse_tensor_dense_matmul(x, tf.constant(array("b", 4, 2)))
    return Values({"y": y}, [(x, (PLACES, array("v", 5), np.array(SHAPE, np.int64)))])


def safe_lookup(combiner, weighted, default):
    """Give the case of rows that have no ids, or invalid ones."""

    def case(tf):
        table, given = fed(tf, "table", 6, 3)
        ids = tf.SparseTensor([[0, 0], [0, 1], [1, 0], [3, 0], [3, 1]], tf.constant([1, 5, -1, 2, 2], tf.int64), [4, 2])
        weights = None
        if weighted:
            weights = tf.SparseTensor(ids.indices, tf.constant([0.5, 2.0, 1.0, 0.0, 3.0]), [4, 2])
        y = tf.nn.safe_embedding_lookup_sparse(table, ids, weights, combiner, default)
        return Values({"y": y}, [(table, given)], [table])

    return case


CASES = {
    **{f"product {a} {b}": product(a, b) for a in (False, True) for b in (False, True)},
    "sum of all": one(lambda tf, x: tf.sparse_reduce_sum(x)),
    "sum of rows": one(lambda tf, x: tf.sparse_reduce_sum(x, 1)),
    "sum of columns": one(lambda tf, x: tf.sparse_reduce_sum(x, [-2], keepdims=True)),
    "unsorted": unsorted,
    "retain": one(lambda tf, x: tf.sparse_retain(x, [True, False, True, True, False])),
    "reshape": one(lambda tf, x: tf.sparse_reshape(x, [2, -1, 5])),
    "transpose": one(lambda tf, x: tf.sparse_transpose(x)),
    "slice": one(lambda tf, x: tf.sparse_slice(x, [1, 0], [3, 3])),
    "concat": one(lambda tf, x: tf.sparse_concat(0, [x, x])),
    "concat of columns": one(lambda tf, x: tf.sparse_concat(1, [x, x])),
    "sums": sums,
    "rows filled": rows_filled,
    "texts": texts,
    "dense": one(lambda tf, x: tf.sparse_tensor_to_dense(x, default_value=2.0)),
    "indicator": lambda tf: {
        "found": tf.sparse_to_indicator(tf.SparseTensor([[0, 0], [0, 1], [2, 0]], [3, 1, 0], [3, 2]), 5)
    },
    "placeholder": placeholder,
    "safe mean": safe_lookup("mean", False, None),
    "safe weighted": safe_lookup("mean", True, None),
    "safe sum": safe_lookup("sum", True, 3),
    "safe sqrtn": safe_lookup("sqrtn", True, None),
}
