"""Supervisor: how scripts from before MonitoredTrainingSession train.

Follows TensorFlow 1.15, python/training/supervisor.py; new programs use MonitoredTrainingSession.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from globalstep.chief.sessions.chief_role import ChiefClaim, NotChiefError
from globalstep.chief.sessions.coordinator import Coordinator
from globalstep.chief.sessions.other_tasks import OtherTasks, await_others
from globalstep.chief.sessions.run_model import step_now
from globalstep.errors import AbortedError, JobDoneError, OpError, UnavailableError
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.tf1.graph.graph import Graph, GraphKeys, get_collection, get_default_graph
from globalstep.tf1.graph.write_graph import write_graph
from globalstep.tf1.hooks.checkpoint import saver_from
from globalstep.tf1.ops.summaries import FileWriter, SessionLog
from globalstep.tf1.ops.summary_ops import merge_all
from globalstep.tf1.sessions.looper_thread import LooperThread
from globalstep.tf1.sessions.saver import Saver
from globalstep.tf1.sessions.scaffold import Scaffold
from globalstep.tf1.sessions.session_creators import saved_term
from globalstep.tf1.sessions.session_manager import SessionManager
from globalstep.tf1.sessions.supervisor_services import SVStepCounterThread, SVSummaryThread, SVTimerCheckpointThread
from globalstep.tf1.variables.training_util import integer_step
from globalstep.tf1.variables.variable_collections import (
    global_variables,
    global_variables_initializer,
    report_uninitialized_variables,
)
from globalstep.worker.client.candidate import Candidate
from globalstep.worker.client.client import connect

if TYPE_CHECKING:
    from globalstep.tf1.sessions.session import Session
    from globalstep.worker.client.client import ClusterClient


_log = logging.getLogger("globalstep")

#: Silence of all PS tasks after which a chief that waits for the others takes them for ended. Longer than a start.
_GONE_SECS = 15.0


class Supervisor:
    """Prepares a session, runs its services (checkpoints, summaries, step counter), and stops all.

    Args:
        graph: The graph; default the current one. It is frozen.
        ready_op: Node that names what is not initialized.
        ready_for_local_init_op: The same, for what `local_init_op` needs.
        is_chief: Whether this task initializes, restores and saves.
        init_op: Operation that initializes the model.
        init_feed_dict: What to feed for it.
        local_init_op: Operation to run in every session.
        logdir: Where checkpoints and event files go; None or "" for neither.
        summary_op: Merged summaries to write; None for none by the Supervisor itself.
        saver: Saves; None for no checkpoints.
        global_step: The step; default the graph's.
        save_summaries_secs: Seconds between summaries; 0 for none.
        save_model_secs: Seconds between checkpoints; 0 for none.
        recovery_wait_secs: Accepted as in TensorFlow.
        stop_grace_secs: Time for threads to end, in seconds.
        checkpoint_basename: Name of the checkpoints before "-<step>".
        session_manager: Makes the session; default one of these arguments.
        summary_writer: Writes summaries; default a FileWriter on `logdir`; None for none.
        init_fn: Function of the session, called after `init_op`.
        local_init_run_options: Accepted as in TensorFlow.
        clock: Where time comes from.

    Attributes:
        coord: The Coordinator of all its threads.
        save_path: Path of the checkpoints without their step; None on other tasks than the chief.
        is_chief: As given; False once another task of the job that says so, too, has turned out to be the chief.

    The arguments of the same names, or what was taken in their place, are attributes too.
    """

    #: Says that an argument was not given, where None means "none".
    USE_DEFAULT: Any = 0

    def __init__(
        self,
        graph: Graph | None = None,
        ready_op: Any = USE_DEFAULT,
        ready_for_local_init_op: Any = USE_DEFAULT,
        is_chief: bool = True,
        init_op: Any = USE_DEFAULT,
        init_feed_dict: Mapping[Any, Any] | None = None,
        local_init_op: Any = USE_DEFAULT,
        logdir: str | None = None,
        summary_op: Any = USE_DEFAULT,
        saver: Any = USE_DEFAULT,
        global_step: Any = USE_DEFAULT,
        save_summaries_secs: float = 120,
        save_model_secs: float = 600,
        recovery_wait_secs: float = 30,
        stop_grace_secs: float = 120,
        checkpoint_basename: str = "model.ckpt",
        session_manager: SessionManager | None = None,
        summary_writer: Any = USE_DEFAULT,
        init_fn: Callable[[Any], Any] | None = None,
        local_init_run_options: Any = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.graph = graph if graph is not None else get_default_graph()
        self.is_chief = is_chief
        self.init_feed_dict = init_feed_dict
        self.save_summaries_secs = save_summaries_secs
        self.save_model_secs = save_model_secs
        self.clock = clock
        self.coord = Coordinator(clock=clock)
        self._claim = ChiefClaim(Candidate(configured=is_chief), clock)
        self._init_fn = init_fn
        # Flags that are not given are empty.
        self._logdir = logdir = logdir or None
        self._stop_grace_secs = stop_grace_secs
        with self.graph.as_default():
            self.ready_op = _or_default(ready_op, GraphKeys.READY_OP, report_uninitialized_variables)
            self.ready_for_local_init_op = _or_default(
                ready_for_local_init_op, GraphKeys.READY_FOR_LOCAL_INIT_OP, lambda: None
            )
            self.init_op = _or_default(init_op, GraphKeys.INIT_OP, global_variables_initializer)
            self.local_init_op = _or_default(local_init_op, GraphKeys.LOCAL_INIT_OP, Scaffold.default_local_init_op)
            self.global_step: Any = integer_step(self.graph) if global_step is Supervisor.USE_DEFAULT else global_step
            self.saver = _default_saver() if saver is Supervisor.USE_DEFAULT else saver
            self.summary_op = _or_default(summary_op, GraphKeys.SUMMARY_OP, merge_all) if is_chief else None
        writes = is_chief and logdir is not None
        self.save_path = os.path.join(str(logdir), checkpoint_basename) if writes else None
        if summary_writer is Supervisor.USE_DEFAULT:
            summary_writer = FileWriter(str(logdir)) if writes else None
        self.summary_writer = summary_writer
        self.session_manager = session_manager or SessionManager(
            local_init_op=self.local_init_op,
            ready_op=self.ready_op,
            ready_for_local_init_op=self.ready_for_local_init_op,
            graph=self.graph,
            recovery_wait_secs=recovery_wait_secs,
            local_init_run_options=local_init_run_options,
            clock=clock,
        )
        self._session: Any = None
        # Whether the standard services run, and whether nobody else trains in this session any more.
        self._serves = self._is_alone = False
        self.graph.finalize()

    def prepare_or_wait_for_session(
        self,
        master: Any = "",
        config: Any = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        start_standard_services: bool = True,
    ) -> Any:
        """Make the session: on the chief initialize, restore or take over; on others wait.

        Args:
            master: Target of the session.
            config: Configuration of the session.
            wait_for_checkpoint: Wait until there is a checkpoint to restore.
            max_wait_secs: When to give up waiting, in seconds.
            start_standard_services: Start the graph's queue runners, and on the chief checkpoints,
                summaries and the step counter.

        Returns:
            A session whose model is ready.

        Raises:
            SystemExit: With code 0, where the job is declared done while this task waits for its model to be ready.
        """
        # One Supervisor may make one session after another.
        self.coord.clear_stop()
        if self.summary_writer is not None:
            self.summary_writer.reopen()
        session = self._chief_session(master, config, wait_for_checkpoint, max_wait_secs) if self.is_chief else None
        if session is None:
            try:
                session = self.session_manager.wait_for_session(
                    master,
                    config=config,
                    max_wait_secs=max_wait_secs,
                    directory=self._logdir,
                    initializes_rest=self._claim.beside,
                )
            except JobDoneError as done:
                # There is no session to give, and loops that would not ask should_stop() come after it.
                _log.warning("%s This process ends.", done)
                raise SystemExit(0) from done
        self._session, self._serves, self._is_alone = session, False, False
        if start_standard_services:
            if self.is_chief:
                self.start_standard_services(session)
            self.start_queue_runners(session)
        return session

    @contextlib.contextmanager
    def managed_session(
        self,
        master: Any = "",
        config: Any = None,
        start_standard_services: bool = True,
        close_summary_writer: bool = True,
    ) -> Iterator[Any]:
        """Give a session for a `with` block, and stop everything after it.

        An exception of the block stops the services and is raised again, but for OutOfRangeError, which
        ends the block as done: an input that has ended, or a push after the end of the job.

        Args:
            master: Target of the session.
            config: Configuration of the session.
            start_standard_services: See `prepare_or_wait_for_session`.
            close_summary_writer: Close the writer at the end.
        """
        try:
            yield self.prepare_or_wait_for_session(
                master=master, config=config, start_standard_services=start_standard_services
            )
        except Exception as error:
            self.request_stop(error)
        finally:
            try:
                # Raises what the block or a service reported.
                self.stop(close_summary_writer=close_summary_writer)
            finally:
                session, self._session = self._session, None
                if session is not None:
                    session.close()

    def start_standard_services(self, sess: Any) -> list[LooperThread]:
        """Start the chief's services: summaries, the step counter, checkpoints.

        Args:
            sess: The session.

        Returns:
            Their threads; none without a `logdir`.

        Raises:
            RuntimeError: On another task than the chief.
        """
        if not self.is_chief:
            raise RuntimeError(
                "Only chief supervisor can start standard services. Because only chief supervisors can write events."
            )
        if not self._logdir:
            _log.warning("Standard services need a 'logdir' passed to the SessionManager")
            return []
        self._serves = True
        threads: list[LooperThread] = []
        if self.summary_writer is not None:
            if self.global_step is not None:
                start = SessionLog(status=SessionLog.START)
                self.summary_writer.add_session_log(start, int(sess.run(self.global_step)))
            if self.save_summaries_secs and self.summary_op is not None:
                threads.append(SVSummaryThread(self, sess))
            if self.save_summaries_secs and self.global_step is not None:
                threads.append(SVStepCounterThread(self, sess))
        if self.saver is not None and self.save_model_secs:
            threads.append(SVTimerCheckpointThread(self, sess))
        for thread in threads:
            thread.start()
        return threads

    def start_queue_runners(self, sess: Any, queue_runners: Sequence[Any] | None = None) -> list[Any]:
        """Start the threads of queue runners.

        Args:
            sess: The session.
            queue_runners: Which; default those of the graph.

        Returns:
            The threads.
        """
        if queue_runners is None:
            queue_runners = self.graph.get_collection(GraphKeys.QUEUE_RUNNERS)
        threads: list[Any] = []
        for runner in queue_runners:
            threads.extend(runner.create_threads(sess, coord=self.coord, daemon=True, start=True))
        return threads

    def loop(
        self,
        timer_interval_secs: float | None,
        target: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> LooperThread:
        """Call a function at intervals in a thread that stops with the Supervisor.

        Args:
            timer_interval_secs: Seconds between calls; None for no pause.
            target: What to call.
            args: Positional arguments.
            kwargs: Named arguments.

        Returns:
            The started thread.
        """
        looper = LooperThread(
            self.coord, timer_interval_secs, target=target, args=args, kwargs=kwargs, clock=self.clock
        )
        looper.start()
        return looper

    def stop(
        self, threads: Sequence[Any] | None = None, close_summary_writer: bool = True, ignore_live_threads: bool = False
    ) -> None:
        """Stop the services, wait for their threads; the chief declares the job done if all went well.

        The chief first waits until nobody else trains, and goes on to save: in TensorFlow its stop ends nobody else.

        Args:
            threads: Threads to wait for besides.
            close_summary_writer: Close the writer afterwards.
            ignore_live_threads: Do not fail because of threads that outlive the grace period.

        Raises:
            RuntimeError: If threads still run after the grace period.
            BaseException: What a thread reported.
        """
        try:
            try:
                if self._session is not None and self._session.closed:
                    self.coord.request_stop()  # there is nothing that the services could work with
                if self.coord.should_stop():
                    self._join(threads, ignore_live_threads)
                self._await_others()
            finally:
                self.coord.request_stop()
            self._join(threads, ignore_live_threads)
            self._declare_done()
        finally:
            if close_summary_writer and self.summary_writer is not None:
                if not self.summary_writer.closed:
                    self.summary_writer.add_session_log(SessionLog(status=SessionLog.STOP))
                self.summary_writer.close()

    def request_stop(self, ex: Any = None) -> None:
        """Ask all threads to stop.

        Args:
            ex: An exception to report, or what sys.exc_info() returned.
        """
        self.coord.request_stop(ex)

    def should_stop(self) -> bool:
        """Say whether the loop should end: a stop was requested, or the job is done."""
        session = self._session
        done = session is not None and not session.closed and session.cluster.job_done()
        return done or self.coord.should_stop()

    def stop_on_exception(self) -> contextlib.AbstractContextManager[None]:
        """Give a context that turns an exception into a stop of all threads."""
        return self.coord.stop_on_exception()

    def wait_for_stop(self) -> None:
        """Wait until a stop is requested."""
        self.coord.wait_for_stop()

    def summary_computed(self, sess: Any, summary: Any, global_step: int | None = None) -> None:
        """Write a summary that the program computed.

        Args:
            sess: The session.
            summary: A Summary, serialized or not.
            global_step: Its step; default the present one.

        Raises:
            RuntimeError: Without a summary writer.
        """
        if self.summary_writer is None:
            raise RuntimeError("Writing a summary requires a summary writer.")
        if global_step is None and self.global_step is not None:
            global_step = int(sess.run(self.global_step))
        self.summary_writer.add_summary(summary, global_step)

    # TensorFlow's older names.
    PrepareSession = prepare_or_wait_for_session
    StartStandardServices = start_standard_services
    StartQueueRunners = start_queue_runners
    Loop = loop
    Stop = stop
    RequestStop = request_stop
    ShouldStop = should_stop
    StopOnException = stop_on_exception
    WaitForStop = wait_for_stop
    SummaryComputed = summary_computed

    def _chief_session(self, master: Any, config: Any, wait_for_checkpoint: bool, max_wait_secs: float) -> Any:
        """Make the chief's session; None where another task is the chief: this one is a worker from now on."""
        self.session_manager.admit = self._admit
        try:
            session = self.session_manager.prepare_session(
                master,
                init_op=self.init_op,
                saver=self.saver,
                checkpoint_dir=self._logdir,
                wait_for_checkpoint=wait_for_checkpoint,
                max_wait_secs=max_wait_secs,
                config=config,
                init_feed_dict=self.init_feed_dict,
                init_fn=self._init_fn,
            )
        except NotChiefError:
            self.is_chief = False
            return None
        self._write_graph()
        return session

    def _admit(self, cluster: ClusterClient) -> None:
        if self.is_chief:
            self._claim.admit(cluster, saved_term(self._logdir))

    def _write_graph(self) -> None:
        if self._logdir:
            write_graph(self.graph, self._logdir, "graph.pbtxt")
        if self.summary_writer is not None:
            self.summary_writer.add_graph(self.graph)

    def _join(self, threads: Sequence[Any] | None, ignore_live_threads: bool) -> None:
        self.coord.join(threads, stop_grace_period_secs=self._stop_grace_secs, ignore_live_threads=ignore_live_threads)

    def _await_others(self) -> None:
        """Keep the chief's duties, though its own loop is over, until nobody else trains.

        Raises:
            AbortedError: If a PS task has lost what was trained meanwhile.
        """
        session = self._session
        if not self.is_chief or self._is_alone or session is None:
            return
        if self.coord.should_stop() and not session.closed:
            self.coord.clear_stop()  # the services of before have ended with this task's own data
            if self._serves:
                self.start_standard_services(session)
        with self._client_of(session) as client:
            if client is None:
                return
            first = self._step_of(session)
            stopped = self.coord.should_stop
            await_others(_Others(client, self.clock), lambda: session.closed or not stopped())
            self._is_alone = True
            if session.closed or stopped():
                return
            if self.save_path and self.saver is not None and self.save_model_secs and first != self._step_of(session):
                _log.info("The others have trained on meanwhile: saving a checkpoint to path %s", self.save_path)
                self.saver.save(session, self.save_path, global_step=self.global_step)

    def _step_of(self, session: Session) -> int | None:
        return None if session.closed or self.global_step is None else step_now(session, self.global_step)

    @contextlib.contextmanager
    def _client_of(self, session: Session) -> Iterator[Any]:
        """Give the chief's client: the session's, or another one where the program has closed that.

        Many write `with sv.prepare_or_wait_for_session(...)`, which closes it before sv.stop(). None for a PS of a
        session's own, which went with it.
        """
        if not session.closed:
            yield session.cluster
        elif session.sess_str:
            with contextlib.closing(connect(session.sess_str, clock=self.clock)) as client:
                client.refresh()
                client.chief_lease.candidate = self._claim.candidate
                yield client
        else:
            yield None

    def _declare_done(self) -> None:
        session = self._session
        if not self.is_chief or session is None:
            return
        try:
            with self._client_of(session) as client:
                if client is not None:
                    client.finish()
                    client.chief_lease.given_up_on_leaving = True
        except OpError as error:
            _log.warning("Could not declare the job done: %s", error)
        if session.closed:
            self._session = None


