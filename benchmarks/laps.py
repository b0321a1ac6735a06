"""A stopwatch with named laps: where a step's time goes on the worker's side of globalstep."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from globalstep.frames import Message
from globalstep.lanes import Lane, Ticket
from globalstep.proto import globalstep_pb2 as pb

__all__ = ["STAGES", "Laps", "TimedLane"]

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
        """See lanes.Ticket."""
        self._laps.lap("encode")
        message = self._ticket.result()
        self._laps.lap("wait")
        return message


class TimedLane:
    """A lane that tells the client's own work from sending and from waiting.

    What lies before a call to the lane is encoding. What follows the last reply is the step's decoding,
    which the caller's own lap ends. All else of the lane is the real one's.

    Args:
        lane: The real one.
        laps: Where the time is booked.
    """

    def __init__(self, lane: Lane, laps: Laps) -> None:
        self._lane = lane
        self._laps = laps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lane, name)

    def send(self, request: pb.Request, pieces: Sequence[memoryview]) -> _TimedTicket:
        """See lanes.Lane."""
        self._laps.lap("encode")
        ticket = self._lane.send(request, pieces)
        self._laps.lap("send")
        return _TimedTicket(ticket, self._laps)
