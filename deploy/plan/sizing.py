"""Sizing of a job: how many PS tasks it needs, and how fast it will be, by simulations. Pure.

Layer: deploy.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from globalstep.deploy.bench.cost_profile import Profile
from globalstep.deploy.plan.job import PAYLOAD, Job, Memory, bounds, cluster_of, memory_of, phases_of
from globalstep.deploy.plan.modes import ModeForecast, Pace
from globalstep.deploy.plan.simulation import simulate
from globalstep.errors import InvalidArgumentError

__all__ = ["FORMAT", "Forecast", "JobPlan", "forecast", "make_plan", "pace_of"]

#: Of the JSON that `globalstep plan --json` prints.
FORMAT = 1
#: Less than this is no growth.
_GROWTH = 1.05
#: Workers that compute for so much of their time are not kept waiting.
_ENOUGH = 0.95
#: Workers that compute for less of their time than this had better be fewer, or send less.
_TOO_LITTLE = 0.5
#: In use for so much of the time a resource is what holds the others up.
_SATURATED = 0.9
_MOST_PS = 1024
#: Of each worker, while a number of PS tasks is looked for, and for the final figures.
_SCAN_STEPS, _STEPS = 6, 20


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is to be expected with a number of PS tasks.

    Attributes:
        ps: How many.
        steps_sec: Steps of all workers together, a second.
        step_secs: Of a worker's step.
        bytes_sec: Tensor bytes that are moved a second, both ways, of all workers together.
        efficiency: Part of the steps that workers would do if nothing had to be exchanged.
        staleness: Steps that a push lagged behind -> pushes.
        busy: Resource -> part of the time in which it is in use.
        bounds: Resource -> steps a second that it allows by itself.
        bottleneck: What holds the others up.
        memory: Of each PS task.
    """

    ps: int
    steps_sec: float
    step_secs: float
    bytes_sec: float
    efficiency: float
    staleness: Mapping[int, int]
    busy: Mapping[str, float]
    bounds: Mapping[str, float]
    bottleneck: str
    memory: Memory

    def staleness_at(self, part: float) -> int:
        """Give the staleness that this part of all pushes does not exceed.

        Args:
            part: For example 0.99.
        """
        seen, total = 0, sum(self.staleness.values())
        for lag, pushes in sorted(self.staleness.items()):
            seen += pushes
            if seen >= part * total:
                return lag
        return 0

    def as_json(self) -> dict[str, Any]:
        """Give it as JSON can hold it; a resource without a bound is left out of `bounds`."""
        found = {**asdict(self), "memory": {**asdict(self.memory), "total": self.memory.total}}
        found["bounds"] = {name: bound for name, bound in self.bounds.items() if bound != float("inf")}
        found["staleness"] = {
            **{f"p{round(100 * part)}": self.staleness_at(part) for part in (0.5, 0.9, 0.99)},
            "pushes": {str(lag): pushes for lag, pushes in self.staleness.items()},
        }
        return found


@dataclass(frozen=True, slots=True)
class JobPlan:
    """What is advised.

    Attributes:
        job: For which job.
        chosen: What is to be expected of the number of PS tasks that was asked for, or that is advised.
        tried: The others that were simulated, shorter, in order.
        asked: Whether the number was asked for.
        why: Why this number is advised.
        warning: Why such a cluster is advised against; "" where it is not.
        modes: What is to be expected of each mode, where that was asked for.
    """

    job: Job
    chosen: Forecast
    tried: Sequence[Forecast]
    asked: bool
    why: str
    warning: str = ""
    modes: Sequence[ModeForecast] = ()

    def as_json(self) -> dict[str, Any]:
        """Give it as JSON can hold it."""
        job = {name: value if value != float("inf") else None for name, value in asdict(self.job).items()}
        return {
            "format": FORMAT,
            "job": job,
            "ps": self.chosen.ps,
            "asked": self.asked,
            "why": self.why,
            "warning": self.warning,
            "forecast": self.chosen.as_json(),
            "modes": [asdict(mode) for mode in self.modes],
            "tried": [
                {"ps": tried.ps, "steps_sec": tried.steps_sec, "bottleneck": tried.bottleneck} for tried in self.tried
            ],
        }


def forecast(job: Job, profile: Profile, ps: int, rng: random.Random, steps_per_worker: float = _STEPS) -> Forecast:
    """Simulate a job with a number of PS tasks.

    Args:
        job: The job.
        profile: What its parts cost.
        ps: How many PS tasks.
        rng: For the spread of steps.
        steps_per_worker: How long; more of them where there are few workers.
    """
    cluster, phases = cluster_of(job, ps), phases_of(job, profile, ps)
    found = simulate(cluster, phases, rng, max(steps_per_worker, 400 / job.workers))
    ideal = job.workers / job.step_secs if job.step_secs else float("inf")
    return Forecast(
        ps=ps,
        steps_sec=found.steps_sec,
        step_secs=found.step_secs,
        bytes_sec=found.steps_sec * job.step_bytes,
        efficiency=found.steps_sec / ideal,
        staleness=found.staleness,
        busy=found.busy,
        bounds=bounds(cluster, phases),
        bottleneck=_bottleneck(found.busy),
        memory=memory_of(job, profile, ps, found.held_bytes),
    )


