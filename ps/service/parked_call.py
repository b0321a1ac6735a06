"""Calls whose reply is made once a step has moved on, so that they wait without a thread.

Layer: ps. Threads: a ParkedCall is resumed once, by the thread that has taken it out of where it waited; the thread
that serves its connection makes its reply.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.shard.layouts import LayoutMemory
from globalstep.wire.codec import TensorWriter

__all__ = ["Make", "OpenCall", "ParkedCall", "ServedLine"]

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


class ServedLine(Protocol):
    """A connection, as far as a handler needs to know it."""

    def park(self, call: OpenCall) -> ParkedCall | None:
        """Have a call wait without a thread; None where it cannot."""
        ...


@dataclass(slots=True, eq=False)
class OpenCall:
    """A request that is being carried out, and may have to wait.

    Attributes:
        request: The message.
        memory: What its stream remembers.
        line: Its connection; None for one on which no call waits without a thread.
        number: Of the call on its connection.
        parked: It, while it waits.
    """

    request: pb.Request
    memory: LayoutMemory
    line: ServedLine | None = None
    number: int = 0
    parked: ParkedCall | None = None
