"""SessionManager: makes sessions of a graph whose model is initialized, restored, or waited for.

Follows TensorFlow 1.15, python/training/session_manager.py. What differs: a chief that finds its cluster
running takes over without a restore; waiting polls often, says what it waits for, and ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from globalstep.chief.hooks.session_run_hook import SessionRunHook
from globalstep.chief.sessions.run_joining import RunOfTask
from globalstep.chief.sessions.session_making import SessionMaking
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.tf1.graph.graph import Graph, get_default_graph
from globalstep.tf1.sessions.graph_model import GivenOps, GraphModel
from globalstep.tf1.sessions.session import Session


class SessionManager:
    """Makes sessions that are ready to train.

    Args:
        local_init_op: Operation to run in every new session, after the model has its values.
        ready_op: Node that names what is not initialized; empty when the model is ready.
        ready_for_local_init_op: The same, for what `local_init_op` needs.
        graph: The graph; default the current one.
        recovery_wait_secs: Accepted as in TensorFlow; polls start at 0.1 s and grow to 1 s.
        local_init_run_options: Accepted as in TensorFlow.
        local_init_feed_dict: What to feed for `local_init_op`.
        task: Name of this task, "/job:worker/task:1"; "" where it has none.
        clock: Where time comes from.
        admit: Called with the client when the PS tasks answer; what it raises ends the making of the session.

    Attributes:
        admit: As given; a Supervisor sets its own.
    """

    def __init__(
        self,
        local_init_op: Any = None,
        ready_op: Any = None,
        ready_for_local_init_op: Any = None,
        graph: Graph | None = None,
        recovery_wait_secs: float = 30,
        local_init_run_options: Any = None,
        local_init_feed_dict: Any = None,
        *,
        task: str = "",
        clock: Clock = SYSTEM_CLOCK,
        admit: Callable[[Any], None] = lambda cluster: None,
    ) -> None:
        if ready_for_local_init_op is not None and local_init_op is None:
            raise ValueError(
                "If you pass a ready_for_local_init_op you must also pass a local_init_op "
                f", ready_for_local_init_op [{ready_for_local_init_op}]"
            )
        self._graph = graph if graph is not None else get_default_graph()
        self._readiness = {
            "local_init_op": local_init_op,
            "local_init_feed_dict": local_init_feed_dict,
            "ready_op": ready_op,
            "ready_for_local_init_op": ready_for_local_init_op,
        }
        self._task = task
        self._clock = clock
        self.admit = admit
        self._run = RunOfTask(clock)

    def prepare_session(
        self,
        master: Any,
        init_op: Any = None,
        saver: Any = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        config: Any = None,
        init_feed_dict: Any = None,
        init_fn: Callable[[Any], Any] | None = None,
        *,
        hooks: Sequence[SessionRunHook] = (),
        expected_tasks: Sequence[str] = (),
        had_session: bool = False,
    ) -> Session:
        """Make the chief's session: take over, restore, or initialize; then let the workers in.

        Args:
            master: Target of the session.
            init_op: Operation that initializes the model, run if nothing was restored.
            saver: Restores.
            checkpoint_dir: Restore its newest complete checkpoint, if it has one.
            checkpoint_filename_with_path: Or restore this one.
            wait_for_checkpoint: Wait until there is one.
            max_wait_secs: How long to wait for it, and for PS tasks that do not answer, in seconds.
            config: Configuration of the session.
            init_feed_dict: What to feed for `init_op`.
            init_fn: Function of the session, called after `init_op`.
            hooks: Hooks whose stop limits the parameter servers are to enforce.
            expected_tasks: Names of the tasks that are to take part; by default those that a Server's
                target knows.
            had_session: Whether the caller has had a session before: PS tasks that are vacant have then lost
                what they held.

        Returns:
            A session whose model is ready.

        Raises:
            ValueError: If both a directory and a checkpoint are given.
            RuntimeError: If there is no way to initialize, or the model is not ready after it.
            DeadlineExceededError: If a PS task never answered.
            FailedPreconditionError: If another job trains in the directory.
        """
        model = self._model(config, saver, init_op=init_op, init_feed_dict=init_feed_dict, init_fn=init_fn)
        session: Session = self._making(model).prepare(
            master,
            checkpoint_dir,
            checkpoint_filename_with_path,
            wait_for_checkpoint,
            max_wait_secs,
            hooks=hooks,
            expected_tasks=expected_tasks,
            had_session=had_session,
        )
        return session

    def recover_session(
        self,
        master: Any,
        saver: Any = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        config: Any = None,
    ) -> tuple[Any, bool]:
        """Make a session from a running cluster or a checkpoint, without initializing.

        Args:
            master: Target of the session.
            saver: Restores.
            checkpoint_dir: Restore its newest complete checkpoint, if it has one.
            checkpoint_filename_with_path: Or restore this one.
            wait_for_checkpoint: Wait until there is one.
            max_wait_secs: How long to wait, in seconds.
            config: Configuration of the session.

        Returns:
            The session, and whether its model is ready.

        Raises:
            ValueError: If both a directory and a checkpoint are given.
        """
        model, source = self._model(config, saver), (checkpoint_dir, checkpoint_filename_with_path)
        session = self._making(model).prepare(master, *source, wait_for_checkpoint, max_wait_secs, initializes=False)
        return session, not (model.initialize_own(session) or model.why_not_ready(session))

    def wait_for_session(
        self,
        master: Any,
        config: Any = None,
        max_wait_secs: float = float("inf"),
        *,
        why_over: Callable[[], str] = str,
        over_before: str = "",
        directory: str | None = None,
        initializes_rest: bool = False,
    ) -> Session:
        """Make a worker's session once the chief has made the model ready.

        Quiet for 5 s, then says every 30 s what is missing.

        Args:
            master: Target of the session.
            config: Configuration of the session.
            max_wait_secs: When to give up, in seconds.
            why_over: Asked while parameter servers cannot be reached, or are not ready for some seconds: says how it
                is known that the job is done, "" as long as it is not.
            over_before: What it said when this task started: no news, where a chief may come and begin anew.
            directory: Of the run's checkpoints, if this task sees it.
            initializes_rest: Initialize what a run that is ready has no values for, instead of waiting for them: the
                chief's program does not have it.

        Returns:
            A session whose model is ready.

        Raises:
            FailedPreconditionError: If the PS tasks serve another run, or another process is this task.
            DeadlineExceededError: If the model was not ready in time; the text says what was missing.
            JobDoneError: If the job is done.
        """
        session: Session = self._making(self._model(config)).wait(
            master,
            max_wait_secs,
            why_over=why_over,
            over_before=over_before,
            directory=directory,
            initializes_rest=initializes_rest,
        )
        return session

    def _model(self, config: Any, saver: Any = None, **initial: Any) -> GraphModel:
        return GraphModel(GivenOps(saver=saver, **initial, **self._readiness), config, self._graph)

    def _making(self, model: GraphModel) -> SessionMaking:
        return SessionMaking(model, task=self._task, clock=self._clock, admit=self.admit, run=self._run)