def make_plan(
    job: Job, profile: Profile, ps: int, seed: int, progress: Callable[[Forecast], None] = lambda tried: None
) -> JobPlan:
    """Find out how many PS tasks a job needs, or what is to be expected of a number of them.

    Args:
        job: The job.
        profile: What its parts cost.
        ps: How many PS tasks; 0 finds the smallest number of which twice as many bring less than 5%, or with which
            workers compute for 95% of their time.
        seed: Of the simulations: the same gives the same.
        progress: Called with each that was simulated.
    """
    tried: dict[int, Forecast] = {}

    def attempt(count: int) -> Forecast:
        if count not in tried:
            tried[count] = forecast(job, profile, count, random.Random(f"{seed} {count}"), _SCAN_STEPS)
            progress(tried[count])
        return tried[count]

    why = ""
    if ps:
        for count in sorted({max(1, ps // 4), max(1, ps // 2), ps, 2 * ps}):
            attempt(count)
    asked = bool(ps)
    if not ps:
        ps, why = _smallest(attempt)
        for count in _doubling(2 * ps):  # for the plot
            attempt(count)
    chosen = forecast(job, profile, ps, random.Random(f"{seed} {ps}"), _STEPS)
    return JobPlan(job, chosen, [tried[count] for count in sorted(tried)], asked, why, _warning(job, chosen, asked))


def pace_of(plan: JobPlan, profile: Profile, slow: int = 0, slow_factor: float = 1.0) -> Pace:
    """Give what the workers of a planned job take, for forecasts of modes.

    Args:
        plan: Of the job; its workers are all alike.
        profile: What its parts cost.
        slow: How many of the workers are slow after all.
        slow_factor: By how much.

    Raises:
        InvalidArgumentError: If there can be no such workers, or they take each other's cores.
    """
    job, chosen = plan.job, plan.chosen
    if job.shared_cores and job.compute_takes_core:
        raise InvalidArgumentError(
            "Modes are foretold of workers that do not compute on each other's cores: leave out --shared-cores, or "
            "add --accelerator."
        )
    alone = forecast(replace(job, workers=1, step_spread=0.0), profile, chosen.ps, random.Random(0), _SCAN_STEPS)
    secs = {name: 1 / rate for name, rate in chosen.bounds.items() if not name.startswith("workers'")}
    both_ways = [
        secs.get(f"{task}: link in", 0.0) + secs.get(f"{task}: link out", 0.0) for task in ("sequencer", "other PS")
    ]
    return Pace(
        workers=job.workers,
        compute_secs=job.step_secs,
        spread=job.step_spread,
        alone_secs=max(0.0, alone.step_secs - job.step_secs),
        loaded_secs=max(0.0, chosen.step_secs - job.step_secs),
        transfer_secs=job.step_bytes / (job.nic_gbps * 1e9 / 8 * PAYLOAD),
        # Of a synchronous step no value leaves before the last gradient is in.
        queue_secs=max(*both_ways, *secs.values()),
        allows=min(chosen.bounds[name] for name in secs),
        step_bytes=job.step_bytes,
        slow=slow,
        slow_factor=slow_factor,
    )


def _warning(job: Job, chosen: Forecast, asked: bool) -> str:
    """Say why a cluster is advised against whose workers mostly wait; "" where they do not."""
    if not job.step_secs or chosen.efficiency >= _TOO_LITTLE:
        return ""
    alone = 1.0 / job.step_secs
    against = f"with {chosen.ps:,} PS tasks workers compute for only {chosen.efficiency:.0%} of their time"
    more = "" if asked else ", and more do not help"
    gain = f"{chosen.steps_sec / alone:,.1f} times what one of the {job.workers:,} workers computes alone"
    if chosen.steps_sec <= alone:
        gain = f"less than one of the {job.workers:,} workers computes alone"
    return (
        f"{against}{more}: all together do {gain}. What holds them up: {chosen.bottleneck}. Take fewer workers, larger "
        "batches (longer steps), fewer bytes (gs.WireOptions, embeddings by rows), or a faster network"
    )


def _smallest(attempt: Callable[[int], Forecast]) -> tuple[int, str]:
    """Give the smallest number of PS tasks that is enough, and why it is."""

    def more_bring_little(count: int) -> bool:
        now = attempt(count).steps_sec
        if attempt(2 * count).steps_sec >= _GROWTH * now:
            return False
        # From one to a few, a push takes more messages: what that costs, further ones may gain.
        return count >= 4 or attempt(4 * count).steps_sec < _GROWTH**2 * now

    found = attempt(1)
    for count in _doubling(_MOST_PS):
        found = attempt(count)
        if found.efficiency >= _ENOUGH or more_bring_little(count):
            break
    enough = found.efficiency >= _ENOUGH

    def reaches(tried: Forecast) -> bool:
        return tried.efficiency >= _ENOUGH if enough else tried.steps_sec * _GROWTH >= found.steps_sec

    low, high = found.ps // 2, found.ps
    while high - low > max(1, high // 8):
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(attempt(middle)) else (middle, high)
    if enough:
        return high, f"workers compute for {_ENOUGH:.0%} of their time or more"
    return high, f"twice as many bring less than {_GROWTH - 1:.0%}"


def _doubling(most: int) -> Iterator[int]:
    count = 1
    while count <= most:
        yield count
        count *= 2


def _bottleneck(busy: Mapping[str, float]) -> str:
    name = max(busy, key=lambda name: busy[name])
    if busy[name] >= _SATURATED:
        return name
    # A worker computes and sends by turns.
    if busy["workers' computing"] + busy.get("workers' messages", 0.0) >= _SATURATED:
        return "workers' messages"
    return "latency (nothing is saturated)"
