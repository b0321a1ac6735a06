"""Role of the chief: which task is the chief by its place in the cluster, and the one claim to the chief's lease.

In many programs, of the A3C kind above all, every task says is_chief=True, so that each initializes what only it has.
A run has one chief: the first task of the cluster where that comes in time, else who asks first. The others are
workers that initialize their own Variables themselves.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from globalstep.cluster.cluster import TaskConfig, from_tf_config, is_chief, session_tasks, target_of
from globalstep.cluster.process_place import ALIVE_SECS
from globalstep.errors import InvalidArgumentError
from globalstep.runtime.clock import Clock
from globalstep.wire.transports import register_target
from globalstep.worker.client.candidate import Candidate
from globalstep.worker.waits.polling_wait import PollingWait

if TYPE_CHECKING:
    from globalstep.worker.client.client import ClusterClient

_log = logging.getLogger("globalstep")

#: For programs that must not be changed: what `failover_secs` says where that is not given.
FAILOVER_VARIABLE = "GLOBALSTEP_FAILOVER_SECS"


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


def own_task() -> TaskConfig:
    """Say which task of TF_CONFIG this process is; without TF_CONFIG, a process on its own.

    Raises:
        InvalidArgumentError: If TF_CONFIG is malformed, or its workers have no PS task to train together by.
    """
    try:
        task = from_tf_config()
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from error
    workers = len(session_tasks(task.cluster))
    if "ps" not in task.cluster.jobs and workers > 1:
        raise InvalidArgumentError(
            f"TF_CONFIG has {workers} workers and no ps, so each would train by itself. Add addresses of parameter "
            'servers: {"cluster": {"ps": ["host:port"], "worker": [...]}, ...}.'
        )
    return task


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


#: How long another task that says is_chief=True lets the first task come before it. Who is first is the chief of the
#: next start too, and finds in the checkpoint what its program has.
_FIRST_TASK_SECS = 10.0


class NotChiefError(Exception):
    """Another task has the chief's lease."""


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
            mine = candidate.task
            _log.warning(
                "%s is the chief, and %s says is_chief=True too: it goes on as a worker. It initializes the Variables "
                "that only its program has, and saves no checkpoints; the chief's do not hold them. What the programs "
                "have by the same name is one Variable of all tasks. What is to be this task's own belongs on its "
                'device, gs.device("%s"), or into collections=[gs.GraphKeys.LOCAL_VARIABLES]. With '
                "is_chief=(task_index == 0) this is not said.",
                candidate.holder,
                mine,
                mine,
            )
        elif not self.beside:
            _log.warning("%s acts as chief; this task goes on as a worker.", candidate.chief or "Another")
        raise NotChiefError

    def _let_first_come(self, cluster: ClusterClient) -> None:
        """Wait a while for the cluster's first task, where there has been no chief: see _FIRST_TASK_SECS."""
        candidate, tasks = self.candidate, cluster.run.session_tasks
        # By its name; "" where none is known.
        first = next(iter([*filter(is_chief, tasks), *tasks]), "")
        if candidate.term or not candidate.configured or candidate.task in ("", first):
            return
        if candidate.task not in tasks:
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
