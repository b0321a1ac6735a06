"""Hook that shows the cluster itself in TensorBoard: rates of workers and PS tasks, and staleness.

TensorFlow has no such hook; this one stands beside its StepCounterHook, with the same cadence. What PS tasks
count is in `ps/shard/statistics.py`, what is made of it in docs/summaries.md.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from globalstep.chief.events.events import WRITERS
from globalstep.chief.hooks.session_run_hook import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from globalstep.chief.hooks.timers import SecondOrStepTimer
from globalstep.chief.sessions.run_model import RunSession, step_now
from globalstep.errors import OpError
from globalstep.files.tensorboard_protos import HistogramProto, Summary
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from globalstep.chief.sessions.coordinator import Coordinator
    from globalstep.proto import globalstep_pb2 as pb


_log = logging.getLogger("globalstep")

#: How long a PS task may take to answer; the chief's next run waits for it.
_STATUS_SECS = 5.0
#: What clients are called whose program did not say which task it is.
_UNNAMED = "session"
#: Clients that are not there that are remembered.
_MOST_GONE = 1024
#: The charts' group. Viewers sort groups by name: it comes after whatever a program calls its loss.
_GROUP = "~cluster"


@dataclass(frozen=True, slots=True)
class _Reading:
    """The cluster's counters at one moment."""

    #: Of each PS task, the last that is known; None for nothing.
    replies: Sequence[pb.StatusReply | None]
    #: Client -> its pushes that moved a step on; of those that are not there now, the last that were.
    pushes: Mapping[str, int]
    step: int


