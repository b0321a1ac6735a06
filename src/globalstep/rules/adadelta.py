"""Adadelta: steps scaled by the root mean square of earlier steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from globalstep.rules.compiled import CompiledRule, kernel
from globalstep.rules.rule import Hypers


@kernel
def _step(
    value: Any,
    accum: Any,
    accum_update: Any,
    grad: Any,
    learning_rate: Any,
    rho: Any,
    one_minus_rho: Any,
    epsilon: Any,
) -> Any:
    accum = accum * rho + grad * grad * one_minus_rho
    update = np.sqrt(accum_update + epsilon) / np.sqrt(accum + epsilon) * grad
    return value - update * learning_rate, accum, accum_update * rho + update * update * one_minus_rho


class Adadelta(CompiledRule):
    """TensorFlow's ApplyAdadelta.

    `a = rho a + (1 - rho) g^2; u = sqrt(au + epsilon) / sqrt(a + epsilon) g; v -= learning_rate u;
    au = rho au + (1 - rho) u^2`. Sparse: touched rows only. Source: Zeiler, "ADADELTA" (2012).
    """

    kind = "adadelta"
    slots = ("accum", "accum_update")
    hypers = ("learning_rate", "rho", "epsilon")
    step = _step

    def numbers(self, hyper: Hypers, real: Any) -> tuple[Any, ...]:
        """See CompiledRule."""
        rho = real(hyper["rho"])
        return real(hyper["learning_rate"]), rho, real(1) - rho, real(hyper["epsilon"])
