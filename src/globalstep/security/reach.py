"""Diagnosis of an address that does not answer, by connecting to it.

Layer: shared. Threads: functions; any number at once.
"""

from __future__ import annotations

import socket

__all__ = ["why_unreached"]

_SECS = 1.0


def why_unreached(address: str) -> str:
    """Look what is in the way of an address, and say what is likeliest then.

    Args:
        address: "host:port".

    Returns:
        What was found, and up to three reasons, the likeliest first.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        return (
            f"the name {host!r} does not resolve here ({error}): it is misspelt in the cluster, its machine or pod is "
            "not there yet, or this process asks another name server"
        )
    where = found[0][4][0]
    shown = host if where == host else f"{host} ({where})"
    try:
        with socket.create_connection((host, int(port)), _SECS):
            pass
    except ConnectionRefusedError:
        return (
            f"nothing listens on port {port} of {shown}: that PS task was not started yet, it has ended, or the "
            "cluster names another address than the one it serves on"
        )
    except TimeoutError:
        return (
            f"{shown} does not answer on port {port} within {_SECS:g} s: a firewall or network policy drops what is "
            "sent there, its machine is down, or the address is another machine's"
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
