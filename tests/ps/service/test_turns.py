"""Connections that share their threads: none keeps the others waiting. Real sockets, in one process (rung 3)."""

from __future__ import annotations

import contextlib
import gc
import socket
import weakref

import numpy as np
from served_sockets import answer, ask, connection_threads, ends_without_a_word, with_gradient

from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.budget import Account
from globalstep.ps.service.served_connection import MOST_PARKED
from globalstep.ps.service.shared_blocks import SharedBlocks
from globalstep.ps.shard.events import CountTogether
from globalstep.runtime.clock import ManualClock
from globalstep.wire.declarations import Increment, Push, Read
from globalstep.wire.socket_messages import Incoming, Outgoing


def is_answered(served, connection):
    ask(connection, served.request())
    return answer(connection)[1].HasField("pull")


def test_half_a_request_keeps_nobody_waiting(serve, kind):
    served = serve()
    slow, other = served.welcomed(kind), served.welcomed(kind)
    whole = bytes(Outgoing(1, served.request().SerializeToString(), ())._left[0])
    for at in (3, len(whole) - 1):
        slow.sendall(whole[:at])
        assert all(is_answered(served, other) for _ in range(3))
        slow.sendall(whole[at:])
        assert answer(slow)[1].HasField("pull")


def test_a_client_that_reads_nothing_keeps_nobody_waiting(serve, kind):
    served = serve()
    greedy, other = served.welcomed(kind), served.welcomed(kind)
    greedy.setblocking(False)
    request = Outgoing(1, served.request().SerializeToString(), ())._left[0]
    with contextlib.suppress(BlockingIOError):
        while True:  # until the task takes no more, since nobody takes its replies
            greedy.send(request)
    assert all(is_answered(served, other) for _ in range(3))


def test_a_push_that_waits_for_memory_keeps_nobody_waiting(serve, kind):
    served = serve(big=True)
    budget = served.ps.controls[0].handler.budget
    held = budget.take(Account(budget), 1 << 20)
    budget.limit_bytes = 1 << 20
    waiting, other = served.welcomed(kind), served.welcomed(kind)
    ask(waiting, *with_gradient(served, "push", "a", 1.0))
    assert all(is_answered(served, other) for _ in range(3))
    del held
    assert answer(waiting)[1].push.outcome.index
    values = served.client.pull([Read("big")])[0]
    np.testing.assert_array_equal(values, np.full_like(values, -1.0))


def test_a_reply_that_is_taken_in_pieces_keeps_nobody_waiting(serve, kind):
    served = serve(big=True)
    slow, other = served.welcomed(kind), served.welcomed(kind)
    request = served.request()
    request.pull.reads[0].variable = "big"
    for call in range(1, 21):
        ask(slow, request, call=call)
    assert all(is_answered(served, other) for _ in range(3))
    # In shared memory each reply brings a block, and a descriptor of it, which goes along when there is room.
    incoming = Incoming(slow, 1 << 30, shares=True, takes_descriptors=True)
    assert [incoming.receive().call for _ in range(20)] == list(range(1, 21))
    incoming.close()
    assert is_answered(served, slow)
    assert is_answered(served, other)


def test_much_data_keeps_a_thread_to_itself_and_gives_it_back(serve, kind):
    served = serve(limit_bytes=4 << 20)
    busy, other = served.welcomed(kind), served.welcomed(kind)
    much = bytes(2 << 20)
    for call in range(1, 30):
        ask(busy, pb.Request(), much if call < 5 else b"", call=call)
        assert answer(busy)[0].call == call
        assert is_answered(served, other)


def test_requests_that_come_together_are_answered_in_order(serve, kind):
    served = serve()
    connections = [served.welcomed(kind) for _ in range(4)]
    count = 200
    for connection in connections:
        connection.sendall(
            b"".join(bytes(Outgoing(call, b"", ())._left[0]) for call in range(1, count + 1))
        )  # each is answered with an error, which is short
    for connection in connections:
        incoming = Incoming(connection, 1 << 20)
        assert [incoming.receive().call for _ in range(count)] == list(range(1, count + 1))


def counting(served, client, sequence, known):
    """A push that only counts."""
    request = pb.Request()
    request.push.incarnation = served.client.incarnation
    request.push.id.client, request.push.id.sequence = client, sequence
    request.push.layout, request.push.known_layout = 1, known
    if not known:
        request.push.increments.add(step="global_step", by=1)
    return request


