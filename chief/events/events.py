"""Event files, which TensorBoard reads: one asynchronous writer, and the iterator that reads them back.

A file is named `events.out.tfevents.<seconds>.<host><suffix>` and begins with an event that says
"brain.Event:2". Source of the format: TensorFlow 1.15, core/util/events_writer.cc.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import socket
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Generic, Self, TypeVar

from google.protobuf.message import DecodeError

from globalstep.errors import DataLossError, OpError
from globalstep.files.records import encode_record, read_records
from globalstep.files.storage import is_full, path_error, storage_for
from globalstep.files.tensorboard_protos import Event, SessionLog, Summary
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.runtime.waiting import Reminder, join_announced

_log = logging.getLogger("globalstep")

_FILE_VERSION = "brain.Event:2"
#: How often a full disk is tried again.
_FULL_RETRY_SECS = 10.0


class _EventFile:
    """An open event file that replaces itself when it is deleted. Single thread at a time.

    A full disk ends no training: events are dropped until there is room, and go to a new file from then on.
    """

    def __init__(self, logdir: str, suffix: str, clock: Clock) -> None:
        self._storage = storage_for(logdir)
        self._logdir = logdir
        self._suffix = suffix
        self._clock = clock
        # None while there is no room.
        self._file: BinaryIO | None = None
        self._next_try: float | None = None
        self._begin()

    def _begin(self) -> None:
        """Begin a file, if there is room for one."""
        try:
            self._open()
        except OpError as error:
            self._drop_until_room(error)
            return
        if self._next_try is not None:
            self._next_try = None
            _log.warning("There is room for events again: they go to %s.", self.path)

    def _drop_until_room(self, error: OpError) -> None:
        """Go on without a file where the disk is full; raises what says something else."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
        if not is_full(error):
            raise error
        if self._next_try is None:
            _log.warning("%s Events are dropped until there is room; training goes on.", error)
        self._next_try = self._clock.monotonic() + _FULL_RETRY_SECS

    def _open(self) -> None:
        """Begin a file under a name that is not taken, so that no writer overwrites another's events."""
        self.path = self._logdir
        try:
            self._storage.make_directories(self._logdir)
            stem = f"events.out.tfevents.{int(self._clock.time()):010d}.{socket.gethostname()}"
            name, count = f"{stem}{self._suffix}", 0
            while (file := self._claim(self._storage.join(self._logdir, name))) is None:
                name, count = f"{stem}.{os.getpid()}.{count}{self._suffix}", count + 1
            self.path = self._storage.join(self._logdir, name)
            try:
                first = Event(wall_time=self._clock.time(), file_version=_FILE_VERSION)
                file.write(encode_record(first.SerializeToString()))
                file.flush()
            except OSError:
                with contextlib.suppress(OSError):
                    file.close()
                with contextlib.suppress(OSError):
                    self._storage.delete(self.path)
                raise
            self._file = file
        except OSError as error:
            raise path_error(error, self.path, "write") from error

    def _claim(self, path: str) -> BinaryIO | None:
        if not self._storage.is_local:
            return None if self._storage.exists(path) else self._storage.open_write(path)
        try:
            return open(path, "xb")
        except FileExistsError:
            return None

    def write(self, event: bytes) -> None:
        if self._file is None:
            if self._next_try is not None and self._clock.monotonic() < self._next_try:
                return
            self._begin()
        # An object of a remote store is not there before it is closed, so only local files can be missed.
        elif self._storage.is_local and not self._storage.exists(self.path):
            _log.warning("The event file %s has been deleted: starting a new one. What was in it is lost.", self.path)
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None
            self._begin()
        self._act(lambda file: file.write(encode_record(event)))

    def flush(self) -> None:
        self._act(lambda file: file.flush())

    def close(self) -> None:
        self._act(lambda file: file.close())

    def _act(self, act: Callable[[BinaryIO], Any]) -> None:
        """Do something with the file, if there is one; a full disk takes it away."""
        if self._file is None:
            return
        try:
            act(self._file)
        except OSError as error:
            self._drop_until_room(path_error(error, self.path, "write"))


