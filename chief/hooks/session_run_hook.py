"""SessionRunHook: the five calls around a monitored session's runs, and what passes between them.

Follows TensorFlow 1.15, python/training/session_run_hook.py.

Layer: chief. Imports nothing of globalstep.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class SessionRunArgs(NamedTuple):
    """The fetches, feeds and options that a hook adds to a run.

    Attributes:
        fetches: A structure of nodes to evaluate besides the caller's; None for none.
        feed_dict: Values to feed besides the caller's; no node may be fed twice.
        options: Accepted for TensorFlow programs; without effect.

    >>> SessionRunArgs("loss:0").feed_dict is None
    True
    """

    fetches: Any
    feed_dict: Any = None
    options: Any = None


class SessionRunValues(NamedTuple):
    """The results of a run that a hook gets.

    Attributes:
        results: The values of the hook's own fetches, in their structure; None if it asked for none or
            the run was refused because the job is done.
        options: The options of the run.
        run_metadata: Always None: see ProfilerHook for what a run did.
    """

    results: Any
    options: Any = None
    run_metadata: Any = None


class SessionRunContext:
    """One run, as hooks see it: the caller's arguments, the session, and a way to ask for a stop.

    Args:
        original_args: The caller's fetches and feed_dict.
        session: The session below the hooks; what is run on it reaches no hook.

    Attributes:
        original_args: As given.
        session: As given.
        stop_requested: Whether some hook has asked for a stop during this run.
    """

    def __init__(self, original_args: SessionRunArgs, session: Any) -> None:
        self.original_args = original_args
        self.session = session
        self.stop_requested = False

    def request_stop(self) -> None:
        """Ask for `should_stop()` to become True once every hook's `after_run` has been called."""
        self.stop_requested = True


class SessionRunHook:
    """Base of hooks. Override what is needed; every method here does nothing.

    The calls, in order: `begin` once for the life of the monitored session; `after_create_session` for
    every session made, also after a recovery; `before_run` and `after_run` around each run; `end` once,
    unless the loop ended by an exception other than OutOfRangeError or StopIteration.

    >>> class Count(SessionRunHook):
    ...     runs = 0
    ...     def after_run(self, run_context, run_values):
    ...         self.runs += 1
    """

    def begin(self) -> None:
        """Prepare before the session exists; the last moment at which the graph can grow."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Act on a new session: the graph is frozen, all Variables have values.

        Args:
            session: The new session.
            coord: The Coordinator of its threads.
        """

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Say what to add to the run that is about to happen.

        Args:
            run_context: The run.

        Returns:
            What to fetch and feed besides, or None.
        """
        return None

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Use what the run gave; may call `run_context.request_stop()`.

        Args:
            run_context: The run.
            run_values: The values of this hook's own fetches.
        """

    def end(self, session: Any) -> None:
        """Finish on a session that is still open.

        Args:
            session: The session, for a last run.
        """
