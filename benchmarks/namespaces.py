"""`python -m benchmarks.namespaces`: globalstep between two network namespaces, as between two machines. Root only.

The PS tasks are in one namespace and the workers in another: no shared memory and no unix socket reaches across, and
every byte takes TCP over a pair of virtual links. The forms take turns in one run, on the same PS tasks: "auto", which
is the default, beside "grpc"; a ratio is taken within a round; steps and values are checked, and that "auto" has taken
the socket. Prints a line for every row: the rates, the median ratio of "auto" over "grpc", its quarters; and the
processor time that a step takes of both sides, which a busy machine disturbs less, in ms, and the ratio of "grpc" over
"auto". With --peers there are other systems' processes in the same two namespaces, over TCP as well, and for each a
line: the rates, and the ratio of "auto" over it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness import processes
from benchmarks.harness.contestants import (
    PROGRAMS,
    Form,
    Peer,
    Program,
    Team,
    absent,
    default_python,
    peer,
    plain_environ,
    team_at,
    team_of,
    tuned_environ,
)
from benchmarks.harness.measuring import Record, Settings, measure
from benchmarks.harness.processes import Child, Children
from benchmarks.harness.throttled import Hosts, throttled_hosts, why_not
from benchmarks.harness.workload import Case
from benchmarks.reports import bars

__all__ = ["connections_at", "main", "ratios"]

FORMS = ("auto", "grpc")
_OURS = "ours"
_SERVERS, _WORKERS = 0, 1
#: Of the first PS task's connections beside gRPC; each further one has the next.
_TCP_PORT = 2300
#: Of the first process of another system; each further one has the next.
_PEER_PORT = 3300
#: torch's messages take the link between the namespaces, not the address that the machine's name has.
_INTERFACE = {"TP_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "eth0"}
_ESTABLISHED = "01"


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.namespaces", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often each has its turn")
    parser.add_argument("--secs", type=float, default=0.3, help="length of a turn, in seconds")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(bars.SIZES), metavar="N", help="parameters")
    parser.add_argument("--ps", type=int, nargs="+", default=[1, 2], metavar="N", help="numbers of PS")
    parser.add_argument("--kinds", nargs="+", default=["dense"], help="kinds of cases: dense, embedding, counter")
    parser.add_argument("--rules", nargs="+", default=["sgd", "adam", "adagrad"], help="rules of the optimizers")
    parser.add_argument(
        "--peers", nargs="*", default=[], choices=("tensorflow", "torch-tcp"), help="other systems beside it"
    )
    parser.add_argument("--peers-python", default=default_python(), metavar="PATH", help="interpreter of the peers")
    parser.add_argument("--out", type=Path, help="a file for every measurement, a JSON object a line")
    return parser.parse_args(argv)


def _start(ps: int, workers: int, hosts: Hosts, children: Children) -> Team:
    environ = tuned_environ() | {"GLOBALSTEP_INSECURE": "1"}
    serve = ["-m", "globalstep.ps", "--bind", f"{hosts.address(_SERVERS)}:0", "--log-level", "ERROR", "--tcp-port"]
    return team_of(
        Program(_OURS, exact=True),
        ps,
        workers,
        lambda at: children.start([*serve, str(_TCP_PORT + at)], environ, by=hosts.by(_SERVERS)),
        lambda args: children.start(args, environ, by=hosts.by(_WORKERS)),
    )


def _start_peer(key: str, ps: int, workers: int, args: argparse.Namespace, hosts: Hosts, children: Children) -> Team:
    program = next(program for program in PROGRAMS if program.key == key)
    first = _PEER_PORT + 100 * args.peers.index(key)
    sides = [_SERVERS] * ps + [_WORKERS] * workers
    addresses = [f"{hosts.address(side)}:{first + at}" for at, side in enumerate(sides)]
    environ = plain_environ() | _INTERFACE

    def begin(job: str, command: Sequence[str]) -> Child:
        side = _SERVERS if job == "ps" else _WORKERS
        return children.start(command, environ, args.peers_python, args.log, by=hosts.by(side))

    return team_at(program, ps, addresses, begin)


def connections_at(table: str, port: int) -> int:
    r"""Count the established connections of a local port.

    Args:
        table: Text of /proc/PID/net/tcp.
        port: The port.

    >>> connections_at("sl local_address rem_address st\n 0: 0100007F:08FC 0100007F:9C40 01 0", 2300)
    1
    """
    rows = [line.split() for line in table.splitlines()[1:]]
    return sum(row[3] == _ESTABLISHED and int(row[1].rpartition(":")[2], 16) == port for row in rows)


def _checked(records: Iterator[Record], team: Team) -> Iterator[Record]:
    """Make sure that "auto" has a socket to every PS task of its case; raises RuntimeError if it has none."""
    for record in records:
        if record.get("peer") == "auto":
            for at, server in enumerate(team.servers[: record["case"]["ps"]]):
                if not connections_at(Path(f"/proc/{server.pid}/net/tcp").read_text(), _TCP_PORT + at):
                    raise RuntimeError(f'"auto" has no TCP connection beside gRPC to PS task {at}.')
        yield record


def ratios(records: Sequence[Record]) -> list[float]:
    """Give each round's rate of "auto" over "grpc", of one row."""
    return bars.ratios(*(bars.rates(records, None, form) for form in FORMS))


