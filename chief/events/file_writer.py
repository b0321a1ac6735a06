"""SummaryFileWriter: what the chief adds summaries and session logs to TensorBoard's files with.

Layer: chief.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from globalstep.chief.events.events import EventFileWriter
from globalstep.files.tensorboard_protos import Event, SessionLog, Summary
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock

__all__ = ["WRITERS", "SummaryFileWriter", "WritersByDirectory"]


class SummaryFileWriter:
    """Writes summaries and other events to an event file in `logdir`, without waiting for the disk.

    Adding returns at once as long as fewer than `max_queue` events wait. An error of the writing thread
    is raised by the next call. Thread-safe.

    Args:
        logdir: Directory of the event file, made if need be; a local path or a URL.
        max_queue: Events that may wait to be written before an `add_...` waits itself.
        flush_secs: Seconds after which what was added is flushed to the file system.
        filename_suffix: Ends the file's name.
        clock: Where the events' wall times come from.

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
        """Add a session log: START at `global_step` makes TensorBoard drop the steps from there on.

        Args:
            session_log: What happened (START, STOP, CHECKPOINT).
            global_step: Step at which it did.
        """
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
    """One writer a directory, shared by the hooks of a process. Thread-safe.

    Args:
        make: Makes the writer of a directory.
    """

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
