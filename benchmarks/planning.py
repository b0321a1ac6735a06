"""`python -m benchmarks.planning`: what `globalstep plan` foretells beside what real runs on this machine do.

PS tasks and workers are processes; workers compute by sleeping, as if on another device. Costs are measured in turns
with the runs, so that whatever else the machine does meets both alike; how many cores others left is measured during
each run, and is what the simulation is given. Links are throttled between network namespaces, which takes root.
Results go to benchmarks/results/planning.*.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.machine import machine
from benchmarks.harness.processes import ROOT
from benchmarks.harness.throttled import throttled_hosts, why_not
from benchmarks.reports.planning_report import plot, table
from benchmarks.reports.report import publish
from globalstep.deploy import cli
from globalstep.deploy.bench.cost_measuring import (
    KINDS,
    TransportMeasuring,
    copy_bytes_sec,
    gather_element_secs,
    kernel_costs,
    pack_element_secs,
)
from globalstep.deploy.bench.cost_profile import KernelCosts, Profile
from globalstep.deploy.bench.measured_cluster import MeasuredCluster, MeasuredTurn, cores, measured_cluster
from globalstep.deploy.plan.job import OPTIMIZERS, Job
from globalstep.deploy.plan.sizing import forecast

__all__ = ["EXAMPLES", "Case", "cases", "main", "show_examples"]

RESULTS = Path(__file__).parent / "results"
_TRANSPORTS = ("grpc", "tcp", "shm")
_PS, _WORKERS = 3, 4
#: Commands that docs/plan.md shows with what they print.
EXAMPLES = {
    "plan": "plan --workers 200 --params 1e8 --step-time 0.5 --nic 25 --ps-cores 16 --transport grpc",
    "plan-large": "plan --workers 1000 --ps 100 --params 2e8 --step-time 2 --nic 25 --ps-cores 16 --wire bfloat16 "
    "--transport grpc --plot plan.png",
}
#: Where others leave less than this, a simulation of what is left would say nothing. Over slow links processes mostly
#: wait, and whoever does so gets a core when it wants one, however busy others are.
_LEAST_CORES, _LEAST_OVER_LINKS = 0.2, 1.0


@dataclass(frozen=True)
class Case:
    """One real run.

    Attributes:
        transport: Which.
        size: Parameters.
        optimizer: As `globalstep plan` calls it.
        workers: How many.
        ps: How many.
        step_secs: How long a worker computes.
        megabits: Of each link; 0: all on one host.
    """

    transport: str
    size: int
    optimizer: str
    workers: int
    ps: int
    step_secs: float
    megabits: int = 0


def cases(quick: bool, megabits: int) -> list[Case]:
    """The runs on one host, or those over links of so many Mbit/s."""
    counts = (1, 2, 4) if quick else (1, 2, 3, 4)
    if megabits:
        kinds = [("tcp", 240_000, "sgd", 0.02), ("grpc", 240_000, "adam", 0.02), ("tcp", 2_400_000, "adam", 0.1)]
    else:
        kinds = [
            ("grpc", 24_000, "sgd", 0.0),
            ("tcp", 240_000, "sgd", 0.002),
            ("shm", 240_000, "adam", 0.0),
            ("shm", 2_400_000, "adam", 0.01),
            ("tcp", 2_400_000, "momentum", 0.03),
        ]
    kinds = kinds[:: 2 if quick else 1]
    return [
        Case(transport, size, optimizer, workers, ps, secs, megabits)
        for transport, size, optimizer, secs in kinds
        for ps in (1, 2)
        for workers in counts
    ]


def predict(case: Case, profile: Profile, free_cores: float) -> tuple[float, float]:
    """Give the steps a second and the mean staleness that are foretold."""
    job = Job(
        params=case.size,
        workers=case.workers,
        step_secs=case.step_secs,
        nic_gbps=case.megabits / 1e3 or float("inf"),
        optimizer=case.optimizer,
        transport=case.transport,
        shared_cores=max(_LEAST_OVER_LINKS if case.megabits else _LEAST_CORES, free_cores),
        compute_takes_core=False,
    )
    found = forecast(job, profile, case.ps, random.Random(1))
    return found.steps_sec, _mean(found.staleness)


def _mean(staleness: Mapping[int, int]) -> float:
    return sum(lag * pushes for lag, pushes in staleness.items()) / sum(staleness.values())


class _Costs:
    """Costs that are measured round after round."""

    def __init__(self, cluster: MeasuredCluster, secs: float) -> None:
        self._secs = secs
        self._kernels: dict[str, list[KernelCosts]] = {kind: [] for kind in KINDS}
        self._rows()
        self._messages = TransportMeasuring(cluster, self._kernels["gradient_descent"][0], _TRANSPORTS, secs=secs)

    def _rows(self) -> None:
        for kind, found in self._kernels.items():
            found.append(kernel_costs(kind, self._secs / 2))

    def round(self) -> None:
        """Measure each once more."""
        self._rows()
        self._messages.round()

    def profile(self) -> Profile:
        """Put the rounds together."""
        kernels = {}
        for kind, rounds in self._kernels.items():
            dense = [
                (sizes[0][0], median(secs for _, secs in sizes))
                for sizes in zip(*(costs.dense for costs in rounds), strict=True)
            ]
            kernels[kind] = KernelCosts(
                rounds[0].slots, tuple(dense), rounds[0].row_element_secs, rounds[0].table_element_secs
            )
        one, every = copy_bytes_sec(1, self._secs), copy_bytes_sec(cores(), self._secs)
        gathered, packed = gather_element_secs(self._secs), pack_element_secs(self._secs)
        return Profile(machine(), cores(), one, every, self._messages.costs(), kernels, gathered, packed)


def _runs(cluster: MeasuredCluster, wanted: Sequence[Case], secs: float) -> Iterator[tuple[Case, MeasuredTurn]]:
    for ps, optimizer in sorted({(case.ps, case.optimizer) for case in wanted}):
        mine = [case for case in wanted if (case.ps, case.optimizer) == (ps, optimizer)]
        cluster.create(ps, sorted({case.size for case in mine}), OPTIMIZERS[optimizer])
        for case in mine:
            yield case, cluster.run(case.workers, ps, case.transport, case.size, secs, step_secs=case.step_secs)


def measure(rounds: int, secs: float, quick: bool, megabits: int) -> tuple[list[dict[str, Any]], Profile]:
    """Run everything; gives a record for each run, and the profile of all rounds."""
    found: list[tuple[int, Case, MeasuredTurn]] = []
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(measured_cluster(_PS, _WORKERS))
        costs = _Costs(cluster, min(0.12, secs))
        away = None
        if megabits:
            hosts = stack.enter_context(throttled_hosts(2 + _WORKERS, megabits))
            away = stack.enter_context(
                measured_cluster(
                    2,
                    _WORKERS,
                    by=lambda job, index: hosts.by(index if job == "ps" else 2 + index),
                    host=hosts.address,
                )
            )
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            costs.round()
            found += [(number, case, turn) for case, turn in _runs(cluster, cases(quick, 0), secs)]
            if away is not None:
                found += [(number, case, turn) for case, turn in _runs(away, cases(quick, megabits), 2 * secs)]
        profile = costs.profile()
    records = []
    for number, case, turn in found:
        predicted, staleness = predict(case, profile, turn.free_cores)
        records.append(
            {
                "round": number,
                "case": asdict(case),
                "free_cores": turn.free_cores,
                "measured": turn.rate,
                "predicted": predicted,
                "measured_staleness": _mean(turn.staleness),
                "predicted_staleness": staleness,
                "cores_used": turn.rate * (turn.worker_cpu_secs + sum(turn.ps_cpu_secs)),
            }
        )
    return records, profile


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, foretell, and write both."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planning", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer runs, one round: a minute")
    parser.add_argument("--rounds", type=int, default=0, help="default 3, with --quick 1")
    parser.add_argument("--megabits", type=int, default=200, help="of each throttled link (default 200); 0: none")
    parser.add_argument("--publish", action="store_true", help="put table and plot into docs/plan.md as well")
    args = parser.parse_args(argv)
    absent = why_not() if args.megabits else "not asked for"
    if absent:
        print(f"no throttled links: {absent}", file=sys.stderr)
    rounds, secs = args.rounds or (1 if args.quick else 3), 0.3 if args.quick else 0.6
    where: dict[str, Any] = machine()
    records, profile = measure(rounds, secs, args.quick, 0 if absent else args.megabits)
    where |= {"rounds": rounds, "secs": secs, "load_after": machine()["load_before"], "absent": absent}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "planning.jsonl").write_text("".join(json.dumps(record) + "\n" for record in [where, *records]))
    profile.save(RESULTS / "planning-profile.json")
    text = table(records, where)
    (RESULTS / "planning.md").write_text(text)
    plot(records, RESULTS / "planning.png")
    print(text)
    show_examples()
    if args.publish:
        for name in ("planning", *EXAMPLES):
            publish(RESULTS, name, ROOT / "docs", "plan.md")
    return 0


def show_examples() -> None:
    """Run the commands that docs/plan.md shows, with the profile of these runs; write what they print and draw."""
    os.environ["COLUMNS"] = "110"
    for name, command in EXAMPLES.items():
        arguments = [*command.split(), "--profile", str(RESULTS / "planning-profile.json")]
        if "--plot" in arguments:
            arguments[arguments.index("--plot") + 1] = str(RESULTS / "plan.png")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = cli.main(arguments)
        if code:
            raise RuntimeError(f"globalstep {command} ended with {code}.")
        page = "\n".join(line.rstrip() for line in printed.getvalue().splitlines())
        (RESULTS / f"{name}.md").write_text(f"```text\n{page}\n```\n")


if __name__ == "__main__":
    sys.exit(main())
