"""Connections that have shown nothing yet: who is given on, who is closed, and when."""

import socket

import pytest

from globalstep.ps.access.strangers import Strangers
from globalstep.runtime.clock import ManualClock
from globalstep.security.connection_proofs import CLAIM_BYTES, PROOF_BYTES

LONG = 30.0
CLAIM, ANSWER, PROOF = b"c" * CLAIM_BYTES, b"a" * PROOF_BYTES, b"p" * PROOF_BYTES


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


@pytest.fixture
def strangers(listening, clock):
    made = Strangers(listening, clock, 5.0, {CLAIM: ANSWER}.get, 3)
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


def test_who_claims_and_proves_is_answered_and_given_on(strangers, dial):
    client = dial(strangers)
    for part in (CLAIM[:1], CLAIM[1:], PROOF[:1]):
        client.sendall(part)
        assert strangers.ready() == (False, [])
    assert client.recv(len(ANSWER), socket.MSG_WAITALL) == ANSWER
    client.sendall(PROOF[1:] + b"ef")
    accepts, (begun,) = strangers.ready()
    with begun.connection as connection:
        assert (accepts, begun.shown, len(strangers)) == (False, CLAIM + PROOF, 0)
        assert connection.recv(2) == b"ef"  # what follows is left where it is


def test_who_claims_what_there_is_not_gets_no_word(strangers, dial):
    client = dial(strangers)
    client.sendall(PROOF)
    assert strangers.ready() == (False, [])
    assert is_closed(client)
    assert len(strangers) == 0


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


@pytest.mark.parametrize("claims", [False, True])
def test_one_more_closes_the_oldest_of_the_host_that_has_most(strangers, dial, claims):
    """Whom a token was given to is on the account of no stranger of its host."""
    kept = dial(strangers, "a" if claims else "b")
    if claims:
        kept.sendall(CLAIM)
        assert strangers.ready() == (False, [])
    first, *others = [dial(strangers) for _ in range(3)]
    assert is_closed(first)
    kept.sendall(PROOF if claims else CLAIM + PROOF)
    for client in others:
        client.sendall(CLAIM + PROOF)
    given = []
    while len(given) < 3:
        given += strangers.ready()[1]
    for stranger in given:
        stranger.connection.close()
