"""Functions that put arrays together and take them apart: concat, stack, split, tile, pad, reverse."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.tf1.gradients.registry import gradient_of
from globalstep.tf1.graph.graph import Node, as_node, constant_array, tuple_item
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops.building import (
    as_shape_node,
    elementwise,
    normal_axes,
    operand_list,
    sizes_of,
    static_ints,
    static_value,
)
from globalstep.tf1.ops.gradient_ops import put_back, rearranges
from globalstep.tf1.ops.indexing_ops import getitem
from globalstep.tf1.ops.primitives import broadcast


def concat(values: Any, axis: Any, name: str = "concat") -> Node:
    """Join values along an axis they have.

    Args:
        values: List of nodes or arrays of one dtype, equal in all other dimensions.
        axis: The axis. The oldest order of arguments, (axis, values), is understood too.
        name: Name of the node.

    Returns:
        A node.

    Raises:
        ValueError: If the other dimensions differ.
    """
    if isinstance(values, int) and isinstance(axis, (list, tuple)):
        values, axis = axis, values
    nodes = operand_list("ConcatV2", values if isinstance(values, (list, tuple)) else [values])
    (place,) = static_ints(axis, "axis")
    dims: list[int | None] | None = None
    shapes = [node.shape.as_list() for node in nodes if node.shape.dims is not None]
    if len(shapes) == len(nodes):
        place = normal_axes(place, nodes[0], "axis")[0]
        joined = [s[place] if len(s) == len(shapes[0]) else None for s in shapes]
        for i, sizes in enumerate(zip(*shapes, strict=False)):
            fixed = {n for n in sizes if n is not None}
            if len({len(s) for s in shapes}) > 1 or (i != place and len(fixed) > 1):
                listed = ", ".join(str(node.shape) for node in nodes)
                raise ValueError(f"Dimension {i} in all input shapes must be equal for ConcatV2: {listed}.")
        dims = [
            (None if None in joined else sum(n for n in joined if n is not None))
            if i == place
            else next((n for n in sizes if n is not None), None)
            for i, sizes in enumerate(zip(*shapes, strict=True))
        ]
    return Node(
        "ConcatV2", nodes, name=name, dtype=nodes[0].dtype, shape=TensorShape(dims), attrs={"axis": place}
    )  # fmt: skip


@computes("ConcatV2")
def _concat(*arrays: Any, axis: int) -> Any:
    return np.concatenate(arrays, axis=axis)


def stack(values: Any, axis: int = 0, name: str = "stack") -> Node:
    """Join values along a new axis.

    Args:
        values: List of nodes or arrays of one dtype and shape.
        axis: Where the new axis is.
        name: Name of the node.

    Returns:
        A node.

    Raises:
        ValueError: If the shapes differ, or the axis is none.
    """
    nodes = operand_list("Pack", list(values))
    shapes = [node.shape.as_list() for node in nodes if node.shape.dims is not None]
    merged: list[int | None] | None = None
    if shapes:
        if any(not node.shape.is_compatible_with(shapes[0]) for node in nodes):
            raise ValueError(f"Shapes must be equal to be packed: {', '.join(str(n.shape) for n in nodes)}.")
        merged = [next((n for n in sizes if n is not None), None) for sizes in zip(*shapes, strict=True)]
        if not -len(merged) - 1 <= axis <= len(merged):
            raise ValueError(f"axis = {axis} not in [{-len(merged) - 1}, {len(merged) + 1})")
        merged.insert(axis if axis >= 0 else len(merged) + 1 + axis, len(nodes))

    return Node("Pack", nodes, name=name, dtype=nodes[0].dtype, shape=TensorShape(merged), attrs={"axis": axis})


@computes("Pack")
def _pack(*arrays: Any, axis: int) -> Any:
    place = axis if axis >= 0 else np.ndim(arrays[0]) + 1 + axis
    return np.concatenate([np.expand_dims(array, place) for array in arrays], axis=place)


pack = stack


def parallel_stack(values: Any, name: str = "parallel_stack") -> Node:
    """Join values along a new first axis."""
    return stack(values, 0, name)


def unstack(value: Any, num: int | None = None, axis: int = 0, name: str = "unstack") -> list[Node]:
    """Take a value apart along an axis; the parts do not have it.

    Args:
        value: Node or array.
        num: How many parts; needed only where the size of the axis is not known before a run.
        axis: The axis.
        name: Name of the nodes.

    Returns:
        List of nodes.

    Raises:
        ValueError: If the number of parts is not known.
    """
    node = as_node(value)
    dims = node.shape.as_list() if node.shape.dims is not None else None
    (place,) = normal_axes(axis, node)
    if num is None:
        num = None if dims is None else dims[place]
    if num is None:
        raise ValueError(f"Cannot infer num from shape {node.shape}")
    rest = None if dims is None else [n for i, n in enumerate(dims) if i != place]

    parts = Node("Unpack", (node,), name=name, attrs={"tuple": True, "axis": place, "num": num})
    return [tuple_item(parts, i, dtype=node.dtype, shape=TensorShape(rest)) for i in range(num)]


@computes("Unpack")
def _unpack(array: Any, *, axis: int, num: int) -> Any:
    if np.shape(array)[axis] != num:
        raise InvalidArgumentError(f"Input shape axis {axis} must equal {num}, got shape {np.shape(array)}")
    lead = (slice(None),) * axis
    return tuple(array[(*lead, i)] for i in range(num))


unpack = unstack


def split(
    value: Any, num_or_size_splits: Any, axis: Any = 0, num: int | None = None, name: str = "split"
) -> list[Node]:
    """Cut a value into parts along an axis.

    Args:
        value: Node or array.
        num_or_size_splits: Number of equal parts, or the list of their sizes (one may be -1).
        axis: The axis.
        num: Number of sizes, which must be theirs.
        name: Name of the nodes.

    Returns:
        List of nodes.

    Raises:
        ValueError: If the parts do not add up.
        TypeError: If the arguments are in the order of TensorFlow 0.x.
    """
    if isinstance(value, int) and isinstance(num_or_size_splits, int) and not isinstance(axis, int):
        raise TypeError(
            f"split({value}, {num_or_size_splits}, value) is TensorFlow 0.x's order of arguments, (split_dim, "
            "num_split, value). Since 1.0 it is split(value, num_or_size_splits, axis): "
            f"split(value, {num_or_size_splits}, {value})."
        )
    node = as_node(value)
    (place,) = normal_axes(axis, node)
    dims = node.shape.as_list() if node.shape.dims is not None else None
    total = None if dims is None else dims[place]
    spec = static_value(num_or_size_splits)
    if spec is None:
        raise ValueError("num_or_size_splits must be known when the graph is built.")
    equal = spec.ndim == 0
    if not equal and num not in (None, len(spec)):
        raise ValueError(f"Length of size_splits should be equal to num_outputs: {len(spec)} is not {num}.")
    count = int(spec) if equal else len(spec)
    sizes = [-1] * count if equal else [int(n) for n in spec]
    if equal and total is not None:
        if total % count:
            raise ValueError(f"Dimension size must be evenly divisible by {count} but is {total} ({node.name!r}).")
        sizes = [total // count] * count
    elif not equal and total is not None:
        left = total - sum(n for n in sizes if n >= 0)
        if left < 0 or (left and -1 not in sizes):
            raise ValueError(f"The sizes {sizes} do not add up to the {total} of {node.name!r} on axis {place}.")
        sizes = [left if n < 0 else n for n in sizes]

    attrs = {"tuple": True, "axis": place, "sizes": tuple(sizes), "equal": equal}
    parts = Node("Split", (node,), name=name, attrs=attrs)
    shapes = [
        None if dims is None else [(None if n < 0 else n) if i == place else k for i, k in enumerate(dims)]
        for n in sizes
    ]
    return [tuple_item(parts, i, dtype=node.dtype, shape=TensorShape(s)) for i, s in enumerate(shapes)]


@computes("Split")
def _split(array: Any, *, axis: int, sizes: Sequence[int], equal: bool) -> Any:
    whole, count = np.shape(array)[axis], len(sizes)
    if equal and whole % count:
        raise InvalidArgumentError(f"Cannot split a dimension of size {whole} into {count} equal parts.")
    lengths = [whole // count] * count if equal else sizes
    lengths = [whole - sum(n for n in lengths if n >= 0) if n < 0 else n for n in lengths]
    ends = np.cumsum(lengths)
    if ends[-1] != whole:
        raise InvalidArgumentError(f"The sizes {lengths} do not add up to {whole}.")
    lead = (slice(None),) * axis
    return tuple(array[(*lead, slice(e - n, e))] for n, e in zip(lengths, ends, strict=True))


def tile(input: Any, multiples: Any, name: str | None = None) -> Node:
    """Repeat a value along each dimension, multiples[i] times along dimension i."""
    node, times = as_node(input), as_shape_node(multiples)
    by = sizes_of(times)
    sizes = [] if by is None else zip(node.shape.with_rank(len(by)).as_list(), by, strict=True)
    result = None if by is None else [None if n is None or m is None else n * m for n, m in sizes]
    return Node("Tile", (node, times), name=name, dtype=node.dtype, shape=TensorShape(result))


@computes("Tile")
def _tile(value: Any, counts: Any) -> Any:
    old, by = np.shape(value), [int(n) for n in np.asarray(counts).reshape(-1)]
    spread = tuple(n for pair in zip([1] * len(old), old, strict=True) for n in pair)
    full = tuple(n for pair in zip(by, old, strict=True) for n in pair)
    target = tuple(n * m for n, m in zip(old, by, strict=True))
    return np.reshape(broadcast(np.reshape(value, spread), full), target)


def pad(tensor: Any, paddings: Any, mode: str = "CONSTANT", name: str | None = None, constant_values: Any = 0) -> Node:
    """Put values around an array.

    Args:
        tensor: Node or array of rank n.
        paddings: Ints [n, 2]: how many before and after in each dimension.
        mode: "CONSTANT", "REFLECT" or "SYMMETRIC".
        name: Name of the node.
        constant_values: What to put there in mode "CONSTANT".

    Returns:
        A node.

    Raises:
        ValueError: For an unknown mode.
    """
    node = as_node(tensor)
    if mode.upper() not in ("CONSTANT", "REFLECT", "SYMMETRIC"):
        raise ValueError(f"Unknown padding mode: {mode}")
    known = static_value(paddings)
    if known is not None and (np.shape(known)[1:] != (2,) or np.any(np.less(known, 0))):
        raise ValueError(f"Paddings must be non-negative, a pair for each axis, not {known}.")
    is_zero = isinstance(constant_values, numbers.Real) and constant_values == 0  # 0.0 is one of integers, too
    filling = constant_array(0 if is_zero else constant_values, node.dtype)
    widths = None if known is None else tuple((int(a), int(b)) for a, b in known)
    sizes = node.shape.as_list() if node.shape.dims is not None else None
    if sizes is not None:
        rows = known if known is not None else paddings if isinstance(paddings, (list, tuple)) else [None] * len(sizes)
        added = [None if row is None else [static_value(n) for n in row] for row in rows]
        sizes = [
            None if n is None or more is None or any(m is None for m in more) else n + int(sum(more))
            for n, more in zip(sizes, added, strict=True)
        ]
    inputs = (node,) if known is not None else (node, as_shape_node(paddings))
    attrs = {"paddings": widths, "mode": mode.upper(), "constant_values": filling}
    return Node("PadV2", inputs, name=name or "Pad", dtype=node.dtype, shape=TensorShape(sizes), attrs=attrs)


@computes("PadV2")
def _pad(value: Any, given: Any = None, *, paddings: Any, mode: Any, constant_values: Any) -> Any:
    around = np.reshape(paddings if given is None else given, (-1, 2)).astype(int)
    if mode == "CONSTANT" and len(around):
        return np.pad(value, around, "constant", constant_values=constant_values)
    for axis, (before, after) in enumerate(around):
        places = np.pad(np.arange(np.shape(value)[axis]), (before, after), mode.lower())
        value = value[(*(slice(None),) * axis, places)]
    return value


def reverse(tensor: Any, axis: Any, name: str | None = None) -> Node:
    """Turn the order around along `axis` (an axis or a list of axes).

    Raises:
        TypeError: If `axis` is a list of booleans, as in TensorFlow 0.x.
    """
    if isinstance(axis, (list, tuple)) and any(isinstance(item, bool) for item in axis):
        listed = [place for place, turned in enumerate(axis) if turned]
        raise TypeError(
            f"reverse(tensor, {list(axis)}) says for each axis whether it is turned, as in TensorFlow 0.x. Since 1.0 "
            f"the axes are listed: reverse(tensor, {listed})."
        )
    node = as_node(tensor)
    axes = normal_axes(axis, node)
    return elementwise("ReverseV2", node, name, axis=axes)


@computes("ReverseV2")
def _reverse(value: Any, *, axis: Any) -> Any:
    return np.flip(value, axis)


reverse_v2 = reverse


@gradient_of("ConcatV2")
def _concat_gradient(node: Node, grad: Node) -> list[Node]:
    return [_concat_part(node, grad, at) for at in range(len(node.inputs))]


def _concat_part(node: Node, grad: Node, at: int) -> Node:
    """Give what of a joined value lies where input `at` does."""
    axis, wanted = node.attrs["axis"], node.inputs[at]
    sizes = [None if part.shape.dims is None else part.shape.as_list()[axis] for part in node.inputs[: at + 1]]
    if axis >= 0 and None not in sizes:
        end = sum(size for size in sizes if size is not None)
        return getitem(grad, (*[slice(None)] * axis, slice(end - (sizes[-1] or 0), end)))
    inputs = (grad, *node.inputs[: at + 1])
    return Node("ConcatPart", inputs, dtype=grad.dtype, shape=wanted.shape, attrs={"axis": axis})


@computes("ConcatPart")
def _part(value: Any, *joined: Any, axis: int) -> Any:
    place = axis % np.ndim(value)
    end = sum(array.shape[place] for array in joined)
    return value[(*(slice(None),) * place, slice(end - joined[-1].shape[place], end))]


rearranges("ConcatPart", "Split", views=True)
rearranges("ReverseV2")


@gradient_of("Pack")
def _stack_gradient(node: Node, grad: Node) -> list[Node]:
    axis = node.attrs["axis"]
    before: list[Any] = [slice(None)] * axis if axis >= 0 else [...]
    after = [slice(None)] * (-1 - axis)
    return [getitem(grad, (*before, at, *after)) for at in range(len(node.inputs))]


@gradient_of("Unpack")
def _unstack_gradient(node: Node, grads: list[Node | None]) -> list[Node]:
    (value,), axis, count = node.inputs, node.attrs["axis"], node.attrs["num"]
    if len(grads) == count and None not in grads:
        return [stack(grads, axis)]
    present = tuple(at for at, grad in enumerate(grads) if grad is not None)
    given = [grad for grad in grads if grad is not None]
    attrs = {"axis": axis, "present": present}
    return [Node("PackSome", (value, *given), dtype=value.dtype, shape=value.shape, attrs=attrs)]


@computes("PackSome")
def _pack_some(whole: Any, *parts: Any, axis: int, present: Sequence[int]) -> Any:
    out = np.zeros_like(whole)
    for at, part in zip(present, parts, strict=True):
        out[(*(slice(None),) * axis, at)] = part
    return out


@gradient_of("PackSome")
def _pack_some_gradient(node: Node, grad: Node) -> list[Node | None]:
    before = (slice(None),) * node.attrs["axis"]
    return [None, *(getitem(grad, (*before, at)) for at in node.attrs["present"])]


@gradient_of("Tile")
def _tile_gradient(node: Node, grad: Node) -> tuple[Node, None]:
    return Node("TileGrad", (grad, *node.inputs), dtype=grad.dtype, shape=node.inputs[0].shape), None


@computes("TileGrad")
def _tile_back(g: Any, whole: Any, counts: Any) -> Any:
    by = [int(n) for n in np.asarray(counts).reshape(-1)]
    pairs = tuple(n for pair in zip(by, whole.shape, strict=True) for n in pair)
    return g.reshape(pairs).sum(axis=tuple(range(0, len(pairs), 2)))


@gradient_of("TileGrad")
def _tile_grad_gradient(node: Node, grad: Node) -> tuple[Node, None, None]:
    return tile(grad, node.inputs[2]), None, None


@gradient_of("PadV2")
def _pad_gradient(node: Node, grad: Node) -> list[Node | None]:
    if node.attrs["mode"] != "CONSTANT":
        return put_back(node, grad)
    widths, (value, *rest) = node.attrs["paddings"], node.inputs
    inner = Node("Unpad", (grad, *rest), dtype=grad.dtype, shape=value.shape, attrs={"paddings": widths})
    return [inner, *[None] * len(rest)]


@computes("Unpad")
def _unpad(g: Any, given: Any = None, *, paddings: Any) -> Any:
    around = zip(paddings if given is None else given, g.shape, strict=True)
    return g[tuple(slice(int(a), size - int(b)) for (a, b), size in around)]


@gradient_of("Unpad")
def _unpad_gradient(node: Node, grad: Node) -> list[Node | None]:
    widths, rest = node.attrs["paddings"], node.inputs[1:]
    return [pad(grad, rest[0] if widths is None else widths), *[None] * len(rest)]
