"""Clipping of values and gradients, and their global norm.

Every function takes nodes, arrays and IndexedSlices and gives nodes, or IndexedSlices for IndexedSlices.
Formulas, names and errors are those of TensorFlow 1.15.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from globalstep.tf1.gradients.registry import composed, gradient_of
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.indexed_slices import IndexedSlices
from globalstep.tf1.graph.kernels import computes, kernel_of
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops import math_ops
from globalstep.tf1.ops.array_ops import size
from globalstep.tf1.ops.building import broadcast_shapes, normal_axes, operands, require_float
from globalstep.tf1.ops.reduction_ops import reduce_sum


def _values(t: Any) -> Node:
    """Give the node of a value, or of the rows of IndexedSlices."""
    return as_node(t.values if isinstance(t, IndexedSlices) else t)


def _like(t: Any, values: Node) -> Any:
    """Give `values` in the form of `t`."""
    return IndexedSlices(values, t.indices, t.dense_shape) if isinstance(t, IndexedSlices) else values


def clip_by_value(t: Any, clip_value_min: Any, clip_value_max: Any, name: str | None = None) -> Any:
    """Give `t` with smaller values set to `clip_value_min` and larger ones to `clip_value_max`.

    Args:
        t: Node, array or IndexedSlices.
        clip_value_min: Number or node that broadcasts to the shape of `t`.
        clip_value_max: Number or node that broadcasts to the shape of `t`.
        name: Name of the node.

    Returns:
        A node, or IndexedSlices.

    Raises:
        ValueError: If the bounds would make the result larger than `t`.
    """
    values, low = operands("ClipByValue", _values(t), clip_value_min, ("t", "clip_value_min"))
    _, high = operands("ClipByValue", values, clip_value_max, ("t", "clip_value_max"))
    for bound in (low, high):
        shape = broadcast_shapes("ClipByValue", values, bound)
        if not shape.is_compatible_with(values.shape):
            raise ValueError(f"Shapes {values.shape} and {bound.shape} are incompatible: clip bounds widen t.")
    inputs = (values, low, high)
    return _like(t, Node("ClipByValue", inputs, name=name or "clip_by_value", dtype=values.dtype, shape=values.shape))


computes("ClipByValue", lambda v, low, high: np.maximum(np.minimum(v, high), low))


@gradient_of("ClipByValue")
@composed
def _clip_by_value_gradient(node: Node) -> Node:
    values, low, high = node.inputs
    return math_ops.maximum(math_ops.minimum(values, high), low)


def _square_sum(v: Any, axes: tuple[int, ...] | None) -> Any:
    return np.sum(v * v, axis=axes, keepdims=axes is not None)


def clip_by_norm(t: Any, clip_norm: Any, axes: Any = None, name: str | None = None) -> Any:
    """Give t * clip_norm / max(norm(t), clip_norm): `t` scaled down to a 2-norm of at most `clip_norm`.

    Args:
        t: Node, array or IndexedSlices.
        clip_norm: Positive scalar: number or node.
        axes: Axes to take norms over; default all.
        name: Name of the node.

    Returns:
        A node, or IndexedSlices.
    """
    values, limit = operands("ClipByNorm", _values(t), clip_norm, ("t", "clip_norm"))
    require_float("ClipByNorm", values, "t")
    places = None if axes is None else normal_axes(axes, values)
    clipped = Node(
        "ClipByNorm", (values, limit), name=name or "clip_by_norm", dtype=values.dtype, shape=values.shape,
        attrs={"axes": places},
    )  # fmt: skip
    return _like(t, clipped)


computes("ClipByNorm", lambda v, c, *, axes: v * c / np.maximum(np.sqrt(_square_sum(v, axes)), c))


def _root_of_squares(values: Node, axes: Any) -> Node:
    """Give the 2-norm, with gradient 0 instead of infinity at 0."""
    squares = reduce_sum(math_ops.square(values), axes, axes is not None)
    return Node("RootOfSquares", (squares,), dtype=values.dtype, shape=squares.shape)


computes("RootOfSquares", np.sqrt)


@gradient_of("RootOfSquares")
def _root_of_squares_gradient(node: Node, grad: Node) -> Any:
    return (math_ops.div_no_nan(grad * 0.5, node),)


@gradient_of("ClipByNorm")
@composed
def _clip_by_norm_gradient(node: Node) -> Node:
    values, limit = node.inputs
    return values * limit / math_ops.maximum(_root_of_squares(values, node.attrs["axes"]), limit)


def clip_by_average_norm(t: Any, clip_norm: Any, name: str | None = None) -> Any:
    """Give `t` scaled down to a 2-norm divided by its number of elements of at most `clip_norm`.

    It is t * clip_norm * min(n / norm(t), 1 / clip_norm), n being the number of elements.

    Args:
        t: Node, array or IndexedSlices.
        clip_norm: Positive scalar: number or node.
        name: Name of the node.

    Returns:
        A node, or IndexedSlices.
    """
    values, limit = operands("ClipByAverageNorm", _values(t), clip_norm, ("t", "clip_norm"))
    require_float("ClipByAverageNorm", values, "t")
    name = name or "clip_by_average_norm"
    return _like(t, Node("ClipByAverageNorm", (values, limit), name=name, dtype=values.dtype, shape=values.shape))


computes("ClipByAverageNorm", lambda v, c: v * c * np.minimum(np.size(v) / np.sqrt(_square_sum(v, None)), 1 / c))


@gradient_of("ClipByAverageNorm")
@composed
def _clip_by_average_norm_gradient(node: Node) -> Node:
    values, limit = node.inputs
    count = math_ops.cast(size(values), values.dtype)
    return values * limit * math_ops.minimum(count / _root_of_squares(values, None), 1.0 / limit)


def _sequence(t_list: Any) -> list[Any]:
    if not isinstance(t_list, Sequence) or isinstance(t_list, (str, bytes)):
        raise TypeError("t_list should be a sequence")
    return list(t_list)


def global_norm(t_list: Any, name: str | None = None) -> Node:
    """Give sqrt(sum of the squares of all elements of all values).

    Args:
        t_list: Sequence of nodes, arrays, IndexedSlices or None. None is left out. Of IndexedSlices the
            rows count as they are, also where an index occurs twice.
        name: Name of the node.

    Returns:
        A scalar node.

    Raises:
        TypeError: If `t_list` is no sequence.
        ValueError: If nothing but None is in it.
    """
    nodes = [_values(t) for t in _sequence(t_list) if t is not None]
    if not nodes:
        raise ValueError("t_list holds no value: a global norm needs at least one that is not None.")
    for node in nodes:
        require_float("L2Loss", node, "t")
    return Node("GlobalNorm", nodes, name=name or "global_norm", dtype=nodes[0].dtype, shape=TensorShape([]))


@computes("GlobalNorm")
def _global_norm(*values: Any) -> Any:
    squares = [_square_sum(v, None) for v in values]
    return np.sqrt(sum(squares[1:], squares[0]))


@gradient_of("GlobalNorm")
def _global_norm_gradient(node: Node, grad: Node) -> Any:
    share = math_ops.div_no_nan(grad, node)
    return [value * share for value in node.inputs]


def clip_by_global_norm(
    t_list: Any, clip_norm: Any, use_norm: Any = None, name: str | None = None
) -> tuple[list[Any], Node]:
    """Scale values down together so that their global norm is at most `clip_norm`.

    Each is multiplied by clip_norm * min(1 / global_norm, 1 / clip_norm). Where the norm is not finite all
    values become NaN, as in TensorFlow 1.15, so that a diverged step cannot pass for a clipped one.

    Args:
        t_list: Sequence of nodes, arrays, IndexedSlices or None.
        clip_norm: Positive scalar: number or node.
        use_norm: The global norm, if it is known already; default `global_norm(t_list)`.
        name: Name scope of the nodes.

    Returns:
        The clipped values in order, None where None was given, and the global norm.

    Raises:
        TypeError: If `t_list` is no sequence.
    """
    items = _sequence(t_list)
    norm = global_norm(items) if use_norm is None else as_node(use_norm)
    results: list[Any] = []
    scales: dict[str, Node] = {}
    with norm.graph.name_scope(name or "clip_by_global_norm"):
        for t in items:
            if t is None:
                results.append(None)
                continue
            values = _values(t)
            scale = scales.setdefault(values.dtype.name, _scale(norm, clip_norm, values))
            results.append(_like(t, math_ops.multiply(values, scale, name="clipped")))
    return results, norm


def _scale(norm: Node, clip_norm: Any, values: Node) -> Node:
    """Give the common factor in the dtype of `values`."""
    _, limit = operands("ClipByGlobalNorm", norm, clip_norm, ("use_norm", "clip_norm"))
    return Node("ClipScale", (norm, limit), name="scale", dtype=values.dtype, shape=[])


def _factor(n: Any, c: Any, kind: Any) -> Any:
    scale = c * np.minimum(1 / n, np.asarray(1, kind) / c)
    return np.asarray(scale + (n - n)).astype(kind)


kernel_of("ClipScale")(lambda node: partial(_factor, kind=node.dtype.as_numpy_dtype))


@gradient_of("ClipScale")
@composed
def _clip_scale_gradient(node: Node) -> Node:
    norm, limit = node.inputs
    scale = limit * math_ops.minimum(1.0 / norm, 1.0 / limit)
    return math_ops.cast(scale + (norm - norm), node.dtype)
