"""`globalstep where RUN_DIR`, or ADDRESS...: where each Variable of a running cluster lies, how often it changes.

Layer: deploy.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from globalstep.deploy.status.cli import UNREACHABLE, add_addresses, exit_code, say_ended, screen
from globalstep.deploy.status.cluster_status import read_cluster
from globalstep.deploy.status.cluster_watch import watch_of
from globalstep.deploy.status.view import draw_where
from globalstep.deploy.status.where import as_json, placed_variables
from globalstep.errors import GlobalStepError
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    add_addresses(parser)


def run(args: argparse.Namespace, clock: Clock = SYSTEM_CLOCK) -> int:
    """Run the subcommand.

    Args:
        args: Parsed arguments.
        clock: Time between the two readings.

    Returns:
        The exit code, as of `globalstep status`.
    """
    try:
        watch = watch_of(args.addresses, os.environ)
    except (GlobalStepError, ValueError, TypeError) as error:
        print(f"globalstep where: {error}", file=sys.stderr)
        return UNREACHABLE
    with watch:
        before = watch.ask(brief=False) if args.interval > 0 else []
        if before:
            clock.sleep(args.interval)
        now = watch.ask(brief=False)
    status = read_cluster(watch.addresses, now, before)
    variables = placed_variables(now, before)
    if args.json:
        print(json.dumps(as_json(variables, status.problems), indent=2))
    else:
        screen().print(draw_where(variables, status.problems))
    say_ended(args.addresses, status)
    return exit_code(status)
