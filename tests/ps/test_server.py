"""A PS task over real gRPC and real sockets, in one process (rung 3)."""

from __future__ import annotations

import contextlib
import random
import sys
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
from counting_run import SHAPES, declarations, expected, initialize, state, step_push

from globalstep.errors import (
    AbortedError,
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
)
from globalstep.proto import globalstep_pb2 as pb
from globalstep.proto import globalstep_pb2_grpc as pb_grpc
from globalstep.ps import __main__ as ps_main
from globalstep.ps.members.presence import Standing
from globalstep.ps.server import PSOptions, PSServer
from globalstep.ps.service.settler import LONGEST_SECS, OVERDUE_SECS
from globalstep.ps.shard import events
from globalstep.runtime.clock import ManualClock, SystemClock
from globalstep.runtime.faults import NO_FAULTS
from globalstep.wire.declarations import Op, OpKind, OptimizerDecl, Push, Read, VariableDecl
from globalstep.wire.frames import CHUNK_BYTES
from globalstep.worker.client.client import ClusterClient
from globalstep.worker.transport.grpc_transport import transports_to

#: Transport -> what carries the data of tasks on this machine.
CARRIES = {"grpc": "grpc", "auto": "shm", "unix": "unix", "tcp": "tcp"}


class Cluster:
    """PS tasks on free ports, and clients of them; all closed at the end."""

    def __init__(self, transport, shards, faults=NO_FAULTS, **more):
        self.transport = transport
        self.servers = [PSServer(PSOptions(grace_secs=0.2), faults=faults, **more) for _ in range(shards)]
        for server in self.servers:
            server.start()
        self.clients = []

    @property
    def addresses(self):
        return ",".join(server.address for server in self.servers)

    def client(self, **more):
        self.clients.append(ClusterClient(transports_to(self.addresses, self.transport), rng=random.Random(3), **more))
        return self.clients[-1]

    def close(self):
        for client in self.clients:
            client.close()
        for server in self.servers:
            server.close()


@pytest.fixture(params=list(CARRIES))
def transport(request):
    return request.param


@pytest.fixture
def clusters(transport):
    yield from clusters_over(transport)


@pytest.fixture
def grpc_clusters():
    """For what has nothing to do with the transport of values and gradients."""
    yield from clusters_over("grpc")


def clusters_over(transport):
    made = []

    def make(*args, **more):
        made.append(Cluster(transport, *args, **more))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


def test_tensors_larger_than_a_frame_cross_whole(clusters):
    client = clusters(2).client()
    count = 3 * CHUNK_BYTES // 4 + 12345
    value = np.arange(count, dtype=np.float32)
    client.declare([VariableDecl("big", "float32", (count,), 1), VariableDecl("small", "int8", (3,), 0)], [])
    small = np.asarray([1, 2, 3], np.int8)
    client.push(Push(ops=[Op(OpKind.ASSIGN, "big", value), Op(OpKind.ASSIGN, "small", small)]))
    got_small, got_big = client.pull([Read("small"), Read("big")])
    np.testing.assert_array_equal(got_big, value)
    np.testing.assert_array_equal(got_small, small)


def test_a_client_with_plain_generated_stubs_can_train(grpc_clusters):
    """The contract is ordinary protobuf: no code of ours is needed on the other side."""
    cluster = grpc_clusters(1)
    initialize(cluster.client())
    grad = np.full(3, -1, np.float32).tobytes()
    with grpc.insecure_channel(cluster.addresses) as channel:
        stub = pb_grpc.ParameterServerStub(channel)
        status = stub.Status(pb.StatusRequest(brief=True))
        assert status.state == pb.STATE_READY
        push = pb.PushRequest(
            incarnation=status.incarnation,
            id=pb.PushId(client="stranger", sequence=1),
            increments=[pb.Increment(step="global_step", by=1)],
            uses=[pb.OptimizerUse(optimizer="sgd")],
            reads=[pb.Read(variable="w")],
        )
        push.ops.add(kind=pb.OP_APPLY, variable="w", optimizer="sgd").value.CopyFrom(
            pb.TensorRef(dtype="float32", shape=[3], offset=0)
        )
        inline = grad + bytes(4)
        frames = [
            frame
            for call in (1, 2)
            for frame in (
                pb.Frame(call=call, request=pb.Request(push=push), data_bytes=len(inline), data=inline[:8]),
                pb.Frame(call=call, data=inline[8:], last=True),
            )
        ]
        first, again = stub.Exchange(iter(frames))
        outcome = first.reply.push.outcome
        assert (outcome.kind, outcome.index) == (pb.OUTCOME_ACCEPTED, again.reply.push.outcome.index)
        assert again.reply.push.outcome.duplicate
        assert np.frombuffer(first.data, np.float32, 3).tolist() == [0.5] * 3
        assert stub.GetGlobalStep(pb.GetGlobalStepRequest(incarnation=status.incarnation)).steps == {"global_step": 1}
        with pytest.raises(grpc.RpcError) as wrong:
            stub.GetGlobalStep(pb.GetGlobalStepRequest(incarnation=status.incarnation + 1))
        assert wrong.value.code() is grpc.StatusCode.ABORTED


