"""Optimizers that a worker applies itself, to arrays of its own.

The rules are those that PS tasks apply, bit for bit; no push carries them, and no policy of the run looks at them.

Layer: worker. Threads: functions are pure but for the arrays that they are given to change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.worker.step.step_push import decayed

Array = npt.NDArray[Any]


@dataclass
class OwnState:
    """The state of an OwnOptimizer between steps.

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
        kind: The rule.
        slots: What each element of its slots starts as, in the rule's order.
        scalars: Its scalar state, name to initial value.
        weight_decay: Part of each array that is added to its gradient; for whole gradients.
    """

    def __init__(
        self, kind: str, slots: Sequence[float], scalars: Mapping[str, float], weight_decay: float = 0.0
    ) -> None:
        self._kind = kind
        self._initial = list(slots)
        self._scalars = dict(scalars)
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
        for key, (dense, rows) in gradients.items():
            value, gradient = values[key], dense
            if self._decay:
                gradient = decayed(gradient, value, self._decay)
            if key not in state.slots:
                state.slots[key] = [np.full_like(value, initial) for initial in self._initial]
            apply_rule(self._kind, (value, *state.slots[key]), np.asarray(gradient), rows, numbers)
        if gradients:
            moved = moved_scalars(self._kind, numbers)
            state.scalars = {name: float(value) for name, value in zip(state.scalars, moved, strict=True)}
            state.steps += 1


def apply_rule(
    kind: str, arrays: tuple[Array, ...], gradient: Array, indices: Array | None, hypers: Mapping[str, float]
) -> None:
    """Apply a gradient to a value and its slots, in place.

    Args:
        kind: The rule.
        arrays: The value, then its slots; changed.
        gradient: Of the value's shape, or [n, ...] with `indices`.
        indices: Rows, within the value.
        hypers: The rule's numbers.
    """
    rule = rule_of(kind)
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
            from globalstep.rules import merge_rows

            indices, rows = merge_rows(indices, rows)
        rule.sparse(table, tuple(tables), indices, rows, hypers)


def moved_scalars(kind: str, hypers: Mapping[str, float]) -> list[np.float32]:
    """Give an optimizer's scalar state after a round that finishes it, in the rule's order."""
    rule = rule_of(kind)
    now = {name: np.float32(hypers[name]) for name in rule.scalars}
    with np.errstate(all="ignore"):
        moved = rule.advance_scalars(now, hypers)
    return [moved[name] for name in rule.scalars]


def rule_of(kind: str) -> Any:
    """Give the rule of a kind; only a worker that applies rules loads them."""
    from globalstep.rules import get_rule

    return get_rule(kind)
