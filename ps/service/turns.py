"""Threads that serve connections together: one waits for all of them, the others work or wait for their turn.

A thread for each connection, each waiting for its own, costs small requests most of their time: every one that comes
wakes a thread, which then waits for the interpreter until another lets it go. Here one thread, whose turn it is,
waits for all connections, and answers one request after another; it takes what has come of each, sends what its
client takes, and waits for none. What may take long (much data, a disk) it does after it has left its turn to the next
thread, and stays with that connection as long as it is so. Each connection brings a thread, and ends one: so there is
always one for each that is busy.

Layer: ps. Threads: those of the connections, owned by the SocketServer.
"""

from __future__ import annotations

import contextlib
import enum
import os
import select
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING

from globalstep.ps.aggregates.step_waits import OpenCall, ParkedCall
from globalstep.ps.service.handler import Handler

if TYPE_CHECKING:
    from globalstep.ps.service.served_connection import ServedConnection


class Turn(enum.Enum):
    """What a connection does next."""

    #: It waits for the client to say something.
    RECEIVES = enum.auto()
    #: It waits for the client to take its reply.
    SENDS = enum.auto()
    #: Its push only counts: `counting` gives it, and `counted` is to be given the reply.
    COUNTS = enum.auto()
    #: It has what may take time, or is at its end.
    TAKES_TIME = enum.auto()


class Turns:
    """See the module's text. Thread-safe.

    Args:
        handler: Admits together what came together: see Handler.count.

    Raises:
        OSError: If the system gives no epoll.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        assert sys.platform == "linux"
        self._poller = select.epoll()
        # Held by the thread whose turn it is, which waits under it; taken before the shard's lock. Guards `_ready` and
        # `_counting`.
        self._turn = threading.Lock()
        #: Descriptors of connections for which there is something to do.
        self._ready: deque[int] = deque()
        #: Of those that have a push that only counts, and wait for what else has come.
        self._counting: list[int] = []
        # Connections that are waited for, or ready, and for what; an entry is made and taken out by who serves it.
        self._waiting: dict[int, tuple[ServedConnection, int]] = {}
        # Calls that may be answered now, and their connections; any thread appends, the one with the turn takes out.
        self._resumed: deque[tuple[ServedConnection, OpenCall]] = deque()
        # Wakes the thread with the turn, whose number `_at_turn` is.
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller.register(self._wake, select.EPOLLIN)
        self._at_turn = 0

    def park(self, connection: ServedConnection, call: OpenCall) -> ParkedCall | None:
        """Have a call wait without a thread, if this thread has the turn."""
        if self._at_turn != threading.get_ident():
            return None
        return ParkedCall(self._handler.step_waits.now(), lambda _: self._resume(connection, call))

    def _resume(self, connection: ServedConnection, call: OpenCall) -> None:
        self._resumed.append((connection, call))
        if self._at_turn != threading.get_ident():
            self._wake_up()

    def _wake_up(self) -> None:
        """Have the thread with the turn look at `_resumed`."""
        with contextlib.suppress(OSError):  # the server has ended, and its connections with it
            os.eventfd_write(self._wake, 1)

    def _answer_resumed(self) -> None:
        """Answer the calls that were resumed; one whose connection is another thread's is so when that comes back."""
        for _ in range(len(self._resumed)):
            connection, call = self._resumed.popleft()
            descriptor = connection.fileno()
            waiting = self._waiting.get(descriptor)
            if waiting is not None and waiting[0] is connection:
                self._wait_anew(descriptor, connection, connection.finish(call), waiting[1])
            elif descriptor >= 0:
                self._resumed.append((connection, call))

    def take_part(self, connection: ServedConnection) -> ServedConnection:
        """Serve a connection, and others, until one of them comes to its end.

        Args:
            connection: A new one, whose client was let in.

        Returns:
            The one that has, which the caller is to close.
        """
        while True:
            self._wait_for(connection)
            with self._turn:
                self._at_turn = threading.get_ident()
                try:
                    connection = self._next()
                finally:
                    self._at_turn = 0
            if not connection.answer():
                return connection

    def close(self) -> None:
        """Give up what it waits with; to be called when all connections have ended."""
        self._poller.close()
        wake, self._wake = self._wake, -1
        if wake >= 0:
            os.close(wake)

    def _wait_for(self, connection: ServedConnection) -> None:
        descriptor = connection.fileno()
        self._waiting[descriptor] = connection, select.EPOLLIN
        self._poller.register(descriptor, select.EPOLLIN)
        # What this thread has done may be what a call waits for.
        if self._resumed or self._handler.step_waits.parked:
            self._wake_up()

    def _next(self) -> ServedConnection:
        """Do what is quick, until a connection needs more; gives that one, which is no longer waited for."""
        while True:
            while not self._ready:
                if self._counting:
                    self._count()
                else:
                    waits = self._handler.step_waits
                    wait_secs = waits.look_after() if waits.parked else None
                    if self._resumed:  # of calls that have waited for too long
                        wait_secs = 0.0
                    for descriptor, _ in self._poller.poll(wait_secs):
                        if descriptor == self._wake:
                            os.eventfd_read(self._wake)
                        else:
                            self._ready.append(descriptor)
                    if self._resumed:
                        self._answer_resumed()
            descriptor = self._ready.popleft()
            connection, waited_for = self._waiting[descriptor]
            turn = connection.answer_quickly(alone=not (self._ready or self._counting))
            if self._resumed:
                self._answer_resumed()
            if turn is Turn.TAKES_TIME:
                self._poller.unregister(descriptor)
                del self._waiting[descriptor]
                return connection
            if turn is Turn.COUNTS:
                self._counting.append(descriptor)
                continue
            if turn is not Turn.RECEIVES or waited_for != select.EPOLLIN:
                self._wait_anew(descriptor, connection, turn, waited_for)

    def _wait_anew(self, descriptor: int, connection: ServedConnection, turn: Turn, waited_for: int) -> None:
        """Wait for what comes next of a connection."""
        wanted = select.EPOLLOUT if turn is Turn.SENDS else select.EPOLLIN
        if wanted != waited_for:
            self._waiting[descriptor] = connection, wanted
            self._poller.modify(descriptor, wanted)

    def _count(self) -> None:
        """Admit the pushes that only count, which have come meanwhile, in one go."""
        connections = [self._waiting[descriptor][0] for descriptor in self._counting]
        replies = self._handler.count([connection.counting() for connection in connections])
        for connection, reply in zip(connections, replies, strict=True):
            connection.counted(reply)
        self._ready.extend(self._counting)
        self._counting.clear()
