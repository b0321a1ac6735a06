"""`globalstep ray`: runs a training script on a Ray cluster.

Layer: deploy.
"""

from __future__ import annotations

import argparse
import os
import sys

from globalstep.deploy.launch import security as launch_security
from globalstep.deploy.ray.job import launch
from globalstep.errors import FailedPreconditionError, InvalidArgumentError, ResourceExhaustedError

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    parser.add_argument("--ps", type=int, default=1, metavar="N", help="number of PS tasks (default 1)")
    parser.add_argument(
        "--workers", type=int, default=1, metavar="M",
        help="number of workers (default 1); without --chief the first of them is the chief",
    )  # fmt: skip
    parser.add_argument("--chief", action="store_true", help="start a chief besides the workers")
    parser.add_argument("--cpus", type=float, default=1.0, metavar="C", help="CPUs of each task (default 1)")
    parser.add_argument("--gpus", type=float, default=0.0, metavar="G", help="GPUs of each worker (default 0)")
    parser.add_argument(
        "--strategy", choices=["SPREAD", "STRICT_SPREAD", "PACK", "STRICT_PACK"], default="SPREAD",
        help="how Ray places the tasks (default SPREAD)",
    )  # fmt: skip
    parser.add_argument(
        "--max-restarts", type=int, default=10, metavar="R", help="how often each failed task is started again"
    )
    parser.add_argument(
        "--grace-secs", type=float, default=10.0, metavar="S", help="how long tasks may take to end when asked"
    )
    parser.add_argument("--insecure", action="store_true", help="no TLS between nodes, in a network that is trusted")
    launch_security.add_arguments(parser)
    parser.add_argument("--log-dir", metavar="DIR", help="also write each task's output to a file, on this machine")
    parser.add_argument("script", help="the training script, run by every worker and the chief")
    rest = parser.add_argument("args", nargs=argparse.REMAINDER, help="arguments of the script")
    # argparse counts it as missing where the script is.
    rest.required = False


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
