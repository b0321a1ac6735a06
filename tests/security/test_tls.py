"""Mutual TLS on every channel: strangers are refused, mistakes are named, certificates are renewed while a job runs."""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import threading

import grpc
import numpy as np
import pytest
from certificates import Authority, environ_of
from counting_run import RATE, expected, initialize, state, step_push
from served_tasks import joining, starting

from globalstep.errors import FailedPreconditionError, OpError, UnauthenticatedError, UnavailableError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.proto import globalstep_pb2_grpc as pb_grpc
from globalstep.ps.access.security import SecurityOptions
from globalstep.ps.server import PSOptions, PSServer
from globalstep.ps.service.settler import asking
from globalstep.runtime.clock import SYSTEM_CLOCK, ManualClock
from globalstep.security.certificates import find_tls_mistake
from globalstep.security.client_ids import SESSION_KEY
from globalstep.security.credentials import Credentials, CurrentTls, TlsFiles, is_loopback
from globalstep.security.secure_channel import PATIENCE_SECS, SecureChannel
from globalstep.wire.declarations import Op, OpKind, Push, Read, VariableDecl
from globalstep.worker.transport.grpc_transport import GrpcTransport

#: TCP has no TLS, so that nothing goes over it.
CARRIES = {"auto": "shm", "unix": "unix", "tcp": "grpc"}
TOKENS = {role: f"{role}-0123456789abcdef" for role in ("chief", "worker", "ps")}


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "ours")


@pytest.fixture
def theirs(tmp_path):
    return Authority(tmp_path / "theirs")


@pytest.fixture
def serving():
    """Start a PS task; all are closed at the end."""
    with starting() as start:

        def serve(tls=None, **more):
            credentials = Credentials(tls, insecure=more.pop("insecure", False))
            return start(security=SecurityOptions(credentials, **more))[0]

        yield serve


@pytest.fixture
def transport_to():
    """Make transports; all are closed at the end."""
    with contextlib.ExitStack() as stack:

        def make(server, tls=None, token="", **more):
            connection = GrpcTransport(server.address, 0, credentials=Credentials(tls, token), **more)
            stack.callback(connection.close)
            return connection

        yield make


@pytest.fixture
def joined():
    """Make clients; all are closed at the end."""
    with joining() as join:
        yield lambda servers, tls, transport="auto", token="", **more: join(
            servers, transport, Credentials(tls, token), **more
        )


def status(connection):
    return connection.unary("Status", pb.StatusRequest(brief=True), 5.0).result()


