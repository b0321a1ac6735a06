"""The memory of a PS process: beside values and slots little more than the gradients under way, after a save too."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from globalstep.runtime.process_env import tuned
from globalstep.wire.declarations import Increment, Op, OpKind, OptimizerDecl, OptimizerUse, Push, Read, VariableDecl
from globalstep.wire.expressions import constant
from globalstep.worker.client.client import connect

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read from /proc"),
]

SIZE = 12_000_000
GRADIENT_BYTES = 4 * SIZE
HELD_BYTES = 3 * GRADIENT_BYTES
#: What a PS may have besides: the interpreter, its libraries, buffers; numba, where the cache has no kernels.
ALLOWANCE_BYTES = 192 << 20
WORKERS = 2
HYPERS = {"learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}


@contextlib.contextmanager
def served(**environ):
    """A PS process and its address."""
    command = [sys.executable, "-m", "globalstep.ps", "--port", "0", "--log-level", "ERROR"]
    with subprocess.Popen(command, env=tuned(os.environ) | environ, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.pid, "grpc://" + process.stdout.readline().split()[-1]
        finally:
            process.terminate()


@pytest.fixture
def ps():
    with served() as found:
        yield found


def resident(pid, what):
    """A figure of the kernel's, in bytes: VmRSS is resident now, VmHWM was at most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(what))


def declare(client, size=SIZE):
    slots = ("w/m", "w/v")
    scalars = ("beta1_power", "beta2_power")
    decls = [VariableDecl("step", "int64", (), is_step=True), VariableDecl("w", "float32", (size,), trainable=True)]
    decls += [VariableDecl(slot, "float32", (size,), primary="w", optimizer="o", slot=slot[-1]) for slot in slots]
    decls += [VariableDecl(name, "float32", ()) for name in scalars]
    hypers = {name: constant(value) for name, value in HYPERS.items()}
    client.declare(decls, [OptimizerDecl("o", "adam", hypers, {"w": slots}, scalars)])
    client.push(Push([Op(OpKind.ASSIGN, d.name, fill=0.9 if d.name in scalars else 0.0) for d in decls]))


def push(client, times, size=SIZE):
    gradient = np.full(size, 1e-3, np.float32)
    op = Op(OpKind.APPLY, "w", gradient, optimizer="o")
    for _ in range(times):
        result = client.push(Push([op], [Increment("step")], [OptimizerUse("o")], [Read("w")], layout="all"))
    return result.values[0].tobytes()


def test_memory_stays_within_its_bounds_while_two_workers_push_and_one_saves(ps):
    pid, target = ps
    pushing = 1.3 * HELD_BYTES + ALLOWANCE_BYTES + WORKERS * GRADIENT_BYTES
    saving = 2.2 * HELD_BYTES + ALLOWANCE_BYTES + WORKERS * GRADIENT_BYTES
    chief, *workers = (connect(target) for _ in range(1 + WORKERS))
    try:
        chief.begin(open=True)
        declare(chief)
        with ThreadPoolExecutor(WORKERS) as threads:
            list(threads.map(push, workers, [8] * WORKERS))
            assert resident(pid, "VmHWM") < pushing
            for _ in range(2):
                with chief.snapshot():
                    list(threads.map(push, workers, [2] * WORKERS))
                    assert resident(pid, "VmRSS") > 2 * HELD_BYTES  # the copy is there
            list(threads.map(push, workers, [2] * WORKERS))
        assert resident(pid, "VmHWM") < saving
        assert resident(pid, "VmRSS") < pushing  # and is gone
    finally:
        for client in (chief, *workers):
            client.close()


def test_a_ps_that_finds_its_kernels_has_no_numba_and_little_else(tmp_path):
    """25 MB of values and slots: the first process compiles and keeps numba, the second has the same values without."""
    size = 25_000_000 // 12
    seen = []
    for _ in range(2):
        with served(NUMBA_CACHE_DIR=str(tmp_path)) as (pid, target):
            client = connect(target)
            client.begin(open=True)
            before = resident(pid, "VmRSS")
            declare(client, size)
            values = push(client, 3, size)
            loaded = Path(f"/proc/{pid}/maps").read_text()
            # What a client shares with it is its gradients and what it reads.
            more = resident(pid, "VmRSS") - before - 12 * size - resident(pid, "RssShmem")
            seen.append(("/numba/" in loaded, "libllvmlite" in loaded, values))
            client.close()
    assert [found[:2] for found in seen] == [(True, True), (False, True)]
    assert seen[0][2] == seen[1][2]
    assert more < 16 << 20
