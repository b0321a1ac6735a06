"""`python -m benchmarks.modes.staleness`: workers of which one is slow, or each now and then, under each policy.

Real processes on this machine: one PS task and four workers. A gradient takes 20 ms, and 100 ms on one of them; or
one gradient in 20, by chance, 200 ms on each. They sleep meanwhile, so the cores are not what is measured. From the
run's journal come accepted pushes a second, the part of the slow worker, what was dropped, the staleness of what was
accepted, and by how many pushes of its own a worker passed another between two pushes of that one. Prints the tables
that benchmarks/figures.md sums up.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.processes import ROOT
from globalstep.deploy.audit.audit import audit
from globalstep.deploy.audit.reading import Findings, read_volumes
from globalstep.files.journal_records import EventKind
from globalstep.wire.known_progress import KnownProgress

__all__ = ["main"]

_PROGRAM = ROOT / "tests" / "integration" / "jobs" / "programs" / "uneven" / "uneven_workers.py"
_WORKERS, _SLOW = 4, 1
_POLICIES = (
    "staleness=accept",
    "staleness=drop,max_staleness=3",
    "staleness=drop,max_staleness=8",
    "staleness=wait,max_staleness=0",
    "staleness=wait,max_staleness=1",
    "staleness=wait,max_staleness=4",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.modes.staleness", description=__doc__.splitlines()[0])
    parser.add_argument("--secs", type=float, default=20.0, help="how long each policy is measured (default 20)")
    parser.add_argument("--compute-secs", type=float, default=0.02, help="what a gradient takes (default 0.02)")
    given = parser.parse_args(argv)
    for slow in (f"--slow_task={_SLOW}", "--hiccups"):
        print(f"\n{slow}\n| policy | steps/s | of worker 1, /s | dropped, % | staleness: mean | greatest | passed by |")
        print("|---|---:|---:|---:|---:|---:|---:|")
        for policy in _POLICIES:
            with tempfile.TemporaryDirectory(prefix="staleness") as folder:
                _run(policy, Path(folder), given.secs, [slow, f"--compute_secs={given.compute_secs}"])
                print(_row(policy, Path(folder, "run"), given.secs), flush=True)
    return 0


def _run(policy: str, folder: Path, secs: float, options: Sequence[str]) -> None:
    """Train for a while."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(1 + _WORKERS)]
        addresses = [f"127.0.0.1:{item.getsockname()[1]}" for item in sockets]
    environ = os.environ | {"GLOBALSTEP_RUN_POLICY": policy}
    with contextlib.ExitStack() as stack:
        children = []
        for job, index in [("ps", 0), *(("worker", at) for at in range(_WORKERS))]:
            command = [
                sys.executable, str(_PROGRAM),
                f"--ps_hosts={addresses[0]}", f"--worker_hosts={','.join(addresses[1:])}",
                f"--job_name={job}", f"--task_index={index}", f"--run_dir={folder / 'run'}", f"--secs={secs}",
                "--last_step=1000000000", *options,
            ]  # fmt: skip
            output = stack.enter_context(open(folder / f"{job}-{index}.log", "wb"))
            children.append(subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environ))
            stack.callback(children[-1].kill)
        for child in children:
            if child.wait(timeout=secs + 120.0):
                raise RuntimeError("\n".join(path.read_text() for path in folder.glob("*.log")))


def _row(policy: str, run: Path, secs: float) -> str:
    order: list[str] = []
    lags: list[int] = []
    dropped = 0
    for volume in read_volumes(str(run), Findings(), KnownProgress()):
        for piece in volume.pieces(Findings()):
            moving = piece.rows[(piece.rows["kind"] == EventKind.PUSH) & (piece.rows["by"] > 0)]
            order += [piece.clients[number][1] for number in moving["client"].tolist()]
            lags += moving["staleness"].tolist()
            dropped += int((piece.rows["kind"] == EventKind.DROPPED_STALE).sum())
    assert audit(str(run)).proven
    slow = order.count(f"/job:worker/task:{_SLOW}")
    passed = max(_passed(order, task) for task in set(order))
    part = 100 * dropped / (dropped + len(order))
    return (
        f"| `{policy}` | {len(order) / secs:.0f} | {slow / secs:.1f} | {part:.0f} | {sum(lags) / len(lags):.1f} | "
        f"{max(lags)} | {passed} |"
    )


def _passed(order: Sequence[str], task: str) -> int:
    """How many pushes another worker has made, at most, between two pushes of `task`."""
    most, made = 0, Counter[str]()
    for who in order[order.index(task) :]:
        if who == task:
            most, made = max(most, *made.values(), 0), Counter()
        else:
            made[who] += 1
    return most


if __name__ == "__main__":
    sys.exit(main())
