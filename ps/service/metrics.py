"""What a PS task tells Prometheus: its Status, as metric families. docs/status.md lists them.

Needs the extra `metrics`; imported only where a metrics port is asked for.

Layer: ps. Threads: a PSCollector is thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from globalstep.proto import globalstep_pb2 as pb


class PSCollector:
    """Reads a PS task's Status whenever Prometheus asks.

    Args:
        status: Gives it, brief.
    """

    def __init__(self, status: Callable[[], pb.StatusReply]) -> None:
        self._status = status

    def describe(self) -> list[Metric]:
        """Give no names beforehand: asking for a Status at registration would be too early."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Give all metric families as of now."""
        reply = self._status()
        yield from _counters(reply)
        yield from _gauges(reply)
        yield _staleness(reply.statistics)
        yield from _together(reply)
        yield from _workers(reply)


def _counters(reply: pb.StatusReply) -> Iterator[Metric]:
    counted = reply.statistics
    outcomes = {
        "accepted": counted.accepted,
        "refused": counted.refused,
        "dropped_stale": counted.dropped_stale,
        "dropped_nan": counted.dropped_nan,
        "duplicate": counted.duplicates,
    }
    pushes = CounterMetricFamily("globalstep_ps_pushes", "Pushes that the sequencer decided on", labels=["outcome"])
    for outcome, count in outcomes.items():
        pushes.add_metric([outcome], count)
    yield pushes
    for name, what, value in (
        ("ordered_reads", "Reads that took a place in the order of pushes", counted.ordered_reads),
        ("applied", "Pushes whose changes were made here", counted.applied),
        ("apply_seconds", "Seconds that making changes took", counted.apply_secs),
        ("received_bytes", "Tensor bytes that came with requests", counted.bytes_in),
        ("sent_bytes", "Tensor bytes that went with replies", counted.bytes_out),
        ("sent_away", "Requests that there was no memory for; their clients come again", reply.load.sent_away),
    ):
        yield CounterMetricFamily(f"globalstep_ps_{name}", what, value=value)


def _gauges(reply: pb.StatusReply) -> Iterator[Metric]:
    load = reply.load
    for name, what, value in (
        ("state", "1 vacant, 2 initializing, 3 ready, 4 done", reply.state),
        ("incarnation", "Life of the run's state; 0 while vacant", reply.incarnation),
        ("sequencer", "Whether this task orders all pushes", reply.shard == reply.sequencer and reply.incarnation > 0),
        ("draining", "Whether it was asked to end and waits for a checkpoint", reply.draining),
        ("clients", "Clients with a live lease", len(reply.clients)),
        ("value_bytes", "Bytes of all values and slots", load.value_bytes),
        ("staged_parts", "Parts of pushes that wait for their decision", load.staged_parts),
        ("staged_bytes", "Tensor bytes of those", load.staged_bytes),
        ("requests", "Data-plane requests that wait for their answer", load.requests),
        ("kept_limit_bytes", "The most that may be kept for callers at a time", load.kept_limit),
    ):
        yield GaugeMetricFamily(f"globalstep_ps_{name}", what, value=float(value))
    kept = GaugeMetricFamily("globalstep_ps_kept_bytes", "Bytes that are kept for callers", labels=["kind"])
    for kind, nbytes in load.kept.items():
        kept.add_metric([kind], nbytes)
    yield kept
    if load.HasField("save_age_secs"):
        yield GaugeMetricFamily(
            "globalstep_ps_last_save_age_seconds", "Since the last snapshot was given back", load.save_age_secs
        )
    steps = GaugeMetricFamily("globalstep_step", "Admitted value of a step, from the sequencer", labels=["step"])
    limits = GaugeMetricFamily("globalstep_step_limit", "Value that a step will not pass", labels=["step"])
    for name, value in reply.steps.items():
        steps.add_metric([name], value)
    for name, value in reply.limits.items():
        limits.add_metric([name], value)
    yield steps
    yield limits


def _staleness(counted: pb.Statistics) -> Metric:
    buckets: list[tuple[str, float]] = []
    total = 0
    for bucket, count in enumerate(counted.staleness[:-1]):
        total += count
        buckets.append((str(float((1 << bucket) - 1)), total))
    buckets.append(("+Inf", sum(counted.staleness)))
    return HistogramMetricFamily(
        "globalstep_ps_staleness", "Steps that accepted pushes lagged behind", buckets, counted.staleness_sum
    )


def _together(reply: pb.StatusReply) -> Iterator[Metric]:
    """Give what there is of steps that several workers make together."""
    counted = reply.statistics
    contributions = CounterMetricFamily("globalstep_ps_contributions", "Contributions to steps", labels=["outcome"])
    contributions.add_metric(["accepted"], counted.contributions)
    contributions.add_metric(["late"], counted.late)
    yield contributions
    yield CounterMetricFamily("globalstep_ps_steps_made", "Values of steps made of contributions", value=counted.made)
    yield SummaryMetricFamily(
        "globalstep_ps_contribution_wait_seconds",
        "That contributions waited until their step was made",
        counted.waited,
        counted.waited_secs,
    )
    if reply.policy.staleness == "wait":
        yield SummaryMetricFamily(
            "globalstep_ps_lead_wait_seconds",
            "That workers waited for slower ones",
            counted.lead_waits,
            counted.lead_wait_secs,
        )
    came = GaugeMetricFamily("globalstep_step_contributions", "To its next value, that are there", labels=["step"])
    wanted = GaugeMetricFamily("globalstep_step_contributions_wanted", "To its next value", labels=["step"])
    since = GaugeMetricFamily("globalstep_step_open_seconds", "That the oldest of them has waited", labels=["step"])
    who = ["step", "task"]
    awaited = GaugeMetricFamily("globalstep_step_awaits_seconds", "For a task that has not contributed", labels=who)
    for item in reply.open_steps:
        came.add_metric([item.step], item.contributions)
        wanted.add_metric([item.step], item.wanted)
        since.add_metric([item.step], item.open_secs)
        for task in sorted(item.waits_for):
            awaited.add_metric([item.step, task], item.open_secs)
    if reply.open_steps:
        yield from (came, wanted, since, awaited)


def _workers(reply: pb.StatusReply) -> Iterator[Metric]:
    labels = ["task", "client"]
    pushes = CounterMetricFamily("globalstep_worker_pushes", "Accepted pushes that moved a step on", labels=labels)
    lag = CounterMetricFamily("globalstep_worker_staleness", "Steps that they lagged behind, added up", labels=labels)
    silent = GaugeMetricFamily("globalstep_worker_silent_seconds", "Since it was last heard of", labels=labels)
    lead = GaugeMetricFamily("globalstep_worker_lead", "Pushes that it is ahead of the slowest", labels=labels)
    waits = GaugeMetricFamily("globalstep_worker_waited_seconds", "For slower workers, until now", labels=labels)
    for item in reply.clients:
        who = [item.task, item.client]
        pushes.add_metric(who, item.pushes)
        lag.add_metric(who, item.staleness_sum)
        silent.add_metric(who, item.silent_secs)
        if reply.policy.staleness == "wait":
            lead.add_metric(who, item.lead)
            waits.add_metric(who, item.waited_secs)
    yield from (pushes, lag, silent, lead, waits) if reply.policy.staleness == "wait" else (pushes, lag, silent)
