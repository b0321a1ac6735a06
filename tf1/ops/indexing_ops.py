"""Functions that pick elements: slices, gathers, masks, choices, one-hot rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from globalstep.dtypes import DTypeLike, as_dtype
from globalstep.errors import InvalidArgumentError
from globalstep.tf1.gradients.registry import gradient_of
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.indexed_slices import IndexedSlices
from globalstep.tf1.graph.kernels import computes, kernel_of
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops.array_ops import reshape
from globalstep.tf1.ops.building import (
    as_shape_node,
    broadcast_shapes,
    elementwise,
    is_node,
    operands,
    sizes_of,
    static_ints,
    static_value,
)
from globalstep.tf1.ops.gradient_ops import rearranges, unbroadcast
from globalstep.tf1.ops.math_ops import masked
from globalstep.tf1.ops.primitives import scatter_rows, take_rows

__all__ = [
    "boolean_mask",
    "gather",
    "gather_nd",
    "getitem",
    "one_hot",
    "put_along",
    "scatter_nd",
    "slice",
    "strided_slice",
    "where",
]


_slice = slice
#: As an index: a new axis.
newaxis = None


def getitem(node: Node, key: Any, name: str = "strided_slice") -> Node:
    """Give `node[key]`: ints, slices, `...`, None, and integer nodes in the place of ints."""
    parts = key if isinstance(key, tuple) else (key,)
    if len(parts) == 1 and is_node(parts[0]) and as_node(parts[0]).dtype.is_bool:
        return boolean_mask(node, parts[0])
    inputs: list[Node] = [node]

    def hold(part: Any) -> Any:
        """Take a node among the inputs, and remember where it is."""
        if not is_node(part):
            return part
        inputs.append(as_node(part))
        return ("input", len(inputs) - 1)

    plan = [
        _slice(hold(part.start), hold(part.stop), hold(part.step)) if isinstance(part, _slice) else hold(part)
        for part in parts
    ]
    shape, attrs = TensorShape(None), dict[str, Any](plan=tuple(plan))
    if len(inputs) > 1:
        shape = _dynamic_shape(node, plan)
    else:
        attrs["index"] = plan[0] if len(plan) == 1 else tuple(plan)
        if node.shape.dims is not None:
            shape = _sliced_shape(node.name, node.shape.as_list(), tuple(plan))
    return Node("StridedSlice", inputs, name=name, dtype=node.dtype, shape=shape, attrs=attrs)


@kernel_of("StridedSlice")
def _strided_slice(node: Node) -> Any:
    name, plan = node.inputs[0].name, node.attrs["plan"]

    def take(value: Any, index: tuple[Any, ...] = plan) -> Any:
        try:
            return value[index]
        except IndexError as error:
            raise InvalidArgumentError(f"slice index of {name!r} is out of bounds: {error}") from None

    if len(node.inputs) == 1:
        return take

    def resolve(part: Any, values: Sequence[Any]) -> Any:
        if isinstance(part, _slice):
            return _slice(*(resolve(p, values) for p in (part.start, part.stop, part.step)))
        return int(values[part[1]]) if isinstance(part, tuple) else part

    return lambda *values: take(values[0], tuple(resolve(part, values) for part in plan))


def _dynamic_shape(node: Node, plan: Sequence[Any]) -> TensorShape:
    """Give what is known of the shape of a part whose bounds are nodes."""

    def is_dynamic(part: Any) -> bool:
        bounds = (part.start, part.stop, part.step) if isinstance(part, _slice) else ()
        return any(isinstance(bound, tuple) for bound in bounds)

    if node.shape.dims is None:
        return TensorShape(None)
    # An index that is a node takes its axis away; a slice by nodes keeps it, of a size that is not known.
    index = tuple(0 if isinstance(part, tuple) else _slice(None) if is_dynamic(part) else part for part in plan)
    sizes = node.shape.as_list()
    axis = 0
    places = len(sizes) - sum(part is not None and part is not ... for part in plan)
    for part in plan:
        if part is ...:
            axis += places
        elif part is not None:
            if is_dynamic(part) and axis < len(sizes):
                sizes[axis] = None
            elif isinstance(part, tuple) and axis < len(sizes):
                sizes[axis] = max(sizes[axis] or 1, 1)
            axis += 1
    return _sliced_shape(node.name, sizes, index)


def _sliced_shape(name: str, dims: Sequence[int | None], index: tuple[Any, ...]) -> TensorShape:
    """Slice a shape axis by axis, with large sizes for unknown ones."""
    count = sum(part is not None and part is not ... for part in index)
    if count > len(dims) or sum(part is ... for part in index) > 1:
        raise ValueError(f"slice index of {name!r} is out of bounds: {count} indices of {len(dims)} dimensions")
    at = next((place for place, part in enumerate(index) if part is ...), len(index))
    whole = [_slice(None)] * (len(dims) - count)
    sizes, sliced = iter(dims), list[int | None]()
    for part in (*index[:at], *whole, *index[at + 1 :]):
        if part is None:
            sliced.append(1)
            continue
        size = next(sizes)
        if isinstance(part, _slice):
            lengths = {len(range(*part.indices(guess))) for guess in ((10**6, 10**6 + 2) if size is None else (size,))}
            sliced.append(lengths.pop() if len(lengths) == 1 else None)
        elif size is not None and not -size <= part < size:
            raise ValueError(f"slice index of {name!r} is out of bounds: {part} of {size}")
    return TensorShape(sliced)


def slice(input_: Any, begin: Any, size: Any, name: str | None = None) -> Node:
    """Give the part that starts at `begin` and has `size` (-1: to the end).

    Args:
        input_: Node or array of rank n.
        begin: Ints or integer node [n].
        size: Ints or integer node [n].
        name: Name of the node.

    Returns:
        A node.
    """
    node, starts, sizes = as_node(input_), as_shape_node(begin), as_shape_node(size)
    dims = sizes_of(sizes)
    if dims is not None and starts.op_type == "Const" and node.shape.dims is not None:
        dims = [
            n if n is not None or whole is None or sizes.op_type != "Const" else whole - int(b)
            for n, whole, b in zip(dims, node.shape.as_list(), starts.attrs["value"], strict=True)
        ]
    return Node("Slice", (node, starts, sizes), name=name, dtype=node.dtype, shape=TensorShape(dims))


def _cut(value: Any, first: Any, count: Any, name: str) -> Any:
    ends = [None if n < 0 else int(b) + int(n) for b, n in zip(first, count, strict=True)]
    for b, e, whole in zip(first, ends, np.shape(value), strict=True):
        if b < 0 or (e or 0) > whole:
            raise InvalidArgumentError(
                f"Expected begin and size arguments within the shape {np.shape(value)} of {name!r}; "
                f"got begin {list(first)} and size {list(count)}"
            )
    return value[tuple(_slice(int(b), e) for b, e in zip(first, ends, strict=True))]


kernel_of("Slice")(lambda node: partial(_cut, name=node.inputs[0].name))


def strided_slice(
    input_: Any,
    begin: Any,
    end: Any,
    strides: Any = None,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
    var: Any = None,
    name: str | None = None,
) -> Node:
    """Give a strided part; `x[begin:end:step]` is the readable way to write it.

    Args:
        input_: Node or array.
        begin: First index of each axis: ints, a list of ints and nodes, or an integer node.
        end: Index behind the last one of each axis; the same.
        strides: Step of each axis, default 1; the same.
        begin_mask: Bit i: axis i begins at its start, whatever `begin` says.
        end_mask: Bit i: axis i goes to its end.
        ellipsis_mask: Bit i: place i stands for all axes that no other place is for; one bit at most.
        new_axis_mask: Bit i: place i is a new axis of size 1.
        shrink_axis_mask: Bit i: axis i is taken at `begin[i]` and falls away.
        var: Ignored.
        name: Name of the node; default "strided_slice".

    Returns:
        A node of the dtype of `input_`.

    Raises:
        ValueError: If the number of places is not known, or several are an ellipsis.
    """
    if ellipsis_mask & (ellipsis_mask - 1):
        raise ValueError("Multiple ellipses not allowed")
    starts = _each_place(begin, "begin")
    ends = _each_place(end, "end")
    steps = [1] * len(starts) if strides is None else _each_place(strides, "strides")
    if not len(starts) == len(ends) == len(steps):
        raise ValueError(
            f"begin, end and strides must have one length, but have {len(starts)}, {len(ends)} and {len(steps)}."
        )
    parts: list[Any] = []
    for i, (b, e, s) in enumerate(zip(starts, ends, steps, strict=True)):
        if ellipsis_mask >> i & 1:
            parts.append(...)
        elif new_axis_mask >> i & 1:
            parts.append(None)
        elif shrink_axis_mask >> i & 1:
            parts.append(b)
        else:
            parts.append(_slice(None if begin_mask >> i & 1 else b, None if end_mask >> i & 1 else e, s))
    return getitem(as_node(input_), tuple(parts), name or "strided_slice")


def _each_place(values: Any, what: str) -> list[Any]:
    """Give ints, or nodes, for the places of a vector of them."""
    if isinstance(values, (list, tuple)):
        return [item if is_node(item) else int(item) for item in values]
    static = static_value(values)
    if static is not None:
        return [int(item) for item in np.asarray(static).reshape(-1)]
    node = as_node(values)
    count = node.shape.as_list()[0] if node.shape.ndims == 1 else None
    if count is None:
        raise ValueError(f"How many numbers {what} has must be known when the graph is built: {node.name!r}.")
    return [node[at] for at in range(count)]


def gather(params: Any, indices: Any, validate_indices: Any = None, name: str | None = None, axis: Any = 0) -> Node:
    """Give rows of `params`, or slices along another axis.

    Of a Variable, a run pulls only these rows from the parameter servers, and the gradient is
    IndexedSlices, so that a push carries only them too.

    Args:
        params: Variable, node or array.
        indices: Integer node or array of any shape; each in [0, size of the axis).
        validate_indices: Accepted; indices are always checked.
        name: Name of the node.
        axis: The axis to pick along.

    Returns:
        A node of shape params.shape[:axis] + indices.shape + params.shape[axis + 1:].

    Raises:
        InvalidArgumentError: In the run, if an index is out of range.
    """
    table, ids = as_node(params), as_node(indices)
    if not ids.dtype.is_integer:
        raise TypeError(
            f"Value passed to parameter 'indices' has DataType {ids.dtype.name} not in list of allowed "
            "values: int32, int64"
        )
    (place,) = static_ints(axis, "axis")
    if place < 0 and table.shape.ndims is not None:
        place += table.shape.ndims
    if place != 0 and table.op_type == "VariableV2":
        # Only rows can be pulled; along another axis all of the Variable is read first.
        table = elementwise("Identity", table, None)
    shape = TensorShape(None)
    if table.shape.dims is not None and ids.shape.dims is not None:
        sizes = table.shape.as_list()
        if place >= len(sizes):
            raise ValueError(f"Shape must be at least rank {place + 1} but is rank {len(sizes)} for {table.name!r}.")
        shape = TensorShape([*sizes[:place], *ids.shape.as_list(), *sizes[place + 1 :]])
    attrs = {"axis": place}
    return Node("GatherV2", (table, ids), name=name or "Gather", dtype=table.dtype, shape=shape, attrs=attrs)


kernel_of("GatherV2")(lambda node: partial(take_rows, axis=node.attrs["axis"]))


@gradient_of("GatherV2")
def _gather_gradient(node: Node, grad: Node) -> Any:
    params, ids = node.inputs[:2]
    axis = node.attrs.get("axis", 0)
    if params.op_type == "VariableV2" and axis == 0:
        row = tuple(int(size) for size in params.shape)[1:]
        rows = grad
        if ids.shape.ndims != 1:
            rows = Node("Rows", (grad,), dtype=grad.dtype, shape=[None, *row])
        indices = Node("RowIds", (ids,), dtype="int64", shape=[ids.shape.num_elements()])
        return IndexedSlices(rows, indices, params.shape.as_list()), *[None] * (len(node.inputs) - 1)
    return add_rows_like(grad, ids, params, axis), *[None] * (len(node.inputs) - 1)


kernel_of("Rows")(lambda node: lambda values: values.reshape(-1, *node.shape.as_list()[1:]))
computes("RowIds", lambda ids: np.asarray(ids).reshape(-1).astype(np.int64))


def add_rows_like(rows: Node, ids: Node, like: Node, axis: int = 0) -> Node:
    """Give zeros of the shape of `like`, with rows added at some indices along an axis: what `gather` does, back."""
    return Node("AddRows", (rows, ids, like), dtype=rows.dtype, shape=like.shape, attrs={"axis": axis})


@computes("AddRows")
def _add_rows(values: Any, at: Any, whole: Any, *, axis: int) -> Any:
    shape = np.shape(whole)
    if axis == 0:
        return scatter_rows(values, at, shape)
    place = axis % len(shape)
    moved = (shape[place], *shape[:place], *shape[place + 1 :])
    source, target = tuple(range(place, place + at.ndim)), tuple(range(at.ndim))
    return np.moveaxis(scatter_rows(np.moveaxis(values, source, target), at, moved), 0, place)


@gradient_of("AddRows")
def _add_rows_gradient(node: Node, grad: Node) -> Any:
    return gather(grad, node.inputs[1], axis=node.attrs["axis"]), None, None


def take_along(values: Node, places: Node, axis: int) -> Node:
    """Give the elements at places along an axis, as numpy's function does."""
    return Node("TakeAlong", (values, places), dtype=values.dtype, shape=places.shape, attrs={"axis": axis})


