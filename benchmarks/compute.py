"""`python -m benchmarks.compute`: a step's computing, forward and backward, beside TensorFlow's compat.v1.

Four models (benchmarks/programs/compute_worker.py), each the same text in a process of globalstep and in one of
TensorFlow, on as many threads each. The two take turns, back and forth, so that whatever else the machine does meets
both; a ratio is taken within a round, and the table has the medians of the rounds. "compute" is the forward and the
backward pass alone; "step" trains, with globalstep's Variables on a PS in the worker's process. Writes compute.jsonl
and compute.md into --out; --publish puts the table into benchmarks/figures.md. Needs `make bench-peers`; without it,
globalstep alone is measured.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.harness import processes
from benchmarks.harness.contestants import absent, default_python
from benchmarks.harness.machine import beside_other_work, machine
from benchmarks.harness.processes import ROOT, Child
from benchmarks.programs.compute_worker import FORMS, MODELS
from benchmarks.reports import report
from globalstep.runtime.process_env import tuned

__all__ = ["BARS", "main", "table"]

Record = dict[str, Any]

#: What globalstep's speed is to be, of TensorFlow's.
BARS = {"cnn": 0.95, "mlp": 0.85, "lstm": 0.5, "deepfm": 1.0}
_NAMES = {
    "cnn": "MNIST CNN, 5x5 convolutions of 32 and 64 channels, batch 50",
    "mlp": "MLP 784-512-512-10, batch 100",
    "lstm": "LSTM language model, hidden 200, 20 steps, batch 20, 10,000 words",
    "deepfm": "DeepFM, 10 fields of 10,000 ids, batch 256",
}


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compute", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="how often each has its turn (default 15)")
    parser.add_argument("--secs", type=float, default=0.3, help="least length of a turn, in seconds (default 0.3)")
    parser.add_argument("--threads", type=int, default=2, help="of each process (default 2)")
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=list(MODELS), help="default: all")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS), help="default: both")
    parser.add_argument("--peers-python", default=default_python(), metavar="PATH", help="TensorFlow's interpreter")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder for the results")
    parser.add_argument("--publish", action="store_true", help="put the table into docs/ as well")
    return parser.parse_args(argv)


def _measure(workers: dict[str, Child], model: str, form: str, rounds: int, secs: float) -> list[Record]:
    """Give a record for every turn."""
    of = {"model": model, "form": form}
    for worker in workers.values():
        worker.ask({"do": "join", **of})
    found = []
    for number in range(rounds):
        for library in workers if number % 2 == 0 else reversed(workers):
            answer = workers[library].ask({"do": "run", "secs": secs, "least_steps": 2, **of})
            found.append({**of, "library": library, "round": number, **answer})
    return found


def table(records: Sequence[Record], description: dict[str, Any]) -> str:
    """Give the table of what was measured, as Markdown."""
    where = (
        f"{description['date']}; {description['cpu']}, {description['cores']} cores, {description['threads']} threads "
        f"each, load average {description['load_before']} before and {description['load_after']} after; Python "
        f"{description['python']}, numpy {description['numpy']}; {description['rounds']} interleaved rounds of "
        f"{description['secs']} s a turn, medians.{beside_other_work(description)}"
    )
    lines = [
        where,
        "",
        "| model | what | globalstep, ms | TensorFlow, ms | speed, of its | by processor time | bar | reached |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for model, form in dict.fromkeys((record["model"], record["form"]) for record in records):
        turns = [record for record in records if (record["model"], record["form"]) == (model, form)]
        mine, theirs = (_laps(turns, library, "secs") for library in ("globalstep", "tensorflow"))
        cells = [_NAMES[model], form, f"{median(mine):.2f}", "absent", "", "", f"{BARS[model]}", ""]
        if theirs:
            low, middle, high = _ratios(mine, theirs)
            cpu = _ratios(_laps(turns, "globalstep", "cpu_secs"), _laps(turns, "tensorflow", "cpu_secs"))
            cells[3:6] = [f"{median(theirs):.2f}", f"{middle:.2f} ({low:.2f} to {high:.2f})", f"{cpu[1]:.2f}"]
            cells[7] = "yes" if middle >= BARS[model] else "**no**"
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _laps(turns: Sequence[Record], library: str, clock: str) -> list[float]:
    """Give the milliseconds of a step, of each round."""
    return [turn[clock] / turn["steps"] * 1e3 for turn in turns if turn["library"] == library]


def _ratios(mine: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Give the quarters of the speeds' ratios, each taken within a round."""
    ratios = [other / own for own, other in zip(mine, theirs, strict=True)]
    return quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the results; gives the process's exit code."""
    args = _parse(argv)
    description = machine() | {"rounds": args.rounds, "secs": args.secs, "threads": args.threads}
    program = ["-m", "benchmarks.programs.compute_worker"]
    threads = ["--threads", str(args.threads)]
    records: list[Record] = []
    with processes.children() as children:
        workers = {
            "globalstep": children.start([*program, "globalstep", *threads], tuned(os.environ, args.threads)),
        }
        if "tensorflow" not in absent(args.peers_python):
            workers["tensorflow"] = children.start(
                [*program, "tensorflow", *threads], os.environ, python=args.peers_python
            )
        for worker in workers.values():
            worker.answer()
        for model in args.models:
            for form in args.forms:
                records += _measure(workers, model, form, args.rounds, args.secs)
        for worker in workers.values():
            worker.end()
    report.write(args.out, "compute", records, description, table)
    if args.publish:
        report.publish(args.out, "compute", ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
