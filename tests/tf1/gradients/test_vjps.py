"""VJPs and backward schedules give, to the last bit, what a trace of autograd gives."""

import numpy as np
import pytest
from evaluate import evaluate

import globalstep as gs
from globalstep.tf1 import losses
from globalstep.tf1.gradients.backward_schedule import schedule_of
from globalstep.tf1.gradients.gradients import gradients
from globalstep.tf1.graph.graph import Node
from globalstep.tf1.ops import constant_ops as c
from globalstep.tf1.ops import math_ops as m
from globalstep.tf1.ops.array_ops import expand_dims, reshape, squeeze, transpose
from globalstep.tf1.ops.clipping import clip_by_value
from globalstep.tf1.ops.conv_ops import conv2d, max_pool
from globalstep.tf1.ops.cross_entropy_ops import sigmoid_cross_entropy_with_logits, softmax_cross_entropy_with_logits_v2
from globalstep.tf1.ops.joining_ops import concat
from globalstep.tf1.ops.nn_ops import bias_add, dropout, l2_loss, relu, relu6, softmax
from globalstep.tf1.ops.product_ops import matmul
from globalstep.tf1.ops.reduction_ops import reduce_mean, reduce_sum

FLOATS = ("float16", "float32", "float64")


def traced(node):
    """Make a Gradients node forget its schedule and vjps."""
    node.attrs["schedule"] = None
    node.attrs["plan"].vjps = {}


def assert_alike(ys, xs, feeds, grad_ys=None):
    found = gradients(ys, xs, grad_ys)
    node = found[0].inputs[0]
    assert schedule_of(node) is not None
    assert all(covered in node.attrs["plan"].vjps for covered, inlets in node.attrs["plan"].flows.items() if inlets)
    schedule = node.attrs["schedule"]
    # What is fed could be covered, so `evaluate` takes the tape by itself.
    given = evaluate([source for source, _ in schedule.pairs], feeds)
    with np.errstate(all="ignore"):
        straight, _ = schedule.evaluate(given)
    node.attrs["schedule"] = None
    mixed = evaluate(found, feeds)
    traced(node)
    for one, two, three in zip(straight, mixed, evaluate(found, feeds), strict=True):
        for other in (two, three):
            assert (np.shape(one), one.dtype) == (np.shape(other), other.dtype)
            np.testing.assert_array_equal(one, other)
    return schedule


def numbers(dtype, shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(3, 4), (4,), (3, 1), (1, 4), (), (1, 1), (2, 3, 4)])
@pytest.mark.parametrize("function", [m.add, m.subtract, m.multiply, m.truediv])
def test_arithmetic_with_broadcasting(function, dtype, shape):
    x, y = c.placeholder(dtype, [3, 4]), c.placeholder(dtype, list(shape))
    feeds = {x: numbers(dtype, (3, 4)), y: numbers(dtype, shape, 1) + 3}
    assert_alike(function(x, y), [x, y], feeds)
    assert_alike(function(y, x), [x, y], feeds)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_sum_of_two_values(dtype):
    x, y = c.placeholder(dtype, [3, 4]), c.placeholder(dtype, [3, 4])
    feeds = {x: numbers(dtype, (3, 4)), y: numbers(dtype, (3, 4), 1)}
    assert_alike(m.add_n([x, y]), [x, y], feeds)
    assert_alike(m.add_n([m.add_n([m.square(x), y]), m.add_n([x, x])]), [x, y], feeds)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_sum_of_three_values(dtype):
    x, y = c.placeholder(dtype, [3, 4]), c.placeholder(dtype, [3, 4])
    feeds = {x: numbers(dtype, (3, 4)), y: numbers(dtype, (3, 4), 1)}
    assert_alike(m.add_n([x, y, m.square(y)]), [x, y], feeds, [c.constant(numbers(dtype, (3, 4), 2))])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "function",
    [
        *(m.square, m.sigmoid, m.tanh, m.exp, m.negative, m.log, m.sqrt, m.rsqrt),
        *(relu, relu6, softmax, lambda x: softmax(x, 0), l2_loss),
        *(
            lambda x: expand_dims(x, 1),
            lambda x: squeeze(expand_dims(x, 0), [0]),
            lambda x: squeeze(expand_dims(x, -1)),
        ),
    ],
)
def test_functions_of_one_value(function, dtype):
    x = c.placeholder(dtype, [5, 3])
    values = numbers(dtype, (5, 3))
    values[0] = 0, -0.0, np.inf
    made = function(x)
    assert_alike(made, [x], {x: values}, [c.constant(numbers(dtype, made.shape.as_list(), 2))])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(3, 4), (4,), (3, 1), ()])
