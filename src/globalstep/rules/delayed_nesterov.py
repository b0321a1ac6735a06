"""Delayed Nesterov: momentum for differences that come one by one, from workers that do not wait for each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.rules.compiled import CompiledRule, kernel
from globalstep.rules.rule import Array, Hypers, Slots, Updated


@kernel
def _dense(
    values: Array,
    momentum: Array,
    waiting: Array,
    grad: Array,
    step: Any,
    share: Any,
    inertia: Any,
    drift: Any,
    moves: Any,
) -> None:
    for i in range(values.size):
        waiting[i] += grad[i]
        values[i] -= grad[i] * step
        if moves > 0:
            momentum[i] = momentum[i] * inertia + waiting[i] * share
            waiting[i] = 0
            values[i] -= momentum[i] * drift


@kernel
def _rows(
    values: Array,
    momentum: Array,
    waiting: Array,
    indices: Array,
    rows: Array,
    step: Any,
    share: Any,
    inertia: Any,
    drift: Any,
    moves: Any,
) -> None:
    width = rows.shape[1]
    for i in range(indices.size):
        for j in range(width):
            at = indices[i] * width + j
            waiting[at] += rows[i, j]
            values[at] -= rows[i, j] * step
    if moves > 0:
        # Every row has a momentum, and drifts.
        for i in range(values.size):
            momentum[i] = momentum[i] * inertia + waiting[i] * share
            waiting[i] = 0
            values[i] -= momentum[i] * drift


class DelayedNesterov(CompiledRule):
    """`waiting += g; v -= learning_rate g / delay`, and a momentum that moves at each `delay`-th push.

    Then, after that: `m = momentum m + waiting / delay; waiting = 0; v -= learning_rate momentum m`.

    Sparse gradients are dense-equivalent: at each `delay`-th push every row moves.

    Source: Liu et al., "Asynchronous Local-SGD Training for Language Modeling" (arXiv 2401.09135), section 5, with
    c = 0.
    """

    kind = "delayed_nesterov"
    slots = ("momentum", "waiting")
    hypers = ("learning_rate", "momentum", "delay")
    scalars = ("waiting_pushes",)
    dense_kernel = _dense
    rows_kernel = _rows
    flat_rows = True

    def check_hypers(self, hyper: Hypers) -> None:
        """See Rule."""
        super().check_hypers(hyper)
        if not hyper["delay"] >= 1:
            raise InvalidArgumentError(
                f"Hyper-parameter 'delay' of update rule {self.kind!r} is {hyper['delay']:g}; it must be at least 1: "
                "after so many pushes the momentum moves."
            )

    def advance_scalars(self, scalars: Mapping[str, np.float32], hyper: Hypers) -> dict[str, np.float32]:
        """See Rule."""
        return {"waiting_pushes": np.float32(0 if _moves(hyper) else scalars["waiting_pushes"] + 1)}

    def numbers(self, hyper: Hypers, real: Any) -> tuple[Any, ...]:
        """See CompiledRule."""
        rate, inertia, share = real(hyper["learning_rate"]), real(hyper["momentum"]), real(1) / real(hyper["delay"])
        return rate * share, share, inertia, rate * inertia, real(_moves(hyper))

    def reference(self, values: Array, slots: Slots, grad: Array, hyper: Hypers) -> Updated:
        """See Rule."""
        step, share, inertia, drift, moves = self.numbers(hyper, values.dtype.type)
        values, (momentum, waiting) = values - grad * step, (slots[0], slots[1] + grad)
        if moves:
            momentum, waiting = momentum * inertia + waiting * share, np.zeros_like(waiting)
            values = values - momentum * drift
        return values, (momentum, waiting)

    def sparse_reference(self, values: Array, slots: Slots, indices: Array, rows: Array, hyper: Hypers) -> Updated:
        """See Rule."""
        grad = np.zeros_like(values)
        grad[indices] = rows
        return self.reference(values, slots, grad, hyper)


def _moves(hyper: Hypers) -> bool:
    """Whether the momentum moves with this push."""
    return hyper["waiting_pushes"] + 1 >= hyper["delay"]