def served_certificate(server):
    """The certificate that new connections are shown."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), 5) as plain, context.wrap_socket(plain) as secured:
        return ssl.DER_cert_to_PEM_cert(secured.getpeercert(binary_form=True))


# ---- All transports -------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", CARRIES)
def test_a_run_within_tls(serving, joined, authority, transport):
    servers = [serving(authority.issue("ps", "127.0.0.1")) for _ in range(2)]
    client = joined(servers, authority.issue("worker"), transport)
    initialize(client)
    for _ in range(5):
        client.push(step_push(reads=("w",)))
    assert state(client) == expected(5)
    assert {connection.kind for connection in client.run.transports} == {CARRIES[transport]}


def test_large_values_both_ways_at_once(serving, joined, authority):
    """More is under way than the buffers of all sockets hold: neither side waits for the other for ever."""
    server = serving(authority.issue("ps", "127.0.0.1"))
    client = joined([server], authority.issue("worker"), "grpc")
    big = np.arange(2_000_003, dtype=np.float32)
    client.declare([VariableDecl("big", "float32", big.shape, 0), VariableDecl("s", "int8", (3,), 0)], [])
    client.push(Push(ops=[Op(OpKind.ASSIGN, "big", big), Op(OpKind.ASSIGN, "s", np.arange(3, dtype=np.int8))]))
    connection = client.run.transports[0]
    tickets = []
    for number in range(6):
        pull = pb.Request(pull=pb.PullRequest(incarnation=client.incarnation, client=client.client_id))
        pull.pull.reads.add(variable="big")
        tickets.append(connection.send(pull, ()))
        push = pb.Request(push=pb.PushRequest(incarnation=client.incarnation))
        push.push.id.client, push.push.id.sequence = "other", number + 1
        op = push.push.ops.add(kind=pb.OP_ASSIGN, variable="big")
        op.value.dtype = "float32"
        op.value.shape.append(big.size)
        tickets.append(connection.send(push, [(big + number).data]))
    for ticket in tickets:
        ticket.result()
    values = client.pull([Read("big"), Read("s")])
    np.testing.assert_array_equal(values[0], big + 5)
    assert values[1].tolist() == [0, 1, 2]


def test_ps_tasks_speak_tls_with_each_other(serving, joined, authority, theirs):
    files = authority.issue("ps", "127.0.0.1")
    servers = [serving(files) for _ in range(2)]
    client = joined(servers, authority.issue("chief"))
    initialize(client)
    client.push(step_push())
    other = servers[1 - client.sequencer]
    other._settler.settle_once()
    request = pb.SettleRequest(incarnation=client.incarnation, shard=1 - client.sequencer)
    assert asking(lambda: Credentials(files))(servers[client.sequencer].address, request) == pb.ShardEntries(floor=2)
    strange = theirs.issue("ps", "127.0.0.1", trusts=authority)
    with pytest.raises(UnavailableError, match="refuses this process"):
        asking(lambda: Credentials(strange))(servers[client.sequencer].address, request)


# ---- Strangers, and what goes wrong ----------------------------------------------------------------


def strangers(authority, theirs):
    """Name -> (certificates, token, what is said of it)."""
    return {
        "plain client": (None, TOKENS["worker"], "speaks TLS, and this process does not"),
        "wrong CA": (theirs.issue("a", trusts=authority), TOKENS["worker"], "is not signed by a CA"),
        "expired": (authority.issue("b", expired=True), TOKENS["worker"], "has expired"),
        "unknown server": (authority.issue("c", trusts=theirs), TOKENS["worker"], "is not signed by a CA of .*c.ca"),
        "wrong token": (authority.issue("d"), "wrong-0123456789abcdef", "the token shown is none"),
    }


@pytest.mark.parametrize("name", ["plain client", "wrong CA", "expired", "unknown server"])
def test_a_tls_mistake_is_named_and_not_tried_for_ever(serving, transport_to, authority, theirs, name):
    server = serving(authority.issue("ps", "127.0.0.1"))
    tls, _, text = strangers(authority, theirs)[name]
    clock = ManualClock()
    connection = transport_to(server, tls, clock=clock)
    # It may be being mended at this moment.
    with pytest.raises(UnavailableError, match=text):
        status(connection)
    clock.advance(PATIENCE_SECS - 1)
    with pytest.raises(UnavailableError, match=text):
        status(connection)
    clock.advance(2)
    with pytest.raises(UnauthenticatedError, match=text):
        status(connection)
    assert not server.shard.members.clients()


def test_a_session_is_told_of_a_mistake_and_gives_up(serving, joined, authority, theirs, monkeypatch):
    monkeypatch.setattr("globalstep.security.secure_channel.PATIENCE_SECS", 0.0)
    server = serving(authority.issue("ps", "127.0.0.1"))
    client = joined([server], authority.issue("worker", expired=True), member=False)
    with pytest.raises(UnauthenticatedError, match="expired.*GLOBALSTEP_TLS_CERT"):
        client.refresh()
    assert not client.retries.view()


def test_no_certificate(serving, authority):
    """Whoever speaks TLS and shows no certificate."""
    server = serving(authority.issue("ps", "127.0.0.1"))
    context = ssl.create_default_context(cafile=authority.issue("x").ca)
    host, port = server.address.split(":")
    with (
        socket.create_connection((host, int(port)), 5) as plain,
        pytest.raises((ssl.SSLError, ConnectionError, AssertionError)),
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        assert secured.recv(1)


@pytest.mark.parametrize(
    ("hosts", "expired", "text"),
    [
        (["127.0.0.1"], True, "certificate of 127.0.0.1:.* has expired"),
        (["10.0.0.1"], False, "is for other hosts .*must have 127.0.0.1"),
    ],
)
def test_what_is_wrong_with_the_servers_certificate(serving, transport_to, authority, hosts, expired, text):
    server = serving(authority.issue("ps", *hosts, expired=expired))
    with pytest.raises(UnavailableError, match=text):
        status(transport_to(server, authority.issue("worker")))


def test_a_server_without_tls(serving, transport_to, authority):
    server = serving()
    with pytest.raises(UnavailableError, match="does not speak TLS, and this process does"):
        status(transport_to(server, authority.issue("worker")))


def test_a_dead_server_is_only_dead(serving, transport_to, authority):
    server = serving()
    server.close()
    clock = ManualClock()
    for tls in (None, authority.issue("worker")):
        connection = transport_to(server, tls, clock=clock)
        for _ in range(3):
            with pytest.raises(UnavailableError):
                status(connection)
            clock.advance(PATIENCE_SECS)
        assert find_tls_mistake(server.address, tls) == ""


def test_a_server_that_is_well_has_no_mistake(serving, authority):
    files = authority.issue("ps", "127.0.0.1")
    assert find_tls_mistake(serving(files).address, authority.issue("worker")) == ""
    assert find_tls_mistake(serving().address, None) == ""


@pytest.mark.long
@pytest.mark.parametrize("transport", CARRIES)
def test_five_strangers_and_a_renewal_change_nothing(serving, joined, authority, theirs, tmp_path, transport, caplog):
    tokens = tmp_path / "tokens"
    tokens.write_text("".join(f"{role} {token}\n" for role, token in TOKENS.items()))
    tokens.chmod(0o600)
    servers = [serving(authority.issue("ps", "127.0.0.1"), tokens_file=str(tokens)) for _ in range(2)]
    chief = joined(servers, authority.issue("chief"), transport, TOKENS["chief"])
    initialize(chief)
    before = [server.shard.view().statistics for server in servers]
    workers = [joined(servers, authority.issue(f"w{i}"), transport, TOKENS["worker"]) for i in range(2)]
    for worker in workers:
        worker.refresh()
    stop, told, counts = threading.Event(), {}, {}

    push = pb.PushRequest(incarnation=chief.incarnation)
    push.id.client, push.id.sequence = "stranger", 1
    push.increments.add(step="global_step", by=1)
    calls = [
        lambda connection: connection.unary("Stop", pb.EndRequest(force=True), 5.0),
        lambda connection: connection.send(pb.Request(push=push), ()),
    ]

    def intrude(name, tls, token):
        """Try all one can, again and again."""
        while True:
            for server, call in itertools.product(servers, calls):
                shown = Credentials(tls, token)
                with contextlib.closing(GrpcTransport(server.address, 0, transport, credentials=shown)) as connection:
                    try:
                        call(connection).result()
                        told[name] = "let in"
                    except OpError as error:
                        told.setdefault(name, str(error))
                        counts[name] = counts.get(name, 0) + 1
            if stop.wait(0.05):
                return

    found = strangers(authority, theirs)
    threads = [
        threading.Thread(target=intrude, args=(name, tls, token), name=f"stranger-{name}", daemon=True)
        for name, (tls, token, _) in found.items()
    ]

    def train(worker, steps):
        for _ in range(steps):
            worker.push(step_push(reads=("w",)))

    for thread in threads:
        thread.start()
    try:
        old = served_certificate(servers[0])
        train(workers[0], 30)
        # All are renewed; the server's next connection is made with the new ones, and so is each client's.
        for name, hosts in (("ps", ["127.0.0.1"]), ("chief", ()), ("w0", ()), ("w1", ())):
            authority.issue(name, *hosts)
        assert served_certificate(servers[0]) != old
        for worker in workers:
            for connection in worker.run.transports:
                connection.break_off(UnavailableError("cut by the test"))
        train(workers[1], 30)
        train(workers[0], 30)
        for connection in workers[0].run.transports:
            assert not connection._secured.outdated()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert state(workers[1]) == expected(90)
    for name, (_, _, text) in found.items():
        with pytest.raises(Exception, match=text):
            raise Exception(told[name])
        assert counts[name] >= 6
    # Nothing of theirs was counted: 90 steps, and reads over both shards.
    steps = [server.shard.view().statistics for server in servers]
    assert sum(now.refused + now.duplicates for now in steps) == sum(was.refused + was.duplicates for was in before)
    assert all(
        client.client in {one.client_id for one in (chief, *workers)} for client in servers[0].shard.members.clients()
    )
    assert "the token shown is none" in caplog.text


def test_a_worker_can_neither_push_nor_leave_in_the_name_of_another(serving, joined, authority, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("".join(f"{role} {token}\n" for role, token in TOKENS.items()))
    tokens.chmod(0o600)
    server = serving(authority.issue("ps", "127.0.0.1"), tokens_file=str(tokens))
    chief = joined([server], authority.issue("chief"), token=TOKENS["chief"])
    initialize(chief)
    worker = joined([server], authority.issue("w"), token=TOKENS["worker"], task="/job:worker/task:1")
    worker.refresh()
    worker.push(step_push())
    material = authority.issue("other").read()
    shown = grpc.ssl_channel_credentials(material.ca, material.key, material.cert)
    push = pb.PushRequest(incarnation=worker.incarnation)
    push.id.client, push.id.sequence = worker.client_id, 2
    push.increments.add(step="global_step", by=1)
    with grpc.secure_channel(server.address, shown) as channel:
        stub = pb_grpc.ParameterServerStub(channel)
        assert worker.client_id in {one.client for one in status(chief.run.transports[0]).clients}
        # The role is right, and the id is known to everybody; the secret is another process's.
        for session in ("0" * 32, ""):
            metadata = [("authorization", f"Bearer {TOKENS['worker']}"), (SESSION_KEY, session)]
            with pytest.raises(grpc.RpcError, match="which is another process's"):
                stub.Leave(pb.LeaveRequest(client=worker.client_id), timeout=5, metadata=metadata)
            frame = pb.Frame(call=1, request=pb.Request(push=push), last=True)
            (answer,) = stub.Exchange(iter([frame]), timeout=5, metadata=metadata)
            assert "which is another process's" in answer.reply.error.message
    # Its own push of that number counts, since nobody has taken it.
    for _ in range(3):
        worker.push(step_push())
    assert state(worker) == expected(4)


# ---- Renewal ---------------------------------------------------------------------------------------


def test_certificates_that_are_renewed_in_part_are_not_used_yet(authority, caplog):
    files = authority.issue("ps", "127.0.0.1")
    tls = CurrentTls(files)
    first = tls.latest()
    fresh = authority.issue("fresh", "127.0.0.1")
    for name, other in ((files.cert, fresh.cert),):
        with open(name, "wb") as out, open(other, "rb") as source:
            out.write(source.read())
    assert tls.latest() is first
    assert tls.latest() is first
    assert caplog.text.count("The certificates stay as they were") == 1
    with open(files.key, "wb") as out, open(fresh.key, "rb") as source:
        out.write(source.read())
    assert tls.latest().key != first.key


def test_a_ca_is_replaced_while_a_run_goes_on(serving, joined, authority, theirs):
    """Both sides first trust both, then show the new one's, then forget the old one."""
    ps, mine = authority.issue("ps", "127.0.0.1"), authority.issue("worker")
    server = serving(ps)
    client = joined([server], mine, "grpc")
    initialize(client)
    both = authority.ca.cert_pem.bytes() + theirs.ca.cert_pem.bytes()
    after = theirs.ca.cert_pem.bytes()
    renewed = {files: theirs.issue(f"new-{at}", "127.0.0.1") for at, files in enumerate((ps, mine))}

    def write(path, content):
        with open(path, "wb") as out:
            out.write(content)

    def step():
        client.run.transports[0].break_off(UnavailableError("cut by the test"))
        client.push(step_push())

    for files in (ps, mine):
        write(files.ca, both)
    step()
    for files, new in renewed.items():
        for name in ("cert", "key"):
            with open(getattr(new, name), "rb") as source:
                write(getattr(files, name), source.read())
        step()
    for files in (ps, mine):
        write(files.ca, after)
    step()
    assert state(client) == expected(4)
    assert state(client)["w"] == [4 * RATE] * 3