def test_pushes_that_only_count_are_counted_together_each_once(serve, kind, monkeypatch):
    served = serve()
    together = []
    shard = served.ps.controls[0].handler.shard
    handle = shard.handle

    def noted(event):
        if isinstance(event, CountTogether):
            together.append(len(event.pushes))
        return handle(event)

    monkeypatch.setattr(shard, "handle", noted)
    connections = {f"client{at}": served.welcomed(kind) for at in range(4)}
    for client, connection in connections.items():
        ask(connection, counting(served, client, 1, known=False))
        assert answer(connection)[1].push.outcome.steps["global_step"]
    pushes = range(2, 52)
    with served.ps.controls[0].handler.shard._lock:  # so that they are all there when the first one is done
        for client, connection in connections.items():
            # The last one of each comes twice, as after a reply that was lost.
            sent = [counting(served, client, sequence, known=True) for sequence in (*pushes, pushes[-1])]
            messages = [Outgoing(call, item.SerializeToString(), ()) for call, item in enumerate(sent, 1)]
            connection.sendall(b"".join(bytes(message._left[0]) for message in messages))
    steps = []
    for connection in connections.values():
        incoming = Incoming(connection, 1 << 20)
        outcomes = [pb.Reply.FromString(incoming.receive().head).push.outcome for _ in (*pushes, None)]
        assert [outcome.duplicate for outcome in outcomes] == [False] * len(pushes) + [True]
        assert outcomes[-1].steps == outcomes[-2].steps
        own = [outcome.steps["global_step"] for outcome in outcomes[:-1]]
        assert own == sorted(own)
        steps += own
    assert sorted(steps) == list(range(5, 205))
    assert served.client.global_steps() == {"global_step": 204}
    assert max(together) > 1


def test_a_wrong_push_among_those_that_only_count_is_answered_alone(serve, kind):
    served = serve()
    connections = [served.welcomed(kind) for _ in range(3)]
    for at, connection in enumerate(connections):
        ask(connection, counting(served, f"client{at}", 1, known=False))
        answer(connection)
    requests = [counting(served, f"client{at}", 2, known=True) for at in range(3)]
    requests[1].push.incarnation += 1
    for connection, request in zip(connections, requests, strict=True):
        ask(connection, request)
    replies = [answer(connection)[1] for connection in connections]
    assert [reply.HasField("error") for reply in replies] == [False, True, False]
    assert "incarnation" in replies[1].error.message
    assert served.client.global_steps() == {"global_step": 5}


def test_a_bug_ends_its_connection_and_nothing_else(serve, monkeypatch, caplog):
    served = serve()
    first, faulty, last = (served.welcomed("shm") for _ in range(3))
    assert all(is_answered(served, connection) for connection in (first, faulty, last))

    def broken(self, pieces):
        raise RuntimeError("this is a bug")

    with monkeypatch.context() as patch:
        patch.setattr(SharedBlocks, "put", broken)
        ask(faulty, served.request())
        assert ends_without_a_word(faulty)
    assert "a bug ended this connection" in caplog.text
    assert all(is_answered(served, connection) for connection in (last, first) for _ in range(3))
    assert len(served.threads_left(2)) == 3


def test_each_connection_that_ends_takes_a_thread_along(serve, kind):
    served = serve()
    listening = 1
    connections = [served.welcomed(kind) for _ in range(4)]
    assert all(is_answered(served, connection) for connection in connections)
    first = connections[0]
    for left, connection in enumerate(reversed(connections[1:])):
        connection.shutdown(socket.SHUT_WR)
        assert ends_without_a_word(connection)
        assert is_answered(served, first)
        assert len(served.threads_left(3 - left)) == 3 - left + listening
    served.server.close(0.0)
    assert connection_threads() == []


def test_a_connection_that_ended_leaves_no_memory_behind(serve):
    served = serve(big=True)
    connections = [served.welcomed("shm") for _ in range(3)]
    for connection in connections:
        request, _ = with_gradient(served, "push", "a", 1.0)
        request.push.ops.pop()
        request.push.reads.add(variable="big")
        ask(connection, request)
        answer(connection)
    with served.server._lock:
        blocks = [weakref.ref(connection.blocks) for connection in served.server._connections]
    assert len(blocks) == 3
    # Its thread may be another's by now, and the other way round: what counts is whose connection it was.
    for connection in connections[:2]:
        connection.shutdown(socket.SHUT_WR)
        assert ends_without_a_word(connection)
    served.threads_left(1)
    gc.collect()
    assert sum(block() is not None for block in blocks) == 1


def test_half_a_push_leaves_no_memory_in_use(serve, kind):
    served = serve(big=True)
    budget = served.ps.controls[0].handler.budget
    connections = [served.welcomed(kind) for _ in range(3)]
    request, data = with_gradient(served, "push", "a", 1.0)
    for connection in connections[:2]:
        whole = Outgoing(1, request.SerializeToString(), [memoryview(data)])._left
        connection.sendall(b"".join(bytes(part) for part in whole)[:-1000])
        connection.shutdown(socket.SHUT_WR)
        assert ends_without_a_word(connection)
    served.threads_left(1)
    assert is_answered(served, connections[2])
    assert budget.used_bytes == 0


def test_so_many_calls_of_a_connection_wait_and_one_more_is_answered_at_once(serve, kind):
    served = serve()
    served.ps.controls[0].handler.shard.resources.clock = ManualClock()
    step = [Increment("global_step", 1, 2)]
    served.client.push(Push(increments=step, seen_steps={"global_step": 0}), at_once=True)
    connection = served.welcomed(kind)
    request = pb.Request(await_step=pb.AwaitRequest(incarnation=served.client.incarnation, client="a"))
    request.await_step.step, request.await_step.patience_ms = "global_step", 1000
    for call in range(1, MOST_PARKED + 2):
        ask(connection, request, call=call)
    message, reply = answer(connection)
    assert (message.call, reply.await_step.waited) == (MOST_PARKED + 1, False)
