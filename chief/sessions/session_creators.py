"""Session creators of a training loop, the chief's and the other workers': how sessions begin, and what ends them.

A job ends at its step limit, when the chief's program says so, or when all workers have left. At the limit the chief
saves before its loop hears of it, and the others wait for that: a PS task that dies in between takes all back to the
newest checkpoint, and they train the rest again. docs/design/life-of-a-run.md, "Stop", has the rules.

Layer: chief.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from globalstep.chief.hooks.session_run_hook import SessionRunHook
from globalstep.chief.sessions.cluster_start import stop_limits
from globalstep.chief.sessions.run_joining import RunOfTask, files_of
from globalstep.chief.sessions.run_model import RunModel, RunSession
from globalstep.chief.sessions.session_making import SessionMaking
from globalstep.errors import AbortedError, OpError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.worker.waits.polling_wait import PollingWait

if TYPE_CHECKING:
    from globalstep.worker.client.client import ClusterClient

_log = logging.getLogger("globalstep")

#: How long a worker waits for the chief, and the chief for the PS tasks.
WORKER_MAX_WAIT_SECS = 30 * 60
CHIEF_MAX_WAIT_SECS = 7200


def look(cluster: ClusterClient) -> list[pb.StatusReply]:
    """Ask every PS task how the run stands.

    Raises:
        UnavailableError: If one does not answer.
        AbortedError: If one has lost what this session trained, so that there is no telling how far the run is.
    """
    statuses: list[Any] = list(cluster.statuses(brief=True))
    for status in statuses:
        if isinstance(status, OpError):
            raise status
    labels = cluster.run.labels
    lost = [label for label, one in zip(labels, statuses, strict=True) if one.incarnation != cluster.incarnation]
    if lost:
        raise AbortedError(f"{', '.join(lost)} lost what this session trained, before the end of the job.")
    return statuses


def is_at_limit(statuses: Sequence[pb.StatusReply]) -> bool:
    """Say whether a step has reached its limit, so that there is nothing left to do but to save it."""
    return any(status.steps.get(step, last - 1) >= last for status in statuses for step, last in status.limits.items())


def is_done(statuses: Sequence[pb.StatusReply]) -> bool:
    """Say whether the chief has declared the job done."""
    return any(status.state == pb.STATE_DONE for status in statuses)


class SessionCreator:
    """Base of session creators: makes a session, and does what has to be done at its end.

    Attributes:
        admit: Called with the cluster's client when it can be reached; what it raises ends the making of a session.
        acts: Whether the session that was made last is the chief's.
        may_outdate: Whether `outdated` is to be asked before each run.
    """

    admit: Callable[[Any], None] = staticmethod(lambda cluster: None)
    may_outdate = False
    acts = False
    _attend: Callable[[Any], None] = staticmethod(lambda cluster: None)

    def watch_clients(self, attend: Callable[[Any], None]) -> None:
        """Called with each client as soon as it is there, before any wait."""
        self._attend = attend

    def create_session(self) -> Any:
        """Make a session that is ready to run."""
        raise TypeError(f"{type(self).__name__} must define create_session().")

    def use_hooks(self, hooks: Sequence[SessionRunHook]) -> None:
        """Learn the hooks of the monitored session, before the first session is made."""

    def active_hooks(self) -> list[SessionRunHook] | None:
        """Give the hooks of the session that was made last; None for all that are used."""
        return None

    def outdated(self, session: RunSession) -> str:
        """Say why a session that works is to be made anew; "" where it is not."""
        return ""

    def secure_last_step(self, session: RunSession, hooks: Sequence[SessionRunHook], max_wait_secs: float) -> bool:
        """Where the step limit is reached: save the last step on the chief, wait for that on a worker.

        Returns:
            Whether this task is the chief now, and has to make its session anew.

        Raises:
            AbortedError: If a PS task lost its state before the step was saved: the rest is to be trained again.
            UnavailableError: If one does not answer.
        """
        return False

    def goes_on(self, session: RunSession) -> bool:
        """Say whether the job has a step limit, has not come to it, and is not done."""
        statuses = look(session.cluster)
        return any(status.limits for status in statuses) and not (is_at_limit(statuses) or is_done(statuses))

    def await_others(self, session: RunSession, goes_on: Callable[[], bool], keep_watch: Callable[[], None]) -> None:
        """On the chief: wait, before it ends the job, until nobody else trains, or the step limit is reached."""

    def end_for_all(self, session: RunSession, stop_grace_period_secs: float) -> None:
        """On the chief: declare the job done, as its program says, and wait for the others to leave."""

    def after_end(self, session: RunSession) -> None:
        """Act on a clean end, after the hooks' `end`."""


