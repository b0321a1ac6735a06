"""Whose a connection within this machine is."""

import os
import socket
import sys

import pytest

from globalstep.security.peer_uid import is_ours, uid_of_listener, uid_of_peer, uid_of_unix

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's tables are Linux's")


def test_the_other_end_of_a_unix_socket():
    one, other = socket.socketpair()
    with one, other:
        assert uid_of_unix(one) == os.getuid()
        assert is_ours(uid_of_unix(one))


@pytest.mark.parametrize(
    ("host", "listens"), [("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "0.0.0.0"), ("::1", "::1"), ("127.0.0.1", "::")]
)
def test_the_other_end_of_a_tcp_connection_and_who_listens(host, listens):
    try:
        listening = socket.create_server(
            (listens, 0), family=socket.AF_INET6 if ":" in listens else socket.AF_INET, dualstack_ipv6=listens == "::"
        )
    except (OSError, ValueError):
        pytest.skip("no IPv6 here")
    with listening:
        port = listening.getsockname()[1]
        with socket.create_connection((host, port)) as connection, listening.accept()[0]:
            name = connection.getsockname()
            peer = f"ipv6:%5B{name[0]}%5D:{name[1]}" if ":" in host else f"ipv4:{name[0]}:{name[1]}"
            assert uid_of_peer(peer) == os.getuid()
            assert uid_of_listener(host, port) == os.getuid()
    assert uid_of_listener(host, port) is None


@pytest.mark.parametrize("peer", ["", "unix:", "ipv4:10.1.2.3:4", "ipv4:127.0.0.1:x", "ipv4:999.0.0.1:80"])
def test_who_is_elsewhere_is_not_known(peer):
    assert uid_of_peer(peer) is None


def test_only_this_user_and_root_are_ours():
    assert is_ours(os.geteuid())
    assert is_ours(0)
    assert not is_ours(os.geteuid() + 54002)
    assert not is_ours(None)
