"""`gs.optim`: optimizers with PyTorch's names, arguments, defaults and numbers.

Each is a description, used as often as wanted: `rule_at` says what the parameter servers are to do, which apply the
formulas (`globalstep.rules`). What differs from TensorFlow's optimizers of the same names: docs/frameworks.md.

Layer: shared. Source of names, defaults and formulas: PyTorch 2.13 `torch.optim`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Self

from globalstep.optimizers.formula import Formula, Schedule
from globalstep.optimizers.optimizer_rule import OptimizerRule, RuleHyper, Slot, StepSource

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
    """Base of the optimizers of `gs.optim`.

    Args:
        lr: The learning rate: a number, a schedule of `gs.optim`, which the parameter servers evaluate at the
            authoritative step, or a function of the step, which each worker calls with the step it knows.
        weight_decay: Part of each parameter that is added to its gradient.

    Attributes:
        weight_decay: As given.

    Raises:
        ValueError: If a number is negative or not finite.
    """

    _fields: ClassVar[tuple[str, ...]] = ("lr", "weight_decay")

    def __new__(cls, *args: Any, **_options: Any) -> Self:
        """Refuse the parameters of a module, which torch's optimizers get first."""
        if args and not isinstance(args[0], (str, int, float, Schedule)) and isinstance(args[0], Iterable):
            raise TypeError(
                f"{cls.__name__} gets the rate first, {cls.__name__}(lr=0.001), and no parameters: they are those of "
                'the model that gs.fit gets. Optimizers for some of them: optimizer={"table.*": ..., "*": ...}.'
            )
        return super().__new__(cls)

    def __init__(self, lr: Rate, weight_decay: float = 0.0) -> None:
        self.lr = lr
        self.weight_decay = weight_decay
        self._check(weight_decay=weight_decay, **({"lr": lr} if isinstance(lr, (int, float)) else {}))
        if not isinstance(lr, (int, float, Schedule)) and not callable(lr):
            raise TypeError(
                f"{type(self).__name__}: lr is {lr!r}; it must be a number, a schedule such as gs.optim.StepLR, or a "
                "function of the step."
            )

    def rule_at(self, step: StepSource) -> OptimizerRule:
        """Give what the PS tasks are to do.

        Args:
            step: The run's step.
        """
        raise TypeError(f"{type(self).__name__} must define rule_at().")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self._fields)})"

    def _check(self, **numbers: Any) -> None:
        for name, value in numbers.items():
            if not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
                raise ValueError(f"{type(self).__name__}: {name} is {value!r}; it must be a number of at least 0.")

    def _check_betas(self, betas: Sequence[float]) -> tuple[float, float]:
        if not isinstance(betas, (tuple, list)) or len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"{type(self).__name__}: betas are {betas!r}; they must be two numbers from 0 to below 1.")
        return betas[0], betas[1]

    def _rate(self, step: StepSource) -> RuleHyper:
        if isinstance(self.lr, Schedule):
            return self.lr.rate(step.formula).expr
        if callable(self.lr):
            rate = self.lr
            return lambda: self._rate_at(rate, step.known())
        return float(self.lr)

    def _rate_at(self, rate: Callable[[int], float], step: int) -> float:
        """Give what a function gives as the rate of a step, once it can be one."""
        given: Any = rate(step)
        try:
            found = float(given)
        except (TypeError, ValueError):
            found = math.nan
        if not math.isfinite(found) or found < 0:
            raise ValueError(
                f"{type(self).__name__}: lr gave {given!r} at step {step}; it must give a number of at least 0."
            )
        return found


