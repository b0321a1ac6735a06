"""Adagrad: rates that shrink with the sum of squared gradients.

Layer: shared.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globalstep.rules.compiled import CompiledRule, kernel
from globalstep.rules.rule import Array, Hypers

__all__ = ["RULE", "Adagrad"]


@kernel
def _dense(values: Array, accumulator: Array, grad: Array, learning_rate: Any) -> None:
    for i in range(values.size):
        accumulator[i] += grad[i] * grad[i]
        values[i] -= learning_rate * grad[i] / np.sqrt(accumulator[i])


@kernel
def _rows(values: Array, accumulator: Array, indices: Array, rows: Array, learning_rate: Any) -> None:
    for i in range(indices.size):
        _dense(values[indices[i]], accumulator[indices[i]], rows[i], learning_rate)


class Adagrad(CompiledRule):
    """TensorFlow's ApplyAdagrad: `a += g^2; v -= learning_rate * g / sqrt(a)`, without an epsilon.

    Sparse: touched rows only. Source: Duchi, Hazan, Singer, "Adaptive Subgradient Methods" (2011).
    """

    kind = "adagrad"
    slots = ("accumulator",)
    dense_kernel = _dense
    rows_kernel = _rows

    def reference(
        self, values: Array, slots: tuple[Array, ...], grad: Array, hyper: Hypers
    ) -> tuple[Array, tuple[Array, ...]]:
        """See Rule."""
        accumulator = slots[0] + grad * grad
        rate = values.dtype.type(hyper["learning_rate"])
        return values - rate * grad / np.sqrt(accumulator), (accumulator,)


RULE = Adagrad()
