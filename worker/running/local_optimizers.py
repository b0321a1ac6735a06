"""Optimizers of Variables in LOCAL_VARIABLES: a worker applies the update rules itself, to its own values and slots.

The rules are those that PS tasks apply, bit for bit; no push carries them, and no policy of the run looks at them.

Layer: worker. Threads: functions are pure but for the arrays that they are given to change.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.graph.mutations import OptimizerSpec

__all__ = ["LocalUse", "apply_rule", "moved_scalars"]

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
        if indices is None:
            value, *slots = (array.reshape(-1) for array in arrays)
            rule.dense(value, tuple(slots), np.ascontiguousarray(gradient).reshape(-1), hypers)
            return
        table, *tables = (array.reshape(len(array), -1) for array in arrays)
        rows = np.ascontiguousarray(gradient).reshape(indices.size, table.shape[1])
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
