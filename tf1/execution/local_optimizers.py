"""Optimizers of Variables in LOCAL_VARIABLES: a worker applies the update rules itself, to its own values and slots.

The rules are those that PS tasks apply, bit for bit; no push carries them, and no policy of the run looks at them.

Layer: tf1. Threads: functions are pure but for the arrays that they are given to change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from globalstep.tf1.graph.mutations import OptimizerSpec
from globalstep.worker.step.own_optimizer import rule_of


@dataclass(frozen=True, slots=True)
class LocalUse:
    """The use of an optimizer in a round, as the push would name it if its Variables were on the PS.

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
        rule = rule_of(self.spec.kind)
        hypers = {name: float(value) for name, value in self.spec.hypers.items() if isinstance(value, int | float)}
        hypers |= self.numbers(values)
        for name, variable in zip(rule.scalars, self.spec.scalars, strict=True):
            hypers[name] = scalar(variable)
        rule.check_hypers(hypers)
        return hypers
