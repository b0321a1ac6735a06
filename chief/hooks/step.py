"""StopAtStep: stops training at a global step.

Follows TensorFlow 1.15, python/training/basic_session_run_hooks.py, but that a stop is exact: the limit
of StopAtStep is also the parameter servers' (invariant I5).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from globalstep.chief.hooks.session_run_hook import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from globalstep.chief.sessions.run_model import RunSession, step_now
from globalstep.wire.declarations import StopLimit

if TYPE_CHECKING:
    from globalstep.chief.sessions.coordinator import Coordinator


class StopAtStep(SessionRunHook):
    """Stops training at a global step, exactly; see `gs.train.StopAtStepHook`.

    Args:
        num_steps: Number of steps from the step at which the session starts; a fraction is rounded up.
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
        self._num_steps = None if num_steps is None else math.ceil(num_steps)
        self._last_step = None if last_step is None else math.ceil(last_step)
        self._step = step

    @property
    def last_step(self) -> int | None:
        """The step to stop at; None while `num_steps` has not been counted from anything yet."""
        return self._last_step

    def store_limit(self, step_name: str) -> StopLimit:
        """Give the limit as the parameter servers take it.

        Returns:
            An absolute limit once it is known, else a number of steps from now.
        """
        if self._last_step is not None:
            return StopLimit(step_name, last_step=self._last_step)
        return StopLimit(step_name, num_steps=self._num_steps)

    def adopt_limit(self, last_step: int) -> None:
        """Take over the limit that the parameter servers enforce, in place of counting `num_steps`."""
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
        pushed = outcome.steps.get(self._step.op_name, 0) if outcome is not None else 0
        near = max(int(run_values.results) + 1, pushed) >= self._last_step
        if near and step_now(session, self._step) >= self._last_step:
            run_context.request_stop()