class SGD(TorchOptimizer):
    """Gradient descent, with momentum if wanted, as `torch.optim.SGD`.

    Args:
        lr: See TorchOptimizer.
        momentum: How much of the last step is kept.
        weight_decay: See TorchOptimizer.
        nesterov: Whether to use Nesterov's momentum.

    Raises:
        ValueError: For numbers that cannot be; for `nesterov` without momentum.
    """

    _fields = ("lr", "momentum", "weight_decay", "nesterov")

    def __init__(
        self, lr: Rate = 1e-3, momentum: float = 0.0, weight_decay: float = 0.0, *, nesterov: bool = False
    ) -> None:
        super().__init__(lr, weight_decay)
        self._check(momentum=momentum)
        if nesterov and not momentum:
            raise ValueError("SGD: nesterov needs a momentum.")
        self.momentum = momentum
        self.nesterov = nesterov

    def rule_at(self, step: StepSource) -> OptimizerRule:
        """See TorchOptimizer."""
        if not self.momentum:
            return OptimizerRule("SGD", "gradient_descent", {"learning_rate": self._rate(step)})
        hypers: dict[str, RuleHyper] = {
            "learning_rate": self._rate(step),
            "momentum": float(self.momentum),
            "use_nesterov": float(self.nesterov),
        }
        return OptimizerRule("SGD", "momentum", hypers, (Slot("momentum"),))


