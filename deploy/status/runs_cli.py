"""`globalstep runs`: which runs of this user are alive on this machine, and how far they are.

Two kinds are found: those that `globalstep launch` (or slurm, or ray) has started from here, and programs with a
parameter server in their own process, by the lock in the run's directory. What an ended process has left is not shown.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rich.table import Table

from globalstep.chief.checkpoints.checkpoint_state import latest_checkpoint
from globalstep.chief.journal.run_directory import kept_identity
from globalstep.chief.journal.run_lock import FILE_NAME, living_holder
from globalstep.deploy.launch.live_runs import LiveRun, live_runs
from globalstep.deploy.status.cli import screen
from globalstep.deploy.status.cluster_watch import ClusterWatch
from globalstep.deploy.status.reading import Reading
from globalstep.deploy.status.view import cell, duration
from globalstep.errors import GlobalStepError
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock

_ROOT = "runs"
_ANSWER_SECS = 2.0


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run that is alive.

    Attributes:
        name: GLOBALSTEP_RUN of its tasks; "" for none.
        pid: Of the launcher, or of the program.
        since: When that was started, seconds since the epoch.
        directory: Its checkpoint_dir; "" where it has none, or the PS tasks do not answer yet.
        steps: Each step's value.
        workers: How many clients have a live lease.
        to_come: Tasks of the cluster that never came, or may come back.
        ps: Addresses of the PS tasks; empty where they are in the program's process.
        program: The script and its arguments, where they are known.
        problems: As of `globalstep status`.
    """

    name: str
    pid: int
    since: float
    directory: str = ""
    steps: Mapping[str, int] = field(default_factory=dict[str, int])
    workers: int = 0
    ps: tuple[str, ...] = ()
    program: str = ""
    problems: tuple[str, ...] = ()
    to_come: tuple[str, ...] = ()


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    parser.add_argument(
        "root", nargs="?", default=_ROOT, metavar="ROOT",
        help="folder with directories of runs, for programs that were not started by a launcher (default: runs)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON, one run a line")


def run(args: argparse.Namespace, clock: Clock = SYSTEM_CLOCK) -> int:
    """Run the subcommand; gives 0."""
    runs = sorted(found_runs(args.root), key=lambda item: item.since)
    if args.json:
        for item in runs:
            print(json.dumps(asdict(item)))
    elif not runs:
        print(f"No run of this user is alive on this machine, and none trains in {args.root}/.")
    else:
        screen().print(_table(runs, clock.time()))
    return 0


def found_runs(root: str) -> Iterator[ListedRun]:
    """Find the runs that are alive.

    Args:
        root: Folder whose directories, and theirs, are looked at.
    """
    for launched in live_runs():
        yield _asked(launched)
    for path in sorted(path for depth in ("", "*/", "*/*/") for path in Path(root).glob(f"{depth}{FILE_NAME}")):
        directory = str(path.parent)
        try:
            holder, began = living_holder(directory), path.stat()
        except OSError:
            continue
        if holder and began.st_uid == os.getuid():
            steps, name = _saved(directory)
            yield ListedRun(name, holder.pid, began.st_mtime, directory, steps, workers=1)


def _asked(launched: LiveRun) -> ListedRun:
    """Ask a launched run for its status; a run without a PS task yet is listed as well."""
    run = ListedRun(
        launched.name, launched.process.pid, launched.since, ps=tuple(launched.ps), program=launched.program
    )
    try:
        with ClusterWatch(launched.ps, {}) as watch:
            reading = Reading(watch.addresses, watch.ask(timeout_secs=_ANSWER_SECS))
    except GlobalStepError as error:
        return replace(run, problems=(str(error),))
    run = replace(run, problems=tuple(reading.problems))
    if reading.sequencer is None:
        return run
    status, _ = reading.sequencer
    directory = status.directory
    if directory and "://" not in directory:
        directory = os.path.relpath(os.path.join(launched.folder, directory))
    return replace(
        run,
        directory=directory,
        steps=dict(sorted(status.steps.items())),
        workers=len(status.clients),
        to_come=tuple(status.to_come),
    )


def _saved(directory: str) -> tuple[dict[str, int], str]:
    """Give the step of the newest checkpoint, and the run's name: a PS in another process cannot be asked."""
    try:
        newest = latest_checkpoint(directory, thorough=False) or ""
        step = newest.rpartition("-")[2]
        return ({"global_step": int(step)} if step.isdigit() else {}), kept_identity(directory).name
    except (GlobalStepError, OSError):
        return {}, ""


def _table(runs: list[ListedRun], now: float) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("RUN", "PID", "FOR", "STEP", "PS", "WORKERS", "DIRECTORY", "PROGRAM"):
        table.add_column(column, justify="right" if column in ("PID", "FOR", "STEP", "PS", "WORKERS") else "left")
    for item in runs:
        workers = f"{item.workers} of {item.workers + len(item.to_come)}" if item.to_come else str(item.workers)
        step = ", ".join(f"{value:,}" for value in item.steps.values()) or "-"
        table.add_row(
            cell(item.name or "-"), str(item.pid), duration(max(now - item.since, 0.0)), step,
            str(len(item.ps) or "own"), workers, cell(item.directory or "-"), cell(item.program or "-"),
        )  # fmt: skip
    return table