@pytest.mark.parametrize("function", [m.maximum, m.minimum, m.squared_difference, m.pow])
def test_functions_of_two_values(function, shape, dtype):
    x, y = c.placeholder(dtype, [3, 4]), c.placeholder(dtype, list(shape))
    values = numbers(dtype, (3, 4))
    feeds = {x: values, y: np.zeros(shape, dtype) + values[0, 0]}
    for first, second in ((x, y), (y, x)):
        assert_alike(function(first, second), [x, y], feeds, [c.constant(numbers(dtype, (3, 4), 2))])


@pytest.mark.parametrize("dtype", FLOATS)
def test_values_between_two_bounds(dtype):
    x, low, high = c.placeholder(dtype, [3, 4]), c.placeholder(dtype, []), c.placeholder(dtype, [4])
    values = numbers(dtype, (3, 4))
    feeds = {x: values, low: values[1, 1], high: np.abs(values[0])}
    assert_alike(clip_by_value(x, low, high), [x, low, high], feeds, [c.constant(numbers(dtype, (3, 4), 2))])


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_values_that_are_joined(axis):
    x, y = c.placeholder("float32", [3, 4]), c.placeholder("float32", [3, 4])
    feeds = {x: numbers("float32", (3, 4)), y: numbers("float32", (3, 4), 1)}
    assert_alike(m.square(concat([x, y, m.tanh(x)], axis)), [x, y], feeds)


@pytest.mark.parametrize("dtype", FLOATS)
def test_quotients_or_zero(dtype):
    x, y = c.placeholder(dtype, [4]), c.placeholder(dtype, [4])
    for divisors in ([0, 2, -3, -0.0], [1, 2, -3, np.nan]):
        assert_alike(m.div_no_nan(x, y), [x, y], {x: numbers(dtype, 4), y: np.array(divisors, dtype)})


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(7, 100, 16), (300, 2), (1, 50, 3), (4, 9, 200), (3, 40, 1), (2, 3, 40, 5)])
@pytest.mark.parametrize("turned", [False, True])
def test_sums_over_each_axis_of_long_and_short_runs(shape, turned, dtype):
    x = c.placeholder(dtype, list(shape))
    values = numbers(dtype, shape)
    if turned:
        values = np.ascontiguousarray(values.T).T
    for axis in range(len(shape)):
        total = reduce_sum(x, axis)
        assert_alike(total, [x], {x: values}, [c.constant(numbers(dtype, total.shape.as_list(), 2) * 0)])


@pytest.mark.parametrize("shape", [(700, 500), (60, 30, 20, 10), (300000,), (300000, 1), (1, 300000)])
def test_large_arrays_with_a_bias_and_without_what_is_negative(shape):
    x, bias = c.placeholder("float32", list(shape)), c.placeholder("float32", [shape[-1]])
    values = numbers("float32", shape)
    values[0], values[-1] = 0, np.inf
    made = relu(m.add(m.multiply(x, bias), bias))
    feeds = {x: values, bias: numbers("float32", shape[-1:], 1)}
    assert_alike(made, [x, bias], feeds, [c.constant(numbers("float32", shape, 2))])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, 0, -1, [0, 2], [1]])
@pytest.mark.parametrize("function", [reduce_sum, reduce_mean])
def test_sums(function, axis, keepdims, dtype):
    x = c.placeholder(dtype, [2, 3, 4])
    assert_alike(m.square(function(x, axis, keepdims)), [x], {x: numbers(dtype, (2, 3, 4))})


