"""Admission of pushes: staged parts, decisions by the ledger, parts in doubt.

The other shards stage; the rest happens on the sequencer. docs/design/push-protocol.md is the specification.

Layer: ps. Threads: used under the shard's lock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from globalstep.errors import InvalidArgumentError, PermissionDeniedError, ResourceExhaustedError
from globalstep.ps.budget import RETRY_SECS, Account, Kind, MemoryClaim
from globalstep.ps.ledger.aggregates import check_contribution
from globalstep.ps.ledger.ledger import Entry, EntryKind, HyperValues, Ledger, refusal, scaled
from globalstep.ps.ledger.signatures import Floor
from globalstep.ps.shard.applying import Applier, no_ledger
from globalstep.ps.shard.event_log import NO_LOG
from globalstep.ps.shard.events import CountTogether, Decided, GetOpenSteps, Push, Resolve, Stage
from globalstep.ps.shard.incarnation import Incarnation, Staged
from globalstep.ps.shard.layouts import PushParts
from globalstep.ps.shard.replies import Admission, OpenStep
from globalstep.ps.shard.resources import Resources
from globalstep.ps.store.checking import check_step
from globalstep.ps.store.optimizer_table import check_covered, evaluate_use
from globalstep.wire.declarations import Increment, Op, OpKind, Outcome, OutcomeKind, PushId
from globalstep.wire.names import shown

if TYPE_CHECKING:
    from globalstep.ps.aggregates.closing import Closing
    from globalstep.ps.members.leads import Leads

#: Parts of one client that wait for a decision. A client has a few pushes in flight.
_MOST_PARTS = 64
#: What a part takes besides its data, and for each change, or read, that is not its layout's.
_PART_BYTES = 512
#: Decisions that other PS tasks are not known to have applied: workers that push at the same time have as many.
#: Each one beyond takes so much of the budget, for each of those tasks.
_MANY_DECISIONS = 256
_DECISION_BYTES = 2048
#: Snapshots that are not released: a chief has one, and one more where it saves in the background.
_MOST_SNAPSHOTS = 4
_INT64, _FAR = np.dtype(np.int64), 1 << 61


#: What a push is decided with: evaluated hyper-parameters, and the increment by which it is a contribution.
_Examined = tuple[tuple[HyperValues, ...], Increment | None]


class Sequencer:
    """Stages parts of pushes, and decides on them.

    Args:
        resources: Of the shard.
        applier: Applies what is accepted.
    """

    def __init__(self, resources: Resources, applier: Applier) -> None:
        self._resources = resources
        self._applier = applier
        self._closing: Closing | None = None
        self._presence = resources.members.presence

    @property
    def closing(self) -> Closing:
        """Counts contributions: for steps of several workers."""
        if self._closing is None:
            from globalstep.ps.aggregates.closing import Closing

            self._closing = Closing(self._resources)
        return self._closing

    def open_steps(self, now: Incarnation, event: GetOpenSteps) -> list[OpenStep]:
        """See GetOpenSteps."""
        return self.closing.open_steps(now, now.ledger) if now.ledger is not None and now.ledger.aggregates else []

    # ---- Staging ------------------------------------------------------------------------------

    def stage(self, now: Incarnation, event: Stage) -> str:
        """Keep a part of a push until it is decided.

        Raises:
            InvalidArgumentError, NotFoundError, FailedPreconditionError: As VariableStore.check. Nothing is
                changed here, and the push is not admitted anywhere.
        """
        now.check(event.incarnation, event.push.client)
        push, parts = event.push, event.parts
        if now.ledger is not None:
            raise InvalidArgumentError("The sequencer gets its part with PUSH; only other PS tasks stage one.")
        if event.not_finite or push in now.staged or push in now.replies:
            return event.not_finite
        if event.step and not self._resources.replaying:
            half = self._resources.budget.half
            if not now.contributions.has_room(event.step, event.unit, parts, half):
                raise ResourceExhaustedError(_no_room(now, event.step, half), retry_secs=RETRY_SECS)
        self._claim(now, push, parts)
        self._take_in(now, push, parts, event.step, event.unit)
        now.log.append(event)
        return ""

    def _claim(self, now: Incarnation, push: PushId, parts: PushParts) -> None:
        """Claim what a part takes that waits for its decision; for it replies go that nobody has fetched.

        Raises:
            ResourceExhaustedError: If there is no memory, or its client has too many parts here.
        """
        staged, budget, forced = now.staged, self._resources.budget, self._resources.replaying
        many = len(staged) >= _MOST_PARTS and not forced
        if many and sum(one.client == push.client for one in staged) >= _MOST_PARTS:
            raise ResourceExhaustedError(
                f"{_MOST_PARTS} parts of client {push.client} wait here to be decided on, the most for one.",
                retry_secs=RETRY_SECS,
            )
        account = parts.account or Account(budget, push.client)
        layout, items = parts.layout, len(parts.reads)
        if layout is None or layout.claim is None:
            items += len(parts.ops if layout is None else layout.ops)
        else:
            items = 0  # its stream has claimed them
        besides = _PART_BYTES * (1 + items)
        data = () if parts.data is None else (parts.data,)
        while (claim := budget.keep(Kind.PART, account, data, besides, forced)) is None:
            if not now.replies.let_go_oldest():
                raise budget.refusal(Kind.PART, account, besides + sum(one.nbytes for one in data))
        parts.claim = claim

    def _claim_decision(self, ledger: Ledger, asked: Push) -> MemoryClaim | None:
        """Claim what a decision takes until the other PS tasks have applied it, where they have not applied many.

        Raises:
            ResourceExhaustedError: If there is no memory.
        """
        if ledger.unfinished < _MANY_DECISIONS or self._resources.replaying:
            return None
        budget = self._resources.budget
        account = asked.parts.account or Account(budget, asked.push.client)
        return budget.claim(Kind.PART, account, _DECISION_BYTES * len(asked.others))

    def _take_in(self, now: Incarnation, push: PushId, parts: PushParts, step: str = "", unit: int = 0) -> None:
        """Check a part, and keep it."""
        layout, rows, store = parts.layout, parts.rows, now.store
        if rows is not None and rows.version == store.version:
            rows.check(parts.ops, parts.reads, store.declaration, store.most_read_bytes)
        elif layout is None or layout.plan is None or layout.plan.version != store.version:
            if layout is not None and parts.data is not None:
                parts.ops = parts.ops or layout.bind(parts.data)
                layout.plan = store.plan(parts.ops, parts.reads, parts.data)
            else:
                store.check(parts.ops, parts.reads)
            steps = now.ledger.steps if now.ledger is not None else {}
            _check_steps(parts.ops, steps)
            if rows is not None:
                rows.version = store.version
        if now.log.keeps_data and parts.data is not None:
            parts.data = parts.data.toreadonly()
        now.staged[push] = Staged(parts, self._resources.clock.monotonic(), step, unit)

    def overdue(self, now: Incarnation, silent_secs: float, longest_secs: float) -> list[PushId]:
        """Parts that have waited for a decision too long; see Shard.overdue."""
        at = self._resources.clock.monotonic()
        presence = self._resources.members.presence
        waited = {push: at - staged.since for push, staged in now.staged.items()}
        return [
            push
            for push, secs in waited.items()
            if secs > longest_secs or (secs > silent_secs and presence.silent_secs(push.client) > silent_secs)
        ]

    # ---- Admission ----------------------------------------------------------------------------

    def push(self, now: Incarnation, event: Push) -> Admission:
        """Decide on a push: give it its place, and apply the part that is here; or refuse it.

        Returns:
            The outcome, what to tell the other participants, and the sequencer's own reads.

        Raises:
            FailedPreconditionError: If this is not the sequencer.
            InvalidArgumentError: If the part, a step, shard or hyper-parameter cannot be. Nothing is changed.
        """
        now.check(event.incarnation, event.push.client)
        ledger = now.sequencing()
        push, others, is_push = event.push, event.others, event.kind is EntryKind.PUSH
        if others:
            self.raise_floors(now, event.floors)
            if min(others) < 0 or max(others) >= now.shards or now.shard in others:
                raise InvalidArgumentError(
                    f"A push to PS tasks {list(others)} besides the sequencer, {now.shard}, of {now.shards} tasks."
                )
        earlier = ledger.table.recorded(push)
        if earlier is not None:
            self._count_again(ledger, push, earlier)
            return self._admission(now, ledger, earlier, event)
        participants = (now.shard, *others)
        try:
            if is_push and not event.not_finite:
                self._take_in(now, push, event.parts)
            examined = self._examine(now, ledger, event, participants)
            claim = self._claim_decision(ledger, event) if others else None
        except Exception:
            now.staged.pop(push, None)
            if is_push and others:
                # Its client takes the other parts back: no copy of this message may be admitted without them.
                ledger.settle([push], now.shard, now.applied)
                now.log.append(Resolve(event.incarnation, [push], now.shard, now.applied))
            raise
        # A snapshot holds the ledger as it was before.
        dumped = no_ledger if is_push else ledger.dumped_later()
        try:
            outcome, entry = self._accept(now, ledger, event, participants, examined)
            if claim is not None and entry is not None:
                ledger.hold(claim)
            if entry is not None:
                self._applier.apply_entry(now, entry, event.uses, dumped)
            if now.log is not NO_LOG:
                raised, now.raised = now.raised, {}
                self._log(now, event, outcome, raised, event.parts if is_push and entry is not None else None)
                if not is_push:
                    now.log.begin_base(push, now.image())
        except BaseException as error:
            self._resources.fail_stop.failed(push, error)
            raise
        return Admission(outcome) if entry is None else self._admission(now, ledger, outcome, event)

    def count(self, now: Incarnation, event: CountTogether) -> list[Outcome | Exception]:
        """Admit pushes that only count, one after another, with one change of the step's value."""
        done: list[Outcome | Exception] = []
        try:
            for item in event.pushes:
                try:
                    done.append(self._count_one(now, item))
                except Exception as error:
                    done.append(error)
        finally:
            if now.ledger is not None:
                try:
                    now.store.set_steps(now.ledger.steps)
                except BaseException as error:
                    self._resources.fail_stop.failed("A push that counts", error)
                    raise
        return done

    def _count_one(self, now: Incarnation, item: Push) -> Outcome:
        """Decide on a push that only counts, without changing the step's value."""
        now.check(item.incarnation, item.push.client)
        ledger = now.sequencing()
        earlier = ledger.table.recorded(item.push)
        if earlier is not None:
            self._count_again(ledger, item.push, earlier)
            return earlier
        examined = self._examine(now, ledger, item, (now.shard,))
        try:
            outcome, _ = self._accept(now, ledger, item, (now.shard,), examined)
            if outcome.kind is OutcomeKind.ACCEPTED:
                now.applied = outcome.index
                # The reads of the client's last push have been given out.
                now.replies.drop(item.push.client)
            if now.log is not NO_LOG:
                self._log(now, item, outcome, {}, None)
        except BaseException as error:
            self._resources.fail_stop.failed(item.push, error)
            raise
        return outcome

    def decide_again(self, now: Incarnation, event: Decided) -> Outcome:
        """Decide once more what a log says was decided; gives the outcome that it leads to now."""
        push, was = event.push, event.outcome
        self._resources.members.presence.heard(push.client, event.task, 1.0)
        ledger = now.sequencing()
        if was.kind is not OutcomeKind.ACCEPTED:
            closes = any(item.closes for item in event.increments)
            ledger.refuse(push, was.kind, was.staleness, was.not_finite, closes)
            return was
        floors = {shard: Floor(index) for shard, index in event.floors.items()}
        self.raise_floors(now, floors)
        parts = event.parts or PushParts()
        asked = Push(
            now.number, push, parts, event.increments, event.uses, event.seen_steps, event.others, kind=event.kind
        )
        return self.push(now, asked).outcome

    def _count_again(self, ledger: Ledger, push: PushId, outcome: Outcome) -> None:
        """Count a push that came again, and note its outcome in the journal once more."""
        self._resources.statistics.duplicates += 1
        if ledger.journal is not None:
            ledger.journal.duplicate(push, outcome)

    def _examine(self, now: Incarnation, ledger: Ledger, asked: Push, participants: Sequence[int]) -> _Examined:
        """Find everything that could be wrong before anything is decided; evaluate hyper-parameters."""
        push, increments, store = asked.push, asked.increments, now.store
        if ledger.table.many and not self._resources.replaying:
            self._make_place(ledger, push.client)
        ledger.check_increments(increments)
        if asked.kind is EntryKind.SNAPSHOT and not self._resources.replaying:
            clients = self._resources.members.presence.clients()
            now.snapshots.check_count({push.client, *(view.client for view in clients)}, _MOST_SNAPSHOTS)
        contribution = None
        for item in increments:
            if item.contributions:
                check_contribution(item, increments, asked.seen_steps)
                contribution = item
        # One that is late need not be like those that are there: another step may be of other Variables.
        joins = contribution is not None and asked.seen_steps[contribution.step] == ledger.steps[contribution.step]
        if contribution is not None and joins:
            ledger.aggregates.check(contribution, ledger.steps[contribution.step], participants)
        after = dict(ledger.steps)
        for item in increments:
            step = item.step
            held = store.step(step)
            after[step] += item.by
            # Nearly all steps are int64, and nowhere near its ends.
            if held.dtype != _INT64 or not -_FAR < after[step] < _FAR or not -_FAR < item.by < _FAR:
                check_step(step, held, ledger.steps[step], after[step])
        if asked.not_finite:
            # Nothing is going to be applied, and nothing has been kept but this name.
            if store.declaration(asked.not_finite) is None and not store.trained_by(asked.not_finite):
                raise InvalidArgumentError(
                    f"Push {push} is said to have a gradient of {shown(asked.not_finite)} that is not finite; no "
                    "Variable of that name is declared here, and no optimizer trains one."
                )
            return (), contribution
        staged = now.staged.get(push)
        hypers: tuple[HyperValues, ...] = ()
        for use in asked.uses:
            hypers += (evaluate_use(use, after if use.after_increment else ledger.steps, store),)
        if staged is not None:
            layout = staged.parts.layout
            if layout is not None and layout.uses is not asked.uses:
                layout = None  # what it uses came with this push
            if layout is None or layout.covered != store.version:
                check_covered(staged.parts.optimizers, hypers, store)
                if layout is not None:
                    layout.covered = store.version
        if contribution is not None and joins:
            check_covered(now.contributions.optimizers(contribution.step), hypers, store)
            if not self._resources.replaying:
                self._check_contributed(now, ledger, contribution, asked.parts)
        return hypers, contribution

    def _check_contributed(self, now: Incarnation, ledger: Ledger, wanted: Increment, parts: PushParts) -> None:
        """Refuse a contribution that would be kept where there is no memory for it.

        The sums may have as much as the values. One that completes its step frees memory.

        Raises:
            ResourceExhaustedError: If there is none, until a step is made. Nothing is changed.
        """
        most = self._resources.budget.half
        if not (
            now.contributions.has_room(wanted.step, wanted.unit, parts, most)
            or ledger.aggregates.is_last(wanted, ledger.steps[wanted.step])
        ):
            raise ResourceExhaustedError(_no_room(now, wanted.step, most), retry_secs=RETRY_SECS)

    def _make_place(self, ledger: Ledger, client: str) -> None:
        """Have a place for a client's pushes in the table.

        Raises:
            ResourceExhaustedError: If there is none. Nothing is changed.
        """
        if ledger.table.crowded(self._resources.clock.monotonic()):  # clients that push once and are not heard of again
            self._resources.forget_gone(ledger)
        ledger.table.check_capacity(client)

    def _log(
        self, now: Incarnation, asked: Push, outcome: Outcome, raised: Mapping[int, int], parts: PushParts | None
    ) -> None:
        """Append a decision to the log, with the part that was applied."""
        task = self._resources.members.presence.task_of(asked.push.client)
        now.log.append(
            Decided(
                asked.incarnation, asked.push, asked.kind, asked.others, asked.increments, asked.uses,
                asked.seen_steps, raised, parts, outcome, task,
            )
        )  # fmt: skip

    def _accept(
        self, now: Incarnation, ledger: Ledger, asked: Push, participants: Sequence[int], examined: _Examined
    ) -> tuple[Outcome, Entry | None]:
        """Accept a push that was examined, or refuse it; in the ledger only. Gives its entry, if it is accepted."""
        push, increments, seen_steps = asked.push, asked.increments, asked.seen_steps
        lag = ledger.staleness(increments, seen_steps)
        staleness = lag or 0
        statistics = self._resources.statistics
        late, (hypers, contribution) = None, examined
        if contribution is not None:
            late = self.closing.is_late(now, ledger, asked, contribution)
        refused = refusal(now.policy, ledger, increments, staleness, asked.not_finite, late)
        if now.leads is not None:
            self._count_lead(now.leads, asked, refused)
        if refused is not None:
            now.staged.pop(push, None)
            statistics.refuse(refused)
            closes = contribution is not None and contribution.closes
            statistics.late += refused is OutcomeKind.LATE and not closes
            return ledger.refuse(push, refused, staleness, asked.not_finite, closes), None
        kind, place, counted = asked.kind, None, None
        if contribution is not None:
            counted = self.closing.count(now, ledger, asked, contribution, participants)
            kind, place = counted.kind, counted.place
            if not kind.closes:
                increments, hypers = (), ()
        elif staleness > 0:
            hypers = scaled(now.policy, hypers, staleness)
        outcome = ledger.admit(push, kind, participants, increments, hypers, staleness, place)
        entry = Entry(outcome.index, kind, push, now.applied, hypers, place=place)
        if counted is not None:
            counted.write_down(ledger, push, outcome.index)
        if asked.others_read and not (asked.increments or asked.uses or asked.parts.changes):
            statistics.read()  # no shard changes anything
        elif asked.kind is EntryKind.PUSH:
            statistics.accept(lag)
            if increments or contribution is not None:
                self._presence.pushed(push.client, outcome.steps, staleness)
        return outcome, entry

    def _count_lead(self, leads: Leads, asked: Push, refused: OutcomeKind | None) -> None:
        """Count an iteration of a worker, even if its gradient was dropped."""
        if asked.increments and refused in (None, OutcomeKind.DROPPED_NAN):
            leads.count(asked.push.client, self._resources.clock.monotonic())

    def _admission(self, now: Incarnation, ledger: Ledger, outcome: Outcome, event: Push) -> Admission:
        answer = self._applier.answer(now, event.push, event.parts.buffer)
        if not event.others:
            return Admission(outcome, answer=answer)
        return Admission(outcome, {shard: ledger.pending(shard, outcome.index) for shard in event.others}, answer)

    # ---- What other shards have applied -------------------------------------------------------

    def raise_floors(self, now: Incarnation, floors: Mapping[int, Floor] | None) -> None:
        """Take note of low-water marks that are news.

        What a shard has applied counts as visible, and its entries are kept for it no more.

        Raises:
            InvalidArgumentError: If there is no such shard or index. Nothing is changed.
            PermissionDeniedError: If the shard has not signed it. Nothing is changed.
        """
        ledger = now.ledger
        if not floors or ledger is None:
            return
        news: list[tuple[int, int]] = []
        for shard, floor in floors.items():
            if ledger.is_news(shard, floor.index):
                if not (self._resources.replaying or now.signer.is_floor(shard, floor)):
                    raise PermissionDeniedError(
                        f"The report that PS task {shard} has applied entry {floor.index} lacks that task's signature: "
                        "pass on the one of its CommitReply."
                    )
                news.append((shard, floor.index))
        for shard, index in news:
            if ledger.raise_floor(shard, index):
                now.raised[shard] = index

    def resolve(self, now: Incarnation, event: Resolve) -> list[Entry]:
        """Tell a shard what became of its overdue parts; see Ledger.settle."""
        now.check(event.incarnation, now.owner)
        ledger = now.sequencing()
        if ledger.raise_floor(event.shard, event.applied):
            now.raised[event.shard] = event.applied
        try:
            settled = ledger.settle(event.pushes, event.shard, event.applied)
            if event.pushes:
                now.log.append(event)
        except BaseException as error:
            self._resources.fail_stop.failed("Settling", error)
            raise
        return settled


def _no_room(now: Incarnation, step: str, most_bytes: int) -> str:
    """Say why a contribution is refused."""
    return (
        f"The contributions to steps that are not made yet have {now.held_bytes:,} bytes on PS task "
        f"{now.shard}, beyond the {now.store.value_bytes:,} of the values and {most_bytes:,}, half of "
        f"--max-inflight-bytes: there is no memory for another one to step {shown(step)}. Wait until a step is made, "
        "or raise it."
    )


def _check_steps(ops: Sequence[Op], steps: Collection[str]) -> None:
    """Refuse changes of steps other than that one is assigned."""
    for op in ops:
        if op.variable in steps and (op.kind is not OpKind.ASSIGN or op.indices is not None):
            raise InvalidArgumentError(
                f"Step {op.variable!r} can be assigned, or moved on by an increment; not by {op.kind.name}."
            )