def test_channels_of_renewed_certificates_are_given_up(serving, transport_to, authority):
    server = serving(authority.issue("ps", "127.0.0.1"))
    files = authority.issue("worker")
    connection = transport_to(server, files, transport="grpc")
    for _ in range(5):
        status(connection)
        files = authority.issue("worker")
    assert len(connection._old) <= 1


# ---- Where there is no TLS --------------------------------------------------------------------------


@pytest.mark.parametrize("bind", ["0.0.0.0:0", ":0", "[::]:0"])
def test_other_machines_are_not_served_without_tls_unasked(bind, caplog):
    with pytest.raises(FailedPreconditionError, match="--tls-cert.*--insecure"):
        PSServer(PSOptions(bind=bind))
    server = PSServer(PSOptions(bind="0.0.0.0:0", security=SecurityOptions(Credentials(insecure=True))))
    server.close()
    assert "INSECURE: anyone who reaches 0.0.0.0:0" in caplog.text


def test_what_is_loopback():
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost")))
    assert not any(map(is_loopback, ("", "0.0.0.0", "::", "10.0.0.1", "no-such-host.invalid")))


def test_a_token_does_not_leave_the_machine_in_the_clear():
    with pytest.raises(FailedPreconditionError, match="GLOBALSTEP_INSECURE=1"):
        SecureChannel("10.0.0.1:99", Credentials(token=TOKENS["chief"]), SYSTEM_CLOCK)
    SecureChannel("127.0.0.1:99", Credentials(token=TOKENS["chief"]))
    SecureChannel("10.0.0.1:99", Credentials(token=TOKENS["chief"], insecure=True))


