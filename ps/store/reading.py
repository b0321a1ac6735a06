"""Copies of what a shard holds, for a reply: where there is a place for them that its reader sees, they go there.

Layer: ps. Threads: functions are pure; the arrays are the store's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from globalstep.wire.declarations import ALIGNMENT

__all__ = ["ReplyBuffer", "copies"]

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


def copies(wanted: Sequence[tuple[Array, Array | None]], buffer: ReplyBuffer | None = None) -> list[Array]:
    """Copy arrays, or rows of them.

    Args:
        wanted: Each array with the rows that are wanted of it, int64 [n] and within it; None for all of it.
        buffer: Where to put them, one behind the other, each from a multiple of 8 bytes.

    Returns:
        A copy each: of the array's shape, or [n, ...].
    """
    places: list[tuple[tuple[int, ...], int]] = []
    memory, at = None, 0
    if buffer is not None:
        for source, rows in wanted:
            shape = source.shape if rows is None else (*rows.shape, *source.shape[1:])
            places.append((shape, at))
            nbytes = math.prod(shape) * source.itemsize
            at += nbytes + -nbytes % ALIGNMENT
        memory = buffer.take(at)
    if memory is None:
        return [source.copy() if rows is None else np.take(source, rows, axis=0) for source, rows in wanted]
    out: list[Array] = []
    for (source, rows), (shape, at) in zip(wanted, places, strict=True):
        place: Array = np.ndarray(shape, source.dtype, memory.data, at)
        if rows is None:
            np.copyto(place, source)
        else:
            # Clipping changes nothing, since all rows are there; raising would make numpy copy twice.
            np.take(source, rows, axis=0, out=place, mode="clip")
        out.append(place)
    return out
