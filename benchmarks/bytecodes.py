"""`python -m benchmarks.bytecodes KIND:PARAMETERS:PS[:VARIABLES] ...`: bytecodes and Python calls of a step, by side.

PS tasks and one worker in this process, over the transport that is chosen by itself; counted are the threads that serve
the worker's connections, and the worker's own. The numbers are the same on a busy machine as on a quiet one, and know
nothing of what C does. Where GLOBALSTEP_RUN_TOKEN is set, the tasks have tokens, as under `globalstep launch`.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from types import FrameType
from typing import Any

from benchmarks.beside import FORMS
from benchmarks.harness.counted import case_of, is_of_ps, stepping
from benchmarks.harness.workload import Case
from globalstep.ps.__main__ import make_parser
from globalstep.ps.access.security import SecurityOptions
from globalstep.ps.server import PSOptions, PSServer

__all__ = ["main"]


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
            side = self._of_thread.side = "worker" if name == "MainThread" else "ps" if is_of_ps() else "others"
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if self.on and event in ("call", "opcode"):
            (self.calls if event == "call" else self.bytecodes)[side] += 1
        return self.trace


def _count(case: Case, form: str, steps: int) -> _Count:
    count = _Count()
    security = SecurityOptions.from_arguments(make_parser().parse_args([]), os.environ)
    servers = [PSServer(PSOptions(security=security)) for _ in range(case.ps)]
    with stepping(case, form, servers, count.trace) as step:
        sys.settrace(count.trace)
        count.on = True
        for _ in range(steps):
            step()
        count.on = False
        sys.settrace(None)
    return count


def main(argv: Sequence[str] | None = None) -> int:
    """Count, and print; gives the process's exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bytecodes", description=__doc__.splitlines()[0])
    parser.add_argument(
        "cases", nargs="+", metavar="KIND:PARAMETERS:PS[:VARIABLES]", help="dense, embedding or counter"
    )
    parser.add_argument("--form", default="auto", choices=FORMS, help="transport, or what a program does")
    parser.add_argument("--steps", type=int, default=40, help="how many steps are counted")
    args = parser.parse_args(argv)
    print(f"{'':24} {'PS bytecodes':>14} {'PS calls':>9} {'worker bytecodes':>17} {'worker calls':>13}")
    for spec in args.cases:
        found = _count(case_of(spec), args.form, args.steps)
        each = [side[who] / args.steps for who in ("ps", "worker") for side in (found.bytecodes, found.calls)]
        print(f"{spec:24} {each[0]:14.0f} {each[1]:9.0f} {each[2]:17.0f} {each[3]:13.0f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
