"""Momentum, plain and Nesterov's."""

from __future__ import annotations

from typing import Any

from globalstep.rules.compiled import CompiledRule, kernel
from globalstep.rules.rule import Hypers


@kernel
def _step(value: Any, momentum: Any, grad: Any, learning_rate: Any, decay: Any, use_nesterov: bool) -> Any:
    momentum = momentum * decay + grad
    if use_nesterov:
        return value - (grad * learning_rate + momentum * decay * learning_rate), momentum
    return value - momentum * learning_rate, momentum


class Momentum(CompiledRule):
    """TensorFlow's ApplyMomentum.

    `m = momentum * m + g; v -= learning_rate * m`, and with `use_nesterov` (not 0)
    `v -= learning_rate * g + learning_rate * momentum * m`. Sparse: touched rows only.
    """

    kind = "momentum"
    slots = ("momentum",)
    hypers = ("learning_rate", "momentum", "use_nesterov")
    step = _step

    def numbers(self, hyper: Hypers, real: Any) -> tuple[Any, ...]:
        """See CompiledRule."""
        return real(hyper["learning_rate"]), real(hyper["momentum"]), bool(hyper["use_nesterov"])
