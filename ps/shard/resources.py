"""Resources that the parts of a shard share over its incarnations: time, members, limits, counters.

Layer: ps. Threads: used under the shard's lock, but for the clock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from globalstep.errors import InternalError, LostStateError, OpError
from globalstep.ps.budget import Budget
from globalstep.ps.ledger.ledger import Ledger
from globalstep.ps.members.members import Members
from globalstep.ps.shard.statistics import ChangeCounts, Statistics
from globalstep.ps.store.cores import ONE_CORE, Cores
from globalstep.runtime.clock import Clock
from globalstep.runtime.faults import NO_FAULTS, Faults
from globalstep.wire.declarations import PushId

_OF_NOTHING_KEPT = 64
_MOST_SAID = 500
_KINDS_KEPT = 64
#: After so many failures of one kind the error says that trying again does not help.
_ENOUGH = 3


@dataclass(slots=True)
class Resources:
    """Resources that the parts of a shard share.

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


class FailStop:
    """Makes a block of code atomic: a shard completes it as a whole, or loses its state.

    >>> lost = []
    >>> stop = FailStop(lambda: lost.append("all"))
    >>> try:  # doctest: +ELLIPSIS
    ...     raise ValueError("no such operation")
    ... except BaseException as error:
    ...     stop.failed("push 1", error)
    Traceback (most recent call last):
    globalstep.errors.LostStateError: ...
    >>> lost, len(stop.reports)
    (['all'], 1)

    Args:
        lose: Forgets the shard's state.
        armed: As the attribute.

    Attributes:
        armed: False to let exceptions through as they are: no client sees the state, whatever is left of it.
        reports: What failed, newest last; for the settler, which writes it to the task's own log.
    """

    def __init__(self, lose: Callable[[], None], armed: bool = True) -> None:
        self.armed = armed
        self.reports: deque[str] = deque(maxlen=16)
        self._lose = lose
        self._seen: Counter[str] = Counter()

    def failed(self, what: object, error: BaseException) -> None:
        """Drop the state, since a change was not carried out as a whole; `what` names the change.

        Any exception but one that ends the program (KeyboardInterrupt, ...) becomes:

        Raises:
            LostStateError: The state is gone: the client waits until it is recovered, or restored, and tries again.
            InternalError: As above, where the same has failed before again and again: trying once more is no use.
        """
        if self.armed:
            lost = self._lost(what, error)
            if isinstance(error, Exception):
                raise lost from error

    def _lost(self, what: object, error: BaseException) -> OpError:
        """Drop the state; gives the error for the caller."""
        self._lose()
        name = type(error).__name__
        text = (
            f"{what} had its place, and could not be carried out: {name}: {str(error)[:_MOST_SAID]}. What it left may "
            "hold half of it, so this PS task has dropped its state, and serves nothing until it is back from its "
            "write-ahead log or the chief has restored a checkpoint."
        )
        self.reports.append(text)
        kind = f"{name}: {str(error)[:_MOST_SAID]}"
        if kind not in self._seen and len(self._seen) >= _KINDS_KEPT:
            self._seen.clear()
        self._seen[kind] += 1
        if self._seen[kind] >= _ENOUGH and not isinstance(error, MemoryError):
            return InternalError(
                f"{text} This was time {self._seen[kind]}: it will fail again. Look at the update rule or the "
                "operation that it names."
            )
        return LostStateError(text)