kernel_of("TakeAlong")(lambda node: partial(np.take_along_axis, axis=node.attrs["axis"]))


def put_along(values: Node, places: Node, like: Node, axis: int) -> Node:
    """Give zeros of the shape of `like`, with values added up where `take_along` takes them from."""
    return Node("PutAlong", (values, places, like), dtype=values.dtype, shape=like.shape, attrs={"axis": axis})


@computes("PutAlong")
def _put_along(given: Any, at: Any, whole: Any, *, axis: int) -> Any:
    sums = np.zeros(np.shape(whole), given.dtype)
    grid = list(np.indices(np.shape(at), sparse=True))
    grid[axis] = at
    np.add.at(sums, tuple(grid), given)
    return sums


@gradient_of("TakeAlong")
def _take_along_gradient(node: Node, grad: Node) -> Any:
    values, places = node.inputs
    return put_along(grad, places, values, node.attrs["axis"]), None


@gradient_of("PutAlong")
def _put_along_gradient(node: Node, grad: Node) -> Any:
    return take_along(grad, node.inputs[1], node.attrs["axis"]), None, None


def gather_nd(params: Any, indices: Any, name: str | None = None) -> Node:
    """Give the elements or slices at index tuples.

    Args:
        params: Node or array.
        indices: Integer node or array [..., k]: each row of k ints names params[i0, i1, ...].
        name: Name of the node.

    Returns:
        A node of shape indices.shape[:-1] + params.shape[k:].
    """
    table, ids = as_node(params), as_node(indices)
    shape = TensorShape(None)
    if table.shape.dims is not None and ids.shape.dims is not None:
        (*lead, depth) = ids.shape.as_list()
        shape = TensorShape(None if depth is None else [*lead, *table.shape.as_list()[depth:]])
    return Node("GatherNd", (table, ids), name=name, dtype=table.dtype, shape=shape)


