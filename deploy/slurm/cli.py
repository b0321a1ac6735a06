"""`globalstep slurm`: writes an sbatch script for a training job, and submits it.

Layer: deploy.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from globalstep.deploy.job_options import add_restarts, add_script, add_tasks, too_few


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say what the cluster is; the batch script's own program has them too."""
    add_tasks(parser)
    parser.add_argument("--cpus", type=int, default=1, metavar="C", help="CPUs of each task (default 1)")
    add_restarts(parser)
    parser.add_argument(
        "--port", type=int, metavar="P",
        help="port of the first task; the others have the next ones, and each PS task one more behind them "
        "(default: from the job's id)",
    )  # fmt: skip
    parser.add_argument("--log-dir", default="", metavar="DIR", help="also write each task's output to a file")
    add_script(parser)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    parser.add_argument("--nodes", type=int, metavar="K", help="how many nodes to spread the tasks over")
    parser.add_argument("--insecure", action="store_true", help="no TLS between nodes, in a network that is trusted")
    parser.add_argument(
        "--sbatch", action="append", default=[], metavar="OPTION", dest="options",
        help="a further option of sbatch, such as --sbatch=--partition=gpu; may be repeated",
    )  # fmt: skip
    parser.add_argument("--file", type=Path, metavar="FILE", help="where to write it (default: NAME.sbatch, here)")
    parser.add_argument("--no-submit", action="store_true", help="only write the file")
    parser.add_argument("--wait", action="store_true", help="wait for the job's end, and end with its exit code")
    add_cluster(parser)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; gives its exit code."""
    if few := too_few(args):
        return _say(few)
    if not Path(args.script).is_file():
        return _say(f"there is no script {args.script}")
    names = ("ps", "workers", "chief", "nodes", "cpus", "max_restarts", "grace_secs", "port", "insecure", "log_dir")
    job = SlurmJob(
        args.script,
        args.args,
        python=sys.executable,
        options=args.options,
        **{name: getattr(args, name) for name in names},
    )
    try:
        text = batch_script(job)
    except ValueError as error:
        return _say(str(error))
    file = args.file or Path(f"{job.name}.sbatch")
    file.write_text(text)
    if args.no_submit:
        print(f"written: {file}")
        return 0
    try:
        return subprocess.run(["sbatch", *(["--wait"] if args.wait else []), str(file)], check=False).returncode
    except FileNotFoundError:
        return _say(f"there is no sbatch on this machine; {file} is written, submit it where Slurm is")


def _say(text: str) -> int:
    print(f"globalstep slurm: {text}", file=sys.stderr)
    return 2


@dataclass(frozen=True)
class SlurmJob:
    """A job for Slurm.

    Attributes:
        script: The training script.
        args: Its arguments.
        ps: Number of PS tasks.
        workers: Number of workers; without `chief` the first of them is the chief.
        chief: Whether there is a chief besides the workers.
        nodes: How many nodes to spread the tasks over; None leaves it to Slurm.
        cpus: CPUs of each task.
        max_restarts: How often each failed task is started again.
        grace_secs: How long tasks may take to end when asked.
        port: Of the first task; None takes it from the job's id.
        insecure: Whether nodes may talk to each other without TLS.
        log_dir: Folder for a file with each task's output; "" for none.
        python: The interpreter, as it is called on the nodes.
        options: More options of sbatch, as on its command line.
    """

    script: str
    args: Sequence[str] = ()
    ps: int = 1
    workers: int = 1
    chief: bool = False
    nodes: int | None = None
    cpus: int = 1
    max_restarts: int = 10
    grace_secs: float = 10.0
    port: int | None = None
    insecure: bool = False
    log_dir: str = ""
    python: str = "python3"
    options: Sequence[str] = ()

    @property
    def name(self) -> str:
        """Name of the job: the script's, without what Slurm's file names cannot have."""
        return re.sub(r"[^\w.-]", "-", PurePath(self.script).stem)

    @property
    def jobs(self) -> dict[str, int]:
        """Job name of the cluster -> number of tasks; there always is one chief."""
        workers = self.workers if self.chief else self.workers - 1
        return {"chief": 1, "ps": self.ps, **({"worker": workers} if workers else {})}


def batch_script(job: SlurmJob) -> str:
    """Write the script.

    It runs on the job's first node, and starts each task of the cluster as a step of its own: a step that dies is
    started again alone. `--no-kill` keeps the job when it loses a node; `--requeue` lets Slurm begin it again.

    Raises:
        ValueError: If an option does not fit on one line.

    >>> print(batch_script(SlurmJob("train.py", workers=2, nodes=2)).splitlines()[3])
    #SBATCH --nodes=2
    """
    options = [f"--job-name={job.name}"]
    if job.nodes is not None:
        options.append(f"--nodes={job.nodes}")
    options += [f"--ntasks={sum(job.jobs.values())}", f"--cpus-per-task={job.cpus}"]
    options += ["--no-kill", "--requeue", "--open-mode=append", f"--output={job.name}-%j.out", *job.options]
    for option in options:
        if "\n" in option or not option.startswith("-"):
            raise ValueError(f"{option!r} is no option of sbatch; give one such as --sbatch=--partition=gpu.")
    # Of an option that is there twice sbatch takes the last: the user's.
    lines = ["#!/bin/sh", f"# Written by globalstep slurm for {job.name}; to run it again: sbatch THIS_FILE"]
    lines += [f"#SBATCH {shlex.quote(option)}" for option in options]
    lines += ["", *(["export GLOBALSTEP_INSECURE=1"] if job.insecure else []), f"exec {shlex.join(_command(job))}", ""]
    return "\n".join(lines)


def _command(job: SlurmJob) -> list[str]:
    command = [job.python, "-m", "globalstep.deploy.slurm.job", f"--ps={job.ps}", f"--workers={job.workers}"]
    command += ["--chief"] if job.chief else []
    command += [f"--cpus={job.cpus}", f"--max-restarts={job.max_restarts}", f"--grace-secs={job.grace_secs:g}"]
    command += [f"--port={job.port}"] if job.port is not None else []
    command += [f"--log-dir={job.log_dir}"] if job.log_dir else []
    return [*command, job.script, *job.args]
