"""`python -m benchmarks.compression`: how training goes with fewer bytes on the wire, beside the uncompressed one.

Each choice of WireOptions trains examples/digits.py with one PS, a chief and two workers over gRPC, in separate
processes; the loss comes from the event files, the accuracy from what the chief prints, and the bytes of a step from
a session of the same model. Results go to benchmarks/results/compression.{jsonl,md,png}.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness.machine import machine
from benchmarks.reports.report import publish
from globalstep.chief.events.events import summary_iterator
from globalstep.runtime.process_env import tuned
from globalstep.wire.wire_options import WIRE_VARIABLE

__all__ = ["main", "table"]

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
CHOICES = ("", "dtype=bfloat16", "dtype=float16", "top_k=0.1", "top_k=0.02", "dtype=bfloat16,top_k=0.02")
#: Losses that the one at the end is the mean of.
_LAST_LOSSES = 5


def train(choice: str, steps: int) -> dict[str, Any]:
    """Run the digits job once; gives its accuracy, its curve of losses, and the bytes of a step."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "globalstep", "launch", "--ps", "1", "--workers", "3", "examples/digits.py",
             "--steps", str(steps), "--run-dir", folder],
            cwd=ROOT, env=tuned({**os.environ, WIRE_VARIABLE: choice, "GLOBALSTEP_TRANSPORT": "grpc"}),
            capture_output=True, text=True, check=True, timeout=600,
        )  # fmt: skip
        found = re.search(r"test accuracy: ([\d.]+)", done.stdout)
        assert found is not None, done.stdout
        return {"choice": choice, "accuracy": float(found[1]), **_curves(Path(folder))}


def _curves(folder: Path) -> dict[str, Any]:
    loss: list[tuple[int, float]] = []
    for path in sorted(folder.glob("events.*")):
        for event in summary_iterator(str(path)):
            tags = {value.tag: value.simple_value for value in event.summary.value}
            if "loss" in tags:
                loss.append((event.step, tags["loss"]))
    return {"loss": loss}


def bytes_of_a_step(choice: str) -> tuple[float, float]:
    """Tensor bytes that a step of the digits model sends and receives, of one session in this process."""
    code = (
        "import numpy as np, importlib.util, globalstep as gs\n"
        "spec = importlib.util.spec_from_file_location('digits', 'examples/digits.py')\n"
        "digits = importlib.util.module_from_spec(spec); spec.loader.exec_module(digits)\n"
        "images, labels, loss, _ = digits.build_model()\n"
        "step = gs.train.get_or_create_global_step()\n"
        "train = gs.train.GradientDescentOptimizer(0.2).minimize(loss, global_step=step)\n"
        "x, _, y, _ = digits.load_data()\n"
        "with gs.train.MonitoredTrainingSession() as session:\n"
        "    traffic = lambda: np.array(session._tf_sess().cluster.traffic)\n"
        "    for count in range(220):\n"
        "        if count == 20: before = traffic()\n"
        "        at = np.random.default_rng(count).integers(len(x), size=32)\n"
        "        session.run(train, {images: x[at], labels: y[at]})\n"
        "    print('moved', *((traffic() - before) / 200))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, WIRE_VARIABLE: choice},
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    sent, received = done.stdout.rsplit("moved", 1)[1].split()
    return float(sent), float(received)


def table(records: Sequence[Mapping[str, Any]], where: Mapping[str, Any], steps: int) -> str:
    """Write the results as Markdown, a line for each choice."""
    rounds = len(records) // len(CHOICES)
    lines = [
        f"{where['date']}; {where['cpu']}, {where['cores']} cores; {steps} global steps, {rounds} runs each, medians.",
        "",
        "| WireOptions | bytes sent a step | bytes read a step | loss at the end | test accuracy |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for choice in CHOICES:
        runs = [record for record in records if record["choice"] == choice]
        accuracies = [run["accuracy"] for run in runs]
        ends = [float(np.mean([loss for _, loss in run["loss"][-_LAST_LOSSES:]])) for run in runs]
        lines.append(
            f"| {choice or 'as they are'} | {runs[0]['sent']:,.0f} | {runs[0]['received']:,.0f} | {median(ends):.3f} | "
            f"{median(accuracies):.4f} ({min(accuracies):.4f} to {max(accuracies):.4f}) |"
        )
    return "\n".join(lines) + "\n"


def plot(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the loss of each choice's first run against the global step."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for choice in CHOICES:
        run = next(record for record in records if record["choice"] == choice)
        steps, losses = (np.array(column) for column in zip(*run["loss"], strict=True))
        axes.plot(steps, losses, label=choice or "as they are", linewidth=1.3, marker=".")
    axes.set(xlabel="global step", ylabel="loss", yscale="log", title="Digits, fewer bytes on the wire")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compression", description=__doc__)
    parser.add_argument("--steps", type=int, default=3000, help="global steps of each run (default 3000)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each choice, interleaved (default 3)")
    parser.add_argument("--publish", action="store_true", help="put the table into docs/ as well")
    args = parser.parse_args(argv)
    where = machine()
    moved = {choice: bytes_of_a_step(choice) for choice in CHOICES}
    records: list[dict[str, Any]] = []
    for number in range(args.rounds):
        for choice in CHOICES:
            sent, received = moved[choice]
            records.append({**train(choice, args.steps), "round": number, "sent": sent, "received": received})
            print(f"round {number}, {choice or 'as they are'}: accuracy {records[-1]['accuracy']:.4f}", flush=True)
    RESULTS.mkdir(exist_ok=True)
    lines = [json.dumps(record) for record in [{"machine": where, "steps": args.steps}, *records]]
    (RESULTS / "compression.jsonl").write_text("\n".join(lines) + "\n")
    text = table(records, where, args.steps)
    (RESULTS / "compression.md").write_text(text)
    plot(records, RESULTS / "compression.png")
    print(text)
    if args.publish:
        publish(RESULTS, "compression", ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
