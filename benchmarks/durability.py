"""`python -m benchmarks.durability`: what a run pays for durability="log", beside "checkpoint".

Real processes on this machine: one PS or several (--ps 2) that hold float32 Variables, and workers that push dense
gradients of all of them and read the values back, without a pause. For every size and number of workers and PS both
kinds of run are there at once, and take turns; in between, as many bytes as a push has are written to a file in the
log's directory and brought to the disk by fdatasync, again and again: no log of single pushes can be faster than that.
Writes durability.jsonl and durability.md into --out; --publish puts the table into benchmarks/figures.md. Needs the
extra "bench".

`--beside TREE` compares with another checkout instead, which has a virtual environment of its own: this program runs
with both, by turns, round after round, and for every row the median of the rounds' ratios is printed, for both kinds
of run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.harness import processes
from benchmarks.harness.machine import machine
from benchmarks.harness.processes import ROOT
from benchmarks.harness.pushing_cluster import PushingCluster, start_servers
from benchmarks.reports import report
from globalstep.cluster.run_identity import RunIdentity
from globalstep.cluster.run_policy import RunPolicy

__all__ = ["main"]

Record = dict[str, Any]

_KINDS = ("checkpoint", "log")
_VARIABLES = 4


class _Case(NamedTuple):
    """What is measured beside each other."""

    params: int
    workers: int
    ps: int


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.durability", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often all is measured (default 5)")
    parser.add_argument("--secs", type=float, default=1.0, help="length of a turn (default 1)")
    parser.add_argument("--params", type=int, nargs="+", default=[1_000, 1_000_000, 10_000_000], metavar="N")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4], metavar="N")
    parser.add_argument(
        "--ps", type=int, nargs="+", default=[1], metavar="N", help="PS tasks, each with a log (default 1)"
    )
    parser.add_argument("--dir", type=Path, help="where to put logs (default: a temporary directory)")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder for the results")
    parser.add_argument("--quick", action="store_true", help="shorter and less sure: 2 rounds of 0.5 s")
    parser.add_argument("--beside", type=Path, metavar="TREE", help="another checkout, to be compared with")
    parser.add_argument("--publish", action="store_true", help="put the table into docs/ as well")
    return parser.parse_args(argv)


class _Cluster:
    """PS tasks with a run of one kind, and workers that push."""

    def __init__(self, kind: str, case: _Case, directory: Path, started: processes.Children) -> None:
        self._servers = start_servers(started, case.ps)
        self._cluster = PushingCluster(
            started,
            [server.address() for server in self._servers],
            [case.params // _VARIABLES] * _VARIABLES,
            case.workers,
            RunPolicy(durability=kind),
            RunIdentity(directory=str(directory / kind)),
        )
        self.turn = self._cluster.turn

    def end(self) -> None:
        """Let everything go."""
        self._cluster.end()
        for server in self._servers:
            server.end()


def _plainly(directory: Path, nbytes: int, secs: float) -> float:
    """Write and fdatasync, again and again; gives how often a second."""
    data, count = os.urandom(nbytes), 0
    path = directory / "plain"
    with path.open("wb", buffering=0) as file:
        began = time.monotonic()
        while time.monotonic() - began < secs:
            file.write(data)
            os.fdatasync(file.fileno())
            count += 1
        took = time.monotonic() - began
    path.unlink()
    return count / took


def _measure(args: argparse.Namespace, directory: Path, started: processes.Children) -> Iterator[Record]:
    for case in itertools.starmap(_Case, itertools.product(args.params, args.workers, args.ps)):
        folder = directory / "-".join(map(str, case))
        clusters = {kind: _Cluster(kind, case, folder, started) for kind in _KINDS}
        for number in range(args.rounds):
            record: Record = case._asdict() | {"round": number}
            record["plain"] = _plainly(directory, 4 * case.params, args.secs / 2)
            for kind in _KINDS if number % 2 else reversed(_KINDS):
                rate, took = clusters[kind].turn(args.secs)
                record[kind] = rate
                record[f"{kind}_median_secs"] = median(took)
            yield record
        for cluster in clusters.values():
            cluster.end()


def _case_of(record: Record) -> _Case:
    return _Case(record["params"], record["workers"], record["ps"])


def _table(records: Sequence[Record], description: Record) -> str:
    rows = []
    for case in dict.fromkeys(map(_case_of, records)):
        of_case = [record for record in records if _case_of(record) == case]

        def middle(what: str, of_case: Sequence[Record] = of_case) -> float:
            return median(record[what] for record in of_case)

        share = median(record["log"] / record["checkpoint"] for record in of_case)
        rows.append(
            [
                f"{case.params:,}",
                str(case.workers),
                str(case.ps),
                f"{middle('checkpoint'):,.0f}",
                f"**{middle('log'):,.0f}**",
                f"{share:.2f}",
                f"{middle('plain'):,.0f}",
                f"{middle('checkpoint_median_secs') * 1e3:,.2f}",
                f"{middle('log_median_secs') * 1e3:,.2f}",
            ]
        )
    head = ["parameters", "workers", "PS", "checkpoint, pushes/s", "**log, pushes/s**", "of checkpoint's",
            "plain write + fdatasync, 1/s", "a push, ms", "with log, ms"]  # fmt: skip
    lines = [head, ["---:"] * len(head), *rows]
    text = "".join("| " + " | ".join(cells) + " |\n" for cells in lines)
    return (
        f"{description['date']}; {description['cpu']}, {description['cores']} cores, load average "
        f"{description['load_before']} before and {description['load_after']} after; Python {description['python']}, "
        f"numpy {description['numpy']}; "
        f"{description['rounds']} interleaved rounds of {description['secs']:g} s, medians.\n\n{text}"
    )


def _round_of(tree: Path, args: argparse.Namespace) -> list[Record]:
    """Have a checkout measure every row once, with its own interpreter."""
    numbers = {
        "--params": args.params,
        "--workers": args.workers,
        "--ps": args.ps,
        "--secs": [args.secs],
        "--rounds": [1],
    }
    options = [str(word) for name, values in numbers.items() for word in (name, *values)]
    with tempfile.TemporaryDirectory() as out:
        command = [tree / ".venv" / "bin" / "python", "-m", "benchmarks.durability", *options, "--out", out]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def _beside(args: argparse.Namespace) -> None:
    """Compare with another checkout; prints a line for every row and kind of run."""
    trees = {"this": ROOT, "other": args.beside.resolve()}
    found: dict[tuple[_Case, str], list[tuple[float, float]]] = defaultdict(list)
    for number in range(args.rounds):
        order = list(trees) if number % 2 else list(reversed(trees))
        measured = {who: _round_of(trees[who], args) for who in order}
        for this, other in zip(measured["this"], measured["other"], strict=True):
            for kind in _KINDS:
                found[_case_of(this), kind].append((this[kind], other[kind]))
    print(f"{'':48} {'this':>10} {'other':>10}  ratio", flush=True)
    for (case, kind), rates in found.items():
        rate, beside = (median(pair[at] for pair in rates) for at in (0, 1))
        ratio = median(this / other for this, other in rates)
        print(
            f"{case.params:>12,} parameters, {case.workers} workers, {case.ps} PS, {kind:10} "
            f"{rate:10.1f} {beside:10.1f}  {ratio:5.3f}",
            flush=True,
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the results."""
    args = _parse(argv)
    if args.quick:
        args.rounds, args.secs = 2, 0.5
    if args.beside is not None:
        _beside(args)
        return 0
    description = machine() | {"rounds": args.rounds, "secs": args.secs}
    records: list[Record] = []
    with (
        tempfile.TemporaryDirectory(dir=args.dir, prefix="globalstep-log-") as directory,
        processes.children() as started,
    ):
        for record in _measure(args, Path(directory), started):
            records.append(record)
            print(json.dumps(record), flush=True)
    report.write(args.out, "durability", records, description, _table)
    if args.publish:
        report.publish(args.out, "durability", ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
