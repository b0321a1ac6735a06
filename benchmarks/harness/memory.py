"""The memory of a PS beside its values and slots: while two workers push, and during a save.

A fresh PS, Adam on 25 M parameters. Memory is what the kernel counts as resident (shared memory included), at most.
The limits: 1.3 x (values + slots) + 192 MiB a PS + a gradient in flight for every worker; during a
save 2.2 x, with the same allowances.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import globalstep as gs
from benchmarks.harness.contestants import PROGRAMS, start
from benchmarks.harness.measuring import Record
from benchmarks.harness.processes import Children, forget_peaks, resident_bytes
from benchmarks.harness.workload import Case
from benchmarks.peers.globalstep_worker import Program

__all__ = ["measure"]

_ALLOWANCE_BYTES = 192 << 20
_WORKERS = 2
_STEPS = 5
_SAVING_SECS = 0.5


def measure(size: int, ps: int, children: Children) -> Iterator[Record]:
    """Measure with so many PS.

    Args:
        size: Parameters.
        ps: How many.
        children: Who starts processes.

    Yields:
        One record for pushing, one for saving.
    """
    case = Case("dense", size, rule="adam", workers=_WORKERS, ps=ps)
    team = start(PROGRAMS[0], ps, _WORKERS, sys.executable, children, Path(os.devnull))
    team.ready()
    team.workers[0].ask({"do": "create", "case": case.as_dict(), "form": "auto"})
    team.ask(_WORKERS, {"do": "join", "case": case.as_dict(), "form": "auto", "profile": False})
    held = 3 * 4 * size
    in_flight = _WORKERS * 4 * size

    def record(what: str, factor: float) -> Record:
        limit = factor * held + ps * _ALLOWANCE_BYTES + in_flight
        return {
            "what": what, "ps": ps, "held_bytes": held, "limit_bytes": limit,
            "peak_bytes": resident_bytes(team.servers, "VmHWM"),
        }  # fmt: skip

    team.ask(_WORKERS, {"do": "run", "secs": 0.0, "least_steps": _STEPS})
    yield record("2 workers push", 1.3)
    forget_peaks(team.servers)
    program = Program(case)
    target = "grpc://" + ",".join(team.addresses)
    with (
        tempfile.TemporaryDirectory(prefix="globalstep-memory-") as folder,
        program.graph.as_default(),
        gs.Session(target) as session,
    ):
        for worker in team.workers:
            worker.tell({"do": "run", "secs": _SAVING_SECS * 4, "least_steps": _STEPS})
        time.sleep(_SAVING_SECS)
        gs.train.Saver().save(session, str(Path(folder) / "m"), global_step=1)
        for worker in team.workers:
            worker.answer()
    yield record("during a save, 2 workers push", 2.2)
    team.end()
