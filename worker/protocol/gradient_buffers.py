"""Gradient buffers: arrays to write gradients into, where the PS tasks will read them; docs/design/transports.md.

Layer: worker. Threads: a GradientBuffers belongs to one client, whose lock it is used under.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from globalstep.runtime.memory import MemoryPool
from globalstep.wire.declarations import ALIGNMENT, VariableDecl, padded
from globalstep.wire.transports import Transport
from globalstep.worker.protocol.push_layout import Places

__all__ = ["GradientBuffers"]

Array = npt.NDArray[Any]
_SEAL = operator.methodcaller("setflags", write=False)


class _Layout(NamedTuple):
    """How a shard's arrays lie in one piece of memory."""

    nbytes: int
    #: Of each array its position among those that were asked for.
    positions: list[int]
    places: Places
    #: Whether these are all, in order.
    is_all: bool
    #: Bytes behind arrays whose size is no multiple of the alignment.
    padding: list[slice]


class GradientBuffers:
    """Makes the arrays.

    Args:
        transports: To every PS task.
    """

    def __init__(self, transports: Sequence[Transport]) -> None:
        self._transports: Sequence[Transport] | None = transports
        self._pool = MemoryPool()
        #: What was given out last and has not been pushed: shard -> the memory, whether its transport gave it, and the
        #: arrays that lie in it, in order.
        self._given: dict[int, tuple[Array, bool, list[Array]]] = {}
        #: The names asked for last, with the incarnation, and how the arrays of each shard lie.
        self._known: tuple[tuple[Any, ...], dict[int, _Layout]] = ((), {})

    def arrays(
        self, names: Sequence[str], incarnation: int, variables: Mapping[str, VariableDecl], where: Mapping[str, int]
    ) -> list[Array]:
        """Give an array for each Variable; see ClusterClient.gradient_buffers.

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
        for shard, layout in self._known[1].items():
            shared = (
                self._transports[shard].buffer(layout.nbytes) if shard >= 0 and self._transports is not None else None
            )
            memory = self._pool.take(layout.nbytes) if shared is None else shared
            arrays: list[Array] = layout.places.arrays(memory)
            if layout.is_all:
                out = arrays.copy()
            else:
                for position, array in zip(layout.positions, arrays, strict=True):
                    out[position] = array
            for part in layout.padding:
                memory[part] = 0
            if shard >= 0:
                self._given[shard] = memory, shared is not None, arrays
        return out

    def forget(self) -> None:
        """Take note that a push was made: what of the arrays is not in it is the program's alone."""
        self._given.clear()

    def close(self) -> None:
        """Let go of all memory. What is asked for from now on is no transport's."""
        self._transports = None
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
            for _ in map(_SEAL, arrays):
                pass
        return memory.data


def _lay_out(
    names: Sequence[str], variables: Mapping[str, VariableDecl], where: Mapping[str, int]
) -> dict[int, _Layout]:
    """Put each shard's arrays one behind the other, in the order in which a push of them is sent.

    A Variable that is split over shards has its array elsewhere, as shard -1's: its rows are sent from there.
    """
    order = {name: at for at, name in enumerate(where)}
    found: dict[int, _Layout] = {}
    for position in sorted(range(len(names)), key=lambda at: order[names[at]]):
        decl = variables[names[position]]
        shard = -1 if decl.parts else where[decl.name]
        layout = found.get(shard) or _Layout(0, [], Places([], [], []), False, [])
        dtype = np.dtype(decl.dtype)
        layout.positions.append(position)
        layout.places.dtypes.append(dtype)
        layout.places.shapes.append(decl.shape)
        layout.places.offsets.append(layout.nbytes)
        end = layout.nbytes + math.prod(decl.shape) * dtype.itemsize
        if end % ALIGNMENT:
            layout.padding.append(slice(end, padded(end)))
        found[shard] = layout._replace(nbytes=padded(end))
    everything = list(range(len(names)))
    return {shard: layout._replace(is_all=layout.positions == everything) for shard, layout in found.items()}
