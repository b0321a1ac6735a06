"""`python -m benchmarks.bench`: globalstep beside its peers on every workload, and whether it reaches its bars.

Real processes on this machine. The processes of all peers that are installed are alive at once and take turns,
round after round; medians; ratios within a round; everybody's step and globalstep's values are checked. Writes
bench.jsonl (every measurement), bench.md (bars, rates, profile) and bench-*.png into --out; --publish puts the
tables into benchmarks/figures.md and the plots beside it. Needs the extras "bench" and "examples".

Peers run with the interpreter --peers-python, by default that of .venv-peers, which `make bench-peers` makes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import digits, memory, processes
from benchmarks.harness.contestants import PEERS, PROGRAMS, Peer, Team, absent, default_python, start
from benchmarks.harness.machine import machine
from benchmarks.harness.measuring import Record, Settings, measure, measure_alternately
from benchmarks.harness.processes import ROOT, Children
from benchmarks.harness.workload import Case
from benchmarks.reports import bars, plots, report

__all__ = ["main"]

SECTIONS = ("bars", "many", "scaling", "profile", "kernel", "digits", "memory")
_SCALING_PEERS = ("auto", "grpc", "tensorflow", "torch-shm")
_PROFILED_SIZES = (1_000, 1_000_000, 10_000_000)
#: Beyond so many parameters, and with 2 PS, a quick run leaves these out: they are slow and no bar names them.
_SLOW, _SLOW_SIZE = ("ray", "baseline"), 1_000_000


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 short rounds instead of 5, and less of what is slow")
    parser.add_argument("--rounds", type=int, help="how often every peer has its turn")
    parser.add_argument("--secs", type=float, help="length of a turn, in seconds")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(bars.SIZES), metavar="N", help="parameters")
    parser.add_argument("--ps", type=int, nargs="+", default=[1, 2], metavar="N", help="numbers of PS")
    parser.add_argument("--kinds", nargs="+", default=["dense", "embedding", "counter"], help="kinds of cases")
    parser.add_argument("--peers", nargs="+", choices=[peer.key for peer in PEERS], help="default: all")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="sections; default: all")
    parser.add_argument("--profile", action="store_true", help="only where a step's time goes, with all rounds")
    parser.add_argument("--peers-python", default=default_python(), metavar="PATH", help="interpreter of the peers")
    parser.add_argument("--tuned-peers", action="store_true", help="the peers get globalstep's environment too")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder for the results")
    parser.add_argument("--publish", action="store_true", help="put tables and plots into docs/ as well")
    args = parser.parse_args(argv)
    args.rounds = args.rounds or (3 if args.quick else 5)
    args.secs = args.secs or (0.1 if args.quick else 0.4)
    if args.profile:
        args.only = ["profile"]
    elif args.quick:
        args.only = [section for section in args.only if section != "scaling"]
    return args


class _Run:
    """What is measured, section by section."""

    def __init__(self, args: argparse.Namespace, children: Children) -> None:
        self.args = args
        self.missing = absent(args.peers_python)
        asked = args.peers or [peer.key for peer in PEERS]
        self.peers = [peer for peer in PEERS if peer.key in asked and peer.program not in self.missing]
        self._children = children
        self._teams: dict[str, Team] = {}
        self._began = time.monotonic()

    def say(self, what: str) -> None:
        """Tell on stderr how far it is."""
        print(f"{time.monotonic() - self._began:6.1f} s  {what}", file=sys.stderr, flush=True)

    def _cases(self) -> list[Case]:
        found = bars.chosen(self.args.ps, self.args.kinds, self.args.sizes)
        return [case for case in found if not self.args.quick or case.ps == 1 or case.size < bars.SIZES[-1]]

    @contextlib.contextmanager
    def _all_teams(self) -> Iterator[None]:
        """Start all processes at once, since most of a start is importing."""
        sections = set(self.args.only)
        workers = 4 if sections & {"scaling"} or any(case.workers == 4 for case in self._cases()) else 2
        if sections & {"bars", "many", "scaling", "profile"}:
            wanted = {peer.program for peer in self.peers}
            for program in PROGRAMS:
                if program.key in wanted:
                    ps = max(self.args.ps)
                    log = self.args.out / f"{program.key}.log"
                    self._teams[program.key] = start(
                        program, ps, workers, self.args.peers_python, self._children, log, self.args.tuned_peers
                    )
            for key, team in list(self._teams.items()):
                try:
                    team.ready()
                except RuntimeError as error:
                    if team.program.exact:
                        raise
                    self.missing[key] = f"did not start ({error})"
                    self._teams.pop(key).end()
            for team in self._teams.values():
                team.rest()
            self.peers = [peer for peer in self.peers if peer.program not in self.missing]
            self.say("all processes are up")
        yield
        for team in self._teams.values():
            team.end()
        self._teams = {}

    def _taking_part(self, case: Case) -> list[Peer]:
        slow = self.args.quick and (case.size > _SLOW_SIZE or case.ps > 1)
        return [peer for peer in self.peers if not (slow and peer.key in _SLOW)]

    def records(self) -> Iterator[Record]:
        """Measure all that was asked for."""
        args = self.args
        settings = Settings(args.rounds, args.secs, least_steps=1 if args.quick else 2)
        with self._all_teams():
            if "bars" in args.only:
                for case in self._cases():
                    self.say(f"{bars.case_label(case.as_dict())}, {case.ps} PS")
                    yield from measure(case, self._taking_part(case), self._teams, settings)
            if "many" in args.only:
                yield from self._many(settings)
            if "scaling" in args.only:
                yield from self._scaling(settings)
            if "profile" in args.only:
                yield from self._profile()
        if "kernel" in args.only:
            yield from self._kernel()
        if "digits" in args.only:
            self.say("digits")
            starts, repeats = (1, 3) if args.quick else (3, 2)
            peers = [peer for peer in self.peers if peer.key != "baseline"]
            with tempfile.TemporaryDirectory(prefix="globalstep-digits-") as folder:
                yield from digits.measure(
                    peers, min(starts, args.rounds), repeats, args.peers_python, Path(folder), self._children
                )
        if "memory" in args.only:
            for ps in args.ps:
                self.say(f"memory, {ps} PS")
                size = min(max(args.sizes), bars.SIZES[-1])
                yield from memory.measure(size, ps, self._children)

    def _many(self, settings: Settings) -> Iterator[Record]:
        for ps in self.args.ps:
            self.say(f"many Variables, {ps} PS")
            cases = [Case("dense", case.size, variables=case.variables, ps=ps) for case in bars.MANY]
            peers = [peer for peer in self.peers if peer.program == "globalstep" or not self.args.quick]
            yield from measure_alternately(cases, [p for p in peers if p.key not in _SLOW], self._teams, settings)

    def _scaling(self, settings: Settings) -> Iterator[Record]:
        peers = [peer for peer in self.peers if peer.key in _SCALING_PEERS]
        for ps in self.args.ps:
            for workers in (1, 4):
                self.say(f"{workers} workers, {ps} PS")
                yield from measure(Case("dense", 1_000_000, workers=workers, ps=ps), peers, self._teams, settings)

    def _profile(self) -> Iterator[Record]:
        args = self.args
        settings = Settings(args.rounds if args.profile else 2, args.secs, profile=True)
        for ps in args.ps[:1] if args.quick else args.ps:
            for size in (size for size in _PROFILED_SIZES if size in args.sizes):
                self.say(f"profile, {bars.in_words(size)}, {ps} PS")
                case = Case("dense", size, workers=1, ps=ps)
                for record in measure(case, self._taking_part(case), self._teams, settings):
                    yield {**record, "profile": True}

    def _kernel(self) -> Iterator[Record]:
        self.say("kernel")
        command = [sys.executable, "-m", "benchmarks.bounds.kernel", "--rounds", str(max(self.args.rounds, 5))]
        command += ["--elements", str(max(self.args.sizes))]
        done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        yield from map(json.loads, done.stdout.splitlines())


def _versions(python: str) -> dict[str, str]:
    """What the peers' environment has of them."""
    code = (
        "import importlib.metadata as m, json\n"
        "found = {}\n"
        "for name in ('tensorflow-cpu', 'tensorflow', 'torch', 'ray'):\n"
        "    try: found[name] = m.version(name)\n"
        "    except m.PackageNotFoundError: pass\n"
        "print(json.dumps(found))"
    )
    try:
        done = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return {}
    found: dict[str, str] = json.loads(done.stdout)
    return found


