"""Connections that carry data-plane calls to a PS task, and the tickets of the calls in flight on one.

The thread that waits for a call reads the replies. A connection over plain sockets, a unix socket on the same machine
or TCP, is asked for over gRPC, which also gives the token that opens it: docs/design/transports.md.

Layer: worker. Threads: none of its own.
"""

from __future__ import annotations

import abc
import copy
import select
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from globalstep.errors import InvalidArgumentError, OpError, UnavailableError, error_from_code
from globalstep.proto import globalstep_pb2 as pb
from globalstep.wire.message import NO_CALL, REPLY_LIMIT_BYTES, Message
from globalstep.wire.socket_messages import Incoming, Outgoing, Place, SocketMessage


@dataclass(slots=True, eq=False)
class ConnectionTicket:
    """A data-plane call in flight; see transports.Ticket."""

    _connection: Connection
    call: int
    #: What the request needs until the reply is there.
    load: Any
    overdue_at: float
    #: Whether a thread is held up by it: sends it, or waits for its reply. A reply that no thread has asked for yet
    #: may lie unread as long as it likes.
    awaited: bool = True
    message: Message | None = None
    error: OpError | None = None

    def result(self) -> Message:
        """See transports.Ticket: read replies until this call's is among them."""
        self.awaited = True
        while self.message is None and self.error is None:
            with self._connection.reading:
                if self.message is None and self.error is None:
                    self._connection.read()
        if self.error is not None:
            # One of its own each time: an error refers to the frames that it went through, with all that they hold.
            raise copy.copy(self.error)
        assert self.message is not None
        return self.message


class Connection(abc.ABC):
    """One connection that carries data-plane calls, whatever it is made of. Thread-safe.

    Args:
        label: What messages call the task.

    Attributes:
        kind: What it is made of: "grpc", "shm", "unix" or "tcp".
        broken: Why it can be used no more; None while it can.
        reading: Held by the one thread that reads from the connection.
    """

    kind: str
    #: What `_prepare` makes of no tensors, where no reply will come.
    nothing: Any = ()

    def __init__(self, label: str) -> None:
        self._label = label
        # Keeps messages whole and in order on their way out; taken before `reading`.
        self._sending = threading.Lock()
        # Taken before _state.
        self.reading = threading.Lock()
        # Guards the attributes below; a leaf.
        self._state = threading.Lock()
        self._tickets: dict[int, ConnectionTicket] = {}
        self._calls = 0
        self.broken: OpError | None = None

    def _prepare(self, request: pb.Request, pieces: Sequence[memoryview], overdue_at: float) -> Any:
        """Make what `_transmit` sends of a request's tensors. May make calls of its own."""
        return pieces

    def _answered(self, ticket: ConnectionTicket, reply: pb.Reply | None) -> None:
        """Take note that a call's reply has come, None for an error in its stead; no other thread knows yet."""
        ticket.load = None

    @abc.abstractmethod
    def _transmit(self, call: int, request: pb.Request, load: Any) -> None:
        """Send a request, with its tensors as `_prepare` has made them. Caller holds _sending.

        Raises:
            OpError: If the connection is broken.
        """

    @abc.abstractmethod
    def _receive(self) -> Message | None:
        """Read from the connection, until a message is whole or some part of one. Caller holds `reading`.

        Raises:
            OpError: If the connection is broken, or has ended.
        """

    @abc.abstractmethod
    def _end(self) -> None:
        """Make `_transmit` and `_receive` of other threads return soon. May be called twice."""

    def send(
        self, request: pb.Request, pieces: Sequence[memoryview], overdue_at: float, load: Any = None
    ) -> ConnectionTicket:
        """Send a request; gives the ticket for its reply.

        Args:
            request: The message.
            pieces: Bytes of its tensors.
            overdue_at: When to break the call off, by the clock of who asks `overdue`.
            load: What `_prepare` would make of them, where the caller has made it.
        """
        if load is None:
            load = self._prepare(request, pieces, overdue_at)
        with self._state:
            self._calls += 1
            ticket = ConnectionTicket(self, self._calls, load, overdue_at)
            if self.broken is not None:
                ticket.error, ticket.load = self.broken, None
                return ticket
            self._tickets[ticket.call] = ticket
        try:
            with self._sending:
                self._transmit(ticket.call, request, load)
        except OpError as error:
            self.break_off(error)
        ticket.awaited = False
        return ticket

    def tell(self, request: pb.Request) -> None:
        """Send a request without tensors that is not answered."""
        try:
            with self._sending:
                self._transmit(NO_CALL, request, self.nothing)
        except OpError as error:
            self.break_off(error)

    def read(self) -> None:
        """Read once, and hand a reply to its ticket. Caller holds `reading`."""
        try:
            message = self._receive()
        except OpError as error:
            self.break_off(error)
            return
        if message is None or message.reply is None:
            return
        with self._state:
            ticket = self._tickets.pop(message.call, None)
        if ticket is None:
            return
        if message.reply.HasField("error"):
            reply = message.reply.error
            text = f"{self._label}: {reply.message}"
            refusal = error_from_code(reply.code, text, reply.type, reply.retry_millis / 1000)
            self._answered(ticket, None)
            ticket.error = refusal
        else:
            self._answered(ticket, message.reply)
            ticket.message = message

    def break_off(self, error: OpError) -> None:
        """Fail every call in flight and end the connection."""
        with self._state:
            if self.broken is None:
                # Without the frames that it was raised in: the connection may last longer than they do.
                self.broken = copy.copy(error)
            tickets, self._tickets = list(self._tickets.values()), {}
        for ticket in tickets:
            ticket.error, ticket.load = self.broken, None
        self._end()

    def close(self, error: OpError) -> None:
        """Break it off and give up what it holds."""
        self.break_off(error)

    def overdue(self, now: float) -> bool:
        """Whether a call has taken too long."""
        with self._state:
            return any(ticket.awaited and now > ticket.overdue_at for ticket in self._tickets.values())


