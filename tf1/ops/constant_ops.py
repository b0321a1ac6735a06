"""Constants, placeholders, and arrays filled with one number."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from globalstep.dtypes import DType, DTypeLike, as_dtype
from globalstep.tf1.gradients.registry import gradient_of, no_gradient
from globalstep.tf1.graph.graph import Node, as_node, constant_array
from globalstep.tf1.graph.indexed_slices import IndexedSlices
from globalstep.tf1.graph.kernels import computes, kernel_of
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops.building import MAX_STATIC, as_shape_node, elementwise, is_node, operand_list, sizes_of
from globalstep.tf1.ops.gradient_ops import passes
from globalstep.tf1.ops.primitives import broadcast
from globalstep.tf1.ops.reduction_ops import reduce_sum

__all__ = [
    "constant",
    "convert_to_tensor",
    "convert_to_tensor_or_indexed_slices",
    "eye",
    "fill",
    "filled",
    "lin_space",
    "linspace",
    "ones",
    "ones_like",
    "placeholder",
    "placeholder_with_default",
    "range",
    "zeros",
    "zeros_like",
]


def constant(
    value: Any, dtype: DTypeLike | None = None, shape: Any = None, name: str = "Const", verify_shape: bool = False
) -> Node:
    """Give a constant.

    Args:
        value: Number, string, nested list or array.
        dtype: Its dtype; default float32 for Python floats, int32 for Python ints, else the array's own.
        shape: Its shape; fewer elements than it has are filled up with the last one.
        name: Name of the node.
        verify_shape: Whether `value` must have exactly `shape`.

    Returns:
        A node.

    Raises:
        TypeError: If `value` does not have `shape` with `verify_shape`, or holds a node.
        ValueError: If `shape` has fewer elements than `value`.

    >>> constant([1.0, 2.0]).dtype
    gs.float32
    """
    if is_node(value):
        raise TypeError(f"List of Tensors when single Tensor expected: a constant cannot be made of {value!r}.")
    array = constant_array(value, dtype)
    if shape is not None:
        wanted = tuple(int(size) for size in TensorShape(shape))
        if verify_shape and wanted != array.shape:
            raise TypeError(f"Expected Tensor's shape: {wanted}, got {array.shape}.")
        array = _filled_up(array, wanted)
    return Node("Const", name=name, dtype=array.dtype, shape=array.shape, attrs={"value": array})


def _filled_up(array: Any, shape: tuple[int, ...]) -> Any:
    size = int(np.prod(shape))
    if array.size > size:
        raise ValueError(f"Too many elements provided. Needed at most {size}, but received {array.size}")
    if array.size == size:
        return array.reshape(shape)
    flat = array.reshape(-1)
    if not flat.size:
        raise ValueError(f"A constant of shape {shape} needs at least one element, but none was given.")
    return np.concatenate([flat, np.repeat(flat[-1:], size - flat.size)]).reshape(shape)


def convert_to_tensor(
    value: Any,
    dtype: DTypeLike | None = None,
    name: str | None = None,
    preferred_dtype: Any = None,
    dtype_hint: Any = None,
) -> Node:
    """Give the node for a value: nodes as they are, IndexedSlices made whole, the rest as constants.

    Args:
        value: Anything a function of nodes takes.
        dtype: The dtype it must have.
        name: Name of a constant.
        preferred_dtype: A dtype for a constant if it fits.
        dtype_hint: The same, under its newer name.

    Returns:
        A node.

    Raises:
        ValueError: If a node has another dtype than `dtype`.
    """
    hint = preferred_dtype if dtype_hint is None else dtype_hint
    if dtype is None and hint is not None and not is_node(value):
        kind, wanted = constant_array(value).dtype.kind, np.dtype(as_dtype(hint).as_numpy_dtype).kind
        if kind == wanted or (kind in "iu" and wanted == "f"):
            dtype = hint
    return as_node(value, dtype, name)


def convert_to_tensor_or_indexed_slices(value: Any, dtype: DTypeLike | None = None, name: str | None = None) -> Any:
    """Give IndexedSlices as they are and anything else as a node."""
    return value if isinstance(value, IndexedSlices) else as_node(value, dtype, name)


def placeholder(dtype: DTypeLike, shape: Any = None, name: str | None = None) -> Node:
    """Give a node whose value each run must feed.

    Args:
        dtype: Dtype of what is fed.
        shape: Its shape; None, or None for some sizes, where runs may differ.
        name: Name of the node.

    Returns:
        A node.
    """
    return Node("Placeholder", name=name, dtype=as_dtype(dtype), shape=TensorShape(shape))


def placeholder_with_default(input: Any, shape: Any, name: str | None = None) -> Node:
    """Give a node that a run may feed, and that has the value of `input` otherwise."""
    node = as_node(input)
    if not TensorShape(shape).is_compatible_with(node.shape):
        raise ValueError(f"The default {node.name!r} of shape {node.shape} does not fit the shape {shape}.")
    return Node("PlaceholderWithDefault", (node,), name=name, dtype=node.dtype, shape=TensorShape(shape))


computes("PlaceholderWithDefault", lambda value: value)


def filled(op_type: str, shape: Any, value: Any, dtype: DType, name: str | None) -> Node:
    """Make a node of `shape` that holds one number everywhere; `attrs["fill"]` says which.

    Nothing of that size exists before a run, and an initializer made of it crosses the wire as a number.
    """
    sizes = as_shape_node(shape)
    return Node(op_type, (sizes,), name=name, dtype=dtype, shape=TensorShape(sizes_of(sizes)), attrs={"fill": value})


def zeros(shape: Any, dtype: DTypeLike = "float32", name: str | None = None) -> Node:
    """Give zeros.

    Args:
        shape: List of ints, int32 node, or list of both.
        dtype: Their dtype.
        name: Name of the node; default "zeros".

    Returns:
        A node.
    """
    kind = as_dtype(dtype)
    zero = False if kind.is_bool else b"" if kind.name == "string" else 0
    return filled("Fill", shape, zero, kind, name or "zeros")


def ones(shape: Any, dtype: DTypeLike = "float32", name: str | None = None) -> Node:
    """Give ones; see `zeros`."""
    kind = as_dtype(dtype)
    return filled("Fill", shape, True if kind.is_bool else 1, kind, name or "ones")


def fill(dims: Any, value: Any, name: str | None = None) -> Node:
    """Give an array of shape `dims` that holds `value`, a scalar, everywhere."""
    node = as_node(value)
    if node.op_type == "Const":
        return filled("Fill", dims, node.attrs["value"].item(), node.dtype, name)
    sizes = as_shape_node(dims)
    return Node("Fill", (sizes, node), name=name, dtype=node.dtype, shape=TensorShape(sizes_of(sizes)))


@kernel_of("Fill")
def _fill(node: Node) -> Any:
    if len(node.inputs) == 1:
        value, kind = node.attrs["fill"], node.dtype.as_numpy_dtype
        return lambda wanted: np.full(tuple(np.asarray(wanted, np.int64).reshape(-1).tolist()), value, dtype=kind)
    sizes = node.inputs[0]
    constant = sizes.attrs.get("value") if sizes.op_type == "Const" else None
    static = () if constant is None else tuple(np.asarray(constant).ravel().tolist())

    def make(wanted: Any, scalar: Any) -> Any:
        if wanted is constant and type(scalar) is np.ndarray and not scalar.ndim:
            # What they nearly always are; see `broadcast`.
            filled = np.empty(static, scalar.dtype)
            filled.fill(scalar)
            return filled
        shape = tuple(np.asarray(wanted).ravel().tolist())
        return broadcast(scalar, shape)

    return make


def _like(op_type: str, node: Node, value: Any, dtype: DTypeLike | None, name: str | None) -> Node:
    kind = node.dtype if dtype is None else as_dtype(dtype)
    if node.shape.is_fully_defined():
        return filled("Fill", [int(size) for size in node.shape], value, kind, name or op_type)
    return elementwise(op_type, node, name, kind, stops_gradient=True)


def zeros_like(tensor: Any, dtype: DTypeLike | None = None, name: str | None = None, optimize: bool = True) -> Node:
    """Give zeros of the shape, and unless `dtype` says another of the dtype, of `tensor`."""
    return _like("ZerosLike", as_node(tensor), 0, dtype, name or "zeros_like")


def ones_like(tensor: Any, dtype: DTypeLike | None = None, name: str | None = None, optimize: bool = True) -> Node:
    """Give ones of the shape, and unless `dtype` says another of the dtype, of `tensor`."""
    return _like("OnesLike", as_node(tensor), 1, dtype, name or "ones_like")


def eye(
    num_rows: Any,
    num_columns: Any = None,
    batch_shape: Any = None,
    dtype: DTypeLike = "float32",
    name: str | None = None,
) -> Node:
    """Give an identity matrix, or a batch of them; sizes are ints or nodes."""
    sizes = [num_rows, num_rows if num_columns is None else num_columns]
    parts = [as_shape_node([] if batch_shape is None else batch_shape), *map(as_shape_node, sizes)]
    dims = [sizes_of(part) for part in parts]
    values = [part.attrs["value"] for part in parts if part.op_type == "Const"]
    if len(values) == len(parts) and math.prod(int(n) for value in values for n in value.reshape(-1)) <= MAX_STATIC:
        return constant(_identities(as_dtype(dtype), *values), name=name or "eye")
    last = [size[0] if size is not None and len(size) == 1 else None for size in dims[1:]]
    shape = TensorShape(None if dims[0] is None else [*dims[0], *last])
    return Node("Eye", parts, name=name or "eye", dtype=dtype, shape=shape)


def _identities(dtype: DType, *parts: Any) -> Any:
    shape = np.concatenate([np.reshape(part, -1) for part in parts]).astype(np.int64)
    return np.broadcast_to(np.eye(shape[-2], shape[-1], dtype=dtype.as_numpy_dtype), tuple(shape)).copy()


kernel_of("Eye")(lambda node: partial(_identities, node.dtype))


def range(start: Any, limit: Any = None, delta: Any = 1, dtype: DTypeLike | None = None, name: str = "range") -> Node:
    """Give the numbers from `start` below `limit` in steps of `delta`; with one argument, from 0.

    Args:
        start: First number, or the limit if it is the only one: number or scalar node.
        limit: Where to stop; not part of the result.
        delta: The step.
        dtype: Dtype of the result; default that of the arguments.
        name: Name of the node.

    Returns:
        A node [n].
    """
    if limit is None:
        start, limit = 0, start
    limits = (start, limit, delta)
    if dtype is None:
        dtypes = [np.dtype(as_node(n).dtype.as_numpy_dtype) if is_node(n) else constant_array(n).dtype for n in limits]
        dtype = max(dtypes, key=lambda kind: (kind.kind == "f", kind.itemsize))
    kind = as_dtype(dtype)
    nodes = [as_node(item, None if is_node(item) else kind, name=f"{name}/limit") for item in limits]
    shape: list[int | None] = [None]
    if all(node.op_type == "Const" for node in nodes):
        first, last, step = (node.attrs["value"] for node in nodes)
        with np.errstate(all="ignore"):
            count = float((last - first) / step)
        if not math.isfinite(count):
            raise ValueError("Maximum allowed size exceeded")
        shape = [max(0, math.ceil(count))]
    return Node("Range", nodes, name=name, dtype=kind, shape=shape)


computes("Range", lambda *bounds, dtype: np.arange(*bounds, dtype=dtype))
computes("LinSpace", lambda low, high, count, *, dtype: np.linspace(low, high, int(count), dtype=dtype))


@gradient_of("Fill")
def _fill_gradient(node: Node, grad: Node) -> Any:
    return None, reduce_sum(grad)


passes("PlaceholderWithDefault")
no_gradient("LinSpace", "OnesLike", "Range", "ZerosLike")


def linspace(start: Any, stop: Any, num: Any, name: str | None = None) -> Node:
    """Give `num` numbers from `start` to `stop`, both included, evenly spaced."""
    low, high = operand_list("LinSpace", (start, stop), "limits")
    count = as_node(num)
    size = int(count.attrs["value"]) if count.op_type == "Const" else None
    attrs = {"stops_gradient": True}
    return Node("LinSpace", (low, high, count), name=name, dtype=low.dtype, shape=[size], attrs=attrs)


lin_space = linspace
