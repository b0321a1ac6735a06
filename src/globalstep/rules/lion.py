"""Lion: steps of one size, in the direction of a momentum's sign.

Layer: shared.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globalstep.rules.compiled import CompiledRule, kernel
from globalstep.rules.rule import Array, Hypers

__all__ = ["RULE", "Lion"]


@kernel
def _dense(
    values: Array,
    momentum: Array,
    grad: Array,
    learning_rate: Any,
    beta1: Any,
    one_minus_beta1: Any,
    beta2: Any,
    one_minus_beta2: Any,
    weight_decay: Any,
) -> None:
    for i in range(values.size):
        direction = np.sign(momentum[i] * beta1 + grad[i] * one_minus_beta1)
        values[i] -= (direction + values[i] * weight_decay) * learning_rate
        momentum[i] = momentum[i] * beta2 + grad[i] * one_minus_beta2


@kernel
def _rows(
    values: Array,
    momentum: Array,
    indices: Array,
    rows: Array,
    learning_rate: Any,
    beta1: Any,
    one_minus_beta1: Any,
    beta2: Any,
    one_minus_beta2: Any,
    weight_decay: Any,
) -> None:
    for i in range(indices.size):
        at = indices[i]
        _dense(
            values[at], momentum[at], rows[i],
            learning_rate, beta1, one_minus_beta1, beta2, one_minus_beta2, weight_decay,
        )  # fmt: skip


class Lion(CompiledRule):
    """`v -= learning_rate (sign(beta1 m + (1 - beta1) g) + weight_decay v); m = beta2 m + (1 - beta2) g`.

    Sparse: touched rows only; a row at rest would otherwise go on moving by whole steps for as long as
    its momentum is not exactly 0.

    Source: Chen et al., "Symbolic Discovery of Optimization Algorithms" (2023), algorithm 2.
    """

    kind = "lion"
    slots = ("momentum",)
    hypers = ("learning_rate", "beta1", "beta2", "weight_decay")
    dense_kernel = _dense
    rows_kernel = _rows

    def numbers(self, hyper: Hypers, real: Any) -> tuple[Any, ...]:
        """See CompiledRule."""
        beta1, beta2 = real(hyper["beta1"]), real(hyper["beta2"])
        rate, decay = real(hyper["learning_rate"]), real(hyper["weight_decay"])
        return rate, beta1, real(1) - beta1, beta2, real(1) - beta2, decay

    def reference(
        self, values: Array, slots: tuple[Array, ...], grad: Array, hyper: Hypers
    ) -> tuple[Array, tuple[Array, ...]]:
        """See Rule."""
        rate, beta1, one_minus_beta1, beta2, one_minus_beta2, decay = self.numbers(hyper, values.dtype.type)
        direction = np.sign(slots[0] * beta1 + grad * one_minus_beta1)
        momentum = slots[0] * beta2 + grad * one_minus_beta2
        return values - (direction + values * decay) * rate, (momentum,)


RULE = Lion()
