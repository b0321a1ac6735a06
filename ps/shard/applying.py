"""Applying an admitted push to the values: its changes, its reads, and the reply that is kept.

Layer: ps. Threads: used under the shard's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy.typing as npt

from globalstep.errors import AbortedError, InvalidArgumentError, OpError, PermissionDeniedError, ResourceExhaustedError
from globalstep.ps.budget import Account, ReplyBuffer
from globalstep.ps.ledger.ledger import AggregatePlace, Entry, EntryKind, Ledger
from globalstep.ps.shard.events import Applied
from globalstep.ps.shard.incarnation import Incarnation
from globalstep.ps.shard.layouts import PushParts
from globalstep.ps.shard.replies import Answer, Kept, Packing, bytes_of
from globalstep.ps.shard.resources import Resources
from globalstep.ps.store.arena import Total
from globalstep.ps.store.finite import ignoring_float_errors
from globalstep.ps.store.optimizer_table import advance_scalars, check_covered
from globalstep.ps.store.store import PushPlan
from globalstep.runtime.faults import AFTER, APPLY, BEFORE, CUT, NO_FAULTS
from globalstep.wire.declarations import Op, OpKind, OptimizerUse, PushId

Array = npt.NDArray[Any]

_NO_PARTS = PushParts()


def no_ledger() -> bytes:
    """What a shard that is not the sequencer has of one."""
    return b""


class Applier:
    """Applies entries to an incarnation's values.

    Args:
        resources: Of the shard.
    """

    def __init__(self, resources: Resources) -> None:
        self._resources = resources

    def apply_entries(
        self, now: Incarnation, brought_by: PushId, entries: Sequence[Entry], dropped: Sequence[PushId] = ()
    ) -> None:
        """Apply those that are new here; then drop parts that will never be admitted.

        Args:
            now: The incarnation.
            brought_by: The push whose client brought them; without a client where none did.
            entries: They, in order.
            dropped: Whose parts are dropped.

        Raises:
            InvalidArgumentError: On the sequencer, whose entries are its own. Nothing is changed.
            AbortedError: If an entry is missing between the last applied and these. Nothing is changed.
            PermissionDeniedError: If the sequencer has not signed an entry that is new here. Nothing is changed.
        """
        new: list[Entry] = []
        before = now.applied
        for entry in entries:
            if entry.index > before:
                self._check_entry(now, entry, before)
                before = entry.index
                new.append(entry)
        done: list[Entry] = []
        fail_stop = self._resources.fail_stop
        for entry in new:
            try:
                if entry.kind is not EntryKind.SNAPSHOT and not self._can_apply(now, entry):
                    if now.staged.pop(entry.push, None) is not None:
                        now.log.append(Applied(entry.push, (), (entry.push,)))
                    self._resources.of_nothing.append(entry.push)
                self.apply_entry(now, entry)
                done.append(entry)
                if entry.kind is EntryKind.SNAPSHOT:
                    now.log.append(Applied(brought_by, done))
                    now.log.begin_base(entry.push, now.image())
                    done = []
            except BaseException as error:
                fail_stop.failed(entry.push, error)
                raise
        for push in dropped:
            now.staged.pop(push, None)
        if done or dropped:
            try:
                now.log.append(Applied(brought_by, done, dropped))
            except BaseException as error:
                fail_stop.failed(brought_by, error)
                raise

    def _check_entry(self, now: Incarnation, entry: Entry, applied: int) -> None:
        """Refuse an entry that cannot be applied after entry `applied`. Changes nothing."""
        if now.ledger is not None:
            raise InvalidArgumentError(
                f"Entry {entry.index} was never admitted: this is the sequencer, and has come to {now.ledger.index}."
            )
        if not (self._resources.replaying or now.signer.is_entry(now.shard, entry)):
            raise PermissionDeniedError(
                f"Entry {entry.index} of push {entry.push} is not as the sequencer signed it for PS task "
                f"{now.shard}: pass on the entries of its replies unchanged."
            )
        if entry.previous > applied:
            raise AbortedError(
                f"Shard {now.shard} has applied entry {applied} and was sent {entry.index} after "
                f"{entry.previous}: entries are missing. Ask the sequencer again."
            )

    def _can_apply(self, now: Incarnation, entry: Entry) -> bool:
        """Whether the part of an admitted push is here, and the decision has all that applying it takes."""
        staged = now.staged.get(entry.push)
        if staged is not None and entry.place is not None and not self._resources.replaying:
            step, unit, most = entry.place.step, entry.place.unit, self._resources.budget.half
            # A part that was staged as another push's has not been refused for want of room.
            other = (staged.step, staged.unit) != (step, unit)
            if other and not now.contributions.has_room(step, unit, staged.parts, most):
                return False
        if entry.kind is EntryKind.CONTRIBUTION:
            return staged is not None  # its numbers come with what closes the aggregate
        try:
            if staged is not None:
                check_covered(staged.parts.optimizers, entry.hypers, now.store)
        except OpError:
            return False
        return staged is not None

    def apply_entry(
        self,
        now: Incarnation,
        entry: Entry,
        uses: Sequence[OptimizerUse] = (),
        ledger_dump: Callable[[], bytes] = no_ledger,
    ) -> None:
        """Do what an entry says, and take its reads; `previous` was checked.

        Everything that could fail was checked before; what fails all the same takes the shard out of service
        (`fail_stop`), so that no client sees a push that is applied in part.
        """
        faults = self._resources.faults
        snapshot = entry.kind is EntryKind.SNAPSHOT
        if faults is not NO_FAULTS:
            faults.at(BEFORE, CUT if snapshot else APPLY)
        now.applied = entry.index
        if snapshot:
            self._take_snapshot(now, entry.push, ledger_dump)
            return
        staged = now.staged.pop(entry.push, None)
        parts = changes = staged.parts if staged is not None else _NO_PARTS
        layout, total = parts.layout, None
        plan = layout.plan if layout is not None and parts.data is not None else None
        if plan is not None and plan.version != now.store.version:
            plan = None
        if entry.place is not None:
            changes, plan, total = self._contributed(now, entry, entry.place, parts, plan)
            if not entry.kind.closes:
                parts = _NO_PARTS  # what it reads is what its step makes
        hypers: dict[tuple[str, bool], Mapping[str, float]] = {}
        for item in entry.hypers:
            hypers[item.optimizer, item.after_increment] = item.values
        apply_secs = None
        if changes.changes:
            clock = self._resources.clock
            began = clock.monotonic()
            # What overflows becomes inf, as in TensorFlow; it must not stop midway.
            call = ignoring_float_errors.call
            if plan is not None and changes.data is not None:
                call(now.store.apply_plan, plan, hypers, changes.data, self._resources.cores, total)
            else:
                call(now.store.apply, changes.bound_ops(), hypers, changes.data)
            apply_secs = clock.monotonic() - began
            if total is not None:
                now.contributions.release(total)
        if now.ledger is not None and (entry.place is None or entry.kind.closes):
            self._move_on(now, now.ledger, parts.ops if entry.place is None else (), uses, hypers)
        if entry.place is not None and not parts.reads:
            plan = None
        self._keep(now, entry, parts, plan, apply_secs)
        if entry.place is not None:
            now.contributions.claim(self._resources.budget, now.store.value_bytes)
        if faults is not NO_FAULTS:
            faults.at(AFTER, APPLY)

    def _contributed(
        self, now: Incarnation, entry: Entry, place: AggregatePlace, parts: PushParts, plan: PushPlan | None
    ) -> tuple[PushParts, PushPlan | None, Total | None]:
        """Add a contribution to those that are held.

        Returns:
            The changes to make now, which are none unless the entry closes its aggregate; the plan that they are made
            by; and what is to be added to them first.
        """
        held, closes, layout, data = now.contributions, entry.kind.closes, parts.layout, parts.data
        counts = entry.kind is not EntryKind.CLOSING and not place.unit
        if plan is None or layout is None or data is None or not (counts and plan.runs):
            return PushParts(self._aggregated(now, entry, place, parts)), None, None
        if not closes:
            if held.add_alike(place.step, layout, plan.runs, data, place.contributions == 1):
                return _NO_PARTS, plan, None
        elif place.contributions > 1:
            # What is held beside a step's only contribution was for another value of it.
            total = held.close_alike(place.step, layout, place.contributions)
            if total is not None:
                return parts, plan, total
        return PushParts(self._aggregated(now, entry, place, parts)), None, None

    def _aggregated(self, now: Incarnation, entry: Entry, place: AggregatePlace, parts: PushParts) -> Sequence[Op]:
        """Add a contribution to those that are held; give the changes that the aggregate makes, if it is complete."""
        held = now.contributions
        if entry.kind is not EntryKind.CLOSING:
            held.add(place.step, parts.bound_ops(), place.contributions == 1, place.unit)
        if not entry.kind.closes:
            return ()
        changes = held.close(place.step, place.contributions)
        if now.ledger is not None:
            return changes  # examined before it was decided
        return [op for op in changes if self._is_covered(now, op, entry)]

    def _is_covered(self, now: Incarnation, op: Op, entry: Entry) -> bool:
        """Whether the decision has the numbers that one of an aggregate's changes is made with."""
        try:
            if op.kind is OpKind.APPLY:
                check_covered([(op.optimizer, op.after_increment)], entry.hypers, now.store)
        except OpError:
            self._resources.of_nothing.append(entry.push)
            return False
        return True

    def _take_snapshot(self, now: Incarnation, push: PushId, ledger_dump: Callable[[], bytes]) -> None:
        """Take a snapshot; clients that are gone are forgotten on the way."""
        presence = self._resources.members.presence
        here = {push.client, *(view.client for view in presence.clients())}
        now.snapshots.keep_of(here)
        expired = presence.expired()
        now.replies.trim(here, expired)
        if now.ledger is not None:
            self._resources.forget_gone(now.ledger)
        else:
            presence.forget(list(expired))
        now.snapshots.take(push, now.store, ledger_dump)

    def _keep(
        self, now: Incarnation, entry: Entry, parts: PushParts, plan: PushPlan | None, apply_secs: float | None
    ) -> None:
        """Take the reads of a push whose changes have just been made, keep its reply, and count it.

        The push is done, though there be no memory for its reads: its reply reads anew, or says that there is none.
        """
        values: list[Array] | None = []
        reads = parts.reads
        try:
            if reads and plan is not None and parts.data is not None:
                values = now.store.read_plan(plan, parts.data, parts.buffer)
            elif reads:
                values = now.store.read(reads, parts.buffer)
        except (MemoryError, ResourceExhaustedError):
            values = None
        packing = None if plan is None else Packing(plan.places, parts.known)
        changed = apply_secs is not None
        if apply_secs is not None:
            self._resources.statistics.apply(apply_secs)
            self._count_changes(parts)
        nbytes = bytes_of(reads) if reads else 0
        kept = Kept(entry.push, entry.index, reads, values, packing, apply_secs or 0.0, changed, False, nbytes)
        now.replies.keep(kept)
        # Values that the sequencer read after a change go out at once.
        later = bool(values) and (now.ledger is None or not changed)
        copied = values if values and later and (plan is None or plan.copied_bytes) else ()
        if kept.reads_bytes or copied:
            budget = self._resources.budget
            now.replies.claim(kept, copied, budget, parts.account or Account(budget, entry.push.client))
        elif later and parts.claim is not None:
            now.replies.hold(kept, parts.claim)

    def _count_changes(self, parts: PushParts) -> None:
        """Count a push for the Variables that it changed."""
        layout = parts.layout
        if layout is None:
            self._resources.changes.add(tuple(op.variable for op in parts.ops))
            return
        if layout.count is None or layout.count.over:
            layout.count = self._resources.changes.of(tuple(op.variable for op in layout.ops))
        layout.count.pushes += 1

    def _move_on(
        self,
        now: Incarnation,
        ledger: Ledger,
        ops: Sequence[Op],
        uses: Sequence[OptimizerUse],
        hypers: Mapping[tuple[str, bool], Mapping[str, float]],
    ) -> None:
        """On the sequencer: the steps and the optimizers' scalar state, after a push's own changes."""
        for op in ops:
            if op.variable in ledger.steps:
                ledger.assign_step(op.variable, int(now.store.step(op.variable)[0]))
        for use in uses:
            decl, rule = now.store.optimizer(use.optimizer)
            if use.finish and decl.scalars:
                advance_scalars(decl, rule, hypers[use.optimizer, use.after_increment], now.store)
        now.store.set_steps(ledger.steps)

    def answer(self, now: Incarnation, push: PushId, buffer: ReplyBuffer | None = None) -> Answer:
        """Give out the reads of a client's last push; what is read anew goes to the buffer."""
        kept = now.replies.get(push)
        if kept is None or kept.forgotten:
            return Answer(applied=now.applied)
        values = kept.values
        if values is None:  # a retry: its reply was lost, and the values have moved on since
            # With the steps as admitted, which other clients may not see yet.
            values = now.store.read(kept.reads, buffer) if kept.reads else []
            return Answer(kept.reads, values, None, now.applied, now.applied, kept.apply_secs)
        if kept.changed:
            now.replies.let_go(kept)
        return Answer(kept.reads, values, kept.packing, kept.index, now.applied, kept.apply_secs)
