"""The benchmark of all workloads runs, checks its peers, and leaves nothing running (rung 4: real processes)."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "benchmarks.bench", "--rounds", "1", "--sizes", "1000", "--ps", "1"]
# No peers but those of this environment.
ALONE = ["--peers-python", "/nonexistent"]

pytestmark = pytest.mark.processes


def _records(path):
    machine, *records = [json.loads(line) for line in path.read_text().splitlines()]
    return machine, records


def test_a_short_run_writes_records_tables_and_plots(tmp_path):
    subprocess.run(
        [
            *(*COMMAND, *ALONE, "--secs", "0.02", "--kinds", "dense", "embedding", "counter"),
            *("--only", "bars", "profile", "kernel", "--peers", "auto", "session", "baseline", "tensorflow"),
            *("--out", tmp_path),
        ],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=110,
    )
    machine, records = _records(tmp_path / "bench.jsonl")
    assert machine["rounds"] == 1
    assert machine["absent"]["tensorflow"] == "tensorflow not installed"
    turns = [(r["case"]["kind"], r["case"]["rule"], r["peer"]) for r in records if "rate" in r and "profile" not in r]
    assert turns == [
        ("dense", "sgd", "auto"),
        ("dense", "sgd", "session"),
        ("dense", "sgd", "baseline"),
        ("embedding", "sgd", "auto"),
        ("embedding", "sgd", "session"),
        ("embedding", "adagrad", "auto"),
        ("embedding", "adagrad", "session"),
        *[("counter", "sgd", peer) for peer in ("auto", "session", "baseline")] * 2,
    ]
    assert all(r["rate"] > 0 and r["worker_cpu_us"] > 0 and r["ps_cpu_us"] > 0 for r in records if "rate" in r)
    # Nothing that was pushed is missing.
    assert [r["lost_steps"] for r in records if r.get("program") == "globalstep"] == [0] * 6
    profiled = {r["peer"]: r for r in records if r.get("profile") and "peer" in r}
    assert profiled["auto"]["stages_us"]["wait"] > profiled["auto"]["apply_us"] > 0
    text = (tmp_path / "bench.md").read_text()
    assert "| 1 k, SGD, 1 worker | 1 | " in text
    assert "TF1: absent" in text
    assert "| fused Adam on 1 k floats in the PS |" in text
    assert "| 1 k, SGD, 1 worker | 1 | globalstep | " in (tmp_path / "bench-profile.md").read_text()
    assert (tmp_path / "bench-sizes.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.full_matrix
def test_the_digits_job_and_the_memory_of_a_ps(tmp_path):
    subprocess.run(
        [*COMMAND, *ALONE, "--only", "digits", "memory", "--peers", "session", "--out", tmp_path],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=110,
    )
    _, records = _records(tmp_path / "bench.jsonl")
    trained = [record for record in records if record.get("job") == "digits"]
    assert all(record["reached"] and record["steps"] >= 25 for record in trained)
    assert trained[0]["total_secs"] > trained[0]["secs"] > 0
    held = [record for record in records if "limit_bytes" in record]
    assert [record["what"] for record in held] == ["2 workers push", "during a save, 2 workers push"]
    assert all(record["peak_bytes"] > record["held_bytes"] == 12_000 for record in held)
    assert "digits job, time to 97% | 1 | " in (tmp_path / "bench.md").read_text()


def test_a_terminated_run_takes_its_processes_along(tmp_path):
    command = [*COMMAND, *ALONE, "--secs", "60", "--only", "bars", "--peers", "auto", "--out", tmp_path]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        while "1 k, SGD" not in (line := process.stderr.readline()):
            assert line
        children = _wait_for_children(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
    assert not [pid for pid in children if os.path.exists(f"/proc/{pid}")]


def _wait_for_children(pid):
    deadline = time.monotonic() + 30
    children = []
    while not children and time.monotonic() < deadline:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    assert children
    return children
