"""Adadelta: steps scaled by the root mean square of earlier steps.

Layer: shared.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globalstep.rules.compiled import CompiledRule, kernel
from globalstep.rules.rule import Array, Hypers

__all__ = ["RULE", "Adadelta"]


@kernel
def _dense(
    values: Array,
    accum: Array,
    accum_update: Array,
    grad: Array,
    learning_rate: Any,
    rho: Any,
    one_minus_rho: Any,
    epsilon: Any,
) -> None:
    for i in range(values.size):
        accum[i] = accum[i] * rho + grad[i] * grad[i] * one_minus_rho
        update = np.sqrt(accum_update[i] + epsilon) / np.sqrt(accum[i] + epsilon) * grad[i]
        values[i] -= update * learning_rate
        accum_update[i] = accum_update[i] * rho + update * update * one_minus_rho


@kernel
def _rows(
    values: Array,
    accum: Array,
    accum_update: Array,
    indices: Array,
    rows: Array,
    learning_rate: Any,
    rho: Any,
    one_minus_rho: Any,
    epsilon: Any,
) -> None:
    for i in range(indices.size):
        at = indices[i]
        _dense(values[at], accum[at], accum_update[at], rows[i], learning_rate, rho, one_minus_rho, epsilon)


class Adadelta(CompiledRule):
    """TensorFlow's ApplyAdadelta.

    `a = rho a + (1 - rho) g^2; u = sqrt(au + epsilon) / sqrt(a + epsilon) g; v -= learning_rate u;
    au = rho au + (1 - rho) u^2`. Sparse: touched rows only. Source: Zeiler, "ADADELTA" (2012).
    """

    kind = "adadelta"
    slots = ("accum", "accum_update")
    hypers = ("learning_rate", "rho", "epsilon")
    dense_kernel = _dense
    rows_kernel = _rows

    def numbers(self, hyper: Hypers, real: Any) -> tuple[Any, ...]:
        """See CompiledRule."""
        rho = real(hyper["rho"])
        return real(hyper["learning_rate"]), rho, real(1) - rho, real(hyper["epsilon"])

    def reference(
        self, values: Array, slots: tuple[Array, ...], grad: Array, hyper: Hypers
    ) -> tuple[Array, tuple[Array, ...]]:
        """See Rule."""
        learning_rate, rho, one_minus_rho, epsilon = self.numbers(hyper, values.dtype.type)
        accum = slots[0] * rho + grad * grad * one_minus_rho
        update = np.sqrt(slots[1] + epsilon) / np.sqrt(accum + epsilon) * grad
        accum_update = slots[1] * rho + update * update * one_minus_rho
        return values - update * learning_rate, (accum, accum_update)


RULE = Adadelta()
