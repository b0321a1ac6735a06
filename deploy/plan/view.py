"""A plan as a page on a terminal, and as a picture.

Layer: deploy.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from globalstep.deploy.plan.job import Job
from globalstep.deploy.plan.modes import ModeForecast
from globalstep.deploy.plan.sizing import Forecast, JobPlan
from globalstep.deploy.status.view import human_bytes
from globalstep.errors import FailedPreconditionError

__all__ = ["draw_plan", "plot_plan"]

_BLUE, _ORANGE, _GREY = "#1f6fb4", "#e08a1e", "#9aa5ad"


def draw_plan(plan: JobPlan, batch: int = 0) -> Group:
    """Draw a plan.

    Args:
        plan: Which.
        batch: Examples of a worker's step; 0: not known.
    """
    chosen, job = plan.chosen, plan.job
    lags = [chosen.staleness_at(part) for part in (0.5, 0.9, 0.99)]
    memory = chosen.memory
    # Without computing there is nothing to compare with.
    alone = f", {chosen.efficiency:.0%} of the workers' own" if job.step_secs else ""
    examples = f", {chosen.steps_sec * batch:,.0f} examples/s" if batch else ""
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(style="bold")
    facts.add_column()
    facts.add_row("job", describe_job(job))
    facts.add_row("PS tasks", f"{chosen.ps:,}" + ("" if plan.asked else f": {plan.why}"))
    if plan.warning:
        facts.add_row("NOT ADVISED", plan.warning, style="red")
    facts.add_row(
        "throughput", f"{_number(chosen.steps_sec)} steps/s, {human_bytes(chosen.bytes_sec)}/s{alone}{examples}"
    )
    facts.add_row("a worker's step", f"{_secs(chosen.step_secs)}, of which {_secs(job.step_secs)} computing")
    facts.add_row("bottleneck", chosen.bottleneck)
    facts.add_row("staleness", f"p50 {lags[0]:,}, p90 {lags[1]:,}, p99 {lags[2]:,} steps")
    facts.add_row(
        "memory of each PS",
        f"{human_bytes(memory.total)}: values and slots {human_bytes(memory.values)}, pushes in flight "
        f"{human_bytes(memory.under_way)}, the process {human_bytes(memory.process)}",
    )
    resources = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("RESOURCE", "IN USE", "ALLOWS STEPS/S"):
        resources.add_column(name, justify="left" if name == "RESOURCE" else "right")
    for name, part in sorted(chosen.busy.items(), key=lambda item: -item[1]):
        bound = chosen.bounds.get(name, float("inf"))
        resources.add_row(name, f"{part:.0%}", "" if bound == float("inf") else _number(bound))
    tried = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("PS", "STEPS/S", "OF THE WORKERS' OWN", "BOTTLENECK"):
        tried.add_column(name, justify="left" if name == "BOTTLENECK" else "right")
    for found in plan.tried:
        mark = "bold" if found.ps == chosen.ps else ""
        own = f"{found.efficiency:.0%}" if job.step_secs else "-"
        tried.add_row(f"{found.ps:,}", _number(found.steps_sec), own, found.bottleneck, style=mark)
    tables = [facts, resources, tried, *([_modes(plan.modes)] if plan.modes else [])]
    return Group(tables[0], *(part for table in tables[1:] for part in (Text(), table)))


def _modes(modes: Sequence[ModeForecast]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("MODE", "STEPS/S", "BATCHES/S", "BYTES/S", "COMPUTING"):
        table.add_column(name, justify="left" if name == "MODE" else "right")
    for found in modes:
        table.add_row(
            found.mode,
            _number(found.steps_sec) if found.steps_sec >= 1 else f"{found.steps_sec:.2g}",
            _number(found.batches_sec),
            human_bytes(found.bytes_sec),
            f"{found.computing:.0%}",
        )
    return table


def describe_job(job: Job) -> str:
    """Say in a line what a job is."""
    what = f"{job.params:,.0f} parameters"
    if job.rows:
        what = f"a table of {job.params:,.0f} parameters, {job.rows:,} rows of {job.row_width} a step"
    if job.wire_itemsize != job.itemsize:
        values = "" if job.read_itemsize == job.wire_itemsize else f" of gradients, {8 * job.read_itemsize:g} of values"
        what += f" ({8 * job.wire_itemsize:g} bits each{values} on the wire)"
    where = "one machine" if job.shared_cores else f"{job.nic_gbps:g} Gbit/s"
    if job.shared_cores:
        where += f" with {job.shared_cores:g} cores"
    return f"{what}, {job.optimizer}; {job.workers:,} workers, {_secs(job.step_secs)} a step; {job.transport}, {where}"


def plot_plan(plan: JobPlan, path: Path) -> None:
    """Draw throughput by number of PS tasks, the use of each resource, and staleness.

    Args:
        plan: Which.
        path: The file to write, e.g. of PNG.

    Raises:
        FailedPreconditionError: If matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise FailedPreconditionError("Plots need matplotlib: pip install 'globalstep[bench]'.") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(15, 4.6), width_ratios=[1.1, 1, 1])
    _throughput(left, plan)
    _resources(middle, plan.chosen)
    _staleness(right, plan.chosen)
    for panel in (left, middle, right):
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_axisbelow(True)
    figure.suptitle(describe_job(plan.job), x=0.01, ha="left", fontsize=11)
    figure.tight_layout(rect=(0, 0, 1, 0.97))
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _throughput(panel: Any, plan: JobPlan) -> None:
    counts = [found.ps for found in plan.tried]
    panel.plot(
        counts, [found.steps_sec for found in plan.tried], marker="o", markersize=4, color=_BLUE, label="simulated"
    )
    if plan.job.step_secs:
        ideal = plan.job.workers / plan.job.step_secs
        panel.axhline(ideal, color=_GREY, linestyle="--", label="workers that exchange nothing")
    panel.plot(
        [plan.chosen.ps], [plan.chosen.steps_sec], "D", color=_ORANGE, markersize=8, label=f"{plan.chosen.ps} PS"
    )
    panel.set_xscale("log", base=2)
    shown = counts if len(counts) < 9 else [count for count in counts if count.bit_count() == 1]
    panel.set_xticks(shown, [f"{count:,}" for count in shown])
    panel.minorticks_off()
    panel.set_ylim(bottom=0)
    panel.grid(alpha=0.3)
    panel.set_xlabel("PS tasks")
    panel.set_title("steps/s of all workers", loc="left", fontsize=10)
    panel.legend(frameon=False, fontsize=8, loc="lower right")


