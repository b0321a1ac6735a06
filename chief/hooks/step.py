"""Hooks that follow the global step: stop at one, count them per second, wait for one.

Follows TensorFlow 1.15, python/training/basic_session_run_hooks.py, but that a stop is exact: the limit
of StopAtStepHook is also the parameter servers' (invariant I5).

Layer: chief.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from globalstep.chief.hooks.timers import SecondOrStepTimer
from globalstep.errors import UnavailableError
from globalstep.files.tensorboard_protos import Summary
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.tf1.graph.graph import GraphKeys, Node, get_default_graph
from globalstep.tf1.ops.summaries import SummaryWriterCache
from globalstep.tf1.sessions.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from globalstep.tf1.variables.training_util import get_global_step
from globalstep.wire.declarations import StopLimit

if TYPE_CHECKING:
    from globalstep.tf1.sessions.coordinator import Coordinator
    from globalstep.tf1.sessions.session import Session


__all__ = ["GlobalStepWaiterHook", "StepCounterHook", "StopAtStepHook", "global_step_for", "step_now"]

_log = logging.getLogger("globalstep")

_WAITER_POLL_SECS = 0.5
_WAITER_LOG_STEPS = 1000
_UNCHANGED_WARNINGS = 5
#: Attributes of train ops of which a step needs several runs.
_SHARED = frozenset(("contribution", "local_rounds"))


def global_step_for(hook: str) -> Any:
    """Give the global step of the default graph, for a hook that cannot do without.

    A run that also pushes reads it before the push, as TensorFlow's read tensor does.

    Args:
        hook: Name of the hook's class, for the message.

    Returns:
        The step's node.

    Raises:
        RuntimeError: If the graph has no global step.
    """
    step = get_global_step()
    if step is None:
        raise RuntimeError(f"Global step should be created to use {hook}.")
    return step


def step_now(session: Session, step: Node) -> int:
    """Read a step where it is counted, outside of a training run.

    A session may answer a run from the values that came back with its own last push; other workers push
    meanwhile, so the sequencer itself is asked.

    Args:
        session: The session below the hooks.
        step: The step's node.

    Returns:
        Its value now.
    """
    steps = session.cluster.global_steps()
    return int(steps[step.op_name] if step.op_name in steps else session.run(step))


class StopAtStepHook(SessionRunHook):
    """Stops training at a global step, exactly.

    On the chief the limit is given to the parameter servers before any worker is let in: once the step has
    come to it they accept no push of any client. (TensorFlow's workers overshoot by up to one push each.)
    A step that rises by more than one a push stops at its first value at the limit or beyond.

    Args:
        num_steps: Number of steps from the step at which the session starts.
        last_step: The step to stop at.

    Raises:
        ValueError: Unless exactly one of the two is given.
    """

    def __init__(self, num_steps: int | None = None, last_step: int | None = None) -> None:
        if num_steps is None and last_step is None:
            raise ValueError("One of num_steps or last_step must be specified.")
        if num_steps is not None and last_step is not None:
            raise ValueError("Only one of num_steps or last_step can be specified.")
        self._num_steps = num_steps
        self._last_step = last_step
        self._step: Any = None

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

    def begin(self) -> None:
        """See SessionRunHook."""
        self._step = global_step_for("StopAtStepHook")

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
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


class StepCounterHook(SessionRunHook):
    """Reports global steps per second, those of all workers together.

    Args:
        every_n_steps: Report every so many global steps.
        every_n_secs: Or every so many seconds.
        output_dir: Where to write the summary `<global step>/sec`; None for none.
        summary_writer: Or the writer to write it with.
        clock: Where time comes from.

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
    ) -> None:
        if (every_n_steps is None) == (every_n_secs is None):
            raise ValueError("exactly one of every_n_steps and every_n_secs should be provided.")
        self._timer = SecondOrStepTimer(every_secs=every_n_secs, every_steps=every_n_steps, clock=clock)
        self._output_dir = output_dir
        self._writer = summary_writer
        self._step: Any = None
        self._tag = ""
        self._shared = False
        self._last_stale: int | None = None
        self._unchanged = 0
        self._warnings_left = _UNCHANGED_WARNINGS

    def begin(self) -> None:
        """See SessionRunHook."""
        if self._writer is None and self._output_dir:
            self._writer = SummaryWriterCache.get(self._output_dir)
        self._step = global_step_for("StepCounterHook")
        trained = get_default_graph().get_collection(GraphKeys.TRAIN_OP)
        self._shared = any(_SHARED.intersection(node.attrs) for node in trained if isinstance(node, Node))
        self._tag = f"{self._step.op.name}/sec"

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
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
        # A step that is made of several contributions, or runs, stands still for some runs.
        self._unchanged = self._unchanged + 1 if stale == self._last_stale and not self._shared else 0
        # Runs that do not wait for their push see the step that many pushes late.
        if self._unchanged > getattr(run_context.session, "pushes_in_flight", 0):
            self._warn_unchanged(stale)
        self._last_stale = stale

    def _report(self, steps_per_sec: float, step: int) -> None:
        if self._writer is not None:
            value = Summary.Value(tag=self._tag, simple_value=steps_per_sec)
            self._writer.add_summary(Summary(value=[value]), step)
        _log.info("%s: %g", self._tag, steps_per_sec)

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


class GlobalStepWaiterHook(SessionRunHook):
    """Holds back this worker's first run until the global step has reached a value.

    Args:
        wait_until_step: The step to wait for; 0 or less waits for nothing.
        clock: Where time comes from.
    """

    def __init__(self, wait_until_step: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self._wait_until_step = wait_until_step
        self._clock = clock
        self._never = threading.Event()
        self._started = False
        self._step: Any = None

    def begin(self) -> None:
        """See SessionRunHook."""
        self._started = False
        self._step = global_step_for("_GlobalStepWaiterHook")

    def before_run(self, run_context: SessionRunContext) -> None:
        """See SessionRunHook: returns when the step has come, or can no longer come.

        Raises:
            UnavailableError: If the process has been asked to end.
        """
        if self._started:
            return
        self._started = True
        if self._wait_until_step <= 0:
            return
        _log.info("Waiting for global step %d before starting training.", self._wait_until_step)
        session = run_context.session
        last_logged = 0
        while (step := step_now(session, self._step)) < self._wait_until_step:
            if session.cluster.job_done():
                return
            if session.cluster.shutdown.asked:
                raise UnavailableError(
                    f"This process has been asked to end; it waited for global step {self._wait_until_step}."
                )
            if step - last_logged > _WAITER_LOG_STEPS:
                _log.info(
                    "Waiting for global step %d before starting training. Current step is %d.",
                    self._wait_until_step,
                    step,
                )
                last_logged = step
            self._clock.wait(self._never, _WAITER_POLL_SECS)
