"""Event files, which TensorBoard reads: their writer, and the iterator that reads them back.

A file is named `events.out.tfevents.<seconds>.<host><suffix>` and begins with an event that says
"brain.Event:2". Source of the format: TensorFlow 1.15, core/util/events_writer.cc.
"""

from __future__ import annotations

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

from globalstep.errors import DataLossError
from globalstep.files.records import encode_record, read_records
from globalstep.files.storage import is_full, path_error, storage_for
from globalstep.files.tensorboard_protos import Event, SessionLog, Summary
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock

_log = logging.getLogger("globalstep")

_FILE_VERSION = "brain.Event:2"
#: How often a full disk is tried again.
_FULL_RETRY_SECS = 10.0


class SummaryFileWriter:
    """Writes summaries and other events to a file, and hands each to the file system at once. Thread-safe.

    The file is made, with its first event, at once, and again where it was deleted. A full disk ends no training:
    events are dropped, with a warning, until there is room, and go to a new file from then on. A writer that is never
    closed is closed when it is collected, or at exit.

    Args:
        logdir: Directory of the file, made if need be; a local path or a URL.
        filename_suffix: Ends the file's name.
        clock: Where time comes from.

    Raises:
        OpError: If the file cannot be made.
    """

    def __init__(self, logdir: str, filename_suffix: str | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._logdir = str(logdir)
        self._storage = storage_for(self._logdir)
        self._suffix = filename_suffix or ""
        self._clock = clock
        # Guards what follows, and the file; held while events are written.
        self._lock = threading.RLock()
        self._closed = True
        # None while there is no room.
        self._file: BinaryIO | None = None
        self._next_try: float | None = None
        # A tag's metadata goes before its later values.
        self._seen_tags: set[str] = set()
        self.reopen()

    @property
    def closed(self) -> bool:
        """Whether events are dropped until `reopen`."""
        return self._closed

    def get_logdir(self) -> str:
        """Give the directory of the file."""
        return self._logdir

    def reopen(self) -> None:
        """Start a new file after `close`; does nothing while open."""
        with self._lock:
            if self._closed:
                self._seen_tags.clear()
                self._begin()
                self._closed = False

    def add_summary(self, summary: Summary | bytes, global_step: Any = None) -> None:
        """Add a summary: what a summary op gave, or a Summary made by hand.

        Args:
            summary: A `Summary`, or one serialized; not changed.
            global_step: Step to show it at; default 0.

        Raises:
            google.protobuf.message.DecodeError: If the bytes are no Summary.
            OpError: If it cannot be written.
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
        """Add an event as it is; dropped, with a warning, when closed.

        Raises:
            OpError: If it cannot be written.
        """
        if self.closed:
            warnings.warn(
                "Attempting to use a closed FileWriter. The operation will be a noop unless the FileWriter "
                "is explicitly reopened.",
                stacklevel=4,
            )
        record = encode_record(event.SerializeToString())
        with self._lock:
            if self._closed:
                return
            # An object of a remote store is not there before it is closed, so only local files can be missed.
            if self._file is not None and self._storage.is_local and not self._storage.exists(self.path):
                text = "The event file %s has been deleted: starting a new one. What was in it is lost."
                _log.warning(text, self.path)
                self._let_go()
            if self._file is None and (self._next_try is None or self._clock.monotonic() >= self._next_try):
                self._begin()
            if self._file is not None:
                with self._dropping_where_full():
                    self._file.write(record)
                    self._file.flush()

    def flush(self) -> None:
        """Do nothing: all events added so far are handed to the file system."""

    def close(self) -> None:
        """Close the file; closing twice does nothing.

        Raises:
            OpError: If something could not be written; the writer is closed all the same.
        """
        with self._lock:
            self._closed = True
            if self._file is not None:
                with self._dropping_where_full():
                    self._file.close()
                self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, event: Event, step: Any) -> None:
        event.wall_time = self._clock.time()
        if step is not None:
            event.step = int(step)
        self.add_event(event)

    def _begin(self) -> None:
        """Begin a file, if there is room, under a name that is not taken: no writer overwrites another's events."""
        self.path = self._logdir
        with self._dropping_where_full():
            self._storage.make_directories(self._logdir)
            stem = f"events.out.tfevents.{int(self._clock.time()):010d}.{socket.gethostname()}"
            name, count = f"{stem}{self._suffix}", 0
            while (file := self._claim(self._storage.join(self._logdir, name))) is None:
                name, count = f"{stem}.{os.getpid()}.{count}{self._suffix}", count + 1
            self.path, self._file = self._storage.join(self._logdir, name), file
            try:
                first = Event(wall_time=self._clock.time(), file_version=_FILE_VERSION)
                file.write(encode_record(first.SerializeToString()))
                file.flush()
            except OSError:
                with contextlib.suppress(OSError):
                    self._storage.delete(self.path)
                raise
            weakref.finalize(self, file.close)
            if self._next_try is not None:
                self._next_try = None
                _log.warning("There is room for events again: they go to %s.", self.path)

    def _claim(self, path: str) -> BinaryIO | None:
        if not self._storage.is_local:
            return None if self._storage.exists(path) else self._storage.open_write(path)
        try:
            return open(path, "xb")
        except FileExistsError:
            return None

    @contextlib.contextmanager
    def _dropping_where_full(self) -> Iterator[None]:
        """Go on without a file where the block finds that the disk is full; raises what says something else."""
        try:
            yield
        except OSError as cause:
            self._let_go()
            error = path_error(cause, self.path, "write")
            if not is_full(error):
                raise error from cause
            if self._next_try is None:
                _log.warning("%s Events are dropped until there is room; training goes on.", error)
            self._next_try = self._clock.monotonic() + _FULL_RETRY_SECS

    def _let_go(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()


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
