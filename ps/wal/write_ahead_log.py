"""The write-ahead log of a shard: events are on disk before the task acknowledges them.

Records get their places in order under the shard's lock, by reference to the memory of the request: that is
quick. They are written, and brought to the disk, outside of it, by the first thread that waits for one of them,
for all that wait then (group commit). Meanwhile the next ones gather.

Layer: ps. Threads: any number at once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from globalstep.errors import LostStateError, ResourceExhaustedError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.shard.event_log import EventLog, Image
from globalstep.ps.shard.events import Event, Stage
from globalstep.ps.wal.log_file import (
    LOG_FILES,
    NO_ROOM,
    LogFiles,
    LoggedRecord,
    SegmentWriter,
    segment_path,
    segments_in,
)
from globalstep.ps.wal.log_lock import LogLock
from globalstep.ps.wal.log_records import Encoded, base_record, begin_record, encoder
from globalstep.runtime.waiting import Reminder
from globalstep.wire.declarations import PushId

_log = logging.getLogger(__name__)

_RESERVE = "reserve"
_RESERVE_BYTES = 4 << 20
#: After how long a call that found the disk full is to be tried again.
_FULL_RETRY_SECS = 0.5


@dataclass(frozen=True, slots=True)
class _Queued:
    number: int
    encode: Callable[[], Encoded]
    #: Whether a segment begins with it.
    begins: bool = False


@dataclass(frozen=True, slots=True)
class Beginning:
    """A place where a recovery can begin, once the values of the snapshot before it are in a file."""

    segment: int
    #: The last entry that a recovery from there writes nothing of to the run's journal; 0 where there is no journal.
    journal_index: int


@dataclass(frozen=True, slots=True)
class Continuation:
    """The place where a log goes on after a recovery has read it."""

    #: The segment to begin with; it must not be there yet.
    segment: int
    #: Number of its first record.
    first: int
    #: Records that it begins with, as the recovery read them; they are on the disk then.
    copied: Sequence[LoggedRecord]


_BEGINNING = Continuation(1, 1, ())


class WriteAheadLog(EventLog):
    """An event log that forgets nothing.

    Args:
        directory: Of this shard's log.
        begin: The BEGIN of the incarnation: the first record of its first segment.
        after: Where it goes on; by default it begins.
        files: Writes.
        held: The right to write it, which `close` gives back; default: it is taken here.

    Raises:
        UnavailableError: If another process writes it.
        OSError: If nothing can be written there.

    Attributes:
        directory: As given.
        on_failure: Called once, with the log, when it can no longer be written to.
        now: Tells for how long the disk has been full.
    """

    keeps_data = True

    def __init__(
        self,
        directory: Path,
        begin: pb.BeginRequest,
        after: Continuation = _BEGINNING,
        files: LogFiles = LOG_FILES,
        held: LogLock | None = None,
    ) -> None:
        self.directory = directory
        self._files = files
        segment = after.segment
        self.on_failure: Callable[[WriteAheadLog], None] = lambda log: None
        self.now: Callable[[], float] = time.monotonic
        # Of segments that are written no more, and may be needed; only the thread that commits adds to it.
        self._closed_bytes = {
            older: segment_path(directory, older).stat().st_size for older in segments_in(directory) if older < segment
        }
        # Only the thread that commits uses these two.
        self._held = held or LogLock(directory, files)
        try:
            self._writer = SegmentWriter(directory, segment, after.first, files, after.copied)
        except BaseException:
            self._held.close()
            raise
        self._segment = segment
        # Guards all below. A leaf, taken under the shard's lock; nothing is written under it.
        self._changed = threading.Condition()
        self._queue: list[_Queued] = []
        self._last = self._on_disk = after.first - 1 + len(after.copied)
        # The thread that commits; 0 for none.
        self._committing = 0
        self._failure: BaseException | None = None
        self._retired = False
        # Why the disk is full; "" where it is not. Since when, and for how many bytes. How often it was full.
        self._full = ""
        self._full_since, self._full_bytes = 0.0, 0
        self._refusals = 0
        # Snapshot -> what begins right after it.
        self._begun_by: dict[PushId, Beginning] = {}
        self._newest_segment = segment
        keep_reserve(files, directory)
        if segment == 1:
            self._append(begin_record(begin))
        # For bases, whose ledger is another one.
        self._begin = pb.BeginRequest()
        self._begin.CopyFrom(begin)
        self._begin.ClearField("ledger")

    # ---- Events, in order; under the shard's lock ----------------------------------------------

    def append(self, event: Event[Any]) -> None:
        """See EventLog."""
        self._append(encoder(event))

    def begin_base(self, snapshot: PushId, image: Image) -> None:
        """See EventLog: a segment begins, with which a recovery can begin once the snapshot's values are in a file."""
        self._append(base_record(self._begin, snapshot, image), begins=True)
        ledger = image.ledger
        journal_index = ledger.index if ledger is not None and ledger.journal is not None else 0
        with self._changed:
            self._newest_segment += 1
            self._begun_by[snapshot] = Beginning(self._newest_segment, journal_index)
        for push, staged in image.staged.items():
            self.append(Stage(self._begin.incarnation, push, staged.parts, staged.step, staged.unit))

    def _append(self, encode: Callable[[], Encoded], begins: bool = False) -> None:
        with self._changed:
            self._last += 1
            if self._failure is None and not self._retired:
                self._queue.append(_Queued(self._last, encode, begins))

    # ---- To the disk ---------------------------------------------------------------------------

    def secure(self) -> None:
        """See EventLog."""
        with self._changed:
            if self._retired:
                return
            wanted, refusals = self._last, self._refusals
        batch: list[_Queued] | None = None
        try:
            while (batch := self._next_batch(wanted, refusals)) is not None:
                try:
                    self._write(batch)
                except OSError as error:
                    if not self._take_back(error, batch):
                        raise
                    continue
                self._written(batch)
        except ResourceExhaustedError:
            raise
        except BaseException as error:
            # Whatever it is, Ctrl-C too: no other thread has this batch, and none may wait for it for ever.
            if not self._give_up(error):
                raise
            # It may be long until a chief recovers, or begins anew.
            self._release()
            self.on_failure(self)
            if not isinstance(error, Exception):
                raise
            self._next_batch(wanted, refusals)

    def _written(self, batch: Sequence[_Queued]) -> None:
        with self._changed:
            was_full, self._full = self._full, ""
            self._committing = 0
            self._on_disk = batch[-1].number
            self._changed.notify_all()
        if was_full:
            _log.warning("There is room again for the write-ahead log in %s: calls go on.", self.directory)

    def _take_back(self, error: OSError, batch: list[_Queued]) -> bool:
        """Where only disk space is missing, have the batch wait in its place; False where something else is wrong.

        What was written of it is cut off, so nothing is lost: it is in memory, and the task has not acknowledged it.
        """
        if error.errno not in NO_ROOM:
            return False
        self._writer.take_back()
        wanted = sum(len(head) + sum(map(len, pieces)) for head, pieces in (queued.encode() for queued in batch))
        with self._changed:
            self._queue[:0] = batch
            for_a_save = any(queued.begins for queued in self._queue)
        # The reserve is for what a save needs, since a save is what shortens the log.
        spent = for_a_save and spend_reserve(self._files, self.directory)
        with self._changed:
            was_full, self._full = self._full, "" if spent else said(error)
            self._full_since, self._full_bytes = self._full_since if was_full else self.now(), wanted
            self._refusals += not spent
            self._committing = 0
            self._changed.notify_all()
        if not (spent or was_full):
            _log.error("%s", self._no_space())
        return True

    def _no_space(self) -> str:
        return (
            f"There is no room for the write-ahead log in {self.directory}: {self._full}. It has waited for "
            f"{self.now() - self._full_since:.0f} s; {self._full_bytes} bytes are to be written there, and "
            f"{_free_bytes(self.directory)} are free. Nothing is lost, and nothing is acknowledged: calls wait until "
            "there is space there, and are carried out once. Free some space."
        )

    def _give_up(self, error: BaseException) -> bool:
        """Take note that this thread failed to commit; False where it was not at that."""
        with self._changed:
            if self._committing != threading.get_ident():
                return False
            self._committing = 0
            self._failure = error
            self._queue.clear()
            self._changed.notify_all()
            return True

    def _next_batch(self, wanted: int, refusals: int) -> list[_Queued] | None:
        """Give what this thread is to write; None when what it waits for is on disk.

        Args:
            wanted: The last record that it waits for.
            refusals: How often the disk had been full when it came: a waiting thread raises when it is full again.
        """
        reminder = Reminder(lambda: f"the disk: the write-ahead log in {self.directory}")
        with self._changed:
            while self._on_disk < wanted and not self._retired:
                if isinstance(self._failure, LostStateError):
                    raise LostStateError(self._failure.message)
                if self._failure is not None:
                    raise LostStateError(
                        f"The write-ahead log in {self.directory} cannot be written: {said(self._failure)}. What was "
                        "not on disk is not applied, and this PS task serves nothing until it has recovered from the "
                        'log. Free space there, or use durability="checkpoint".'
                    )
                if self._refusals != refusals:
                    raise ResourceExhaustedError(self._no_space(), retry_secs=_FULL_RETRY_SECS)
                if not self._committing:
                    self._committing = threading.get_ident()
                    # A batch is of one segment.
                    ends = [at for at, queued in enumerate(self._queue) if at and queued.begins]
                    end = ends[0] if ends else len(self._queue)
                    batch, self._queue = self._queue[:end], self._queue[end:]
                    return batch
                reminder.wait(self._changed)
            return None

    def _write(self, batch: Sequence[_Queued]) -> None:
        first = batch[0]
        if first.begins and self._writer.first != first.number:
            writer = SegmentWriter(self.directory, self._segment + 1, first.number, self._files)
            self._writer.close()
            self._closed_bytes[self._segment] = self._writer.written_bytes
            self._writer = writer
            self._segment += 1
        for queued in batch:
            head, pieces = queued.encode()
            self._writer.write(queued.number, first.number - 1, head, pieces)
        self._writer.sync()
        self._held.check()

    @property
    def needed_bytes(self) -> int:
        """The bytes that a recovery may need: all since the newest stored checkpoint. Any thread may ask."""
        return self._writer.written_bytes + sum(list(self._closed_bytes.values()))

    def failed_in(self, segment: Path) -> bool:
        """Whether it failed while it wrote a segment; False where another process has begun a later one."""
        return self._failure is not None and self._writer.path == segment

    @property
    def on_disk(self) -> int:
        """The last record that a sync brought to the disk."""
        with self._changed:
            return self._on_disk

    def begun_by(self, snapshot: PushId) -> Beginning | None:
        """Give what begins right after a snapshot; None where there is nothing."""
        with self._changed:
            return self._begun_by.get(snapshot)

    def trim(self, segment: int, keep: bool = False) -> None:
        """Delete what was before a segment whose base is there, unless it is to be kept."""
        with self._changed:
            self._begun_by = {push: begun for push, begun in self._begun_by.items() if begun.segment > segment}
        for older in [number for number in list(self._closed_bytes) if number < segment]:
            self._closed_bytes.pop(older, None)
        if keep:
            return
        for older in [number for number in segments_in(self.directory) if number < segment]:
            for path in (base_note_path, base_path, segment_path):
                self._files.unlink(path(self.directory, older))
        self._files.sync_directory(self.directory)
        keep_reserve(self._files, self.directory)

    def close(self) -> None:
        """Write what is left, if that can be done, and close the file."""
        with contextlib.suppress(LostStateError, ResourceExhaustedError):
            self.secure()
        self._release()

    def retire(self) -> None:
        """Write no more, for good: the run is over, and what happens to it now need not be kept."""
        reminder = Reminder(lambda: f"the disk: the write-ahead log in {self.directory}, which is to be closed")
        with self._changed:
            self._retired = True
            self._queue.clear()
            self._changed.notify_all()
            while self._committing:
                reminder.wait(self._changed)
        self._release()
        with contextlib.suppress(OSError):
            spend_reserve(self._files, self.directory)

    def check_writer(self) -> None:
        """Make sure that no other process writes this log; see LogLock.check."""
        self._held.check()

    def _release(self) -> None:
        self._writer.close()
        self._held.close()


