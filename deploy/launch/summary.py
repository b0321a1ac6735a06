"""The summary at the end of `globalstep launch`: how each task ended, how far the run came, and where things are.

Pure: the tasks and what the chief has said in, lines out.

Layer: deploy.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from globalstep.deploy.status.view import duration

if TYPE_CHECKING:
    from globalstep.deploy.launch.launcher import Task

__all__ = ["Conclusion", "log_name", "read_conclusion", "summary"]


@dataclass(frozen=True, slots=True)
class Conclusion:
    """Where a chief's run has ended.

    Attributes:
        step: The global step.
        steps: How many of them were made since the chief began, by all workers.
        secs: Since then.
        checkpoint: The newest one; "" for none.
    """

    step: int
    steps: int
    secs: float
    checkpoint: str


def read_conclusion(text: str) -> Conclusion | None:
    """Read what a chief says of its end; None for what is none: a program may print anything.

    >>> read_conclusion('{"step": 30, "steps": 20, "secs": 4.0, "checkpoint": ""}')
    Conclusion(step=30, steps=20, secs=4.0, checkpoint='')
    """
    try:
        fields = json.loads(text)
        found = (int(fields["step"]), int(fields["steps"]), float(fields["secs"]), str(fields["checkpoint"]))
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
    return Conclusion(*found)


def summary(
    tasks: Sequence[Task],
    code: int,
    secs: float,
    conclusion: Conclusion | None,
    log_dir: Path | None,
    failed: str = "",
) -> tuple[str, list[str]]:
    """Put the end of a job into words.

    Args:
        tasks: All of them.
        code: The launcher's exit code.
        secs: How long it all took.
        conclusion: What the chief has said; None where it has not.
        log_dir: Folder of the tasks' output; None for none.
        failed: How the task that the job ended for has ended; "" for none.

    Returns:
        A line, and those below it.
    """
    below = [f"exit codes: {', '.join(f'{task.name} {_code(task)}' for task in tasks)}"]
    if again := [f"{task.name} {task.restarts}" for task in tasks if task.restarts]:
        below.append(f"restarts: {', '.join(again)}")
    if conclusion is not None:
        rate = f", {conclusion.steps / conclusion.secs:.1f} steps/s" if conclusion.secs > 0 else ""
        below.append(f"global_step {conclusion.step:,}: {conclusion.steps:,} steps in {conclusion.secs:.1f} s{rate}")
        below.append(f"checkpoint: {conclusion.checkpoint or 'none'}")
    if log_dir is not None:
        below.append(f"logs: {log_dir}/ ({', '.join(log_name(task.name) for task in tasks)})")
    reason = f": {failed}" if failed else ""
    return f"globalstep launch: ended with code {code} after {duration(secs)}{reason}", below


def log_name(task: str) -> str:
    """Give the name of a task's file in the folder of logs.

    >>> log_name("ps:0")
    'ps-0.log'
    """
    return f"{task.replace(':', '-')}.log"


def _code(task: Task) -> str:
    code = None if task.process is None else task.process.returncode
    return "not started" if code is None else str(128 - code if code < 0 else code)
