"""The live table of `globalstep launch` on a terminal: each process, how it fares, and what the cluster says of it.

`draw_cluster` is pure; `LiveConsole` shows its tables below the lines of all tasks; `watch_cluster` keeps them up to
date.

Layer: deploy. Not thread-safe: all is used from the launcher's one event loop, but for the asking, which waits in a
thread of asyncio's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

from rich import console as rich_console
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from globalstep.deploy.launch.console import Console
from globalstep.deploy.launch.launcher import Task
from globalstep.deploy.status.cluster_status import Answer, ClusterStatus, ShardStatus, WorkerStatus, read_cluster
from globalstep.deploy.status.cluster_watch import ClusterWatch
from globalstep.deploy.status.view import cell, human_bytes, rate_of, short_task
from globalstep.errors import GlobalStepError
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock

_PERIOD_SECS = 1.0
EXIT_TERMINATED = 143


@dataclass(frozen=True, slots=True)
class Row:
    """A process of the cluster: "worker:0", its pid (0 before it has one), "running", "ended", ..., its restarts."""

    name: str
    pid: int
    state: str
    restarts: int


def rows_of(tasks: Sequence[Task]) -> list[Row]:
    """Say how the processes fare."""
    return [
        Row(task.name, task.process.pid if task.process is not None else 0, _state(task), task.restarts)
        for task in tasks
    ]


def _state(task: Task) -> str:
    if task.process is None:
        return "starting"
    code = task.process.returncode
    if code in (None, 0):
        return "running" if code is None else "ended"
    # 143: it was asked to end, and did so in good order.
    return f"{'ended' if code == EXIT_TERMINATED else 'failed'} ({code})"


def draw_cluster(rows: Sequence[Row], status: ClusterStatus | None) -> Table:
    """Draw the table.

    Args:
        rows: The processes.
        status: What the PS tasks, which come first and in order, have answered; None before they have.
    """
    # One blank between columns: it is to fit on 80.
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for column in ("ROLE", "PID", "STATE", "STEPS/S", "STALENESS", "IN/S", "OUT/S", "MEMORY", "RESTARTS"):
        table.add_column(column, justify="left" if column in ("ROLE", "STATE") else "right", no_wrap=True)
    shards = {f"ps:{index}": shard for index, shard in enumerate(status.shards if status else ())}
    workers: dict[str, list[WorkerStatus]] = {}
    for worker in status.workers if status else ():
        workers.setdefault(short_task(worker.task), []).append(worker)
    for row in rows:
        cells = _ps_cells(shards[row.name]) if row.name in shards else _worker_cells(workers.get(row.name, []))
        style = "red" if row.state.startswith("failed") else "green" if row.state == "running" else "yellow"
        shard = shards.get(row.name)
        state = shard.state if shard is not None and row.state == "running" and shard.state else row.state
        table.add_row(cell(row.name), str(row.pid or "-"), f"[{style}]{cell(state)}[/]", *cells, str(row.restarts))
    return table


def _ps_cells(shard: ShardStatus) -> tuple[str, ...]:
    return (
        rate_of(shard.applies_per_sec),
        "",
        "-" if shard.bytes_in_per_sec is None else human_bytes(shard.bytes_in_per_sec),
        "-" if shard.bytes_out_per_sec is None else human_bytes(shard.bytes_out_per_sec),
        human_bytes(shard.resident_bytes) if shard.resident_bytes else "-",
    )


def _worker_cells(workers: Sequence[WorkerStatus]) -> tuple[str, ...]:
    if not workers:
        return ("-", "-", "", "", "")
    rates = [worker.pushes_per_sec for worker in workers if worker.pushes_per_sec is not None]
    lag = max(worker.staleness for worker in workers)
    return (rate_of(sum(rates) if rates else None), f"{lag:.2f}", "", "", "")


class LiveConsole(Console):
    """A Console on a terminal, with a table and the newest progress below all lines."""

    def __init__(
        self, stream: TextIO, environ: Mapping[str, str], clock: Clock = SYSTEM_CLOCK, log_format: str = "text"
    ) -> None:
        super().__init__(stream, environ, clock=clock, log_format=log_format)
        self._terminal = rich_console.Console(file=stream, highlight=False)
        self._table: RenderableType | None = None
        self._region = Live(console=self._terminal, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._region.start()

    def table(self, table: RenderableType) -> None:
        """Show a table in the place of the one before."""
        self._table = table
        self._redraw()

    def finish(self) -> None:
        """Leave table and progress as they are, and the cursor below them."""
        self._redraw()
        self._region.stop()

    def _show_progress(self, task: str, text: str) -> None:
        self._progress = f"{self._prefix(task)} {text}"
        self._redraw()

    def _write(self, text: str) -> None:
        self._terminal.print(Text.from_ansi(text), soft_wrap=True)

    def _redraw(self) -> None:
        parts: list[RenderableType] = [] if self._table is None else [self._table]
        if self._progress:
            parts.append(Text.from_ansi(self._progress, no_wrap=True, overflow="ellipsis"))
        self._region.update(Group(*parts), refresh=True)


async def watch_cluster(
    tasks: Sequence[Task], addresses: Sequence[str], console: LiveConsole, environ: Mapping[str, str]
) -> None:
    """Keep the table up to date until cancelled."""
    before: Sequence[Answer] = ()
    status: ClusterStatus | None = None
    try:
        watch = ClusterWatch(addresses, environ)
    except GlobalStepError as error:
        console.say(f"globalstep launch: the table has no numbers of the cluster: {error}")
        watch = None
    try:
        while True:
            if watch is not None:
                now = await asyncio.to_thread(watch.ask, True, _PERIOD_SECS)
                status, before = read_cluster(addresses, now, before), now
            console.table(draw_cluster(rows_of(tasks), status))
            await asyncio.sleep(_PERIOD_SECS)
    finally:
        console.table(draw_cluster(rows_of(tasks), status))
        if watch is not None:
            watch.close()
