"""Hooks about the values of runs: log them, watch them for NaN, feed them, take the final ones.

Follows TensorFlow 1.15, python/training/basic_session_run_hooks.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from globalstep.chief.hooks.session_run_hook import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from globalstep.chief.hooks.timers import SecondOrStepTimer
from globalstep.errors import OpError, OutOfRangeError
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.tf1.graph.graph import GraphKeys, get_default_graph

if TYPE_CHECKING:
    from globalstep.tf1.sessions.session import Session


_log = logging.getLogger("globalstep")

#: Of the Variables that are fetched to be looked at when a loss became NaN, taken as float64; and how many are named.
_MOST_LOOKED_AT_BYTES = 64 << 20
_MOST_NAMED = 3


class LoggingTensorHook(SessionRunHook):
    """Logs values every so many local runs, or seconds, or at the end.

    Args:
        tensors: Tag -> node or name; or a list of nodes or names, which are their own tags.
        every_n_iter: Log every so many runs of this process, from the first on.
        every_n_secs: Or every so many seconds.
        at_end: Log at the end; alone or besides one of the two.
        formatter: Function of {tag: value} to the text to log. Default: "tag = value, ...".
        clock: Where time comes from.

    Raises:
        ValueError: If it is not said when to log, or said twice, or `every_n_iter` is not positive.
    """

    def __init__(
        self,
        tensors: Mapping[str, Any] | Sequence[Any],
        every_n_iter: int | None = None,
        every_n_secs: float | None = None,
        at_end: bool = False,
        formatter: Callable[[dict[Any, Any]], str] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        only_at_end = at_end and every_n_iter is None and every_n_secs is None
        if not only_at_end and (every_n_iter is None) == (every_n_secs is None):
            raise ValueError("either at_end and/or exactly one of every_n_iter and every_n_secs must be provided.")
        if every_n_iter is not None and every_n_iter <= 0:
            raise ValueError(f"invalid every_n_iter={every_n_iter}.")
        if isinstance(tensors, Mapping):
            self._tag_order: list[Any] = sorted(tensors)
            self._tensors: dict[Any, Any] = dict(tensors)
        else:
            self._tag_order = list(tensors)
            self._tensors = {item: item for item in tensors}
        self._formatter = formatter
        self._at_end = at_end
        self._only_at_end = only_at_end
        steps = 1 if only_at_end else every_n_iter
        self._timer = SecondOrStepTimer(every_secs=every_n_secs, every_steps=steps, clock=clock)
        self._iteration = 0
        self._triggered = False
        self._fetches: dict[Any, Any] = {}

    def begin(self) -> None:
        """See SessionRunHook."""
        self._timer.reset()
        self._iteration = 0
        graph = get_default_graph()
        self._fetches = {tag: graph.as_graph_element(item) for tag, item in self._tensors.items()}

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """See SessionRunHook: asks for the values when it is time."""
        self._triggered = not self._only_at_end and self._timer.should_trigger_for_step(self._iteration)
        return SessionRunArgs(self._fetches) if self._triggered else None

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """See SessionRunHook."""
        if self._triggered and run_values.results is not None:
            self._log_values(run_values.results)
        self._iteration += 1

    def end(self, session: Session) -> None:
        """See SessionRunHook."""
        if self._at_end:
            self._log_values(session.run(self._fetches))

    def _log_values(self, values: dict[Any, Any]) -> None:
        elapsed_secs, _ = self._timer.update_last_triggered_step(self._iteration)
        with np.printoptions(suppress=True):
            if self._formatter is not None:
                _log.info("%s", self._formatter(values))
                return
            text = ", ".join(f"{_label(tag)} = {values[tag]!s}" for tag in self._tag_order)
        if elapsed_secs is None:
            _log.info("%s", text)
        else:
            _log.info("%s (%.3f sec)", text, elapsed_secs)


def _label(tag: Any) -> str:
    return tag if isinstance(tag, str) else str(getattr(tag, "name", tag))


class NanLossDuringTrainingError(RuntimeError):
    """The loss became NaN. What is known of it follows TensorFlow's text."""

    def __str__(self) -> str:
        return " ".join(["NaN loss during training.", *map(str, self.args)])


# A traceback shows where a program finds it.
NanLossDuringTrainingError.__module__ = "globalstep.train"