def _or_default(value: Any, collection: str, default: Callable[[], Any]) -> Any:
    """Give what was given, what the collection names, or the default, which joins the collection."""
    if value is not Supervisor.USE_DEFAULT:
        return value
    items = get_collection(collection)
    if items:
        return items[0]
    made = default()
    if made is not None:
        get_default_graph().add_to_collection(collection, made)
    return made


def _default_saver() -> Any:
    if get_collection(GraphKeys.SAVERS):
        return saver_from()
    if not global_variables():
        return None
    saver = Saver()
    get_default_graph().add_to_collection(GraphKeys.SAVERS, saver)
    return saver


class _Others(OtherTasks):
    """The tasks that a chief waits for after its own loop; for a while also PS tasks that do not answer."""

    # Since when a PS task does not answer; None while all do.
    _gone_since: float | None = None

    def look(self) -> bool:
        try:
            moved = super().look()
        except UnavailableError:
            # One is started again; or a program has ended them all, as some do when their workers say so.
            now = self.clock.monotonic()
            self._gone_since = now if self._gone_since is None else self._gone_since
            returns = now - self._gone_since < _GONE_SECS
            self.set(["PS tasks that do not answer"] if returns else [], returns)
            self.silent_secs = 0.0
            return False
        self._gone_since = None
        return moved


def basic_train_loop(
    supervisor: Supervisor,
    train_step_fn: Callable[..., Any],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    master: Any = "",
) -> None:
    """Call a function again and again until training stops, and anew where a task of the cluster was restarted.

    Args:
        supervisor: Makes the session, and runs the services.
        train_step_fn: Called as `train_step_fn(session, *args, **kwargs)`.
        args: Its further arguments.
        kwargs: Its arguments by name.
        master: What the session connects to.
    """
    while True:
        try:
            with supervisor.managed_session(master) as session:
                while not supervisor.should_stop():
                    train_step_fn(session, *(args or ()), **(kwargs or {}))
            return
        except AbortedError as error:
            _log.info("The session is made anew: %s", error)
