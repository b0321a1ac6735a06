"""Connections that have not proven their token yet: they hold no thread, and little memory.

Layer: ps. Threads: a Strangers belongs to the thread that accepts connections.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from globalstep.runtime.clock import Clock
from globalstep.security.connection_proofs import CLAIM_BYTES, PROOF_BYTES


@dataclass(slots=True)
class Stranger:
    """A connection that was accepted.

    Attributes:
        connection: It.
        host: Whom it is counted for.
        until: When it has had its time.
        shown: What it has sent so far, of its claim and its proof.
    """

    connection: socket.socket
    host: str
    until: float
    shown: bytes = b""


class Strangers:
    """Receives the claims and proofs of connections, all at once, in the thread that accepts them.

    Args:
        listening: Where they come from; not closed here.
        clock: Time.
        secs: How long each may take.
        answer: Gives the answer to a claim; None for one that names no token.
        most: How many there may be. One more, and the oldest of the host that has most is closed.
    """

    def __init__(
        self,
        listening: socket.socket,
        clock: Clock,
        secs: float,
        answer: Callable[[bytes], bytes | None],
        most: int,
    ) -> None:
        self._listening = listening
        self._clock = clock
        self._secs = secs
        self._answer = answer
        self._most = most
        # Oldest first.
        self._held: dict[int, Stranger] = {}
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
            hosts = Counter(one.host for one in self._held.values())
            most = max(hosts.values())
            self._close(next(one for one in self._held.values() if hosts[one.host] == most))
        connection.setblocking(False)
        self._held[connection.fileno()] = Stranger(connection, host, self._clock.monotonic() + self._secs)
        self._selector.register(connection, selectors.EVENT_READ)

    def ready(self) -> tuple[bool, list[Stranger]]:
        """Wait until there is something to do.

        Returns:
            Whether a connection may be accepted, or the listening socket has ended; and those that have sent a claim
            and a proof, which are the caller's now.
        """
        oldest = next(iter(self._held.values()), None)
        left = None if oldest is None else max(oldest.until - self._clock.monotonic(), 0.0)
        sockets = [key.fileobj for key, _ in self._selector.select(left)]
        came = [
            self._held[one.fileno()] for one in sockets if isinstance(one, socket.socket) and one is not self._listening
        ]
        done = [stranger for stranger in came if self._has_come(stranger)]
        now = self._clock.monotonic()
        while (oldest := next(iter(self._held.values()), None)) is not None and oldest.until <= now:
            self._close(oldest)
        return self._listening in sockets, done

    def close(self) -> None:
        """Close all that are here."""
        for stranger in list(self._held.values()):
            self._close(stranger)
        self._selector.close()

    def _has_come(self, stranger: Stranger) -> bool:
        """Receive from one; gives whether its claim and proof are whole, which leaves it to the caller."""
        connection = stranger.connection
        claims = len(stranger.shown) < CLAIM_BYTES
        try:
            more = connection.recv((CLAIM_BYTES if claims else CLAIM_BYTES + PROOF_BYTES) - len(stranger.shown))
            stranger.shown += more
            if claims and len(stranger.shown) == CLAIM_BYTES:
                more = self._answer(stranger.shown) or b""
                connection.sendall(more)
                # It is counted apart: the strangers of its host, however many, do not make it go any more.
                stranger.host += ", with a token"
        except BlockingIOError:
            return False
        except OSError:
            more = b""
        if not more:
            self._close(stranger)
        if not more or len(stranger.shown) < CLAIM_BYTES + PROOF_BYTES:
            return False
        self._forget(stranger)
        connection.setblocking(True)
        return True

    def _forget(self, stranger: Stranger) -> None:
        self._selector.unregister(stranger.connection)
        del self._held[stranger.connection.fileno()]

    def _close(self, stranger: Stranger) -> None:
        self._forget(stranger)
        with contextlib.suppress(OSError):
            stranger.connection.close()
