"""What keeps an address from answering is found by asking."""

import socket

import pytest

from globalstep.worker.client import causes
from globalstep.worker.client.causes import why_unreached


def test_a_port_where_nobody_listens():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        assert f"nothing listens on port {port} of 127.0.0.1: that PS task was not started" in why_unreached(
            f"127.0.0.1:{port}"
        )


def test_a_port_that_is_open():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert why_unreached(f"127.0.0.1:{port}").startswith(f"port {port} of 127.0.0.1 is open")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TimeoutError("timed out"), "does not answer on port 22 within 1 s: a firewall"),
        (OSError(113, "No route to host"), "cannot be reached ([Errno 113] No route to host)"),
    ],
)
def test_what_the_network_says(monkeypatch, error, text):
    def refuse(where, secs):
        raise error

    monkeypatch.setattr(causes.socket, "create_connection", refuse)
    assert text in why_unreached("127.0.0.1:22")


def test_a_name_that_does_not_resolve(monkeypatch):
    def unknown(*where, **options):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(causes.socket, "getaddrinfo", unknown)
    assert "the name 'ps-0' does not resolve here" in why_unreached("ps-0:22")
