"""PS tasks and workers as processes to be measured: on free ports, spoken to by lines, ended with the block.

Layer: deploy. Linux: processor time is read from /proc.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from globalstep.deploy.bench.line_process import LineProcess
from globalstep.runtime.process_env import tuned

__all__ = ["MeasuredCluster", "MeasuredTurn", "cores", "measured_cluster"]

_GRACE_SECS = 5.0
#: How long workers step before each turn.
_WARM_SECS = 0.04


def cores() -> int:
    """Give the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _busy_secs() -> float:
    """Processor time of all processes of this machine so far."""
    user, nice, system, _, _, irq, soft_irq, steal = map(int, Path("/proc/stat").read_text().split(None, 9)[1:9])
    return (user + nice + system + irq + soft_irq + steal) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class MeasuredTurn:
    """What was measured while some workers stepped at the same time.

    Attributes:
        steps: Of all workers together.
        rate: Steps a second of all workers together.
        step_secs: Of a worker's step, on average, without its computing.
        worker_cpu_secs: Processor time of a step on the worker.
        ps_cpu_secs: Processor time of a step on each PS task.
        apply_secs: Of a step, on each PS task: changing values and taking those that go back.
        staleness: Steps that a push lagged behind -> pushes.
        free_cores: Of this machine, what other processes left on average.
    """

    steps: int
    rate: float
    step_secs: float
    worker_cpu_secs: float
    ps_cpu_secs: tuple[float, ...]
    apply_secs: tuple[float, ...]
    staleness: Mapping[int, int]
    free_cores: float


class MeasuredCluster:
    """PS tasks and workers that stand ready. One thread at a time.

    Attributes:
        addresses: Of the PS tasks.
    """

    def __init__(
        self, servers: Sequence[LineProcess], workers: Sequence[LineProcess], addresses: Sequence[str]
    ) -> None:
        self._servers = servers
        self._workers = workers
        self.addresses = addresses

    def create(self, ps: int, sizes: Sequence[int], rule: str) -> None:
        """Begin a run.

        Args:
            ps: On how many of the PS tasks.
            sizes: For each, a float32 Variable of so many elements, divided evenly among them.
            rule: The update rule's kind, e.g. "gradient_descent".
        """
        for worker in self._workers:
            worker.tell({"do": "leave"})
        for worker in self._workers:
            worker.answer()
        self._ask(self._workers[:1], {"do": "create", "ps": ps, "sizes": list(sizes), "rule": rule})

    def run(
        self, workers: int, ps: int, transport: str, size: int, secs: float, step_secs: float = 0.0,
        spread: float = 0.0, least_steps: int = 3,
    ) -> MeasuredTurn:  # fmt: skip
        """Let workers step at the same time.

        Args:
            workers: How many.
            ps: On how many PS tasks the run was begun.
            transport: As of GLOBALSTEP_TRANSPORT.
            size: Which of the run's Variables is pushed and read; 0: pushes only count.
            secs: How long.
            step_secs: How long a worker computes (it sleeps) before each push.
            spread: Standard deviation of that, as a part of it.
            least_steps: Of each worker.

        Returns:
            What was measured.
        """
        command = {
            "do": "run", "ps": ps, "transport": transport, "size": size, "step_secs": step_secs, "spread": spread,
        }  # fmt: skip
        chosen, servers = self._workers[:workers], self._servers[:ps]
        # Connections, layouts and kernels are made before anything is timed.
        self._ask(chosen, {**command, "secs": _WARM_SECS, "least_steps": 2, "seed": 0})
        applied = self._applied(ps)
        self._ask(chosen, {"do": "prepare", "ps": ps, "transport": transport, "size": size})
        cpu = [server.cpu_secs() for server in servers]
        busy, began = _busy_secs(), time.perf_counter()
        for seed, worker in enumerate(chosen):
            worker.tell({**command, "secs": secs, "least_steps": least_steps, "seed": seed})
        answers = [worker.answer() for worker in chosen]
        busy, took = _busy_secs() - busy, time.perf_counter() - began
        cpu = [server.cpu_secs() - before for server, before in zip(servers, cpu, strict=True)]
        applied = [now - before for now, before in zip(self._applied(ps), applied, strict=True)]
        steps = sum(answer["steps"] for answer in answers)
        ours = sum(cpu) + sum(answer["cpu_secs"] for answer in answers)
        staleness: dict[int, int] = {}
        for answer in answers:
            for lag, pushes in answer["staleness"].items():
                staleness[int(lag)] = staleness.get(int(lag), 0) + pushes
        return MeasuredTurn(
            steps=steps,
            rate=sum(answer["steps"] / answer["secs"] for answer in answers),
            step_secs=sum(answer["secs"] - answer["sleep_secs"] for answer in answers) / steps,
            worker_cpu_secs=sum(answer["cpu_secs"] for answer in answers) / steps,
            ps_cpu_secs=tuple(secs / steps for secs in cpu),
            apply_secs=tuple(secs / steps for secs in applied),
            staleness=staleness,
            free_cores=min(cores(), cores() - (busy - ours) / took),
        )

    def _applied(self, ps: int) -> list[float]:
        (answer,) = self._ask(self._workers[:1], {"do": "applied", "ps": ps})
        return list(answer["apply_secs"])

    def _ask(self, workers: Sequence[LineProcess], command: Mapping[str, Any]) -> list[dict[str, Any]]:
        for worker in workers:
            worker.tell(command)
        return [worker.answer() for worker in workers]


@contextlib.contextmanager
def measured_cluster(
    ps: int,
    workers: int,
    by: Callable[[str, int], Sequence[str]] = lambda job, index: (),
    host: Callable[[int], str] = lambda index: "127.0.0.1",
) -> Iterator[MeasuredCluster]:
    """Start PS tasks and workers, and end them with the block.

    Args:
        ps: How many PS tasks.
        workers: How many workers.
        by: Gives what to put before the command of a process: of a job ("ps", "worker") and its index.
        host: Gives the address that a PS task serves on.

    Yields:
        The cluster.

    Raises:
        RuntimeError: If a process ends or hangs.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GLOBALSTEP_")}
    # All on machines of the caller's choice, for some seconds, with made-up numbers.
    environ = tuned({**environ, "GLOBALSTEP_INSECURE": "1"})
    with contextlib.ExitStack() as stack:

        def start(job: str, index: int, *arguments: str) -> LineProcess:
            child = LineProcess(["-m", *arguments], environ, by=by(job, index))
            # A PS task would go on serving; what it holds is not needed.
            stack.callback(child.end, _GRACE_SECS if job == "worker" else 0.0)
            return child

        servers = [
            start("ps", at, "globalstep.ps", "--bind", f"{host(at)}:0", "--log-level", "ERROR") for at in range(ps)
        ]
        addresses = [server.address() for server in servers]
        module = "globalstep.deploy.bench.measured_worker"
        made = [start("worker", at, module, "--addresses", ",".join(addresses)) for at in range(workers)]
        for worker in made:
            worker.answer()
        yield MeasuredCluster(servers, made, addresses)
