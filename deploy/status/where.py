"""`globalstep where RUN_DIR`, or ADDRESS...: where each Variable of a running cluster lies, how often it changes."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.console import Group, RenderableType

from globalstep.deploy.status.cli import UNREACHABLE, add_addresses, exit_code, say_ended, screen
from globalstep.deploy.status.cluster_status import Answer, earlier_of, read_cluster
from globalstep.deploy.status.cluster_watch import watch_of
from globalstep.deploy.status.view import cell, human_bytes, rate_of, table_of, text_of
from globalstep.errors import GlobalStepError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock


@dataclass(frozen=True, slots=True)
class PlacedVariable:
    """A Variable, or one that is split by rows with all its parts.

    Attributes:
        name: Its name; of a split one, that of the whole.
        dtype: numpy's name.
        shape: Of the whole.
        shards: PS tasks that it lies on, in order of its rows.
        parts: How many parts it has; 1 if it is not split.
        nbytes: Of its values.
        initialized: Whether all of it has a value.
        slot_of: The Variable whose slot it is; "" if it is none.
        pushes: That changed it, since the PS tasks started; of a step: its value.
        pushes_per_sec: Of late; of a split one, its busiest part's. None without a first reading.
    """

    name: str
    dtype: str
    shape: Sequence[int]
    shards: Sequence[int]
    parts: int
    nbytes: int
    initialized: bool
    trainable: bool
    slot_of: str
    pushes: int
    pushes_per_sec: float | None


def placed_variables(now: Sequence[Answer], before: Sequence[Answer] = ()) -> list[PlacedVariable]:
    """Say where Variables lie.

    Args:
        now: What each PS task has answered, in order; those that have not are left out.
        before: What each had answered some time earlier; empty for none.
    """
    pieces: dict[str, list[tuple[pb.VariableDecl, int, bool, int, float | None]]] = {}
    for place, (reply, earlier) in enumerate(zip(now, earlier_of(now, before), strict=True)):
        if not isinstance(reply, pb.StatusReply):
            continue
        missing = set(reply.uninitialized)
        for decl in reply.variables:
            pushes, rate = _pushes(decl, reply, earlier)
            shard = reply.shard if reply.incarnation else place
            pieces.setdefault(decl.whole or decl.name, []).append((decl, shard, decl.name not in missing, pushes, rate))
    return [_placed(name, sorted(parts, key=lambda item: item[0].first_row)) for name, parts in sorted(pieces.items())]


def _pushes(decl: pb.VariableDecl, reply: pb.StatusReply, old: pb.StatusReply | None) -> tuple[int, float | None]:
    counts = reply.steps if decl.is_step else reply.variable_pushes
    pushes = counts.get(decl.name, 0)
    if old is None:
        return pushes, None
    earlier = old.steps if decl.is_step else old.variable_pushes
    was = earlier.get(decl.name, 0)
    return pushes, (pushes - was) / (reply.statistics.secs - old.statistics.secs)


def _placed(name: str, parts: Sequence[tuple[pb.VariableDecl, int, bool, int, float | None]]) -> PlacedVariable:
    first = parts[0][0]
    shape = [first.whole_rows, *first.shape[1:]] if first.whole else list(first.shape)
    rates = [rate for *_, rate in parts if rate is not None]
    item = np.dtype(first.dtype).itemsize
    return PlacedVariable(
        name,
        first.dtype,
        shape,
        [shard for _, shard, *_ in parts],
        len(parts),
        sum(item * int(np.prod(decl.shape, dtype=np.int64)) for decl, *_ in parts),
        all(ready for _, _, ready, *_ in parts),
        first.trainable,
        first.primary,
        max(pushes for *_, pushes, _ in parts),
        max(rates) if rates else None,
    )


def draw_where(variables: Sequence[PlacedVariable], problems: Sequence[str]) -> RenderableType:
    """Draw where Variables lie."""
    table = table_of("VARIABLE", "SHARD", "BYTES", "DTYPE", "SHAPE", "INITIALIZED", "PUSHES", "PUSHES/S")
    for item in variables:
        shards = ",".join(map(str, item.shards)) + (f" ({item.parts} parts)" if item.parts > 1 else "")
        table.add_row(
            cell(item.name), shards, human_bytes(item.nbytes), cell(item.dtype), cell(str(list(item.shape))),
            "yes" if item.initialized else "[red]no[/red]", f"{item.pushes:,}", rate_of(item.pushes_per_sec),
        )  # fmt: skip
    total = sum(item.nbytes for item in variables)
    parts: list[RenderableType] = [table, text_of(f"{len(variables)} Variables, {human_bytes(total)}")]
    parts.extend(text_of(f"! {problem}", "bold red") for problem in problems)
    return Group(*parts)


def as_json(variables: Sequence[PlacedVariable], problems: Sequence[str]) -> dict[str, Any]:
    """Give it as JSON has it; `format` changes when a name's meaning does."""
    return {"format": 1, "variables": [asdict(item) for item in variables], "problems": list(problems)}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    add_addresses(parser)


def run(args: argparse.Namespace, clock: Clock = SYSTEM_CLOCK) -> int:
    """Run the subcommand."""
    try:
        watch = watch_of(args.addresses, os.environ)
    except (GlobalStepError, ValueError, TypeError) as error:
        print(f"globalstep where: {error}", file=sys.stderr)
        return UNREACHABLE
    with watch:
        before = watch.ask(brief=False) if args.interval > 0 else []
        if before:
            clock.sleep(args.interval)
        now = watch.ask(brief=False)
    status = read_cluster(watch.addresses, now, before)
    variables = placed_variables(now, before)
    if args.json:
        print(json.dumps(as_json(variables, status.problems), indent=2))
    else:
        screen().print(draw_where(variables, status.problems))
    say_ended(args.addresses, status)
    return exit_code(status)
