"""Why PS tasks do not answer, or pushes are not: the likeliest reasons, one of them found by asking.

Layer: worker. Threads: functions; any number at once. They ask over the network, so no lock is to be held.
"""

from __future__ import annotations

from globalstep.cluster.task_state import State
from globalstep.errors import OpError
from globalstep.security.reach import why_unreached
from globalstep.worker.access import ClusterAccess

__all__ = ["ASK_SECS", "why_no_answer", "why_pushes_wait"]

#: How long a PS task may take to say how it is.
ASK_SECS = 2.0


def why_no_answer(client: ClusterAccess) -> str:
    """Say why PS tasks do not answer; "" where all do.

    Args:
        client: The cluster's client.
    """
    transports = dict(zip(client.run.labels, client.run.addresses, strict=True))
    replies = client.statuses(timeout_secs=ASK_SECS, brief=True)
    silent = [label for label, reply in zip(transports, replies, strict=True) if isinstance(reply, OpError)]
    asked = [label for label in silent if transports[label]]
    if not asked:
        return ""
    others = f"; {len(silent) - 1} more of {len(transports)} do not answer either" if len(silent) > 1 else ""
    return f"{asked[0]}: {why_unreached(transports[asked[0]])}{others}"


def why_pushes_wait(client: ClusterAccess) -> str:
    """Say why pushes are not answered.

    Args:
        client: The cluster's client.
    """
    replies = client.statuses(timeout_secs=ASK_SECS, brief=True)
    answered = [reply for reply in replies if not isinstance(reply, OpError)]
    if len(answered) < len(replies):
        return why_no_answer(client)
    for label, reply in zip(client.run.labels, answered, strict=True):
        if int(reply.state) in (State.VACANT, State.INITIALIZING):
            return (
                f"{label} answers, but holds no model: it was started again and waits for the chief to restore it, the "
                "chief is at it, or there is no chief any more"
            )
    return (
        "all PS tasks answer and hold the model: the values are large for this network, the PS tasks have more to do "
        "than they can (`globalstep status` shows their load), or a push that comes before waits for a worker that is "
        "silent"
    )
