"""Short jobs in a row, each with processes of its own: how long after the last step is the last of them gone?

`python tests/integration/jobs/short_jobs.py --jobs 100` writes a line a job and a summary; it fails where a process
ends with another code than 0, or later than --limit-secs after the last step.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import select
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))

from processes import Processes, free_addresses

from globalstep.runtime.clock import SYSTEM_CLOCK

PROGRAM = Path(__file__).resolve().parent / "programs" / "short_job.py"
#: PS tasks and workers of the jobs, in turn.
SIZES = ((1, 2), (2, 3))


@dataclass(frozen=True)
class Ended:
    """How a job ended."""

    codes: dict[str, int | None]
    #: From the last step to each exit, in order; infinity for a process that did not end.
    exits: dict[str, float]
    outputs: str

    @property
    def secs(self) -> float:
        """From the last step to the last exit."""
        return max(self.exits.values())


def run_job(folder: Path, ps: int, workers: int, steps: int, timeout_secs: float = 90.0) -> Ended:
    """Run a job to its end."""
    folder.mkdir()
    addresses = free_addresses(ps + workers)
    cluster = {"ps": addresses[:ps], "worker": addresses[ps:]}
    with Processes(folder) as running:
        names = []
        for job, hosts in cluster.items():
            for index in range(len(hosts)):
                config = json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})
                names.append(f"{job}:{index}")
                running.start(names[-1], PROGRAM, folder / "run", steps, env={"TF_CONFIG": config})
        exits = _watch({name: running.pid(name) for name in names}, timeout_secs)
        outputs = {name: running.output(name) for name in names}
        made = [float(found) for text in outputs.values() for found in re.findall(r"^last step at (\S+)$", text, re.M)]
        last_step = max(made, default=float("-inf"))
        after = {name: exits.get(name, float("inf")) - last_step for name in names}
        codes = {name: running.code(name) for name in names}
        after = dict(sorted(after.items(), key=lambda item: item[1]))
        return Ended(codes, after, "\n".join(f"--- {name}\n{text}" for name, text in outputs.items()))


def _watch(pids: dict[str, int], timeout_secs: float) -> dict[str, float]:
    """Give when each process ended; those that have not within the time are left out."""
    deadline = SYSTEM_CLOCK.monotonic() + timeout_secs
    open_ = {os.pidfd_open(pid): name for name, pid in pids.items()}
    exits: dict[str, float] = {}
    while open_:
        ready = select.select(list(open_), [], [], max(deadline - SYSTEM_CLOCK.monotonic(), 0.0))[0]
        for descriptor in ready or list(open_):
            name = open_.pop(descriptor)
            os.close(descriptor)
            if ready:
                exits[name] = SYSTEM_CLOCK.monotonic()
    return exits


def main() -> int:
    """Run the jobs; gives the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--limit-secs", type=float, default=15.0, help="latest exit after the last step (default 15)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    ends: list[float] = []
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for job in range(args.jobs):
            (ps, workers), steps = SIZES[job % len(SIZES)], rng.randint(50, 300)
            ended = run_job(Path(folder, str(job)), ps, workers, steps)
            ends.append(ended.secs)
            well = set(ended.codes.values()) == {0} and ended.secs <= args.limit_secs
            failed += not well
            exits = ", ".join(f"{name} {secs:.2f} s" for name, secs in ended.exits.items())
            print(f"job {job}: {ps} PS, {workers} workers, {steps} steps; after the last: {exits}")
            if not well:
                print(f"codes {ended.codes}\n{ended.outputs}")
            sys.stdout.flush()
    over = sum(secs > 3.0 for secs in ends)
    print(f"{len(ends)} jobs, {failed} failed; from the last step to the last exit: median", end=" ")
    print(f"{statistics.median(ends):.2f} s, longest {max(ends):.2f} s, {over} took more than 3 s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
