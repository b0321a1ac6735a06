"""Memory that is claimed and not used: over every connection it goes back to those who need it. Real servers."""

from __future__ import annotations

import contextlib
import queue
import threading

import grpc
import numpy as np
import pytest
from counting_run import initialize
from served_sockets import Served, ask, with_gradient

from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.budget import Account, Budget
from globalstep.ps.server import PSOptions, PSServer
from globalstep.ps.service.slow_senders import SlowSenders
from globalstep.runtime.clock import SYSTEM_CLOCK, ManualClock, SystemClock
from globalstep.security.credentials import Credentials
from globalstep.security.dialing import dial
from globalstep.wire.declarations import Op, OpKind, Push, VariableDecl
from globalstep.wire.socket_messages import HEADER, MAGIC
from globalstep.worker.client.client import ClusterClient
from globalstep.worker.transport.grpc_transport import GrpcTransport

LIMIT = 8 << 20
COUNT = 1 << 18


class Hasty(SystemClock):
    """Time that passes twenty times as fast."""

    def monotonic(self):
        return super().monotonic() * 20

    def wait(self, event, timeout_secs):
        return super().wait(event, timeout_secs / 20)


class Sends:
    """A sender that a test moves on."""

    slack_bytes = 0

    def __init__(self, needs_memory=True):
        self.needs_memory = needs_memory
        self.at: tuple[object, int] | None = None
        self.cut = []

    def under_way(self):
        return self.at

    def cut_off(self, secs):
        self.cut.append(secs)


@pytest.mark.parametrize(("short", "needs_memory", "cut"), [(1, 1, True), (0, 1, False), (0, 0, True)])
def test_who_does_not_come_on_is_cut_off_where_that_matters(short, needs_memory, cut):
    clock = ManualClock()
    slow = SlowSenders(clock, lambda: bool(short))
    silent, steady = Sends(needs_memory), Sends(needs_memory)
    with slow.watching(silent), slow.watching(steady):
        silent.at = silent, 0
        for second in range(12):
            steady.at = steady, second << 20
            slow.look()
            clock.advance(1.0)
    assert bool(silent.cut) is cut
    assert not steady.cut


def test_what_begins_anew_has_its_time_again():
    clock = ManualClock()
    slow = SlowSenders(clock, lambda: True)
    sender = Sends()
    with slow.watching(sender):
        for _ in range(12):
            sender.at = object(), 0
            slow.look()
            clock.advance(1.0)
        sender.at = None
        slow.look()
    assert not sender.cut


@pytest.fixture
def server():
    made = PSServer(PSOptions(grace_secs=0.2, max_inflight_bytes=LIMIT))
    made._slow._clock = Hasty()
    made.control.handler.budget._patience_secs = 2.0
    made.start()
    yield made
    made.close()


@pytest.fixture
def client(server):
    transport = GrpcTransport(server.address, 0, "grpc", credentials=Credentials())
    with contextlib.closing(ClusterClient([transport], member=False)) as made:
        initialize(made)
        made.declare([VariableDecl("big", "float32", (8 * COUNT,), 0)], [])
        yield made


def push_some(client):
    """An honest push of a few megabytes, of several frames."""
    client.push(Push([Op(OpKind.ASSIGN, "big", np.ones(8 * COUNT, np.float32))]))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["unix", "shm", "tcp"])
def test_a_header_that_announces_much_and_brings_nothing_gives_its_memory_back(server, client, kind):
    number = {"unix": pb.LANE_UNIX, "shm": pb.LANE_SHM, "tcp": pb.LANE_TCP}[kind]
    address, token = server._sockets.open(number)
    with dial(number, server.address, pb.OpenLaneReply(address=address, token=token)) as connection:
        connection.sendall(HEADER.pack(MAGIC, 0, 1, 1 << 26))
        until_used(server, 1 << 26)
        push_some(client)
        connection.settimeout(20)
        assert connection.recv(1) == b""


def until_used(server, nbytes):
    until = SYSTEM_CLOCK.monotonic() + 20.0
    while server.control.handler.budget.used_bytes < nbytes:
        assert SYSTEM_CLOCK.monotonic() < until
        SYSTEM_CLOCK.wait(threading.Event(), 0.005)


@pytest.mark.timeout(60)
def test_a_first_frame_that_announces_much_gives_its_memory_back(server, client):
    with grpc.insecure_channel(server.address) as channel:
        outbox = queue.SimpleQueue()
        replies = channel.stream_stream("/globalstep.v1.ParameterServer/Exchange")(iter(outbox.get, None), timeout=60)
        outbox.put(pb.Frame(call=1, request=pb.Request(), data_bytes=1 << 26).SerializeToString())
        until_used(server, 1 << 26)
        push_some(client)
        with pytest.raises(grpc.RpcError) as caught:
            next(replies)
        assert caught.value.code() is grpc.StatusCode.CANCELLED
        outbox.put(None)


# ---- The thread that serves all sockets -----------------------------------------------------------


@pytest.mark.timeout(60)
def test_the_thread_of_all_sockets_waits_for_no_memory():
    """Requests of few bytes that unpack to many, while memory is short; an honest client's pulls go on meanwhile."""
    served = Served(big=True)
    try:
        handler = served.ps.controls[0].handler
        budget = handler.shard.resources.budget = Budget(1 << 20, SYSTEM_CLOCK, patience_secs=600.0)
        greedy, honest = served.welcomed("unix"), served.welcomed("unix")
        held = budget.take(Account(budget), 1 << 20)
        request, _ = with_gradient(served, "push", "greedy", 1.0)
        request.spans.add(form=pb.FORM_NONZERO, bytes=200_000, packed_bytes=8)
        ask(greedy, request, bytes(8))
        while not budget._line:
            SYSTEM_CLOCK.wait(threading.Event(), 0.005)
        honest.settimeout(60.0)
        ask(honest, served.request())
        assert honest.recv(1)
        # The greedy client's push still waits for memory: the honest one did not wait for it.
        assert budget._line
        del held
        assert greedy.recv(1)
    finally:
        served.close()


def test_a_reply_goes_unpacked_where_there_is_no_memory_to_pack_it():
    served = Served(big=True)
    try:
        handler = served.ps.controls[0].handler
        budget = handler.shard.resources.budget = Budget(1 << 20, SYSTEM_CLOCK, patience_secs=30.0)
        memory = handler.stream_memory(served_caller())
        request = pb.Request(reply_form=pb.FORM_BFLOAT16)
        request.pull.incarnation = served.client.incarnation
        request.pull.reads.add(variable="big")
        reply, pieces = handler.begin(request, memoryview(b""), memory)
        packed = sum(piece.nbytes for piece in pieces)
        assert reply.spans
        del pieces
        # Room for the values, and for no other message.
        held = budget.take(Account(budget), (7 << 17) - 4 * 50_000 - 1000)
        reply, pieces = handler.begin(request, memoryview(b""), memory)
        assert reply.HasField("pull")
        assert not reply.spans
        assert sum(piece.nbytes for piece in pieces) == 2 * packed
        del held, pieces
    finally:
        served.close()


def served_caller():
    from globalstep.ps.access.authorization import ANONYMOUS

    return ANONYMOUS
