"""`globalstep audit RUN_DIR`: prove from a run's journal that its step is the number of its accepted pushes."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from globalstep.deploy.audit.audit import audit
from globalstep.deploy.audit.checks import Audit, StepProof, Worker
from globalstep.deploy.cli import aligned
from globalstep.errors import GlobalStepError
from globalstep.wire.names import printable

PROVEN, NOT_PROVEN, UNREADABLE = 0, 1, 2
#: Stretches of steps of fewer contributions that are printed.
_MOST_FEWER = 20
_BAR = "▁▂▃▄▅▆▇█"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    parser.add_argument("directory", metavar="RUN_DIR", help="the run's directory (its checkpoint_dir), path or URL")
    parser.add_argument(
        "--history", nargs="+", metavar="FILE", default=(), help="what its clients saw, to be judged too"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Run the subcommand.

    Returns:
        The exit code: 0 proven, 1 not proven, 2 if something cannot be read.
    """
    try:
        result = audit(args.directory, args.history)
    except (GlobalStepError, OSError, ValueError) as error:
        print(f"globalstep audit: {error}", file=sys.stderr)
        return UNREADABLE
    if args.json:
        print(json.dumps(_as_json(result), indent=2, sort_keys=True))
    else:
        print("\n".join(map(printable, _lines(args.directory, result))))
    if result.findings.unreadable:
        return UNREADABLE
    return NOT_PROVEN if result.findings.wrong else PROVEN


def _lines(directory: str, result: Audit) -> Iterable[str]:
    """The report for a person."""
    yield f"journal     {directory}: {len(result.incarnations)} incarnation(s)"
    for name, proof in sorted(result.steps.items()):
        yield f"step        {_sum(name, proof)}"
    yield from _made(result)
    yield from _lost(result)
    if result.checkpoint:
        yield f"checkpoint  {result.checkpoint}: {_beside(result)}"
    else:
        yield "checkpoint  none to compare with"
    if result.history:
        yield "history     " + ", ".join(f"{count} {kind}" for kind, count in sorted(result.history.items()))
    if result.incarnations:
        yield ""
        yield from aligned(
            [
                ("INCARNATION", "BEGAN AFTER", "LAST ENTRY", "KEPT UNTIL", "LOST PUSHES"),
                *(
                    (
                        str(item.number),
                        f"{item.begin_index} of {item.parent}" if item.parent else str(item.begin_index),
                        str(item.last_index),
                        str(item.kept_until),
                        _at_least(item.lost, item.lost_at_least),
                    )
                    for item in result.incarnations
                ),
            ]
        )
    if result.workers:
        yield ""
        workers = sorted(result.workers.items())
        rows = [_WORKER_COLUMNS, *(_row(task, item, result.lost_at_least) for task, item in workers)]
        if result.made:
            columns = [("CONTRIBUTIONS", "LATE"), *((str(item.contributions), str(item.late)) for _, item in workers)]
            rows = [(*row[:3], *more, *row[3:]) for row, more in zip(rows, columns, strict=True)]
        yield from aligned(rows)
    yield ""
    yield from (f"UNREADABLE  {text}" for text in result.findings.unreadable)
    yield from (f"WRONG       {text}" for text in result.findings.wrong)
    yield "PROVEN" if result.proven else "NOT PROVEN"


def _made(result: Audit) -> Iterable[str]:
    late = sum(worker.late for worker in result.workers.values())
    for name, made in sorted(result.made.items()):
        unused = f", and {made.unused} of which no step was made" if made.unused else ""
        used = f"{made.used} contributions in {made.steps} steps of {name}{unused}"
        yield f"made of     {used}; {late} came late, and count for nothing"
        for item in made.fewer[:_MOST_FEWER]:
            steps = f"{item.first}" if item.first == item.last else f"{item.first} to {item.last}"
            yield f"fewer       {name} {steps}: of {item.count} instead of {item.wanted} contributions: {item.why}"
        if len(made.fewer) > _MOST_FEWER:
            yield f"fewer       ... and {len(made.fewer) - _MOST_FEWER} more such stretches (--json has all)"


