"""`transport="auto"` to tasks whose memory and unix sockets are out of reach: TCP where it can be had, else gRPC.

The tasks are in this process, and name unix sockets that there are not, as those of another machine. Network namespaces
do it in tests/integration/engines/test_hosts.py.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading

import pytest
from certificates import Authority
from counting_run import expected, initialize, state, step_push
from served_tasks import kinds, starting

from globalstep.errors import UnavailableError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.access.security import SecurityOptions
from globalstep.runtime.clock import ManualClock
from globalstep.security.connection_proofs import CLAIM_BYTES, NAME_BYTES, TOKEN_BYTES, name_of
from globalstep.security.credentials import Credentials
from globalstep.wire.socket_messages import WELCOME
from globalstep.worker.transport import grpc_transport, socket_choice
from globalstep.worker.transport.grpc_transport import GrpcTransport

ELSEWHERE = "globalstep-on-another-machine"


@pytest.fixture(autouse=True)
def _no_hurry(monkeypatch):
    """A loaded machine is not to decide which transport is taken."""
    monkeypatch.setattr(socket_choice, "_UNASKED_TCP_SECS", 20.0)


def impatient(monkeypatch):
    monkeypatch.setattr(socket_choice, "_UNASKED_TCP_SECS", 0.2)


@pytest.fixture
def serving():
    """Start PS tasks of another machine."""

    def move_away(server):
        server.control.open_lane = far(server.control.open_lane)

    with starting(move_away) as start:
        yield start


def far(open_lane, tcp=None):
    """Answer as a task of another machine, whose unix sockets are known there alone."""

    def opened(kind, unused=b""):
        if kind != pb.LANE_TCP:
            return ELSEWHERE, bytes(TOKEN_BYTES)
        return open_lane(kind, unused) if tcp is None else tcp()

    return opened


@pytest.fixture
def said(caplog):
    """Give the lines of the log that say what carries the data."""
    caplog.set_level(logging.INFO, "globalstep.worker.transport")

    def lines():
        found = [record for record in caplog.records if " goes over " in record.getMessage()]
        assert {record.levelname for record in found} <= {"INFO"}
        return [record.getMessage() for record in found]

    return lines


def trains(client, already=0):
    """Make a few steps, which must count exactly."""
    if not already:
        initialize(client)
    for _ in range(3):
        client.push(step_push(reads=("w",)))
    assert state(client) == expected(already + 3)


def listening():
    return socket.create_server(("127.0.0.1", 0))


def port_of(listener):
    return str(listener.getsockname()[1])


# ---- TCP ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 3])
def test_data_goes_over_tcp_and_one_line_a_task_says_so(serving, joined, said, shards):
    servers = serving(shards)
    client = joined(servers)
    trains(client)
    assert kinds(client) == ["tcp"] * shards
    lines = said()
    assert len(lines) == shards
    for server in servers:
        (line,) = [line for line in lines if server.address in line]
        port = server._sockets._listeners[pb.LANE_TCP].address
        assert f"goes over TCP, port {port}: it is on another machine" in line


def test_a_port_that_was_asked_for_is_the_one_that_is_taken(serving, joined):
    with listening() as free:
        port = port_of(free)
    (server,) = serving(tcp_port=int(port))
    client = joined([server])
    trains(client)
    assert kinds(client) == ["tcp"]
    assert server._sockets._listeners[pb.LANE_TCP].address == port


def test_what_could_not_be_used_takes_up_no_place(serving, joined):
    """Each client asks for shared memory first; that token is given back, so that as many as may come find a place."""
    (server,) = serving(max_clients=1)
    opened = server.control.open_lane
    real = server._sockets.open
    server.control.open_lane = lambda kind, unused=b"": (
        (ELSEWHERE, real(kind, unused)[1]) if kind != pb.LANE_TCP else opened(kind, unused)
    )
    client = joined([server])
    trains(client)
    assert kinds(client) == ["tcp"]


# ---- gRPC in its stead ----------------------------------------------------------------------------


def test_a_port_that_is_closed_leaves_grpc_and_is_said_once(serving, joined, said):
    (server,) = serving()
    with listening() as free:
        port = port_of(free)
    server.control.open_lane = far(None, lambda: (port, bytes(TOKEN_BYTES)))
    client = joined([server])
    trains(client)
    client.run.transports[0].break_off(UnavailableError("cut"))
    trains(client, 3)
    assert kinds(client) == ["grpc"]
    (line,) = said()
    assert line.startswith(f"No TCP connection to /job:ps/task:0 at {server.address}, its data goes over gRPC: ")
    assert "refused" in line


def test_a_task_that_is_told_to_take_no_tcp_connections_takes_none(serving, joined, said):
    (server,) = serving(tcp_port=None)
    client = joined([server])
    trains(client)
    assert kinds(client) == ["grpc"]
    assert "--tcp-port none" in said()[0]
    assert not server._sockets._listeners


def test_an_older_task_without_sockets_is_reached_by_grpc(serving, joined, said):
    (server,) = serving()
    server.control.open_lane = None
    client = joined([server])
    trains(client)
    assert kinds(client) == ["grpc"]
    (line,) = said()
    assert line.startswith("No TCP connection")


def test_a_port_that_accepts_and_never_answers_is_given_up(serving, joined, said, monkeypatch):
    impatient(monkeypatch)
    (server,) = serving()
    with listening() as silent:
        server.control.open_lane = far(None, lambda: (port_of(silent), bytes(TOKEN_BYTES)))
        client = joined([server])
        trains(client)
    assert kinds(client) == ["grpc"]
    (line,) = said()
    assert line.startswith("No TCP connection")
    assert "timed out" in line


def test_a_port_that_drops_what_comes_is_given_up_and_the_firewall_is_named(serving, joined, said, monkeypatch):
    impatient(monkeypatch)
    (server,) = serving()
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        # Its queue is full: what else comes is not answered.
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        port = port_of(full)
        server.control.open_lane = far(None, lambda: (port, bytes(TOKEN_BYTES)))
        client = joined([server])
        trains(client)
    assert kinds(client) == ["grpc"]
    (line,) = said()
    assert f"port {port} of 127.0.0.1 does not answer" in line
    assert "firewall" in line
    assert "--tcp-port" in line


def test_all_tasks_are_dialled_at_once(serving, joined, monkeypatch):
    """Silent ports are waited for together: each dial waits here until all are under way."""
    servers = serving(4)
    together = threading.Barrier(4)

    def dial(kind, *more):
        if kind != pb.LANE_TCP:
            raise ConnectionRefusedError("elsewhere")
        together.wait(30.0)
        raise TimeoutError("silent")

    monkeypatch.setattr(grpc_transport, "dial", dial)
    client = joined(servers)
    trains(client)
    assert kinds(client) == ["grpc"] * 4
    assert not together.broken


def test_a_connection_that_was_opened_early_and_not_needed_is_closed(serving):
    servers = serving(2)
    transports = [GrpcTransport(server.address, at, "auto") for at, server in enumerate(servers)]
    for one in transports:
        one.group = transports
    with contextlib.suppress(Exception):  # there is no run yet
        transports[0].send(pb.Request(pull=pb.PullRequest()), ()).result()
    for one in transports:
        one.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("globalstep-dial")]


# ---- When it breaks -------------------------------------------------------------------------------


@pytest.mark.parametrize(("secs", "carries"), [(30.0, "grpc"), (3600.0, "tcp")])
def test_a_connection_that_has_served_for_long_is_opened_again(serving, joined, said, secs, carries):
    (server,) = serving()
    clock = ManualClock()
    client = joined([server], transport_clock=clock)
    trains(client)
    clock.advance(secs)
    client.run.transports[0].break_off(UnavailableError("cut"))
    trains(client, 3)
    assert kinds(client) == [carries]
    assert len(said()) == 2


# ---- No weaker than gRPC --------------------------------------------------------------------------


class Listener:
    """What listens at a port in a task's stead; keeps what it hears."""

    def __init__(self, says):
        self._listening = listening()
        self.port = port_of(self._listening)
        self.heard = b""
        self._says = says
        self._thread = threading.Thread(target=self._run, name="listener")

    def _run(self):
        with contextlib.suppress(OSError):
            accepted, _ = self._listening.accept()
            with accepted:
                accepted.settimeout(20.0)
                accepted.sendall(self._says)
                while more := accepted.recv(1 << 16):
                    self.heard += more

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()


