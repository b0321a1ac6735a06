"""Deduplication of rows: which ids are equal, the sum of their rows, and one row given to all of them.

The worker sends each row that a step touches once, and the PS sums what a client did not
(benchmarks/figures.md, "Sparse"). Rows of one id are added in the order in which they come, so the same step
gives the same bits every time.

Layer: shared. Threads: functions are pure; a RowGroups does not change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.runtime.kernels import kernel, read_only

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Which of some ids are equal.

    Attributes:
        ids: int64 [m]: each id once, in the order in which they first come, or sorted.
        of: int64 [n]: ids[of[i]] is the i-th id.
    """

    ids: Array
    of: Array

    @property
    def repeats(self) -> bool:
        """Whether an id comes twice."""
        return self.ids.size < self.of.size

    def sorted(self) -> RowGroups:
        """Return the same groups with the ids in ascending order."""
        order = np.argsort(self.ids)
        place = np.empty_like(order)
        place[order] = np.arange(order.size)
        return RowGroups(self.ids[order], place[self.of])


@kernel
def _group(ids: Array, table: Array, shift: Any, factor: Any, found: Array, of: Array) -> int:
    """Put each id where it hashes to, or behind: `table` has the number of an id, or -1."""
    count = 0
    for i in range(ids.size):
        at = np.int64((np.uint64(ids[i]) * factor) >> shift)
        while table[at] >= 0 and found[table[at]] != ids[i]:
            at = (at + 1) & (table.size - 1)
        if table[at] < 0:
            table[at] = count
            found[count] = ids[i]
            count += 1
        of[i] = table[at]
    return count


@kernel
def _sum(rows: Array, of: Array, seen: Array, out: Array) -> None:
    for i in range(of.size):
        total = out[of[i]]
        if not seen[of[i]]:
            seen[of[i]] = 1
            for column in range(total.size):
                total[column] = rows[i, column]
        else:
            for column in range(total.size):
                total[column] += rows[i, column]


#: Of Knuth's multiplicative hashing: 2**64 divided by the golden ratio.
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def group_rows(ids: Array) -> RowGroups:
    """Find out which ids are equal.

    Args:
        ids: int64 [n].

    >>> groups = group_rows(np.array([7, 2, 7]))
    >>> groups.ids.tolist(), groups.of.tolist()
    ([7, 2], [0, 1, 0])
    """
    bits = max(4, (2 * ids.size).bit_length())
    table = np.full(1 << bits, -1, np.int64)
    found, of = np.empty(ids.size, np.int64), np.empty(ids.size, np.int64)
    count = _group(read_only(ids), table, np.uint64(64 - bits), _FACTOR, found, of)
    return RowGroups(found[:count], of)


def sum_rows(groups: RowGroups, rows: Array, out: Array) -> None:
    """Add up the rows of each id.

    Args:
        groups: Of the rows' ids.
        rows: [n, width], of a dtype that numba knows.
        out: [m, width]; overwritten with the sums, in the order of `groups.ids`.
    """
    _sum(read_only(rows), read_only(groups.of), np.zeros(len(out), np.uint8), out)


def expand_rows(groups: RowGroups, rows: Array, out: Array) -> None:
    """Give every id its row.

    Args:
        groups: Of the ids.
        rows: [m, width], in the order of `groups.ids`.
        out: [n, width]; overwritten.
    """
    # Every place is one: with "clip" numpy writes to `out` at once, where it would else make a copy first.
    np.take(rows, groups.of, axis=0, out=out, mode="clip")


def merge_rows(indices: Array, rows: Array) -> tuple[Array, Array]:
    """Sum the rows that have the same id, as every TensorFlow optimizer but SGD does first.

    Args:
        indices: int64 [n] row ids.
        rows: [n, width] gradients; float16 is summed in float32.

    Returns:
        (int64 [m] ids, none twice, in the order in which they first come; [m, width] sums). The arguments
        themselves where no id comes twice.

    >>> ids, sums = merge_rows(np.array([7, 2, 7]), np.array([[1.0], [2.0], [4.0]]))
    >>> ids.tolist(), sums.tolist()
    ([7, 2], [[5.0], [2.0]])
    """
    if indices.size < 2:
        return indices, rows
    groups = group_rows(indices)
    if not groups.repeats:
        return indices, rows
    wide = rows.astype(np.float32) if rows.dtype == np.float16 else rows
    summed = np.empty((groups.ids.size, rows.shape[1]), wide.dtype)
    sum_rows(groups, wide, summed)
    return groups.ids, summed.astype(rows.dtype, copy=False)
