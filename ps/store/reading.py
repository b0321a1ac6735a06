"""Copies of what a shard holds, for a reply: where there is a place for them that its reader sees, they go there.

Layer: ps. Threads: functions are pure; the arrays are the store's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from globalstep.wire.declarations import Read, VariableDecl, padded

__all__ = ["ReplyBuffer", "bytes_of", "copies"]

Array = npt.NDArray[Any]


class ReplyBuffer(Protocol):
    """Memory for the values of one reply."""

    def prepare(self, nbytes: Callable[[], int]) -> None:
        """Have as much ready as will be taken, so that `take` need not have any made; the lock is not held yet.

        Args:
            nbytes: Says how much that will be, where it needs to be known.
        """
        ...

    def take(self, nbytes: int) -> npt.NDArray[np.uint8] | None:
        """Give so many bytes; None where they may be taken anywhere.

        Raises:
            ResourceExhaustedError: If there are none.
        """
        ...


def bytes_of(reads: Sequence[Read], declaration: Callable[[str], VariableDecl | None], most_bytes: int) -> int:
    """Give what `copies` of reads takes of a buffer; 0 where they will be refused, as far as that is known before.

    Args:
        reads: What is wanted.
        declaration: Gives a Variable's; None where there is none.
        most_bytes: The most that one message may read.
    """
    total = 0
    for read in reads:
        found = declaration(read.variable)
        if found is None:
            return 0
        shape = found.shape if read.indices is None else (*read.indices.shape, *found.shape[1:])
        total += padded(math.prod(shape) * np.dtype(found.dtype).itemsize)
    return total if total <= most_bytes else 0


def copies(wanted: Sequence[tuple[Array, Array | None]], buffer: ReplyBuffer | None = None) -> list[Array]:
    """Copy arrays, or rows of them.

    Args:
        wanted: Each array with the rows that are wanted of it, int64 [n] and within it; None for all of it.
        buffer: Where to put them, one behind the other, each from a multiple of 8 bytes.

    Returns:
        A copy each: of the array's shape, or [n, ...].
    """
    shapes = [source.shape if rows is None else (*rows.shape, *source.shape[1:]) for source, rows in wanted]
    memory = None
    if buffer is not None:
        sizes = [math.prod(shape) * source.itemsize for (source, _), shape in zip(wanted, shapes, strict=True)]
        memory = buffer.take(sum(map(padded, sizes)))
    if memory is None:
        return [source.copy() if rows is None else np.take(source, rows, axis=0) for source, rows in wanted]
    out: list[Array] = []
    at = 0
    for (source, rows), shape in zip(wanted, shapes, strict=True):
        place: Array = np.ndarray(shape, source.dtype, memory.data, at)
        if rows is None:
            np.copyto(place, source)
        else:
            # Clipping changes nothing, since all rows are there; raising would make numpy copy twice.
            np.take(source, rows, axis=0, out=place, mode="clip")
        at += padded(place.nbytes)
        out.append(place)
    return out
