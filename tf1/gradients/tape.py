"""An autograd tape of globalstep's own: one evaluation's boxes, and the way back through them.

Layer: tf1. Threads: a Tape belongs to one evaluation; autograd's own stack of traces, which all threads share, is
not used.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from autograd.core import VJPNode, add_outgrads
from autograd.tracer import isbox, new_box
from autograd.util import toposort

from globalstep.tf1.gradients.vjps import VJP, vjp_of

__all__ = ["Tape", "call_on_tape", "vjp_by_tape"]

# Every evaluation gets a higher number than those before it, so that one inside another (a gradient of a
# gradient) is always the inner one to autograd.
_traces = itertools.count()


class Tape:
    """One evaluation: boxes of one trace, and the gradients that come back to them."""

    def __init__(self, trace: int | None = None) -> None:
        self.trace = next(_traces) if trace is None else trace

    def root(self, value: Any) -> Any:
        """Start tracking `value`."""
        value = value if isbox(value) else np.asarray(value)
        return new_box(value, self.trace, VJPNode.new_root())

    def box_by_vjp(self, vjp: VJP, inputs: Sequence[Any]) -> Any:
        """Give the box of a function's value, with the functions that its VJP gives; None where it gives none."""
        values = [self.plain(item) for item in inputs]
        if not all(isinstance(value, (np.ndarray, np.generic)) for value in values):
            return None
        result = vjp(*values)
        if result is None:
            return None
        value, ways = result
        from_, back = [], []
        for item, way in zip(inputs, ways, strict=True):
            if self.holds(item):
                from_.append(item._node)
                back.append(way)
        node = VJPNode.new_root()
        node.parents, node.vjp = from_, lambda gradient: [way(gradient) for way in back]
        return new_box(value, self.trace, node)

    def replace(self, box: Any, value: Any) -> Any:
        """Give `value`, with the gradient going on to `box`: a place of its own on the tape."""
        if isinstance(box, tuple):
            return tuple(self.replace(b, v) for b, v in zip(box, value, strict=True))
        if not self.holds(box):
            return value
        node = VJPNode.new_root()
        node.parents, node.vjp = (box._node,), lambda g: (g,)
        return new_box(value, self.trace, node)

    def holds(self, value: Any) -> bool:
        """Whether a value is one of this tape's boxes."""
        return bool(isbox(value) and value._trace == self.trace)

    def plain(self, value: Any) -> Any:
        """Give the value without this tape's box."""
        if isinstance(value, tuple):
            return tuple(self.plain(item) for item in value)
        return value._value if self.holds(value) else value

    def backward(self, ends: Sequence[tuple[Any, Any]], wanted: set[Any]) -> dict[Any, Any]:
        """Give the gradients of the sum of `ends` (box, weight) at the tape's nodes in `wanted`."""
        flowing: dict[Any, Any] = {}
        for box, weight in ends:
            flowing[box._node] = add_outgrads(flowing.get(box._node), weight)
        end = _End([box._node for box, _ in ends])
        gradients: dict[Any, Any] = {}
        for node in itertools.islice(toposort(end), 1, None):
            gradient = flowing.pop(node)[0]
            if node in wanted:
                gradients[node] = gradient
            for parent, part in zip(node.parents, node.vjp(gradient), strict=True):
                flowing[parent] = add_outgrads(flowing.get(parent), part)
        return gradients


class _End:
    """A node after all ends of a tape, where the way back starts."""

    def __init__(self, parents: list[Any]) -> None:
        self.parents = parents


def vjp_by_tape(
    fn: Callable[..., Any], values: Sequence[Any], wanted: Sequence[int]
) -> tuple[Any, Callable[[Any], list[Any]]]:
    """Evaluate one function on a tape of its own.

    Args:
        fn: A function that nodes are made with.
        values: Its arguments, plain arrays.
        wanted: Which of them gradients go back to.

    Returns:
        Its value, and the way back from a gradient of it to those of the wanted arguments, None for zero. Where the
        value is a tuple, its gradient is a sequence with 0 for a part whose gradient is zero.
    """
    tape = Tape()
    roots = {at: tape.root(values[at]) for at in wanted}
    with np.errstate(all="ignore"):
        result = fn(*(roots.get(at, value) for at, value in enumerate(values)))

    def back(gradient: Any) -> list[Any]:
        parts = list(zip(result, gradient, strict=True)) if isinstance(result, tuple) else [(result, gradient)]
        ends = [(box, weight) for box, weight in parts if tape.holds(box) and not isinstance(weight, int)]
        with np.errstate(all="ignore"):
            gradients = tape.backward(ends, {root._node for root in roots.values()})
        return [gradients.get(root._node) for root in roots.values()]

    return tape.plain(result), back


def call_on_tape(fn: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    """Evaluate a function that nodes are made with, on the tape of its inputs by its VJP where it has one.

    Args:
        fn: The function.
        inputs: Its arguments, which may be on a tape.

    Returns:
        Its value, on the tape that the inputs are on.
    """
    traces = [item._trace for item in inputs if isbox(item)]
    vjp = vjp_of(fn) if traces else None
    box = None if vjp is None else Tape(max(traces)).box_by_vjp(vjp, inputs)
    return fn(*inputs) if box is None else box
