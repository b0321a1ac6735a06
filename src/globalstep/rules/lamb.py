"""Lamb: Adam's step for each Variable, rescaled to the size of the Variable itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from globalstep.rules.adam import advance_beta_powers
from globalstep.rules.compiled import check_alike, kernel, read_only
from globalstep.rules.rule import Array, Hypers, Rule, Slots, Updated

#: Elements whose squares are summed at a time.
_PIECE = 1 << 15


@kernel
def _moments(
    values: Array,
    m: Array,
    v: Array,
    grad: Array,
    step: Array,
    beta1: Any,
    beta2: Any,
    one_minus_beta1: Any,
    one_minus_beta2: Any,
    correction1: Any,
    correction2: Any,
    epsilon: Any,
    weight_decay: Any,
) -> None:
    for i in range(values.size):
        m[i] = m[i] * beta1 + grad[i] * one_minus_beta1
        v[i] = v[i] * beta2 + grad[i] * grad[i] * one_minus_beta2
        adam = m[i] / correction1 / (np.sqrt(v[i] / correction2) + epsilon)
        step[i] = adam + values[i] * weight_decay


@kernel
def _move(values: Array, step: Array, rate: Any) -> None:
    for i in range(values.size):
        values[i] -= step[i] * rate


class Lamb(Rule):
    """Adam with each Variable's step rescaled by `|values| / |step|`.

    `r = m' / (sqrt(v') + epsilon) + weight_decay values` with bias-corrected m' and v';
    `values -= learning_rate |values| / |r| r`, or without the ratio where a norm is 0. The norms are those
    of the whole Variable; of a partitioned Variable, those of each part.

    A sparse gradient is one that is zero in the other rows: a push costs a pass over the whole table.

    Source: You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes" (2020),
    algorithm 2 with phi the identity.
    """

    kind = "lamb"
    slots = ("m", "v")
    hypers = ("learning_rate", "beta1", "beta2", "epsilon", "weight_decay")
    scalars = ("beta1_power", "beta2_power")
    elementwise = False

    def advance_scalars(self, scalars: Mapping[str, np.float32], hyper: Hypers) -> dict[str, np.float32]:
        """See Rule."""
        return advance_beta_powers(scalars, hyper)

    def dense(self, values: Array, slots: Slots, grad: Array, hyper: Hypers) -> None:
        """See Rule."""
        check_alike(values, *slots, grad)
        if values.dtype == np.float16:
            super().dense(values, slots, grad, hyper)
            return
        step = np.empty_like(values)
        _moments(values, *slots, read_only(grad), step, *_numbers(hyper, values.dtype.type))
        _move(values, step, _rate(values, step, hyper))

    def sparse(self, values: Array, slots: Slots, indices: Array, rows: Array, hyper: Hypers) -> None:
        """See Rule."""
        grad = np.zeros_like(values)
        grad[indices] = rows
        self.dense(values.reshape(-1), tuple(slot.reshape(-1) for slot in slots), grad.reshape(-1), hyper)

    def prepare(self, dtype: Any) -> None:
        """See Rule."""
        super().prepare(dtype)
        empty = np.zeros(0, dtype)
        hyper = dict.fromkeys((*self.hypers, *self.scalars), 0.5)
        self.dense(empty, (empty, empty), empty, hyper)

    def reference(self, values: Array, slots: Slots, grad: Array, hyper: Hypers) -> Updated:
        """See Rule."""
        beta1, beta2, one_minus_beta1, one_minus_beta2, correction1, correction2, epsilon, decay = _numbers(
            hyper, values.dtype.type
        )
        m = slots[0] * beta1 + grad * one_minus_beta1
        v = slots[1] * beta2 + grad * grad * one_minus_beta2
        step = m / correction1 / (np.sqrt(v / correction2) + epsilon) + values * decay
        return values - step * _rate(values, step, hyper), (m, v)

    def sparse_reference(self, values: Array, slots: Slots, indices: Array, rows: Array, hyper: Hypers) -> Updated:
        """See Rule."""
        grad = np.zeros_like(values)
        grad[indices] = rows
        return self.reference(values, slots, grad, hyper)


def _numbers(hyper: Hypers, real: Any) -> tuple[Any, ...]:
    beta1, beta2, one = real(hyper["beta1"]), real(hyper["beta2"]), real(1)
    corrections = (one - real(hyper["beta1_power"]), one - real(hyper["beta2_power"]))
    return (
        beta1, beta2, one - beta1, one - beta2, *corrections,
        real(hyper["epsilon"]), real(hyper["weight_decay"]),
    )  # fmt: skip


def _rate(values: Array, step: Array, hyper: Hypers) -> Any:
    """The learning rate times the ratio of the norms, which are summed in float64."""
    of_values, of_step = _norm(values), _norm(step)
    ratio = of_values / of_step if of_values > 0 and of_step > 0 else 1.0
    real = values.dtype.type
    return real(hyper["learning_rate"]) * real(ratio)


def _norm(array: Array) -> float:
    # In pieces that stay in the processor's cache: the squares of all would take twice the Variable's memory.
    flat = array.reshape(-1)
    pieces = (flat[at : at + _PIECE] for at in range(0, flat.size, _PIECE))
    return math.sqrt(sum(float(np.sum(np.square(piece, dtype=np.float64))) for piece in pieces))
