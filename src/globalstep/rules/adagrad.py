"""Adagrad, as TensorFlow and as PyTorch have it: rates that shrink with the sum of squared gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from globalstep.rules.compiled import CompiledRule, kernel


@kernel
def _step(value: Any, accumulator: Any, grad: Any, learning_rate: Any) -> Any:
    accumulator = accumulator + grad * grad
    return value - learning_rate * grad / np.sqrt(accumulator), accumulator


@kernel
def _root_step(value: Any, accumulator: Any, grad: Any, learning_rate: Any, epsilon: Any) -> Any:
    accumulator = accumulator + grad * grad
    return value - learning_rate * grad / (np.sqrt(accumulator) + epsilon), accumulator


class Adagrad(CompiledRule):
    """TensorFlow's ApplyAdagrad: `a += g^2; v -= learning_rate * g / sqrt(a)`, without an epsilon.

    Sparse: touched rows only. Source: Duchi, Hazan, Singer, "Adaptive Subgradient Methods" (2011).
    """

    kind = "adagrad"
    slots = ("accumulator",)
    step = _step


class RootAdagrad(CompiledRule):
    """PyTorch's Adagrad: `a += g^2; v -= learning_rate * g / (sqrt(a) + epsilon)`.

    Sparse: touched rows only. Source: Duchi, Hazan, Singer, "Adaptive Subgradient Methods" (2011).
    """

    kind = "root_adagrad"
    slots = ("accumulator",)
    hypers = ("learning_rate", "epsilon")
    step = _root_step
