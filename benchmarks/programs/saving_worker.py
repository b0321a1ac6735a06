"""`python -m benchmarks.programs.saving_worker`: pushes small gradients without a pause and notes how long each took.

`benchmarks.saving` starts it and tells it by lines on stdin when to begin and when to stop. It ends with its
stdin, so that it cannot outlive the command that started it.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Sequence

import numpy as np

from benchmarks.harness.workload import STEP
from globalstep.wire.declarations import Increment, Op, OpKind, OptimizerUse, OutcomeKind, Push, Read
from globalstep.worker.client.client import ClusterClient, connect

__all__ = ["Pusher"]


class Pusher:
    """Pushes on a thread named "pusher" between `start` and `stop`.

    Args:
        client: A member of the run.
        names: Variables to push to, each [n] and trained by the run's only optimizer.
    """

    def __init__(self, client: ClusterClient, names: Sequence[str]) -> None:
        (optimizer,) = {decl.name for status in client.refresh() for decl in status.optimizers}
        self._client = client
        ops = [
            Op(OpKind.APPLY, name, np.ones(client.variables[name].shape, np.float32), optimizer=optimizer)
            for name in names
        ]
        reads = [Read(name) for name in names]
        self._push = Push(ops, [Increment(STEP)], [OptimizerUse(optimizer)], reads, layout="small")
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._taken: list[tuple[float, float]] = []

    def start(self) -> None:
        """Begin to push."""
        self._stop.clear()
        self._taken = []
        self._thread = threading.Thread(target=self._run, name="pusher")
        self._thread.start()

    def stop(self) -> list[tuple[float, float]]:
        """Stop; gives (when it began by the machine's monotonic clock, seconds that it took) for every push."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        return self._taken

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            result = self._client.push(self._push)
            self._taken.append((began, time.monotonic() - began))
            if result.outcome.kind is not OutcomeKind.ACCEPTED:
                raise RuntimeError(f"A push was {result.outcome.kind.name}.")


def main() -> None:
    """Obey until stdin ends."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs.saving_worker", description=__doc__)
    parser.add_argument("--target", required=True, help="every PS")
    parser.add_argument("--names", required=True, metavar="NAME,...", help="Variables to push to")
    args = parser.parse_args()
    pusher: Pusher | None = None
    client = connect(args.target)
    for line in sys.stdin:
        reply: dict[str, list[tuple[float, float]]] = {}
        match json.loads(line)["do"]:
            case "start":
                pusher = pusher or Pusher(client, args.names.split(","))
                pusher.start()
            case "stop" if pusher is not None:
                reply = {"pushes": pusher.stop()}
        print(json.dumps(reply), flush=True)
    client.close()


if __name__ == "__main__":
    main()