@dataclass(slots=True)
class Load:
    """The tensors of a request on a socket: to be sent, or where they lie in shared memory."""

    pieces: Sequence[memoryview]
    place: Place | None = None
    nbytes: int = 0
    #: Blocks that are not free before the reply is there.
    held: list[npt.NDArray[np.uint8]] = field(default_factory=list)
    #: The push (client, number) that the request stages, and the one that is applied, or refused, once it is answered.
    stages: tuple[str, int] | None = None
    ends: tuple[str, int] | None = None


class SocketConnection(Connection):
    """A connection of messages on a socket. Thread-safe.

    Args:
        label: What messages call the task.
        connection: The socket, past its welcome.
    """

    nothing = Load(())

    def __init__(self, label: str, connection: socket.socket) -> None:
        super().__init__(label)
        self.kind = "unix" if connection.family == socket.AF_UNIX else "tcp"
        self._socket = connection
        self._incoming = Incoming(connection, REPLY_LIMIT_BYTES)

    def _prepare(self, request: pb.Request, pieces: Sequence[memoryview], overdue_at: float) -> Load:
        """See Connection."""
        return Load(pieces)

    def _transmit(self, call: int, request: pb.Request, load: Load) -> None:
        """See Connection.

        While other calls are in flight, the task may be stuck with a reply that this client does not read, and read no
        request itself: then replies are read here, so that both sides go on.
        """
        outgoing = Outgoing(call, request.SerializeToString(), load.pieces, load.place, load.nbytes)
        with self._state:
            alone = len(self._tickets) <= 1  # no call but this one is in flight
        try:
            if alone:
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

    def _placed(self, message: SocketMessage, place: Place) -> memoryview:
        """Return the bytes of a reply's tensors that lie in shared memory, which are not to be written to."""
        raise InvalidArgumentError("it speaks of shared memory, and there is none")

    def _wait_for_space(self) -> None:
        """Wait until more can be sent, or read a reply that may be in the way. Caller holds _sending.

        Nothing is lost by waiting for another thread that reads: the task takes no more before it has sent
        that thread its reply.
        """
        with self.reading:
            poll = select.poll()
            poll.register(self._socket, select.POLLOUT | select.POLLIN)
            if not poll.poll()[0][1] & select.POLLOUT:
                self.read()

    def _receive(self) -> Message | None:
        """See Connection."""
        try:
            message = self._incoming.receive()
            if message is None:
                raise UnavailableError(f"{self._label} ended the connection.")
            data = message.data.toreadonly() if message.place is None else self._placed(message, message.place)
            return Message(message.call, None, pb.Reply.FromString(message.head), data)
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
        with self._sending, self.reading:
            self._socket.close()
