"""Steps to be counted: of PS tasks and one worker in this process, watched by a trace function.

The numbers are the same on a busy machine as on a quiet one, and know nothing of what C does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.harness.workload import STEP, Case, shapes
from benchmarks.peers.globalstep_worker import GlobalstepWorker
from globalstep.cluster.run_policy import RunPolicy
from globalstep.ps.server import PSServer
from globalstep.wire.declarations import Increment, Op, OpKind, OptimizerUse, Push, Read
from globalstep.wire.transports import transports_to
from globalstep.worker.client.client import ClusterClient
from globalstep.worker.waits import contributing as contributing_module

__all__ = ["CONTRIBUTOR", "case_of", "contributing", "is_of_ps", "stepping"]

_WARM_UP = 20
#: Small models, too, are spread over the PS tasks.
_SPREAD = RunPolicy(spread_above=0)
#: What the names of threads begin with that are a worker each.
CONTRIBUTOR = "contributor"


def case_of(spec: str) -> Case:
    """Read KIND:PARAMETERS:PS or KIND:PARAMETERS:PS:VARIABLES, of one worker.

    >>> case_of("dense:1000:2").variables, case_of("embedding:1000:1").variables, case_of("dense:1000:2:20").variables
    (10, 1, 20)
    """
    kind, size, ps, *variables = spec.split(":")
    among = int(variables[0]) if variables else 1 if kind == "embedding" else 10
    return Case(kind, int(size), among, "sgd", 1, int(ps))


def is_of_ps() -> bool:
    """Whether this thread serves a worker's connection; not the PS tasks' own work, which comes by the clock."""
    return threading.current_thread().name.startswith(("globalstep-accept", "globalstep-connection"))


@contextmanager
def stepping(
    case: Case, form: str, servers: Sequence[PSServer], trace: Callable[[FrameType, str, Any], Any]
) -> Iterator[Callable[[], None]]:
    """Let a worker join PS tasks and warm up; gives what makes a step. All is closed at the end of the block.

    Args:
        case: What the worker does.
        form: See GlobalstepWorker.
        servers: Not started.
        trace: Sees what all threads do that start from now on; see sys.settrace.
    """
    threading.settrace(trace)
    try:
        for server in servers:
            server.start()
        worker = GlobalstepWorker([server.address for server in servers], 0, _SPREAD)
        worker.create(case, form)
        worker.join(case, form, False)
        for _ in range(_WARM_UP):
            worker.step()
        yield worker.step
        worker.leave()
    finally:
        threading.settrace(None)  # type: ignore[arg-type]
        for server in servers:
            server.close()


@contextmanager
def contributing(
    case: Case, servers: Sequence[PSServer], trace: Callable[[FrameType, str, Any], Any]
) -> Iterator[Callable[[], None]]:
    """Let `case.workers` workers contribute to steps together, each in a thread; otherwise as `stepping`.

    An answer may wait for its step for a second instead of 20 ms, which a busy machine may need: so the messages are
    the same in each step.
    """
    with ExitStack() as stack:
        threading.settrace(trace)
        stack.callback(threading.settrace, None)
        for server in servers:
            stack.callback(server.close)
            server.start()
        stack.enter_context(mock.patch.object(contributing_module, "_PATIENCE_MS", 1000))
        addresses = [server.address for server in servers]
        GlobalstepWorker(addresses, 0, _SPREAD).create(case, "auto")
        clients = [ClusterClient(transports_to("grpc://" + ",".join(addresses))) for _ in range(case.workers)]
        for client in clients:
            stack.callback(client.close)
        threads = stack.enter_context(ThreadPoolExecutor(case.workers, thread_name_prefix=CONTRIBUTOR))
        steps = [_contribution(case, client) for client in clients]

        def step() -> None:
            for done in [threads.submit(contribute) for contribute in steps]:
                done.result()

        for _ in range(_WARM_UP):
            step()
        yield step


def _contribution(case: Case, client: ClusterClient) -> Callable[[], None]:
    """Give what contributes to the next step, and waits for it."""
    (optimizer,) = {decl.name for status in client.refresh() for decl in status.optimizers}
    gradients = {name: np.ones(shape, np.float32) for name, shape in shapes(case).items()}
    ops = [Op(OpKind.APPLY, name, optimizer=optimizer) for name in gradients]
    increment = Increment(STEP, contributions=case.workers, most_of_client=1)
    pushed = Push(ops, [increment], [OptimizerUse(optimizer)], [Read(name) for name in gradients], layout="step")
    client.pull(pushed.reads)
    base = client.global_steps()[STEP]

    def contribute() -> None:
        nonlocal base
        result = client.push(pushed.again(list(gradients.values()), seen_steps={STEP: base}))
        base += 1
        assert result.outcome.steps[STEP] == base, result.outcome
        assert len(result.values) == len(gradients), result.outcome

    return contribute
