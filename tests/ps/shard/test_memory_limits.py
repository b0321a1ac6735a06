"""Ways past the limits of memory, with a worker's token: each is refused before memory is taken for it."""

from __future__ import annotations

import numpy as np
import pytest
from counting_run import SHAPES, initialize, state, step_push
from served_tasks import TokenTasks

from globalstep.errors import InvalidArgumentError, ResourceExhaustedError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps import server as servers
from globalstep.ps.access.authorization import Caller, Role
from globalstep.ps.budget import Account, Budget
from globalstep.ps.members.presence import Presence
from globalstep.ps.shard.replies import Kept, ReplyCache, bytes_of
from globalstep.ps.shard.statistics import ChangeCounts
from globalstep.runtime.clock import ManualClock
from globalstep.runtime.memory import COUNTED_HEAD_BYTES
from globalstep.wire import codec
from globalstep.wire.codec import TensorWriter
from globalstep.wire.declarations import Op, OpKind, Push, PushId, Read, VariableDecl
from globalstep.wire.frames import Assembler, frames_of

MIB = 1 << 20
LIMITS = {"max_inflight_bytes": 16 * MIB, "max_message_bytes": 2 * MIB, "max_clients": 2}


@pytest.fixture
def run(tmp_path):
    """A run of one task, with a Variable of a MiB."""
    with TokenTasks(tmp_path, options=LIMITS) as tasks:
        chief = tasks.join("chief")
        initialize(chief)
        chief.declare([VariableDecl("table", "float32", (1 << 10, 1 << 8))], [])
        chief.push(Push(ops=[Op(OpKind.ASSIGN, "table", fill=1.0)]))
        yield tasks, chief


def asked(tasks, request, data=b"", role=Role.WORKER):
    """What the task answers to a request on a stream of its own, a worker's by default."""
    handler = tasks.servers[0].control.handler
    memory = handler.stream_memory(Caller(role))
    reply, _ = handler.begin(request, memoryview(data), memory)
    return reply.error


@pytest.mark.parametrize("rows", [None, 8192])
@pytest.mark.parametrize("kind", ["pull", "push"])
def test_reads_that_name_a_variable_again_and_again(run, kind, rows):
    tasks, chief = run
    request, tensors = pb.Request(), TensorWriter()
    message = request.push if kind == "push" else request.pull
    message.incarnation = chief.incarnation
    if kind == "push":
        message.id.CopyFrom(pb.PushId(client="x", sequence=1))
    for _ in range(8 if rows is None else 1):
        ids = None if rows is None else np.zeros(rows, np.int64)
        codec.encode_reads([Read("table", ids)], message.reads, tensors)
    data = b"".join(map(bytes, tensors.pieces))
    before = tasks.servers[0].control.handler.budget.used_bytes
    said = asked(tasks, request, data).message
    assert "reads of 8,388,608 bytes in all are over this task's limit of 2,097,152" in said
    assert tasks.servers[0].control.handler.budget.used_bytes == before
    assert chief.pull([Read("table")])[0].size == 1 << 18


def test_messages_with_more_in_them_than_there_is_use_for(run):
    tasks, chief = run
    names = {"reads": [pb.Read(variable="b")] * 1000, "ops": [pb.Op()] * 1000}
    for field, items in names.items():
        message = pb.PushRequest(incarnation=chief.incarnation, id=pb.PushId(client="x", sequence=1), **{field: items})
        assert "are the most" in asked(tasks, pb.Request(push=message)).message
    pull = pb.PullRequest(incarnation=chief.incarnation, reads=names["reads"])
    assert "are the most" in asked(tasks, pb.Request(pull=pull)).message


def test_ids_and_tasks_that_are_long_or_speak_to_terminals(run):
    tasks, chief = run
    for client, task in (("x" * 129, ""), ("x\n", ""), ("x", "t" * 257), ("x", "/job:worker/task:0\x1b[2J"), ("é", "")):
        with pytest.raises(InvalidArgumentError, match="cannot name a"):
            tasks.unary("worker", "Heartbeat", pb.HeartbeatRequest(client=client, task=task, lease_secs=9))
    long = pb.PushRequest(incarnation=chief.incarnation, id=pb.PushId(client="x" * (1 << 20), sequence=1))
    error = asked(tasks, pb.Request(push=long))
    assert (error.type, len(error.message) < 1000) == ("InvalidArgumentError", True)
    assert [view.client for view in tasks.servers[0].shard.members.clients()] == [chief.client_id]


def test_texts_of_the_data_plane_are_looked_at_alone_and_where_pushes_are_counted_together(run):
    tasks, chief = run
    assert "characters" in asked(tasks, pb.Request(pull=pb.PullRequest(client="x\x1b[2J"))).message
    handler = tasks.servers[0].control.handler
    memory = handler.stream_memory(Caller(Role.WORKER))
    request = pb.Request(push=pb.PushRequest(incarnation=chief.incarnation, layout=1))
    request.push.id.CopyFrom(pb.PushId(client="x", sequence=1))
    request.push.increments.add(step="global_step", by=1)
    assert not handler.begin(request, memoryview(b""), memory)[0].HasField("error")
    request.push.known_layout, request.push.id.sequence = True, 2
    request.push.seen_steps["n" * 1025] = 1
    (reply,) = handler.count([(request, memory)])
    assert "characters" in reply.error.message


