"""`python -m benchmarks.modes.shards`: small pushes over one, two, four and eight PS tasks.

Real processes on this machine. Three questions, of a push of 1,000 parameters in 8 Variables that are spread over the
PS tasks, and are all read back:

- tasks: pushes/s of one worker, by the number of PS tasks; the clusters take turns.
- workers: pushes/s of 32 workers beside those of 4, and how long a push takes; the two take turns on the same tasks.
- delay: how long a push takes where every connection has a delay of 0.5 ms each way, and of 10 ms, beside which what
  the machine does is little: so the messages that wait for one another can be counted. A process passes on what is sent
  (`benchmarks.harness.delayed_links`), and no task has a unix socket or shares memory; what a byte really takes is
  measured beside it.

Writes shards.jsonl and shards.md into --out; --publish puts the tables into benchmarks/figures.md.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.harness.delayed_links import FAR, NEAR, delayed, free_ports, round_trip_secs
from benchmarks.harness.machine import machine
from benchmarks.harness.processes import ROOT, Children, children
from benchmarks.harness.pushing_cluster import PushingCluster, start_servers
from benchmarks.namespaces import connections_at
from benchmarks.reports import report
from globalstep.runtime.process_env import tuned

__all__ = ["main"]

Record = dict[str, Any]

_VARIABLES = 8
_PARTS = ("tasks", "workers", "delay")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.modes.shards", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often each has its turn (default 5)")
    parser.add_argument("--secs", type=float, default=1.0, help="length of a turn (default 1)")
    parser.add_argument("--params", type=int, default=1000, help="parameters in all (default 1,000)")
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=list(_PARTS), help="what is measured")
    parser.add_argument("--ps", type=int, nargs="+", default=[1, 2, 4, 8], help="PS tasks, for one worker")
    parser.add_argument("--shared-ps", type=int, nargs="+", default=[1, 2, 4], help="PS tasks, for many workers")
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 32], help="how many those are (default 4 32)")
    parser.add_argument("--far-ps", type=int, nargs="+", default=[1, 2, 4], help="PS tasks behind slow links")
    parser.add_argument(
        "--delay-ms", type=float, nargs="+", default=[0.5, 10.0], help="of a slow link, each way (default 0.5 10)"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder for the results")
    parser.add_argument("--publish", action="store_true", help="put the tables into docs/ as well")
    return parser.parse_args(argv)


def _turn(part: str, cluster: PushingCluster, ps: int, workers: int, number: int, secs: float) -> Record:
    rate, took = cluster.turn(secs, workers)
    cuts = quantiles(took, n=100, method="inclusive")
    record: Record = {"part": part, "ps": ps, "workers": workers, "round": number}
    return record | {"rate": rate, "median_secs": median(took), "p99_secs": cuts[98]}


def _cluster(args: argparse.Namespace, started: Children, addresses: Sequence[str], workers: int) -> PushingCluster:
    return PushingCluster(started, addresses, [args.params // _VARIABLES] * _VARIABLES, workers)


def _tasks(args: argparse.Namespace) -> Iterator[Record]:
    """One worker, and so many tasks."""
    with children() as started:
        clusters = {
            ps: _cluster(args, started, [server.address() for server in start_servers(started, ps)], 1)
            for ps in args.ps
        }
        for number in range(args.rounds):
            for ps in args.ps if number % 2 else reversed(args.ps):
                yield _turn("tasks", clusters[ps], ps, 1, number, args.secs)
        for cluster in clusters.values():
            cluster.end()


def _workers(args: argparse.Namespace) -> Iterator[Record]:
    """Few workers beside many, on the same tasks."""
    for ps in args.shared_ps:
        with children() as started:
            servers = start_servers(started, ps)
            cluster = _cluster(args, started, [server.address() for server in servers], max(args.workers))
            for number in range(args.rounds):
                for workers in args.workers if number % 2 else reversed(args.workers):
                    yield _turn("workers", cluster, ps, workers, number, args.secs)
            cluster.end()


def _delay(args: argparse.Namespace) -> Iterator[Record]:
    """One worker, and tasks that are further away."""
    for ps, delay_ms in product(args.far_ps, args.delay_ms):
        with children() as started, _Echo() as echo:
            ports = free_ports(2 * ps)
            proxy = delayed(started, [*ports, echo], delay_ms / 1000)
            command = ["-m", "benchmarks.programs.far_ps", "--log-level", "ERROR", "--bind"]
            servers = [
                started.start([*command, f"{NEAR}:{port}", "--tcp-port", str(other)], tuned(os.environ))
                for port, other in zip(ports[:ps], ports[ps:], strict=True)
            ]
            for server in servers:
                server.address()
            cluster = _cluster(args, started, [f"{FAR}:{port}" for port in ports[:ps]], 1)
            for number in range(args.rounds):
                added = median(round_trip_secs(FAR, echo)) - median(round_trip_secs(NEAR, echo))
                far = {"delay_ms": delay_ms, "one_way_secs": added / 2}
                yield _turn("delay", cluster, ps, 1, number, args.secs) | far
                _check_sockets(ports[ps:])
            cluster.end()
            proxy.end()


def _check_sockets(ports: Sequence[int]) -> None:
    """Make sure that worker and chief have gone through the proxy to where tasks take TCP beside gRPC.

    Args:
        ports: Where they do. Each connection has two ends there, the proxy's and the task's.
    """
    table = Path("/proc/self/net/tcp").read_text()
    found = [connections_at(table, port) // 2 for port in ports]
    wanted = [2] * len(ports)
    if found != wanted:
        raise RuntimeError(f"The tasks have {found} connections through the proxy; {wanted} are needed.")


class _Echo:
    """Answers every byte with itself, within a `with`, which gives the port."""

    def __enter__(self) -> int:
        self._listening = socket.create_server((NEAR, 0))
        self._thread = threading.Thread(target=self._serve, name="echo")
        self._thread.start()
        return int(self._listening.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while data := connection.recv(1):
                    connection.sendall(data)


# ---- Tables ---------------------------------------------------------------------------------------------


def _middle(records: Sequence[Record], part: str, what: str, **where: float) -> float | None:
    """The median over the rounds; None where it was not measured."""
    wanted = where | {"part": part}
    found = [record[what] for record in records if all(record[name] == value for name, value in wanted.items())]
    return median(found) if found else None


def _ratio(records: Sequence[Record], part: str, above: Record, below: Record) -> str:
    """The median of the rounds' ratios of two rates; "" where one was not measured."""
    rates: list[dict[int, float]] = []
    for where in (above, below):
        wanted = where | {"part": part}
        found = [record for record in records if all(record[name] == value for name, value in wanted.items())]
        rates.append({record["round"]: record["rate"] for record in found})
    both = [rates[0][number] / rates[1][number] for number in rates[0].keys() & rates[1].keys()]
    return f"{median(both):.2f}" if both else ""


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---:"] * len(head), *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines) + "\n"