class _ModelCreator(SessionCreator):
    """Makes sessions of a model.

    Args:
        model: The model.
        master: Target of the session: "" for a PS within the process, "grpc://host:port", or a ClusterSpec.
        max_wait_secs: How long to wait: the chief for PS tasks that do not answer, a worker for the chief.
        task: Name of this task, "/job:worker/task:1".
        checkpoint_dir: Where the chief restores from and saves. If a worker sees it, a checkpoint at the last step of
            this task's hooks tells one that comes too late, or slept too long, that the job is done.
        clock: Where time comes from.

    Attributes:
        model: As given.
        run: Which run the task is of.
    """

    def __init__(
        self,
        model: RunModel[Any],
        master: Any = "",
        max_wait_secs: float = WORKER_MAX_WAIT_SECS,
        *,
        task: str = "",
        checkpoint_dir: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.model = model
        self._master = master
        self._max_wait_secs = max_wait_secs
        self._task = task
        self._checkpoint_dir = checkpoint_dir
        self._clock = clock
        self.run = RunOfTask(clock)
        self._hooks: Sequence[SessionRunHook] = ()

    def use_hooks(self, hooks: Sequence[SessionRunHook]) -> None:
        """See SessionCreator: their stop limits become the parameter servers', or tell whether a checkpoint is last."""
        self._hooks = hooks

    def _making(self) -> SessionMaking:
        return SessionMaking(
            self.model, task=self._task, clock=self._clock, admit=self.admit, attend=self._attend, run=self.run
        )


class ChiefCreator(_ModelCreator):
    """Initializes or restores the model, or takes over a running one.

    Args:
        model, master, max_wait_secs, **options: Those of every creator of a model's sessions.
        checkpoint: A checkpoint to restore, instead of the newest in `checkpoint_dir`.
        expected_tasks: Names of the tasks that are to take part; at the end the PS wait a little for those that never
            came.

    Attributes:
        had_session: Whether this task has had a session of the run before, as chief or as a worker.
    """

    def __init__(
        self,
        model: RunModel[Any],
        master: Any = "",
        max_wait_secs: float = CHIEF_MAX_WAIT_SECS,
        *,
        checkpoint: str | None = None,
        expected_tasks: Sequence[str] = (),
        **options: Any,
    ) -> None:
        super().__init__(model, master, max_wait_secs, **options)
        self._checkpoint = checkpoint
        self._expected_tasks = tuple(expected_tasks)
        self.had_session = False

    def create_session(self) -> Any:
        """See SessionCreator."""
        self.model.complete()
        session = self._making().prepare(
            self._master,
            self._checkpoint_dir,
            self._checkpoint,
            max_wait_secs=self._max_wait_secs,
            hooks=self._hooks,
            expected_tasks=self._expected_tasks,
            had_session=self.had_session,
        )
        self.had_session = True
        return session

    def as_worker(self) -> WorkerCreator:
        """Give what makes the sessions of the same task where another one is the chief."""
        return WorkerCreator(
            self.model,
            self._master,
            self._max_wait_secs,
            task=self._task,
            checkpoint_dir=self._checkpoint_dir,
            clock=self._clock,
        )

    def saved_term(self) -> int:
        """Give the greatest chief's term in the checkpoint directory; 0 where that is not known."""
        return saved_term(self._checkpoint_dir)

    def secure_last_step(self, session: RunSession, hooks: Sequence[SessionRunHook], max_wait_secs: float) -> bool:
        """See SessionCreator: nothing can change the step any more, so the job is done once it is saved."""
        if is_at_limit(look(session.cluster)):
            for hook in hooks:
                if (save := getattr(hook, "save_last", None)) is not None:
                    save(session)
            self.after_end(session)
        return False

    def await_others(self, session: RunSession, goes_on: Callable[[], bool], keep_watch: Callable[[], None]) -> None:
        """See SessionCreator."""
        from globalstep.chief.sessions.other_tasks import OtherTasks, await_others

        await_others(OtherTasks(session.cluster, self._clock), goes_on, keep_watch)

    def end_for_all(self, session: RunSession, stop_grace_period_secs: float) -> None:
        """See SessionCreator: the final checkpoint is to hold the other workers' last pushes too."""
        client = session.cluster
        if is_at_limit(look(client)):
            return  # no push is accepted any more
        from globalstep.chief.sessions.causes import why_not_left

        remaining = client.finish()
        wait = PollingWait(self._clock, stop_grace_period_secs)
        while remaining:
            named = sorted(remaining)
            if client.shutdown.asked or not wait.pause(
                f"the job is done; waiting for {_names(named)} to leave",
                lambda named=named: why_not_left(client, named),  # type: ignore[misc]
            ):
                _log.warning(
                    "The job is done, but after %.0f s%s %s had not left: what they push from now on is not "
                    "in the final checkpoint.",
                    wait.waited_secs,
                    ", when this task was asked to end," if client.shutdown.asked else "",
                    _names(remaining),
                )
                return
            remaining = client.finish()

    def after_end(self, session: RunSession) -> None:
        """See SessionCreator: declares the job done, so that the parameter servers can end."""
        try:
            remaining = session.cluster.finish()
        except OpError as error:
            _log.warning("Could not declare the job done: %s", error)
            return
        if remaining:
            have = "has" if len(remaining) == 1 else "have"
            _log.info("The job is done; the parameter servers end when %s %s left.", _names(remaining), have)


class WorkerCreator(_ModelCreator):
    """Waits until the chief has made the model ready; its arguments are those of every creator of a model's sessions.

    Attributes:
        initializes_rest: Whether it initializes the Variables that the chief's program does not have.
    """

    initializes_rest = False
    # What there was when this task started.
    _over_before: str | None = None

    def create_session(self) -> Any:
        """See SessionCreator.

        Raises:
            JobDoneError: If the parameter servers are gone, and the newest checkpoint is that of the last step; or if
                they hold nothing, and that checkpoint came since this task started.
        """
        self.model.complete()
        if self._over_before is None:
            # Every worker comes by here: none is to read a whole checkpoint.
            self._over_before = self._why_over(thorough=False)
        return self._making().wait(
            self._master,
            max_wait_secs=self._max_wait_secs,
            why_over=self._why_over,
            over_before=self._over_before,
            directory=self._checkpoint_dir,
            initializes_rest=self.initializes_rest,
        )

    def secure_last_step(self, session: RunSession, hooks: Sequence[SessionRunHook], max_wait_secs: float) -> bool:
        """See SessionCreator."""
        from globalstep.chief.sessions.other_tasks import await_last_save

        return await_last_save(session.cluster, self._clock, max_wait_secs)

    def _why_over(self, thorough: bool | None = None) -> str:
        """Say which checkpoint shows that the job is done; "" where none does, or this task cannot see."""
        limits = stop_limits([hook for hook in self._hooks if _is_absolute(hook)], "", 0, {})
        newest = None
        try:
            if self._checkpoint_dir and limits:
                newest = files_of(self._checkpoint_dir).newest(thorough)
        except (OpError, OSError) as error:
            _log.debug("Whether the job is done cannot be seen in %s: %s", self._checkpoint_dir, error)
        step = (newest or "").rpartition("-")[2]
        if not limits or not step.isdecimal() or int(step) < (limits[0].last_step or 0):
            return ""
        return f"the last step is {limits[0].last_step}, and there is checkpoint {newest}"


def saved_term(directory: Any) -> int:
    """Give the greatest chief's term in a checkpoint directory; 0 where that is not known."""
    return files_of(str(directory)).term() if directory else 0


def _is_absolute(hook: SessionRunHook) -> bool:
    ask = getattr(hook, "store_limit", None)
    return ask is not None and ask("").last_step is not None


def _names(tasks: Sequence[str]) -> str:
    return ", ".join(sorted(tasks))
