"""Assigning to elements of Variables: by index tuples, and by what is computed from the rows that are there.

A PS task adds to rows and sets rows. So what is added to elements is sent as rows with zeros beside it, and what sets
or multiplies elements is computed from the rows that the run has read, and sets them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.tf1.graph.graph import Node
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.mutations import Mutation, assignment
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops.array_ops import expand_dims
from globalstep.tf1.ops.indexing_ops import gather
from globalstep.tf1.variables.assignments import NUMBERS, indices_of, operand_of, require_shape, variable_of
from globalstep.wire.declarations import OpKind

if TYPE_CHECKING:
    from globalstep.tf1.variables.variables import Variable


def scatter_nd_add(
    ref: Variable, indices: Any, updates: Any, use_locking: bool = False, name: str | None = None
) -> Mutation:
    """Make the op that adds to elements or slices of a Variable; repeated indices add up.

    Args:
        ref: The Variable.
        indices: int32 or int64 [..., depth]: index tuples into its first `depth` axes.
        updates: A slice of its dtype for each tuple: [..., *ref.shape[depth:]].
        use_locking: Accepted; every change is atomic on its PS.
        name: Name of the op.

    Returns:
        A node whose value is the Variable's whole new value.

    Raises:
        TypeError: If a dtype is another one.
        ValueError: If a shape is another one.
    """
    return _added(OpKind.ASSIGN_ADD, "ScatterNdAdd", ref, indices, updates, name)


def scatter_nd_sub(
    ref: Variable, indices: Any, updates: Any, use_locking: bool = False, name: str | None = None
) -> Mutation:
    """Make the op that subtracts `updates` from the Variable `ref` at index tuples `indices`; see `scatter_nd_add`."""
    return _added(OpKind.ASSIGN_SUB, "ScatterNdSub", ref, indices, updates, name)


def scatter_nd_update(
    ref: Variable, indices: Any, updates: Any, use_locking: bool = True, name: str | None = None
) -> Mutation:
    """Make the op that sets the Variable `ref` to `updates` at index tuples `indices`; see `scatter_nd_add`.

    Where tuples have more than one index, the rest of their rows is set to what the run has read: what another worker
    does to these rows between the two is lost.
    """
    op_type = "ScatterNdUpdate"
    ref, ids, operand, before = _checked(op_type, ref, indices, updates, None)
    with before:
        return _computed(op_type, ref, ids, operand, name)


def scatter_mul(
    ref: Variable, indices: Any, updates: Any, use_locking: bool = False, name: str | None = None
) -> Mutation:
    """Make the op that multiplies rows of a Variable.

    It sets them to what is computed from the rows that the run has read: what another worker does to them between the
    two is lost.

    Args:
        ref: The Variable.
        indices: int32 or int64 [n]: the rows.
        updates: [n, *ref.shape[1:]] of its dtype, or one number: the factors.
        use_locking: Accepted.
        name: Name of the op.

    Returns:
        A node whose value is the Variable's whole new value.
    """
    return _each_row("ScatterMul", ref, indices, updates, name)


def scatter_div(
    ref: Variable, indices: Any, updates: Any, use_locking: bool = False, name: str | None = None
) -> Mutation:
    """Make the op that divides the rows `indices` of the Variable `ref` by `updates`; see `scatter_mul`."""
    return _each_row("ScatterDiv", ref, indices, updates, name)


def scatter_min(
    ref: Variable, indices: Any, updates: Any, use_locking: bool = False, name: str | None = None
) -> Mutation:
    """Make the op that sets the rows `indices` of `ref` to the minimum of them and `updates`; see `scatter_mul`."""
    return _each_row("ScatterMin", ref, indices, updates, name)


def scatter_max(
    ref: Variable, indices: Any, updates: Any, use_locking: bool = False, name: str | None = None
) -> Mutation:
    """Make the op that sets the rows `indices` of `ref` to the maximum of them and `updates`; see `scatter_mul`."""
    return _each_row("ScatterMax", ref, indices, updates, name)


def _divide(x: Any, y: Any) -> Any:
    """Divide as TensorFlow does: integers toward zero."""
    return np.divide(x, y) if x.dtype.kind in "fc" else np.trunc(np.divide(x, y)).astype(x.dtype)


#: What an op does to each row that it names.
_EACH: dict[str, Callable[..., Any]] = {
    "ScatterMul": np.multiply,
    "ScatterDiv": _divide,
    "ScatterMin": np.minimum,
    "ScatterMax": np.maximum,
}


def _checked(
    op_type: str, ref: Any, indices: Any, updates: Any, allowed: tuple[str, ...] | None
) -> tuple[Variable, Node, Node, Any]:
    """Give the Variable, index tuples and operand of an op, and what has it run after the change `ref` stands for."""
    ref, before = variable_of(op_type, ref)
    operand = operand_of(op_type, ref, updates, allowed)
    ids = indices_of(op_type, ref, indices)
    shape = ids.shape
    if shape.ndims == 0:
        raise ValueError(f"Indices of {op_type} on Variable {ref.op_name!r} must be of rank 1 or more, but are 0.")
    depth = None if shape.dims is None else shape.as_list()[-1]
    if depth is not None and ref.shape.ndims is not None:
        if not 1 <= depth <= ref.shape.ndims:
            raise ValueError(
                f"The inner dimension of indices of {op_type} is {depth}; Variable {ref.op_name!r} has "
                f"{ref.shape.ndims} dimensions."
            )
        require_shape(op_type, ref, operand, [*shape.as_list()[:-1], *ref.shape.as_list()[depth:]])
    return ref, ids, operand, before


def _added(kind: OpKind, op_type: str, ref: Any, indices: Any, updates: Any, name: str | None) -> Mutation:
    ref, ids, operand, before = _checked(op_type, ref, indices, updates, NUMBERS)
    with before:
        return assignment(kind, ref, _rows(op_type, ref, (ids, operand)), _first(ids), name=name)


def _each_row(op_type: str, ref: Any, indices: Any, updates: Any, name: str | None) -> Mutation:
    ref, before = variable_of(op_type, ref)
    operand = operand_of(op_type, ref, updates, NUMBERS)
    ids = indices_of(op_type, ref, indices)
    shape = ids.shape
    if shape.dims is not None and ref.shape.ndims is not None and operand.shape.ndims != 0:
        require_shape(op_type, ref, operand, [*shape.as_list(), *ref.shape.as_list()[1:]])
    with before:
        return _computed(op_type, ref, expand_dims(ids, -1), operand, name)


def _computed(op_type: str, ref: Variable, ids: Node, operand: Node, name: str | None) -> Mutation:
    """Make the op that sets the rows of some index tuples to what it makes of them."""
    rows = Node("UniqueRows", (_first(ids),), name="Unique", dtype=ids.dtype, shape=[None])
    whole = _rows(op_type, ref, (gather(ref, rows), rows, ids, operand))
    return assignment(OpKind.ASSIGN, ref, whole, rows, name=name)


def _first(ids: Node) -> Node:
    """Give the rows that index tuples are in."""
    return Node("RowsOfTuples", (ids,), name="StridedSlice", dtype=ids.dtype, shape=[None])


computes("UniqueRows", np.unique)
computes("RowsOfTuples", lambda at: at[..., 0].reshape(-1))


def _rows(op_type: str, ref: Variable, inputs: Sequence[Node]) -> Node:
    """Give rows for a Variable: zeros but for updates at index tuples, or the rows that it has with these changed."""
    shape = TensorShape([None, *ref.shape.as_list()[1:]])
    return Node("ScatterNdRows", inputs, dtype=ref.dtype, shape=shape, attrs={"of": op_type, "variable": ref})


@computes("ScatterNdRows")
def _with_updates(*values: Any, of: str, variable: Any) -> Any:
    *there, at, updates = values
    tuples = at.reshape(-1, at.shape[-1])
    within = _within(of, variable, tuples)
    if updates.ndim or not there:
        updates = updates.reshape(len(tuples), *updates.shape[at.ndim - 1 :])
    if not there:
        rows: Any = np.zeros((len(tuples), *variable.shape.as_list()[1:]), updates.dtype)
        rows[(np.arange(len(tuples)), *within)] = updates
        return rows
    rows, places, each = np.array(there[0]), np.searchsorted(there[1], tuples[:, 0]), _EACH.get(of)
    if each is None:
        rows[(places, *within)] = updates
        return rows
    # One after another, so that a row that is named twice is changed twice.
    for place, update in zip(places, np.broadcast_to(updates, (len(tuples), *rows.shape[1:])), strict=True):
        rows[place] = each(rows[place], update)
    return rows


def _within(op_type: str, ref: Variable, tuples: Any) -> tuple[Any, ...]:
    """Give the places within the rows, a vector for each axis.

    Raises:
        InvalidArgumentError: If one is out of range. The rows are checked where the Variable is.
    """
    rest = tuples[:, 1:]
    sizes = np.array(ref.shape.as_list()[1 : tuples.shape[1]])
    if np.any(rest < 0) or np.any(rest >= sizes):
        raise InvalidArgumentError(
            f"{op_type}: an index tuple is out of the shape {ref.shape} of Variable {ref.op_name!r}."
        )
    return tuple(rest.T)
