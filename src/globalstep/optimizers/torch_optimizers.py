"""`gs.optim`: optimizers with PyTorch's names, arguments, defaults and numbers.

Each is a description, used as often as wanted: `rule_at` says what the parameter servers are to do, which apply the
formulas (`globalstep.rules`). What differs from TensorFlow's optimizers of the same names: docs/frameworks.md.

Layer: shared. Source of names, defaults and formulas: PyTorch 2.13 `torch.optim`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Self

from globalstep.optimizers.optimizer_rule import Formula, OptimizerRule, RuleHyper, Schedule, Slot, StepSource

__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "DelayedNesterov",
    "RMSprop",
    "RowWiseAdagrad",
    "SparseAdam",
    "TorchOptimizer",
]

#: A learning rate: a number, one of gs.optim's schedules, or a function of the step.
Rate = float | Schedule | Callable[[int], float]


class TorchOptimizer:
    """Base of the optimizers of `gs.optim`, which are dataclasses of their numbers.

    Attributes:
        lr: The learning rate: a number, a schedule of `gs.optim`, which the parameter servers evaluate at the
            authoritative step, or a function of the step, which each worker calls with the step it knows.
        weight_decay: Part of each parameter that is added to its gradient.

    Raises:
        ValueError: If a number is negative or not finite.
    """

    lr: Rate
    weight_decay: float = 0.0

    def __new__(cls, *args: Any, **_options: Any) -> Self:
        """Refuse the parameters of a module, which torch's optimizers get first."""
        if args and not isinstance(args[0], (str, int, float, Schedule)) and isinstance(args[0], Iterable):
            raise TypeError(
                f"{cls.__name__} gets the rate first, {cls.__name__}(lr=0.001), and no parameters: they are those of "
                'the model that gs.fit gets. Optimizers for some of them: optimizer={"table.*": ..., "*": ...}.'
            )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        numbers = [one.name for one in fields(self) if one.type == "float"]  # type: ignore[arg-type]
        for name in ["lr", *numbers] if isinstance(self.lr, (int, float)) else numbers:
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
                raise ValueError(f"{type(self).__name__}: {name} is {value!r}; it must be a number of at least 0.")
        if not isinstance(self.lr, (int, float, Schedule)) and not callable(self.lr):
            raise TypeError(
                f"{type(self).__name__}: lr is {self.lr!r}; it must be a number, a schedule such as gs.optim.StepLR, "
                "or a function of the step."
            )

    def rule_at(self, step: StepSource) -> OptimizerRule:
        """Give what the PS tasks are to do."""
        raise TypeError(f"{type(self).__name__} must define rule_at().")

    def _rate(self, step: StepSource) -> RuleHyper:
        if isinstance(self.lr, Schedule):
            return self.lr.rate(step.formula).expr
        if callable(self.lr):
            rate = self.lr
            return lambda: self._rate_at(rate, step.known())
        return float(self.lr)

    def _rate_at(self, rate: Callable[[int], float], step: int) -> float:
        """Give what a function gives as the rate of a step, once it can be one."""
        value: Any = rate(step)
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number) or number < 0:
            raise ValueError(
                f"{type(self).__name__}: lr gave {value!r} at step {step}; it must give a number of at least 0."
            )
        return number


@dataclass(eq=False)
class SGD(TorchOptimizer):
    """Gradient descent, with momentum if wanted, as `torch.optim.SGD`.

    Args:
        lr: The rate: a number, a schedule, or a function of the step.
        momentum: How much of the last step is kept.
        weight_decay: Part of each parameter that is added to its gradient.
        nesterov: Whether to use Nesterov's momentum.

    Raises:
        ValueError: For numbers that cannot be; for `nesterov` without momentum.
    """

    lr: Rate = 1e-3
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and not self.momentum:
            raise ValueError("SGD: nesterov needs a momentum.")

    def rule_at(self, step: StepSource) -> OptimizerRule:
        """Give what the PS tasks are to do."""
        if not self.momentum:
            return OptimizerRule("SGD", "gradient_descent", {"learning_rate": self._rate(step)})
        hypers: dict[str, RuleHyper] = {
            "learning_rate": self._rate(step),
            "momentum": float(self.momentum),
            "use_nesterov": float(self.nesterov),
        }
        return OptimizerRule("SGD", "momentum", hypers, (Slot("momentum"),))


