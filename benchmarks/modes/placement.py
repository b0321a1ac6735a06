"""`python -m benchmarks.modes.placement`: a dense model on one PS task, on one of two, and spread over two.

Real processes on this machine, and the steps of `benchmarks.bench`. Three clusters take turns: one PS task; two, by the
run's own bound (`RunPolicy.spread_above`); two, with the bound at 0, so that each model is spread. From the size on at
which the last column is above 1, spreading pays here.

Writes placement.jsonl and placement.md into --out; --publish puts the table into benchmarks/figures.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import product, zip_longest
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.contestants import PEERS, PROGRAMS, Team, team_of, tuned_environ
from benchmarks.harness.machine import machine
from benchmarks.harness.measuring import Settings, measure
from benchmarks.harness.processes import ROOT, Child, Children, children
from benchmarks.harness.workload import Case
from benchmarks.reports import report
from benchmarks.reports.bars import in_words
from globalstep.cluster.run_policy import RUN_POLICY_VARIABLE

__all__ = ["main"]

Record = dict[str, Any]

#: Cluster -> its PS tasks, and the policy of its runs.
_CLUSTERS = {"one": (1, ""), "two": (2, ""), "spread": (2, "spread_above=0")}


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.modes.placement", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often each has its turn (default 5)")
    parser.add_argument("--secs", type=float, default=0.4, help="length of a turn (default 0.4)")
    sizes = [1_000, 100_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000, 10_000_000, 16_000_000]
    parser.add_argument("--sizes", type=int, nargs="+", default=sizes, metavar="N", help="parameters")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="how many (default 1 2)")
    parser.add_argument("--rules", nargs="+", choices=["sgd", "adam"], default=["sgd", "adam"], help="optimizers")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder for the results")
    parser.add_argument("--publish", action="store_true", help="put the table into docs/ as well")
    return parser.parse_args(argv)


def _start(started: Children, cluster: str, workers: int) -> Team:
    """Start the processes of a cluster."""
    ps, policy = _CLUSTERS[cluster]
    environ = {**tuned_environ(), RUN_POLICY_VARIABLE: policy}
    program = next(one for one in PROGRAMS if one.key == "globalstep")

    def start(args: Sequence[str]) -> Child:
        return started.start(args, environ)

    serve = ["-m", "globalstep.ps", "--port", "0", "--log-level", "ERROR"]
    return team_of(program, ps, workers, lambda _: start(serve), start)


def _measure(args: argparse.Namespace) -> list[Record]:
    records: list[Record] = []
    peers = [peer for peer in PEERS if peer.key == "auto"]
    with children() as started:
        teams = {cluster: _start(started, cluster, max(args.workers)) for cluster in _CLUSTERS}
        for team in teams.values():
            team.ready()
        for rule, size, workers in product(args.rules, args.sizes, args.workers):
            settings = Settings(args.rounds, args.secs)
            measured = [
                measure(
                    Case("dense", size, rule=rule, workers=workers, ps=ps), peers, {"globalstep": teams[name]}, settings
                )
                for name, (ps, _) in _CLUSTERS.items()
            ]
            # Round by round, each has its turn.
            for found in zip_longest(*measured):
                records += [record | {"cluster": name} for name, record in zip(_CLUSTERS, found, strict=True)]
        for team in teams.values():
            team.end()
    return records


def _table(records: Sequence[Record], description: Record) -> str:
    rates: dict[tuple[str, int, int], dict[str, list[float]]] = {}
    for record in records:
        if "rate" in record:
            case = record["case"]
            row = rates.setdefault((case["rule"], case["size"], case["workers"]), {name: [] for name in _CLUSTERS})
            row[record["cluster"]].append(record["rate"])
    head = (
        f"{description['date']}; {description['cpu']}, {description['cores']} cores, load average "
        f"{description['load_before']} before and {description['load_after']} after; Python {description['python']}, "
        f"numpy {description['numpy']}; {description['rounds']} rounds of {description['secs']:g} s, medians."
    )
    lines = [
        head,
        "",
        "| rule | parameters | workers | 1 PS, steps/s | 2 PS, of 1 PS | 2 PS, spread, of 1 PS |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for (rule, size, workers), row in rates.items():
        ratios = [
            f"{median(ours / one for ours, one in zip(row[name], row['one'], strict=True)):.2f}"
            for name in ("two", "spread")
        ]
        cells = [rule, in_words(size), str(workers), f"{median(row['one']):,.0f}", f"**{ratios[0]}**", ratios[1]]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the results."""
    args = _parse(argv)
    description = machine() | {"rounds": args.rounds, "secs": args.secs}
    records = _measure(args)
    report.write(args.out, "placement", records, description, _table)
    if args.publish:
        report.publish(args.out, "placement", ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
