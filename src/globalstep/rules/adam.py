"""Adam, with decoupled weight decay, and with sparse gradients that touch only their own rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from globalstep.rules.compiled import CompiledRule, kernel
from globalstep.rules.rule import Array, Hypers, Rule, Slots, Updated


@kernel
def _step(
    value: Any,
    m: Any,
    v: Any,
    grad: Any,
    rate: Any,
    beta1: Any,
    beta2: Any,
    one_minus_beta1: Any,
    one_minus_beta2: Any,
    epsilon: Any,
    decay: Any,
) -> Any:
    m = m + (grad - m) * one_minus_beta1
    v = v + (grad * grad - v) * one_minus_beta2
    return value - value * decay - m * rate / (np.sqrt(v) + epsilon), m, v


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
    step = _step
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

    def sparse_reference(self, values: Array, slots: Slots, indices: Array, rows: Array, hyper: Hypers) -> Updated:
        """See Rule."""
        rate, beta1, beta2, one_minus_beta1, one_minus_beta2, epsilon, decay = self.numbers(hyper, values.dtype.type)
        m, v = slots[0] * beta1, slots[1] * beta2
        m[indices] += rows * one_minus_beta1
        v[indices] += rows * rows * one_minus_beta2
        return values - values * decay - m * rate / (np.sqrt(v) + epsilon), (m, v)


class AdamW(Adam):
    """Adam, with every value first shrunk by `learning_rate * weight_decay` of itself.

    A sparse gradient is one that is zero in the other rows, as for `adam`: their moments and values decay
    too, and a push costs a pass over the whole table.

    Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019), algorithm 2 with its
    schedule multiplier and alpha both in the learning rate, as PyTorch and Keras have it.
    """

    kind = "adamw"
    hypers = ("learning_rate", "beta1", "beta2", "epsilon", "weight_decay")

    def decay(self, hyper: Hypers, real: Any) -> Any:
        """See Adam."""
        return real(hyper["learning_rate"]) * real(hyper["weight_decay"])


class LazyAdam(Adam):
    """TensorFlow's contrib LazyAdam: Adam, but a row without a gradient keeps its value, m and v.

    Cheap for large tables, where `adam` passes over every row for every push. Not the same algorithm: the
    moments of a rare row do not decay while it rests, and the bias correction counts pushes, not the
    row's own updates. Dense gradients are applied as by `adam`.
    """

    kind = "lazy_adam"
    step = Adam.step
    flat_rows = False

    def sparse_reference(self, values: Array, slots: Slots, indices: Array, rows: Array, hyper: Hypers) -> Updated:
        """See Rule."""
        return Rule.sparse_reference(self, values, slots, indices, rows, hyper)


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
