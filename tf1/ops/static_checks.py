"""Checks of nodes, before a run where that is known: of ranks, shapes and dtypes, and of how near values are.

Layer: tf1. Source: TensorFlow 1.4 `python/ops/check_ops.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from globalstep.dtypes import DTypeLike, as_dtype
from globalstep.errors import InvalidArgumentError
from globalstep.tf1.gradients.registry import gradient_of
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.indexed_slices import IndexedSlices
from globalstep.tf1.graph.kernels import computes, kernel_of
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.graph.sparse_tensor import SparseTensor
from globalstep.tf1.ops.array_ops import rank as rank_of
from globalstep.tf1.ops.array_ops import shape as shape_of
from globalstep.tf1.ops.control_flow_ops import Assert, no_op


def assert_rank(
    x: Any,
    rank: Any,
    data: Sequence[Any] | None = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Node:
    """Give an operation that fails the run unless a node has `rank` axes.

    Args:
        x: Node or array.
        rank: A number, or a scalar node.
        data: What to tell in the error of a run; default the rank and the shape.
        summarize: How many elements of each to tell.
        message: What to tell first.
        name: Name of the operation.

    Returns:
        An operation; it does nothing where both ranks are known before a run.

    Raises:
        ValueError: If both ranks are known, and differ; or if `rank` is no scalar.
        TypeError: If `rank` is no integer.
        InvalidArgumentError: In the run, if they differ there.
    """
    return _checked([x, rank], "rank", data, summarize, message, name)


def assert_rank_at_least(
    x: Any,
    rank: Any,
    data: Sequence[Any] | None = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Node:
    """Give an operation that fails the run unless a node has `rank` axes or more; see `assert_rank`."""
    return _checked([x, rank], "rank at least", data, summarize, message, name)


def assert_rank_in(
    x: Any,
    ranks: Sequence[Any],
    data: Sequence[Any] | None = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Node:
    """Give an operation that fails the run unless a node has one of `ranks`; see `assert_rank`."""
    return _checked([x, *ranks], "rank in", data, summarize, message, name)


def assert_type(tensor: Any, tf_type: DTypeLike, message: str | None = None, name: str | None = None) -> Node:
    """Give an operation that does nothing, if a node has a dtype.

    Raises:
        TypeError: If it has another one.
    """
    node, wanted = as_node(tensor), as_dtype(tf_type)
    if node.dtype != wanted:
        raise TypeError(f"{message or ''}  {node.op_name} must be of type {wanted!r}")
    return no_op(name=name or "statically_determined_correct_type")


def assert_integer(x: Any, message: str | None = None, name: str | None = None) -> Node:
    """Give an operation that does nothing, if a node has a dtype of integers.

    Raises:
        TypeError: If it has none.
    """
    node = as_node(x)
    if not node.dtype.is_integer:
        raise TypeError(f'{message or ""}Expected "x" to be integer type.  Found: {node.dtype!r}')
    return no_op(name=name or "statically_determined_is_integer")


#: What a rank must be, in the words of the message, to how it is seen.
_HOLDS: dict[str, Callable[[int, list[int]], bool]] = {
    "rank": lambda found, wanted: found == wanted[0],
    "rank at least": lambda found, wanted: found >= wanted[0],
    "rank in": lambda found, wanted: found in wanted,
}


def _checked(
    x_and_ranks: list[Any],
    words: str,
    data: Sequence[Any] | None,
    summarize: int | None,
    message: str | None,
    name: str | None,
) -> Node:
    node, *wanted = map(as_node, x_and_ranks)
    for rank in wanted:
        if not rank.dtype.is_integer:
            raise TypeError(f"Rank must be an integer, not of dtype {rank.dtype.name}: {rank!r}")
        if rank.shape.ndims not in (0, None):
            raise ValueError(f"Rank must be a scalar.  Received shape {rank.shape}: {rank!r}")
    ndims = node.shape.ndims
    if ndims is not None and all(rank.op_type == "Const" for rank in wanted):
        ranks = [int(rank.attrs["value"]) for rank in wanted]
        if _HOLDS[words](ndims, ranks):
            return no_op(name=name or "static_checks_determined_all_ok")
        want = ranks[0] if words != "rank in" else tuple(ranks)
        raise ValueError(
            f"{message or ''}.  Tensor {node.name} must have {words} {want}.  Received rank {ndims}, shape {node.shape}"
        )
    right = Node("Compare", (rank_of(node), *wanted), dtype="bool", shape=[], attrs={"words": words})
    told_in_run = [message or "", f"Tensor {node.name} must have {words}", *wanted, "Received shape: ", shape_of(node)]
    return Assert(right, list(data or told_in_run), summarize, name or "assert_rank")


computes(
    "Compare",
    lambda count, *numbers, words: np.asarray(_HOLDS[words](int(count), [int(number) for number in numbers])),
)


def is_tensor(x: Any) -> bool:
    """Say whether `x` is a node that has a value, a Variable, a SparseTensor or IndexedSlices.

    >>> import globalstep as gs
    >>> [is_tensor(x) for x in (gs.constant(1.0), gs.no_op(), 1.0)]
    [True, False, False]
    """
    return isinstance(x, (SparseTensor, IndexedSlices)) or (isinstance(x, Node) and not x.is_operation)


def ensure_shape(x: Any, shape: Any, name: str | None = None) -> Node:
    """Give a value as it is, of a static shape that a run makes sure of.

    Raises:
        ValueError: If what is known of the shape contradicts it.
        InvalidArgumentError: In the run, if the value's does.
    """
    node, wanted = as_node(x), TensorShape(shape)
    shown = node.shape.merge_with(wanted)
    return Node("EnsureShape", (node,), name=name, dtype=node.dtype, shape=shown, attrs={"expected": wanted})


@kernel_of("EnsureShape")
def _ensured(node: Node) -> Any:
    wanted, name = node.attrs["expected"], node.inputs[0].op_name

    def check(value: Any) -> Any:
        if not wanted.is_compatible_with(np.shape(value)):
            found, right = (
                f"[{','.join('?' if size is None else str(size) for size in sizes)}]"
                for sizes in (np.shape(value), wanted.as_list())
            )
            raise InvalidArgumentError(f"Shape of tensor {name} {found} is not compatible with expected shape {right}.")
        return value

    return check


@gradient_of("EnsureShape")
def _ensured_gradient(node: Node, grad: Node) -> Any:
    return (grad,)


def assert_near(
    x: Any,
    y: Any,
    rtol: Any = None,
    atol: Any = None,
    data: Any = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Node:
    """Give an operation that fails the run unless abs(x - y) < atol + rtol * abs(y) for all elements.

    By default both tolerances are 10 times the dtype's epsilon. The others are `assert_equal`'s arguments.
    """
    left = as_node(x)
    right = as_node(y, dtype=left.dtype)
    rtol, atol = (10 * float(np.finfo(left.dtype.as_numpy_dtype).eps) if one is None else one for one in (rtol, atol))
    text = f"x and y not equal to tolerance rtol = {rtol}, atol = {atol}"
    told = data or [message or "", text, f"x ({left.name}) = ", left, f"y ({right.name}) = ", right]
    return Assert(abs(left - right) < atol + rtol * abs(right), told, summarize, name or "assert_near")
