"""End of a job: whether its last step has come and is safe, and who still trains.

A job ends at its step limit, when the chief's program says so, or when all workers have left. At the limit the chief
saves before its loop hears of it, and the others wait for that: a PS task that dies in between takes all back to the
newest checkpoint, and they train the rest again. docs/design/life-of-a-run.md, "Stop", has the rules.

Layer: chief.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from globalstep.chief.sessions.causes import why_not_ended, why_not_left
from globalstep.errors import AbortedError, OpError, UnavailableError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import Clock
from globalstep.worker.waits.polling_wait import PollingWait

if TYPE_CHECKING:
    from globalstep.worker.client.client import ClusterClient

__all__ = [
    "IDLE_SECS",
    "TO_COME_SECS",
    "AwaitedTasks",
    "await_last_save",
    "await_others",
    "await_rest",
    "is_at_limit",
    "is_done",
    "look",
    "others_that_train",
]

_log = logging.getLogger("globalstep")

#: How long a chief that is through with its own data waits for tasks that never came, or may be started again. As long
#: as a PS task waits for them.
TO_COME_SECS = 30.0
#: How long one waits for tasks that have never pushed, while no step moves.
IDLE_SECS = 30.0


def look(cluster: ClusterClient) -> list[pb.StatusReply]:
    """Ask every PS task how the run stands.

    Args:
        cluster: A client that has joined the run.

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


class AwaitedTasks:
    """The tasks that a chief waits for whose own loop is over, but for those that only wait themselves.

    Args:
        cluster: The chief's client.
        clock: Time.
    """

    def __init__(self, cluster: ClusterClient, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        # The steps as they were last seen to move, and when.
        self._steps: dict[str, int] = {}
        self._moved_at = clock.monotonic()

    def named(self, statuses: Sequence[pb.StatusReply], alone_secs: float) -> tuple[list[str], bool]:
        """Name them, and say whether one of them is here; see `others_that_train`."""
        names, here = others_that_train(self._cluster, statuses, alone_secs)
        now = self._clock.monotonic()
        steps = {name: step for status in statuses for name, step in status.steps.items()}
        clients = [one for status in statuses for one in status.clients if (one.task or one.client) in names]
        if steps != self._steps or any(one.pushes for one in clients):
            self._steps, self._moved_at = steps, now
        if not here or now - self._moved_at < IDLE_SECS:
            return names, here
        _log.warning(
            "%s has pushed nothing so far, and no step has moved for %.0f s: it may wait for what nobody initializes. "
            "This chief waits for it no longer.",
            ", ".join(names),
            IDLE_SECS,
        )
        return [], False


def await_rest(
    cluster: ClusterClient, clock: Clock, goes_on: Callable[[], bool], keep_watch: Callable[[], None]
) -> None:
    """Wait, as a task that has had its last batches, until the step limit is reached or nobody trains to it.

    Args:
        cluster: The task's client.
        clock: Where time comes from.
        goes_on: Says whether to wait any longer.
        keep_watch: Called after each step of the others.

    Raises:
        AbortedError: If a PS task has lost its state meanwhile: this task may have batches to train again.
        UnavailableError: If one does not answer.
    """
    wait, alone_since = PollingWait(clock, math.inf), clock.monotonic()
    seen, moved_at = dict[str, int](), alone_since
    while goes_on():
        statuses, now = look(cluster), clock.monotonic()
        names, here = others_that_train(cluster, statuses, now - alone_since)
        alone_since = now if here else alone_since
        steps = {name: step for status in statuses for name, step in status.steps.items()}
        if steps != seen:
            seen, moved_at = steps, now
            keep_watch()
        if not names or now - moved_at >= IDLE_SECS:
            return
        wait.pause(
            f"this task has had its last batches; waiting for {', '.join(names)} to train theirs",
            lambda names=names: why_not_left(cluster, names),  # type: ignore[misc]
        )


def await_others(
    cluster: ClusterClient,
    clock: Clock,
    awaited: Callable[[float], tuple[list[str], bool]],
    goes_on: Callable[[], bool],
    keep_watch: Callable[[], None] | None = None,
) -> None:
    """Wait, as a chief whose own loop is over, until nobody else trains; the log says for whom.

    Args:
        cluster: The chief's client.
        clock: Where time comes from.
        awaited: Names who still trains, and says whether one of them is here; see `AwaitedTasks`.
        goes_on: Says whether to wait any longer.
        keep_watch: Called after each step of the others, and where a PS task is about to end: the chief's duties, where
            no threads carry them out.
    """
    wait, alone_since, told = PollingWait(clock, math.inf), clock.monotonic(), False
    seen, absent = dict[str, int](), list[str]()
    while goes_on():
        alone_secs = clock.monotonic() - alone_since
        names, here = awaited(alone_secs)
        if not names:
            if absent and alone_secs >= TO_COME_SECS:
                _log.warning(
                    "%s did not come within %.0f s, so the chief ends the job: what it had still to train is left out.",
                    ", ".join(absent),
                    TO_COME_SECS,
                )
            return
        absent = [] if here else names
        if here:
            alone_since = clock.monotonic()
        until = "end" if here else f"come, up to {TO_COME_SECS:.0f} s"
        waiting_for = f"the loop of the chief, this task, is over; waiting for {', '.join(names)} to {until}"
        if not told:
            _log.info("%s. Until then it goes on to save.", waiting_for.capitalize())
        told = True
        if keep_watch is not None and ((steps := cluster.global_steps()) != seen or cluster.heartbeat.draining):
            seen = steps
            keep_watch()
            if not goes_on():
                return
        wait.pause(waiting_for, lambda names=names: why_not_left(cluster, names))  # type: ignore[misc]