class Adam(TorchOptimizer):
    """Adam, as `torch.optim.Adam`.

    The rows of an embedding that a step does not touch move too, as in PyTorch with dense gradients: each push costs a
    pass over the whole table. `SparseAdam` and `Adagrad` change only the rows of the step.

    Args:
        lr: See TorchOptimizer.
        betas: Decay of the first and the second moment.
        eps: Added to the root of the second moment.
        weight_decay: See TorchOptimizer.

    Raises:
        ValueError: For numbers that cannot be.
    """

    _fields = ("lr", "betas", "eps", "weight_decay")

    def __init__(
        self, lr: Rate = 1e-3, betas: Sequence[float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0
    ) -> None:
        super().__init__(lr, weight_decay)
        self._check(eps=eps)
        self.betas = self._check_betas(betas)
        self.eps = eps

    def rule_at(self, step: StepSource) -> OptimizerRule:
        """See TorchOptimizer."""
        return _adam("Adam", "adam", self._rate(step), self.betas, self._epsilon_hat(step))

    def _epsilon_hat(self, step: StepSource) -> RuleHyper:
        """Give the epsilon of the rule, which divides after the correction of the moments: PyTorch before."""
        corrected: Formula = 1.0 - self.betas[1] ** (step.formula + 1.0)
        epsilon: Formula = self.eps * corrected.apply("sqrt")
        return epsilon.expr


class AdamW(Adam):
    """Adam with decoupled weight decay, as `torch.optim.AdamW`.

    Args:
        lr: See TorchOptimizer.
        betas: See Adam.
        eps: See Adam.
        weight_decay: Each parameter shrinks by the rate times this part of itself.

    Raises:
        ValueError: For numbers that cannot be.
    """

    def __init__(
        self, lr: Rate = 1e-3, betas: Sequence[float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 1e-2
    ) -> None:
        super().__init__(lr, betas, eps)
        self._check(weight_decay=weight_decay)
        self._decay = weight_decay

    def rule_at(self, step: StepSource) -> OptimizerRule:
        """See TorchOptimizer."""
        more = {"weight_decay": float(self._decay)}
        return _adam("AdamW", "adamw", self._rate(step), self.betas, self._epsilon_hat(step), more)


class SparseAdam(TorchOptimizer):
    """Adam that changes only the rows of the step, as `torch.optim.SparseAdam`: for embeddings.

    Args:
        lr: See TorchOptimizer.
        betas: Decay of the first and the second moment.
        eps: Added to the root of the second moment.

    Raises:
        ValueError: For numbers that cannot be.
    """

    _fields = ("lr", "betas", "eps")

    def __init__(self, lr: Rate = 1e-3, betas: Sequence[float] = (0.9, 0.999), eps: float = 1e-8) -> None:
        super().__init__(lr)
        self._check(eps=eps)
        self.betas = self._check_betas(betas)
        self.eps = eps

    def rule_at(self, step: StepSource) -> OptimizerRule:
        """See TorchOptimizer."""
        return _adam("SparseAdam", "lazy_adam", self._rate(step), self.betas, float(self.eps))


class Adagrad(TorchOptimizer):
    """Adagrad, as `torch.optim.Adagrad`.

    Args:
        lr: See TorchOptimizer.
        lr_decay: The rate of step t is `lr / (1 + t * lr_decay)`, the first step being 0.
        weight_decay: See TorchOptimizer.
        initial_accumulator_value: What the sums of squares start as.
        eps: Added to the root.

    Raises:
        ValueError: For numbers that cannot be; for `lr_decay` beside a rate that is no number.
    """

    _fields = ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps")

    def __init__(
        self,
        lr: Rate = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
    ) -> None:
        super().__init__(lr, weight_decay)
        self._check(lr_decay=lr_decay, initial_accumulator_value=initial_accumulator_value, eps=eps)
        if lr_decay and not isinstance(lr, (int, float)):
            raise ValueError("Adagrad: give lr_decay beside a number as lr, or a schedule as lr, not both.")
        self.lr_decay = lr_decay
        self.initial_accumulator_value = initial_accumulator_value
        self.eps = eps

    def rule_at(self, step: StepSource) -> OptimizerRule:
        """See TorchOptimizer."""
        rate = self._rate(step)
        if self.lr_decay and isinstance(rate, float):
            decayed: Formula = rate / (1.0 + step.formula * self.lr_decay)
            rate = decayed.expr
        slots = (Slot("accumulator", self.initial_accumulator_value),)
        return OptimizerRule("Adagrad", "root_adagrad", {"learning_rate": rate, "epsilon": self.eps}, slots)


class RowWiseAdagrad(TorchOptimizer):
    """Adagrad with one sum of squares a row instead of one an element, as `torchrec.optim.RowWiseAdagrad`: for tables.

    A table takes its own memory and one number a row, where Adagrad takes twice its memory.

    Args:
        lr: See TorchOptimizer.
        initial_accumulator_value: What the sums of mean squares start as.
        eps: Added to the root.

    Raises:
        ValueError: For numbers that cannot be.
    """

    _fields = ("lr", "initial_accumulator_value", "eps")

    def __init__(self, lr: Rate = 1e-2, initial_accumulator_value: float = 0.0, eps: float = 1e-10) -> None:
        super().__init__(lr)
        self._check(initial_accumulator_value=initial_accumulator_value, eps=eps)
        self.initial_accumulator_value = initial_accumulator_value
        self.eps = eps

    def rule_at(self, step: StepSource) -> OptimizerRule:
        """See TorchOptimizer."""
        slots = (Slot("accumulator", self.initial_accumulator_value, by_rows=True),)
        hypers = {"learning_rate": self._rate(step), "epsilon": self.eps}
        return OptimizerRule("RowWiseAdagrad", "row_wise_adagrad", hypers, slots)


class Adadelta(TorchOptimizer):
    """Adadelta, as `torch.optim.Adadelta`.

    Args:
        lr: See TorchOptimizer.
        rho: Decay of both averages.
        eps: Added under the roots.
        weight_decay: See TorchOptimizer.

    Raises:
        ValueError: For numbers that cannot be.
    """

    _fields = ("lr", "rho", "eps", "weight_decay")

    def __init__(self, lr: Rate = 1.0, rho: float = 0.9, eps: float = 1e-6, weight_decay: float = 0.0) -> None:
        super().__init__(lr, weight_decay)
        self._check(rho=rho, eps=eps)
        self.rho = rho
        self.eps = eps

    def rule_at(self, step: StepSource) -> OptimizerRule:
        """See TorchOptimizer."""
        hypers = {"learning_rate": self._rate(step), "rho": float(self.rho), "epsilon": float(self.eps)}
        return OptimizerRule("Adadelta", "adadelta", hypers, (Slot("accum"), Slot("accum_update")))


class RMSprop(TorchOptimizer):
    """RMSprop, as `torch.optim.RMSprop`.

    Args:
        lr: See TorchOptimizer.
        alpha: Decay of the average of squares.
        eps: Added to the root.
        weight_decay: See TorchOptimizer.
        momentum: How much of the last step is kept.
        centered: Whether to divide by the root of the variance instead of the mean square.

    Raises:
        ValueError: For numbers that cannot be.
    """

    _fields = ("lr", "alpha", "eps", "weight_decay", "momentum", "centered")

    def __init__(
        self,
        lr: Rate = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
    ) -> None:
        super().__init__(lr, weight_decay)
        self._check(alpha=alpha, eps=eps, momentum=momentum)
        self.alpha = alpha
        self.eps = eps
        self.momentum = momentum
        self.centered = centered

    def rule_at(self, step: StepSource) -> OptimizerRule:
        """See TorchOptimizer."""
        hypers: dict[str, RuleHyper] = {
            "learning_rate": self._rate(step),
            "decay": self.alpha,
            "momentum": self.momentum,
            "epsilon": self.eps,
        }
        middle = (Slot("mg"),) if self.centered else ()
        kind = "root_centered_rmsprop" if self.centered else "root_rmsprop"
        return OptimizerRule("RMSprop", kind, hypers, (Slot("rms"), *middle, Slot("momentum")))


class DelayedNesterov(TorchOptimizer):
    """SGD whose Nesterov momentum moves once in `delay` pushes, by their mean: for local steps as they come.

    The optimizer of the parameter servers where workers push their rounds without waiting for each other
    (`gs.LocalSteps` without `replicas`). With a momentum that moves at every push each worker's difference would count
    in all that follow, and the values run away. PyTorch has no such optimizer.

    Args:
        lr: See TorchOptimizer; a push by itself moves the values by the `delay`-th part of it.
        momentum: How much of the momentum is kept when it moves.
        delay: After how many pushes it moves; usually the number of workers.

    Raises:
        ValueError: For numbers that cannot be.

    Source: Liu et al., arXiv 2401.09135.

    >>> DelayedNesterov(0.4, delay=3)
    DelayedNesterov(lr=0.4, momentum=0.9, delay=3)
    """

    _fields = ("lr", "momentum", "delay")

    def __init__(self, lr: Rate = 0.4, momentum: float = 0.9, *, delay: int) -> None:
        super().__init__(lr)
        self._check(momentum=momentum)
        if not isinstance(delay, int) or isinstance(delay, bool) or delay < 1:
            raise ValueError(f"DelayedNesterov: delay is {delay!r}; it must be a whole number, at least 1.")
        self.momentum = momentum
        self.delay = delay

    def rule_at(self, step: StepSource) -> OptimizerRule:
        """See TorchOptimizer."""
        hypers = {"learning_rate": self._rate(step), "momentum": self.momentum, "delay": float(self.delay)}
        slots = (Slot("momentum"), Slot("waiting"))
        return OptimizerRule("DelayedNesterov", "delayed_nesterov", hypers, slots, {"waiting_pushes": 0.0})


def _adam(
    name: str,
    kind: str,
    rate: RuleHyper,
    betas: tuple[float, float],
    epsilon: RuleHyper,
    more: Mapping[str, RuleHyper] = MappingProxyType({}),
) -> OptimizerRule:
    """Give a rule of two moments, whose powers of the decays are its state."""
    first, second = map(float, betas)
    hypers = {"learning_rate": rate, "beta1": first, "beta2": second, "epsilon": epsilon, **more}
    return OptimizerRule(name, kind, hypers, (Slot("m"), Slot("v")), {"beta1_power": first, "beta2_power": second})
