"""Pushes of rows that are laid out alike: only the number of rows and the bytes of each differ from push to push.

What a client told of the first such push serves the later ones (docs/design/push-protocol.md, "Layouts").
How many rows a push has is the client's word: it is held against the bytes that have come. The rows themselves are
looked at in every push.

Layer: ps. Threads: a RowLayout belongs to one stream; its `version` is read and written under the shard's lock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from globalstep.errors import InvalidArgumentError
from globalstep.ps.budget import MemoryClaim
from globalstep.ps.store.checking import check_indices, too_much_read
from globalstep.wire.declarations import Increment, Op, OpKind, OptimizerUse, Read, VariableDecl, padded

Array = npt.NDArray[Any]
_IDS = np.dtype(np.int64)


class RowChange(NamedTuple):
    """A gradient: of a whole Variable, or of some of its rows."""

    variable: str
    optimizer: str
    unique: bool
    after_increment: bool
    dtype: np.dtype[Any]
    #: Of the gradient, or of one of its rows.
    shape: tuple[int, ...]
    #: Of one row; of a whole Variable's, with padding.
    nbytes: int
    #: Of the rows' ids; None for a whole Variable.
    ids: np.dtype[Any] | None


class RowLayout:
    """A push without its numbers, some of whose changes or reads are of rows.

    Its data holds one behind the other, each from a multiple of 8 bytes: of each change its gradient, then the ids of
    its rows, where it has some; then the ids of each read of rows.

    Args:
        changes: Its changes.
        reads: Its reads: of which Variable, and the dtype of the ids; None for the whole Variable.
        increments: Its increments.
        uses: The optimizers that it uses.

    Attributes:
        changes: As given.
        increments: As given.
        uses: As given.
        items: How many changes and reads it has.
        appliers: See PushParts.optimizers.
        version: Of the store by which one such push was found good; see `check`.
        claim: What it takes while its stream remembers it.
    """

    def __init__(
        self,
        changes: Sequence[RowChange],
        reads: Sequence[tuple[str, np.dtype[Any] | None]],
        increments: list[Increment],
        uses: list[OptimizerUse],
    ) -> None:
        self.increments, self.uses = increments, uses
        self.changes, self._reads = changes, reads
        sparse = sum(change.ids is not None for change in changes)
        self._counts = sparse + sum(ids is not None for _, ids in reads)
        self.items = len(changes) + len(reads)
        self.appliers = frozenset((change.optimizer, change.after_increment) for change in changes)
        self.version = -1
        self.claim: MemoryClaim | None = None

    def bind(self, rows: Sequence[int], data: memoryview) -> tuple[list[Op], list[Read]]:
        """Give the changes and reads of a push.

        Args:
            rows: How many rows its changes and reads of rows have, in order.
            data: Its bytes; the changes' values are views of it, and ids are copies.

        Raises:
            InvalidArgumentError: If the numbers are not those of the layout, or the data has other bytes than they say.
        """
        if len(rows) != self._counts:
            raise InvalidArgumentError(f"A push of a layout with {self._counts} numbers of rows came with {len(rows)}.")
        counts = iter(rows)
        ops: list[Op] = []
        reads: list[Read] = []
        at, most = 0, data.nbytes
        for variable, optimizer, unique, after_increment, dtype, shape, nbytes, of_ids in self.changes:
            begin = at
            if of_ids is None:
                at += nbytes
                ids_at = count = 0
            else:
                count = next(counts)
                ids_at = at + padded(count * nbytes)
                at = ids_at + padded(count * of_ids.itemsize)
            if at > most:
                break
            ids: Array | None = None
            if of_ids is not None:
                shape = (count, *shape)
                ids = np.ndarray(count, of_ids, data, ids_at).astype(_IDS)
            value: Array = np.ndarray(shape, dtype, data, begin)
            ops.append(Op(OpKind.APPLY, variable, value, None, "", ids, optimizer, unique, after_increment))
        for variable, of_ids in self._reads:
            ids = None
            if of_ids is not None:
                count, begin = next(counts), at
                at += padded(count * of_ids.itemsize)
                if at > most:
                    break
                ids = np.ndarray(count, of_ids, data, begin).astype(_IDS)
            reads.append(Read(variable, ids))
        if at != most:
            raise InvalidArgumentError(f"A push with rows {list(rows)} of a known layout cannot have {most} bytes.")
        return ops, reads

    def check(
        self,
        ops: Sequence[Op],
        reads: Sequence[Read],
        declaration: Callable[[str], VariableDecl | None],
        most_read_bytes: int,
    ) -> None:
        """Refuse what may be wrong with a push, where one like it was found good, by the store as it is now.

        Args:
            ops: As they were bound.
            reads: Likewise.
            declaration: Gives a Variable's.
            most_read_bytes: The most that one message may read.

        Raises:
            InvalidArgumentError: For a row that is not there.
            ResourceExhaustedError: For reads of too many bytes.
        """
        for op in ops:
            if op.indices is not None:
                check_indices(op.indices, _of(op.variable, declaration))
        nbytes = 0
        for read in reads:
            decl = _of(read.variable, declaration)
            shape: Sequence[int] = decl.shape
            if read.indices is not None:
                check_indices(read.indices, decl)
                shape = (read.indices.size, *shape[1:])
            nbytes += math.prod(shape) * np.dtype(decl.dtype).itemsize
        if nbytes > most_read_bytes:
            raise too_much_read(len(reads), nbytes, most_read_bytes)


def _of(name: str, declaration: Callable[[str], VariableDecl | None]) -> VariableDecl:
    decl = declaration(name)
    assert decl is not None  # by the store's version
    return decl
