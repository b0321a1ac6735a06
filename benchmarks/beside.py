"""`python -m benchmarks.beside TREE`: this checkout beside another one of globalstep, on the workloads of bench.

TREE is a checkout with a virtual environment of its own (`git worktree add TREE COMMIT && make -C TREE
.venv/.installed-test`). The processes of both are alive at once and take turns, round after round; a ratio is taken
within a round; the steps and values of both are checked. Prints a line for every row: rates, the median ratio, its
quarters. `--tokens` gives the tasks of this checkout a token, as `globalstep launch` does.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import processes
from benchmarks.harness.contestants import Peer, Program, Team
from benchmarks.harness.measuring import Record, Settings, measure
from benchmarks.harness.processes import ROOT, Children
from benchmarks.harness.workload import Case
from benchmarks.reports import bars
from globalstep.runtime.process_env import tuned
from globalstep.security.credentials import RUN_TOKEN

__all__ = ["main", "ratios"]

FORMS = ("auto", "session", "unix", "tcp", "grpc")
_THIS, _OTHER = "this", "other"


class _Side(Peer):
    """A form of one of the two checkouts."""

    def takes(self, case: Case) -> bool:
        """Both take part in every case."""
        return True


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beside", description=__doc__.splitlines()[0])
    parser.add_argument("tree", type=Path, metavar="TREE", help="the other checkout")
    parser.add_argument("--rounds", type=int, default=9, help="how often each has its turn")
    parser.add_argument("--secs", type=float, default=0.2, help="length of a turn, in seconds")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(bars.SIZES), metavar="N", help="parameters")
    parser.add_argument("--ps", type=int, nargs="+", default=[1, 2], metavar="N", help="numbers of PS")
    parser.add_argument("--kinds", nargs="+", default=["dense", "embedding", "counter"], help="kinds of cases")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=["auto"], help="transports, and session")
    parser.add_argument("--tokens", action="store_true", help="the tasks of this checkout have a token")
    parser.add_argument("--out", type=Path, help="a file for every measurement, a JSON object a line")
    return parser.parse_args(argv)


def _start(key: str, folder: Path, ps: int, workers: int, token: str, children: Children) -> Team:
    """Start the PS tasks and workers of a checkout, with its own interpreter."""
    environ = {name: value for name, value in os.environ.items() if name not in tuned({})}
    environ = tuned(environ) | ({RUN_TOKEN: token} if token else {})
    own = folder / ".venv" / "bin" / "python"
    python = str(own) if own.exists() else sys.executable
    serve = ["-m", "globalstep.ps", "--port", "0", "--log-level", "WARNING"]
    servers = [children.start(serve, environ, python, folder=folder) for _ in range(ps)]
    addresses = [server.address() for server in servers]
    worker = ["-m", "benchmarks.peers.globalstep_worker", "--addresses", ",".join(addresses), "--index"]
    made = [children.start([*worker, str(at)], environ, python, folder=folder) for at in range(workers)]
    # Not the key of globalstep's own team: the benchmark would ask its PS tasks for their clocks, with no token.
    return Team(Program(key, exact=True), servers, made, addresses)


def ratios(records: Sequence[Record], form: str) -> list[float]:
    """Give each round's rate of this checkout over the other's, of one row and form."""
    rates: dict[int, dict[str, float]] = defaultdict(dict)
    for record in records:
        name, _, how = record.get("peer", "").partition(" ")
        if how == form:
            rates[record["round"]][name] = record["rate"]
    return [found[_THIS] / found[_OTHER] for found in rates.values()]


def _say(case: str, form: str, records: Sequence[Record]) -> None:
    found = sorted(ratios(records, form))
    low, middle, high = statistics.quantiles(found, n=4) if len(found) > 1 else found * 3
    rate = {
        who: statistics.median(one["rate"] for one in records if one.get("peer") == f"{who} {form}")
        for who in (_THIS, _OTHER)
    }
    figures = f"{rate[_THIS]:10.1f} {rate[_OTHER]:10.1f}  {middle:5.3f}  ({low:5.3f} to {high:5.3f})"
    print(f"{case:34} {form:8} {figures}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print; gives the process's exit code."""
    args = _parse(argv)
    settings = Settings(args.rounds, args.secs)
    cases = [case for ps in args.ps for case in bars.cases(ps) if case.kind in args.kinds]
    cases = [case for case in cases if case.kind != "dense" or case.size in args.sizes]
    workers = max(case.workers for case in cases)
    peers = [_Side(f"{who} {form}", form, who, form) for form in args.forms for who in (_THIS, _OTHER)]
    records: list[Record] = []
    with processes.children() as children:
        token = secrets.token_urlsafe(32) if args.tokens else ""
        teams = {
            _THIS: _start(_THIS, ROOT, max(args.ps), workers, token, children),
            _OTHER: _start(_OTHER, args.tree.resolve(), max(args.ps), workers, "", children),
        }
        for team in teams.values():
            team.ready()
        print(f"{'':43} {'this':>10} {'other':>10}  ratio  (quarters)", flush=True)
        for case in cases:
            found = list(measure(case, peers, teams, settings))
            for form in args.forms:
                _say(f"{bars.case_label(case.as_dict())}, {case.ps} PS", form, found)
            records += found
        for team in teams.values():
            team.end()
    if args.out is not None:
        args.out.write_text("".join(json.dumps(record) + "\n" for record in records))
    return 0


if __name__ == "__main__":
    sys.exit(main())
