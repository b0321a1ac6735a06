"""An honest job while every known attack goes on at once, over every transport: exact, PROVEN, within its memory.

    python tests/integration/security/under_attack.py [--secs 120]

Two PS tasks with tokens and otherwise default settings, a chief on shared memory, workers on TCP, on unix sockets and
on gRPC, all real processes. The attacks are those of attacks.py: strangers, and somebody with a worker's token. Turns
in peace and turns under attack alternate. The attackers run only while no other process wants the processor (Linux's
idle class), since on a machine of few cores their own work would take what the job needs: what is measured is what they
cost the PS tasks, as if they came from elsewhere. How much of the processor they got is reported, and what the PS tasks
took of it for a step, in peace and under attack. Ends with 1 if something does not hold; the rate of the turns under
attack must be at least 0.7 of that of the turns in peace.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))

from hostile_peers import resident_bytes
from processes import ROOT, Processes, free_addresses

from globalstep.deploy.audit.audit import audit
from globalstep.errors import OpError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.server import default_limit_bytes
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.security.credentials import Credentials
from globalstep.worker.transport.grpc_transport import GrpcTransport

JOB = ROOT / "tests" / "support" / "counting_job.py"
ATTACKS = Path(__file__).with_name("attacks.py")
LEAST_SHARE = 0.7
#: How many attacks there are.
ATTACK_COUNT = 32
TOKENS = {
    name: f"{name}-0123456789abcdef0123456789abcdef"
    for name in ("chief", "worker", "ps", "worker:mallory", "worker:gone")
}
#: Who trains, and how its data travels.
CLIENTS = {"chief": "shm", "worker0": "tcp", "worker1": "unix", "worker2": "grpc"}
SETTLE_SECS = 2.0


@dataclass
class Found:
    """What came of it.

    Attributes:
        faults: What does not hold, in words; empty if all does.
        quiet: Steps a second of each turn in peace.
        attacked: Those of each turn under attack.
        quiet_cpu_secs: Processor time of the PS tasks for 1,000 steps, of each turn in peace.
        attacked_cpu_secs: That of each turn under attack.
        rounds: Attack -> how often it was made.
        peak_bytes: Most memory of a PS task.
        before_bytes: Most memory of one before the first attack.
        attackers_cpu_secs: Processor time of the attackers.
    """

    faults: list[str] = field(default_factory=list)
    quiet: list[float] = field(default_factory=list)
    attacked: list[float] = field(default_factory=list)
    quiet_cpu_secs: list[float] = field(default_factory=list)
    attacked_cpu_secs: list[float] = field(default_factory=list)
    rounds: dict[str, int] = field(default_factory=dict)
    peak_bytes: int = 0
    before_bytes: int = 0
    attackers_cpu_secs: float = 0.0

    @property
    def share(self) -> float:
        """The rate under attack, of that in peace: medians."""
        return median(self.attacked) / median(self.quiet) if self.quiet and self.attacked else float("nan")


class _Impostor:
    """Listens where the PS task's port is, at the other loopback address, and takes note of who says what."""

    def __init__(self, port: int) -> None:
        self.heard = 0
        self._listening: socket.socket | None = None
        with contextlib.suppress(OSError):
            self._listening = socket.create_server(("::1", port), family=socket.AF_INET6)
            self._thread = threading.Thread(target=self._listen, name="impostor", daemon=True)
            self._thread.start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while self._listening is not None:
                self._listening.accept()[0].close()
                self.heard += 1

    def close(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            listening.close()
            self._thread.join()


class _Watch:
    """Looks at the PS tasks' memory until it is stopped."""

    def __init__(self, pids: list[int]) -> None:
        self.peak_bytes = 0
        self._pids = pids
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not SYSTEM_CLOCK.wait(self._stop, 0.05):
            for pid in self._pids:
                with contextlib.suppress(OSError, StopIteration):
                    self.peak_bytes = max(self.peak_bytes, resident_bytes(pid))

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


def _write_tokens(path: Path, without: str = "") -> None:
    path.touch(0o600)
    path.write_text("".join(f"{name} {token}\n" for name, token in TOKENS.items() if name != without))


class _Job:
    """The honest job's processes."""

    def __init__(
        self, folder: Path, processes: Processes, last_step: int, save_steps: int, clients: dict[str, str], wait: int
    ) -> None:
        self.processes = processes
        self.clients = clients
        self.run = folder / "run"
        self.made = folder / "attacks-made"
        self.tokens = folder / "tokens"
        self._folder = folder
        _write_tokens(self.tokens)
        addresses = free_addresses(2 + len(clients))
        # By a name: an impostor listens at the other address that it might mean.
        cluster = {"ps": [address.replace("127.0.0.1", "localhost") for address in addresses[:2]]}
        cluster |= {"chief": addresses[2:3], "worker": addresses[3:]}
        self.addresses = addresses[:2]
        for index in range(2):
            config = json.dumps({"cluster": cluster, "task": {"type": "ps", "index": index}})
            command = ["-m", "globalstep.ps", "--tokens-file", self.tokens]
            processes.start(f"ps{index}", *command, env={"TF_CONFIG": config, "GLOBALSTEP_TRANSPORT": "auto"})
        for index in range(2):
            processes.until(f"ps{index}", "serving on")
        options = ["--last-step", last_step, "--dir", self.run, "--save-steps", save_steps]
        options += ["--slow-until", self.made, wait] if wait else []
        for name, transport in clients.items():
            job, index = ("chief", 0) if name == "chief" else ("worker", int(name[-1]))
            config = json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})
            shown = {"GLOBALSTEP_TOKEN": TOKENS[job], "GLOBALSTEP_TRANSPORT": transport}
            processes.start(name, JOB, *options, env={"TF_CONFIG": config, **shown})

    def pids(self) -> list[int]:
        """Of the PS tasks."""
        return [self.processes.pid(f"ps{index}") for index in range(2)]

    def step(self) -> int:
        """The step now; -1 when the job is over."""
        with contextlib.closing(
            GrpcTransport(self.addresses[0], 0, "grpc", credentials=Credentials(token=TOKENS["ps"]))
        ) as connection:
            try:
                status = connection.unary("Status", pb.StatusRequest(brief=True), 20.0).result()
            except OpError:
                return -1
            return -1 if self.over() else max(status.steps.values(), default=0)

    def over(self) -> bool:
        """Whether a client has ended."""
        return any(self.processes.code(name) is not None for name in self.clients)

    def pass_time(self, secs: float) -> None:
        """Let time pass, or less when the job ends."""
        self.processes.pause("chief", secs)

    def rate(self, secs: float) -> tuple[float, float] | None:
        """Steps a second for some time, and processor time of the PS for 1,000; None when the job was over before."""
        began, first, used = SYSTEM_CLOCK.monotonic(), self.step(), self._cpu_secs()
        self.pass_time(secs)
        last = self.step()
        if min(first, last) < 0:
            return None
        steps = last - first
        return steps / (SYSTEM_CLOCK.monotonic() - began), 1000 * (self._cpu_secs() - used) / max(steps, 1)

    def _cpu_secs(self) -> float:
        """Processor time that the PS tasks have taken."""
        found = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self.pids()]
        return sum(int(fields[11]) + int(fields[12]) for fields in found) / os.sysconf("SC_CLK_TCK")


