"""Start of a chief at a cluster: what it finds there, and what is to be done about it.

Three cases (invariant I4): all PS tasks are vacant, and a run begins; all hold one incarnation, and a
chief that was started again takes over without touching it; some lost their state, and all go back
together: to where their write-ahead logs end, else to the newest complete checkpoint.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from globalstep.errors import AbortedError, LostStateError, OpError, UnavailableError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import Clock
from globalstep.wire.declarations import StopLimit
from globalstep.worker.waits.polling_wait import PollingWait, wait_for_answers

if TYPE_CHECKING:
    from globalstep.worker.client.client import ClusterClient

_log = logging.getLogger("globalstep")

_SERVING = (pb.STATE_READY, pb.STATE_DONE)
_STATE_WORDS = {pb.STATE_VACANT: "vacant", pb.STATE_INITIALIZING: "being initialized"}


class Found(enum.Enum):
    """The state of the PS tasks, as a chief finds it."""

    #: None of them holds anything.
    VACANT = "vacant"
    #: All serve one incarnation.
    RUNNING = "running"
    #: Some lost their state, or the chief that began did not finish.
    BROKEN = "broken"


def survey(statuses: Sequence[pb.StatusReply]) -> Found:
    """Judge the state of a cluster."""
    if all(status.state == pb.STATE_VACANT for status in statuses):
        return Found.VACANT
    one_life = len({status.incarnation for status in statuses}) == 1
    if one_life and statuses[0].incarnation and all(status.state in _SERVING for status in statuses):
        return Found.RUNNING
    return Found.BROKEN


def nothing_left(statuses: Sequence[pb.StatusReply]) -> str:
    """Say why there is no use in waiting for a model that is not ready; "" where there is.

    Once the job is declared done no task initializes or restores anything: neither a Variable that only one task's
    program has, nor a PS task that lost its state.
    """
    empty = [str(at) for at, s in enumerate(statuses) if not s.incarnation]
    if all(s.state == pb.STATE_DONE for s in statuses) and not empty:
        return "the job was declared done"
    if not empty or all(s.state != pb.STATE_DONE for s in statuses):
        return ""
    return f"the job was declared done, and PS task {', '.join(empty)} has lost its state since"


def not_serving(statuses: Sequence[pb.StatusReply], labels: Sequence[str]) -> str:
    """Say which PS tasks are not ready to serve, and why.

    Returns:
        A text for people; "" when all are ready.
    """
    named = list(zip(labels, statuses, strict=True))
    missing = [
        f"{label} is {_STATE_WORDS.get(status.state, 'vacant')}"
        for label, status in named
        # One that was restarted after the job's end is done, and holds nothing.
        if status.state not in _SERVING or not status.incarnation
    ]
    if missing:
        return "the chief to initialize or restore the model: " + "; ".join(missing)
    if len({status.incarnation for status in statuses}) > 1:
        incarnations = "; ".join(f"{label}: {status.incarnation}" for label, status in named)
        return f"the chief to restore all PS tasks together; they are in different incarnations ({incarnations})"
    return ""


def stop_limits(hooks: Sequence[Any], step_name: str, step: int, in_force: Mapping[str, int]) -> list[StopLimit]:
    """Gather the stop limits that hooks ask for: the lowest, as an absolute step.

    Args:
        hooks: The hooks; those with a `store_limit` count.
        step_name: Name of the global step.
        step: Its present value, which a number of steps is counted from.
        in_force: Limits that a running cluster enforces; a hook that counts from its start keeps to it.

    Returns:
        At most one limit.
    """
    lasts: list[int] = []
    for hook in hooks:
        ask: Callable[[str], StopLimit] | None = getattr(hook, "store_limit", None)
        if ask is None:
            continue
        limit = ask(step_name)
        if limit.last_step is not None:
            lasts.append(limit.last_step)
        else:
            lasts.append(in_force.get(step_name, step + (limit.num_steps or 0)))
    return [StopLimit(step_name, last_step=min(lasts))] if lasts else []


def come_back(
    client: ClusterClient,
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
                choices = [logs for logs in client.membership.find_logs(directory, run) if logs[0] not in lost]
                if not choices:
                    return list(statuses)
                tried = choices[0][0]
                client.membership.recover(*choices[0], directory, run)
        except UnavailableError as error:
            from globalstep.worker.client.causes import why_no_answer

            if not wait.pause(
                f"waiting for the parameter servers to recover from their logs: {error}", lambda: why_no_answer(client)
            ):
                _log.warning("Cannot recover from the write-ahead logs, but from a checkpoint: %s", error)
                return list(statuses)
        except LostStateError as error:
            if tried in lost or living:
                _log.warning("Cannot recover from the write-ahead logs, but from a checkpoint: %s", error)
                return list(statuses)
            _log.warning(
                "Cannot recover from the write-ahead logs of incarnation %d; trying those of others: %s", tried, error
            )
            lost.add(tried)
        except AbortedError as error:
            _log.warning("Cannot recover from the write-ahead logs, but from a checkpoint: %s", error)
            return list(statuses)
        except OpError as error:
            _log.warning("Recovering from the write-ahead logs failed: %s", error)
            return list(statuses)
        # A worker does not wait here: it asks again later, and says what it waits for.
        statuses = wait_for_answers(client, clock, max_wait_secs) if max_wait_secs > 0 else list(client.refresh())