def test_garbage_on_the_stream_is_refused_and_the_task_goes_on(grpc_clusters):
    cluster = grpc_clusters(1)
    client = cluster.client()
    initialize(client)
    with grpc.insecure_channel(cluster.addresses) as channel:
        exchange = channel.stream_stream("/globalstep.v1.ParameterServer/Exchange")
        huge = pb.Frame(call=1, request=pb.Request(pull=pb.PullRequest()), data_bytes=1 << 60).SerializeToString()
        for raw, code in (
            (b"\xff" * 100, grpc.StatusCode.INVALID_ARGUMENT),
            (b"\x7a\xff\xff\xff\xff\x7f" + bytes(20_000), grpc.StatusCode.INVALID_ARGUMENT),
            (huge, grpc.StatusCode.RESOURCE_EXHAUSTED),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                list(exchange(iter([raw])))
            assert refused.value.code() is code
        # An empty frame is a request for nothing: an answer says so, and the stream goes on.
        answer = pb.Frame.FromString(next(exchange(iter([pb.Frame(call=5, last=True).SerializeToString()]))))
        assert (answer.call, answer.reply.error.code) == (5, 3)
    client.push(step_push())
    assert state(client) == expected(1)


def test_the_end_waits_for_the_clients_that_are_there(clusters):
    cluster = clusters(1)
    chief, worker = cluster.client(task="/job:chief/task:0"), cluster.client(task="/job:worker/task:0")
    initialize(chief)
    server = cluster.servers[0]
    assert chief.finish() == ["/job:worker/task:0"]
    chief.close()
    assert not server.shard.over()
    worker.push(step_push())
    worker.close()
    assert server.shard.over()
    server.join()
    assert server.shard.done


@pytest.mark.timeout(30)
def test_a_signal_ends_the_task_whatever_it_interrupts():
    class Interrupted(SystemClock):
        def wait(self, event, timeout_secs):
            with event._cond:  # Event.wait holds it for a moment, and a signal's handler may run then
                server.stop()
            return super().wait(event, timeout_secs)

    server = PSServer(PSOptions(grace_secs=0.2), clock=Interrupted())
    server._settler.stop()
    server.join()
    assert server.control.ended.is_set()


def test_a_late_stop_ends_neither_the_next_process_nor_a_task_that_goes_on():
    """A chief saves for a task that drains, sleeps, and tells it to end when another process has its place."""
    before, after = PSServer(), PSServer()
    try:
        for server in (before, after):
            server.start()
            server.shard.handle(events.Begin(1, shard=0, shards=1, sequencer=0, owner="c", opened=True))
            server.shard.handle(events.Heartbeat("c", "", 10.0, Standing(candidate="chief", chief_term=7)))
        before.shard.members.drain()
        client = ClusterClient(transports_to(before.address, "grpc"))
        client.heartbeat.beat()
        assert client.heartbeat.draining == {0}
        named = client.heartbeat.processes[0]
        assert named == before.control.process
        client.close()

        def stop(server, **said):
            with contextlib.closing(transports_to(server.address, "grpc")[0]) as connection:
                connection.unary("Stop", pb.EndRequest(**said), 5.0).result()

        with pytest.raises(FailedPreconditionError, match=f"meant for the process {named}"):
            stop(after, force=True, process=named)
        with pytest.raises(FailedPreconditionError, match="does not name"):
            stop(before, force=True)
        with pytest.raises(FailedPreconditionError, match="no client asked it to end"):
            stop(after, force=True, process=after.control.process)
        with pytest.raises(AbortedError, match="term 6"):
            stop(before, force=True, process=named, chief_term=6)
        assert not before.control.ended.is_set()
        assert not after.control.ended.is_set()
        stop(before, force=True, process=named, chief_term=7)
        assert before.control.ended.is_set()
    finally:
        before.close()
        after.close()


def test_an_address_that_is_taken_is_an_error(grpc_clusters):
    cluster = grpc_clusters(1)
    with pytest.raises(AlreadyExistsError, match=cluster.addresses):
        PSServer(PSOptions(bind=cluster.addresses))


def test_a_taken_address_ends_the_process_of_a_ps_in_one_line(grpc_clusters, capfd):
    address = grpc_clusters(1).addresses
    assert ps_main.main(["--bind", address]) == 2
    said = capfd.readouterr().err
    assert said.startswith(f"python -m globalstep.ps: Cannot serve on {address}: the address is taken; `ss -ltnp sport")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("host", "why"),
    # The first is of the block that is for examples in documents.
    [("192.0.2.1", "192.0.2.1 is no address"), ("no.such.host.invalid", "this machine knows no address of the name")],
)
def test_an_address_that_is_not_this_machines_is_said_to_be_none(host, why, capsys):
    assert ps_main.main(["--bind", f"{host}:2222", "--insecure"]) == 2
    assert f"Cannot serve on {host}:2222: {why}" in capsys.readouterr().err