@dataclass(eq=False)
class Adam(TorchOptimizer):
    """Adam, as `torch.optim.Adam`.

    The rows of an embedding that a step does not touch move too, as in PyTorch with dense gradients: each push costs a
    pass over the whole table. `SparseAdam` and `Adagrad` change only the rows of the step.

    Args:
        lr: The rate: a number, a schedule, or a function of the step.
        betas: Decay of the first and the second moment.
        eps: Added to the root of the second moment.
        weight_decay: Part of each parameter that is added to its gradient.
    """

    lr: Rate = 1e-3
    betas: Sequence[float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.betas = _checked_betas(self)

    def rule_at(self, step: StepSource) -> OptimizerRule:
        """Give what the PS tasks are to do."""
        return _adam("Adam", "adam", self._rate(step), self.betas, self._epsilon_hat(step))

    def _epsilon_hat(self, step: StepSource) -> RuleHyper:
        """Give the epsilon of the rule, which divides after the correction of the moments: PyTorch before."""
        corrected: Formula = 1.0 - self.betas[1] ** (step.formula + 1.0)
        epsilon: Formula = self.eps * corrected.apply("sqrt")
        return epsilon.expr


@dataclass(eq=False)
class AdamW(Adam):
    """Adam with decoupled weight decay, as `torch.optim.AdamW`.

    Args:
        lr: The rate: a number, a schedule, or a function of the step.
        betas: See Adam.
        eps: See Adam.
        weight_decay: Each parameter shrinks by the rate times this part of itself.
    """

    weight_decay: float = 1e-2

    def __post_init__(self) -> None:
        super().__post_init__()
        # Not added to the gradient.
        self._decay, self.weight_decay = self.weight_decay, 0.0

    def rule_at(self, step: StepSource) -> OptimizerRule:
        """Give what the PS tasks are to do."""
        more = {"weight_decay": float(self._decay)}
        return _adam("AdamW", "adamw", self._rate(step), self.betas, self._epsilon_hat(step), more)


@dataclass(eq=False)
class SparseAdam(TorchOptimizer):
    """Adam that changes only the rows of the step, as `torch.optim.SparseAdam`: for embeddings.

    Args:
        lr: The rate: a number, a schedule, or a function of the step.
        betas: Decay of the first and the second moment.
        eps: Added to the root of the second moment.
    """

    lr: Rate = 1e-3
    betas: Sequence[float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        self.betas = _checked_betas(self)

    def rule_at(self, step: StepSource) -> OptimizerRule:
        """Give what the PS tasks are to do."""
        return _adam("SparseAdam", "lazy_adam", self._rate(step), self.betas, float(self.eps))


@dataclass(eq=False)
class Adagrad(TorchOptimizer):
    """Adagrad, as `torch.optim.Adagrad`.

    Args:
        lr: The rate: a number, a schedule, or a function of the step.
        lr_decay: The rate of step t is `lr / (1 + t * lr_decay)`, the first step being 0.
        weight_decay: Part of each parameter that is added to its gradient.
        initial_accumulator_value: What the sums of squares start as.
        eps: Added to the root.

    Raises:
        ValueError: For numbers that cannot be; for `lr_decay` beside a rate that is no number.
    """

    lr: Rate = 1e-2
    lr_decay: float = 0.0
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lr_decay and not isinstance(self.lr, (int, float)):
            raise ValueError("Adagrad: give lr_decay beside a number as lr, or a schedule as lr, not both.")

    def rule_at(self, step: StepSource) -> OptimizerRule:
        """Give what the PS tasks are to do."""
        rate = self._rate(step)
        if self.lr_decay and isinstance(rate, float):
            decayed: Formula = rate / (1.0 + step.formula * self.lr_decay)
            rate = decayed.expr
        slots = (Slot("accumulator", self.initial_accumulator_value),)
        return OptimizerRule("Adagrad", "root_adagrad", {"learning_rate": rate, "epsilon": self.eps}, slots)


@dataclass(eq=False)
class RowWiseAdagrad(TorchOptimizer):
    """Adagrad with one sum of squares a row instead of one an element, as `torchrec.optim.RowWiseAdagrad`: for tables.

    A table takes its own memory and one number a row, where Adagrad takes twice its memory.

    Args:
        lr: The rate: a number, a schedule, or a function of the step.
        initial_accumulator_value: What the sums of mean squares start as.
        eps: Added to the root.
    """

    lr: Rate = 1e-2
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10

    def rule_at(self, step: StepSource) -> OptimizerRule:
        """Give what the PS tasks are to do."""
        slots = (Slot("accumulator", self.initial_accumulator_value, by_rows=True),)
        hypers = {"learning_rate": self._rate(step), "epsilon": self.eps}
        return OptimizerRule("RowWiseAdagrad", "row_wise_adagrad", hypers, slots)


@dataclass(eq=False)
class Adadelta(TorchOptimizer):
    """Adadelta, as `torch.optim.Adadelta`.

    Args:
        lr: The rate: a number, a schedule, or a function of the step.
        rho: Decay of both averages.
        eps: Added under the roots.
        weight_decay: Part of each parameter that is added to its gradient.
    """

    lr: Rate = 1.0
    rho: float = 0.9
    eps: float = 1e-6
    weight_decay: float = 0.0

    def rule_at(self, step: StepSource) -> OptimizerRule:
        """Give what the PS tasks are to do."""
        hypers = {"learning_rate": self._rate(step), "rho": float(self.rho), "epsilon": float(self.eps)}
        return OptimizerRule("Adadelta", "adadelta", hypers, (Slot("accum"), Slot("accum_update")))


@dataclass(eq=False)
class RMSprop(TorchOptimizer):
    """RMSprop, as `torch.optim.RMSprop`.

    Args:
        lr: The rate: a number, a schedule, or a function of the step.
        alpha: Decay of the average of squares.
        eps: Added to the root.
        weight_decay: Part of each parameter that is added to its gradient.
        momentum: How much of the last step is kept.
        centered: Whether to divide by the root of the variance instead of the mean square.
    """

    lr: Rate = 1e-2
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False

    def rule_at(self, step: StepSource) -> OptimizerRule:
        """Give what the PS tasks are to do."""
        hypers: dict[str, RuleHyper] = {
            "learning_rate": self._rate(step),
            "decay": self.alpha,
            "momentum": self.momentum,
            "epsilon": self.eps,
        }
        middle = (Slot("mg"),) if self.centered else ()
        kind = "root_centered_rmsprop" if self.centered else "root_rmsprop"
        return OptimizerRule("RMSprop", kind, hypers, (Slot("rms"), *middle, Slot("momentum")))


@dataclass(eq=False)
class DelayedNesterov(TorchOptimizer):
    """SGD whose Nesterov momentum moves once in `delay` pushes, by their mean: for local steps as they come.

    The optimizer of the parameter servers where workers push their rounds without waiting for each other
    (`gs.LocalSteps` without `replicas`). With a momentum that moves at every push each worker's difference would count
    in all that follow, and the values run away. PyTorch has no such optimizer.

    Args:
        lr: The rate: a number, a schedule, or a function of the step. A push by itself moves the values by the
            `delay`-th part of it.
        momentum: How much of the momentum is kept when it moves.
        delay: After how many pushes it moves; usually the number of workers.

    Source: Liu et al., arXiv 2401.09135.

    >>> DelayedNesterov(0.4, delay=3)
    DelayedNesterov(lr=0.4, momentum=0.9, delay=3)
    """

    lr: Rate = 0.4
    momentum: float = 0.9
    delay: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.delay, int) or isinstance(self.delay, bool) or self.delay < 1:
            raise ValueError(f"DelayedNesterov: delay is {self.delay!r}; it must be a whole number, at least 1.")

    def rule_at(self, step: StepSource) -> OptimizerRule:
        """Give what the PS tasks are to do."""
        hypers = {"learning_rate": self._rate(step), "momentum": self.momentum, "delay": float(self.delay)}
        slots = (Slot("momentum"), Slot("waiting"))
        return OptimizerRule("DelayedNesterov", "delayed_nesterov", hypers, slots, {"waiting_pushes": 0.0})


def _checked_betas(optimizer: Adam | SparseAdam) -> tuple[float, float]:
    betas, name = optimizer.betas, type(optimizer).__name__
    if not isinstance(betas, (tuple, list)) or len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"{name}: betas are {betas!r}; they must be two numbers from 0 to below 1.")
    return betas[0], betas[1]


def _adam(
    name: str,
    kind: str,
    rate: RuleHyper,
    betas: Sequence[float],
    epsilon: RuleHyper,
    more: Mapping[str, RuleHyper] = MappingProxyType({}),
) -> OptimizerRule:
    """Give a rule of two moments, whose powers of the decays are its state."""
    first, second = map(float, betas)
    hypers = {"learning_rate": rate, "beta1": first, "beta2": second, "epsilon": epsilon, **more}
    return OptimizerRule(name, kind, hypers, (Slot("m"), Slot("v")), {"beta1_power": first, "beta2_power": second})
