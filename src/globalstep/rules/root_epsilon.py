"""Adagrad and RMSProp as PyTorch has them: epsilon is added to the root, and accumulators start at 0.

Layer: shared.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globalstep.rules.compiled import CompiledRule, kernel
from globalstep.rules.rmsprop import RMSProp
from globalstep.rules.rule import Hypers

__all__ = ["ADAGRAD", "CENTERED_RMSPROP", "RMSPROP", "RootAdagrad", "RootCenteredRMSProp", "RootRMSProp"]


@kernel
def _adagrad(value: Any, accumulator: Any, grad: Any, learning_rate: Any, epsilon: Any) -> Any:
    accumulator = accumulator + grad * grad
    return value - learning_rate * grad / (np.sqrt(accumulator) + epsilon), accumulator


@kernel
def _rmsprop(
    value: Any,
    rms: Any,
    momentum: Any,
    grad: Any,
    learning_rate: Any,
    one_minus_decay: Any,
    inertia: Any,
    epsilon: Any,
) -> Any:
    rms = rms + (grad * grad - rms) * one_minus_decay
    momentum = momentum * inertia + grad / (np.sqrt(rms) + epsilon)
    return value - momentum * learning_rate, rms, momentum


@kernel
def _centered(
    value: Any,
    rms: Any,
    mg: Any,
    momentum: Any,
    grad: Any,
    learning_rate: Any,
    one_minus_decay: Any,
    inertia: Any,
    epsilon: Any,
    zero: Any,
) -> Any:
    rms = rms + (grad * grad - rms) * one_minus_decay
    mg = mg + (grad - mg) * one_minus_decay
    # Rounding can make the variance negative where all gradients were alike.
    momentum = momentum * inertia + grad / (np.sqrt(np.maximum(rms - mg * mg, zero)) + epsilon)
    return value - momentum * learning_rate, rms, mg, momentum


class RootAdagrad(CompiledRule):
    """PyTorch's Adagrad: `a += g^2; v -= learning_rate * g / (sqrt(a) + epsilon)`.

    Sparse: touched rows only. Source: Duchi, Hazan, Singer, "Adaptive Subgradient Methods" (2011).
    """

    kind = "root_adagrad"
    slots = ("accumulator",)
    hypers = ("learning_rate", "epsilon")
    step = _adagrad


class RootRMSProp(RMSProp):
    """PyTorch's RMSprop: `ms += (g^2 - ms)(1 - decay); b = momentum b + g / (sqrt(ms) + epsilon)`.

    Then `v -= learning_rate * b`. Sparse: touched rows only, without catching up. Source: Tieleman and Hinton, lecture
    6.5 (2012).
    """

    kind = "root_rmsprop"
    step = _rmsprop


class RootCenteredRMSProp(RootRMSProp):
    """PyTorch's RMSprop with `centered=True`: the root is that of the variance, `ms - mg^2`."""

    kind = "root_centered_rmsprop"
    slots = ("rms", "mg", "momentum")
    step = _centered

    def numbers(self, hyper: Hypers, real: Any) -> tuple[Any, ...]:
        """See CompiledRule."""
        return *super().numbers(hyper, real), real(0)


ADAGRAD = RootAdagrad()
RMSPROP = RootRMSProp()
CENTERED_RMSPROP = RootCenteredRMSProp()
