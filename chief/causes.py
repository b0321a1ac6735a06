"""Why a session is not ready yet: the likeliest reasons, one of them found by asking.

Floor: chief.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from globalstep.errors import OpError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.reach import why_unreached

__all__ = ["why_no_answer", "why_no_chief"]

#: A chief gives a sign of life every few seconds.
_SILENT_SECS = 15.0


def why_no_answer(client: Any) -> str:
    """Say why PS tasks do not answer; "" where all do.

    Args:
        client: The cluster's client.
    """
    lanes = dict(zip(client.labels, client.addresses, strict=True))
    replies = client.statuses(timeout_secs=2.0, brief=True)
    silent = [label for label, reply in zip(lanes, replies, strict=True) if isinstance(reply, OpError)]
    asked = [label for label in silent if lanes[label]]
    if not asked:
        return ""
    others = f"; {len(silent) - 1} more of {len(lanes)} do not answer either" if len(silent) > 1 else ""
    return f"{asked[0]}: {why_unreached(lanes[asked[0]])}{others}"


def why_no_chief(statuses: Sequence[Any]) -> str:
    """Say why the chief has not made the model ready.

    Args:
        statuses: What each PS task says of itself.
    """
    office = statuses[0].chief
    chief = office.task or office.holder
    if not chief:
        return (
            "no chief has come to PS task 0: it was not started yet, no task says is_chief=True, or the chief's "
            "cluster names other PS tasks"
        )
    if office.silent_secs > _SILENT_SECS:
        return (
            f"{chief} is the chief, and was last heard {office.silent_secs:.0f} s ago: it has died or is being started "
            "again, it cannot reach PS task 0, or it is stopped; with failover_secs another task takes its place"
        )
    if any(status.state == pb.STATE_VACANT for status in statuses):
        return (
            f"{chief} is the chief, and was heard {office.silent_secs:.0f} s ago: it waits for a PS task that it "
            "cannot reach, or for a checkpoint, or it has not noticed yet that one was started again"
        )
    return (
        f"{chief} is the chief, and was heard {office.silent_secs:.0f} s ago: it is initializing or restoring the "
        "model, which takes its time where that is large, its init_fn does something long, or it stands in a debugger"
    )
