"""Adam, with TensorFlow's two ways for sparse gradients: dense-equivalent here, cheap in `lazy_adam`.

Layer: shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from globalstep.rules.compiled import CompiledRule, kernel
from globalstep.rules.rule import Array, Hypers

__all__ = ["RULE", "Adam", "advance_beta_powers", "bias_corrected", "lazy_rows"]


@kernel
def _dense(
    values: Array,
    m: Array,
    v: Array,
    grad: Array,
    rate: Any,
    beta1: Any,
    beta2: Any,
    one_minus_beta1: Any,
    one_minus_beta2: Any,
    epsilon: Any,
    decay: Any,
) -> None:
    for i in range(values.size):
        # All is read before any is written: arrays that begin alike within a page make a processor take a read for one
        # of what was just written, and wait (2.7 times as long on Zen 4).
        g = grad[i]
        new_m = m[i] + (g - m[i]) * one_minus_beta1
        new_v = v[i] + (g * g - v[i]) * one_minus_beta2
        value = values[i] - values[i] * decay
        m[i] = new_m
        v[i] = new_v
        values[i] = value - new_m * rate / (np.sqrt(new_v) + epsilon)


@kernel
def _rows(
    values: Array,
    m: Array,
    v: Array,
    indices: Array,
    rows: Array,
    rate: Any,
    beta1: Any,
    beta2: Any,
    one_minus_beta1: Any,
    one_minus_beta2: Any,
    epsilon: Any,
    decay: Any,
) -> None:
    width = rows.shape[1]
    for i in range(m.size):
        m[i] *= beta1
        v[i] *= beta2
    for i in range(indices.size):
        for j in range(width):
            at = indices[i] * width + j
            m[at] += rows[i, j] * one_minus_beta1
            v[at] += rows[i, j] * rows[i, j] * one_minus_beta2
    for i in range(values.size):
        values[i] -= values[i] * decay
        values[i] -= m[i] * rate / (np.sqrt(v[i]) + epsilon)


@kernel
def lazy_rows(
    values: Array,
    m: Array,
    v: Array,
    indices: Array,
    rows: Array,
    rate: Any,
    beta1: Any,
    beta2: Any,
    one_minus_beta1: Any,
    one_minus_beta2: Any,
    epsilon: Any,
    decay: Any,
) -> None:
    """Adam on the touched rows alone; here because numba's cache sees changes of this file only."""
    for i in range(indices.size):
        at = indices[i]
        _dense(
            values[at], m[at], v[at], rows[i],
            rate, beta1, beta2, one_minus_beta1, one_minus_beta2, epsilon, decay,
        )  # fmt: skip


class Adam(CompiledRule):
    """TensorFlow's ApplyAdam, with its "epsilon hat".

    `a = learning_rate sqrt(1 - beta2^t) / (1 - beta1^t); m += (g - m)(1 - beta1);
    v += (g^2 - v)(1 - beta2); values -= a m / (sqrt(v) + epsilon)`.

    Sparse gradients are dense-equivalent, as in TensorFlow: m and v decay in every row and every row of
    the Variable moves, so that a push costs a pass over the whole table. `lazy_adam` is the cheap one.

    Source: Kingma and Ba, "Adam" (2015), end of section 2.
    """

    kind = "adam"
    slots = ("m", "v")
    hypers: ClassVar[tuple[str, ...]] = ("learning_rate", "beta1", "beta2", "epsilon")
    scalars = ("beta1_power", "beta2_power")
    dense_kernel = _dense
    rows_kernel = _rows
    flat_rows = True

    def advance_scalars(self, scalars: Mapping[str, np.float32], hyper: Hypers) -> dict[str, np.float32]:
        """See Rule."""
        return advance_beta_powers(scalars, hyper)

    def decay(self, hyper: Hypers, real: Any) -> Any:
        """Give the part of each value that is taken off before the step; none, but in a subclass."""
        return real(0)

    def numbers(self, hyper: Hypers, real: Any) -> tuple[Any, ...]:
        """See CompiledRule."""
        beta1, beta2 = real(hyper["beta1"]), real(hyper["beta2"])
        return (
            bias_corrected(hyper, real),
            beta1,
            beta2,
            real(1) - beta1,
            real(1) - beta2,
            real(hyper["epsilon"]),
            self.decay(hyper, real),
        )

    def reference(
        self, values: Array, slots: tuple[Array, ...], grad: Array, hyper: Hypers
    ) -> tuple[Array, tuple[Array, ...]]:
        """See Rule."""
        rate, _, _, one_minus_beta1, one_minus_beta2, epsilon, decay = self.numbers(hyper, values.dtype.type)
        m = slots[0] + (grad - slots[0]) * one_minus_beta1
        v = slots[1] + (grad * grad - slots[1]) * one_minus_beta2
        return values - values * decay - m * rate / (np.sqrt(v) + epsilon), (m, v)

    def sparse_reference(
        self, values: Array, slots: tuple[Array, ...], indices: Array, rows: Array, hyper: Hypers
    ) -> tuple[Array, tuple[Array, ...]]:
        """See Rule."""
        rate, beta1, beta2, one_minus_beta1, one_minus_beta2, epsilon, decay = self.numbers(hyper, values.dtype.type)
        m, v = slots[0] * beta1, slots[1] * beta2
        m[indices] += rows * one_minus_beta1
        v[indices] += rows * rows * one_minus_beta2
        return values - values * decay - m * rate / (np.sqrt(v) + epsilon), (m, v)


def bias_corrected(hyper: Hypers, real: Any) -> Any:
    """Give the learning rate corrected for moments that started at 0, in the arrays' precision."""
    one = real(1)
    rate = real(hyper["learning_rate"])
    return rate * np.sqrt(one - real(hyper["beta2_power"])) / (one - real(hyper["beta1_power"]))


def advance_beta_powers(scalars: Mapping[str, np.float32], hyper: Hypers) -> dict[str, np.float32]:
    """Give the next powers of the betas: float32 products, one a push, as TensorFlow keeps them."""
    return {
        f"{beta}_power": np.float32(scalars[f"{beta}_power"]) * np.float32(hyper[beta]) for beta in ("beta1", "beta2")
    }


RULE = Adam()
