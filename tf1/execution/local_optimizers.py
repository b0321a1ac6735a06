"""Optimizers of Variables in LOCAL_VARIABLES: a worker applies the update rules itself, to its own values and slots.

The rules are those that PS tasks apply, bit for bit; no push carries them, and no policy of the run looks at them.

Layer: tf1. Threads: functions are pure but for the arrays that they are given to change.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.errors import InvalidArgumentError
from globalstep.optimizers.lowering import lower
from globalstep.optimizers.optimizer import Optimizer
from globalstep.tf1.graph.graph import Node
from globalstep.tf1.graph.mutations import OptimizerSpec
from globalstep.wire.expressions import evaluate

__all__ = ["LocalUse", "OwnOptimizer", "OwnState", "apply_rule", "moved_scalars"]

Array = npt.NDArray[Any]

#: Where the rules are. By name, since a worker's code imports none of a PS task's.
_RULES = "globalstep.ps.rules"


@dataclass(frozen=True, slots=True)
class LocalUse:
    """What a round's push would say of an optimizer, if its Variables were on the PS.

    Attributes:
        spec: The optimizer.
        finish: Whether its scalar state moves on.
        numbers: Gives those of its hyper-parameters that are no constants.
    """

    spec: OptimizerSpec
    finish: bool
    numbers: Callable[[Any], Mapping[str, float]]

    def hypers(self, values: Any, scalar: Callable[[Any], float]) -> dict[str, float]:
        """Give the rule's numbers as of before the round's changes.

        Args:
            values: The run's slots.
            scalar: Gives the value of a Variable of its scalar state.

        Raises:
            InvalidArgumentError: If the rule cannot work with one.
        """
        rule = _rule(self.spec)
        hypers = {name: float(value) for name, value in self.spec.hypers.items() if isinstance(value, int | float)}
        hypers |= self.numbers(values)
        for name, variable in zip(rule.scalars, self.spec.scalars, strict=True):
            hypers[name] = scalar(variable)
        rule.check_hypers(hypers)
        return hypers


@dataclass
class OwnState:
    """What an OwnOptimizer keeps from step to step.

    Attributes:
        scalars: Its scalar state.
        steps: How many steps it has taken.
        slots: The slots of each array that it has changed.
    """

    scalars: dict[str, float]
    steps: int = 0
    slots: dict[Any, list[Array]] = field(default_factory=dict)

    def copy(self) -> OwnState:
        """Give a copy that steps may be taken with while this one stays."""
        slots = {key: [slot.copy() for slot in some] for key, some in self.slots.items()}
        return OwnState(dict(self.scalars), self.steps, slots)


class OwnOptimizer:
    """Applies an optimizer to arrays that a worker has to itself. Thread-safe, being never changed.

    Args:
        made: The optimizer; Variables of its own it makes none.
        weight_decay: Part of each array that is added to its gradient; for whole gradients.

    Raises:
        InvalidArgumentError: If its scalar state does not begin with numbers.
    """

    def __init__(self, made: Optimizer, weight_decay: float = 0.0) -> None:
        self._spec = OptimizerSpec(name=made.get_name(), kind=made.rule())
        self._initial = [slot.initial for slot in made.slots()]
        self._scalars = {name: _constant(made, name, value) for name, value in made.scalars().items()}
        self._decay = weight_decay

    def begun(self) -> OwnState:
        """Give the state that it begins with."""
        return OwnState(dict(self._scalars))

    def step(
        self,
        state: OwnState,
        values: Any,
        gradients: Mapping[Any, tuple[Array, Array | None]],
        hypers: Mapping[str, float],
    ) -> None:
        """Take a step.

        Args:
            state: Changed.
            values: Gives each key's array, which is changed in place.
            gradients: By key: a gradient, and the rows that it is of; None for all.
            hypers: The rule's numbers, its scalar state apart.
        """
        numbers = {**hypers, **state.scalars}
        for key, (given, rows) in gradients.items():
            value, gradient = values[key], given
            if self._decay:
                gradient = gradient + value.dtype.type(self._decay) * value
            if key not in state.slots:
                state.slots[key] = [np.full_like(value, initial) for initial in self._initial]
            apply_rule(self._spec, (value, *state.slots[key]), np.asarray(gradient), rows, numbers)
        if gradients:
            moved = moved_scalars(self._spec, numbers)
            state.scalars = {name: float(value) for name, value in zip(state.scalars, moved, strict=True)}
            state.steps += 1


def apply_rule(
    spec: OptimizerSpec,
    arrays: tuple[Array, ...],
    gradient: Array,
    indices: Array | None,
    hypers: Mapping[str, float],
) -> None:
    """Apply a gradient to a value and its slots, in place.

    Args:
        spec: The optimizer.
        arrays: The value, then its slots; changed.
        gradient: Of the value's shape, or [n, ...] with `indices`.
        indices: Rows, within the value.
        hypers: The rule's numbers.
    """
    rule = _rule(spec)
    with np.errstate(all="ignore"):
        if indices is None and rule.by_rows:
            indices = np.arange(len(gradient))
        if indices is None:
            value, *slots = (array.reshape(-1) for array in arrays)
            rule.dense(value, tuple(slots), np.ascontiguousarray(gradient).reshape(-1), hypers)
            return
        table, *tables = (array.reshape(len(array), -1) for array in arrays)
        rows = np.ascontiguousarray(gradient).reshape(indices.size, table.shape[1])
        indices = np.ascontiguousarray(indices, np.int64)
        if rule.merges_duplicates:
            indices, rows = importlib.import_module(_RULES).merge_rows(indices, rows)
        rule.sparse(table, tuple(tables), indices, rows, hypers)


def moved_scalars(spec: OptimizerSpec, hypers: Mapping[str, float]) -> list[np.float32]:
    """Give an optimizer's scalar state after a round that finishes it, in the rule's order."""
    rule = _rule(spec)
    now = {name: np.float32(hypers[name]) for name in rule.scalars}
    with np.errstate(all="ignore"):
        moved = rule.advance_scalars(now, hypers)
    return [moved[name] for name in rule.scalars]


def _rule(spec: OptimizerSpec) -> Any:
    return importlib.import_module(_RULES).get_rule(spec.kind)


def _constant(made: Optimizer, name: str, value: Any) -> float:
    if not isinstance(value, Node):
        return float(value() if callable(value) else value)
    expr = lower(value)
    if expr is None:
        raise InvalidArgumentError(
            f"{name} of {made.get_name()} begins with {value.name!r}; where a worker applies it by itself, it must be "
            "a number."
        )
    return evaluate(expr, {})
