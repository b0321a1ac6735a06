"""How a PS task carries out what was decided: a push's changes, its reads, and what answers it.

The part of the shard's state machine between its reads (`ps/shard/cuts.py`) and its decisions (`ps/shard/shard.py`).
Pure of I/O.

Layer: ps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy.typing as npt

from globalstep.errors import (
    AbortedError,
    InvalidArgumentError,
    OpError,
    PermissionDeniedError,
    ResourceExhaustedError,
)
from globalstep.ps.ledger.ledger import Entry, EntryKind, Ledger
from globalstep.ps.shard.answers import Answer, Kept, Packing, Staged
from globalstep.ps.shard.cuts import Cuts
from globalstep.ps.shard.holding import trim_kept
from globalstep.ps.shard.layouts import PushParts
from globalstep.ps.shard.statistics import ChangeCounts, LoadView
from globalstep.ps.store.hypers import advance_scalars, check_covered
from globalstep.ps.store.ignoring import ignoring_float_errors
from globalstep.ps.store.reading import Room
from globalstep.ps.store.snapshots import no_ledger
from globalstep.ps.store.store import PushPlan
from globalstep.ps.wal.witness import Image
from globalstep.runtime.clock import Clock
from globalstep.testing.faults import AFTER, APPLY, BEFORE, CUT
from globalstep.wire.declarations import Op, OptimizerUse, PushId, Read

__all__ = ["Applying"]

Array = npt.NDArray[Any]

_OF_NOTHING_KEPT = 64


class Applying(Cuts):
    """A PS task's state and how it changes, once that is decided.

    Args:
        clock: Tells how long clients have been silent, and parts have been staged.

    Attributes:
        most_held_bytes: Of staged parts, and of kept answers.
        of_nothing: Admitted pushes whose parts were not here, so that nothing was applied; the last of them.
    """

    most_held_bytes = 1 << 62

    def __init__(self, clock: Clock) -> None:
        self._changes = ChangeCounts()
        self.of_nothing: deque[PushId] = deque(maxlen=_OF_NOTHING_KEPT)
        super().__init__(clock)

    def _drop(self) -> None:
        super()._drop()
        self._staged: dict[PushId, Staged] = {}
        self._kept: dict[str, Kept] = {}

    def _answer(self, push: PushId) -> Answer:
        """Give out the reads of a client's last push."""
        kept = self._kept.get(push.client)
        if kept is None or kept.push != push:
            return Answer(applied=self._applied)
        if kept.values is None:  # a retry: its reply was lost, and the values have moved on since
            values = self._read_admitted(kept.reads)
            return Answer(kept.reads, values, None, self._applied, self._applied, kept.apply_secs)
        values = kept.values
        if kept.changed:
            kept.values = None
        return Answer(kept.reads, values, kept.packing, kept.index, self._applied, kept.apply_secs)

    def _drop_kept(self, client: str) -> None:
        self._kept.pop(client, None)

    def _apply_entries(
        self, incarnation: int, brought_by: PushId, entries: Sequence[Entry], dropped: Sequence[PushId] = ()
    ) -> None:
        """Apply those that are new here; then drop parts that will never be admitted."""
        new: list[Entry] = []
        before = self._applied
        for entry in entries:
            if entry.index > before:
                self._check_entry(entry, before)
                before = entry.index
                new.append(entry)
        done: list[Entry] = []
        for entry in new:
            with self.fail_stop.during(entry.push):
                if entry.kind is EntryKind.PUSH and not self._can_apply(entry):
                    self._staged.pop(entry.push, None)
                    self.of_nothing.append(entry.push)
                self._apply_entry(entry)
                done.append(entry)
                if entry.kind is EntryKind.SNAPSHOT:
                    self.witness.applied(incarnation, brought_by, done)
                    self.witness.cut(entry.push, self._image())
                    done = []
        for push in dropped:
            self._staged.pop(push, None)
        if done or dropped:
            with self.fail_stop.during(brought_by):
                self.witness.applied(incarnation, brought_by, done, dropped)

    def _image(self) -> Image:
        return Image(self._state, self._applied, self._store, self._ledger, self._staged, self._kept)

    def _check_entry(self, entry: Entry, applied: int) -> None:
        """Refuse an entry that cannot be applied after entry `applied`. Changes nothing."""
        if self._ledger is not None:
            raise InvalidArgumentError(
                f"Entry {entry.index} was never admitted: this is the sequencer, and has come to {self._ledger.index}."
            )
        self._check_signed(entry)
        if entry.previous > applied:
            raise AbortedError(
                f"Shard {self._shard} has applied entry {applied} and was told of {entry.index} after "
                f"{entry.previous}: entries are missing. Ask the sequencer again."
            )

    def _check_signed(self, entry: Entry) -> None:
        """Refuse an entry that the sequencer has not signed."""
        if not self._signer.is_entry(self._shard, entry):
            raise PermissionDeniedError(
                f"Entry {entry.index} of push {entry.push} is not as the sequencer signed it for PS task "
                f"{self._shard}: entries of its replies are to be passed on as they are."
            )

    def _can_apply(self, entry: Entry) -> bool:
        """Whether the part of an admitted push is here, and the decision has all that applying it takes."""
        staged = self._staged.get(entry.push)
        try:
            if staged is not None:
                check_covered(staged.parts.optimizers, entry.hypers, self._store)
        except OpError:
            return False
        return staged is not None

    def _apply_entry(
        self, entry: Entry, uses: Sequence[OptimizerUse] = (), ledger_dump: Callable[[], bytes] = no_ledger
    ) -> None:
        """Do what an entry says, and take its reads. Caller holds the lock; `previous` was checked.

        Everything that could fail was checked before; what fails all the same takes the shard out of service
        (`fail_stop`), so that nobody sees a push that is applied in part.
        """
        self.faults.at(BEFORE, CUT if entry.kind is EntryKind.SNAPSHOT else APPLY)
        self._applied = entry.index
        if entry.kind is EntryKind.SNAPSHOT:
            here = {entry.push.client, *(view.client for view in self.presence.clients())}
            self._snapshots.keep_of(here)
            for client in self._kept.keys() - here:
                self._kept[client].values = None
            expired = self.presence.expired()
            for client in expired & self._kept.keys():
                del self._kept[client]
            if self._ledger is not None:
                self._forget_gone(self._ledger)
            else:
                self.presence.forget(list(expired))
            self._snapshots.take(entry.push, self._store, ledger_dump)
            return
        staged = self._staged.pop(entry.push, None)
        parts = staged.parts if staged is not None else PushParts()
        hypers = {(item.optimizer, item.after_increment): item.values for item in entry.hypers}
        plan, apply_secs = self._make_changes(parts, hypers)
        if self._ledger is not None:
            self._move_on(self._ledger, parts.ops, uses, hypers)
        self._keep(entry, parts, self._read_after(parts, plan), plan, apply_secs)
        self.faults.at(AFTER, APPLY)

    def _make_changes(
        self, parts: PushParts, hypers: Mapping[tuple[str, bool], Mapping[str, float]]
    ) -> tuple[PushPlan | None, float | None]:
        """Change the values; gives the plan that it followed, and how long it took: None where there was no change."""
        layout = parts.layout
        if layout is None and not parts.ops:
            return None, None  # a push that only counts
        plan = layout.plan if layout is not None else None
        if plan is not None and (parts.data is None or plan.version != self._store.version):
            plan = None
        if layout is not None and not layout.ops:
            return plan, None
        began = self._clock.monotonic()
        # What overflows becomes inf, as in TensorFlow; it must not stop midway.
        if plan is not None and parts.data is not None:
            ignoring_float_errors(self._store.apply_plan, plan, hypers, parts.data, self.cores)
        else:
            changes = parts.ops
            if not changes and layout is not None and parts.data is not None:
                changes = layout.bind(parts.data)
            ignoring_float_errors(self._store.apply, changes, hypers, parts.data)
        return plan, self._clock.monotonic() - began

    def _read_after(self, parts: PushParts, plan: PushPlan | None) -> list[Array] | None:
        """Take the reads of a push whose changes have just been made; None where there is no memory for them.

        The push is done all the same. Its answer reads anew, or says that there is no memory.
        """
        try:
            if plan is not None and parts.data is not None:
                return self._store.read_plan(plan, parts.data)
            return self._read_admitted(parts.reads, parts.room)
        except (MemoryError, ResourceExhaustedError):
            return None

    def _keep(
        self,
        entry: Entry,
        parts: PushParts,
        values: list[Array] | None,
        plan: PushPlan | None,
        apply_secs: float | None,
    ) -> None:
        """Keep what answers a push, and count it. Caller holds the lock."""
        packing = Packing(plan.places, parts.known) if plan is not None else None
        kept = Kept(entry.push, entry.index, parts.reads, values, packing, apply_secs or 0.0)
        kept.changed = apply_secs is not None
        if apply_secs is not None:
            self._statistics.apply(apply_secs)
            self._count_changes(parts)
        self._kept.pop(entry.push.client, None)  # the newest comes last
        self._kept[entry.push.client] = kept
        if not kept.changed:
            trim_kept(self._kept, self.most_held_bytes)

    def _count_changes(self, parts: PushParts) -> None:
        """Count a push for the Variables that it changed. Caller holds the lock."""
        layout = parts.layout
        if layout is None:
            self._changes.add(tuple(op.variable for op in parts.ops))
            return
        if layout.count is None or layout.count.over:
            layout.count = self._changes.of(tuple(op.variable for op in layout.ops))
        layout.count.pushes += 1

    def load(self, brief: bool = False) -> LoadView:
        """Say what this shard holds, what waits here, and which Variables pushes have changed.

        Args:
            brief: Leave out the Variables.
        """
        with self._lock:
            staged = [item.parts.data for item in self._staged.values()]
            return LoadView(
                self._store.nbytes(),
                len(staged),
                sum(data.nbytes for data in staged if data is not None),
                {} if brief else self._changes.by_variable(),
            )

    def _move_on(
        self,
        ledger: Ledger,
        ops: Sequence[Op],
        uses: Sequence[OptimizerUse],
        hypers: Mapping[tuple[str, bool], Mapping[str, float]],
    ) -> None:
        """On the sequencer: the steps and the optimizers' scalar state, after a push's own changes."""
        for op in ops:
            if op.variable in ledger.steps:
                ledger.assign_step(op.variable, int(self._store.step(op.variable)[0]))
        for use in uses:
            advance_scalars(use, hypers[use.optimizer, use.after_increment], self._store)
        self._store.set_steps(ledger.steps)

    def _read_admitted(self, reads: Sequence[Read], room: Room | None = None) -> list[Array]:
        """Values with the steps as admitted, which other clients may not see yet."""
        return self._store.read(reads, room) if reads else []
