"""Layouts: what a stream remembers of pushes that are all alike but for their numbers.

A training loop pushes the same Variables again and again. The first push of a layout is told in full; of
later ones only the bytes come, and what was decoded, checked and planned for the first serves them all.
So the work of a step does not grow with the number of Variables.

Layer: ps. Threads: a LayoutMemory belongs to one stream; the plan within a Layout is made and used under
the shard's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from globalstep.errors import InvalidArgumentError, LayoutUnknownError
from globalstep.ps.access.caller import NOBODY, Caller
from globalstep.ps.shard.statistics import ChangeCount
from globalstep.ps.store.reading import Room
from globalstep.ps.store.store import PushPlan
from globalstep.runtime.memory import MemoryPool, Pool
from globalstep.wire.declarations import ALIGNMENT, Increment, Op, OpKind, OptimizerUse, Read, padded

__all__ = ["Layout", "LayoutMemory", "PushParts", "ToldChange", "ToldTensor"]

#: Layouts that one stream remembers; a program has a few train ops.
_MAX_LAYOUTS = 64
#: Changes and reads in all of them: beyond it they are told again.
_MOST_TOLD = 1 << 18


class ToldTensor(Protocol):
    """A tensor of a push, as the wire has it."""

    @property
    def offset(self) -> int:
        """Where it begins in the push's data, bytes."""
        ...


class ToldChange(Protocol):
    """A change of a push without its numbers, as the wire has it."""

    @property
    def variable(self) -> str:
        """What it changes."""
        ...

    @property
    def optimizer(self) -> str:
        """By which optimizer; "" for none."""
        ...

    @property
    def after_increment(self) -> bool:
        """Whether after the push's increments."""
        ...

    @property
    def value(self) -> ToldTensor:
        """Its operand."""
        ...


@dataclass(slots=True)
class Layout:
    """A push without its numbers."""

    ops: Sequence[ToldChange]
    #: Reads one of them, with its numbers in a push's data.
    decode: Callable[[Any, memoryview], Op]
    reads: list[Read]
    #: Told with PUSH, and with a part that comes with ADMIT; empty with STAGE.
    increments: list[Increment]
    uses: list[OptimizerUse]
    data_bytes: int
    #: Whether they were told.
    decides: bool = False
    #: How the shard applies it; None before the first time, stale after a declaration.
    plan: PushPlan | None = None
    #: Where its gradients lie, once they were looked at for values that are not finite: see ps/store/finite.py.
    gradients: Sequence[tuple[Any, int, int, Sequence[int], Sequence[str]]] | None = None
    #: Its changes and reads as the write-ahead log has them, once it does.
    logged: bytes = b""
    #: See PushParts.optimizers, once they were asked for.
    optimizers: frozenset[tuple[str, bool]] | None = None
    #: Counts the pushes of it that the shard applied, once there is one.
    count: ChangeCount | None = None

    def bind(self, data: memoryview) -> list[Op]:
        """Give the ops with their values in `data`."""
        return [self.decode(op, data) for op in self.ops]


@dataclass(slots=True)
class PushParts:
    """What a shard gets of a push: its changes, its reads, and the bytes that their arrays are views of."""

    ops: Sequence[Op] = ()
    reads: Sequence[Read] = ()
    data: memoryview | None = None
    #: Where the push has one: the ops are bound to the data only if there is no plan yet.
    layout: Layout | None = None
    #: The worker knows the layout too: the answer need not say where in it each value lies.
    known: bool = False
    #: Where what is read is to be put, if there is such a place; only for a push that is answered at once.
    room: Room | None = None

    @property
    def changes(self) -> bool:
        """Whether anything is to be changed."""
        return bool(self.ops) or (self.layout is not None and bool(self.layout.ops))

    @property
    def optimizers(self) -> frozenset[tuple[str, bool]]:
        """Optimizers that the changes are made by, each with whether after the push's increments."""
        layout = self.layout
        if layout is None:
            return frozenset((op.optimizer, op.after_increment) for op in self.ops if op.kind is OpKind.APPLY)
        if layout.optimizers is None:
            layout.optimizers = frozenset((op.optimizer, op.after_increment) for op in layout.ops)
        return layout.optimizers


@dataclass(slots=True)
class _Ahead:
    """Data of a push that is still to come."""

    data: npt.NDArray[np.uint8]
    #: (first byte, bytes with padding) of what is there.
    parts: set[tuple[int, int]]


