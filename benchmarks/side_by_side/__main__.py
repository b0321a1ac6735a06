"""`python -m benchmarks.side_by_side`: one job with gs.fit and with its peers, each as its own guide writes it.

Three runs of each: as it is; with a second worker whose batches take four times as long; and with that worker killed
halfway (SIGKILL). Printed are the lines of the script, the seconds from the first batch to the end, what the kill
brought about, and how many batches were read for the 400 that the model was to be trained on.

The peers are in an environment of their own: `make bench-peers`. Those that are not installed are named as absent.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "3"]
#: Script -> the module that it needs, and what comes between python and the script.
PEERS = {
    "gs_fit": ("globalstep", ["-m", "globalstep", "launch", "--ps", "1", "--workers", "2", "--max-restarts", "3"]),
    "torch_ddp": ("torch", TORCHRUN),
    "accelerate_loop": ("accelerate", TORCHRUN),
    "lightning_fit": ("lightning", []),
    "ray_train": ("ray.train", []),
}


@dataclass
class Outcome:
    """What came of a run.

    Attributes:
        seconds: From the first batch to the end.
        ended: Whether the job came to its end.
        code: The exit status.
        began: How often a worker began to read.
        restored: The lines that say where training went on.
        batches: How many batches were read.
        by_hand: Whether the job had to be started again, after it had ended with an error.
        last: The end of the output.
    """

    seconds: float = 0.0
    ended: bool = False
    code: int | None = None
    began: int = 0
    restored: list[str] = field(default_factory=list)
    batches: int = 0
    by_hand: bool = False
    last: str = ""


def main() -> None:
    """Run all and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", default=list(PEERS), help=f"of {', '.join(PEERS)}")
    parser.add_argument("--peers-python", default=str(ROOT / ".venv-peers/bin/python"))
    parser.add_argument("--limit", type=float, default=240, help="seconds that a run may take")
    parser.add_argument("--runs", nargs="+", default=["even", "uneven", "killed"], help="which of the three")
    options = parser.parse_args()
    for name in options.names:
        module, before = PEERS[name]
        python = sys.executable if name == "gs_fit" else options.peers_python
        if subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode:
            print(f"{name}: {module} is not installed", flush=True)
            continue
        command = [python, *before, str(HERE / f"{name}.py")]
        row: dict[str, object] = {"name": name, "lines": lines_of(HERE / f"{name}.py")}
        for kind in options.runs:
            with tempfile.TemporaryDirectory() as folder:
                outcome = of_kind(kind, command, folder, options.limit)
            row[kind] = {key: value for key, value in asdict(outcome).items() if key != "last" or not outcome.ended}
        print(json.dumps(row), flush=True)


def of_kind(kind: str, command: list[str], folder: str, limit: float) -> Outcome:
    """Do one of the three runs; a job that the kill has ended is started again by the same command."""
    if kind != "killed":
        return run(command, folder, limit, slow_ms=80 if kind == "uneven" else None)
    outcome = run(command, folder, limit, kill_after=2.5)
    if outcome.ended:
        return outcome
    again = run(command, folder, limit)
    again.by_hand = True
    return again


def lines_of(path: Path) -> int:
    """Count the lines that are neither empty nor comments nor the docstring."""
    text = re.sub(r'\A""".*?"""', "", path.read_text(), flags=re.DOTALL)
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in text.splitlines())


def run(
    command: list[str], folder: str, limit: float, slow_ms: float | None = None, kill_after: float | None = None
) -> Outcome:
    """Run a job, and kill its second worker if that is wanted."""
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "SIDE_BY_SIDE": folder,
    }
    if slow_ms is not None:
        environ["SLOW_MS"] = str(slow_ms)
    outcome = Outcome()
    with subprocess.Popen(
        command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", start_new_session=True,
    ) as process:  # fmt: skip
        pids: list[int] = []
        guard = threading.Timer(limit, _end, (process.pid, pids))
        guard.start()
        killer: threading.Timer | None = None
        first = 0.0
        assert process.stdout is not None
        for line in process.stdout:
            outcome.last = (outcome.last + line)[-600:]
            if found := re.search(r"PID (\d+) (\d+)", line):
                outcome.began += 1
                pids.append(int(found[2]))
                first = first or time.monotonic()
                if kill_after is not None and found[1] == "1" and killer is None:
                    killer = threading.Timer(kill_after, os.kill, (int(found[2]), signal.SIGKILL))
                    killer.start()
            if found := re.search(r"RESTORED.*|restored .*", line):
                outcome.restored.append(found[0])
            if "END step" in line:
                outcome.ended, outcome.seconds = True, time.monotonic() - first
        outcome.code = process.wait()
        guard.cancel()
        if killer is not None:
            killer.cancel()
    outcome.batches = sum(path.stat().st_size for path in Path(folder).glob("read-*"))
    return outcome


def _end(launcher: int, workers: list[int]) -> None:
    os.killpg(launcher, signal.SIGKILL)
    for pid in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
