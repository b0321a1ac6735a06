"""Lion: steps of one size, in the direction of a momentum's sign."""

from __future__ import annotations

from typing import Any

import numpy as np

from globalstep.rules.compiled import CompiledRule, kernel
from globalstep.rules.rule import Hypers


@kernel
def _step(
    value: Any,
    momentum: Any,
    grad: Any,
    learning_rate: Any,
    beta1: Any,
    one_minus_beta1: Any,
    beta2: Any,
    one_minus_beta2: Any,
    weight_decay: Any,
) -> Any:
    direction = np.sign(momentum * beta1 + grad * one_minus_beta1)
    return value - (direction + value * weight_decay) * learning_rate, momentum * beta2 + grad * one_minus_beta2


class Lion(CompiledRule):
    """`v -= learning_rate (sign(beta1 m + (1 - beta1) g) + weight_decay v); m = beta2 m + (1 - beta2) g`.

    Sparse: touched rows only; a row at rest would otherwise go on moving by whole steps for as long as
    its momentum is not exactly 0.

    Source: Chen et al., "Symbolic Discovery of Optimization Algorithms" (2023), algorithm 2.
    """

    kind = "lion"
    slots = ("momentum",)
    hypers = ("learning_rate", "beta1", "beta2", "weight_decay")
    step = _step

    def numbers(self, hyper: Hypers, real: Any) -> tuple[Any, ...]:
        """See CompiledRule."""
        beta1, beta2 = real(hyper["beta1"]), real(hyper["beta2"])
        rate, decay = real(hyper["learning_rate"]), real(hyper["weight_decay"])
        return rate, beta1, real(1) - beta1, beta2, real(1) - beta2, decay
