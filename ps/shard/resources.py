"""What the parts of a shard share, whatever incarnation it holds: time, members, limits, counters.

Layer: ps. Threads: used under the shard's lock, but for the clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from globalstep.ps.budget import Budget
from globalstep.ps.ledger.ledger import Ledger
from globalstep.ps.members.members import Members
from globalstep.ps.shard.fail_stop import FailStop
from globalstep.ps.shard.statistics import ChangeCounts, Statistics
from globalstep.ps.store.cores import ONE_CORE, Cores
from globalstep.runtime.clock import Clock
from globalstep.runtime.faults import NO_FAULTS, Faults
from globalstep.wire.declarations import PushId

__all__ = ["Resources"]

_OF_NOTHING_KEPT = 64


@dataclass(slots=True)
class Resources:
    """What the parts of a shard share.

    Attributes:
        clock: Tells how long parts have been staged and clients have been silent.
        members: Who takes part in the run.
        fail_stop: Drops the incarnation where a change of it fails halfway.
        statistics: Counts pushes.
        budget: What is kept for callers is claimed from it.
        changes: Counts pushes by the Variables that they change.
        replaying: Whether events come from a log. What they say was checked when it happened, so limits that depend on
            who else is there, and signatures, are not looked at again.
        faults: What a test makes fail.
        cores: Share the work of applying a large push; their owner ends them.
        most_read_bytes: What one message may read.
        of_nothing: Admitted pushes whose parts were not here, so that nothing was applied; the last of them.
    """

    clock: Clock
    members: Members
    fail_stop: FailStop
    statistics: Statistics
    budget: Budget
    replaying: bool = False
    faults: Faults = NO_FAULTS
    cores: Cores = ONE_CORE
    most_read_bytes: int = 1 << 62
    changes: ChangeCounts = field(default_factory=ChangeCounts)
    of_nothing: deque[PushId] = field(default_factory=lambda: deque(maxlen=_OF_NOTHING_KEPT))

    def forget_gone(self, ledger: Ledger) -> None:
        """Forget clients that have been gone for long."""
        if self.replaying:
            return  # which clients are here is not known: none is forgotten before it could say so
        presence = self.members.presence
        here = {view.client for view in presence.clients()}
        expired = presence.expired()
        ledger.table.forget_gone(here, expired, self.clock.monotonic())
        presence.forget(list(expired))
