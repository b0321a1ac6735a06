"""A PS task's write-ahead log: its folder, its beginning and end, and recovery from it.

    RUN_DIR/log/INCARNATION/shard-K-of-N/segment-00000001.log ...
                                         base-00000002.safetensors, base-00000002.json
                                         run (its id), opened (says who the sequencer is), ended, keep,
                                         lock, writer (see ps/wal/log_lock.py)
    RUN_DIR/log/abandoned-INCARNATION/...: lives that were open when the run went on without them

`--log-dir DIR` puts DIR/ID-OF-THE-RUN in the place of RUN_DIR/log, for example on a fast disk of the task's own
machine. A base is the values that a snapshot copied; where the checkpoint that was made of them is on the same file
system, its file is linked to, so that a base costs nothing.

Layer: ps. Threads: any number at once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy.typing as npt

from globalstep.cluster.run_identity import RunIdentity, identity_of
from globalstep.errors import (
    AbortedError,
    DataLossError,
    FailedPreconditionError,
    NotFoundError,
    OpError,
    ResourceExhaustedError,
    UnavailableError,
)
from globalstep.files.shard_file import SavedTensor, write_shard
from globalstep.files.storage import atomic_write, storage_for
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.access.log_limit import LogLimit
from globalstep.ps.members.presence import State
from globalstep.ps.service.beginning import begin_with, check_begin
from globalstep.ps.service.handler import Handler
from globalstep.ps.shard.event_log import NO_LOG, EventLog
from globalstep.ps.shard.events import Adopt, Lose, ReadSnapshot
from globalstep.ps.shard.shard import Shard
from globalstep.ps.wal.log_file import NO_ROOM, LogFiles, segment_path, segments_in
from globalstep.ps.wal.log_lock import LogLock
from globalstep.ps.wal.recovery import Replay, play_again
from globalstep.ps.wal.write_ahead_log import Continuation, WriteAheadLog, base_note_path, base_path, spend_reserve
from globalstep.runtime.clock import Clock
from globalstep.wire import codec
from globalstep.wire.declarations import PushId

_log = logging.getLogger(__name__)

#: How often the chief is asked for a checkpoint, and how often it is said why.
_ASK_EVERY_SECS = 30.0
_WARN_EVERY_SECS = 600.0

T = TypeVar("T")

_OPENED = "opened"
_ENDED = "ended"
_KEEP = "keep"
_RUN = "run"
#: What a PS task puts before the number of a life whose log it moves aside.
ABANDONED = "abandoned-"
#: Files of snapshots that are not released; a shard holds fewer of these.
_MOST_WRITTEN = 8


@dataclass(frozen=True, slots=True)
class _WrittenFile:
    """A file of a checkpoint that this task has written."""

    path: Path
    checksums: Mapping[str, int]


class Durability:
    """The write-ahead log of one PS task, if its run wants one. Thread-safe.

    Args:
        handler: Of the task; it has the shard.
        clock: Tells how long a recovery takes.
        log_dir: Where logs are, in the place of RUN_DIR/log; "" for there.
        files: Writes them.
        changing: Held within BEGIN and RECOVER, one at a time; taken before the shard's lock.

    Attributes:
        most_bytes: Beyond it a log asks for a checkpoint, which makes it shorter; 0 for no limit.
    """

    def __init__(
        self,
        handler: Handler,
        clock: Clock,
        log_dir: str,
        files: LogFiles,
        changing: threading.Lock,
    ) -> None:
        self._handler = handler
        self._clock = clock
        self.most_bytes = 0
        self._asked = LogLimit(clock, _ASK_EVERY_SECS)
        self._warned = LogLimit(clock, _WARN_EVERY_SECS)
        self._log_dir = log_dir
        self._files = files
        # Files are made and read under it, too.
        self._changing = changing
        # Guards _written; a leaf.
        self._lock = threading.Lock()
        self._written: dict[PushId, _WrittenFile] = {}

    @property
    def _shard(self) -> Shard:
        return self._handler.shard

    def asks_for_save(self) -> bool:
        """Whether to ask the acting chief for a checkpoint now, because the log is over its limit; not too often."""
        log = self._shard.log
        if not self.most_bytes or not isinstance(log, WriteAheadLog) or log.needed_bytes <= self.most_bytes:
            return False
        if (more := self._warned.due("long")) is not None:
            _log.warning(
                "The write-ahead log in %s has %s bytes since the last checkpoint, over --max-log-bytes %s: the chief "
                "is asked for a checkpoint, which makes it shorter. If none comes, nothing saves: look at the chief's "
                "log, and at its checkpoint_dir; the write-ahead log goes on growing.%s",
                log.directory, f"{log.needed_bytes:,}", f"{self.most_bytes:,}", more,
            )  # fmt: skip
        return self._asked.due("save") is not None

    def begin(self, request: pb.BeginRequest) -> tuple[int, str]:
        """Begin an incarnation, with a log where its policy says so; see Begin.

        Raises:
            FailedPreconditionError: If there is no place for the log. Nothing is changed.
            AbortedError: If it was not meant for this process, or for its present life. Nothing is changed.
            InvalidArgumentError: If several shards get no key to sign with. Nothing is changed.
        """
        with self._changing:
            log: WriteAheadLog | None = None
            before = self._shard.log
            present = self._shard.view(brief=True)
            check_begin(request, self._shard)
            if request.incarnation <= present.incarnation:
                return present.incarnation, present.owner
            logged = codec.decode_policy(request.policy).durability == "log"
            self._refuse_below_logs(request, logged)
            if logged:
                log = self._make(request)
            try:
                begun = begin_with(request, self._shard, present, log or NO_LOG)
            except FailedPreconditionError:
                if log is not None:
                    log.close()
                    _remove(self._files, log.directory)
                raise
            if isinstance(before, WriteAheadLog):
                before.close()
        if log is not None:
            log.secure()
            if request.open:
                self._mark_opened(log)
        return begun

    def _refuse_below_logs(self, request: pb.BeginRequest, logged: bool) -> None:
        """Refuse a BEGIN whose number is not above those of all logs of its run. Caller holds _changing.

        Numbers follow the clocks of processes, which may be set back; the newest life is to have the greatest.
        """
        newest = 0
        try:
            logs = self._logs(request.directory, request.run.id)
            for prefix in ("", ABANDONED):
                lives = _lives(logs, request.shard, prefix=prefix)
                newest = max([newest, *(life for life, folder in lives if not _is_of_other(folder, request.run.id))])
        except (FailedPreconditionError, PermissionError):
            return  # it has no place for logs; where it needs one, that is said when it is made
        except OSError as error:
            if logged:
                raise _cannot_now(error, f"PS task {request.shard} cannot look for earlier logs now") from None
        if newest >= request.incarnation + logged:  # a log of this very number is refused when it is made
            self._shard.spent_incarnations = max(self._shard.spent_incarnations, newest)
            raise AbortedError(
                f"The run has a log of incarnation {newest}, and BEGIN has the number {request.incarnation}: clocks "
                "disagree, or were set back. Begin anew with a greater one."
            )

    def _make(self, request: pb.BeginRequest) -> WriteAheadLog:
        folder = self._folder(request, request.run.id)
        try:
            self._files.make_directories(folder.parent)
            self._files.make_directory(folder)
            self._files.sync_directory(folder.parent)
            self._files.create_whole(folder / _RUN, request.run.id.encode())
            if request.policy.keep_log:
                self._files.create_whole(folder / _KEEP)
            log = WriteAheadLog(folder, request, files=self._files)
        except FileExistsError:
            # A process that was here before died within this BEGIN, and no other task knows of it. Clocks that disagree
            # made its number come again; the next one that is asked for is greater.
            self._shard.spent_incarnations = max(self._shard.spent_incarnations, request.incarnation)
            raise AbortedError(
                f"Incarnation {request.incarnation} has a log in {folder} already: it was begun before. Begin anew."
            ) from None
        except OSError as error:
            raise FailedPreconditionError(
                f'This run has durability="log", but PS task {request.shard} cannot write its log to {folder}: '
                f"{error}. Give the run a directory that the PS tasks can write to (checkpoint_dir), or start them "
                "with --log-dir DIR."
            ) from None
        log.on_failure, log.now = self._on_failure, self._clock.monotonic
        return log

    def _folder(self, request: pb.BeginRequest | pb.LogRequest, run: str) -> Path:
        logs = self._logs(request.directory, run)
        return shard_folder(logs, request.incarnation, request.shard, request.shards)

    def _logs(self, directory: str, run: str) -> Path:
        """Give where the logs of a run are; below --log-dir each run has a folder of its own."""
        if self._log_dir:
            if not run or not run.isalnum():
                raise FailedPreconditionError(f"{run!r} is not the id of a run: it has no folder in {self._log_dir}.")
            return Path(self._log_dir) / run
        if not directory or not storage_for(directory).is_local:
            where = f"its directory is {directory}, which is not on a file system" if directory else "it has none"
            raise FailedPreconditionError(
                f'A run with durability="log" needs a directory for its log, and {where}. Give it a checkpoint_dir '
                "that the PS tasks can write to, or start them with --log-dir DIR."
            )
        return log_folder(directory)

    def _on_failure(self, log: WriteAheadLog) -> None:
        _log.error("The write-ahead log in %s cannot be written any more: this task drops its state.", log.directory)
        self._shard.handle(Lose(log))

    # ---- While it runs -------------------------------------------------------------------------

    def opened(self) -> None:
        """Take note that the run is open: earlier runs of the directory will not come back."""
        log = self._shard.log
        if isinstance(log, WriteAheadLog):
            self._mark_opened(log)
            return
        view = self._shard.view(brief=True)
        with contextlib.suppress(FailedPreconditionError, OSError):
            logs = self._logs(view.directory, view.run.id)
            if logs.is_dir():
                _end_others(self._files, logs, view.incarnation, view.shard, view.run.id)

    def _mark_opened(self, log: WriteAheadLog) -> None:
        view = self._shard.view(brief=True)
        try:
            self._with_reserve(log.directory, lambda: self._write_mark(log, view.sequencer))
        except NotFoundError:
            if view.state is State.DONE:
                return  # the run is over, and its log is not needed any more
            raise AbortedError(f"The log in {log.directory} was given up: a later life was opened since.") from None
        _end_others(self._files, log.directory.parent.parent, view.incarnation, view.shard, view.run.id)

    def _write_mark(self, log: WriteAheadLog, sequencer: int) -> None:
        with atomic_write(self._files.storage, str(log.directory / _OPENED)) as mark:
            mark.write(str(sequencer).encode())

    def written(self, snapshot: PushId, path: Path, tensors: tuple[SavedTensor, ...]) -> None:
        """Take note that a snapshot of this shard is in a file, each Variable under its own name."""
        if isinstance(self._shard.log, WriteAheadLog):
            with self._lock:
                self._written[snapshot] = _WrittenFile(path, {tensor.name: tensor.crc32 for tensor in tensors})
                # Those of chiefs that died before they released them; without a file's note a base is a copy.
                while len(self._written) > _MOST_WRITTEN:
                    del self._written[next(iter(self._written))]

    def releasing(self, incarnation: int, snapshot: PushId, journal_index: int | None = None) -> None:
        """Keep a snapshot that is about to be freed as a base, and delete what of the log is not needed any more.

        Args:
            incarnation: As the caller knows it.
            snapshot: Its id.
            journal_index: The last entry that is stored of the run's journal. What came after it has to come back with
                the log if this process dies. None where the caller stores no journal: the chief may, so a log that
                has entries of a journal is left as it is.
        """
        log = self._shard.log
        with self._lock:
            file = self._written.pop(snapshot, None)
        begun = log.begun_by(snapshot) if isinstance(log, WriteAheadLog) else None
        if begun is None or not isinstance(log, WriteAheadLog):
            return
        if (journal_index or 0) < begun.journal_index:
            # Nor is a base made: a recovery would begin with it.
            _log.info(
                "The log in %s is not shortened at entry %d: the journal is stored up to entry %d%s.",
                log.directory,
                begun.journal_index,
                journal_index or 0,
                " as far as the client that made the snapshot knows, which is not the chief" * (journal_index is None),
            )
            return
        try:
            values, _ = self._shard.handle(ReadSnapshot(incarnation, snapshot))
            log.secure()
            log.check_writer()
            folder, segment = log.directory, begun.segment
            self._with_reserve(folder, lambda: _keep_base(self._files, folder, segment, values, file))
            log.trim(begun.segment, keep=(log.directory / _KEEP).exists())
        except (OSError, ResourceExhaustedError) as error:
            _log.warning("The log in %s is not shortened: %s", log.directory, error)
        except (AbortedError, NotFoundError) as error:
            _log.debug("No base is made of %s: %s", snapshot, error)

    def end(self) -> None:
        """Delete the log if the run is over, or say so in it where it is to be kept."""
        log = self._shard.log
        if not isinstance(log, WriteAheadLog) or not self._shard.over() or not log.directory.exists():
            return
        try:
            log.retire()
            _mark(self._files, log.directory, _ENDED)
            if not (log.directory / _KEEP).exists():
                _remove(self._files, log.directory)
        except OSError as error:
            _log.warning("The log in %s, which is not needed any more, is still there: %s", log.directory, error)

    def close(self) -> None:
        """Write what is left, and close the log. Safe to call twice."""
        log = self._shard.log
        if isinstance(log, WriteAheadLog):
            log.close()

    # ---- Coming back ---------------------------------------------------------------------------

    def find(self, directory: str, shard: int, shards: int, run: str) -> dict[int, int]:
        """Give the incarnations of a run with a log that was opened and has not ended.

        Returns:
            Incarnation -> sequencer.

        Raises:
            UnavailableError: If that cannot be found out now.
        """
        try:
            logs = self._logs(directory, run)
        except FailedPreconditionError:
            return {}
        try:
            return {
                life: int(self._files.read(folder / _OPENED))
                for life, folder in _lives(logs, shard, shards)
                if _is_there(folder / _OPENED) and not _is_there(folder / _ENDED) and not _is_of_other(folder, run)
            }
        except (OSError, MemoryError) as error:
            raise _cannot_now(error, f"PS task {shard} cannot look for logs in {logs} now") from None

    def recover(self, request: pb.LogRequest) -> pb.RecoverReply:
        """Bring a vacant task back to what its log says.

        Raises:
            NotFoundError: If there is no log of the incarnation here.
            DataLossError: If it is damaged, or its end is missing. Nothing of it is loaded.
            AbortedError: If the task belongs to another incarnation by now.
            UnavailableError: If another process writes the log, which the text names, or if it cannot be read now.
            ResourceExhaustedError: If the log cannot be written on.
        """
        with self._changing:
            view = self._shard.view(brief=True)
            if view.incarnation == request.incarnation:
                return pb.RecoverReply(applied=view.applied)
            began = self._clock.monotonic()
            folder = self._folder(request, request.run)
            before = self._shard.log
            if isinstance(before, WriteAheadLog):
                # This process dropped its state. What came before that is in the log, or is on its way there.
                before.close()
            try:
                if _is_there(folder / _ENDED):
                    # The client that asks has slept through the end of that incarnation.
                    raise NotFoundError(
                        f"The run whose log is in {folder} has ended, or another has begun in its place."
                    )
                replay = self._with_reserve(folder, lambda: self._come_back(request, folder, before))
            except (OSError, MemoryError) as error:
                raise _cannot_now(
                    error, f"PS task {request.shard} cannot come back from its log in {folder} now"
                ) from None
            secs = self._clock.monotonic() - began
            view = self._shard.view(brief=True)
        _log.warning(
            "PS task %d is back at entry %d, from its log: %d pushes were applied again%s, in %.2f s.",
            request.shard,
            view.applied,
            replay.pushes,
            f" ({replay.cut_bytes} bytes of a torn end, which the task had not acknowledged, were cut off)"
            if replay.cut_bytes
            else "",
            secs,
        )
        return pb.RecoverReply(
            applied=view.applied, recovered=True, pushes=replay.pushes, cut_bytes=replay.cut_bytes, secs=secs
        )

    def _with_reserve(self, folder: Path, write: Callable[[], T]) -> T:
        """Carry something out, with the space that was set aside if there is no other."""
        try:
            return write()
        except (OSError, ResourceExhaustedError) as error:
            if isinstance(error, OSError) and error.errno not in NO_ROOM:
                raise
            if not spend_reserve(self._files, folder):
                raise
        return write()

    def _come_back(self, request: pb.LogRequest, folder: Path, before: EventLog) -> Replay:
        """Play a log, and have the shard go on where it ends. Caller holds _changing."""
        if not segments_in(folder):
            raise NotFoundError(f"There is no write-ahead log in {folder}.")
        # Before it is read: what another process acknowledged is in it then, and it acknowledges no more.
        held = LogLock(folder, self._files)
        try:
            until: int | None = None
            if isinstance(before, WriteAheadLog) and before.failed_in(segment_path(folder, segments_in(folder)[-1])):
                # After a sync that failed, the system takes pages for written that are not: they can be read, for a
                # while.
                until = before.on_disk
            replay = play_again(folder, self._clock, until, self._handler.budget)
            _check_log(request, replay)
            floors = {floor.shard: floor.index for floor in request.floors}
            replay.shard.check_floors(floors)
            log = _go_on(self._files, replay, held)
            log.on_failure, log.now = self._on_failure, self._clock.monotonic
            log.check_writer()
            was = replay.shard.members.presence
            adopt = Adopt(replay.shard.now, was.expected, was.last_leaves, log, request.sequencer_address, floors)
            if not self._shard.handle(adopt):
                raise AbortedError(f"PS task {request.shard} began another incarnation meanwhile.")
        except BaseException:
            held.close()
            raise
        return replay


def _cannot_now(error: OSError | MemoryError, what: str) -> OpError:
    """Give what to say where a log cannot be read or written now; whether it is whole is not known then."""
    if isinstance(error, FileNotFoundError):
        return NotFoundError(f"{what}, nor later: {error}.")
    reason = f"{what}: {error or 'there is no memory for it'}."
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return ResourceExhaustedError(f"{reason} Free space there.")
    return UnavailableError(f"{reason} Nothing of it was changed; it is tried again.")


def _check_log(request: pb.LogRequest, replay: Replay) -> None:
    """Refuse a log that is not the one that is to come back."""
    if replay.begin.incarnation != request.incarnation:
        raise NotFoundError(f"The log in {replay.directory} is empty: the BEGIN of its life had not come to the disk.")
    if replay.begin.shards > 1 and not replay.begin.key:
        raise DataLossError(
            f"The log in {replay.directory} has no key to sign with: an older version wrote it. Restore the newest "
            "checkpoint."
        )
    if RunIdentity(request.run).is_other(identity_of(replay.begin)):
        raise NotFoundError(
            f"The log in {replay.directory} is of {identity_of(replay.begin)}, not of the run {request.run!r} that is "
            "to come back. It stays as it is."
        )


def log_folder(directory: str) -> Path:
    """Return the folder of logs in a run's directory."""
    return Path(directory) / "log"


