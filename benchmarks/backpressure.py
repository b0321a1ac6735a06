"""`python -m benchmarks.backpressure`: 64 clients of a PS task that has a quarter of a core; its memory over time.

Real processes on this machine: one PS task, bound to one core and stopped for three quarters of the time, as a quota
of control groups does; and 1, 8 or 64 clients in up to four processes, each of which pushes a dense gradient of all
values and reads them back, without a pause. The task may have six gradients in flight (--max-inflight-bytes). Written
down are its resident memory every 0.1 s, how many requests it refused (RESOURCE_EXHAUSTED; clients retry), and
whether each accepted push counts once, in the step and in every value. Writes backpressure.jsonl, backpressure.md and
backpressure.png into --out; --publish puts table and plot into benchmarks/figures.md. Needs the extra "bench".
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import processes
from benchmarks.harness.core_share import CoreShare
from benchmarks.harness.machine import beside_other_work, machine
from benchmarks.harness.processes import ROOT
from benchmarks.harness.workload import STEP
from benchmarks.reports import report
from globalstep.runtime.process_env import tuned
from globalstep.wire.declarations import Op, OpKind, OptimizerDecl, Push, Read, VariableDecl
from globalstep.wire.expressions import Expr
from globalstep.wire.transports import transports_to
from globalstep.worker.client.client import ClusterClient

__all__ = ["main"]

Record = dict[str, Any]

#: Gradients that may be in flight.
_ROOM = 6
_PROCESSES = 4
_LOOK_SECS = 0.1
_COLORS = ("#a9cbe8", "#4f93c6", "#d9752b", "#2a9d5c")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backpressure", description=__doc__.splitlines()[0])
    parser.add_argument("--secs", type=float, default=12.0, help="how long the clients push (default 12)")
    parser.add_argument("--params", type=int, default=2_500_000, metavar="N", help="float32 values")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64], metavar="N")
    parser.add_argument("--transports", nargs="+", default=["auto", "tcp", "grpc"], metavar="NAME")
    parser.add_argument("--share", type=float, default=0.25, help="of a core, for the PS (default 0.25)")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder for the results")
    parser.add_argument("--quick", action="store_true", help="shorter and less sure: 8 s, without shared memory")
    parser.add_argument("--publish", action="store_true", help="put table and plot into docs/ as well")
    return parser.parse_args(argv)


def _begin(target: str, params: int) -> ClusterClient:
    """Begin a run of one Variable, to which each push adds 1."""
    chief = ClusterClient(transports_to(target, "grpc"))
    chief.begin(open=False)
    decls = [VariableDecl("w", "float32", (params,)), VariableDecl(STEP, "int64", (), is_step=True)]
    rate = {"learning_rate": Expr("const", value=1.0)}
    chief.declare(decls, [OptimizerDecl("sgd", "gradient_descent", rate, {"w": ()})])
    chief.push(Push([Op(OpKind.ASSIGN, "w", fill=0.0), Op(OpKind.ASSIGN, STEP, value=np.array(0))]))
    chief.open()
    return chief


def _one(args: argparse.Namespace, transport: str, clients: int, started: processes.Children) -> Record:
    """Have so many clients push over one transport to a PS of their own."""
    environ = tuned(os.environ)
    command = ["-m", "globalstep.ps", "--port", "0", "--log-level", "ERROR"]
    server = started.start([*command, "--max-inflight-bytes", str(_ROOM * 4 * args.params)], environ)
    target = "grpc://" + server.address()
    chief = _begin(target, args.params)
    before = processes.resident_bytes([server], "VmRSS")
    teams = min(clients, _PROCESSES)
    command = ["-m", "benchmarks.programs.backpressure_clients", "--target", target, "--name", "w", "--clients"]
    floods = [
        started.start(
            [*command, str(clients // teams + (at < clients % teams))], environ | {"GLOBALSTEP_TRANSPORT": transport}
        )
        for at in range(teams)
    ]
    for flood in floods:
        flood.tell({"do": "join"})
    for flood in floods:
        flood.answer()
    memory: list[tuple[float, float]] = []
    began = time.monotonic()
    with CoreShare(server.pid, args.share):
        for flood in floods:
            flood.tell({"do": "start"})
        while (at_secs := time.monotonic() - began) < args.secs:
            grown = processes.resident_bytes([server], "VmRSS") - before
            memory.append((round(at_secs, 2), round(grown / 2**20, 1)))
            time.sleep(_LOOK_SECS)
        reached, took = chief.global_steps()[STEP], time.monotonic() - began
    # With a whole core again, what is still waiting comes to its end sooner.
    for flood in floods:
        flood.answer()
        flood.tell({"do": "stop"})
    ends = [flood.answer() for flood in floods]
    for flood in floods:
        flood.end()
    pushed = sum(count for end in ends for count in end["pushes"])
    step, values = chief.global_steps()[STEP], chief.pull([Read("w")])[0]
    record = {
        "transport": transport, "clients": clients, "before_mib": before >> 20, "memory": memory, "pushes": pushed,
        "rate": reached / took, "fewest": min(min(end["pushes"]) for end in ends), "step": step,
        "sent_away": chief.refresh()[0].load.sent_away, "again": sum(end["again"] for end in ends),
        "exact": bool(step == pushed and np.all(values == pushed)),
        "failed": [text for end in ends for text in end["failed"]],
    }  # fmt: skip
    chief.finish()
    chief.close()
    server.end()
    return record


def _most(record: Record, half: int) -> float:
    """The most MiB in the first or second half of the time."""
    memory = record["memory"]
    middle = len(memory) // 2
    return max(mib for _, mib in (memory[middle:] if half else memory[:middle]))


def _table(records: Sequence[Record], where: Record) -> str:
    rows = [
        [
            record["transport"], str(record["clients"]), f"{record['rate']:,.1f}", f"{record['sent_away']:,}",
            str(record["before_mib"]), f"{_most(record, 0):,.0f}", f"**{_most(record, 1):,.0f}**",
            f"{record['clients'] * where['gradient_mib']:,.0f}",
            f"yes, {record['step']:,}" if record["exact"] and not record["failed"] else "**no**",
        ]
        for record in records
    ]  # fmt: skip
    head = ["transport", "clients", "pushes/s", "refused", "the PS before, MiB", "more: first half", "second half",
            "a gradient of each", "exactly once"]  # fmt: skip
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return (
        f"{where['date']}; {where['cpu']}, {where['cores']} cores, load average {where['load_before']} before and "
        f"{where['load_after']} after; {where['params']:,} float32 values, a PS task with {where['share']:g} of a "
        f"core, {where['secs']:g} s each; at most {_ROOM} gradients of {where['gradient_mib']:.1f} MiB in flight."
        f"{beside_other_work(where)}\n\n" + "".join("| " + " | ".join(cells) + " |\n" for cells in lines)
    )


def _plot(records: Sequence[Record], where: Record, path: Path) -> None:
    # matplotlib is an extra.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    transports = list(dict.fromkeys(record["transport"] for record in records))
    figure, panels = pyplot.subplots(1, len(transports), figsize=(4.6 * len(transports), 4), squeeze=False, sharey=True)
    for transport, panel in zip(transports, panels[0], strict=True):
        of_it = [record for record in records if record["transport"] == transport]
        for record, color in zip(of_it, _COLORS, strict=False):
            secs, mib = zip(*record["memory"], strict=True)
            panel.plot(
                secs,
                mib,
                color=color,
                label=f"{record['clients']} client{'s' if record['clients'] > 1 else ''}",
                linewidth=1.6,
            )
        most = max(record["clients"] for record in of_it) * where["gradient_mib"]
        panel.axhline(most, color="#8a8a8a", linestyle="--", linewidth=1, label="a gradient of each client")
        panel.set_ylim(bottom=0)
        panel.set_xlabel("seconds")
        panel.set_title(f"memory of the PS beside its values, MiB, {transport}", loc="left", fontsize=9)
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    figure.legend(
        *panels[0][0].get_legend_handles_labels(), loc="lower center", ncols=len(_COLORS) + 1, frameon=False, fontsize=9
    )
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the results; 1 if a push was lost, doubled or failed."""
    args = _parse(argv)
    if args.quick:
        args.secs, args.transports = 8.0, [name for name in args.transports if name != "auto"]
    where = machine() | {"secs": args.secs, "params": args.params, "share": args.share}
    where["gradient_mib"] = 4 * args.params / 2**20
    records: list[Record] = []
    with processes.children() as started:
        for transport in args.transports:
            for clients in args.clients:
                records.append(_one(args, transport, clients, started))
                print(json.dumps(records[-1]), flush=True)
    report.write(args.out, "backpressure", records, where, _table)
    _plot(records, where, args.out / "backpressure.png")
    if args.publish:
        report.publish(args.out, "backpressure", ROOT)
    return 0 if all(record["exact"] and not record["failed"] for record in records) else 1


if __name__ == "__main__":
    sys.exit(main())
