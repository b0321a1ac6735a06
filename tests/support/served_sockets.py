"""A PS with sockets in this process, and a client of them made of bare sockets: for tests of what serves them."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from dataclasses import replace

import numpy as np
from counting_run import initialize

from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.local import LocalPS
from globalstep.ps.service.socket_server import SocketServer
from globalstep.runtime.clock import SYSTEM_CLOCK, ManualClock
from globalstep.security.connection_proofs import PROOF_BYTES, claim, proof
from globalstep.security.connection_proofs import answer as answer_to
from globalstep.wire.declarations import Op, OpKind, OptimizerDecl, Push, VariableDecl
from globalstep.wire.expressions import constant
from globalstep.wire.shared_memory import attach
from globalstep.wire.socket_messages import WELCOME, Incoming, Outgoing
from globalstep.worker.client.client import ClusterClient

COUNT = 50_000

KINDS = {"unix": pb.LANE_UNIX, "shm": pb.LANE_SHM, "tcp": pb.LANE_TCP}


class Served:
    """A PS in this process, with sockets to it; all closed at the end."""

    def __init__(self, big=False, **more):
        """Have a Variable more, `big`, whose gradients are large enough to need memory of the pool, where asked."""
        self.ps = LocalPS()
        self.clock = ManualClock()
        settings = {"host": "127.0.0.1", "port": 0, "limit_bytes": 1 << 20, "max_connections": 8, **more}
        self.server = SocketServer(self.ps.controls[0].handler, self.clock, **settings)
        self.client = ClusterClient(self.ps.transports(), member=False)
        initialize(self.client)
        if big:
            rate = {"learning_rate": constant(1.0)}
            optimizer = OptimizerDecl("big_sgd", "gradient_descent", rate, {"big": ()})
            self.client.declare([VariableDecl("big", "float32", (COUNT,), 0)], [optimizer])
            self.client.push(Push([Op(OpKind.ASSIGN, "big", fill=0.0)]))
        self.sockets = []

    def dial(self, kind):
        """Open a connection, and say nothing; gives it and a token."""
        address, token = self.server.open(KINDS[kind])
        if kind != "tcp":
            connection = socket.socket(socket.AF_UNIX)
            connection.connect("\0" + address)
        else:
            connection = socket.create_connection(("127.0.0.1", int(address)))
        self.sockets.append(connection)
        connection.settimeout(20.0)
        return connection, token

    def connect(self, kind, token=None):
        """Open a connection, and prove a token as far as the task does: the right one unless another is given."""
        connection, right = self.dial(kind)
        prove(connection, right if token is None else token)
        return connection

    def welcomed(self, kind):
        connection = self.connect(kind)
        assert connection.recv(len(WELCOME), socket.MSG_WAITALL) == WELCOME
        return connection

    def request(self):
        """A pull of w."""
        request = pb.Request()
        request.pull.incarnation = self.client.incarnation
        request.pull.reads.add(variable="w")
        return request

    def threads_left(self, connections):
        """The names of its threads, once so many connections are left."""
        until = SYSTEM_CLOCK.monotonic() + 20.0
        while len(self.server._connections) > connections:
            assert SYSTEM_CLOCK.monotonic() < until
            SYSTEM_CLOCK.wait(threading.Event(), 0.005)
        return connection_threads()

    def close(self):
        self.server.close(0.0)
        for connection in self.sockets:
            connection.close()
        self.client.close()


def prove(connection, token):
    """Prove a token, if the task does."""
    claimed = claim(token)
    connection.sendall(claimed)
    with contextlib.suppress(ConnectionError):
        if connection.recv(PROOF_BYTES, socket.MSG_WAITALL) == answer_to(token, claimed):
            connection.sendall(proof(token, claimed))


def ask(connection, request, data=b"", call=1):
    Outgoing(call, request.SerializeToString(), [memoryview(data)]).send(connection)


def answer(connection):
    """The reply, and its bytes wherever they lie."""
    incoming = Incoming(connection, 1 << 30, shares=True, takes_descriptors=True)
    message = incoming.receive()
    place = message.place
    if place is not None:
        assert place.new_bytes, "nothing was offered, so a block has been made for it"
        descriptor = incoming.descriptor()
        block = attach(descriptor, place.new_bytes)
        os.close(descriptor)
        data = block[place.offset : place.offset + message.nbytes].data
        message = replace(message, data=data)
    return message, pb.Reply.FromString(message.head)


def ends_without_a_word(connection):
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:  # it was closed with bytes unread
        return True


def connection_threads():
    return [
        thread.name
        for thread in threading.enumerate()
        if thread.name.startswith(("globalstep-accept", "globalstep-connection"))
    ]


def with_gradient(served, method, client, value):
    """A PUSH or STAGE of a gradient that is `value` everywhere, as (request, data)."""
    request = pb.Request()
    message = getattr(request, method)
    message.incarnation = served.client.incarnation
    message.id.client, message.id.sequence = client, 1
    op = message.ops.add(kind=pb.OP_APPLY, variable="big", optimizer="big_sgd")
    op.value.dtype, op.value.shape[:] = "float32", [COUNT]
    if method == "push":
        message.uses.add(optimizer="big_sgd")
    return request, np.full(COUNT, value, np.float32).tobytes()
