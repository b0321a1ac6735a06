"""Proximal Adagrad: Adagrad's step, then shrinkage by L1 and L2.

Layer: shared.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.rules.compiled import CompiledRule, kernel
from globalstep.rules.proximal_gradient_descent import proximal_numbers, shrink
from globalstep.rules.rule import Array, Hypers

__all__ = ["RULE", "ProximalAdagrad"]


@kernel
def _dense(
    values: Array,
    accumulator: Array,
    grad: Array,
    learning_rate: Any,
    by_l1: bool,
    l1: Any,
    l2: Any,
    one: Any,
    zero: Any,
) -> None:
    for i in range(values.size):
        accumulator[i] += grad[i] * grad[i]
        rate = learning_rate / np.sqrt(accumulator[i])
        value = values[i] - rate * grad[i]
        if by_l1:
            value = np.sign(value) * np.maximum(np.abs(value) - rate * l1, zero)
        values[i] = value / (one + l2 * rate)


@kernel
def _rows(
    values: Array,
    accumulator: Array,
    indices: Array,
    rows: Array,
    learning_rate: Any,
    by_l1: bool,
    l1: Any,
    l2: Any,
    one: Any,
    zero: Any,
) -> None:
    for i in range(indices.size):
        at = indices[i]
        _dense(values[at], accumulator[at], rows[i], learning_rate, by_l1, l1, l2, one, zero)


class ProximalAdagrad(CompiledRule):
    """TensorFlow's ApplyProximalAdagrad: `a += g^2; v -= rate g` with `rate = learning_rate / sqrt(a)`.

    Then values are shrunk by L1 and L2, at that rate. Sparse: touched rows only.

    Source: Duchi and Singer, "Efficient Learning using Forward-Backward Splitting" (2009).
    """

    kind = "proximal_adagrad"
    slots = ("accumulator",)
    hypers = ("learning_rate", "l1_regularization_strength", "l2_regularization_strength")
    dense_kernel = _dense
    rows_kernel = _rows

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

    def numbers(self, hyper: Hypers, real: Any) -> tuple[Any, ...]:
        """See CompiledRule."""
        return proximal_numbers(hyper, real)

    def reference(
        self, values: Array, slots: tuple[Array, ...], grad: Array, hyper: Hypers
    ) -> tuple[Array, tuple[Array, ...]]:
        """See Rule."""
        learning_rate = values.dtype.type(hyper["learning_rate"])
        accumulator = slots[0] + grad * grad
        rate = learning_rate / np.sqrt(accumulator)
        return shrink(values - rate * grad, rate, hyper), (accumulator,)


RULE = ProximalAdagrad()
