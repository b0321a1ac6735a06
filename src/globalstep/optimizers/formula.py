"""Formulas of learning rates, written with operators over expressions, steps and numbers.

Layer: shared. Pure.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

from globalstep.wire.expressions import Expr, constant
from globalstep.wire.expressions import step as named_step


class Formula:
    """An expression being written down over operands that are numbers or formulas."""

    def __init__(self, expr: Expr) -> None:
        self.expr = expr

    def _join(self, op: str, *others: Any, first: bool = True) -> Formula:
        args = [other.expr if isinstance(other, Formula) else constant(other) for other in others]
        return Formula(Expr(op, (self.expr, *args) if first else (*args, self.expr)))

    def __add__(self, other: Any) -> Formula:
        return self._join("add", other)

    def __radd__(self, other: Any) -> Formula:
        return self._join("add", other, first=False)

    def __sub__(self, other: Any) -> Formula:
        return self._join("sub", other)

    def __rsub__(self, other: Any) -> Formula:
        return self._join("sub", other, first=False)

    def __mul__(self, other: Any) -> Formula:
        return self._join("mul", other)

    def __rmul__(self, other: Any) -> Formula:
        return self._join("mul", other, first=False)

    def __truediv__(self, other: Any) -> Formula:
        return self._join("div", other)

    def __rtruediv__(self, other: Any) -> Formula:
        return self._join("div", other, first=False)

    def __pow__(self, other: Any) -> Formula:
        return self._join("pow", other)

    def __rpow__(self, other: Any) -> Formula:
        return self._join("pow", other, first=False)

    def apply(self, op: str, *others: Any) -> Formula:
        """Give `op` of this and `others`."""
        return self._join(op, *others)


class Schedule:
    """Base of the schedules of `gs.optim`, whose rates are formulas.

    Raises:
        ValueError: For a rate below 0, or a number of steps that is not above 0; each names the argument.
    """

    def _check(self, *positive: str) -> None:
        """Refuse a rate that cannot be, and a number that has to be above 0 and is not."""
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
