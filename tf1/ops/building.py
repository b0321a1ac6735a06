"""Construction of nodes for the functions of `ops`: operands with matching dtypes, static shapes, factories."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from globalstep.dtypes import DType, DTypeLike, as_dtype
from globalstep.errors import InvalidArgumentError
from globalstep.tf1.graph.graph import Node, as_node, constant_array
from globalstep.tf1.graph.kernels import computes, kernel_of
from globalstep.tf1.graph.shapes import TensorShape

#: From so many elements on, a function of numbers may be worth several threads.
_LARGE = 1 << 18
_KINDS = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}


def is_node(value: Any) -> bool:
    """Whether `value` is a node, stands for one, or is a list that holds one."""
    if isinstance(value, (list, tuple)):
        return any(is_node(item) for item in value)
    return isinstance(value, Node) or hasattr(value, "__node__")


def _weak(value: Any, dtype: DType, name: str) -> Node:
    """Give a plain value as a constant of `dtype` if it fits into that kind, else of its own dtype."""
    array = constant_array(value)
    kind, wanted = array.dtype.kind, np.dtype(dtype.as_numpy_dtype).kind
    fits = kind == wanted or 1 <= _KINDS.get(kind, -1) <= _KINDS.get(wanted, -1)
    return as_node(value if fits else array, dtype if fits else None, name=name)


def operands(op_type: str, x: Any, y: Any, names: tuple[str, str] = ("x", "y")) -> tuple[Node, Node]:
    """Give two operands as nodes of one dtype; a plain value takes the dtype of the node beside it.

    Raises:
        TypeError: If the dtypes differ, with TensorFlow's text.
    """
    x_node = as_node(x) if is_node(x) or not is_node(y) else None
    y_node = as_node(y) if is_node(y) else None
    if x_node is None and y_node is not None:
        x_node = _weak(x, y_node.dtype, f"{op_type}/{names[0]}")
    assert x_node is not None
    if y_node is None:
        y_node = _weak(y, x_node.dtype, f"{op_type}/{names[1]}")
    if x_node.dtype != y_node.dtype:
        raise TypeError(
            f"Input '{names[1]}' of '{op_type}' Op has type {y_node.dtype.name} that does not match type "
            f"{x_node.dtype.name} of argument '{names[0]}'."
        )
    return x_node, y_node


def operand_list(op_type: str, values: Sequence[Any], name: str = "values") -> list[Node]:
    """Give several operands as nodes of one dtype, that of the first node among them.

    Raises:
        TypeError: If the dtypes differ.
    """
    first = next((as_node(value) for value in values if is_node(value)), None)
    if first is None:
        first = as_node(values[0])
        nodes = [first, *(_weak(value, first.dtype, f"{op_type}/{name}") for value in values[1:])]
    else:
        nodes = [
            as_node(value) if is_node(value) else _weak(value, first.dtype, f"{op_type}/{name}") for value in values
        ]
    if any(node.dtype != first.dtype for node in nodes):
        dtypes = ", ".join(node.dtype.name for node in nodes)
        raise TypeError(
            f"Tensors in list passed to '{name}' of '{op_type}' Op have types [{dtypes}] that don't all match."
        )
    return nodes


def require_float(op_type: str, node: Node, name: str = "x") -> Node:
    """Give `node` back if it has a floating dtype.

    Raises:
        TypeError: Otherwise, with TensorFlow's text.
    """
    if np.dtype(node.dtype.as_numpy_dtype).kind not in "fc":
        raise TypeError(
            f"Value passed to parameter '{name}' of '{op_type}' has DataType {node.dtype.name} not in list "
            "of allowed values: float16, float32, float64, complex64, complex128"
        )
    return node


def broadcast_shapes(op_type: str, x: Node, y: Node) -> TensorShape:
    """Give the static shape of two operands broadcast together.

    Raises:
        ValueError: If they cannot be, with TensorFlow's text.
    """
    for i, j in _aligned(x.shape, y.shape):
        if i is not None and j is not None and i != j and 1 not in (i, j):
            raise ValueError(
                f"Dimensions must be equal, but are {i} and {j} for operands {x.name!r} and {y.name!r} "
                f"(op: '{op_type}') with input shapes: {x.shape}, {y.shape}."
            )
    return broadcast_sizes(x.shape, y.shape)


def broadcast_sizes(x: TensorShape, y: TensorShape) -> TensorShape:
    """Give the static shape that two static shapes broadcast to.

    Raises:
        ValueError: If they do not, with TensorFlow's text.
    """
    if x.dims is None or y.dims is None:
        return TensorShape(None)
    sizes: list[int | None] = []
    for i, j in _aligned(x, y):
        if i is not None and j is not None and i != j and 1 not in (i, j):
            raise ValueError(f"Incompatible shapes for broadcasting: {x} and {y}")
        sizes.append(j if i == 1 else i if j == 1 else i if i is not None and i == j else (i or j))
    return TensorShape(sizes)


def _aligned(x: TensorShape, y: TensorShape) -> list[tuple[int | None, int | None]]:
    """Give the sizes of two shapes side by side, 1 for what the shorter lacks; none if one is not known."""
    if x.dims is None or y.dims is None:
        return []
    a, b = x.as_list(), y.as_list()
    rank = max(len(a), len(b))
    return list(zip([1] * (rank - len(a)) + a, [1] * (rank - len(b)) + b, strict=True))


def elementwise(op_type: str, x: Node, name: str | None, dtype: DTypeLike | None = None, **attrs: Any) -> Node:
    """Make a node of the shape of `x`, and of its dtype unless another is given."""
    return Node(op_type, (x,), name=name, dtype=dtype or x.dtype, shape=x.shape, attrs=attrs)


computes("Identity", lambda value: value)


def pairwise(
    op_type: str,
    x: Any,
    y: Any,
    name: str | None,
    dtype: DTypeLike | None = None,
    names: tuple[str, str] = ("x", "y"),
    **attrs: Any,
) -> Node:
    """Make a node of two operands of one dtype that broadcast."""
    a, b = operands(op_type, x, y, names)
    return Node(op_type, (a, b), name=name, dtype=dtype or a.dtype, shape=broadcast_shapes(op_type, a, b), attrs=attrs)


def _is_small(node: Node) -> bool:
    count = node.shape.num_elements()
    return count is not None and count < _LARGE


def _document(function: Any, name: str, first_line: str, arguments: str) -> None:
    function.__name__ = function.__qualname__ = name
    function.__module__ = sys._getframe(2).f_globals["__name__"]
    function.__doc__ = (
        f"{first_line}\n\n    Args:\n{arguments}        name: Name of the node.\n\n    Returns:\n        A node.\n    "
    )


def unary(
    name: str,
    op_type: str,
    fn: Callable[..., Any],
    first_line: str,
    *,
    floats: bool = False,
    dtype: DTypeLike | None = None,
    **attrs: Any,
) -> Callable[..., Node]:
    """Make the public function `name(x, name=None)` of one operand, element by element.

    Args:
        name: Its name.
        op_type: TensorFlow's type of the operation.
        fn: Function of the array, of numpy.
        first_line: First line of its docstring.
        floats: Whether it takes floating dtypes only.
        dtype: Dtype of the result; default that of `x`.
        **attrs: Attributes of its nodes.

    Returns:
        The function.
    """

    def function(x: Any, name: str | None = None) -> Node:
        node = as_node(x)
        if floats:
            require_float(op_type, node)
        return elementwise(op_type, node, name, dtype, **attrs)

    computes(op_type, fn)
    kind = "Floating node or array" if floats else "Node or array"
    _document(function, name, first_line, f"        x: {kind} of any shape.\n")
    return function


def binary(
    name: str,
    op_type: str,
    fn: Callable[..., Any],
    first_line: str,
    *,
    dtype: DTypeLike | None = None,
    large: Callable[..., Any] | None = None,
    **attrs: Any,
) -> Callable[..., Node]:
    """Make the public function `name(x, y, name=None)` of two operands that broadcast; see `unary`.

    `large` does the same as `fn` for what may be large.
    """

    def function(x: Any, y: Any, name: str | None = None) -> Node:
        return pairwise(op_type, x, y, name, dtype, **attrs)

    kernel_of(op_type)(lambda node: fn if large is None or _is_small(node) else large)
    arguments = (
        "        x: Node or array of any shape.\n"
        "        y: Another of the same dtype, of a shape that broadcasts with that of `x`.\n"
    )
    _document(function, name, first_line, arguments)
    return function


#: Computed before the run where all they take is known, by a function that is the program's and no file's, if what they
#: give is no larger than `MAX_STATIC`.
MAX_STATIC = 1 << 20
_OF_CONSTANTS = frozenset(
    ("AddV2", "Cast", "ConcatV2", "ExpandDims", "Identity", "Mul", "Pack", "Range", "Reshape", "StridedSlice", "Sub")
)


def static_value(value: Any, values: dict[Node, Any] | None = None) -> Any:
    """Give the array of a plain value, or of a node that is made of constants and static shapes; None of another.

    `values` has what was computed on the way, since a node may be taken many times.
    """
    if not is_node(value):
        return np.asarray(value)
    node, values = as_node(value), {} if values is None else values
    if node not in values:
        values[node] = _computed(node, values)
    return values[node]


def _computed(node: Node, values: dict[Node, Any]) -> Any:
    if node.op_type == "Const":
        return node.attrs["value"]
    if node.op_type == "Shape":
        static = node.inputs[0].shape
        return np.array(static.as_list(), np.int32) if static.is_fully_defined() else None
    if node.op_type == "Rank":
        rank = node.inputs[0].shape.ndims
        return None if rank is None else np.array(rank, np.int32)
    if node.fn is None or node.is_read or node.op_type not in _OF_CONSTANTS:
        return None
    if (node.shape.num_elements() or 0) > MAX_STATIC:
        return None
    parts = [static_value(part, values) for part in node.inputs]
    return None if any(part is None for part in parts) else np.asarray(node.fn(*parts))


def static_ints(value: Any, what: str) -> tuple[int, ...]:
    """Give a static argument (an axis, a permutation) as ints.

    Raises:
        ValueError: If it is a node whose value is not known before a run.
    """
    static = static_value(value)
    if static is None:
        raise ValueError(f"{what} must be a number or a constant, known when the graph is built; got {value!r}.")
    return tuple(int(item) for item in np.asarray(static).reshape(-1))


def normal_axes(axis: Any, node: Node, what: str = "axis") -> tuple[int, ...]:
    """Give `axis` (None for all) as a tuple of ints, counted from the front where the rank is known.

    Raises:
        ValueError: If one is out of range.
    """
    rank, axes = node.shape.ndims, None if axis is None else static_ints(axis, what)
    return axes or () if rank is None else from_front(axes, rank, ValueError, f": {node.name!r}")


def from_front(
    axes: Iterable[int] | None, rank: int, error: type[Exception] = InvalidArgumentError, of: str = ""
) -> tuple[int, ...]:
    """Count axes (None for all) from the front; `of` ends the text of the error where one is out of range."""
    for axis in axes or ():
        if not -rank <= axis < rank:
            raise error(f"Invalid reduction dimension {axis} for input with {rank} dimensions{of}.")
    return tuple(dict.fromkeys(range(rank) if axes is None else (axis % rank for axis in axes)))


def sizes_of(node: Node) -> list[int | None] | None:
    """Give what is known before a run of a node that holds a shape: sizes, None for unknown ones."""
    if node.op_type == "Const":
        sizes = [int(size) for size in np.asarray(node.attrs["value"]).reshape(-1)]
        return [None if size < 0 else size for size in sizes]
    if node.op_type == "Shape":
        return node.inputs[0].shape.as_list() if node.inputs[0].shape.dims is not None else None
    if node.op_type in ("Cast", "Identity"):
        return sizes_of(node.inputs[0])
    if node.op_type == "Pack":
        parts = [sizes_of(part) for part in node.inputs]
        return [part[0] if part is not None and len(part) == 1 else None for part in parts]
    if node.op_type == "StridedSlice" and "index" in node.attrs:
        inner = sizes_of(node.inputs[0])
        try:
            picked = None if inner is None else inner[node.attrs["index"]]
        except (TypeError, IndexError):
            return None
        return picked if isinstance(picked, list) else [picked]
    dims = node.shape.as_list() if node.shape.dims is not None else None
    # More dimensions than numpy has are no shape's.
    return [None] * dims[0] if dims and dims[0] is not None and dims[0] <= 64 else None


def as_shape_node(shape: Any) -> Node:
    """Give a shape argument (ints, TensorShape, node, list of ints and nodes) as an int32 node."""
    if isinstance(shape, TensorShape):
        shape = shape.as_list()
    if isinstance(shape, (list, tuple)) and not is_node(shape):
        shape = [int(size) for size in shape]
    if isinstance(shape, (list, tuple)) and len(shape) == 0:
        return as_node(np.zeros(0, np.int32), as_dtype("int32"), name="shape")
    if is_node(shape):
        return as_node(shape)
    return as_node(np.asarray(shape, np.int32).reshape(-1), as_dtype("int32"), name="shape")
