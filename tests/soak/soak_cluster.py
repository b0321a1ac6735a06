"""The soak's processes: started, struck and started again; every one that ends on its own account is a failure."""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from planned_faults import environ_with
from random_faults import START_VARIABLE
from soak_windows import Windows

from globalstep.cluster.run_policy import RUN_POLICY_VARIABLE
from globalstep.deploy.launch.launch import cluster_jobs, make_tasks, reserve_ports
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.wire.transports import TRANSPORTS
from globalstep.worker.client.heartbeat import LEASE_SECS

FOLDER = Path(__file__).parent
PS, WORKERS = 3, 4
#: A process that is asked to end has so long.
GRACE_SECS = 30.0
#: So long after the job a task that came back too late for its end is there, as under `globalstep launch`.
LATE_SECS = 10.0
assert {"shm", "unix", "tcp", "grpc"} <= set(TRANSPORTS)


class SoakError(Exception):
    """Something that must not happen has happened."""


@dataclass
class Process:
    """A task, and how it fares.

    Attributes:
        name: "ps:0".
        starts: How often it was started.
        started_at: When it was last, by the monotonic clock.
        struck: What was done to it that it ends of; "" where it is not to end.
        start_at: When it is to be started again, by the monotonic clock.
        continue_at: When it is to be continued after SIGSTOP.
        kill_at: When it must have ended of SIGTERM.
        dismissed: Whether the job was over before it came.
    """

    name: str
    command: list[str]
    environ: dict[str, str]
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    started_at: float = 0.0
    struck: str = ""
    start_at: float | None = None
    continue_at: float | None = None
    kill_at: float | None = None
    dismissed: bool = False

    @property
    def lives(self) -> bool:
        """Whether it runs, and nothing is on its way to it."""
        return self.process is not None and not self.struck and self.continue_at is None


