"""Traces of runs, in the Chrome trace format that standard viewers open.

The one trace format of the project: ProfilerHook and the benchmarks write it. Open a file at
https://ui.perfetto.dev or chrome://tracing.

Layer: tf1. Threads: a Trace may be used by several at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from globalstep.runtime.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from globalstep.tf1.sessions.session import Session


_MICROS = 1e6
#: Rows that are no thread of this process are numbered from here: Linux has no thread ids beyond 2^22.
_FIRST_ROW = 1 << 23


class Trace:
    """A record of spans.

    Args:
        process: What viewers call the process, e.g. "/job:worker/task:1".
        clock: Where time comes from.

    Attributes:
        process: As given.

    >>> trace = Trace("worker")
    >>> with trace.span("pull", variables=3):
    ...     pass
    >>> [event["name"] for event in trace.events]
    ['pull']
    """

    def __init__(self, process: str = "", clock: Clock = SYSTEM_CLOCK) -> None:
        self.process = process
        self._clock = clock
        # Guards _events, _threads and _rows; a leaf.
        self._lock = threading.Lock()
        self._events: list[dict[str, Any]] = []
        self._threads: dict[int, str] = {}
        self._rows: dict[str, int] = {}

    @property
    def events(self) -> Sequence[Mapping[str, Any]]:
        """The spans that have ended, in that order: name, start and length in microseconds, thread, facts."""
        with self._lock:
            return list(self._events)

    @property
    def threads(self) -> Mapping[int, str]:
        """The rows of the spans so far: number, which spans have as `tid`, and name."""
        with self._lock:
            return dict(self._threads)

    @contextlib.contextmanager
    def span(self, name: str, **facts: Any) -> Iterator[None]:
        """Record the time that a `with` block takes, also when it fails.

        Args:
            name: What happens: "run", "pull", "compute", "push", ...
            facts: Shown with the span.
        """
        start = self._clock.monotonic()
        try:
            yield
        finally:
            self.add(name, start, self._clock.monotonic() - start, **facts)

    def now(self) -> float:
        """Give the present time, by the trace's clock."""
        return self._clock.monotonic()

    def add(self, name: str, start_secs: float, length_secs: float, row: str = "", **facts: Any) -> None:
        """Record a span that was timed elsewhere.

        Args:
            name: What happened.
            start_secs: When it began, by the trace's clock.
            length_secs: How long it took.
            row: Viewers show it in a row of this name; "" for the row of this thread.
            facts: Shown with the span.
        """
        thread = threading.current_thread()
        event = {
            "ph": "X",
            "name": name,
            "cat": name,
            "ts": start_secs * _MICROS,
            "dur": length_secs * _MICROS,
            "pid": os.getpid(),
            "args": facts,
        }
        with self._lock:
            tid = self._rows.setdefault(row, _FIRST_ROW + len(self._rows)) if row else thread.native_id or 0
            self._threads[tid] = row or thread.name
            self._events.append({**event, "tid": tid})

    def to_json(self) -> str:
        """Give the trace as a file's content."""
        pid = os.getpid()
        with self._lock:
            names = [named_row("process_name", pid, 0, self.process)] if self.process else []
            names += [named_row("thread_name", pid, tid, name) for tid, name in sorted(self._threads.items())]
            return json.dumps({"traceEvents": [*names, *self._events], "displayTimeUnit": "ms"})


@contextlib.contextmanager
def traced_run(session: Session, run_metadata: Any) -> Iterator[None]:
    """Record what a session does within a `with` block, as TensorFlow's StepStats, also when the block fails.

    Runs of other threads of the session that overlap it are recorded, too.

    Args:
        session: A `gs.Session`.
        run_metadata: A `gs.RunMetadata`, whose `step_stats` are replaced.
    """
    before, session.trace = session.trace, Trace(session.cluster.task or "session")
    trace = session.trace
    try:
        yield
    finally:
        session.trace = before
        _fill(run_metadata, trace)


def _fill(run_metadata: Any, trace: Trace) -> None:
    run_metadata.ClearField("step_stats")
    device = run_metadata.step_stats.dev_stats.add(device=trace.process)
    device.thread_names.update(trace.threads)
    for event in trace.events:
        label = ", ".join(f"{name}={value}" for name, value in event["args"].items())
        device.node_stats.add(
            node_name=event["name"],
            all_start_micros=round(event["ts"]),
            op_end_rel_micros=round(event["dur"]),
            all_end_rel_micros=round(event["dur"]),
            timeline_label=label,
            thread_id=event["tid"],
        )


def named_row(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    """Give the event that names a process or thread."""
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}
