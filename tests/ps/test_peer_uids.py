"""Whose socket is at the other end of a connection: found in the kernel's tables."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from globalstep.ps.peer_uids import may_serve, uid_of_peer

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
LINE = "   0: {local} {remote} {state} 00000000:00000000 00:00000000 00000000 {uid:>5}        0 1 1 0 100 0 0 10 0\n"


@pytest.fixture
def tables(tmp_path):
    """Tables with one connection to port 0x1F90 (8080), of user 1234, over IPv4, IPv6, and IPv4 within IPv6."""

    def write(name, *lines):
        (tmp_path / name).write_text(HEAD + "".join(LINE.format(**line) for line in lines))

    write(
        "tcp",
        {"local": "0100007F:1F90", "remote": "0100007F:9C40", "state": "01", "uid": 1},  # the task's own end
        {"local": "0100007F:9C40", "remote": "0100007F:1F90", "state": "01", "uid": 1234},
        {"local": "0100007F:9C41", "remote": "0100007F:1F90", "state": "06", "uid": 0},  # one that has ended
        {"local": "0100007F:9C42", "remote": "0100007F:1F91", "state": "01", "uid": 5},  # to another port
    )
    six = "00000000000000000000000001000000"
    mapped = "0000000000000000FFFF00000100007F"
    write(
        "tcp6",
        {"local": f"{six}:9C43", "remote": f"{six}:1F90", "state": "01", "uid": 6},
        {"local": f"{mapped}:9C44", "remote": f"{mapped}:1F90", "state": "01", "uid": 7},
    )
    return tmp_path


#: In the tables as 9C40 and so on.
FIRST = 40000


@pytest.mark.parametrize(
    ("peer", "uid"),
    [
        (f"ipv4:127.0.0.1:{FIRST}", 1234),
        (f"ipv4:127.0.0.1:{FIRST + 1}", None),
        (f"ipv4:127.0.0.1:{FIRST + 2}", None),
        (f"ipv4:127.0.0.2:{FIRST}", None),
        (f"ipv6:%5B::1%5D:{FIRST + 3}", 6),
        (f"ipv6:[::1]:{FIRST + 3}", 6),
        (f"ipv4:127.0.0.1:{FIRST + 4}", 7),
        (f"ipv6:%5B::ffff:127.0.0.1%5D:{FIRST}", 1234),
        ("unix:/run/x", None),
        ("ipv4:nonsense:1", None),
        ("", None),
    ],
)
@pytest.mark.skipif(sys.byteorder != "little", reason="the recorded tables are of a little-endian machine")
def test_the_table_tells_whose_it_is(tables, peer, uid):
    assert uid_of_peer(peer, 8080, tables) == uid


def test_a_kernel_that_tells_nothing(tmp_path):
    assert uid_of_peer(f"ipv4:127.0.0.1:{FIRST}", 8080, tmp_path) is None


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_real_connection_is_found(family, host):
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError as error:
        pytest.skip(f"this machine has no {host}: {error}")
    with listener, socket.create_connection(listener.getsockname()[:2]) as near:
        name = near.getsockname()
        peer = f"ipv4:{name[0]}:{name[1]}" if family == socket.AF_INET else f"ipv6:%5B{name[0]}%5D:{name[1]}"
        assert uid_of_peer(peer, listener.getsockname()[1]) == os.geteuid()


def test_a_task_without_tokens_serves_its_user_and_root():
    assert may_serve(os.geteuid())
    assert may_serve(0)
    assert not may_serve(54321)
    assert not may_serve(None)
