"""Variables that live in a session, or in this process, instead of on the PS.

The collection LOCAL_VARIABLES lives in a session; a Variable on this task's own device (own_variables.py) in the
process, as in TensorFlow: it outlives a session that was lost.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.errors import FailedPreconditionError, InvalidArgumentError
from globalstep.tf1.graph.graph import Graph
from globalstep.tf1.graph.mutations import OptimizerSpec
from globalstep.tf1.variables.variables import Variable
from globalstep.wire.declarations import OpKind
from globalstep.worker.step.own_optimizer import apply_rule

Array = npt.NDArray[Any]


# Guards the values of all local Variables of the process; a leaf. Arrays are replaced, never written into, so readers
# keep theirs.
_lock = threading.Lock()
#: A graph -> the values of those of its Variables that live in the process.
_own: weakref.WeakKeyDictionary[Graph, dict[str, Array]] = weakref.WeakKeyDictionary()


class LocalVariables:
    """The values of a session's local Variables. Thread-safe; each change is atomic.

    Args:
        graph: The session's.
    """

    def __init__(self, graph: Graph) -> None:
        self._session: dict[str, Array] = {}
        with _lock:
            self._process = _own.setdefault(graph, {})

    def _values(self, variable: Variable) -> dict[str, Array]:
        # What an optimizer keeps lives where its Variables do.
        return self._process if variable.is_own and not variable.optimizer_name else self._session

    def has(self, variable: Variable) -> bool:
        """Say whether it has a value."""
        with _lock:
            return variable.op_name in self._values(variable)

    def read(self, variable: Variable) -> Array:
        """Give its value, which must not be written into.

        Raises:
            FailedPreconditionError: If it has none.
        """
        with _lock:
            value = self._values(variable).get(variable.op_name)
        if value is None:
            raise FailedPreconditionError(f"Attempting to use uninitialized value {variable.op_name}")
        return value

    def change(self, kind: OpKind, variable: Variable, operand: Any, indices: Array | None = None) -> None:
        """Assign to it, add to it or subtract from it, whole or by rows.

        Raises:
            FailedPreconditionError: If it has no value and is not assigned whole.
            InvalidArgumentError: If a shape does not fit, or a row is out of range.
        """
        name = variable.op_name
        operand = np.asarray(operand, dtype=variable.dtype.as_numpy_dtype)
        with _lock:
            values = self._values(variable)
            old = values.get(name)
            if kind is OpKind.ASSIGN and indices is None:
                new = operand.copy()
            elif old is None:
                raise FailedPreconditionError(f"Attempting to use uninitialized value {name}")
            else:
                new = _changed(kind, name, old, operand, indices)
            new.flags.writeable = False
            values[name] = new

    def apply(
        self,
        optimizer: OptimizerSpec,
        variable: Variable,
        gradient: Array,
        indices: Array | None,
        hypers: Mapping[str, float],
    ) -> None:
        """Apply an optimizer to it and its slots, whole or by rows.

        Args:
            optimizer: The optimizer.
            variable: What it is applied to.
            gradient: The gradient.
            indices: Its rows; None for all.
            hypers: The numbers of the optimizer's rule.

        Raises:
            FailedPreconditionError: If it, or a slot, has no value.
            InvalidArgumentError: If a shape does not fit, or a row is out of range.
        """
        changed = (variable, *optimizer.slots[variable])
        with _lock:
            values = self._values(variable)
            for one in changed:
                if one.op_name not in values:
                    raise FailedPreconditionError(
                        f"Attempting to use uninitialized value {one.op_name}; run local_variables_initializer() first."
                    )
            old = values[variable.op_name]
            rows = None if indices is None else indices.astype(np.int64, copy=False).reshape(-1)
            if rows is not None:
                _check_rows(variable.op_name, old, rows)
            elif gradient.shape != old.shape:
                raise InvalidArgumentError(
                    f"Variable {variable.op_name!r} has shape {old.shape}; its gradient has shape {gradient.shape}."
                )
            new = tuple(values[one.op_name].copy() for one in changed)
            apply_rule(optimizer.kind, new, gradient, rows, hypers)
            for one, value in zip(changed, new, strict=True):
                value.flags.writeable = False
                values[one.op_name] = value


def _check_rows(name: str, old: Array, indices: Array) -> None:
    """Refuse rows that an array does not have, by an InvalidArgumentError."""
    if indices.size and (indices.min() < 0 or indices.max() >= len(old)):
        raise InvalidArgumentError(f"Variable {name!r} has {len(old)} rows; rows {indices} were named.")


def _changed(kind: OpKind, name: str, old: Array, operand: Array, indices: Array | None) -> Array:
    if indices is None:
        if operand.shape not in ((), old.shape):
            raise InvalidArgumentError(
                f"Variable {name!r} has shape {old.shape}; the operand has shape {operand.shape}."
            )
        return np.asarray(old + operand if kind is OpKind.ASSIGN_ADD else old - operand, dtype=old.dtype)
    _check_rows(name, old, indices)
    new = old.copy()
    if kind is OpKind.ASSIGN:
        new[indices] = operand
    elif kind is OpKind.ASSIGN_ADD:
        np.add.at(new, indices, operand)
    else:
        np.subtract.at(new, indices, operand)
    return new
