"""Memory shared between real processes: nothing of it is left, whoever is killed."""

import contextlib
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from processes import Processes, free_addresses

from globalstep.errors import OpError
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.wire.declarations import Increment, Op, OpKind, OptimizerDecl, OptimizerUse, Push, Read, VariableDecl
from globalstep.wire.expressions import constant
from globalstep.worker.client.client import ClusterClient
from globalstep.worker.transport.grpc_transport import GrpcTransport

pytestmark = [pytest.mark.processes, pytest.mark.skipif(sys.platform != "linux", reason="Linux only")]

COUNT = 200_000
WORKER = """
import sys, time
import numpy as np
from globalstep.wire.declarations import Increment, Op, OpKind, OptimizerUse, Push, Read
from globalstep.worker.client.client import connect

client = connect("grpc://" + sys.argv[1], transport="shm")
client.refresh()
gradient = np.full(client.variables["w"].shape, -1.0, np.float32)
while True:
    ops = [Op(OpKind.APPLY, "w", gradient, optimizer="sgd")]
    push = Push(ops, [Increment("global_step")], [OptimizerUse("sgd")], [Read("w")], layout="step")
    values = client.push(push).values
    print("pushed", float(values[0][0]), client.run.transports[0].kind, flush=True)
"""


def shared_by(pid):
    """How many blocks a process can see, and how many descriptors of blocks it has."""
    descriptors = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            descriptors += "memfd:globalstep" in os.readlink(descriptor)
    return len(re.findall("memfd:globalstep", Path(f"/proc/{pid}/maps").read_text())), descriptors


def until(condition):
    """Wait for something that is not told."""
    deadline = SYSTEM_CLOCK.monotonic() + 30.0
    while not condition():
        assert SYSTEM_CLOCK.monotonic() < deadline
        os.sched_yield()


def initialized(address):
    client = ClusterClient([GrpcTransport(address, 0, "shm")])
    while True:
        with contextlib.suppress(OpError):
            client.refresh()
            break
    variables = [VariableDecl("global_step", "int64", (), 0, is_step=True), VariableDecl("w", "float32", (COUNT,), 0)]
    sgd = OptimizerDecl("sgd", "gradient_descent", {"learning_rate": constant(1.0)}, {"w": ()})
    client.declare(variables, [sgd])
    client.push(Push([Op(OpKind.ASSIGN, decl.name, fill=0.0) for decl in variables]))
    return client


def test_nothing_is_left_of_a_worker_or_a_task_that_is_killed(tmp_path):
    (address,) = free_addresses(1)
    with Processes(tmp_path) as processes:
        task = processes.start("ps", "-m", "globalstep.ps", "--bind", address)
        with contextlib.closing(initialized(address)) as client:
            client.pull([Read("w")])
            # Each block has at most one descriptor, once the one that was handed on is closed.
            until(lambda: shared_by(task.pid)[1] <= 1)
            alone = shared_by(task.pid)
            assert alone[0] == 1
            worker = processes.start("worker", "-c", WORKER, address)
            processes.until("worker", r"pushed [5-9]\.0 shm")
            assert shared_by(task.pid)[0] > alone[0]
            assert shared_by(worker.pid)[0] > 0
            worker.kill()
            worker.wait()
            until(lambda: shared_by(task.pid) == alone)
            # The run goes on, and holds what the worker has pushed, as a whole.
            ops = [Op(OpKind.APPLY, "w", np.full(COUNT, -1.0, np.float32), optimizer="sgd")]
            push = Push(ops, [Increment("global_step")], [OptimizerUse("sgd")], [Read("w")], layout="step")
            (values,) = client.push(push).values
            steps = client.global_steps()["global_step"]
            np.testing.assert_array_equal(values, np.full(COUNT, steps, np.float32))
            task.kill()
            task.wait()
            # What the program has is its own, whatever became of the task.
            np.testing.assert_array_equal(values, np.full(COUNT, steps, np.float32))
            assert not any("globalstep" in name for name in os.listdir("/dev/shm"))
            del values
        assert shared_by(os.getpid()) == (0, 0)
