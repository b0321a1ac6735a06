"""Hooks that follow the global step: stop at one, count them per second.

Follows TensorFlow 1.15, python/training/basic_session_run_hooks.py, but that a stop is exact: the limit
of StopAtStep is also the parameter servers' (invariant I5).

Layer: chief.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from globalstep.chief.events.file_writer import WRITERS
from globalstep.chief.hooks.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from globalstep.chief.hooks.timers import SecondOrStepTimer
from globalstep.chief.sessions.run_model import RunSession, step_now
from globalstep.files.tensorboard_protos import Summary
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.wire.declarations import StopLimit

if TYPE_CHECKING:
    from globalstep.chief.sessions.coordinator import Coordinator

__all__ = ["StepCounter", "StopAtStep"]

_log = logging.getLogger("globalstep")

_UNCHANGED_WARNINGS = 5


class StopAtStep(SessionRunHook):
    """Stops training at a global step, exactly; see `gs.train.StopAtStepHook`.

    Args:
        num_steps: Number of steps from the step at which the session starts.
        last_step: Or the step to stop at.
        step: The global step.

    Raises:
        ValueError: Unless exactly one of `num_steps` and `last_step` is given.
    """

    def __init__(self, num_steps: int | None = None, last_step: int | None = None, step: Any = None) -> None:
        if num_steps is None and last_step is None:
            raise ValueError("One of num_steps or last_step must be specified.")
        if num_steps is not None and last_step is not None:
            raise ValueError("Only one of num_steps or last_step can be specified.")
        self._num_steps = num_steps
        self._last_step = last_step
        self._step = step

    @property
    def last_step(self) -> int | None:
        """The step to stop at; None while `num_steps` has not been counted from anything yet."""
        return self._last_step

    def store_limit(self, step_name: str) -> StopLimit:
        """Give the limit as the parameter servers take it.

        Args:
            step_name: Name of the step.

        Returns:
            An absolute limit once it is known, else a number of steps from now.
        """
        if self._last_step is not None:
            return StopLimit(step_name, last_step=self._last_step)
        return StopLimit(step_name, num_steps=self._num_steps)

    def adopt_limit(self, last_step: int) -> None:
        """Take over the limit that the parameter servers enforce, in place of counting `num_steps`.

        Args:
            last_step: The absolute limit in force.
        """
        if self._last_step is None:
            self._last_step = last_step

    def after_create_session(self, session: RunSession, coord: Coordinator) -> None:
        """See SessionRunHook: counts `num_steps` from here, once."""
        if self._last_step is None:
            self._last_step = step_now(session, self._step) + (self._num_steps or 0)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """See SessionRunHook."""
        return SessionRunArgs(self._step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """See SessionRunHook: asks for the stop when the step has come."""
        if run_values.results is None or self._last_step is None:
            return
        session = run_context.session
        # The value in the results is from before the push, and other workers may have pushed in between;
        # the outcome of the push itself is nearer. Only a fresh read is sure.
        outcome = session.last_outcome
        known = outcome.steps.get(self._step.op_name, 0) if outcome is not None else 0
        near = max(int(run_values.results) + 1, known) >= self._last_step
        if near and step_now(session, self._step) >= self._last_step:
            run_context.request_stop()


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
