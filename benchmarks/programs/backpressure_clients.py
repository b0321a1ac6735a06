"""`python -m benchmarks.programs.backpressure_clients`: clients of one PS task, each a thread that pushes and reads.

`benchmarks.backpressure` starts it and tells it by lines on stdin when to begin and when to stop. It ends with its
stdin, so that it cannot outlive the command that started it.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.harness.workload import STEP, Array
from globalstep.wire.declarations import Increment, Op, OpKind, OptimizerUse, OutcomeKind, Push, Read
from globalstep.worker.client.client import ClusterClient, connect

__all__ = ["Flood"]


class Flood:
    """Clients that push without a pause between `start` and `stop`, each on a thread of its own and at least once.

    Args:
        clients: Members of the run.
        name: The Variable that they train, by the run's only optimizer.
    """

    def __init__(self, clients: Sequence[ClusterClient], name: str) -> None:
        self._clients = clients
        (optimizer,) = {decl.name for client in clients for status in client.refresh() for decl in status.optimizers}
        # All push the same array: their own memory is not what is measured.
        gradient: Array = np.full(clients[0].variables[name].shape, -1.0, np.float32)
        apply = Op(OpKind.APPLY, name, gradient, optimizer=optimizer)
        self._push = Push([apply], [Increment(STEP)], [OptimizerUse(optimizer)], [Read(name)], layout="all")
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._pushes = [0] * len(clients)
        self._failed: list[str] = []

    def start(self) -> None:
        """Begin to push."""
        self._threads = [
            threading.Thread(target=self._run, args=(at,), name=f"pusher-{at}") for at in range(len(self._clients))
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> dict[str, Any]:
        """Let each end the push that it is at; gives what came of it.

        Returns:
            `pushes`, accepted ones of each client; `again`, how often calls were tried again; `failed`, errors.
        """
        self._stop.set()
        for thread in self._threads:
            thread.join()
        again = sum(sum(client.retries.view().values()) for client in self._clients)
        return {"pushes": self._pushes, "again": again, "failed": self._failed}

    def _run(self, at: int) -> None:
        while not (self._stop.is_set() and self._pushes[at]):
            try:
                result = self._clients[at].push(self._push)
            except Exception as error:
                self._failed.append(f"{type(error).__name__}: {error}")
                return
            if result.outcome.kind is not OutcomeKind.ACCEPTED:
                self._failed.append(f"A push was {result.outcome.kind.name}.")
                return
            self._pushes[at] += 1
            first, last = result.values[0].flat[0], result.values[0].flat[-1]
            # What was read is one whole state: so many pushes, all of each.
            if first != last or first != round(float(first)) or first < self._pushes[at]:
                self._failed.append(f"After {self._pushes[at]} pushes of its own a client read {first} and {last}.")


def main() -> None:
    """Obey until stdin ends."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs.backpressure_clients", description=__doc__)
    parser.add_argument("--target", required=True, help="the PS")
    parser.add_argument("--clients", type=int, required=True, metavar="N")
    parser.add_argument("--name", required=True, help="Variable to push to")
    args = parser.parse_args()
    clients = [connect(args.target) for _ in range(args.clients)]
    flood = Flood(clients, args.name)
    for line in sys.stdin:
        reply: dict[str, Any] = {}
        match json.loads(line)["do"]:
            case "start":
                flood.start()
            case "stop":
                reply = flood.stop()
        print(json.dumps(reply), flush=True)
    for client in clients:
        client.close()


if __name__ == "__main__":
    main()
