"""Copies of what a shard holds, for a reply: where there is a place for them that its reader sees, they go there.

Layer: ps. Threads: functions are pure; the arrays are the store's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from globalstep.wire.declarations import padded

__all__ = ["ReplyBuffer", "copies"]

Array = npt.NDArray[Any]


class ReplyBuffer(Protocol):
    """Memory for the values of one reply."""

    def take(self, nbytes: int) -> npt.NDArray[np.uint8] | None:
        """Give so many bytes; None where there are none."""
        ...


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
