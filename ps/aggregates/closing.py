"""Closing of aggregates: a step takes all its contributions, or those that have come where no more will.

docs/design/steps-of-several-workers.md, "Aggregates", is the specification. A step waits for contributors that are
here, so it is looked at only for a push that asks to close; what such a push led to is in the log.

Layer: ps. Threads: used under the shard's lock.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence, Set
from typing import NamedTuple

from globalstep.files.journal_records import Fewer
from globalstep.ps.ledger.aggregates import MOST_CONTRIBUTIONS, OpenAggregate
from globalstep.ps.ledger.ledger import AggregatePlace, EntryKind, Ledger
from globalstep.ps.members.presence import LINGER_SECS, UNLEASED_SECS, ClientView
from globalstep.ps.shard.events import AwaitStep, Push
from globalstep.ps.shard.incarnation import Incarnation
from globalstep.ps.shard.replies import Awaited, OpenStep, StepWait
from globalstep.ps.shard.resources import Resources
from globalstep.wire.declarations import Increment, PushId, State

_log = logging.getLogger("globalstep")

#: After so many contributors to a step, those that are gone are looked for.
_LOOKED_AT = 1024
#: Tasks that a wait names.
_MOST_NAMED = 8


class Counted(NamedTuple):
    """A contribution that counts, or what closes an aggregate."""

    #: What its entry is to say: this, and `place`.
    kind: EntryKind
    place: AggregatePlace
    #: The step's value that it follows.
    base: int
    #: How many contributions are wanted.
    wanted: int
    #: Why the step that it makes has fewer of them.
    fewer: Fewer

    def write_down(self, ledger: Ledger, push: PushId, index: int) -> None:
        """Write it into the journal, if there is one; `index` is that of its entry."""
        if (journal := ledger.journal) is None:
            return
        step, number = self.place.step, self.place.contributions
        if self.kind is not EntryKind.CLOSING:
            journal.contributed(push, index, step, self.base, number)
        if self.kind.closes:
            journal.made(push, index, step, number, self.wanted, self.fewer)


class Closing:
    """Counts contributions, and closes aggregates; on the sequencer.

    Args:
        resources: Of the shard.
    """

    def __init__(self, resources: Resources) -> None:
        self._resources = resources

    def is_late(self, now: Incarnation, ledger: Ledger, asked: Push, wanted: Increment) -> bool:
        """Whether a contribution does not count, or an aggregate is not to be closed. Changes no aggregate."""
        client, step = asked.push.client, wanted.step
        base, present = asked.seen_steps[step], ledger.steps[step]
        if not wanted.closes:
            at = self._resources.clock.monotonic()
            self._resources.members.presence.contributed(client)
            now.contributors.claims.done(client, step, at)
            now.contributors.gave_first.setdefault(step, at)
            gave = now.contributors.gave.setdefault(step, {})
            gave[client] = at
            if len(gave) % _LOOKED_AT == 0:
                self._forget_gone(now, step)
        if ledger.aggregates.is_late(wanted, client, base, present):
            return True
        found = ledger.aggregates.open(step, base)
        if not wanted.closes or self._resources.replaying or found is None:
            return False
        return bool(self._waited_for(now, step, found))

    def count(
        self, now: Incarnation, ledger: Ledger, asked: Push, wanted: Increment, participants: Sequence[int]
    ) -> Counted:
        """Count a contribution that is not late, or close the aggregate."""
        step, base, book = wanted.step, asked.seen_steps[wanted.step], ledger.aggregates
        fewer = Fewer.NOT
        if wanted.closes:
            found = book.open(step, base)
            assert found is not None
            fewer = self._why_fewer(now, step, found)
            kind, number = EntryKind.CLOSING, book.close(step)
            if not self._resources.replaying and now.fewer.get(step) != number:
                now.fewer[step] = number
                _log.warning(
                    "Step %d of %s is made of %d instead of %d contributions: no other worker is here that would give "
                    "one; so are those after it until that changes.",
                    base + 1, step, number, found.wanted,
                )  # fmt: skip
        else:
            last = book.is_last(wanted, base)
            number = book.count(wanted, asked.push.client, base, participants)
            kind = EntryKind.LAST_CONTRIBUTION if last else EntryKind.CONTRIBUTION
            if last:
                book.close(step)
                now.fewer.pop(step, None)
        self._take_time(now, step, base, kind)
        if kind.closes:
            self._forget_gone(now, step)
        return Counted(kind, AggregatePlace(step, number, wanted.unit), base, wanted.contributions, fewer)

    def _take_time(self, now: Incarnation, step: str, base: int, kind: EntryKind) -> None:
        """Take note of when a contribution came, and for how long those of a step that is made have waited."""
        if self._resources.replaying:
            return  # when they came is not in the log
        at, statistics = self._resources.clock.monotonic(), self._resources.statistics
        if kind is not EntryKind.CLOSING:
            statistics.contributions += 1
            now.contributors.arrivals.came(step, base, at)
        if kind.closes:
            statistics.make(*now.contributors.arrivals.made(step, base, at))

    def open_steps(self, now: Incarnation, ledger: Ledger) -> list[OpenStep]:
        """See GetOpenSteps."""
        at, found = self._resources.clock.monotonic(), []
        for step, base in ledger.steps.items():
            item = ledger.aggregates.open(step, base)
            if item is None:
                continue
            if item.of_units:
                names = self._computing(now, step, base, item.units, at)
            else:
                names = self._waited_for(now, step, item)
            open_secs = now.contributors.arrivals.open_secs(step, base, at)
            found.append(OpenStep(step, base, item.count, item.wanted, open_secs, names[:_MOST_NAMED]))
        return found

    def _computing(self, now: Incarnation, step: str, base: int, there: Set[int], at: float) -> list[Awaited]:
        """Say who computes the units of work that are missing."""
        task_of = self._resources.members.presence.task_of
        return [
            Awaited(task_of(client) or f"client {client}", f"which has computed unit {unit} for {secs:.1f} s")
            for client, (unit, secs) in now.contributors.claims.view(step, base, there, at).items()
        ]

    def _why_fewer(self, now: Incarnation, step: str, found: OpenAggregate) -> Fewer:
        """Say why nobody is waited for any more, though contributions are missing."""
        if self._resources.replaying:
            return Fewer.NOT_KNOWN
        presence = self._resources.members.presence
        gave = now.contributors.gave.get(step, {})
        gone = [client for client in gave if found.given.get(client, 0) < found.most_of_client]
        if not gone:
            return Fewer.ABSENT
        left = [presence.has_been_here(client) and presence.silent_secs(client) == math.inf for client in gone]
        return Fewer.LEFT if all(left) else Fewer.LOST

    def await_step(self, now: Incarnation, event: AwaitStep) -> StepWait:
        """Say how it stands with what follows a value of a step; see AwaitStep."""
        now.check(event.incarnation, event.client)
        ledger = now.sequencing()
        # Whose wait is over reads values next: the step must have been applied on every shard.
        steps = ledger.visible
        visible = steps.get(event.step)
        ended = visible is not None and visible >= ledger.limits.get(event.step, visible + 1)
        if visible is None or ended or ledger.stopped:
            return StepWait(dict(steps), over=True)
        if now.state is State.DONE and visible == ledger.steps[event.step]:
            return StepWait(dict(steps), over=True)  # else what was contributed to is made, but not yet on every shard
        if event.units:
            return self._unit_for(now, ledger, event, visible)
        if visible != event.base:
            return StepWait(dict(steps), over=True)
        found = ledger.aggregates.open(event.step, event.base)
        if found is None:
            return StepWait(dict(steps))
        names = [str(item) for item in self._waited_for(now, event.step, found)]
        most = names[:_MOST_NAMED] + ([f"{len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else [])
        return StepWait(dict(steps), False, found.count, found.wanted, most, not names)

    def _unit_for(self, now: Incarnation, ledger: Ledger, event: AwaitStep, visible: int) -> StepWait:
        """Give a client a unit of work to compute for what follows the visible step, if it is of use."""
        if ledger.steps[event.step] != visible:
            return StepWait(dict(ledger.visible))  # the next value is made, but not yet on every shard
        found = ledger.aggregates.open(event.step, visible)
        there = found.units if found is not None else frozenset[int]()
        clock = self._resources.clock.monotonic()
        units = min(event.units, MOST_CONTRIBUTIONS)
        unit = now.contributors.claims.take(event.client, event.step, visible, units, there, clock)
        awaited = [] if unit else self._computing(now, event.step, visible, there, clock)
        names = [str(item) for item in awaited[:_MOST_NAMED]]
        return StepWait(dict(ledger.visible), False, len(there), units, names, unit=unit)

    def _waited_for(self, now: Incarnation, step: str, found: OpenAggregate) -> list[Awaited]:
        """Say who may yet contribute, each with why it is waited for; nobody where no contribution will come."""
        clock, presence = self._resources.clock.monotonic(), self._resources.members.presence
        here = {view.client: view for view in presence.clients()}
        gave = now.contributors.gave.get(step, {})
        names: list[Awaited] = []
        for client, at in gave.items():
            if found.given.get(client, 0) >= found.most_of_client:
                continue
            view = here.get(client)
            if view is not None:
                names.append(Awaited(_name(view), f"which was heard of {view.silent_secs:.0f} s ago"))
            elif not presence.has_been_here(client) and clock - at < UNLEASED_SECS:
                names.append(Awaited(f"client {client}", f"which contributed {clock - at:.0f} s ago"))
        since_secs = clock - now.contributors.gave_first.get(step, clock)
        for view in here.values():
            new = min(view.joined_secs, since_secs) < LINGER_SECS
            if view.client not in gave and view.standing.takes_task and new:
                why = f"which came {view.joined_secs:.0f} s ago and has not contributed yet"
                names.append(Awaited(_name(view), why))
        if since_secs < LINGER_SECS:
            names += [Awaited(task, "which has not come yet") for task in presence.absence().missing]
            if not names and len(gave) * found.most_of_client < found.wanted:
                names.append(Awaited("a worker", f"which has not contributed yet: {len(gave)} have so far"))
        return names

    def _forget_gone(self, now: Incarnation, step: str) -> None:
        """Forget contributors of long ago that are not here any more."""
        clock, presence = self._resources.clock.monotonic(), self._resources.members.presence
        gave = now.contributors.gave.get(step, {})
        # For few the clients need not be listed, which every step would do.
        if len(gave) > 16 and len(gave) > 2 * len(presence.clients()) + 16:
            here = {view.client for view in presence.clients()}
            now.contributors.gave[step] = {c: at for c, at in gave.items() if c in here or clock - at < UNLEASED_SECS}


def _name(view: ClientView) -> str:
    return view.task or f"client {view.client}"
