"""`python -m benchmarks.modes.front`: what a step of `gs.Trainer` takes beside one of the bare client.

One worker, and a PS process for each of the two. A step has the values of 10 Variables, calls a loss function in numpy
that fills a gradient of ones for each, and pushes these, by gradient descent. They take turns; ratios are those within
a round. Prints the table of benchmarks/figures.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

import numpy as np

import globalstep as gs
from benchmarks.harness.processes import Child, children
from benchmarks.harness.workload import LEARNING_RATE, STEP, Case, shapes
from benchmarks.peers.globalstep_worker import GlobalstepWorker
from globalstep.cluster.run_policy import RunPolicy
from globalstep.runtime.process_env import tuned
from globalstep.wire.declarations import Increment, Op, OpKind, OptimizerUse, Push, Read
from globalstep.wire.transports import transports_to
from globalstep.worker.client.client import ClusterClient

__all__ = ["main"]

_WARM_UP = 20


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; or be the worker that is measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.modes.front", description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 1_000_000], help="parameters")
    parser.add_argument("--rounds", type=int, default=9, help="how often each has its turn (default 9)")
    parser.add_argument("--secs", type=float, default=0.5, help="length of a turn (default 0.5)")
    parser.add_argument("--addresses", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.addresses:
        with _steps(args.addresses, args.sizes[0]) as steps:
            turns = [[_turn(step, args.secs) for step in steps] for _ in range(args.rounds)]
        print(json.dumps(turns), flush=True)
        return 0
    print("| parameters | client, microseconds a step | Trainer | by the clock | by processor time |")
    print("|---:|---:|---:|---:|---:|")
    for size in args.sizes:
        with children() as started:
            servers = [started.start(["-m", "globalstep.ps", "--port", "0"], tuned(os.environ)) for _ in range(2)]
            addresses = [server.address() for server in servers]
            command = ["-m", "benchmarks.modes.front", "--sizes", size, "--rounds", args.rounds, "--secs", args.secs]
            worker: Child = started.start([*map(str, command), "--addresses", *addresses], tuned(os.environ))
            rounds = worker.answer()
        client, front = (median(turns[at][0] for turns in rounds) for at in (0, 1))
        wall, cpu = (median(b[at] / a[at] for a, b in rounds) for at in (0, 1))
        print(f"| {size:,} | {1e6 * client:.0f} | {1e6 * front:.0f} | {wall:.2f} | {cpu:.2f} |", flush=True)
    return 0


@contextmanager
def _steps(addresses: Sequence[str], size: int) -> Iterator[list[Callable[[], Any]]]:
    """Give what makes a step of the client, and one of the Trainer; both have made some."""
    case = Case("dense", size=size, workers=1)
    GlobalstepWorker([addresses[0]], 0, RunPolicy()).create(case, "auto")
    client = ClusterClient(transports_to("grpc://" + addresses[0]))
    (optimizer,) = {decl.name for status in client.refresh() for decl in status.optimizers}
    cluster = {"ps": [addresses[1]], "worker": ["127.0.0.1:0"]}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
    params = {name: np.zeros(shape, np.float32) for name, shape in shapes(case).items()}
    gradients = {name: np.zeros(shape, np.float32) for name, shape in shapes(case).items()}

    def loss_fn(params: Any) -> tuple[float, Any]:
        for gradient in gradients.values():
            gradient.fill(1.0)
        return 0.0, gradients

    reads = [Read(name) for name in params]
    ops = [Op(OpKind.APPLY, name, optimizer=optimizer) for name in params]
    pushed = Push(ops, [Increment(STEP)], [OptimizerUse(optimizer)], reads, layout="step")
    values = client.pull(reads)

    def client_step() -> None:
        nonlocal values
        loss_fn(values)
        values = client.push(pushed.again(list(gradients.values()))).values

    with gs.Trainer(params, loss_fn, optimizer=gs.optim.SGD(LEARNING_RATE)) as trainer:
        forms: list[Callable[[], Any]] = [client_step, lambda: trainer.step(())]
        for step in forms:
            for _ in range(_WARM_UP):
                step()
        yield forms
    client.close()


def _turn(step: Callable[[], Any], secs: float) -> tuple[float, float]:
    """Give what a step takes: seconds, and processor seconds."""
    steps, cpu, began = 0, time.process_time(), time.perf_counter()
    while time.perf_counter() - began < secs:
        step()
        steps += 1
    return (time.perf_counter() - began) / steps, (time.process_time() - cpu) / steps


if __name__ == "__main__":
    sys.exit(main())
