"""TensorFlow's hooks that follow the global step of a graph.

Follows TensorFlow 1.15, python/training/basic_session_run_hooks.py.
"""

from __future__ import annotations

import logging
from typing import Any

from globalstep.chief.hooks.session_run_hook import SessionRunContext, SessionRunHook
from globalstep.chief.hooks.step import StopAtStep
from globalstep.chief.hooks.summaries import StepCounter
from globalstep.chief.sessions.run_model import step_now
from globalstep.errors import UnavailableError
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.tf1.graph.graph import GraphKeys, Node, get_default_graph
from globalstep.tf1.ops.summaries import SummaryWriterCache
from globalstep.tf1.variables.training_util import get_global_step

_log = logging.getLogger("globalstep")

_WAITER_POLL_SECS = 0.5
_WAITER_LOG_STEPS = 1000


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


class StopAtStepHook(StopAtStep):
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

    def begin(self) -> None:
        """See SessionRunHook."""
        self._step = global_step_for("StopAtStepHook")


class StepCounterHook(StepCounter):
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

    def begin(self) -> None:
        """See SessionRunHook."""
        if self._writer is None and self._output_dir:
            self._writer = SummaryWriterCache.get(self._output_dir)
        self._step = global_step_for("StepCounterHook")
        trained = get_default_graph().get_collection(GraphKeys.TRAIN_OP)
        self._shared = any("contribution" in node.attrs for node in trained if isinstance(node, Node))


class GlobalStepWaiterHook(SessionRunHook):
    """Holds back this worker's first run until the global step has reached a value.

    Args:
        wait_until_step: The step to wait for; 0 or less waits for nothing.
        clock: Where time comes from.
    """

    def __init__(self, wait_until_step: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self._wait_until_step = wait_until_step
        self._clock = clock
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
            self._clock.sleep(_WAITER_POLL_SECS)
