"""Layouts: what a stream remembers of pushes that are all alike but for their numbers.

A training loop pushes the same Variables again and again. The client sends the first push of a layout in full; of
later ones only the bytes come, and what was decoded, checked and planned for the first serves them all.
So the work of a step does not grow with the number of Variables.

Layer: ps. Threads: a LayoutMemory belongs to one stream; the plan within a Layout is made and used under
the shard's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from globalstep.errors import InvalidArgumentError, LayoutUnknownError
from globalstep.ps.access.caller import ANONYMOUS, Caller
from globalstep.ps.budget import Account, Budget, Kind, MemoryClaim, ReplyBuffer
from globalstep.ps.shard.statistics import ChangeCount
from globalstep.ps.store.store import PushPlan
from globalstep.wire.declarations import Increment, Op, OpKind, OptimizerUse, Read

if TYPE_CHECKING:
    from globalstep.ps.store.row_layouts import RowLayout

#: Layouts that one stream remembers; a program has a few train ops.
_MAX_LAYOUTS = 64
#: What a layout takes for each change and read, and for each byte of its message, with the plan that applies it.
_ITEM_BYTES, _KEPT_BYTES = 512, 16

#: (Variable, optimizer, after_increment, first byte in the push's data) of each change.
Places = tuple[tuple[str, str, bool, int], ...]


@dataclass(slots=True)
class Layout:
    """A push without its numbers."""

    #: Its changes, as the wire has them.
    ops: Sequence[Any]
    #: Reads one of them, with its numbers in a push's data.
    decode: Callable[[Any, memoryview], Op]
    reads: list[Read]
    #: Sent with PUSH; empty with STAGE.
    increments: list[Increment]
    uses: list[OptimizerUse]
    data_bytes: int
    #: How the shard applies it; None before the first time, stale after a declaration.
    plan: PushPlan | None = None
    #: The version of the store by which its uses were found to have the numbers that its changes are made with.
    covered: int = -1
    #: Where its gradients lie, once they were looked at for values that are not finite: see ps/store/finite.py.
    gradients: Sequence[tuple[Any, int, int, Sequence[int], Sequence[str]]] | None = None
    #: Its changes and reads as the write-ahead log has them, once it does.
    logged: bytes = b""
    #: See PushParts.optimizers.
    appliers: frozenset[tuple[str, bool]] = field(init=False)
    #: Counts the pushes of it that the shard applied, once there is one.
    count: ChangeCount | None = None
    #: See `places`, once they were asked for.
    known_places: Places = ()
    #: See `repeats`, once it was asked for.
    known_to_repeat: bool | None = None
    #: What it takes while its stream remembers it.
    claim: MemoryClaim | None = None

    def __post_init__(self) -> None:
        self.appliers = frozenset((op.optimizer, op.after_increment) for op in self.ops)

    @property
    def may_be_remembered(self) -> bool:
        """Whether its reads and uses are the same each time."""
        return all(read.indices is None for read in self.reads) and not any(use.overrides for use in self.uses)

    def bind(self, data: memoryview) -> list[Op]:
        """Give the ops with their values in `data`."""
        return [self.decode(op, data) for op in self.ops]

    @property
    def places(self) -> Places:
        """What its changes are, each with where its gradient lies: the same for pushes that can be added up."""
        if not self.known_places:
            self.known_places = tuple(
                (op.variable, op.optimizer, op.after_increment, op.value.offset) for op in self.ops
            )
        return self.known_places

    @property
    def repeats(self) -> bool:
        """Whether two of its changes are to be added to each other."""
        if self.known_to_repeat is None:
            self.known_to_repeat = len({place[:3] for place in self.places}) < len(self.places)
        return self.known_to_repeat


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
    #: Where what is read is to be put.
    buffer: ReplyBuffer | None = None
    #: By what its changes and reads were bound, or will be those of later pushes, where some are of rows.
    rows: RowLayout | None = None
    #: For whom it is kept where it is; None where nobody counts.
    account: Account | None = None
    #: What it takes while it waits for its decision; None where it does not.
    claim: MemoryClaim | None = None

    @property
    def changes(self) -> bool:
        """Whether anything is to be changed."""
        return bool(self.ops) or (self.layout is not None and bool(self.layout.ops))

    def bound_ops(self) -> Sequence[Op]:
        """Return the changes with their numbers."""
        if not self.ops and self.layout is not None and self.data is not None:
            return self.layout.bind(self.data)
        return self.ops

    @property
    def optimizers(self) -> frozenset[tuple[str, bool]]:
        """Optimizers that the changes are made by, each with whether after the push's increments."""
        layout = self.layout or self.rows
        if layout is None:
            return frozenset((op.optimizer, op.after_increment) for op in self.ops if op.kind is OpKind.APPLY)
        return layout.appliers


