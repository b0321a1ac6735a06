"""A transport on which messages are lost, doubled, late or cut off, as a test says.

Layer: shared. For tests: see globalstep.runtime.faults.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.errors import OpError, UnavailableError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.faults import REPLY, SEND, Faults, TransportFault, method_name
from globalstep.wire.transports import Transport

#: How many further messages leave before one that is late.
_LATE_AFTER = 3


class _Watched:
    """A call in flight whose reply may get lost; transports.Ticket and transports.Pending."""

    def __init__(self, call: Any, method: str, transport: FaultyTransport) -> None:
        self._call = call
        self._method = method
        self._transport = transport

    def result(self) -> Any:
        reply = self._call.result()
        self._transport.received(self._method)
        return reply


class _Failed:
    """A call that came to nothing; transports.Ticket and transports.Pending."""

    def __init__(self, error: OpError) -> None:
        self._error = error

    def result(self) -> Any:
        raise self._error


class FaultyTransport:
    """A transport around another one. Thread-safe.

    Args:
        transport: What carries the messages.
        faults: Says what becomes of them.
    """

    def __init__(self, transport: Transport, faults: Faults) -> None:
        self.transport = transport
        self._faults = faults
        # Guards _late; a leaf.
        self._lock = threading.Lock()
        # What is late, and how many messages are to leave before it.
        self._late: list[tuple[int, Callable[[], Any]]] = []

    @property
    def label(self) -> str:
        """See transports.Transport."""
        return self.transport.label

    @property
    def address(self) -> str:
        """See transports.Transport."""
        return self.transport.address

    def buffer(self, nbytes: int) -> npt.NDArray[np.uint8] | None:
        """See transports.Transport."""
        return self.transport.buffer(nbytes)

    def send(self, request: pb.Request, pieces: Sequence[memoryview]) -> Any:
        """See transports.Transport. The pieces go as they are, so that what lies in shared memory is read there."""

        def copied() -> Callable[[], Any]:
            # What leaves later leaves with the bytes of now: their owner may have other use for the memory by then.
            kept = [memoryview(bytes(piece)) for piece in pieces]
            return lambda: self.transport.send(request, kept)

        return self._start(request.WhichOneof("kind") or "", lambda: self.transport.send(request, pieces), copied)

    def tell(self, request: pb.Request) -> None:
        """See transports.Transport."""

        def start() -> None:
            self.transport.tell(request)

        self._start(request.WhichOneof("kind") or "", start, lambda: start)

    def unary(self, method: str, request: Any, timeout_secs: float) -> Any:
        """See transports.Transport."""

        def start() -> Any:
            return self.transport.unary(method, request, timeout_secs)

        return self._start(method_name(method), start, lambda: start)

    def _start(self, method: str, start: Callable[[], Any], copied: Callable[[], Callable[[], Any]]) -> Any:
        try:
            verdict = self._faults.at(SEND, method)
        except OpError as error:
            return _Failed(error)
        if verdict is TransportFault.LATE:
            late = copied()
            with self._lock:
                self._late.append((_LATE_AFTER, late))
            return _Failed(UnavailableError(f"{self.label} has not answered {method} within its deadline."))
        self._send_due()
        if verdict is TransportFault.CUT:
            return _Failed(self._cut())
        if verdict is TransportFault.TWICE:
            again = copied()
            start()
            start = again
        return _Watched(start(), method, self)

    def received(self, method: str) -> None:
        """Take note of a reply.

        Raises:
            UnavailableError: If it is to be lost.
        """
        if self._faults.at(REPLY, method) is TransportFault.CUT:
            raise self._cut()

    def _cut(self) -> UnavailableError:
        error = UnavailableError(f"The connection to {self.label} was cut.")
        self.transport.break_off(error)
        return error

    def _send_due(self) -> None:
        with self._lock:
            counted = [(left - 1, start) for left, start in self._late]
            self._late = [item for item in counted if item[0] > 0]
        for left, start in counted:
            if left <= 0:
                start()

    def deliver_late(self) -> list[Any]:
        """Send what is late now; gives the calls, so that one can wait for them."""
        with self._lock:
            late, self._late = self._late, []
        return [start() for _, start in late]

    def expire(self) -> None:
        """See transports.Transport."""
        self.transport.expire()

    def break_off(self, error: OpError) -> None:
        """See transports.Transport."""
        self.transport.break_off(error)

    def give_up(self, error: OpError | None) -> None:
        """See transports.Transport."""
        self.transport.give_up(error)

    def close(self) -> None:
        """See transports.Transport."""
        self.transport.close()