def write(records: Sequence[Record], where: Mapping[str, Any], out: Path, name: str) -> str:
    """Write records, tables and plots; gives the tables.

    Args:
        records: Of one run.
        where: Of which machine.
        out: Folder for the results.
        name: Of the files.
    """
    (out / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (where, *records)))
    only_profile = all(record.get("profile") for record in records)
    profile = report.profile_table(records, where)
    text = profile if only_profile else report.tables(records, where)
    (out / f"{name}.md").write_text(text)
    if profile and not only_profile:
        (out / f"{name}-profile.md").write_text(profile)
    plots.draw(records, out, name)
    return text


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the results; gives the process's exit code."""
    args = _parse(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    for log in args.out.glob("*.log"):
        log.unlink()
    where = machine() | {"rounds": args.rounds, "secs_per_turn": args.secs, "absent": {}}
    where["tuned_peers"] = args.tuned_peers
    where["peer_versions"] = _versions(args.peers_python)
    name = "bench-profile" if args.profile else "bench"
    records: list[Record] = []
    try:
        with processes.children() as started:
            run = _Run(args, started)
            where["absent"] = run.missing
            for program, why in run.missing.items():
                run.say(f"{program} is absent: {why}")
            for record in run.records():
                records.append(record)
            run.say("done")
    finally:
        # Also what there is of a run that was broken off.
        where["load_after"] = round(os.getloadavg()[0], 1)
        text = write(records, where, args.out, name)
    if args.publish:
        report.publish(args.out, name, ROOT)
        if not args.profile and (args.out / "bench-profile.md").exists():
            report.publish(args.out, "bench-profile", ROOT)
    print(text)
    print(f"Written: {args.out / name}*", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
