"""What a transport says of a PS task that cannot be reached."""

import contextlib
import os
import socket
import subprocess
import sys

import pytest

from globalstep.errors import LostStateError, UnavailableError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.server import PSOptions, PSServer
from globalstep.runtime.process_env import tuned
from globalstep.security.rpc import CHANNEL_OPTIONS
from globalstep.worker.transport.grpc_transport import GrpcTransport


@pytest.fixture
def silent_task():
    """The address of a task that takes connections and then says nothing, as one that is stopped does."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def dial():
    """Make transports, and close them at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda *more: stack.enter_context(contextlib.closing(GrpcTransport(*more)))


@pytest.fixture
def unused():
    """An address where nobody listens, and nobody else can."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def test_a_silent_task_is_one_that_is_not_reached_so_that_sessions_recover(dial, silent_task):
    transport = dial(silent_task, 1)
    with pytest.raises(UnavailableError, match=r"^/job:ps/task:1 at .* has not answered Status for 0\.1 s\.$"):
        transport.unary("Status", pb.StatusRequest(brief=True), 0.1).result()


def test_a_task_that_is_given_up_costs_no_waits(dial, silent_task):
    """Calls under way fail at once, with why; those that follow have a moment, until it is hoped for again."""
    transport = dial(silent_task, 1)
    for given_secs in (3600.0, 3600.0):
        under_way = transport.unary("WriteSnapshot", pb.WriteSnapshotRequest(), given_secs)
        transport.give_up(UnavailableError("it is silent"))
        with pytest.raises(UnavailableError, match=r"^it is silent$"):
            under_way.result()
    with pytest.raises(UnavailableError, match=r"has not answered Status for 0\.5 s\.$"):
        transport.unary("Status", pb.StatusRequest(brief=True), 10.0).result()
    transport.give_up(None)
    with pytest.raises(UnavailableError, match=r"has not answered Status for 0\.6 s\.$"):
        transport.unary("Status", pb.StatusRequest(brief=True), 0.6).result()


def test_a_port_where_nobody_listens_is_told_in_few_words(dial, unused):
    transport = dial(unused, 0, "grpc")
    with pytest.raises(UnavailableError) as caught:
        transport.unary("Status", pb.StatusRequest(brief=True), 10.0).result()
    assert caught.value.message == f"{transport.label}: Connection refused at {unused}"


@pytest.mark.parametrize("kind", ["grpc", "auto"])
def test_a_push_to_a_port_where_nobody_listens_fails_where_its_reply_is_waited_for(dial, unused, kind):
    """A client that retries a call retries it there; an error of `send` itself would end its job."""
    ticket = dial(unused, 0, kind).send(pb.Request(pull=pb.PullRequest()), [])
    with pytest.raises(UnavailableError, match="Connection refused"):
        ticket.result()


def test_the_type_of_an_error_comes_with_its_code(serving, dial):
    """A task that lost its state is to be recovered; another ABORTED is the end of a life."""
    request = pb.ReadJournalRequest(incarnation=7, client="somebody")
    (server,) = serving()
    with pytest.raises(LostStateError, match=r"^/job:ps/task:0 at .*: This PS task holds no state"):
        dial(server.address, 0).unary("ReadJournal", request, 5.0).result()


#: Asks a task until it does not answer, and then until it does again; says how long that took from the word on.
ASKS = """
import sys, threading
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.errors import UnavailableError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.worker.transport.grpc_transport import GrpcTransport

transport = GrpcTransport(sys.argv[1], 0)

def ask_until(answers, times=1):
    while times:
        try:
            transport.unary("Status", pb.StatusRequest(brief=True), 30.0).result()
            found = True
        except UnavailableError:
            found = False
        times -= found is answers
        SYSTEM_CLOCK.wait(threading.Event(), 0.05)

ask_until(True)
print("answers", flush=True)
ask_until(False, times=10)
print("gone", flush=True)
sys.stdin.readline()
ask_until(True)
print("found")
transport.close()
"""


@pytest.mark.processes
@pytest.mark.parametrize("environ", [{}, tuned({})], ids=["as it is", "tuned"])
def test_a_task_that_comes_back_is_found(environ):
    task = PSServer(PSOptions(grace_secs=0.0))
    task.start()
    client = subprocess.Popen(
        [sys.executable, "-c", ASKS, task.address],
        env={**os.environ, **environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        with client:
            assert client.stdout.readline() == "answers\n"
            task.close()
            assert client.stdout.readline() == "gone\n"
            task = PSServer(PSOptions(bind=task.address))
            task.start()
            said, _ = client.communicate("go\n", timeout=60)
    finally:
        client.kill()
        task.close()
    assert said == "found\n"


def test_a_task_that_comes_back_is_looked_for_each_second():
    """By gRPC's own settings a client may wait for two minutes between two attempts to connect."""
    assert dict(CHANNEL_OPTIONS)["grpc.max_reconnect_backoff_ms"] <= 1_000
