"""Functions that sort rows: into lists and back, by first occurrence, by length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from globalstep.dtypes import DType, DTypeLike, as_dtype
from globalstep.errors import InvalidArgumentError
from globalstep.tf1.graph.graph import Node, as_node, tuple_item
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops.building import operand_list, static_value
from globalstep.tf1.ops.gradient_ops import rearranges
from globalstep.tf1.ops.primitives import scatter_rows, take_rows


def sequence_mask(lengths: Any, maxlen: Any = None, dtype: DTypeLike = "bool", name: str | None = None) -> Node:
    """Give, for each length, a row that holds for its first elements.

    Args:
        lengths: Integer node or array [...].
        maxlen: Length of the rows; default the largest of `lengths`.
        dtype: Dtype of the result.
        name: Name of the node.

    Returns:
        A node [..., maxlen].
    """
    counts, kind = as_node(lengths), as_dtype(dtype)
    inputs = (counts,) if maxlen is None else (counts, as_node(maxlen))
    width = None if maxlen is None else static_value(maxlen)
    dims = None if counts.shape.dims is None else [*counts.shape.as_list(), None if width is None else int(width)]
    return Node("SequenceMask", inputs, name=name, dtype=kind, shape=TensorShape(dims))


@computes("SequenceMask")
def _sequence_mask(values: Any, longest: Any = None, *, dtype: Any) -> Any:
    width = int(np.max(values, initial=0) if longest is None else longest)
    return (np.arange(width) < np.asarray(values)[..., None]).astype(dtype)


def dynamic_partition(data: Any, partitions: Any, num_partitions: int, name: str | None = None) -> list[Node]:
    """Sort rows into `num_partitions` lists by the numbers in `partitions`.

    Args:
        data: Node or array [*partitions.shape, ...].
        partitions: Integer node or array: which list each row goes to.
        num_partitions: How many lists.
        name: Name of the nodes.

    Returns:
        List of nodes [n_i, ...].
    """
    values, numbers = as_node(data), as_node(partitions)
    attrs = {"tuple": True, "num_partitions": num_partitions}
    parts = Node("DynamicPartition", (values, numbers), name=name, attrs=attrs)
    shape = None
    if values.shape.dims is not None and numbers.shape.ndims is not None:
        shape = [None, *values.shape.as_list()[numbers.shape.ndims :]]
    return [tuple_item(parts, i, dtype=values.dtype, shape=TensorShape(shape)) for i in range(num_partitions)]


@computes("DynamicPartition")
def _dynamic_partition(rows: Any, target: Any, *, num_partitions: int) -> Any:
    flat = np.asarray(target).reshape(-1)
    if flat.size and (flat.min() < 0 or flat.max() >= num_partitions):
        raise InvalidArgumentError(f"partitions must be in [0, {num_partitions})")
    rows = np.reshape(rows, (flat.size, *np.shape(rows)[np.ndim(target) :]))
    return tuple(take_rows(rows, np.flatnonzero(flat == i)) for i in range(num_partitions))


def dynamic_stitch(indices: Sequence[Any], data: Sequence[Any], name: str | None = None) -> Node:
    """Put rows of several values to the places that `indices` say; later values win.

    Args:
        indices: List of integer nodes or arrays.
        data: List of nodes or arrays [*indices[i].shape, ...].
        name: Name of the node.

    Returns:
        A node [largest index + 1, ...].
    """
    ids, values = [as_node(item) for item in indices], operand_list("DynamicStitch", data, "data")
    rest = TensorShape(None)
    for at, rows in zip(ids, values, strict=True):
        if at.shape.ndims is not None and rows.shape.ndims is not None:
            at.shape.assert_is_compatible_with(rows.shape[: at.shape.ndims])
            rest = rest.merge_with(rows.shape[at.shape.ndims :])
    known = [static_value(at) for at in ids]
    size = None if any(at is None for at in known) else max((int(np.max(at)) + 1 for at in known if at.size), default=0)
    shape = TensorShape([size]).concatenate(rest)
    return Node("DynamicStitch", (*ids, *values), name=name, dtype=values[0].dtype, shape=shape,
                attrs={"count": len(ids)})  # fmt: skip


@computes("DynamicStitch")
def _dynamic_stitch(*arrays: Any, count: int) -> Any:
    places = [np.asarray(a).reshape(-1) for a in arrays[:count]]
    rest = np.shape(arrays[count])[np.ndim(arrays[0]) :]
    rows = np.concatenate([np.reshape(v, (p.size, *rest)) for v, p in zip(arrays[count:], places, strict=True)])
    joined = np.concatenate(places)
    size = int(joined.max()) + 1 if joined.size else 0
    source = np.full(size, -1)
    source[joined] = np.arange(joined.size)
    filled = np.flatnonzero(source >= 0)
    picked = take_rows(rows, source[filled])
    return picked if filled.size == size else scatter_rows(picked, filled, (size, *rest))


class Unique(NamedTuple):
    """The result of `unique`: y[idx[i]] == x[i].

    Attributes:
        y: The distinct values, a node [m].
        idx: The place of each element among them, a node [n].
    """

    y: Node
    idx: Node


def unique(x: Any, out_idx: Any = "int32", name: str | None = None) -> Unique:
    """Give the distinct values of a vector in order of first occurrence, and for each element its place.

    Returns:
        The values [m] as `y`, and their places [n], of the dtype `out_idx`, as `idx`.
    """
    node, kind = as_node(x), as_dtype(out_idx)
    parts = Node("Unique", (node,), name=name, attrs={"tuple": True, "out_idx": kind, "stops_gradient": True})
    return Unique(
        tuple_item(parts, 0, dtype=node.dtype, shape=[None]), tuple_item(parts, 1, dtype=kind, shape=node.shape)
    )


@computes("Unique")
def _unique(values: Any, *, out_idx: DType) -> Any:
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first)
    position = np.argsort(order)
    return values[np.sort(first)], position[inverse.reshape(-1)].astype(out_idx.as_numpy_dtype)


def invert_permutation(x: Any, name: str | None = None) -> Node:
    """Give the permutation that undoes `x`."""
    node = as_node(x)
    return Node("InvertPermutation", (node,), name=name, dtype=node.dtype, shape=node.shape)


computes("InvertPermutation", lambda v: np.argsort(v).astype(v.dtype))
rearranges("DynamicPartition")
rearranges("DynamicStitch", data=lambda node: range(len(node.inputs) // 2, len(node.inputs)))