def keep_reserve(files: LogFiles, directory: Path) -> None:
    """Reserve some space on a log's disk, if there is any: so that a save, or a recovery, finds it."""
    path = directory / _RESERVE
    if path.exists():
        return
    try:
        file = files.create(path)
        try:
            files.allocate(file, 0, _RESERVE_BYTES)
        finally:
            files.close(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            files.unlink(path)
        _log.warning("No space is set aside for the write-ahead log in %s: %s", directory, error)


def spend_reserve(files: LogFiles, directory: Path) -> bool:
    """Free the reserved space; False if there is none."""
    path = directory / _RESERVE
    if not path.exists():
        return False
    files.unlink(path)
    return True


def _free_bytes(directory: Path) -> str:
    try:
        status = os.statvfs(directory)
    except OSError:
        return "an unknown number"
    return f"{status.f_bavail * status.f_frsize} bytes"


def said(error: BaseException) -> str:
    """Give what went wrong, for a person."""
    return str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"


def base_path(directory: Path, segment: int) -> Path:
    """Return the path of the values that a shard held when a segment began."""
    return directory / f"base-{segment:08d}.safetensors"


def base_note_path(directory: Path, segment: int) -> Path:
    """Return the path of these values' checksums; the file is written last."""
    return directory / f"base-{segment:08d}.json"
