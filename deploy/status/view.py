"""Tables for a terminal: a cluster's status, its Variables, and what other tables are made of.

Pure: data in, something that rich prints out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from globalstep.deploy.status.reading import Reading, is_sequencer
from globalstep.proto import globalstep_pb2 as pb
from globalstep.wire.names import printable

#: A PS task's state, and its style.
_STATES = {
    int(pb.STATE_VACANT): ("vacant", "yellow"),
    int(pb.STATE_INITIALIZING): ("initializing", "yellow"),
    int(pb.STATE_READY): ("ready", "green"),
    int(pb.STATE_DONE): ("done", "cyan"),
}


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


def duration(secs: float) -> str:
    """Give a time for a person.

    >>> duration(4.2), duration(125), duration(7300)
    ('4 s', '2 min 5 s', '2 h 1 min')
    """
    minutes, rest = divmod(round(secs), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def cell(text: str) -> str:
    """Give a text that others chose for a cell of a table: no markup, and nothing that speaks to terminals."""
    return escape(printable(text))


def draw_status(reading: Reading) -> RenderableType:
    """Draw a cluster's status."""
    parts: list[RenderableType] = []
    if reading.sequencer is not None:
        parts += map(_text, _headline(*reading.sequencer))
        if reading.sequencer[0].clients:
            parts.append(_workers(*reading.sequencer))
    tables = [_tasks(reading, *columns) for columns in ((*_STATE, *_FLOW), _STATE, _FLOW)]
    parts.append(_Fitting(tables[0], *tables[1:]))
    parts += [_text(_kept(address, reply)) for address, reply, _ in reading.answers if reply.load.kept]
    if any(reply.queues for _, reply, _ in reading.answers):
        parts.append(_queues(reading))
    return Group(*parts, *_problems(reading))


def draw_variables(reading: Reading) -> RenderableType:
    """Draw where a cluster's Variables lie; the parts of one that is split by rows are one line."""
    parts: dict[str, list[tuple[pb.VariableDecl, pb.StatusReply, pb.StatusReply | None]]] = {}
    for _, reply, old in reading.answers:
        for decl in reply.variables:
            parts.setdefault(decl.whole or decl.name, []).append((decl, reply, old))
    table, total = _table("VARIABLE", "SHARD", "BYTES", "DTYPE", "SHAPE", "INITIALIZED", "PUSHES", "PUSHES/S"), 0
    for name, pieces in sorted(parts.items()):
        pieces.sort(key=lambda item: item[0].first_row)
        first = pieces[0][0]
        shape = [first.whole_rows, *first.shape[1:]] if first.whole else list(first.shape)
        nbytes = np.dtype(first.dtype).itemsize * int(np.prod(shape, dtype=np.int64))
        total += nbytes
        shards = ",".join(str(reply.shard) for _, reply, _ in pieces)
        missing = any(decl.name in reply.uninitialized for decl, reply, _ in pieces)
        # Of a split one its busiest part counts.
        pushes = max(_pushes(decl, reply) for decl, reply, _ in pieces)
        rates = [(_pushes(decl, reply) - _pushes(decl, old)) / _secs(reply, old) for decl, reply, old in pieces if old]
        table.add_row(
            cell(name), f"{shards} ({len(pieces)} parts)" if len(pieces) > 1 else shards, human_bytes(nbytes),
            cell(first.dtype), cell(str(shape)), "[red]no[/red]" if missing else "yes", f"{pushes:,}",
            _shown(max(rates, default=None)),
        )  # fmt: skip
    return Group(table, _text(f"{len(parts)} Variables, {human_bytes(total)}"), *_problems(reading))


def _pushes(decl: pb.VariableDecl, reply: pb.StatusReply) -> int:
    """Give how many pushes have changed a Variable since its PS task started; of a step, its value."""
    return (reply.steps if decl.is_step else reply.variable_pushes).get(decl.name, 0)


def _problems(reading: Reading) -> Iterator[Text]:
    return (_text(f"! {problem}", "bold red") for problem in reading.problems)


