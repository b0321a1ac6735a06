"""Sockets beside gRPC: who gets in, what they may send, and how it ends. Real sockets, in one process (rung 3)."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest
from served_sockets import KINDS, answer, ask, connection_threads, ends_without_a_word, prove
from stand_ins import Held

from globalstep.errors import ResourceExhaustedError, UnavailableError, UnimplementedError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.access import door
from globalstep.ps.access.authorization import CALLER, Caller, Role
from globalstep.ps.service import socket_server
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.security.connection_proofs import PROOF_BYTES, TOKEN_BYTES, claim
from globalstep.security.connection_proofs import answer as answer_to
from globalstep.wire.declarations import Op, OpKind, Push
from globalstep.wire.socket_messages import WELCOME, Incoming, Outgoing, Place


def test_nothing_listens_before_somebody_asks(serve, kind):
    served = serve()
    assert connection_threads() == []
    served.server.open(KINDS[kind])
    assert connection_threads() == ["globalstep-accept-tcp" if kind == "tcp" else "globalstep-accept-unix"]


def test_a_wrong_token_gets_no_word_and_the_right_one_is_good_once(serve, kind):
    served = serve()
    _, right = served.server.open(KINDS[kind])
    for wrong in (bytes(TOKEN_BYTES), right[:-1] + bytes([right[-1] ^ 1])):
        assert ends_without_a_word(served.connect(kind, wrong))
    assert served.connect(kind, right).recv(len(WELCOME), socket.MSG_WAITALL) == WELCOME
    assert ends_without_a_word(served.connect(kind, right))


def test_a_token_is_good_for_some_seconds(serve, kind):
    served = serve()
    _, token = served.server.open(KINDS[kind])
    served.clock.advance(10.1)
    assert ends_without_a_word(served.connect(kind, token))


@pytest.mark.parametrize("proven", [bytes(PROOF_BYTES), b""], ids=["wrong", "none"])
def test_who_claims_a_token_and_does_not_prove_it_is_not_let_in(serve, kind, proven):
    served = serve()
    connection, token = served.dial(kind)
    claimed = claim(token)
    connection.sendall(claimed)
    assert connection.recv(PROOF_BYTES, socket.MSG_WAITALL) == answer_to(token, claimed)
    connection.sendall(proven)
    connection.shutdown(socket.SHUT_WR)
    assert ends_without_a_word(connection)


def test_no_more_connections_than_allowed(serve, kind):
    served = serve(max_connections=2)
    served.welcomed(kind)
    served.server.open(KINDS[kind])
    with pytest.raises(ResourceExhaustedError, match="--max-clients"):
        served.server.open(KINDS[kind])
    served.clock.advance(10.1)
    served.welcomed(kind)


def test_a_token_that_is_given_back_makes_room_and_is_good_for_nothing(serve):
    served = serve(max_connections=1)
    _, token = served.server.open(pb.LANE_SHM)
    with pytest.raises(ResourceExhaustedError):
        served.server.open(pb.LANE_TCP)
    address, fresh = served.server.open(pb.LANE_TCP, token)
    for shown, good in ((token, False), (fresh, True)):
        with socket.create_connection(("127.0.0.1", int(address)), 20.0) as connection:
            prove(connection, shown)
            assert ends_without_a_word(connection) != good


def test_no_tcp_is_taken_where_none_is_wanted(serve):
    with pytest.raises(UnimplementedError, match="--tcp-port none"):
        serve(port=None).server.open(pb.LANE_TCP)


def test_an_unknown_kind_is_refused(serve):
    with pytest.raises(UnimplementedError, match="99"):
        serve().server.open(99)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "localhost", "127.0.0.1", "[::]"])
def test_tcp_is_taken_where_grpc_is(serve, host):
    if host == "[::]" and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    served = serve(host=host)
    served.welcomed("tcp")


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n",
        b"gsm1" + (4).to_bytes(4, "little") + (1).to_bytes(8, "little") + bytes(8) + b"\xff\xff\xff\xff",
        b"gsm1" + bytes(4) + (1).to_bytes(8, "little") + (1 << 60).to_bytes(8, "little"),
    ],
    ids=["no message", "no protobuf", "too large"],
)
def test_garbage_ends_the_connection_and_nothing_else(serve, kind, raw):
    served = serve()
    other, connection = served.welcomed(kind), served.welcomed(kind)
    connection.sendall(raw)
    assert ends_without_a_word(connection)
    ask(other, served.request())
    assert answer(other)[1].HasField("pull")


@pytest.mark.parametrize(
    "place",
    [
        Place(block=7, offset=4096),
        Place(offered=(1,)),
        Place(offered=tuple(range(65))),
        Place(new_bytes=1 << 60),
        Place(new_bytes=5),
    ],
    ids=["a block of nobody's", "an offer of nobody's", "too many numbers", "too large a block", "half a page"],
)
def test_a_place_that_is_none_harms_nobody_else(serve, place):
    served = serve()
    other, connection = served.welcomed("shm"), served.welcomed("shm")
    Outgoing(1, served.request().SerializeToString(), (), place, 8).send(connection)
    if place.new_bytes:
        assert answer(connection)[1].error.code == 8
    else:
        assert ends_without_a_word(connection)
    ask(other, served.request())
    assert answer(other)[1].HasField("pull")


@pytest.mark.parametrize("other_kind", ["unix", "tcp"])
def test_only_who_asked_for_shared_memory_may_speak_of_it(serve, other_kind):
    served = serve()
    connection = served.welcomed(other_kind)
    Outgoing(1, b"", (), Place(new_bytes=1 << 16)).send(connection)
    assert ends_without_a_word(connection)


@pytest.mark.parametrize("kind", ["unix", "tcp"])
@pytest.mark.parametrize("more", [1, 8, 9, 30])
def test_whatever_comes_in_one_piece_with_what_takes_time_is_answered(serve, kind, more):
    """The task had received it already, so nothing woke it up: the client waited for 60 s, and came again over gRPC."""
    served = serve()
    connection, (into, out) = served.welcomed(kind), socket.socketpair()
    with into, out:
        slow = served.request()
        slow.spans.add(form=pb.FORM_NONZERO, bytes=8, packed_bytes=0)  # what is packed is unpacked off the quick way
        ask(into, slow)
        for call in range(more):
            ask(into, served.request(), call=2 + call)
        connection.sendall(out.recv(1 << 20))
    connection.settimeout(20.0)
    incoming = Incoming(connection, 1 << 30)
    assert [incoming.receive().call for _ in range(1 + more)] == list(range(1, 2 + more))


def test_a_retry_is_answered_for_its_own_rows_whatever_came_since(serve, kind):
    served = serve()
    rows = np.arange(10, dtype=np.float32).reshape(5, 2)
    served.client.push(Push([Op(OpKind.ASSIGN, "e", rows)]))
    connection = served.welcomed(kind)
    mine, others = np.arange(10_000) % 5, np.zeros(10_000, np.int64)

    def pushed():
        request = pb.Request()
        request.push.incarnation = served.client.incarnation
        request.push.id.client, request.push.id.sequence = "stranger", 1
        indices = request.push.reads.add(variable="e").indices
        indices.dtype, indices.shape[:] = "int64", [len(mine)]
        ask(connection, request, mine.tobytes())
        message, reply = answer(connection)
        return reply.push.outcome.duplicate, np.frombuffer(message.data, np.float32).reshape(-1, 2)

    first = pushed()
    pull = served.request()
    indices = pull.pull.reads[0].indices
    pull.pull.reads[0].variable, indices.dtype, indices.shape[:] = "e", "int64", [len(others)]
    for _ in range(3):
        ask(connection, pull, others.tobytes())
        answer(connection)
    again = pushed()
    assert (first[0], again[0]) == (False, True)
    np.testing.assert_array_equal(again[1], rows[mine])
    np.testing.assert_array_equal(first[1], rows[mine])


def test_layouts_belong_to_a_connection(serve, kind):
    served = serve()
    request = pb.Request()
    request.push.incarnation = served.client.incarnation
    request.push.id.client, request.push.id.sequence = "stranger", 1
    request.push.reads.add(variable="w")
    request.push.layout = 5
    one, other = served.welcomed(kind), served.welcomed(kind)
    ask(one, request)
    assert len(answer(one)[1].push.values) == 1
    request.push.known_layout, request.push.id.sequence = True, 2
    del request.push.reads[:]
    ask(other, request)
    assert answer(other)[1].error.type == "LayoutUnknownError"
    ask(one, request)
    assert answer(one)[1].push.bare


def test_the_end_lets_a_call_under_way_finish(serve, kind):
    served = serve()
    held = served.ps.controls[0].handler.faults = Held("pull")
    busy, idle = served.welcomed(kind), served.welcomed(kind)
    ask(busy, served.request())
    assert held.reached.wait(20.0)
    closer = threading.Thread(target=served.server.close, args=(20.0,), name="closer")
    closer.start()
    assert ends_without_a_word(idle)
    held.go_on.set()
    assert answer(busy)[1].HasField("pull")
    assert ends_without_a_word(busy)
    closer.join()
    assert connection_threads() == []
    with pytest.raises(UnavailableError, match="closing down"):
        served.server.open(KINDS[kind])


def test_the_end_does_not_wait_for_a_client_that_reads_nothing(serve, kind):
    big = serve(big=True)
    connection = big.welcomed(kind)
    request = pb.Request()
    request.pull.incarnation = big.client.incarnation
    for _ in range(100):
        request.pull.reads.add(variable="big")
    for _ in range(5):
        ask(connection, request)
    assert connection.recv(1, socket.MSG_PEEK)
    big.server.close(0.05)
    assert connection_threads() == []


def test_the_end_with_nothing_open(serve):
    served = serve()
    served.server.close(0.0)
    served.server.close(0.0)


# ---- Strangers, and a system that lacks something ---------------------------------------------------


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ECONNABORTED])
def test_connections_are_taken_in_again_once_the_system_has_what_it_lacked(serve, kind, monkeypatch, number):
    served = serve()
    failed = []
    real = socket.socket.accept

    def accept(listening):
        if len(failed) < 3:
            failed.append(number)
            raise OSError(number, "not now")
        return real(listening)

    monkeypatch.setattr(socket.socket, "accept", accept)
    for _ in range(2):
        assert answers(served.welcomed(kind), served)
    assert len(failed) == 3


def answers(connection, served):
    ask(connection, served.request())
    return answer(connection)[1].HasField("pull")


def test_a_stranger_who_took_all_files_for_a_while_ends_no_thread(serve, kind):
    served = serve()
    served.server.open(KINDS[kind])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = len(os.listdir("/proc/self/fd"))
    connection = socket.socket(socket.AF_INET if kind == "tcp" else socket.AF_UNIX)
    served.sockets.append(connection)
    address, token = served.server.open(KINDS[kind])
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (in_use, hard))
        # It is in the queue, and nobody can take it out.
        connection.connect(("127.0.0.1", int(address)) if kind == "tcp" else "\0" + address)
        SYSTEM_CLOCK.wait(threading.Event(), 0.3)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    connection.settimeout(20.0)
    prove(connection, token)
    assert connection.recv(len(WELCOME), socket.MSG_WAITALL) == WELCOME


def test_a_thread_that_cannot_be_started_costs_one_connection(serve, kind, monkeypatch):
    served = serve()
    served.server.open(KINDS[kind])
    real = threading.Thread.start

    def start(thread):
        if thread.name.startswith("globalstep-connection-") and thread.name[-1].isdigit():
            raise RuntimeError("can't start new thread")
        real(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with contextlib.suppress(OSError):
            assert ends_without_a_word(served.connect(kind))
    assert answers(served.welcomed(kind), served)


def test_a_listener_that_has_ended_is_begun_anew(serve, kind):
    served = serve()
    served.welcomed(kind)
    (listener,) = served.server._listeners.values()
    listener.close()
    assert answers(served.welcomed(kind), served)


@pytest.mark.parametrize("kind", ["unix", "shm"])
def test_other_users_of_this_machine_are_sent_away_and_say_little_in_the_log(serve, kind, monkeypatch, caplog):
    served = serve(max_connections=64)
    monkeypatch.setattr("globalstep.ps.service.socket_server.uid_of_unix", lambda connection: 54002)
    with caplog.at_level(logging.WARNING):
        for _ in range(40):
            with contextlib.suppress(BrokenPipeError):
                assert ends_without_a_word(served.connect(kind))
    assert caplog.text.count("uid 54002") == 1
    # One to whom a token was given may come.
    monkeypatch.setattr("globalstep.ps.service.socket_server.uid_of_peer", lambda peer: 54002)
    assert answers(served.welcomed(kind), served)


def test_a_real_stranger_of_another_user_is_sent_away(serve):
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    served = serve()
    address, token = served.server.open(pb.LANE_UNIX)
    script = (
        "import os, socket, sys; os.setgid(54002); os.setuid(54002); c = socket.socket(socket.AF_UNIX);"
        "c.settimeout(20); c.connect('\\0' + sys.argv[1]); print(c.recv(1))"
    )
    done = subprocess.run([sys.executable, "-c", script, address], capture_output=True, text=True, timeout=60)
    assert done.stdout == "b''\n", done.stderr
    assert served.connect("unix", token).recv(len(WELCOME), socket.MSG_WAITALL) == WELCOME


def test_strangers_without_a_token_say_little_in_the_log(serve, kind, caplog):
    served = serve(max_connections=64)
    with caplog.at_level(logging.WARNING):
        for _ in range(30):
            assert ends_without_a_word(served.connect(kind, bytes(TOKEN_BYTES)))
    assert caplog.text.count("without a valid token") == 1


def test_one_host_does_not_take_all_transports(serve, monkeypatch):
    """Tokens that were asked for count, and so do connections that have shown theirs, until they end."""
    monkeypatch.setattr(door, "_LEAST_SHARE", 2)
    served = serve(max_connections=4)
    far, near = (Caller(Role.WORKER, f"ipv4:{host}:4711") for host in ("10.0.0.9", "10.0.0.8"))
    given = CALLER.set(far)
    try:
        connection = served.welcomed("tcp")
        for _ in range(2):
            served.server.open(KINDS["tcp"])
        with pytest.raises(ResourceExhaustedError, match=r"host 10\.0\.0\.9 has 3 of this PS task's 4 seats"):
            served.server.open(KINDS["tcp"])
        CALLER.set(near)
        served.server.open(KINDS["tcp"])
        connection.close()
        served.threads_left(0)
    finally:
        CALLER.reset(given)


def test_a_unix_transport_is_for_the_user_whom_the_kernel_names_for_the_very_connection(serve, monkeypatch):
    """By both ends of it: another user's socket with the same address here, to another port, is not meant."""
    asked = []
    monkeypatch.setattr(socket_server, "uid_of_connection", lambda *ends: asked.append(ends) or 54002)
    served = serve()
    served.server.handler.authorization.address = "127.0.0.1:99"
    given = CALLER.set(Caller(Role.WORKER, "ipv4:127.0.0.1:98"))
    try:
        served.server.open(KINDS["unix"])
    finally:
        CALLER.reset(given)
    assert asked == [("ipv4:127.0.0.1:98", "127.0.0.1", 99)]
    assert [given.user for given in served.server._tokens.values()] == [54002]
