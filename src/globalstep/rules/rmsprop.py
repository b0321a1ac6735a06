"""RMSProp, plain and centered, as TensorFlow and as PyTorch have it: there epsilon is added to the root."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from globalstep.rules.compiled import CompiledRule, kernel
from globalstep.rules.rule import Hypers


@kernel
def _step(
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
    momentum = momentum * inertia + grad * learning_rate / np.sqrt(rms + epsilon)
    return value - momentum, rms, momentum


@kernel
def _centered_step(
    value: Any,
    rms: Any,
    mg: Any,
    momentum: Any,
    grad: Any,
    learning_rate: Any,
    one_minus_decay: Any,
    inertia: Any,
    epsilon: Any,
) -> Any:
    rms = rms + (grad * grad - rms) * one_minus_decay
    mg = mg + (grad - mg) * one_minus_decay
    momentum = momentum * inertia + grad * learning_rate / np.sqrt(rms - mg * mg + epsilon)
    return value - momentum, rms, mg, momentum


@kernel
def _root_step(
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
def _centered_root_step(
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


class RMSProp(CompiledRule):
    """TensorFlow's ApplyRMSProp.

    `ms += (g^2 - ms)(1 - decay); mom = momentum mom + learning_rate g / sqrt(ms + epsilon); v -= mom`.
    Sparse: touched rows only, without catching up. Source: Tieleman and Hinton, lecture 6.5 (2012).
    """

    kind = "rmsprop"
    slots: ClassVar[tuple[str, ...]] = ("rms", "momentum")
    hypers = ("learning_rate", "decay", "momentum", "epsilon")
    step = _step

    def numbers(self, hyper: Hypers, real: Any) -> tuple[Any, ...]:
        """See CompiledRule."""
        return (
            real(hyper["learning_rate"]),
            real(1) - real(hyper["decay"]),
            real(hyper["momentum"]),
            real(hyper["epsilon"]),
        )


class CenteredRMSProp(RMSProp):
    """TensorFlow's ApplyCenteredRMSProp: the denominator is the variance, `sqrt(ms - mg^2 + epsilon)`.

    `mg += (g - mg)(1 - decay)` is the mean of the gradients. Source: Graves, "Generating Sequences With
    Recurrent Neural Networks" (2013), equation 40.
    """

    kind = "centered_rmsprop"
    slots = ("rms", "mg", "momentum")
    step = _centered_step


class RootRMSProp(RMSProp):
    """PyTorch's RMSprop: `ms += (g^2 - ms)(1 - decay); b = momentum b + g / (sqrt(ms) + epsilon)`.

    Then `v -= learning_rate * b`. Sparse: touched rows only, without catching up. Source: Tieleman and Hinton, lecture
    6.5 (2012).
    """

    kind = "root_rmsprop"
    step = _root_step


class RootCenteredRMSProp(RootRMSProp):
    """PyTorch's RMSprop with `centered=True`: the root is that of the variance, `ms - mg^2`."""

    kind = "root_centered_rmsprop"
    slots = ("rms", "mg", "momentum")
    step = _centered_root_step

    def numbers(self, hyper: Hypers, real: Any) -> tuple[Any, ...]:
        """See CompiledRule."""
        return *super().numbers(hyper, real), real(0)
