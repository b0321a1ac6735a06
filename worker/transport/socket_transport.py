"""The transport over plain sockets: a unix socket on the same machine, or TCP.

It is asked for over gRPC, which also gives the token that opens it: docs/design/transports.md.

Layer: worker. Threads: none of its own.
"""

from __future__ import annotations

import contextlib
import hmac
import select
import socket
import ssl
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from globalstep.errors import InvalidArgumentError, OpError, UnavailableError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.security.connection_proofs import answer, claim, proof
from globalstep.security.credentials import TlsFiles
from globalstep.security.peer_uid import is_ours, uid_of_listener, uid_of_unix
from globalstep.security.server_role import server_mistake
from globalstep.security.tls_socket import TlsSocket
from globalstep.wire.frames import Message
from globalstep.wire.incoming_messages import Incoming
from globalstep.wire.socket_messages import WELCOME, Outgoing, SocketMessage, prepare
from globalstep.worker.transport.tickets import REPLY_LIMIT_BYTES, Connection

__all__ = ["SocketConnection", "dial"]

_CONNECT_SECS = 5.0


class SocketConnection(Connection):
    """A connection of messages on a socket. Thread-safe.

    Args:
        label: What messages call the task.
        connection: The socket, past its welcome.
    """

    def __init__(self, label: str, connection: socket.socket | TlsSocket) -> None:
        super().__init__(label)
        self.kind = "unix" if connection.family == socket.AF_UNIX else "tcp"
        self._socket = connection
        self._incoming = Incoming(connection, REPLY_LIMIT_BYTES)

    def _transmit(self, call: int, request: pb.Request, load: Any) -> None:
        """See Connection.

        While other calls are in flight, the task may be stuck with a reply that this client does not read, and read no
        request itself: then replies are read here, so that both sides go on.
        """
        outgoing = self._outgoing(call, request, load)
        try:
            if self.idle:
                outgoing.send(self._socket)
                return
            while True:
                try:
                    outgoing.send(self._socket, socket.MSG_DONTWAIT)
                    return
                except BlockingIOError:
                    self._wait_for_space()
        except OSError as error:
            raise UnavailableError(f"{self._label}: {error}") from None

    def _outgoing(self, call: int, request: pb.Request, load: Any) -> Outgoing:
        """Write a request as it goes over the wire."""
        return Outgoing(call, request.SerializeToString(), load)

    def _data_of(self, message: SocketMessage) -> memoryview:
        """Give the bytes of a reply's tensors."""
        return message.data

    def _wait_for_space(self) -> None:
        """Wait until more can be sent, or read a reply that may be in the way. Caller holds _sending.

        Nothing is lost by waiting for another thread that reads: the task takes no more before it has sent
        that thread its reply.
        """
        with self._reading:
            poll = select.poll()
            poll.register(self._socket, select.POLLOUT | select.POLLIN)
            if not poll.poll()[0][1] & select.POLLOUT:
                self._read()

    def _receive(self) -> Message | None:
        """See Connection."""
        try:
            message = self._incoming.receive()
            if message is None:
                raise UnavailableError(f"{self._label} ended the connection.")
            return Message(message.call, None, pb.Reply.FromString(message.head), self._data_of(message))
        except (OSError, DecodeError, InvalidArgumentError) as error:
            raise UnavailableError(f"{self._label}: {error}") from None

    def _end(self) -> None:
        """See Connection. The socket is not closed here, since another thread may be in a call on it."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it is at its end already

    def close(self, error: OpError) -> None:
        """See Connection."""
        self.break_off(error)
        with self._sending, self._reading:
            self._socket.close()


def dial(
    label: str,
    kind: pb.LaneKind.ValueType,
    address: str,
    reply: pb.OpenLaneReply,
    made_of: Callable[[str, Any], SocketConnection] = SocketConnection,
    tls: TlsFiles | None = None,
    secs: float = _CONNECT_SECS,
) -> SocketConnection:
    """Connect to where a PS task waits for it.

    Args:
        label: What messages call the task.
        kind: What was asked for.
        address: "host:port" where gRPC reaches the task: TCP is dialled at the same host, and whose that port is may be
            at the other end of a unix socket.
        reply: The task's answer to OpenLane.
        made_of: Makes the connection of the label and the socket.
        tls: What to speak TLS with over TCP; None for plain TCP.
        secs: How long that may take in all.

    Returns:
        The connection.

    Raises:
        OSError: If there is no way to it, or it does not welcome us.
    """
    until = SYSTEM_CLOCK.monotonic() + secs
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    connection = (
        _dial_tcp(host, int(reply.address), tls, until) if kind == pb.LANE_TCP else _dial_unix(host, int(port), reply)
    )
    try:
        connection.settimeout(_left(until))
        _prove(connection, reply, until)
        _expect(connection, WELCOME, until)
        prepare(connection)
        return made_of(label, connection)
    except BaseException:
        connection.close()
        raise


def _dial_unix(host: str, port: int, reply: pb.OpenLaneReply) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(_CONNECT_SECS)
        connection.connect("\0" + reply.address)
        _check_user(connection, host, port)
    except OSError:
        connection.close()
        raise
    return connection


def _dial_tcp(host: str, port: int, tls: TlsFiles | None, until: float) -> socket.socket | TlsSocket:
    try:
        plain = _connected(host, port, until)
    except TimeoutError:
        raise TimeoutError(
            f"port {port} of {host} does not answer: where a firewall is in the way, open the port that the PS task's "
            "--tcp-port names"
        ) from None
    except OSError as error:
        raise type(error)(f"port {port} of {host}: {error}") from None
    if tls is None:
        return plain
    with contextlib.ExitStack() as spare:
        spare.callback(plain.close)
        connection = TlsSocket(plain, tls.context(ssl.PROTOCOL_TLS_CLIENT), host, _left(until))
        mistake = server_mistake(tls.read().cert, connection.peer_certificate(), f"{host}:{port}")
        if mistake:
            connection.close()
            raise ConnectionRefusedError(mistake)
        spare.pop_all()
    return connection


def _connected(host: str, port: int, until: float) -> socket.socket:
    """Connect to the first address of a host that answers; each has its share of the time that is left."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for at, (family, kind, number, _, address) in enumerate(found):
        connection = socket.socket(family, kind, number)
        try:
            connection.settimeout(_left(until) / (len(found) - at))
            connection.connect(address)
        except OSError:
            connection.close()
            if at + 1 == len(found):
                raise
        else:
            return connection
    raise OSError(f"{host} has no address")