class ClusterStatistics(SessionRunHook):
    """Writes summaries of how the cluster works, on the chief; `gs.train.ClusterStatisticsHook` says which.

    Args:
        every_n_steps: Write every so many global steps.
        every_n_secs: Or every so many seconds.
        output_dir: Where event files go.
        summary_writer: Or the writer to write with.
        clock: Where the hook's own time comes from.
        step: The global step.

    Raises:
        ValueError: Unless exactly one of `every_n_steps` and `every_n_secs`, and one of `output_dir` and
            `summary_writer`, is given.
    """

    #: Its work is that of the whole run: it goes on while the chief waits for the others to end.
    keeps_watch = True

    def __init__(
        self,
        every_n_steps: int | None = 100,
        every_n_secs: float | None = None,
        output_dir: str | None = None,
        summary_writer: Any = None,
        clock: Clock = SYSTEM_CLOCK,
        step: Any = None,
    ) -> None:
        if (every_n_steps is None) == (every_n_secs is None):
            raise ValueError("exactly one of every_n_steps and every_n_secs should be provided.")
        if bool(output_dir) == (summary_writer is not None):
            raise ValueError("Exactly one of output_dir and summary_writer must be provided.")
        self._timer = SecondOrStepTimer(every_secs=every_n_secs, every_steps=every_n_steps, clock=clock)
        self._output_dir = output_dir
        self._writer = summary_writer
        self._step = step
        self._before: _Reading | None = None

    def begin(self) -> None:
        """See SessionRunHook."""
        if self._output_dir:
            self._writer = WRITERS.get(self._output_dir)

    def after_create_session(self, session: RunSession, coord: Coordinator) -> None:
        """See SessionRunHook: counts from here on; the step may have gone back."""
        self._timer.reset()
        self._before = None

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """See SessionRunHook."""
        return SessionRunArgs(self._step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """See SessionRunHook: asks and writes when it is time."""
        if run_values.results is None:
            return
        reached = int(run_values.results) + 1
        if not self._timer.should_trigger_for_step(reached):
            return
        now = self._read(run_context.session)
        self._timer.update_last_triggered_step(reached if now is None else now.step)
        if now is None:
            return
        if self._before is not None:
            values = _since(self._before, now, run_context.session.cluster.sequencer)
            self._writer.add_summary(Summary(value=values), now.step)
        self._before = now

    def _read(self, session: RunSession) -> _Reading | None:
        """Ask every PS task; None if the sequencer, which alone knows the step, does not answer."""
        answers = session.cluster.statuses(timeout_secs=_STATUS_SECS, brief=True)
        sequencer = answers[session.cluster.sequencer]
        for error in answers:
            if isinstance(error, OpError):
                _log.debug("No statistics of a parameter server: %s", error)
        if isinstance(sequencer, OpError):
            return None
        before = self._before
        earlier = [None] * len(answers) if before is None else before.replies
        replies = [old if isinstance(new, OpError) else new for old, new in zip(earlier, answers, strict=True)]
        here = {item.client: item.pushes for item in sequencer.clients}
        gone = {} if before is None else {name: n for name, n in before.pushes.items() if name not in here}
        # Who was silent for a while, and comes again, goes on counting. Of workers that come and go most do not.
        pushes = {**dict(list(gone.items())[-_MOST_GONE:]), **here}
        name = self._step.op_name
        step = sequencer.steps[name] if name in sequencer.steps else step_now(session, self._step)
        return _Reading(replies, pushes, step)


def _since(before: _Reading, now: _Reading, sequencer: int) -> list[Summary.Value]:
    """Say what has happened between two readings, as summary values."""
    values: list[Summary.Value] = []

    def scalar(tag: str, value: float) -> None:
        values.append(Summary.Value(tag=f"{_GROUP}/{tag}", simple_value=value))

    for index, (old, new) in enumerate(zip(before.replies, now.replies, strict=True)):
        if old is None or new is None or not _same_life(old, new):
            continue
        counted, until = old.statistics, new.statistics
        secs = until.secs - counted.secs
        if index == sequencer:
            scalar("global_step_per_sec", (now.step - before.step) / secs)
            for task, pushes in _by_task(before.pushes, new).items():
                scalar(f"{task}/steps_per_sec", pushes / secs)
            histogram = staleness_histogram(counted, until)
            if histogram is not None:
                values.append(Summary.Value(tag=f"{_GROUP}/staleness", histo=histogram))
            for tag, value in _together(counted, until, secs).items():
                scalar(tag, value)
        scalar(f"ps_{index}/bytes_in_per_sec", (until.bytes_in - counted.bytes_in) / secs)
        scalar(f"ps_{index}/bytes_out_per_sec", (until.bytes_out - counted.bytes_out) / secs)
        if until.applied > counted.applied:
            apply_secs = until.apply_secs - counted.apply_secs
            scalar(f"ps_{index}/apply_ms", apply_secs * 1e3 / (until.applied - counted.applied))
    return values


def _together(before: pb.Statistics, now: pb.Statistics, secs: float) -> dict[str, float]:
    """Say what workers made together, and how long they waited for each other, by tag; nothing where they do not."""
    values: dict[str, float] = {}
    if now.contributions or now.late:
        values["made_per_sec"] = (now.made - before.made) / secs
        values["late_per_sec"] = (now.late - before.late) / secs
    if now.waited > before.waited:
        values["contribution_wait_ms"] = (now.waited_secs - before.waited_secs) * 1e3 / (now.waited - before.waited)
    if now.lead_waits > before.lead_waits:
        waits = now.lead_waits - before.lead_waits
        values["lead_wait_ms"] = (now.lead_wait_secs - before.lead_wait_secs) * 1e3 / waits
    return values


def _same_life(old: pb.StatusReply, new: pb.StatusReply) -> bool:
    """Whether the counters of two replies can be compared, and time has passed between them."""
    same = (old.process, old.incarnation) == (new.process, new.incarnation)
    return same and new.statistics.secs > old.statistics.secs


def _by_task(before: Mapping[str, int], sequencer: pb.StatusReply) -> dict[str, int]:
    """Count the pushes since `before` of each task that has ever pushed, by the task's name in a tag."""
    out: dict[str, int] = {}
    for item in sorted(sequencer.clients, key=lambda item: (item.task, item.client)):
        if item.pushes:
            task = _tag_of(item.task)
            out[task] = out.get(task, 0) + item.pushes - before.get(item.client, 0)
    return out


def _tag_of(task: str) -> str:
    """Give a task's name in a tag: "worker_1" for "/job:worker/task:1"."""
    match = re.fullmatch(r"/job:([^/]+)/task:(\d+)", task)
    return f"{match[1]}_{match[2]}" if match else re.sub(r"[^\w.-]+", "_", task).strip("_") or _UNNAMED


def staleness_histogram(before: pb.Statistics, now: pb.Statistics) -> HistogramProto | None:
    """Give the staleness of the pushes between two readings of a sequencer.

    Returns:
        A histogram whose buckets are [0, 1), [1, 2), [2, 4), [4, 8), ...; `num`, `sum` and `sum_squares` are
        exact. `min` and `max` are the edges of the outer buckets, or the staleness where it was 0 or 1
        throughout. None if there was no such push.

    >>> from globalstep.proto import globalstep_pb2 as pb
    >>> histogram = staleness_histogram(pb.Statistics(staleness=[5, 0, 0]), pb.Statistics(staleness=[9, 2, 1]))
    >>> list(histogram.bucket_limit), list(histogram.bucket), histogram.min, histogram.max
    ([1.0, 2.0, 4.0], [4.0, 2.0, 1.0], 0.0, 4.0)
    """
    counts = [new - old for old, new in zip(before.staleness, now.staleness, strict=True)]
    used = [bucket for bucket, count in enumerate(counts) if count]
    if not used:
        return None
    first, last = used[0], used[-1]
    # An edge, since viewers leave out a last bucket without width; but one number alone is drawn as a peak.
    most = first if first == last <= 1 else 1 << last
    return HistogramProto(
        min=float(1 << first >> 1),
        max=float(most),
        num=float(sum(counts)),
        sum=float(now.staleness_sum - before.staleness_sum),
        sum_squares=float(now.staleness_squares - before.staleness_squares),
        bucket_limit=[float(1 << bucket) for bucket in range(first, last + 1)],
        bucket=[float(count) for count in counts[first : last + 1]],
    )
