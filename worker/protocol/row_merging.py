"""Rows that a step names several times, sent and fetched once.

A batch of an embedding model names its frequent ids again and again. Of a pull, each Variable's ids are sent
without repeats, and the rows that come back are given to all who named them; of a push, the rows of one id are
summed first. What was found out about the ids of a pull serves the push of their gradients.

Layer: worker. Threads: a RowMerging belongs to one client, which calls it under its lock. Kernels are imported
when rows are first worth merging.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from globalstep.runtime.memory import MemoryPool
from globalstep.wire.declarations import Op, OpKind, Push, Read, VariableDecl

if TYPE_CHECKING:
    from globalstep.wire.sparse_rows import RowGroups

Array = npt.NDArray[Any]

#: Rows of fewer bytes than this go as they are: the PS copes with repeats too, and no kernel need be loaded.
_WORTH_BYTES = 1 << 15
#: Dtypes that the kernels take.
_MERGED_KINDS = "fiu"


class MergedReads:
    """Reads as they are sent, and how the answers become those of the reads that were asked for.

    Attributes:
        sent: What to read.
    """

    def __init__(self, asked: Sequence[Read]) -> None:
        self.sent: list[Read] = list(asked)
        #: For each read asked for: which of those sent answers it, and which of its rows.
        self.answers: list[tuple[int, slice | None]] = []
        #: For reads sent whose rows repeat: how often.
        self.groups: dict[int, RowGroups] = {}


class RowMerging:
    """Merges the rows of a client's reads and changes.

    Args:
        variables: The declared Variables by name; may grow.
    """

    def __init__(self, variables: Mapping[str, VariableDecl]) -> None:
        self._variables = variables
        self._memory = MemoryPool()
        # Variable -> the ids that it was last asked for, and which of them are equal.
        self._known: dict[str, tuple[Array, RowGroups]] = {}
        # Variable -> its declaration, and how many bytes a row has; 0 for one whose rows are not merged.
        self._row_bytes: dict[str, tuple[VariableDecl | None, int]] = {}

    def merge(self, push: Push) -> tuple[Push, MergedReads | None]:
        """Name each row of a push once.

        Returns:
            The push, and how its values answer the reads that were asked for; None where they do as they are.
        """
        push = self.merge_changes(push)
        merged = self.merge_reads(push.reads)
        return (push, None) if merged is None else (push.of_ops(push.ops, merged.sent), merged)

    def merge_reads(self, asked: Sequence[Read]) -> MergedReads | None:
        """Name each row once.

        Args:
            asked: Reads of one consistent read.

        Returns:
            None where they are best sent as they are.
        """
        by_variable: dict[str, list[int]] = {}
        for at, read in enumerate(asked):
            if read.indices is not None:
                by_variable.setdefault(read.variable, []).append(at)
        if not by_variable:
            return None
        found: MergedReads | None = None
        for name, places in by_variable.items():
            ids = asked[places[0]].indices if len(places) == 1 else _joined([asked[at].indices for at in places])
            if ids is None or not _are_ids(ids) or not self._is_worth(name, ids):
                continue
            groups = self._groups(name, ids)
            if not groups.repeats and len(places) == 1:
                continue
            if found is None:
                found = MergedReads(asked)
                found.answers = [(at, None) for at in range(len(asked))]
            first, begin = places[0], 0
            found.sent[first] = Read(name, groups.ids)
            if groups.repeats:
                found.groups[first] = groups
            for at in places:
                end = begin + len(asked[at].indices)  # type: ignore[arg-type]
                found.answers[at] = (first, slice(begin, end))
                begin = end
        if found is not None and len(found.sent) > len({place for place, _ in found.answers}):
            # The others of a Variable are answered by its first.
            kept = sorted({place for place, _ in found.answers})
            number = {place: i for i, place in enumerate(kept)}
            found.sent = [found.sent[place] for place in kept]
            found.answers = [(number[place], rows) for place, rows in found.answers]
            found.groups = {number[place]: groups for place, groups in found.groups.items()}
        return found

    def answers(self, reads: MergedReads, values: Sequence[Array]) -> list[Array]:
        """Give the values of the reads that were asked for, from those of the reads that were sent."""
        expanded = list(values)
        for at, groups in reads.groups.items():
            rows = values[at]
            out = self._take(groups.of.size, rows)
            _kernels().expand_rows(groups, rows.reshape(len(rows), -1), out.reshape(len(out), -1))
            expanded[at] = out
        return [expanded[at] if rows is None else expanded[at][rows] for at, rows in reads.answers]

    def merge_changes(self, push: Push) -> Push:
        """Sum the rows of each id.

        Args:
            push: Any push; it is not changed.

        Returns:
            The same push, or one whose sparse changes name no row twice. A scatter that assigns stays as it is:
            there the last row of an id counts.
        """
        ops: list[Op] | None = None
        for at, op in enumerate(push.ops):
            if op.indices is None or op.value is None or op.unique or op.kind is OpKind.ASSIGN:
                continue
            if op.value.nbytes < _WORTH_BYTES or len(op.value) != len(op.indices):
                continue
            merged = self._merged(op, op.indices, op.value)
            if merged is not None:
                ops = list(push.ops) if ops is None else ops
                ops[at] = merged
        return push if ops is None else push.of_ops(ops, push.reads)

    def _merged(self, op: Op, ids: Array, rows: Array) -> Op | None:
        if rows.dtype.kind not in _MERGED_KINDS or not _are_ids(ids):
            return None
        groups = self._groups(op.variable, ids)
        if not groups.repeats:
            return op.of_rows(ids, rows)
        half = rows.dtype == np.float16
        wide = rows.astype(np.float32) if half else rows
        summed = self._take(groups.ids.size, wide)
        _kernels().sum_rows(groups, wide.reshape(len(wide), -1), summed.reshape(len(summed), -1))
        return op.of_rows(groups.ids, summed.astype(np.float16) if half else summed)

    def _is_worth(self, name: str, ids: Array) -> bool:
        decl = self._variables.get(name)
        known, row_bytes = self._row_bytes.get(name, (None, 0))
        if decl is not known:
            row_bytes = _merged_row_bytes(decl)
            self._row_bytes[name] = decl, row_bytes
        return ids.size * row_bytes >= _WORTH_BYTES

    def _groups(self, name: str, ids: Array) -> RowGroups:
        known = self._known.get(name)
        if known is not None and np.array_equal(known[0], ids):
            return known[1]
        groups: RowGroups = _kernels().group_rows(ids)
        decl = self._variables.get(name)
        if decl is not None and decl.parts and groups.repeats:
            groups = groups.sorted()  # so that each part's rows lie side by side
        # The program may write other ids into its array.
        self._known[name] = (ids.copy(), groups)
        return groups

    def _take(self, count: int, like: Array) -> Array:
        """Give memory for so many rows."""
        shape = (count, *like.shape[1:])
        return self._memory.take(math.prod(shape) * like.itemsize).view(like.dtype).reshape(shape)


def _merged_row_bytes(decl: VariableDecl | None) -> int:
    """Give how many bytes a Variable's row has; 0 where rows are not merged."""
    if decl is None or decl.dtype == "float16" or np.dtype(decl.dtype).kind not in _MERGED_KINDS:
        return 0
    return math.prod(decl.shape[1:]) * np.dtype(decl.dtype).itemsize


def _joined(ids: Sequence[Array | None]) -> Array:
    return np.concatenate([item for item in ids if item is not None])


def _are_ids(ids: Array) -> bool:
    """Whether ids are as they must be; others go as they are, and the PS says what is wrong."""
    return ids.dtype == np.int64 and ids.ndim == 1


@functools.cache
def _kernels() -> Any:
    from globalstep.wire import sparse_rows

    return sparse_rows
