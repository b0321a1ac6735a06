"""Recovery of PS tasks from their write-ahead logs, before the chief restores a checkpoint.

Layer: chief.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from globalstep.errors import AbortedError, LostStateError, OpError, UnavailableError
from globalstep.runtime.clock import Clock
from globalstep.worker.client.causes import why_no_answer
from globalstep.worker.waits.first_answers import wait_for_answers
from globalstep.worker.waits.polling_wait import PollingWait

if TYPE_CHECKING:
    from globalstep.proto import globalstep_pb2 as pb
    from globalstep.worker.access import ClusterAccess


__all__ = ["come_back"]

_log = logging.getLogger("globalstep")


def come_back(
    client: ClusterAccess,
    statuses: Sequence[pb.StatusReply],
    directory: str | None,
    clock: Clock,
    max_wait_secs: float,
    run: str = "",
) -> list[Any]:
    """Have PS tasks that lost their state recover, where the run has a log; else leave all as it is.

    Args:
        client: The cluster's client.
        statuses: What each PS task said of itself.
        directory: The run's, for the case that all lost their state; None where that is another one's business.
        clock: Where time comes from.
        max_wait_secs: How long to wait for tasks that cannot be reached, or have no disk space for their logs.
        run: Id of the run that is to come back; "" where the directory has none yet.

    Returns:
        What each PS task says of itself now.

    Raises:
        DeadlineExceededError: If a task cannot be reached for so long.
        UnavailableError: If one cannot be reached, and `max_wait_secs` is 0.
    """
    wait = PollingWait(clock, max_wait_secs, client)
    # Lives whose logs are damaged, or gone.
    lost: set[int] = set()
    tried = 0
    while True:
        living = [status for status in statuses if status.incarnation]
        lives = {status.incarnation for status in living}
        if len(living) == len(statuses) or len(lives) > 1:
            return list(statuses)
        try:
            if living:
                if living[0].policy.durability != "log":
                    return list(statuses)
                came = living[0]
                tried = came.incarnation
                client.membership.recover(came.incarnation, came.sequencer, came.directory, came.run.id)
            elif directory is None:
                return list(statuses)
            else:
                found = [logs for logs in client.membership.find_logs(directory, run) if logs[0] not in lost]
                if not found:
                    return list(statuses)
                tried = found[0][0]
                client.membership.recover(*found[0], directory, run)
        except UnavailableError as error:
            if not wait.pause(
                f"waiting for the parameter servers to recover from their logs: {error}", lambda: why_no_answer(client)
            ):
                _log.warning("No recovery from the write-ahead logs, but from a checkpoint: %s", error)
                return list(statuses)
        except LostStateError as error:
            if tried in lost or living:
                _log.warning("No recovery from the write-ahead logs, but from a checkpoint: %s", error)
                return list(statuses)
            _log.warning(
                "No recovery from the write-ahead logs of incarnation %d; those of others are tried: %s", tried, error
            )
            lost.add(tried)
        except AbortedError as error:
            _log.warning("No recovery from the write-ahead logs, but from a checkpoint: %s", error)
            return list(statuses)
        except OpError as error:
            _log.warning("Recovering from the write-ahead logs failed: %s", error)
            return list(statuses)
        # A worker does not wait here: it asks again later, and says what it waits for.
        statuses = wait_for_answers(client, clock, max_wait_secs) if max_wait_secs > 0 else list(client.refresh())
