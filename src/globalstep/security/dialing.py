"""Dialling: how a socket beside gRPC to a PS task is opened, once the task has said where it waits.

docs/design/transports.md has the whole story.

Layer: shared. Threads: functions; they wait for the network.
"""

from __future__ import annotations

import hmac
import socket

from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.security.connection_proofs import answer, claim, proof
from globalstep.security.peer_uid import is_ours, uid_of_listener, uid_of_unix
from globalstep.wire.socket_messages import WELCOME, prepare

#: How long a connection may take to stand.
CONNECT_SECS = 5.0


def dial(
    kind: pb.LaneKind.ValueType, address: str, reply: pb.OpenLaneReply, secs: float = CONNECT_SECS
) -> socket.socket:
    """Connect to where a PS task waits for it.

    Args:
        kind: What was asked for.
        address: "host:port" where gRPC reaches the task: TCP is dialled at the same host, and whose that port is may be
            at the other end of a unix socket.
        reply: The task's answer to OpenLane.
        secs: How long that may take in all.

    Returns:
        The socket, past its welcome.

    Raises:
        OSError: If there is no way to it, or it does not welcome us.
    """
    until = SYSTEM_CLOCK.monotonic() + secs
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if kind == pb.LANE_TCP:
        connection = _dial_tcp(host, int(reply.address), until)
    else:
        connection = _dial_unix(host, int(port), reply.address, until)
    try:
        connection.settimeout(_left(until))
        _prove(connection, reply.token, until)
        _expect(connection, WELCOME, until)
        prepare(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _dial_unix(host: str, port: int, name: str, until: float) -> socket.socket:
    """Connect to a name; who listens there must be this user, root, or the user whose the gRPC port is.

    Another user's process may have taken the name of a task that is gone.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(_left(until))
        connection.connect("\0" + name)
        user = uid_of_unix(connection)
        if not is_ours(user) and (user is None or user != uid_of_listener(host, port)):
            raise ConnectionRefusedError(f"the listener there is of user {user}, who is not known to run a PS task")
    except OSError:
        connection.close()
        raise
    return connection


def _dial_tcp(host: str, port: int, until: float) -> socket.socket:
    """Connect to the first address of a host that answers; each has its share of the time that is left."""
    failed = OSError(f"{host} has no address")
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        addresses, failed = [], error
    for at, (family, kind, number, _, address) in enumerate(addresses):
        connection = socket.socket(family, kind, number)
        try:
            connection.settimeout(_left(until) / (len(addresses) - at))
            connection.connect(address)
            return connection
        except OSError as error:
            connection.close()
            failed = error
    if isinstance(failed, TimeoutError):
        raise TimeoutError(
            f"port {port} of {host} does not answer: where a firewall is in the way, open the port that the PS task's "
            "--tcp-port names"
        )
    raise type(failed)(f"port {port} of {host}: {failed}")


def _left(until: float) -> float:
    """Give the time that is left, for a socket: 0 would mean not to wait, and is no time."""
    return max(until - SYSTEM_CLOCK.monotonic(), 0.001)


def _prove(connection: socket.socket, token: bytes, until: float) -> None:
    """Prove to know the token, once the task has."""
    claimed = claim(token)
    connection.sendall(claimed)
    _expect(connection, answer(token, claimed), until)
    connection.sendall(proof(token, claimed))


def _expect(connection: socket.socket, wanted: bytes, until: float) -> None:
    """Receive what a PS task says at the beginning.

    Raises:
        ConnectionRefusedError: If it is something else.
    """
    got = b""
    while len(got) < len(wanted):
        connection.settimeout(_left(until))
        more = connection.recv(len(wanted) - len(got))
        if not more:
            raise ConnectionRefusedError("the task closed the connection without a welcome")
        got += more
    if not hmac.compare_digest(got, wanted):
        raise ConnectionRefusedError("the answer is not that of the PS task that was asked, or not of this version")
