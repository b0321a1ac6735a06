"""ClusterStatisticsHook: shows the cluster itself in TensorBoard, beside a graph's StepCounterHook.

Layer: tf1.
"""

from __future__ import annotations

from globalstep.chief.hooks.statistics import ClusterStatistics
from globalstep.tf1.hooks.step import global_step_for
from globalstep.tf1.ops.summaries import SummaryWriterCache

__all__ = ["ClusterStatisticsHook"]


class ClusterStatisticsHook(ClusterStatistics):
    """Writes summaries of how the cluster works, on the chief.

    Every so often it asks each PS task once for its counters, and writes what they say of the time since it
    asked before:

    - `~cluster/global_step_per_sec`, of all workers together;
    - `~cluster/worker_1/steps_per_sec`, for each task that has pushed; `~cluster/session/...` for programs that
      did not say which task they are;
    - `~cluster/ps_0/bytes_in_per_sec`, `~cluster/ps_0/bytes_out_per_sec`: tensor bytes that a PS task received
      and sent;
    - `~cluster/ps_0/apply_ms`: how long it took to make the changes of one push, on average, milliseconds;
    - `~cluster/staleness`, a histogram: how many steps others made between a worker's read and its push;
    - where workers make steps together, `~cluster/made_per_sec`, `~cluster/late_per_sec`,
      `~cluster/contribution_wait_ms`: steps made of contributions, contributions that came too late, and how long one
      waited for its step, on average;
    - with `staleness="wait"`, `~cluster/lead_wait_ms`: how long a worker waited for slower ones, on average.

    The times are the PS tasks' own. A PS task that does not answer, or was restarted, is left out once.
    MonitoredTrainingSession adds this hook where it adds a StepCounterHook, with the directory `cluster` in that one's:
    to TensorBoard it is a run of its own, and its charts come after the program's.

    Args:
        every_n_steps: Write every so many global steps.
        every_n_secs: Or every so many seconds.
        output_dir: Where event files go.
        summary_writer: Or the writer to write with.
        clock: Where the hook's own time comes from.

    Raises:
        ValueError: Unless exactly one of `every_n_steps` and `every_n_secs`, and one of `output_dir` and
            `summary_writer`, is given.
    """

    def begin(self) -> None:
        """See SessionRunHook."""
        if self._output_dir:
            self._writer = SummaryWriterCache.get(self._output_dir)
        self._step = global_step_for("ClusterStatisticsHook")
