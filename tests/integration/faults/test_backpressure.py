"""A PS task that is slower than its clients slows them down, and stays as large as it is."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.runtime.process_env import tuned
from globalstep.wire.declarations import Increment, Op, OpKind, OptimizerDecl, OptimizerUse, Push, Read, VariableDecl
from globalstep.wire.expressions import constant
from globalstep.wire.transports import transports_to
from globalstep.worker.client.client import ClusterClient

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read from /proc"),
]

CLIENTS = 64
SIZE = 2_500_000
GRADIENT_BYTES = 4 * SIZE
#: Room for six gradients, where 64 come at a time.
LIMIT_BYTES = 6 * GRADIENT_BYTES
#: Buffers of sockets, thread stacks, the allocator; a gradient of every client would be 640 MB.
ALLOWANCE_BYTES = 96 << 20
#: What gRPC itself keeps of a stream whose next frame nobody takes: a few frames, however large the message is.
STREAM_BYTES = 8 << 20
PUSHES = 3


@pytest.fixture
def ps():
    """A PS task that has one core, which it shares with everybody else, and the least right to it."""
    command = [sys.executable, "-m", "globalstep.ps", "--port", "0", "--log-level", "ERROR"]
    command += ["--max-inflight-bytes", str(LIMIT_BYTES)]
    with subprocess.Popen(command, env=tuned(os.environ), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[-1]
            os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
            os.setpriority(os.PRIO_PROCESS, process.pid, 19)
            yield process.pid, address
        finally:
            process.terminate()


def resident(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))


def declare(client):
    rate = {"learning_rate": constant(1.0)}
    decls = [VariableDecl("step", "int64", (), is_step=True), VariableDecl("w", "float32", (SIZE,), trainable=True)]
    client.declare(decls, [OptimizerDecl("sgd", "gradient_descent", rate, {"w": ()})])
    client.push(Push([Op(OpKind.ASSIGN, decl.name, fill=0.0) for decl in decls]))


@pytest.mark.parametrize("transport", ["auto", "unix", "grpc"])
def test_64_clients_of_a_slow_ps_wait_and_its_memory_stays_flat(ps, transport, record_property):
    pid, address = ps
    gradient = np.full(SIZE, -1.0, np.float32)
    push = Push(
        [Op(OpKind.APPLY, "w", gradient, optimizer="sgd")], [Increment("step", 1)], [OptimizerUse("sgd")], [Read("w")],
        layout="all",
    )  # fmt: skip
    clients = [ClusterClient(transports_to(f"grpc://{address}", transport)) for _ in range(CLIENTS)]
    try:
        clients[0].begin(open=True)
        declare(clients[0])
        before = resident(pid)
        series = []
        errors = []
        stop = threading.Event()

        def watch():
            while not SYSTEM_CLOCK.wait(stop, 0.1):
                series.append((resident(pid) - before) >> 20)

        def work(client):
            try:
                client.refresh()
                for _ in range(PUSHES):
                    values = client.push(push).values[0]
                    assert values[0] == values[-1] == round(float(values[0]))
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=watch, name="watch")]
        threads += [threading.Thread(target=work, args=(one,), name=f"client-{at}") for at, one in enumerate(clients)]
        for thread in threads:
            thread.start()
        for thread in threads[1:]:
            thread.join(100)
        stop.set()
        threads[0].join(5)
        print(f"MiB beside what a PS task with its values has, over {transport}, every 0.1 s: {series}")
        record_property("resident_mib", series)
        assert errors == []
        assert clients[0].global_steps() == {"step": CLIENTS * PUSHES}
        assert clients[0].pull([Read("w")])[0].tolist()[:3] == [CLIENTS * PUSHES] * 3
        streams = CLIENTS * STREAM_BYTES if transport == "grpc" else 0
        assert max(series) << 20 < 2 * LIMIT_BYTES + ALLOWANCE_BYTES + streams
    finally:
        for client in clients:
            client.close()
