"""Options that all commands have which start a job."""

from __future__ import annotations

import argparse


def add_tasks(parser: argparse.ArgumentParser) -> None:
    """Add how many tasks there are of each kind."""
    parser.add_argument("--ps", type=int, default=1, metavar="N", help="number of PS tasks (default 1)")
    parser.add_argument(
        "--workers", type=int, default=1, metavar="M",
        help="number of workers (default 1); without --chief the first of them is the chief",
    )  # fmt: skip
    parser.add_argument("--chief", action="store_true", help="start a chief besides the workers")


def add_evaluator(parser: argparse.ArgumentParser) -> None:
    """Add whether there is an evaluator."""
    parser.add_argument(
        "--evaluator",
        action="store_true",
        help="start an evaluator too: with gs.fit it evaluates the run's checkpoints, in place of the chief",
    )


def job_sizes(args: argparse.Namespace) -> dict[str, int]:
    """Return the cluster's jobs, each with its number of tasks; there is always one chief."""
    workers = args.workers if args.chief else args.workers - 1
    return {"chief": 1, "ps": args.ps, **({"worker": workers} if workers else {})}


def too_few(args: argparse.Namespace) -> str:
    """Say that the tasks are too few for a job; "" where they are not."""
    few = args.ps < 1 or args.workers < (0 if args.chief else 1)
    return "at least one PS and one worker (or the chief) are needed" if few else ""


def add_restarts(parser: argparse.ArgumentParser, restarts: int = 10) -> None:
    """Add how often failed tasks are started again, and how long tasks may take to end."""
    parser.add_argument(
        "--max-restarts", type=int, default=restarts, metavar="R",
        help=f"how often each failed task is started again (default {restarts})",
    )  # fmt: skip
    parser.add_argument(
        "--grace-secs", type=float, default=10.0, metavar="S",
        help="how long tasks may take to end when asked (default 10)",
    )  # fmt: skip


def add_script(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Add the script and its arguments, which come last."""
    parser.add_argument("script", help=f"the training script, run by every worker and the chief{more}")
    rest = parser.add_argument("args", nargs=argparse.REMAINDER, help="arguments of the script")
    # argparse counts it as missing where the script is.
    rest.required = False