@dataclass(slots=True, eq=False)
class LayoutMemory:
    """The layouts that one stream remembers.

    Attributes:
        buffer: Where values for the stream's replies are to be put; None for anywhere.
        later: The same, for replies that are not sent at once.
        account: For whom memory is claimed.
        caller: Whose stream it is.
        told: A layout that has come with a push that is not accepted yet: its number, it, and bytes of its message.
    """

    buffer: ReplyBuffer | None = None
    later: ReplyBuffer | None = None
    account: Account = field(default_factory=lambda: Account(Budget()))
    caller: Caller = ANONYMOUS
    told: tuple[int, Layout | RowLayout, int] | None = None
    _layouts: dict[int, Layout] = field(default_factory=dict)
    #: Of pushes of rows: no number is in both.
    _row_layouts: dict[int, RowLayout] = field(default_factory=dict)

    def only_counts(self, number: int) -> bool:
        """Whether a layout is known, and has increments and nothing else."""
        found = self._layouts.get(number)
        if found is None or found.ops or found.reads or found.uses:
            return False
        return not any(item.contributions for item in found.increments)

    def recall(self, number: int, data: memoryview) -> Layout:
        """Give a layout that was sent before.

        Args:
            number: The layout's number.
            data: The push's bytes.

        Raises:
            LayoutUnknownError: If this stream does not know it.
            InvalidArgumentError: If the data is not laid out like that.
        """
        found = self._layouts.get(number)
        if found is None:
            raise LayoutUnknownError(f"This stream does not know layout {number}; send it in full.")
        if data.nbytes != found.data_bytes:
            raise InvalidArgumentError(f"Layout {number} has {found.data_bytes} bytes of data, not {data.nbytes}.")
        return found

    def recall_rows(self, number: int) -> RowLayout:
        """Give a layout of pushes of rows that was sent before.

        Raises:
            LayoutUnknownError: If this stream does not know it.
        """
        found = self._row_layouts.get(number)
        if found is None:
            raise LayoutUnknownError(f"This stream does not know layout {number} of rows; send it in full.")
        return found

    def tell(self, number: int, layout: Layout | RowLayout, nbytes: int) -> None:
        """Take note of a layout that has come in full; it is remembered once its push is accepted.

        Args:
            number: Its number: what had it before has it no more.
            layout: It.
            nbytes: Of its message.
        """
        self._forget(number)
        self.told = number, layout, nbytes

    def remember(self) -> None:
        """Keep the layout that has come with the push which was just accepted, if one has, and there is memory."""
        told, self.told = self.told, None
        if told is None:
            return
        number, layout, nbytes = told
        items = len(layout.ops) + len(layout.reads) if isinstance(layout, Layout) else layout.items
        nbytes = items * _ITEM_BYTES + nbytes * _KEPT_BYTES
        layout.claim = self.account.budget.try_claim(Kind.LAYOUT, self.account, nbytes)
        if layout.claim is None or len(self._layouts) + len(self._row_layouts) >= _MAX_LAYOUTS:
            # The client sends those in full again that it needs.
            self._layouts.clear()
            self._row_layouts.clear()
        if layout.claim is None:
            return
        self._forget(number)
        if isinstance(layout, Layout):
            self._layouts[number] = layout
        else:
            self._row_layouts[number] = layout

    def _forget(self, number: int) -> None:
        """Forget a number's layout."""
        self._layouts.pop(number, None)
        self._row_layouts.pop(number, None)