def _lost(result: Audit) -> Iterable[str]:
    lost = sum(item.lost for item in result.incarnations)
    unrecorded = sum(item.unrecorded for item in result.incarnations)
    of_them = f"; {unrecorded} of them are in no journal, but clients have heard of them" if unrecorded else ""
    if lost:
        at_least = "at least " if result.lost_at_least else ""
        yield f"lost        {at_least}{lost} accepted pushes, which restores discarded{of_them}"
    elif result.lost_at_least:
        yield "lost        not known: a sequencer ended without telling what it had not stored (docs/audit.md)"


def _at_least(count: int, more: bool) -> str:
    """Write a number as a lower bound; 0 as unknown."""
    if not more:
        return str(count)
    return f"≥{count}" if count else "?"


def _sum(name: str, proof: StepProof) -> str:
    if proof.moved == proof.pushes:
        return f"{name} = {proof.value} = {proof.base} + {proof.pushes} accepted pushes"
    return f"{name} = {proof.value} = {proof.base} + {proof.moved} by {proof.pushes} accepted pushes"


def _beside(result: Audit) -> str:
    proven = {name: proof.value for name, proof in result.steps.items()}
    saved = {name: value for name, value in result.checkpoint_steps.items() if name in proven}
    if saved == proven:
        return f"{_steps(saved)}, the journal's last"
    return f"{_steps(saved) or 'none of these steps'}; the journal goes on to {_steps(proven)}"


def _steps(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in sorted(values.items()))


_WORKER_COLUMNS = (
    "TASK", "CLIENTS", "PUSHES", "LOST", "DUPLICATES", "REFUSED", "STALE", "NAN", "ABANDONED",
    "STALENESS: MEDIAN", "P95", "MAX", "0, 1, 2-3, 4-7, ...",
)  # fmt: skip


def _row(task: str, worker: Worker, lost_at_least: bool) -> tuple[str, ...]:
    counts = (
        len(worker.clients),
        worker.pushes,
        _at_least(worker.lost, lost_at_least),
        worker.duplicates,
        worker.refused,
        worker.dropped_stale,
        worker.dropped_nan,
        worker.abandoned,
        worker.quantile(0.5),
        worker.quantile(0.95),
        max(worker.staleness, default=0),
    )
    return (task, *map(str, counts), _histogram(worker))


def _histogram(worker: Worker) -> str:
    """Draw the staleness of a worker's pushes, a character for 0 and for each power of two."""
    counts: dict[int, int] = {}
    for staleness, count in worker.staleness.items():
        bucket = max(staleness, 0).bit_length()
        counts[bucket] = counts.get(bucket, 0) + count
    most = max(counts.values(), default=0)
    buckets = range(max(counts, default=-1) + 1)
    return "".join(_BAR[(counts[i] * 7 + most - 1) // most] if counts.get(i) else " " for i in buckets)


def _as_json(result: Audit) -> dict[str, Any]:
    """The report for a program."""
    workers = {}
    for task, worker in result.workers.items():
        fields = asdict(worker)
        fields["clients"] = sorted(worker.clients)
        fields["staleness"] = {
            "median": worker.quantile(0.5),
            "p95": worker.quantile(0.95),
            "max": max(worker.staleness, default=0),
            "counts": {str(value): count for value, count in sorted(worker.staleness.items())},
        }
        workers[task] = fields
    return {
        "proven": result.proven,
        "wrong": result.findings.wrong,
        "unreadable": result.findings.unreadable,
        "steps": {name: asdict(proof) for name, proof in result.steps.items()},
        "made": {name: asdict(made) for name, made in result.made.items()},
        "incarnations": [asdict(item) for item in result.incarnations],
        "workers": workers,
        "history": result.history,
        "checkpoint": result.checkpoint,
        "checkpoint_steps": result.checkpoint_steps,
    }
