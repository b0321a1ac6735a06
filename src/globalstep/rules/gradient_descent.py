"""Gradient descent: `values -= learning_rate * grad`."""

from __future__ import annotations

from typing import Any

from globalstep.rules.compiled import CompiledRule, kernel


@kernel
def _step(value: Any, grad: Any, learning_rate: Any) -> Any:
    return value - learning_rate * grad


class GradientDescent(CompiledRule):
    """TensorFlow's ApplyGradientDescent; rows with the same id are subtracted one after another."""

    kind = "gradient_descent"
    merges_duplicates = False
    step = _step
