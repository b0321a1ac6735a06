"""`globalstep runs`: which runs of this user are alive on this machine, and how far they are.

Two kinds are found: those that `globalstep launch` (or slurm, or ray) has started from here, and programs with a
parameter server in their own process, by the lock in the run's directory. What an ended process has left is not shown.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rich.table import Table

from globalstep.chief.checkpoints.checkpoint_state import latest_checkpoint
from globalstep.chief.journal.run_directory import kept_identity
from globalstep.chief.journal.run_lock import FILE_NAME, living_holder
from globalstep.deploy.launch.live_runs import LiveRun, live_runs
from globalstep.deploy.status.cli import screen
from globalstep.deploy.status.cluster_watch import ClusterWatch
from globalstep.deploy.status.view import Reading, cell, duration
from globalstep.errors import GlobalStepError
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock

_ROOT = "runs"
_ANSWER_SECS = 2.0


class _Row(NamedTuple):
    """A run that is alive: what is shown of it, and when it was started, in seconds since the epoch."""

    since: float
    name: str
    pid: int
    step: str = "-"
    ps: str = "own"
    workers: str = "1"
    directory: str = "-"
    program: str = "-"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    parser.add_argument(
        "root", nargs="?", default=_ROOT, metavar="ROOT",
        help="folder with directories of runs, for programs that were not started by a launcher (default: runs)",
    )  # fmt: skip


def run(args: argparse.Namespace, clock: Clock = SYSTEM_CLOCK) -> int:
    """Run the subcommand; gives 0."""
    rows = sorted([*map(_launched, live_runs()), *_with_own_ps(args.root)])
    if not rows:
        print(f"No run of this user is alive on this machine, and none trains in {args.root}/.")
        return 0
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("RUN", "PID", "FOR", "STEP", "PS", "WORKERS", "DIRECTORY", "PROGRAM"):
        table.add_column(column, justify="right" if column in ("PID", "FOR", "STEP", "PS", "WORKERS") else "left")
    for row in rows:
        table.add_row(
            cell(row.name or "-"), str(row.pid), duration(max(clock.time() - row.since, 0.0)), row.step, row.ps,
            row.workers, cell(row.directory), cell(row.program or "-"),
        )  # fmt: skip
    screen().print(table)
    return 0


def _launched(run: LiveRun) -> _Row:
    """Ask a launched run for its status; one that has no PS task yet is listed as well."""
    row = _Row(run.since, run.name, run.process.pid, ps=str(len(run.ps)), workers="0", program=run.program)
    try:
        with ClusterWatch(run.ps, {}) as watch:
            reading = Reading(watch.addresses, watch.ask(timeout_secs=_ANSWER_SECS))
    except GlobalStepError:
        return row
    if reading.sequencer is None:
        return row
    status, _ = reading.sequencer
    directory = status.directory
    if directory and "://" not in directory:
        directory = os.path.relpath(os.path.join(run.folder, directory))
    here, to_come = len(status.clients), len(status.to_come)
    return row._replace(
        step=", ".join(f"{value:,}" for _, value in sorted(status.steps.items())) or "-",
        workers=f"{here} of {here + to_come}" if to_come else str(here),
        directory=directory or "-",
    )


def _with_own_ps(root: str) -> Iterator[_Row]:
    """Find programs with a parameter server in their own process, which cannot be asked: by what they have saved."""
    for path in sorted(path for depth in ("", "*/", "*/*/") for path in Path(root).glob(f"{depth}{FILE_NAME}")):
        directory, name, step = str(path.parent), "", ""
        with contextlib.suppress(GlobalStepError, OSError):
            holder, began = living_holder(directory), path.stat()
            if not holder or began.st_uid != os.getuid():
                continue
            with contextlib.suppress(GlobalStepError):
                step = (latest_checkpoint(directory, thorough=False) or "").rpartition("-")[2]
                name = kept_identity(directory).name
            shown = f"{int(step):,}" if step.isdigit() else "-"
            yield _Row(began.st_mtime, name, holder.pid, shown, directory=directory)