def test_what_a_client_says_of_its_process_and_run_has_a_limit(run):
    tasks, chief = run
    said = ({"process": pb.ProcessInfo(host="h" * 257)}, {"run": pb.RunIdentity(name="a\x1b[2J")})
    for extra in said:
        with pytest.raises(InvalidArgumentError, match=r"ProcessInfo.host.*257|RunIdentity.name .*control characters"):
            tasks.unary("worker", "Heartbeat", pb.HeartbeatRequest(client="x", lease_secs=9, **extra))
    assert [view.client for view in tasks.servers[0].shard.members.clients()] == [chief.client_id]


def test_a_push_that_is_not_finite_names_a_declared_variable(run):
    tasks, chief = run
    push = pb.PushRequest(incarnation=chief.incarnation, id=pb.PushId(client="x", sequence=1), not_finite="n" * 1024)
    assert "no Variable of that name is declared here" in asked(tasks, pb.Request(push=push)).message
    push.not_finite = "n" * MIB
    assert "1048576 characters" in asked(tasks, pb.Request(push=push)).message
    push.not_finite = "table"
    assert not asked(tasks, pb.Request(push=push)).message


def test_an_error_names_what_was_sent_within_reason(run):
    tasks, chief = run
    pull = pb.PullRequest(incarnation=chief.incarnation, reads=[pb.Read(variable="n" * MIB)])
    assert len(asked(tasks, pb.Request(pull=pull)).message) < 5000


def test_leases_have_a_limit(run):
    tasks, _ = run
    for number in range(7):
        tasks.unary("worker", "Heartbeat", pb.HeartbeatRequest(client=f"ghost{number}", lease_secs=600))
    with pytest.raises(ResourceExhaustedError, match="8 clients are here.*8 are the most"):
        tasks.unary("worker", "Heartbeat", pb.HeartbeatRequest(client="ghost8", lease_secs=600))
    tasks.unary("worker", "Leave", pb.LeaveRequest(client="ghost3"))
    tasks.unary("worker", "Heartbeat", pb.HeartbeatRequest(client="ghost8", lease_secs=600))


def test_a_lost_client_makes_room_for_a_new_one():
    clock = ManualClock()
    presence = Presence(clock)
    presence.most_leases = 2
    presence.heard("a", "", 1.0)
    clock.advance(2.0)
    presence.heard("b", "", 60.0)
    assert [lost.client for lost in presence.find_losses()] == ["a"]
    presence.heard("c", "", 60.0)
    assert {view.client for view in presence.clients()} == {"b", "c"}
    with pytest.raises(ResourceExhaustedError):
        presence.heard("d", "", 60.0)


def test_steps_have_a_limit(run):
    tasks, chief = run
    steps = [pb.VariableDecl(name=f"s{at}", dtype="int64", is_step=True) for at in range(200)]
    with pytest.raises(ResourceExhaustedError, match="64 are the most"):
        tasks.unary("worker", "Declare", pb.DeclareRequest(incarnation=chief.incarnation, client="x", variables=steps))
    chief.push(step_push())
    assert set(tasks.servers[0].shard.view().steps) == {"global_step"}


def test_the_names_and_numbers_of_a_message_count_while_it_is_looked_at():
    budget = Budget(4 * MIB, ManualClock())
    memory = Account(budget, "c")
    push = pb.PushRequest(ops=[pb.Op()] * COUNTED_HEAD_BYTES)
    (frame,) = frames_of(1, request=pb.Request(push=push))
    assembler = Assembler(MIB, memory)
    message = assembler.add(frame)
    assert message is not None
    assert budget.used_bytes > 40 * len(frame)
    kept = []

    def send_more():
        for _ in range(20):
            kept.append(Assembler(MIB, memory).add(frame))

    with pytest.raises(ResourceExhaustedError, match="of requests of c"):
        send_more()
    del message, assembler
    kept.clear()
    assert budget.used_bytes == 0


def test_a_message_is_not_larger_than_half_of_the_machine(monkeypatch):
    monkeypatch.setattr(servers, "memory_bytes", lambda: 3 << 30)
    assert servers.default_message_bytes() == 3 << 29
    monkeypatch.setattr(servers, "memory_bytes", lambda: 1 << 40)
    assert servers.default_message_bytes() == 16 << 30


