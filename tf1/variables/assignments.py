"""Assigning to Variables: the ops that set, add to or subtract from them, whole or by rows.

Layer: tf1. `variables.Variable` has the same as methods, so Variables are known here as a type only.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np

from globalstep.errors import OutOfRangeError
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.mutations import Mutation, assignment
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.wire.declarations import OpKind

if TYPE_CHECKING:
    from globalstep.tf1.variables.variables import Variable


#: What can be added to and subtracted from.
NUMBERS = (
    *("float32", "float64", "int32", "uint8", "int16", "int8", "complex64", "int64", "uint16"),
    *("complex128", "float16", "uint32", "uint64"),
)


def assign(
    ref: Variable,
    value: Any,
    validate_shape: bool | None = None,
    use_locking: bool | None = None,
    name: str | None = None,
) -> Mutation:
    """Make the op that sets a Variable.

    Args:
        ref: The Variable, or what another change of it gives: this one then comes after that.
        value: Its new value: array, number or node of its dtype and shape.
        validate_shape: False to leave the shape unchecked until the PS sees it.
        use_locking: Accepted; every change is atomic on its PS.
        name: Name of the op.

    Returns:
        A node whose value is the new value.

    Raises:
        TypeError: If `ref` is no Variable, or the dtype is another one.
        ValueError: If the shape is another one.
    """
    return _changed(OpKind.ASSIGN, "Assign", ref, value, name, validate_shape is False)


def assign_add(ref: Variable, value: Any, use_locking: bool | None = None, name: str | None = None) -> Mutation:
    """Make the op that adds to a Variable; its value is the new value. See `assign`.

    What is added to a step moves the step on: it counts, and stops, as a train op's increment does. Adding 0 to it only
    reads it.

    Args:
        ref: The Variable.
        value: What is added: array, number or node of its dtype and shape.
        use_locking: Accepted; every change is atomic on its PS.
        name: Name of the op.
    """
    return _changed(OpKind.ASSIGN_ADD, "AssignAdd", ref, value, name)


def assign_sub(ref: Variable, value: Any, use_locking: bool | None = None, name: str | None = None) -> Mutation:
    """Make the op that subtracts `value` from the Variable `ref`; see `assign_add`."""
    return _changed(OpKind.ASSIGN_SUB, "AssignSub", ref, value, name)


def _changed(
    kind: OpKind, op_type: str, ref: Variable, value: Any, name: str | None, any_shape: bool = False
) -> Mutation:
    ref, before = variable_of(op_type, ref)
    operand = operand_of(op_type, ref, value, None if kind is OpKind.ASSIGN else NUMBERS)
    if not any_shape:
        require_shape(op_type, ref, operand, ref.shape)
    with before:
        return assignment(kind, ref, operand, name=name)


def count_up_to(ref: Variable, limit: int, name: str | None = None) -> Node:
    """Make the op that adds 1 to a Variable and gives what it was before, until that is `limit`.

    Args:
        ref: The Variable, of int32 or int64.
        limit: The first number that is not given. Runs after that count on, though they give none.
        name: Name of the op.

    Raises:
        TypeError: If the Variable has another dtype.
        OutOfRangeError: In the run, at the limit.
    """
    if ref.dtype.name not in ("int32", "int64"):
        raise TypeError(
            f"Value passed to parameter 'T' has DataType {ref.dtype.name} not in list of allowed values: int32, int64"
        )
    counted, attrs = assign_add(ref, 1), {"limit": limit}
    return Node("CountUpTo", (counted,), name=name, dtype=ref.dtype, shape=ref.shape, attrs=attrs, stateful=True)


@computes("CountUpTo")
def _before(after: Any, *, limit: int) -> Any:
    if after > limit:
        raise OutOfRangeError(f"Reached limit of {limit}")
    return after - after.dtype.type(1)


def scatter_update(
    ref: Variable, indices: Any, updates: Any, use_locking: bool = True, name: str | None = None
) -> Mutation:
    """Make the op that sets rows of a Variable.

    Args:
        ref: The Variable.
        indices: int32 or int64 [n]: the rows.
        updates: [n, *ref.shape[1:]] of its dtype: their new values.
        use_locking: Accepted; every change is atomic on its PS.
        name: Name of the op.

    Returns:
        A node whose value is the Variable's whole new value.
    """
    return _scatter(OpKind.ASSIGN, "ScatterUpdate", ref, indices, updates, name)


def scatter_add(
    ref: Variable, indices: Any, updates: Any, use_locking: bool = False, name: str | None = None
) -> Mutation:
    """Make the op that adds `updates` to the rows `indices` of the Variable `ref`; see `scatter_update`.

    What is said of a row twice adds up.
    """
    return _scatter(OpKind.ASSIGN_ADD, "ScatterAdd", ref, indices, updates, name)


def scatter_sub(
    ref: Variable, indices: Any, updates: Any, use_locking: bool = False, name: str | None = None
) -> Mutation:
    """Make the op that subtracts `updates` from the rows `indices` of the Variable `ref`; see `scatter_add`."""
    return _scatter(OpKind.ASSIGN_SUB, "ScatterSub", ref, indices, updates, name)


def _scatter(kind: OpKind, op_type: str, ref: Variable, indices: Any, updates: Any, name: str | None) -> Mutation:
    ref, before = variable_of(op_type, ref)
    operand = operand_of(op_type, ref, updates, None if kind is OpKind.ASSIGN else NUMBERS)
    rows = indices_of(op_type, ref, indices)
    ids = rows.shape
    if operand.shape.ndims == 0:
        attrs = {"sizes": ref.shape.as_list()[1:]}
        operand = Node("BroadcastRows", (operand, rows), name="BroadcastTo", dtype=operand.dtype, attrs=attrs)
    if ids.ndims is not None and ref.shape.ndims is not None:
        require_shape(op_type, ref, operand, [*ids.as_list(), *ref.shape.as_list()[1:]])
    with before:
        return assignment(kind, ref, operand, rows, name=name)


computes("BroadcastRows", lambda value, at, *, sizes: np.broadcast_to(value, (*at.shape, *sizes)))


def indices_of(op_type: str, ref: Variable, indices: Any) -> Node:
    """Give indices into a Variable as a node.

    Raises:
        TypeError: If they are no integers.
    """
    rows = as_node(indices)
    if not rows.dtype.is_integer:
        raise TypeError(
            f"Value passed to parameter 'indices' of {op_type!r} on Variable {ref.op_name!r} has DataType "
            f"{rows.dtype.name} not in list of allowed values: int32, int64"
        )
    return rows


def variable_of(op_type: str, ref: Any) -> tuple[Variable, contextlib.AbstractContextManager[None]]:
    """Give the Variable that an op is to change, and what has the op run after the change that `ref` stands for.

    What a change gives stands for its Variable, as TensorFlow's references do: the next change may take it.
    """
    changed: Variable | None = getattr(ref, "value_of", None)
    if changed is not None:
        return changed, changed.graph.control_dependencies([ref])
    if getattr(ref, "op_type", None) != "VariableV2":
        raise TypeError(f"{op_type} changes a Variable; got {ref!r}.")
    return ref, contextlib.nullcontext()


def operand_of(op_type: str, ref: Variable, value: Any, allowed: tuple[str, ...] | None = None) -> Node:
    """Give what a Variable is changed by as a node of its dtype.

    Raises:
        TypeError: If its dtype is another, or is not among the allowed ones.
    """
    if allowed is not None and ref.dtype.name not in allowed:
        raise TypeError(
            f"Value passed to parameter 'ref' has DataType {ref.dtype.name} not in list of allowed values: "
            f"{', '.join(allowed)}. {op_type} on Variable {ref.op_name!r}: assign it instead."
        )
    if not isinstance(value, Node) and not hasattr(value, "__node__"):
        return as_node(value, ref.dtype, name="value")
    node = as_node(value)
    if node._dtype not in (None, ref.dtype):
        raise TypeError(
            f"Input 'value' of '{op_type}' Op has type {node.dtype.name} that does not match type "
            f"{ref.dtype.name} of argument 'ref': {node.name!r} for Variable {ref.op_name!r}; use gs.cast."
        )
    return node


def require_shape(op_type: str, ref: Variable, operand: Node, wanted: Any) -> None:
    """Refuse an operand whose shape cannot be the wanted one, with TensorFlow's text."""
    shape, wanted = operand.shape, TensorShape(wanted)
    if shape.is_compatible_with(wanted):
        return
    if shape.ndims != wanted.ndims:
        raise ValueError(
            f"Shapes must be equal rank, but are {wanted.ndims} and {shape.ndims} for '{op_type}' "
            f"(op: '{op_type}') with input shapes: {_brackets(wanted)}, {_brackets(shape)}. "
            f"Variable {ref.op_name!r}, operand {operand.name!r}."
        )
    i = next(
        i
        for i, (a, b) in enumerate(zip(wanted.as_list(), shape.as_list(), strict=True))
        if a is not None and b is not None and a != b
    )
    raise ValueError(
        f"Dimension {i} in both shapes must be equal, but are {wanted[i]} and {shape[i]}. Shapes are "
        f"{_brackets(wanted)} and {_brackets(shape)}. for '{op_type}' (op: '{op_type}') with input shapes: "
        f"{_brackets(wanted)}, {_brackets(shape)}. Variable {ref.op_name!r}, operand {operand.name!r}."
    )


def _brackets(shape: TensorShape) -> str:
    return str(shape).replace("(", "[").replace(",)", ")").replace(")", "]").replace(" ", "")
