"""Readings of a running cluster: what its PS tasks have answered, what is not as it should be, and tables that show it.

Pure: Status replies in, something that rich prints out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from google.protobuf.json_format import MessageToDict
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from globalstep.errors import OpError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.wire.names import printable

#: What a PS task has answered, or why it has not.
Answer = pb.StatusReply | OpError

#: What a PS task says whose log waits for disk space; a server with too many callers is another matter.
_NO_ROOM = "There is no room for the write-ahead log"


@dataclass(frozen=True)
class Reading:
    """What a cluster's PS tasks have answered.

    Attributes:
        addresses: Of the PS tasks, in order.
        now: What each has answered.
        before: What each had answered some time earlier; empty for none: there are no rates then.
    """

    addresses: Sequence[str]
    now: Sequence[Answer]
    before: Sequence[Answer] = ()

    @cached_property
    def earlier(self) -> list[pb.StatusReply | None]:
        """What each task had answered earlier, where the counters can be compared and time has passed; None else."""
        first: Sequence[Answer | None] = self.before or [None] * len(self.now)
        return [
            old
            if isinstance(old, pb.StatusReply)
            and isinstance(new, pb.StatusReply)
            and (old.process, old.incarnation) == (new.process, new.incarnation)
            and new.statistics.secs > old.statistics.secs
            else None
            for old, new in zip(first, self.now, strict=True)
        ]

    @cached_property
    def answers(self) -> list[tuple[str, pb.StatusReply, pb.StatusReply | None]]:
        """The tasks that have answered: address, what they say now, and what they had said earlier."""
        every = zip(self.addresses, self.now, self.earlier, strict=True)
        return [(address, reply, old) for address, reply, old in every if isinstance(reply, pb.StatusReply)]

    @cached_property
    def sequencer(self) -> tuple[pb.StatusReply, pb.StatusReply | None] | None:
        """What the task that orders pushes has answered now and earlier; None if it has not."""
        return next(((reply, old) for _, reply, old in self.answers if is_sequencer(reply)), None)

    @cached_property
    def problems(self) -> list[str]:
        """What is not as it should be, a sentence each."""
        return list(self._problems())

    def _problems(self) -> Iterator[str]:
        for address, reply in zip(self.addresses, self.now, strict=True):
            if not isinstance(reply, pb.StatusReply):
                error = " ".join(str(reply).split()) or type(reply).__name__
                waits = _NO_ROOM in error
                yield f"{address} {'waits for disk space' if waits else 'does not answer'}: {error}"
            elif reply.state == pb.STATE_VACANT:
                yield f"{address} holds no state: it waits for the chief to initialize or restore it."
            elif reply.draining:
                yield f"{address} was asked to end, and waits for a checkpoint."
        replies = [reply for _, reply, _ in self.answers]
        sizes = {reply.shards for reply in replies if reply.incarnation}
        if sizes and max(sizes) != len(self.now):
            yield f"The run has {max(sizes)} PS tasks; {len(self.now)} were asked. Name the addresses of all."
        incarnations = sorted({reply.incarnation for reply in replies})
        if len([number for number in incarnations if number]) > 1:
            yield f"PS tasks are of different incarnations, {incarnations}: of different runs, or just being restored."
        if any(incarnations) and self.sequencer is None:
            yield "The PS task that orders pushes has not answered: steps and workers are not known."

    def as_json(self) -> dict[str, Any]:
        """Give it as JSON has it; `format` changes when a name's meaning does."""
        tasks = [
            {"address": address}
            | (
                MessageToDict(reply, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
                if isinstance(reply, pb.StatusReply)
                else {"error": str(reply)}
            )
            for address, reply in zip(self.addresses, self.now, strict=True)
        ]
        return {"format": 2, "problems": self.problems, "tasks": tasks}


def is_sequencer(reply: pb.StatusReply) -> bool:
    """Whether a PS task orders the pushes of its run."""
    return bool(reply.incarnation) and reply.shard == reply.sequencer


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
