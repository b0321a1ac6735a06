"""A transport that makes faults sends what it was given, from where it lies."""

from __future__ import annotations

import numpy as np
import pytest
from faulty_transport import FaultyTransport

from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.faults import NO_FAULTS, SEND, TransportFault


class Inner:
    """A transport that keeps what is sent."""

    label = "a task"

    def __init__(self):
        self.sent = []

    def send(self, request, pieces):
        self.sent.append([bytes(piece) for piece in pieces])
        return self

    def result(self):
        return pb.Reply()


@pytest.mark.parametrize("verdict", [TransportFault.TWICE, TransportFault.LATE])
def test_what_leaves_later_leaves_with_the_bytes_of_its_time(verdict):
    class Once:
        def at(self, point, method):
            return verdict if point == SEND else None

    inner, values = Inner(), np.ones(3, np.uint8)
    transport = FaultyTransport(inner, Once())
    transport.send(pb.Request(), [values.data])
    at_once = len(inner.sent)
    values.fill(2)
    transport.deliver_late()
    assert (at_once, len(inner.sent)) == ((2, 2) if verdict is TransportFault.TWICE else (0, 1))
    assert inner.sent[-1] == [bytes([1, 1, 1])]


def test_a_request_is_sent_from_where_it_lies():
    """What is written where the task reads it must be found there."""

    class Keeps(Inner):
        def send(self, request, pieces):
            self.sent.append(pieces)
            return self

    inner, values = Keeps(), np.ones(3, np.uint8)
    FaultyTransport(inner, NO_FAULTS).send(pb.Request(), [values.data])
    assert np.shares_memory(np.frombuffer(inner.sent[0][0], np.uint8), values)
