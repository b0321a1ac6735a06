"""`python -m benchmarks.modes.local_steps`: local steps beside steps of all workers, at equal samples: loss and bytes.

Real processes under `globalstep launch`, one PS task and 3 or 4 workers; the same network, batches of 16, and momentum
SGD. "every step" has all workers make each step together: a round of one local step, and their mean as it is, which is
that optimizer on the mean gradient. The others take 50 steps on their own before each push: together; or as they come,
also where one worker is slower than the others. All see as many samples, each with the best of a few rates. How much
slower the slow worker was is measured, and in the records. Writes local_steps.jsonl and local_steps.md into --out;
--publish puts the table into benchmarks/figures.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.machine import machine
from benchmarks.harness.processes import ROOT
from benchmarks.reports.report import publish
from globalstep.runtime.process_env import tuned

__all__ = ["main", "table"]

_EVERY = 50
_DATA = ("digits", "letters")
_MEAN = ("SGD", {"lr": 1.0})
_MODES: dict[str, dict[str, Any]] = {
    "every step, 4 workers": {"workers": 4, "every": 1, "replicas": 4},
    "50 local steps together, 4 workers": {"workers": 4, "every": _EVERY, "replicas": 4},
    "every step, 3 workers": {"workers": 3, "every": 1, "replicas": 3},
    "50 local steps as they come, 3 workers": {"workers": 3, "every": _EVERY, "replicas": 0},
    "50 local steps as they come, speeds 1, 1, 1/3": {"workers": 3, "every": _EVERY, "replicas": 0, "slow": True},
}
_DILOCO = ("SGD", {"lr": 0.7, "momentum": 0.9, "nesterov": True})
_DELAYED = ("DelayedNesterov", {"lr": 0.4, "delay": 3})
#: Data, steps and replicas -> the own steps' rate and the outer optimizer: the best of a few, each tried once.
_TUNED: dict[tuple[str, int, int], tuple[float, tuple[str, dict[str, Any]]]] = {
    ("digits", 1, 4): (0.05, _MEAN),
    ("digits", 1, 3): (0.05, _MEAN),
    ("digits", _EVERY, 4): (0.05, _MEAN),
    ("digits", _EVERY, 0): (0.05, ("DelayedNesterov", {"lr": 0.3, "momentum": 0.5, "delay": 3})),
    ("letters", 1, 4): (0.2, _MEAN),
    ("letters", 1, 3): (0.1, _MEAN),
    ("letters", _EVERY, 4): (0.05, _DILOCO),
    ("letters", _EVERY, 0): (0.05, _DELAYED),
}
#: Beside which one a mode is read.
_BASES = {
    "50 local steps together, 4 workers": "every step, 4 workers",
    "50 local steps as they come, 3 workers": "every step, 3 workers",
    "50 local steps as they come, speeds 1, 1, 1/3": "every step, 3 workers",
}
#: How many times as long a step of a slow worker takes.
_SLOW_TIMES = 3.0


def train(data: str, mode: str, samples: int) -> dict[str, Any]:
    """Train once; gives the loss of the test data, and the bytes that all workers sent and got."""
    how = _MODES[mode]
    rate, outer = _TUNED[data, how["every"], how["replicas"]]
    pushes = int(samples / how["every"] / (how["replicas"] or 1))
    command = ["-m", "globalstep", "launch", "--ps", "1", "--workers", str(how["workers"])]
    command += ["-m", "benchmarks.programs.local_steps_job", "--data", data, "--every", str(how["every"])]
    command += ["--replicas", str(how["replicas"]), "--outer", json.dumps(outer), "--rate", str(rate)]
    command += ["--steps", str(pushes), "--slow", str(_SLOW_TIMES if how.get("slow") else 1.0)]
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=tuned(os.environ), capture_output=True, text=True, timeout=1200
    )
    lines = [json.loads(found) for found in re.findall(r"\{\"sent\".*\}", done.stdout)]
    if done.returncode or len(lines) != how["workers"]:
        raise RuntimeError(f"{mode} ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    lines.sort(key=lambda line: line["worker"])
    secs = [line["step_secs"] for line in lines]
    return {
        "data": data,
        "mode": mode,
        "loss": lines[0]["loss"],
        "bytes": sum(line["sent"] + line["received"] for line in lines),
        "pushes": pushes,
        # Of worker 2 beside the others, in the time that a step takes.
        "times_slower": secs[2] / median([*secs[:2], *secs[3:]]),
    }


def table(records: Sequence[Mapping[str, Any]], where: Mapping[str, Any], batches: int) -> str:
    """Write the results as Markdown."""
    rounds = len({record["round"] for record in records})
    lines = [
        (
            f"{where['date']}; {where['cpu']}, {where['cores']} cores; {batches:,} batches of 16 in all, "
            f"{rounds} runs each, medians."
        ),
        "",
        "| data | mode | loss at the end | of every step's | bytes moved | every step's, of these |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    found: dict[tuple[str, str], tuple[float, float]] = {}
    for data in _DATA:
        for mode in _MODES:
            runs = [record for record in records if (record["data"], record["mode"]) == (data, mode)]
            if not runs:
                continue
            loss, moved = median(run["loss"] for run in runs), median(run["bytes"] for run in runs)
            found[data, mode] = loss, moved
            beside = ["", ""]
            if (data, _BASES.get(mode, "")) in found:
                base = found[data, _BASES[mode]]
                beside = [f"{loss / base[0]:.3f}", f"{base[1] / moved:.1f}"]
            figures = [f"{loss:.4f}", beside[0], f"{moved:,.0f}", beside[1]]
            lines.append(f"| {data} | {mode} | {' | '.join(figures)} |")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.modes.local_steps", description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=12_000, help="of all workers together (default 12000)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each, interleaved (default 3)")
    parser.add_argument("--data", choices=_DATA, nargs="+", default=list(_DATA))
    parser.add_argument("--modes", nargs="+", default=list(_MODES), choices=list(_MODES))
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder for the results")
    parser.add_argument("--publish", action="store_true", help="put the table into docs/ as well")
    args = parser.parse_args(argv)
    where = machine()
    records: list[dict[str, Any]] = []
    for number in range(args.rounds):
        for data in args.data:
            for mode in args.modes:
                records.append({**train(data, mode, args.batches), "round": number})
                print(records[-1], flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(record) for record in [{"machine": where, "batches": args.batches}, *records]]
    (args.out / "local_steps.jsonl").write_text("\n".join(lines) + "\n")
    text = table(records, where, args.batches)
    (args.out / "local_steps.md").write_text(text)
    print(text)
    if args.publish:
        publish(args.out, "local_steps", ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
