"""A small run to test with: a step, three Variables over the shards, gradient descent."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np

from globalstep.errors import UnavailableError
from globalstep.wire.declarations import Increment, Op, OpKind, OptimizerDecl, OptimizerUse, Push, Read, VariableDecl
from globalstep.wire.expressions import constant
from globalstep.worker.client.client import ClusterClient

RATE = 0.5
SHAPES = {"w": (3,), "b": (), "e": (5, 2)}
USES = [OptimizerUse("sgd")]
STEP = [Increment("global_step")]


def declarations(shards: int) -> tuple[list[VariableDecl], list[OptimizerDecl]]:
    """The run's Variables, spread over the shards (the step on the last), and its optimizer."""
    names = list(SHAPES)
    variables = [VariableDecl("global_step", "int64", (), shards - 1, is_step=True)]
    variables += [VariableDecl(name, "float32", SHAPES[name], at % shards) for at, name in enumerate(names)]
    sgd = OptimizerDecl("sgd", "gradient_descent", {"learning_rate": constant(RATE)}, dict.fromkeys(names, ()))
    return variables, [sgd]


def initialize(client: ClusterClient) -> None:
    """Declare the run and set everything to zero."""
    client.declare(*declarations(client.shards))
    client.push(Push(ops=[Op(OpKind.ASSIGN, name, fill=0.0) for name in ("global_step", *SHAPES)]))


def step_push(scale: float = -1.0, reads: tuple[str, ...] = ()) -> Push:
    """A push of the gradient `scale` everywhere: with -1 every element goes up by RATE."""
    return Push(
        ops=[
            Op(OpKind.APPLY, name, np.full(shape, scale, np.float32), optimizer="sgd") for name, shape in SHAPES.items()
        ],
        increments=list(STEP),
        uses=list(USES),
        reads=[Read(name) for name in reads],
        layout=("step", reads),
    )


def state(client: ClusterClient) -> dict[str, list]:
    """All values of the run."""
    names = ["global_step", *SHAPES]
    return {name: value.tolist() for name, value in zip(names, client.pull([Read(n) for n in names]), strict=True)}


def expected(pushes: int) -> dict[str, list]:
    """What `state` is after that many pushes of `step_push()`."""
    values: dict[str, list] = {"global_step": pushes}
    values.update({name: np.full(shape, RATE * pushes).tolist() for name, shape in SHAPES.items()})
    return values


@dataclass
class FaultPlan:
    """Makes every n-th call of some methods fail at a point, and counts how often it did."""

    point: str
    methods: frozenset[str]
    every: int = 2
    fired: int = 0
    calls: int = 0
    # Guards the counts; a leaf.
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def at(self, point: str, method: str) -> None:
        if point != self.point or method not in self.methods:
            return
        with self._lock:
            self.calls += 1
            if self.calls % self.every:
                return
            self.fired += 1
        raise UnavailableError(f"injected {point} {method}")


def sent_by(client):
    """Take note of the kinds of requests that a client sends."""
    kinds = []
    for transport in client.run.transports:
        send = transport.send

        def watched(request, pieces, send=send):
            kinds.append(request.WhichOneof("kind"))
            return send(request, pieces)

        transport.send = watched
    return kinds
