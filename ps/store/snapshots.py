"""The snapshots that a shard holds: copies of its arrays, made at the speed of memory.

A copy is made under the shard's lock, and nothing is applied meanwhile: its time is the pause of a save.
Into fresh memory it takes three to four times as long, since the kernel clears every page at its first
touch. So the pages are taken before the lock is. A snapshot that is released gives its memory back at once:
kept for the next save, it would make a task as large as during one for good.

Layer: ps. Threads: all but `SnapshotMemory.prepare` is called under the shard's lock.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.errors import NotFoundError, ResourceExhaustedError
from globalstep.ps.budget import RETRY_SECS
from globalstep.ps.store.store import VariableStore
from globalstep.wire.declarations import PushId, padded

Array = npt.NDArray[Any]

# Advice that a system may lack; without it pages are taken more slowly.
_HUGE_PAGES = getattr(mmap, "MADV_HUGEPAGE", None)


class SnapshotMemory:
    """Memory for the copies of one shard's arrays; the system has it back once nothing refers to them.

    >>> memory = SnapshotMemory()
    >>> values = [np.arange(3.0), np.int64(7).reshape(1)]
    >>> copies = memory.copy(values)
    >>> copies[0].tolist(), copies[1].tolist()
    ([0.0, 1.0, 2.0], [7])
    """

    def __init__(self) -> None:
        # The block that waits for its use. Its appends and pops are atomic.
        self._spare: deque[mmap.mmap] = deque(maxlen=1)
        # One thread takes pages at a time, since a second would only take as many again. Taken before the
        # shard's lock.
        self._preparing = threading.Lock()

    def prepare(self, wanted: Callable[[], Sequence[Array]]) -> None:
        """Have the memory for a copy at hand, its pages taken. Not to be called under the shard's lock.

        Args:
            wanted: Gives what is going to be copied; only the sizes matter. Nothing, if nothing is any more:
                it is called when no other thread prepares, so that two do not do so for the same copy.

        Raises:
            ResourceExhaustedError: If there is none now.
        """
        with self._preparing:
            arrays = wanted()
            nbytes = _bytes_for(arrays)
            if arrays and not any(len(block) == nbytes for block in self._spare):
                try:
                    block = _new_block(nbytes)
                except (MemoryError, OSError) as error:
                    raise ResourceExhaustedError(
                        f"This PS task's machine has no memory for a copy of {nbytes:,} bytes of values now, which a "
                        f"save needs: {error}. Give it more, or use more PS tasks.",
                        retry_secs=RETRY_SECS,
                    ) from None
                np.frombuffer(block, np.uint8)[:: mmap.PAGESIZE] = 0
                self._spare.append(block)

    def copy(self, arrays: Sequence[Array]) -> list[Array]:
        """Copy arrays.

        Args:
            arrays: Flat ones.

        Returns:
            Their copies. A reference to one of them, or to a view of it, holds the memory of all.
        """
        nbytes = _bytes_for(arrays)
        try:
            block = self._spare.pop()
        except IndexError:
            block = None
        if block is None or len(block) != nbytes:
            block = _new_block(nbytes)
        whole = np.frombuffer(block, np.uint8)
        copies = []
        at = 0
        for array in arrays:
            copies.append(whole[at : at + array.nbytes].view(array.dtype))
            np.copyto(copies[-1], array)
            at += padded(array.nbytes)
        return copies


class Snapshots:
    """The snapshots of one shard that are not released yet.

    Attributes:
        memory: Where their values lie.
    """

    def __init__(self) -> None:
        self.memory = SnapshotMemory()
        self._taken: dict[PushId, tuple[dict[str, Array], Callable[[], bytes]]] = {}

    def __contains__(self, snapshot: PushId) -> bool:
        return snapshot in self._taken

    def take(self, snapshot: PushId, store: VariableStore, ledger: Callable[[], bytes]) -> None:
        """Take one of what a store holds now, with what gives the ledger as it was then."""
        self._taken[snapshot] = (store.snapshot(self.memory.copy), ledger)

    def get(self, snapshot: PushId) -> tuple[dict[str, Array], Callable[[], bytes]]:
        """Give one: the values, and what gives the ledger; that may take a while.

        Raises:
            NotFoundError: If there is none of that id.
        """
        if snapshot not in self._taken:
            raise NotFoundError(
                f"There is no snapshot {snapshot} here: it was released, or its client was silent for so long "
                "that it was taken for gone. Save again."
            )
        return self._taken[snapshot]

    def release(self, snapshot: PushId) -> None:
        """Free a snapshot; if it is not there, nothing happens."""
        self._taken.pop(snapshot, None)

    def check_count(self, here: Collection[str], most: int) -> None:
        """Refuse one more where there are too many.

        Args:
            here: Clients that are there; those of others are about to be freed.
            most: How many there may be.

        Raises:
            ResourceExhaustedError: If there are.
        """
        if sum(one.client in here for one in self._taken) >= most:
            raise ResourceExhaustedError(
                f"This PS task holds {most} snapshots that their clients have not released; each copies all values."
            )

    def keep_of(self, clients: Collection[str]) -> None:
        """Free those of all other clients: they are gone, and have left them behind."""
        for snapshot in [one for one in self._taken if one.client not in clients]:
            del self._taken[snapshot]


def _bytes_for(arrays: Sequence[Array]) -> int:
    # There is no mapping of no bytes.
    return max(sum(padded(array.nbytes) for array in arrays), 1)


def _new_block(nbytes: int) -> mmap.mmap:
    block = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if _HUGE_PAGES is not None:
        # A kernel may refuse any advice; nothing depends on it.
        with contextlib.suppress(OSError):
            block.madvise(_HUGE_PAGES)
    return block
