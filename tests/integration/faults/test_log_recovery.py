"""durability="log" with real processes that are killed (rung 4): nothing acknowledged is lost or done twice."""

from __future__ import annotations

import random
import re
import signal
import threading

import numpy as np
import pytest
from processes import Processes, free_addresses

from globalstep.cluster.run_identity import RunIdentity
from globalstep.cluster.run_policy import RunPolicy
from globalstep.ps.local import LocalPS
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.wire.declarations import Increment, Op, OpKind, OptimizerDecl, OptimizerUse, Push, Read, VariableDecl
from globalstep.wire.expressions import Expr
from globalstep.wire.transports import transports_to
from globalstep.worker.client.client import ClusterClient

pytestmark = pytest.mark.processes

PUSHES = 120
KILLS = 5
SHAPES = {"a": (7, 3), "b": (400,), "c": (50, 4)}


class PSTasks:
    """PS processes that are killed and started again on their addresses."""

    def __init__(self, processes: Processes, count: int) -> None:
        self.addresses = free_addresses(count)
        self._processes = processes
        self._running = [self._start(at) for at in range(count)]

    def _start(self, at):
        process = self._processes.start(f"ps{at}", "-m", "globalstep.ps", "--bind", self.addresses[at])
        self._processes.until_true(f"ps{at}", lambda: _answers(self.addresses[at]), what="an answer")
        return process

    def kill(self, *which):
        """Kill some at once, and start them again."""
        for at in which:
            self._running[at].send_signal(signal.SIGKILL)
        for at in which:
            self._running[at].wait()
            self._running[at] = self._start(at)


def _answers(address):
    client = ClusterClient(transports_to(f"grpc://{address}"), member=False)
    try:
        return not isinstance(client.statuses(0.5)[0], Exception)
    finally:
        client.close()


def declared(shards):
    where = {name: at % shards for at, name in enumerate(SHAPES)}
    variables = [VariableDecl(name, "float32", shape, where[name]) for name, shape in SHAPES.items()]
    slots = [
        VariableDecl(f"{name}/m", "float32", shape, where[name], primary=name, optimizer="momentum", slot="momentum")
        for name, shape in SHAPES.items()
    ]
    hypers = {"learning_rate": Expr("const", value=0.03), "momentum": Expr("const", value=0.9)}
    hypers["use_nesterov"] = Expr("const", value=0.0)
    momentum = OptimizerDecl("momentum", "momentum", hypers, {name: (f"{name}/m",) for name in SHAPES})
    return [*variables, *slots, VariableDecl("step", "int64", (), is_step=True)], [momentum]


def begin(client, directory):
    variables, optimizers = declared(client.shards)
    client.begin(open=False, run=RunIdentity(directory=directory))
    client.declare(variables, optimizers)
    rng = np.random.default_rng(5)
    ops = [Op(OpKind.ASSIGN, name, value=rng.normal(size=shape).astype("f4")) for name, shape in SHAPES.items()]
    ops += [Op(OpKind.ASSIGN, f"{name}/m", fill=0.0) for name in SHAPES]
    client.push(Push([*ops, Op(OpKind.ASSIGN, "step", value=np.array(0))]))
    client.open()


def gradients(worker, number):
    """Push `number` of a worker: dense gradients for two Variables, rows for the third."""
    rng = np.random.default_rng([worker, number])
    rows = rng.integers(0, 50, 6)
    ops = [
        Op(OpKind.APPLY, name, value=rng.normal(size=SHAPES[name]).astype("f4"), optimizer="momentum") for name in "ab"
    ]
    if number % 3 == 0:
        value = rng.normal(size=(6, 4)).astype("f4")
        ops.append(Op(OpKind.APPLY, "c", value=value, indices=rows, optimizer="momentum"))
    reads = [Read("a"), Read("step")]
    layout = None if number % 3 == 0 else "dense"
    return Push(ops, [Increment("step")], [OptimizerUse("momentum")], reads, layout=layout)