@computes("GatherNd")
def _gather_nd(value: Any, at: Any) -> Any:
    depth = at.shape[-1]
    sizes = np.shape(value)[:depth]
    if at.size and (at.min() < 0 or np.any(at >= np.array(sizes))):
        raise InvalidArgumentError(f"gather_nd: an index is out of bounds of the shape {np.shape(value)}")
    flat = np.ravel_multi_index(tuple(np.moveaxis(at, -1, 0)), sizes) if depth else np.zeros(at.shape[:-1], int)
    return take_rows(np.reshape(value, (int(np.prod(sizes)), *np.shape(value)[depth:])), flat)


def scatter_nd(indices: Any, updates: Any, shape: Any, name: str | None = None) -> Node:
    """Add slices at index tuples into zeros; what `gather_nd` does, the other way round.

    Args:
        indices: Integer node or array [..., depth]: index tuples into the first `depth` axes of the result.
        updates: Node or array: a slice for each index tuple. Slices of equal tuples add up.
        shape: Shape of the result: ints, or an integer node.
        name: Name of the node.

    Returns:
        A node of `shape` and the dtype of `updates`.
    """
    ids, values, sizes = as_node(indices), as_node(updates), as_shape_node(shape)
    return Node("ScatterNd", (ids, values, sizes), name=name, dtype=values.dtype, shape=TensorShape(sizes_of(sizes)))