@dataclass
class Cluster:
    """All tasks of a round.

    Args:
        folder: Of the round: logs, answers, trace and the run itself.
        seed: Of the faults.
        transport: See globalstep.wire.transports.
        policy: The text of a RunPolicy.
        script: The job, one of the files here, and its arguments.
        rate: Probability of a fault of a message at each point.
    """

    folder: Path
    seed: int
    transport: str
    policy: str
    script: list[str]
    rate: float
    tasks: dict[str, Process] = field(default_factory=dict)
    struck: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._rng = random.Random(f"signals/{self.seed}")
        self._ports = contextlib.ExitStack()
        (self.folder / "logs").mkdir(parents=True)
        (self.folder / "answers").mkdir()
        (self.folder / "windows").mkdir()
        self._windows = Windows(self.folder / "windows", random.Random(f"windows/{self.seed}"))
        # When the chief or a PS task ended, when all PS tasks had that were there then, and when late ones are to end.
        self._over_at = self._ps_ended_at = self._late_at = math.inf

    def __enter__(self) -> Cluster:
        ports = self._ports.enter_context(reserve_ports(PS + 1 + WORKERS))
        environ = {
            **os.environ,
            "GLOBALSTEP_TRANSPORT": self.transport,
            RUN_POLICY_VARIABLE: f"spread_above=0,{self.policy}",
        }
        plan = f"random seed={self.seed} rate={self.rate:.6f}" if self.rate else ""
        environ |= environ_with(plan, self.folder / "faults")
        for task in make_tasks(
            cluster_jobs(PS, ports, chief=True), [str(FOLDER / self.script[0]), *self.script[1:]], environ
        ):
            self.tasks[task.name] = Process(task.name, task.command, task.environ)
            self._start(self.tasks[task.name])
        return self

    def __exit__(self, *exc: object) -> None:
        for task in self.tasks.values():
            if task.process is not None:
                self._signal(task, signal.SIGKILL)
                task.process.wait()
        self._ports.close()

    def _start(self, task: Process) -> None:
        with (self.folder / "logs" / f"{task.name.replace(':', '-')}.log").open("ab") as log:
            log.write(f"---- start {task.starts}\n".encode())
            log.flush()
            task.process = subprocess.Popen(
                task.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**task.environ, START_VARIABLE: str(task.starts)},
                start_new_session=True,
            )
        task.starts += 1
        task.started_at = SYSTEM_CLOCK.monotonic()
        task.struck, task.start_at, task.continue_at, task.kill_at = "", None, None, None

    @staticmethod
    def _signal(task: Process, number: signal.Signals) -> None:
        if task.process is not None and task.process.poll() is None:
            os.killpg(task.process.pid, number)

    # ---- Faults -------------------------------------------------------------------------------

    def strike(self) -> bool:
        """Make one fault, by chance; gives whether it took several processes away."""
        kinds = {"kill": 9, "terminate": 4, "stop": 6, "kill two PS": 1, "kill all PS": 2, "kill everything": 1}
        kind = self._rng.choices(list(kinds), list(kinds.values()))[0]
        everybody = list(self.tasks)
        all_ps = [name for name in everybody if name.startswith("ps")]
        jobs = [[name for name in everybody if name.startswith(job)] for job in ("ps", "worker", "chief")]
        chosen = [self._rng.choice(self._rng.choices(jobs, (4, 4, 3))[0])]
        if kind == "kill two PS":
            chosen = self._rng.sample(all_ps, 2)
        elif kind == "kill all PS":
            chosen = all_ps
        elif kind == "kill everything":
            chosen = everybody
        wait_secs, stop_secs = self._rng.random(), self._rng.uniform(0.3, 5.0)
        for task in (self.tasks[name] for name in chosen):
            if not task.lives:
                continue
            now = SYSTEM_CLOCK.monotonic()
            if kind == "stop":
                self._signal(task, signal.SIGSTOP)
                task.continue_at = now + stop_secs
            elif kind == "terminate":
                task.struck, task.kill_at = "SIGTERM", now + GRACE_SECS
                self._signal(task, signal.SIGTERM)
            else:
                task.struck = "SIGKILL"
                self._signal(task, signal.SIGKILL)
            task.start_at = None if kind == "stop" else now + wait_secs
            self._note(f"{task.name} {kind}" + (f" {stop_secs:.1f} s" if kind == "stop" else ""))
            self.struck[f"{kind}: {task.name.partition(':')[0]}" if len(chosen) == 1 else kind] += len(chosen) == 1
        if len(chosen) > 1:
            self.struck[kind] += 1
        return len(chosen) > 1

    def strike_in_windows(self) -> bool:
        """Kill whom the plan of windows names now; gives whether there was one."""
        due = self._windows.due(SYSTEM_CLOCK.monotonic(), self.tasks)
        for window, names in due:
            for task in (self.tasks[name] for name in names if self.tasks[name].lives):
                if task.process is None or task.process.poll() is not None:
                    continue  # it has ended, as it should: nobody starts that again
                task.struck, task.start_at = "SIGKILL", SYSTEM_CLOCK.monotonic() + self._rng.random()
                self._signal(task, signal.SIGKILL)
                self._note(f"{task.name} kill in {window}")
            self.struck[f"{window}: {'all PS' if len(names) > 1 else names[0].partition(':')[0]}"] += 1
        return bool(due)

    def _note(self, text: str) -> None:
        with (self.folder / "signals").open("a") as file:
            file.write(f"{SYSTEM_CLOCK.time():.2f} {text}\n")

    # ---- Care ---------------------------------------------------------------------------------

    def look_after(self) -> bool:
        """Start again what was struck, continue what was stopped; False once all have ended well.

        Raises:
            SoakError: If a process ended that nobody had struck, or did not end when it was asked to.
        """
        now = SYSTEM_CLOCK.monotonic()
        waiting = False
        for task in self.tasks.values():
            if task.continue_at is not None and now >= task.continue_at:
                self._signal(task, signal.SIGCONT)
                task.continue_at = None
            if task.process is not None:
                code = task.process.poll()
                if code is None:
                    if task.kill_at is not None and now > task.kill_at:
                        raise SoakError(f"{task.name} did not end within {GRACE_SECS:.0f} s of SIGTERM.")
                elif task.struck:
                    self._note(f"{task.name} ended by {task.struck} with {code}")
                    task.process = None
                elif code and not task.dismissed:
                    raise SoakError(f"{task.name} ended by itself, with {code}: {self.last_lines(task.name)}")
            if task.struck and task.process is None and task.start_at is not None and now >= task.start_at:
                self._start(task)
            waiting = waiting or task.process is None or task.process.poll() is None
        if waiting:
            self._end_late_ones(now)
        return waiting

    def _end_late_ones(self, now: float) -> None:
        """Ask those to end that came back when the others had ended with the job, as `globalstep launch` does."""
        there = [self.tasks[name] for name in self.still_there()]
        for task in self.tasks.values():
            if not task.name.startswith("worker") and not task.struck and task.process and task.process.poll() == 0:
                self._over_at = min(self._over_at, now)

        def came_after(task: Process, end: float) -> bool:
            return task.starts > 1 and task.started_at > end - LATE_SECS - LEASE_SECS

        if all(came_after(task, self._over_at) for task in there if task.name.startswith("ps")):
            self._ps_ended_at = min(self._ps_ended_at, now)
        if not all(task.name.startswith("ps") or came_after(task, self._ps_ended_at) for task in there):
            self._late_at = math.inf
            return
        self._late_at = min(self._late_at, now + LATE_SECS)
        for task in there:
            if now > self._late_at and task.lives and not task.dismissed:
                task.dismissed, task.kill_at = True, now + GRACE_SECS
                self._signal(task, signal.SIGTERM)
                self._note(f"{task.name} came too late, and is dismissed")
                self.struck[f"dismissed: {task.name.partition(':')[0]}"] += 1

    def ask_where(self) -> None:
        """Have all tasks that run sessions print where their threads are, into their logs."""
        for task in self.tasks.values():
            if not task.name.startswith("ps"):
                self._signal(task, signal.SIGCONT)
                self._signal(task, signal.SIGUSR1)

    def continue_all(self) -> None:
        """Let nothing stay stopped."""
        for task in self.tasks.values():
            if task.continue_at is not None:
                task.continue_at = 0.0

    def ended_early(self) -> list[str]:
        """Name the tasks that have ended although the job cannot be done."""
        return [
            task.name
            for task in self.tasks.values()
            if not task.struck and task.process is not None and task.process.poll() is not None
        ]

    def still_there(self) -> list[str]:
        """Name the tasks that have not ended."""
        return [name for name, task in self.tasks.items() if task.process is None or task.process.poll() is None]

    def log(self, name: str) -> str:
        """What all processes of a task have printed."""
        return (self.folder / "logs" / f"{name.replace(':', '-')}.log").read_text(errors="replace")

    def last_lines(self, name: str, count: int = 12) -> str:
        """The end of it."""
        return "".join(f"\n    {line}" for line in self.log(name).splitlines()[-count:])


def repeat_command(seed: int, secs: float, number: int) -> str:
    """Give the command that repeats a round."""
    return f"{Path(sys.executable).name} tests/soak --seed {seed} --round {number} --round-secs {secs:g}"