def shard_folder(logs: Path, incarnation: int, shard: int, shards: int) -> Path:
    """Return the folder of one shard's log."""
    return logs / str(incarnation) / f"shard-{shard}-of-{shards}"


def _go_on(files: LogFiles, replay: Replay, held: LogLock) -> WriteAheadLog:
    """Begin a segment, with a copy of the records that may not be on the disk; the older ones stay as they are."""
    # The name of the last segment may be in the system's memory only; without it the next one would follow a gap.
    files.sync_directory(replay.directory)
    unsure = replay.unsure
    first = unsure[0].number if unsure else replay.next_number
    after = Continuation(replay.segment + 1, first, unsure)
    return WriteAheadLog(replay.directory, replay.begin, after, files, held)


def _keep_base(
    files: LogFiles, folder: Path, segment: int, values: Mapping[str, npt.NDArray[Any]], file: _WrittenFile | None
) -> None:
    """Have a snapshot's values in a file of the log; the note with its checksums comes last."""
    path, note = base_path(folder, segment), base_note_path(folder, segment)
    checksums: Mapping[str, int] | None = None
    if file is not None and values.keys() <= file.checksums.keys():
        with contextlib.suppress(OSError):  # on another file system, or gone already
            files.link(file.path, path)
            # Before the note, which may be there after a loss of power only if the file is.
            files.sync_directory(folder)
            checksums = {name: file.checksums[name] for name in values}
    if checksums is None:
        files.unlink(path)
        written = write_shard(files.storage, str(folder), path.name, sorted(values.items()))
        checksums = {tensor.name: tensor.crc32 for tensor in written.tensors}
    with atomic_write(files.storage, str(note)) as out:
        out.write(json.dumps(checksums).encode())


