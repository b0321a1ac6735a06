import os
import socket

import pytest

from globalstep.runtime.port_holder import holder_of, why_not_bound


@pytest.mark.parametrize(
    ("listens_at", "asked"),
    [("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "localhost"), ("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "0.0.0.0")],
)
def test_who_listens_at_an_address_is_named(listens_at, asked):
    with socket.create_server((listens_at, 0)) as server:
        port = server.getsockname()[1]
        assert holder_of(asked, port).startswith(f"pid {os.getpid()} (")
        assert why_not_bound(listens_at, port).startswith(f"the address is taken by pid {os.getpid()} (")
        # Another address of the machine is free.
        assert listens_at == "0.0.0.0" or holder_of("127.0.0.2", port) == ""
    assert holder_of(asked, port) == ""


def test_what_else_is_in_the_way_is_said():
    assert why_not_bound("192.0.2.1", 2222) == "192.0.2.1 is no address of this machine"
    assert why_not_bound("no.such.host.invalid", 2222).startswith("this machine knows no address of the name")
    assert why_not_bound("127.0.0.1", 0) == ""


def test_a_process_that_cannot_be_seen_is_its_users(monkeypatch):
    import globalstep.runtime.port_holder as port_holder

    monkeypatch.setattr(port_holder, "_process_with", lambda inode: "")
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert holder_of("127.0.0.1", server.getsockname()[1]).startswith("a process of user ")
