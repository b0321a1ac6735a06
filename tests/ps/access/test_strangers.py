"""Connections that have shown nothing yet: who is given on, who is closed, and when."""

import socket

import pytest

from globalstep.ps.access.strangers import Strangers
from globalstep.runtime.clock import ManualClock

LONG = 30.0


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


@pytest.fixture
def strangers(listening, clock):
    made = Strangers(listening, clock, 5.0, 4, 3)
    yield made
    made.close()


@pytest.fixture
def dial(listening):
    """Connects, has it accepted and added; gives the client's end."""
    made = []

    def dialled(strangers, host="a"):
        client = socket.create_connection(listening.getsockname(), LONG)
        made.append(client)
        accepted, _ = listening.accept()
        strangers.add(accepted, host)
        return client

    yield dialled
    for client in made:
        client.close()


def is_closed(client):
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def test_who_has_sent_its_first_bytes_is_given_on(strangers, dial):
    client = dial(strangers)
    client.sendall(b"ab")
    assert strangers.ready() == (False, [])
    client.sendall(b"cdef")
    accepts, (begun,) = strangers.ready()
    with begun.connection as connection:
        assert (accepts, begun.shown, len(strangers)) == (False, b"abcd", 0)
        assert connection.recv(2) == b"ef"  # what follows is left where it is


def test_that_one_may_be_accepted_is_said(strangers, listening):
    with socket.create_connection(listening.getsockname(), LONG):
        assert strangers.ready() == (True, [])
        listening.accept()[0].close()


def test_who_says_nothing_is_closed_in_time(strangers, dial, clock):
    first = dial(strangers)
    clock.advance(3.0)
    dial(strangers)
    clock.advance(2.0)
    assert strangers.ready() == (False, [])
    assert is_closed(first)
    assert len(strangers) == 1


def test_who_hangs_up_is_forgotten(strangers, dial):
    dial(strangers).shutdown(socket.SHUT_WR)
    assert strangers.ready() == (False, [])
    assert len(strangers) == 0


def test_one_more_closes_the_oldest_of_the_host_that_has_most(strangers, dial):
    other = dial(strangers, "b")
    first = dial(strangers)
    second = dial(strangers)
    third = dial(strangers)
    assert is_closed(first)
    for client in (other, second, third):
        client.sendall(b"abcd")
    given = []
    while len(given) < 3:
        given += strangers.ready()[1]
    for stranger in given:
        stranger.connection.close()