def _mark(files: LogFiles, folder: Path, mark: str) -> None:
    with contextlib.suppress(FileExistsError):
        files.create_whole(folder / mark)


def _lives(logs: Path, shard: int, shards: int | None = None, prefix: str = "") -> list[tuple[int, Path]]:
    """Give the logs of a shard, by the numbers of their lives, in order.

    Raises:
        OSError: If they cannot be looked for now.
    """
    try:
        names = os.listdir(logs)
    except (FileNotFoundError, NotADirectoryError):
        return []
    lives: list[tuple[int, Path]] = []
    for name in names:
        life = name.removeprefix(prefix)
        if not (name.startswith(prefix) and life.isdigit()):
            continue
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # moved meanwhile
            for folder in os.listdir(logs / name):
                if folder.startswith(f"shard-{shard}-of-") and shards in (None, int(folder.rpartition("-")[2])):
                    lives.append((int(life), logs / name / folder))
    return sorted(lives)


def _is_there(path: Path) -> bool:
    """Whether there is a file; raises OSError where that cannot be found out now."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _is_of_other(folder: Path, run: str) -> bool:
    """Whether a log is known to be another run's; raises OSError where that cannot be found out now."""
    try:
        written = (folder / _RUN).read_text()
    except FileNotFoundError:
        return False  # from before runs had ids
    return bool(run and written) and written != run