def test_control_errors_keep_their_type_and_name_the_task(grpc_clusters):
    client = grpc_clusters(2).client()
    client.begin(sequencer=0, open=True)
    with pytest.raises(InvalidArgumentError, match=r"/job:ps/task:1 at .*must be an integer scalar on the sequencer"):
        client.declare([VariableDecl("global_step", "int64", (), 1, is_step=True)], [])
    with pytest.raises(InvalidArgumentError, match="no_such_rule"):
        client.declare([], [OptimizerDecl("o", "no_such_rule")])


@pytest.fixture
def half_pushed(clusters):
    """Two tasks, on a clock that is moved by hand, that hold the parts of a push that nobody asks to admit."""

    def make():
        clock = ManualClock()
        cluster = clusters(2, clock=clock)
        for server in cluster.servers:
            server._settler.stop()
        client = cluster.client(member=False)
        initialize(client)

        def gone(*args, **more):
            raise SystemExit

        client._protocol._decide = gone
        with pytest.raises(SystemExit):
            client.push(step_push())
        shards = [server.shard for server in cluster.servers]
        for shard in shards:
            shard.handle(events.Heartbeat(client.client_id, "", 15.0))
        return cluster.servers, client.client_id, clock

    return make


def test_a_worker_that_is_slow_but_alive_keeps_its_parts(half_pushed):
    """A part that is long on its way to one task must not make the others give up the push."""
    servers, client, clock = half_pushed()
    (held,) = [server for server in servers if server.shard.now.staged]
    for _ in range(8):
        clock.advance(OVERDUE_SECS + 1.0)
        for server in servers:
            server.shard.handle(events.Heartbeat(client, "", 15.0))
            server._settler.settle_once()
    assert len(held.shard.now.staged) == 1
    clock.advance(LONGEST_SECS)
    held.shard.handle(events.Heartbeat(client, "", 15.0))
    assert held._settler.settle_once()
    assert not held.shard.now.staged


def test_declarations_of_two_programs_agree_or_one_is_refused(clusters):
    cluster = clusters(2)
    one, two = cluster.client(), cluster.client()
    initialize(one)
    two.declare(*declarations(2))
    with pytest.raises(AlreadyExistsError, match=r"'w'.*\[4\].*\[3\]"):
        two.declare([VariableDecl("w", "float32", (4,), 0)], [])
    assert set(two.where) == {"global_step", *SHAPES}


def test_the_tcp_port_comes_from_the_command_line_or_the_environment(monkeypatch, capsys):
    assert ps_main.make_parser().parse_args([]).tcp_port == 0
    monkeypatch.setenv("GLOBALSTEP_TCP_PORT", "2223")
    assert ps_main.make_parser().parse_args([]).tcp_port == 2223
    assert ps_main.make_parser().parse_args(["--tcp-port", "none"]).tcp_port is None
    for text in ("70000", "9" * 5000):
        monkeypatch.setenv("GLOBALSTEP_TCP_PORT", text)
        assert ps_main.main([]) == 2
        assert (
            f"GLOBALSTEP_TCP_PORT is {text!r}; it must be a port from 0 to 65535, or none." in capsys.readouterr().err
        )


@pytest.mark.parametrize("option", ["--port", "--tcp-port"])
@pytest.mark.parametrize("number", ["99999", "65536", "-5", "x", "\u0662", "9" * 5000])
def test_a_port_that_there_is_not_is_refused(option, number, capsys):
    with pytest.raises(SystemExit) as ended:
        ps_main.main([f"{option}={number}"])
    assert ended.value.code == 2
    assert f"a port is a number from 0 to 65535, not {number!r}" in capsys.readouterr().err


def test_the_process_of_a_task_lets_its_threads_take_turns_often_once_a_caller_was_refused(monkeypatch, capsys):
    class Served(SimpleNamespace):
        def join(self, meanwhile):
            meanwhile()
            self.intervals = [sys.getswitchinterval()]
            self.authorization.refusals += 1
            meanwhile()
            self.intervals.append(sys.getswitchinterval())

    authorization = SimpleNamespace(refusals=0)
    served = Served(address="127.0.0.1:1", exit_code=0, start=lambda: None, authorization=authorization)
    monkeypatch.setattr(ps_main, "_server", lambda args: served)
    monkeypatch.setattr(ps_main.signal, "signal", lambda *_: None)
    before = sys.getswitchinterval()
    try:
        assert ps_main.main([]) == 0
    finally:
        sys.setswitchinterval(before)
    assert served.intervals == pytest.approx([before, 0.0005])
    assert "serving on 127.0.0.1:1" in capsys.readouterr().out


@pytest.mark.parametrize("address", ["localhost", f"localhost:{1 << 16}", f"localhost:{'9' * 5000}", "8000"])
def test_an_address_that_is_none_is_refused(address, capsys):
    assert ps_main.main(["--bind", address]) == 2
    assert f'--bind is "host:port" with a port up to 65535, not {address!r}.' in capsys.readouterr().err
