"""Connections that have shown no token yet: they hold no thread, and little memory.

Layer: ps. Threads: a Strangers belongs to the thread that accepts connections.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections import Counter
from dataclasses import dataclass

from globalstep.runtime.clock import Clock

__all__ = ["Stranger", "Strangers"]


@dataclass(slots=True)
class Stranger:
    """A connection that was accepted.

    Attributes:
        connection: It.
        host: Where it comes from, as far as it is counted.
        until: When it has had its time.
        shown: What it has sent so far.
    """

    connection: socket.socket
    host: str
    until: float
    shown: bytes = b""


class Strangers:
    """Waits for the first bytes of connections, all at once, in the thread that accepts them.

    Args:
        listening: Where they come from; not closed here.
        clock: Time.
        secs: How long each may take.
        first_bytes: How many bytes each begins with.
        most: How many there may be. One more, and the oldest of the host that has most is closed.
    """

    def __init__(self, listening: socket.socket, clock: Clock, secs: float, first_bytes: int, most: int) -> None:
        self._listening = listening
        self._clock = clock
        self._secs = secs
        self._first_bytes = first_bytes
        self._most = most
        # Oldest first.
        self._held: dict[int, Stranger] = {}
        self._hosts: Counter[str] = Counter()
        self._selector = selectors.DefaultSelector()
        self._selector.register(listening, selectors.EVENT_READ)

    def __len__(self) -> int:
        return len(self._held)

    def add(self, connection: socket.socket, host: str) -> None:
        """Take a connection in.

        Args:
            connection: It; closed here unless `ready` gives it.
            host: Where it comes from.
        """
        if len(self._held) >= self._most:
            most = max(self._hosts.values())
            self._close(next(one for one in self._held.values() if self._hosts[one.host] == most))
        connection.setblocking(False)
        self._held[connection.fileno()] = Stranger(connection, host, self._clock.monotonic() + self._secs)
        self._hosts[host] += 1
        self._selector.register(connection, selectors.EVENT_READ)

    def ready(self) -> tuple[bool, list[Stranger]]:
        """Wait until there is something to do.

        Returns:
            Whether a connection may be accepted, or the listening socket has ended; and those that have sent what
            they begin with, which are the caller's now.
        """
        oldest = next(iter(self._held.values()), None)
        left = None if oldest is None else max(oldest.until - self._clock.monotonic(), 0.0)
        sockets = [key.fileobj for key, _ in self._selector.select(left)]
        came = [
            self._held[one.fileno()] for one in sockets if isinstance(one, socket.socket) and one is not self._listening
        ]
        done = [stranger for stranger in came if self._has_begun(stranger)]
        now = self._clock.monotonic()
        while (oldest := next(iter(self._held.values()), None)) is not None and oldest.until <= now:
            self._close(oldest)
        return self._listening in sockets, done

    def close(self) -> None:
        """Close all that are here."""
        for stranger in list(self._held.values()):
            self._close(stranger)
        self._selector.close()

    def _has_begun(self, stranger: Stranger) -> bool:
        """Look what has come of one; True where it is whole and no stranger any more, which leaves it to the caller."""
        try:
            more = stranger.connection.recv(self._first_bytes - len(stranger.shown))
        except BlockingIOError:
            return False
        except OSError:
            more = b""
        if not more:
            self._close(stranger)
            return False
        stranger.shown += more
        if len(stranger.shown) < self._first_bytes:
            return False
        self._forget(stranger)
        stranger.connection.setblocking(True)
        return True

    def _forget(self, stranger: Stranger) -> None:
        self._selector.unregister(stranger.connection)
        del self._held[stranger.connection.fileno()]
        self._hosts[stranger.host] -= 1
        if not self._hosts[stranger.host]:
            del self._hosts[stranger.host]

    def _close(self, stranger: Stranger) -> None:
        self._forget(stranger)
        with contextlib.suppress(OSError):
            stranger.connection.close()
