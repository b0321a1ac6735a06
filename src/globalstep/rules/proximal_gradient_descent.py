"""Proximal gradient descent: a step, then shrinkage by L1 and L2.

Layer: shared.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globalstep.rules.compiled import CompiledRule, kernel
from globalstep.rules.rule import Array, Hypers

__all__ = ["RULE", "ProximalGradientDescent", "proximal_numbers", "shrink"]


@kernel
def _dense(values: Array, grad: Array, rate: Any, by_l1: bool, l1: Any, l2: Any, one: Any, zero: Any) -> None:
    for i in range(values.size):
        value = values[i] - rate * grad[i]
        if by_l1:
            value = np.sign(value) * np.maximum(np.abs(value) - rate * l1, zero)
        values[i] = value / (one + l2 * rate)


@kernel
def _rows(
    values: Array, indices: Array, rows: Array, rate: Any, by_l1: bool, l1: Any, l2: Any, one: Any, zero: Any
) -> None:
    for i in range(indices.size):
        _dense(values[indices[i]], rows[i], rate, by_l1, l1, l2, one, zero)


class ProximalGradientDescent(CompiledRule):
    """TensorFlow's ApplyProximalGradientDescent: gradient descent, then `shrink` at the learning rate.

    Sparse: touched rows only. Source: Duchi and Singer, "Efficient Learning using Forward-Backward
    Splitting" (2009).
    """

    kind = "proximal_gradient_descent"
    hypers = ("learning_rate", "l1_regularization_strength", "l2_regularization_strength")
    dense_kernel = _dense
    rows_kernel = _rows

    def numbers(self, hyper: Hypers, real: Any) -> tuple[Any, ...]:
        """See CompiledRule."""
        return proximal_numbers(hyper, real)

    def reference(
        self, values: Array, slots: tuple[Array, ...], grad: Array, hyper: Hypers
    ) -> tuple[Array, tuple[Array, ...]]:
        """See Rule."""
        rate = values.dtype.type(hyper["learning_rate"])
        return shrink(values - rate * grad, rate, hyper), ()


def proximal_numbers(hyper: Hypers, real: Any) -> tuple[Any, ...]:
    """Give the numbers that both proximal rules' kernels take: see CompiledRule.numbers."""
    l1 = real(hyper["l1_regularization_strength"])
    l2 = real(hyper["l2_regularization_strength"])
    return real(hyper["learning_rate"]), bool(l1 > 0), l1, l2, real(1), real(0)


def shrink(values: Array, rate: Any, hyper: Hypers) -> Array:
    """Give `sign(v) max(|v| - rate l1, 0) / (1 + rate l2)`.

    Args:
        values: Values after the gradient's step.
        rate: Learning rate of that step, a number or an array like `values`.
        hyper: With l1_regularization_strength and l2_regularization_strength.

    Returns:
        A new array like `values`.
    """
    real = values.dtype.type
    l1, l2 = real(hyper["l1_regularization_strength"]), real(hyper["l2_regularization_strength"])
    if l1 > 0:
        values = np.sign(values) * np.maximum(np.abs(values) - rate * l1, real(0))
    shrunk: Array = values / (real(1) + l2 * rate)
    return shrunk


RULE = ProximalGradientDescent()