@dataclass(slots=True, eq=False)
class LayoutMemory:
    """The layouts that one stream has been told; what came ahead of a push, and does not come on, is a slow Sender.

    Attributes:
        room: Where values for the stream's replies are to be put; None for anywhere.
        pull_room: The same, for replies to pulls, which may be refused if there is no memory for them.
        memory: For data that is packed on the wire, or sent ahead.
        caller: Whose stream it is.
    """

    room: Room | None = None
    pull_room: Room | None = None
    memory: Pool = field(default_factory=MemoryPool)
    caller: Caller = NOBODY
    _layouts: dict[int, Layout] = field(default_factory=dict[int, Layout])
    _ahead: dict[int, _Ahead] = field(default_factory=dict[int, _Ahead])
    _told: int = 0
    _reserved: npt.NDArray[np.uint8] | None = None

    def reserve(self, nbytes: int) -> bool:
        """Have memory for what a request unpacks to, without waiting; gives whether there is some."""
        self._reserved = self.memory.take_at_once(nbytes)
        return self._reserved is not None

    def take_reserved(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Give what was reserved, or wait for as much; see memory.Pool."""
        found, self._reserved = self._reserved, None
        return found if found is not None and found.nbytes == nbytes else self.memory.take(nbytes)

    def can_put_ahead(self, number: int) -> bool:
        """Whether `put_ahead` needs to wait for no memory."""
        layout = self._layouts.get(number)
        if layout is None or number in self._ahead:
            return True
        room = self.memory.take_at_once(layout.data_bytes)
        if room is not None:
            self._ahead[number] = _Ahead(room, set())
        return room is not None

    @property
    def slack_bytes(self) -> int:
        """A push may take its time, after its first gradients: see slow_senders.Sender."""
        return 10 << 20

    @property
    def needs_memory(self) -> bool:
        """It does."""
        return True

    def under_way(self) -> tuple[object, int] | None:
        """Say what has come ahead."""
        for held in list(self._ahead.values()):
            return held.parts, sum(nbytes for _, nbytes in list(held.parts))
        return None

    def cut_off(self, secs: float) -> None:
        """Let go of it; its push is told that it has to come in full."""
        self.forget_ahead()

    def forget_ahead(self) -> None:
        """Let go of what came ahead of pushes."""
        for number in list(self._ahead):
            self._ahead.pop(number, None)

    def put_ahead(self, number: int, offset: int, data: memoryview) -> None:
        """Keep a part of the data of the next push of a layout.

        Args:
            number: The layout's number.
            offset: Where it belongs in the data, bytes.
            data: The part; copied.

        Raises:
            LayoutUnknownError: If it was not told on this stream.
            InvalidArgumentError: If the layout's data has no such place.
        """
        layout = self._layouts.get(number)
        if layout is None:
            raise LayoutUnknownError(f"This stream has not been told layout {number}; tell it in full.")
        if offset % ALIGNMENT or offset + data.nbytes > layout.data_bytes:
            raise InvalidArgumentError(
                f"Layout {number} has {layout.data_bytes} bytes of data; {data.nbytes} at byte {offset} have no place."
            )
        held = self._ahead.get(number)
        if held is None:
            held = self._ahead[number] = _Ahead(self.memory.take(layout.data_bytes), set())
        held.data[offset : offset + data.nbytes] = np.frombuffer(data, np.uint8)
        held.parts.add((offset, padded(data.nbytes)))

    def take_ahead(self, number: int) -> memoryview:
        """Give the data of a push of a layout that was sent ahead; it serves once.

        Raises:
            LayoutUnknownError: If some of it is not there.
        """
        held = self._ahead.pop(number, None)
        if held is None or sum(nbytes for _, nbytes in held.parts) != held.data.nbytes:
            raise LayoutUnknownError(f"Not all data of layout {number} was sent ahead on this stream; send it in full.")
        return held.data.data

    def only_counts(self, number: int) -> bool:
        """Whether a layout was told that has increments and nothing else."""
        found = self._layouts.get(number)
        return found is not None and found.decides and not (found.ops or found.reads or found.uses)

    def recall(self, number: int, data: memoryview) -> Layout:
        """Give a layout that was told before.

        Args:
            number: The layout's number.
            data: The push's bytes.

        Raises:
            LayoutUnknownError: If it was not told on this stream.
            InvalidArgumentError: If the data is not laid out like that.
        """
        found = self._layouts.get(number)
        if found is None:
            raise LayoutUnknownError(f"This stream has not been told layout {number}; tell it in full.")
        if data.nbytes != found.data_bytes:
            raise InvalidArgumentError(f"Layout {number} has {found.data_bytes} bytes of data, not {data.nbytes}.")
        return found

    def remember(self, number: int, told: Layout) -> bool:
        """Keep a layout of nothing but dense gradients, unless its reads or uses differ each time; gives whether."""
        if any(read.indices is not None for read in told.reads) or any(use.overrides for use in told.uses):
            return False
        self._told += len(told.ops) + len(told.reads)
        if len(self._layouts) >= _MAX_LAYOUTS or self._told > _MOST_TOLD:
            self._told = len(told.ops) + len(told.reads)
            self._layouts.clear()
            self._ahead.clear()
        # What was sent ahead was for another layout of that number.
        self._ahead.pop(number, None)
        self._layouts[number] = told
        return True
