"""A shard: the state machine of one PS task, with one door.

`Shard.handle(event)` is the only way to change it, for the wire, for a log that is played again and for the
simulation. Behind it lie its parts: the Sequencer takes pushes in and decides on them, the Applier changes values, the
StateReader reads them, Members knows who takes part; what they work on is the present Incarnation, which is dropped or
replaced as a whole. docs/design/push-protocol.md is the specification.

Pure of I/O: time comes from a clock, events are dataclasses. Layer: ps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from globalstep.cluster.run_policy import LOOKS_AT_GRADIENTS
from globalstep.ps.budget import SMALL_BYTES, Budget, Kind
from globalstep.ps.ledger.ledger import EntryKind, Ledger
from globalstep.ps.ledger.signatures import Signer
from globalstep.ps.members.members import Members
from globalstep.ps.members.presence import Absence, ClientView, refuse_other
from globalstep.ps.shard import events
from globalstep.ps.shard.applying import Applier
from globalstep.ps.shard.event_log import NO_LOG, EventLog
from globalstep.ps.shard.events import Event, R
from globalstep.ps.shard.incarnation import Incarnation
from globalstep.ps.shard.life_cycle import LifeCycle, leads_of, load_ledger
from globalstep.ps.shard.reads import StateReader, prepare_room_for_made
from globalstep.ps.shard.replies import Answer
from globalstep.ps.shard.resources import FailStop, Resources
from globalstep.ps.shard.sequencer import Sequencer
from globalstep.ps.shard.statistics import LoadView, ShardView, Statistics
from globalstep.ps.store.checking import kernels, undeclared
from globalstep.ps.store.finite import find_not_finite
from globalstep.rules import check_declaration, get_rule
from globalstep.runtime.clock import Clock
from globalstep.wire.declarations import Increment, Op, OpKind, OptimizerUse, PushId, State

#: A chief that has been silent for so long is not waited for.
_CHIEF_SILENT_SECS = 5.0
_NO_PUSH = PushId("", 0)


class Shard:
    """A PS task's state. Thread-safe: every public method takes the one lock.

    Args:
        clock: Tells how long parts have been staged and clients have been silent.
        replaying: Whether its events come from a log; see Resources.
        budget: See Resources; without a limit by default.

    Attributes:
        members: Who takes part.
        resources: What its parts share: limits, counters, cores.
        now: The present incarnation. Guarded by the lock.
        spent_incarnations: Those up to this one may have been in force while this process knew nothing of them.
    """

    def __init__(self, clock: Clock, replaying: bool = False, budget: Budget | None = None) -> None:
        # Guards the incarnation, the members, and what the parts share. A leaf: nothing else is taken under it, and no
        # I/O is done under it.
        self._lock = threading.Lock()
        budget = budget or Budget()
        # Who is here is not known from a log, and nobody is refused by it.
        self.members = Members(clock, self._lock, Budget() if replaying else budget)
        statistics = Statistics(since=clock.monotonic())
        fail_stop = FailStop(self._lose, not replaying)
        self.resources = Resources(clock, self.members, fail_stop, statistics, budget, replaying)
        self.spent_incarnations = int(clock.time() * 1000)
        self.now = Incarnation(self.resources.most_read_bytes)
        applier = self._applier = Applier(self.resources)
        sequencer = self._sequencer = Sequencer(self.resources, applier)
        reader, life = StateReader(sequencer), LifeCycle(self.resources)
        self._handlers: Mapping[type[Event[Any]], Callable[[Incarnation, Any], Any]] = {
            events.Push: sequencer.push,
            events.Stage: sequencer.stage,
            events.CountTogether: sequencer.count,
            events.Commit: self._commit,
            events.Resolve: sequencer.resolve,
            events.AwaitStep: lambda now, event: sequencer.closing.await_step(now, event),
            events.AwaitSlower: life.await_slower,
            events.GetLeads: life.leads,
            events.GetOpenSteps: sequencer.open_steps,
            events.Resolved: self._resolved,
            events.DropShort: self._drop_short,
            events.Pull: reader.pull,
            events.ReadMade: reader.made,
            events.GetSteps: reader.steps,
            events.ReadJournal: reader.journal,
            events.ReadSnapshot: reader.snapshot,
            events.Release: reader.release,
            events.Begin: self._begin,
            events.Declare: life.declare,
            events.Open: life.open,
            events.Finish: life.finish,
            events.Heartbeat: life.heartbeat,
            events.Leave: life.leave,
            events.Lose: self._lose_if,
            events.Decided: sequencer.decide_again,
            events.Applied: self._apply_again,
            events.Resume: self._resume,
            events.Adopt: self._adopt,
        }
        # What takes long and needs no lock, or other locks, is done before it is taken.
        self._preparations: Mapping[type[Event[Any]], Callable[[Any], None]] = {
            events.Push: self._prepare_push,
            events.Stage: self._prepare_push,
            events.Decided: self._prepare_snapshot,
            events.Commit: self._prepare_snapshots,
            events.Applied: self._prepare_snapshots,
            events.Begin: load_ledger,
            events.Declare: self._prepare_kernels,
            events.Pull: self._prepare_room,
            events.ReadMade: prepare_room_for_made,
        }

    # ---- The door -----------------------------------------------------------------------------

    def handle(self, event: Event[R]) -> R:
        """Carry out an event; gives its reply. Thread-safe.

        Args:
            event: Any of `ps/shard/events.py`.

        Raises:
            GlobalStepError: What is wrong with it: then nothing is changed.
            LostStateError: If the state is lost, now or before.
        """
        kind = type(event)
        prepare = self._preparations.get(kind)
        if prepare is not None:
            prepare(event)
        with self._lock:
            reply: R = self._handlers[kind](self.now, event)
            return reply

    @property
    def log(self) -> EventLog:
        """The log that events are written to."""
        return self.now.log

    def secure(self, before: EventLog) -> None:
        """Return once what a call did, and what it saw, will not be forgotten; `before` was the log before it.

        Raises:
            LostStateError: If it was forgotten.
        """
        log = self.now.log
        if log is before is NO_LOG:
            return
        before.secure()
        if log is not before:
            log.secure()

    # ---- Before the lock ----------------------------------------------------------------------

    def _prepare_push(self, event: events.Push | events.Stage) -> None:
        """Find a gradient that is not finite, where the policy asks for that; refuse more reads than have memory."""
        if isinstance(event, events.Push) and event.kind is EntryKind.SNAPSHOT:
            self._prepare_memory(event.push)
            return
        policy, parts, account = self.now.policy, event.parts, event.parts.account
        if policy.on_nan in LOOKS_AT_GRADIENTS and not event.not_finite:
            event.not_finite = find_not_finite(parts)
        if parts.reads and account is not None:
            plan, store = parts.layout.plan if parts.layout is not None else None, self.now.store
            if plan is None:
                nbytes = store.bytes_of(parts.reads)
            else:
                nbytes = plan.copied_bytes
            if nbytes >= SMALL_BYTES and not account.budget.has_room(Kind.REPLY, account, nbytes):
                raise account.budget.refusal(Kind.REPLY, account, nbytes)

    def _prepare_room(self, event: events.Pull) -> None:
        """Have room ready for what is read, if that is much."""
        plan, store = event.layout.plan if event.layout is not None else None, self.now.store
        if event.reads and event.buffer is not None and (plan is None or plan.read_bytes >= SMALL_BYTES):
            event.buffer.prepare(lambda: store.bytes_of(event.reads) if plan is None else plan.read_bytes)

    def _prepare_snapshot(self, event: events.Decided) -> None:
        if event.kind is EntryKind.SNAPSHOT:
            self._prepare_memory(event.push)

    def _prepare_snapshots(self, event: events.Commit | events.Applied) -> None:
        for entry in event.entries:
            if entry.kind is EntryKind.SNAPSHOT:
                self._prepare_memory(entry.push)

    def _prepare_memory(self, snapshot: PushId) -> None:
        """Have memory ready for a snapshot that is not taken yet, so that none is taken under the lock."""
        now = self.now

        def wanted() -> Sequence[Any]:
            with self._lock:
                return () if snapshot in now.snapshots else now.store.arenas()

        with self._lock:
            memory = now.snapshots.memory
        memory.prepare(wanted)

    def _prepare_kernels(self, event: events.Declare) -> None:
        """Compile the kernels that a declaration will have work to do, if they are not in the cache yet."""
        for optimizer in event.optimizers:
            check_declaration(optimizer)
        with self._lock:
            self.now.check(event.incarnation, event.client)
            wanted = kernels(event.variables, event.optimizers, self.now.store)
        for kind, dtype in sorted(wanted):
            get_rule(kind).prepare(dtype)

    # ---- The life of an incarnation -----------------------------------------------------------

    def _begin(self, now: Incarnation, event: events.Begin) -> tuple[int, str]:
        """See Begin.

        Raises:
            FailedPreconditionError: If this task serves another run. Nothing is changed.
        """
        if event.incarnation <= now.number:
            return now.number, now.owner
        presence = self.members.presence
        if not (event.take_over or now.state in (State.VACANT, State.DONE)):
            refuse_other(now.run, event.run, now.shard, presence)
        self.members.known_progress.ended(now.number, now.applied, now.ledger.steps if now.ledger else None)
        new = Incarnation(self.resources.most_read_bytes)
        new.state = State.READY if event.opened else State.INITIALIZING
        new.number, new.owner = event.incarnation, event.owner
        new.shard, new.shards, new.sequencer = event.shard, event.shards, event.sequencer
        new.sequencer_address, new.log = event.sequencer_address, event.log
        new.policy, new.run, new.leads = event.policy, event.run, leads_of(event.policy)
        new.begun_at, new.signer = self.resources.clock.monotonic(), Signer(event.key, event.incarnation)
        if event.loaded is not None:
            event.loaded.table.end_of_life()
            new.applied = event.loaded.index
            self._sequence(new, event.loaded)
        self.now = new
        presence.begin(event.expected_tasks)
        presence.takes_part(event.owner, event.run)
        return new.number, new.owner

    def _sequence(self, now: Incarnation, ledger: Ledger) -> None:
        """Make a ledger an incarnation's own."""
        now.ledger = ledger
        ledger.incarnation, ledger.signer = now.number, now.signer
        if now.run.directory:
            from globalstep.ps.ledger.journal import Journal

            life = f"{self.spent_incarnations}.{now.number}"
            ledger.journal = Journal(life, ledger, self.members.presence.task_of)

    def _lose_if(self, now: Incarnation, event: events.Lose) -> None:
        if now.log is event.log:
            self._lose()

    def _lose(self) -> None:
        """Forget all state, as a restart of the process would. Caller holds the lock."""
        now = self.now
        if now.state is not State.VACANT:
            self.spent_incarnations = max(self.spent_incarnations, now.number)
            self.now = now.emptied(self.resources.most_read_bytes)

    # ---- Entries of the sequencer, on other shards --------------------------------------------

    def _commit(self, now: Incarnation, event: events.Commit) -> Answer:
        """See Commit; raises as Applier.apply_entries."""
        push, entries = event.push, event.entries
        now.check(event.incarnation, push.client)
        # What the sequencer does not tell of with the push's own COMMIT, it has not accepted.
        refused = push in now.staged and push not in [entry.push for entry in entries]
        self._applier.apply_entries(now, push, entries, (push,) if refused else ())
        answer = self._applier.answer(now, push)
        answer.signature = now.signer.floor(now.shard, answer.applied)
        return answer

    def _resolved(self, now: Incarnation, event: events.Resolved) -> int:
        now.check(event.incarnation, now.owner)
        self._applier.apply_entries(now, _NO_PUSH, event.entries, event.asked)
        return now.applied

    def _drop_short(self, now: Incarnation, event: events.DropShort) -> bool:
        now.check(event.incarnation, now.owner)
        short = now.applied < event.floor
        if short:
            self._lose()
        return short

    # ---- From a log ---------------------------------------------------------------------------

    def _apply_again(self, now: Incarnation, event: events.Applied) -> int:
        self._applier.apply_entries(now, _NO_PUSH, event.entries, event.dropped)
        return now.applied

    def _resume(self, now: Incarnation, event: events.Resume) -> None:
        now.state, now.applied = event.state, event.applied
        now.store.declare(event.variables, event.optimizers)
        changes = [Op(OpKind.ASSIGN, name, value=value) for name, value in event.values.items()]
        now.store.check(changes)
        now.store.apply(changes, {})
        if event.ledger is not None:
            self._sequence(now, event.ledger)
        if event.contributions:
            now.contributions.resume(event.contributions)
        for kept in event.kept:
            now.replies.by_client[kept.push.client] = kept

    def _adopt(self, now: Incarnation, event: events.Adopt) -> bool:
        """See Adopt.

        Raises:
            DataLossError: If the end of the log is missing. Nothing is changed.
        """
        new = event.incarnation
        if new.number < now.number:
            return False
        if new.ledger is not None:
            new.ledger.check_floors(event.floors)
            for shard, index in event.floors.items():
                new.ledger.raise_floor(shard, index)
        presence = self.members.presence
        new.store.most_read_bytes = self.resources.most_read_bytes
        new.log, new.sequencer_address = event.log, event.sequencer_address
        new.raised, new.leads = {}, leads_of(new.policy)  # the log does not say who was here: all clocks begin anew
        self.now = new
        presence.begin(event.expected_tasks)
        presence.have_left(event.left)
        if new.state is State.DONE:
            presence.finish()
        if new.ledger is not None and new.ledger.journal is not None:
            new.ledger.journal.task_of = presence.task_of
        return True

    # ---- What it says of itself ---------------------------------------------------------------

    def view(self, brief: bool = False) -> ShardView:
        """Say what this shard is and holds.

        Args:
            brief: Leave out Variables and optimizers.
        """
        with self._lock:
            now, ledger, statistics = self.now, self.now.ledger, self.resources.statistics
            return ShardView(
                state=now.state,
                incarnation=now.number,
                shard=now.shard,
                shards=now.shards,
                sequencer=now.sequencer,
                sequencer_address=now.sequencer_address,
                owner=now.owner,
                applied=now.applied,
                floors=list(ledger.floors) if ledger else [],
                variables=[] if brief else now.store.variables,
                optimizers=[] if brief else now.store.optimizers,
                uninitialized=[] if brief else now.store.uninitialized(),
                steps=dict(ledger.steps) if ledger else {},
                limits=dict(ledger.limits) if ledger else {},
                statistics=statistics.copy(),
                secs=self.resources.clock.monotonic() - statistics.since,
                policy=now.policy,
                directory=now.run.directory,
                draining=self.members.draining,
                chief=self.members.lease.view(),
                run=now.run,
            )

    def load(self, brief: bool = False) -> LoadView:
        """Say what this shard holds, what waits here, and which Variables pushes have changed.

        Args:
            brief: Leave out the Variables.
        """
        with self._lock:
            staged = [item.parts.data for item in self.now.staged.values()]
            return LoadView(
                self.now.store.nbytes(),
                len(staged),
                sum(data.nbytes for data in staged if data is not None) + self.now.held_bytes,
                {} if brief else self.resources.changes.by_variable(),
            )

    @property
    def value_bytes(self) -> int:
        """Bytes of all Variables and slots here."""
        return self.now.store.value_bytes

    def undeclared(self, increments: Sequence[Increment], uses: Sequence[OptimizerUse]) -> str:
        """Say what of a push's decision is not declared; see ps/store/checking.py."""
        with self._lock:
            return undeclared(increments, uses, self.now.store)

    def limit_reads(self, most_bytes: int) -> None:
        """Have larger reads refused, before memory is taken for them."""
        with self._lock:
            self.resources.most_read_bytes = self.now.store.most_read_bytes = most_bytes

    def overdue(self, silent_secs: float, longest_secs: float) -> list[PushId]:
        """Parts that have waited for a decision too long.

        Args:
            silent_secs: How long a part waits whose client gives no sign of life.
            longest_secs: How long one waits whose client does: it may be busy with the other parts.
        """
        with self._lock:
            return self._sequencer.overdue(self.now, silent_secs, longest_secs)

    def attendance(self) -> tuple[State, list[ClientView], Absence]:
        """Say in which state this task is, which clients are here, and which are not."""
        with self._lock:
            return self.now.state, self.members.presence.clients(), self.members.presence.absence()

    def moves_no_more(self, client: str) -> bool:
        """Whether no push of a client that is here now, but `client`, will move a step on."""
        with self._lock:
            ledger = self.now.ledger
            return not self.members.presence.others(client) or (ledger is not None and ledger.limit_reached())

    def awaits_checkpoint(self) -> bool:
        """Whether this task holds what a checkpoint would keep, and a chief is there who may save one."""
        with self._lock:
            now, chief = self.now, self.members.lease.view()
            # In the first seconds of a run a task may not have heard of its chief yet.
            silent_secs = chief.silent_secs if chief.holder else self.resources.clock.monotonic() - now.begun_at
            keeps = now.state is State.READY and now.policy.durability == "checkpoint" and now.run.directory
            return bool(keeps) and silent_secs < _CHIEF_SILENT_SECS

    @property
    def done(self) -> bool:
        """Whether the job was declared done."""
        with self._lock:
            return self.now.state is State.DONE

    def over(self) -> bool:
        """Whether the job is done and no client needs this task any more."""
        with self._lock:
            return self.now.state is State.DONE and self.members.presence.empty()

    def check_floors(self, floors: Mapping[int, int]) -> None:
        """See Incarnation.check_floors."""
        with self._lock:
            self.now.check_floors(floors)
