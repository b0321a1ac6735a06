"""Calls whose reply is made once something has happened on a link.

Layer: ps. Threads: a ParkedCall is resumed by whoever has taken it out of where it waited, once; its reply is made by
the thread that serves its connection.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.shard.layouts import LayoutMemory
from globalstep.wire.codec import TensorWriter

__all__ = ["LONGEST_SECS", "Line", "Make", "OpenCall", "ParkedCall", "ServedLine", "Waits", "blocked_call"]

#: A call is answered without what it waits for after so long: its client goes on by COMMIT.
LONGEST_SECS = 5.0

#: Writes a reply.
Make = Callable[[pb.Reply, TensorWriter], None]


class ParkedCall:
    """A call that waits.

    Args:
        since: When it began to wait, by the clock's monotonic reading.
        wake: Has the thread that serves its connection make the reply.

    Attributes:
        since: As given.
        make: Makes the reply; None before it is resumed.
    """

    __slots__ = ("_wake", "make", "since")

    def __init__(self, since: float, wake: Callable[[ParkedCall], None]) -> None:
        self.since = since
        self._wake = wake
        self.make: Make | None = None

    def resume(self, make: Make) -> None:
        """Have the reply made."""
        self.make = make
        self._wake(self)


def blocked_call(since: float) -> tuple[ParkedCall, threading.Event]:
    """Make a call whose thread waits for it; gives also what is set once it is resumed."""
    resumed = threading.Event()
    return ParkedCall(since, lambda _: resumed.set()), resumed


class Waits(Protocol):
    """Calls that wait for something else than votes."""

    @property
    def is_idle(self) -> bool:
        """Whether none waits."""
        ...

    def look_after(self, now: float) -> float | None:
        """Answer those that wait no longer; gives when to look again, seconds, None for not at all."""
        ...


class Line(Protocol):
    """A connection on which votes come."""

    def tell(self, decisions: pb.Decisions) -> None:
        """Send decisions; where they cannot be sent at once, the line ends. Thread-safe."""
        ...

    def when_ended(self, ended: Callable[[], None]) -> None:
        """Have `ended` called when the connection has ended; at once where it has."""
        ...


class ServedLine(Line, Protocol):
    """A connection, as far as a handler needs to know it."""

    def park(self, call: OpenCall) -> ParkedCall | None:
        """Have a call wait without a thread; None where the thread that carries it out is to wait."""
        ...


@dataclass(slots=True, eq=False)
class OpenCall:
    """A request that is being carried out, and may have to wait.

    Attributes:
        request: The message.
        memory: What its stream remembers.
        line: Its connection; None for one on which no votes come, and no call waits without a thread.
        number: Of the call on its connection.
        resumed: Set once it may go on, where its thread waits.
        parked: It, while it waits.
    """

    request: pb.Request
    memory: LayoutMemory
    line: ServedLine | None = None
    number: int = 0
    resumed: threading.Event | None = None
    parked: ParkedCall | None = None
