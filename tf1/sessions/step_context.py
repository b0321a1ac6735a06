"""StepContext: the argument of the function of `MonitoredSession.run_step_fn`.

Follows TensorFlow 1.15, python/training/monitored_session.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from globalstep.chief.sessions.train_loop import StopRequested

if TYPE_CHECKING:
    from globalstep.tf1.sessions.session import Session


class StepContext:
    """The argument of a `step_fn`: the session below the hooks, runs with hooks, and a way to end the loop.

    Args:
        session: The session below the hooks.
        run_with_hooks_fn: The monitored session's `run`.
    """

    def __init__(self, session: Session, run_with_hooks_fn: Callable[..., Any]) -> None:
        self._session = session
        self._run_with_hooks_fn = run_with_hooks_fn

    @property
    def session(self) -> Session:
        """The session below the hooks."""
        return self._session

    def run_with_hooks(self, *args: Any, **kwargs: Any) -> Any:
        """Run as MonitoredSession.run does."""
        return self._run_with_hooks_fn(*args, **kwargs)

    def request_stop(self) -> None:
        """End the loop around `run_step_fn`.

        Raises:
            StopIteration: Always; the monitored session's `with` block takes it as a normal end.
        """
        raise StopRequested("step_fn has requested the iterations to stop.")
