"""SummarySaver: writes a model's own summaries.

Follows TensorFlow 1.15, python/training/basic_session_run_hooks.py.

Layer: chief.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from globalstep.files.tensorboard_protos import SessionLog
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from globalstep.chief.sessions.coordinator import Coordinator

__all__ = ["SummarySaver"]


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
