"""The user id of the peer of a connection within this machine, from the kernel.

Sources: unix(7), SO_PEERCRED; sock_diag(7); proc(5), /proc/net/tcp.

Layer: shared. Imports nothing of globalstep. Linux only; elsewhere no user is known.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_CREDENTIALS = struct.Struct("3i")
_LISTENS = "0A"
#: Of netlink(7) and sock_diag(7): a question about one TCP connection, by both its ends, and the answer.
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST = 1
_HEADER = struct.Struct("=IHHII")
_QUESTION = struct.Struct("=BBBxI2s2s16s16sI8s")
_ANSWER_UID = _HEADER.size + 4 + 48 + 12
_ANSWER_STATE = _HEADER.size + 1
_ESTABLISHED = 1
_LEAST_ANSWER = _ANSWER_UID + 4


class Peer(NamedTuple):
    """An address as gRPC tells it: of IPv6 or not, host, port."""

    six: bool
    host: str
    port: int

    @property
    def family(self) -> socket.AddressFamily:
        """The address family."""
        return socket.AF_INET6 if self.six else socket.AF_INET


def parse_peer(peer: str) -> Peer | None:
    """Read an address as gRPC writes it; None for other addresses than IP's.

    >>> parse_peer("ipv4:127.0.0.1:4711"), parse_peer("ipv6:%5B::1%5D:4711"), parse_peer("unix:")
    (Peer(six=False, host='127.0.0.1', port=4711), Peer(six=True, host='::1', port=4711), None)
    """
    family, _, rest = peer.replace("%5B", "[").replace("%5D", "]").replace("%25", "%").partition(":")
    host, _, port = rest.rpartition(":")
    if family not in ("ipv4", "ipv6") or not port.isascii() or not port.isdigit():
        return None
    return Peer(family == "ipv6", host.strip("[]"), int(port))


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
    end = parse_peer(peer)
    return None if end is None else _find(end.family, end.host, end.port, listening=False)


def uid_of_connection(peer: str, host: str, port: int) -> int | None:
    """Give the user at the other end of a TCP connection to a port of this process: one question to the kernel.

    Args:
        peer: The other end's address as gRPC writes it; see `uid_of_peer`.
        host: This end's address: an IP address, or a name that stands for the loopback one.
        port: This end's port.

    Returns:
        The user; None for a connection from elsewhere, or one that has ended.
    """
    end = parse_peer(peer)
    if end is None:
        return None
    kind = end.family
    own = host.strip("[]") if _is_address(kind, host.strip("[]")) else ("127.0.0.1", "::1")[kind == socket.AF_INET6]
    try:
        ends = socket.inet_pton(kind, end.host), socket.inet_pton(kind, own)
        return _ask_kernel(kind, *ends, end.port, port, _ESTABLISHED)
    except (OSError, struct.error):
        return uid_of_peer(peer)  # a kernel, or a sandbox, without that way of asking


def _is_address(family: int, host: str) -> bool:
    try:
        return any(socket.inet_pton(family, host))
    except OSError:
        return False


def _ask_kernel(family: int, near: bytes, far: bytes, near_port: int, far_port: int, state: int) -> int | None:
    """Ask for the user of the socket that has one end here and the other there; None for none in that state."""
    question = _QUESTION.pack(
        family,
        socket.IPPROTO_TCP,
        0,
        1 << _ESTABLISHED,
        near_port.to_bytes(2, "big"),
        far_port.to_bytes(2, "big"),
        near,
        far,
        0,
        b"\xff" * 8,
    )
    head = _HEADER.pack(_HEADER.size + len(question), _SOCK_DIAG_BY_FAMILY, _REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as asking:
        asking.settimeout(1.0)
        asking.sendto(head + question, (0, 0))
        answer = asking.recv(4096)
    # Anything else is an error: there is no such connection.
    if _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY or len(answer) < _LEAST_ANSWER:
        return None
    return int(struct.unpack_from("=I", answer, _ANSWER_UID)[0]) if answer[_ANSWER_STATE] == state else None


def uid_of_listener(host: str, port: int) -> int | None:
    """Give the user whose process listens at an address of this machine; None where it is not known."""
    try:
        addresses = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except OSError:
        return None
    for family, _, _, _, address in addresses:
        try:
            # One question: the kernel's table takes some 10 ms to read where it has room for many connections.
            here = socket.inet_pton(family, str(address[0]))
            uid = _ask_kernel(family, here, bytes(len(here)), port, 0, int(_LISTENS, 16))
        except (OSError, struct.error):  # a kernel, or a sandbox, without that way of asking
            uid = _find(family, str(address[0]), port, listening=True)
        if uid is not None:
            return uid
    return None


@functools.cache
def tells_listeners() -> bool:
    """Whether this kernel says who listens; some sandboxes have tables that are wrong throughout."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            host, port = listener.getsockname()
            return uid_of_listener(host, port) == os.geteuid()
    except OSError:
        return False


def _tcp_sockets(port: int, listening: bool) -> Iterator[tuple[str, int]]:
    """Yield the local address and the user of each TCP socket of this machine with a local port.

    Addresses of IPv4 in those of IPv6 are given as the former: both are one socket, as it is seen from either end.
    """
    for table, family in (("/proc/net/tcp", socket.AF_INET), ("/proc/net/tcp6", socket.AF_INET6)):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                words = line.split()
                at, _, number = words[1].partition(":")
                if int(number, 16) == port and (words[3] == _LISTENS) == listening:
                    # Words of four bytes in the machine's order.
                    parts = (int(at[i : i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(at), 8))
                    yield _plain(socket.inet_ntop(family, b"".join(parts))), int(words[7])


def _plain(address: str) -> str:
    return address.removeprefix("::ffff:")


def _find(family: int, host: str, port: int, listening: bool) -> int | None:
    """Look through the kernel's table of TCP sockets of this machine for the one with a local address."""
    try:
        wanted = {_plain(socket.inet_ntop(family, socket.inet_pton(family, host)))}
    except OSError:
        return None
    if listening:
        wanted |= {"0.0.0.0", "::"}
    uids = {uid for at, uid in _tcp_sockets(port, listening) if at in wanted}
    # Two sockets with one address, of different users: the owner cannot be determined.
    return uids.pop() if len(uids) == 1 else None
