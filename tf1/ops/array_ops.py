"""Functions that change the form of an array: shapes, order of dimensions, joining and splitting."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from globalstep.dtypes import as_dtype
from globalstep.errors import InvalidArgumentError
from globalstep.tf1.gradients.registry import gradient_of
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.kernels import computes, kernel_of
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.graph.sparse_tensor import SparseTensor
from globalstep.tf1.ops.building import as_shape_node, broadcast_sizes, elementwise, normal_axes, sizes_of, static_ints
from globalstep.tf1.ops.gradient_ops import passes, sum_like
from globalstep.tf1.ops.primitives import broadcast


def identity(input: Any, name: str | None = None) -> Node:
    """Give the value as it is; under `control_dependencies`, after they ran.

    Args:
        input: Node, Variable or array.
        name: Name of the node.

    Returns:
        A node of the same dtype and shape.
    """
    return elementwise("Identity", as_node(input), name)


def stop_gradient(input: Any, name: str | None = None) -> Node:
    """Give the value as it is, taken as a constant by `gs.gradients`."""
    return elementwise("StopGradient", as_node(input), name, stops_gradient=True)


computes("StopGradient", lambda value: value)


def check_numerics(tensor: Any, message: str, name: str | None = None) -> Node:
    """Give the value as it is, or fail the run if it holds NaN or infinity.

    Raises:
        InvalidArgumentError: In the run: "`message` : Tensor had NaN values".
    """
    return elementwise("CheckNumerics", as_node(tensor), name, message=message)


@kernel_of("CheckNumerics")
def _check_numerics(node: Node) -> Any:
    message, name = node.attrs["message"], node.inputs[0].name

    def check(value: Any) -> Any:
        if not np.all(np.isfinite(value)):
            what = "NaN" if np.any(np.isnan(value)) else "Inf"
            raise InvalidArgumentError(f"{message} : Tensor had {what} values ({name!r})")
        return value

    return check


def verify_tensor_all_finite(
    t: Any = None, msg: str | None = None, name: str | None = None, x: Any = None, message: str | None = None
) -> Node:
    """Give the value as it is, or fail the run if it holds NaN or infinity: check_numerics under an older name.

    Args:
        t: Node or array.
        msg: What the error says first.
        name: Name of the node; default "VerifyFinite".
        x: The newer name of `t`.
        message: The newer name of `msg`.

    Raises:
        ValueError: If both names of an argument are given, or none.
        InvalidArgumentError: In the run: "`msg` : Tensor had NaN values".
    """
    if (t is None) == (x is None) or (msg is None) == (message is None):
        raise ValueError("verify_tensor_all_finite takes a tensor, `t` or `x`, and a message, `msg` or `message`.")
    return check_numerics(x if t is None else t, str(message if msg is None else msg), name or "VerifyFinite")


def shape(input: Any, name: str | None = None, out_type: Any = "int32") -> Node:
    """Give the shape as an integer node [rank]; of a SparseTensor its dense shape."""
    kind = as_dtype(out_type)
    if isinstance(input, SparseTensor):
        return elementwise("Cast", input.dense_shape, name, kind)
    node = as_node(input)
    return Node("Shape", (node,), name=name, dtype=kind, shape=[node.shape.ndims])


computes("Shape", lambda value, *, dtype: np.array(np.shape(value), dtype))


def shape_n(input: Sequence[Any], out_type: Any = "int32", name: str | None = None) -> list[Node]:
    """Give the shape of each of several values."""
    return [shape(item, name, out_type) for item in input]


def size(input: Any, name: str | None = None, out_type: Any = "int32") -> Node:
    """Give the number of elements as an integer scalar; of a SparseTensor those of its dense shape."""
    kind = as_dtype(out_type)
    if isinstance(input, SparseTensor):
        return Node("SparseSize", (input.dense_shape,), name=name or "Prod", dtype=kind, shape=[])
    return Node("Size", (as_node(input),), name=name, dtype=kind, shape=[])


computes("Size", lambda value, *, dtype: np.array(np.size(value), dtype))
computes("SparseSize", lambda sizes, *, dtype: np.prod(sizes, dtype=dtype))


def rank(input: Any, name: str | None = None) -> Node:
    """Give the number of dimensions as an int32 scalar."""
    if isinstance(input, SparseTensor):
        return size(input.dense_shape, name)
    return Node("Rank", (as_node(input),), name=name, dtype="int32", shape=[])


computes("Rank", lambda value: np.array(np.ndim(value), np.int32))


def reshape(tensor: Any, shape: Any, name: str | None = None) -> Node:
    """Give the same elements in another shape.

    Args:
        tensor: Node or array.
        shape: Ints, an integer node, or a list of both; one -1 stands for what is left.
        name: Name of the node.

    Returns:
        A node.

    Raises:
        ValueError: If the numbers of elements are known and differ.
    """
    node, sizes = as_node(tensor), as_shape_node(shape)
    dims = sizes_of(sizes)
    count = node.shape.num_elements()
    if dims is not None and sizes.op_type == "Const" and count is not None:
        rest = int(np.prod([n for n in dims if n is not None]))
        holes = [i for i, n in enumerate(dims) if n is None]
        if (not holes and rest != count) or (holes and (rest == 0 or count % rest)):
            raise ValueError(f"Cannot reshape a tensor with {count} elements to shape {dims} ({node.name!r}).")
        if len(holes) == 1:
            dims[holes[0]] = count // rest
    return Node("Reshape", (node, sizes), name=name, dtype=node.dtype, shape=TensorShape(dims))


@kernel_of("Reshape")
def _reshape(node: Node) -> Any:
    name = node.inputs[0].name

    def evaluate(value: Any, wanted: Any) -> Any:
        target = tuple(np.asarray(wanted).reshape(-1).tolist())
        try:
            return np.reshape(value, target)
        except ValueError:
            raise InvalidArgumentError(
                f"Input to reshape {name!r} is a tensor with {np.size(value)} values of shape "
                f"{np.shape(value)}, but the requested shape is {target}"
            ) from None

    return evaluate


def reshape_like(value: Node, like: Node) -> Node:
    """Give the elements of a node in the shape of another one."""
    if like.shape.is_fully_defined():
        if value.shape == like.shape:
            return value
        return Node("ReshapeLike", (value,), dtype=value.dtype, shape=like.shape)
    return Node("ReshapeLike", (value, like), dtype=value.dtype, shape=like.shape)


@kernel_of("ReshapeLike")
def _reshape_like(node: Node) -> Any:
    if len(node.inputs) == 2:
        return lambda value, like: value.reshape(like.shape)
    shape = tuple(int(size) for size in node.shape)
    return lambda value: value.reshape(shape)


@gradient_of("ExpandDims", "Reshape", "ReshapeLike", "Rows", "Squeeze")
def _reshape_gradient(node: Node, grad: Node) -> Any:
    return reshape_like(grad, node.inputs[0]), *[None] * (len(node.inputs) - 1)


@gradient_of("BroadcastTo")
def _broadcast_to_gradient(node: Node, grad: Node) -> Any:
    return sum_like(grad, node.inputs[0]), None


@gradient_of("Transpose")
def _transpose_gradient(node: Node, grad: Node) -> Any:
    if "moved" in node.attrs:
        source, target = node.attrs["moved"]
        return (moved_axis(grad, target, source),)
    order = node.attrs["perm"]
    return (transpose(grad, None if order is None else [int(at) for at in np.argsort(order)]),)


passes("CheckNumerics")


@gradient_of("MatrixTranspose")
def _matrix_transpose_gradient(node: Node, grad: Node) -> Any:
    return (matrix_transpose(grad),)


def broadcast_to(input: Any, shape: Any, name: str | None = None) -> Node:
    """Broadcast a value to a shape."""
    node, sizes = as_node(input), as_shape_node(shape)
    return Node("BroadcastTo", (node, sizes), name=name, dtype=node.dtype, shape=TensorShape(sizes_of(sizes)))


computes("BroadcastTo", lambda value, wanted: broadcast(value, tuple(int(n) for n in np.asarray(wanted).reshape(-1))))


def broadcast_static_shape(shape_x: Any, shape_y: Any) -> TensorShape:
    """Give the static shape that two static shapes broadcast to, as far as it is known."""
    return broadcast_sizes(TensorShape(shape_x), TensorShape(shape_y))


def broadcast_dynamic_shape(shape_x: Any, shape_y: Any) -> Node:
    """Give the shape that two shapes broadcast to, as an int32 node.

    Args:
        shape_x: Ints or an integer node [rank].
        shape_y: The same.

    Returns:
        A node [larger rank].

    Raises:
        InvalidArgumentError: In the run, if they do not broadcast.
    """
    x, y = as_shape_node(shape_x), as_shape_node(shape_y)
    ranks = [node.shape.as_list()[0] if node.shape.ndims == 1 else None for node in (x, y)]
    rank = None if None in ranks else max(size for size in ranks if size is not None)
    return Node("BroadcastArgs", (x, y), dtype=x.dtype, shape=TensorShape([rank]))


@computes("BroadcastArgs")
def _broadcast_args(a: Any, b: Any) -> Any:
    try:
        return np.array(np.broadcast_shapes(tuple(a), tuple(b)), a.dtype)
    except ValueError:
        raise InvalidArgumentError(f"Incompatible shapes: {a.tolist()} vs. {b.tolist()}") from None


def transpose(a: Any, perm: Any = None, name: str = "transpose", conjugate: bool = False) -> Node:
    """Give the dimensions in another order; without `perm`, in reverse order.

    Args:
        a: Node or array.
        perm: The order: dimension i of the result is dimension perm[i] of `a`.
        name: Name of the node.
        conjugate: Accepted; without effect on real values.

    Returns:
        A node.
    """
    node = as_node(a)
    order = None if perm is None else static_ints(perm, "perm")
    dims = node.shape.as_list() if node.shape.dims is not None else None
    if dims is not None:
        if order is not None and sorted(order) != list(range(len(dims))):
            raise ValueError(f"perm {order} is not an order of the {len(dims)} dimensions of {node.name!r}.")
        dims = dims[::-1] if order is None else [dims[i] for i in order]
    return Node("Transpose", (node,), name=name, dtype=node.dtype, shape=TensorShape(dims), attrs={"perm": order})


@kernel_of("Transpose")
def _transpose(node: Node) -> Any:
    if "moved" in node.attrs:
        return lambda value: np.moveaxis(value, *node.attrs["moved"])
    return partial(np.transpose, axes=node.attrs["perm"])


def moved_axis(node: Node, source: int, target: int) -> Node:
    """Give a value with one axis in another place."""
    shape = None
    if node.shape.dims is not None:
        shape = node.shape.as_list()
        size = shape.pop(source)
        shape.insert(target % (len(shape) + 1), size)
    attrs = {"moved": (source, target)}
    return Node("Transpose", (node,), name="transpose", dtype=node.dtype, shape=TensorShape(shape), attrs=attrs)


def matrix_transpose(a: Any, name: str = "matrix_transpose", conjugate: bool = False) -> Node:
    """Swap the last two dimensions."""
    node = as_node(a)
    dims = node.shape.as_list() if node.shape.dims is not None else None
    swapped = None if dims is None else [*dims[:-2], dims[-1], dims[-2]]
    return Node("MatrixTranspose", (node,), name=name, dtype=node.dtype, shape=TensorShape(swapped))


computes("MatrixTranspose", lambda value: np.swapaxes(value, -1, -2))


def expand_dims(input: Any, axis: Any = None, name: str | None = None, dim: Any = None) -> Node:
    """Put in a dimension of size 1 at `axis` (older name: `dim`).

    Raises:
        ValueError: If `axis` is missing, given twice, or out of range.
    """
    if axis is not None and dim is not None:
        raise ValueError("can't specify both 'dim' and 'axis'")
    if axis is None and dim is None:
        raise ValueError("Must specify an axis argument to tf.expand_dims()")
    node = as_node(input)
    (place,) = static_ints(dim if axis is None else axis, "axis")
    dims = node.shape.as_list() if node.shape.dims is not None else None
    if dims is not None:
        if not -len(dims) - 1 <= place <= len(dims):
            raise ValueError(f"dim {place} not in the interval [{-len(dims) - 1}, {len(dims)}]: {node.name!r}.")
        place %= len(dims) + 1
        dims.insert(place, 1)
    return Node("ExpandDims", (node,), name=name, dtype=node.dtype, shape=TensorShape(dims), attrs={"axis": place})


kernel_of("ExpandDims")(lambda node: partial(np.expand_dims, axis=node.attrs["axis"]))
kernel_of("Squeeze")(lambda node: partial(np.squeeze, axis=node.attrs["axis"]))


def squeeze(input: Any, axis: Any = None, name: str | None = None, squeeze_dims: Any = None) -> Node:
    """Take out dimensions of size 1: all of them, or those at `axis` (older name: `squeeze_dims`)."""
    if axis is not None and squeeze_dims is not None:
        raise ValueError("Cannot specify both 'squeeze_dims' and 'axis'")
    node = as_node(input)
    axes = squeeze_dims if axis is None else axis
    places = None if axes is None or axes == [] else normal_axes(axes, node)
    dims = node.shape.as_list() if node.shape.dims is not None else None
    if dims is not None:
        wrong = [i for i in places or () if dims[i] not in (1, None)]
        if wrong:
            raise ValueError(f"Can not squeeze dim[{wrong[0]}], expected a dimension of 1, got {dims[wrong[0]]}")
        if places is None and None in dims:
            dims = None
        else:
            gone = [i for i, n in enumerate(dims) if n == 1] if places is None else places
            dims = [n for i, n in enumerate(dims) if i not in gone]
    return Node("Squeeze", (node,), name=name, dtype=node.dtype, shape=TensorShape(dims), attrs={"axis": places})