def _text(line: str, style: str = "") -> Text:
    """Give a line as it may be shown."""
    return Text(printable(line), style)


def _short_task(task: str) -> str:
    """Give a task as a person says it.

    >>> _short_task("/job:worker/task:1"), _short_task("")
    ('worker:1', '(session)')
    """
    return task.replace("/job:", "").replace("/task", "") or "(session)"


def _secs(now: pb.StatusReply, old: pb.StatusReply) -> float:
    return now.statistics.secs - old.statistics.secs


def _rate(count: Callable[[pb.StatusReply], float], now: pb.StatusReply, old: pb.StatusReply | None) -> float | None:
    """Give how fast a counter grows, a second; None where there is no earlier reading."""
    return None if old is None else (count(now) - count(old)) / _secs(now, old)


def _shown(rate: float | None, text: Callable[[float], str] = "{:.1f}".format) -> str:
    """Give a rate, or "-" where there is none."""
    return "-" if rate is None else text(rate)


def _headline(now: pb.StatusReply, old: pb.StatusReply | None) -> Iterator[str]:
    for name, value in sorted(now.steps.items()):
        limit, per_sec = now.limits.get(name), None
        if old is not None and name in old.steps:
            per_sec = (value - old.steps[name]) / _secs(now, old)
        left = (limit or 0) - value
        yield (
            f"{name}: {value:,}"
            + (f" of {limit:,}" if limit is not None else "")
            + (f", {per_sec:.1f} steps/s" if per_sec is not None else "")
            + (f", {duration(left / per_sec)} to go" if per_sec and left > 0 else "")
        )
    counted, until = now.statistics, (old or pb.StatusReply()).statistics
    rate = _rate(lambda reply: reply.statistics.accepted, now, old)
    pushes = "" if rate is None else f"{rate:.1f} pushes/s, "
    late = sum(counted.staleness) - sum(until.staleness)
    lag = f"staleness {(counted.staleness_sum - until.staleness_sum) / late:.2f}, " if late else ""
    dropped = counted.dropped_stale + counted.dropped_nan
    if now.steps:
        yield f"{pushes}{lag}refused {counted.refused}, dropped {dropped}, duplicates {counted.duplicates}"
    yield from _together(now, until)
    chief = now.chief.task or now.chief.holder
    silent = f" (heard {now.chief.silent_secs:.0f} s ago)" if now.chief.holder else ""
    policy = ", ".join(f"{field.name}={value}" for field, value in now.policy.ListFields()) or "the defaults"
    who = _short_task(chief) if chief else "none has said so"
    yield f"incarnation {now.incarnation}; chief: {who}{silent}; policy: {policy}"
    if now.directory:
        yield f"directory: {now.directory}"
    if now.load.HasField("save_age_secs"):
        steps = ", ".join(f"{name} {value:,}" for name, value in sorted(now.load.save_steps.items()))
        yield f"last checkpoint: {steps}, {duration(now.load.save_age_secs)} ago"
    elif now.steps:
        yield "last checkpoint: none in this incarnation"


def _together(now: pb.StatusReply, until: pb.Statistics) -> Iterator[str]:
    """Say what is to be said of steps that workers make together."""
    counted = now.statistics
    if counted.contributions or counted.late:
        count, secs = counted.waited - until.waited, counted.waited_secs - until.waited_secs
        waited = f"; one waits {secs / count:.3f} s for its step, on average" if count else ""
        made = f"{counted.made:,} steps made of them{waited}"
        yield f"contributions: {counted.contributions:,}, {counted.late:,} late; {made}"
    for step in now.open_steps:
        names = ", and ".join(f"{_short_task(who)}, {why}" for who, why in sorted(step.waits_for.items())) or "nobody"
        yield (
            f"{step.step} {step.base + 1:,} has {step.contributions} of {step.wanted} contributions, for "
            f"{step.open_secs:.1f} s; waits for {names}"
        )
    if counted.lead_waits:
        yield f"waits for slower workers: {counted.lead_waits:,}, {counted.lead_wait_secs:.1f} s together"


