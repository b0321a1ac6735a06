"""Tokens without TLS: whoever listens where a PS task should learns nothing, and is believed nothing."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import threading
from concurrent import futures

import grpc
import pytest
from served_tasks import starting

from globalstep.errors import OpError, UnauthenticatedError, UnavailableError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.proto import globalstep_pb2_grpc as pb_grpc
from globalstep.ps.access.security import SecurityOptions
from globalstep.ps.server import PSOptions, PSServer
from globalstep.ps.service.settler import asking
from globalstep.security.client_ids import SESSION_KEY, session_secret
from globalstep.security.credentials import Credentials
from globalstep.security.secure_channel import SecureChannel
from globalstep.security.token_proofs import STREAM, TokenClaim, digest_of, proof, token_id
from globalstep.wire.declarations import Increment, Op, OpKind, Push, VariableDecl
from globalstep.worker.client.client import ClusterClient
from globalstep.worker.transport.grpc_transport import GrpcTransport

TOKENS = {role: f"{role}-token-of-a-test" for role in ("chief", "worker", "ps")}
SERVICE = "globalstep.v1.ParameterServer"


@pytest.fixture
def tokens_file(tmp_path):
    path = tmp_path / "tokens"
    path.write_text("".join(f"{role} {token}\n" for role, token in TOKENS.items()))
    path.chmod(0o600)
    return path


@pytest.fixture
def serving(tokens_file):
    with starting() as start:

        def serve(bind="127.0.0.1:0"):
            return start(bind=bind, security=SecurityOptions(tokens_file=str(tokens_file)))[0]

        yield serve


@pytest.fixture
def transport_to():
    with contextlib.ExitStack() as stack:

        def make(address, role="chief"):
            connection = GrpcTransport(address, 0, "grpc", credentials=Credentials(token=TOKENS[role]))
            stack.callback(connection.close)
            return connection

        yield make


class Impostor(grpc.GenericRpcHandler):
    """Listens at an address, writes down what it is told, and answers what it likes.

    Args:
        answer: Gives the reply to (method, message, metadata), as bytes; may abort the context.
        bind: Where it listens.
    """

    def __init__(self, answer, bind="127.0.0.1:0"):
        self.told = []
        self._answer = answer
        self._server = grpc.server(futures.ThreadPoolExecutor(4, "impostor"), options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((self,))
        self.port = self._server.add_insecure_port(bind)
        self._server.start()

    def service(self, details):
        def serve(message, context):
            metadata = dict(context.invocation_metadata())
            self.told.append((details.method.rpartition("/")[2], message, metadata))
            return self._answer(*self.told[-1], context)

        return grpc.unary_unary_rpc_method_handler(serve)

    def close(self):
        self._server.stop(None).wait()

    def heard(self):
        """All that it was told, as one text."""
        return repr(self.told)


@pytest.fixture
def impostor():
    with contextlib.ExitStack() as stack:

        def make(answer, bind="127.0.0.1:0"):
            made = Impostor(answer, bind)
            stack.callback(made.close)
            return made

        yield make


def begin(connection):
    return connection.unary(
        "Begin", pb.BeginRequest(incarnation=1, owner="nobody-else", directory="/secret"), 10.0
    ).result()


def test_who_asks_for_no_token_is_told_nothing(impostor, transport_to):
    one = impostor(lambda method, message, metadata, context: pb.StatusReply().SerializeToString())
    with pytest.raises(UnauthenticatedError, match="asks for no token"):
        begin(transport_to(f"127.0.0.1:{one.port}"))
    assert [method for method, _, _ in one.told] == ["Status"]
    assert TOKENS["chief"] not in one.heard()
    assert "secret" not in one.heard()


def test_the_first_call_shows_no_secret(impostor, transport_to):
    """The session's secret, with any worker's token, lets another speak in this client's name."""
    one = impostor(lambda method, message, metadata, context: pb.StatusReply().SerializeToString())
    with pytest.raises(UnauthenticatedError, match="asks for no token"):
        begin(transport_to(f"127.0.0.1:{one.port}"))
    assert [SESSION_KEY in metadata for _, _, metadata in one.told] == [False]
    assert session_secret() not in one.heard()


