"""Memory of a PS process under each attack that was found to take more than its limits: it stays within them.

The limits are small, so that what is not counted shows. What a process has besides (the interpreter, kernels, what the
allocator keeps of messages that are gone) is the slack.
"""

from __future__ import annotations

import contextlib
import queue
import sys

import grpc
import numpy as np
import pytest
from counting_run import initialize
from hostile_peers import resident_bytes
from processes import Link, Processes, free_addresses, until

from globalstep.errors import ResourceExhaustedError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.wire.declarations import Op, OpKind, Push, VariableDecl
from globalstep.wire.frames import Assembler, frames_of
from globalstep.worker.client.client import ClusterClient
from globalstep.worker.transport.grpc_transport import GrpcTransport

pytestmark = [
    pytest.mark.processes,
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="memory of a process is read from /proc"),
]

MIB = 1 << 20
INFLIGHT, MESSAGE = 64 * MIB, 8 * MIB
SLACK = 96 * MIB
_OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]
SERVICE = "/globalstep.v1.ParameterServer/"


class Task:
    """A PS process with small limits, whose run has a Variable of 1 MiB.

    Attributes:
        address: Where it listens.
        chief: A client that has begun the run.
    """

    def __init__(self, processes: Processes, stack: contextlib.ExitStack) -> None:
        self.address = free_addresses(1)[0]
        limits = ("--max-inflight-bytes", INFLIGHT, "--max-message-bytes", MESSAGE)
        self.pid = processes.start("ps", "-m", "globalstep.ps", "--bind", self.address, *limits).pid
        processes.until("ps", "serving on")
        self.chief = ClusterClient([GrpcTransport(self.address, 0, "grpc")])
        stack.callback(self.chief.close)
        initialize(self.chief)
        self.chief.declare([VariableDecl("table", "float32", (1 << 10, 1 << 8))], [])
        self.chief.push(Push(ops=[Op(OpKind.ASSIGN, "table", fill=1.0)]))
        self.chief.open()
        self.before = resident_bytes(self.pid)

    def status(self) -> pb.StatusReply:
        """What it says of itself."""
        return self.chief.run.transports[0].unary("Status", pb.StatusRequest(brief=True), 10.0).result()

    def pulls(self, pull: pb.PullRequest) -> bool:
        """Whether it answers a pull; it may be short of memory."""
        try:
            return bool(self.chief.run.transports[0].unary("Pull", pull, 10.0).result().data)
        except ResourceExhaustedError:
            return False

    @property
    def grown(self) -> int:
        """Bytes that it has more than before the attack."""
        return resident_bytes(self.pid) - self.before


@pytest.fixture
def task(tmp_path):
    with Processes(tmp_path) as processes, contextlib.ExitStack() as stack:
        yield Task(processes, stack)


class Stream:
    """A stream of the data plane."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._replies = channel.stream_stream(SERVICE + "Exchange")(iter(self._requests.get, None))
        self._assembler = Assembler(1 << 40)
        self._call = 0

    def ask(self, request: pb.Request, data: np.ndarray | None = None) -> pb.Reply:
        """What the task answers."""
        self._call += 1
        pieces = [] if data is None else [memoryview(data).cast("B")]
        for frame in frames_of(self._call, request=request, pieces=pieces):
            self._requests.put(frame)
        while True:
            message = self._assembler.add(next(self._replies))
            if message is not None:
                return message.reply

    def close(self) -> None:
        """End it."""
        self._requests.put(None)


def test_replies_that_nobody_reads(task):
    pull = pb.PullRequest(incarnation=task.chief.incarnation, reads=[pb.Read(variable="table")])
    for round_number in (1, 2):
        sent_away = task.status().load.sent_away
        with contextlib.ExitStack() as stack:
            calls = []
            for _ in range(4):
                link = stack.enter_context(Link(task.address))
                channel = stack.enter_context(grpc.insecure_channel(link.address, _OWN_CONNECTION))
                channel.unary_unary(SERVICE + "Status", pb.StatusRequest.SerializeToString)(
                    pb.StatusRequest(brief=True)
                )
                link.cut(replies_only=True)
                call = channel.unary_unary(SERVICE + "Pull", pull.SerializeToString)
                calls += [call.future(pull) for _ in range(64)]
            until(lambda before=sent_away: task.status().load.sent_away > before + 128, "most of them refused")
            print(f"round {round_number}: {task.grown >> 20} MiB more, 256 replies of 1 MiB that nobody reads")
            assert task.grown < INFLIGHT + SLACK
            # Where others are short of memory, who does not read is ended. The second round finds all of it again.
            until(lambda: task.pulls(pull), "an honest pull")


def test_what_clients_say_of_themselves(task):
    with grpc.insecure_channel(task.address) as channel:
        call = channel.unary_unary(SERVICE + "Heartbeat", pb.HeartbeatRequest.SerializeToString)
        for number in range(100):
            said = pb.ProcessInfo(host="h" * (3 * MIB), place="p")
            beat = pb.HeartbeatRequest(client=f"c{number}", lease_secs=600, process=said)
            with pytest.raises(grpc.RpcError, match=r"ProcessInfo.host.*256 characters are the most"):
                call(beat)
    print(f"{task.grown >> 20} MiB more")
    assert task.grown < SLACK
