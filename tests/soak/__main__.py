"""Soaks globalstep: rounds of a job whose processes and messages fail all the time, and which must end exactly.

3 PS, a chief and 4 workers as real processes; kill -9, SIGTERM, SIGSTOP, all PS at once, everything at once, and at
random points of the protocol requests that are lost, doubled, late or cut off, and replies that are lost; then tasks
of every role while a checkpoint is saved or evaluated, and between the last step and the end of the session. The rounds
take shared memory, unix sockets, TCP and gRPC in turn, with durability="log" and durability="checkpoint", and a job of
sessions and four of gs.Trainer: each worker's own steps, synchronous ones, units of work, local steps.
A round that fails keeps its directory, and says which command repeats it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))

from soak_checks import faults_of
from soak_cluster import Cluster, SoakError, repeat_command

from globalstep.runtime.clock import SYSTEM_CLOCK

TRANSPORTS = ("shm", "unix", "tcp", "grpc")
#: Job -> steps that the clock allows in a second.
JOBS = {"session": 60, "fit": 60, "sync": 20, "units": 20, "local": 20}
#: After the last fault the job has so long to make its last steps, and to end.
END_SECS = 120.0
EVERY_SECS = 2.5
RATE = 0.001


@dataclass
class Round:
    """What a round is, and what came of it."""

    number: int
    seed: int
    job: str
    transport: str
    durability: str
    policy: str
    secs: float
    last_step: int
    took_secs: float = 0.0
    wrong: list[str] = field(default_factory=list)
    signals: dict[str, int] = field(default_factory=dict)
    messages: dict[str, int] = field(default_factory=dict)
    restarts: int = 0
    retries: int = 0
    duplicates: int = 0
    dropped_stale: int = 0
    abandoned: int = 0
    restores: int = 0
    recoveries: int = 0
    lost: int = 0
    steps: int = 0
    audit: str = ""


def make_round(seed: int, number: int, secs: float) -> Round:
    """Say what a round is: the transports in turn, either durability with each of them."""
    rng = random.Random(f"round/{seed}/{number}")
    job = list(JOBS)[number % len(JOBS)]
    transport = TRANSPORTS[number % len(TRANSPORTS)]
    durability = ("log", "checkpoint")[(number + number // len(TRANSPORTS)) % 2]
    policy = f"durability={durability}"
    if rng.random() < 0.4 and job in ("session", "fit"):
        policy += f",staleness=drop,max_staleness={rng.choice((2, 4, 8))}"
    return Round(number, rng.randrange(10**9), job, transport, durability, policy, secs, int(secs * JOBS[job]))


def soak(one: Round, folder: Path, every_secs: float, rate: float) -> None:
    """Run a round."""
    began, began_wall = SYSTEM_CLOCK.monotonic(), SYSTEM_CLOCK.time()
    script = [
        *(["soak_job.py"] if one.job == "session" else ["soak_fit.py", "--mode", one.job]),
        *("--last-step", str(one.last_step), "--dir", str(folder / "run"), "--answers", str(folder / "answers")),
        *("--seed", str(one.seed), "--began", str(began_wall), "--secs", str(one.secs)),
        *("--windows", str(folder / "windows")),
    ]
    rng = random.Random(f"times/{one.seed}")
    pause = threading.Event()
    with Cluster(folder, one.seed, one.transport, one.policy, script, rate) as cluster:
        try:
            # A quarter of the rounds are struck while they start, the others once pushes are made.
            from_start, next_at = rng.random() < 0.25, began + 4.0
            while (now := SYSTEM_CLOCK.monotonic()) < began + one.secs:
                cluster.look_after()
                cluster.strike_in_windows()
                if early := cluster.ended_early():
                    raise SoakError(f"{early} ended before the job can be done.")
                if now >= next_at and (from_start or any((folder / "answers").iterdir())):
                    # What takes all PS tasks away takes seconds to mend; what came at once would only meet that again.
                    next_at = now + rng.expovariate(1 / every_secs) + (4.0 if cluster.strike() else 0.0)
                SYSTEM_CLOCK.wait(pause, 0.05)
            cluster.continue_all()
            last = SYSTEM_CLOCK.monotonic()
            while cluster.look_after():
                if cluster.strike_in_windows():
                    last = SYSTEM_CLOCK.monotonic()
                if SYSTEM_CLOCK.monotonic() > last + END_SECS:
                    there = cluster.still_there()
                    lines = "".join(f"\n{name}:{cluster.last_lines(name, 5)}" for name in there)
                    raise SoakError(f"{END_SECS:.0f} s after the last fault there still are {there}:{lines}")
                SYSTEM_CLOCK.wait(pause, 0.05)
        except SoakError as error:
            one.wrong.append(str(error))
            cluster.ask_where()
            SYSTEM_CLOCK.wait(pause, 1.0)
        one.took_secs = SYSTEM_CLOCK.monotonic() - began
    gather(one, cluster)
    if not one.wrong:
        wrong, told = faults_of(folder, one.last_step, one.durability, one.job)
        one.wrong += wrong
        use_audit(one, told)


def gather(one: Round, cluster: Cluster) -> None:
    """Count what happened."""
    one.signals = {kind: count for kind, count in cluster.struck.items() if count}
    trace = cluster.folder / "faults"
    lines = trace.read_text().splitlines() if trace.exists() else []
    kinds = Counter(f"{line.split()[1]} {line.split()[3].partition('.')[2]}" for line in lines)
    one.messages = dict(sorted(kinds.items()))
    one.restarts = sum(task.starts - 1 for task in cluster.tasks.values())
    logs = {name: cluster.log(name) for name in cluster.tasks}
    one.retries = sum(int(count) for log in logs.values() for count in re.findall(r"^retries (\d+)$", log, re.M))
    one.restores = sum(log.count("All PS tasks go back together") for log in logs.values())
    one.recoveries = sum(log.count("is back at entry") for name, log in logs.items() if name.startswith("ps"))
    one.wrong += [f"{name}: {line}" for name, log in logs.items() for line in re.findall(r"^WRONG .*", log, re.M)]


def use_audit(one: Round, told: dict) -> None:
    """Take over what the audit says."""
    if not told:
        return
    workers = told["workers"].values()
    one.duplicates = sum(worker["duplicates"] for worker in workers)
    one.dropped_stale = sum(worker["dropped_stale"] for worker in workers)
    one.abandoned = sum(worker["abandoned"] for worker in workers)
    one.lost = sum(item["lost"] for item in told["incarnations"])
    step = told["steps"].get("global_step", {})
    one.steps = step.get("value", 0)
    proven = "PROVEN" if told["proven"] else "NOT PROVEN"
    one.audit = f"global_step = {one.steps} = {step.get('base')} + {step.get('pushes')} accepted pushes, {proven}"


def table(rounds: list[Round]) -> str:
    """Show all rounds for people."""
    head = (
        *(
            "ROUND",
            "JOB",
            "TRANSPORT",
            "POLICY",
            "SECS",
            "STEPS",
            "STEPS/S",
            "SIGNALS",
            "RESTARTS",
            "MESSAGES",
            "RETRIES",
        ),
        *("DUPLICATES", "STALE", "ABANDONED", "RESTORES", "RECOVERIES", "LOST", "RESULT"),
    )
    rows = [head]
    for one in rounds:
        counts = (sum(one.signals.values()), one.restarts, sum(one.messages.values()), one.retries, one.duplicates)
        more = (one.dropped_stale, one.abandoned, one.restores, one.recoveries, one.lost)
        speed = one.steps / one.took_secs if one.took_secs else 0.0
        policy = one.policy.replace("durability=", "").replace(",staleness=drop,max_staleness=", ", drop over ")
        rows.append(
            (
                *(str(one.number), one.job, one.transport, policy, f"{one.took_secs:.0f}"),
                *(str(one.steps), f"{speed:.0f}"),
                *map(str, (*counts, *more)),
                "FAILED" if one.wrong else "exact",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    signals, messages = Counter[str](), Counter[str]()
    for one in rounds:
        signals.update(one.signals)
        messages.update(one.messages)
    lines += ["", "Faults by kind:", *(f"  {count:6} {kind}" for kind, count in sorted(signals.items()))]
    lines += [f"  {count:6} messages: {kind}" for kind, count in sorted(messages.items())]
    lines += ["", *(f"audit of round {one.number}: {one.audit}" for one in rounds if one.audit)]
    return "\n".join(lines)


def main() -> int:
    """Run what the command line asks for; 1 if a round failed."""
    parser = argparse.ArgumentParser(prog="python tests/soak", description=__doc__)
    parser.add_argument("--secs", type=float, default=120.0, help="for how long there are faults, in all rounds")
    parser.add_argument("--round-secs", type=float, default=30.0, help="and in one of them")
    parser.add_argument("--seed", type=int, default=None, help="of all chance (default: one that nobody has tried)")
    parser.add_argument("--round", type=int, action="append", help="only this round, to repeat it; may be given again")
    parser.add_argument("--every-secs", type=float, default=EVERY_SECS, help="time between two signals, on average")
    parser.add_argument("--rate", type=float, default=RATE, help="probability of a fault at a point of the protocol")
    parser.add_argument("--dir", type=Path, default=None, help="where run directories go (default: a new one)")
    parser.add_argument("--json", type=Path, default=None, help="write the numbers here")
    parser.add_argument("--keep", action="store_true", help="keep the directories of rounds that went well too")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # its tasks end with it
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    given.dir = Path(tempfile.mkdtemp(prefix="soak-")) if given.dir is None else given.dir.resolve()
    numbers = given.round or range(max(1, round(given.secs / given.round_secs)))
    print(f"seed {seed}, {len(numbers)} rounds of {given.round_secs:g} s in {given.dir}", flush=True)
    rounds = []
    for number in numbers:
        one = make_round(seed, number, given.round_secs)
        rounds.append(one)
        folder = given.dir / f"seed-{seed}-round-{number}"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            soak(one, folder, given.every_secs, given.rate)
        except Exception:
            one.wrong.append(traceback.format_exc())
        print(
            f"round {number}: {one.job}, {one.transport}, {one.policy}: {'FAILED' if one.wrong else 'exact'}",
            flush=True,
        )
        for text in one.wrong:
            print(f"  {text}", flush=True)
        if one.wrong:
            print(f"  kept: {folder}\n  repeat: {repeat_command(seed, given.round_secs, number)}", flush=True)
        elif not given.keep:
            shutil.rmtree(folder)
    print(f"\n{table(rounds)}", flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps({"seed": seed, "rounds": [asdict(one) for one in rounds]}, indent=2) + "\n")
    failed = any(one.wrong for one in rounds)
    with contextlib.suppress(OSError):
        given.dir.rmdir()  # unless something was kept
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