@pytest.mark.parametrize("layout", [0, 1])
def test_parts_count_with_their_changes(tmp_path, layout):
    with TokenTasks(tmp_path, 2, LIMITS) as tasks:
        chief = tasks.join("chief")
        chief.begin(open=False, sequencer=1)
        initialize(chief)
        shard = tasks.servers[0].shard
        shard.resources.budget = Budget(8000)
        name = next(name for name, at in chief.where.items() if at == 0)
        gradient = pb.TensorRef(dtype="float32", shape=SHAPES[name])
        change = pb.Op(kind=pb.OP_APPLY, variable=name, optimizer="sgd", value=gradient)
        stage = pb.StageRequest(incarnation=chief.incarnation, ops=[change] * 5, layout=layout)
        found = []
        for number in range(3):
            stage.id.CopyFrom(pb.PushId(client=chief.client_id, sequence=number + 100))
            found.append(asked(tasks, pb.Request(stage=stage), bytes(64), role=Role.CHIEF).type)
        assert found == ["", "ResourceExhaustedError", "ResourceExhaustedError"]
        assert PushId(chief.client_id, 101) not in shard.now.staged


def test_combinations_of_variables_are_counted_and_not_kept_without_end():
    counts = ChangeCounts()
    held = [counts.of((f"v{number}", "w")) for number in range(3000)]
    for count in held:
        if not count.over:
            count.pushes += 1
    assert len(counts._kept) <= 1024
    assert counts.of(("v0", "w")).over is False
    counts.of(("v0", "w")).pushes += 1
    assert counts.by_variable()["v0"] == 1


def test_combinations_of_many_variables_are_counted_and_not_kept_without_end():
    counts, names = ChangeCounts(), [f"v{number}" for number in range(5000)]
    for first in range(500):
        counts.add((*names[first:], *names[:first]))
        counts.of((*names[first:], *names[:first])).pushes += 1
    assert sum(map(len, [*counts._kept, *counts._passing])) <= 2 << 20
    assert counts.by_variable()["v7"] > 500


def test_replies_are_kept_for_so_many_clients():
    cache = ReplyCache()
    for number in range((1 << 16) + 10):
        cache.keep(Kept(PushId(f"c{number}", 1), number, (), None))
    assert (len(cache.by_client), cache.get(PushId("c9", 1))) == (1 << 16, None)


def test_a_fill_takes_one_element(run):
    tasks, chief = run
    chief.push(Push(ops=[Op(OpKind.ASSIGN_ADD, "table", fill=2.0), Op(OpKind.ASSIGN_SUB, "e", fill=1.0)]))
    store = tasks.servers[0].shard.now.store
    assert store._operand(Op(OpKind.ASSIGN, "table", fill=2.0), store._held["table"]).size == 1
    assert (chief.pull([Read("table")])[0] == 3.0).all()
    assert state(chief)["e"] == [[-1.0, -1.0]] * 5


def test_few_bytes_unpack_to_no_more_than_the_variables_have_use_for(run):
    """Zeros take no bytes on the wire: 8 bytes were any number of them, up to the limit of a message."""
    tasks, chief = run
    server = tasks.servers[0]
    server.control.handler._limit_bytes = 1 << 40  # no other limit is in the way
    used = server.control.handler.budget.used_bytes
    bomb = pb.Request(push=pb.PushRequest(incarnation=chief.incarnation, id=pb.PushId(client="x", sequence=1)))
    bomb.spans.add(form=pb.FORM_NONZERO, bytes=9 * MIB, packed_bytes=8)
    error = asked(tasks, bomb, bytes(8))
    assert error.type == "ResourceExhaustedError"
    assert "9437184 bytes is larger than the limit of" in error.message
    assert server.control.handler.budget.used_bytes == used
    whole = pb.Request(push=pb.PushRequest(incarnation=chief.incarnation, id=pb.PushId(client="x", sequence=2)))
    whole.spans.add(form=pb.FORM_NONZERO, bytes=MIB, packed_bytes=0)
    op = whole.push.ops.add(kind=pb.OP_ASSIGN_ADD, variable="table")
    op.value.CopyFrom(pb.TensorRef(dtype="float32", shape=[1 << 10, 1 << 8]))
    assert not asked(tasks, whole).message


@pytest.mark.parametrize("reads", [[Read("e", np.zeros(1000, np.int64))], [Read("b")] * 80], ids=["ids", "names"])
def test_what_is_kept_of_reads_for_a_retry_has_a_limit(run, reads):
    tasks, chief = run
    shard, nbytes = tasks.servers[0].shard, bytes_of(reads)
    shard.resources.budget = Budget(10 * nbytes)

    def push(number):
        request = pb.Request(push=pb.PushRequest(incarnation=chief.incarnation))
        request.push.id.CopyFrom(pb.PushId(client=f"c{number}", sequence=1))
        request.push.ops.add(kind=pb.OP_ASSIGN, variable="b", fill=float(number))
        tensors = TensorWriter()
        codec.encode_reads(reads, request.push.reads, tensors)
        handler = tasks.servers[0].control.handler
        data = memoryview(b"".join(map(bytes, tensors.pieces)))
        return handler.begin(request, data, handler.stream_memory(Caller(Role.WORKER)))[0].push

    for number in range(20):
        assert len(push(number).values) == len(reads)
    kept = shard.now.replies.by_client.values()
    assert 0 < sum(len(one.reads) for one in kept) <= 5 * len(reads)
    assert len(push(19).values) == len(reads)
    again = push(0)  # its client reads by another push
    assert (again.outcome.duplicate, len(again.values)) == (True, 0)
