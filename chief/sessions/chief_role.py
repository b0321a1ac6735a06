"""Role of the chief: the one place where a task of a training job becomes the chief, or stops being it.

The configured chief asks PS task 0 for the chief's lease when its session is made. With a failover time, other tasks
ask for it once the chief has been silent for so long, or has left; the task that gets it makes its session anew, with
the chief's hooks and the right to restore and to finish. A chief that wakes and finds that it was replaced goes on as
a worker, and may ask again. docs/operations/failures.md tells users, docs/design/life-of-a-run.md the rules.

In many programs, of the A3C kind above all, every task says is_chief=True, so that each initializes what only it has.
A run has one chief: the first task of the cluster where that comes in time, else who asks first. The others are
workers that initialize their own Variables themselves.

Layer: chief.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from globalstep.chief.hooks.session_run_hook import SessionRunHook
from globalstep.chief.sessions.run_model import RunModel, RunSession
from globalstep.chief.sessions.session_creators import CHIEF_MAX_WAIT_SECS, ChiefCreator, SessionCreator, WorkerCreator
from globalstep.cluster.cluster import TaskConfig, is_chief, session_tasks, target_of
from globalstep.cluster.process_place import ALIVE_SECS
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.wire.transports import register_target
from globalstep.worker.client.candidate import Candidate
from globalstep.worker.waits.polling_wait import PollingWait

if TYPE_CHECKING:
    from globalstep.worker.client.client import ClusterClient

_log = logging.getLogger("globalstep")

#: For programs that must not be changed: what `failover_secs` says where that is not given.
FAILOVER_VARIABLE = "GLOBALSTEP_FAILOVER_SECS"


class _NowChiefError(Exception):
    """A task that waited for the chief has been given its lease."""


def failover_of(failover_secs: float | None, environ: Mapping[str, str] = os.environ) -> float | None:
    """Decide on a task's failover time: an argument beats the environment.

    Args:
        failover_secs: The argument; 0 for never.
        environ: For GLOBALSTEP_FAILOVER_SECS.

    Returns:
        Seconds; None for never.

    Raises:
        ValueError: If it is no positive number.

    >>> failover_of(None, {"GLOBALSTEP_FAILOVER_SECS": "30"})
    30.0
    """
    value: Any = failover_secs if failover_secs is not None else environ.get(FAILOVER_VARIABLE) or 0
    try:
        secs = float(value)
    except ValueError:
        secs = -1.0
    if not 0 <= secs < float("inf"):
        raise ValueError(f"The failover time is {value!r}; it must be a number of seconds, or 0 for never.")
    return secs or None


class RoleCreator(SessionCreator):
    """Makes the chief's session where this task has the chief's lease, and a worker's where it has not.

    Args:
        chief: Makes the chief's.
        worker: Makes a worker's.
        is_chief: Whether this is the configured chief, which asks for the chief's lease first.
        failover_secs: The chief's silence after which this task asks for its lease; None for never, and for a
            configured chief that takes it from its holder.
        chief_hooks: The hooks of the task that acts as chief; the configured chief's have begun already.
        clock: Where time comes from.
    """

    def __init__(
        self,
        chief: ChiefCreator,
        worker: WorkerCreator,
        *,
        is_chief: bool,
        failover_secs: float | None,
        chief_hooks: Sequence[SessionRunHook],
        clock: Clock,
    ) -> None:
        self._chief = chief
        self._worker = worker
        self._is_chief = is_chief
        self._candidate = Candidate(failover_secs=failover_secs, configured=is_chief)
        self.may_outdate = failover_secs is not None
        self._claim = ChiefClaim(self._candidate, clock)
        self._chief_hooks = list(chief_hooks)
        self._own_hooks: list[SessionRunHook] = []
        self._begun = is_chief
        self.acts = False
        self._clock = clock
        worker.run = chief.run
        chief.admit = self._admit_chief
        worker.admit = self._admit_worker

    def use_hooks(self, hooks: Sequence[SessionRunHook]) -> None:
        """See SessionCreator."""
        ours = set(map(id, self._chief_hooks))
        self._own_hooks = [hook for hook in hooks if id(hook) not in ours]
        self._chief.use_hooks([*self._chief_hooks, *self._own_hooks])
        self._worker.use_hooks(self._own_hooks)

    def watch_clients(self, attend: Callable[[Any], None]) -> None:
        """See SessionCreator."""
        self._chief.watch_clients(attend)
        self._worker.watch_clients(attend)

    def create_session(self) -> Any:
        """See SessionCreator."""
        while True:
            if (self._is_chief and not self._claim.beside) or self._candidate.term:
                with contextlib.suppress(NotChiefError):
                    session = self._chief.create_session()
                    self.acts = True
                    return session
            self.acts = False
            # Another task is the chief: its program, and its checkpoints, may lack what this one's has.
            self._worker.initializes_rest = self._is_chief
            try:
                session = self._worker.create_session()
                self._chief.had_session = True
                return session
            except _NowChiefError:
                _log.warning("%s acts as chief from now on: there has been none.", self._candidate.task or "This task")

    def active_hooks(self) -> list[SessionRunHook]:
        """See SessionCreator: the chief's stand before the task's own."""
        if not self.acts:
            # There is one that saves: the chief.
            return [hook for hook in self._own_hooks if not (self._is_chief and getattr(hook, "saves_run", False))]
        if not self._begun:
            self._begun = True
            with self._chief.model.building():
                for hook in self._chief_hooks:
                    hook.begin()
        return [*self._chief_hooks, *self._own_hooks]

    def outdated(self, session: RunSession) -> str:
        """See SessionCreator: when this task became the chief, or is it no more."""
        candidate = self._candidate
        if self.acts:
            return "" if candidate.term else f"{candidate.chief or 'another task'} has replaced this task as chief"
        if candidate.try_to_claim(session.cluster):
            return f"{candidate.task or 'this task'} acts as chief from now on: the one before is gone"
        return ""

    def secure_last_step(self, session: RunSession, hooks: Sequence[SessionRunHook], max_wait_secs: float) -> bool:
        """See SessionCreator: a worker that may act as chief sees to it that the last step is saved."""
        if self.acts:
            return self._chief.secure_last_step(session, hooks, max_wait_secs)
        candidate, cluster = self._candidate, session.cluster
        max_wait_secs += candidate.failover_secs or 0.0
        from globalstep.chief.sessions.other_tasks import await_last_save

        return await_last_save(cluster, self._clock, max_wait_secs, lambda: candidate.try_to_claim(cluster))

    def await_others(self, session: RunSession, goes_on: Callable[[], bool], keep_watch: Callable[[], None]) -> None:
        """See SessionCreator."""
        if self.acts:
            self._chief.await_others(session, goes_on, keep_watch)

    def end_for_all(self, session: RunSession, stop_grace_period_secs: float) -> None:
        """See SessionCreator."""
        if self.acts:
            self._chief.end_for_all(session, stop_grace_period_secs)

    def after_end(self, session: RunSession) -> None:
        """See SessionCreator."""
        if self.acts:
            self._chief.after_end(session)

    def _admit_chief(self, cluster: ClusterClient) -> None:
        self._claim.admit(cluster, self._chief.saved_term())

    def _admit_worker(self, cluster: ClusterClient) -> None:
        cluster.chief_lease.candidate = self._candidate
        if self._candidate.failover_secs is not None and self._candidate.claim(cluster):
            raise _NowChiefError


@dataclass(frozen=True)
class TaskPlace:
    """The role of a process in its cluster.

    Attributes:
        target: The PS tasks: what a session connects to.
        is_chief: Whether it is the configured chief.
        task: Its name; "" where it has none.
        expected_tasks: Names of the tasks that are to take part.
    """

    target: Any
    is_chief: bool
    task: str = ""
    expected_tasks: tuple[str, ...] = ()


def place_of_task(config: TaskConfig, is_chief: bool = True) -> TaskPlace:
    """Return the place of this process; in a cluster without PS tasks it has a parameter server within the process.

    Args:
        config: What TF_CONFIG says of it.
        is_chief: Holds where the cluster has no PS tasks.

    Raises:
        ValueError: If this task is a parameter server.
    """
    if "ps" not in config.cluster.jobs:
        return TaskPlace("", is_chief)
    if config.job == "ps":
        raise ValueError(
            f"TF_CONFIG says that this task is {config.task}, a parameter server: it runs "
            "`gs.train.Server().join()`, not a session."
        )
    target, tasks = target_of(config.cluster), session_tasks(config.cluster)
    register_target(target, list(filter(None, config.cluster.job_tasks("ps"))), config.task, tasks)
    return TaskPlace(target, config.is_chief, config.task, tasks)


def train_loop_parts(
    model: RunModel[Any],
    place: TaskPlace,
    chief_hooks: Sequence[SessionRunHook],
    own_hooks: Sequence[SessionRunHook],
    *,
    checkpoint_dir: str | None,
    failover_secs: float | None,
    max_wait_secs: float = CHIEF_MAX_WAIT_SECS,
    clock: Clock = SYSTEM_CLOCK,
) -> tuple[SessionCreator, list[SessionRunHook]]:
    """Give a task's session creator, and the hooks that its loop begins with."""
    worker = WorkerCreator(
        model, place.target, max_wait_secs, task=place.task, checkpoint_dir=checkpoint_dir, clock=clock
    )
    if not place.is_chief and failover_secs is None:
        return worker, list(own_hooks)
    chief = ChiefCreator(
        model,
        place.target,
        max_wait_secs,
        task=place.task,
        checkpoint_dir=checkpoint_dir,
        expected_tasks=place.expected_tasks,
        clock=clock,
    )
    role = RoleCreator(
        chief, worker, is_chief=place.is_chief, failover_secs=failover_secs, chief_hooks=chief_hooks, clock=clock
    )
    return role, [*chief_hooks, *own_hooks] if place.is_chief else list(own_hooks)


