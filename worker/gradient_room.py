"""Arrays to write gradients into, where the PS tasks will read them: docs/design/lanes.md.

Floor: worker. Threads: a GradientRoom belongs to one client, whose lock it is used under.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.declarations import ALIGNMENT, VariableDecl
from globalstep.frames import padded
from globalstep.lanes import Lane, SharesMemory
from globalstep.memory import MemoryPool

__all__ = ["GradientRoom"]

Array = npt.NDArray[Any]
#: Position among the arrays, dtype, shape, first byte.
_Slot = tuple[int, np.dtype[Any], tuple[int, ...], int]


class GradientRoom:
    """Makes the arrays.

    Args:
        lanes: To every PS task.
    """

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._rooms = [lane if isinstance(lane, SharesMemory) else None for lane in lanes]
        self._pool = MemoryPool()
        #: What was given out last and has not been pushed: shard -> the memory, whether its lane gave it, and the
        #: arrays that lie in it, in order.
        self._given: dict[int, tuple[Array, bool, list[Array]]] = {}
        #: The names asked for last, with the incarnation, and how they lie: shard -> bytes, and each array's place.
        self._known: tuple[tuple[Any, ...], dict[int, tuple[int, list[_Slot]]]] = ((), {})

    def arrays(
        self, names: Sequence[str], incarnation: int, variables: Mapping[str, VariableDecl], where: Mapping[str, int]
    ) -> list[Array]:
        """Give an array for each Variable; see ClusterClient.room.

        Args:
            names: The Variables, all declared.
            incarnation: In which they are.
            variables: How they are declared.
            where: Which shard has each; in order of declaration.
        """
        # No block is free while it is referred to here.
        self._given.clear()
        key = (incarnation, len(where), *names)
        if self._known[0] != key:
            self._known = key, _lay_out(names, variables, where)
        out: list[Any] = [None] * len(names)
        for shard, (nbytes, slots) in self._known[1].items():
            room = self._rooms[shard] if shard >= 0 else None
            shared = room.room(nbytes) if room is not None else None
            memory = self._pool.take(nbytes) if shared is None else shared
            arrays: list[Array] = []
            for position, dtype, shape, offset in slots:
                array: Array = np.ndarray(shape, dtype, memory, offset)
                out[position] = array
                arrays.append(array)
                if array.nbytes % ALIGNMENT:
                    memory[offset + array.nbytes : offset + padded(array.nbytes)] = 0
            if shard >= 0:
                self._given[shard] = memory, shared is not None, arrays
        return out

    def forget(self) -> None:
        """Take note that a push was made: what of the arrays is not in it is the program's alone."""
        self._given.clear()

    def close(self) -> None:
        """Let go of all memory. What is asked for from now on is no lane's."""
        self._rooms = [None] * len(self._rooms)
        self._given.clear()
        self._pool = MemoryPool()

    def whole(self, shard: int, values: Sequence[Array | None]) -> memoryview | None:
        """Give the bytes of a shard's part of a push at once, if they are just the arrays that were given out last.

        They are used up then: the values that come back may take their place, and are not to be written to.

        Args:
            shard: The shard.
            values: Its gradients, in the order in which they are sent.

        Returns:
            All of them, padding included; None where they must be looked at one by one.
        """
        given = self._given.get(shard)
        if given is None:
            return None
        memory, shared, arrays = given
        if len(arrays) != len(values) or not all(map(operator.is_, arrays, values)):
            return None
        del self._given[shard]
        if shared:
            for array in arrays:
                array.setflags(write=False)
        return memory.data


def _lay_out(
    names: Sequence[str], variables: Mapping[str, VariableDecl], where: Mapping[str, int]
) -> dict[int, tuple[int, list[_Slot]]]:
    """Put each shard's arrays one behind the other, in the order in which a push of them is sent.

    A Variable that is split over shards has its array elsewhere, as shard -1's: its rows are sent from there.
    """
    order = {name: at for at, name in enumerate(where)}
    sizes: dict[int, int] = {}
    slots: dict[int, list[_Slot]] = {}
    for position in sorted(range(len(names)), key=lambda at: order[names[at]]):
        decl = variables[names[position]]
        shard = -1 if decl.parts else where[decl.name]
        dtype = np.dtype(decl.dtype)
        offset = sizes.get(shard, 0)
        slots.setdefault(shard, []).append((position, dtype, decl.shape, offset))
        sizes[shard] = offset + padded(math.prod(decl.shape) * dtype.itemsize)
    return {shard: (sizes[shard], found) for shard, found in slots.items()}
