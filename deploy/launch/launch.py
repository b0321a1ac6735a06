"""`globalstep launch`: a whole cluster of processes on this machine, from one command.

Every task gets a TF_CONFIG; PS tasks run `python -m globalstep.ps`, all others the user's script. The
launcher ends when the job does, and says which task failed if one did.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from globalstep.cluster.run_identity import RUN_VARIABLE, new_run_id
from globalstep.deploy.launch.console import Console
from globalstep.deploy.launch.launcher import Launcher, Task, summary
from globalstep.deploy.launch.live_runs import kept
from globalstep.deploy.launch.options import (
    add_arguments,
    add_evaluator,
    add_restarts,
    add_script,
    add_security,
    add_tasks,
    apply_options,
    environ_for_all,
    environ_of_task,
    too_few,
)
from globalstep.errors import FailedPreconditionError, InvalidArgumentError
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.runtime.process_env import environ_with_alias, tuned


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    add_tasks(parser)
    add_evaluator(parser)
    parser.add_argument(
        "--host-flags",
        action="store_true",
        help="give the script --job_name, --task_index, --ps_hosts and --worker_hosts too (it reads no TF_CONFIG)",
    )
    parser.add_argument(
        "--as-tensorflow",
        action="store_true",
        help="`import tensorflow` means globalstep in the script, so that none of its lines changes",
    )
    add_restarts(parser, restarts=0)
    parser.add_argument(
        "--failover", type=float, default=0.0, metavar="SECS",
        help="a worker acts as chief when the chief has been silent for so long (default 0: never)",
    )  # fmt: skip
    add_security(parser)
    add_arguments(parser)
    parser.add_argument("--log-dir", type=Path, metavar="DIR", help="also write each task's output to a file")
    parser.add_argument(
        "-m", dest="module", action="store_true", help="the script is a module's name, pkg.module, as of python -m"
    )
    add_script(parser)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; gives its exit code."""
    missing = "" if args.module or Path(args.script).is_file() else f"there is no script {args.script}"
    if problem := too_few(args) or missing:
        print(f"globalstep launch: {problem}", file=sys.stderr)
        return 2
    program = [*(["-m"] if args.module else []), args.script, *args.args]
    with reserve_ports(args.ps + args.workers + args.chief + args.evaluator) as ports:
        cluster = cluster_jobs(args.ps, ports[: len(ports) - args.evaluator], chief=args.chief)
        if args.evaluator:
            cluster["evaluator"] = [f"127.0.0.1:{ports[-1]}"]
        failover = {"GLOBALSTEP_FAILOVER_SECS": str(args.failover)} if args.failover else {}
        try:
            stem = args.script.rpartition(".")[2] if args.module else Path(args.script).stem
            name = f"{stem}-{new_run_id()[:6]}"
            environ = environ_for_all(args, {RUN_VARIABLE: name, **os.environ, **failover})
            if args.as_tensorflow:
                environ = environ_with_alias(environ)
            tasks = make_tasks(cluster, program, environ, args.host_flags)
            log_format = apply_options(args, tasks)
        except (FailedPreconditionError, InvalidArgumentError) as error:
            print(f"globalstep launch: {error}", file=sys.stderr)
            return 2
        console = Console(sys.stdout, os.environ, log_format=log_format)
        launcher = Launcher(
            tasks, console, args.max_restarts, args.grace_secs, args.log_dir, failover=bool(args.failover)
        )
        try:
            with kept(cluster["ps"], environ, program):
                began = SYSTEM_CLOCK.monotonic()
                code = asyncio.run(launcher.run())
                secs = SYSTEM_CLOCK.monotonic() - began
                console.say(*summary(tasks, code, secs, launcher.conclusion, args.log_dir, launcher.failed))
                return code
        finally:
            console.finish()


@contextlib.contextmanager
def reserve_ports(count: int) -> Iterator[list[int]]:
    """Hold free loopback ports for the tasks.

    The sockets stay bound, but never listen, within the block: no other program gets these ports, and
    the tasks can bind them all the same because gRPC's servers set SO_REUSEPORT as well.
    """
    with contextlib.ExitStack() as stack:
        ports: list[int] = []
        for _ in range(count):
            held = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind(("127.0.0.1", 0))
            ports.append(held.getsockname()[1])
        yield ports


def cluster_jobs(ps: int, ports: Sequence[int], chief: bool = False) -> dict[str, list[str]]:
    """Lay out the cluster: first the PS, then a chief if there is to be one, then workers.

    Without a job "chief" worker 0 is the chief: most programs for TensorFlow 1.x know ps and worker only.

    Args:
        ps: Number of PS tasks.
        ports: One for each task.
        chief: Whether the first task after the PS is of a job "chief".

    >>> cluster_jobs(1, [1, 2, 3])
    {'ps': ['127.0.0.1:1'], 'worker': ['127.0.0.1:2', '127.0.0.1:3']}
    >>> cluster_jobs(1, [1, 2, 3], chief=True)
    {'ps': ['127.0.0.1:1'], 'chief': ['127.0.0.1:2'], 'worker': ['127.0.0.1:3']}
    """
    addresses = [f"127.0.0.1:{port}" for port in ports]
    others = ps + chief
    jobs = {"ps": addresses[:ps], "chief": addresses[ps:others], "worker": addresses[others:]}
    return {job: tasks for job, tasks in jobs.items() if tasks}


def make_tasks(
    jobs: Mapping[str, list[str]], script: list[str], environ: Mapping[str, str], host_flags: bool = False
) -> list[Task]:
    """Say what to start for each task of the cluster, and in which environment.

    Raises:
        FailedPreconditionError: If it names a file of tokens that has none for a task.
    """
    # Its parent's death ends a task even when the launcher is killed outright.
    guard = [setpriv, "--pdeathsig", "TERM"] if (setpriv := shutil.which("setpriv")) else []
    threads = max(1, (os.cpu_count() or 1) // sum(map(len, jobs.values())))
    base = tuned(environ, threads) | {"PYTHONUNBUFFERED": "1", "GLOBALSTEP_LAUNCH": "1"}
    # That of the job "chief", else worker 0.
    chief = "chief:0" if "chief" in jobs else "worker:0"
    tasks = []
    for job, addresses in jobs.items():
        for index in range(len(addresses)):
            config = {"cluster": jobs, "task": {"type": job, "index": index}}
            acts_as = "chief" if f"{job}:{index}" == chief else job
            shown = environ_of_task(base, acts_as) | {"TF_CONFIG": json.dumps(config)}
            flags = _host_flags(jobs, job, index) if host_flags else []
            program = ["-m", "globalstep.ps"] if job == "ps" else [*script, *flags]
            tasks.append(Task(f"{job}:{index}", [*guard, sys.executable, *program], shown, is_chief=acts_as == "chief"))
    return tasks


def _host_flags(jobs: Mapping[str, list[str]], job: str, index: int) -> list[str]:
    """The flags of TensorFlow's own distributed trainer; a chief is listed as the first of the workers."""
    chiefs = jobs.get("chief", [])
    number = index if job == "chief" else index + len(chiefs)
    return [
        "--job_name=worker",
        f"--task_index={number}",
        f"--ps_hosts={','.join(jobs['ps'])}",
        f"--worker_hosts={','.join([*chiefs, *jobs.get('worker', [])])}",
    ]