# ---- The environment -------------------------------------------------------------------------------


def test_what_the_environment_names(authority, tmp_path):
    files = authority.issue("x")
    found = Credentials.from_environ(environ_of(files) | {"GLOBALSTEP_TOKEN": TOKENS["chief"]})
    assert found == Credentials(files, TOKENS["chief"])
    assert TOKENS["chief"] not in repr(found)
    with pytest.raises(FailedPreconditionError, match="GLOBALSTEP_TLS_KEY and GLOBALSTEP_TLS_CA is missing"):
        Credentials.from_environ({"GLOBALSTEP_TLS_CERT": files.cert})
    path = tmp_path / "token"
    path.write_text(TOKENS["worker"] + "\n")
    path.chmod(0o600)
    assert Credentials(token_file=str(path)).shown_token() == TOKENS["worker"]
    path.write_text("short")
    with pytest.raises(FailedPreconditionError, match="16 characters") as caught:
        Credentials(token_file=str(path)).shown_token()
    assert "short" not in str(caught.value).replace("too short", "")
    with pytest.raises(FailedPreconditionError, match="cannot be read"):
        Credentials(token_file=str(tmp_path / "none")).shown_token()


def test_files_that_are_no_certificates_are_named(authority, tmp_path):
    files = authority.issue("x")
    (tmp_path / "junk").write_text("junk")
    for wrong in (
        TlsFiles(str(tmp_path / "none"), files.key, files.ca),
        TlsFiles(files.cert, authority.issue("y").key, files.ca),
        TlsFiles(files.cert, files.key, str(tmp_path / "junk")),
    ):
        with pytest.raises(FailedPreconditionError, match=f"Certificate {wrong.cert}, key .* cannot be used"):
            wrong.read()
