"""Run report: where the chief's run begins, how far it is, and how it ended.

On a terminal one line changes every second; elsewhere there is a log line after 10 s and, once two minutes are over,
every minute. Under `globalstep launch` the launcher shows the line. It is on unless `MonitoredTrainingSession` is given
`progress=False`, or GLOBALSTEP_PROGRESS=0 is in the environment.

Layer: chief. Threads: that of the session; it starts none.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from globalstep.chief.hooks.session_run_hook import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from globalstep.chief.sessions.run_joining import files_of
from globalstep.chief.sessions.run_model import GlobalStep, RunSession, step_now
from globalstep.errors import OpError
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.runtime.log_format import CONCLUSION_MARK, ERASE_LINE, PROGRESS_MARK, is_terminal, write_line
from globalstep.runtime.log_format import VARIABLE as FORMAT_VARIABLE

if TYPE_CHECKING:
    from globalstep.chief.sessions.coordinator import Coordinator


PROGRESS_VARIABLE = "GLOBALSTEP_PROGRESS"
_LAUNCHER_VARIABLE = "GLOBALSTEP_LAUNCH"
# A child of its own, since "globalstep" shows warnings only unless a program asks for more.
_log = logging.getLogger("globalstep.progress")
_log.setLevel(logging.INFO)

_NOTHING_KEPT = "without a run_dir, or checkpoint_dir, nothing is kept"
_LIVE_SECS = 1.0
_PLAIN_SECS = 10.0
_LATER_PLAIN_SECS = 60.0
#: How long a run is new, and its log lines come more often.
_NEW_SECS = 120.0


def is_wanted(progress: bool | None, environ: Mapping[str, str] = os.environ) -> bool:
    """Decide whether a run is reported: an argument beats the environment.

    >>> [is_wanted(progress, {"GLOBALSTEP_PROGRESS": "0"}) for progress in (None, True, False)], is_wanted(None, {})
    ([False, True, False], True)
    """
    if progress is not None:
        return progress
    return environ.get(PROGRESS_VARIABLE, "").lower() not in ("0", "off", "no", "false")


class RunReport(SessionRunHook):
    """Reports a run's progress: a hook of the chief, whose `conclude` has to be called at the end.

    The loss is that of the run's own step; it is fetched with it, only where a line is due.

    Args:
        hooks: All hooks of the session: one of them may know the last step, or that the directory is deleted when
            training has ended.
        checkpoint_dir: Where the run is kept; None for nowhere.
        find_step: Gives the global step, or None, when the run begins.
        loss_of: Gives what to fetch for the loss of a run, from its session and its fetches; None for nothing.
        clock: Where time comes from.
        stream: Where the line goes that changes; default sys.stderr.
        environ: Says whether the launcher started this process.
    """

    def __init__(
        self,
        hooks: Sequence[Any],
        checkpoint_dir: str | None,
        find_step: Callable[[], GlobalStep | None],
        loss_of: Callable[[Any, Any], Any],
        clock: Clock = SYSTEM_CLOCK,
        stream: TextIO | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._hooks = list(hooks)
        is_kept = all(getattr(hook, "keeps_directory", True) for hook in self._hooks)
        self._directory = checkpoint_dir if is_kept else None
        self._find_step, self._loss_of = find_step, loss_of
        self._clock = clock
        self._stream = sys.stderr if stream is None else stream
        self._launched = environ.get(_LAUNCHER_VARIABLE) == "1"
        on_terminal = is_terminal(self._stream) and environ.get("TERM") != "dumb"
        self._live = on_terminal and not self._launched and environ.get(FORMAT_VARIABLE) != "json"
        self._step: Any = None
        self._first_step: int | None = None
        # The newest checkpoint that there was at the beginning.
        self._found: str | None = None
        self._last_known = 0
        self._began_at = 0.0
        # Where the speed is counted from: the last line shown, or the first run.
        self._shown_at: float | None = None
        self._shown_step = 0
        # When the next line is due; never before the first run.
        self._due_at = math.inf
        # Decided before a run, so that a line that is due has the loss of its run.
        self._due = False
        self._loss: Any = None
        self._concluded = False

    def begin(self) -> None:
        """See SessionRunHook."""
        self._step = self._find_step()

    def after_create_session(self, session: RunSession, coord: Coordinator) -> None:
        """See SessionRunHook: tells what was restored, at first and after each loss."""
        if self._step is None:
            return
        step = self._last_known = step_now(session, self._step)
        self._shown_at, self._due_at = None, math.inf
        if self._first_step is None:
            self._first_step, self._began_at = step, self._clock.monotonic()
            self._found = self._newest()
        if session.restored_from:
            self._say(f"restored {session.restored_from}{_ps_tasks(session.restored_from, session.cluster.shards)}")

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """See SessionRunHook: asks for the loss where a line is due and the run computes it anyway."""
        self._due = self._clock.monotonic() >= self._due_at
        if not self._due:
            return None
        loss = self._loss_of(run_context.session, run_context.original_args.fetches)
        return None if loss is None else SessionRunArgs(loss)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """See SessionRunHook: shows a line where it is due."""
        outcome = None if self._step is None else run_context.session.last_outcome
        if outcome is None:
            return
        step = self._last_known = outcome.steps.get(self._step.op_name, self._last_known)
        if run_values.results is not None:
            self._loss = run_values.results
        if self._shown_at is None:
            # What comes before, compiling say, is no measure of the speed.
            self._note_shown(self._clock.monotonic(), step)
        elif self._due:
            self._show(step)

    def end(self, session: RunSession) -> None:
        """See SessionRunHook: reads the last step."""
        if self._step is not None:
            self._last_known = step_now(session, self._step)

    def conclude(self, stopped: bool = False, failed: type[BaseException] | None = None) -> None:
        """Tell how the run ended. Does nothing the second time, or where this task never was the chief."""
        if self._concluded:
            return
        self._concluded = True
        if self._first_step is None:
            return
        newest = self._newest()
        # What others pushed after this task's last run is in the checkpoint that was saved at the end.
        saved = _step_in(newest) if newest != self._found else None
        step = max(self._last_known, saved or 0)
        self._say(self._conclusion(step, newest, stopped, failed))
        if self._launched:
            secs = self._clock.monotonic() - self._began_at
            conclusion = {"step": step, "steps": step - self._first_step, "secs": secs, "checkpoint": newest or ""}
            write_line(sys.stdout, f"{CONCLUSION_MARK}{json.dumps(conclusion)}")

    def _conclusion(self, step: int, newest: str | None, stopped: bool, failed: type[BaseException] | None) -> str:
        last_step = self._last_step()
        is_saved = _step_in(newest) == step
        if failed is not None or stopped:
            how = f"stopped at step {step}"
            if failed is not None:
                how = f"{'failed' if issubclass(failed, Exception) else 'ended'} at step {step} ({failed.__name__})"
            if self._directory is None:
                return f"{how}; {_NOTHING_KEPT}"
            if is_saved:
                return f"{how}, saved {newest}; the same command continues"
            return f"{how}; {f'the same command continues from {newest}' if newest else 'there is no checkpoint yet'}"
        if last_step is not None and (self._first_step or 0) >= last_step:
            return (
                f"already at {step} of {last_step}, nothing to do: a larger last step (steps=, or last_step=), or "
                "another directory, trains on"
            )
        secs = self._clock.monotonic() - self._began_at
        done = f"done: {step - (self._first_step or 0)} steps in {_duration(secs)}, now at {step}"
        if last_step is not None:
            done += f" of {last_step}"
        if self._directory is None:
            return f"{done}; {_NOTHING_KEPT}"
        saved = f"saved {newest}" if is_saved else f"the newest checkpoint is {newest}" if newest else "no checkpoint"
        directory = shlex.quote(self._directory)
        return f"{done}; {saved}; next: tensorboard --logdir {directory}, globalstep audit {directory}"

    def _last_step(self) -> int | None:
        steps = [step for hook in self._hooks if isinstance(step := getattr(hook, "last_step", None), int)]
        return min(steps, default=None)

    def _newest(self) -> str | None:
        try:
            return files_of(self._directory).newest(thorough=False) if self._directory else None
        except (OpError, OSError):
            return None

    def _note_shown(self, now: float, step: int) -> None:
        """Count the speed from here on, and say when the next line is due."""
        self._shown_at, self._shown_step = now, step
        every_secs = _LIVE_SECS
        if not (self._live or self._launched):
            every_secs = _PLAIN_SECS if now + _PLAIN_SECS - self._began_at < _NEW_SECS else _LATER_PLAIN_SECS
        self._due_at = now + every_secs

    def _show(self, step: int) -> None:
        now = self._clock.monotonic()
        rate = (step - self._shown_step) / (now - self._shown_at) if self._shown_at is not None else 0.0
        self._note_shown(now, step)
        line = progress_line(step, rate, self._last_step(), self._loss)
        if self._live:
            # The cursor goes back, so that what the program prints is written over the line.
            shown = line[: shutil.get_terminal_size().columns - 1]
            write_line(self._stream, f"{ERASE_LINE}{shown}\r", end="")
        elif self._launched:
            write_line(sys.stdout, f"{PROGRESS_MARK}{line}")
        else:
            self._say(line)

    def _say(self, text: str) -> None:
        if self._live:
            write_line(self._stream, f"{ERASE_LINE}{text}")
        elif logging.getLogger("globalstep").isEnabledFor(logging.WARNING):
            _log.info("%s", text)


def progress_line(step: int, rate: float, last_step: int | None = None, loss: Any = None) -> str:
    """Put progress into words.

    Args:
        step: The global step.
        rate: Steps per second; 0 where not known.
        last_step: The step to stop at, or None.
        loss: The loss as a scalar or array (its mean is shown), or None.

    >>> progress_line(120, 350.1, 2000, 0.1234)
    'step 120/2000  350.1 steps/s  loss 0.123  eta 5.4 s'
    """
    parts = [f"step {step}" if last_step is None else f"step {step}/{last_step}"]
    if rate > 0:
        parts.append(f"{rate:.1f} steps/s")
    if loss is not None:
        mean = float(np.mean(loss))
        parts.append(f"loss {mean:.3f}" if not 0 < abs(mean) < 0.01 else f"loss {mean:.3g}")
    if last_step is not None and rate > 0 and step < last_step:
        parts.append(f"eta {_duration((last_step - step) / rate)}")
    return "  ".join(parts)


def _ps_tasks(prefix: str, now: int) -> str:
    """Say how many PS tasks there were when a checkpoint was written, if they were more or fewer."""
    then = files_of(prefix).ps_tasks(prefix) or now
    return "" if then == now else f" ({then} PS then, {now} now)"


def _step_in(prefix: str | None) -> int | None:
    match = re.search(r"-(\d+)$", prefix or "")
    return int(match.group(1)) if match else None


def _duration(secs: float) -> str:
    """Put a time into words.

    >>> _duration(3.14), _duration(200), _duration(7260)
    ('3.1 s', '3m20s', '2h01m')
    """
    if secs < 60:
        return f"{secs:.1f} s"
    minutes, seconds = divmod(round(secs), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{seconds:02d}s"
