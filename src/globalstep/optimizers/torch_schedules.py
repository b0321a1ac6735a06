"""Schedules of `gs.optim`: learning rates with the names of `torch.optim.lr_scheduler`, counted in global steps.

They stand where an optimizer takes its `lr`, and the parameter servers evaluate them at the authoritative step, so all
workers train at one rate. There is no `scheduler.step()`: the step is that of the run.

Layer: shared. Source of names and formulas: PyTorch 2.13 `torch.optim.lr_scheduler`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from globalstep.optimizers.optimizer_rule import (
    Formula,
    Schedule,
    cosine,
    exponential,
    number,
    piecewise,
    polynomial,
    zero_to_pi_cosine,
)


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
        """Give the rate at a step, as a formula that the parameter servers can evaluate."""
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
        """Give the rate at a step, as a formula that the parameter servers can evaluate."""
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
        """Give the rate at a step, as a formula that the parameter servers can evaluate."""
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
        """Give the rate at a step, as a formula that the parameter servers can evaluate."""
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
        """Give the rate at a step, as a formula that the parameter servers can evaluate."""
        begin, end = self.lr * self.start_factor, self.lr * self.end_factor
        return polynomial(number(begin), step, number(self.total_iters), number(end), number(1.0))


@dataclass(frozen=True)
class OneCycleLR(Schedule):
    """A rate that rises from `max_lr / div_factor` to `max_lr`, falls far below where it began, and stays there.

    Args:
        max_lr: The highest rate.
        total_steps: Global steps of the cycle; or `epochs` and `steps_per_epoch`, whose product it is.
        epochs: Number of epochs.
        steps_per_epoch: Global steps of each.
        pct_start: The part of the cycle in which the rate rises.
        anneal_strategy: "cos", or "linear".
        cycle_momentum: False. PyTorch's default, True, is refused: momentum is one number for all of a run.
        base_momentum: Accepted; has no effect.
        max_momentum: Accepted; has no effect.
        div_factor: max_lr by the rate at the start.
        final_div_factor: The rate at the start by that in the end.
        three_phase: Whether the rate falls as far as it began in as many steps as it rose, and only then further.

    Raises:
        ValueError: For numbers that make no cycle, and for `cycle_momentum`.
    """

    max_lr: float
    total_steps: int | None = None
    epochs: int | None = None
    steps_per_epoch: int | None = None
    pct_start: float = 0.3
    anneal_strategy: str = "cos"
    cycle_momentum: bool = True
    base_momentum: float = 0.85
    max_momentum: float = 0.95
    div_factor: float = 25.0
    final_div_factor: float = 1e4
    three_phase: bool = False

    def __post_init__(self) -> None:
        self._check("max_lr", "div_factor", "final_div_factor")
        if self.cycle_momentum:
            raise ValueError(
                "OneCycleLR: cycle_momentum is True, PyTorch's default; here momentum is one number for all of a run. "
                "Give cycle_momentum=False."
            )
        if self.anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"OneCycleLR: anneal_strategy is {self.anneal_strategy!r}; it must be 'cos' or 'linear'.")
        if self.total_steps is None and (self.epochs is None or self.steps_per_epoch is None):
            raise ValueError("OneCycleLR: give total_steps, or epochs and steps_per_epoch.")
        ends = [0.0, *self._ends()]
        if not 0 <= self.pct_start <= 1 or any(last <= first for first, last in pairwise(ends)):
            raise ValueError(
                f"OneCycleLR: pct_start {self.pct_start!r} of {self._total()} steps leaves a part of the cycle without "
                "a step; give more steps, or another pct_start between 0 and 1."
            )

    def _total(self) -> int:
        return int(self.total_steps) if self.total_steps is not None else int(self.epochs * self.steps_per_epoch)  # type: ignore[operator]

    def _ends(self) -> list[float]:
        """Return the last step of each part of the cycle."""
        total, rise = self._total(), float(self.pct_start * self._total())
        return [rise - 1, *([2 * rise - 2] if self.three_phase else []), total - 1.0]

    def rate(self, step: Formula) -> Formula:
        """Give the rate at a step, as a formula that the parameter servers can evaluate."""
        initial = self.max_lr / self.div_factor
        rates = [initial, self.max_lr, *([initial] if self.three_phase else []), initial / self.final_div_factor]
        ends = self._ends()
        parts = []
        for begin, end, first, last in zip([0.0, *ends], ends, rates, rates[1:], strict=False):
            done = (step.apply("min", end) - begin) / (end - begin)
            if self.anneal_strategy == "cos":
                parts.append((first - last) * zero_to_pi_cosine(done) + last)
            else:
                parts.append((last - first) * done + first)
        return piecewise(step, [number(end) for end in ends[:-1]], parts)


@dataclass(frozen=True)
class SequentialLR(Schedule):
    """Several schedules one after another, each with its own step 0 where it begins: a warm-up, and what follows.

    Args:
        schedulers: The schedules.
        milestones: The steps at which the second and each further one begins, ascending.

    Raises:
        ValueError: If the milestones are not one fewer than the schedules, or do not ascend.
    """

    schedulers: Sequence[Schedule]
    milestones: Sequence[int]

    def __post_init__(self) -> None:
        others = [item for item in self.schedulers if not isinstance(item, Schedule)]
        if others or not self.schedulers:
            raise ValueError(f"SequentialLR: schedulers has {others or 'none'}; give schedules of gs.optim.")
        if len(self.milestones) != len(self.schedulers) - 1:
            raise ValueError(
                f"SequentialLR: {len(self.schedulers)} schedules and {len(self.milestones)} milestones; there is one "
                "milestone fewer."
            )
        begins = [0, *self.milestones]
        if any(after <= before for before, after in pairwise(begins)):
            raise ValueError(f"SequentialLR: milestones {list(self.milestones)} must ascend, from 1 on.")

    def rate(self, step: Formula) -> Formula:
        """Give the rate at a step, as a formula that the parameter servers can evaluate."""
        begins = [0, *self.milestones]
        rates = [item.rate(step - begin) for item, begin in zip(self.schedulers, begins, strict=True)]
        # Here a boundary still has the rate before it.
        return piecewise(step, [number(int(at) - 1) for at in self.milestones], rates)
