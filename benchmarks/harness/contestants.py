"""Who is compared: programs, which have processes, and peers, which are a program in one of its forms."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.processes import ROOT, Child, Children, family
from benchmarks.harness.workload import LEARNING_RATE, Case
from globalstep.runtime.process_env import tuned

__all__ = [
    "PEERS",
    "PROGRAMS",
    "Form",
    "Peer",
    "Program",
    "Team",
    "absent",
    "default_python",
    "free_ports",
    "peer",
    "plain_environ",
    "start",
    "team_at",
    "team_of",
    "tuned_environ",
]


@dataclass(frozen=True)
class Program:
    """A system with processes of its own.

    Attributes:
        key: Short name.
        module: Of the peer's file; "" for globalstep and the baseline, whose PS are other programs.
        needs: Packages that its environment must have.
        arguments: More of the command line.
        exact: Whether it promises that no step and no gradient is lost.
        kinds: The cases that it takes part in: kind, or kind and rule.
        spins: Whether its processes keep the processor busy while they have nothing to do.
    """

    key: str
    module: str = ""
    needs: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    exact: bool = False
    kinds: tuple[str, ...] = ("dense", "embedding", "counter", "digits")
    spins: bool = False

    def takes(self, case: Case) -> bool:
        """Whether it takes part in a case."""
        return case.kind in self.kinds or f"{case.kind} {case.rule}" in self.kinds


PROGRAMS = (
    Program("globalstep", exact=True),
    Program("baseline", kinds=("dense sgd", "counter")),
    Program("tensorflow", "tensorflow_v1", ("tensorflow",)),
    # TensorPipe's shared memory is polled without a pause: three idle processes take both of two cores.
    Program("torch-shm", "torch_rpc", ("torch",), ("--transport", "shm"), spins=True),
    Program("torch-tcp", "torch_rpc", ("torch",), ("--transport", "tcp")),
    Program("ray", "ray_actor", ("ray", "torch"), kinds=("dense", "embedding", "counter")),
)


@dataclass(frozen=True)
class Peer:
    """One column of the tables.

    Attributes:
        key: Short name, for --peers and the records.
        label: As tables and plots call it.
        program: Key of its program.
        form: In which of the program's forms.
        color: In plots.
    """

    key: str
    label: str
    program: str
    form: str = ""
    color: str = "#888888"

    def takes(self, case: Case) -> bool:
        """Whether it takes part in a case."""
        program = next(program for program in PROGRAMS if program.key == self.program)
        # The digits job is a program's.
        return program.takes(case) and (case.kind != "digits" or self.form in ("", "session"))


class Form(Peer):
    """A form of a program that is none of PROGRAMS; it takes part in every case."""

    def takes(self, case: Case) -> bool:
        """See Peer."""
        return True


PEERS = (
    Peer("auto", "globalstep", "globalstep", "auto", "#1f6fb4"),
    Peer("session", "globalstep, session.run", "globalstep", "session", "#2a9d5c"),
    Peer("unix", "globalstep (unix socket)", "globalstep", "unix", "#17becf"),
    Peer("tcp", "globalstep (tcp)", "globalstep", "tcp", "#4f93c6"),
    Peer("grpc", "globalstep (grpc)", "globalstep", "grpc", "#9ec9e8"),
    Peer("tensorflow", "TensorFlow 1 PS", "tensorflow", color="#e08a1e"),
    Peer("torch-shm", "torch rpc (shm)", "torch-shm", color="#b5302b"),
    Peer("torch-tcp", "torch rpc (tcp)", "torch-tcp", color="#e28f8c"),
    Peer("ray", "Ray actor", "ray", color="#8d6bb8"),
    Peer("baseline", "plain grpcio", "baseline", color="#8a8a8a"),
)


def peer(key: str) -> Peer:
    """Find a peer."""
    return next(found for found in PEERS if found.key == key)


def absent(python: str) -> dict[str, str]:
    """Find which programs cannot run in the peers' environment.

    Args:
        python: Its interpreter.

    Returns:
        Key of a program -> what is missing.
    """
    needs = sorted({package for program in PROGRAMS for package in program.needs})
    code = "import importlib.util as u, json, sys; print(json.dumps([n for n in sys.argv[1:] if not u.find_spec(n)]))"
    try:
        found = subprocess.run([python, "-c", code, *needs], check=True, capture_output=True, text=True)
        missing = json.loads(found.stdout)
    except (OSError, subprocess.CalledProcessError):
        missing = needs
    out = {}
    for program in PROGRAMS:
        lacking = [package for package in program.needs if package in missing]
        if lacking:
            out[program.key] = f"{', '.join(lacking)} not installed"
    return out


@dataclass
class Team:
    """A program's running processes."""

    program: Program
    servers: list[Child]
    workers: list[Child]
    addresses: list[str]
    #: Whether its processes are stopped now.
    resting: bool = False

    def rest(self) -> None:
        """Stop its processes until they are asked something, if they would take the processor from the others."""
        if self.program.spins and not self.resting:
            self._signal(signal.SIGSTOP)
            self.resting = True

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Let its processes run within a block."""
        rested, self.resting = self.resting, False
        if rested:
            self._signal(signal.SIGCONT)
        yield
        if rested:
            self.rest()

    def _signal(self, number: int) -> None:
        for child in (*self.workers, *self.servers):
            for pid in family(child.pid):
                os.kill(pid, number)

    def ready(self) -> None:
        """Wait until every worker is there."""
        for worker in self.workers:
            worker.answer()

    def ask(self, count: int, command: dict[str, Any]) -> list[dict[str, Any]]:
        """Tell the first `count` workers the same at the same time; gives their answers."""
        with self.awake():
            for worker in self.workers[:count]:
                worker.tell(command)
            return [worker.answer() for worker in self.workers[:count]]

    def server_cpu_secs(self) -> float:
        """Processor time of all PS processes and of what they have started."""
        return sum(_cpu_secs(pid) for server in self.servers for pid in family(server.pid))

    def end(self) -> None:
        """End its processes, the workers first."""
        with self.awake():
            for child in (*self.workers, *self.servers):
                child.end()
            self.workers, self.servers = [], []


def _cpu_secs(pid: int) -> float:
    total = 0
    for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            total += int(task.read_text().split()[0])
        except OSError:  # the thread has ended
            continue
    return total / 1e9


def free_ports(count: int) -> list[int]:
    """Find ports that nobody uses now: these systems must know all addresses before they start."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listening.getsockname()[1] for listening in sockets]


