"""Memory shared with a PS task: what lies where, who waits for whom with it, and what is left when it goes wrong."""

from __future__ import annotations

import contextlib
import logging
import math
import random

import numpy as np
import pytest
from stand_ins import Cut

from globalstep.cluster.run_identity import RunIdentity
from globalstep.cluster.run_policy import RunPolicy
from globalstep.errors import UnavailableError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.server import PSOptions, PSServer
from globalstep.ps.service import shared_blocks, socket_server
from globalstep.ps.wal import log_file
from globalstep.ps.wal.log_file import SegmentReader, segment_path, segments_in
from globalstep.runtime.faults import AFTER
from globalstep.wire.declarations import Increment, Op, OpKind, OptimizerDecl, OptimizerUse, Push, Read, VariableDecl
from globalstep.wire.expressions import constant
from globalstep.wire.socket_messages import Outgoing
from globalstep.worker.client.client import ClusterClient
from globalstep.worker.transport import shm_transport
from globalstep.worker.transport.grpc_transport import GrpcTransport

COUNT = 50_000
NAMES = ["a", "b", "odd"]
SHAPES = {"a": (COUNT,), "b": (COUNT // 10, 10), "odd": (COUNT + 1,)}


class Trained:
    """PS tasks with three Variables, and clients of them; all closed at the end."""

    def __init__(self, shards=1, directory="", policy=None):
        self.servers = [PSServer(PSOptions(grace_secs=0.2)) for _ in range(shards)]
        for server in self.servers:
            server.start()
        self.clients = []
        client = self.client(policy=policy)
        if directory:
            client.begin(open=True, run=RunIdentity(directory=directory))
        variables = [VariableDecl("global_step", "int64", (), 0, is_step=True)]
        variables += [VariableDecl(name, "float32", SHAPES[name], at % shards) for at, name in enumerate(NAMES)]
        sgd = OptimizerDecl("sgd", "gradient_descent", {"learning_rate": constant(1.0)}, dict.fromkeys(NAMES, ()))
        client.declare(variables, [sgd])
        client.push(Push([Op(OpKind.ASSIGN, decl.name, fill=0.0) for decl in variables]))

    def client(self, transport="shm", **more):
        transports = [GrpcTransport(server.address, at, transport) for at, server in enumerate(self.servers)]
        self.clients.append(ClusterClient(transports, rng=random.Random(5), **more))
        self.clients[-1].refresh()
        return self.clients[-1]

    def close(self):
        for client in self.clients:
            client.close()
        for server in self.servers:
            server.close()


@pytest.fixture
def train():
    with contextlib.ExitStack() as stack:

        def make(shards=1):
            trained = Trained(shards)
            stack.callback(trained.close)
            return trained

        yield make


def push_of(gradients, reads=NAMES):
    """Push gradients of the first Variables."""
    ops = [Op(OpKind.APPLY, name, gradient, optimizer="sgd") for name, gradient in zip(NAMES, gradients, strict=False)]
    reads = [Read(name) for name in reads]
    return Push(ops, [Increment("global_step")], [OptimizerUse("sgd")], reads, layout=(len(ops), len(reads)))


def gradients_of(value):
    return [np.full(SHAPES[name], value, np.float32) for name in NAMES]


def written_there(client, shard, name, value):
    """A gradient in memory that the PS task reads, as the client copies many small ones."""
    shape = SHAPES[name]
    gradient = client.run.transports[shard].buffer(4 * math.prod(shape)).view(np.float32).reshape(shape)
    gradient.fill(value)
    return gradient


@pytest.fixture
def small(monkeypatch):
    """Gradients that are small, and shared all the same."""
    for module in (shm_transport, shared_blocks):
        monkeypatch.setattr(module, "SHARED_FROM_BYTES", 1 << 12)
    for name, shape in {"a": (4_000,), "b": (400, 10), "odd": (4_000,)}.items():
        monkeypatch.setitem(SHAPES, name, shape)


@pytest.fixture
def given(monkeypatch):
    """First and last address of what transports gave, in order; None where they gave nothing."""
    give, found = GrpcTransport.buffer, []

    def noted(transport, nbytes):
        memory = give(transport, nbytes)
        found.append(None if memory is None else (address(memory), address(memory) + nbytes))
        return memory

    monkeypatch.setattr(GrpcTransport, "buffer", noted)
    return found


def address(array):
    return array.__array_interface__["data"][0]


def kinds(client):
    return {connection.kind for connection in client.run.transports}


def blocks_of(server):
    """How many blocks the PS task has, over all connections."""
    return sum(len(connection.blocks) for connection in server._sockets._connections if connection.blocks is not None)


def pool_of(client, shard=0):
    return client.run.transports[shard]._connection._pool


# ---- Hostile clients ---------------------------------------------------------------------------------


def test_a_client_that_writes_to_its_memory_later_does_not_break_the_log(tmp_path, monkeypatch):
    """A record's checksum is taken, then its bytes are written: what is shared could change between the two."""
    with contextlib.closing(Trained(directory=str(tmp_path), policy=RunPolicy(durability="log"))) as trained:
        client = trained.clients[0]
        write = log_file.LogFiles.write_all
        shared = []

        def flipped(files, file, buffers):
            for view in shared:
                view.fill(7.0)  # as another process of the client could, at any time
            write(files, file, buffers)

        monkeypatch.setattr(log_file.LogFiles, "write_all", flipped)
        for _ in range(3):  # the first two make the layout known
            shared[:] = [written_there(client, 0, "a", -1.0)]
            client.push(push_of(shared, ["a"]))
        assert kinds(client) == {"shm"}
        shared.clear()
        monkeypatch.undo()
        (last,) = client.push(push_of([written_there(client, 0, "a", -1.0)], ["a"])).values
        np.testing.assert_array_equal(last, np.full(COUNT, 4.0, np.float32))
        folder = trained.servers[0].shard.log.directory
        records = [record for at in segments_in(folder) for record in SegmentReader(segment_path(folder, at)).records()]
        pushed = [record for record in records if pb.LogRecord.FromString(record.head).WhichOneof("kind") == "push"]
        for record in pushed[-4:]:
            np.testing.assert_array_equal(np.frombuffer(record.data, np.float32)[:COUNT], np.full(COUNT, -1.0))


# ---- Where things lie --------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_small_gradients_of_a_known_layout_are_copied_as_one_piece_and_their_values_lie_there(
    train, small, given, shards, monkeypatch
):
    send, pieces = GrpcTransport.send, []

    def counted(transport, request, tensors):
        pieces.extend([len(tensors)] * bool(tensors))
        return send(transport, request, tensors)

    client = train(shards).client()
    monkeypatch.setattr(GrpcTransport, "send", counted)
    gradients = gradients_of(-1.0)
    for count in range(1, 8):
        values = client.push(push_of(gradients)).values
        if count == 1:  # the first of a layout tells it, and is applied Variable by Variable
            assert sum(pieces) == 3
        else:
            assert pieces == [1] * shards
            assert all(any(begin <= address(value) < end for begin, end in given) for value in values)
        for value in values:
            np.testing.assert_array_equal(value, np.full(value.shape, count, np.float32))
        pieces.clear()
        given.clear()
    assert kinds(client) == {"shm"}
    assert all(np.all(gradient == -1.0) and gradient.flags.writeable for gradient in gradients)


def test_no_byte_of_a_tensor_goes_through_the_socket(train, monkeypatch):
    sent = []
    send = Outgoing.send

    def counted(outgoing, *args):
        sent.append(outgoing._left_bytes)
        send(outgoing, *args)

    monkeypatch.setattr(Outgoing, "send", counted)
    client = train().client()
    for _ in range(3):
        client.push(push_of(gradients_of(1.0)))
    client.pull([Read(name) for name in NAMES])
    client.pull([Read(name) for name in NAMES])
    sent.clear()
    gradients = gradients_of(-1.0)
    values = client.push(push_of(gradients)).values
    client.pull([Read(name) for name in NAMES])
    assert [float(value.flat[-1]) for value in values] == [-2.0] * 3
    assert all(np.all(gradient == -1.0) for gradient in gradients)
    assert len(sent) >= 2, "a server thread may not have come to count its last one yet"
    assert sum(sent) < 1000


def test_small_tensors_are_sent(train):
    client = train().client()
    client.push(Push([Op(OpKind.ASSIGN, "global_step", np.asarray(3, np.int64))], reads=[Read("global_step")]))
    assert len(pool_of(client).blocks) == 0
    assert client.run.transports[0].buffer(100) is None


def test_values_come_in_two_or_three_blocks_however_many_steps(train):
    trained = train()
    client = trained.client()
    for number in range(40):
        values = client.push(push_of(gradients_of(1.0))).values
        if number % 5 == 0:
            values = client.pull([Read(name) for name in NAMES])
    assert values is not None
    assert len(pool_of(client).blocks) <= 3
    assert blocks_of(trained.servers[0]) <= 3


def test_a_read_is_put_into_shared_memory_at_once(train, monkeypatch):
    """One copy: out of the arena, to where the program reads it."""
    moved = []
    put = shared_blocks.SharedBlocks.put

    def watched(self, pieces):
        before = [bytes(block) for block in self._blocks.values()]
        placed = put(self, pieces)
        moved.append(before != [bytes(block) for block in self._blocks.values()])
        return placed

    client = train().client()
    reads = [Read("a"), Read("odd"), Read("b", np.arange(0, 4000, 3))]
    for _ in range(3):
        values = client.pull(reads)
    monkeypatch.setattr(shared_blocks.SharedBlocks, "put", watched)
    client.push(push_of(gradients_of(1.0), reads=()))
    moved.clear()
    values = client.pull(reads)
    assert moved == [False]
    assert [float(value.flat[0]) for value in values] == [-1.0] * 3
    assert [value.shape for value in values] == [(COUNT,), (COUNT + 1,), (1334, 10)]


# ---- Nobody's bytes change under him -------------------------------------------------------------------


def test_values_cannot_be_written_to(train):
    client = train().client()
    client.push(push_of(gradients_of(1.0)))
    values = client.push(push_of(gradients_of(1.0))).values
    for array in (*values, *client.pull([Read("a")])):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


@pytest.mark.parametrize("count", [1, 3])
def test_values_that_are_pushed_as_gradients_stay_what_they_are(train, count):
    """Weight decay, say. They lie in shared memory, in the right order, and are not applied there."""
    client = train().client()
    values = client.push(push_of(gradients_of(-8.0)[:count], NAMES[:count])).values
    for _ in range(2):
        after = client.push(push_of(values, NAMES[:count])).values
        assert {float(value.flat[3]) for value in values} == {8.0}
        assert {float(value.flat[3]) for value in after} <= {0.0, -8.0}


def test_everything_that_a_program_keeps_stays(train):
    """Also when it keeps more than there are blocks: then bytes go through the socket."""
    client = train().client()
    kept = []
    for count in range(1, 16):
        values = client.push(push_of(gradients_of(-1.0))).values
        kept.append((count, values[1][7:9, 3]))
    assert [value.tolist() for _, value in kept] == [[count] * 2 for count, _ in kept]
    assert pool_of(client).is_full
    del kept, values
    client.push(push_of(gradients_of(-1.0)))
    assert kinds(client) == {"shm"}


def staged(client, shard, sequence, gradients):
    """Send a STAGE of the shard's gradients, as a client that is then never heard of again."""
    request = pb.Request()
    message = request.stage
    message.incarnation = client.incarnation
    message.id.client, message.id.sequence = client.client_id, sequence
    pieces, at = [], 0
    for name, gradient in gradients.items():
        op = message.ops.add(kind=pb.OP_APPLY, variable=name, optimizer="sgd")
        op.value.dtype, op.value.shape[:], op.value.offset = "float32", gradient.shape, at
        pieces.append(gradient.reshape(-1).data.cast("B"))
        at += -(-gradient.nbytes // 8) * 8
    client.run.transports[shard].send(request, pieces).result()


def decided(client, sequence):
    """Have the sequencer decide on a push that is staged at PS task 1, and tell that."""
    request = pb.Request()
    message = request.push
    message.incarnation = client.incarnation
    message.id.client, message.id.sequence = client.client_id, sequence
    message.others.append(1)
    message.uses.add(optimizer="sgd")
    answer = client.run.transports[0].send(request, ()).result().reply.push
    commit = pb.Request()
    commit.commit.incarnation = client.incarnation
    commit.commit.id.CopyFrom(message.id)
    commit.commit.entries.extend(answer.pending[0].entries)
    client.run.transports[1].send(commit, ()).result()


@pytest.mark.parametrize(
    ("transport", "written"), [("shm", "there"), ("shm", "elsewhere"), ("unix", "elsewhere"), ("tcp", "elsewhere")]
)
def test_what_is_staged_stays_until_it_is_applied_whatever_is_pushed_meanwhile(train, transport, written):
    client = train(2).client(transport)
    gradient = written_there(client, 1, "b", -100.0) if written == "there" else gradients_of(-100.0)[1]
    staged(client, 1, 1000, {"b": gradient})
    del gradient
    for _ in range(10):
        client.push(push_of(gradients_of(-1.0)))
    decided(client, 1000)
    np.testing.assert_array_equal(client.pull([Read("b")])[0], np.full(SHAPES["b"], 110.0, np.float32))
    assert transport != "shm" or not pool_of(client, 1).has_staged


def test_what_was_staged_over_a_connection_that_broke_is_not_written_over(train):
    trained = train(2)
    client = trained.client()
    gradient = written_there(client, 1, "b", -100.0)
    staged(client, 1, 1000, {"b": gradient})
    client.run.transports[1]._connection.break_off(UnavailableError("cut"))
    for _ in range(5):
        client.push(push_of(gradients_of(-1.0)))
    assert [connection.kind for connection in client.run.transports] == ["shm", "grpc"]
    client.close()
    other = trained.client()
    other.push(push_of(gradients_of(-1.0)))
    # Whoever brings the word, the part is applied from the bytes that were staged.
    other.client_id = client.client_id
    decided(other, 1000)
    np.testing.assert_array_equal(other.pull([Read("b")])[0], np.full(SHAPES["b"], 106.0, np.float32))


@pytest.mark.parametrize(
    ("shards", "shard", "method", "copied"),
    [
        (1, 0, "push", False),
        (2, 1, "stage", False),
        (2, 0, "push", False),
        (2, 1, "commit", False),
        (1, 0, "push", True),
        (2, 1, "stage", True),
        (2, 1, "commit", True),
    ],
)
def test_a_push_whose_reply_is_lost_is_done_once_from_the_same_bytes(
    train, given, shards, shard, method, copied, request
):
    if copied:  # small gradients, which the client copies into a block
        request.getfixturevalue("small")
    trained = train(shards)
    client = trained.client()
    for _ in range(2):
        client.push(push_of(gradients_of(-1.0)))
    server = trained.servers[shard]
    server.control.handler.faults = Cut(server, AFTER, method)
    for count in range(3, 6):
        values = client.push(push_of(gradients_of(-1.0))).values
        for value in values:
            np.testing.assert_array_equal(value, np.full(value.shape, count, np.float32))
    assert client.run.transports[shard].kind == "grpc"
    assert client.global_steps() == {"global_step": 5}
    assert any(given) == copied


# ---- When it cannot be had -----------------------------------------------------------------------------


def said(caplog):
    return [record.getMessage() for record in caplog.records if "its data goes over" in record.getMessage()]


def test_a_task_without_memory_to_share_is_reached_by_a_unix_socket(train, monkeypatch, caplog):
    monkeypatch.setattr(socket_server, "is_offered", lambda: False)
    with caplog.at_level(logging.INFO, "globalstep.worker"):
        trained = train()
        caplog.clear()
        client = trained.client("auto")
        for count in range(1, 4):
            values = client.push(push_of(gradients_of(-1.0))).values
            assert float(values[0][0]) == count
    assert kinds(client) == {"unix"}
    (line,) = said(caplog)
    assert "a unix socket" in line
    assert "no memory to share" in line


def test_memory_that_runs_out_later_leaves_the_socket(train, monkeypatch, caplog):
    trained = train()
    client = trained.client()

    def none_left(nbytes):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shared_blocks, "create", none_left)
    with caplog.at_level(logging.INFO, "globalstep.worker"):
        for count in range(1, 6):
            values = client.push(push_of(gradients_of(-1.0))).values
            assert float(values[2][-1]) == count
    assert kinds(client) == {"unix"}
    (line,) = said(caplog)
    assert "No space left" in line


def test_no_memory_is_made_while_other_calls_wait_for_the_values(train, monkeypatch):
    trained = train()
    shard, right, locked = trained.servers[0].shard, shared_blocks.create, []

    def watched(nbytes):
        locked.append(shard._lock.locked())
        return right(nbytes)

    monkeypatch.setattr(shared_blocks, "create", watched)
    reader = trained.client()
    kept = [reader.pull([Read(name) for name in reads]) for reads in (NAMES, NAMES[:1], NAMES)]
    assert len(kept) == 3  # what the program holds is not offered for the next reply
    trained.client().push(push_of(gradients_of(-1.0)))
    assert locked
    assert not any(locked)


def test_a_reply_that_points_outside_of_the_memory_breaks_the_connection(train, monkeypatch):
    trained = train()
    client = trained.client()
    client.push(push_of(gradients_of(-1.0)))
    right = shared_blocks.SharedBlocks.put

    def wrong(self, pieces):
        placed = right(self, pieces)
        if placed is None:
            return None
        place = placed.place
        return shared_blocks.Placed(type(place)(place.block, place.offset + (1 << 40)), placed.descriptor)

    monkeypatch.setattr(shared_blocks.SharedBlocks, "put", wrong)
    values = client.push(push_of(gradients_of(-1.0))).values
    assert [float(value.flat[0]) for value in values] == [2.0] * 3
    assert kinds(client) == {"grpc"}
