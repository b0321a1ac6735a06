"""Options of `globalstep launch` for its tasks: a core of their own, a port for metrics, JSON lines.

Layer: deploy.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Sequence

from globalstep.cluster.run_identity import TAKE_OVER_VARIABLE
from globalstep.deploy.launch.launcher import Task
from globalstep.errors import FailedPreconditionError, InvalidArgumentError
from globalstep.ps.members.ending import ABANDON_VARIABLE, START_VARIABLE, Patience
from globalstep.runtime.log_format import FORMATS, VARIABLE, chosen_format
from globalstep.runtime.metrics_port import metrics_address, require_prometheus

__all__ = ["add_arguments", "apply_options", "shares_of_cpus"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the command."""
    parser.add_argument("--pin-cpus", action="store_true", help="give each process CPUs of its own, as far as they go")
    parser.add_argument(
        "--metrics-port", default="", metavar="[HOST:]PORT",
        help="Prometheus reads the first task's numbers there, those of the next at PORT + 1, and so on",
    )  # fmt: skip
    parser.add_argument(
        "--start-secs", type=float, metavar="S",
        help="how long a PS waits for the first client; then it ends with code 3 (default 7200; 0: for ever)",
    )  # fmt: skip
    parser.add_argument(
        "--abandon-secs", type=float, metavar="S",
        help="how long a PS waits when all clients are gone and the job was not declared done "
        "(default 600; 0: for ever)",
    )  # fmt: skip
    parser.add_argument(
        "--take-over", action="store_true",
        help="the chief begins its run, at its first start, even on PS tasks that serve another one, which is dropped "
        f"with what it has not saved (sets {TAKE_OVER_VARIABLE}; PS tasks that the script names itself)",
    )  # fmt: skip
    parser.add_argument(
        "--log-format", choices=FORMATS, default="",
        help=f"how log lines look; timed: each line begins with the time (default: {VARIABLE}, or text)",
    )  # fmt: skip


def shares_of_cpus(cpus: Sequence[int], tasks: int) -> list[list[int]]:
    """Divide CPUs among tasks: neighbours stay together; where they are too few, several tasks share one.

    >>> shares_of_cpus([0, 1, 2, 3, 4], 2), shares_of_cpus([0, 1], 3)
    ([[0, 1], [2, 3, 4]], [[0], [1], [0]])
    """
    if len(cpus) < tasks:
        return [[cpus[task % len(cpus)]] for task in range(tasks)]
    return [list(cpus[task * len(cpus) // tasks : (task + 1) * len(cpus) // tasks]) for task in range(tasks)]


def apply_options(args: argparse.Namespace, tasks: Sequence[Task]) -> str:
    """Change tasks, before they are started, as the options say; gives the log format.

    Raises:
        FailedPreconditionError: If there is no `taskset` to pin them with, or no prometheus-client for the ports.
        InvalidArgumentError: If the port, the format or a number of seconds is none.
    """
    chosen = chosen_format(args.log_format)
    if args.pin_cpus:
        taskset = shutil.which("taskset")
        if taskset is None:
            raise FailedPreconditionError("--pin-cpus needs the command taskset, of the package util-linux.")
        shares = shares_of_cpus(sorted(os.sched_getaffinity(0)), len(tasks))
        for task, cpus in zip(tasks, shares, strict=True):
            task.command[:0] = [taskset, "--cpu-list", ",".join(map(str, cpus))]
    if args.metrics_port:
        host, port = metrics_address(args.metrics_port)
        require_prometheus()
        if not 0 < port <= 65535 - len(tasks):
            raise InvalidArgumentError(f"--metrics-port {args.metrics_port} leaves no room for {len(tasks)} ports.")
        for number, task in enumerate(tasks):
            shown = f"[{host}]" if ":" in host else host
            task.environ["GLOBALSTEP_METRICS_PORT"] = f"{shown}:{port + number}"
    patience = {START_VARIABLE: args.start_secs, ABANDON_VARIABLE: args.abandon_secs}
    given = {name: str(secs) for name, secs in patience.items() if secs is not None}
    Patience.from_environ(given)
    for task in tasks:
        if args.take_over and task.is_chief:
            task.environ[TAKE_OVER_VARIABLE] = "1"
        task.environ.update(given)
        # The launcher puts the time before every line, and so before those that a program prints.
        task.environ[VARIABLE] = "text" if chosen == "timed" else chosen
    return chosen
