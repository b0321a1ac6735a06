"""`python -m benchmarks.saving`: how long a save holds up pushes, and how fast it writes.

Real processes on this machine: one or two PS with 400 MB of float32 in a few Variables, a worker that pushes
small gradients to every PS without a pause, and this process, which saves. A round, on each set of PS:

1. nobody saves: the longest push of a second;
2. a plain sequential write and fsync of as many bytes, into the directory of the checkpoints;
3. a save while nobody pushes: its MB/s are compared with those of 2;
4. one copy of as many bytes in memory, into memory that has been used before;
5. a save while the worker pushes: its longest push is compared with 1 and 4.

The very first save of a PS, which has to get its memory from the kernel, is reported apart. The last
checkpoint is verified. Writes saving.jsonl, saving.md and saving.png into --out; --publish puts the table
into benchmarks/figures.md and the plot beside it. Needs the extra "bench".
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import globalstep as gs
from benchmarks.harness import processes
from benchmarks.harness.machine import machine
from benchmarks.harness.processes import ROOT, forget_peaks, resident_bytes
from benchmarks.reports import report, saving_report
from globalstep.chief.checkpoints.checkpoint import verify
from globalstep.runtime.process_env import tuned
from globalstep.tf1.sessions.saver import Saver

__all__ = ["main"]

Record = dict[str, Any]

_BIG_VARIABLES = 4
_SMALL_ELEMENTS = 1000
_QUIET_SECS = 1.0
#: How long the worker pushes before and after a save.
_MARGIN_SECS = 0.3


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.saving", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="how often all is measured (default 7)")
    parser.add_argument("--megabytes", type=int, default=400, help="bytes of the Variables (default 400)")
    parser.add_argument("--ps", type=int, nargs="+", default=[1, 2], metavar="N", help="numbers of PS processes")
    parser.add_argument("--dir", type=Path, help="where to put checkpoints (default: a temporary directory)")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder for the results")
    parser.add_argument("--publish", action="store_true", help="put table and plot into docs/ as well")
    return parser.parse_args(argv)


class _Cluster:
    """PS processes that hold the Variables, a worker that pushes, and a session that saves."""

    def __init__(self, ps: int, megabytes: int, started: processes.Children) -> None:
        environ = tuned(os.environ)
        args = ["-m", "globalstep.ps", "--port", "0", "--log-level", "WARNING"]
        self.servers = [started.start(args, environ) for _ in range(ps)]
        target = "grpc://" + ",".join(server.address() for server in self.servers)
        small = [f"small_{task}" for task in range(ps)]
        worker = ["-m", "benchmarks.programs.saving_worker", "--target", target, "--names", ",".join(small)]
        self._worker = started.start(worker, environ)
        with gs.Graph().as_default():
            step = gs.train.create_global_step()
            random = np.random.default_rng(1)
            for at in range(_BIG_VARIABLES):
                values = random.random(megabytes * 250_000 // _BIG_VARIABLES, np.float32)
                gs.Variable(values, trainable=False, name=f"big_{at}")
            loss: Any = 0.0
            for name in small:
                loss += gs.reduce_sum(gs.Variable(np.zeros(_SMALL_ELEMENTS, np.float32), name=name))
            gs.train.GradientDescentOptimizer(2.0**-20).minimize(loss, global_step=step)
            self._saver = Saver(max_to_keep=None)
            self._step = step
            # Each PS task has as many of the large Variables, and a small one.
            self.session = gs.Session(target, config=gs.ConfigProto(run_policy=gs.RunPolicy(spread_above=0)))
            for variable in gs.global_variables():
                self.session.run(variable.initializer)

    def push(self) -> None:
        """Have the worker begin to push."""
        self._worker.ask({"do": "start"})

    def pushes(self) -> list[list[float]]:
        """Have it stop; gives when each push began and how long it took."""
        found: list[list[float]] = self._worker.ask({"do": "stop"})["pushes"]
        return found

    def save(self, directory: Path) -> Record:
        """Save into an empty directory; gives the times: begin, cut, end."""
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        began = time.monotonic()
        save = self._saver.start_save(self.session, str(directory / "m"), global_step=self._step)
        cut = time.monotonic()
        self.prefix = save.result()
        return {"began": began, "cut": cut, "ended": time.monotonic()}


def _write_plainly(directory: Path, values: np.ndarray[Any, Any]) -> float:
    """Write and fsync an array; gives the seconds."""
    path = directory / "plain"
    data = memoryview(values).cast("B")
    began = time.monotonic()
    with open(path, "wb", buffering=0) as file:
        while data:
            data = data[file.write(data) :]
        os.fsync(file.fileno())
    secs = time.monotonic() - began
    path.unlink()
    return secs


def _write_both_ways(
    cluster: _Cluster, directory: Path, values: np.ndarray[Any, Any], save_first: bool
) -> tuple[float, Record]:
    """Write plainly and save; gives the seconds of the one and the times of the other.

    One more plain write goes before, so that both find memory for the system's file cache that is in use
    already: a virtual machine may have to ask its host for other memory, which takes longer than the disk.
    """
    _write_plainly(directory, values)
    if save_first:
        alone = cluster.save(directory / "checkpoints")
        return _write_plainly(directory, values), alone
    plain_secs = _write_plainly(directory, values)
    return plain_secs, cluster.save(directory / "checkpoints")


def _save_while_pushing(cluster: _Cluster, directory: Path) -> Record:
    """Save in the midst of pushes; times are told from the begin of the save."""
    cluster.push()
    time.sleep(_MARGIN_SECS)
    times = cluster.save(directory)
    time.sleep(_MARGIN_SECS)
    pushes = [[at - times["began"], secs] for at, secs in cluster.pushes()]
    save_secs = times["ended"] - times["began"]
    during = [secs for at, secs in pushes if at + secs > 0 and at < save_secs]
    return {
        "save_secs": save_secs, "cut_secs": times["cut"] - times["began"],
        "longest_push_secs": max(during), "pushes_during": len(during), "pushes": pushes,
    }  # fmt: skip


def measure(args: argparse.Namespace, ps: int, directory: Path) -> Iterator[Record]:
    """Measure with so many PS.

    Args:
        args: As parsed.
        ps: How many.
        directory: For the files.

    Yields:
        One record for the first save, and one for every round.
    """
    source = np.random.default_rng(2).random(args.megabytes * 250_000, np.float32)
    target = source.copy()
    with processes.children() as started:
        cluster = _Cluster(ps, args.megabytes, started)
        cluster.push()  # the kernels are compiled with the first one
        time.sleep(_QUIET_SECS)
        cluster.pushes()
        held = resident_bytes(cluster.servers, "VmRSS")
        forget_peaks(cluster.servers)
        yield {"ps": ps, "round": -1, "busy": _save_while_pushing(cluster, directory / "checkpoints")}
        for number in range(args.rounds):
            cluster.push()
            time.sleep(_QUIET_SECS)
            quiet = [secs for _, secs in cluster.pushes()]
            plain_secs, alone = _write_both_ways(cluster, directory, source, save_first=number % 2 == 1)
            began = time.monotonic()
            np.copyto(target, source)
            memory_secs = time.monotonic() - began
            yield {
                "ps": ps, "round": number, "bytes": source.nbytes,
                "quiet_push_secs": float(np.median(quiet)), "longest_quiet_push_secs": max(quiet),
                "memory_secs": memory_secs, "plain_secs": plain_secs,
                "alone_secs": alone["ended"] - alone["began"], "alone_cut_secs": alone["cut"] - alone["began"],
                "busy": _save_while_pushing(cluster, directory / "checkpoints"),
                "held_bytes": held, "peak_bytes": resident_bytes(cluster.servers, "VmHWM"),
            }  # fmt: skip
        verify(str(cluster.prefix))
        cluster.session.close()


def _file_system(directory: Path) -> str:
    """Kind of the file system that a directory lies on."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    _, kind = max(((place, kind) for place, kind in mounts if directory.is_relative_to(place)), key=lambda m: len(m[0]))
    return kind


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the results; gives the process's exit code."""
    args = _parse(argv)
    where = machine()
    records: list[Record] = []
    with tempfile.TemporaryDirectory(prefix="globalstep-saving-", dir=args.dir) as made:
        directory = Path(made).resolve()
        where |= {"rounds": args.rounds, "megabytes": args.megabytes, "file_system": _file_system(directory)}
        for ps in args.ps:
            print(f"{ps} PS", file=sys.stderr, flush=True)
            records += measure(args, ps, directory)
    where["load_after"] = round(os.getloadavg()[0], 1)
    args.out.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(line) + "\n" for line in (where, *records)]
    (args.out / "saving.jsonl").write_text("".join(lines))
    text = saving_report.table(records, where)
    (args.out / "saving.md").write_text(text)
    saving_report.plot(records, args.out / "saving.png")
    if args.publish:
        report.publish(args.out, "saving", ROOT)
    print(text)
    print(f"Written: {args.out / 'saving'}.*", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