@computes("ScatterNd")
def _scatter_nd(at: Any, rows: Any, wanted: Any) -> Any:
    full = tuple(int(n) for n in wanted)
    lead, rest = full[: at.shape[-1]], full[at.shape[-1] :]
    flat = np.ravel_multi_index(tuple(np.moveaxis(at, -1, 0)), lead).reshape(-1)
    return np.reshape(scatter_rows(rows, flat, (int(np.prod(lead)), *rest)), full)


def boolean_mask(tensor: Any, mask: Any, name: str = "boolean_mask", axis: int | None = None) -> Node:
    """Give the elements where `mask` holds.

    Args:
        tensor: Node or array.
        mask: Boolean node or array, of the shape that `tensor` has from `axis` on, or of its beginning.
        name: Name of the node.
        axis: Where the mask starts; default 0.

    Returns:
        A node with one dimension in place of those of the mask.
    """
    node, where_true = as_node(tensor), as_node(mask)
    if where_true.shape.ndims == 0:
        raise ValueError("mask cannot be scalar.")
    if where_true.shape.ndims is None:
        raise ValueError("Number of mask dimensions must be specified, even if some dimensions are None.")
    start = axis or 0
    end = start + where_true.shape.ndims
    node.shape[start:end].assert_is_compatible_with(where_true.shape)
    dims = node.shape.as_list() if node.shape.dims is not None else None
    shape = None if dims is None else [*dims[:start], None, *dims[end:]]
    attrs = {"axis": start}
    return Node("BooleanMask", (node, where_true), name=name, dtype=node.dtype, shape=TensorShape(shape), attrs=attrs)


