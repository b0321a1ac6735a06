"""Proximal gradient descent and Adagrad: a step, then shrinkage by L1 and L2."""

from __future__ import annotations

from typing import Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.rules.compiled import CompiledRule, kernel
from globalstep.rules.rule import Hypers


@kernel
def _step(value: Any, grad: Any, rate: Any, by_l1: bool, l1: Any, l2: Any, one: Any, zero: Any) -> Any:
    value = value - rate * grad
    if by_l1:
        value = np.sign(value) * np.maximum(np.abs(value) - rate * l1, zero)
    return value / (one + l2 * rate)


@kernel
def _adagrad_step(
    value: Any,
    accumulator: Any,
    grad: Any,
    learning_rate: Any,
    by_l1: bool,
    l1: Any,
    l2: Any,
    one: Any,
    zero: Any,
) -> Any:
    accumulator = accumulator + grad * grad
    rate = learning_rate / np.sqrt(accumulator)
    value = value - rate * grad
    if by_l1:
        value = np.sign(value) * np.maximum(np.abs(value) - rate * l1, zero)
    return value / (one + l2 * rate), accumulator


class ProximalGradientDescent(CompiledRule):
    """TensorFlow's ApplyProximalGradientDescent: `v -= learning_rate g`, then shrinkage at the learning rate.

    Which is `v = sign(v) max(|v| - rate l1, 0) / (1 + rate l2)`. Sparse: touched rows only. Source: Duchi and Singer,
    "Efficient Learning using Forward-Backward Splitting" (2009).
    """

    kind = "proximal_gradient_descent"
    hypers = ("learning_rate", "l1_regularization_strength", "l2_regularization_strength")
    step = _step

    def numbers(self, hyper: Hypers, real: Any) -> tuple[Any, ...]:
        """See CompiledRule."""
        rate, l1, l2 = super().numbers(hyper, real)
        return rate, bool(l1 > 0), l1, l2, real(1), real(0)


class ProximalAdagrad(ProximalGradientDescent):
    """TensorFlow's ApplyProximalAdagrad: `a += g^2; v -= rate g` with `rate = learning_rate / sqrt(a)`.

    Then values are shrunk by L1 and L2, at that rate. Sparse: touched rows only.

    Source: Duchi and Singer, "Efficient Learning using Forward-Backward Splitting" (2009).
    """

    kind = "proximal_adagrad"
    slots = ("accumulator",)
    step = _adagrad_step

    def check_hypers(self, hyper: Hypers) -> None:
        """See Rule; as in TensorFlow, the learning rate must be positive, and no strength negative."""
        super().check_hypers(hyper)
        if not hyper["learning_rate"] > 0:
            raise InvalidArgumentError(
                f"lr is not a positive scalar: {hyper['learning_rate']}. ProximalAdagrad takes no other, nor did "
                "TensorFlow's; the push is refused and nothing was applied. ProximalGradientDescent takes one below 0."
            )
        for short in ("l1", "l2"):
            strength = hyper[f"{short}_regularization_strength"]
            if not strength >= 0:
                raise InvalidArgumentError(
                    f"{short} regularization strength is not a non-negative scalar: {strength}. The push is refused, "
                    "and nothing was applied."
                )
