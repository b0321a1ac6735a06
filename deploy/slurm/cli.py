"""`globalstep slurm`: writes an sbatch script for a training job, and submits it.

Layer: deploy.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from globalstep.deploy.job_options import add_restarts, add_script, add_tasks, too_few
from globalstep.deploy.slurm.script import SlurmJob, batch_script

__all__ = ["add_cluster", "configure", "run"]


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