@computes("BooleanMask")
def _boolean_mask(value: Any, truth: Any, *, axis: int) -> Any:
    full, end = np.shape(value), axis + np.ndim(truth)
    merged = (*full[:axis], int(np.prod(full[axis:end])), *full[end:])
    return take_rows(np.reshape(value, merged), np.flatnonzero(truth), axis)


def where(condition: Any, x: Any = None, y: Any = None, name: str | None = None) -> Node:
    """Choose elements of `x` where `condition` holds and of `y` elsewhere; or say where it holds.

    Args:
        condition: Boolean node or array: of the shape of `x`, or a vector as long as `x` that chooses
            whole rows, or a scalar.
        x: Node or array; None with `y`.
        y: Another of the same dtype and shape; None with `x`.
        name: Name of the node.

    Returns:
        A node of the shape of `x`; without `x` and `y`, int64 [n, rank]: the places where `condition`
        holds.

    Raises:
        ValueError: If only one of `x` and `y` is given.
    """
    truth = as_node(condition)
    if x is None and y is None:
        return Node("Where", (truth,), name=name, dtype="int64", shape=[None, truth.shape.ndims])
    if x is None or y is None:
        raise ValueError("x and y must both be non-None or both be None.")
    a, b = operands("Select", x, y)
    shape = broadcast_shapes("Select", a, b)
    rows: bool | None = truth.shape.ndims == 1 and (shape.ndims or 0) > 1
    if (truth.shape.ndims is None and shape.ndims != 1) or (truth.shape.ndims == 1 and shape.ndims is None):
        rows = None  # The run says.
    if not rows and shape.dims is not None and truth.shape.ndims not in (0, None):
        shape = broadcast_shapes("Select", truth, a if a.shape.ndims else b)
    return Node("Select", (truth, a, b), name=name, dtype=a.dtype, shape=shape, attrs={"rows": rows})


