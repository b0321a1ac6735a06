"""From a write-ahead log to the state that a shard had: everything that happened to it happens again.

A shard of its own takes it in. Only when the whole log has been read does anybody get to see it, so a log that is
damaged is never half loaded.

Layer: ps. Threads: functions; a Replay belongs to one thread.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from globalstep.cluster.run_identity import identity_of
from globalstep.errors import DataLossError, NotFoundError, PermissionDeniedError, UnavailableError, UnknownError
from globalstep.files.shard_file import ShardReader
from globalstep.files.storage import storage_for
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.ledger import entries
from globalstep.ps.ledger.journal import Journal
from globalstep.ps.ledger.ledger import Entry, EntryKind, Ledger
from globalstep.ps.ledger.ledger_image import ledger_of_image
from globalstep.ps.ledger.signatures import Floor
from globalstep.ps.members.presence import State
from globalstep.ps.shard.answers import Kept
from globalstep.ps.shard.layouts import PushParts
from globalstep.ps.shard.shard import Shard
from globalstep.ps.wal.log_file import LoggedRecord, readers, segment_path, segments_in
from globalstep.ps.wal.log_records import PartMemory
from globalstep.ps.wal.write_ahead_log import base_note_path, base_path
from globalstep.runtime.clock import Clock
from globalstep.wire import codec
from globalstep.wire.declarations import Op, OpKind, OutcomeKind, PushId, Read

__all__ = ["Replay", "ReplayedShard", "bases_in", "play_again"]

_log = logging.getLogger(__name__)


class ReplayedShard(Shard):
    """A shard that its log is played to.

    What it is told was admitted when it happened. It is not measured again by limits that depend on who else is there,
    and what fails is the replay's business: nobody else sees this shard before it is whole.

    Args:
        clock: As of Shard.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.fail_stop.armed = False

    def _check_staging(self, push: PushId, parts: PushParts) -> None:
        """There was room when it came."""

    def _check_snapshots(self, client: str) -> None:
        """There were not too many when it was taken."""

    def _forget_gone(self, ledger: Ledger) -> None:
        """Clients that are here are not known to be: nobody is forgotten before they could say so."""

    def _make_place(self, ledger: Ledger, client: str) -> None:
        """There was one when it came."""

    def _check_signed(self, entry: Entry) -> None:
        """It was, when it came."""

    def _check_floor(self, shard: int, floor: Floor) -> None:
        """It was, when it came."""

    def check_floors(self, floors: Mapping[int, int]) -> None:
        """Refuse a log whose end is missing, as far as that can be told from what shards are known to have applied.

        Args:
            floors: On the sequencer: what the other shards have applied. On another shard: what it has told the
                sequencer that it had applied itself.

        Raises:
            DataLossError: If it is. Nothing is changed.
        """
        with self._lock:
            if self._ledger is not None:
                self._ledger.check_floors(floors)
            elif self._applied < floors.get(self._shard, 0):
                raise DataLossError(
                    f"The log of PS task {self._shard} ends at entry {self._applied}, and the task had told the "
                    f"sequencer that it had applied entry {floors[self._shard]}: the end of the log is missing, "
                    "acknowledged pushes with it."
                )

    def refuse_again(self, push: PushId, kind: OutcomeKind, staleness: int, not_finite: str) -> None:
        """Record that a push was refused, for whatever reason."""
        with self._lock:
            self._staged.pop(push, None)
            self._sequencing().refuse(push, kind, staleness, not_finite)

    def apply_again(self, found: Sequence[Entry], dropped: Sequence[PushId]) -> None:
        """Apply entries that another shard admitted; drop parts."""
        self._make_room([entry.push for entry in found if entry.kind is EntryKind.SNAPSHOT])
        with self._lock:
            self._apply_entries(self._incarnation, PushId("", 0), found, dropped)

    def values(self) -> dict[str, npt.NDArray[Any]]:
        """Give a copy of every Variable that has a value."""
        with self._lock:
            return self._store.snapshot()

    def not_finite(self, names: Sequence[str]) -> list[str]:
        """Give those of some Variables, and of their slots, that are not finite."""
        with self._lock:
            slots = [slot for decl in self._store.optimizers for name in names for slot in decl.slots.get(name, ())]
            missing = set(self._store.uninitialized())
            found = [name for name in dict.fromkeys((*names, *slots)) if name not in missing]
            values = self._store.read([Read(name) for name in found])
        return [name for name, value in zip(found, values, strict=True) if not np.isfinite(value).all()]

    def resume(self, base: pb.LogBase, data: memoryview, values: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over what a shard held when a segment began; BEGIN has been done."""
        variables = [codec.decode_variable(item) for item in base.variables]
        with self._lock:
            self._state = State(base.state)
            self._store.declare(variables, [codec.decode_optimizer(item) for item in base.optimizers])
            changes = [Op(OpKind.ASSIGN, name, value=value) for name, value in values.items()]
            self._store.check(changes)
            self._store.apply(changes, {})
            if base.ledger:
                self._ledger = ledger_of_image(base.ledger, self._shards, self._sequencer)
                self._ledger.incarnation, self._ledger.signer = self._incarnation, self._signer
                if self._run.directory:
                    life = f"{self.spent_incarnations}.{self._incarnation}"
                    self._ledger.journal = Journal(life, self._ledger, self.presence.task_of)
            self._applied = base.applied
            for item in base.kept:
                push = codec.decode_push_id(item.id)
                reads = [codec.decode_read(read, data) for read in item.reads]
                self._kept[push.client] = Kept(push, item.index, reads, None)


class Replay:
    """Plays a shard's log to a new shard.

    Args:
        directory: Of the shard's log.
        clock: For the new shard.
        before: Called with each record before it is played; says whether to go on.
        start: The segment to begin with; default the newest one that has a base.
        until: The last record that is believed; default all that are whole.

    Attributes:
        shard: What the log has been played to.
        begin: The BEGIN of the incarnation.
        pushes: How many pushes were applied.
        cut_bytes: Bytes of a torn end.
        segment: The last segment.
        next_number: The number of the next record.
        unsure: The last records, which are not known to be on the disk: a recovery copies them.
        damaged_base: What is wrong with the values that it was to begin with; "" where nothing is known to be.

    Raises:
        NotFoundError: If there is no log.
    """

    def __init__(
        self,
        directory: Path,
        clock: Clock,
        before: Callable[[Replay, pb.LogRecord, memoryview], bool] = lambda replay, record, data: True,
        start: int | None = None,
        until: int | None = None,
    ) -> None:
        self.directory = directory
        self.shard = ReplayedShard(clock)
        self.begin = pb.BeginRequest()
        self.pushes = 0
        self.cut_bytes = 0
        self.segment = 0
        self.next_number = 1
        self.unsure: list[LoggedRecord] = []
        self.damaged_base = ""
        self._before = before
        self._until = until
        self._parts = PartMemory()
        self._split_off: list[pb.LogRecord] = []
        segments = segments_in(directory)
        if not segments:
            raise NotFoundError(f"There is no write-ahead log in {directory}.")
        beginnings = bases_in(directory)
        if start is None and beginnings:
            start = beginnings[-1]
        if start is None:
            raise DataLossError(f"The log in {directory} has neither its beginning nor the values of a checkpoint.")
        self._segments = [segment for segment in segments if segment >= start]

    def run(self) -> None:
        """Play it, to its end or as far as `before` wants.

        Raises:
            DataLossError: If the log is damaged, or does not lead to what it says it led to, or if the values that it
                begins with are damaged or gone.
            UnavailableError: If they cannot be read now.
            OSError: If the log cannot be read now.
        """
        for record, logged in self._split_records():
            if not self._before(self, record, logged.data):
                return
            try:
                self._play(record, logged.data)
            except (DataLossError, NotFoundError, OSError, MemoryError):
                raise
            except (PermissionDeniedError, UnavailableError, UnknownError) as error:
                # Of the files of a base, which cannot be read now.
                raise UnavailableError(error.message) from error
            except Exception as error:
                raise DataLossError(
                    f"Record {logged.number} of the log in {self.directory} cannot be played again: {error}"
                ) from error

    def split_entries(self, record: pb.LogRecord) -> None:
        """Play only the first entry of a record that is about to be played, and the others as records after it."""
        for entry in record.entries.entries[1:]:
            self._split_off.append(pb.LogRecord(entries=pb.LogEntries(entries=[entry])))
        if self._split_off:
            self._split_off[-1].entries.dropped.extend(record.entries.dropped)
            del record.entries.dropped[:]
            del record.entries.entries[1:]

    def _split_records(self) -> Iterator[tuple[pb.LogRecord, LoggedRecord]]:
        for record, logged in self._records():
            yield record, logged
            while self._split_off:
                yield self._split_off.pop(0), logged

    def _records(self) -> Iterator[tuple[pb.LogRecord, LoggedRecord]]:
        for at, reader in enumerate(readers(self.directory, self._segments)):
            if at and (reader.segment != self.segment + 1 or reader.first != self.next_number):
                raise DataLossError(
                    f"The log in {self.directory} has a gap: segment {self.segment} ends before record "
                    f"{self.next_number}, segment {reader.segment} begins with record {reader.first}."
                )
            self.segment, self.next_number = reader.segment, reader.first
            self.unsure.clear()
            for logged in reader.records():
                if self._until is not None and logged.number > self._until:
                    break
                try:
                    record = pb.LogRecord.FromString(logged.head)
                except DecodeError as error:
                    raise DataLossError(
                        f"Record {logged.number} of the log in {self.directory} is whole, but no record: {error}."
                    ) from error
                self.next_number = logged.number + 1
                # What a replay begins with was synced before anybody could name the log, or its base.
                begins = at == 0 and logged.number == reader.first
                self.unsure = [late for late in self.unsure if late.number > reader.on_disk]
                if not begins:
                    self.unsure.append(logged)
                if not (at and record.WhichOneof("kind") == "base"):
                    yield record, logged
            self.cut_bytes = reader.cut_bytes

    def _play(self, record: pb.LogRecord, data: memoryview) -> None:
        kind = record.WhichOneof("kind")
        if kind is None:
            raise DataLossError(f"The log in {self.directory} has a record of a kind that this version does not know.")
        getattr(self, f"_play_{kind}")(getattr(record, kind), record, data)

    def _play_begin(self, message: pb.BeginRequest, record: pb.LogRecord, data: memoryview) -> None:
        self.begin = message
        self.shard.begin(
            message.incarnation,
            shard=message.shard,
            shards=message.shards,
            sequencer=message.sequencer,
            owner=message.owner,
            opened=message.open,
            sequencer_address=message.sequencer_address,
            expected_tasks=list(message.expected_tasks),
            ledger=message.ledger,
            policy=codec.decode_policy(message.policy),
            run=identity_of(message),
            key=message.key,
        )

    def _play_base(self, message: pb.LogBase, record: pb.LogRecord, data: memoryview) -> None:
        self._play_begin(message.begin, record, data)
        try:
            values = read_base(self.directory, self.segment)
        except (DataLossError, NotFoundError) as error:
            self.damaged_base = error.message
            raise DataLossError(
                f"The log in {self.directory} cannot be begun with: {error.message} Nothing was changed. With a copy "
                f"of {base_path(self.directory, self.segment).name} and of its .json from a backup in their place, it "
                "can. (RunPolicy(keep_log=True) keeps what a recovery needs to begin further back.)"
            ) from error
        self.shard.resume(message, data, values)

    def _play_declare(self, message: pb.DeclareRequest, record: pb.LogRecord, data: memoryview) -> None:
        self.shard.declare(
            message.incarnation,
            message.client,
            [codec.decode_variable(item) for item in message.variables],
            [codec.decode_optimizer(item) for item in message.optimizers],
        )

    def _play_open(self, message: pb.OpenRequest, record: pb.LogRecord, data: memoryview) -> None:
        self.shard.open(message.incarnation, message.client, [codec.decode_limit(item) for item in message.limits])

    def _play_leave(self, message: pb.LeaveRequest, record: pb.LogRecord, data: memoryview) -> None:
        self.shard.leave(message.client)

    def _play_finish(self, message: pb.FinishRequest, record: pb.LogRecord, data: memoryview) -> None:
        self.shard.finish(message.incarnation, message.client)

    def _play_release(self, message: pb.ReleaseSnapshotRequest, record: pb.LogRecord, data: memoryview) -> None:
        self.shard.release(message.incarnation, codec.decode_push_id(message.snapshot))

    def _play_stage(self, message: pb.LogStage, record: pb.LogRecord, data: memoryview) -> None:
        parts = self._parts.parts(record.part, data)
        self.shard.stage(self.begin.incarnation, codec.decode_push_id(message.id), parts)

    def _play_push(self, message: pb.LogPush, record: pb.LogRecord, data: memoryview) -> None:
        push, told = codec.decode_push_id(message.id), codec.decode_outcome(message.outcome)
        self.shard.presence.heard(push.client, message.task, 1.0)
        if told.kind is not OutcomeKind.ACCEPTED:
            self.shard.refuse_again(push, told.kind, told.staleness, told.not_finite)
            return
        if message.alone:
            self.shard.stage(self.begin.incarnation, push, self._parts.parts(record.part, data), alone=True)
        admission = self.shard.admit(
            self.begin.incarnation,
            push,
            EntryKind(message.kind),
            list(message.participants),
            codec.decode_increments(message.increments),
            [codec.decode_use(use) for use in message.uses],
            dict(message.seen_steps),
            {floor.shard: Floor(floor.index) for floor in message.floors},
            message.alone,
        )
        if admission.outcome != told:
            raise DataLossError(
                f"The log in {self.directory} does not lead where it led: {push} was {told} then, and is "
                f"{admission.outcome} now. Was it written by another version?"
            )
        self.pushes += message.kind == pb.ENTRY_PUSH

    def _play_entries(self, message: pb.LogEntries, record: pb.LogRecord, data: memoryview) -> None:
        found = [entries.decode(entry) for entry in message.entries]
        self.shard.apply_again(found, [codec.decode_push_id(push) for push in message.dropped])
        self.pushes += sum(entry.kind is EntryKind.PUSH for entry in found)

    def _play_settle(self, message: pb.SettleRequest, record: pb.LogRecord, data: memoryview) -> None:
        pushes = [codec.decode_push_id(push) for push in message.pushes]
        self.shard.settle(message.incarnation, pushes, message.shard, message.applied)


def play_again(directory: Path, clock: Clock, until: int | None = None) -> Replay:
    """Play a log to its end, from the newest base that is whole.

    Args:
        directory: Of the shard's log.
        clock: For the shard.
        until: The last record that is believed; default all that are whole.

    Raises:
        NotFoundError: If there is no log.
        DataLossError: If it is damaged, or if no base of it is whole.
        UnavailableError: If it cannot be read now.
        OSError: If it cannot be read now.
    """
    replay = Replay(directory, clock, until=until)
    for older in [*reversed(bases_in(directory)[:-1]), None]:
        try:
            replay.run()
            break
        except DataLossError:
            if not replay.damaged_base or older is None:
                raise
            _log.warning(
                "%s The log is played from further back, from %s: everything since then is there.",
                replay.damaged_base, segment_path(directory, older),
            )  # fmt: skip
        replay = Replay(directory, clock, start=older, until=until)
    return replay


def bases_in(directory: Path) -> list[int]:
    """Give the segments that a replay can begin with, in order: the first of all, and those with a base."""
    return [
        segment for segment in segments_in(directory) if segment == 1 or base_note_path(directory, segment).exists()
    ]


def read_base(directory: Path, segment: int) -> dict[str, npt.NDArray[Any]]:
    """Give the values that a shard held when a segment began.

    Raises:
        DataLossError: If they are not as they were written.
        NotFoundError: If they are gone.
    """
    path = base_path(directory, segment)
    note = base_note_path(directory, segment)
    try:
        checksums = {str(name): int(crc) for name, crc in json.loads(note.read_text()).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise DataLossError(f"{note} is damaged: {error}.") from error
    with ShardReader(storage_for(str(path)), str(path)) as reader:
        values = {name: reader.read(name) for name in checksums}
    for name, value in values.items():
        if zlib.crc32(value.reshape(-1).view(np.uint8).data) != checksums[name]:
            raise DataLossError(f"{path} is damaged: {name!r} is not what was written.")
    return values