def plain_environ() -> dict[str, str]:
    """Give the environment of processes without what tunes globalstep's."""
    plain = {name: value for name, value in os.environ.items() if name not in tuned({})}
    plain.pop("GLOBALSTEP_TRANSPORT", None)
    return plain


def tuned_environ() -> dict[str, str]:
    """Give the environment of processes as `globalstep launch` makes it."""
    return tuned(plain_environ())


def _environment(program: Program, tuned_peers: bool) -> dict[str, str]:
    """Its processes' environment: globalstep's as `globalstep launch` makes it; others' is plain, or the same."""
    return tuned_environ() if tuned_peers or program.key == "globalstep" else plain_environ()


def team_of(
    program: Program,
    ps: int,
    workers: int,
    serve: Callable[[int], Child],
    work: Callable[[Sequence[str]], Child],
) -> Team:
    """Start PS, and workers that are told the PS's addresses.

    Args:
        program: Whose.
        ps: How many PS.
        workers: How many workers.
        serve: Starts the PS of an index.
        work: Starts a worker, given its command line.
    """
    servers = [serve(at) for at in range(ps)]
    addresses = [server.address() for server in servers]
    return Team(program, servers, [work(_worker_of(program, addresses, at)) for at in range(workers)], addresses)


def start(
    program: Program, ps: int, workers: int, python: str, children: Children, log: Path, tuned_peers: bool = False
) -> Team:
    """Start a program's processes; they are up when `ready` has returned.

    Args:
        program: Whose.
        ps: How many PS.
        workers: How many workers.
        python: Interpreter of the peers' environment.
        children: Who starts them.
        log: Where the other systems' processes write what they have to say besides.
        tuned_peers: Whether the others' processes get the environment of globalstep's.
    """
    environ = _environment(program, tuned_peers)
    if program.key in ("globalstep", "baseline"):
        serve = ["-m", "globalstep.ps", "--port", "0", "--log-level", "WARNING"]
        if program.key == "baseline":
            serve = ["-m", "benchmarks.baseline.server", "--learning-rate", str(LEARNING_RATE)]

        def started(args: Sequence[str]) -> Child:
            return children.start(args, environ)

        return team_of(program, ps if program.exact else 1, workers, lambda _: started(serve), started)
    if program.key == "ray":
        # A cluster of this run alone, which tells nobody of itself.
        environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex, "RAY_USAGE_STATS_ENABLED": "0"}

        def process(job: str, index: int, *more: str) -> Child:
            return children.start([*_command(program, (ps, workers), job, index), *more], environ, python, log)

        server = process("ps", 0)
        address = server.address()
        made = [process("worker", at, "--address", address) for at in range(workers)]
        return Team(program, [server], made, [address])
    addresses = [f"127.0.0.1:{port}" for port in free_ports(ps + workers)]
    return team_at(program, ps, addresses, lambda _, args: children.start(args, environ, python, log))


def team_at(program: Program, ps: int, addresses: Sequence[str], begin: Callable[[str, Sequence[str]], Child]) -> Team:
    """Start the processes of a system that must know all addresses before.

    Args:
        program: Whose.
        ps: How many PS.
        addresses: "host:port" of all PS, then of all workers.
        begin: Starts a process, given its job and its command line.
    """
    workers = len(addresses) - ps

    def process(job: str, index: int) -> Child:
        return begin(job, [*_command(program, (ps, workers), job, index), "--addresses", *addresses])

    servers = [process("ps", at) for at in range(ps)]
    made = [process("worker", at) for at in range(workers)]
    return Team(program, servers, made, [server.address() for server in servers])


def _command(program: Program, counts: tuple[int, int], job: str, index: int) -> list[str]:
    """Give the command line of a process of another system, but for where the others are."""
    module = f"benchmarks.peers.{program.module}"
    return ["-m", module, *program.arguments, "--counts", *map(str, counts), "--job", job, "--index", str(index)]


def _worker_of(program: Program, addresses: Sequence[str], index: int) -> list[str]:
    if program.key == "baseline":
        return ["-m", "benchmarks.peers.grpcio_baseline", "--address", addresses[0]]
    module = "benchmarks.peers.globalstep_worker"
    return ["-m", module, "--addresses", ",".join(addresses), "--index", str(index)]


def default_python() -> str:
    """The peers' environment where `make bench-peers` has made it, else this one."""
    made = ROOT / ".venv-peers" / "bin" / "python"
    return str(made) if made.exists() else sys.executable