@pytest.mark.parametrize("shapes", [((3, 4), (4, 5)), ((1, 4), (4, 1)), ((3, 1), (1, 5))])
def test_products_of_matrices(shapes):
    x, y = (c.placeholder("float32", list(shape)) for shape in shapes)
    feeds = {x: numbers("float32", shapes[0]), y: numbers("float32", shapes[1])}
    assert_alike(m.square(matmul(x, y)), [x, y], feeds)
    for flip_a, flip_b in ((True, False), (False, True), (True, True)):
        one, other = transpose(x) if flip_a else x, transpose(y) if flip_b else y
        assert_alike(m.square(matmul(one, other, flip_a, flip_b)), [x, y], feeds)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("stride", [1, 2])
def test_images(padding, stride):
    images, kernels = c.placeholder("float32", [3, 7, 6, 2]), c.placeholder("float32", [3, 2, 2, 4])
    made = relu(conv2d(images, kernels, [1, stride, 1, 1], padding))
    made = reshape(max_pool(made, [1, 2, 3, 1], [1, 2, stride, 1], padding), [3, -1])
    feeds = {images: numbers("float32", (3, 7, 6, 2)), kernels: numbers("float32", (3, 2, 2, 4), 1)}
    assert_alike(m.square(transpose(made)), [images, kernels], feeds)


@pytest.mark.parametrize("perm", [None, [2, 0, 1]])
def test_an_order_of_dimensions(perm):
    x = c.placeholder("float32", [2, 3, 4])
    assert_alike(m.square(transpose(x, perm)), [x], {x: numbers("float32", (2, 3, 4))})


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_logistic_loss(dtype):
    scores, labels = c.placeholder(dtype, [3, 4]), c.placeholder(dtype, [3, 4])
    feeds = {scores: numbers(dtype, (3, 4)) * 9, labels: numbers(dtype, (3, 4), 1)}
    assert_alike(
        reduce_mean(sigmoid_cross_entropy_with_logits(labels=labels, logits=scores)), [scores, labels], feeds
    )  # fmt: skip


def test_rows_of_tables():
    table, other = gs.Variable(numbers("float32", (9, 4))), gs.Variable(numbers("float32", (9, 4), 1))
    ids, weights = c.placeholder("int64", [3, 2]), c.placeholder("float32", [3, 2, 4])
    rows = gs.nn.embedding_lookup(table, ids) * weights + gs.nn.embedding_lookup(other, ids)
    loss = reduce_sum(m.square(rows)) + reduce_sum(m.tanh(gs.nn.embedding_lookup(table, [7, 7, 1])))
    first, second, third = gradients(loss, [table, other, weights])
    node = third.inputs[0]
    assert schedule_of(node) is not None
    fetches = [first.values, first.indices, second.values, second.indices, third]
    with gs.Session() as session:
        session.run(gs.global_variables_initializer())
        feeds = {ids: [[1, 8], [0, 1], [5, 5]], weights: numbers("float32", (3, 2, 4), 2)}
        straight = session.run(fetches, feeds)
        traced(node)
    with gs.Session(graph=node.graph) as session:
        session.run(gs.global_variables_initializer())
        for one, two in zip(straight, session.run(fetches, feeds), strict=True):
            assert one.dtype == two.dtype
            np.testing.assert_array_equal(one, two)
    assert straight[1].tolist() == [1, 8, 0, 1, 5, 5, 7, 7, 1]


def network(loss_of):
    """The digits model, with placeholders for its Variables."""
    images = c.placeholder("float32", [8, 6])
    shapes = ([6, 5], [5], [5, 4], [4])
    params = [c.placeholder("float32", shape) for shape in shapes]
    hidden = relu(matmul(images, params[0]) + params[1])
    scores = bias_add(matmul(hidden, params[2]), params[3])
    feeds = {node: numbers("float32", node.shape.as_list(), at) for at, node in enumerate((images, *params))}
    return loss_of(scores), params, feeds


def test_a_classifier_and_weights_that_are_used_often():
    labels = np.arange(8) % 4

    def loss_of(scores):
        loss = losses.sparse_softmax_cross_entropy(c.constant(labels, "int64"), scores)
        # Terms of one gradient are added in the tape's order: three of them come from the scores.
        return loss + reduce_sum(m.tanh(scores)) * 0.1 + reduce_mean(scores * scores)

    loss, params, feeds = network(loss_of)
    assert_alike(loss, params, feeds)