class NanTensorHook(SessionRunHook):
    """Stops when a loss becomes NaN. Infinity passes, as in TensorFlow.

    Args:
        loss_tensor: Node (or its name) to watch.
        fail_on_nan_loss: Raise NanLossDuringTrainingError, or only ask for a stop.
    """

    def __init__(self, loss_tensor: Any, fail_on_nan_loss: bool = True) -> None:
        self._loss = loss_tensor
        self._fail = fail_on_nan_loss

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """See SessionRunHook."""
        return SessionRunArgs(self._loss)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """See SessionRunHook.

        Raises:
            NanLossDuringTrainingError: If the loss is NaN and `fail_on_nan_loss`.
        """
        if run_values.results is None or not np.any(np.isnan(run_values.results)):
            return
        cause = self._known(run_context.session)
        if self._fail:
            _log.error("Model diverged with loss = NaN. %s", cause)
            raise NanLossDuringTrainingError(cause)
        _log.warning("Model diverged with loss = NaN. %s", cause)
        run_context.request_stop()

    def _known(self, session: Session) -> str:
        """Say where it happened: node, task, step, and which Variables have NaN."""
        name = self._loss if isinstance(self._loss, str) else getattr(self._loss, "name", repr(self._loss))
        task = session.cluster.task or "this session"
        outcome = session.last_outcome
        steps = outcome.steps if outcome is not None else session.cluster.global_steps()
        at = ", ".join(f"{step} {value}" for step, value in sorted(steps.items()))
        text = f"{name!r} was NaN in a run of {task}" + (f", at {at}." if at else ".")
        all_looked_at, bad = _variables_with_nan(session)
        if bad:
            return f"{text} NaN is in Variable {', '.join(map(repr, bad))}."
        if all_looked_at:
            return f"{text} No trainable Variable held NaN right after it: look at what the run was fed."
        return text


def _variables_with_nan(session: Session) -> tuple[bool, list[str]]:
    """Look for NaN in trainable Variables, except those too large to fetch; return whether all were looked at."""
    variables = session.graph.get_collection(GraphKeys.TRAINABLE_VARIABLES)
    small: list[Any] = []
    left = _MOST_LOOKED_AT_BYTES // 8
    for variable in variables:
        size = variable.shape.num_elements()
        if size is not None and size <= left:
            left -= size
            small.append(variable)
    try:
        values = session.run(small) if small else []
    except OpError as error:
        _log.debug("Which Variables have NaN could not be read: %s", error)
        return False, []
    bad = [v.op_name for v, value in zip(small, values, strict=True) if np.isnan(value).any()]
    return 0 < len(small) == len(variables), bad[:_MOST_NAMED]


class FinalOpsHook(SessionRunHook):
    """Evaluates something once, at the end of the session.

    Args:
        final_ops: A structure of nodes, or None.
        final_ops_feed_dict: What to feed for it.
    """

    def __init__(self, final_ops: Any, final_ops_feed_dict: Any = None) -> None:
        self._final_ops = final_ops
        self._feed_dict = final_ops_feed_dict
        self._values: Any = None

    @property
    def final_ops_values(self) -> Any:
        """The values, in the structure of `final_ops`; None before the end."""
        return self._values

    def end(self, session: Session) -> None:
        """See SessionRunHook.

        Raises:
            OutOfRangeError: If the nodes depend on an input that has ended.
            StopIteration: The same.
        """
        if self._final_ops is None:
            return
        try:
            self._values = session.run(self._final_ops, feed_dict=self._feed_dict)
        except (OutOfRangeError, StopIteration) as error:
            _log.warning(
                "An OutOfRangeError or StopIteration exception is raised by the code in FinalOpsHook. This "
                "typically means the Ops running by the FinalOpsHook have a dependency back to some input "
                "source, which should not happen. For example, for metrics in final_ops, use their values, "
                "not their update_ops. The error: %s",
                error,
            )
            raise


class FeedFnHook(SessionRunHook):
    """Feeds every run from a function.

    Args:
        feed_fn: Called before each run; gives a feed_dict.
    """

    def __init__(self, feed_fn: Callable[[], Mapping[Any, Any]]) -> None:
        self.feed_fn = feed_fn

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """See SessionRunHook."""
        return SessionRunArgs(fetches=None, feed_dict=self.feed_fn())
