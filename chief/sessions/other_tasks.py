"""The other tasks of a run, for one whose own loop is over: who still trains, and whether the last step is safe.

Layer: chief. Only a task that waits for others loads it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from globalstep.chief.sessions.session_creators import is_at_limit, is_done, look
from globalstep.errors import UnavailableError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import Clock
from globalstep.worker.waits.polling_wait import PollingWait

if TYPE_CHECKING:
    from globalstep.worker.client.client import ClusterClient

_log = logging.getLogger("globalstep")

#: How long a chief that is through with its own data waits for tasks that never came, or may be started again. As long
#: as a PS task waits for them.
TO_COME_SECS = 30.0
#: How long one waits for tasks that have never pushed, while no step moves.
IDLE_SECS = 30.0


def await_last_save(
    cluster: ClusterClient, clock: Clock, max_wait_secs: float, claim: Callable[[], bool] = bool
) -> bool:
    """Wait, where the step limit is reached, until the chief has saved the last step and declared the job done.

    Args:
        cluster: A worker's client.
        clock: Where time comes from.
        max_wait_secs: When to give up.
        claim: Asked between two looks; says whether this task is the chief now.

    Returns:
        Whether it is.

    Raises:
        AbortedError: If a PS task has lost its state meanwhile: the rest is to be trained again.
        UnavailableError: If the process has been asked to end.
    """
    from globalstep.chief.sessions.causes import why_not_ended

    wait = PollingWait(clock, max_wait_secs, cluster)
    while not cluster.job_done():
        try:
            statuses = look(cluster)
            if is_done(statuses) or not is_at_limit(statuses):
                return False
            if claim():
                return True
        except UnavailableError:
            # It is started again, perhaps without its state; or all have ended with the job, while this task slept.
            if cluster.heartbeat.gone():
                return False
        if not wait.pause("waiting for the chief to save the last step", lambda: why_not_ended(cluster)):
            return False
    return False


def others_that_train(
    cluster: ClusterClient, statuses: Sequence[pb.StatusReply], alone_secs: float
) -> tuple[list[str], bool]:
    """Name the tasks that still train, or may come to, and say whether one of them is here.

    Nobody trains once a step is at its limit, or the job was declared done.

    Args:
        cluster: The chief's client.
        statuses: What each PS task says of itself.
        alone_secs: How long nobody has been there. After TO_COME_SECS those that never came, and those
            that went before their work was done, are waited for no longer.
    """
    if is_at_limit(statuses) or is_done(statuses):
        return [], False
    others = [
        one
        for status in statuses
        for one in status.clients
        if one.client != cluster.client_id and not (one.task and one.task == cluster.task)
    ]
    here = {one.task or one.client for one in others if one.takes_task or one.pushes}
    if here or alone_secs >= TO_COME_SECS:
        return sorted(here), bool(here)
    # Who has come to one PS task is not to come, once it has said whether it is there to train.
    to_come = set.intersection(*(set(status.to_come) for status in statuses))
    joining = {one.task for one in others if one.task and one.joined_secs < TO_COME_SECS}
    return sorted((to_come | joining) - {cluster.task}), False


class OtherTasks:
    """The other tasks of a run, as seen by a task that has nothing to train any more and polls them.

    Args:
        cluster: The client of the task that looks.
        clock: Time.

    Attributes:
        names: The tasks that still train, or may come to; see `others_that_train`.
        here: Whether one of them is here.
        alone_secs: How long none of them has been here.
        idle_secs: How long no step has moved.
        silent_secs: How long no step has moved while none of them had ever pushed.
    """

    def __init__(self, cluster: ClusterClient, clock: Clock) -> None:
        self.cluster, self.clock = cluster, clock
        self.names: list[str] = []
        self.here = False
        self.alone_secs = self.idle_secs = self.silent_secs = 0.0
        self._steps: dict[str, int] = {}
        self._here_at = self._moved_at = self._heard_at = clock.monotonic()

    def look(self) -> bool:
        """Look at them, and say whether a step has moved since the last look.

        Raises:
            AbortedError: If a PS task has lost its state meanwhile.
            UnavailableError: If one does not answer.
        """
        statuses, now = look(self.cluster), self.clock.monotonic()
        names, here = others_that_train(self.cluster, statuses, now - self._here_at)
        steps = {name: step for status in statuses for name, step in status.steps.items()}
        clients = [one for status in statuses for one in status.clients if (one.task or one.client) in names]
        moved = steps != self._steps
        if moved:
            self._steps, self._moved_at = steps, now
        if moved or any(one.pushes for one in clients):
            self._heard_at = now
        self.idle_secs, self.silent_secs = now - self._moved_at, now - self._heard_at
        self.set(names, here)
        return moved

    def set(self, names: list[str], here: bool) -> None:
        """Take note of who still trains, and of whether one of them is here."""
        self.names, self.here, now = names, here, self.clock.monotonic()
        self._here_at = now if here else self._here_at
        self.alone_secs = now - self._here_at


def await_rest(
    cluster: ClusterClient, clock: Clock, goes_on: Callable[[], bool], keep_watch: Callable[[], None]
) -> None:
    """Wait, as a task that has had its last batches, until the step limit is reached or nobody trains to it.

    Raises:
        AbortedError: If a PS task has lost its state meanwhile: this task may have batches to train again.
        UnavailableError: If one does not answer.
    """
    from globalstep.chief.sessions.causes import why_not_left

    others, wait = OtherTasks(cluster, clock), PollingWait(clock, math.inf)
    while goes_on():
        if others.look():
            keep_watch()
        if not others.names or others.idle_secs >= IDLE_SECS:
            return
        wait.pause(
            f"this task has had its last batches; waiting for {', '.join(others.names)} to train theirs",
            lambda: why_not_left(cluster, others.names),
        )


def await_others(others: OtherTasks, goes_on: Callable[[], bool], keep_watch: Callable[[], None] | None = None) -> None:
    """Wait, as a chief whose own loop is over, until no other task trains; log which tasks it waits for.

    The chief does not wait for tasks that only wait themselves.

    Args:
        others: The other tasks, as the chief sees them.
        goes_on: Says whether to wait any longer.
        keep_watch: Called after each step of the others, and where a PS task is about to end: the chief's duties, where
            no threads carry them out.
    """
    from globalstep.chief.sessions.causes import why_not_left

    wait, is_logged, absent = PollingWait(others.clock, math.inf), False, list[str]()
    while goes_on():
        moved = others.look()
        if others.here and others.silent_secs >= IDLE_SECS:
            _log.warning(
                "%s has pushed nothing so far, and no step has moved for %.0f s: it may wait for what nobody "
                "initializes. This chief waits for it no longer.",
                ", ".join(others.names),
                IDLE_SECS,
            )
            return
        if not others.names:
            if absent and others.alone_secs >= TO_COME_SECS:
                _log.warning(
                    "%s did not come within %.0f s, so the chief ends the job: what it had still to train is left out.",
                    ", ".join(absent),
                    TO_COME_SECS,
                )
            return
        absent = [] if others.here else others.names
        until = "end" if others.here else f"come, up to {TO_COME_SECS:.0f} s"
        waiting_for = f"the loop of the chief, this task, is over; waiting for {', '.join(others.names)} to {until}"
        if not is_logged:
            _log.info("%s. Until then it keeps saving checkpoints.", waiting_for.capitalize())
        is_logged = True
        if keep_watch is not None and (moved or others.cluster.heartbeat.draining):
            keep_watch()
            if not goes_on():
                return
        wait.pause(waiting_for, lambda: why_not_left(others.cluster, others.names))
