"""`python -m benchmarks.modes.curves`: the loss over time in each mode, where one of four workers is five times slower.

Real processes on this machine: one PS task and four workers, which train the same network on handwritten digits from
the same values, each with batches of its own. A gradient takes 20 ms, and 100 ms on the slow worker: they sleep
meanwhile, so the cores are not what is measured. The chief keeps the values that it computes from now and then; the
loss of the test data is found afterwards. Then steps of seven contributions are made by seven workers, and by eight of
which one is ten times slower, a backup. Writes curves.md and curves.png into benchmarks/results/; --publish puts the
table into benchmarks/figures.md and the picture into docs/img.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import globalstep as gs
from benchmarks.harness.machine import machine
from benchmarks.harness.processes import ROOT
from benchmarks.modes.tasks import run_tasks
from benchmarks.programs.local_steps_job import Array, digits, initial, loss_fn
from benchmarks.reports.report import publish

__all__ = ["main", "table"]

RESULTS = ROOT / "benchmarks" / "results"
_BATCH, _EVERY, _UNITS = 16, 10, 3
_TIMES_SLOWER, _BACKUP_SLOWER, _QUICK = 5.0, 10.0, 7
#: The loss by which modes are compared, and how often the chief keeps values.
_WANTED_LOSS, _KEPT_SECS = 0.25, 0.1
#: Mode -> how it is written, the run's policy, and the rate: the best of a few, each tried once.
_MODES = {
    "asynchronous": ("", "", 0.02),
    "drop, s = 8": ("", "staleness=drop,max_staleness=8", 0.02),
    "wait, s = 1": ("", "staleness=wait,max_staleness=1", 0.05),
    "synchronous": ("together:4", "", 0.2),
    "synchronous, one a backup": ("together:3", "", 0.2),
    "work units": ("units", "", 0.2),
    "local steps": ("local", "", 0.05),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the results; or be one of the tasks that are measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.modes.curves", description=__doc__.splitlines()[0])
    parser.add_argument("--secs", type=float, default=15.0, help="how long each mode trains (default 15)")
    parser.add_argument("--compute-secs", type=float, default=0.02, help="what a gradient takes (default 0.02)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each, by turns (default 3)")
    parser.add_argument("--publish", action="store_true", help="put the table and the picture into docs/ as well")
    parser.add_argument("--task", nargs=6, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.task:
        how, rate, workers, takes, secs, folder = given.task
        _train(how, float(rate), int(workers), float(takes), float(secs), Path(folder))
        return 0
    where, runs = machine(), {mode: list[_Run]() for mode in _MODES}
    rates: dict[int, list[float]] = {_QUICK: [], _QUICK + 1: []}
    for _ in range(given.rounds):
        for mode, written in _MODES.items():
            runs[mode].append(_measured(written, 4, _TIMES_SLOWER, given))
            print(f"{mode}: {runs[mode][-1].steps_per_sec:.1f} steps/s", file=sys.stderr)
        for workers, found in rates.items():
            slower = _BACKUP_SLOWER if workers > _QUICK else 1.0
            found.append(_measured((f"together:{_QUICK}", "", 0.1), workers, slower, given).steps_per_sec)
            print(f"{workers} workers: {found[-1]:.1f} steps/s", file=sys.stderr)
    RESULTS.mkdir(exist_ok=True)
    about = f"{where['date']}; {where['cpu']}, {where['cores']} cores; {given.secs:.0f} s each, {given.rounds} runs"
    text = about + ", medians.\n\n" + table(runs) + "\n" + _of_backups(rates)
    (RESULTS / "curves.md").write_text(text)
    _draw(runs, RESULTS / "curves.png")
    print(text)
    if given.publish:
        publish(RESULTS, "curves", ROOT)
    return 0


class _Run:
    """What a run came to.

    Args:
        at: Seconds since all had begun.
        steps: The global step at each of these.
        losses: Of the test data, at each.
    """

    def __init__(self, at: Sequence[float], steps: Sequence[int], losses: Sequence[float]) -> None:
        self.at, self.steps, self.losses = list(at), list(steps), list(losses)

    @property
    def steps_per_sec(self) -> float:
        """From a quarter of the time on."""
        first = next(place for place, secs in enumerate(self.at) if secs >= self.at[-1] / 4)
        return (self.steps[-1] - self.steps[first]) / (self.at[-1] - self.at[first])

    def secs_to(self, loss: float) -> float:
        """When the loss was first no more than this; infinity for never."""
        return next((secs for secs, found in zip(self.at, self.losses, strict=True) if found <= loss), float("inf"))


def table(runs: Mapping[str, Sequence[_Run]]) -> str:
    """Write how long each mode took, as Markdown."""
    lines = [
        f"| mode | global steps/s | seconds to a loss of {_WANTED_LOSS:g} | loss at the end |",
        "| --- | ---: | ---: | ---: |",
    ]
    for mode, found in runs.items():
        figures = [median(run.steps_per_sec for run in found), median(run.secs_to(_WANTED_LOSS) for run in found)]
        last = median(run.losses[-1] for run in found)
        took = f"{figures[1]:.1f}" if figures[1] < float("inf") else "not reached"
        lines.append(f"| {mode} | {figures[0]:.0f} | {took} | {last:.3f} |")
    return "\n".join(lines) + "\n"


def _of_backups(rates: Mapping[int, Sequence[float]]) -> str:
    share = median(more / fewer for fewer, more in zip(rates[_QUICK], rates[_QUICK + 1], strict=True))
    return (
        f"Steps of {_QUICK} contributions: {median(rates[_QUICK]):.1f} a second by {_QUICK} workers, "
        f"{median(rates[_QUICK + 1]):.1f} by {_QUICK + 1} of which one is {_BACKUP_SLOWER:.0f} times slower, a backup: "
        f"{share:.2f} of it.\n"
    )


def _draw(runs: Mapping[str, Sequence[_Run]], path: Path) -> None:
    import matplotlib  # an extra, which tasks do without

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(9, 4.5))
    for mode, found in runs.items():
        panel.plot(found[-1].at, found[-1].losses, label=mode, linewidth=1.6)
    panel.set(xlabel="seconds", ylabel="loss of the test data", yscale="log")
    panel.grid(alpha=0.3, which="both")
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


# ---- Running -------------------------------------------------------------------------------------


def _measured(mode: tuple[str, str, float], workers: int, slower: float, given: argparse.Namespace) -> _Run:
    """Train in a mode, the last worker so many times slower."""
    how, policy, rate = mode
    with tempfile.TemporaryDirectory(prefix="curves") as name:
        folder = Path(name)

        def command(job: str, index: int) -> list[object]:
            takes = given.compute_secs * (slower if index == workers - 1 and job == "worker" else 1.0)
            task = [how, rate, workers, takes, given.secs, folder]
            return ["-m", "benchmarks.modes.curves", "--task", *task]

        environ = {"GLOBALSTEP_RUN_POLICY": policy} if policy else {}
        run_tasks(workers, command, folder, given.secs + 120.0, environ)
        kept = np.load(folder / "kept.npz")
        told = json.loads((folder / "told.json").read_text())
    _, _, x, y = _data()
    names = list(initial(x.shape[1], 10))
    losses = [float(loss_fn({name: kept[f"{name} {at}"] for name in names}, x, y)[0]) for at in range(len(told["at"]))]
    return _Run(told["at"], told["steps"], losses)


def _data() -> tuple[Array, Array, Array, Array]:
    """Give the digits to train with, and those of the test."""
    x, y = digits()
    test = len(x) // 5
    return x[test:], y[test:], x[:test], y[:test]


class _Watched(gs.Callback):
    """A worker's loss function, which takes its time; the chief's keeps values, and ends the run."""

    def __init__(self, takes: float, workers: int, secs: float, folder: Path) -> None:
        self._takes, self._workers, self._secs, self._folder = takes, workers, secs, folder
        self._never = threading.Event()
        self._is_fresh, self._step, self._began = True, 0, 0.0
        self.kept: dict[str, Array] = {}
        self.told: dict[str, list[float]] = {"at": [], "steps": []}

    def loss(self, params: dict[str, Array], x: Array, y: Array) -> tuple[Any, dict[str, Array]]:
        """Give the loss and its gradients."""
        if not self._began:
            self._begin()
        now = time.monotonic() - self._began
        # Within a round of local steps the values are the worker's own.
        if self._is_fresh and (not self.told["at"] or now >= self.told["at"][-1] + _KEPT_SECS):
            self.kept |= {f"{name} {len(self.told['at'])}": np.array(value) for name, value in params.items()}
            self.told["at"].append(now)
            self.told["steps"].append(self._step)
        self._is_fresh = False
        self._never.wait(self._takes)
        return loss_fn(params, x, y)

    def _begin(self) -> None:
        """Wait until all are here."""
        (self._folder / f"here-{time.monotonic_ns()}").touch()
        while len(list(self._folder.glob("here-*"))) < self._workers:
            self._never.wait(0.02)
        self._began = time.monotonic()

    def on_step(self, trainer: gs.Trainer, step: int, loss: float) -> None:
        """See Callback."""
        self._is_fresh, self._step = True, step
        if trainer.is_chief and time.monotonic() - self._began >= self._secs:
            trainer.stop()


def _train(how: str, rate: float, workers: int, takes: float, secs: float, folder: Path) -> None:
    """Be a task; the chief leaves what it has kept."""
    x, y, *_ = _data()
    watched = _Watched(takes, workers, secs, folder)
    random = np.random.default_rng(time.monotonic_ns())

    def drawn(*_: int) -> tuple[Array, Array]:
        rows = random.integers(len(x), size=_BATCH)
        return x[rows], y[rows]

    kind, _, count = how.partition(":")
    optimizer: Any = gs.optim.SGD(rate, momentum=0.9)
    options: dict[str, Any] = {}
    if kind == "together":
        optimizer = gs.train.SyncReplicasOptimizer(optimizer, replicas_to_aggregate=int(count))
    elif kind == "units":
        options["units"] = gs.WorkUnits(_UNITS)
    elif kind == "local":
        options["local_steps"] = gs.LocalSteps(optimizer, every=_EVERY)
        optimizer = gs.optim.DelayedNesterov(0.4, delay=workers)
    batches: Any = drawn if kind == "units" else iter(partial(drawn), None)
    result = gs.fit(
        initial(x.shape[1], 10), watched.loss, batches, optimizer=optimizer, steps=1_000_000, callbacks=[watched],
        **options,
    )  # fmt: skip
    if result.is_chief:
        np.savez(folder / "kept.npz", **watched.kept)
        (folder / "told.json").write_text(json.dumps(watched.told))


if __name__ == "__main__":
    sys.exit(main())
