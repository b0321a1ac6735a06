"""Changes of some rows of a Variable: gradients that are IndexedSlices, and scatters.

Workers merge the rows of one id before they send them (`globalstep.worker.protocol.row_merging`); what comes unmerged,
because it is small or from another client, is merged here.

Layer: ps. Threads: functions are pure but for the arrays that they change, which are the store's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.rules import merge_rows
from globalstep.rules.rule import Hypers, Rule
from globalstep.wire.declarations import Op, OpKind

__all__ = ["apply_rows", "scatter_rows"]

Array = npt.NDArray[Any]

#: Rows of fewer bytes are added one after another: that takes less time than to find out which are equal.
_MERGED_BYTES = 1 << 15
_MERGED_KINDS = "fiu"


def apply_rows(rule: Rule, table: Array, slots: tuple[Array, ...], op: Op, hyper: Hypers) -> None:
    """Apply a gradient of some rows.

    Args:
        rule: The update rule.
        table: [rows, width] values; changed.
        slots: The rule's slots, each like `table`; changed.
        op: The change, checked; with indices and a value.
        hyper: The rule's numbers.
    """
    assert op.indices is not None
    assert op.value is not None
    indices, rows = op.indices, op.value.reshape(len(op.indices), table.shape[1])
    if rule.merges_duplicates and not op.unique:
        indices, rows = merge_rows(indices, rows)
    rule.sparse(table, slots, indices, rows, hyper)


def scatter_rows(table: Array, op: Op) -> None:
    """Assign some rows, add to them or subtract from them.

    Where an id comes twice, the last row of it is assigned, and all are added.

    Args:
        table: [rows, width] values; changed.
        op: The change, checked; with indices and a value.
    """
    assert op.indices is not None
    assert op.value is not None
    indices, rows = op.indices, op.value.reshape(len(op.indices), table.shape[1])
    if op.kind is OpKind.ASSIGN:
        table[indices] = rows
        return
    change = np.add if op.kind is OpKind.ASSIGN_ADD else np.subtract
    unique = op.unique
    if not unique and rows.nbytes >= _MERGED_BYTES and rows.dtype.kind in _MERGED_KINDS:
        indices, rows = merge_rows(indices, rows)
        unique = True
    if not unique:
        change.at(table, indices, rows)
        return
    table[indices] = change(np.take(table, indices, axis=0), rows)
