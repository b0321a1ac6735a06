"""What is covered: each function of the dense and embedding models, against numpy.

For every case: value and dtype in float32, static shape (known, and with an unknown first dimension), the
gradient in float64 against finite differences, and that a float32 gradient is float32 all the way.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from evaluate import evaluate
from second_gradients import check_second_gradients

from globalstep import contrib, nn
from globalstep.tf1.gradients.gradients import gradients
from globalstep.tf1.graph.graph import closure_of
from globalstep.tf1.ops import array_ops as a
from globalstep.tf1.ops import constant_ops as c
from globalstep.tf1.ops import indexing_ops as ix
from globalstep.tf1.ops import joining_ops as j
from globalstep.tf1.ops import math_ops as m
from globalstep.tf1.ops import partition_ops as pt
from globalstep.tf1.ops import product_ops as pr
from globalstep.tf1.ops import reduction_ops as r
from globalstep.tf1.ops import segment_ops as sg
from globalstep.tf1.ops.clipping import clip_by_average_norm, clip_by_norm, clip_by_value


@dataclass
class Case:
    """One way to call a function."""

    name: str
    build: object
    reference: object
    shapes: tuple
    low: float = -2.0
    high: float = 2.0
    gradient: bool = True
    unknown_rows: bool = True  # whether it can be built with an unknown first dimension


def softmax(x, axis=-1):
    powers = np.exp(x - x.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


IDS = np.array([[2, 0], [2, 3]])
LABELS = np.array([1, 0, 2])
TRUTH = np.array([[True, False, True], [False, True, True]])
HOT = np.eye(3)[LABELS]


def unary(name, build, reference, low=-2.0, high=2.0, gradient=True):
    return Case(name, build, reference, ((2, 3),), low, high, gradient)


def binary(name, build, reference, low=-2.0, high=2.0, gradient=True):
    return [
        Case(name, build, reference, ((2, 3), (2, 3)), low, high, gradient),
        Case(f"{name}_broadcast", build, reference, ((2, 3), (3,)), low, high, gradient),
        Case(f"{name}_broadcast_left", build, reference, ((1,), (2, 3)), low, high, gradient),
    ]


CASES = [
    unary("abs", m.abs, np.abs),
    unary("acos", m.acos, np.arccos, -0.9, 0.9),
    unary("asin", m.asin, np.arcsin, -0.9, 0.9),
    unary("atan", m.atan, np.arctan),
    unary("ceil", m.ceil, np.ceil, gradient=False),
    unary("cos", m.cos, np.cos),
    unary("cosh", m.cosh, np.cosh),
    unary("exp", m.exp, np.exp),
    unary("expm1", m.expm1, np.expm1),
    unary("floor", m.floor, np.floor, gradient=False),
    unary("log", m.log, np.log, 0.1),
    unary("log1p", m.log1p, np.log1p, -0.5),
    unary("log_sigmoid", m.log_sigmoid, lambda x: -np.log1p(np.exp(-x))),
    unary("negative", m.negative, np.negative),
    unary("reciprocal", m.reciprocal, np.reciprocal, 0.5),
    unary("rint", m.rint, np.rint, gradient=False),
    unary("round", m.round, np.round, gradient=False),
    unary("rsqrt", m.rsqrt, lambda x: 1 / np.sqrt(x), 0.1),
    unary("sigmoid", m.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    unary("sign", m.sign, np.sign, gradient=False),
    unary("sin", m.sin, np.sin),
    unary("sinh", m.sinh, np.sinh),
    unary("sqrt", m.sqrt, np.sqrt, 0.1),
    unary("square", m.square, np.square),
    unary("tan", m.tan, np.tan, -1, 1),
    unary("tanh", m.tanh, np.tanh),
    unary("cast", lambda x: m.cast(m.cast(x, "float64"), x.dtype), lambda x: x),
    unary("neg operator", lambda x: -x, np.negative),
    unary("abs operator", abs, np.abs),
    unary("weak scalars", lambda x: (2 * x + 1.5) / 4 - 3, lambda x: (2 * x + 1.5) / 4 - 3),
    unary("weak scalars on the left", lambda x: 1 - 2 / x, lambda x: 1 - 2 / x, 0.5),
    unary("pow of a number", lambda x: x**3, lambda x: x**3),
    unary("number to the power", lambda x: 2.0**x, lambda x: 2.0**x),
    *binary("add", m.add, np.add),
    *binary("subtract", m.subtract, np.subtract),
    *binary("multiply", m.multiply, np.multiply),
    *binary("divide", m.divide, np.divide, 0.5),
    *binary("truediv", m.truediv, np.divide, 0.5),
    *binary("div", m.div, np.divide, 0.5),
    *binary("realdiv", m.realdiv, np.divide, 0.5),
    *binary("div_no_nan", m.div_no_nan, np.divide, 0.5),
    *binary("floordiv", m.floordiv, np.floor_divide, 0.5, gradient=False),
    *binary("floormod", m.floormod, np.mod, 0.5, 0.9),
    *binary("mod", m.mod, np.mod, 0.5, 0.9),
    *binary("truncatemod", m.truncatemod, np.fmod, 0.5, gradient=False),
    *binary("pow", m.pow, np.power, 0.3),
    *binary("maximum", m.maximum, np.maximum),
    *binary("minimum", m.minimum, np.minimum),
    *binary("squared_difference", m.squared_difference, lambda x, y: (x - y) ** 2),
    *binary("atan2", m.atan2, np.arctan2, 0.3),
    *binary("add operator", lambda x, y: x + y, np.add),
    *binary("sub operator", lambda x, y: x - y, np.subtract),
    *binary("mul operator", lambda x, y: x * y, np.multiply),
    *binary("div operator", lambda x, y: x / y, np.divide, 0.5),
    *binary("floordiv operator", lambda x, y: x // y, np.floor_divide, 0.5, gradient=False),
    *binary("mod operator", lambda x, y: x % y, np.mod, 0.5, 0.9),
    *binary("pow operator", lambda x, y: x**y, np.power, 0.3),
    Case("matmul", pr.matmul, np.matmul, ((2, 3), (3, 4))),
    Case("matmul operator", lambda x, y: x @ y, np.matmul, ((2, 3), (3, 4))),
    Case("matmul_ta", lambda x, y: pr.matmul(x, y, transpose_a=True), lambda x, y: x.T @ y, ((3, 2), (3, 4))),
    Case("matmul_tb", lambda x, y: pr.matmul(x, y, transpose_b=True), lambda x, y: x @ y.T, ((2, 3), (4, 3))),
    Case("matmul_batch", pr.matmul, np.matmul, ((5, 2, 3), (5, 3, 4))),
    Case("tensordot", lambda x, y: pr.tensordot(x, y, 1), lambda x, y: np.tensordot(x, y, 1), ((2, 3), (3, 4))),
    Case(
        "tensordot_axes",
        lambda x, y: pr.tensordot(x, y, [[0, 1], [1, 0]]),
        lambda x, y: np.tensordot(x, y, [[0, 1], [1, 0]]),
        ((2, 3, 4), (3, 2, 5)),
    ),
    Case(
        "einsum", lambda x, y: pr.einsum("ij,kj->ik", x, y), lambda x, y: np.einsum("ij,kj->ik", x, y), ((2, 3), (4, 3))
    ),
    Case("add_n", lambda *v: m.add_n(v), lambda *v: sum(v), ((2, 3), (2, 3), (2, 3))),
    unary("reduce_sum", r.reduce_sum, np.sum),
    unary("reduce_sum_axis", lambda x: r.reduce_sum(x, 1), lambda x: x.sum(1)),
    unary("reduce_sum_axes", lambda x: r.reduce_sum(x, [0, 1], keepdims=True), lambda x: x.sum(keepdims=True)),
    unary("reduce_sum_negative", lambda x: r.reduce_sum(x, -1, keep_dims=True), lambda x: x.sum(-1, keepdims=True)),
    unary("reduce_sum_older", lambda x: r.reduce_sum(x, reduction_indices=[0]), lambda x: x.sum(0)),
    unary("reduce_mean", r.reduce_mean, np.mean),
    unary("reduce_mean_axis", lambda x: r.reduce_mean(x, 0), lambda x: x.mean(0)),
    unary("reduce_max", r.reduce_max, np.max),
    unary("reduce_max_axis", lambda x: r.reduce_max(x, 1), lambda x: x.max(1)),
    unary("reduce_min", lambda x: r.reduce_min(x, 0), lambda x: x.min(0)),
    unary("reduce_prod", lambda x: r.reduce_prod(x, 1), lambda x: x.prod(1)),
    unary("reduce_logsumexp", lambda x: r.reduce_logsumexp(x, 1), lambda x: np.log(np.exp(x).sum(1))),
    unary("norm", r.norm, lambda x: np.sqrt((x * x).sum())),
    unary("norm_1", lambda x: r.norm(x, 1, axis=1), lambda x: np.abs(x).sum(1)),
    unary("norm_3", lambda x: r.norm(x, 3), lambda x: (np.abs(x) ** 3).sum() ** (1 / 3)),
    unary("norm_matrix_1", lambda x: r.norm(x, 1, [0, 1]), lambda x: np.abs(x).sum(0).max()),
    unary("norm_matrix_inf", lambda x: r.norm(x, np.inf, (-2, -1)), lambda x: np.abs(x).sum(1).max()),
    unary("cumsum", r.cumsum, lambda x: x.cumsum(0)),
    unary("cumsum_axis", lambda x: r.cumsum(x, -1), lambda x: x.cumsum(1)),
    unary("cumsum_exclusive", lambda x: r.cumsum(x, 1, exclusive=True), lambda x: x.cumsum(1) - x),
    unary("cumsum_reverse", lambda x: r.cumsum(x, 1, reverse=True), lambda x: x[:, ::-1].cumsum(1)[:, ::-1]),
    Case(
        "segment_sum",
        lambda x: sg.segment_sum(x, [0, 0, 2]),
        lambda x: np.stack([x[0] + x[1], 0 * x[0], x[2]]),
        ((3, 2),),
    ),
    Case(
        "segment_mean",
        lambda x: sg.segment_mean(x, [0, 0, 1]),
        lambda x: np.stack([(x[0] + x[1]) / 2, x[2]]),
        ((3, 2),),
    ),
    Case(
        "segment_max",
        lambda x: sg.segment_max(x, [0, 0, 1]),
        lambda x: np.stack([np.maximum(x[0], x[1]), x[2]]),
        ((3, 2),),
    ),
    Case(
        "unsorted_segment_sum",
        lambda x: sg.unsorted_segment_sum(x, [2, -1, 2], 4),
        lambda x: np.stack([0 * x[0], 0 * x[0], x[0] + x[2], 0 * x[0]]),
        ((3, 2),),
    ),
    unary("identity", a.identity, lambda x: x),
    unary("stop_gradient", a.stop_gradient, lambda x: x, gradient=False),
    unary("check_numerics", lambda x: a.check_numerics(x, "bad"), lambda x: x),
    unary("reshape", lambda x: a.reshape(x, [3, -1]), lambda x: x.reshape(3, -1)),
    unary("reshape_node", lambda x: a.reshape(x, [a.shape(x)[0], 3, 1]), lambda x: x.reshape(2, 3, 1)),
    unary("transpose", a.transpose, np.transpose),
    Case("transpose_perm", lambda x: a.transpose(x, [1, 2, 0]), lambda x: x.transpose(1, 2, 0), ((2, 3, 4),)),
    unary("matrix_transpose", a.matrix_transpose, np.transpose),
    unary("expand_dims", lambda x: a.expand_dims(x, 1), lambda x: x[:, None]),
    unary("expand_dims_last", lambda x: a.expand_dims(x, -1), lambda x: x[..., None]),
    Case("squeeze", lambda x: a.squeeze(x, [1]), lambda x: x.squeeze(1), ((2, 1, 3),)),
    Case("concat", lambda x, y: j.concat([x, y], 0), lambda x, y: np.concatenate([x, y]), ((2, 3), (4, 3))),
    Case("concat_1", lambda x, y: j.concat([x, y], -1), lambda x, y: np.concatenate([x, y], 1), ((2, 3), (2, 1))),
    Case("stack", lambda x, y: j.stack([x, y]), lambda x, y: np.stack([x, y]), ((2, 3), (2, 3))),
    Case("stack_1", lambda x, y: j.stack([x, y], axis=-1), lambda x, y: np.stack([x, y], -1), ((2, 3), (2, 3))),
    unary("unstack", lambda x: m.subtract(*j.unstack(x, axis=1)[:2]), lambda x: x[:, 0] - x[:, 1]),
    unary("split", lambda x: j.split(x, 3, 1)[2], lambda x: x[:, 2:]),
    unary("split_sizes", lambda x: j.split(x, [1, -1], 1)[1], lambda x: x[:, 1:]),
    unary("tile", lambda x: j.tile(x, [2, 3]), lambda x: np.tile(x, [2, 3])),
    unary("pad", lambda x: j.pad(x, [[1, 0], [2, 1]]), lambda x: np.pad(x, [[1, 0], [2, 1]])),
    unary(
        "pad_reflect", lambda x: j.pad(x, [[0, 0], [1, 2]], "REFLECT"), lambda x: np.pad(x, [[0, 0], [1, 2]], "reflect")
    ),
    unary("reverse", lambda x: j.reverse(x, [1]), lambda x: x[:, ::-1]),
    Case(
        "broadcast_to",
        lambda x: a.broadcast_to(x, [4, 2, 3]),
        lambda x: np.broadcast_to(x, [4, 2, 3]),
        ((2, 3),),
        unknown_rows=False,
    ),
    unary("slice", lambda x: ix.slice(x, [0, 1], [1, -1]), lambda x: x[:1, 1:]),
    unary("strided_slice", lambda x: ix.strided_slice(x, [0, 0], [2, 3], [1, 2]), lambda x: x[:, ::2]),
    unary("getitem", lambda x: x[0], lambda x: x[0]),
    unary("getitem_mixed", lambda x: x[..., None, 1:], lambda x: x[..., None, 1:]),
    unary("getitem_node", lambda x: x[:, c.constant(1)], lambda x: x[:, 1]),
    Case("gather", lambda x: ix.gather(x, IDS), lambda x: x[IDS], ((4, 3),)),
    Case("gather_axis", lambda x: ix.gather(x, IDS, axis=1), lambda x: x[:, IDS], ((3, 4),)),
    Case(
        "gather_nd", lambda x: ix.gather_nd(x, [[0, 1], [1, 2], [0, 1]]), lambda x: x[[0, 1, 0], [1, 2, 1]], ((2, 3),)
    ),
    Case(
        "scatter_nd",
        lambda x: ix.scatter_nd([[4], [1], [4]], x, [5, 2]),
        lambda x: np.stack([0 * x[0], x[1], 0 * x[0], 0 * x[0], x[0] + x[2]]),
        ((3, 2),),
    ),
    Case("boolean_mask", lambda x: ix.boolean_mask(x, TRUTH), lambda x: x[TRUTH], ((2, 3),)),
    Case("boolean_mask_rows", lambda x: ix.boolean_mask(x, TRUTH[:, 0]), lambda x: x[TRUTH[:, 0]], ((2, 3),)),
    Case("where", lambda x, y: ix.where(TRUTH, x, y), lambda x, y: np.where(TRUTH, x, y), ((2, 3), (2, 3))),
    Case(
        "where_rows",
        lambda x, y: ix.where(TRUTH[:, 0], x, y),
        lambda x, y: np.where(TRUTH[:, :1], x, y),
        ((2, 3), (2, 3)),
    ),
    Case("dynamic_partition", lambda x: pt.dynamic_partition(x, [1, 0, 1], 2)[1], lambda x: x[[0, 2]], ((3, 2),)),
    Case(
        "dynamic_stitch",
        lambda x, y: pt.dynamic_stitch([[0, 2], [1]], [x, y]),
        lambda x, y: np.stack([x[0], y[0], x[1]]),
        ((2, 3), (1, 3)),
    ),
    unary("clip_by_value", lambda x: clip_by_value(x, -1, 1), lambda x: np.clip(x, -1, 1)),
    unary("clip_by_norm", lambda x: clip_by_norm(x, 1.5), lambda x: x * 1.5 / max(np.sqrt((x * x).sum()), 1.5)),
    unary(
        "clip_by_norm_axes",
        lambda x: clip_by_norm(x, 1.5, axes=[1]),
        lambda x: x * 1.5 / np.maximum(np.sqrt((x * x).sum(1, keepdims=True)), 1.5),
    ),
    unary(
        "clip_by_average_norm",
        lambda x: clip_by_average_norm(x, 0.1),
        lambda x: x * 0.1 * min(x.size / np.sqrt((x * x).sum()), 10),
    ),
    unary("nn.relu", nn.relu, lambda x: np.maximum(x, 0)),
    unary("nn.relu6", nn.relu6, lambda x: np.clip(x, 0, 6), -4, 9),
    unary("nn.crelu", nn.crelu, lambda x: np.maximum(np.concatenate([x, -x], 1), 0)),
    unary("nn.elu", nn.elu, lambda x: np.where(x > 0, x, np.expm1(x))),
    unary("nn.selu", nn.selu, lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x))),
    unary("nn.leaky_relu", nn.leaky_relu, lambda x: np.where(x > 0, x, 0.2 * x)),
    unary("nn.softplus", nn.softplus, lambda x: np.log1p(np.exp(x))),
    unary("nn.softsign", nn.softsign, lambda x: x / (1 + np.abs(x))),
    unary("nn.swish", nn.swish, lambda x: x / (1 + np.exp(-x))),
    unary("nn.softmax", nn.softmax, softmax),
    unary("nn.softmax_axis", lambda x: nn.softmax(x, axis=0), lambda x: softmax(x, 0)),
    unary("nn.log_softmax", nn.log_softmax, lambda x: np.log(softmax(x))),
    unary("nn.l2_loss", nn.l2_loss, lambda x: (x * x).sum() / 2),
    unary("nn.l2_normalize", lambda x: nn.l2_normalize(x, 1), lambda x: x / np.sqrt((x * x).sum(1, keepdims=True))),
    unary("nn.zero_fraction", lambda x: nn.zero_fraction(nn.relu(x)), lambda x: np.mean(x <= 0), gradient=False),
    unary("nn.moments_mean", lambda x: nn.moments(x, [0])[0], lambda x: x.mean(0)),
    unary("nn.moments_variance", lambda x: nn.moments(x, [0])[1], lambda x: x.var(0)),
    unary("nn.top_k", lambda x: nn.top_k(x, 2)[0], lambda x: -np.sort(-x, axis=1)[:, :2]),
    unary("nn.embedding_lookup", lambda x: nn.embedding_lookup(x, [1, 0, 1]), lambda x: x[[1, 0, 1]]),
    Case("nn.bias_add", nn.bias_add, np.add, ((2, 3), (3,))),
    Case("nn.xw_plus_b", nn.xw_plus_b, lambda x, w, b: x @ w + b, ((2, 3), (3, 4), (4,))),
    Case("nn.relu_layer", nn.relu_layer, lambda x, w, b: np.maximum(x @ w + b, 0), ((2, 3), (3, 4), (4,))),
    Case(
        "nn.batch_normalization",
        lambda x, o, s: nn.batch_normalization(x, [0.1, 0.2, 0.3], [1.0, 2.0, 3.0], o, s, 0.1),
        lambda x, o, s: (x - [0.1, 0.2, 0.3]) / np.sqrt(np.array([1.0, 2.0, 3.0]) + 0.1) * s + o,
        ((2, 3), (3,), (3,)),
    ),
    Case(
        "nn.fused_batch_norm",
        lambda x, s, o: nn.fused_batch_norm(x, s, o)[0],
        lambda x, s, o: (x - x.mean((0, 1, 2))) / np.sqrt(x.var((0, 1, 2)) + 0.001) * s + o,
        ((2, 3, 3, 2), (2,), (2,)),
    ),
    Case(
        "nn.softmax_cross_entropy_with_logits_v2",
        lambda x, y: nn.softmax_cross_entropy_with_logits_v2(labels=nn.softmax(y), logits=x),
        lambda x, y: -(softmax(y) * np.log(softmax(x))).sum(1),
        ((3, 4), (3, 4)),
    ),
    Case(
        "nn.softmax_cross_entropy_with_logits",
        lambda x: nn.softmax_cross_entropy_with_logits(labels=HOT, logits=x),
        lambda x: -np.log(softmax(x))[[0, 1, 2], LABELS],
        ((3, 3),),
    ),
    Case(
        "nn.sparse_softmax_cross_entropy_with_logits",
        lambda x: nn.sparse_softmax_cross_entropy_with_logits(labels=LABELS, logits=x),
        lambda x: -np.log(softmax(x))[[0, 1, 2], LABELS],
        ((3, 4),),
    ),
    Case(
        "contrib.nn.deprecated_flipped_softmax_cross_entropy_with_logits",
        lambda x: contrib.nn.deprecated_flipped_softmax_cross_entropy_with_logits(x, HOT),
        lambda x: -np.log(softmax(x))[[0, 1, 2], LABELS],
        ((3, 3),),
    ),
    Case(
        "nn.sigmoid_cross_entropy_with_logits",
        lambda x, z: nn.sigmoid_cross_entropy_with_logits(labels=z, logits=x),
        lambda x, z: -z * np.log(1 / (1 + np.exp(-x))) - (1 - z) * np.log(1 / (1 + np.exp(x))),
        ((2, 3), (2, 3)),
    ),
    Case(
        "nn.weighted_cross_entropy_with_logits",
        lambda x, z: nn.weighted_cross_entropy_with_logits(z, x, 3.0),
        lambda x, z: -3 * z * np.log(1 / (1 + np.exp(-x))) - (1 - z) * np.log(1 / (1 + np.exp(x))),
        ((2, 3), (2, 3)),
    ),
    Case(
        "nn.log_poisson_loss", lambda x, z: nn.log_poisson_loss(z, x), lambda x, z: np.exp(x) - x * z, ((2, 3), (2, 3))
    ),
    Case(
        "nn.conv2d_valid",
        lambda x, w: nn.conv2d(x, w, [1, 2, 1, 1], "VALID"),
        lambda x, w: convolve(x, w, (2, 1)),
        ((2, 5, 4, 2), (3, 2, 2, 3)),
        unknown_rows=False,
    ),
    Case(
        "nn.conv2d_same",
        lambda x, w: nn.conv2d(x, w, [1, 1, 1, 1], "SAME"),
        lambda x, w: convolve(np.pad(x, [(0, 0), (1, 1), (0, 1), (0, 0)]), w, (1, 1)),
        ((1, 4, 4, 2), (3, 2, 2, 2)),
        unknown_rows=False,
    ),
    Case(
        "nn.max_pool",
        lambda x: nn.max_pool(x, [1, 2, 2, 1], [1, 2, 2, 1], "VALID"),
        lambda x: x.reshape(2, 2, 2, 2, 2, 3).max((2, 4)),
        ((2, 4, 4, 3),),
    ),
    Case(
        "nn.avg_pool",
        lambda x: nn.avg_pool(x, [1, 2, 2, 1], [1, 2, 2, 1], "SAME"),
        lambda x: x.reshape(2, 2, 2, 2, 2, 3).mean((2, 4)),
        ((2, 4, 4, 3),),
    ),
]


def convolve(x, w, strides):
    rows, columns = w.shape[:2]
    out = [
        [
            np.einsum("nhwc,hwco->no", x[:, i : i + rows, j : j + columns], w)
            for j in range(0, x.shape[2] - columns + 1, strides[1])
        ]
        for i in range(0, x.shape[1] - rows + 1, strides[0])
    ]
    return np.moveaxis(np.array(out), 2, 0)


def inputs_of(case, dtype):
    random = np.random.default_rng(7)
    return [random.uniform(case.low, case.high, shape).astype(dtype) for shape in case.shapes]


def placeholders(case, dtype, unknown_rows=False):
    return [
        c.placeholder(dtype, [None, *shape[1:]] if unknown_rows and len(shape) > 1 else shape) for shape in case.shapes
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_value_dtype_and_static_shape(case):
    nodes, values = placeholders(case, "float32"), inputs_of(case, np.float32)
    result = case.build(*nodes)
    value = evaluate(result, dict(zip(nodes, values, strict=True)))
    expected = case.reference(*(v.astype(np.float64) for v in values))
    np.testing.assert_allclose(value, expected, rtol=2e-5, atol=2e-6)
    assert value.dtype == np.float32 == result.dtype.as_numpy_dtype
    assert result.shape.is_compatible_with(value.shape)
    assert result.shape.ndims == value.ndim


@pytest.mark.parametrize("case", [c for c in CASES if c.unknown_rows], ids=lambda case: case.name)
def test_unknown_first_dimension(case):
    nodes, values = placeholders(case, "float32", unknown_rows=True), inputs_of(case, np.float32)
    result = case.build(*nodes)
    assert result.dtype.name == "float32"
    value = evaluate(result, dict(zip(nodes, values, strict=True)))
    assert result.shape.is_compatible_with(value.shape), (result.shape, value.shape)


@pytest.mark.parametrize("case", [c for c in CASES if c.gradient], ids=lambda case: case.name)
def test_gradient_agrees_with_finite_differences(case):
    nodes, values = placeholders(case, "float64"), inputs_of(case, np.float64)
    result = case.build(*nodes)
    feeds = dict(zip(nodes, values, strict=True))
    weights = np.random.default_rng(8).normal(size=np.shape(evaluate(result, feeds)))
    found = evaluate(gradients(result, nodes, [weights]), feeds)
    for node, value, slope in zip(nodes, values, found, strict=True):
        expected = np.zeros(value.shape)
        for place in np.ndindex(value.shape):
            sides = []
            for step in (1e-6, -1e-6):
                moved = value.copy()
                moved[place] += step
                sides.append((evaluate(result, {**feeds, node: moved}) * weights).sum())
            expected[place] = (sides[0] - sides[1]) / 2e-6
        assert slope.dtype == np.float64
        assert slope.shape == value.shape
        np.testing.assert_allclose(slope, expected, rtol=1e-5, atol=1e-7)


#: As in TensorFlow, the mean within a variance is a constant; so only its first gradient is right.
OF_VARIANCE = ("nn.moments_variance", "nn.fused_batch_norm")


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.gradient and c.name not in OF_VARIANCE], ids=lambda case: case.name
)
def test_gradients_of_gradients_agree_with_differences_along_a_line(case):
    check_second_gradients(case.build, placeholders(case, "float64"), inputs_of(case, np.float64))


@pytest.mark.parametrize("case", [c for c in CASES if c.gradient], ids=lambda case: case.name)
def test_float32_gradients_are_float32_all_the_way(case):
    nodes = placeholders(case, "float32")
    result = case.build(*nodes)
    start = len(result.graph.nodes)
    slopes = [slope for slope in gradients(result, nodes) if slope is not None]
    needed = closure_of(slopes, lambda node: node.inputs)
    made = [node for node in result.graph.nodes[start:] if node in needed and node.op_type != "Saved"]
    made = [*slopes, *(node for node in made if not node.attrs.get("tuple"))]
    found = evaluate(made, dict(zip(nodes, inputs_of(case, np.float32), strict=True)))
    assert {slope.dtype.name for slope in slopes} == {"float32"}
    assert all(value.dtype == node.dtype.as_numpy_dtype for node, value in zip(made, found, strict=True))


@pytest.mark.parametrize("case", [c for c in CASES if not c.gradient], ids=lambda case: case.name)
def test_what_has_no_slope_gives_none(case):
    nodes = placeholders(case, "float64")
    assert gradients(case.build(*nodes), nodes) == [None] * len(nodes)
