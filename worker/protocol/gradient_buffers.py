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

from globalstep.errors import OpError
from globalstep.runtime.memory import MemoryPool, seal
from globalstep.wire.declarations import ALIGNMENT, VariableDecl, padded
from globalstep.wire.transports import Transport
from globalstep.worker.protocol.push_messages import Places, bytes_of

__all__ = ["GradientBuffers"]

Array = npt.NDArray[Any]
_DTYPE = operator.attrgetter("dtype")


class _Layout(NamedTuple):
    """How a shard's arrays lie in one piece of memory."""

    nbytes: int
    places: Places
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
        self.given: dict[int, tuple[Array, bool, list[Array]]] = {}
        #: The names asked for last, with the incarnation; how the arrays of each shard lie; and the place of each
        #: name's array among those of all shards, one shard behind the other; None where that is their order.
        self._known: tuple[tuple[Any, ...], dict[int, _Layout], list[int] | None] = ((), {}, None)

    def knows(self, names: Sequence[str], incarnation: int, where: Mapping[str, int]) -> bool:
        """Whether arrays for just these Variables were asked for last; see `arrays`."""
        return self._known[0] == (incarnation, len(where), *names)

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
        self.given.clear()
        key = (incarnation, len(where), *names)
        if self._known[0] != key:
            self._known = key, *_lay_out(names, variables, where)
        _, layouts, order = self._known
        found: list[Array] = []
        for shard, layout in layouts.items():
            shared = (
                self._transports[shard].buffer(layout.nbytes) if shard >= 0 and self._transports is not None else None
            )
            memory = self._pool.take(layout.nbytes) if shared is None else shared
            arrays: list[Array] = layout.places.arrays(memory)
            found += arrays
            for part in layout.padding:
                memory[part] = 0
            if shard >= 0:
                self.given[shard] = memory, shared is not None, arrays
        return found if order is None else list(map(found.__getitem__, order))

    def forget(self) -> None:
        """Take note that a push was made: what of the arrays is not in it is the program's alone."""
        self.given.clear()

    def close(self) -> None:
        """Let go of all memory. What is asked for from now on is no transport's."""
        self._transports = None
        self.given.clear()
        self._pool = MemoryPool()

    def whole(self, shard: int, values: Sequence[Array | None]) -> memoryview | None:
        """Give the bytes of a shard's part of a push at once, if they are just the arrays that were given out last.

        They are used up then: the values that come back may take their place, and are not to be written to.

        Args:
            shard: One that some were `given` for.
            values: Its gradients, in the order in which they are sent.

        Returns:
            All of them, padding included; None where they must be looked at one by one.
        """
        memory, shared, arrays = self.given[shard]
        if len(arrays) != len(values) or not all(map(operator.is_, arrays, values)):
            return None
        del self.given[shard]
        if shared:
            seal(arrays)
        return memory.data

    def copied(self, shard: int, values: Sequence[Array], sizes: Sequence[int]) -> memoryview | None:
        """Copy a shard's part of a push, in one go, to where the PS task reads it.

        Args:
            shard: The shard.
            values: Its gradients, in the order in which they are sent.
            sizes: Bytes of each; multiples of the alignment.

        Returns:
            All of them; None where the transport has no such place.
        """
        try:
            memory = None if self._transports is None else self._transports[shard].buffer(sum(sizes))
        except OpError:
            return None  # the request will say so
        if memory is None:
            return None
        dtypes = set(map(_DTYPE, values))
        of_one_dtype = len(dtypes) == 1
        if of_one_dtype:
            # numpy copies them all in one call.
            np.concatenate(values, axis=None, out=memory.view(dtypes.pop()))
            return memory.data
        area, at = memory.data, 0
        for value, size in zip(values, sizes, strict=True):
            if size:
                area[at : at + size] = bytes_of(value).cast("B")
                at += size
        return area


def _lay_out(
    names: Sequence[str], variables: Mapping[str, VariableDecl], where: Mapping[str, int]
) -> tuple[dict[int, _Layout], list[int] | None]:
    """Put each shard's arrays one behind the other, in the order in which a push of them is sent.

    A Variable that is split over shards has its array elsewhere, as shard -1's: its rows are sent from there.

    Returns:
        How each shard's lie, and the place of each name's array among those of all shards; None for their order.
    """
    declared = {name: at for at, name in enumerate(where)}
    found: dict[int, tuple[list[int], list[int], list[slice]]] = {}
    for position in sorted(range(len(names)), key=lambda at: declared[names[at]]):
        decl = variables[names[position]]
        shard = -1 if decl.parts else where[decl.name]
        positions, offsets, padding = found.setdefault(shard, ([], [0], []))
        positions.append(position)
        end = offsets[-1] + math.prod(decl.shape) * np.dtype(decl.dtype).itemsize
        if end % ALIGNMENT:
            padding.append(slice(end, padded(end)))
        offsets.append(padded(end))
    layouts: dict[int, _Layout] = {}
    order: list[int] = []
    for shard, (positions, (*offsets, nbytes), padding) in found.items():
        decls = [variables[names[position]] for position in positions]
        places = Places([np.dtype(decl.dtype) for decl in decls], [decl.shape for decl in decls], offsets)
        layouts[shard] = _Layout(nbytes, places, padding)
        order += positions
    if order == list(range(len(names))):
        return layouts, None
    return layouts, sorted(range(len(names)), key=order.__getitem__)
