"""Why PS tasks do not answer, or pushes are not: the likeliest reasons, one of them found by asking.

Layer: worker. Threads: functions; any number at once. They ask over the network, so no lock is to be held.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from globalstep.errors import OpError
from globalstep.wire.declarations import State

if TYPE_CHECKING:
    from globalstep.worker.client.client import ClusterClient

#: How long a PS task may take to say how it is.
ASK_SECS = 2.0
_CONNECT_SECS = 1.0


def why_no_answer(client: ClusterClient) -> str:
    """Say why PS tasks do not answer; "" where all do."""
    transports = dict(zip(client.run.labels, client.run.addresses, strict=True))
    replies = client.statuses(timeout_secs=ASK_SECS, brief=True)
    silent = [label for label, reply in zip(transports, replies, strict=True) if isinstance(reply, OpError)]
    asked = [label for label in silent if transports[label]]
    if not asked:
        return ""
    others = f"; {len(silent) - 1} more of {len(transports)} do not answer either" if len(silent) > 1 else ""
    return f"{asked[0]}: {why_unreached(transports[asked[0]])}{others}"


def why_pushes_wait(client: ClusterClient) -> str:
    """Say why pushes are not answered."""
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


def why_unreached(address: str) -> str:
    """Look what is in the way of an address, and say what is likeliest then.

    Returns:
        What was found, and up to three reasons, the likeliest first.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        addresses = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        return (
            f"the name {host!r} does not resolve here ({error}): it is misspelt in the cluster, its machine or pod is "
            "not there yet, or this process asks another name server"
        )
    where = addresses[0][4][0]
    shown = host if where == host else f"{host} ({where})"
    try:
        with socket.create_connection((host, int(port)), _CONNECT_SECS):
            pass
    except ConnectionRefusedError:
        return (
            f"nothing listens on port {port} of {shown}: that PS task was not started yet, it has ended, or the "
            "cluster names another address than the one it serves on"
        )
    except TimeoutError:
        return (
            f"{shown} does not answer on port {port} within {_CONNECT_SECS:g} s: a firewall or network policy drops "
            "what is sent there, its machine is down, or the address is another machine's"
        )
    except OSError as error:
        return (
            f"{shown} cannot be reached ({error}): its machine is down, there is no route to it from here, or the "
            "address is wrong"
        )
    return (
        f"port {port} of {shown} is open, so what listens there does not answer as a PS task: it has only just started "
        "or is stopped, TLS is on one side only, or it is another program"
    )