class _Attackers:
    """The process of the attackers."""

    def __init__(self, job: _Job, folder: Path, pause_secs: float, idle: int, yielding: bool) -> None:
        secrets = folder / "attackers.json"
        secrets.touch(0o600)
        secrets.write_text(json.dumps({"worker": TOKENS["worker:mallory"], "revoked": TOKENS["worker:gone"]}))
        _write_tokens(job.tokens, without="worker:gone")
        self._out = folder / "attacks.json"
        self._log = (folder / "attacks.log").open("w+")
        command = [sys.executable, str(ATTACKS), "--addresses", ",".join(job.addresses), "--tokens", str(secrets)]
        command += ["--out", str(self._out), "--pause", str(pause_secs), "--idle", str(idle)]
        command += ["--made", str(job.made)]
        self._process = subprocess.Popen(
            ["chrt", "--idle", "0", *command] if yielding else command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            self._process.wait(20)
            self._log.seek(0)
            raise RuntimeError(f"The attackers did not start: {self._log.read()}")

    def attack(self, on: bool) -> None:
        """Begin, or pause."""
        assert self._process.stdin is not None
        print("on" if on else "off", file=self._process.stdin, flush=True)

    def end(self) -> dict[str, Any]:
        """End them; gives their report."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._process.wait(120) != 0:
            self._log.seek(0)
            raise RuntimeError(f"The attackers ended with {self._process.returncode}: {self._log.read()}")
        found: dict[str, Any] = json.loads(self._out.read_text())
        return found

    def close(self) -> None:
        """Leave nothing behind."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                stream.close()


def run(
    folder: Path,
    last_step: int,
    turn_secs: float,
    *,
    clients: dict[str, str] | None = None,
    save_steps: int = 1000,
    pause_secs: float = 0.2,
    idle: int = 300,
    yielding: bool = False,
) -> Found:
    """Train to a step under attack, and look whether all holds but the rate.

    Args:
        folder: An empty one, to work in.
        last_step: The job's.
        turn_secs: Length of a turn; 0 to attack all the time, and to go on slowly until every
            attack was made.
        clients: Who trains, and by which transport; those of CLIENTS by default.
        save_steps: Of the job's checkpoints.
        pause_secs: Between two rounds of an attack.
        idle: Connections at each port that say nothing.
        yielding: Whether the attackers run only while no other process wants the processor.
    """
    clients = clients or CLIENTS
    found = Found()
    with Processes(folder) as processes, contextlib.ExitStack() as left:
        job = _Job(folder, processes, last_step, save_steps, clients, 0 if turn_secs else ATTACK_COUNT)
        impostors = [_Impostor(int(address.rpartition(":")[2])) for address in job.addresses]
        for impostor in impostors:
            left.callback(impostor.close)
        for name in clients:
            processes.until(name, "^ready", 60.0)
        attackers = _Attackers(job, folder, pause_secs, idle, yielding)
        left.callback(attackers.close)
        found.before_bytes = max(map(resident_bytes, job.pids()))
        watch = _Watch(job.pids())
        left.callback(watch.close)
        _take_turns(job, attackers, turn_secs, found)
        codes = processes.wait(180.0)
        report = attackers.end()
        found.peak_bytes = watch.peak_bytes
        found.rounds, found.attackers_cpu_secs = report["rounds"], report["cpu_secs"]
        found.faults += report["breaches"]
        found.faults += [
            f"{name} ended with {code}: {processes.output(name)[-2000:]}" for name, code in codes.items() if code
        ]
        if any(impostor.heard for impostor in impostors):
            found.faults.append("somebody connected to the impostor at [::1]")
        outputs = {name: processes.output(name) for name in codes}
    _judge(job, last_step, outputs, found)
    return found


def _take_turns(job: _Job, attackers: _Attackers, turn_secs: float, found: Found) -> None:
    if not turn_secs:
        attackers.attack(True)
        job.processes.until_ended(job.clients, 300.0)
        return
    while not job.over():
        for attacked in (False, True):
            attackers.attack(attacked)
            job.pass_time(SETTLE_SECS)
            measured = job.rate(turn_secs)
            if measured is not None:
                (found.attacked if attacked else found.quiet).append(measured[0])
                (found.attacked_cpu_secs if attacked else found.quiet_cpu_secs).append(measured[1])


def _judge(job: _Job, last_step: int, outputs: dict[str, str], found: Found) -> None:
    """Look at the end: the step, the values, the proof, the memory, the logs."""
    runs = [int(count) for name in job.clients for count in re.findall(r"done after (\d+) runs", outputs[name])]
    if not last_step <= sum(runs) <= last_step + len(job.clients):
        found.faults.append(f"{sum(runs)} runs made {last_step} steps: {runs}")
    found.faults += [
        f"{name}: {line}" for name in job.clients for line in outputs[name].splitlines() if "wrong at" in line
    ]
    proof = audit(str(job.run))
    if not proof.proven:
        found.faults.append(f"audit: {proof.findings}")
    step = proof.steps.get("global_step")
    if step is None or not step.value == step.pushes == proof.checkpoint_steps.get("global_step") == last_step:
        found.faults.append(f"the audit says {step}, the checkpoint {proof.checkpoint_steps}; {last_step} is right")
    most = found.before_bytes + default_limit_bytes()
    if found.peak_bytes > most:
        found.faults.append(f"a PS task had {found.peak_bytes >> 20} MiB; {most >> 20} are its limit")
    for index in range(2):
        log = outputs[f"ps{index}"]
        found.faults += [f"ps{index} logged an error of its own: {log[-3000:]}"] * ("Traceback" in log)
        if any(token in log for token in TOKENS.values()) or "\x1b" in log:
            found.faults.append(f"ps{index} logged a token, or what speaks to terminals")
        if len(log.splitlines()) > 3000:
            found.faults.append(f"ps{index} logged {len(log.splitlines())} lines")


def _median(values: list[float]) -> float:
    return median(values) if values else math.nan


def main() -> int:
    """Measure, and judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--secs", type=float, default=120.0, help="the job takes at least as long (default 120)")
    parser.add_argument("--turn-secs", type=float, default=8.0)
    parser.add_argument("--pause", type=float, default=0.2, help="seconds between two rounds of each attack")
    parser.add_argument("--idle", type=int, default=1000, help="connections at each port that say nothing")
    parser.add_argument("--eager", action="store_true", help="have the attackers take their share of the processor")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="under-attack-") as made:
        first = Path(made, "first")
        first.mkdir()
        began = SYSTEM_CLOCK.monotonic()
        # How fast this machine is: a short one, at its end all the same.
        trial = run(first, 4000, 2.0, pause_secs=args.pause, idle=args.idle, yielding=not args.eager)
        rate = max([*trial.quiet, *trial.attacked, 4000 / (SYSTEM_CLOCK.monotonic() - began)])
        second = Path(made, "second")
        second.mkdir()
        found = run(
            second,
            int(rate * args.secs),
            args.turn_secs,
            pause_secs=args.pause,
            idle=args.idle,
            yielding=not args.eager,
        )
    for name, count in found.rounds.items():
        print(f"{count:6d} {name}")
    if not found.quiet or not found.attacked:
        found.faults.append("the job was over before a turn in peace and one under attack had ended")
        found.quiet, found.attacked = found.quiet or [math.nan], found.attacked or [math.nan]
    print(
        f"{median(found.quiet):,.0f} steps/s in peace, {median(found.attacked):,.0f} under attack: {found.share:.2f}\n"
        f"quiet {[round(one) for one in found.quiet]}, attacked {[round(one) for one in found.attacked]}\n"
        f"PS memory {found.before_bytes >> 20} MiB before, {found.peak_bytes >> 20} at most; "
        f"the limit is {default_limit_bytes() >> 20} more\n"
        f"PS processor time for 1,000 steps: {_median(found.quiet_cpu_secs):.2f} s in peace, "
        f"{_median(found.attacked_cpu_secs):.2f} s under attack\n"
        f"attackers: {found.attackers_cpu_secs:.0f} s of the processor"
    )
    if not found.share >= LEAST_SHARE:
        found.faults.append(f"the rate under attack is {found.share:.2f} of the quiet one; {LEAST_SHARE} is the least")
    found.faults += [f"attack {name!r} was never made" for name, count in found.rounds.items() if not count]
    for fault in [*trial.faults, *found.faults]:
        print(f"FAULT: {fault}")
    return 1 if trial.faults or found.faults else 0


if __name__ == "__main__":
    sys.exit(main())
