"""Schedules of `gs.optim`: learning rates with the names of `torch.optim.lr_scheduler`, counted in global steps.

They stand where an optimizer takes its `lr`, and the parameter servers evaluate them at the authoritative step, so all
workers train at one rate. There is no `scheduler.step()`: the step is that of the run.

Layer: shared. Source of names and formulas: PyTorch 2.13 `torch.optim.lr_scheduler`.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from globalstep.optimizers.formula import Formula, cosine, exponential, number, piecewise, polynomial

__all__ = ["CosineAnnealingLR", "ExponentialLR", "LinearLR", "MultiStepLR", "Schedule", "StepLR"]


class Schedule:
    """Base of the schedules.

    Raises:
        ValueError: For a rate below 0, or a number of steps that is not above 0; each names the argument.
    """

    def _check(self, *positive: str) -> None:
        """Refuse a rate that cannot be, and a number that has to be above 0 and is not."""
        for name in ("lr", *positive):
            number: Any = getattr(self, name)
            is_number = isinstance(number, numbers.Real) and math.isfinite(number)
            if not is_number or number < 0 or (name in positive and not number):
                least = "above 0" if name in positive else "of at least 0"
                raise ValueError(f"{type(self).__name__}: {name} is {number!r}; it must be a number {least}.")

    def rate(self, step: Formula) -> Formula:
        """Give the rate at a step, as a formula that the parameter servers can evaluate.

        Args:
            step: The global step.
        """
        raise TypeError(f"{type(self).__name__} must define rate().")


@dataclass(frozen=True)
class StepLR(Schedule):
    """A rate that is multiplied by `gamma` every `step_size` steps.

    Args:
        lr: The rate at the start.
        step_size: Global steps between two changes.
        gamma: The factor.
    """

    lr: float
    step_size: int
    gamma: float = 0.1

    def __post_init__(self) -> None:
        self._check("step_size")

    def rate(self, step: Formula) -> Formula:
        """See Schedule."""
        return exponential(number(self.lr), step, number(self.step_size), number(self.gamma), staircase=True)


@dataclass(frozen=True)
class MultiStepLR(Schedule):
    """A rate that is multiplied by `gamma` at each of some steps.

    Args:
        lr: The rate at the start.
        milestones: The steps, ascending.
        gamma: The factor.
    """

    lr: float
    milestones: Sequence[int]
    gamma: float = 0.1

    def __post_init__(self) -> None:
        self._check()

    def rate(self, step: Formula) -> Formula:
        """See Schedule."""
        rates = [self.lr * self.gamma**count for count in range(len(self.milestones) + 1)]
        # Here a boundary still has the rate before it.
        return piecewise(step, [number(int(at) - 1) for at in self.milestones], [number(rate) for rate in rates])


@dataclass(frozen=True)
class ExponentialLR(Schedule):
    """A rate that is multiplied by `gamma` every step.

    Args:
        lr: The rate at the start.
        gamma: The factor.
    """

    lr: float
    gamma: float

    def __post_init__(self) -> None:
        self._check()

    def rate(self, step: Formula) -> Formula:
        """See Schedule."""
        return exponential(number(self.lr), step, number(1), number(self.gamma))


@dataclass(frozen=True)
class CosineAnnealingLR(Schedule):
    """A rate that falls from `lr` to `eta_min` in `T_max` steps along half a cosine, and stays there.

    Args:
        lr: The rate at the start.
        T_max: Number of steps.
        eta_min: The rate in the end.
    """

    lr: float
    T_max: int
    eta_min: float = 0.0

    def __post_init__(self) -> None:
        self._check("lr", "T_max")

    def rate(self, step: Formula) -> Formula:
        """See Schedule."""
        return cosine(number(self.lr), step, number(self.T_max), number(self.eta_min / self.lr))


@dataclass(frozen=True)
class LinearLR(Schedule):
    """A rate that goes from `lr * start_factor` to `lr * end_factor` evenly, and stays there: a warm-up.

    Args:
        lr: The rate that the factors multiply.
        start_factor: The factor at the start.
        end_factor: The factor in the end.
        total_iters: Number of steps between.
    """

    lr: float
    start_factor: float = 1.0 / 3
    end_factor: float = 1.0
    total_iters: int = 5

    def __post_init__(self) -> None:
        self._check("total_iters")

    def rate(self, step: Formula) -> Formula:
        """See Schedule."""
        begin, end = self.lr * self.start_factor, self.lr * self.end_factor
        return polynomial(number(begin), step, number(self.total_iters), number(end), number(1.0))
