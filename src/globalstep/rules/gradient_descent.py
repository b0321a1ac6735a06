"""Gradient descent: `values -= learning_rate * grad`.

Layer: shared.
"""

from __future__ import annotations

from typing import Any

from globalstep.rules.compiled import CompiledRule, kernel
from globalstep.rules.rule import Array, Hypers

__all__ = ["RULE", "GradientDescent"]


@kernel
def _dense(values: Array, grad: Array, learning_rate: Any) -> None:
    for i in range(values.size):
        values[i] -= learning_rate * grad[i]


@kernel
def _rows(values: Array, indices: Array, rows: Array, learning_rate: Any) -> None:
    # A view of each row, for `_dense`, would take longer than what is done to a short one.
    for i in range(indices.size):
        row = indices[i]
        for column in range(rows.shape[1]):
            values[row, column] -= learning_rate * rows[i, column]


class GradientDescent(CompiledRule):
    """TensorFlow's ApplyGradientDescent; rows with the same id are subtracted one after another."""

    kind = "gradient_descent"
    merges_duplicates = False
    dense_kernel = _dense
    rows_kernel = _rows

    def reference(
        self, values: Array, slots: tuple[Array, ...], grad: Array, hyper: Hypers
    ) -> tuple[Array, tuple[Array, ...]]:
        """See Rule."""
        return values - values.dtype.type(hyper["learning_rate"]) * grad, ()


RULE = GradientDescent()
