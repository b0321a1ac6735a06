"""Bundles: the values of a node that has several, as one array of objects.

To the executor and to gradients a bundle is an array like any other. So the gradient of a bundle is a bundle too,
with 0 for a value whose gradient is zero, and two gradients add up place by place.

Layer: tf1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from globalstep.dtypes import DType
from globalstep.tf1.gradients.vjps import Found, with_vjp
from globalstep.tf1.graph.graph import Node
from globalstep.tf1.graph.shapes import TensorShape

__all__ = ["WayBack", "bundle", "bundle_item", "is_zero"]


def bundle(values: Sequence[Any]) -> Any:
    """Give values as a bundle."""
    plain = [value[()] if isinstance(value, np.ndarray) and not value.ndim else value for value in values]
    return np.fromiter(plain, dtype=object, count=len(plain))


def is_zero(gradient: Any) -> bool:
    """Whether an element of a bundle of gradients, or a gradient that may be None, is all zeros."""
    return gradient is None or isinstance(gradient, int)


def bundle_item(
    node: Node, index: int, dtype: DType, shape: TensorShape, name: str, differentiable: bool = True
) -> Node:
    """Give one value of a node whose value is a bundle.

    Args:
        node: The node.
        index: Which of its values.
        dtype: Its dtype.
        shape: Its static shape.
        name: Name of the new node.
        differentiable: Whether gradients go through it.

    Returns:
        A node.
    """

    def pick(values: Any) -> Any:
        return values[index]

    def back(values: Any) -> Found:
        def way(gradient: Any) -> Any:
            gradients = np.zeros(values.shape, object)
            gradients[index] = gradient
            return gradients

        return values[index], (way,)

    attrs = {"index": index} if differentiable else {"index": index, "stops_gradient": True}
    return Node("BundleItem", (node,), with_vjp(pick, back), name=name, dtype=dtype, shape=shape, attrs=attrs)


class WayBack:
    """The ways back to all inputs of a function, found together at the first of them.

    Args:
        inputs: The values of the inputs.
        compute: Gives the gradient of each input, None for zero, from that of the value.
    """

    def __init__(self, inputs: Sequence[Any], compute: Callable[[Any], Sequence[Any]]) -> None:
        self._inputs = inputs
        self._compute = compute
        self._of: Any = None
        self._found: Sequence[Any] = ()

    def ways(self) -> tuple[Callable[[Any], Any], ...]:
        """Give the way to each input."""
        return tuple(self._way(at) for at in range(len(self._inputs)))

    def _way(self, at: int) -> Callable[[Any], Any]:
        def way(gradient: Any) -> Any:
            if self._of is not gradient:
                self._of, self._found = gradient, self._compute(gradient)
            part, like = self._found[at], self._inputs[at]
            if is_zero(part):
                return np.zeros_like(like)
            return part if part.dtype == like.dtype else part.astype(like.dtype)

        return way
