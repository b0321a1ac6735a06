"""Normalization of values over rows or batches."""

from __future__ import annotations

from typing import Any

from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.ops import math_ops
from globalstep.tf1.ops.array_ops import shape as shape_of
from globalstep.tf1.ops.array_ops import squeeze, stop_gradient
from globalstep.tf1.ops.building import normal_axes, operands
from globalstep.tf1.ops.reduction_ops import reduce_mean, reduce_prod, reduce_sum


def l2_normalize(x: Any, axis: Any = None, epsilon: float = 1e-12, name: str | None = None, dim: Any = None) -> Node:
    """Divide by the 2-norm along `axis` (all of it by default; older name: `dim`).

    The result is x / sqrt(max(sum(x^2), epsilon)).
    """
    node = as_node(x)
    squares = reduce_sum(math_ops.square(node), axis if dim is None else dim, keepdims=True)
    return math_ops.multiply(node, math_ops.rsqrt(math_ops.maximum(squares, epsilon)), name or "l2_normalize")


def moments(
    x: Any,
    axes: Any,
    shift: Any = None,
    name: str | None = None,
    keep_dims: bool | None = None,
    keepdims: bool | None = None,
) -> tuple[Node, Node]:
    """Give mean and variance over `axes`.

    Args:
        x: Floating node or array.
        axes: List of axes.
        shift: Accepted as in TensorFlow; not used.
        name: Name scope of the nodes.
        keep_dims: Whether the axes stay, with size 1.
        keepdims: The same, under its newer name.

    Returns:
        Two nodes.
    """
    keeps = bool(keep_dims if keepdims is None else keepdims)
    node = as_node(x)
    with node.graph.name_scope(name or "moments"):
        mean = reduce_mean(node, axes, keepdims=True, name="mean")
        distance = math_ops.squared_difference(node, stop_gradient(mean))
        variance = reduce_mean(distance, axes, keepdims=True, name="variance")
        if keeps:
            return mean, variance
        gone = list(normal_axes(axes, node))
        return squeeze(mean, gone), squeeze(variance, gone)


def batch_normalization(
    x: Any, mean: Any, variance: Any, offset: Any, scale: Any, variance_epsilon: Any, name: str | None = None
) -> Node:
    """Give (x - mean) / sqrt(variance + variance_epsilon) * scale + offset.

    `scale` and `offset` may be None.
    """
    value, mean = operands("BatchNorm", x, mean, ("x", "mean"))
    _, variance = operands("BatchNorm", value, variance, ("x", "variance"))
    factor = math_ops.rsqrt(math_ops.add(variance, variance_epsilon))
    factor = factor if scale is None else math_ops.multiply(factor, scale)
    shift = math_ops.multiply(mean, factor)
    shift = math_ops.negative(shift) if offset is None else math_ops.subtract(offset, shift)
    return math_ops.add(math_ops.multiply(value, factor), shift, name or "batchnorm")


def fused_batch_norm(
    x: Any,
    scale: Any,
    offset: Any,
    mean: Any = None,
    variance: Any = None,
    epsilon: float = 0.001,
    data_format: str = "NHWC",
    is_training: bool = True,
    name: str | None = None,
) -> tuple[Node, Node, Node]:
    """Normalize over all dimensions but the last.

    Args:
        x: Floating node or array [..., channels].
        scale: Vector [channels].
        offset: Vector [channels].
        mean: For inference: the mean to use.
        variance: For inference: the variance to use.
        epsilon: What is added to the variance.
        data_format: "NHWC".
        is_training: Whether mean and variance are those of `x`.
        name: Name of the node.

    Returns:
        The normalized value, the mean, and the unbiased variance of the batch.

    Raises:
        ValueError: For another format, or if training is given a mean.
    """
    if data_format != "NHWC":
        raise ValueError("fused_batch_norm takes data_format 'NHWC' only: transpose the value first.")
    node = as_node(x)
    if not is_training:
        if mean is None or variance is None:
            raise ValueError("Both 'mean' and 'variance' must be given when is_training is False.")
        plain = batch_normalization(node, mean, variance, offset, scale, epsilon, name)
        return plain, as_node(mean), as_node(variance)
    if mean is not None or variance is not None:
        raise ValueError("Both 'mean' and 'variance' must be None if is_training is True.")
    rank = node.shape.ndims
    if rank is None:
        raise ValueError(f"The rank of {node.name!r} must be known.")
    axes = list(range(rank - 1))
    batch_mean, batch_variance = moments(node, axes)
    result = batch_normalization(node, batch_mean, batch_variance, offset, scale, epsilon, name)
    count = math_ops.cast(reduce_prod(shape_of(node)[:-1]), node.dtype)
    unbiased = math_ops.multiply(batch_variance, math_ops.divide(count, math_ops.maximum(count - 1.0, 1.0)))
    return result, batch_mean, unbiased