def test_who_takes_the_port_of_a_task_that_has_ended_is_told_nothing(impostor, serving):
    """No call fails in between: gRPC connects again by itself."""
    real = serving()
    secured = SecureChannel(real.address, Credentials(token=TOKENS["chief"]))
    ready, ended = threading.Event(), threading.Event()

    def watch(state):
        if state is grpc.ChannelConnectivity.READY:
            ready.set()
        elif ready.is_set():
            ended.set()

    with secured.make() as channel:
        channel.subscribe(watch)
        stub = pb_grpc.ParameterServerStub(channel)
        secured.call(stub, "Status", pb.StatusRequest(brief=True), 10.0)
        assert ready.wait(30.0)
        real.close()
        assert ended.wait(30.0)
        one = impostor(lambda method, message, metadata, context: pb.Done().SerializeToString(), real.address)
        with pytest.raises(UnauthenticatedError, match="asks for no token"):
            secured.call(stub, "Begin", pb.BeginRequest(incarnation=1, directory="/secret"), 10.0)
    assert {method for method, _, _ in one.told} == {"Status"}
    assert "secret" not in one.heard()
    assert session_secret() not in one.heard()


def test_who_does_not_have_the_token_is_told_nothing(impostor, transport_to):
    def ask(method, message, metadata, context):
        context.set_trailing_metadata((("globalstep-challenge", f"{'0' * 32} {'1' * 64}"),))
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "prove it")

    one = impostor(ask)
    with pytest.raises(UnauthenticatedError, match="does not have the token"):
        begin(transport_to(f"127.0.0.1:{one.port}"))
    assert [method for method, _, _ in one.told] == ["Status"]
    assert TOKENS["chief"] not in one.heard()


def test_who_passes_everything_on_to_another_task_is_refused_by_that(impostor, transport_to, serving):
    real = serving()

    def pass_on(method, message, metadata, context):
        with grpc.insecure_channel(real.address) as channel:
            call = channel.unary_unary(f"/{SERVICE}/{method}")
            shown = [(key, metadata[key]) for key in ("authorization", "globalstep-session") if key in metadata]
            try:
                return call(message, metadata=shown, timeout=10.0)
            except grpc.RpcError as error:
                context.set_trailing_metadata(tuple(error.trailing_metadata()))
                context.abort(error.code(), error.details())

    one = impostor(pass_on)
    with pytest.raises(UnauthenticatedError, match="the caller proves a token for"):
        begin(transport_to(f"127.0.0.1:{one.port}"))
    assert real.shard.view(brief=True).incarnation == 0


def test_localhost_is_one_address(impostor, transport_to, serving):
    """A task listens on 127.0.0.1; whoever takes the same port of ::1 is not asked."""
    real = serving()
    port = real.address.rpartition(":")[2]
    try:
        one = impostor(lambda *_: pb.StatusReply().SerializeToString(), f"[::1]:{port}")
    except RuntimeError as error:
        pytest.skip(f"no ::1 on this machine: {error}")
    if not one.port:
        pytest.skip("no ::1 on this machine")
    found = transport_to(f"localhost:{port}").unary("Status", pb.StatusRequest(brief=True), 10.0).result()
    assert found.state == pb.STATE_VACANT
    assert not one.told


def shown(server, claim):
    """Call Status with a claim; gives the status code."""
    with grpc.insecure_channel(server.address) as channel:
        call = channel.unary_unary(f"/{SERVICE}/Status", pb.StatusRequest.SerializeToString)
        try:
            call(pb.StatusRequest(brief=True), metadata=(("authorization", str(claim)),), timeout=10.0)
        except grpc.RpcError as error:
            return error.code().name, dict(error.trailing_metadata()).get("globalstep-challenge", "").partition(" ")[0]
        return "OK", ""


