"""One PS task's state machine: what it holds, what is staged, what was admitted.

Pure of I/O: time comes from a clock, messages are dataclasses. It joins the arrays (`ps/store/store.py`) and, on
the sequencer, the book (`ps/ledger/ledger.py`) under one lock, which is what makes a push, its id and its
increment one thing. docs/design/push-protocol.md is its specification.

Layer: ps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt

from globalstep.errors import FailedPreconditionError, InvalidArgumentError
from globalstep.ps.ledger.admission_policy import refusal, scaled
from globalstep.ps.ledger.ledger import Entry, EntryKind, HyperValues, Ledger
from globalstep.ps.ledger.signatures import Floor
from globalstep.ps.shard.answers import Admission, Answer, Staged
from globalstep.ps.shard.applying import Applying
from globalstep.ps.shard.holding import check_snapshots, check_staging, held_bytes
from globalstep.ps.shard.layouts import PushParts
from globalstep.ps.shard.life import Life
from globalstep.ps.store.checking import check_step
from globalstep.ps.store.finite import find_not_finite
from globalstep.ps.store.hypers import check_covered, evaluate_use
from globalstep.ps.store.snapshots import no_ledger
from globalstep.ps.wal.witness import Pushed
from globalstep.wire.declarations import Increment, OpKind, OptimizerUse, Outcome, OutcomeKind, PushId

__all__ = ["Shard"]

Array = npt.NDArray[Any]


class Shard(Applying):
    """A PS task's state and its data plane. Thread-safe: every public method takes the one lock.

    Args:
        clock: Tells how long parts have been staged and clients have been silent.
    """

    def _take_over(self, other: Life) -> None:
        super()._take_over(other)
        assert isinstance(other, Shard)
        self._staged, self._kept = other._staged, other._kept

    # ---- Pushes -------------------------------------------------------------------------------

    def stage(self, incarnation: int, push: PushId, parts: PushParts, alone: bool = False) -> str:
        """Keep a part of a push until it is decided; refuses one that could not be applied.

        Args:
            incarnation: As the caller knows it.
            push: The push's id.
            parts: What of it is this shard's.
            alone: This shard is the only participant, and is about to decide.

        Raises:
            InvalidArgumentError, NotFoundError, FailedPreconditionError: As VariableStore.check. Nothing is
                changed here, and the push is not admitted anywhere.
        """
        not_finite = find_not_finite(parts) if self._policy.on_nan != "apply" else ""
        with self._lock:
            self._check(incarnation, push.client)
            if not_finite:
                return not_finite
            kept = self._kept.get(push.client)
            if push in self._staged or (kept is not None and kept.push == push):
                return ""
            if not alone:
                self._check_staging(push, parts)
            layout = parts.layout
            if layout is not None and layout.plan is not None and layout.plan.version == self._store.version:
                self._take_in(incarnation, push, parts, alone)
                return ""
            if layout is not None and parts.data is not None:
                parts.ops = parts.ops or layout.bind(parts.data)
                layout.plan = self._store.plan(parts.ops, parts.reads, parts.data)
            else:
                self._store.check(parts.ops, parts.reads)
            steps = self._ledger.steps if self._ledger is not None else {}
            for op in parts.ops:
                if op.variable in steps and (op.kind is not OpKind.ASSIGN or op.indices is not None):
                    raise InvalidArgumentError(
                        f"Step {op.variable!r} can be assigned, or moved on by an increment; not by {op.kind.name}."
                    )
            self._take_in(incarnation, push, parts, alone)
            return ""

    def _check_staging(self, push: PushId, parts: PushParts) -> None:
        """Refuse a part for which there is no room now."""
        check_staging(self._staged, push, held_bytes(parts), self.most_held_bytes)

    def _check_snapshots(self, client: str) -> None:
        """Refuse a snapshot where there are too many."""
        check_snapshots(self._snapshots, {client, *(view.client for view in self.presence.clients())})

    def _take_in(self, incarnation: int, push: PushId, parts: PushParts, alone: bool) -> None:
        if self.witness.keeps_data and parts.data is not None:
            parts.data = parts.data.toreadonly()
        self._staged[push] = Staged(parts, self._clock.monotonic())
        if not alone:  # else it comes with the decision
            self.witness.staged(incarnation, push, parts)

    def push(
        self,
        incarnation: int,
        push: PushId,
        parts: PushParts,
        increments: Sequence[Increment],
        uses: Sequence[OptimizerUse],
        seen_steps: Mapping[str, int],
    ) -> Admission:
        """Do a whole push whose only participant is this shard: stage and admit in one."""
        found = self.stage(incarnation, push, parts, alone=True)
        reads_only = not (increments or uses or parts.changes)
        return self.admit(
            incarnation, push, EntryKind.PUSH, (), increments, uses, seen_steps, alone=True, not_finite=found,
            reads_only=reads_only,
        )  # fmt: skip

    def admit(
        self,
        incarnation: int,
        push: PushId,
        kind: EntryKind,
        participants: Sequence[int],
        increments: Sequence[Increment],
        uses: Sequence[OptimizerUse],
        seen_steps: Mapping[str, int],
        floors: Mapping[int, Floor] | None = None,
        alone: bool = False,
        not_finite: str = "",
        reads_only: bool = False,
    ) -> Admission:
        """Decide on a push: give it its place, or refuse it. On the sequencer only.

        Args:
            incarnation: As the caller knows it.
            push: Its id.
            kind: Push or snapshot.
            participants: Shards with a part in it; all others have staged theirs.
            increments: Steps to move on.
            uses: Optimizers whose hyper-parameters are to be evaluated.
            seen_steps: Steps that the worker computed from.
            floors: What the caller knows the shards to have applied.
            alone: This shard is the only participant.
            not_finite: A Variable whose gradient a participant has found not to be finite; "" for none.
            reads_only: No participant changes anything: it is counted as a read.

        Returns:
            The outcome, what to tell the participants, and the sequencer's own reads.

        Raises:
            FailedPreconditionError: If this is not the sequencer, or its own part was not staged.
            InvalidArgumentError: If a step, shard or hyper-parameter cannot be. Nothing is changed.
        """
        if kind is EntryKind.SNAPSHOT:
            self._make_room([push])
        with self._lock:
            self._check(incarnation, push.client)
            ledger = self._sequencing()
            self._raise_floors(floors)
            taking_part = (self._shard,) if alone else participants
            if not alone and any(not 0 <= shard < self._shards for shard in taking_part):
                raise InvalidArgumentError(f"A push with participants {list(participants)} of {self._shards} shards.")
            known = self._recorded(ledger, push)
            if known is not None:
                self._drop_part(incarnation, push, alone)
                return self._admission(ledger, known, push, taking_part)
            parts = self._staged[push].parts if alone and push in self._staged else None
            try:
                hypers = self._examine(ledger, push, kind, taking_part, increments, uses, bool(not_finite))
            except Exception:
                self._drop_part(incarnation, push, alone)
                if kind is EntryKind.PUSH and any(shard != self._shard for shard in taking_part):
                    # Its client takes the other parts back: no copy of this message may be admitted without them.
                    ledger.settle([push], self._shard, self._applied)
                    self.witness.settled(incarnation, [push], self._shard, self._applied)
                raise
            # A snapshot holds the ledger as it was before.
            dumped = ledger.dumped_later() if kind is EntryKind.SNAPSHOT else no_ledger
            with self.fail_stop.during(push):
                outcome, hypers = self._accept(
                    ledger, push, kind, taking_part, increments, seen_steps, hypers, not_finite, reads_only
                )
                if outcome.kind is OutcomeKind.ACCEPTED:
                    self._apply_entry(Entry(outcome.index, kind, push, self._applied, hypers), uses, dumped)
                task = self.presence.task_of(push.client)
                raised, self._raised = self._raised, {}
                asked = (increments, uses, seen_steps, raised, parts)
                self.witness.pushed(incarnation, Pushed(push, kind, participants, *asked, outcome, task))
                if kind is EntryKind.SNAPSHOT:
                    self.witness.cut(push, self._image())
            if outcome.kind is not OutcomeKind.ACCEPTED:
                return Admission(outcome)
            return self._admission(ledger, outcome, push, taking_part)

    def _recorded(self, ledger: Ledger, push: PushId) -> Outcome | None:
        """Give what was decided of a push that came before, and take note that it came again."""
        known = ledger.recorded(push)
        if known is not None:
            self._statistics.duplicates += 1
            if ledger.journal is not None:
                ledger.journal.duplicate(push, known)
        return known

    def _drop_part(self, incarnation: int, push: PushId, alone: bool) -> None:
        """Drop a part that will not be applied, and say so to whoever was told that it was staged."""
        if self._staged.pop(push, None) is not None and not alone:
            self.witness.applied(incarnation, push, (), (push,))

    def _accept(
        self,
        ledger: Ledger,
        push: PushId,
        kind: EntryKind,
        taking_part: Sequence[int],
        increments: Sequence[Increment],
        seen_steps: Mapping[str, int],
        hypers: tuple[HyperValues, ...],
        not_finite: str = "",
        reads_only: bool = False,
    ) -> tuple[Outcome, tuple[HyperValues, ...]]:
        """Accept a push that was examined, or refuse it; in the ledger only. Caller holds the lock."""
        staleness = ledger.staleness(increments, seen_steps)
        refused = refusal(self._policy, ledger, increments, staleness, not_finite)
        if refused is not None:
            self._staged.pop(push, None)
            self._statistics.refuse(refused)
            return ledger.refuse(push, refused, staleness, not_finite), ()
        hypers = scaled(self._policy, hypers, staleness)
        outcome = ledger.admit(push, kind, taking_part, increments, hypers, staleness)
        if reads_only:
            self._statistics.read()
        elif kind is EntryKind.PUSH:
            self._count(push, increments, seen_steps, staleness, outcome.steps)
        return outcome, hypers

    def _count(
        self,
        push: PushId,
        increments: Sequence[Increment],
        seen_steps: Mapping[str, int],
        staleness: int,
        steps: Mapping[str, int],
    ) -> None:
        """Keep the statistics of an accepted push."""
        known = any(item.step in seen_steps for item in increments)
        self._statistics.accept(staleness if known else None)
        if increments:
            self.presence.pushed(push.client, steps, staleness if known else 0)

    def _examine(
        self,
        ledger: Ledger,
        push: PushId,
        kind: EntryKind,
        participants: Sequence[int],
        increments: Sequence[Increment],
        uses: Sequence[OptimizerUse],
        no_part: bool,
    ) -> tuple[HyperValues, ...]:
        """Find everything that could be wrong before anything is decided; evaluate hyper-parameters."""
        self._make_place(ledger, push.client)
        ledger.check_increments(increments)
        if kind is EntryKind.SNAPSHOT:
            self._check_snapshots(push.client)
        for item in increments:
            self._store.scalar(item.step)
        after = dict(ledger.steps)
        for item in increments:
            after[item.step] += item.by
        for item in increments:
            check_step(item.step, self._store.step(item.step), ledger.steps[item.step], after[item.step])
        if no_part:
            return ()  # nothing is going to be applied, and nothing has been kept
        if kind is EntryKind.PUSH and self._shard in participants and push not in self._staged:
            raise FailedPreconditionError(f"Push {push} was not staged on the sequencer.")
        hypers = tuple(evaluate_use(use, after if use.after_increment else ledger.steps, self._store) for use in uses)
        staged = self._staged.get(push)
        if staged is not None:
            check_covered(staged.parts.optimizers, hypers, self._store)
        return hypers

    def _make_place(self, ledger: Ledger, client: str) -> None:
        """Have a place for a client's pushes in the table. Caller holds the lock.

        Raises:
            ResourceExhaustedError: If there is none. Nothing is changed.
        """
        if not ledger.table.many:
            return
        if ledger.table.crowded(self._clock.monotonic()):  # clients that push once and are not heard of again
            self._forget_gone(ledger)
        ledger.table.check_room(client)

    def _admission(self, ledger: Ledger, outcome: Outcome, push: PushId, participants: Sequence[int]) -> Admission:
        answer = self._answer(push)
        pending = {s: ledger.pending(s, outcome.index) for s in participants if s != self._shard}
        return Admission(outcome, pending, answer.reads, answer.values, answer.packing, answer.apply_secs, answer.as_of)

    def commit(self, incarnation: int, push: PushId, entries: Sequence[Entry]) -> Answer:
        """Apply what was admitted, in order; answer the reads that were staged with `push`.

        Where `push` is not among the entries, and is not applied, it was refused: its part is dropped.

        Returns:
            The values of right after `push`; on a retry after they were given out, those of now.

        Raises:
            AbortedError: If an entry is missing between the last applied and these.
            PermissionDeniedError: If the sequencer has not signed an entry that is new here. Nothing is applied.
        """
        self._make_room([entry.push for entry in entries if entry.kind is EntryKind.SNAPSHOT])
        with self._lock:
            self._check(incarnation, push.client)
            # What the sequencer does not tell of with the push's own COMMIT, it has not accepted.
            refused = push in self._staged and all(entry.push != push for entry in entries)
            self._apply_entries(incarnation, push, entries, (push,) if refused else ())
            answer = self._answer(push)
            answer.signature = self._signer.floor(self._shard, answer.applied)
            return answer

    # ---- Settling -----------------------------------------------------------------------------

    def overdue(self, silent_secs: float, longest_secs: float) -> list[PushId]:
        """Parts that have waited for a decision too long.

        Args:
            silent_secs: How long a part waits whose client gives no sign of life.
            longest_secs: How long one waits whose client does: it may be busy with the other parts.
        """
        with self._lock:
            now = self._clock.monotonic()
            waited = {push: now - staged.since for push, staged in self._staged.items()}
            return [
                push
                for push, secs in waited.items()
                if secs > longest_secs or (secs > silent_secs and self.presence.silent_secs(push.client) > silent_secs)
            ]

    def settle(self, incarnation: int, pushes: Sequence[PushId], shard: int, applied: int) -> list[Entry]:
        """On the sequencer: tell a shard what became of its overdue parts; see Ledger.settle."""
        with self._lock:
            self._check(incarnation, self._owner)
            ledger = self._sequencing()
            if ledger.is_news(shard, applied):
                ledger.raise_floor(shard, applied)
                self._raised[shard] = applied
            with self.fail_stop.during("Settling"):
                found = ledger.settle(pushes, shard, applied)
                if pushes:
                    self.witness.settled(incarnation, pushes, shard, applied)
            return found

    def falls_short(self, incarnation: int, floor: int) -> bool:
        """Drop the state of a shard that has applied less than it once told the sequencer; gives whether it has."""
        with self._lock:
            self._check(incarnation, self._owner)
            short = self._applied < floor
            if short:
                self._lose()
            return short

    def settled(self, incarnation: int, asked: Sequence[PushId], entries: Sequence[Entry]) -> int:
        """On another shard: act on the sequencer's answer; gives the last entry applied now."""
        with self._lock:
            self._check(incarnation, self._owner)
            self._apply_entries(incarnation, PushId("", 0), entries, asked)
            return self._applied