computes("Where", lambda condition: np.argwhere(condition).astype(np.int64))


@kernel_of("Select")
def _select(node: Node) -> Any:
    if node.attrs["rows"] is False and all(part.shape.is_fully_defined() for part in node.inputs):
        return np.where
    return _chosen


def _chosen(c: Any, x: Any, y: Any) -> Any:
    shapes = {np.shape(x), np.shape(y)} - {()} or {np.shape(c)}
    full, own = next(iter(shapes)), np.shape(c)
    if len(shapes) > 1 or own not in ((), full[:1], full):
        raise InvalidArgumentError(f"Inputs to Select must have the same size and shape, not {own} and {[*shapes]}")
    return np.where(np.reshape(c, own + (1,) * (len(full) - 1)) if own != full and own else c, x, y)


def one_hot(
    indices: Any,
    depth: Any,
    on_value: Any = None,
    off_value: Any = None,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    name: str | None = None,
) -> Node:
    """Give rows that are `on_value` at an index and `off_value` elsewhere.

    Args:
        indices: Integer node or array; an index outside [0, depth) gives a row of `off_value`.
        depth: Length of the rows.
        on_value: Default 1.
        off_value: Default 0.
        axis: Where the new dimension is; default the last.
        dtype: Default that of `on_value` or `off_value`, else float32.
        name: Name of the node.

    Returns:
        A node.

    Raises:
        TypeError: If `dtype` does not match `on_value` or `off_value`.
    """
    ids, length = as_node(indices), as_node(depth)
    for value, word in ((on_value, "on_value"), (off_value, "off_value")):
        if dtype is not None and is_node(value) and as_node(value).dtype != as_dtype(dtype):
            raise TypeError(
                f"dtype {as_node(value).dtype.name} of {word} does not match dtype parameter {as_dtype(dtype).name}"
            )
    if dtype is None:
        nodes = [as_node(v) for v in (on_value, off_value) if v is not None]
        dtype = nodes[0].dtype if nodes else "float32"
    kind = as_dtype(dtype)
    on = as_node(1 if on_value is None else on_value, None if is_node(on_value) else kind, name="one_hot/on_value")
    off = as_node(0 if off_value is None else off_value, None if is_node(off_value) else kind, name="one_hot/off_value")
    place = -1 if axis is None else axis
    shape = TensorShape(None)
    if ids.shape.dims is not None:
        sizes = ids.shape.as_list()
        count = static_value(length)
        sizes.insert(place if place >= 0 else len(sizes) + 1 + place, None if count is None else int(count))
        shape = TensorShape(sizes)
    inputs, attrs = (ids, length, on, off), {"axis": place}
    return Node("OneHot", inputs, name=name or "one_hot", dtype=kind, shape=shape, attrs=attrs)


@computes("OneHot")
def _one_hot(at: Any, count: Any, high: Any, low: Any, *, axis: int) -> Any:
    hot = np.asarray(at)[..., None] == np.arange(int(count))
    return np.where(np.moveaxis(hot, -1, axis), high, low)


rearranges("Slice", "StridedSlice", views=True)
rearranges("BooleanMask", "GatherNd")


@gradient_of("ScatterNd")
def _scatter_nd_gradient(node: Node, grad: Node) -> Any:
    return None, gather_nd(grad, node.inputs[0]), None


@gradient_of("Select")
def _select_gradient(node: Node, grad: Node) -> Any:
    condition, x, y = node.inputs
    if node.attrs["rows"] is None:
        return None, unbroadcast(where(condition, grad, 0.0), x, y), unbroadcast(where(condition, 0.0, grad), y, x)
    if node.attrs["rows"]:
        rank = grad.shape.ndims
        sizes = [-1, *[1] * ((rank or 1) - 1)]
        condition = reshape(condition, sizes)
    return None, unbroadcast(masked(grad, condition), x, y), unbroadcast(masked(grad, condition, False), y, x)
