"""Logs of a shard's events, to be played again: the interface, and a log that forgets.

The shard is free of I/O; `ps/wal/write_ahead_log.py` is the log of a run with durability="log". A run with
durability="checkpoint" has NO_LOG.

Layer: ps. Threads: all but `secure` is called under the shard's lock, and must be quick.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from globalstep.wire.declarations import PushId, State

if TYPE_CHECKING:
    from globalstep.ps.aggregates.contributions import Contributions
    from globalstep.ps.ledger.ledger import Ledger
    from globalstep.ps.shard.events import Event
    from globalstep.ps.shard.incarnation import Staged
    from globalstep.ps.shard.replies import Kept
    from globalstep.ps.store.store import VariableStore


@dataclass(frozen=True, slots=True)
class Image:
    """The state of a shard, besides the values. Valid under the shard's lock only."""

    state: State
    applied: int
    store: VariableStore
    ledger: Ledger | None
    staged: Mapping[PushId, Staged]
    kept: Mapping[str, Kept]
    contributions: Contributions


class EventLog:
    """Gets every event that changed a shard, in order; forgets it.

    Attributes:
        keeps_data: Whether it looks at the data of parts later, so that no client may write to it.
    """

    keeps_data = False

    def append(self, event: Event[Any]) -> None:
        """Take an event of one of the classes of `events.LOGGED`: the shard has carried it out."""

    def begin_base(self, snapshot: PushId, image: Image) -> None:
        """Take note of a snapshot: with it and this image no event from before is needed."""

    def secure(self) -> None:
        """Return once what was appended so far will not be forgotten. Not under the shard's lock.

        Raises:
            LostStateError: If it will be forgotten: the task must not acknowledge it to any client.
        """


NO_LOG = EventLog()
