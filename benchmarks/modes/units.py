"""`python -m benchmarks.modes.units`: steps of work units where one of four workers is five times slower.

Real processes on this machine: one PS task and four workers. A unit takes 40 ms, and 200 ms on the slow worker. They
sleep meanwhile, so the cores are not what is measured. For each number of units prints what a step takes with four
equal workers, and with a slow one; how much longer that is; and how much longer it would be at best, if all knew
beforehand who is how fast. Prints the table that benchmarks/figures.md sums up.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import globalstep as gs
from benchmarks.modes.tasks import run_tasks

__all__ = ["main"]

_WORKERS, _TIMES_SLOWER = 4, 5
_UNITS = (3, 6, 8, 12, 24)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; or be one of the tasks that are measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.modes.units", description=__doc__.splitlines()[0])
    parser.add_argument("--secs", type=float, default=8.0, help="how long each is measured, about (default 8)")
    parser.add_argument("--compute-secs", type=float, default=0.04, help="what a unit takes (default 0.04)")
    parser.add_argument("--units", type=int, nargs="*", default=_UNITS, help="numbers of units (default 3 6 8 12 24)")
    parser.add_argument("--task", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.task:
        units, steps, secs, folder = given.task
        return _train(int(units), int(steps), float(secs), Path(folder))
    print("| units | equal workers, ms a step | one slow, ms a step | longer by, % | at best, % |")
    print("|---:|---:|---:|---:|---:|")
    for units in given.units:
        equal, slow = (_measure(units, slower, given.compute_secs, given.secs) for slower in (1, _TIMES_SLOWER))
        best = _rounds(units, _TIMES_SLOWER) / _rounds(units, 1)
        print(
            f"| {units} | {1e3 * equal:.0f} | {1e3 * slow:.0f} | {100 * (slow / equal - 1):.0f} | "
            f"{100 * (best - 1):.0f} |",
            flush=True,
        )
    return 0


def _rounds(units: int, slower: int) -> int:
    """How often a unit's time a step takes at best, if one worker takes `slower` times as long."""
    rounds = 1
    while (_WORKERS - 1) * rounds + rounds // slower < units:
        rounds += 1
    return rounds


def _measure(units: int, slower: int, compute_secs: float, secs: float) -> float:
    """Train with one worker that is so many times slower; gives seconds a step."""
    steps = max(10, int(secs / (compute_secs * _rounds(units, slower))))
    with tempfile.TemporaryDirectory(prefix="units") as name:
        folder = Path(name)

        def command(job: str, index: int) -> list[object]:
            takes = compute_secs * (slower if (job, index) == ("worker", _WORKERS - 1) else 1)
            return ["-m", "benchmarks.modes.units", "--task", units, steps, takes, folder]

        run_tasks(_WORKERS, command, folder, 10 * secs + 120.0)
        return float((folder / "secs").read_text())


def _train(units: int, steps: int, secs: float, folder: Path) -> int:
    """Be a task; the chief leaves the seconds a step, from the first quarter of the steps on."""
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    never, times = threading.Event(), {}
    zero = np.zeros(100, np.float32)

    def loss_fn(params: object) -> tuple[float, object]:
        # All begin together.
        here = folder / f"here-{task['index']}"
        if not here.exists():
            here.touch()
        while len(list(folder.glob("here-*"))) < _WORKERS:
            never.wait(0.02)
        never.wait(secs)
        return 1.0, zero

    class Clock(gs.Callback):
        """Takes the time of each step."""

        def on_step(self, trainer: gs.Trainer, step: int, loss: float) -> None:
            """See Callback."""
            times[step] = time.monotonic()

    gs.fit(
        zero, loss_fn, lambda step, unit: (), optimizer=gs.optim.SGD(0.1), units=gs.WorkUnits(units),
        steps=steps, callbacks=[Clock()],
    )  # fmt: skip
    if task["index"] == 0:
        seen = sorted(step for step in times if step >= steps // 4)
        (folder / "secs").write_text(str((times[seen[-1]] - times[seen[0]]) / (seen[-1] - seen[0])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