@pytest.mark.parametrize("offered", [False, True])
def test_within_tls_neither_side_has_tcp_beside_grpc(serving, joined, said, tmp_path, offered):
    authority = Authority(tmp_path)
    (server,) = serving(security=SecurityOptions(Credentials(authority.issue("ps", "127.0.0.1"))))
    with Listener(WELCOME) as someone:
        if offered:
            server.control.open_lane = far(None, lambda: (someone.port, bytes(TOKEN_BYTES)))
        client = joined([server], credentials=Credentials(authority.issue("worker")))
        trains(client)
        assert kinds(client) == ["grpc"]
    assert not someone.heard
    assert not server._sockets._listeners
    (line,) = said()
    assert line.startswith("No TCP connection")
    assert "TLS" in line


TOKEN = "chief-0123456789abcdef"


@pytest.fixture
def with_tokens(serving, tmp_path):
    path = tmp_path / "tokens"
    path.write_text(f"chief {TOKEN}\n")
    path.chmod(0o600)
    return serving(security=SecurityOptions(tokens_file=str(path)))


def test_a_cluster_with_tokens_proves_them_and_shows_none(with_tokens, joined, monkeypatch):
    (server,) = with_tokens
    shown, received = [], socket.socket.recv

    def recv(self, *given):
        got = received(self, *given)
        shown.append(got)
        return got

    monkeypatch.setattr(socket.socket, "recv", recv)
    given = []
    opened = server.control.open_lane

    def remember(kind, unused=b""):
        address, token = opened(kind, unused)
        given.append(token)
        return address, token

    server.control.open_lane = remember
    client = joined([server], credentials=Credentials(token=TOKEN))
    trains(client)
    assert kinds(client) == ["tcp"]
    heard = b"".join(shown)
    assert name_of(given[-1]) in heard
    assert given[-1] not in heard
    assert TOKEN.encode() not in heard


def test_who_listens_in_a_task_s_stead_hears_no_gradient(with_tokens, joined, said):
    """It welcomes everybody, as a process that has taken a port would; it does not know the connection's token."""
    (server,) = with_tokens
    token = bytes(range(TOKEN_BYTES))
    with Listener(bytes(32) + WELCOME) as impostor:
        server.control.open_lane = far(None, lambda: (impostor.port, token))
        client = joined([server], credentials=Credentials(token=TOKEN))
        trains(client)
        assert kinds(client) == ["grpc"]
    assert impostor.heard[:NAME_BYTES] == name_of(token)
    assert len(impostor.heard) == CLAIM_BYTES
    assert token not in impostor.heard
    (line,) = said()
    assert line.startswith("No TCP connection")