def _resources(panel: Any, chosen: Forecast) -> None:
    shown = sorted(((part, name) for name, part in chosen.busy.items()))[-10:]
    colors = [_ORANGE if name == chosen.bottleneck else _BLUE for _, name in shown]
    panel.barh([name for _, name in shown], [100 * part for part, _ in shown], color=colors)
    panel.set_xlim(0, 100)
    panel.grid(axis="x", alpha=0.3)
    panel.set_xlabel("% of the time")
    panel.set_title(f"in use, with {chosen.ps} PS", loc="left", fontsize=10)


def _staleness(panel: Any, chosen: Forecast) -> None:
    lags = list(chosen.staleness)
    most = max(lags)
    width = max(1, -(-(most + 1) // 40))
    bins: dict[int, int] = {}
    for lag, pushes in chosen.staleness.items():
        bins[lag // width] = bins.get(lag // width, 0) + pushes
    total = sum(bins.values())
    panel.bar(
        [(at + 0.5) * width - 0.5 for at in bins], [100 * pushes / total for pushes in bins.values()],
        width=0.9 * width, color=_BLUE,
    )  # fmt: skip
    for part, style in ((0.5, "-"), (0.9, "--"), (0.99, ":")):
        lag = chosen.staleness_at(part)
        panel.axvline(lag, color=_ORANGE, linestyle=style, linewidth=1.2, label=f"p{100 * part:.0f}: {lag:,}")
    panel.set_xlim(left=-0.5)
    panel.grid(axis="y", alpha=0.3)
    panel.set_xlabel("steps that a push lags behind")
    panel.set_title("% of pushes by staleness", loc="left", fontsize=10)
    panel.legend(frameon=False, fontsize=8)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 20 else f"{value:,.2f}"


def _secs(value: float) -> str:
    return f"{value:,.2f} s" if value >= 1 else f"{1e3 * value:,.3g} ms"
