"""`globalstep ray`: runs a training script on a Ray cluster.

Layer: deploy.
"""

from __future__ import annotations

import argparse
import os
import sys

from globalstep.deploy.job_options import add_restarts, add_script, add_tasks
from globalstep.deploy.launch import security as launch_security
from globalstep.deploy.ray.job import launch
from globalstep.errors import FailedPreconditionError, InvalidArgumentError, ResourceExhaustedError

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    add_tasks(parser)
    parser.add_argument("--cpus", type=float, default=1.0, metavar="C", help="CPUs of each task (default 1)")
    parser.add_argument("--gpus", type=float, default=0.0, metavar="G", help="GPUs of each worker (default 0)")
    parser.add_argument(
        "--strategy", choices=["SPREAD", "STRICT_SPREAD", "PACK", "STRICT_PACK"], default="SPREAD",
        help="how Ray places the tasks (default SPREAD)",
    )  # fmt: skip
    add_restarts(parser)
    parser.add_argument("--insecure", action="store_true", help="no TLS between nodes, in a network that is trusted")
    launch_security.add_arguments(parser)
    parser.add_argument("--log-dir", metavar="DIR", help="also write each task's output to a file, on this machine")
    add_script(parser)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; gives its exit code."""
    names = ("ps", "workers", "chief", "cpus", "gpus", "strategy", "max_restarts", "grace_secs", "log_dir")
    options = {name: getattr(args, name) for name in names}
    own = {name: value for name, value in os.environ.items() if name.startswith("GLOBALSTEP_")}
    try:
        environ = launch_security.environ_for_all(args, own)
        if args.insecure:
            environ["GLOBALSTEP_INSECURE"] = "1"
        return launch(args.script, args.args, environ=environ, token=not args.no_token, **options).code
    except (ImportError, InvalidArgumentError, FailedPreconditionError, ResourceExhaustedError) as error:
        print(f"globalstep ray: {error}", file=sys.stderr)
        return 2