def test_a_proof_is_good_for_one_process_and_one_method(serving):
    server, other = serving(), serving()
    token, number = TOKENS["worker"], "7" * 32
    name, words = token_id(token), (number, server.address)
    code, challenge = shown(server, TokenClaim(name, server.address, number))
    assert code == "UNAUTHENTICATED"
    digest = digest_of(pb.StatusRequest(brief=True).SerializeToString())
    right = proof(token, challenge, *words, "Status", digest)
    for wrong in (
        TokenClaim(name, server.address, "8" * 32, digest, right),
        TokenClaim(name, server.address, number, digest, proof(token, challenge, *words, "Stop", digest)),
        TokenClaim(name, server.address, number, digest, proof(TOKENS["chief"], challenge, *words, "Status", digest)),
        TokenClaim(token_id("no token of anybody"), server.address, number, digest, right),
    ):
        assert shown(server, wrong)[0] == "UNAUTHENTICATED"
    assert shown(other, TokenClaim(name, other.address, number, digest, right))[0] == "UNAUTHENTICATED"
    assert shown(server, TokenClaim(name, server.address, number, digest, right)) == ("OK", "")


@pytest.mark.parametrize("transport", ["grpc", "auto"])
def test_a_task_that_was_started_again_proves_itself_again(serving, transport):
    """Clients go on with the next process at the address, without a word."""
    first = serving()
    credentials = Credentials(token=TOKENS["chief"])
    connection = GrpcTransport(first.address, 0, transport, credentials=credentials)
    with contextlib.closing(ClusterClient([connection], rng=random.Random(1), retry_secs=10.0)) as client:
        for server in (first, None):
            if server is None:
                first.close()
                serving(first.address)
            client.begin(open=True)
            client.declare([VariableDecl("global_step", "int64", (), is_step=True)], [])
            client.push(Push([Op(OpKind.ASSIGN, "global_step", fill=0.0)]))
            assert client.push(Push([], [Increment("global_step")])).outcome.steps == {"global_step": 1}


def test_a_token_is_in_no_header(serving, transport_to, monkeypatch):
    server = serving()
    seen = []
    authorization = server.control.handler.authorization
    identify = authorization.identify

    def watched(method, metadata, names, peer):
        metadata = list(metadata)
        seen.extend(metadata)
        return identify(method, metadata, names, peer)

    monkeypatch.setattr(authorization, "identify", watched)
    assert (
        transport_to(server.address).unary("Status", pb.StatusRequest(brief=True), 10.0).result().state
        == pb.STATE_VACANT
    )
    assert seen
    assert TOKENS["chief"] not in repr(seen)


def test_ps_tasks_prove_their_token_to_each_other(serving):
    """A PS asks the sequencer what became of a silent worker's pushes."""
    server = serving()
    ask = asking(lambda: Credentials(token=TOKENS["ps"]))
    with pytest.raises(grpc.RpcError) as failed:
        ask(server.address, pb.SettleRequest(incarnation=1))
    assert failed.value.code() is not grpc.StatusCode.UNAUTHENTICATED  # it got as far as the shard, which is vacant


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with (
        contextlib.closing(
            GrpcTransport(address, 0, "grpc", credentials=Credentials(token=TOKENS["chief"]))
        ) as connection,
        pytest.raises(UnavailableError, match="refused"),
    ):
        connection.unary("Status", pb.StatusRequest(brief=True), 5.0).result()


def test_a_reply_without_a_proof_is_not_believed(monkeypatch, serving, transport_to):
    """Who takes a port at the moment of a call answers in the place of the task that has proven itself."""
    server = serving()
    connection = transport_to(server.address)
    assert connection.unary("Status", pb.StatusRequest(brief=True), 10.0).result().state == pb.STATE_VACANT
    monkeypatch.setattr("globalstep.ps.access.authorization.reply_proof", lambda *words: "0" * 64)
    with pytest.raises(UnauthenticatedError, match="Its reply is not believed"):
        connection.unary("Status", pb.StatusRequest(), 10.0).result()
    # Nor is an error.
    with pytest.raises(UnauthenticatedError, match="Its reply is not believed"):
        connection.unary("Open", pb.OpenRequest(incarnation=5), 10.0).result()


def test_a_stream_tells_nothing_before_the_task_has_proven_itself_on_it(monkeypatch, serving, transport_to):
    server = serving()
    connection = transport_to(server.address)
    handled = []
    begin = server.control.handler.begin
    monkeypatch.setattr(
        server.control.handler, "begin", lambda request, *rest: handled.append(request) or begin(request, *rest)
    )
    monkeypatch.setattr("globalstep.ps.access.authorization.reply_proof", lambda *words: "0" * 64)
    request = pb.Request(await_step=pb.AwaitRequest())
    with pytest.raises((UnauthenticatedError, UnavailableError)):
        connection.send(request, []).result()
    assert handled == []


