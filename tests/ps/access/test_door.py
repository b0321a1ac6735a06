"""Who gets in by gRPC: known before a byte of the message is taken, seated or refused in words. Real servers."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
from counting_run import expected, initialize, state, step_push
from grpc_health.v1 import health_pb2, health_pb2_grpc

from globalstep.errors import ResourceExhaustedError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.proto import globalstep_pb2_grpc as pb_grpc
from globalstep.ps.access.authorization import Caller, Role
from globalstep.ps.access.door import KEPT_SEATS, Seats, whose_seat
from globalstep.ps.access.role_tokens import TokenLine
from globalstep.ps.access.security import SecurityOptions
from globalstep.ps.server import PSOptions, PSServer
from globalstep.runtime.clock import SYSTEM_CLOCK, SystemClock
from globalstep.runtime.process_env import tuned
from globalstep.security.credentials import Credentials
from globalstep.wire.protocol_version import own_protocol
from globalstep.wire.queue_elements import encode_element
from globalstep.worker.client.client import ClusterClient
from globalstep.worker.transport.grpc_transport import GrpcTransport

SERVICE = "/globalstep.v1.ParameterServer/"
TOKENS = {role: f"{role}-0123456789abcdef" for role in ("chief", "worker", "ps")}


class Hasty(SystemClock):
    """Time that passes ten times as fast."""

    def monotonic(self):
        return super().monotonic() * 10

    def wait(self, event, timeout_secs):
        return super().wait(event, timeout_secs / 10)


@pytest.fixture
def serving(tmp_path):
    """Start a PS task; with tokens unless told otherwise."""
    tokens = tmp_path / "tokens"
    tokens.write_text("".join(f"{role} {token}\n" for role, token in TOKENS.items()))
    tokens.chmod(0o600)
    tokens.chmod(0o600)
    with contextlib.ExitStack() as stack:

        def start(tokens_file=str(tokens), clock=None, **more):
            options = PSOptions(grace_secs=0.2, security=SecurityOptions(tokens_file=tokens_file), **more)
            server = PSServer(options)
            stack.callback(server.close)
            if clock is not None:
                server._slow._clock = clock
            server.start()
            return server

        yield start


@pytest.fixture
def callers():
    """Make calls that begin and say nothing more, each connection of its own for so many of them."""
    ended = threading.Event()
    with contextlib.ExitStack() as stack:
        stack.callback(ended.set)

        def call(server, method, count, token="", a_connection=50, stream=False):
            def silence():
                ended.wait()
                yield from ()

            futures = []
            for at in range(count):
                if at % a_connection == 0:
                    options = [("grpc.use_local_subchannel_pool", 1)]
                    channel = stack.enter_context(grpc.insecure_channel(server.address, options=options))
                metadata = [("authorization", f"Bearer {token}")] if token else None
                if stream:
                    futures.append(channel.stream_stream(method)(silence(), metadata=metadata, timeout=60))
                else:
                    futures.append(channel.stream_unary(method).future(silence(), metadata=metadata, timeout=60))
            return futures

        yield call


def asks(server, role, method="Status", request=None, timeout=10.0):
    with grpc.insecure_channel(server.address) as channel:
        stub = pb_grpc.ParameterServerStub(channel)
        metadata = [("authorization", f"Bearer {TOKENS[role]}")] if role else None
        return getattr(stub, method)(request or pb.StatusRequest(brief=True), metadata=metadata, timeout=timeout)


def code_of(call):
    with pytest.raises(grpc.RpcError) as caught:
        call.result(30)
    return caught.value.code()


def test_strangers_who_send_headers_and_no_message_hold_nothing_up(serving, callers):
    server = serving(max_clients=4)
    silent = callers(server, SERVICE + "Status", 120)
    assert asks(server, "chief").state == pb.STATE_VACANT
    assert {code_of(call) for call in silent} == {grpc.StatusCode.UNAUTHENTICATED}


def test_strangers_streams_are_ended_at_once(serving, callers):
    server = serving(max_clients=4)
    silent = callers(server, SERVICE + "Exchange", 60, stream=True)
    assert {code_of(call) for call in silent} == {grpc.StatusCode.UNAUTHENTICATED}


def test_who_may_call_and_sends_no_message_is_cut_off(serving, callers):
    server = serving(max_clients=4, clock=Hasty())
    silent = callers(server, SERVICE + "Status", 100, TOKENS["worker"])
    # 64 workers have a seat; for the chief and PS tasks some are left.
    assert asks(server, "chief").state == pb.STATE_VACANT
    codes = [code_of(call) for call in silent]
    assert codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED) == 100 - 64
    assert codes.count(grpc.StatusCode.CANCELLED) == 64
    assert asks(server, "worker").state == pb.STATE_VACANT


@pytest.mark.parametrize("method", ["Queue", "Status"])
def test_a_long_reply_counts_until_its_client_has_taken_it(serving, method):
    server = serving()
    element = encode_element([np.zeros(3 << 20, np.int8)])
    queue = pb.QueueAttributes(name="q", kind="FIFOQueue", capacity=-1, dtypes=["int8"], shapes=["?"])
    request = pb.QueueRequest(queue=queue, what=pb.QUEUE_ENQUEUE, client="c", number=1, total=1, elements=[element])
    assert asks(server, "worker", "Queue", request).entered == 1
    request = pb.QueueRequest(queue=queue, what=pb.QUEUE_DEQUEUE, client="c", number=2, count=1)
    if method == "Status":
        request = pb.StatusRequest(protocol=own_protocol())
        asks(server, "chief", "Begin", pb.BeginRequest(incarnation=2**62, shards=1, owner="c", open=True))
        variables = [pb.VariableDecl(name=f"{at}".zfill(1024), dtype="float32") for at in range(1700)]
        asks(server, "chief", "Declare", pb.DeclareRequest(incarnation=2**62, client="c", variables=variables))

    def until(right):
        until, budget = SYSTEM_CLOCK.monotonic() + 20.0, server.control.handler.budget
        while not right(budget.view()[0].get("replies", 0)):
            assert SYSTEM_CLOCK.monotonic() < until
            SYSTEM_CLOCK.wait(threading.Event(), 0.01)

    with grpc.insecure_channel(server.address, [("grpc.http2.bdp_probe", 0)]) as channel:
        # As a stream, whose messages are read when they are asked for, but for 64 KiB.
        call = channel.unary_stream(SERVICE + method)
        shown = [("authorization", f"Bearer {TOKENS['worker']}")]
        replies = call(request.SerializeToString(), metadata=shown, timeout=60)
        until(lambda nbytes: nbytes >= 2 << 20)
        assert len(next(replies)) > 2 << 20
        until(lambda nbytes: not nbytes)


def test_strangers_messages_are_not_received(tmp_path):
    """They stay with who sends them, but for what the link reads ahead of everybody. A process of its own."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"chief {TOKENS['chief']}\n")
    tokens.chmod(0o600)
    command = [sys.executable, "-m", "globalstep.ps", "--port", "0", "--tokens-file", str(tokens)]
    with subprocess.Popen(command, env=tuned(os.environ), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as ps:
        try:
            address = ps.stdout.readline().split()[-1].decode()
            # What one refused call leaves.
            send_much(address, 1, 1 << 10)
            before = resident_bytes(ps.pid)
            send_much(address, 8, 48 << 20)
            assert resident_bytes(ps.pid) - before < 40 << 20
        finally:
            ps.terminate()


def send_much(address, calls, nbytes):
    message = bytes(nbytes)
    with grpc.insecure_channel(address, options=[("grpc.max_send_message_length", -1)]) as channel:
        sent = [channel.unary_unary(SERVICE + "Status").future(message, timeout=60) for _ in range(calls)]
        assert {code_of(call) for call in sent} == {grpc.StatusCode.UNAUTHENTICATED}


def resident_bytes(pid):
    """The most that a process has had in memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def test_a_control_message_of_many_bytes_is_refused_by_its_name(serving):
    server = serving(max_clients=4)
    with pytest.raises(grpc.RpcError) as caught:
        asks(server, "worker", "Heartbeat", pb.HeartbeatRequest(client="c", task="t" * (5 << 20)))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "Heartbeat" in caught.value.details()


def test_a_message_longer_than_two_frames_is_refused_by_its_length(serving):
    server = serving()
    with pytest.raises(grpc.RpcError) as caught:
        asks(server, "worker", "Declare", pb.DeclareRequest(client="c" * (9 << 20)))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in caught.value.details()


def test_a_call_without_a_message_is_an_error(serving):
    server = serving()
    with grpc.insecure_channel(server.address) as channel:
        metadata = [("authorization", f"Bearer {TOKENS['worker']}")]
        with pytest.raises(grpc.RpcError) as caught:
            channel.stream_unary(SERVICE + "Status")(iter(()), metadata=metadata, timeout=10)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


# ---- Streams --------------------------------------------------------------------------------------


def test_one_stream_too_many_is_refused_in_words_and_a_seat_is_free_when_one_ends(serving, callers):
    server = serving(max_clients=3)
    with grpc.insecure_channel(server.address) as channel:
        exchange = channel.stream_stream(SERVICE + "Exchange")
        metadata = [("authorization", f"Bearer {TOKENS['worker']}")]
        frame = pb.Frame(call=1, last=True).SerializeToString()

        def opened():
            outbox = queue.SimpleQueue()
            outbox.put(frame)
            replies = exchange(iter(outbox.get, None), metadata=metadata, timeout=60)
            next(replies)
            return outbox, replies

        held = [opened() for _ in range(3)]
        with pytest.raises(grpc.RpcError) as caught:
            next(exchange(iter([frame]), metadata=metadata, timeout=20))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "--max-clients" in caught.value.details()
        # The chief is let in all the same, so many times.
        chief = [("authorization", f"Bearer {TOKENS['chief']}")]
        assert next(exchange(iter([frame]), metadata=chief, timeout=20))
        outbox, replies = held.pop()
        outbox.put(None)
        assert list(replies) == []
        until_free(server, 2)  # the chief's stream may end after this one
        outbox, replies = opened()
        # Who leaves without a word leaves its seat too.
        replies.cancel()
        outbox.put(None)
        until_free(server, 2)
        held.append(opened())
        for outbox, replies in held:
            outbox.put(None)
            assert list(replies) == []
    assert KEPT_SEATS > 0


def until_free(server, taken):
    clock = SystemClock()
    until = clock.monotonic() + 20.0
    while server._door._streams._taken_by.total() > taken:
        assert clock.monotonic() < until
        clock.wait(threading.Event(), 0.005)


def test_more_clients_than_seats_are_served_or_refused_by_name_and_signs_of_life_go_on(serving):
    server = serving(tokens_file="", max_clients=8)
    transports = [GrpcTransport(server.address, 0, "grpc", credentials=Credentials())]
    with contextlib.ExitStack() as stack:
        chief = stack.enter_context(contextlib.closing(ClusterClient(transports, task="/job:chief/task:0")))
        initialize(chief)
        chief.push(step_push())
        clients = [
            ClusterClient(
                [GrpcTransport(server.address, 0, "grpc", credentials=Credentials())], task=f"/job:worker/task:{n}"
            )
            for n in range(28)
        ]

        for client in clients:
            stack.callback(client.close)

        def work(client):
            client.refresh()
            try:
                client.push(step_push())
            except ResourceExhaustedError as error:
                return str(error)
            return ""

        with ThreadPoolExecutor(28) as threads:
            said = list(threads.map(work, clients))
        refused = [text for text in said if text]
        assert len(refused) == 28 - 7
        assert all("--max-clients" in text for text in refused)
        for client in [chief, *clients]:
            assert client.refresh()[0].state == pb.STATE_READY
        alive = asks(server, "", "Heartbeat", pb.HeartbeatRequest(client="one-more", lease_secs=5.0))
        assert isinstance(alive, pb.HeartbeatReply)
        assert state(chief) == expected(8)


# ---- Health ---------------------------------------------------------------------------------------


def test_health_is_told_before_the_question_has_come(serving, callers):
    server = serving()
    (asked,) = callers(server, "/grpc.health.v1.Health/Check", 1)
    assert health_pb2.HealthCheckResponse.FromString(asked.result(20)).status == health_pb2.HealthCheckResponse.SERVING
    with grpc.insecure_channel(server.address) as channel:
        for service in ("", "globalstep.v1.ParameterServer"):
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=service), timeout=20
            )
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as caught:
            next(health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=20))
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


# ---- One host, or one worker, does not take all seats -------------------------------------------------


def of_host(host, name=""):
    line = TokenLine("worker", "0123456789abcdef", name) if name else None
    return Caller(Role.WORKER, f"ipv4:{host}:4711", line=line)


def test_a_seat_is_on_the_account_of_a_host_or_of_a_worker_with_a_token_of_its_own():
    assert whose_seat(of_host("10.0.0.9")) == whose_seat(Caller(None, "ipv4:10.0.0.9:1")) == "host 10.0.0.9"
    assert whose_seat(Caller(Role.WORKER, "ipv6:%5Bfd00::9%5D:1")) == "host fd00::9"
    assert whose_seat(of_host("10.0.0.9", "alice")) == whose_seat(of_host("127.0.0.1", "alice")) == "worker 'alice'"
    for nobody in (of_host("127.0.0.1"), Caller(Role.CHIEF, "ipv4:10.0.0.9:1"), Caller(Role.PS, "ipv4:10.0.0.9:1")):
        assert whose_seat(nobody) == ""
    assert whose_seat(Caller(Role.WORKER, "unix:")) == ""


def test_one_host_has_three_quarters_of_the_seats_and_others_find_the_rest():
    seats = Seats(100, "{most} seats")
    with contextlib.ExitStack() as taken:
        for _ in range(75):
            taken.enter_context(seats.taken(False, "host 10.0.0.9"))
        with pytest.raises(ResourceExhaustedError, match=r"host 10\.0\.0\.9 has 75 of this PS task's 100 seats"):
            taken.enter_context(seats.taken(False, "host 10.0.0.9"))
        for whose in ("host 10.0.0.8", "", "worker 'alice'"):
            taken.enter_context(seats.taken(False, whose))
    with seats.taken(False, "host 10.0.0.9"):
        assert dict(seats._taken_by) == {"host 10.0.0.9": 1}
    assert not seats._taken_by


def test_few_seats_may_all_be_one_hosts():
    seats = Seats(20, "{most} seats")
    with contextlib.ExitStack() as taken:
        for _ in range(20):
            taken.enter_context(seats.taken(False, "host 10.0.0.9"))
        with pytest.raises(ResourceExhaustedError, match="20 seats"):
            taken.enter_context(seats.taken(False, "host 10.0.0.9"))
