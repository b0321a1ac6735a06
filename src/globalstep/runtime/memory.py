"""Pools of memory blocks: large arrays of fresh memory cost more than the copy into them.

The kernel clears every page of a fresh array when it is first touched, which halves the throughput of large
messages (benchmarks/figures.md). A pool gives out blocks to which no reference is left.

Layer: shared. Imports nothing of globalstep.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable
from itertools import compress, count, repeat
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.uint8]

#: Below this the allocator's own memory is warm anyway.
_SMALL_BYTES = 1 << 16
#: Blocks that wait for a use: as many as a program's pushes have sizes, within reason.
_MOST_IDLE = 2


#: What a byte of a protobuf message takes at most once it is parsed: an empty change of a push has two bytes.
PARSED_BYTES = 48
#: The names and numbers of a message, parsed, are not counted below this size: connections are limited in number.
COUNTED_HEAD_BYTES = 1 << 13


class Pool(Protocol):
    """Gives memory."""

    def claim(self, nbytes: int) -> object:
        """Take note of memory that is about to be taken elsewhere, while the result is referred to.

        Raises:
            ResourceExhaustedError: If there is none.
        """
        ...

    def take(self, nbytes: int) -> Array:
        """Give uint8 [nbytes], undefined, which is not used again while a reference to it is left.

        Raises:
            ResourceExhaustedError: If there is none.
        """
        ...

    def take_at_once(self, nbytes: int) -> Array | None:
        """Give the same, or None where there is none now and it would have to be waited for."""
        ...


#: What is said of a block that only its list refers to.
_UNUSED = next(map(sys.getrefcount, [np.empty(0, np.uint8)]))


def address_of(array: npt.NDArray[Any]) -> int:
    """Give the address of an array's first byte in this process.

    >>> values = np.zeros(4, np.float32)
    >>> address_of(values[2:]) - address_of(values)
    8
    """
    return int(array.__array_interface__["data"][0])


#: With `write` by its position: `methodcaller("setflags", write=False)` takes three times as long.
_set_writeable: Any = np.ndarray.setflags


def seal(arrays: Iterable[npt.NDArray[Any]]) -> None:
    """Forbid writing into arrays."""
    deque(map(_set_writeable, arrays, repeat(False)), maxlen=0)


def are_unused(blocks: Iterable[Array]) -> Iterable[bool]:
    """Say of each block whether only what it is taken from, a list or a dict's values, refers to it.

    No bytecode runs for a block: that would take longer, and refer to the block itself.
    """
    return map(_UNUSED.__eq__, map(sys.getrefcount, blocks))


class MemoryPool:
    """Gives out memory, the same again once no array or view of it is left. Single thread: its owner's.

    A view, however it was made, holds the block, so its bytes do not change.

    >>> pool = MemoryPool()
    >>> values = pool.take(1_000_000)
    >>> address = values.ctypes.data
    >>> pool.take(1_000_000).ctypes.data == address
    False
    >>> pool = MemoryPool()
    >>> address = pool.take(1_000_000).ctypes.data
    >>> pool.take(1_000_000).ctypes.data == address
    True
    """

    def __init__(self) -> None:
        # Longest unused first.
        self._blocks: list[Array] = []

    def claim(self, nbytes: int) -> None:
        """Take note of nothing: there is no limit here."""

    def take(self, nbytes: int) -> Array:
        """Give memory.

        Returns:
            uint8 [nbytes]; what it contains is undefined.
        """
        if nbytes < _SMALL_BYTES:
            return np.empty(nbytes, np.uint8)
        blocks = self._blocks
        idle = list(compress(count(), are_unused(blocks)))
        # A much larger block is left alone: a small view that is kept must not hold a large one.
        fitting = next((at for at in reversed(idle) if nbytes <= blocks[at].nbytes <= 2 * nbytes), None)
        if fitting is not None:
            block = blocks.pop(fitting)
        else:
            if len(idle) >= _MOST_IDLE:
                del blocks[idle[0]]
            block = np.empty(nbytes, np.uint8)
        blocks.append(block)
        return block[:nbytes]

    def take_at_once(self, nbytes: int) -> Array:
        """Give the same: there is always memory here."""
        return self.take(nbytes)
