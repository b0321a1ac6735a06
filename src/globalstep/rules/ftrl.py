"""Ftrl-proximal, with L1, L2 and "shrinkage" L2."""

from __future__ import annotations

from typing import Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.rules.compiled import CompiledRule, kernel
from globalstep.rules.rule import Array, Hypers, Slots, Updated


@kernel
def _step(
    value: Any,
    accum: Any,
    linear: Any,
    grad: Any,
    learning_rate: Any,
    power: Any,
    by_root: bool,
    l1: Any,
    two_l2: Any,
    two_shrinkage: Any,
    zero: Any,
) -> Any:
    new_accum = accum + grad * grad
    if by_root:
        new_root, root = np.sqrt(new_accum), np.sqrt(accum)
    else:
        new_root, root = new_accum**power, accum**power
    linear = linear + ((grad + value * two_shrinkage) - (new_root - root) / learning_rate * value)
    if np.abs(linear) > l1:
        value = (np.sign(linear) * l1 - linear) / (new_root / learning_rate + two_l2)
    else:
        value = zero
    return value, new_accum, linear


class Ftrl(CompiledRule):
    """TensorFlow's ApplyFtrl and ApplyFtrlV2, with p = learning_rate_power.

    `n' = n + g^2; z += g + 2 shrinkage w - (n'^-p - n^-p) / learning_rate w;
    w = (l1 sign(z) - z) / (n'^-p / learning_rate + 2 l2) where |z| > l1, else 0; n = n'`.
    The accumulator takes g^2 without the shrinkage, as TensorFlow 1.15 has it (1.5 took it with).
    Sparse: touched rows only.

    Source: McMahan et al., "Ad Click Prediction" (2013), algorithm 1.
    """

    kind = "ftrl"
    slots = ("accum", "linear")
    hypers = (
        "learning_rate",
        "learning_rate_power",
        "l1_regularization_strength",
        "l2_regularization_strength",
        "l2_shrinkage_regularization_strength",
    )
    step = _step

    def check_hypers(self, hyper: Hypers) -> None:
        """See Rule; the learning rate must be positive, because the rule divides by it."""
        super().check_hypers(hyper)
        if not hyper["learning_rate"] > 0:
            raise InvalidArgumentError(
                f"lr is not a positive scalar: {hyper['learning_rate']}. Ftrl divides by its learning rate; "
                "the push is refused and nothing was applied. Keep the schedule above 0."
            )

    def numbers(self, hyper: Hypers, real: Any) -> tuple[Any, ...]:
        """See CompiledRule."""
        power = real(hyper["learning_rate_power"])
        return (
            real(hyper["learning_rate"]),
            -power,
            bool(power == real(-0.5)),
            real(hyper["l1_regularization_strength"]),
            real(2) * real(hyper["l2_regularization_strength"]),
            real(2) * real(hyper["l2_shrinkage_regularization_strength"]),
            real(0),
        )

    def reference(self, values: Array, slots: Slots, grad: Array, hyper: Hypers) -> Updated:
        """See Rule."""
        learning_rate, power, by_root, l1, two_l2, two_shrinkage, zero = self.numbers(hyper, values.dtype.type)
        accum = slots[0] + grad * grad
        new_root, root = (np.sqrt(accum), np.sqrt(slots[0])) if by_root else (accum**power, slots[0] ** power)
        linear = slots[1] + ((grad + values * two_shrinkage) - (new_root - root) / learning_rate * values)
        shrunk = (np.sign(linear) * l1 - linear) / (new_root / learning_rate + two_l2)
        return np.where(np.abs(linear) > l1, shrunk, zero), (accum, linear)
