"""Memory shared with a PS task that is gone: nothing here refers to it any more, without any collection of cycles."""

from __future__ import annotations

import gc
import random
import weakref

import numpy as np
import pytest
from stand_ins import Cut

import globalstep as gs
from globalstep.errors import UnavailableError
from globalstep.ps.server import PSOptions, PSServer
from globalstep.runtime.faults import BEFORE
from globalstep.wire.declarations import Increment, Op, OpKind, OptimizerDecl, OptimizerUse, Push, Read, VariableDecl
from globalstep.wire.expressions import constant
from globalstep.worker.client.client import ClusterClient
from globalstep.worker.protocol import push_messages
from globalstep.worker.transport.grpc_transport import GrpcTransport

COUNT = 100_000


@pytest.fixture(autouse=True)
def no_collections():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def copied(monkeypatch):
    """Have the client itself copy gradients into shared memory, as it does with small ones."""
    monkeypatch.setattr(push_messages, "SMALL_BYTES", 1 << 20)


@pytest.fixture
def server():
    server = PSServer(PSOptions(grace_secs=0.2))
    server.start()
    yield server
    server.close()


def client_of(server, retry_secs=0.0):
    return ClusterClient([GrpcTransport(server.address, 0, "shm")], rng=random.Random(5), retry_secs=retry_secs)


def declared(client):
    variables = [VariableDecl("global_step", "int64", (), 0, is_step=True), VariableDecl("w", "float32", (COUNT,), 0)]
    sgd = OptimizerDecl("sgd", "gradient_descent", {"learning_rate": constant(1.0)}, {"w": ()})
    client.declare(variables, [sgd])
    client.push(Push([Op(OpKind.ASSIGN, decl.name, fill=0.0) for decl in variables]))


def push_of(gradient):
    ops = [Op(OpKind.APPLY, "w", gradient, optimizer="sgd")]
    return Push(ops, [Increment("global_step")], [OptimizerUse("sgd")], [Read("w")], layout="step")


def train(client):
    for _ in range(2):
        client.push(push_of(np.full(COUNT, -1.0, np.float32)))


def blocks_of(client):
    """Weak references to the blocks that a client has now."""
    found = [weakref.ref(block) for block in client.run.transports[0]._connection._pool.blocks.values()]
    assert found
    return found


def left(blocks):
    return sum(block() is not None for block in blocks)


def test_a_client_that_is_closed_lets_go_of_its_blocks(server, copied):
    client = client_of(server)
    declared(client)
    train(client)
    blocks = blocks_of(client)
    client.close()
    assert left(blocks) == 0


@pytest.mark.parametrize("method", ["push", "pull"])
def test_a_call_that_is_not_answered_holds_nothing_once_its_error_is_dealt_with(server, copied, method):
    client = client_of(server)
    declared(client)
    train(client)
    blocks = blocks_of(client)
    server.control.handler.faults = Cut(server, BEFORE, method)
    failed = ""
    try:
        if method == "push":
            train(client)
        else:
            client.pull([Read("w")])
    except UnavailableError as error:
        failed = error.message
    assert failed
    client.close()
    assert left(blocks) == 0


def test_a_connection_that_broke_keeps_no_error_with_the_frames_that_it_went_through(server):
    client = client_of(server)
    declared(client)
    train(client)
    connection = client.run.transports[0]._connection
    server.close()
    with pytest.raises(UnavailableError):
        client.pull([Read("w")])
    assert connection.broken is not None
    assert connection.broken.__traceback__ is None
    assert connection.broken.__context__ is None
    client.close()


def test_a_session_that_is_closed_lets_go_of_the_values_that_it_would_have_used_again(server):
    with gs.Graph().as_default():
        large = gs.Variable(np.zeros(COUNT, np.float32), name="w")
        step = gs.train.get_or_create_global_step()
        train_op = gs.train.GradientDescentOptimizer(1.0).minimize(-gs.reduce_sum(large), global_step=step)
        session = gs.Session(f"grpc://{server.address}", reuse_values=True)
        session.run(gs.global_variables_initializer())
        for _ in range(3):
            session.run(train_op)
        blocks = blocks_of(session.cluster)
        session.close()
    assert left(blocks) == 0


class Lost(gs.train.SessionRunHook):
    """Loses the session after each third run, and remembers which blocks it had."""

    def __init__(self):
        self.runs = 0
        self.blocks = []

    def after_run(self, run_context, run_values):
        self.runs += 1
        if self.runs % 3 == 0:
            kept = run_values
            self.blocks += blocks_of(run_context.session.cluster)
            raise UnavailableError(f"lost: {type(kept).__name__}")


def test_of_sessions_that_were_lost_nothing_stays_mapped(server):
    lost = Lost()
    with gs.Graph().as_default():
        large = gs.Variable(np.zeros(COUNT, np.float32), name="w")
        step = gs.train.get_or_create_global_step()
        train_op = gs.train.GradientDescentOptimizer(1.0).minimize(-gs.reduce_sum(large), global_step=step)
        creator = gs.train.ChiefSessionCreator(master=f"grpc://{server.address}")
        with gs.train.MonitoredSession(creator, [lost]) as session:
            for _ in range(10):
                session.run([large, train_op])
            assert lost.runs == 10
            assert len(lost.blocks) >= 3
            assert left(lost.blocks) == 0
            assert left(blocks_of(session._tf_sess().cluster)) > 0
