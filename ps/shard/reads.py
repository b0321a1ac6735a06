"""Reads of an incarnation: values, steps, the journal, snapshots.

Layer: ps. Threads: used under the shard's lock, but for `prepare_room_for_made`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from globalstep.errors import FailedPreconditionError
from globalstep.ps.shard.events import GetSteps, Pull, ReadJournal, ReadMade, ReadSnapshot, Release
from globalstep.ps.shard.incarnation import Incarnation
from globalstep.ps.shard.replies import Answer, Packing, StepMade
from globalstep.ps.shard.sequencer import Sequencer
from globalstep.ps.store.store import read_now

if TYPE_CHECKING:
    from globalstep.ps.ledger.journal import JournalPart

Array = npt.NDArray[Any]
_NO_DATA = memoryview(b"")


def prepare_room_for_made(event: ReadMade) -> None:
    """Have room ready for what is read; to be called before the shard's lock is taken."""
    plan = event.layout.plan
    if event.buffer is not None and plan is not None:
        event.buffer.prepare(lambda: plan.read_bytes)


class StateReader:
    """Reads an incarnation.

    Args:
        sequencer: Takes note of low-water marks that come with a read.
    """

    def __init__(self, sequencer: Sequencer) -> None:
        self._sequencer = sequencer

    def pull(self, now: Incarnation, event: Pull) -> Answer:
        """See Pull."""
        now.check(event.incarnation, event.client)
        if event.floors:
            self._sequencer.raise_floors(now, event.floors)
        ledger, layout = now.ledger, event.layout
        hides = ledger is not None and not event.shards and ledger.visible != ledger.steps
        packing: Packing | None = None
        if layout is None or hides:
            values = now.store.read(event.reads, event.buffer) if event.reads else []
        else:
            plan = layout.plan
            if plan is None or plan.version != now.store.version:
                plan = layout.plan = now.store.plan((), event.reads, _NO_DATA)
            values, packing = read_now(plan, event.buffer), Packing(plan.places, event.known)
        answer = Answer(event.reads, values, packing, now.applied, now.applied)
        if ledger is not None and event.shards:
            answer.last = ledger.last_of(event.shards)
        if ledger is not None and hides:
            for at, read in enumerate(event.reads):
                if read.variable in ledger.visible:
                    values[at] = np.asarray(ledger.visible[read.variable], values[at].dtype)
        return answer

    def made(self, now: Incarnation, event: ReadMade) -> StepMade | None:
        """See ReadMade."""
        now.check(event.incarnation, event.client)
        ledger, plan = now.sequencing(), event.layout.plan
        visible = ledger.visible
        if visible.get(event.step, event.base) == event.base or visible != ledger.steps:
            return None
        if plan is None or plan.version != now.store.version:
            return None
        return StepMade(dict(visible), read_now(plan, event.buffer), plan.places)

    def steps(self, now: Incarnation, event: GetSteps) -> dict[str, int]:
        """See GetSteps.

        Raises:
            FailedPreconditionError: If this is not the sequencer.
        """
        now.check(event.incarnation, now.owner)
        self._sequencer.raise_floors(now, event.floors)
        return dict(now.sequencing().visible)

    def journal(self, now: Incarnation, event: ReadJournal) -> JournalPart:
        """See ReadJournal.

        Raises:
            FailedPreconditionError: If this is not the sequencer, or the run has no directory to keep a journal in.
        """
        now.check(event.incarnation, event.client)
        journal = now.sequencing().journal
        if journal is None:
            raise FailedPreconditionError("This run keeps no journal: it was begun without a directory.")
        return journal.read(event.life, event.position, event.known_clients, event.after_index, event.most)

    def snapshot(self, now: Incarnation, event: ReadSnapshot) -> tuple[dict[str, Array], Callable[[], bytes]]:
        """Give a snapshot's values, and what gives its ledger; that takes a while, and needs no lock."""
        now.check(event.incarnation, event.snapshot.client)
        return now.snapshots.get(event.snapshot)

    def release(self, now: Incarnation, event: Release) -> None:
        """Free a snapshot."""
        now.check(event.incarnation, event.snapshot.client)
        now.snapshots.release(event.snapshot)
        now.log.append(event)
