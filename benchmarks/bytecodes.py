"""`python -m benchmarks.bytecodes KIND:PARAMETERS:PS[:VARIABLES] ...`: bytecodes and Python calls of a step, by side.

PS tasks and one worker in this process, over the transport that is chosen by itself; counted are the threads that serve
the worker's connections, and the worker's own. The numbers are the same on a busy machine as on a quiet one, and know
nothing of what C does. Where GLOBALSTEP_RUN_TOKEN is set, the tasks have tokens, as under `globalstep launch`. With
`--workers` several contribute to each step, and what they take together is counted.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

from benchmarks.beside import FORMS
from benchmarks.harness.counted import CONTRIBUTOR, case_of, contributing, is_of_ps, stepping
from benchmarks.harness.workload import Case
from globalstep.ps.__main__ import make_parser
from globalstep.ps.access.security import SecurityOptions
from globalstep.ps.server import PSOptions, PSServer

__all__ = ["ROW_BUDGETS", "SESSION_BUDGETS", "SYNCHRONOUS_BUDGETS", "count", "main"]

#: KIND:PARAMETERS:PS -> most bytecodes of CPython 3.11 for a step of two workers' contributions: of the PS tasks, and
#: of the workers.
SYNCHRONOUS_BUDGETS = {"dense:1000:1": (11_500, 6_500), "dense:1000:2": (44_500, 21_500)}
#: The same for a step of one worker that pulls and pushes rows.
ROW_BUDGETS = {"embedding:100000:1": (7_200, 7_100), "embedding:100000:2": (19_400, 13_600)}
#: KIND:PARAMETERS:PS -> most bytecodes of CPython 3.11 that a step of a session may take besides those of the client.
SESSION_BUDGETS = {"dense:1000:1": 1_250}


class _Count:
    """Counts bytecodes and calls by side, while it is on."""

    def __init__(self) -> None:
        self.on = False
        self.bytecodes: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._of_thread = threading.local()

    def trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        """See sys.settrace."""
        side = getattr(self._of_thread, "side", None)
        if side is None:
            name = threading.current_thread().name
            of_worker = name == "MainThread" or name.startswith(CONTRIBUTOR)
            side = self._of_thread.side = "worker" if of_worker else "ps" if is_of_ps() else "others"
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if self.on and event in ("call", "opcode"):
            (self.calls if event == "call" else self.bytecodes)[side] += 1
        return self.trace


def count(case: Case, form: str = "auto", steps: int = 40) -> dict[str, tuple[float, float]]:
    """Count what a step takes.

    Args:
        case: What a worker does; of several workers, each contributes to every step.
        form: Transport of a single worker, or what a program does.
        steps: How many are counted.

    Returns:
        "ps" and "worker" -> bytecodes and calls of a step, of all tasks of the kind together.
    """
    found = _Count()
    security = SecurityOptions.from_arguments(make_parser().parse_args([]), os.environ)
    servers = [PSServer(PSOptions(security=security)) for _ in range(case.ps)]
    together = case.workers > 1
    with contributing(case, servers, found.trace) if together else stepping(case, form, servers, found.trace) as step:
        sys.settrace(found.trace)
        found.on = True
        for _ in range(steps):
            step()
        found.on = False
        sys.settrace(None)
    return {side: (found.bytecodes[side] / steps, found.calls[side] / steps) for side in ("ps", "worker")}


def main(argv: Sequence[str] | None = None) -> int:
    """Count, and print; gives the process's exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bytecodes", description=__doc__.splitlines()[0])
    parser.add_argument(
        "cases", nargs="+", metavar="KIND:PARAMETERS:PS[:VARIABLES]", help="dense, embedding or counter"
    )
    parser.add_argument("--form", default="auto", choices=FORMS, help="transport, or what a program does")
    parser.add_argument("--workers", type=int, default=1, help="how many contribute to each step")
    parser.add_argument("--steps", type=int, default=40, help="how many steps are counted")
    args = parser.parse_args(argv)
    print(f"{'':24} {'PS bytecodes':>14} {'PS calls':>9} {'worker bytecodes':>17} {'worker calls':>13}")
    for spec in args.cases:
        found = count(replace(case_of(spec), workers=args.workers), args.form, args.steps)
        each = [*found["ps"], *found["worker"]]
        print(f"{spec:24} {each[0]:14.0f} {each[1]:9.0f} {each[2]:17.0f} {each[3]:13.0f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
