"""Recovery: from a write-ahead log to the state that a shard had, event by event, through the same door.

A new shard handles the events. No other part of the task sees it before the whole log has been read, so a log that is
damaged is never half loaded.

Layer: ps. Threads: functions; a Replay belongs to one thread.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from globalstep.errors import DataLossError, NotFoundError, PermissionDeniedError, UnavailableError, UnknownError
from globalstep.files.shard_file import ShardReader
from globalstep.files.storage import storage_for
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.budget import Budget
from globalstep.ps.ledger.ledger import EntryKind
from globalstep.ps.service.beginning import begin_event
from globalstep.ps.shard.events import Applied, Decided
from globalstep.ps.shard.shard import Shard
from globalstep.ps.shard.validation import problems
from globalstep.ps.wal.log_file import LoggedRecord, readers, segment_path, segments_in
from globalstep.ps.wal.log_records import Records, resume_event
from globalstep.ps.wal.write_ahead_log import base_note_path, base_path
from globalstep.runtime.clock import Clock
from globalstep.wire.declarations import Outcome, OutcomeKind

_log = logging.getLogger(__name__)


class Replay:
    """Plays a shard's log to a new shard.

    Args:
        directory: Of the shard's log.
        clock: For the new shard.
        before: Called with each record before it is played; says whether to go on.
        start: The segment to begin with; default the newest one that has a base.
        until: The last record that is believed; default all that are whole.
        budget: See Shard.

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
        before: Callable[[pb.LogRecord], bool] = lambda record: True,
        start: int | None = None,
        until: int | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.directory = directory
        self.shard = Shard(clock, replaying=True, budget=budget)
        self.begin = pb.BeginRequest()
        self.pushes = 0
        self.cut_bytes = 0
        self.segment = 0
        self.next_number = 1
        self.unsure: list[LoggedRecord] = []
        self.damaged_base = ""
        self._before = before
        self._until = until
        self._records_of = Records(0)
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
        for record, logged in self._records():
            if not self._before(record):
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
        faults = problems(self.shard.now)
        if faults:
            raise DataLossError(
                f"The log in {self.directory} leads to a state that cannot be: {'; '.join(faults)}. Was it written by "
                "another version?"
            )

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
                # What a replay begins with was synced before any process could name the log, or its base.
                begins = at == 0 and logged.number == reader.first
                self.unsure = [late for late in self.unsure if late.number > reader.on_disk]
                if not begins:
                    self.unsure.append(logged)
                if not (at and record.WhichOneof("kind") == "base"):
                    yield record, logged
            self.cut_bytes = reader.cut_bytes

    def _play(self, record: pb.LogRecord, data: memoryview) -> None:
        if record.WhichOneof("kind") == "begin":
            self._begin(record.begin)
        elif record.WhichOneof("kind") == "base":
            self._resume(record.base, data)
        else:
            event = self._records_of.event(record, data)
            if event is None:
                raise DataLossError(
                    f"The log in {self.directory} has a record of a kind that this version does not know."
                )
            reply = self.shard.handle(event)
            if isinstance(event, Decided):
                self._check_outcome(event, reply)
                self.pushes += event.outcome.kind is OutcomeKind.ACCEPTED and event.kind is not EntryKind.SNAPSHOT
            elif isinstance(event, Applied):
                self.pushes += sum(entry.kind is not EntryKind.SNAPSHOT for entry in event.entries)

    def _begin(self, message: pb.BeginRequest) -> None:
        self.begin = message
        self._records_of = Records(message.incarnation)
        self.shard.handle(begin_event(message))

    def _resume(self, message: pb.LogBase, data: memoryview) -> None:
        self._begin(message.begin)
        try:
            values = read_base(self.directory, self.segment)
        except (DataLossError, NotFoundError) as error:
            self.damaged_base = error.message
            raise DataLossError(
                f"The log in {self.directory} cannot be used: {error.message} Nothing was changed. Put "
                f"{base_path(self.directory, self.segment).name} and its .json there from a backup, and it can be. "
                "(RunPolicy(keep_log=True) keeps what a recovery needs to begin further back.)"
            ) from error
        self.shard.handle(resume_event(message, data, values))

    def _check_outcome(self, event: Decided, outcome: Outcome) -> None:
        """Refuse a log that does not lead where it led."""
        if outcome != event.outcome:
            raise DataLossError(
                f"The log in {self.directory} does not lead where it led: {event.push} was {event.outcome} then, and "
                f"is {outcome} now. Was it written by another version?"
            )

    # ---- What it has led to ------------------------------------------------------------------

    def values(self) -> dict[str, npt.NDArray[Any]]:
        """Give a copy of every Variable that has a value."""
        return self.shard.now.store.snapshot()


def play_again(directory: Path, clock: Clock, until: int | None = None, budget: Budget | None = None) -> Replay:
    """Play a log to its end, from the newest base that is whole.

    Args:
        directory: Of the shard's log.
        clock: For the shard.
        until: The last record that is believed; default all that are whole.
        budget: See Shard.

    Raises:
        NotFoundError: If there is no log.
        DataLossError: If it is damaged, or if no base of it is whole.
        UnavailableError: If it cannot be read now.
        OSError: If it cannot be read now.
    """
    replay = Replay(directory, clock, until=until, budget=budget)
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
        replay = Replay(directory, clock, start=older, until=until, budget=budget)
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
