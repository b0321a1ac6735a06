"""`python -m globalstep.deploy.bench.measured_worker`: a worker whose steps are measured, and nothing else.

It obeys commands on stdin, one JSON object a line, and answers each by one on stdout; it ends with its stdin. Its
gradients are the same arrays each time and its computing is a sleep, so that what is measured is what pushing costs.

Layer: deploy. One thread besides the client's own.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from globalstep.ps.rules import get_rule
from globalstep.wire.declarations import (
    Increment,
    Op,
    OpKind,
    OptimizerDecl,
    OptimizerUse,
    OutcomeKind,
    Push,
    Read,
    VariableDecl,
)
from globalstep.wire.expressions import constant
from globalstep.wire.transports import transports_to
from globalstep.worker.client.client import ClusterClient

__all__ = ["main"]

_STEP, _OPTIMIZER = "global_step", "optimizer"
#: Small enough that no number of steps makes a value that is not finite.
_HYPERS = {"learning_rate": 1e-6, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "momentum": 0.9}


class _MeasuredWorker:
    """One worker, and what it has joined."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = list(addresses)
        self._clients: dict[tuple[int, str], ClusterClient] = {}
        #: What `prepare` made, until it is run.
        self._prepared: Callable[[], int] | None = None

    def create(self, ps: int, sizes: Sequence[int], rule: str) -> dict[str, Any]:
        """Begin a run on the first `ps` PS tasks, with a Variable of each size, divided evenly among them."""
        self.leave()
        client = ClusterClient(transports_to(self._target(ps), "grpc"))
        client.begin(sequencer=0, open=True)
        kind = get_rule(rule)
        values = [
            VariableDecl(_name(size, shard), "float32", (size // ps,), shard=shard, trainable=True)
            for size in sizes
            for shard in range(ps)
        ]
        slots = {value.name: tuple(f"{value.name}/{slot}" for slot in kind.slots) for value in values}
        slot_variables = [
            VariableDecl(name, "float32", value.shape, value.shard, primary=value.name, optimizer=_OPTIMIZER, slot=slot)
            for value in values
            for name, slot in zip(slots[value.name], kind.slots, strict=True)
        ]
        scalars = [VariableDecl(f"scalar/{name}", "float32", ()) for name in kind.scalars]
        optimizer = OptimizerDecl(
            _OPTIMIZER, rule, {name: constant(_HYPERS.get(name, 0.0)) for name in kind.hypers}, slots,
            tuple(scalar.name for scalar in scalars),
        )  # fmt: skip
        step = VariableDecl(_STEP, "int64", (), is_step=True)
        client.declare([step, *values, *slot_variables, *scalars], [optimizer])
        initial = [(step, 0.0), *((value, 0.0) for value in values), *((slot, 0.1) for slot in slot_variables)]
        initial += [(scalar, 0.9) for scalar in scalars]
        client.push(Push([Op(OpKind.ASSIGN, decl.name, fill=fill) for decl, fill in initial]))
        client.close()
        return {}

    def prepare(self, ps: int, transport: str, size: int) -> dict[str, Any]:
        """Read the values that the next `run` starts from: that is no part of its steps, on the PS tasks either."""
        self._prepared = self._step(self._client(ps, transport), ps, size)
        return {}

    def run(
        self, ps: int, transport: str, size: int, secs: float, least_steps: int, step_secs: float, spread: float,
        seed: int,
    ) -> dict[str, Any]:  # fmt: skip
        """Step until the time is over, and at least so many times; `size` 0 only counts. As it was prepared, if so."""
        step, self._prepared = self._prepared or self._step(self._client(ps, transport), ps, size), None
        rng = random.Random(seed)
        staleness: dict[int, int] = {}
        steps, sleep_secs = 0, 0.0
        cpu, began = time.process_time(), time.perf_counter()
        now = began
        while now - began < secs or steps < least_steps:
            if step_secs:
                time.sleep(step_secs * max(0.0, rng.gauss(1.0, spread)))
                sleep_secs += time.perf_counter() - now
            lag = step()
            staleness[lag] = staleness.get(lag, 0) + 1
            steps += 1
            now = time.perf_counter()
        return {
            "steps": steps,
            "secs": now - began,
            "cpu_secs": time.process_time() - cpu,
            "sleep_secs": sleep_secs,
            "staleness": staleness,
        }

    def _step(self, client: ClusterClient, ps: int, size: int) -> Callable[[], int]:
        names = [_name(size, shard) for shard in range(ps)] if size else []
        gradients = [np.full(size // ps, 1e-3, np.float32) for _ in names]
        reads = [Read(name) for name in names]
        seen = client.global_steps()[_STEP]
        if reads:
            client.pull(reads)
        ops = [
            Op(OpKind.APPLY, name, gradient, optimizer=_OPTIMIZER)
            for name, gradient in zip(names, gradients, strict=True)
        ]
        uses = [OptimizerUse(_OPTIMIZER)] if ops else []

        def step() -> int:
            nonlocal seen
            push = Push(ops, [Increment(_STEP)], uses, reads, {_STEP: seen}, layout=("step", size))
            outcome = client.push(push).outcome
            if outcome.kind is not OutcomeKind.ACCEPTED:
                raise RuntimeError(f"A push was {outcome.kind.name}.")
            seen = outcome.steps[_STEP]
            return outcome.staleness

        return step

    def applied(self, ps: int) -> dict[str, Any]:
        """Give the seconds that each PS task has spent on changing values, by its own clock."""
        statuses = self._client(ps, "grpc").refresh()
        return {"apply_secs": [status.statistics.apply_secs for status in statuses]}

    def leave(self) -> dict[str, Any]:
        """Give up all that was joined."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        self._prepared = None
        return {}

    def _client(self, ps: int, transport: str) -> ClusterClient:
        if (ps, transport) not in self._clients:
            self._clients[ps, transport] = ClusterClient(transports_to(self._target(ps), transport))
            self._clients[ps, transport].refresh()
        return self._clients[ps, transport]

    def _target(self, ps: int) -> str:
        return "grpc://" + ",".join(self._addresses[:ps])


def _name(size: int, shard: int) -> str:
    return f"values_{size}_{shard}"


def main(argv: Sequence[str] | None = None) -> None:
    """Obey until stdin ends."""
    parser = argparse.ArgumentParser(prog="python -m globalstep.deploy.bench.measured_worker", description=__doc__)
    parser.add_argument("--addresses", required=True, metavar="HOST:PORT,...", help="every PS task, in order")
    worker = _MeasuredWorker(parser.parse_args(argv).addresses.split(","))
    print(json.dumps({"ready": True}), flush=True)
    commands: Mapping[str, Callable[..., dict[str, Any]]] = {
        "create": worker.create,
        "prepare": worker.prepare,
        "run": worker.run,
        "applied": worker.applied,
        "leave": worker.leave,
    }
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(commands[command.pop("do")](**command)), flush=True)
    worker.leave()


if __name__ == "__main__":
    main()
