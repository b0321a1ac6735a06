"""What is read of a PS task's state, and the snapshots of it that saves are made from.

The middle of the shard's state machine, between `ps/shard/life.py` and the pushes of `ps/shard/shard.py`. Pure of I/O.

Layer: ps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.errors import FailedPreconditionError, PermissionDeniedError
from globalstep.ps.ledger.journal import JournalPart
from globalstep.ps.ledger.ledger import Ledger
from globalstep.ps.ledger.signatures import Floor
from globalstep.ps.members.presence import State
from globalstep.ps.shard.declared import undeclared
from globalstep.ps.shard.life import Life
from globalstep.ps.store.reading import Room
from globalstep.ps.store.snapshots import Snapshots
from globalstep.wire.declarations import Increment, OptimizerUse, PushId, Read

__all__ = ["Cuts"]

Array = npt.NDArray[Any]

#: A chief that has been silent for so long is not waited for.
_CHIEF_SILENT_SECS = 5.0


class Cuts(Life):
    """A PS task's state with its reads and snapshots. Thread-safe: every public method takes the one lock.

    Args:
        clock: Tells how long clients have been silent.
    """

    def _drop(self) -> None:
        super()._drop()
        self._snapshots = Snapshots()
        # Floors that have risen since the witness was told of any: it is with the next decision.
        self._raised: dict[int, int] = {}

    def _take_over(self, other: Life) -> None:
        super()._take_over(other)
        assert isinstance(other, Cuts)
        self._snapshots = other._snapshots

    # ---- What is declared ---------------------------------------------------------------------

    @property
    def variable_count(self) -> int:
        """How many Variables are held, slots included."""
        return self._store.variable_count

    @property
    def value_bytes(self) -> int:
        """Bytes of all Variables and slots here."""
        return self._store.value_bytes

    def undeclared(self, increments: Sequence[Increment], uses: Sequence[OptimizerUse]) -> str:
        """Say what of a push's decision is not declared; see ps/shard/declared.py."""
        with self._lock:
            return undeclared(increments, uses, self._store)

    def limit_reads(self, most_bytes: int) -> None:
        """Have larger reads refused, before memory is taken for them."""
        with self._lock:
            self.most_read_bytes = self._store.most_read_bytes = most_bytes

    # ---- Reads --------------------------------------------------------------------------------

    def pull(
        self,
        incarnation: int,
        client: str,
        reads: Sequence[Read],
        floors: Mapping[int, Floor] | None = None,
        room: Room | None = None,
    ) -> tuple[list[Array], int]:
        """Read values in one piece.

        Returns:
            Copies of the values, and the last entry that they include.
        """
        with self._lock:
            self._check(incarnation, client)
            self._raise_floors(floors)
            return self._read(reads, room), self._applied

    def pull_cut(
        self,
        incarnation: int,
        client: str,
        reads: Sequence[Read],
        shards: Sequence[int],
        floors: Mapping[int, Floor] | None = None,
        room: Room | None = None,
    ) -> tuple[list[Array], int, dict[int, int]]:
        """Read values that may turn out to be one cut with those of other shards; steps are as admitted.

        Args:
            incarnation: As the caller knows it.
            client: Who asks.
            reads: What is wanted here.
            shards: The other shards.
            floors: What the caller knows the shards to have applied.
            room: Where values are to be put.

        Returns:
            Copies of the values, the last entry that they include, and, on the sequencer, the last entry of each of
            `shards` among those: if that is just the last entry that the shard's values include, they are one cut.
            None of them while pushes race.
        """
        with self._lock:
            self._check(incarnation, client)
            self._raise_floors(floors)
            last = {}
            if self._ledger is not None and not self._policy.hogwild:
                last = {shard: self._ledger.last_of(shard) for shard in shards}
            return self._store.read(reads, room), self._applied, last

    def global_steps(self, incarnation: int, floors: Mapping[int, Floor] | None = None) -> dict[str, int]:
        """Give the visible steps, after taking note of what shards have applied.

        Raises:
            FailedPreconditionError: If this is not the sequencer.
        """
        with self._lock:
            self._check(incarnation, self._owner)
            self._raise_floors(floors)
            return dict(self._sequencing().visible)

    def _raise_floors(self, floors: Mapping[int, Floor] | None) -> None:
        """Take note of floors that are news. Caller holds the lock.

        Raises:
            InvalidArgumentError: If there is no such shard or index. Nothing is changed.
            PermissionDeniedError: If the shard has not signed it. Nothing is changed.
        """
        ledger = self._ledger
        if not floors or ledger is None:
            return
        news: list[tuple[int, Floor]] = []
        for shard, floor in floors.items():
            if ledger.is_news(shard, floor.index):
                self._check_floor(shard, floor)
                news.append((shard, floor))
        for shard, floor in news:
            ledger.raise_floor(shard, floor.index)
            self._raised[shard] = floor.index

    def _check_floor(self, shard: int, floor: Floor) -> None:
        """Refuse a floor that the shard has not signed."""
        if not self._signer.is_floor(shard, floor):
            raise PermissionDeniedError(
                f"That PS task {shard} has applied entry {floor.index} counts only as it says so itself: pass on the "
                "signature of its CommitReply, which this is not."
            )

    def _read(self, reads: Sequence[Read], room: Room | None) -> list[Array]:
        values = self._store.read(reads, room)
        if self._ledger is not None:
            for at, read in enumerate(reads):
                if read.variable in self._ledger.visible:
                    values[at] = np.asarray(self._ledger.visible[read.variable], values[at].dtype)
        return values

    def _sequencing(self) -> Ledger:
        if self._ledger is None:
            raise FailedPreconditionError(
                f"PS task {self._shard} is not the sequencer of this run; PS task {self._sequencer} is."
            )
        return self._ledger

    def read_journal(
        self, incarnation: int, client: str, life: str, position: int, known_clients: int, after_index: int, most: int
    ) -> JournalPart:
        """Give what the sequencer wrote down of pushes; see Journal.read.

        Raises:
            FailedPreconditionError: If this is not the sequencer, or the run has no directory to keep a journal in.
        """
        with self._lock:
            self._check(incarnation, client)
            journal = self._sequencing().journal
            if journal is None:
                raise FailedPreconditionError("This run keeps no journal: it was begun without a directory.")
            return journal.read(life, position, known_clients, after_index, most)

    def moves_no_more(self, client: str) -> bool:
        """Whether no push of a client that is here now, but `client`, will move a step on."""
        with self._lock:
            return not self.presence.others(client) or (self._ledger is not None and self._ledger.limit_reached())

    # ---- Snapshots ----------------------------------------------------------------------------

    def _make_room(self, snapshots: Sequence[PushId]) -> None:
        """Have memory ready for snapshots that are not taken yet, so that none is taken under the lock."""
        if not snapshots:
            return

        def wanted() -> Sequence[Array]:
            with self._lock:
                return () if all(item in self._snapshots for item in snapshots) else self._store.arenas()

        self._snapshots.memory.prepare(wanted)

    def snapshot(self, incarnation: int, snapshot: PushId) -> tuple[dict[str, Array], bytes]:
        """Give a taken snapshot: the values, and on the sequencer the ledger at the cut; see Snapshots.get."""
        with self._lock:
            self._check(incarnation, snapshot.client)
            values, ledger = self._snapshots.get(snapshot)
        return values, ledger()

    def release(self, incarnation: int, snapshot: PushId) -> None:
        """Free a snapshot; one that is not there is no error."""
        with self._lock:
            self._check(incarnation, snapshot.client)
            self._snapshots.release(snapshot)
            self.witness.released(incarnation, snapshot)

    def awaits_checkpoint(self) -> bool:
        """Whether this task holds what a checkpoint would keep, and a chief is there who may save one."""
        with self._lock:
            chief = self.lease.view()
            # In the first seconds of a run a task may not have heard of its chief yet.
            silent_secs = chief.silent_secs if chief.holder else self._clock.monotonic() - self._begun_at
            keeps = self._state is State.READY and self._policy.durability == "checkpoint" and self._run.directory
            return bool(keeps) and silent_secs < _CHIEF_SILENT_SECS

    def over(self) -> bool:
        """Whether the job is done and nobody needs this task any more."""
        with self._lock:
            return self._state is State.DONE and self.presence.empty()
