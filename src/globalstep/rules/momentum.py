"""Momentum, plain and Nesterov's.

Layer: shared.
"""

from __future__ import annotations

from typing import Any

from globalstep.rules.compiled import CompiledRule, kernel
from globalstep.rules.rule import Array, Hypers

__all__ = ["RULE", "Momentum"]


@kernel
def _dense(values: Array, momentum: Array, grad: Array, learning_rate: Any, decay: Any, use_nesterov: bool) -> None:
    if use_nesterov:
        for i in range(values.size):
            momentum[i] = momentum[i] * decay + grad[i]
            values[i] -= grad[i] * learning_rate + momentum[i] * decay * learning_rate
    else:
        for i in range(values.size):
            momentum[i] = momentum[i] * decay + grad[i]
            values[i] -= momentum[i] * learning_rate


@kernel
def _rows(
    values: Array,
    momentum: Array,
    indices: Array,
    rows: Array,
    learning_rate: Any,
    decay: Any,
    use_nesterov: bool,
) -> None:
    for i in range(indices.size):
        at = indices[i]
        _dense(values[at], momentum[at], rows[i], learning_rate, decay, use_nesterov)


class Momentum(CompiledRule):
    """TensorFlow's ApplyMomentum.

    `m = momentum * m + g; v -= learning_rate * m`, and with `use_nesterov` (not 0)
    `v -= learning_rate * g + learning_rate * momentum * m`. Sparse: touched rows only.
    """

    kind = "momentum"
    slots = ("momentum",)
    hypers = ("learning_rate", "momentum", "use_nesterov")
    dense_kernel = _dense
    rows_kernel = _rows

    def numbers(self, hyper: Hypers, real: Any) -> tuple[Any, ...]:
        """See CompiledRule."""
        return real(hyper["learning_rate"]), real(hyper["momentum"]), bool(hyper["use_nesterov"])

    def reference(
        self, values: Array, slots: tuple[Array, ...], grad: Array, hyper: Hypers
    ) -> tuple[Array, tuple[Array, ...]]:
        """See Rule."""
        learning_rate, decay, use_nesterov = self.numbers(hyper, values.dtype.type)
        momentum = slots[0] * decay + grad
        if use_nesterov:
            return values - (grad * learning_rate + momentum * decay * learning_rate), (momentum,)
        return values - momentum * learning_rate, (momentum,)


RULE = Momentum()
