"""Which user of this machine is at the other end of a TCP connection within it.

Linux tells of every socket whose it is, in /proc/net/tcp and /proc/net/tcp6. So a PS task on the loopback interface
that was given no tokens can serve its own user and nobody else.

Floor: ps. Threads: functions; any number at once.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["OwnUser", "kernel_tells", "uid_of_peer"]

_TABLES = ("tcp", "tcp6")
_ESTABLISHED = "01"
#: Columns of the tables: proc(5).
_LOCAL, _REMOTE, _STATE, _UID = 1, 2, 3, 7


def uid_of_peer(peer: str, port: int, folder: Path = Path("/proc/net")) -> int | None:
    """Find whose socket is at the other end of a connection.

    Args:
        peer: The other end as grpc names it: "ipv4:127.0.0.1:40000", or "ipv6:%5B::1%5D:40000".
        port: This end's port.
        folder: Where the kernel's tables are.

    Returns:
        Its user's id; None where the kernel does not tell, as of a connection from another machine, or of one that
        has ended.
    """
    kind, _, address = urllib.parse.unquote(peer).partition(":")
    host, _, peer_port = address.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not peer_port.isdigit():
        return None
    try:
        wanted = _plain(ipaddress.ip_address(host.strip("[]").partition("%")[0])), int(peer_port)
    except ValueError:
        return None
    for table in _TABLES:
        for local, remote, uid in _sockets(folder / table, wanted[1]):
            if remote[1] == port and local == wanted:
                return uid
    return None


class OwnUser:
    """Refuses who is another user of this machine than the one whose process this is. Thread-safe.

    Root is let in: it may do everything anyway.

    Args:
        uid_of: As `uid_of_peer`.

    Attributes:
        port: That the task serves on; to be set before the first call.
    """

    def __init__(self, uid_of: Callable[[str, int], int | None] = uid_of_peer) -> None:
        self._uid_of = uid_of
        self.port = 0

    def refusal(self, peer: str) -> str:
        """Say why a caller is not served; "" for one that is.

        Args:
            peer: The caller as grpc names it.
        """
        uid = self._uid_of(peer, self.port)
        if uid is not None and uid in (0, os.geteuid()):
            return ""
        who = "a process of a user that the kernel does not tell" if uid is None else f"a process of user {uid}"
        return (
            f"the caller is {who}, and this PS task has no tokens: so it serves user {os.geteuid()} alone. Give it "
            "--tokens-file, and the caller a token; or --insecure (GLOBALSTEP_INSECURE=1), to serve every user of this "
            "machine. docs/security.md has the steps."
        )


def kernel_tells() -> bool:
    """Whether this kernel says whose a connection is; some sandboxes have tables without a word of truth."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            socket.create_connection(listener.getsockname()) as near,
        ):
            host, port = near.getsockname()
            return uid_of_peer(f"ipv4:{host}:{port}", listener.getsockname()[1]) == os.geteuid()
    except OSError:
        return False


_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_End = tuple[_Address, int]


def _sockets(table: Path, port: int) -> Iterator[tuple[_End, _End, int]]:
    """Give both ends and the user of every connection that stands and may have an end at a port."""
    try:
        lines = table.read_text("ascii").splitlines()[1:]
    except OSError:  # a kernel without IPv6
        return
    for line in lines:
        words = line.split() if f":{port:04X} " in line else ()
        if len(words) > _UID and words[_STATE] == _ESTABLISHED:
            yield _end(words[_LOCAL]), _end(words[_REMOTE]), int(words[_UID])


def _end(text: str) -> _End:
    """Read an address as the tables have it: words of the machine's byte order, in hex, and the port."""
    packed, _, port = text.partition(":")
    words = [int(packed[at : at + 8], 16) for at in range(0, len(packed), 8)]
    raw = struct.pack(f"={len(words)}I", *words)
    family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
    return _plain(ipaddress.ip_address(socket.inet_ntop(family, raw))), int(port, 16)


def _plain(address: _Address) -> _Address:
    """Give the IPv4 address that an IPv6 one stands for, where it does."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