def _end_others(files: LogFiles, logs: Path, incarnation: int, shard: int, run: str) -> None:
    """See to it that no earlier life of a run comes back on this shard; those to be kept stay to be read.

    Logs of another run are left alone, and those that a living process writes.
    """
    for life, folder in _lives(logs, shard):
        if life >= incarnation or _is_of_other(folder, run):
            continue
        try:
            held = LogLock(folder, files)
        except (OSError, UnavailableError) as error:
            _log.warning("The log of an earlier life in %s is left as it is: %s", folder, error)
            continue
        try:
            if (folder / _KEEP).exists():
                _mark(files, folder, _ENDED)
            elif (folder / _OPENED).exists() and not (folder / _ENDED).exists():
                _move_aside(files, folder)
            else:
                _remove(files, folder)
        finally:
            held.close()


def _move_aside(files: LogFiles, folder: Path) -> None:
    """Keep a log that the run goes on without, under another name: what only it tells may be needed.

    None is ever deleted but by its user: which of them holds what was lost, a PS task cannot know. One that a job was
    hours in is not worth less for the three short lives that came after.
    """
    logs, life = folder.parent.parent, folder.parent.name
    aside = logs / f"{ABANDONED}{life}" / folder.name
    files.make_directories(aside.parent)
    with contextlib.suppress(OSError):
        spend_reserve(files, folder)
    files.rename(folder, aside)
    files.sync_directory(folder.parent)
    files.sync_directory(aside.parent)
    with contextlib.suppress(OSError):  # other shards' logs are there
        files.remove_directory(folder.parent)
    _log.warning(
        "The run goes on without the log of its earlier life %s, which is kept in %s: it may hold acknowledged pushes "
        "that the checkpoint does not. Delete it when it is not needed any more.",
        life,
        aside,
    )


def _remove(files: LogFiles, folder: Path) -> None:
    # First what makes it a log that can be recovered from.
    files.unlink(folder / _OPENED)
    with contextlib.suppress(OSError):
        files.remove_tree(folder)
    for parent in (folder.parent, folder.parent.parent):
        with contextlib.suppress(OSError):  # other shards' logs are there
            files.remove_directory(parent)
