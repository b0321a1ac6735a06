"""ProfilerHook: records what runs spend their time on.

Follows TensorFlow 1.15, python/training/basic_session_run_hooks.py; the files are in the Chrome trace
format, as TensorFlow's are.
"""

from __future__ import annotations

import logging
from typing import Any

from globalstep.chief.hooks.session_run_hook import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from globalstep.chief.hooks.timers import SecondOrStepTimer
from globalstep.chief.sessions.run_model import step_now
from globalstep.files.storage import atomic_write, storage_for
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.tf1.execution.tracing import Trace
from globalstep.tf1.hooks.step import global_step_for

_log = logging.getLogger("globalstep")


class ProfilerHook(SessionRunHook):
    """Writes `timeline-<step>.json` for a run every so often: its pulls, computation and pushes as spans.

    Within a push, each PS task has a row that shows how long it took to apply its part. Open the file at
    https://ui.perfetto.dev or chrome://tracing. The first run is not recorded.

    Args:
        save_steps: Every so many global steps.
        save_secs: Or every so many seconds.
        output_dir: Where the files go; made if need be.
        show_dataflow: Accepted as in TensorFlow.
        show_memory: Accepted as in TensorFlow.
        clock: Where time comes from.

    Raises:
        ValueError: Unless exactly one of `save_steps` and `save_secs` is given.
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str = "",
        show_dataflow: bool = True,
        show_memory: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._output_dir = str(output_dir)
        self._timer = SecondOrStepTimer(every_secs=save_secs, every_steps=save_steps, clock=clock)
        self._clock = clock
        self._step: Any = None
        self._next_step: int | None = None
        self._trace: Trace | None = None

    def begin(self) -> None:
        """See SessionRunHook."""
        self._next_step = None
        self._step = global_step_for("ProfilerHook")

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """See SessionRunHook: records the run when it is time."""
        due = self._next_step is not None and self._timer.should_trigger_for_step(self._next_step)
        # A run that failed has left its own behind.
        self._trace = Trace(run_context.session.cluster.task or "session", self._clock) if due else None
        run_context.session.trace = self._trace
        return SessionRunArgs(self._step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """See SessionRunHook: writes what was recorded."""
        trace, self._trace = self._trace, None
        run_context.session.trace = None
        if run_values.results is None:
            return
        stale = int(run_values.results)
        if self._next_step is None:
            # From here on the steps or seconds are counted.
            self._timer.update_last_triggered_step(stale)
        step = stale + 1
        if trace is not None:
            step = step_now(run_context.session, self._step)
            self._timer.update_last_triggered_step(step)
            self._write(trace, step)
        self._next_step = step + 1

    def _write(self, trace: Trace, step: int) -> None:
        storage = storage_for(self._output_dir)
        path = storage.join(self._output_dir, f"timeline-{step}.json")
        _log.info("Saving timeline for %d into '%s'.", step, path)
        if self._output_dir:
            storage.make_directories(self._output_dir)
        with atomic_write(storage, path) as file:
            file.write(trace.to_json().encode())
