"""Optimizers of Variables in LOCAL_VARIABLES: a worker applies the update rules itself, to its own values and slots.

The rules are those that PS tasks apply, bit for bit; no push carries them, and no policy of the run looks at them.

Layer: tf1. Threads: functions are pure but for the arrays that they are given to change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from globalstep.errors import InvalidArgumentError
from globalstep.tf1.graph.graph import Node
from globalstep.tf1.graph.mutations import OptimizerSpec
from globalstep.tf1.optimizers.lowering import lower
from globalstep.tf1.optimizers.optimizer import Optimizer
from globalstep.wire.expressions import evaluate
from globalstep.worker.step.own_optimizer import OwnOptimizer, rule_of

__all__ = ["LocalUse", "own_optimizer_of"]


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


def own_optimizer_of(made: Optimizer, weight_decay: float = 0.0) -> OwnOptimizer:
    """Give what applies an optimizer of a graph to arrays that a worker has to itself.

    Args:
        made: The optimizer; Variables of its own it makes none.
        weight_decay: See OwnOptimizer.

    Raises:
        InvalidArgumentError: If its scalar state does not begin with numbers.
    """
    scalars = {name: _constant(made, name, value) for name, value in made.scalars().items()}
    return OwnOptimizer(made.rule(), [slot.initial for slot in made.slots()], scalars, weight_decay)


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
