"""Hooks that write summaries: a model's own, and global steps per second.

Follows TensorFlow 1.15, python/training/basic_session_run_hooks.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from globalstep.chief.events.events import WRITERS
from globalstep.chief.hooks.session_run_hook import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from globalstep.chief.hooks.timers import SecondOrStepTimer
from globalstep.chief.sessions.run_model import RunSession, step_now
from globalstep.files.tensorboard_protos import SessionLog, Summary
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from globalstep.chief.sessions.coordinator import Coordinator


_log = logging.getLogger("globalstep")

_UNCHANGED_WARNINGS = 5


class SummarySaver(SessionRunHook):
    """Fetches summaries with a run every so often, the first run among them, and writes them.

    Args:
        save_steps: Every so many global steps.
        save_secs: Or every so many seconds.
        output_dir: Where event files go.
        summary_writer: Or the writer to use.
        clock: Where time comes from.
        step: The global step.
        fetched: What to fetch for the summaries.
        as_summary: Makes a Summary, or a serialized one, of each value that was fetched.

    Raises:
        ValueError: Unless exactly one of `save_steps` and `save_secs` is given.
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str | None = None,
        summary_writer: Any = None,
        clock: Clock = SYSTEM_CLOCK,
        step: Any = None,
        fetched: Sequence[Any] = (),
        as_summary: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        self._fetched, self._as_summary = fetched, as_summary
        self._output_dir = output_dir
        self._writer = summary_writer
        self._timer = SecondOrStepTimer(every_secs=save_secs, every_steps=save_steps, clock=clock)
        self._step = step
        self._next_step: int | None = None
        self._triggered = False

    def begin(self) -> None:
        """See SessionRunHook."""
        if self._writer is None and self._output_dir:
            self._writer = WRITERS.get(self._output_dir)
        self._next_step = None

    def after_create_session(self, session: RunSession, coord: Coordinator) -> None:
        """See SessionRunHook: where the step went back, what is shown from there on is dropped, and comes anew."""
        if self._next_step is None:
            return
        step = step_now(session, self._step)
        if step < self._next_step - 1:
            if self._writer is not None:
                self._writer.add_session_log(SessionLog(status=SessionLog.START), step + 1)
            self._timer.reset()
            self._next_step = step + 1

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """See SessionRunHook: asks for the summaries when it is time."""
        self._triggered = self._next_step is None or self._timer.should_trigger_for_step(self._next_step)
        fetches: dict[Any, Any] = {"global_step": self._step}
        if self._triggered:
            fetches.update(enumerate(self._find_fetched()))
        return SessionRunArgs(fetches)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """See SessionRunHook: writes what was asked for, at the step that it led to."""
        results = run_values.results
        if self._writer is None or results is None or results["global_step"] is None:
            return
        step = int(results["global_step"]) + 1
        first = self._next_step is None
        if first or self._triggered:
            step = step_now(run_context.session, self._step)
        if first:
            self._writer.add_session_log(SessionLog(status=SessionLog.START), step)
        if self._triggered:
            self._timer.update_last_triggered_step(step)
            for at in range(len(results) - 1):
                if results[at] is not None:
                    self._writer.add_summary(self._as_summary(results[at]), step)
        self._next_step = step + 1

    def end(self, session: RunSession) -> None:
        """See SessionRunHook."""
        if self._writer is not None:
            self._writer.flush()

    def _find_fetched(self) -> Sequence[Any]:
        return self._fetched


class StepCounter(SessionRunHook):
    """Reports global steps per second, those of all workers together; see `gs.train.StepCounterHook`.

    Args:
        every_n_steps: Report every so many global steps.
        every_n_secs: Or every so many seconds.
        output_dir: Where to write the summary `<global step>/sec`; None for none.
        summary_writer: Or the writer to write it with.
        clock: Where time comes from.
        step: The global step.
        shared: Whether a step is made of several contributions, or runs, so that it stands still for some runs.

    Raises:
        ValueError: Unless exactly one of `every_n_steps` and `every_n_secs` is given.
    """

    #: Its work is that of the whole run: it goes on while the chief waits for the others to end.
    keeps_watch = True

    def __init__(
        self,
        every_n_steps: int | None = 100,
        every_n_secs: float | None = None,
        output_dir: str | None = None,
        summary_writer: Any = None,
        clock: Clock = SYSTEM_CLOCK,
        step: Any = None,
        shared: bool = False,
    ) -> None:
        if (every_n_steps is None) == (every_n_secs is None):
            raise ValueError("exactly one of every_n_steps and every_n_secs should be provided.")
        self._timer = SecondOrStepTimer(every_secs=every_n_secs, every_steps=every_n_steps, clock=clock)
        self._output_dir = output_dir
        self._writer = summary_writer
        self._step = step
        self._shared = shared
        self._last_stale: int | None = None
        self._unchanged = 0
        self._warnings_left = _UNCHANGED_WARNINGS

    def begin(self) -> None:
        """See SessionRunHook."""
        if self._writer is None and self._output_dir:
            self._writer = WRITERS.get(self._output_dir)

    def after_create_session(self, session: RunSession, coord: Coordinator) -> None:
        """See SessionRunHook: counts anew from a step that went back."""
        if step_now(session, self._step) < (self._timer.last_triggered_step() or 0):
            self._timer.reset()

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """See SessionRunHook."""
        return SessionRunArgs(self._step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """See SessionRunHook: reports when it is time."""
        if run_values.results is None:
            return
        stale = int(run_values.results)
        if self._timer.should_trigger_for_step(stale + 1):
            step = step_now(run_context.session, self._step)
            if self._timer.should_trigger_for_step(step):
                elapsed_secs, elapsed_steps = self._timer.update_last_triggered_step(step)
                if elapsed_secs and elapsed_steps is not None:
                    self._report(elapsed_steps / elapsed_secs, step)
        self._unchanged = self._unchanged + 1 if stale == self._last_stale and not self._shared else 0
        # Runs that do not wait for their push see the step that many pushes late.
        if self._unchanged > getattr(run_context.session, "pushes_in_flight", 0):
            self._warn_unchanged(stale)
        self._last_stale = stale

    def _report(self, steps_per_sec: float, step: int) -> None:
        tag = f"{self._step.op_name}/sec"
        if self._writer is not None:
            self._writer.add_summary(Summary(value=[Summary.Value(tag=tag, simple_value=steps_per_sec)]), step)
        _log.info("%s: %g", tag, steps_per_sec)

    def _warn_unchanged(self, stale: int) -> None:
        if self._warnings_left:
            self._warnings_left -= 1
            _log.warning(
                "It seems that global step (tf.train.get_global_step) has not been increased. Current value "
                "(could be stable): %s vs previous value: %s. You could increase the global step by passing "
                "tf.train.get_global_step() to Optimizer.apply_gradients or Optimizer.minimize.",
                stale,
                self._last_stale,
            )
