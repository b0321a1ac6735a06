"""An optimizer as the PS tasks take it: a rule, its hyper-parameters and its state, without Variables or a graph.

Formulas of learning rates are written with operators over expressions, steps and numbers.

Layer: shared. Pure.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from globalstep.wire.expressions import Expr, constant
from globalstep.wire.expressions import step as named_step


class Formula:
    """An expression being written down over operands that are numbers or formulas."""

    def __init__(self, expr: Expr) -> None:
        self.expr = expr

    def apply(self, op: str, *others: Any, first: bool = True) -> Formula:
        """Give `op` of this and `others`; of these and this, where it is not the first."""
        args = [other.expr if isinstance(other, Formula) else constant(other) for other in others]
        return Formula(Expr(op, (self.expr, *args) if first else (*args, self.expr)))

    def __add__(self, other: Any) -> Formula:
        return self.apply("add", other)

    def __radd__(self, other: Any) -> Formula:
        return self.apply("add", other, first=False)

    def __sub__(self, other: Any) -> Formula:
        return self.apply("sub", other)

    def __rsub__(self, other: Any) -> Formula:
        return self.apply("sub", other, first=False)

    def __mul__(self, other: Any) -> Formula:
        return self.apply("mul", other)

    def __rmul__(self, other: Any) -> Formula:
        return self.apply("mul", other, first=False)

    def __truediv__(self, other: Any) -> Formula:
        return self.apply("div", other)

    def __rtruediv__(self, other: Any) -> Formula:
        return self.apply("div", other, first=False)

    def __pow__(self, other: Any) -> Formula:
        return self.apply("pow", other)

    def __rpow__(self, other: Any) -> Formula:
        return self.apply("pow", other, first=False)


class Schedule:
    """Base of the schedules of `gs.optim`, whose rates are formulas.

    Raises:
        ValueError: For a rate below 0, or a number of steps that is not above 0; each names the argument.
    """

    def _check(self, *positive: str) -> None:
        """Refuse a rate below 0, and fields in `positive` that are not above 0."""
        for name in ("lr", *positive) if hasattr(self, "lr") else positive:
            number: Any = getattr(self, name)
            is_number = isinstance(number, numbers.Real) and math.isfinite(number)
            if not is_number or number < 0 or (name in positive and not number):
                least = "above 0" if name in positive else "of at least 0"
                raise ValueError(f"{type(self).__name__}: {name} is {number!r}; it must be a number {least}.")

    def rate(self, step: Formula) -> Formula:
        """Give the rate at a step, as a formula that the parameter servers can evaluate."""
        raise TypeError(f"{type(self).__name__} must define rate().")


def number(value: float) -> Formula:
    """Give a number as a formula."""
    return Formula(constant(value))


def step_named(name: str) -> Formula:
    """Give the value of a step as a formula."""
    return Formula(named_step(name))


def exponential(rate: Formula, step: Formula, steps: Formula, factor: Formula, staircase: bool = False) -> Formula:
    """Give rate * factor ** (step / steps), with whole multiples of `steps` only for a staircase."""
    p = step / steps
    p = p.apply("floor") if staircase else p
    return rate * factor**p


def polynomial(
    rate: Formula, step: Formula, steps: Formula, end: Formula, power: Formula, cycle: bool = False
) -> Formula:
    """Give (rate - end) * (1 - step / steps) ** power + end; with `cycle` over growing multiples of the steps."""
    if cycle:
        cycles = (step / steps).apply("ceil")
        steps = steps * step.apply("equal", 0.0).apply("where", 1.0, cycles)
    else:
        step = step.apply("min", steps)
    falling = (1.0 - step / steps) ** power
    return (rate - end) * falling + end


def piecewise(step: Formula, boundaries: Sequence[Formula], values: Sequence[Formula]) -> Formula:
    """Give the value of the first boundary that the step is not above; the last value beyond all."""
    chosen = values[-1]
    for boundary, value in zip(reversed(boundaries), reversed(values[:-1]), strict=True):
        chosen = step.apply("less_equal", boundary).apply("where", value, chosen)
    return chosen


def zero_to_pi_cosine(fraction: Formula) -> Formula:
    """Give half a cosine from 1 to 0."""
    return 0.5 * (1.0 + (math.pi * fraction).apply("cos"))


def cosine(rate: Formula, step: Formula, steps: Formula, least: Formula) -> Formula:
    """Give a rate that falls along half a cosine to `least` times itself."""
    swing = zero_to_pi_cosine(step.apply("min", steps) / steps)
    return rate * ((1.0 - least) * swing + least)


#: A hyper-parameter: a number, an expression that the PS tasks evaluate, or a function that the worker calls a push.
RuleHyper = float | Expr | Callable[[], float]


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot that an optimizer keeps for each Variable.

    Attributes:
        name: The slot's name, as `get_slot` takes it.
        initial: What every element starts as.
        variable_name: Last part of its Variable's name; default the optimizer's name.
        by_rows: Whether it has one element for each row, [rows, 1].
    """

    name: str
    initial: float = 0.0
    variable_name: str = ""
    by_rows: bool = False


@dataclass(frozen=True)
class OptimizerRule:
    """The rule and hyper-parameters of an optimizer whose schedules count a known step.

    Attributes:
        name: What its slots and its declaration are called, e.g. "Adam".
        kind: The update rule, as in `globalstep.rules`.
        hypers: The rule's hyper-parameters.
        slots: Its slots for each Variable, in the rule's order.
        scalars: Its scalar state, name to initial value (float32), in the rule's order.
    """

    name: str
    kind: str
    hypers: Mapping[str, RuleHyper]
    slots: tuple[Slot, ...] = ()
    scalars: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class StepSource:
    """The source of a run's step.

    Attributes:
        name: The step's name on the PS tasks.
        known: Gives the step that this worker knows of.
    """

    name: str
    known: Callable[[], int]

    @property
    def formula(self) -> Formula:
        """The step as the PS tasks know it."""
        return step_named(self.name)


@runtime_checkable
class RuleSource(Protocol):
    """An optimizer that training takes: one of `gs.optim`, or of `gs.train`."""

    def rule_at(self, step: StepSource) -> OptimizerRule:
        """Give what the PS tasks are to do."""
        ...
