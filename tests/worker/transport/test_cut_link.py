"""A link that is cut without a word, as by a switch that fails: noticed in seconds, and nothing is done twice."""

from __future__ import annotations

import socket
import threading

import pytest
from counting_run import expected, initialize, state, step_push
from processes import Link

from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.security.rpc import CHANNEL_OPTIONS
from globalstep.wire.socket_messages import prepare
from globalstep.worker.client.client import ClusterClient
from globalstep.worker.transport.grpc_transport import transports_to

OPTIONS = dict(CHANNEL_OPTIONS)
#: When a link that carries nothing is given up at the latest, by the options of all channels.
NOTICED_SECS = (OPTIONS["grpc.keepalive_time_ms"] + OPTIONS["grpc.keepalive_timeout_ms"]) / 1000
PING_SECS = OPTIONS["grpc.http2.ping_timeout_ms"] / 1000


def test_a_cut_is_noticed_on_a_socket_as_soon_as_by_grpc():
    """Between machines data goes over TCP, and how soon a lost PS task is noticed should not depend on that."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as connection,
    ):
        prepare(connection)
        idle, between, probes = (
            connection.getsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_KEEP{name}"))
            for name in ("IDLE", "INTVL", "CNT")
        )
        assert idle + between * probes <= NOTICED_SECS
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= NOTICED_SECS * 1000


@pytest.fixture
def link(serving):
    (server,) = serving()
    with Link(server.address) as made:
        yield made


def test_options_say_seconds():
    assert NOTICED_SECS <= 15
    assert PING_SECS <= NOTICED_SECS


@pytest.mark.long
@pytest.mark.timeout(90)
def test_a_cut_link_is_noticed_within_seconds_and_the_push_goes_on_when_it_is_mended(link):
    client = ClusterClient(transports_to(link.address, "grpc"), retry_secs=60.0)
    try:
        client.begin(open=True)
        initialize(client)
        client.push(step_push())
        transport = client.run.transports[0]
        connection = transport._connection
        link.cut()
        began = SYSTEM_CLOCK.monotonic()
        pushing = threading.Thread(target=client.push, args=(step_push(),), name="pushing")
        pushing.start()
        while connection.broken is None and SYSTEM_CLOCK.monotonic() - began < 40:
            SYSTEM_CLOCK.wait(threading.Event(), 0.05)
        link.mend()
        pushing.join(30)
        assert not pushing.is_alive()
        assert connection.broken is not None
        assert state(client) == expected(2)
    finally:
        link.mend()
        client.close()
