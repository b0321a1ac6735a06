"""PS tasks that hold dense Variables, and workers that push gradients of all of them, for a while at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.harness.processes import Child, Children
from benchmarks.harness.workload import STEP
from globalstep.cluster.run_identity import NO_RUN, RunIdentity
from globalstep.cluster.run_policy import RunPolicy
from globalstep.runtime.process_env import tuned
from globalstep.wire.declarations import Op, OpKind, OptimizerDecl, Push, VariableDecl
from globalstep.wire.expressions import Expr
from globalstep.wire.transports import transports_to
from globalstep.worker.client.client import ClusterClient

__all__ = ["PushingCluster", "start_servers"]


#: The sequencer hears within milliseconds what is applied; nobody waits for longer.
_HEARD_SECS = 10.0


def start_servers(started: Children, count: int) -> list[Child]:
    """Start PS tasks."""
    command = ["-m", "globalstep.ps", "--port", "0", "--log-level", "ERROR"]
    return [started.start(command, tuned(os.environ)) for _ in range(count)]


class PushingCluster:
    """A run on PS tasks that have started, and its workers; the first task is the sequencer.

    Args:
        started: Starts the workers.
        addresses: Where the PS tasks are reached, by workers and by each other.
        sizes: Elements of each Variable; they are spread over the tasks, one after the other.
        workers: How many.
        policy: The run's.
        run: Where it is, for logs.
    """

    def __init__(
        self,
        started: Children,
        addresses: Sequence[str],
        sizes: Sequence[int],
        workers: int,
        policy: RunPolicy | None = None,
        run: RunIdentity = NO_RUN,
    ) -> None:
        target = "grpc://" + ",".join(addresses)
        self._chief = ClusterClient(transports_to(target), policy=policy)
        names = [f"w{at}" for at in range(len(sizes))]
        self._chief.begin(open=False, run=run)
        rate = {"learning_rate": Expr("const", value=2.0**-20)}
        variables = [
            VariableDecl(name, "float32", (size,), at % len(addresses))
            for at, (name, size) in enumerate(zip(names, sizes, strict=True))
        ]
        self._chief.declare(
            [*variables, VariableDecl(STEP, "int64", (), is_step=True)],
            [OptimizerDecl("sgd", "gradient_descent", rate, dict.fromkeys(names, ()))],
        )
        step = Op(OpKind.ASSIGN, STEP, value=np.array(0))
        self._chief.push(Push([*(Op(OpKind.ASSIGN, name, fill=0.0) for name in names), step]))
        self._chief.open()
        args = ["-m", "benchmarks.programs.saving_worker", "--target", target, "--names", ",".join(names)]
        self._workers = [started.start(args, tuned(os.environ)) for _ in range(workers)]
        self._pushes = 0
        self.turn(0.2)

    def turn(self, secs: float, workers: int | None = None) -> tuple[float, list[float]]:
        """Have the first of the workers push for some time, all by default; again, where nothing came through.

        Returns:
            Pushes a second, and how long each took, in seconds; of two at least.
        """
        pushing, taken = self._workers[:workers], list[float]()
        while len(taken) < 2:
            began = time.monotonic()
            _all(pushing, "start")
            time.sleep(secs)
            taken = [took for reply in _all(pushing, "stop") for _, took in reply["pushes"]]
            rate = len(taken) / (time.monotonic() - began)
            self._pushes += len(taken)
        return rate, taken

    def check(self) -> None:
        """Make sure that every push has counted once; raises RuntimeError where one has not.

        Another client sees a push once the sequencer has heard that all tasks have applied it.
        """
        until = time.monotonic() + _HEARD_SECS
        while (found := self._chief.global_steps()[STEP]) < self._pushes and time.monotonic() < until:
            time.sleep(0.01)
        if found != self._pushes:
            raise RuntimeError(f"{self._pushes} pushes were answered, and {STEP} is {found}.")

    def end(self) -> None:
        """Let the workers go, and end the run, and with it the PS tasks' part in it."""
        self.check()
        for worker in self._workers:
            worker.end()
        self._chief.finish()
        self._chief.close()


def _all(workers: Sequence[Child], what: str) -> list[dict[str, Any]]:
    for worker in workers:
        worker.tell({"do": what})
    return [worker.answer() for worker in workers]
