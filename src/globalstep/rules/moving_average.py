"""Exponential moving averages: the shadow of a Variable, or of a pushed value, follows it.

Layer: shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from globalstep.rules.compiled import CompiledRule, kernel
from globalstep.rules.rule import Array, Hypers

__all__ = ["RULE", "ZERO_DEBIAS", "MovingAverage", "ZeroDebiasMovingAverage"]


@kernel
def _dense(values: Array, followed: Array, one_minus_decay: Any) -> None:
    for i in range(values.size):
        values[i] -= (values[i] - followed[i]) * one_minus_decay


@kernel
def _rows(values: Array, indices: Array, rows: Array, one_minus_decay: Any) -> None:
    for i in range(indices.size):
        _dense(values[indices[i]], rows[i], one_minus_decay)


@kernel
def _debiased_dense(values: Array, biased: Array, followed: Array, one_minus_decay: Any, weight: Any) -> None:
    for i in range(values.size):
        biased[i] -= (biased[i] - followed[i]) * one_minus_decay
        values[i] = biased[i] / weight


@kernel
def _debiased_rows(
    values: Array, biased: Array, indices: Array, rows: Array, one_minus_decay: Any, weight: Any
) -> None:
    for i in range(indices.size):
        at = indices[i]
        _debiased_dense(values[at], biased[at], rows[i], one_minus_decay, weight)


class MovingAverage(CompiledRule):
    """`shadow -= (1 - decay)(shadow - followed)`: the "gradient" is the value that is followed.

    Source: TensorFlow 1.15 `assign_moving_average`.
    """

    kind = "moving_average"
    hypers = ("decay",)
    dense_kernel = _dense
    rows_kernel = _rows

    def numbers(self, hyper: Hypers, real: Any) -> tuple[Any, ...]:
        """See CompiledRule."""
        return (real(1) - real(hyper["decay"]),)

    def reference(
        self, values: Array, slots: tuple[Array, ...], grad: Array, hyper: Hypers
    ) -> tuple[Array, tuple[Array, ...]]:
        """See Rule."""
        return values - (values - grad) * self.numbers(hyper, values.dtype.type)[0], ()


class ZeroDebiasMovingAverage(CompiledRule):
    """A moving average that started at 0, divided by the weight that it has gathered since.

    `biased -= (1 - decay)(biased - followed); shadow = biased / (1 - decay^t)`, where t counts pushes
    from 1; its state `local_step` is the rule's scalar.

    Source: TensorFlow 1.15 `_zero_debias`; Kingma and Ba, "Adam" (2015), section 3.
    """

    kind = "zero_debias_moving_average"
    slots = ("biased",)
    hypers = ("decay",)
    scalars = ("local_step",)
    dense_kernel = _debiased_dense
    rows_kernel = _debiased_rows

    def advance_scalars(self, scalars: Mapping[str, np.float32], hyper: Hypers) -> dict[str, np.float32]:
        """See Rule."""
        return {"local_step": np.float32(scalars["local_step"]) + np.float32(1)}

    def numbers(self, hyper: Hypers, real: Any) -> tuple[Any, ...]:
        """See CompiledRule."""
        one_minus_decay = real(1) - real(hyper["decay"])
        steps = real(hyper["local_step"]) + real(1)
        return one_minus_decay, real(1) - (real(1) - one_minus_decay) ** steps

    def reference(
        self, values: Array, slots: tuple[Array, ...], grad: Array, hyper: Hypers
    ) -> tuple[Array, tuple[Array, ...]]:
        """See Rule."""
        one_minus_decay, weight = self.numbers(hyper, values.dtype.type)
        biased = slots[0] - (slots[0] - grad) * one_minus_decay
        return biased / weight, (biased,)


RULE = MovingAverage()
ZERO_DEBIAS = ZeroDebiasMovingAverage()
