"""Small ops that gradients are made of: sums over what was broadcast, the sum of terms, ones and zeros.

Layer: tf1, below every other module of `ops` but primitives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.tf1.gradients.registry import gradient_of
from globalstep.tf1.graph.graph import Node, as_node, tuple_item
from globalstep.tf1.graph.indexed_slices import IndexedSlices
from globalstep.tf1.graph.kernels import computes, kernel_of
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops.primitives import broadcast, sum_to_shape

#: Arrays up to so many elements are computed while the graph is built, if that needs no run.
MAX_CONSTANT = 1 << 16


def _filled(like: Node, number: int, op_type: str) -> Node:
    kind, count = like.dtype.as_numpy_dtype, like.shape.num_elements()
    if count is not None and count <= MAX_CONSTANT:
        made = as_node(np.full([int(size) for size in like.shape], number, kind))
        made.attrs["filled"] = number
        return made
    return Node(op_type, (like,), dtype=like.dtype, shape=like.shape)


computes("OnesLike", lambda x, *, dtype: np.ones_like(x, dtype))
computes("ZerosLike", lambda x, *, dtype: np.zeros_like(x, dtype))


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
        if gradient.shape.is_fully_defined() and gradient.shape == x.shape:
            return gradient
        return Node("SumLike", (gradient,), dtype=gradient.dtype, shape=x.shape)
    return Node("SumLike", (gradient, x), dtype=gradient.dtype, shape=x.shape)


@kernel_of("SumLike")
def _sum_like(node: Node) -> Any:
    if len(node.inputs) == 2:
        return lambda g, like: sum_to_shape(g, like.shape)
    shape = tuple(int(size) for size in node.shape)
    return lambda g: sum_to_shape(g, shape)


def broadcast_like(x: Node, like: Node) -> Node:
    """Return a value broadcast to the shape of another one."""
    return Node("BroadcastLike", (x, like), dtype=x.dtype, shape=like.shape)


computes("BroadcastLike", lambda v, other: broadcast(v, other.shape))


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
    return Node("ConcatRows", parts, dtype=parts[0].dtype, shape=shape)


computes("ConcatRows", lambda *rows: np.concatenate(rows))


def add_terms(terms: Sequence[Node], like: Node, name: str | None = None) -> Node:
    """Return the sum of nodes of one dtype and shape."""
    return Node("AddN", terms, name=name, dtype=like.dtype, shape=like.shape)


@kernel_of("AddN")
def _add_n(node: Node) -> Any:
    if not all(part.shape.is_fully_defined() for part in node.inputs):
        return _sum_of_equals
    return np.add if len(node.inputs) == 2 else _sum


def _sum(*values: Any) -> Any:
    return sum(values[1:], values[0])


def _sum_of_equals(*values: Any) -> Any:
    shapes = [np.shape(value) for value in values]
    if shapes.count(shapes[0]) < len(shapes):
        raise InvalidArgumentError(f"Inputs to AddN must have the same size and shape, not {shapes}")
    return _sum(*values)


@gradient_of("AddN")
def _add_n_gradient(node: Node, grad: Node) -> Sequence[Node]:
    return [grad] * len(node.inputs)


def passes(*op_types: str) -> None:
    """Register the gradient of ops that give their first input as it is."""
    gradient_of(*op_types)(lambda node, grad: (grad, *[None] * (len(node.inputs) - 1)))


def again(of: Node, inputs: Sequence[Node]) -> Node:
    """Return a node that does with other inputs what a node does."""
    return Node(of.op_type, inputs, of.own_fn, dtype=of._dtype, shape=of.shape, attrs=dict(of.attrs))


def rearranges(*op_types: str, data: Callable[[Node], Sequence[int]] | None = None, views: bool = False) -> None:
    """Register the gradient of ops each of whose elements is one of their inputs', or 0.

    What lies where is found by the op's own function: of the places of the inputs' elements, in place of these, it
    makes the places that its elements come from.

    Args:
        *op_types: The kinds of nodes. Their functions take integers too, and look at the values of no input in `data`.
        data: Gives the places of the inputs that elements come from; default the first.
        views: Whether the function gives parts of its only such input as views of it, which is quicker.
    """
    gradient_of(*op_types)(lambda node, grad: put_back(node, grad, (0,) if data is None else tuple(data(node)), views))


def put_back(node: Node, grad: Any, places: tuple[int, ...] = (0,), views: bool = False) -> list[Node | None]:
    """Return the gradients of one node as `rearranges` describes them."""
    items = grad if isinstance(grad, list) else [grad]
    present = tuple(at for at, item in enumerate(items) if item is not None)
    attrs = {"of": node, "present": present, "several": isinstance(grad, list), "places": places, "views": views}
    kinds = [(node.inputs[place].dtype, node.inputs[place].shape) for place in places]
    result: list[Node | None] = [None] * len(node.inputs)
    inputs = (*(items[at] for at in present), *node.inputs)
    if len(places) == 1:
        result[places[0]] = Node("PutBack", inputs, dtype=kinds[0][0], shape=kinds[0][1], attrs=attrs)
        return result
    made = Node("PutBack", inputs, attrs={**attrs, "tuple": True})
    for at, (place, (dtype, shape)) in enumerate(zip(places, kinds, strict=True)):
        result[place] = tuple_item(made, at, dtype=dtype, shape=shape)
    return result


@kernel_of("PutBack")
def _put_back(node: Node) -> Any:
    present, several, places, views = (node.attrs[part] for part in ("present", "several", "places", "views"))
    fn, count = node.attrs["of"].fn, len(present)

    def put(*values: Any) -> Any:
        grads, inputs = values[:count], list(values[count:])
        if views:
            out = np.zeros(np.shape(inputs[0]), grads[0].dtype)
            made = fn(out, *inputs[1:])
            parts = [made[at] for at in present] if several else [made]
            if all(isinstance(part, np.ndarray) for part in parts):
                for part, of_part in zip(parts, grads, strict=True):
                    part[...] = of_part
                return out
        return _by_places(fn, present if several else None, places, grads, inputs)

    return put


def _by_places(fn: Any, present: Any, places: Sequence[int], grads: Sequence[Any], inputs: list[Any]) -> Any:
    shapes, start = [], 1
    for place in places:
        shapes.append(np.shape(inputs[place]))
        size = int(np.prod(shapes[-1]))
        inputs[place] = np.arange(start, start + size).reshape(shapes[-1])
        start += size
    made = fn(*inputs)
    parts = [made] if present is None else [made[at] for at in present]
    # Place 0 is that of what comes from nowhere.
    sources = np.concatenate([np.asarray(part).reshape(-1) for part in parts])
    weights = np.concatenate([np.asarray(part).reshape(-1) for part in grads])
    flat = np.bincount(sources, weights, start).astype(weights.dtype)
    ends = np.cumsum([1, *(int(np.prod(shape)) for shape in shapes)])
    results = tuple(flat[a:b].reshape(shape) for a, b, shape in zip(ends, ends[1:], shapes, strict=False))
    return results[0] if len(results) == 1 else results


@gradient_of("PutBack")
def _put_back_gradient(node: Node, grad: Any) -> list[Node | None]:
    of, present = node.attrs["of"], node.attrs["present"]
    inputs = list(node.inputs[len(present) :])
    for place, item in zip(node.attrs["places"], grad if isinstance(grad, list) else [grad], strict=False):
        inputs[place] = zeros(inputs[place]) if item is None else item
    made = again(of, inputs)
    rest = [None] * (len(node.inputs) - len(present))
    if not node.attrs["several"]:
        return [made, *rest]
    of_items = node.inputs[: len(present)]
    return [
        *(tuple_item(made, at, dtype=item.dtype, shape=item.shape) for at, item in zip(present, of_items, strict=True)),
        *rest,
    ]
