"""`python -m benchmarks.hostile`: pushes a second while the PS task's ports are scanned, beside those of a quiet run.

Real processes on this machine: one PS task and two workers that push dense gradients and read the values back. Turns
in peace and turns under attack alternate. The attack is that of tests/support/hostile_peers.py on the gRPC port,
the TCP port and the unix socket: 1,000 connections each that say nothing, requests of HTTP, of TLS, noise, halves of
headers, and bytes that drip. Most of what it costs is the attackers' own share of the two cores. Writes hostile.jsonl
and hostile.md into --out; --publish puts the table into benchmarks/figures.md. Needs the extra "bench".
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness import processes
from benchmarks.harness.machine import beside_other_work, machine
from benchmarks.harness.processes import ROOT, Child
from benchmarks.harness.workload import STEP
from benchmarks.reports import report
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.process_env import tuned
from globalstep.wire.declarations import Op, OpKind, OptimizerDecl, Push, VariableDecl
from globalstep.wire.expressions import Expr
from globalstep.wire.transports import transports_to
from globalstep.worker.client.client import ClusterClient

sys.path.insert(0, str(ROOT / "tests" / "support"))
from hostile_peers import HostilePeers, resident_bytes, threads_of

__all__ = ["main"]

Record = dict[str, Any]

_TRANSPORTS = ("grpc", "tcp", "unix")
_WORKERS = 2


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured (default 5)")
    parser.add_argument("--secs", type=float, default=2.0, help="length of a turn (default 2)")
    parser.add_argument("--params", type=int, default=100_000, metavar="N")
    parser.add_argument("--idle", type=int, default=1000, help="connections at each port that say nothing")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder for the results")
    parser.add_argument("--quick", action="store_true", help="shorter and less sure: 2 rounds of 1 s")
    parser.add_argument("--publish", action="store_true", help="put the table into docs/ as well")
    return parser.parse_args(argv)


def _begin(target: str, params: int) -> ClusterClient:
    """Begin a run of one Variable."""
    chief = ClusterClient(transports_to(target, "grpc"))
    chief.begin(open=False)
    rate = {"learning_rate": Expr("const", value=2.0**-20)}
    decls = [VariableDecl("w", "float32", (params,)), VariableDecl(STEP, "int64", (), is_step=True)]
    chief.declare(decls, [OptimizerDecl("sgd", "gradient_descent", rate, {"w": ()})])
    chief.push(Push([Op(OpKind.ASSIGN, "w", fill=0.0), Op(OpKind.ASSIGN, STEP, value=np.array(0))]))
    chief.open()
    return chief


def _ports(address: str) -> list[str]:
    """Every address at which the task can be knocked at."""
    connection = transports_to(f"grpc://{address}", "grpc")[0]
    with contextlib.closing(connection):
        tcp, unix = (
            connection.unary("OpenLane", pb.OpenLaneRequest(kind=kind), 5.0).result().address
            for kind in (pb.LANE_TCP, pb.LANE_UNIX)
        )
    return [address, f"127.0.0.1:{tcp}", "\0" + unix]


def _turn(workers: Sequence[Child], secs: float) -> float:
    """Have all push for some time; gives pushes a second."""
    began = time.monotonic()
    for worker in workers:
        worker.tell({"do": "start"})
    for worker in workers:
        worker.answer()
    time.sleep(secs)
    for worker in workers:
        worker.tell({"do": "stop"})
    return sum(len(worker.answer()["pushes"]) for worker in workers) / (time.monotonic() - began)


def _measure(args: argparse.Namespace, started: processes.Children) -> Iterator[Record]:
    environ = tuned(os.environ)
    for transport in _TRANSPORTS:
        server = started.start(["-m", "globalstep.ps", "--port", "0", "--log-level", "ERROR"], environ)
        address = server.address()
        chief = _begin("grpc://" + address, args.params)
        command = ["-m", "benchmarks.programs.saving_worker", "--target", "grpc://" + address, "--names", "w"]
        workers = [started.start(command, environ | {"GLOBALSTEP_TRANSPORT": transport}) for _ in range(_WORKERS)]
        _turn(workers, 0.3)
        for number in range(args.rounds):
            record: Record = {"transport": transport, "round": number, "quiet": _turn(workers, args.secs)}
            record |= {"quiet_threads": threads_of(server.pid), "quiet_mib": resident_bytes(server.pid) >> 20}
            with HostilePeers(_ports(address), args.idle, number) as peers:
                time.sleep(1.0)  # until the connections are there
                record["attacked"] = _turn(workers, args.secs)
                record |= {"threads": threads_of(server.pid), "mib": resident_bytes(server.pid) >> 20}
            record["knocks"] = sum(peers.counts.values())
            yield record
        for worker in workers:
            worker.end()
        chief.finish()
        chief.close()
        server.end()


def _table(records: Sequence[Record], description: Record) -> str:
    rows = []
    for transport in dict.fromkeys(record["transport"] for record in records):
        of_case = [record for record in records if record["transport"] == transport]
        quiet, attacked = (median(record[what] for record in of_case) for what in ("quiet", "attacked"))
        share = median(record["attacked"] / record["quiet"] for record in of_case)
        threads = f"{max(r['quiet_threads'] for r in of_case)} / {max(r['threads'] for r in of_case)}"
        memory = f"{max(r['quiet_mib'] for r in of_case)} / {max(r['mib'] for r in of_case)}"
        rows.append([transport, f"{quiet:,.0f}", f"**{attacked:,.0f}**", f"{share:.2f}", threads, memory])
    head = ["transport", "quiet, steps/s", "**attacked, steps/s**", "of quiet", "threads of the PS", "its MiB"]
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    text = "".join("| " + " | ".join(cells) + " |\n" for cells in lines)
    return (
        f"{description['date']}; {description['cpu']}, {description['cores']} cores, load average "
        f"{description['load_before']} before and {description['load_after']} after; {description['params']:,} float32 "
        f"parameters, {_WORKERS} workers; {description['rounds']} interleaved rounds of {description['secs']:g} s, "
        f"medians. Quiet / attacked.{beside_other_work(description)}\n\n{text}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the results."""
    args = _parse(argv)
    if args.quick:
        args.rounds, args.secs = 2, 1.0
    description = machine() | {"rounds": args.rounds, "secs": args.secs, "params": args.params}
    records: list[Record] = []
    with processes.children() as started:
        for record in _measure(args, started):
            records.append(record)
            print(json.dumps(record), flush=True)
    report.write(args.out, "hostile", records, description, _table)
    if args.publish:
        report.publish(args.out, "hostile", ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
