"""Adagrad with one accumulator per row: for tables, whose slots would be as large as the tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from globalstep.errors import InternalError
from globalstep.rules.rule import Array, Hypers, Rule, Slots, Updated, check_alike

#: Elements that are computed at a time: what is made on the way stays in the processor's cache.
_BLOCK_ELEMENTS = 1 << 15


class RowWiseAdagrad(Rule):
    """TorchRec's RowWiseAdagrad: `a[row] += mean(g^2); v[row] -= learning_rate * g / (sqrt(a[row]) + epsilon)`.

    Its slot has a column: [rows, 1]. Source: `torchrec.optim.rowwise_adagrad`, and EXACT_ROWWISE_ADAGRAD of FBGEMM.
    """

    kind = "row_wise_adagrad"
    slots = ("accumulator",)
    hypers = ("learning_rate", "epsilon")
    elementwise = False
    by_rows = True

    def reference(self, values: Array, slots: Slots, grad: Array, hyper: Hypers) -> Updated:
        """See Rule; values and gradient [n, width], the slot [n, 1]."""
        rate, epsilon = (values.dtype.type(hyper[name]) for name in self.hypers)
        total = np.sum(grad * grad, axis=1, keepdims=True, dtype=values.dtype)
        accumulator = slots[0] + total / values.dtype.type(max(1, values.shape[1]))
        return values - rate * grad / (np.sqrt(accumulator) + epsilon), (accumulator,)

    def dense(self, values: Array, slots: Slots, grad: Array, hyper: Hypers) -> None:
        """See Rule; a gradient of all rows comes as rows."""
        raise InternalError(f"The rule {self.kind!r} was called without rows. This is a bug: please report it.")

    def sparse(self, values: Array, slots: Slots, indices: Array, rows: Array, hyper: Hypers) -> None:
        """See Rule."""
        check_alike(values)
        check_alike(slots[0], shape=(values.shape[0], 1), dtype=values.dtype)
        check_alike(rows, shape=(*indices.shape, values.shape[1]), dtype=values.dtype)
        wide: Any = np.float32 if values.dtype == np.float16 else values.dtype
        size = max(1, _BLOCK_ELEMENTS // max(1, values.shape[1]))
        # As a compiled kernel: what is no number any more says nothing.
        with np.errstate(all="ignore"):
            for at in range(0, len(indices), size):
                ids = indices[at : at + size]
                old = (slots[0][ids].astype(wide, copy=False),)
                grad = rows[at : at + size].astype(wide, copy=False)
                new = self.reference(values[ids].astype(wide, copy=False), old, grad, hyper)
                values[ids] = new[0]
                slots[0][ids] = new[1][0]
