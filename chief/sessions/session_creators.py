"""Session creators of a training loop: how a task's sessions begin, as the chief or as a worker, and what ends them.

The configured chief asks PS task 0 for the chief's lease when its session is made. With a failover time, other tasks
ask for it once the chief has been silent for so long, or has left; the task that gets it makes its session anew, with
the chief's hooks and the right to restore and to finish. A chief that wakes and finds that it was replaced goes on as
a worker, and may ask again. docs/operations/failures.md tells users, docs/design/life-of-a-run.md the rules.

A job ends at its step limit, when the chief's program says so, or when all workers have left. At the limit the chief
saves before its loop hears of it, and the others wait for that: a PS task that dies in between takes all back to the
newest checkpoint, and they train the rest again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from globalstep.chief.hooks.session_run_hook import SessionRunHook
from globalstep.chief.sessions.chief_role import ChiefClaim, NotChiefError, TaskPlace
from globalstep.chief.sessions.cluster_start import stop_limits
from globalstep.chief.sessions.run_joining import files_of
from globalstep.chief.sessions.run_model import RunModel, RunSession
from globalstep.chief.sessions.session_making import SessionMaking
from globalstep.errors import AbortedError, OpError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.worker.client.candidate import Candidate
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


class _NowChiefError(Exception):
    """A task that waited for the chief, which the text names, has been given its lease."""


class SessionCreator:
    """Base of session creators, a program's own ones too."""

    def create_session(self) -> Any:
        """Make a session that is ready to run."""
        raise TypeError(f"{type(self).__name__} must define create_session().")


