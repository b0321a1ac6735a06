"""`globalstep slurm`: writes an sbatch script for a training job, and submits it."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path, PurePath

from globalstep.deploy.launch.options import add_restarts, add_script, add_tasks, job_sizes, too_few


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
    try:
        text = batch_script(args)
    except ValueError as error:
        return _say(str(error))
    file = args.file or Path(f"{_name(args)}.sbatch")
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


def _name(args: argparse.Namespace) -> str:
    """Give the job's name: the script's, without what Slurm's file names cannot have."""
    return re.sub(r"[^\w.-]", "-", PurePath(args.script).stem)


def batch_script(args: argparse.Namespace) -> str:
    """Write the script, from the subcommand's arguments.

    It runs on the job's first node, and starts each task of the cluster as a step of its own: a step that dies is
    started again alone. `--no-kill` keeps the job when it loses a node; `--requeue` lets Slurm begin it again.

    Raises:
        ValueError: If an option does not fit on one line.
    """
    name = _name(args)
    options = [f"--job-name={name}"]
    if args.nodes is not None:
        options.append(f"--nodes={args.nodes}")
    options += [f"--ntasks={sum(job_sizes(args).values())}", f"--cpus-per-task={args.cpus}"]
    options += ["--no-kill", "--requeue", "--open-mode=append", f"--output={name}-%j.out", *args.options]
    for option in options:
        if "\n" in option or not option.startswith("-"):
            raise ValueError(f"{option!r} is not an option of sbatch; give one such as --sbatch=--partition=gpu.")
    # Of an option that is there twice sbatch takes the last: the user's.
    lines = ["#!/bin/sh", f"# Written by globalstep slurm for {name}; to run it again: sbatch THIS_FILE"]
    lines += [f"#SBATCH {shlex.quote(option)}" for option in options]
    lines += ["", *(["export GLOBALSTEP_INSECURE=1"] if args.insecure else [])]
    lines += [f"exec {shlex.join(_command(args))}", ""]
    return "\n".join(lines)


def _command(args: argparse.Namespace) -> list[str]:
    command = [sys.executable, "-m", "globalstep.deploy.slurm.job", f"--ps={args.ps}", f"--workers={args.workers}"]
    command += ["--chief"] if args.chief else []
    command += [f"--cpus={args.cpus}", f"--max-restarts={args.max_restarts}", f"--grace-secs={args.grace_secs:g}"]
    command += [f"--port={args.port}"] if args.port is not None else []
    command += [f"--log-dir={args.log_dir}"] if args.log_dir else []
    return [*command, args.script, *args.args]
