"""SummarySaverHook: writes a model's own summaries.

Follows TensorFlow 1.15, python/training/basic_session_run_hooks.py.

Layer: tf1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from globalstep.chief.hooks.step import global_step_for, step_now
from globalstep.chief.hooks.timers import SecondOrStepTimer
from globalstep.files.tensorboard_protos import SessionLog
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.tf1.ops.summaries import SummaryWriterCache
from globalstep.tf1.sessions.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)

if TYPE_CHECKING:
    from globalstep.tf1.sessions.coordinator import Coordinator
    from globalstep.tf1.sessions.session import Session


__all__ = ["SummarySaverHook"]


class SummarySaverHook(SessionRunHook):
    """Evaluates summaries with a run every so often, the first run among them, and writes them.

    Args:
        save_steps: Every so many global steps.
        save_secs: Or every so many seconds.
        output_dir: Where event files go.
        summary_writer: Or the writer to use.
        scaffold: Its `summary_op` is what is evaluated,
        summary_op: or this: a node of a serialized summary, or a list of them.
        clock: Where time comes from.

    Raises:
        ValueError: Unless exactly one of `scaffold` and `summary_op`, and of `save_steps` and
            `save_secs`, is given.
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str | None = None,
        summary_writer: Any = None,
        scaffold: Any = None,
        summary_op: Any = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if (scaffold is None) == (summary_op is None):
            raise ValueError("Exactly one of scaffold or summary_op must be provided.")
        self._summary_op = summary_op
        self._scaffold = scaffold
        self._output_dir = output_dir
        self._writer = summary_writer
        self._timer = SecondOrStepTimer(every_secs=save_secs, every_steps=save_steps, clock=clock)
        self._step: Any = None
        self._next_step: int | None = None
        self._triggered = False

    def begin(self) -> None:
        """See SessionRunHook."""
        if self._writer is None and self._output_dir:
            self._writer = SummaryWriterCache.get(self._output_dir)
        self._next_step = None
        self._step = global_step_for("SummarySaverHook")

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
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
        fetches: dict[str, Any] = {"global_step": self._step}
        if self._triggered:
            summary_op = self._find_summary_op()
            if summary_op is not None:
                fetches["summary"] = summary_op
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
            for summary in results.get("summary") or ():
                if summary is not None:
                    self._writer.add_summary(summary, step)
        self._next_step = step + 1

    def end(self, session: Session) -> None:
        """See SessionRunHook."""
        if self._writer is not None:
            self._writer.flush()

    def _find_summary_op(self) -> list[Any] | None:
        summary_op = self._summary_op if self._scaffold is None else self._scaffold.summary_op
        if summary_op is None:
            return None
        return list(summary_op) if isinstance(summary_op, (list, tuple)) else [summary_op]
