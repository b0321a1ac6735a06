"""`globalstep status RUN_DIR`, or ADDRESS...: where a running cluster stands, how fast it is, and what holds it up."""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live

from globalstep.cluster.cluster import is_address
from globalstep.deploy.status.cluster_status import ClusterStatus, read_cluster
from globalstep.deploy.status.cluster_watch import ClusterWatch, watch_of
from globalstep.deploy.status.view import draw_status
from globalstep.errors import GlobalStepError
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.runtime.log_format import is_terminal

#: Of what is no terminal: nothing is shortened there.
_WIDE = 1000

HEALTHY, PROBLEM, UNREACHABLE = 0, 1, 2


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    add_addresses(parser)
    parser.add_argument("--watch", action="store_true", help="go on until interrupted, and draw it anew each time")


def add_addresses(parser: argparse.ArgumentParser) -> None:
    """Add what all subcommands have that look at a running cluster."""
    parser.add_argument(
        "addresses", nargs="*", metavar="RUN_DIR|ADDRESS",
        help="the run's directory (its checkpoint_dir), or host:port of every PS task, in order (default: TF_CONFIG's)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="SECS",
        help="time between two readings, which rates are of (default 1; 0: one reading, without rates)",
    )  # fmt: skip


def run(args: argparse.Namespace, clock: Clock = SYSTEM_CLOCK, stop: threading.Event | None = None) -> int:
    """Run the subcommand.

    Returns:
        The exit code: 0 if all PS tasks serve one run, 1 if something is not as it should be, 2 if no PS task answers.
    """
    stop = stop or threading.Event()
    try:
        watch = watch_of(args.addresses, os.environ)
    except (GlobalStepError, ValueError, TypeError) as error:
        print(f"globalstep status: {error}", file=sys.stderr)
        return UNREACHABLE
    with watch:
        try:
            return _watch(args, watch, clock, stop) if args.watch else _once(args, watch, clock, stop)
        except KeyboardInterrupt:
            return HEALTHY


def screen() -> Console:
    """Make the console that tables go to."""
    return Console(soft_wrap=True, width=None if is_terminal(sys.stdout) else _WIDE)


def exit_code(status: ClusterStatus) -> int:
    """Give the exit code that says how a cluster fares."""
    if not status.answered:
        return UNREACHABLE
    return PROBLEM if status.problems else HEALTHY


def say_ended(arguments: Sequence[str], status: ClusterStatus) -> None:
    """Say that none of the PS tasks is there any more, of a run named by its directory."""
    if len(arguments) == 1 and not status.answered and not is_address(arguments[0]):
        print(
            f"The run in {arguments[0]} has ended, or cannot be reached from here: no PS task of it answers. "
            f"globalstep checkpoint ls {arguments[0]} says what it has saved.",
            file=sys.stderr,
        )


def _once(args: argparse.Namespace, watch: ClusterWatch, clock: Clock, stop: threading.Event) -> int:
    before = watch.ask() if args.interval > 0 else []
    if before:
        clock.wait(stop, args.interval)
    status = read_cluster(watch.addresses, watch.ask(), before)
    if args.json:
        print(json.dumps(status.as_json(), indent=2))
    else:
        screen().print(draw_status(status))
    say_ended(args.addresses, status)
    return exit_code(status)


def _watch(args: argparse.Namespace, watch: ClusterWatch, clock: Clock, stop: threading.Event) -> int:
    before = watch.ask()
    status = read_cluster(watch.addresses, before)
    if args.json:
        while not clock.wait(stop, args.interval):
            now = watch.ask()
            status, before = read_cluster(watch.addresses, now, before), now
            print(json.dumps(status.as_json()), flush=True)
        return exit_code(status)
    with Live(draw_status(status), console=Console(), auto_refresh=False) as live:
        live.refresh()
        while not clock.wait(stop, args.interval):
            now = watch.ask()
            status, before = read_cluster(watch.addresses, now, before), now
            live.update(draw_status(status), refresh=True)
    return exit_code(status)
