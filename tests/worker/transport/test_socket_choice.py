"""Which socket is taken, in which order, and what the log is told: against a task and connections that are made up."""

from __future__ import annotations

import pytest

from globalstep.errors import ResourceExhaustedError, UnavailableError, UnimplementedError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.worker.transport.socket_choice import SOCKETS, SocketChoice, choose_socket

SHM, UNIX, TCP = pb.LANE_SHM, pb.LANE_UNIX, pb.LANE_TCP
NOT_OFFERED = UnimplementedError("not here")
NOBODY_THERE = ConnectionRefusedError("nobody listens")


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

    def choose(self, transport):
        return choose_socket("PS task 0", SOCKETS[transport], self.ask, self.dial)


def test_tcp_that_nobody_has_asked_for_is_waited_for_shortly():
    """A firewall that drops what is sent says nothing; with all PS tasks dialled at once that is the whole delay."""
    task = Task(dialled={SHM: NOBODY_THERE})
    task.choose("auto")
    assert task.limits[TCP] < 2.0 < task.limits[SHM]
    asked = Task()
    assert asked.choose("tcp") == SocketChoice(f"connection {TCP}")
    assert asked.limits[TCP] > 2.0


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


def test_a_task_without_unix_sockets_is_reached_by_tcp_and_the_reason_is_its_own():
    choice = Task(asked={SHM: NOT_OFFERED, UNIX: NOT_OFFERED}).choose("auto")
    assert choice.connection == f"connection {TCP}"
    assert choice.text.endswith("port 2222: not here")


@pytest.mark.parametrize("transport", ["shm", "unix"])
def test_who_asks_for_this_machine_alone_gets_no_tcp(transport):
    task = Task(dialled={SHM: NOBODY_THERE, UNIX: NOBODY_THERE})
    assert task.choose(transport).over
    assert TCP not in dict(task.requests)
