"""Order and repetition: sorted values, distinct ones with counts, differences of sets, rolled and repeated ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from globalstep.dtypes import DType, as_dtype
from globalstep.errors import InvalidArgumentError
from globalstep.tf1.gradients.registry import gradient_of
from globalstep.tf1.graph.graph import Node, as_node, tuple_item
from globalstep.tf1.graph.kernels import computes, kernel_of
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops.array_ops import broadcast_to, reshape, size
from globalstep.tf1.ops.building import elementwise, normal_axes, operand_list, operands, static_ints
from globalstep.tf1.ops.gradient_ops import rearranges
from globalstep.tf1.ops.indexing_ops import put_along
from globalstep.tf1.ops.reduction_ops import cumsum


def _order(value: Any, axis: int, direction: str) -> Any:
    """Give the places of the sorted values; the first of equal ones comes first, either way."""
    plain = np.asarray(value)
    if direction == "ASCENDING":
        return np.argsort(plain, axis=axis, kind="stable")
    backward = np.argsort(np.flip(plain, axis), axis=axis, kind="stable")
    return np.flip(plain.shape[axis] - 1 - backward, axis)


def _checked_direction(direction: str) -> str:
    if direction not in ("ASCENDING", "DESCENDING"):
        raise ValueError(f"Argument `direction` should be one of 'ASCENDING' or 'DESCENDING'. Received: {direction!r}")
    return direction


def sort(values: Any, axis: int = -1, direction: str = "ASCENDING", name: str | None = None) -> Node:
    """Give values in order along an axis.

    Args:
        values: Node or array.
        axis: The axis.
        direction: "ASCENDING" or "DESCENDING".
        name: Name of the node; default "sort".

    Returns:
        A node like `values`.

    Raises:
        ValueError: For another direction.
    """
    node, order = as_node(values), _checked_direction(direction)
    (place,) = normal_axes(axis, node)
    return elementwise("Sort", node, name or "sort", axis=place, direction=order)


@computes("Sort")
def _sort(value: Any, *, axis: int, direction: str) -> Any:
    return np.take_along_axis(value, _order(value, axis, direction), axis)


@gradient_of("Sort")
def _sort_gradient(node: Node, grad: Node) -> Any:
    (values,), axis = node.inputs, node.attrs["axis"]
    return (put_along(grad, argsort(values, axis, node.attrs["direction"]), values, axis),)


def argsort(
    values: Any, axis: int = -1, direction: str = "ASCENDING", stable: bool = False, name: str | None = None
) -> Node:
    """Give the places that values in order come from, int32; `stable` has no effect: equal values keep their order."""
    node, order = as_node(values), _checked_direction(direction)
    (place,) = normal_axes(axis, node)
    return elementwise(
        "ArgSort", node, name or "argsort", "int32", axis=place, direction=order, stops_gradient=True
    )  # fmt: skip


@computes("ArgSort")
def _argsort(value: Any, *, axis: int, direction: str) -> Any:
    return _order(value, axis, direction).astype(np.int32)


class UniqueWithCounts(NamedTuple):
    """The result of `unique_with_counts`: y[idx[i]] == x[i].

    Attributes:
        y: The distinct values, a node [m].
        idx: The place of each element among them, a node [n].
        count: How often each of them is there, a node [m].
    """

    y: Node
    idx: Node
    count: Node  # type: ignore[assignment]  # a name of tuple as well


class ListDiff(NamedTuple):
    """The result of `setdiff1d`: x[idx[i]] == out[i].

    Attributes:
        out: The values that are left, a node [m].
        idx: Their places, a node [m].
    """

    out: Node
    idx: Node


def unique_with_counts(x: Any, out_idx: Any = "int32", name: str | None = None) -> UniqueWithCounts:
    """Give the distinct values of a vector in order of first occurrence, the place of each element, and their counts.

    Returns:
        The values [m] as `y`; of the dtype `out_idx` their places [n] as `idx` and their counts [m] as `count`.
    """
    node, kind = as_node(x), as_dtype(out_idx)
    attrs = {"tuple": True, "out_idx": kind, "stops_gradient": True}
    parts = Node("UniqueWithCounts", (node,), name=name, attrs=attrs)
    return UniqueWithCounts(
        tuple_item(parts, 0, dtype=node.dtype, shape=[None]),
        tuple_item(parts, 1, dtype=kind, shape=node.shape),
        tuple_item(parts, 2, dtype=kind, shape=[None]),
    )


@computes("UniqueWithCounts")
def _unique_with_counts(values: Any, *, out_idx: DType) -> Any:
    _, first, inverse, counts = np.unique(values, return_index=True, return_inverse=True, return_counts=True)
    order, kind = np.argsort(first), out_idx.as_numpy_dtype
    position = np.argsort(order)[inverse.reshape(-1)]
    return values[first[order]], position.astype(kind), counts[order].astype(kind)


def setdiff1d(x: Any, y: Any, index_dtype: Any = "int32", name: str | None = None) -> ListDiff:
    """Give the elements of a vector that are not in another one, in their order, repeats included.

    Returns:
        The values [m] as `out`, and their places in `x` [m], of the dtype `index_dtype`, as `idx`.
    """
    left, right = operands("ListDiff", x, y)
    kind = as_dtype(index_dtype)
    attrs = {"tuple": True, "out_idx": kind, "stops_gradient": True}
    parts = Node("ListDiff", (left, right), name=name, attrs=attrs)
    return ListDiff(
        tuple_item(parts, 0, dtype=left.dtype, shape=[None]), tuple_item(parts, 1, dtype=kind, shape=[None])
    )


@computes("ListDiff")
def _list_diff(values: Any, others: Any, *, out_idx: DType) -> Any:
    places = np.flatnonzero(~np.isin(values, others))
    return values[places], places.astype(out_idx.as_numpy_dtype)


def unravel_index(indices: Any, dims: Any, name: str | None = None) -> Node:
    """Give places in a flat array as those in an array of the shape `dims`: [rank, *indices' shape]."""
    flat, sizes = operands("UnravelIndex", indices, dims, ("indices", "dims"))
    static = None
    if flat.shape.ndims in (0, 1) and sizes.shape.ndims == 1:
        static = [sizes.shape.as_list()[0], *flat.shape.as_list()]
    return Node("UnravelIndex", (flat, sizes), name=name, dtype=flat.dtype, shape=TensorShape(static),
                attrs={"stops_gradient": True})  # fmt: skip


computes("UnravelIndex", lambda at, shape: np.stack(np.unravel_index(at, tuple(shape))).astype(at.dtype))


def roll(input: Any, shift: Any, axis: Any, name: str | None = None) -> Node:
    """Shift values along axes; what leaves at one end comes in at the other.

    Args:
        input: Node or array.
        shift: How far, for each axis: an int, several, or an integer node.
        axis: The axis, or several.
        name: Name of the node.
    """
    node, steps, axes = as_node(input), as_node(shift), static_ints(axis, "axis")
    return Node("Roll", (node, steps), name=name, dtype=node.dtype, shape=node.shape, attrs={"axis": axes})


@computes("Roll")
def _roll(value: Any, far: Any, *, axis: tuple[int, ...]) -> Any:
    for place, count in zip(axis, np.asarray(far).reshape(-1), strict=True):
        value = np.roll(value, int(count), axis=place)
    return value


def repeat(input: Any, repeats: Any, axis: int | None = None, name: str | None = None) -> Node:
    """Repeat each element, or each slice along an axis.

    Args:
        input: Node or array.
        repeats: How often: an int, one for each element, or an integer node.
        axis: The axis; by default the array is made flat.
        name: Name of the node; default "Repeat".
    """
    node, counts = as_node(input), as_node(repeats)
    (place,) = (None,) if axis is None else normal_axes(axis, node)
    shape = [None]
    if place is not None:
        shape = None if node.shape.dims is None else node.shape.as_list()  # type: ignore[assignment]
        if shape is not None:
            shape[place] = None
    return Node("Repeat", (node, counts), name=name or "Repeat", dtype=node.dtype, shape=TensorShape(shape),
                attrs={"axis": place})  # fmt: skip


computes("Repeat", lambda value, often, *, axis: np.repeat(value, np.reshape(often, -1), axis))


def meshgrid(*args: Any, **kwargs: Any) -> list[Node]:
    """Give vectors as arrays over all combinations of their elements, as numpy's function does.

    Args:
        *args: Nodes or arrays [n_i].
        **kwargs: `indexing`: "xy" (default: the first two axes are swapped) or "ij"; `name`.

    Returns:
        A node for each vector.

    Raises:
        TypeError: For another argument.
        ValueError: For another indexing.
    """
    indexing, name = kwargs.pop("indexing", "xy"), kwargs.pop("name", "meshgrid")
    if kwargs:
        raise TypeError(f"'{next(iter(kwargs))}' is an invalid keyword argument for this function")
    if indexing not in ("xy", "ij"):
        raise ValueError(f"Argument `indexing` parameter must be either 'xy' or 'ij', got '{indexing}'")
    nodes = operand_list("Meshgrid", args) if args else []
    order = list(range(len(nodes)))
    if indexing == "xy" and len(nodes) > 1:
        order[:2] = [1, 0]
    counts = [node.shape.num_elements() for node in nodes]
    sizes = [size(node) if count is None else count for node, count in zip(nodes, counts, strict=True)]
    made = []
    for number, node in enumerate(nodes):
        form = [-1 if place == number else 1 for place in order]
        made.append(broadcast_to(reshape(node, form), [sizes[i] for i in order], name))
    return made


def batch_gather(params: Any, indices: Any, name: str | None = None) -> Node:
    """Give for each batch the slices at its own indices.

    Args:
        params: Node or array [*batch, n, ...].
        indices: Integer node or array [*batch, m].
        name: Name of the node; default "BatchGather".

    Returns:
        A node [*batch, m, ...].
    """
    values, ids = as_node(params), as_node(indices)
    shape = None
    if values.shape.dims is not None and ids.shape.ndims is not None:
        shape = [*ids.shape.as_list(), *values.shape.as_list()[ids.shape.ndims :]]
    return Node("BatchGather", (values, ids), name=name or "BatchGather", dtype=values.dtype, shape=TensorShape(shape))


@computes("BatchGather")
def _batch_gather(rows: Any, places: Any) -> Any:
    lead = np.ndim(places) - 1
    grid = [np.arange(size).reshape((-1,) + (1,) * (lead - i)) for i, size in enumerate(np.shape(places)[:-1])]
    return rows[(*grid, places)]


def cumprod(x: Any, axis: Any = 0, exclusive: bool = False, reverse: bool = False, name: str | None = None) -> Node:
    """Give running products along an axis; as in TensorFlow, the gradient is NaN where an element is 0.

    Args:
        x: Node or array.
        axis: The axis.
        exclusive: Whether an element is left out of its own product.
        reverse: Whether products run from the end.
        name: Name of the node.

    Returns:
        A node of the shape and dtype of `x`.
    """
    node = as_node(x)
    (place,) = normal_axes(axis, node)
    return elementwise("Cumprod", node, name, axis=place, exclusive=exclusive, reverse=reverse)


@computes("Cumprod")
def _cumprod(value: Any, *, axis: int, exclusive: bool, reverse: bool) -> Any:
    turned = np.flip(value, axis) if reverse else value
    if exclusive:
        front = (slice(None),) * (axis % np.ndim(value))
        one = np.ones_like(turned[(*front, slice(0, 1))])
        turned = np.concatenate([one, turned[(*front, slice(0, -1))]], axis=axis)
    total = np.cumprod(turned, axis=axis, dtype=value.dtype)
    return np.flip(total, axis) if reverse else total


@gradient_of("Cumprod")
def _cumprod_gradient(node: Node, grad: Node) -> Any:
    how = node.attrs
    return (cumsum(node * grad, how["axis"], how["exclusive"], not how["reverse"]) / node.inputs[0],)


rearranges("BatchGather", "Repeat", "Roll")


def searchsorted(
    sorted_sequence: Any, values: Any, side: str = "left", out_type: Any = "int32", name: str | None = None
) -> Node:
    """Give the first ("left") or the last ("right") places where values [..., m] keep rows [..., n] in order.

    Raises:
        ValueError: For another side.
        InvalidArgumentError: In the run, if the numbers of rows differ.
    """
    if side not in ("left", "right"):
        raise ValueError(f"side must be either 'right' or 'left'.  Saw: {side}.")
    kind, attrs = "LowerBound" if side == "left" else "UpperBound", {"stops_gradient": True}
    rows, wanted = operands(kind, sorted_sequence, values)
    return Node(kind, (rows, wanted), name=name, dtype=as_dtype(out_type), shape=wanted.shape, attrs=attrs)


@kernel_of("LowerBound", "UpperBound")
def _bound(node: Node) -> Any:
    side: Any = "left" if node.op_type == "LowerBound" else "right"
    kind = node.dtype.as_numpy_dtype

    def find(rows: Any, values: Any) -> Any:
        flat, wanted = (np.reshape(one, (-1, np.shape(one)[-1])) for one in (rows, values))
        if len(flat) != len(wanted):
            raise InvalidArgumentError("Leading dim_size of both tensors must match.")
        found = [np.searchsorted(row, value, side) for row, value in zip(flat, wanted, strict=True)]
        return np.reshape(found, np.shape(values)).astype(kind)

    return find
