"""SessionManager: makes sessions whose model is initialized, restored, or waited for.

Follows TensorFlow 1.15, python/training/session_manager.py. What differs: a chief that finds its cluster
running takes over without a restore; waiting polls often, says what it waits for, and ends.

Layer: tf1.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from globalstep.chief.checkpoints.checkpoint_format import read_index
from globalstep.chief.checkpoints.checkpoint_state import get_checkpoint_state, latest_checkpoint
from globalstep.chief.journal import run_lock
from globalstep.chief.journal.journal_keeping import JournalKeeper
from globalstep.chief.sessions.causes import why_no_checkpoint, why_no_chief
from globalstep.chief.sessions.cluster_start import (
    Found,
    announce_return,
    not_serving,
    nothing_left,
    stop_limits,
    survey,
)
from globalstep.chief.sessions.log_recovery import absolute, come_back
from globalstep.chief.sessions.readiness import initialize_own, initialize_rest, why_not_ready
from globalstep.chief.sessions.run_joining import RunOfTask
from globalstep.cluster.cluster import ClusterSpec, session_tasks, target_of
from globalstep.cluster.placement import describe
from globalstep.cluster.run_identity import TaskRun, takes_over
from globalstep.errors import DeadlineExceededError, JobDoneError, OpError, UnavailableError
from globalstep.files.storage import storage_for
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.tf1.graph.graph import Graph, get_default_graph
from globalstep.tf1.sessions.session import Session
from globalstep.tf1.sessions.session_run_hook import SessionRunHook
from globalstep.tf1.variables.graph_program import declarations
from globalstep.tf1.variables.training_util import integer_step
from globalstep.wire.known_progress import KnownProgress
from globalstep.wire.transports import is_in_process, known_target
from globalstep.worker.client.causes import why_no_answer
from globalstep.worker.waits.first_answers import wait_for_answers
from globalstep.worker.waits.polling_wait import PollingWait

if TYPE_CHECKING:
    from globalstep.proto import globalstep_pb2 as pb
    from globalstep.worker.access import ClusterAccess


__all__ = ["SessionManager"]

_log = logging.getLogger("globalstep")

#: A push that is not answered is sent again, under its own id, until the PS task is back: one that comes
#: back has lost its state and says so, and only then is the run started anew. So none is done twice.
_RETRY_SECS = 600.0
_UNREACHABLE = "the parameter servers: "
#: A worker that has waited for so long for a chief looks whether the job came to its end meanwhile.
_ALONE_SECS = 5.0


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
        attend: Called with the client as soon as there is one.
        run: Which run this task is of; by default it has joined none.

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
        attend: Callable[[Any], None] = lambda cluster: None,
        run: RunOfTask | None = None,
    ) -> None:
        if ready_for_local_init_op is not None and local_init_op is None:
            raise ValueError(
                "If you pass a ready_for_local_init_op you must also pass a local_init_op "
                f", ready_for_local_init_op [{ready_for_local_init_op}]"
            )
        self._local_init_op = local_init_op
        self._ready_op = ready_op
        self._ready_for_local_init_op = ready_for_local_init_op
        self._graph = graph if graph is not None else get_default_graph()
        self._local_init_feed_dict = local_init_feed_dict
        self._task = task
        self._clock = clock
        self.admit, self._attend = admit, attend
        self._run = run or RunOfTask(clock)

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
        _check_sources(checkpoint_dir, checkpoint_filename_with_path)
        session = self._session(master, config)
        try:
            client = session.cluster
            _hold(session, master, checkpoint_dir, self._clock)
            mine = self._mine(client, checkpoint_dir, is_chief=True)
            statuses, drops = self._statuses(client, mine, max_wait_secs)
            found = Found.VACANT if drops else survey(statuses)
            if found is Found.RUNNING:
                lives = len(statuses), statuses[0].incarnation
                _log.info("Taking over a running model: all %d PS task(s) are in incarnation %d.", *lives)
                session.compare_with_run()
                self._run.joins(client.run.identity, mine)
            else:
                prefix = self._checkpoint_to_restore(
                    saver, checkpoint_dir, checkpoint_filename_with_path, wait_for_checkpoint, max_wait_secs
                )
                self._begin(session, prefix, expected_tasks or _session_tasks_of(master), mine, drops)
                if prefix is not None:
                    self._restore(session, saver, prefix, checkpoint_dir)
                else:
                    self._initialize(session, init_op, init_feed_dict, init_fn)
                if found is Found.BROKEN or had_session:
                    self._announce(session, statuses, prefix, checkpoint_dir)
            self._make_ready(session, init_op, init_fn)
            self._open(session, hooks)
            if checkpoint_dir:
                client.journal = JournalKeeper(client, str(checkpoint_dir))
                client.journal.start()
        except BaseException:
            session.close()
            raise
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
        _check_sources(checkpoint_dir, checkpoint_filename_with_path)
        session = self._session(master, config)
        try:
            _hold(session, master, checkpoint_dir, self._clock)
            mine = self._mine(session.cluster, checkpoint_dir, is_chief=True)
            statuses, drops = self._statuses(session.cluster, mine, max_wait_secs)
            if drops or survey(statuses) is not Found.RUNNING:
                prefix = self._checkpoint_to_restore(
                    saver, checkpoint_dir, checkpoint_filename_with_path, wait_for_checkpoint, max_wait_secs
                )
                self._begin(session, prefix, _session_tasks_of(master), mine, drops)
                if prefix is None:
                    # As in TensorFlow: the session is the caller's to initialize, but for what is local.
                    self._try_local_init(session)
                    self._open(session, ())
                    return session, False
                self._restore(session, saver, prefix, checkpoint_dir)
            problem = self._try_local_init(session) or self._not_ready(session)
            if problem:
                _log.info("Restoring a checkpoint did not make the model ready: %s", problem)
            self._open(session, ())
            return session, not problem
        except BaseException:
            session.close()
            raise

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
        session = self._session(master, config)
        try:
            mine = self._mine(session.cluster, directory, is_chief=False)
            wait = PollingWait(self._clock, max_wait_secs, session.cluster)
            while problem := self._why_wait(session, mine, initializes_rest):
                silent = problem.startswith(_UNREACHABLE)
                over = why_over() if silent or wait.waited_secs >= _ALONE_SECS else ""
                if over and (silent or over != over_before):
                    raise JobDoneError(f"Nothing is left to do: {over}. Waiting for {problem}")
                if not wait.pause(f"waiting for {problem}", lambda: _why_so_long(session.cluster)):
                    raise DeadlineExceededError(
                        f"Session was not ready after waiting {max_wait_secs:.0f} secs. It waited for {problem}"
                    )
        except BaseException:
            session.close()
            raise
        return session

    def _mine(self, client: ClusterAccess, directory: str | None, is_chief: bool) -> TaskRun:
        """Find out which run this task is of; the client joins no other."""
        mine = self._run.knowledge(absolute(directory), is_chief)
        client.run.means, client.run.accepts = mine.identity, lambda held: not mine.is_other(held)
        return mine

    def _statuses(self, client: ClusterAccess, mine: TaskRun, max_wait_secs: float) -> tuple[list[Any], bool]:
        """Ask every PS task for its status, after having those come back that can.

        Returns:
            The statuses, and whether they are of another run, which is to be dropped.
        """
        statuses = wait_for_answers(client, self._clock, max_wait_secs)
        drops = self._run.look(client, statuses, mine)
        self._run.refuse_second(client)
        self.admit(client)
        if drops:
            return statuses, True
        return come_back(client, statuses, mine.directory, self._clock, max_wait_secs, mine.id), False

    def _session(self, master: Any, config: Any) -> Session:
        target = target_of(master) if isinstance(master, ClusterSpec) else master
        task = self._task or known_target(target).task
        session = Session(target, self._graph, config, reuse_values=True, task=task, retry_secs=_RETRY_SECS)
        # What the process has heard through earlier sessions goes on to the PS tasks, and to the announcement.
        before: KnownProgress | None = self._graph.extras.get(__name__)
        if before is not None:
            session.cluster.run.known_progress.hear_all(before)
        self._graph.extras[__name__] = session.cluster.run.known_progress
        self._attend(session.cluster)
        return session

    def _why_wait(self, session: Session, mine: TaskRun, initializes_rest: bool) -> str:
        """Say what a worker has to wait for; "" when its model is ready."""
        try:
            client = session.cluster
            statuses = client.refresh()
            if self._run.look(client, statuses, mine):
                return f"the chief to begin {mine.identity}; the PS tasks hold another one, of which no member is left"
            self._run.refuse_second(client)
            statuses = come_back(client, statuses, None, self._clock, 0.0)
            self.admit(client)
            problem = not_serving(statuses, client.run.labels)
            if not problem:
                session.compare_with_run()
                problem = initialize_rest(session) if initializes_rest else ""
                problem = problem or self._try_local_init(session) or self._not_ready(session)
            if problem and (over := nothing_left(statuses)):
                raise JobDoneError(f"Nothing is left to do: {over}. This task was waiting for {problem}.")
            if not problem:
                self._run.joins(client.run.identity, mine)
            return problem
        except UnavailableError as error:
            return f"{_UNREACHABLE}{error}"

    def _checkpoint_to_restore(
        self,
        saver: Any,
        directory: str | None,
        prefix: str | None,
        wait_for_checkpoint: bool,
        max_wait_secs: float,
    ) -> str | None:
        if saver is None or not (directory or prefix):
            return None
        if prefix:
            return prefix
        wait = PollingWait(self._clock, max_wait_secs)
        while (newest := latest_checkpoint(str(directory))) is None:
            if not wait_for_checkpoint or not wait.pause(
                f"waiting for a checkpoint in {directory}", lambda: why_no_checkpoint(str(directory))
            ):
                return None
        return newest

    def _begin(
        self, session: Session, prefix: str | None, expected_tasks: Sequence[str], mine: TaskRun, drops: bool
    ) -> None:
        client = session.cluster
        ledger = read_index(storage_for(prefix), prefix).ledger if prefix is not None else b""
        planned = declarations(self._graph, client.shards)
        _log.info("%s", describe(planned, client.run.labels))
        client.begin(
            sequencer=planned.sequencer,
            open=False,
            expected_tasks=tuple(expected_tasks),
            ledger=ledger,
            run=self._run.begins(mine, client.run.known_progress),
            take_over=drops,
        )

    def _restore(self, session: Session, saver: Any, prefix: str, directory: str | None) -> None:
        saver.restore(session, prefix)
        session.restored_from = prefix
        state = get_checkpoint_state(directory) if directory else None
        if state is not None:
            saver.recover_last_checkpoints(state.all_model_checkpoint_paths)

    def _initialize(
        self, session: Session, init_op: Any, init_feed_dict: Any, init_fn: Callable[[Any], Any] | None
    ) -> None:
        if init_op is None and not init_fn and self._local_init_op is None:
            raise RuntimeError("Model is not initialized and no init_op or init_fn or local_init_op was given")
        if init_op is not None:
            session.run(init_op, feed_dict=init_feed_dict)
        if init_fn:
            init_fn(session)

    def _announce(
        self, session: Session, statuses: Sequence[pb.StatusReply], prefix: str | None, directory: str | None
    ) -> None:
        step = integer_step(self._graph)
        if step is not None:
            announce_return(session.cluster, statuses, step.op_name, int(session.run(step)), prefix, directory)

    def _make_ready(self, session: Session, init_op: Any, init_fn: Any) -> None:
        problem = self._try_local_init(session)
        if problem:
            raise RuntimeError(
                "Init operations did not make model ready for local_init.  Init op: "
                f"{_name(init_op)}, init fn: {init_fn}, error: {problem}"
            )
        problem = self._not_ready(session)
        if problem:
            raise RuntimeError(
                f"Init operations did not make model ready.  Init op: {_name(init_op)}, init fn: {init_fn}, "
                f"local_init_op: {_name(self._local_init_op)}, error: {problem}"
            )

    def _open(self, session: Session, hooks: Sequence[SessionRunHook]) -> None:
        """Let everybody in, with the hooks' stop limits in force from that moment."""
        client = session.cluster
        self._run.opens(client)
        step = integer_step(self._graph)
        if step is None or step.op_name not in client.variables:
            client.open(())
            return
        in_force: dict[str, int] = {}
        for status in client.refresh():
            in_force.update(status.limits)
        limits = stop_limits(hooks, step.op_name, int(session.run(step)), in_force)
        client.open(limits)
        for hook in hooks:
            if limits and hasattr(hook, "adopt_limit"):
                hook.adopt_limit(limits[0].last_step)

    def _try_local_init(self, session: Session) -> str:
        """Run local_init_op once the model is ready for it; say what is missing, "" for nothing."""
        problem = initialize_own(session)
        if problem or self._local_init_op is None:
            return problem
        problem = why_not_ready(self._ready_for_local_init_op, session, "Model not ready for local init")
        if not problem:
            session.run(self._local_init_op, feed_dict=self._local_init_feed_dict)
        return problem

    def _not_ready(self, session: Session) -> str:
        """Say what is not initialized; "" when the model is ready."""
        return why_not_ready(self._ready_op, session, "Model not ready")


def _session_tasks_of(master: Any) -> tuple[str, ...]:
    return session_tasks(master) if isinstance(master, ClusterSpec) else known_target(master).session_tasks


def _name(node: Any) -> str:
    return str(getattr(node, "name", node))


def _check_sources(directory: str | None, prefix: str | None) -> None:
    if directory and prefix:
        raise ValueError("Can not provide both checkpoint_dir and checkpoint_filename_with_path.")


def _why_so_long(client: ClusterAccess) -> str:
    """Say why a worker waits, as far as that can be found by asking; "" where it cannot."""
    statuses = client.statuses(timeout_secs=2.0, brief=True)
    answers = [status for status in statuses if not isinstance(status, OpError)]
    if len(answers) < len(statuses):
        return why_no_answer(client)
    return why_no_chief(answers) if not_serving(answers, client.run.labels) else ""


def _hold(session: Session, master: Any, directory: str | None, clock: Clock) -> None:
    """Have the directory until the session ends: PS tasks know of no other job that trains there."""
    if directory:
        own = isinstance(master, str) and is_in_process(master)
        ps = [] if own else [address for address in session.cluster.run.addresses if address]
        session.at_close.callback(run_lock.hold(absolute(directory), clock, ps, bool(ps) and takes_over()))
