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

import select
import sys
import threading
from collections import deque

from globalstep.ps.service.handler import Handler
from globalstep.ps.service.served_connection import ServedConnection, Turn

__all__ = ["Turns"]


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
                connection = self._next()
            if not connection.answer():
                return connection

    def close(self) -> None:
        """Give up what it waits with; to be called when all connections have ended."""
        self._poller.close()

    def _wait_for(self, connection: ServedConnection) -> None:
        descriptor = connection.fileno()
        self._waiting[descriptor] = connection, select.EPOLLIN
        self._poller.register(descriptor, select.EPOLLIN)

    def _next(self) -> ServedConnection:
        """Do what is quick, until a connection needs more; gives that one, which is no longer waited for."""
        while True:
            while not self._ready:
                if self._counting:
                    self._count()
                else:
                    for descriptor, _ in self._poller.poll():
                        self._ready.append(descriptor)
            descriptor = self._ready.popleft()
            connection, waited_for = self._waiting[descriptor]
            turn = connection.answer_quickly(alone=not (self._ready or self._counting))
            if turn is Turn.TAKES_TIME:
                self._poller.unregister(descriptor)
                del self._waiting[descriptor]
                return connection
            if turn is Turn.COUNTS:
                self._counting.append(descriptor)
                continue
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