def test_a_proof_is_good_once_and_for_one_message(serving):
    server = serving()
    token = TOKENS["chief"]
    unproven = TokenClaim(token_id(token), server.address, "7" * 32)
    challenge = shown(server, unproven)[1]
    digest = digest_of(pb.StatusRequest(brief=True).SerializeToString())

    def claim(number, digest):
        made = proof(token, challenge, number, server.address, "Status", digest)
        return TokenClaim(unproven.token_id, server.address, number, digest, made)

    first = claim("7" * 32, digest)
    assert shown(server, first)[0] == "OK"
    assert shown(server, first) == ("UNAUTHENTICATED", "")
    assert shown(server, claim("8" * 32, digest_of(b"another message"))) == ("UNAUTHENTICATED", "")
    # A stream's proof is for no message.
    assert shown(server, claim("9" * 32, STREAM)) == ("UNAUTHENTICATED", "")
    assert shown(server, claim("a" * 32, digest))[0] == "OK"


def test_numbers_take_bounded_memory_and_clients_go_on(monkeypatch, serving, transport_to):
    """A task that remembers as many as it may draws another challenge: no proof for the old one is good any more."""
    monkeypatch.setattr("globalstep.ps.access.authorization._MOST_NUMBERS", 4)
    server = serving()
    connection = transport_to(server.address)
    for _ in range(20):
        found = connection.unary("Status", pb.StatusRequest(brief=True), 10.0).result()
        assert found.state == pb.STATE_VACANT
    assert len(server.control.handler.authorization._numbers) < 4


LISTENS = """
import os, sys
from concurrent import futures
import grpc
class Impostor(grpc.GenericRpcHandler):
    def service(self, details):
        def serve(message, context):
            print(details.method.rpartition("/")[2], message, flush=True)
            return b""
        return grpc.unary_unary_rpc_method_handler(serve)
server = grpc.server(futures.ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
server.add_generic_rpc_handlers((Impostor(),))
# All is loaded by now: the other user may not be able to read it.
os.setuid(54002)
print(server.add_insecure_port("127.0.0.1:" + sys.argv[1]), flush=True)
server.start()
sys.stdin.read()
server.stop(None).wait()
"""


@pytest.fixture
def other_user():
    """Starts an impostor of another user at a port; gives its process and address."""
    with contextlib.ExitStack() as stack:

        def start(port="0"):
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", LISTENS, port], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            stack.callback(process.kill)
            return process, f"127.0.0.1:{process.stdout.readline().strip()}"

        yield start


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.processes
def test_without_tokens_another_user_is_told_nothing_and_not_believed(other_user):
    process, address = other_user()
    with (
        contextlib.closing(GrpcTransport(address, 0, "grpc", credentials=Credentials())) as connection,
        pytest.raises(UnauthenticatedError, match="a process of user 54002"),
    ):
        begin(connection)
    # On the user's own word he is.
    with contextlib.closing(GrpcTransport(address, 0, "grpc", credentials=Credentials(insecure=True))) as connection:
        assert begin(connection) == pb.Done()
    heard, _ = process.communicate("", timeout=30.0)
    assert [line.split()[0] for line in heard.splitlines()] == ["Begin"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.processes
@pytest.mark.parametrize("transport", ["grpc", "auto"])
def test_without_tokens_who_takes_a_port_is_looked_at_anew(other_user, transport):
    with contextlib.closing(PSServer(PSOptions(bind="127.0.0.1:0", grace_secs=0.2))) as server:
        server.start()
        connection = GrpcTransport(server.address, 0, transport, credentials=Credentials())
        with contextlib.closing(connection):
            assert connection.unary("Status", pb.StatusRequest(brief=True), 10.0).result().state == pb.STATE_VACANT
            server.close()
            process, address = other_user(server.address.rpartition(":")[2])
            assert address == server.address
            errors = []
            while not errors or isinstance(errors[-1], UnavailableError):  # of the connection that has ended
                try:
                    begin(connection)
                except OpError as error:
                    errors.append(error)
            assert isinstance(errors[-1], UnauthenticatedError)
            assert "a process of user 54002" in str(errors[-1])
        assert "secret" not in process.communicate("", timeout=30.0)[0]