class _WritingThread:
    """Writes events behind the caller's back: a bounded queue and the thread that empties it.

    Thread-safe. Knows nothing of its owner, so an owner that is forgotten can be collected.
    """

    def __init__(self, file: _EventFile, max_queue: int, flush_secs: float, clock: Clock) -> None:
        self._file = file
        self._max_queue = max_queue
        self._flush_secs = flush_secs
        self._clock = clock
        # Guards all that follows; a leaf: nothing else is taken, and no file touched, under it.
        self._changed = threading.Condition()
        self._events: collections.deque[bytes] = collections.deque()
        self._flushes_wanted = 0
        self._flushes_done = 0
        self._stopping = False
        self._error: OpError | None = None
        # A daemon only so that a program that forgets to close can end: `EventFileWriter` closes at exit.
        self._thread = threading.Thread(target=self._run, name=f"events-{os.path.basename(file.path)}", daemon=True)
        self._thread.start()

    def add(self, event: bytes) -> None:
        reminder = Reminder(self._waited_for)
        with self._changed:
            while 0 < self._max_queue <= len(self._events) and self._error is None and not self._stopping:
                reminder.wait(self._changed)
            if self._error is not None:
                raise self._error
            self._events.append(event)
            self._changed.notify_all()

    def flush(self) -> None:
        reminder = Reminder(self._waited_for)
        with self._changed:
            self._flushes_wanted += 1
            ticket = self._flushes_wanted
            self._changed.notify_all()
            while self._flushes_done < ticket and self._error is None and not self._stopping:
                reminder.wait(self._changed)
            if self._error is not None:
                raise self._error

    def _waited_for(self) -> str:
        return (
            f"events to be written to {self._file.path}, by a thread of this process. Most likely its disk is slow, a "
            "network file system does not answer, or more summaries are made than it can take"
        )

    def close(self) -> OpError | None:
        """Write all that was added, end the thread, and give the error that ended it early."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        # A garbage collection that runs on the thread itself cannot join it; it ends by itself then.
        if threading.current_thread() is not self._thread:
            join_announced(self._thread, self._waited_for())
        with self._changed:
            return self._error

    def _run(self) -> None:
        try:
            self._write_until_stopped()
        except OpError as error:
            self._fail(error)
        except Exception as error:
            self._fail(OpError(f"The thread that writes {self._file.path} failed: {error!r}."))

    def _fail(self, error: OpError) -> None:
        _log.error("%s", error)
        with self._changed:
            self._error = error
            self._events.clear()
            self._changed.notify_all()
        with contextlib.suppress(OpError):
            self._file.close()

    def _write_until_stopped(self) -> None:
        due: float | None = None
        while True:
            with self._changed:
                while not (self._events or self._stopping or self._flushes_wanted > self._flushes_done):
                    left = None if due is None else due - self._clock.monotonic()
                    if left is not None and left <= 0:
                        break
                    self._changed.wait(left)
                event = self._events.popleft() if self._events else None
                ticket, stopping = self._flushes_wanted, self._stopping
                self._changed.notify_all()
            if event is not None:
                self._file.write(event)
                if due is None:
                    due = self._clock.monotonic() + self._flush_secs
                if self._clock.monotonic() < due:
                    continue
            # Here the queue was empty, or the flush is due: either way all that was taken is written.
            self._file.flush()
            due = None
            if event is not None:
                continue
            with self._changed:
                self._flushes_done = ticket
                self._changed.notify_all()
            if stopping:
                self._file.close()
                return


class EventFileWriter:
    """Appends events to a file from a thread of its own. Thread-safe.

    The file is made, and its first event flushed, at once. An error of the thread is raised by the next call, but for a
    full disk: events are dropped then, with a warning, until there is room. A writer that is never closed is closed
    when it is collected, or at exit.

    Args:
        logdir: Directory of the file, made if need be; a local path or a URL.
        max_queue: Events that may wait to be written before `add_event` waits itself; 0 for no limit.
        flush_secs: Seconds after which a written event is flushed to the file system.
        filename_suffix: Ends the file's name.
        clock: Where time comes from.

    Raises:
        OpError: If the file cannot be made.
    """

    def __init__(
        self,
        logdir: str,
        max_queue: int = 10,
        flush_secs: float = 120,
        filename_suffix: str | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._logdir = str(logdir)
        self._max_queue = max_queue
        self._flush_secs = flush_secs
        self._suffix = filename_suffix or ""
        self._clock = clock
        # Guards _thread and the closing of it, so that no event is added to a thread that has ended.
        # Taken before the thread's own condition.
        self._lock = threading.RLock()
        self._thread: _WritingThread | None = None
        self.reopen()

    def reopen(self) -> None:
        """Start a new file after `close`; does nothing while open."""
        with self._lock:
            if self._thread is not None:
                return
            file = _EventFile(self._logdir, self._suffix, self._clock)
            self.path = file.path
            self._thread = _WritingThread(file, self._max_queue, self._flush_secs, self._clock)
            self._finalizer = weakref.finalize(self, self._thread.close)

    @property
    def closed(self) -> bool:
        """Whether events are dropped until `reopen`."""
        return self._thread is None

    def get_logdir(self) -> str:
        """Give the directory of the file."""
        return self._logdir

    def add_event(self, event: Event) -> None:
        """Add an event; dropped when closed.

        Raises:
            OpError: If writing failed since the last call.
        """
        thread = self._thread
        if thread is not None:
            thread.add(event.SerializeToString())

    def flush(self) -> None:
        """Wait until all events added so far are handed to the file system.

        Raises:
            OpError: If that fails.
        """
        thread = self._thread
        if thread is not None:
            thread.flush()

    def close(self) -> None:
        """Write all events, close the file and end the thread; closing twice does nothing.

        Raises:
            OpError: If something could not be written; the writer is closed all the same.
        """
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is None:
                return
            self._finalizer.detach()
        error = thread.close()
        if error is not None:
            raise error


def summary_iterator(path: str) -> Iterator[Event]:
    """Iterate over the events of an event file.

    Args:
        path: An event file; a local path or a URL.

    Yields:
        `Event` protocol buffers, in the order of the file.

    Raises:
        DataLossError: At a record that is damaged or cut short, naming file and byte; the events before
            it were given.
        NotFoundError: If there is no such file.
    """
    for number, record in enumerate(read_records(path)):
        try:
            event = Event.FromString(record)
        except DecodeError as error:
            raise DataLossError(f"Record {number} of {path} is whole but holds no Event: {error}.") from error
        yield event


class SummaryFileWriter:
    """Writes summaries and other events to an event file in `logdir`, without waiting for the disk.

    Adding returns at once as long as fewer than `max_queue` events wait. An error of the writing thread
    is raised by the next call. Thread-safe.

    Arguments are those of an EventFileWriter.

    Raises:
        OpError: If the file cannot be made.
    """

    def __init__(
        self,
        logdir: str,
        max_queue: int = 10,
        flush_secs: float = 120,
        filename_suffix: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._clock = clock
        self.event_writer = EventFileWriter(logdir, max_queue, flush_secs, filename_suffix, clock=clock)
        # Guards the set of tags; held while an event is queued, so that a tag's metadata goes
        # before its later values. Taken before the event writer's locks.
        self._lock = threading.Lock()
        self._seen_tags: set[str] = set()

    @property
    def closed(self) -> bool:
        """Whether what is added is dropped until `reopen`."""
        return self.event_writer.closed

    def get_logdir(self) -> str:
        """Give the directory of the event file."""
        return self.event_writer.get_logdir()

    def add_summary(self, summary: Summary | bytes, global_step: Any = None) -> None:
        """Add a summary: what a summary op gave, or a Summary made by hand.

        Args:
            summary: A `Summary`, or one serialized; not changed.
            global_step: Step to show it at; default 0.

        Raises:
            google.protobuf.message.DecodeError: If the bytes are no Summary.
            OpError: If writing failed since the last call.
        """
        event = Event()
        if isinstance(summary, Summary):
            event.summary.CopyFrom(summary)
        else:
            event.summary.ParseFromString(bytes(summary))
        with self._lock:
            for value in event.summary.value:
                # TensorBoard needs a tag's metadata once a run; repeating it only makes files larger.
                if value.HasField("metadata"):
                    if value.tag in self._seen_tags:
                        value.ClearField("metadata")
                    else:
                        self._seen_tags.add(value.tag)
            self._add(event, global_step)

    def add_session_log(self, session_log: SessionLog, global_step: Any = None) -> None:
        """Add a session log: START at `global_step` makes TensorBoard drop the steps from there on."""
        self._add(Event(session_log=session_log), global_step)

    def add_event(self, event: Event) -> None:
        """Add an event as it is.

        Raises:
            OpError: If writing failed since the last call.
        """
        self._warn_if_closed()
        self.event_writer.add_event(event)

    def flush(self) -> None:
        """Wait until everything added so far is handed to the file system."""
        self._warn_if_closed()
        self.event_writer.flush()

    def close(self) -> None:
        """Write everything, close the file, end the thread; closing twice does nothing."""
        self.event_writer.close()

    def reopen(self) -> None:
        """Start a new event file after `close`; does nothing while open."""
        if self.closed:
            with self._lock:
                self._seen_tags.clear()
            self.event_writer.reopen()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, event: Event, step: Any) -> None:
        event.wall_time = self._clock.time()
        if step is not None:
            event.step = int(step)
        self.add_event(event)

    def _warn_if_closed(self) -> None:
        if self.closed:
            warnings.warn(
                "Attempting to use a closed FileWriter. The operation will be a noop unless the FileWriter "
                "is explicitly reopened.",
                stacklevel=4,
            )


W = TypeVar("W", bound=SummaryFileWriter)


class WritersByDirectory(Generic[W]):
    """The writers of a process, one for each directory, shared by its hooks. Thread-safe."""

    def __init__(self, make: Callable[[str], W]) -> None:
        self._make = make
        # Guards _writers; held while a writer is made, so that a directory gets one.
        self._lock = threading.Lock()
        self._writers: dict[str, W] = {}

    def get(self, logdir: str) -> W:
        """Give the writer of `logdir`, made on first use or after it was closed."""
        with self._lock:
            writer = self._writers.get(logdir)
            if writer is None or writer.closed:
                writer = self._writers[logdir] = self._make(logdir)
            return writer

    def close(self, logdir: str) -> None:
        """Close the writer of `logdir`, if there is one, and forget it."""
        with self._lock:
            writer = self._writers.pop(logdir, None)
        if writer is not None:
            writer.close()

    def clear(self) -> None:
        """Close all writers and forget them."""
        with self._lock:
            writers = list(self._writers.values())
            self._writers.clear()
        for writer in writers:
            writer.close()


#: Those of trainers.
WRITERS = WritersByDirectory(SummaryFileWriter)
