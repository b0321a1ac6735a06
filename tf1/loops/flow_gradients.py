"""Gradients of flows, the values of TensorArrays: those of the elements that have one, by place.

A flow gradient goes through the graph like an array: terms add up place by place, and what is at no place is zero.

Layer: tf1. Threads: a FlowGradient is not changed by use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from globalstep.tf1.gradients.registry import gradient_of, no_gradient
from globalstep.tf1.graph.graph import Node
from globalstep.tf1.graph.kernels import computes, kernel_of
from globalstep.tf1.graph.shapes import TensorShape


class FlowGradient:
    """The gradient of a flow.

    Args:
        parts: The gradient of the element at each place that has one.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: dict[int, Any]) -> None:
        self.parts = parts

    def __add__(self, other: FlowGradient) -> FlowGradient:
        parts = dict(self.parts)
        for place, part in other.parts.items():
            parts[place] = parts[place] + part if place in parts else part
        return FlowGradient(parts)


def zeros_of(value: Any) -> Any:
    """Return zeros like a value, which may be a flow or its gradient."""
    is_flow = isinstance(value, FlowGradient) or (isinstance(value, np.ndarray) and value.dtype.kind == "O")
    return FlowGradient({}) if is_flow else np.zeros_like(value)


def zeros(like: Node) -> Node:
    """Return zeros like a node, whose value may be a flow."""
    return Node("FlowZeros", (like,), name="ZerosLike", dtype=like.dtype, shape=like.shape)


computes("FlowZeros", zeros_of)
no_gradient("FlowZeros")


def _places(at: Any) -> Iterable[int]:
    return map(int, np.asarray(at).reshape(-1))


def _put_one(gradient: Any, at: Any) -> FlowGradient:
    return FlowGradient({int(at): gradient})


def _put_rows(gradient: Any, at: Any = None) -> FlowGradient:
    return _sum_at(range(len(gradient)) if at is None else _places(at), gradient)


def _sum_at(places: Iterable[int], rows: Iterable[Any]) -> FlowGradient:
    parts: dict[int, Any] = {}
    for place, row in zip(places, rows, strict=True):
        parts[place] = parts[place] + row if place in parts else row
    return FlowGradient(parts)


def _take_one(gradient: FlowGradient, element: Any, at: Any) -> Any:
    part = gradient.parts.get(int(at))
    return np.zeros_like(element) if part is None else part


def _take_rows(gradient: FlowGradient, rows: Any, at: Any = None) -> Any:
    taken = np.zeros_like(rows)
    for row, place in enumerate(range(len(rows)) if at is None else _places(at)):
        part = gradient.parts.get(place)
        if part is not None:
            taken[row] = part
    return taken


def _without(gradient: FlowGradient, at: Any) -> FlowGradient:
    places = set(_places(at))
    return FlowGradient({place: part for place, part in gradient.parts.items() if place not in places})


def gradient_of_elements(gradient: Node, at: Node | None, one: bool) -> Node:
    """Return the gradient of a flow from that of elements that were taken out of it.

    Args:
        gradient: Of one element, or of rows.
        at: Their places; None for all.
        one: Whether it is one.
    """
    inputs = (gradient,) if at is None else (gradient, at)
    return Node("FlowPut", inputs, dtype="float32", shape=TensorShape(None), attrs={"one": one})


def gradient_at(gradient: Node, like: Node, at: Node | None, one: bool) -> Node:
    """Return the gradient of elements that were put into a flow, from that of the flow.

    Args:
        gradient: Of the flow.
        like: What was put there: one element, or rows.
        at: Their places; None for all.
        one: Whether it is one.
    """
    inputs = (gradient, like) if at is None else (gradient, like, at)
    return Node("FlowTake", inputs, dtype=like.dtype, shape=like.shape, attrs={"one": one})


def without(gradient: Node, at: Node) -> Node:
    """Return the gradient of a flow before elements were put at these places."""
    return Node("FlowWithout", (gradient, at), dtype="float32", shape=TensorShape(None))


kernel_of("FlowPut")(lambda node: _put_one if node.attrs["one"] else _put_rows)
kernel_of("FlowTake")(lambda node: _take_one if node.attrs["one"] else _take_rows)
computes("FlowWithout", _without)


@gradient_of("FlowPut")
def _put_gradient(node: Node, grad: Node) -> Sequence[Node | None]:
    gradient, *at = node.inputs
    return [gradient_at(grad, gradient, at[0] if at else None, node.attrs["one"]), *[None] * len(at)]


@gradient_of("FlowTake")
def _take_gradient(node: Node, grad: Node) -> Sequence[Node | None]:
    _, _, *at = node.inputs
    return [gradient_of_elements(grad, at[0] if at else None, node.attrs["one"]), None, *[None] * len(at)]


@gradient_of("FlowWithout")
def _without_gradient(node: Node, grad: Node) -> Sequence[Node | None]:
    return [without(grad, node.inputs[1]), None]
