"""Making of sessions whose model is initialized, restored, or waited for.

A chief that finds its cluster running takes over without a restore; waiting polls often, says what it waits for, and
ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from globalstep.chief.sessions.cluster_start import (
    Found,
    come_back,
    not_serving,
    nothing_left,
    stop_limits,
    survey,
)
from globalstep.chief.sessions.run_joining import RunOfTask, files_of
from globalstep.chief.sessions.run_model import RunModel, RunSession
from globalstep.cluster.cluster import ClusterSpec, session_tasks, target_of
from globalstep.cluster.run_identity import TaskRun, takes_over
from globalstep.errors import DeadlineExceededError, JobDoneError, OpError, UnavailableError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.wire.declarations import StopLimit
from globalstep.wire.known_progress import Known
from globalstep.wire.progress_messages import read_progress
from globalstep.wire.transports import is_in_process, known_target
from globalstep.worker.waits.polling_wait import PollingWait, wait_for_answers

if TYPE_CHECKING:
    from globalstep.chief.sessions.run_files import RunFiles
    from globalstep.worker.client.client import ClusterClient

_log = logging.getLogger("globalstep")

#: A push that is not answered is sent again, under its own id, until the PS task is back: one that comes
#: back has lost its state and says so, and only then is the run started anew. So none is done twice.
_RETRY_SECS = 600.0
_UNREACHABLE = "the parameter servers: "
#: A worker that has waited for so long for a chief looks whether the job came to its end meanwhile.
_ALONE_SECS = 5.0


class SessionMaking:
    """Makes sessions of a model that are ready to train.

    Args:
        model: The model.
        task: Name of this task, "/job:worker/task:1"; "" where it has none.
        clock: Where time comes from.
        admit: Called with the client when the PS tasks answer; what it raises ends the making of the session.
        run: Which run this task is of; by default it has joined none.

    Attributes:
        attend: Called with the client as soon as there is one.
    """

    def __init__(
        self,
        model: RunModel[Any],
        *,
        task: str = "",
        clock: Clock = SYSTEM_CLOCK,
        admit: Callable[[Any], None] = lambda cluster: None,
        run: RunOfTask | None = None,
    ) -> None:
        self._model = model
        self._task = task
        self._clock = clock
        self._admit = admit
        self.attend: Callable[[Any], None] = lambda cluster: None
        self._run = run or RunOfTask(clock)

    def prepare(
        self,
        master: Any,
        checkpoint_dir: str | None = None,
        checkpoint: str | None = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        *,
        hooks: Sequence[Any] = (),
        expected_tasks: Sequence[str] = (),
        had_session: bool = False,
        initializes: bool = True,
        why_over: Callable[[], str] = str,
    ) -> Any:
        """Make the chief's session: take over, restore, or initialize; then let the workers in.

        Arguments and errors are those of `gs.train.SessionManager.prepare_session`; one that does not initialize the
        model may not be ready, and keeps no journal.
        """
        if checkpoint_dir and checkpoint:
            raise ValueError("Can not provide both checkpoint_dir and checkpoint_filename_with_path.")
        files = files_of(str(checkpoint_dir)) if checkpoint_dir else None
        model, session = self._model, self._session(master)
        client: ClusterClient = session.cluster
        try:
            if files is not None:
                # Until the session ends: PS tasks know of no other job that trains in the directory.
                own = isinstance(master, str) and is_in_process(master)
                ps = [] if own else [address for address in client.run.addresses if address]
                alone = own and session.trains_alone
                session.at_close.callback(files.hold(self._clock, ps, bool(ps) and takes_over(), alone))
            mine = self._mine(client, files, is_chief=True)
            statuses = wait_for_answers(client, self._clock, max_wait_secs, why_over)
            # Of another run, which is dropped.
            drops = self._run.look(client, statuses, mine)
            self._run.refuse_second(client)
            self._admit(client)
            if not drops:
                statuses = come_back(client, statuses, mine.directory, self._clock, max_wait_secs, mine.id)
            state = Found.VACANT if drops else survey(statuses)
            if state is Found.RUNNING:
                lives = len(statuses), statuses[0].incarnation
                _log.info("Taking over a running model: all %d PS task(s) are in incarnation %d.", *lives)
                model.compare_with_run(session)
                self._run.joins(client.run.identity, mine)
            else:
                prefix = self._checkpoint_to_restore(files, checkpoint, wait_for_checkpoint, max_wait_secs)
                if not expected_tasks:
                    known = isinstance(master, ClusterSpec)
                    expected_tasks = session_tasks(master) if known else known_target(master).session_tasks
                self._begin(session, prefix, tuple(expected_tasks), mine, drops)
                if prefix is not None:
                    model.restore(session, prefix)
                    session.restored_from = prefix
                elif initializes:
                    model.initialize(session)
                if initializes and (state is Found.BROKEN or had_session):
                    self._announce(session, statuses, prefix)
            if initializes:
                model.make_ready(session)
            self._run.opens(client)
            # Everybody is let in, with the hooks' stop limits in force from that moment.
            step, limits = model.step, list[StopLimit]()
            if step is not None and step.op_name in client.variables:
                in_force: dict[str, int] = {}
                for status in client.refresh():
                    in_force.update(status.limits)
                limits = stop_limits(hooks, step.op_name, int(session.run(step)), in_force)
            client.open(limits)
            for hook in hooks:
                if limits and hasattr(hook, "adopt_limit"):
                    hook.adopt_limit(limits[0].last_step)
            if files is not None and initializes:
                files.keep_journal(client)
        except BaseException:
            session.close()
            raise
        return session

    def wait(
        self,
        master: Any,
        max_wait_secs: float = float("inf"),
        *,
        why_over: Callable[[], str] = str,
        over_before: str = "",
        directory: str | None = None,
        initializes_rest: bool = False,
    ) -> Any:
        """Make a worker's session once the chief has made the model ready.

        Quiet for 5 s, then says every 30 s what is missing. Arguments and errors are those of
        `gs.train.SessionManager.wait_for_session`.
        """
        session = self._session(master)
        try:
            mine = self._mine(session.cluster, files_of(directory) if directory else None, is_chief=False)
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

    def _mine(self, client: ClusterClient, files: RunFiles | None, is_chief: bool) -> TaskRun:
        """Find out which run this task is of; the client joins no other."""
        mine = self._run.knowledge("" if files is None else files.absolute, is_chief)
        client.run.means, client.run.accepts = mine.identity, lambda held: not mine.is_other(held)
        return mine

    def _session(self, master: Any) -> Any:
        target = target_of(master) if isinstance(master, ClusterSpec) else master
        session = self._model.session(target, self._task or known_target(target).task, _RETRY_SECS)
        # What the process has heard through earlier sessions goes on to the PS tasks, and to the announcement.
        progress = session.cluster.run.known_progress
        progress.hear_all(self._model.progress)
        self._model.progress = progress
        self.attend(session.cluster)
        return session

    def _why_wait(self, session: RunSession, mine: TaskRun, initializes_rest: bool) -> str:
        """Say what a worker has to wait for; "" when its model is ready."""
        try:
            client = session.cluster
            statuses = client.refresh()
            if self._run.look(client, statuses, mine):
                return (
                    f"the chief to begin {mine.identity}; the PS tasks hold another one, and no member of that is left"
                )
            self._run.refuse_second(client)
            statuses = come_back(client, statuses, None, self._clock, 0.0)
            self._admit(client)
            problem = not_serving(statuses, client.run.labels)
            if not problem:
                model = self._model
                model.compare_with_run(session)
                problem = model.initialize_rest(session) if initializes_rest else ""
                problem = problem or model.initialize_own(session) or model.why_not_ready(session)
            if problem and (over := nothing_left(statuses)):
                raise JobDoneError(f"Nothing is left to do: {over}. This task was waiting for {problem}.")
            if not problem:
                self._run.joins(client.run.identity, mine)
            return problem
        except UnavailableError as error:
            return f"{_UNREACHABLE}{error}"

    def _checkpoint_to_restore(
        self, files: RunFiles | None, prefix: str | None, wait_for_checkpoint: bool, max_wait_secs: float
    ) -> str | None:
        if not self._model.restores:
            return None
        if prefix or files is None:
            return prefix or None
        wait = PollingWait(self._clock, max_wait_secs)
        while (newest := files.newest()) is None:
            if not wait_for_checkpoint or not wait.pause(
                f"waiting for a checkpoint in {files.directory}", files.why_none
            ):
                return None
        return newest

    def _begin(
        self, session: RunSession, prefix: str | None, expected_tasks: Sequence[str], mine: TaskRun, drops: bool
    ) -> None:
        client = session.cluster
        client.begin(
            sequencer=self._model.declarations(client.shards).sequencer,
            open=False,
            expected_tasks=expected_tasks,
            ledger=files_of(prefix).ledger(prefix) if prefix is not None else b"",
            run=self._run.begins(mine, client.run.known_progress),
            take_over=drops,
        )

    def _announce(self, session: RunSession, statuses: Sequence[pb.StatusReply], prefix: str | None) -> None:
        """Say that training goes back, from where to where and why.

        From where is known exactly from a sequencer that was there when the incarnation ended. Else it is at least what
        this process and other clients have heard.
        """
        step, client = self._model.step, session.cluster
        if step is None:
            return
        step_after = int(session.run(step))
        for status in (*statuses, *client.statuses(brief=True)):
            if not isinstance(status, OpError):
                read_progress(client.run.known_progress, status.told, trusted=True)
        known = client.run.known_progress.before(client.incarnation)
        newest = known[max(known)] if known else Known()
        lost = [label for label, s in zip(client.run.labels, statuses, strict=True) if s.state == pb.STATE_VACANT]
        before = "a step that no task here has heard of"
        if step.op_name in newest.steps:
            before = f"{'' if newest.last else 'at least '}step {newest.steps[step.op_name]}"
        whose = "its" if len(lost) == 1 else "their"
        cause = f"{', '.join(lost)} lost {whose} state." if lost else "An earlier start had not come to its end."
        source = f"checkpoint {prefix}" if prefix else "the initial values, since there is no checkpoint"
        _log.warning("%s All PS tasks go back together, from %s to step %d, to %s.", cause, before, step_after, source)


def _why_so_long(client: ClusterClient) -> str:
    """Say why a worker waits, as far as that can be found by asking; "" where it cannot."""
    from globalstep.chief.sessions.causes import why_no_chief
    from globalstep.worker.client.causes import why_no_answer

    statuses = client.statuses(timeout_secs=2.0, brief=True)
    answers = [status for status in statuses if not isinstance(status, OpError)]
    if len(answers) < len(statuses):
        return why_no_answer(client)
    return why_no_chief(answers) if not_serving(answers, client.run.labels) else ""
