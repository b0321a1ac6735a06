"""Tables for a terminal: a cluster's status, and what other tables are made of.

Pure: data in, something that rich prints out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from globalstep.deploy.status.cluster_status import ClusterStatus, QueueStatus, ShardStatus, TogetherStatus
from globalstep.wire.names import printable

_STYLES = {"ready": "green", "done": "cyan", "vacant": "yellow", "initializing": "yellow"}


def human_bytes(count: float) -> str:
    """Give bytes for a person.

    >>> human_bytes(512), human_bytes(1_500_000), human_bytes(3.2e9)
    ('512 B', '1.5 MB', '3.2 GB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def short_task(task: str) -> str:
    """Give a task as a person says it.

    >>> short_task("/job:worker/task:1"), short_task("")
    ('worker:1', '(session)')
    """
    return task.replace("/job:", "").replace("/task", "") or "(session)"


def cell(text: str) -> str:
    """Give a text that others chose for a cell of a table: no markup, and nothing that speaks to terminals."""
    return escape(printable(text))


def text_of(line: str, style: str = "") -> Text:
    """Give a line as it may be shown."""
    return Text(printable(line), style)


def draw_status(status: ClusterStatus) -> RenderableType:
    """Draw a cluster's status."""
    parts: list[RenderableType] = [text_of(line) for line in _headline(status)]
    if status.workers:
        parts.append(_workers(status))
    parts.append(
        _Fitting(
            _shards(status.shards, *_STATE, *_FLOW), _shards(status.shards, *_STATE), _shards(status.shards, *_FLOW)
        )
    )
    parts.extend(text_of(line) for line in _kept(status.shards))
    if status.queues:
        parts.append(_queues(status.queues))
    parts.extend(text_of(f"! {problem}", "bold red") for problem in status.problems)
    return Group(*parts)


def _kept(shards: Sequence[ShardStatus]) -> Iterable[str]:
    """Say what PS tasks keep for their callers."""
    for shard in shards:
        if shard.kept:
            kinds = ", ".join(f"{kind} {human_bytes(count)}" for kind, count in sorted(shard.kept.items()))
            most = max(shard.holders.items(), key=lambda item: item[1], default=("", 0))
            total, limit = human_bytes(sum(shard.kept.values())), human_bytes(shard.kept_limit)
            who = f"; most for {short_task(most[0])}, {human_bytes(most[1])}"
            yield f"{shard.address} keeps {total} of {limit} for callers: {kinds}{who}"


def _queues(queues: Sequence[QueueStatus]) -> Table:
    table = table_of("QUEUE", "PS", "HOLDS", "BYTES", "KEPT", "PRODUCERS", "CONSUMERS")
    for queue in queues:
        most = "" if queue.capacity is None else f" of {queue.capacity:,}"
        table.add_row(
            cell(queue.name) + (", closed" if queue.closed else ""),
            cell(queue.address),
            f"{queue.size:,}{most}",
            human_bytes(queue.nbytes),
            str(queue.kept),
            str(queue.producers),
            str(queue.consumers),
        )
    return table


def _headline(status: ClusterStatus) -> Iterable[str]:
    for step in status.steps:
        limit = f" of {step.limit:,}" if step.limit is not None else ""
        rate = f", {step.per_sec:.1f} steps/s" if step.per_sec is not None else ""
        left = (step.limit or 0) - step.value
        end = f", {duration(left / step.per_sec)} to go" if step.limit and step.per_sec and left > 0 else ""
        yield f"{step.name}: {step.value:,}{limit}{rate}{end}"
    pushes = "" if status.pushes_per_sec is None else f"{status.pushes_per_sec:.1f} pushes/s, "
    lag = "" if status.mean_staleness is None else f"staleness {status.mean_staleness:.2f}, "
    dropped = status.dropped_stale + status.dropped_nan
    if status.steps:
        yield f"{pushes}{lag}refused {status.refused}, dropped {dropped}, duplicates {status.duplicates}"
    yield from _together(status.together)
    chief = short_task(status.chief) if status.chief else "none has said so"
    silent = "" if status.chief_silent_secs is None else f" (heard {status.chief_silent_secs:.0f} s ago)"
    policy = ", ".join(f"{name}={value}" for name, value in status.policy.items()) or "the defaults"
    yield f"incarnation {status.incarnation or '-'}; chief: {chief}{silent}; policy: {policy}"
    if status.directory:
        yield f"directory: {status.directory}"
    save = status.last_save
    if save is not None:
        steps = ", ".join(f"{name} {value:,}" for name, value in save.steps.items())
        yield f"last checkpoint: {steps}, {duration(save.age_secs)} ago"
    elif status.steps:
        yield "last checkpoint: none in this incarnation"


def _together(joint: TogetherStatus) -> Iterable[str]:
    """Say what is to be said of steps that workers make together."""
    if joint.contributions or joint.late:
        waited = "" if joint.wait_secs is None else f"; one waits {joint.wait_secs:.3f} s for its step, on average"
        yield f"contributions: {joint.contributions:,}, {joint.late:,} late; {joint.made:,} steps made of them{waited}"
    for step in joint.open:
        names = ", and ".join(f"{short_task(item.who)}, {item.why}" for item in step.waits_for) or "nobody"
        yield (
            f"{step.name} {step.value + 1:,} has {step.contributions} of {step.wanted} contributions, for "
            f"{step.open_secs:.1f} s; waits for {names}"
        )
    if joint.lead_waits:
        yield f"waits for slower workers: {joint.lead_waits:,}, {joint.lead_wait_secs:.1f} s together"


def duration(secs: float) -> str:
    """Give a time for a person.

    >>> duration(4.2), duration(125), duration(7300)
    ('4 s', '2 min 5 s', '2 h 1 min')
    """
    minutes, rest = divmod(round(secs), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def table_of(*columns: str) -> Table:
    """Make an empty table."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for at, column in enumerate(columns):
        left = at == 0 or column in ("STATE", "SHARD")
        # Where a column is too narrow a name goes on in the next line; everything else stays whole.
        table.add_column(column, justify="left" if left else "right", no_wrap=at > 0, overflow="fold")
    return table


def _workers(status: ClusterStatus) -> Table:
    waits = status.policy.get("staleness") == "wait"
    table = table_of("WORKER", "PUSHES", "PUSHES/S", "STALENESS", "SILENT", *(["AHEAD", "WAITS"] if waits else []))
    for worker in status.workers:
        pace = [str(worker.lead), f"{worker.waited_secs:.1f} s" if worker.waited_secs else "-"]
        table.add_row(
            cell(short_task(worker.task)),
            f"{worker.pushes:,}",
            rate_of(worker.pushes_per_sec),
            f"{worker.staleness:.2f}",
            f"{worker.silent_secs:.0f} s",
            *(pace if waits else []),
        )
    return table


#: Columns of the table of PS tasks; side by side, or below each other where the terminal is too narrow.
_STATE = ("STATE", "VALUES", "MEMORY", "STAGED", "REQUESTS")
_FLOW = ("IN/S", "OUT/S", "APPLIES/S", "LOAD")


class _Fitting:
    """A table where it fits; else narrower ones."""

    def __init__(self, wide: Table, *narrow: Table) -> None:
        self._wide = wide
        self._narrow = narrow

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        needed = console.measure(self._wide, options=options.update(max_width=10_000)).maximum
        yield from [self._wide] if needed <= options.max_width else self._narrow


def _shards(shards: Sequence[ShardStatus], *columns: str) -> Table:
    table = table_of("PS", *columns)
    for shard in shards:
        name = cell(shard.address) + (" *" if shard.sequencer else "")
        if shard.error:
            table.add_row(name, *["[red]no answer[/red]"] * ("STATE" in columns))
            continue
        state = shard.state + (", draining" if shard.draining else "")
        cells = {
            "STATE": f"[{_STYLES.get(shard.state, 'red')}]{cell(state)}[/]",
            "VALUES": human_bytes(shard.value_bytes),
            "MEMORY": human_bytes(shard.resident_bytes),
            "STAGED": f"{shard.staged_parts} ({human_bytes(shard.staged_bytes)})",
            "REQUESTS": str(shard.requests),
            "IN/S": _bytes(shard.bytes_in_per_sec),
            "OUT/S": _bytes(shard.bytes_out_per_sec),
            "APPLIES/S": rate_of(shard.applies_per_sec),
            "LOAD": "-" if shard.load is None else f"{shard.load:.0%}",
        }
        table.add_row(name, *(cells[column] for column in columns))
    return table


def rate_of(value: float | None) -> str:
    """Give a rate, or "-" where there is none."""
    return "-" if value is None else f"{value:.1f}"


def _bytes(value: float | None) -> str:
    return "-" if value is None else human_bytes(value)