def _ms(secs: float | None) -> str:
    return "" if secs is None else f"{1e3 * secs:.2f}"


def _table(records: Sequence[Record], description: Record) -> str:
    text = (
        f"{description['date']}; {description['cpu']}, {description['cores']} cores, load average "
        f"{description['load_before']} before and {description['load_after']} after; Python {description['python']}, "
        f"numpy {description['numpy']}; {description['params']:,} parameters; {description['rounds']} rounds of "
        f"{description['secs']:g} s, medians.\n\n"
    )

    def of(part: str) -> list[tuple[int, int]]:
        return sorted({(record["ps"], record["workers"]) for record in records if record["part"] == part})

    def times(part: str, ps: int, workers: int) -> list[str]:
        return [_ms(_middle(records, part, what, ps=ps, workers=workers)) for what in ("median_secs", "p99_secs")]

    def rate(part: str, ps: int, workers: int) -> str:
        return f"**{_middle(records, part, 'rate', ps=ps, workers=workers) or 0.0:,.0f}**"

    rows = [
        [
            *(str(ps), rate("tasks", ps, 1)),
            *(_ratio(records, "tasks", {"ps": ps}, {"ps": other}) if ps != other else "" for other in (1, 2)),
            *times("tasks", ps, 1),
        ]
        for ps, _ in of("tasks")
    ]
    if rows:
        text += _rows(["PS", "**pushes/s**", "of 1 PS", "of 2 PS", "a push, ms", "99 of 100 within, ms"], rows)
    fewest = min((workers for _, workers in of("workers")), default=0)
    rows = [
        [
            *(str(ps), str(workers), rate("workers", ps, workers)),
            _ratio(records, "workers", {"ps": ps, "workers": workers}, {"ps": ps, "workers": fewest})
            if workers != fewest
            else "",
            *times("workers", ps, workers),
        ]
        for ps, workers in of("workers")
    ]
    if rows:
        beside = f"of {fewest} workers'"
        text += _rows(["PS", "workers", "**pushes/s**", beside, "a push, ms", "99 of 100 within, ms"], rows)
    rows = []
    far = [record for record in records if record["part"] == "delay"]
    for ps, delay_ms in sorted({(record["ps"], record["delay_ms"]) for record in far}):
        one_way, push, slowest = (
            _middle(far, "delay", what, ps=ps, delay_ms=delay_ms)
            for what in ("one_way_secs", "median_secs", "p99_secs")
        )
        links = f"{push / one_way:.1f}" if push and one_way else ""
        rows.append([str(ps), _ms(one_way), _ms(push), links, _ms(slowest)])
    if rows:
        text += _rows(["PS", "a link, one way, ms", "a push, ms", "in links", "99 of 100 within, ms"], rows)
    return text.rstrip("\n") + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the results."""
    args = _parse(argv)
    description = machine() | {"rounds": args.rounds, "secs": args.secs, "params": args.params}
    records: list[Record] = []
    measured = {"tasks": _tasks, "workers": _workers, "delay": _delay}
    for part in args.parts:
        records += measured[part](args)
    report.write(args.out, "shards", records, description, _table)
    if args.publish:
        report.publish(args.out, "shards", ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
