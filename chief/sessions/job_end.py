"""End of a job: whether its last step has come.

A job ends at its step limit, when the chief's program says so, or when all workers have left. At the limit the chief
saves before its loop hears of it, and the others wait for that: a PS task that dies in between takes all back to the
newest checkpoint, and they train the rest again. docs/design/life-of-a-run.md, "Stop", has the rules.

Layer: chief.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from globalstep.errors import AbortedError, OpError
from globalstep.proto import globalstep_pb2 as pb

if TYPE_CHECKING:
    from globalstep.worker.client.client import ClusterClient


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
