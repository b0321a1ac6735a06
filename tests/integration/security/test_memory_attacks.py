"""Memory of a PS process under each attack that was found to take more than its limits: it stays within them.

The limits are small, so that what is not counted shows. What a process has besides (the interpreter, kernels, what the
allocator keeps of messages that are gone) is the slack.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
from collections.abc import Callable

import grpc
import numpy as np
import pytest
from counting_run import initialize
from hostile_peers import resident_bytes
from processes import Processes, free_addresses

from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.wire.declarations import Op, OpKind, OptimizerDecl, Push, Read, VariableDecl
from globalstep.wire.expressions import constant
from globalstep.wire.frames import Assembler, frames_of
from globalstep.wire.protocol_version import own_protocol
from globalstep.wire.queue_elements import encode_element
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
#: Of a client that takes 64 KiB of what it has not asked for, and no more.
_NO_PROBE = ("grpc.http2.bdp_probe", 0)
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
        wide = OptimizerDecl("wide", "gradient_descent", {"learning_rate": constant(0.5)}, {"table": ()})
        self.chief.declare([], [wide])
        self.chief.push(Push(ops=[Op(OpKind.ASSIGN, "table", fill=1.0)]))
        self.chief.open()
        self.before = resident_bytes(self.pid)

    def status(self) -> pb.StatusReply:
        """What it says of itself."""
        return self.chief.run.transports[0].unary("Status", pb.StatusRequest(brief=True), 10.0).result()

    def until_kept(self, right: Callable[[int, int], bool]) -> None:
        """Wait until the bytes of replies, and of those that are kept for a retry, are right."""
        until = SYSTEM_CLOCK.monotonic() + 60.0
        while not right(*(found := [self.status().load.kept[kind] for kind in ("replies", "kept replies")])):
            assert SYSTEM_CLOCK.monotonic() < until, f"{found} bytes of replies"
            SYSTEM_CLOCK.wait(threading.Event(), 0.05)

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

    def send(self, request: pb.Request, *data: np.ndarray) -> None:
        """Ask, and leave the answer where it is."""
        self._call += 1
        pieces = [memoryview(piece).cast("B") for piece in data]
        for frame in frames_of(self._call, request=request, pieces=pieces):
            self._requests.put(frame)

    def ask(self, request: pb.Request, *data: np.ndarray) -> pb.Reply:
        """What the task answers."""
        self.send(request, *data)
        while True:
            message = self._assembler.add(next(self._replies))
            if message is not None:
                return message.reply

    def close(self) -> None:
        """End it."""
        self._requests.put(None)


def push(task, number, client="mallory"):
    return pb.Request(
        push=pb.PushRequest(incarnation=task.chief.incarnation, id=pb.PushId(client=client, sequence=number))
    )


def test_contributions_that_never_make_a_step(task):
    with grpc.insecure_channel(task.address) as channel, contextlib.closing(Stream(channel)) as stream:
        rows = np.ones((1024, 1024), np.float32)
        refused = 0
        for number in range(1, 151):
            request = push(task, number)
            unit = 200 - number if number <= 75 else 0
            step = "global_step"
            request.push.increments.add(step=step, by=1, contributions=200, most_of_client=200, unit=unit)
            request.push.seen_steps[step] = 0
            request.push.uses.add(optimizer="wide")
            op = request.push.ops.add(kind=pb.OP_APPLY, variable="table", optimizer="wide")
            op.value.CopyFrom(pb.TensorRef(dtype="float32", shape=[4096, 256]))
            op.indices.CopyFrom(pb.TensorRef(dtype="int64", shape=[4096], offset=rows.nbytes))
            ids = np.arange(4096) % 1024
            reply = stream.ask(request, rows, ids)
            refused += "contributions to steps" in reply.error.message
        print(f"{task.grown >> 20} MiB more, {refused} of 150 contributions of 4 MiB refused")
        assert refused > 50
        assert task.status().load.staged_bytes > INFLIGHT // 2
        assert task.grown < INFLIGHT + SLACK


@pytest.mark.parametrize("kind", ["pull", "push"])
def test_replies_that_nobody_reads(task, kind):
    with contextlib.ExitStack() as stack:
        for connection in range(60):
            channel = stack.enter_context(grpc.insecure_channel(task.address, _OWN_CONNECTION))
            stream = stack.enter_context(contextlib.closing(Stream(channel)))
            request = push(task, 1, f"mallory{connection}")
            if kind == "pull":
                request = pb.Request(pull=pb.PullRequest(incarnation=task.chief.incarnation, client="mallory"))
            for _ in range(8):
                getattr(request, kind).reads.add(variable="table")
            stream.send(request)
        task.until_kept(lambda replies, kept: replies + kept > INFLIGHT // 2)
        print(f"{task.grown >> 20} MiB more, {task.status().load.sent_away} sent away")
        assert task.grown < INFLIGHT + SLACK
    task.until_kept(lambda replies, kept: not replies and kept <= INFLIGHT // 2)
    assert task.chief.pull([Read("table")])[0].size == 1 << 18


@pytest.mark.timeout(600)  # a PS task computes for 10 s on 300 long answers, and shares its processor
def test_statuses_that_nobody_reads(task):
    task.chief.declare([VariableDecl(f"variable{at}", "float32", ()) for at in range(10_000)], [])
    asked, most = pb.StatusRequest(protocol=own_protocol()).SerializeToString(), 0
    with contextlib.ExitStack() as stack:
        calls = []
        for _ in range(6):
            channel = stack.enter_context(grpc.insecure_channel(task.address, [*_OWN_CONNECTION, _NO_PROBE]))
            calls += [channel.unary_stream(SERVICE + "Status")(asked, timeout=600) for _ in range(50)]

        def goes_on(load):
            # Where answers are slow fewer are refused: it is over when none is kept any more.
            return load.sent_away < 150 and (not load.sent_away or "replies" in load.kept)

        while goes_on(task.status().load):
            most = max(most, task.grown)
    print(f"{most >> 20} MiB more")
    assert most < INFLIGHT + SLACK


def test_layouts_of_many_changes(task):
    names = [f"v{at}" for at in range(500)]
    task.chief.declare([VariableDecl(name, "float32", ()) for name in names], [])
    task.chief.push(Push(ops=[Op(OpKind.ASSIGN, name, fill=0.0) for name in names]))
    with contextlib.ExitStack() as stack:
        for connection in range(12):
            channel = stack.enter_context(grpc.insecure_channel(task.address, _OWN_CONNECTION))
            stream = stack.enter_context(contextlib.closing(Stream(channel)))
            for number in range(1, 61):
                request = push(task, number, f"mallory{connection}")
                request.push.layout = number
                for name in names:
                    request.push.reads.add(variable=name)
                    request.push.reads.add(variable=name)
                assert not stream.ask(request).error.message
    print(f"{task.grown >> 20} MiB more")
    assert task.grown < INFLIGHT + SLACK


def test_elements_of_a_few_bytes(task):
    element = encode_element([np.int8(1)])
    with grpc.insecure_channel(task.address) as channel:
        call = channel.unary_unary(SERVICE + "Queue", pb.QueueRequest.SerializeToString, pb.QueueReply.FromString)
        queue = pb.QueueAttributes(name="q", kind="FIFOQueue", capacity=-1, dtypes=["int8"], shapes=["()"])
        entered = 0
        for number in range(1, 200):
            reply = call(
                pb.QueueRequest(
                    queue=queue,
                    what=pb.QUEUE_ENQUEUE,
                    client="mallory",
                    number=number,
                    elements=[element] * 20_000,
                    total=20_000,
                )
            )
            entered += reply.entered
            if reply.waiting:
                break
    print(f"{task.grown >> 20} MiB more with {entered:,} elements of {len(element)} bytes")
    assert reply.waiting
    assert task.grown < INFLIGHT + SLACK


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
