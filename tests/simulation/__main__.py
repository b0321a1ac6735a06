"""Replays seeds of the simulation, or looks for one that fails: `python tests/simulation --help`."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))

from planted_bugs import PLANTED, planted
from simulated_scenarios import FEATURES
from simulation import Report, run, simulating


def main() -> int:
    """Run what the command line asks for; 1 if an invariant was broken."""
    parser = argparse.ArgumentParser(prog="python tests/simulation", description=__doc__)
    parser.add_argument("seeds", type=int, nargs="*", help="seeds to replay, each with all that happens in it")
    parser.add_argument("--from", type=int, dest="first", default=0, help="the first of a range of seeds")
    parser.add_argument("--count", type=int, default=0, help="how many of them")
    parser.add_argument("--secs", type=float, default=0.0, help="or for how long, instead of a count")
    parser.add_argument("--without", action="append", default=[], choices=sorted(FEATURES), help="leave a feature out")
    parser.add_argument("--bug", choices=sorted(PLANTED), help="plant this bug first")
    parser.add_argument("--quiet", action="store_true", help="do not print what happens in a replay")
    given = parser.parse_args()
    with simulating(), planted(given.bug) if given.bug else nullcontext():
        for seed in given.seeds:
            report = run(seed, given.without, trace=not given.quiet)
            _print(report)
            if report.violation is not None:
                return 1
        return _search(given.first, given.count, given.secs, given.without)


def _search(first: int, count: int, secs: float, without: list[str]) -> int:
    """Run a range of seeds; print those that fail, and what happened in all of them."""
    began, faults, messages = time.monotonic(), Counter[str](), Counter[str]()
    seeds = pushes = failed = 0
    while seeds < count or time.monotonic() - began < secs:
        try:
            report = run(first + seeds, without)
        except BaseException as error:
            error.add_note(f"seed {first + seeds}")
            raise
        seeds += 1
        pushes += report.pushes
        faults += report.faults
        messages += report.messages
        if report.violation is not None:
            failed += 1
            _print(report)
            print(f"replay: python tests/simulation {report.scenario.seed}", flush=True)
    if seeds:
        took = time.monotonic() - began
        print(f"{seeds} seeds from {first} in {took:.0f} s ({60 * seeds / took:.0f} a minute), {failed} failed")
        print(f"{pushes} pushes; messages: {dict(messages)}; faults: {dict(faults)}")
    return int(failed > 0)


def _print(report: Report) -> None:
    scenario = report.scenario
    print(f"seed {scenario.seed}: {', '.join(sorted(scenario.features)) or 'no features'}")
    print(f"  {scenario}")
    print(
        f"  {report.events} events, {report.secs:.1f} s, {report.pushes} pushes, {report.lives} incarnations, "
        f"{dict(report.messages)}, {dict(report.faults)}"
    )
    if report.violation is not None:
        print("".join(traceback.format_exception(report.violation, limit=-6)).rstrip())


if __name__ == "__main__":
    sys.exit(main())
