"""`python -m benchmarks.beside TREE`: this checkout beside another one of globalstep, on the workloads of bench.

TREE is a checkout with a virtual environment of its own (`git worktree add TREE COMMIT && make -C TREE
.venv/.installed-test`). The processes of both are alive at once and take turns, round after round; a ratio is taken
within a round; the steps and values of both are checked. Prints a line for every row: rates, the median ratio, its
quarters. `--tokens` gives the tasks of this checkout a token, as `globalstep launch` does. Where the values of a PS lie
in memory is drawn when it starts, and is worth a fifth of the rate at 1 M parameters: `--starts` draws several times.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path

from benchmarks.harness import processes
from benchmarks.harness.contestants import Form, Program, Team, team_of, tuned_environ
from benchmarks.harness.measuring import Record, Settings, measure
from benchmarks.harness.processes import ROOT, Children
from benchmarks.harness.workload import Case
from benchmarks.reports import bars
from globalstep.security.credentials import RUN_TOKEN

__all__ = ["main"]

FORMS = ("auto", "session", "unix", "tcp", "grpc")
_THIS, _OTHER = "this", "other"


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beside", description=__doc__.splitlines()[0])
    parser.add_argument("tree", type=Path, metavar="TREE", help="the other checkout")
    parser.add_argument("--rounds", type=int, default=9, help="how often each has its turn")
    parser.add_argument("--starts", type=int, default=1, help="how often all processes are started anew")
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
    own = folder / ".venv" / "bin" / "python"
    start = partial(
        children.start,
        environ=tuned_environ() | ({RUN_TOKEN: token} if token else {}),
        python=str(own) if own.exists() else sys.executable,
        folder=folder,
    )
    serve = ["-m", "globalstep.ps", "--port", "0", "--log-level", "WARNING"]
    # Not the key of globalstep's own team: the benchmark would ask its PS tasks for their clocks, with no token.
    return team_of(Program(key, exact=True), ps, workers, lambda _: start(serve), start)


def _measured(args: argparse.Namespace, cases: Sequence[Case]) -> list[Record]:
    """Start all processes of both checkouts, and measure every case."""
    workers = max(case.workers for case in cases)
    peers = [Form(f"{who} {form}", form, who, form) for form in args.forms for who in (_THIS, _OTHER)]
    found: list[Record] = []
    with processes.children() as children:
        token = secrets.token_urlsafe(32) if args.tokens else ""
        teams = {
            _THIS: _start(_THIS, ROOT, max(args.ps), workers, token, children),
            _OTHER: _start(_OTHER, args.tree.resolve(), max(args.ps), workers, "", children),
        }
        for team in teams.values():
            team.ready()
        for case in cases:
            found += measure(case, peers, teams, Settings(args.rounds, args.secs))
        for team in teams.values():
            team.end()
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print; gives the process's exit code."""
    args = _parse(argv)
    cases = bars.chosen(args.ps, args.kinds, args.sizes)
    records: list[Record] = []
    for start in range(args.starts):
        for record in _measured(args, cases):
            if "round" in record:
                record["round"] += start * args.rounds
            records.append(record)
    print(f"{'':43} {'this':>10} {'other':>10}  ratio  (quarters)")
    for case, form in product(cases, args.forms):
        this, other = (bars.rates(records, case, f"{who} {form}") for who in (_THIS, _OTHER))
        label = f"{bars.case_label(case.as_dict())}, {case.ps} PS"
        print(f"{label:34} {form:8} {bars.compared(this, other)}")
    if args.out is not None:
        args.out.write_text("".join(json.dumps(record) + "\n" for record in records))
    return 0


if __name__ == "__main__":
    sys.exit(main())