def _say(case: Case, records: Sequence[Record]) -> None:
    rates = bars.compared(*(bars.rates(records, case, form) for form in FORMS))
    auto, grpc = (
        statistics.median(one["worker_cpu_us"] + one["ps_cpu_us"] for one in records if one.get("peer") == form)
        for form in FORMS
    )
    label = f"{bars.case_label(case.as_dict())}, {case.ps} PS"
    print(f"{label:34} {rates} {auto / 1000:8.2f} {grpc / 1000:8.2f}  {grpc / auto:5.2f}", flush=True)


def _say_beside(case: Case, key: str, records: Sequence[Record]) -> None:
    rates = bars.compared(bars.rates(records, case, FORMS[0]), bars.rates(records, case, key))
    print(f"{bars.case_label(case.as_dict()) + f', {case.ps} PS':34} over {peer(key).label:20} {rates}", flush=True)


def _measure(args: argparse.Namespace, hosts: Hosts, children: Children) -> list[Record]:
    settings = Settings(args.rounds, args.secs, least_steps=1)
    cases = [case for case in bars.chosen(args.ps, args.kinds, args.sizes) if case.rule in args.rules]
    workers = max(case.workers for case in cases)
    teams = {_OURS: _start(max(args.ps), workers, hosts, children)}
    peers: list[Peer] = [Form(form, form, _OURS, form) for form in FORMS]
    for key in args.peers:
        teams[key] = _start_peer(key, max(args.ps), workers, args, hosts, children)
        peers.append(peer(key))
    for team in teams.values():
        team.ready()
    print(
        f"{'':34} {'auto/s':>10} {'grpc/s':>10}  ratio  (quarters)       {'auto ms':>8} {'grpc ms':>8}  ratio",
        flush=True,
    )
    records: list[Record] = []
    for case in cases:
        found = list(_checked(measure(case, peers, teams, settings), teams[_OURS]))
        _say(case, found)
        for key in args.peers:
            _say_beside(case, key, found)
        records += found
    for team in teams.values():
        team.end()
    return records


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print; gives the process's exit code."""
    args = _parse(argv)
    if why := why_not(None):
        print(f"python -m benchmarks.namespaces: there can be no hosts here: {why}", file=sys.stderr)
        return 2
    missing = absent(args.peers_python) if args.peers else {}
    if lacking := [f"{key}: {missing[key]}" for key in args.peers if key in missing]:
        print(f"python -m benchmarks.namespaces: {'; '.join(lacking)}", file=sys.stderr)
        return 2
    with ExitStack() as stack:
        hosts = stack.enter_context(throttled_hosts(2, None))
        children = stack.enter_context(processes.children())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="globalstep-hosts-")))
        args.log = folder / "peers.log"
        records = _measure(args, hosts, children)
    if args.out is not None:
        args.out.write_text("".join(json.dumps(record) + "\n" for record in records))
    return 0


if __name__ == "__main__":
    sys.exit(main())
