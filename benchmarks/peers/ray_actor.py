"""`python -m benchmarks.peers.ray_actor`: a parameter server as a Ray actor, as in Ray's own example.

An actor a PS; one method call a step, in which the gradients go and the fresh values come back, as numpy arrays,
which Ray passes through shared memory without copying them on arrival. torch's optimizers, in their
fastest form for CPUs, work on the arrays in place. A method at a time, which is an actor's default, so no lock.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import numpy as np
import ray

from benchmarks.harness.workload import EMBEDDING_IDS, EMBEDDING_WIDTH, LEARNING_RATE, Array, Case, id_batches, shapes
from benchmarks.programs.obey import obey, serving

_NAMESPACE = "benchmarks"
_STORE_BYTES = 2 << 30


@ray.remote(num_cpus=0)
class ParameterServer:
    """What one PS holds."""

    def make(self, named: list[tuple[int, ...]], rule: str) -> None:
        """Hold Variables, all zero, and an optimizer for them."""
        # Only this actor needs it.
        import torch

        torch.set_num_threads(1)
        self._torch = torch
        self._step = 0
        self._params = [torch.zeros(shape, requires_grad=True) for shape in named]
        kind = torch.optim.Adam if rule == "adam" else torch.optim.SGD
        form = {"fused": True} if rule == "adam" else {"foreach": True}
        self._optimizer = kind(self._params, lr=LEARNING_RATE, **form) if named and rule != "adagrad" else None
        self._accumulator = torch.full(named[0], 0.1) if rule == "adagrad" else None

    def push_pull(self, *gradients: Array) -> list[Array]:
        """Apply gradients, count one, and give the values."""
        for param, gradient in zip(self._params, gradients, strict=True):
            param.grad = self._torch.from_numpy(gradient)
        self._optimizer.step()
        self._step += 1
        return [param.detach().numpy() for param in self._params]

    def pull(self) -> tuple[list[Array], int]:
        """Give values and step."""
        return [param.detach().numpy() for param in self._params], self._step

    def pull_rows(self, ids: Array) -> Array:
        """Give rows."""
        return self._params[0].detach().index_select(0, self._torch.from_numpy(ids)).numpy()

    def push_rows(self, ids: Array, rows: Array) -> None:
        """Apply the gradients of rows, whose ids may repeat, and count one."""
        torch = self._torch
        table, places, gradients = self._params[0].detach(), torch.from_numpy(ids), torch.from_numpy(rows)
        if self._accumulator is None:
            table.index_add_(0, places, gradients, alpha=-LEARNING_RATE)
        else:
            unique, inverse = torch.unique(places, return_inverse=True)
            merged = torch.zeros(len(unique), EMBEDDING_WIDTH).index_add_(0, inverse, gradients)
            state = self._accumulator.index_select(0, unique).addcmul_(merged, merged)
            self._accumulator.index_copy_(0, unique, state)
            table.index_add_(0, unique, merged.div_(state.sqrt_()), alpha=-LEARNING_RATE)
        self._step += 1

    def increment(self) -> int:
        """Count one."""
        self._step += 1
        return self._step


class RayWorker:
    """See obey.Worker. Variables and rows are spread round robin over the PS.

    Args:
        index: Of this worker.
    """

    def __init__(self, index: int) -> None:
        self.stages: dict[str, float] = {}
        self._index = index
        self.train_on: Any = None
        self.accuracy: Any = None
        self.leave()

    def _shapes(self, case: Case) -> list[list[tuple[int, ...]]]:
        if case.kind == "embedding":
            return [[(case.size // case.ps, EMBEDDING_WIDTH)]] * case.ps
        found = list(shapes(case).values()) if case.kind == "dense" else []
        return [found[at :: case.ps] for at in range(case.ps)]

    def _actors(self, case: Case) -> list[Any]:
        return [ray.get_actor(f"ps{at}", _NAMESPACE) for at in range(case.ps)]

    def create(self, case: Case, form: str) -> None:
        """See Worker."""
        ray.get(
            [ps.make.remote(part, case.rule) for ps, part in zip(self._actors(case), self._shapes(case), strict=True)]
        )

    def join(self, case: Case, form: str, profile: bool) -> None:
        """See Worker."""
        self._case = case
        self._ps = self._actors(case)
        if case.kind == "dense":
            self._gradients = [[np.zeros(shape, np.float32) for shape in part] for part in self._shapes(case)]
            self.step = self._dense
        elif case.kind == "embedding":
            self._batches = id_batches(case, self._index)
            self._rows = np.zeros((EMBEDDING_IDS, EMBEDDING_WIDTH), np.float32)
            self._at = 0
            self.step = self._embedding
        else:
            self.step = lambda: ray.get(self._ps[0].increment.remote())

    def _dense(self) -> None:
        for part in self._gradients:
            for gradient in part:
                gradient.fill(1.0)
        ray.get([ps.push_pull.remote(*part) for ps, part in zip(self._ps, self._gradients, strict=True)])

    def _embedding(self) -> None:
        ids = self._batches[self._at % len(self._batches)]
        self._at += 1
        count = len(self._ps)
        mine = [np.flatnonzero(ids % count == at) for at in range(count)]
        local = [ids[places] // count for places in mine]
        values = np.empty_like(self._rows)
        found = ray.get([ps.pull_rows.remote(part) for ps, part in zip(self._ps, local, strict=True)])
        for places, rows in zip(mine, found, strict=True):
            values[places] = rows
        self._rows.fill(1.0)
        ray.get(
            [
                ps.push_rows.remote(part, self._rows[places])
                for ps, part, places in zip(self._ps, local, mine, strict=True)
            ]
        )

    def values(self) -> tuple[dict[str, Array], int]:
        """See Worker."""
        return {}, ray.get(self._ps[0].pull.remote())[1]

    def pushed(self, steps: int) -> int:
        """See Worker."""
        return 0

    def leave(self) -> None:
        """See Worker."""
        self._case = Case("counter")
        self._ps: list[Any] = []
        self._gradients: list[list[Array]] = []
        self.step: Any = None


def main() -> None:
    """Be the process that holds the cluster of Ray, with an actor a PS, or a worker."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.ray_actor", description="Ray actors")
    parser.add_argument("--job", choices=("ps", "worker"), required=True)
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--counts", type=int, nargs=2, required=True, metavar="N", help="PS and workers")
    parser.add_argument("--address", help="as the first PS said; for all but itself")
    args = parser.parse_args()
    if args.job == "worker":
        ray.init(address=args.address, namespace=_NAMESPACE, log_to_driver=False, logging_level="ERROR")
        obey(RayWorker(args.index))
        return
    ray.init(
        num_cpus=args.counts[0] + 1, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
        object_store_memory=_STORE_BYTES, namespace=_NAMESPACE,
        runtime_env={"env_vars": {"PYTHONPATH": os.getcwd()}},
    )  # fmt: skip
    held = [ParameterServer.options(name=f"ps{at}").remote() for at in range(args.counts[0])]
    ray.get([ps.make.remote([], "sgd") for ps in held])
    serving(ray.get_runtime_context().gcs_address)
    sys.stdin.read()
    ray.shutdown()


if __name__ == "__main__":
    main()
