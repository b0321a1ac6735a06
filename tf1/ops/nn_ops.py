"""Layers of a neural network, element by element or row by row: activations, dropout, normalization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.tf1.execution import products
from globalstep.tf1.gradients.registry import composed, gradient_of
from globalstep.tf1.graph.callables import named
from globalstep.tf1.graph.graph import Node, as_node, tuple_item
from globalstep.tf1.graph.kernels import computes, kernel_of
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops import math_ops
from globalstep.tf1.ops.array_ops import shape as shape_of
from globalstep.tf1.ops.building import elementwise, is_node, normal_axes, operands, require_float, static_value
from globalstep.tf1.ops.constant_ops import zeros_like
from globalstep.tf1.ops.cross_entropy_ops import log_softmax_of
from globalstep.tf1.ops.gradient_ops import sum_like, unbroadcast
from globalstep.tf1.ops.indexing_ops import put_along
from globalstep.tf1.ops.joining_ops import concat
from globalstep.tf1.ops.product_ops import matmul
from globalstep.tf1.ops.random_ops import random_uniform
from globalstep.tf1.ops.reduction_ops import reduce_sum

#: numpy takes three times as long to compare with a number as with an array, if it has runs of so many numbers.
_LONG_RUN = 64


def _above_zero(x: Any, out: Any = None) -> Any:
    return np.maximum(x, np.zeros(x.shape[1:], x.dtype) if x.size >= _LONG_RUN * len(x) else 0, out=out)


def _where_above_zero(g: Any, x: Any, out: Any = None) -> Any:
    return np.multiply(g, np.greater(x, 0), out=out)


@computes("Relu")
def _relu_of(x: Any) -> Any:
    return products.elementwise(_above_zero, x) if np.ndim(x) else np.maximum(x, 0)


def relu(features: Any, name: str | None = None) -> Node:
    """Give max(features, 0); the gradient at 0 is 0."""
    node = as_node(features)
    return elementwise("Relu", node, name or "Relu")


@gradient_of("Relu")
def _relu_gradient(node: Node, grad: Node) -> Any:
    return (_relu_grad(grad, node),)


def _relu_grad(grad: Node, value: Node) -> Node:
    return Node("ReluGrad", (grad, value), dtype=grad.dtype, shape=value.shape)


computes("ReluGrad", lambda g, value: products.elementwise(_where_above_zero, g, value))


@gradient_of("ReluGrad")
def _relu_grad_gradient(node: Node, grad: Node) -> Any:
    return _relu_grad(grad, node.inputs[1]), zeros_like(node.inputs[1])


def relu6(features: Any, name: str | None = None) -> Node:
    """Give min(max(features, 0), 6)."""
    return elementwise("Relu6", as_node(features), name or "Relu6")


@computes("Relu6")
def _relu6(x: Any, *, dtype: Any) -> Any:
    return np.minimum(_relu_of(x), np.asarray(6, dtype))


@gradient_of("Relu6")
def _relu6_gradient(node: Node, grad: Node) -> Any:
    inside = math_ops.logical_and(math_ops.less_equal(node.inputs[0], 6.0), math_ops.greater(node, 0.0))
    return (math_ops.masked(grad, inside),)


def crelu(features: Any, name: str | None = None, axis: int = -1) -> Node:
    """Give relu(features) and relu(-features) side by side along `axis`."""
    node = as_node(features)
    return relu(concat([node, math_ops.negative(node)], axis), name)


def _activation(
    op_type: str, first_line: str, fn: Callable[..., Any], gradient: Callable[[Node, Node, Node], Node]
) -> Callable[..., Node]:
    """Make the public function of an activation of floating values; `gradient(grad, x, y)`, where y is its value."""

    @named(op_type.lower(), first_line)
    def function(features: Any, name: str | None = None) -> Node:
        return elementwise(op_type, require_float(op_type, as_node(features), "features"), name or op_type)

    computes(op_type, fn)
    gradient_of(op_type)(lambda node, grad: (gradient(grad, node.inputs[0], node),))
    return function


def _elu(x: Any) -> Any:
    return np.where(np.greater(x, 0), x, np.expm1(np.minimum(x, np.zeros((), x.dtype))))


_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def _selu(x: Any) -> Any:
    below = _SELU_ALPHA * np.expm1(np.minimum(x, np.zeros((), x.dtype)))
    return _SELU_SCALE * np.where(np.greater(x, 0), x, below)


def _selu_gradient(grad: Node, x: Node, y: Node) -> Node:
    above = math_ops.greater(y, 0.0)
    below = math_ops.masked(y + _SELU_SCALE * _SELU_ALPHA, above, False)
    return math_ops.masked(grad * _SELU_SCALE, above) + grad * below


elu = _activation(
    "Elu",
    "Give features where positive and exp(features) - 1 elsewhere.",
    _elu,
    lambda grad, x, y: grad * (math_ops.minimum(y, 0.0) + 1.0),
)
selu = _activation(
    "Selu", "Give the self-normalizing exponential linear unit (Klambauer et al. 2017).", _selu, _selu_gradient
)
softplus = _activation(
    "Softplus",
    "Give log(exp(features) + 1).",
    lambda x: np.logaddexp(x, 0),
    lambda grad, x, y: grad * math_ops.sigmoid(x),
)
softsign = _activation(
    "Softsign",
    "Give features / (abs(features) + 1).",
    lambda x: x / (1 + np.abs(x)),
    lambda grad, x, y: grad / math_ops.square(1.0 + math_ops.abs(x)),
)


def leaky_relu(features: Any, alpha: float = 0.2, name: str | None = None) -> Node:
    """Give features where positive and alpha * features elsewhere."""
    node = as_node(features)
    return elementwise("LeakyRelu", node, name or "LeakyRelu", alpha=alpha)


@computes("LeakyRelu")
def _leaky_relu(x: Any, *, alpha: Any) -> Any:
    return np.maximum(alpha * x, x)


@gradient_of("LeakyRelu")
@composed
def _leaky_relu_gradient(node: Node) -> Node:
    return math_ops.maximum(node.attrs["alpha"] * node.inputs[0], node.inputs[0])


def swish(features: Any, name: str | None = None) -> Node:
    """Give features * sigmoid(features)."""
    node = as_node(features)
    return math_ops.multiply(node, math_ops.sigmoid(node), name or "swish")


def _one_axis(axis: Any, dim: Any, node: Node) -> int:
    if axis is not None and dim is not None:
        raise ValueError("Cannot specify both 'dim' and 'axis'")
    which = dim if axis is None else axis
    place = -1 if which is None else which
    return normal_axes(place, node)[0]


def softmax(logits: Any, axis: int | None = None, name: str | None = None, dim: int | None = None) -> Node:
    """Give exp(logits) / sum(exp(logits)) along an axis.

    Args:
        logits: Floating node or array.
        axis: The axis; default the last.
        name: Name of the node.
        dim: Older name of `axis`.

    Returns:
        A node like `logits`.
    """
    node = require_float("Softmax", as_node(logits), "logits")
    place = _one_axis(axis, dim, node)
    return elementwise("Softmax", node, name or "Softmax", axis=place)


@computes("Softmax")
def _softmax(x: Any, *, axis: int) -> Any:
    powers = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return powers / np.sum(powers, axis=axis, keepdims=True)


@gradient_of("Softmax")
def _softmax_gradient(node: Node, grad: Node) -> Any:
    attrs = {"axis": node.attrs["axis"]}
    return (Node("SoftmaxGrad", (grad, node), dtype=node.dtype, shape=node.shape, attrs=attrs),)


@computes("SoftmaxGrad")
def _softmax_grad(g: Any, value: Any, *, axis: int) -> Any:
    return (g - np.sum(g * value, axis=axis, keepdims=True)) * value


@gradient_of("SoftmaxGrad")
@composed
def _softmax_grad_gradient(node: Node) -> Node:
    g, value = node.inputs
    return (g - reduce_sum(g * value, [node.attrs["axis"]], True)) * value


@gradient_of("LogSoftmax")
def _log_softmax_gradient(node: Node, grad: Node) -> Any:
    return (grad - math_ops.exp(node) * reduce_sum(grad, [node.attrs["axis"]], True),)


def log_softmax(logits: Any, axis: int | None = None, name: str | None = None, dim: int | None = None) -> Node:
    """Give log(softmax(logits)) without overflow; the arguments are those of `softmax`."""
    node = require_float("LogSoftmax", as_node(logits), "logits")
    place = _one_axis(axis, dim, node)
    return log_softmax_of(node, place, name)


def l2_loss(t: Any, name: str | None = None) -> Node:
    """Give sum(t^2) / 2."""
    node = require_float("L2Loss", as_node(t), "t")
    return Node("L2Loss", (node,), name=name or "L2Loss", dtype=node.dtype, shape=[])


computes("L2Loss", lambda x: np.sum(x * x) / 2)


@gradient_of("L2Loss")
def _l2_loss_gradient(node: Node, grad: Node) -> Any:
    return (node.inputs[0] * grad,)


def bias_add(value: Any, bias: Any, data_format: str | None = None, name: str | None = None) -> Node:
    """Add a vector to the last dimension (to the second one with data_format "NCHW").

    Raises:
        ValueError: If `bias` is no vector of that size, or for an unknown format.
    """
    if data_format not in (None, "NHWC", "NCHW"):
        raise ValueError(f"data_format must be either NHWC or NCHW, got {data_format!r}.")
    x, b = operands("BiasAdd", value, bias, ("value", "bias"))
    if b.shape.ndims not in (1, None):
        raise ValueError(f"Shape must be rank 1 but is rank {b.shape.ndims} for {b.name!r} (op: 'BiasAdd').")
    first = data_format == "NCHW"
    if x.shape.dims is not None and b.shape.dims is not None:
        size, length = x.shape.as_list()[1 if first else -1], b.shape.as_list()[0]
        if size is not None and length is not None and size != length:
            raise ValueError(
                f"Dimensions must be equal, but are {size} and {length} for {name or 'BiasAdd'!r} (op: "
                f"'BiasAdd') with input shapes: {x.shape}, {b.shape}."
            )
    attrs = {"data_format": "NCHW" if first else "NHWC"}
    return Node("BiasAdd", (x, b), name=name or "BiasAdd", dtype=x.dtype, shape=x.shape, attrs=attrs)


@kernel_of("BiasAdd")
def _bias_add(node: Node) -> Any:
    last, (x, bias) = node.attrs["data_format"] == "NHWC", (one.shape for one in node.inputs)
    if last and x.dims and bias.dims and x[-1].value == bias[0].value is not None:
        return np.add

    def add(values: Any, vector: Any) -> Any:
        if np.shape(vector) != np.shape(values)[-1 if last else 1 :][:1]:
            raise InvalidArgumentError(f"Must provide as many biases as channels: {vector.shape} vs. {values.shape}")
        return values + (vector if last else np.reshape(vector, (-1,) + (1,) * (np.ndim(values) - 2)))

    return add


@gradient_of("BiasAdd")
def _bias_add_gradient(node: Node, grad: Node) -> Any:
    bias = node.inputs[1]
    if node.attrs["data_format"] == "NHWC":
        return grad, sum_like(grad, bias)
    rank = len(node.shape)
    return grad, reduce_sum(grad, [axis for axis in range(rank) if axis != 1])


def xw_plus_b(x: Any, weights: Any, biases: Any, name: str | None = None) -> Node:
    """Give matmul(x, weights) + biases."""
    return bias_add(matmul(x, weights), biases, name=name or "xw_plus_b")


def relu_layer(x: Any, weights: Any, biases: Any, name: str | None = None) -> Node:
    """Give relu(matmul(x, weights) + biases)."""
    return relu(xw_plus_b(x, weights, biases), name=name or "relu_layer")


def dropout(
    x: Any,
    keep_prob: Any = None,
    noise_shape: Any = None,
    seed: int | None = None,
    name: str | None = None,
    rate: Any = None,
) -> Node:
    """Set random elements to 0 and scale the others up, so that the expected sum stays.

    Args:
        x: Floating node or array.
        keep_prob: Probability that an element stays: number or scalar node.
        noise_shape: Shape of the random choices; size 1 where elements share one.
        seed: Seed of this operation; see `gs.set_random_seed`.
        name: Name of the node.
        rate: 1 - keep_prob, the newer way to say it.

    Returns:
        A node like `x`.

    Raises:
        ValueError: If neither or both of `keep_prob` and `rate` are given, or one is out of range, or `x`
            is not floating.
    """
    if (keep_prob is None) == (rate is None):
        raise ValueError(
            "Only one of keep_prob and rate must be given." if rate is not None
            else "You must provide a rate to dropout."
        )  # fmt: skip
    node = as_node(x)
    if not node.dtype.is_floating:
        raise ValueError(
            "x has to be a floating point tensor since it's going to be scaled. Got a "
            f"{node.dtype.name} tensor instead."
        )
    number = static_value(rate if keep_prob is None else keep_prob)
    if number is not None:
        share = float(number) if rate is None else 1 - float(number)
        if rate is None and not 0 < share <= 1:
            raise ValueError(f"keep_prob must be a scalar tensor or a float in the range (0, 1], got {share:g}")
        if rate is not None and not 0 <= float(number) < 1:
            raise ValueError(f"rate must be a scalar tensor or a float in the range [0, 1), got {float(number):g}")
        if share == 1:
            return node
        keep = as_node(share, node.dtype, name="dropout/keep_prob")
    elif rate is None:
        keep = as_node(keep_prob)
    else:
        keep = math_ops.subtract(1.0, rate)
    noise = random_uniform(shape_of(node) if noise_shape is None else noise_shape, dtype=node.dtype, seed=seed)
    return Node("Dropout", (node, keep, noise), name=name or "dropout", dtype=node.dtype, shape=node.shape)


computes("Dropout", lambda values, keep, noise: values / keep * (noise < keep))
computes("DropoutGrad", lambda g, keep, noise: (noise < keep) * g / keep)


@gradient_of("Dropout", "DropoutGrad")
def _dropout_gradient(node: Node, grad: Node) -> Any:
    x, keep, noise = node.inputs
    mask = math_ops.cast(math_ops.less(noise, keep), x.dtype)
    to_keep = unbroadcast(-(mask * grad) * x / math_ops.square(keep), keep, node)
    to_x = Node("DropoutGrad", (grad, keep, noise), dtype=grad.dtype, shape=grad.shape)
    return to_x, to_keep, None


class TopKV2(NamedTuple):
    """The result of `top_k`.

    Attributes:
        values: The largest values of each row, a node [..., k].
        indices: Their places in it, an int32 node [..., k].
    """

    values: Node
    indices: Node


def top_k(input: Any, k: Any = 1, sorted: bool = True, name: str | None = None) -> TopKV2:
    """Give the `k` largest values of each row, and their places; of equal values the first.

    Args:
        input: Node or array [..., n].
        k: How many.
        sorted: Accepted; the values are always in descending order.
        name: Name of the node.

    Returns:
        `values` [..., k] and `indices` [..., k], int32.
    """
    node = as_node(input)
    count = int(static_value(k)) if not is_node(k) or static_value(k) is not None else None
    if count is None:
        raise ValueError("k must be known when the graph is built.")
    dims = node.shape.as_list() if node.shape.dims is not None else None
    if dims and dims[-1] is not None and dims[-1] < count:
        raise ValueError(f"input must have last dimension >= k = {count} but is {dims[-1]} ({node.name!r}).")
    parts = Node("TopKV2", (node,), name=name or "TopKV2", attrs={"tuple": True, "k": count})
    shape = TensorShape(None if dims is None else [*dims[:-1], count])
    return TopKV2(
        tuple_item(parts, 0, dtype=node.dtype, shape=shape),
        tuple_item(parts, 1, dtype="int32", shape=shape),
    )


@computes("TopKV2")
def _top_k(values: Any, *, k: int) -> Any:
    order = np.argsort(-values, axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(values, order, -1), order.astype(np.int32)


@gradient_of("TopKV2")
def _top_k_gradient(node: Node, grads: Any) -> Any:
    (x,) = node.inputs
    places = tuple_item(node, 1, dtype="int32", shape=TensorShape(None))
    return (put_along(grads[0], places, x, -1),)


def in_top_k(predictions: Any, targets: Any, k: int, name: str | None = None) -> Node:
    """Say for each row whether its target is among the `k` largest predictions.

    Args:
        predictions: Node or array [batch, classes].
        targets: Integer node or array [batch].
        k: How many; classes that tie with the target do not push it out.
        name: Name of the node.

    Returns:
        A boolean node [batch]; False where the target is out of range or its prediction is not finite.
    """
    inputs = as_node(predictions), as_node(targets)
    return Node("InTopK", inputs, name=name or "InTopK", dtype="bool", shape=inputs[1].shape, attrs={"k": k})


@computes("InTopK")
def _in_top_k(values: Any, classes: Any, *, k: int) -> Any:
    inside = (classes >= 0) & (classes < values.shape[1])
    own = values[np.arange(len(classes)), np.where(inside, classes, 0)]
    larger = np.sum(values > own[:, None], axis=1)
    return inside & np.isfinite(own) & (larger < k)


def zero_fraction(value: Any, name: str | None = None) -> Node:
    """Give the fraction of elements that are 0, as float32; NaN for an empty value."""
    attrs = {"stops_gradient": True}
    return Node("ZeroFraction", (as_node(value),), name=name or "zero_fraction", dtype="float32", shape=[], attrs=attrs)


computes("ZeroFraction", lambda x: np.float32(np.mean(np.equal(x, 0))) if np.size(x) else np.float32(np.nan))
