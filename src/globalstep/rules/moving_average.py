"""Exponential moving averages: the shadow of a Variable, or of a pushed value, follows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from globalstep.rules.compiled import CompiledRule, kernel
from globalstep.rules.rule import Hypers


@kernel
def _step(value: Any, followed: Any, one_minus_decay: Any) -> Any:
    return value - (value - followed) * one_minus_decay


@kernel
def _debiased_step(value: Any, biased: Any, followed: Any, one_minus_decay: Any, weight: Any) -> Any:
    biased = biased - (biased - followed) * one_minus_decay
    return biased / weight, biased


class MovingAverage(CompiledRule):
    """`shadow -= (1 - decay)(shadow - followed)`: the "gradient" is the value that is followed.

    Source: TensorFlow 1.15 `assign_moving_average`.
    """

    kind = "moving_average"
    hypers = ("decay",)
    step = _step

    def numbers(self, hyper: Hypers, real: Any) -> tuple[Any, ...]:
        """See CompiledRule."""
        return (real(1) - real(hyper["decay"]),)


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
    step = _debiased_step

    def advance_scalars(self, scalars: Mapping[str, np.float32], hyper: Hypers) -> dict[str, np.float32]:
        """See Rule."""
        return {"local_step": np.float32(scalars["local_step"]) + np.float32(1)}

    def numbers(self, hyper: Hypers, real: Any) -> tuple[Any, ...]:
        """See CompiledRule."""
        one_minus_decay = real(1) - real(hyper["decay"])
        steps = real(hyper["local_step"]) + real(1)
        return one_minus_decay, real(1) - (real(1) - one_minus_decay) ** steps
