"""MonitoredSession: a session with hooks that initializes, recovers, stops its threads and ends well.

Follows TensorFlow 1.15, python/training/monitored_session.py. What differs: a recovery waits longer each
time and gives up in the end; a run that is refused because the job is done returns normally.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from globalstep.chief.hooks.run_report import RunReport
from globalstep.chief.hooks.session_run_hook import SessionRunHook
from globalstep.chief.sessions.coordinator import Coordinator
from globalstep.chief.sessions.run_model import RunSession
from globalstep.chief.sessions.train_loop import TrainLoop
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.tf1.graph.graph import Graph, GraphKeys, get_collection, get_default_graph
from globalstep.tf1.inputs.queue_runner import start_queue_runners
from globalstep.tf1.sessions.scaffold import Scaffold
from globalstep.tf1.sessions.session_creators import ChiefSessionCreator
from globalstep.tf1.sessions.step_context import StepContext

if TYPE_CHECKING:
    from globalstep.tf1.sessions.session import Session


__all__ = ["MonitoredSession", "SingularMonitoredSession", "StepContext"]


class _MonitoredSession(TrainLoop):
    """What MonitoredSession and SingularMonitoredSession share: a training loop of the default graph."""

    def __init__(
        self,
        session_creator: Any,
        hooks: Sequence[SessionRunHook] | None,
        recover: bool,
        stop_grace_period_secs: float,
        clock: Clock,
        report: RunReport | None = None,
    ) -> None:
        self._graph_was_finalized = get_default_graph().finalized
        super().__init__(session_creator, hooks or (), recover, stop_grace_period_secs, clock, report)

    @property
    def graph(self) -> Graph | None:
        """The graph of the session; None once it is closed."""
        return None if self._session is None else self._session.graph

    def run(
        self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None, options: Any = None, run_metadata: Any = None
    ) -> Any:
        """Run the fetches, with what the hooks add; on a new session if the old one is lost.

        Args:
            fetches: A node, or a structure of nodes.
            feed_dict: Values for placeholders.
            options: Accepted as in TensorFlow.
            run_metadata: Accepted as in TensorFlow.

        Returns:
            The values, in the structure of `fetches`. If the job is done and the push of this run was
            therefore refused: what was computed before the push, None for the rest; `should_stop()` is
            True from then on.

        Raises:
            RuntimeError: After a hook asked for a stop; if two feed one node; if it is closed.
            AbortedError: If the session was lost again and again.
            UnavailableError: The same.
        """
        return self.run_hooked(fetches, feed_dict, options, run_metadata)

    def run_step_fn(self, step_fn: Callable[..., Any]) -> Any:
        """Call a function that runs several times, some of them without hooks.

        Args:
            step_fn: Function of one argument, named `step_context`: a StepContext.

        Returns:
            What it returns.

        Raises:
            ValueError: If its arguments are others.
            StopIteration: If it calls `step_context.request_stop()`.
        """
        names = tuple(inspect.signature(step_fn).parameters)
        if names not in (("step_context",), ("self", "step_context")):
            raise ValueError(
                "`step_fn` may either have one `step_context` argument, or `self` and `step_context` "
                f"arguments if it's an instance method. Got {names} instead."
            )
        return self.run_hooked(act=lambda hooked: step_fn(StepContext(self._session, hooked.run)))

    def _tf_sess(self) -> Session:
        """The session below the hooks."""
        session: Session = self._session
        return session

    def _start_threads(self, session: RunSession, coord: Coordinator) -> None:
        if get_collection(GraphKeys.QUEUE_RUNNERS):
            start_queue_runners(sess=session, coord=coord)

    def _leave_model(self) -> None:
        if not self._graph_was_finalized:
            get_default_graph().finalized = False


class MonitoredSession(_MonitoredSession):
    """A session with hooks that is made anew, from the last checkpoint if need be, when it is lost.

    Args:
        session_creator: Makes the sessions; default ChiefSessionCreator().
        hooks: Called around every run, in this order.
        stop_grace_period_secs: Time for threads to end, and on the chief for the other workers to
            leave, in seconds.
        clock: Where time comes from.
        report: Tells at the end how the run went; it is among the hooks.
    """

    def __init__(
        self,
        session_creator: Any = None,
        hooks: Sequence[SessionRunHook] | None = None,
        stop_grace_period_secs: float = 120,
        clock: Clock = SYSTEM_CLOCK,
        *,
        report: RunReport | None = None,
    ) -> None:
        creator = ChiefSessionCreator() if session_creator is None else session_creator
        super().__init__(creator, hooks, True, stop_grace_period_secs, clock, report)


class SingularMonitoredSession(_MonitoredSession):
    """A session with hooks for one process: chief always, without recovery.

    Args:
        hooks: Called around every run, in this order.
        scaffold: What makes the model ready.
        master: Target of the session.
        config: Configuration of the session.
        checkpoint_dir: Where to restore from.
        stop_grace_period_secs: Time for threads to end, in seconds.
        checkpoint_filename_with_path: A checkpoint to restore instead.
        clock: Where time comes from.
    """

    def __init__(
        self,
        hooks: Sequence[SessionRunHook] | None = None,
        scaffold: Scaffold | None = None,
        master: Any = "",
        config: Any = None,
        checkpoint_dir: str | None = None,
        stop_grace_period_secs: float = 120,
        checkpoint_filename_with_path: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        creator = ChiefSessionCreator(
            scaffold=scaffold,
            master=master,
            config=config,
            checkpoint_dir=checkpoint_dir,
            checkpoint_filename_with_path=checkpoint_filename_with_path,
        )
        super().__init__(creator, hooks, False, stop_grace_period_secs, clock)

    def raw_session(self) -> Session:
        """Give the session below the hooks."""
        return self._tf_sess()
