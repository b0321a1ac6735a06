"""What a shard tells of everything that happens to it, in the order in which it happens.

The shard is free of I/O; whoever has to remember what happened (`ps/wal/write_ahead_log.py`) is a Witness. This
one here remembers nothing, which is what a run with durability="checkpoint" has.

Layer: ps. Threads: all but `secure` is called under the shard's lock, and must be quick.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from globalstep.wire.declarations import (
    Increment,
    OptimizerDecl,
    OptimizerUse,
    Outcome,
    PushId,
    StopLimit,
    VariableDecl,
)

if TYPE_CHECKING:
    from globalstep.ps.ledger.ledger import Entry, EntryKind, Ledger
    from globalstep.ps.members.presence import State
    from globalstep.ps.shard.answers import Kept, Staged
    from globalstep.ps.shard.layouts import PushParts
    from globalstep.ps.store.store import VariableStore

__all__ = ["NO_WITNESS", "Image", "Pushed", "Witness"]


@dataclass(slots=True)
class Pushed:
    """A decision of the sequencer: what it was asked, and what it said."""

    push: PushId
    kind: EntryKind
    participants: Sequence[int]
    increments: Sequence[Increment]
    uses: Sequence[OptimizerUse]
    seen_steps: Mapping[str, int]
    floors: Mapping[int, int]
    #: The part, where this shard is the only participant and has not been told of it before.
    parts: PushParts | None
    outcome: Outcome
    #: The client's task; "" where not known.
    task: str


@dataclass(frozen=True, slots=True)
class Image:
    """What a shard holds, besides the values. Valid under the shard's lock only."""

    state: State
    applied: int
    store: VariableStore
    ledger: Ledger | None
    staged: Mapping[PushId, Staged]
    kept: Mapping[str, Kept]


class Witness:
    """Is told of everything that happens to a shard; forgets it.

    Attributes:
        keeps_data: Whether it looks at the data of parts later, so that nobody may write to it.
    """

    keeps_data = False

    def declared(
        self,
        incarnation: int,
        client: str,
        variables: Sequence[VariableDecl],
        optimizers: Sequence[OptimizerDecl],
    ) -> None:
        """Variables and optimizers were made known."""

    def opened(self, incarnation: int, client: str, limits: Sequence[StopLimit]) -> None:
        """Everybody was let in, or limits were set."""

    def left(self, client: str) -> None:
        """A client left."""

    def finished(self, incarnation: int, client: str) -> None:
        """The job was declared done."""

    def staged(self, incarnation: int, push: PushId, parts: PushParts) -> None:
        """A part was taken in."""

    def pushed(self, incarnation: int, told: Pushed) -> None:
        """A push or snapshot was accepted, or refused."""

    def applied(
        self, incarnation: int, brought_by: PushId, entries: Sequence[Entry], dropped: Sequence[PushId] = ()
    ) -> None:
        """Entries were applied here, in order, that another shard admitted; parts were dropped after that."""

    def settled(self, incarnation: int, pushes: Sequence[PushId], shard: int, applied: int) -> None:
        """The sequencer was asked what became of pushes, and fenced those it did not know."""

    def cut(self, snapshot: PushId, image: Image) -> None:
        """A snapshot was taken: whoever has it and this image needs nothing of what was before."""

    def released(self, incarnation: int, snapshot: PushId) -> None:
        """A snapshot was freed."""

    def secure(self) -> None:
        """Return once what happened so far will not be forgotten. Not under the shard's lock.

        Raises:
            LostStateError: If it will be forgotten: nothing of it may be told to anybody.
        """


NO_WITNESS = Witness()
