"""The client's side of sockets: which transport is taken, what happens when it fails, exactly once all the same."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import tracemalloc

import numpy as np
import pytest
from counting_run import SHAPES, expected, initialize, state, step_push
from served_tasks import kinds
from stand_ins import Cut, Held

from globalstep.errors import InvalidArgumentError, LostStateError, ResourceExhaustedError, UnavailableError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import ManualClock
from globalstep.runtime.faults import AFTER, BEFORE
from globalstep.security import dialing
from globalstep.wire.declarations import Op, OpKind, OptimizerDecl, OptimizerUse, Push, Read, VariableDecl
from globalstep.wire.expressions import constant
from globalstep.wire.transports import chosen_transport, transports_to
from globalstep.worker.client.client import ClusterClient, connect
from globalstep.worker.transport.grpc_transport import CALL_SECS, GrpcTransport

#: Transport -> what carries the data of tasks on this machine.
CARRIES = {"shm": "shm", "unix": "unix", "tcp": "tcp"}


@pytest.fixture(params=list(CARRIES))
def transport(request):
    return request.param


# ---- Which one --------------------------------------------------------------------------------------


def test_an_argument_beats_the_environment(monkeypatch):
    monkeypatch.delenv("GLOBALSTEP_TRANSPORT", raising=False)
    assert chosen_transport(None) == "auto"
    monkeypatch.setenv("GLOBALSTEP_TRANSPORT", "tcp")
    assert (chosen_transport(None), chosen_transport("grpc")) == ("tcp", "grpc")
    monkeypatch.setenv("GLOBALSTEP_TRANSPORT", "pigeon")
    with pytest.raises(InvalidArgumentError, match="'pigeon'.*auto"):
        transports_to("grpc://nobody.example:2222")


@pytest.mark.parametrize(
    ("asked", "argument", "carries"),
    [
        ("auto", None, "shm"), ("shm", None, "shm"), ("unix", None, "unix"), ("tcp", None, "tcp"),
        ("grpc", None, "grpc"), ("unix", "tcp", "tcp"),
    ],
)  # fmt: skip
def test_the_environment_decides_for_a_program_that_does_not(serving, monkeypatch, asked, argument, carries):
    monkeypatch.setenv("GLOBALSTEP_TRANSPORT", asked)
    (server,) = serving()
    with contextlib.closing(connect(f"grpc://{server.address}", transport=argument)) as client:
        initialize(client)
        assert kinds(client) == [carries]


# ---- When it cannot be had ----------------------------------------------------------------------------


def elsewhere(kind, unused=b""):
    """Where a task says that it listens, and nobody does."""
    if kind != pb.LANE_TCP:
        return "globalstep-on-another-machine", bytes(32)
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1]), bytes(32)


def refusing(kind, unused=b""):
    raise ResourceExhaustedError("enough")


def test_a_socket_that_cannot_be_opened_is_said_once_and_grpc_goes_on(serving, joined, transport, caplog):
    (server,) = serving()
    for open_lane in (None, elsewhere, refusing):
        caplog.clear()
        server.control.open_lane = open_lane
        client = joined([server], transport)
        with caplog.at_level(logging.INFO, "globalstep.worker.transport.grpc_transport"):
            initialize(client)
            client.push(step_push())
            client.run.transports[0]._connection.break_off(UnavailableError("cut"))
            client.push(step_push())
        assert state(client) == expected(2)
        assert kinds(client) == ["grpc"]
        said = [record for record in caplog.records if "its data goes over gRPC" in record.message]
        assert [record.levelname for record in said] == ["INFO"]
        client.begin(sequencer=0, open=True)


def test_a_task_that_closes_without_a_welcome_is_reached_by_grpc(serving, joined, transport):
    (server,) = serving()
    right = server.control.open_lane
    server.control.open_lane = lambda kind, unused: (right(kind)[0], bytes(32))
    client = joined([server], transport)
    initialize(client)
    assert kinds(client) == ["grpc"]


def test_a_task_that_is_not_there_yet_is_waited_for_and_then_has_its_socket(serving, joined, transport):
    (first,) = serving()
    address = first.address
    first.close()
    client = ClusterClient([GrpcTransport(address, 0, transport)], member=False)
    try:
        connection = client.run.transports[0]
        with pytest.raises(UnavailableError):
            connection.send(pb.Request(pull=pb.PullRequest()), ()).result()
        (second,) = serving(bind=address)
        # gRPC's channel waits a little before it tries again.
        while not client.incarnation:
            with contextlib.suppress(UnavailableError):
                initialize(client)
        assert second.address == address
        client.push(step_push())
        assert kinds(client) == [CARRIES[transport]]
    finally:
        client.close()


# ---- When it breaks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("point", [BEFORE, AFTER])
@pytest.mark.parametrize(
    ("shards", "task", "method"), [(1, 0, "push"), (2, 0, "stage"), (2, 1, "push"), (2, 0, "commit")]
)
def test_a_push_whose_connection_breaks_is_done_once(serving, joined, transport, shards, task, method, point):
    """The points of docs/design/push-protocol.md: what was sent, or answered, is lost with its connection."""
    servers = serving(shards)
    cut = servers[task].control.handler.faults = Cut(servers[task], point, method, armed=False)
    initialize(joined(servers, "grpc"))
    for count in range(1, 6):
        client = joined(servers, transport)
        client.refresh()
        client.push(step_push())
        assert kinds(client) == [CARRIES[transport]] * shards
        cut.armed = True
        values = client.push(step_push(reads=("w", "b", "e"))).values
        want = expected(2 * count)
        assert [value.tolist() for value in values] == [want["w"], want["b"], want["e"]]
        assert state(client) == want
        assert kinds(client)[task] == "grpc"
    assert cut.cuts == 5


# ---- How it works --------------------------------------------------------------------------------------


def test_large_messages_both_ways_do_not_wait_for_each_other(serving, joined, transport):
    """Several requests before the first reply is read: neither side may be stuck with what the other does not read."""
    count = 2_000_000
    (server,) = serving()
    client = joined([server], transport)
    client.declare([VariableDecl("big", "float32", (count,), 0)], [])
    client.push(Push([Op(OpKind.ASSIGN, "big", fill=0.0)]))
    connection = client.run.transports[0]
    ones = memoryview(np.ones(count, np.float32)).cast("B")
    tickets = []
    for number in range(6):
        request = pb.Request()
        request.push.incarnation = client.incarnation
        request.push.id.client, request.push.id.sequence = "another", number + 1
        operand = request.push.ops.add(kind=pb.OP_ASSIGN_ADD, variable="big").value
        operand.dtype, operand.shape[:] = "float32", [count]
        request.push.reads.add(variable="big")
        tickets.append(connection.send(request, [ones]))
    for number, ticket in reversed(list(enumerate(tickets))):
        got = np.frombuffer(ticket.result().data, np.float32)
        np.testing.assert_array_equal(got, np.full(count, number + 1.0, np.float32))
    assert kinds(client) == [CARRIES[transport]]


def test_a_step_takes_no_memory_that_grows_with_the_model(serving, joined, transport):
    """Neither side: gradients and values go through memory that earlier steps have used."""
    count = 1_000_000
    (server,) = serving()
    client = joined([server], transport)
    rate = {"learning_rate": constant(0.5)}
    variables = [VariableDecl(name, "float32", (count,), 0) for name in "ab"]
    client.declare(variables, [OptimizerDecl("o", "gradient_descent", rate, {"a": (), "b": ()})])
    client.push(Push([Op(OpKind.ASSIGN, name, fill=0.0) for name in "ab"]))
    gradient = np.ones(count, np.float32)

    def step():
        ops = [Op(OpKind.APPLY, name, gradient, optimizer="o") for name in "ab"]
        push = Push(ops, uses=[OptimizerUse("o")], reads=[Read(name) for name in "ab"], layout="step")
        return client.push(push).values

    held = [step() for _ in range(3)][-1]
    tracemalloc.start()
    try:
        for _ in range(3):
            held = step()
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        for _ in range(5):
            held = step()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < count / 10, "a step moves 16 bytes an element"
    assert [float(value[-1]) for value in held] == [-5.5, -5.5]
    assert kinds(client) == [CARRIES[transport]]


@pytest.mark.parametrize("tasks", [1, 2])
def test_rows_are_pushed_and_read_once_over_connections_that_break(serving, joined, transport, tasks):
    rows, width = 3000, 64
    client = joined(serving(tasks), transport)
    rate = {"learning_rate": constant(0.5)}
    names = [f"table_{at}" for at in range(tasks)]
    client.declare(
        [VariableDecl(name, "float32", (rows, width), at) for at, name in enumerate(names)],
        [OptimizerDecl("o", "gradient_descent", rate, dict.fromkeys(names, ()))],
    )
    client.push(Push([Op(OpKind.ASSIGN, name, fill=0.0) for name in names]))
    expected_rows = {name: np.zeros(rows, np.float32) for name in names}
    choice = np.random.default_rng(3)
    for number in range(12):
        ops, reads = [], []
        for name in names:
            # Some pushes lie in shared memory, and some name rows several times.
            ids = choice.integers(0, rows, choice.choice([0, 3, 300, 2000]))
            np.add.at(expected_rows[name], ids, np.float32(-0.5))
            ops.append(Op(OpKind.APPLY, name, np.ones((ids.size, width), np.float32), indices=ids, optimizer="o"))
            reads.append(Read(name, choice.integers(0, rows, choice.choice([1, 1000]))))
        values = client.push(Push(ops, [], [OptimizerUse("o")], reads, layout="rows")).values
        for read, value in zip(reads, values, strict=True):
            np.testing.assert_array_equal(value, np.repeat(expected_rows[read.variable][read.indices, None], width, 1))
        if number % 4 == 3:
            client.run.transports[number % tasks]._connection.break_off(UnavailableError("cut"))


def test_a_call_that_takes_too_long_is_broken_off(serving, transport):
    (server,) = serving()
    held = server.control.handler.faults = Held("pull")
    clock = ManualClock()
    connection = GrpcTransport(server.address, 0, transport, clock)
    try:
        ticket = connection.send(pb.Request(pull=pb.PullRequest()), ())
        assert held.reached.wait(20.0)
        waiter_failed = []

        def wait():
            try:
                ticket.result()
            except UnavailableError as error:
                waiter_failed.append(str(error))

        waiter = threading.Thread(target=wait, name="waiter")
        waiter.start()
        while not ticket.awaited:
            pass
        connection.expire()
        assert waiter.is_alive(), "it is not over yet"
        clock.advance(CALL_SECS + 1)
        connection.expire()
        waiter.join()
        assert len(waiter_failed) == 1
        assert "has not answered for 60 s" in waiter_failed[0]
    finally:
        held.go_on.set()
        connection.close()


def test_a_reply_that_nobody_asked_for_yet_may_lie_for_long(serving, transport):
    """The worker may compute for minutes before it reads again."""
    (server,) = serving()
    clock = ManualClock()
    with contextlib.closing(GrpcTransport(server.address, 0, transport, clock)) as connection:
        ticket = connection.send(pb.Request(pull=pb.PullRequest()), ())
        clock.advance(10 * CALL_SECS)
        connection.expire()
        assert connection.kind == CARRIES[transport]
        with pytest.raises(Exception, match="holds no state"):
            ticket.result()


def test_a_closed_transport_fails_the_calls_under_way(serving, transport):
    (server,) = serving()
    held = server.control.handler.faults = Held("pull")
    connection = GrpcTransport(server.address, 0, transport)
    ticket = connection.send(pb.Request(pull=pb.PullRequest()), ())
    assert held.reached.wait(20.0)
    connection.close()
    with pytest.raises(UnavailableError, match="was closed here"):
        ticket.result()
    held.go_on.set()


def test_what_is_told_to_a_server_that_has_ended_raises_nothing(serving, transport):
    """It needs no answer, and the call that it follows has been answered: the next call finds out."""
    (server,) = serving()
    asking = pb.Request(pull=pb.PullRequest())
    with contextlib.closing(GrpcTransport(server.address, 0, transport)) as connection:
        with pytest.raises(LostStateError):  # it is connected
            connection.send(asking, ()).result()
        server.close()
        for _ in range(3):
            connection.tell(asking)
        with pytest.raises(UnavailableError):
            connection.send(asking, ()).result()


def test_a_server_that_ends_is_unavailable(serving, joined, transport):
    (server,) = serving()
    client = joined([server], transport, clock=ManualClock(), member=False, retry_secs=0.0)
    initialize(client)
    server.close()
    with pytest.raises(UnavailableError):
        client.pull([Read(name) for name in SHAPES])


@pytest.mark.parametrize("transport", ["unix", "auto"])
def test_a_unix_socket_of_another_user_is_told_no_token(serving, joined, monkeypatch, transport):
    """Its name may have been taken after the task's death. The client goes on over TCP, or gRPC."""
    monkeypatch.setattr("globalstep.security.dialing.uid_of_unix", lambda connection: 54002)
    told, prove = [], dialing._prove
    monkeypatch.setattr(
        dialing, "_prove", lambda connection, *more: (told.append(connection.family), prove(connection, *more))
    )
    client = joined(serving(), transport)
    initialize(client)
    client.push(step_push())
    assert state(client) == expected(1)
    assert kinds(client) == ["grpc" if transport == "unix" else "tcp"]
    assert socket.AF_UNIX not in told
