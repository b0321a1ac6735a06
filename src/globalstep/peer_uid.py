"""Whose a connection within this machine is: the kernel says it, so nobody can pretend.

Floor: shared. Imports nothing of globalstep. Linux only; elsewhere nobody is known.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from pathlib import Path

__all__ = ["is_ours", "uid_of_listener", "uid_of_peer", "uid_of_unix"]

_CREDENTIALS = struct.Struct("3i")
_LISTENS = "0A"


def uid_of_unix(connection: socket.socket) -> int | None:
    """Give the user at the other end of a connected unix socket; None where it is not known."""
    if sys.platform != "linux":
        return None
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError:
        return None
    return int(_CREDENTIALS.unpack(raw)[1])


def is_ours(uid: int | None) -> bool:
    """Whether a user may do what this process may: it is the same, or root."""
    return uid is not None and uid in (0, os.geteuid())


def uid_of_peer(peer: str) -> int | None:
    """Give the user at the other end of a TCP connection within this machine.

    Args:
        peer: Its address as gRPC writes it: "ipv4:127.0.0.1:4711" or "ipv6:%5B::1%5D:4711".

    Returns:
        The user; None for a connection from elsewhere, or none at all.
    """
    family, _, rest = peer.replace("%5B", "[").replace("%5D", "]").partition(":")
    host, _, port = rest.rpartition(":")
    return _find(family == "ipv6", host.strip("[]"), port, listening=False)


def uid_of_listener(host: str, port: int) -> int | None:
    """Give the user whose process listens at an address of this machine; None where it is not known."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except OSError:
        return None
    for family, _, _, _, address in found:
        uid = _find(family == socket.AF_INET6, str(address[0]), str(port), listening=True)
        if uid is not None:
            return uid
    return None


def _find(six: bool, host: str, port: str, listening: bool) -> int | None:
    """Look through the kernel's table of TCP sockets of this machine for the one with a local address."""
    if not port.isdigit():
        return None
    wanted = _written(socket.AF_INET6 if six else socket.AF_INET, host)
    tables = {"/proc/net/tcp6": wanted if six else _mapped(host), "/proc/net/tcp": "" if six else wanted}
    anywhere = {"0" * 8, "0" * 32}
    found: set[int] = set()
    for table, address in tables.items():
        for line in _lines(table):
            words = line.split()
            at, _, number = words[1].partition(":")
            if int(number, 16) != int(port) or (words[3] == _LISTENS) != listening:
                continue
            if (address and at == address) or (listening and at in anywhere):
                found.add(int(words[7]))
    # Two sockets with one address, of different users: nobody can say whose it is.
    return found.pop() if len(found) == 1 else None


def _written(family: int, host: str) -> str:
    """Write an address as the kernel's table has it: words of four bytes in the machine's order."""
    try:
        raw = socket.inet_pton(family, host)
    except OSError:
        return ""
    words = (raw[at : at + 4] for at in range(0, len(raw), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)


def _mapped(host: str) -> str:
    return _written(socket.AF_INET6, f"::ffff:{host}")


def _lines(table: str) -> list[str]:
    try:
        return Path(table).read_text().splitlines()[1:]
    except OSError:
        return []
