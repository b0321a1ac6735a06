"""What a worker process of any peer obeys: commands on stdin, one JSON object a line, each answered by one on stdout.

It ends with its stdin, so that it cannot outlive the command that started it. Imports numpy alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from benchmarks.harness.workload import HOT_ID, LEARNING_RATE, Array, Case, check_values
from benchmarks.programs import digits_job

__all__ = ["Worker", "obey", "serve_until_told", "serving"]


class Worker(Protocol):
    """One worker of one peer, which is given case after case."""

    #: Seconds spent so far in each stage of a step, where stages are told apart.
    stages: Mapping[str, float]

    def create(self, case: Case, form: str) -> None:
        """Make the case's Variables, all zero. The first worker alone does that, before any joins."""
        ...

    def join(self, case: Case, form: str, profile: bool) -> None:
        """Be ready to step in one of the peer's forms."""
        ...

    def step(self) -> None:
        """Do one step of the case."""
        ...

    def values(self) -> tuple[dict[str, Array], int]:
        """All Variables (of an embedding case the rows of HOT_ID alone) and the step, as the PS has them now."""
        ...

    def pushed(self, steps: int) -> int:
        """How often the first `steps` steps of this worker have pushed to HOT_ID."""
        ...

    def leave(self) -> None:
        """Give up what `join` made."""
        ...

    def train_on(self, batch: Array) -> None:
        """Train on these of the training images, in the digits case."""
        ...

    def accuracy(self) -> float:
        """Of the test images, with the values that came with the last push or newer ones."""
        ...


def _run(worker: Worker, command: Mapping[str, Any]) -> dict[str, Any]:
    """Step until the time is over, and at least so many times."""
    steps = 0
    cpu = time.process_time()
    begin = now = time.perf_counter()
    while now - begin < command["secs"] or steps < command["least_steps"]:
        worker.step()
        steps += 1
        now = time.perf_counter()
    return {"steps": steps, "secs": now - begin, "cpu_secs": time.process_time() - cpu}


def _check(worker: Worker, case: Case, command: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the Variables with what so many steps must give; says how many steps are missing."""
    values, step = worker.values()
    steps = command["steps"]
    if command["exact"]:
        if step != steps:
            raise RuntimeError(f"The step is {step} after {steps} pushes.")
        if case.kind == "dense":
            check_values(values, step, exact=case.rule == "sgd")
        if case.kind == "embedding" and case.rule == "sgd":
            (row,) = values.values()
            right = -LEARNING_RATE * command["hot"]
            # Exact in float32 as long as LEARNING_RATE is; beyond, each push rounds once.
            slack = steps * np.spacing(np.float32(-right)) if command["hot"] > 1 << 24 else 0.0
            if (abs(row - right) > slack).any():
                raise RuntimeError(f"Row {HOT_ID} holds {row.min()} to {row.max()} after {command['hot']} gradients.")
    return {"lost_steps": steps - step}


def obey(worker: Worker) -> None:
    """Obey until stdin ends."""
    print(json.dumps({"ready": True}), flush=True)
    case = Case("dense")
    for line in sys.stdin:
        command = json.loads(line)
        reply: dict[str, Any] = {}
        match command["do"]:
            case "create":
                worker.create(Case(**command["case"]), command["form"])
            case "join":
                case = Case(**command["case"])
                worker.join(case, command["form"], command["profile"])
            case "run":
                before = dict(worker.stages)
                reply = _run(worker, command)
                reply["stages"] = {stage: secs - before.get(stage, 0.0) for stage, secs in worker.stages.items()}
            case "pushed":
                reply = {"hot": worker.pushed(command["steps"])}
            case "check":
                reply = _check(worker, case, command)
            case "leave":
                worker.leave()
            case "train":
                reply = digits_job.train(worker.train_on, worker.accuracy, case.data, command["worker"])
            case other:
                raise ValueError(f"No such command: {other!r}.")
        print(json.dumps(reply), flush=True)


def serving(address: str) -> None:
    """Say that a PS is up."""
    print(f"serving on {address}", flush=True)


def serve_until_told() -> None:
    """Let a PS's own threads work until stdin ends; then end the process at once."""
    sys.stdin.read()
    os._exit(0)
