"""Adagrad and RMSProp as PyTorch has them: epsilon is added to the root, and accumulators start at 0.

Layer: shared.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globalstep.rules.compiled import CompiledRule, kernel
from globalstep.rules.rmsprop import RMSProp
from globalstep.rules.rule import Array, Hypers

__all__ = ["ADAGRAD", "CENTERED_RMSPROP", "RMSPROP", "RootAdagrad", "RootCenteredRMSProp", "RootRMSProp"]


@kernel
def _adagrad(values: Array, accumulator: Array, grad: Array, learning_rate: Any, epsilon: Any) -> None:
    for i in range(values.size):
        accumulator[i] += grad[i] * grad[i]
        values[i] -= learning_rate * grad[i] / (np.sqrt(accumulator[i]) + epsilon)


@kernel
def _adagrad_rows(
    values: Array, accumulator: Array, indices: Array, rows: Array, learning_rate: Any, epsilon: Any
) -> None:
    for i in range(indices.size):
        _adagrad(values[indices[i]], accumulator[indices[i]], rows[i], learning_rate, epsilon)


@kernel
def _rmsprop(
    values: Array,
    rms: Array,
    momentum: Array,
    grad: Array,
    learning_rate: Any,
    one_minus_decay: Any,
    inertia: Any,
    epsilon: Any,
) -> None:
    for i in range(values.size):
        rms[i] += (grad[i] * grad[i] - rms[i]) * one_minus_decay
        momentum[i] = momentum[i] * inertia + grad[i] / (np.sqrt(rms[i]) + epsilon)
        values[i] -= momentum[i] * learning_rate


@kernel
def _rmsprop_rows(
    values: Array,
    rms: Array,
    momentum: Array,
    indices: Array,
    rows: Array,
    learning_rate: Any,
    one_minus_decay: Any,
    inertia: Any,
    epsilon: Any,
) -> None:
    for i in range(indices.size):
        at = indices[i]
        _rmsprop(values[at], rms[at], momentum[at], rows[i], learning_rate, one_minus_decay, inertia, epsilon)


@kernel
def _centered(
    values: Array,
    rms: Array,
    mg: Array,
    momentum: Array,
    grad: Array,
    learning_rate: Any,
    one_minus_decay: Any,
    inertia: Any,
    epsilon: Any,
) -> None:
    for i in range(values.size):
        rms[i] += (grad[i] * grad[i] - rms[i]) * one_minus_decay
        mg[i] += (grad[i] - mg[i]) * one_minus_decay
        # Rounding can make it negative where all gradients were alike.
        variance = max(rms[i] - mg[i] * mg[i], values.dtype.type(0))
        momentum[i] = momentum[i] * inertia + grad[i] / (np.sqrt(variance) + epsilon)
        values[i] -= momentum[i] * learning_rate


@kernel
def _centered_rows(
    values: Array,
    rms: Array,
    mg: Array,
    momentum: Array,
    indices: Array,
    rows: Array,
    learning_rate: Any,
    one_minus_decay: Any,
    inertia: Any,
    epsilon: Any,
) -> None:
    for i in range(indices.size):
        at = indices[i]
        _centered(
            values[at], rms[at], mg[at], momentum[at], rows[i],
            learning_rate, one_minus_decay, inertia, epsilon,
        )  # fmt: skip


class RootAdagrad(CompiledRule):
    """PyTorch's Adagrad: `a += g^2; v -= learning_rate * g / (sqrt(a) + epsilon)`.

    Sparse: touched rows only. Source: Duchi, Hazan, Singer, "Adaptive Subgradient Methods" (2011).
    """

    kind = "root_adagrad"
    slots = ("accumulator",)
    hypers = ("learning_rate", "epsilon")
    dense_kernel = _adagrad
    rows_kernel = _adagrad_rows

    def reference(
        self, values: Array, slots: tuple[Array, ...], grad: Array, hyper: Hypers
    ) -> tuple[Array, tuple[Array, ...]]:
        """See Rule."""
        rate, epsilon = self.numbers(hyper, values.dtype.type)
        accumulator = slots[0] + grad * grad
        return values - rate * grad / (np.sqrt(accumulator) + epsilon), (accumulator,)


class RootRMSProp(RMSProp):
    """PyTorch's RMSprop: `ms += (g^2 - ms)(1 - decay); b = momentum b + g / (sqrt(ms) + epsilon)`.

    Then `v -= learning_rate * b`. Sparse: touched rows only, without catching up. Source: Tieleman and Hinton, lecture
    6.5 (2012).
    """

    kind = "root_rmsprop"
    dense_kernel = _rmsprop
    rows_kernel = _rmsprop_rows

    def reference(
        self, values: Array, slots: tuple[Array, ...], grad: Array, hyper: Hypers
    ) -> tuple[Array, tuple[Array, ...]]:
        """See Rule."""
        learning_rate, one_minus_decay, inertia, epsilon = self.numbers(hyper, values.dtype.type)
        rms = slots[0] + (grad * grad - slots[0]) * one_minus_decay
        momentum = slots[1] * inertia + grad / (np.sqrt(rms) + epsilon)
        return values - momentum * learning_rate, (rms, momentum)


class RootCenteredRMSProp(RootRMSProp):
    """PyTorch's RMSprop with `centered=True`: the root is that of the variance, `ms - mg^2`."""

    kind = "root_centered_rmsprop"
    slots = ("rms", "mg", "momentum")
    dense_kernel = _centered
    rows_kernel = _centered_rows

    def reference(
        self, values: Array, slots: tuple[Array, ...], grad: Array, hyper: Hypers
    ) -> tuple[Array, tuple[Array, ...]]:
        """See Rule."""
        learning_rate, one_minus_decay, inertia, epsilon = self.numbers(hyper, values.dtype.type)
        rms = slots[0] + (grad * grad - slots[0]) * one_minus_decay
        mg = slots[1] + (grad - slots[1]) * one_minus_decay
        variance = np.maximum(rms - mg * mg, values.dtype.type(0))
        momentum = slots[2] * inertia + grad / (np.sqrt(variance) + epsilon)
        return values - momentum * learning_rate, (rms, mg, momentum)


ADAGRAD = RootAdagrad()
RMSPROP = RootRMSProp()
CENTERED_RMSPROP = RootCenteredRMSProp()
