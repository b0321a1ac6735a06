"""`python -m benchmarks.peers.grpcio_baseline`: a worker of the plain grpcio parameter server of benchmarks/baseline/.

A Pull and a Push a step. Gradient descent on dense Variables and counting are all that it can do.
"""

from __future__ import annotations

import argparse
import time

import grpc
import numpy as np

from benchmarks.baseline import plain_ps_pb2 as pb
from benchmarks.baseline import plain_ps_pb2_grpc as pb_grpc
from benchmarks.baseline import tensors
from benchmarks.harness.workload import Array, Case, shapes
from benchmarks.programs.obey import obey

__all__ = ["BaselineWorker"]


class BaselineWorker:
    """See obey.Worker.

    Args:
        address: "host:port" of its PS.
    """

    def __init__(self, address: str) -> None:
        self.stages: dict[str, float] = dict.fromkeys(("gradient", "encode", "wait", "decode"), 0.0)
        self._channel = grpc.insecure_channel(address, options=tensors.CHANNEL_OPTIONS)
        self._stub = pb_grpc.PlainPSStub(self._channel)
        self._gradients: dict[str, Array] = {}

    def create(self, case: Case, form: str) -> None:
        """See Worker."""
        self._stub.Initialize(pb.Tensors(tensors=tensors.encode(self._zeros(case))))

    def _zeros(self, case: Case) -> dict[str, Array]:
        named = shapes(case) if case.kind == "dense" else {}
        return {name: np.zeros(shape, np.float32) for name, shape in named.items()}

    def join(self, case: Case, form: str, profile: bool) -> None:
        """See Worker."""
        self._gradients = self._zeros(case)
        self.step = self._dense if self._gradients else self._count

    def _count(self) -> None:
        self._stub.Push(pb.Tensors())

    def _dense(self) -> None:
        marks = [time.perf_counter()]
        pulled = self._stub.Pull(pb.PullRequest())
        marks.append(time.perf_counter())
        tensors.decode(pulled.tensors)
        marks.append(time.perf_counter())
        for gradient in self._gradients.values():
            gradient.fill(1.0)
        marks.append(time.perf_counter())
        message = pb.Tensors(tensors=tensors.encode(self._gradients))
        marks.append(time.perf_counter())
        self._stub.Push(message)
        marks.append(time.perf_counter())
        for at, stage in enumerate(("wait", "decode", "gradient", "encode", "wait")):
            self.stages[stage] += marks[at + 1] - marks[at]

    def values(self) -> tuple[dict[str, Array], int]:
        """See Worker."""
        pulled = self._stub.Pull(pb.PullRequest())
        return tensors.decode(pulled.tensors), pulled.global_step

    def pushed(self, steps: int) -> int:
        """See Worker."""
        return 0

    def leave(self) -> None:
        """See Worker."""
        self._gradients = {}

    def train_on(self, batch: Array) -> None:
        """See Worker; the baseline is not in this case."""
        raise RuntimeError("The baseline has no network.")

    def accuracy(self) -> float:
        """See Worker; the baseline is not in this case."""
        raise RuntimeError("The baseline has no network.")


def main() -> None:
    """Be a worker."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.grpcio_baseline", description="grpcio baseline")
    parser.add_argument("--address", required=True, metavar="HOST:PORT")
    obey(BaselineWorker(parser.parse_args().address))


if __name__ == "__main__":
    main()