def values_of(client):
    return [
        value.copy() for value in client.pull([Read(name) for name in (*SHAPES, *(f"{name}/m" for name in SHAPES))])
    ]


def test_what_was_answered_last_is_there_after_a_kill(tmp_path):
    """Nobody has pushed or asked since: a participant has it on its disk itself."""
    with Processes(tmp_path) as processes:
        tasks = PSTasks(processes, 2)
        target, policy = "grpc://" + ",".join(tasks.addresses), RunPolicy(durability="log")
        client = ClusterClient(transports_to(target), task="/job:chief/task:0", policy=policy, retry_secs=100.0)
        begin(client, str(tmp_path / "run"))
        for victims in ((1,), (0, 1)):
            for number in (1, 2):
                value, step = client.push(gradients(0, number)).values
            other = client.pull([Read("b")])[0].copy()
            tasks.kill(*victims)
            found = client.pull([Read("b"), Read("a"), Read("step")])
            for before, after in zip((other, value, step), found, strict=True):
                assert before.tobytes() == after.tobytes()
            assert client.global_steps() == {"step": step}
        client.close()


@pytest.mark.parametrize(("shards", "transport"), [(1, "auto"), (1, "tcp"), (2, "auto"), (2, "grpc")])
def test_killed_tasks_come_back_to_their_last_acknowledged_push_bit_for_bit(tmp_path, shards, transport):
    run, rng = str(tmp_path / "run"), random.Random(shards)
    with Processes(tmp_path) as processes:
        tasks = PSTasks(processes, shards)
        target = "grpc://" + ",".join(tasks.addresses)
        policy = RunPolicy(durability="log")
        chief = ClusterClient(
            transports_to(target, transport), task="/job:chief/task:0", policy=policy, retry_secs=60.0
        )
        begin(chief, run)
        incarnation = chief.incarnation
        told: dict[int, tuple[int, int]] = {}
        seen: list[str] = []

        def work(worker):
            client = ClusterClient(transports_to(target, transport), task=f"/job:worker/task:{worker}", retry_secs=60.0)
            try:
                for number in range(PUSHES):
                    result = client.push(gradients(worker, number))
                    if result.outcome.index in told:
                        seen.append(f"index {result.outcome.index} was given twice")
                    told[result.outcome.index] = (worker, number)
            except Exception as error:
                seen.append(repr(error))
                raise
            finally:
                client.close()

        workers = [threading.Thread(target=work, args=(at,), name=f"worker-{at}") for at in range(2)]
        for thread in workers:
            thread.start()
        for kills in range(KILLS):
            # Pushes are made between any two kills; how far one is when the next kill comes is chance.
            until = len(told) + rng.randint(1, 2 * PUSHES // KILLS - 5)
            while len(told) < until and any(thread.is_alive() for thread in workers):
                SYSTEM_CLOCK.wait(threading.Event(), rng.random() * 0.01)
            if kills == KILLS // 2:
                with chief.snapshot():
                    pass
            tasks.kill(rng.randrange(shards))
        for thread in workers:
            thread.join(120.0)
            assert not thread.is_alive(), processes.output("ps0")
        assert not seen
        assert chief.incarnation == incarnation
        assert len(told) == 2 * PUSHES
        # In a cut: nobody waits until the sequencer knows what is applied; a step read alone may show that later.
        step, *_ = chief.pull([Read("step"), *(Read(name) for name in SHAPES)])
        assert step == 2 * PUSHES
        found = values_of(chief)
        chief.close()
        printed = "".join(processes.output(f"ps{at}") for at in range(shards))
    assert len(re.findall(r"is back at entry \d+, from its log", printed)) == KILLS

    # The same pushes, in the order that they were given, in a PS that nobody kills.
    calm = ClusterClient(LocalPS(shards).transports())
    begin(calm, "")
    for index in sorted(told):
        calm.push(gradients(*told[index]))
    for mine, expected in zip(found, values_of(calm), strict=True):
        assert mine.tobytes() == expected.tobytes()
    calm.close()
