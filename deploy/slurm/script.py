"""The sbatch script that `globalstep slurm` submits: as text, from what the job is to be.

Layer: deploy. Pure.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

__all__ = ["SlurmJob", "batch_script"]


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