def _left(until: float) -> float:
    """Give the time that is left, for a socket: 0 would mean not to wait, and is no time."""
    return max(until - SYSTEM_CLOCK.monotonic(), 0.001)


def _prove(connection: socket.socket | TlsSocket, reply: pb.OpenLaneReply, until: float) -> None:
    """Show the token; to a task that proves to know it, only a proof of it."""
    if not reply.proves:
        connection.sendall(reply.token)
        return
    claimed = claim(reply.token)
    connection.sendall(claimed)
    _expect(connection, answer(reply.token, claimed), until)
    connection.sendall(proof(reply.token, claimed))


def _check_user(connection: socket.socket, host: str, port: int) -> None:
    """Refuse to send the token to another user's process, which has taken the name of a task that is gone.

    Raises:
        ConnectionRefusedError: If the other end is not this user's, root's, or whose the gRPC port is.
    """
    user = uid_of_unix(connection)
    if not is_ours(user) and (user is None or user != uid_of_listener(host, port)):
        raise ConnectionRefusedError(f"who listens there is user {user}, who is not known to be a PS task's")


def _expect(connection: socket.socket | TlsSocket, wanted: bytes, until: float) -> None:
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
        raise ConnectionRefusedError("what answers there is no PS task of this version, or not the one that was asked")
