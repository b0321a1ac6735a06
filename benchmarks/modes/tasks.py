"""A job of one PS task and some workers of this machine, whose output is shown where one of them fails."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.harness.processes import ROOT

__all__ = ["run_tasks"]


def run_tasks(
    workers: int,
    command: Callable[[str, int], Sequence[object]],
    folder: Path,
    most_secs: float,
    environ: Mapping[str, str] | None = None,
) -> None:
    """Run a job to its end, each task with its TF_CONFIG.

    Args:
        workers: How many.
        command: Gives what Python runs as a task, of its job and index: "ps" and "worker".
        folder: For the output.
        most_secs: How long a worker may take.
        environ: More for the environment of all.

    Raises:
        RuntimeError: If a worker failed; has what all have printed.
    """
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(1 + workers)]
        addresses = [f"127.0.0.1:{item.getsockname()[1]}" for item in sockets]
    cluster = {"ps": addresses[:1], "worker": addresses[1:]}
    with contextlib.ExitStack() as stack:
        children = []
        for job, index in [("ps", 0), *(("worker", at) for at in range(workers))]:
            task = {"cluster": cluster, "task": {"type": job, "index": index}}
            output = stack.enter_context(open(folder / f"{job}-{index}.log", "wb"))
            child = subprocess.Popen(
                [sys.executable, *map(str, command(job, index))],
                stdout=output, stderr=subprocess.STDOUT, cwd=ROOT,
                env=os.environ | {"TF_CONFIG": json.dumps(task)} | dict(environ or {}),
            )  # fmt: skip
            stack.callback(child.wait)
            stack.callback(child.kill)
            children.append(child)
        for child in children[1:]:
            if child.wait(timeout=most_secs):
                raise RuntimeError("\n".join(path.read_text() for path in folder.glob("*.log")))
