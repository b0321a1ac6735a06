"""`globalstep status RUN_DIR`, or ADDRESS...: where a running cluster stands, how fast it is, and what holds it up."""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections.abc import Iterator

from rich.console import Console
from rich.live import Live

from globalstep.cluster.cluster import is_address
from globalstep.deploy.status.cluster_watch import ClusterWatch, watch_of
from globalstep.deploy.status.view import Reading, draw_status, draw_variables
from globalstep.errors import GlobalStepError
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.runtime.log_format import is_terminal

#: Of what is no terminal: nothing is shortened there.
_WIDE = 1000

HEALTHY, PROBLEM, UNREACHABLE = 0, 1, 2


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    parser.add_argument(
        "addresses", nargs="*", metavar="RUN_DIR|ADDRESS",
        help="the run's directory (its checkpoint_dir), or host:port of every PS task, in order (default: TF_CONFIG's)",
    )  # fmt: skip
    parser.add_argument("--variables", action="store_true", help="show where each Variable lies, and its pushes")
    parser.add_argument("--watch", action="store_true", help="go on until interrupted, and draw it anew each time")
    parser.add_argument("--json", action="store_true", help="print one reading as JSON; with --watch one a line")
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
            reading = _show(args, _readings(args, watch, clock, stop))
        except KeyboardInterrupt:
            return HEALTHY
    if reading.answers:
        return PROBLEM if reading.problems else HEALTHY
    if len(args.addresses) == 1 and not is_address(args.addresses[0]):
        print(
            f"The run in {args.addresses[0]} has ended, or cannot be reached from here: no PS task of it answers. "
            f"globalstep checkpoint ls {args.addresses[0]} says what it has saved.",
            file=sys.stderr,
        )
    return UNREACHABLE


def screen() -> Console:
    """Make the console that tables go to."""
    return Console(soft_wrap=True, width=None if is_terminal(sys.stdout) else _WIDE)


def _readings(args: argparse.Namespace, watch: ClusterWatch, clock: Clock, stop: threading.Event) -> Iterator[Reading]:
    """Read the cluster at once, and again after each interval; rates are of the time between two readings."""
    before = watch.ask(brief=not args.variables)
    yield Reading(watch.addresses, before)
    while not clock.wait(stop, args.interval):
        now = watch.ask(brief=not args.variables)
        yield Reading(watch.addresses, now, before)
        before = now


def _show(args: argparse.Namespace, readings: Iterator[Reading]) -> Reading:
    """Print what was asked for; gives the last reading."""
    draw = draw_variables if args.variables else draw_status
    reading = next(readings)
    if args.json and args.watch:
        for reading in readings:
            print(json.dumps(reading.as_json()), flush=True)
    elif args.json:
        print(json.dumps(reading.as_json(), indent=2))
    elif args.watch:
        with Live(draw(reading), console=Console(), auto_refresh=False) as live:
            live.refresh()
            for reading in readings:
                live.update(draw(reading), refresh=True)
    else:
        reading = next(readings, reading) if args.interval > 0 else reading
        screen().print(draw(reading))
    return reading
