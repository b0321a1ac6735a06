"""RMSProp, plain and centered.

Layer: shared.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from globalstep.rules.compiled import CompiledRule, kernel
from globalstep.rules.rule import Array, Hypers

__all__ = ["CENTERED", "RULE", "CenteredRMSProp", "RMSProp"]


@kernel
def _dense(
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
        momentum[i] = momentum[i] * inertia + grad[i] * learning_rate / np.sqrt(rms[i] + epsilon)
        values[i] -= momentum[i]


@kernel
def _rows(
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
        _dense(values[at], rms[at], momentum[at], rows[i], learning_rate, one_minus_decay, inertia, epsilon)


@kernel
def _centered_dense(
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
        variance = rms[i] - mg[i] * mg[i] + epsilon
        momentum[i] = momentum[i] * inertia + grad[i] * learning_rate / np.sqrt(variance)
        values[i] -= momentum[i]


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
        _centered_dense(
            values[at], rms[at], mg[at], momentum[at], rows[i],
            learning_rate, one_minus_decay, inertia, epsilon,
        )  # fmt: skip


class RMSProp(CompiledRule):
    """TensorFlow's ApplyRMSProp.

    `ms += (g^2 - ms)(1 - decay); mom = momentum mom + learning_rate g / sqrt(ms + epsilon); v -= mom`.
    Sparse: touched rows only, without catching up. Source: Tieleman and Hinton, lecture 6.5 (2012).
    """

    kind = "rmsprop"
    slots: ClassVar[tuple[str, ...]] = ("rms", "momentum")
    hypers = ("learning_rate", "decay", "momentum", "epsilon")
    dense_kernel = _dense
    rows_kernel = _rows

    def numbers(self, hyper: Hypers, real: Any) -> tuple[Any, ...]:
        """See CompiledRule."""
        return (
            real(hyper["learning_rate"]),
            real(1) - real(hyper["decay"]),
            real(hyper["momentum"]),
            real(hyper["epsilon"]),
        )

    def reference(
        self, values: Array, slots: tuple[Array, ...], grad: Array, hyper: Hypers
    ) -> tuple[Array, tuple[Array, ...]]:
        """See Rule."""
        learning_rate, one_minus_decay, inertia, epsilon = self.numbers(hyper, values.dtype.type)
        rms = slots[0] + (grad * grad - slots[0]) * one_minus_decay
        momentum = slots[1] * inertia + grad * learning_rate / np.sqrt(rms + epsilon)
        return values - momentum, (rms, momentum)


class CenteredRMSProp(RMSProp):
    """TensorFlow's ApplyCenteredRMSProp: the denominator is the variance, `sqrt(ms - mg^2 + epsilon)`.

    `mg += (g - mg)(1 - decay)` is the mean of the gradients. Source: Graves, "Generating Sequences With
    Recurrent Neural Networks" (2013), equation 40.
    """

    kind = "centered_rmsprop"
    slots = ("rms", "mg", "momentum")
    dense_kernel = _centered_dense
    rows_kernel = _centered_rows

    def reference(
        self, values: Array, slots: tuple[Array, ...], grad: Array, hyper: Hypers
    ) -> tuple[Array, tuple[Array, ...]]:
        """See Rule."""
        learning_rate, one_minus_decay, inertia, epsilon = self.numbers(hyper, values.dtype.type)
        rms = slots[0] + (grad * grad - slots[0]) * one_minus_decay
        mg = slots[1] + (grad - slots[1]) * one_minus_decay
        momentum = slots[2] * inertia + grad * learning_rate / np.sqrt(rms - mg * mg + epsilon)
        return values - momentum, (rms, mg, momentum)


RULE = RMSProp()
CENTERED = CenteredRMSProp()
