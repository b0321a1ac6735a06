"""Small ops that gradients are made of: sums over what was broadcast, the sum of terms, ones and zeros.

Layer: tf1, below every other module of `ops` but primitives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from globalstep.tf1.gradients.registry import gradient_of
from globalstep.tf1.gradients.vjps import shaped_like
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.indexed_slices import IndexedSlices
from globalstep.tf1.graph.shapes import TensorShape

__all__ = ["add_terms", "broadcast_like", "is_ones", "ones", "sum_like", "sum_of_slices", "unbroadcast", "zeros"]

#: Arrays up to so many elements are computed while the graph is built, if that needs no run.
MAX_CONSTANT = 1 << 16


def _filled(like: Node, number: int, op_type: str) -> Node:
    kind, count = like.dtype.as_numpy_dtype, like.shape.num_elements()
    if count is not None and count <= MAX_CONSTANT:
        made = as_node(np.full([int(size) for size in like.shape], number, kind))
        made.attrs["filled"] = number
        return made
    fill = np.ones_like if number else np.zeros_like
    return Node(op_type, (like,), lambda x: fill(x, kind), dtype=like.dtype, shape=like.shape)


def ones(like: Node) -> Node:
    """Return ones of the dtype and shape of a node."""
    return _filled(like, 1, "OnesLike")


def zeros(like: Node) -> Node:
    """Return zeros of the dtype and shape of a node."""
    return _filled(like, 0, "ZerosLike")


def is_ones(node: Node) -> bool:
    """Return whether a node is known to be ones."""
    return node.op_type == "Const" and node.attrs.get("filled") == 1


def unbroadcast(gradient: Node, x: Node, other: Node) -> Node:
    """Return the gradient of an operand that was broadcast beside another one.

    Args:
        gradient: Of the result's shape.
        x: The operand.
        other: The other one.
    """
    if x.shape.dims is not None and other.shape.dims is not None:
        own, wide = x.shape.as_list(), other.shape.as_list()
        beside = [1] * (len(own) - len(wide)) + wide
        # Nothing was broadcast where each of its sizes is the result's.
        if len(beside) == len(own) and all(
            size not in (1, None) or theirs == 1 for size, theirs in zip(own, beside, strict=True)
        ):
            return gradient
    return sum_like(gradient, x)


def sum_like(gradient: Node, x: Node) -> Node:
    """Return a gradient summed over the axes along which `x` was broadcast."""
    if x.shape.is_fully_defined():
        shape = tuple(int(size) for size in x.shape)
        if gradient.shape.is_fully_defined() and gradient.shape == x.shape:
            return gradient
        return Node("SumLike", (gradient,), lambda g: _summed(g, shape), dtype=gradient.dtype, shape=x.shape)
    return Node(
        "SumLike",
        (gradient, x),
        lambda g, like: shaped_like(like, g),
        dtype=gradient.dtype,
        shape=x.shape,
        name="SumLike",
    )


class _Shaped:
    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape


def _summed(g: Any, shape: tuple[int, ...]) -> Any:
    return g if g.shape == shape else shaped_like(_Shaped(shape), g)


def broadcast_like(x: Node, like: Node) -> Node:
    """Return a value broadcast to the shape of another one."""
    return Node(
        "BroadcastLike", (x, like), lambda v, other: np.array(np.broadcast_to(v, other.shape)), dtype=x.dtype,
        shape=like.shape,
    )  # fmt: skip


@gradient_of("SumLike")
def _sum_like_gradient(node: Node, grad: Node) -> Sequence[Node | None]:
    return broadcast_like(grad, node.inputs[0]), *[None] * (len(node.inputs) - 1)


@gradient_of("BroadcastLike")
def _broadcast_like_gradient(node: Node, grad: Node) -> Sequence[Node | None]:
    return sum_like(grad, node.inputs[0]), None


def sum_of_slices(terms: Sequence[IndexedSlices]) -> IndexedSlices:
    """Return slices with the rows of several."""
    first = terms[0]
    if len(terms) == 1:
        return first
    values = [as_node(term.values) for term in terms]
    indices = [as_node(term.indices) for term in terms]
    return IndexedSlices(_joined(values), _joined(indices), first.dense_shape)


def _joined(parts: Sequence[Node]) -> Node:
    shape = TensorShape([None, *parts[0].shape.as_list()[1:]])
    return Node("ConcatRows", parts, lambda *rows: np.concatenate(rows), dtype=parts[0].dtype, shape=shape)


def add_terms(terms: Sequence[Node], like: Node) -> Node:
    """Return the sum of nodes of one dtype and shape."""
    add = np.add if len(terms) == 2 else _sum
    return Node("AddN", terms, add, dtype=like.dtype, shape=like.shape)


def _sum(*values: Any) -> Any:
    return sum(values[1:], values[0])


@gradient_of("AddN")
def _add_n_gradient(node: Node, grad: Node) -> Sequence[Node]:
    return [grad] * len(node.inputs)
