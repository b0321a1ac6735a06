"""`python -m benchmarks.critical_section [CASE ...]`: what PS tasks do for a step while they hold the shard's lock.

All pushes of a run pass the sequencer's lock one by one, so what happens under it bounds the run's rate. Counted are
bytecodes, which are the same on a busy machine as on a quiet one and know nothing of what C does (numpy, compiled
kernels). Each case has a budget, which a test holds: what is added under the lock must find its place elsewhere.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any
from unittest import mock

from benchmarks.harness.counted import case_of, is_of_ps, stepping
from globalstep.ps.server import PSOptions, PSServer
from globalstep.ps.shard import shard

__all__ = ["BUDGETS", "count", "main"]

#: KIND:PARAMETERS:PS -> most bytecodes of CPython 3.11 under the locks of all PS tasks for a step.
BUDGETS = {"dense:1000:1": 2200, "dense:1000:2": 4600, "embedding:100000:1": 3100, "counter:0:1": 1700}
#: What a function is for, by its module's folder or name; the first that fits.
_PARTS = (
    ("ids, order and limits", ("/ledger/push_table", "/ledger/ledger", "/ledger/admission_policy")),
    ("hyper-parameters", ("/store/hypers", "/wire/expressions", "/store/optimizer_table")),
    ("signatures", ("/ledger/signatures",)),
    ("members", ("/members/",)),
    ("parts and layouts", ("/shard/layouts", "/store/push_plan", "/store/checking")),
    ("apply", ("/shard/applying", "/rules/", "/store/store", "/store/arena", "/store/cores")),
    ("reads", ("/store/reading", "/shard/replies", "/shard/reads")),
    ("decision", ("/shard/",)),
)


class _WatchedLock:
    """A lock that knows whether the present thread holds it."""

    def __init__(self, held: threading.local) -> None:
        self._lock = threading.Lock()
        self._held = held

    def __enter__(self) -> None:
        self._lock.acquire()
        self._held.now = True

    def __exit__(self, *error: object) -> None:
        self._held.now = False
        self._lock.release()

    def acquire(self, *args: Any) -> bool:
        taken = self._lock.acquire(*args)
        self._held.now = taken
        return taken

    def release(self) -> None:
        self._held.now = False
        self._lock.release()

    def locked(self) -> bool:
        return self._lock.locked()


def _part_of(frame: FrameType) -> str:
    name = frame.f_code.co_filename.removesuffix(".py")
    if name == __file__.removesuffix(".py"):
        return ""
    return next((part for part, marks in _PARTS if any(mark in name for mark in marks)), f"else ({Path(name).stem})")


def count(spec: str, steps: int = 40) -> Counter[str]:
    """Count the bytecodes of a step under the locks.

    Args:
        spec: KIND:PARAMETERS:PS, of one worker.
        steps: How many are counted.

    Returns:
        What for -> bytecodes, of all PS tasks together.
    """
    case = case_of(spec)
    held, found, on = threading.local(), Counter[str](), False

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if not is_of_ps():
            return None
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode" and on and getattr(held, "now", False) and (part := _part_of(frame)):
            found[part] += 1
        return trace

    with mock.patch.object(shard, "threading", SimpleNamespace(Lock=lambda: _WatchedLock(held))):
        servers = [PSServer(PSOptions()) for _ in range(case.ps)]
    with stepping(case, "auto", servers, trace) as step:
        on = True
        for _ in range(steps):
            step()
        on = False
    return Counter({part: round(bytecodes / steps) for part, bytecodes in found.items()})


def main(argv: Sequence[str] | None = None) -> int:
    """Count, and print; ends with 1 where a budget is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.critical_section", description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=list(BUDGETS), metavar="KIND:PARAMETERS:PS", help="what to count")
    over = 0
    for spec in parser.parse_args(argv).cases:
        found = count(spec)
        total, budget = sum(found.values()), BUDGETS.get(spec)
        over += budget is not None and total > budget
        print(f"{spec}: {total} bytecodes under the lock, budget {budget}")
        for part, bytecodes in found.most_common():
            print(f"{bytecodes:8d} {part}")
    return int(over > 0)


if __name__ == "__main__":
    sys.exit(main())
