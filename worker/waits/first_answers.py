"""Waits for PS tasks that do not answer yet: those of a job start in any order, and its sessions wait for all of them.

Layer: worker. Threads: the caller's; no lock is held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from globalstep.errors import DeadlineExceededError, UnavailableError
from globalstep.runtime.clock import Clock
from globalstep.worker.client.causes import why_no_answer
from globalstep.worker.waits.polling_wait import PollingWait

if TYPE_CHECKING:
    from globalstep.worker.client.client import ClusterClient

__all__ = ["wait_for_answers"]


def wait_for_answers(client: ClusterClient, clock: Clock, max_wait_secs: float) -> list[Any]:
    """Ask every PS task for its status, and wait for those that do not answer.

    Args:
        client: The cluster's client.
        clock: Where time comes from.
        max_wait_secs: When to give up.

    Returns:
        The status of each PS task.

    Raises:
        DeadlineExceededError: If some never answered; the text names them.
        UnavailableError: If the process has been asked to end.
    """
    wait = PollingWait(clock, max_wait_secs, client)
    while True:
        try:
            return list(client.refresh())
        except UnavailableError as error:
            if not wait.pause(f"waiting for the parameter servers: {error}", lambda: why_no_answer(client)):
                raise DeadlineExceededError(
                    f"Session was not ready after waiting {max_wait_secs:.0f} secs. {error}"
                ) from error
