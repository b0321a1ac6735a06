"""`python -m benchmarks.synchronous`: what a step made of all workers' gradients costs, here and in TensorFlow 1.x.

The same program (benchmarks/programs/synchronous_worker.py) runs with both libraries: SyncReplicasOptimizer with as
many contributions as workers, and plain pushes. The runs take turns. Results go to benchmarks/results/synchronous.md.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.harness.contestants import default_python, free_ports, tuned_environ
from benchmarks.harness.machine import machine
from benchmarks.harness.processes import ROOT, Child, Children, children
from benchmarks.reports.bars import in_words
from benchmarks.reports.report import publish

__all__ = ["main"]

RESULTS = Path(__file__).parent / "results"
#: Parameters -> steps of a run.
STEPS = {1_000: 600, 1_000_000: 120}
_LIBRARIES = ("globalstep", "tensorflow")


class _Job(NamedTuple):
    """What is run: by which library, "sync" or "async", with so many parameters."""

    library: str
    mode: str
    size: int


def _run(processes: Children, job: _Job, counts: tuple[int, int], log: Path) -> float:
    """Run a job once, with so many PS and workers; gives steps/s."""
    python = sys.executable if job.library == "globalstep" else default_python()
    steps = STEPS[job.size] * (counts[1] if job.mode == "async" else 1)
    base = [
        "-m", "benchmarks.programs.synchronous_worker", "--library", job.library, "--mode", job.mode,
        "--size", str(job.size), "--steps", str(steps), "--counts", *map(str, counts),
        "--ports", *map(str, free_ports(sum(counts))),
    ]  # fmt: skip

    def start(task: str, index: int) -> Child:
        return processes.start([*base, "--job", task, "--index", str(index)], tuned_environ(), python, log)

    workers = [start("worker", at) for at in range(counts[1])]
    started = [start("ps", at) for at in range(counts[0])] + workers
    try:
        return float(workers[0].answer()["rate"])
    finally:
        for child in started:
            child.kill()


def _table(rates: Mapping[_Job, Sequence[float]], workers: int) -> Iterator[str]:
    yield "| parameters | library | plain pushes/s | steps/s | contributions/s of pushes/s |"
    yield "| --- | --- | ---: | ---: | ---: |"
    sizes = sorted({job.size for job in rates})
    for size in sizes:
        for library in _LIBRARIES:
            plain, sync = (rates.get(_Job(library, mode, size), ()) for mode in ("async", "sync"))
            if plain and sync:
                share = median(workers * step / push for push, step in zip(plain, sync, strict=True))
                yield f"| {in_words(size)} | {library} | {median(plain):.0f} | {median(sync):.0f} | {share:.2f} |"
    for size in sizes:
        mine, theirs = (rates.get(_Job(library, "sync", size), ()) for library in _LIBRARIES)
        if mine and theirs:
            ratio = median(here / there for here, there in zip(mine, theirs, strict=True))
            yield f"\n{in_words(size)}: {ratio:.2f} times TensorFlow's synchronous steps/s (bar 4)."


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.synchronous", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (default 5)")
    parser.add_argument("--ps", type=int, default=1, help="PS tasks (default 1)")
    parser.add_argument("--workers", type=int, default=4, help="workers (default 4)")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(STEPS), choices=STEPS, help="parameters")
    parser.add_argument("--libraries", nargs="+", default=_LIBRARIES, choices=_LIBRARIES, help="who takes part")
    parser.add_argument("--publish", action="store_true", help="put the table into docs/ as well")
    args = parser.parse_args(argv)
    where, rates = machine(), defaultdict[_Job, list[float]](list)
    jobs = [_Job(*job[::-1]) for job in product(args.sizes, ("async", "sync"), args.libraries)]
    with children() as processes, tempfile.TemporaryDirectory() as folder:
        for _ in range(args.rounds):
            for job in jobs:
                rates[job].append(_run(processes, job, (args.ps, args.workers), Path(folder) / "log"))
                print(*job, f"{rates[job][-1]:.0f} steps/s", file=sys.stderr)
    about = f"{where['date']}; {where['cpu']}, {where['cores']} cores, load {where['load_before']}"
    how = f"{args.ps} PS, {args.workers} workers, gradient descent, {args.rounds} turns of each, medians"
    text = "\n".join([f"{about}; {how}.", "", *_table(rates, args.workers)]) + "\n"
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "synchronous.md").write_text(text)
    print(text)
    if args.publish:
        publish(RESULTS, "synchronous", ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
