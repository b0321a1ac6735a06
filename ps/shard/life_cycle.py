"""The life of an incarnation from BEGIN to its end: declarations, OPEN, clients that come and go, FINISH.

Layer: ps. Threads: used under the shard's lock, but for `load_ledger`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from globalstep.cluster.run_policy import RunPolicy
from globalstep.errors import FailedPreconditionError, InvalidArgumentError
from globalstep.ps.ledger.ledger import LIMIT_SHARDS, Ledger
from globalstep.ps.members.chief_lease import ChiefLeaseView
from globalstep.ps.members.presence import opened_as
from globalstep.ps.shard.events import AwaitSlower, Begin, Declare, Finish, GetLeads, Heartbeat, Leave, Open
from globalstep.ps.shard.incarnation import Incarnation
from globalstep.ps.shard.replies import LeadWait
from globalstep.ps.shard.resources import Resources
from globalstep.wire.declarations import State

if TYPE_CHECKING:
    from globalstep.ps.members.leads import Leads


def load_ledger(event: Begin) -> None:
    """Check a BEGIN, and make its ledger.

    Raises:
        InvalidArgumentError: If the numbers do not fit together.
    """
    shard, shards, sequencer = event.shard, event.shards, event.sequencer
    if not (0 <= shard < shards <= LIMIT_SHARDS and 0 <= sequencer < shards) or not event.owner:
        raise InvalidArgumentError(
            f"BEGIN of shard {shard} of {shards} with sequencer {sequencer} and owner {event.owner!r} is not valid."
        )
    if shard == sequencer:
        event.loaded = Ledger.load(event.ledger, shards, sequencer) if event.ledger else Ledger(shards, sequencer)


def leads_of(policy: RunPolicy) -> Leads | None:
    """Begin to count how far workers are ahead, where the policy has the fast wait for the slow."""
    if policy.staleness != "wait":
        return None
    from globalstep.ps.members.leads import Leads

    return Leads(policy.max_staleness)


class LifeCycle:
    """Carries out the events of an incarnation that are neither pushes nor reads.

    Args:
        resources: Of the shard.
    """

    def __init__(self, resources: Resources) -> None:
        self._resources = resources

    def declare(self, now: Incarnation, event: Declare) -> None:
        """See Declare.

        Raises:
            PermissionDeniedError: If something is new that must not be.
            InvalidArgumentError: If a Variable belongs to another shard, or an optimizer is incomplete.
        """
        now.check(event.incarnation, event.client)
        for decl in event.variables:
            now.check_place(decl)
        now.store.declare(event.variables, event.optimizers, event.nothing_new)
        try:
            for decl in event.variables:
                if decl.is_step and now.ledger is not None:
                    now.ledger.declare_step(decl.name)
            now.log.append(event)
        except BaseException as error:
            self._resources.fail_stop.failed("A declaration", error)
            raise

    def open(self, now: Incarnation, event: Open) -> dict[str, int]:
        """See Open."""
        now.check(event.incarnation, event.client)
        now.run = opened_as(now.run, event.run, now.shard, self._resources.members.presence)
        if now.ledger is not None:
            now.ledger.set_limits(event.limits)
        if now.state is State.INITIALIZING:
            now.state = State.READY
            if now.ledger is not None:
                self._resources.members.presence.opened(now.ledger.steps)
        now.log.append(event)
        return dict(now.ledger.limits) if now.ledger else {}

    def finish(self, now: Incarnation, event: Finish) -> list[str]:
        """See Finish."""
        if now.number:
            now.check(event.incarnation, event.client)
            now.log.append(event)
        elif event.not_meant:
            raise FailedPreconditionError(
                f"This PS task holds no state, and cannot be declared done: {event.not_meant}"
            )
        now.state = State.DONE
        self._resources.members.presence.finish(event.client if now.shards > 1 else "")
        return self._resources.members.presence.others(event.client)

    def heartbeat(self, now: Incarnation, event: Heartbeat) -> tuple[State, int, ChiefLeaseView]:
        """See Heartbeat."""
        standing, lease = event.standing, self._resources.members.lease
        self._resources.members.presence.heard(event.client, event.task, event.lease_secs, standing)
        lease.adopt(standing.known_term)
        if standing.chief_term:
            lease.sign(standing.candidate, event.task, standing.chief_term, standing.process, standing.run)
        return now.state, now.number, lease.view()

    def leave(self, now: Incarnation, event: Leave) -> None:
        """See Leave."""
        self._resources.members.lease.leave(event.candidate, event.term)
        self._resources.members.presence.left(event.client, event.task, event.unfinished)
        if now.ledger is not None:
            now.ledger.table.departed(event.client)
            if now.ledger.table.crowded(self._resources.clock.monotonic()):  # no checkpoint has been taken for long
                self._resources.forget_gone(now.ledger)
        now.replies.drop(event.client)
        if now.state is not State.VACANT:
            now.log.append(event)

    def await_slower(self, now: Incarnation, event: AwaitSlower) -> LeadWait:
        """See AwaitSlower."""
        now.check(event.incarnation, event.client)
        ledger, leads = now.sequencing(), now.leads
        if leads is None or ledger.stopped or ledger.limit_reached() or now.state is State.DONE:
            return LeadWait()
        at = self._resources.clock.monotonic()
        wait = leads.ask(event.client, self._resources.members.presence, at, at - now.begun_at)
        if wait.ended_secs is not None:
            self._resources.statistics.waited_for_slower(wait.ended_secs)
        return wait

    def leads(self, now: Incarnation, event: GetLeads) -> Mapping[str, tuple[int, float]]:
        """See GetLeads."""
        return {} if now.leads is None else now.leads.view(self._resources.clock.monotonic())
