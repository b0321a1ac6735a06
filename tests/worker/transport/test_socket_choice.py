"""Which socket is taken, in which order, and what the log is told: against a task and connections that are made up."""

from __future__ import annotations

import pytest

from globalstep.errors import ResourceExhaustedError, UnavailableError, UnimplementedError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.worker.transport.socket_choice import SOCKETS, SocketChoice, choose_socket

SHM, UNIX, TCP = pb.LANE_SHM, pb.LANE_UNIX, pb.LANE_TCP
NOT_OFFERED = UnimplementedError("not here")
NOBODY_THERE = ConnectionRefusedError("nobody listens")
SILENT = TimeoutError("port 2223 of ps-0 does not answer")


class Task:
    """A task that answers and can be connected to as a test says: kind of socket -> an error, where there is one."""

    def __init__(self, asked=(), dialled=()):
        self.asked, self.dialled = dict(asked), dict(dialled)
        self.requests, self.limits = [], {}

    def ask(self, request):
        self.requests.append((request.kind, request.unused))
        if request.kind in self.asked:
            raise self.asked[request.kind]
        return pb.OpenLaneReply(address=f"{2220 + request.kind}", token=bytes([request.kind]))

    def dial(self, kind, reply, secs):
        self.limits[kind] = secs
        if kind in self.dialled:
            raise self.dialled[kind]
        return f"connection {kind}"

    def choose(self, transport, with_tls=False):
        return choose_socket("PS task 0", SOCKETS[transport], self.ask, self.dial, with_tls)


def test_on_one_machine_it_is_shared_memory_and_nothing_is_said():
    task = Task()
    assert task.choose("auto") == SocketChoice(f"connection {SHM}")
    assert task.requests == [(SHM, b"")]


def test_between_machines_it_is_tcp_and_the_log_says_why():
    task = Task(dialled={SHM: NOBODY_THERE})
    choice = task.choose("auto")
    assert (choice.connection, choice.over) == (f"connection {TCP}", False)
    assert choice.text == (
        "The data of PS task 0 goes over TCP, port 2222: it is on another machine, or in another network namespace"
    )
    # The unix socket, which is reached in the same way, is not asked for; the token that was for nothing is given back.
    assert task.requests == [(SHM, b""), (TCP, bytes([SHM]))]
    assert "goes over TCP with TLS, port 2222" in Task(dialled={SHM: NOBODY_THERE}).choose("auto", True).text


def test_tcp_that_nobody_has_asked_for_is_waited_for_shortly():
    """A firewall that drops what is sent says nothing; with all PS tasks dialled at once that is the whole delay."""
    task = Task(dialled={SHM: NOBODY_THERE})
    task.choose("auto")
    assert task.limits[TCP] < 2.0 < task.limits[SHM]
    asked = Task()
    assert asked.choose("tcp") == SocketChoice(f"connection {TCP}")
    assert asked.limits[TCP] > 2.0


@pytest.mark.parametrize(
    ("asked", "dialled", "why"),
    [
        ({}, {SHM: NOBODY_THERE, TCP: NOBODY_THERE}, "nobody listens"),
        ({}, {SHM: NOBODY_THERE, TCP: SILENT}, "does not answer"),
        ({TCP: NOT_OFFERED}, {SHM: NOBODY_THERE}, "not here"),
        ({SHM: NOT_OFFERED, UNIX: NOT_OFFERED, TCP: NOT_OFFERED}, {}, "not here"),
    ],
    ids=["refused", "silent", "no TCP port", "an older task"],
)
def test_where_none_can_be_had_it_is_grpc_and_the_log_says_why(asked, dialled, why):
    choice = Task(asked, dialled).choose("auto")
    assert (choice.connection, choice.over) == (None, True)
    assert choice.text.startswith("No TCP connection to PS task 0, its data goes over gRPC: ")
    assert choice.text.endswith(why)


def test_a_task_that_takes_no_more_connections_is_asked_once():
    task = Task(asked={SHM: ResourceExhaustedError("enough")})
    assert task.choose("auto") == SocketChoice(
        None, True, "No shared memory to PS task 0, its data goes over gRPC: enough"
    )
    assert len(task.requests) == 1


@pytest.mark.parametrize("kind", [SHM, TCP])
def test_a_task_that_cannot_be_reached_now_is_asked_again_later(kind):
    task = Task(asked={kind: UnavailableError("away")}, dialled={SHM: NOBODY_THERE})
    assert task.choose("auto") == SocketChoice()


def test_a_task_on_this_machine_without_memory_to_share_gets_a_unix_socket():
    choice = Task(asked={SHM: NOT_OFFERED}).choose("auto")
    assert choice.connection == f"connection {UNIX}"
    assert choice.text == "No shared memory with PS task 0, its data goes over a unix socket: not here"


def test_a_task_without_unix_sockets_is_reached_by_tcp_and_the_reason_is_its_own():
    choice = Task(asked={SHM: NOT_OFFERED, UNIX: NOT_OFFERED}).choose("auto")
    assert choice.connection == f"connection {TCP}"
    assert choice.text.endswith("port 2222: not here")


@pytest.mark.parametrize("transport", ["shm", "unix"])
def test_who_asks_for_this_machine_alone_gets_no_tcp(transport):
    task = Task(dialled={SHM: NOBODY_THERE, UNIX: NOBODY_THERE})
    assert task.choose(transport).over
    assert TCP not in dict(task.requests)


def test_grpc_alone_asks_for_nothing():
    assert "grpc" not in SOCKETS
    task = Task()
    assert choose_socket("PS task 0", (), task.ask, task.dial) == SocketChoice(over=True)
    assert task.requests == []
