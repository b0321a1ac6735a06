"""Steps to be counted: of PS tasks and one worker in this process, watched by a trace function.

The numbers are the same on a busy machine as on a quiet one, and know nothing of what C does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from benchmarks.harness.workload import Case
from benchmarks.peers.globalstep_worker import GlobalstepWorker
from globalstep.ps.server import PSServer

__all__ = ["case_of", "is_of_ps", "stepping"]

_WARM_UP = 20


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
        worker = GlobalstepWorker([server.address for server in servers], 0)
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
