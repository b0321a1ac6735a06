"""What a transport around another one can do is what that one can do."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import numpy as np
import pytest
from faulty_transport import FaultyTransport
from stand_ins import LossyTransport

from benchmarks.harness.laps import Laps, TimedTransport
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.local import LocalTransport
from globalstep.runtime.faults import NO_FAULTS, SEND, TransportFault
from globalstep.wire.transports import Transport
from globalstep.worker.transport.grpc_transport import GrpcTransport

ROOT = Path(__file__).resolve().parents[3]
#: Makes each of them around a transport.
WRAPPERS = {
    "FaultyTransport": lambda transport: FaultyTransport(transport, NO_FAULTS),
    "LossyTransport": lambda transport: LossyTransport(transport, "", True, 0),
    "TimedTransport": lambda transport: TimedTransport(transport, Laps()),
}
#: What carries messages, and may do something about them.
CARRIES = ("send", "tell", "unary", "break_off", "give_up", "close", "expire")
MEMBERS = [name for name in vars(Transport) if not name.startswith("_")]


class Inner:
    """A transport that answers every question with an object of its own."""

    def __init__(self):
        self.sent = []

    def __getattr__(self, name):
        answer = object()
        setattr(self, name, (lambda *args: (answer, args)) if inspect.isfunction(vars(Transport)[name]) else answer)
        return getattr(self, name)

    def send(self, request, pieces):
        self.sent.append([bytes(piece) for piece in pieces])
        return self

    def result(self):
        return pb.Reply()


def test_the_protocol_says_all_that_a_transport_can_do():
    assert set(MEMBERS) == {*CARRIES, "label", "address", "buffer"}
    local = {*vars(LocalTransport), "label", "address"}  # those it sets itself
    assert not set(MEMBERS) - local
    assert not set(MEMBERS) - {*vars(GrpcTransport), "label", "address"}


@pytest.mark.parametrize("make", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize("name", [name for name in MEMBERS if name not in CARRIES])
def test_a_transport_around_another_one_can_do_what_that_one_can(make, name):
    inner = Inner()
    wrapper = make(inner)
    if inspect.isfunction(vars(Transport)[name]):
        assert getattr(wrapper, name)(17) == getattr(inner, name)(17)
    else:
        assert getattr(wrapper, name) is getattr(inner, name)


def test_every_transport_around_another_one_is_tried_here():
    found = set()
    for folder in ("ps", "worker", "chief", "deploy", "tf1", "benchmarks", "tests/support"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            for node in ast.walk(ast.parse(text)) if "ransport.send" in text else ():
                if isinstance(node, ast.ClassDef) and {"self._transport.send", "self.transport.send"} & {
                    ast.unparse(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)
                }:
                    found.add(node.name)
    assert found == set(WRAPPERS)


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
