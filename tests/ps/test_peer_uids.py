"""Whose socket is at the other end of a connection: found in the kernel's tables."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys

import pytest

from globalstep.credentials import Credentials
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.peer_uids import OwnUser, kernel_tells, uid_of_peer
from globalstep.ps.security import SecurityOptions
from globalstep.ps.server import PSOptions, PSServer
from globalstep.worker.grpc_lane import GrpcLane

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


def test_the_kernel_of_this_machine_tells():
    assert kernel_tells()


def test_a_task_without_tokens_serves_its_user_and_root():
    users = {"own": os.geteuid(), "root": 0, "other": 54321, "unknown": None}
    own = OwnUser(lambda peer, port: users[peer])
    assert [bool(own.refusal(peer)) for peer in users] == [False, False, True, True]
    assert "a process of user 54321" in own.refusal("other")
    assert "--tokens-file" in own.refusal("unknown")


CALLS = """
import os, sys
import grpc
from globalstep.proto import globalstep_pb2 as pb, globalstep_pb2_grpc as pb_grpc
os.setuid(54002)
with grpc.insecure_channel(sys.argv[1]) as channel:
    stub = pb_grpc.ParameterServerStub(channel)
    for method, request in (("Status", pb.StatusRequest(brief=True)), ("Stop", pb.StopRequest())):
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
        with contextlib.closing(GrpcLane(server.address, 0)) as lane:
            assert lane.unary("Status", pb.StatusRequest(brief=True), 20.0).result().state == pb.STATE_VACANT
