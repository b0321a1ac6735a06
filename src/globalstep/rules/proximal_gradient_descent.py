"""Proximal gradient descent: a step, then shrinkage by L1 and L2.

Layer: shared.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globalstep.rules.compiled import CompiledRule, kernel
from globalstep.rules.rule import Hypers

__all__ = ["RULE", "ProximalGradientDescent"]


@kernel
def _step(value: Any, grad: Any, rate: Any, by_l1: bool, l1: Any, l2: Any, one: Any, zero: Any) -> Any:
    value = value - rate * grad
    if by_l1:
        value = np.sign(value) * np.maximum(np.abs(value) - rate * l1, zero)
    return value / (one + l2 * rate)


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


RULE = ProximalGradientDescent()