def test_cross_entropies():
    classes = np.random.default_rng(3).dirichlet(np.ones(4), 8).astype(np.float32)
    loss, params, feeds = network(
        lambda scores: reduce_mean(softmax_cross_entropy_with_logits_v2(labels=c.constant(classes), logits=scores))
    )
    assert_alike(loss, params, feeds)
    scores, labels = c.placeholder("float64", [3, 4]), c.placeholder("float64", [3, 4])
    values = {scores: numbers("float64", (3, 4)), labels: classes[:3].astype(np.float64)}
    assert_alike(softmax_cross_entropy_with_logits_v2(labels=labels, logits=scores), [scores, labels], values)


def test_a_gradient_of_something_in_the_middle_and_several_values():
    x = c.placeholder("float32", [3])
    y = x * x
    z = m.tanh(y) * y
    found = [x, y, z]
    weights = [None, c.constant(numbers("float32", 3, 5))]
    assert_alike([z, y], found, {x: numbers("float32", 3)}, weights)


def test_a_gradient_of_a_gradient_is_traced_and_right():
    x = c.placeholder("float64", [3])
    (first,) = gradients(reduce_sum(x * x * x), x)
    (second,) = gradients(first, x)
    np.testing.assert_allclose(evaluate(second, {x: [1.0, 2.0, 3.0]}), [6, 12, 18])


def traced_alike(build):
    """What a graph gives in two runs, by its schedule and by the tape; each is built anew, so that both draw alike."""
    found = []
    for by_tape in (False, True):
        with gs.Graph().as_default():
            ys, xs, feeds = build()
            results = gradients(ys, xs)
            node = results[0].inputs[0]
            schedule = schedule_of(node)
            if by_tape:
                traced(node)
            with gs.Session() as session:
                found.append([session.run([ys, *results], feeds) for _ in range(2)])
    for one, other in zip(*found, strict=True):
        for straight, by_tape in zip(one, other, strict=True):
            np.testing.assert_array_equal(straight, by_tape)
    return schedule, found[0]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: matmul(reshape(x, [2, 2, 3]), reshape(x, [2, 3, 2])),
        lambda x: m.sin(x * 2.0),
        lambda x: m.abs(x) * gs.reduce_max(x, 1, keepdims=True),
        lambda x: x[1:, :2],
        lambda x: gs.where(m.greater(x, 0.0), x, m.sin(x)),
    ],
)
def test_what_has_no_vjp_gets_a_tape_of_its_own(function):
    def build():
        x = c.placeholder("float32", [4, 3])
        return m.tanh(function(m.square(x))), [x], {x: numbers("float32", (4, 3))}

    schedule, _ = traced_alike(build)
    assert schedule is not None


@pytest.mark.parametrize("noise_shape", [None, [4, 1]])
def test_what_draws_draws_once_in_a_step(noise_shape):
    def build():
        x = c.placeholder("float32", [4, 3])
        y = dropout(m.square(x), 0.5, noise_shape, seed=3)
        return m.tanh(y), [x], {x: numbers("float32", (4, 3))}

    schedule, ((first, _), (second, _)) = traced_alike(build)
    assert schedule is not None
    assert (first != second).any()


def test_what_was_drawn_before_a_tape_is_needed_is_not_drawn_again():
    def build():
        x = c.placeholder("float32", [4, 3])
        listed = Node("Listed", (dropout(m.square(x), 0.5, seed=3),), lambda value: [value], dtype="float32", shape=[])
        y = Node("First", (listed,), lambda values: values[0] * 2, dtype="float32", shape=[4, 3])
        return y, [x], {x: numbers("float32", (4, 3))}

    # There is a schedule, and a list is nothing that it could go on with.
    schedule, ((first, _), (second, _)) = traced_alike(build)
    assert schedule is not None
    assert (first != second).any()


def test_a_tuple_is_traced():
    x = c.placeholder("float32", [3])
    assert schedule_of(gradients(gs.unstack(x * 2.0)[0], x)[0].inputs[0]) is None
