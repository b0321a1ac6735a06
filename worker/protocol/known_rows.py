"""What one shard and a client both know of pushes of rows that are laid out alike.

docs/design/push-protocol.md, "Layouts of rows", is the specification; `globalstep.ps.store.row_layouts` is the other
side.

Layer: worker. Threads: a KnownRows belongs to one PushProtocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.wire import codec
from globalstep.wire.declarations import Op, Push, Read
from globalstep.worker.protocol.push_layout import bytes_of

__all__ = ["KnownRows", "has_rows"]

Array = npt.NDArray[Any]
#: Of an op: the dtype of its value; the value's shape, or that of a row; the dtype of the rows' ids, None for a whole
#: Variable; whether no id repeats.
_Form = tuple[np.dtype[Any], tuple[int, ...], Any, bool]
_INT32 = np.dtype(np.int32)


class KnownRows:
    """See the module's text.

    Args:
        number: The layout's.
        push: The push that is told in full.
        ops: Positions of the shard's ops in it, in the order in which they are told.
        reads: Of its reads, likewise.

    Attributes:
        number: As given.
        is_told: Whether the shard has answered a push that told it.
    """

    def __init__(self, number: int, push: Push, ops: Sequence[int], reads: Sequence[int]) -> None:
        self.number = number
        self.is_told = False
        self._ops = [(at, _form_of(push.ops[at])) for at in ops]
        self._reads = [(at, _ids_of(push.reads[at])) for at in reads]

    def sent(self, push: Push) -> tuple[list[int], list[memoryview]] | None:
        """Give the numbers of rows, and the bytes, of another push.

        Returns:
            None where it is not laid out alike, or where its rows are to be refused by name.
        """
        counts: list[int] = []
        pieces: list[memoryview] = []
        for at, (dtype, shape, of_ids, unique) in self._ops:
            op = push.ops[at]
            value, ids = op.value, op.indices
            if value is None or value.dtype != dtype or op.unique != unique:
                return None
            if of_ids is None:
                if ids is not None or value.shape != shape:
                    return None
            elif ids is None or value.shape[1:] != shape or value.shape[:1] != ids.shape:
                return None
            if value.size:
                pieces.append(bytes_of(value))
            if ids is not None and not _add_ids(ids, of_ids, counts, pieces):
                return None
        for at, of_ids in self._reads:
            ids = push.reads[at].indices
            if ids is None:
                if of_ids is not None:
                    return None
            elif of_ids is None or ids.ndim != 1 or not _add_ids(ids, of_ids, counts, pieces):
                return None
        return counts, pieces


def _add_ids(ids: Array, dtype: Any, counts: list[int], pieces: list[memoryview]) -> bool:
    """Add the ids of rows, as the layout has them; gives whether they can be had so."""
    count = len(ids)
    counts.append(count)
    if not count:
        return bool(ids.dtype == np.int64)
    packed = codec.packed_ids(ids, 1) if dtype == _INT32 else ids
    pieces.append(bytes_of(packed))
    return bool(packed.dtype == dtype)


def _form_of(op: Op) -> _Form:
    value = op.value
    assert value is not None
    shape = value.shape if op.indices is None else value.shape[1:]
    return value.dtype, shape, None if op.indices is None else codec.packed_ids(op.indices).dtype, op.unique


def _ids_of(read: Read) -> Any:
    return None if read.indices is None else codec.packed_ids(read.indices).dtype


def has_rows(push: Push, ops: Sequence[int], reads: Sequence[int]) -> bool:
    """Whether a part of a push changes or reads some rows of a Variable.

    Args:
        push: It.
        ops: Positions of the part's ops.
        reads: Of its reads.
    """
    if any(push.ops[at].indices is not None for at in ops):
        return True
    return any(push.reads[at].indices is not None for at in reads)
