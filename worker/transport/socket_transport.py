"""The transport over plain sockets: a unix socket on the same machine, or TCP.

It is asked for over gRPC, which also gives the token that opens it: docs/design/transports.md.

Layer: worker. Threads: none of its own.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from globalstep.errors import InvalidArgumentError, OpError, UnavailableError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.security.credentials import TlsFiles
from globalstep.security.dialing import CONNECT_SECS, dialled
from globalstep.security.tls_socket import TlsSocket
from globalstep.wire.frames import Message
from globalstep.wire.incoming_messages import Incoming
from globalstep.wire.socket_messages import Outgoing, SocketMessage
from globalstep.worker.transport.tickets import REPLY_LIMIT_BYTES, Connection

__all__ = ["SocketConnection", "dial"]


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
    secs: float = CONNECT_SECS,
) -> SocketConnection:
    """Connect to where a PS task waits for it; see dialing.dialled.

    Args:
        label: What messages call the task.
        kind: What was asked for.
        address: See dialled.
        reply: The task's answer to OpenLane.
        made_of: Makes the connection of the label and the socket.
        tls: See dialled.
        secs: How long that may take in all.

    Returns:
        The connection.

    Raises:
        OSError: See dialled.
    """
    connection = dialled(kind, address, reply, tls, secs)
    try:
        return made_of(label, connection)
    except BaseException:
        connection.close()
        raise
