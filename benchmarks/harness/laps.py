"""A stopwatch with named laps: where a step's time goes on the worker's side of globalstep."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from globalstep.proto import globalstep_pb2 as pb
from globalstep.wire.message import Message
from globalstep.wire.transports import Ticket, Transport

__all__ = ["STAGES", "Laps", "TimedTransport"]

#: In the order of a step.
STAGES = ("gradient", "encode", "send", "wait", "decode")


class Laps:
    """Adds up the time since the last lap under the next lap's name. Single thread.

    Attributes:
        secs: Stage -> seconds so far.
    """

    def __init__(self) -> None:
        self.secs = dict.fromkeys(STAGES, 0.0)
        self._last = time.perf_counter()

    def start(self) -> None:
        """Begin the first lap of a step; what went before counts nowhere."""
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """End a lap."""
        now = time.perf_counter()
        self.secs[stage] += now - self._last
        self._last = now


class _TimedTicket:
    def __init__(self, ticket: Ticket, laps: Laps) -> None:
        self._ticket = ticket
        self._laps = laps

    def result(self) -> Message:
        """See transports.Ticket."""
        self._laps.lap("encode")
        message = self._ticket.result()
        self._laps.lap("wait")
        return message


class TimedTransport:
    """A transport that tells the client's own work from sending and from waiting.

    What lies before a call to the transport is encoding. What follows the last reply is the step's decoding,
    which the caller's own lap ends. All else of the transport is the real one's.

    Args:
        transport: The real one.
        laps: Where the time is booked.
    """

    def __init__(self, transport: Transport, laps: Laps) -> None:
        self._transport = transport
        self._laps = laps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def send(self, request: pb.Request, pieces: Sequence[memoryview]) -> _TimedTicket:
        """See transports.Transport."""
        self._laps.lap("encode")
        ticket = self._transport.send(request, pieces)
        self._laps.lap("send")
        return _TimedTicket(ticket, self._laps)
