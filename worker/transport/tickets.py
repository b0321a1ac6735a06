"""Tickets: the calls in flight on one connection to a PS task. The thread that waits for one reads the replies.

Layer: worker. Threads: none of its own.
"""

from __future__ import annotations

import abc
import copy
import math
import threading
from collections.abc import Sequence
from typing import Any

from globalstep.errors import OpError, error_from_code
from globalstep.proto import globalstep_pb2 as pb
from globalstep.wire.frames import NO_CALL, Message

__all__ = ["REPLY_LIMIT_BYTES", "Connection", "ConnectionTicket"]

#: Most tensor bytes of a reply, on the wire and unpacked: what a PS task answers is as large as its Variables.
REPLY_LIMIT_BYTES = 1 << 40


class ConnectionTicket:
    """A data-plane call in flight; see transports.Ticket."""

    __slots__ = ("_connection", "awaited", "call", "error", "load", "message", "overdue_at")

    def __init__(self, connection: Connection, call: int, load: Any, overdue_at: float) -> None:
        self._connection = connection
        self.call = call
        #: What the request needs until the reply is there.
        self.load = load
        self.overdue_at = overdue_at
        #: Whether a thread is held up by it: sends it, or waits for its reply. A reply that no thread has asked
        #: for yet may lie unread as long as it likes.
        self.awaited = True
        self.message: Message | None = None
        self.error: OpError | None = None

    @property
    def settled(self) -> bool:
        """Whether the reply, or an error instead of it, is there."""
        return self.message is not None or self.error is not None

    def result(self) -> Message:
        """See transports.Ticket."""
        self._connection.wait_for(self)
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
        shares_memory: Whether the task reads large tensors where they lie; see transports.Transport.
        broken: Why it can be used no more; None while it can.
    """

    kind: str
    shares_memory = False

    def __init__(self, label: str) -> None:
        self._label = label
        # Keeps messages whole and in order on their way out; taken before _reading.
        self._sending = threading.Lock()
        # Held by the one thread that reads from the connection; taken before _state.
        self._reading = threading.Lock()
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
        """Read from the connection, until a message is whole or some part of one. Caller holds _reading.

        Raises:
            OpError: If the connection is broken, or has ended.
        """

    @abc.abstractmethod
    def _end(self) -> None:
        """Make `_transmit` and `_receive` of other threads return soon. May be called twice."""

    def send(self, request: pb.Request, pieces: Sequence[memoryview], overdue_at: float) -> ConnectionTicket:
        """Send a request; gives the ticket for its reply.

        Args:
            request: The message.
            pieces: Bytes of its tensors.
            overdue_at: When to break the call off, by the clock of who asks `overdue`.
        """
        load = self._prepare(request, pieces, overdue_at)
        return self._tell(request, load) if request.HasField("complete") else self._call(request, load, overdue_at)

    def _tell(self, request: pb.Request, load: Any) -> ConnectionTicket:
        """Send a request without a reply. The ticket is settled."""
        ticket = ConnectionTicket(self, NO_CALL, None, math.inf)
        try:
            with self._sending:
                self._transmit(NO_CALL, request, load)
        except OpError as error:
            self.break_off(error)
        ticket.message = Message(NO_CALL, None, pb.Reply(), memoryview(b""))
        return ticket

    def _call(self, request: pb.Request, load: Any, overdue_at: float) -> ConnectionTicket:
        """Send a request with what `_prepare` has made; gives the ticket for its reply."""
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

    def wait_for(self, ticket: ConnectionTicket) -> None:
        """Read replies until the ticket's is among them."""
        ticket.awaited = True
        while not ticket.settled:
            with self._reading:
                if not ticket.settled:
                    self._read()

    def _read(self) -> None:
        """Read once, and hand a reply to its ticket. Caller holds _reading."""
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

    @property
    def idle(self) -> bool:
        """Whether no call but the caller's own is in flight."""
        with self._state:
            return len(self._tickets) <= 1