def as_role(chief: ChiefCreator, clock: Clock) -> RoleCreator:
    """Have a program's own ChiefCreator make the chief's sessions where its task is the chief."""
    return RoleCreator(chief, chief.as_worker(), is_chief=True, failover_secs=None, chief_hooks=(), clock=clock)


#: How long another task that says is_chief=True lets the first task come before it. Who is first is the chief of the
#: next start too, and finds in the checkpoint what its program has.
_FIRST_TASK_SECS = 10.0


class NotChiefError(Exception):
    """Another task has the chief's lease."""


def first_task(session_tasks: Sequence[str]) -> str:
    """Give the task of a cluster that is the chief by its name; "" where none is known.

    >>> first_task(["/job:worker/task:0", "/job:worker/task:1"])
    '/job:worker/task:0'
    >>> first_task(["/job:worker/task:0", "/job:chief/task:0"])
    '/job:chief/task:0'
    """
    chiefs = [task for task in session_tasks if is_chief(task)]
    return next(iter([*chiefs, *session_tasks]), "")


class ChiefClaim:
    """A process's claim to the chief's lease, over all of its sessions.

    Args:
        candidate: The process, as PS task 0 knows it.
        clock: Where time comes from.

    Attributes:
        candidate: As given.
        beside: Whether this task says is_chief=True and is a worker, because another task of its job says so too and
            is the chief. It stays so.
    """

    def __init__(self, candidate: Candidate, clock: Clock) -> None:
        self.candidate = candidate
        self.beside = False
        self._clock = clock

    def admit(self, cluster: ClusterClient, saved_term: int = 0) -> None:
        """Claim the chief's lease for a client, before it begins or takes over a run.

        Args:
            cluster: The client.
            saved_term: The greatest term in the run's directory: PS task 0 may have begun with its clock set back.

        Raises:
            NotChiefError: If another task has the chief's lease, and this one is to go on as a worker.
            FailedPreconditionError: If another one has it that this task cannot go on beside.
        """
        candidate = self.candidate
        cluster.chief_lease.candidate = candidate
        candidate.know(saved_term)
        self._let_first_come(cluster)
        if candidate.contend(cluster, self._clock):
            return
        if candidate.beside and not self.beside:
            self.beside = True
            _log.warning("%s", self._of_two_chiefs())
        elif not self.beside:
            _log.warning("%s acts as chief; this task goes on as a worker.", candidate.chief or "Another")
        raise NotChiefError

    def _let_first_come(self, cluster: ClusterClient) -> None:
        """Wait a while for the cluster's first task, where there has been no chief: see _FIRST_TASK_SECS."""
        candidate, first = self.candidate, first_task(cluster.run.session_tasks)
        if candidate.term or not candidate.configured or candidate.task in ("", first):
            return
        if candidate.task not in cluster.run.session_tasks:
            return
        wait = PollingWait(self._clock, _FIRST_TASK_SECS, cluster)
        while True:
            status = cluster.refresh()[0]
            came = [one for one in status.clients if one.task == first and one.takes_task]
            if status.chief.term or any(one.joined_secs > ALIVE_SECS for one in came):
                return
            if not wait.pause(
                f"letting {first} come first, in case that all tasks say is_chief=True",
                lambda: f"{first} is being started, it is started later, or never",
            ):
                return

    def _of_two_chiefs(self) -> str:
        mine = self.candidate.task
        return (
            f"{self.candidate.holder} is the chief, and {mine} says is_chief=True too: it goes on as a worker. It "
            "initializes the Variables that only its program has, and saves no checkpoints; the chief's do not hold "
            "them. What the programs have by the same name is one Variable of all tasks. What is to be this task's own "
            f'belongs on its device, gs.device("{mine}"), or into collections=[gs.GraphKeys.LOCAL_VARIABLES]. '
            "With is_chief=(task_index == 0) this is not said."
        )
