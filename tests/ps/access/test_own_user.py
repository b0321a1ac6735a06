"""A PS task without tokens on the loopback interface serves its own user."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys

import pytest

from globalstep.errors import UnauthenticatedError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.access.authorization import Authorization
from globalstep.ps.access.own_user import OwnUser, kernel_tells
from globalstep.ps.access.security import SecurityOptions
from globalstep.ps.server import PSOptions, PSServer
from globalstep.runtime.clock import ManualClock
from globalstep.security import peer_uid
from globalstep.security.credentials import Credentials
from globalstep.worker.transport.grpc_transport import GrpcTransport


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
@pytest.mark.parametrize("netlink", [True, False], ids=["asked", "looked up in the tables"])
def test_a_real_connection_is_found_and_others_are_not(family, host, netlink, monkeypatch):
    def none(*_):
        raise PermissionError

    if not netlink:
        monkeypatch.setattr(peer_uid, "_ask_kernel", none)
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError as error:
        pytest.skip(f"this machine has no {host}: {error}")
    with listener:
        port = listener.getsockname()[1]
        with socket.create_connection((host, port)) as near:
            name = near.getsockname()
            peer = f"ipv4:{name[0]}:{name[1]}" if family == socket.AF_INET else f"ipv6:%5B{name[0]}%5D:{name[1]}"
            assert peer_uid.uid_of_connection(peer, host, port) == os.geteuid()
            if netlink:
                assert peer_uid.uid_of_connection(peer, "localhost", port) == os.geteuid()
                assert peer_uid.uid_of_connection(peer, host, port + 1) is None
        if netlink:
            assert peer_uid.uid_of_connection(peer, host, port) is None  # it has ended


@pytest.mark.parametrize("peer", ["unix:/run/x", "ipv4:nonsense:1", "", "ipv4:127.0.0.1:x"])
def test_what_is_no_connection_is_nobodys(peer):
    assert peer_uid.uid_of_connection(peer, "127.0.0.1", 1) is None


def test_the_kernel_of_this_machine_tells():
    assert kernel_tells()


def test_a_task_without_tokens_serves_its_user_and_root():
    users = {"own": os.geteuid(), "root": 0, "other": 54321, "unknown": None}
    own = OwnUser(lambda peer, host, port: users[peer])
    assert [bool(own.refusal(peer)[0]) for peer in users] == [False, False, True, True]
    assert "a process of user 54321" in own.refusal("other")[0]
    assert "--tokens-file" in own.refusal("unknown")[0]


def test_a_caller_that_has_gone_is_refused_without_a_warning(caplog):
    """A client that closes its connection right after a call is nobody to be warned of; another user's is."""
    users = {"ipv4:127.0.0.1:1": None, "ipv4:127.0.0.1:2": 54321}
    authorization = Authorization(ManualClock(), own_user=OwnUser(lambda peer, host, port: users[peer]))
    for peer in users:
        with pytest.raises(UnauthenticatedError):
            authorization.identify("OpenLane", [], [], peer)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "user 54321" in caplog.text


CALLS = """
import os, sys
import grpc
from globalstep.proto import globalstep_pb2 as pb, globalstep_pb2_grpc as pb_grpc
os.setuid(54002)
with grpc.insecure_channel(sys.argv[1]) as channel:
    stub = pb_grpc.ParameterServerStub(channel)
    for method, request in (("Status", pb.StatusRequest(brief=True)), ("Stop", pb.EndRequest())):
        try:
            getattr(stub, method)(request, timeout=20)
            print(method, "OK")
        except grpc.RpcError as error:
            print(method, error.code().name)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.processes
@pytest.mark.parametrize(
    ("insecure", "answers"), [(False, ["UNAUTHENTICATED"] * 2), (True, ["OK", "FAILED_PRECONDITION"])]
)
def test_another_user_of_the_machine_is_not_served(insecure, answers):
    """He could have files written as the user whose task it is."""
    options = PSOptions(grace_secs=0.2, security=SecurityOptions(Credentials(insecure=insecure)))
    with contextlib.closing(PSServer(options)) as server:
        server.start()
        done = subprocess.run([sys.executable, "-c", CALLS, server.address], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["Status", answers[0], "Stop", answers[1]]
        # The task's own user is.
        with contextlib.closing(GrpcTransport(server.address, 0)) as transport:
            assert transport.unary("Status", pb.StatusRequest(brief=True), 20.0).result().state == pb.STATE_VACANT
