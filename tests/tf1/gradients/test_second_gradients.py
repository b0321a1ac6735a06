"""Gradients of the ops that dense models do not use: of the first and the second order, beside differences."""

import numpy as np
import pytest
from second_gradients import check_second_gradients

import globalstep as gs

PLACES = [[0, 1], [2, 0], [1, 2]]


def sparse(values):
    return gs.SparseTensor(gs.constant(PLACES, gs.int64), values, [3, 4])


def looked_up(tables, **kwargs):
    ids = gs.SparseTensor(gs.constant([[0, 0], [0, 1], [1, 0]], gs.int64), gs.constant([2, 1, 2], gs.int64), [2, 2])
    return gs.nn.embedding_lookup_sparse(tables, ids, None, **kwargs)


def symmetric(x):
    return gs.matmul(x, x, transpose_b=True) + 3.0 * gs.eye(3, dtype=gs.float64)


CASES = {
    "conv2d_transpose": (
        lambda x, w: gs.nn.conv2d_transpose(x, w, [2, 5, 4, 2], [1, 2, 1, 1]), (2, 3, 4, 3), (2, 3, 2, 3)
    ),
    "depthwise": (lambda x, w: gs.nn.depthwise_conv2d(x, w, [1, 2, 2, 1], "SAME"), (2, 5, 4, 2), (3, 2, 2, 3)),
    "dilated": (lambda x, w: gs.nn.atrous_conv2d(x, w, 2, "VALID"), (1, 6, 5, 2), (2, 2, 2, 3)),
    "conv3d": (lambda x, w: gs.nn.conv3d(x, w, [1, 1, 2, 1, 1], "SAME"), (2, 3, 4, 3, 2), (2, 3, 2, 2, 3)),
    "conv3d_transpose": (
        lambda x, w: gs.nn.conv3d_transpose(x, w, [1, 3, 4, 3, 2], [1, 1, 2, 1, 1]), (1, 3, 2, 3, 3), (2, 2, 2, 2, 3)
    ),
    "max_pool3d": (lambda x: gs.nn.max_pool3d(x, [1, 2, 2, 2, 1], [1, 1, 2, 2, 1], "SAME"), (2, 3, 4, 3, 2)),
    "avg_pool3d": (lambda x: gs.nn.avg_pool3d(x, [1, 2, 2, 2, 1], [1, 1, 2, 2, 1], "SAME"), (2, 3, 4, 3, 2)),
    "lrn": (lambda x: gs.nn.lrn(x, 1, 1.0, 0.5, 0.75), (2, 2, 2, 4)),
    "lrn_root": (lambda x: gs.nn.lrn(x, 2), (2, 2, 2, 4)),
    "space_to_depth": (lambda x: gs.space_to_depth(x * x, 2), (1, 4, 4, 1)),
    "depth_to_space": (lambda x: gs.depth_to_space(x * x, 2), (1, 2, 2, 4)),
    "space_to_batch": (lambda x: gs.space_to_batch_nd(x * x, [2, 2], [[0, 1], [1, 0]]), (1, 3, 3, 2)),
    "batch_to_space": (lambda x: gs.batch_to_space_nd(x * x, [2, 2], [[0, 1], [1, 0]]), (4, 2, 2, 2)),
    "image_patches": (
        lambda x: gs.extract_image_patches(x * x, [1, 2, 2, 1], [1, 1, 2, 1], [1, 1, 1, 1], "SAME"), (1, 3, 4, 2)
    ),
    "sparse_matmul": (lambda v, d: gs.sparse_tensor_dense_matmul(sparse(v), d), (3,), (4, 2)),
    "sparse_matmul_adjoint": (
        lambda v, d: gs.sparse_tensor_dense_matmul(sparse(v), d, adjoint_a=True, adjoint_b=True), (3,), (2, 3)
    ),
    "sparse_reduce_sum": (lambda v: gs.sparse_reduce_sum(sparse(v * v), 1), (3,)),
    "sparse_add": (
        lambda v, w: gs.sparse_add(sparse(v), gs.sparse_retain(sparse(w), [True, False, True])).values, (3,), (3,)
    ),
    "sparse_dense_add": (lambda v, d: gs.sparse_add(sparse(v), d) ** 2, (3,), (3, 4)),
    "sparse_concat": (lambda v, w: gs.sparse_concat(1, [sparse(v * v), sparse(w)]).values, (3,), (3,)),
    "sparse_retain": (lambda v: gs.sparse_retain(sparse(v * v), [True, False, True]).values, (3,)),
    "sparse_to_dense": (lambda v: gs.sparse_tensor_to_dense(gs.sparse_reorder(sparse(v * v))), (3,)),
    "dense_from_places": (lambda v: gs.sparse_to_dense([3, 0, 1], [4], v * v, 0, False), (3,)),
    "dense_from_one": (lambda v: gs.sparse_to_dense([[0, 1], [1, 0]], [2, 3], v * v, 5.0), ()),
    "relu_of_a_leaf": (lambda x: gs.nn.relu(x), (3,)),
    "sparse_filled": (lambda v: gs.sparse_fill_empty_rows(sparse(v * v), 2.0)[0].values, (3,)),
    "lookup_in_parts": (lambda t, u: gs.nn.embedding_lookup([t * t, u], [0, 3, 1, 0]), (2, 3), (2, 3)),
    "lookup_clipped": (lambda t: gs.nn.embedding_lookup(t, [[0, 1], [1, 2]], max_norm=1.0), (3, 3)),
    "lookup_sum": (lambda t: looked_up(t * t, combiner="sum"), (3, 2)),
    "lookup_sqrtn": (lambda t: looked_up(t * t, combiner="sqrtn"), (3, 2)),
    "safe_lookup": (
        lambda t: gs.contrib.layers.safe_embedding_lookup_sparse(
            t * t, gs.SparseTensor(gs.constant([[0, 0], [2, 0]], gs.int64), gs.constant([1, 2], gs.int64), [3, 2])
        ), (3, 2),
    ),
    "segment_max": (lambda x: gs.segment_max(x * x, [0, 0, 2]), (3, 2)),
    "unsorted_mean": (lambda x: gs.unsorted_segment_mean(x * x, [1, -1, 1], 3), (3, 2)),
    "unsorted_sqrt_n": (lambda x: gs.unsorted_segment_sqrt_n(x * x, [1, -1, 1], 3), (3, 2)),
    "unsorted_min": (lambda x: gs.unsorted_segment_min(x * x, [1, 0, 1], 2), (3, 2)),
    "erf": (gs.erf, (4,)),
    "lgamma": (lambda x: gs.lgamma(x * x + 1.0), (4,)),
    "lbeta": (lambda x: gs.lbeta(x * x + 1.0), (2, 3)),
    "asinh": (gs.asinh, (4,)),
    "atanh": (lambda x: gs.atanh(gs.tanh(x)), (4,)),
    "sort": (lambda x: gs.sort(x * x, direction="DESCENDING"), (2, 4)),
    "cumprod": (lambda x: gs.cumprod(x, axis=1, exclusive=True), (2, 4)),
    "roll": (lambda x: gs.roll(x * x, 1, 0), (3, 2)),
    "repeat": (lambda x: gs.repeat(x * x, [1, 2], 0), (2, 3)),
    "reverse_sequence": (lambda x: gs.reverse_sequence(x * x, [2, 3], 1, 0), (2, 4)),
    "trace": (lambda x: gs.trace(x * x), (2, 3, 3)),
    "set_diag": (lambda x, d: gs.matrix_set_diag(x, d) ** 2, (2, 3, 4), (2, 3)),
    "band_part": (lambda x: gs.matrix_band_part(x * x, 1, 0), (3, 3)),
    "diag": (lambda x: gs.diag(x * x), (3,)),
    "inverse": (lambda x: gs.matrix_inverse(symmetric(x)), (3, 3)),
    "determinant": (lambda x: gs.matrix_determinant(symmetric(x)), (3, 3)),
    "cholesky": (lambda x: gs.cholesky(symmetric(x)), (3, 3)),
    "eigh": (lambda x: gs.abs(gs.concat([gs.expand_dims(e, -2) if e.shape.ndims == 1 else e
                              for e in gs.linalg.eigh(symmetric(x))], -2)), (3, 3)),
    "eigvalsh": (lambda x: gs.linalg.eigvalsh(symmetric(x)), (3, 3)),
    "ensure_shape": (lambda x: gs.ensure_shape(x * x, [None, 2]), (3, 2)),
    "solve": (lambda x, r: gs.matrix_solve(symmetric(x), r), (3, 3), (3, 2)),
    "cross": (gs.cross, (2, 3), (2, 3)),
    "einsum": (lambda x, y: gs.einsum("bij,jk->bk", x, y), (2, 3, 4), (4, 2)),
    "reduce_std": (lambda x: gs.math.reduce_std(x, 1), (2, 4)),
    "global_norm": (lambda x, y: gs.global_norm([x, y]), (3,), (2, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_both_gradients_agree_with_differences(name):
    build, *shapes = CASES[name]
    random = np.random.default_rng(3)
    nodes = [gs.placeholder(gs.float64, shape) for shape in shapes]
    check_second_gradients(build, nodes, [random.uniform(0.2, 1.2, shape) for shape in shapes])
