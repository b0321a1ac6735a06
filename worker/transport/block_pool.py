"""Pool of the blocks that a client shares with one PS task: which are free, read by the program, or staged.

A block is free when nothing in this process refers to it: no gradient that is being written, no request in flight,
no value that the program keeps. Arrays and views count by their references, as in `globalstep.runtime.memory`.

Layer: worker. Threads: a BlockPool is thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import compress

import numpy as np
import numpy.typing as npt

from globalstep.runtime.memory import address_of, are_unused
from globalstep.wire.declarations import padded
from globalstep.wire.shared_memory import MOST_BLOCKS, SLACK_BYTES, block_bytes

__all__ = ["BlockPool", "PushKey"]

Array = npt.NDArray[np.uint8]
#: Client and number of a push.
PushKey = tuple[str, int]

#: Blocks that wait for a use: two for each of a program's train ops, whose sizes differ, within reason.
_MOST_IDLE = 4
#: Pushes whose end is not known, before the oldest one's memory is given up.
_MOST_STAGED = 4


class BlockPool:
    """The blocks of one connection. Thread-safe."""

    def __init__(self) -> None:
        # Guards the attributes below; a leaf.
        self._lock = threading.Lock()
        #: Number -> the block; longest unused first.
        self._blocks: dict[int, Array] = {}
        #: Where each begins and ends in this process.
        self._spans: dict[int, tuple[int, int]] = {}
        self._dropped: list[int] = []
        #: Pushes that are staged and not known to be applied -> the block that holds their bytes.
        self._staged: dict[PushKey, tuple[int, Array]] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, number: int, block: Array) -> None:
        """Take in a block that the PS task has made."""
        with self._lock:
            if not self._closed:
                self._blocks[number] = block
                begin = address_of(block)
                self._spans[number] = begin, begin + block.nbytes

    def get(self, number: int) -> Array | None:
        """Give a block; None where there is none of that number."""
        with self._lock:
            return self._blocks.get(number)

    def take(self, nbytes: int) -> tuple[int, Array] | None:
        """Give a free block of at least so many bytes; a reference to the array holds the block.

        Returns:
            Its number and bytes; None where there is none.
        """
        need = block_bytes(nbytes)
        with self._lock:
            idle = list(compress(self._blocks, are_unused(self._blocks.values())))
            # A much larger block is left alone: a small value that is kept must not hold a large one.
            fitting = [number for number in idle if need <= self._blocks[number].nbytes <= 2 * need]
            if not fitting:
                if len(idle) >= _MOST_IDLE or (idle and len(self._blocks) >= MOST_BLOCKS):
                    self._drop(idle[0])
                return None
            number = fitting[-1]
            block = self._blocks[number] = self._blocks.pop(number)
            return number, block

    @property
    def is_full(self) -> bool:
        """Whether no block may be added: the program keeps values that lie in all of them."""
        return self._closed or len(self._blocks) >= MOST_BLOCKS

    def locate(self, pieces: Sequence[memoryview]) -> tuple[int, Array, int] | None:
        """Find out whether the tensors of a message lie in a block already, just as they are to lie there.

        What may not be written to does not count: that are values, which others look at.

        Returns:
            Number and bytes of the block, and where in it they begin; None where they must be copied.
        """
        found: tuple[int, Array, int] | None = None
        expected = 0
        for piece in pieces:
            if piece.readonly:
                return None
            address = address_of(np.frombuffer(piece, np.uint8))
            if found is None:
                found = self._around(address)
                if found is None or found[2] % 8:
                    return None
                expected = address
            if address != expected:
                return None
            expected += padded(piece.nbytes)
        if found is None or expected > address_of(found[1]) + found[1].nbytes:
            return None
        return found

    def _around(self, address: int) -> tuple[int, Array, int] | None:
        with self._lock:
            for number, (begin, end) in self._spans.items():
                if begin <= address < end:
                    return number, self._blocks[number], address - begin
        return None

    def offer(self, most: int = 2) -> dict[int, Array]:
        """Give free blocks by number, those used last first, that a reply may be put into."""
        with self._lock:
            idle = list(compress(self._blocks, are_unused(self._blocks.values())))
            return {number: self._blocks[number] for number in reversed(idle[-most:])}

    def dropped(self) -> tuple[int, ...]:
        """Give the numbers of blocks that have been given up since the last time."""
        if not self._dropped:
            return ()
        with self._lock:
            out, self._dropped = tuple(self._dropped), []
        return out

    # ---- Staged pushes ------------------------------------------------------------------------

    @property
    def has_staged(self) -> bool:
        """Whether a push is staged in one of the blocks."""
        return bool(self._staged)

    def stage(self, push: PushKey, number: int, block: Array) -> None:
        """Hold a block from now until `release`: the PS task will apply the push from these bytes.

        A push whose end is never heard of may yet be applied: the block of an old one is not used again.
        """
        with self._lock:
            self._staged[push] = number, block
            while len(self._staged) > _MOST_STAGED:
                lost, _ = self._staged.pop(next(iter(self._staged)))
                self._drop(lost)

    def release(self, push: PushKey) -> None:
        """Let go of a push's block, if it has one: it is applied, or was never staged."""
        with self._lock:
            self._staged.pop(push, None)

    def _drop(self, number: int) -> None:
        """Give a block up. Caller holds the lock."""
        if self._blocks.pop(number, None) is not None:
            del self._spans[number]
            self._dropped.append(number)

    def close(self) -> None:
        """Give all blocks up; what refers to one keeps it."""
        with self._lock:
            self._closed = True
            self._blocks.clear()
            self._spans.clear()
            self._staged.clear()


def data_area(block: Array, nbytes: int) -> Array:
    """Give the part of a block where a request's tensors are put, uint8 [nbytes]."""
    return block[SLACK_BYTES : SLACK_BYTES + nbytes]