class TaskCreator(SessionCreator):
    """Makes a task's sessions of a model: the chief's where the task has the chief's lease, and a worker's elsewhere.

    Args:
        model: The model.
        place: The task's place in the cluster; its `is_chief` says whether it is the configured chief, which asks for
            the chief's lease first.
        max_wait_secs: How long to wait: the chief for PS tasks that do not answer, a worker for the chief.
        checkpoint_dir: Where the chief restores from and saves. If a worker sees it, a checkpoint at the last step of
            this task's hooks tells one that comes too late, or slept too long, that the job is done.
        checkpoint: A checkpoint to restore, instead of the newest in `checkpoint_dir`.
        failover_secs: The chief's silence after which this task asks for its lease; None for never, and for a
            configured chief that takes it from its holder.
        chief_hooks: The hooks of the task that acts as chief.
        clock: Where time comes from.

    Attributes:
        acts: Whether the session that was made last is the chief's.
        may_outdate: Whether `outdated` is to be asked before each run.
    """

    # What there was when this task started, for a worker.
    _over_before: str | None = None

    def __init__(
        self,
        model: RunModel[Any],
        place: TaskPlace,
        max_wait_secs: float = CHIEF_MAX_WAIT_SECS,
        *,
        checkpoint_dir: str | None = None,
        checkpoint: str | None = None,
        failover_secs: float | None = None,
        chief_hooks: Sequence[SessionRunHook] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.model = model
        self._place = place
        self._max_wait_secs = max_wait_secs
        self._checkpoint_dir, self._checkpoint = checkpoint_dir, checkpoint
        self._clock = clock
        self._making = SessionMaking(model, task=place.task, clock=clock, admit=self._admit)
        self._claim: ChiefClaim | None = None
        if place.is_chief or failover_secs is not None:
            self._claim = ChiefClaim(Candidate(failover_secs=failover_secs, configured=place.is_chief), clock)
        self.may_outdate = failover_secs is not None
        self._chief_hooks, self._own_hooks = list(chief_hooks), list[SessionRunHook]()
        # Whether the chief's hooks have begun.
        self._begun = place.is_chief
        self.acts = False
        # Whether this task has had a session of the run before, as chief or as a worker.
        self._had_session = False

    def begin(self, hooks: Sequence[SessionRunHook], attend: Callable[[Any], None]) -> None:
        """Begin the hooks, before the first session is made.

        Args:
            hooks: The task's own. Their stop limits become the parameter servers', or tell whether a checkpoint is the
                last one.
            attend: Called with each client as soon as it is there, before any wait.
        """
        self._own_hooks = list(hooks)
        self._making.attend = attend
        for hook in [*(self._chief_hooks if self._begun else ()), *hooks]:
            hook.begin()

    def create_session(self) -> Any:
        """See SessionCreator.

        Raises:
            JobDoneError: If the newest checkpoint is that of the last step, and the parameter servers are gone: all of
                them on a worker, on the chief some, where another one says that the job is done. On a worker, also if
                they hold nothing, and that checkpoint came since this task started.
        """
        self.model.complete()
        while True:
            claim = self._claim
            if claim is not None and ((self._place.is_chief and not claim.beside) or claim.candidate.term):
                self.acts = True
                with contextlib.suppress(NotChiefError):
                    session = self._making.prepare(
                        self._place.target,
                        self._checkpoint_dir,
                        self._checkpoint,
                        max_wait_secs=self._max_wait_secs,
                        hooks=[*self._chief_hooks, *self._own_hooks],
                        expected_tasks=self._place.expected_tasks,
                        had_session=self._had_session,
                        why_over=self._why_over,
                    )
                    self._had_session = True
                    return session
            self.acts = False
            if self._over_before is None:
                # Every worker comes by here: none is to read a whole checkpoint.
                self._over_before = self._why_over(thorough=False)
            try:
                session = self._making.wait(
                    self._place.target,
                    max_wait_secs=self._max_wait_secs,
                    why_over=self._why_over,
                    over_before=self._over_before,
                    directory=self._checkpoint_dir,
                    # Another task is the chief: its program, and its checkpoints, may lack what this one's has.
                    initializes_rest=self._place.is_chief,
                )
                self._had_session = True
                return session
            except _NowChiefError as now:
                _log.warning("%s acts as chief from now on: there has been none.", now)

    def _admit(self, cluster: ClusterClient) -> None:
        """Claim the chief's lease, where this task is to have it."""
        claim = self._claim
        if claim is None:
            return
        if self.acts:
            claim.admit(cluster, saved_term(self._checkpoint_dir))
            return
        cluster.chief_lease.candidate = claim.candidate
        if claim.candidate.failover_secs is not None and claim.candidate.claim(cluster):
            raise _NowChiefError(claim.candidate.task or "This task")

    def active_hooks(self) -> list[SessionRunHook]:
        """Give the hooks of the session that was made last: the chief's stand before the task's own."""
        if not self.acts:
            # There is one that saves: the chief.
            return [
                hook for hook in self._own_hooks if not (self._place.is_chief and getattr(hook, "saves_run", False))
            ]
        if not self._begun:
            self._begun = True
            with self.model.building():
                for hook in self._chief_hooks:
                    hook.begin()
        return [*self._chief_hooks, *self._own_hooks]

    def outdated(self, session: RunSession) -> str:
        """Say why a session that works is to be made anew, this task being the chief now, or no more; "" for not."""
        assert self._claim is not None
        candidate = self._claim.candidate
        if self.acts:
            return "" if candidate.term else f"{candidate.chief or 'another task'} has replaced this task as chief"
        if candidate.try_to_claim(session.cluster):
            return f"{candidate.task or 'this task'} acts as chief from now on: the one before is gone"
        return ""

    def secure_last_step(self, session: RunSession, hooks: Sequence[SessionRunHook], max_wait_secs: float) -> bool:
        """Where the step limit is reached: save the last step on the chief, wait for that on a worker.

        Nothing can change the step any more, so the job is done once it is saved.

        Returns:
            Whether this task is the chief now, and has to make its session anew.

        Raises:
            AbortedError: If a PS task lost its state before the step was saved: the rest is to be trained again.
            UnavailableError: If one does not answer.
        """
        cluster = session.cluster
        if self.acts:
            if is_at_limit(look(cluster)):
                for hook in hooks:
                    if (save := getattr(hook, "save_last", None)) is not None:
                        save(session)
                self.after_end(session)
            return False
        from globalstep.chief.sessions.other_tasks import await_last_save

        if self._claim is None:
            return await_last_save(cluster, self._clock, max_wait_secs)
        candidate = self._claim.candidate
        max_wait_secs += candidate.failover_secs or 0.0
        return await_last_save(cluster, self._clock, max_wait_secs, lambda: candidate.try_to_claim(cluster))

    def goes_on(self, session: RunSession) -> bool:
        """Say whether the job has a step limit, has not come to it, and is not done."""
        statuses = look(session.cluster)
        return any(status.limits for status in statuses) and not (is_at_limit(statuses) or is_done(statuses))

    def await_others(self, session: RunSession, goes_on: Callable[[], bool], keep_watch: Callable[[], None]) -> None:
        """On the chief: wait, before it ends the job, until nobody else trains, or the step limit is reached."""
        if self.acts:
            from globalstep.chief.sessions.other_tasks import OtherTasks, await_others

            await_others(OtherTasks(session.cluster, self._clock), goes_on, keep_watch)

    def end_for_all(self, session: RunSession, stop_grace_period_secs: float) -> None:
        """On the chief: declare the job done, as its program says, and wait for the others to leave.

        The final checkpoint is to hold the other workers' last pushes too.
        """
        client = session.cluster
        if not self.acts or is_at_limit(look(client)):
            return  # at the limit no push is accepted any more
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
        """On the chief: declare the job done after a clean end, so that the parameter servers can end.

        A hook with `job_goes_on` says that the program declares that itself.
        """
        if not self.acts or any(getattr(hook, "job_goes_on", False) for hook in self._own_hooks):
            return
        try:
            remaining = session.cluster.finish()
        except OpError as error:
            _log.warning("Could not declare the job done: %s", error)
            return
        if remaining:
            have = "has" if len(remaining) == 1 else "have"
            _log.info("The job is done; the parameter servers end when %s %s left.", _names(remaining), have)

    def _why_over(self, thorough: bool | None = None) -> str:
        """Say which checkpoint shows that the job is done; "" where none does, or this task cannot see."""
        limits = stop_limits([hook for hook in self._own_hooks if _is_absolute(hook)], "", 0, {})
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