def _workers(now: pb.StatusReply, old: pb.StatusReply | None) -> Table:
    waits = now.policy.staleness == "wait"
    table = _table("WORKER", "PUSHES", "PUSHES/S", "STALENESS", "SILENT", *(["AHEAD", "WAITS"] if waits else []))
    earlier = {client.client: client for client in old.clients} if old is not None else {}
    for client in sorted(now.clients, key=lambda client: (client.task, client.client)):
        # One that has joined since made all its pushes since.
        was = earlier.get(client.client, pb.ClientInfo())
        pushes, lag = client.pushes - was.pushes, float(client.staleness)
        if old is not None and pushes > 0:
            lag = (client.staleness_sum - was.staleness_sum) / pushes
        pace = [str(client.lead), f"{client.waited_secs:.1f} s" if client.waited_secs else "-"]
        table.add_row(
            cell(_short_task(client.task)),
            f"{client.pushes:,}",
            _shown(None if old is None else pushes / _secs(now, old)),
            f"{lag:.2f}",
            f"{client.silent_secs:.0f} s",
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


def _tasks(reading: Reading, *columns: str) -> Table:
    table = _table("PS", *columns)
    for address, reply, old in zip(reading.addresses, reading.now, reading.earlier, strict=True):
        if not isinstance(reply, pb.StatusReply):
            table.add_row(cell(address), *["[red]no answer[/red]"] * ("STATE" in columns))
            continue
        state, style = _STATES.get(reply.state, ("unknown", "red"))
        load = _rate(lambda of: of.statistics.apply_secs, reply, old)
        cells = {
            "STATE": f"[{style}]{state}{', draining' * reply.draining}[/]",
            "VALUES": human_bytes(reply.load.value_bytes),
            "MEMORY": human_bytes(reply.load.resident_bytes),
            "STAGED": f"{reply.load.staged_parts} ({human_bytes(reply.load.staged_bytes)})",
            "REQUESTS": str(reply.load.requests),
            "IN/S": _shown(_rate(lambda of: of.statistics.bytes_in, reply, old), human_bytes),
            "OUT/S": _shown(_rate(lambda of: of.statistics.bytes_out, reply, old), human_bytes),
            "APPLIES/S": _shown(_rate(lambda of: of.statistics.applied, reply, old)),
            "LOAD": "-" if load is None else f"{min(load, 1.0):.0%}",
        }
        table.add_row(cell(address) + " *" * is_sequencer(reply), *(cells[column] for column in columns))
    return table


def _kept(address: str, reply: pb.StatusReply) -> str:
    """Say what a PS task keeps for its callers."""
    load, tasks = reply.load, {client.client: client.task for client in reply.clients if client.task}
    kinds = ", ".join(f"{kind} {human_bytes(count)}" for kind, count in sorted(load.kept.items()))
    client, most = max(load.holders.items(), key=lambda item: item[1], default=("", 0))
    total, limit = human_bytes(sum(load.kept.values())), human_bytes(load.kept_limit)
    whose = _short_task(tasks.get(client, client))
    return f"{address} keeps {total} of {limit} for callers: {kinds}; most for {whose}, {human_bytes(most)}"


def _queues(reading: Reading) -> Table:
    table = _table("QUEUE", "PS", "HOLDS", "BYTES", "KEPT", "PRODUCERS", "CONSUMERS")
    for address, reply, _ in reading.answers:
        for queue in reply.queues:
            table.add_row(
                cell(queue.name) + ", closed" * queue.closed,
                cell(address),
                f"{queue.size:,}" + (f" of {queue.capacity:,}" if queue.capacity >= 0 else ""),
                human_bytes(queue.bytes),
                str(queue.kept),
                str(queue.entering),
                str(queue.leaving),
            )
    return table


def _table(*columns: str) -> Table:
    """Make an empty table."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for at, column in enumerate(columns):
        left = at == 0 or column in ("STATE", "SHARD")
        # Where a column is too narrow a name goes on in the next line; everything else stays whole.
        table.add_column(column, justify="left" if left else "right", no_wrap=at > 0, overflow="fold")
    return table
