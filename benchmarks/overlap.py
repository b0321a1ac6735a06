"""`python -m benchmarks.overlap`: what is gained when a worker computes while its pushes are on their way.

One PS process and one worker over gRPC, whose computing takes about as long as its communicating; the two ways of a
session take turns: strict (each run waits for its push) and `pushes_in_flight=1`. Results go to
benchmarks/results/overlap.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import globalstep as gs
from benchmarks.harness.machine import machine
from benchmarks.harness.processes import ROOT, Child
from benchmarks.reports.report import publish
from globalstep.runtime.process_env import tuned

__all__ = ["main"]

RESULTS = Path(__file__).parent / "results"
CONFIGS: dict[str, dict[str, Any]] = {
    "strict": {},
    "pushes_in_flight=1": {"pushes_in_flight": 1},
}


class _Worker:
    """A session of its own graph and PS process, which trains a model of `layers` square matrices."""

    def __init__(self, config: dict[str, Any], torch_layers: int, size: int, secs: float) -> None:
        environ = tuned(dict(os.environ))
        self._ps = Child(["-m", "globalstep.ps", "--port", "0", "--log-level", "WARNING"], environ, folder=ROOT)
        self._graph = gs.Graph()
        with self._graph.as_default():
            loss, self._feeds = _torch_model(torch_layers, size) if torch_layers else _model(size, secs)
            step = gs.train.get_or_create_global_step()
            self._train = gs.train.GradientDescentOptimizer(1e-6).minimize(loss, global_step=step)
            self._session = gs.Session(
                f"grpc://{self._ps.address()}", config=gs.ConfigProto(**config), reuse_values=True
            )
            self._session.run(gs.global_variables_initializer())
        self.lap(3)

    def lap(self, steps: int) -> float:
        """Give the seconds of a step, of so many."""
        began = time.perf_counter()
        for _ in range(steps):
            self._session.run(self._train, self._feeds)
        return (time.perf_counter() - began) / steps

    def close(self) -> None:
        self._session.close()
        self._ps.kill()


def _model(size: int, secs: float) -> tuple[Any, dict[Any, Any]]:
    """A loss whose gradients take so many seconds of another thing than Python's lock."""
    weights = gs.Variable(np.zeros(size, np.float32), name="weights")

    def compute(values: Any) -> tuple[Any, list[Any]]:
        time.sleep(secs)  # as a model on another device, or in compiled code, would
        return 0.0, [np.ones(size, np.float32)]

    return gs.py_loss(compute, [weights]), {}


def _torch_model(layers: int, size: int) -> tuple[Any, dict[Any, Any]]:
    import torch

    torch.set_num_threads(1)
    module = torch.nn.Sequential(*[torch.nn.Linear(size, size) for _ in range(layers)])
    x = gs.placeholder(gs.float32, [None, size])
    return gs.torch(module, lambda m, value: (m(value) ** 2).mean(), [x]), {x: np.ones((64, size), np.float32)}


def _compare(keys: Sequence[str], rounds: int, steps: int, **model: Any) -> dict[str, list[float]]:
    workers = {key: _Worker(CONFIGS[key], **model) for key in keys}
    laps: dict[str, list[float]] = {key: [] for key in keys}
    try:
        for _ in range(rounds):
            for key, worker in workers.items():
                laps[key].append(worker.lap(steps))
    finally:
        for worker in workers.values():
            worker.close()
    return laps


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overlap", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="turns of each way (default 7)")
    parser.add_argument("--steps", type=int, default=20, help="steps of a turn (default 20)")
    parser.add_argument("--publish", action="store_true", help="put the table into docs/ as well")
    args = parser.parse_args(argv)
    os.environ["GLOBALSTEP_TRANSPORT"] = "grpc"
    where = machine()
    quick = _compare(["strict"], 1, args.steps, torch_layers=0, size=2_500_000, secs=0.0)
    secs = quick["strict"][0]
    cases = {
        f"2.5 M parameters, {secs * 1e3:.0f} ms of computing that needs no core": _compare(
            list(CONFIGS), args.rounds, args.steps, torch_layers=0, size=2_500_000, secs=secs
        ),
        "torch, 6 layers of 700 x 700 (2.9 M parameters)": _compare(
            list(CONFIGS), args.rounds, args.steps, torch_layers=6, size=700, secs=0.0
        ),
    }
    turns = f"{args.rounds} interleaved turns of {args.steps} steps, medians"
    lines = [
        f"{where['date']}; {where['cpu']}, {where['cores']} cores, load {where['load_before']}; over gRPC, {turns}.",
        "",
        "| model | way | ms a step | of strict |",
        "| --- | --- | ---: | ---: |",
    ]
    for name, laps in cases.items():
        for key, values in laps.items():
            ratio = median(mine / strict for mine, strict in zip(values, laps["strict"], strict=True))
            lines.append(f"| {name} | {key} | {median(values) * 1e3:.1f} | {ratio:.2f} |")
    text = "\n".join(lines) + "\n"
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "overlap.md").write_text(text)
    print(text)
    if args.publish:
        publish(RESULTS, "overlap", ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
