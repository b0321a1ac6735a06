"""Each row of a click model's data is trained as often as docs/training.md says, however its batches are divided."""

from __future__ import annotations

import ast
import os
import re
import signal
from pathlib import Path

import pytest
from processes import Processes, tasks_marked

pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.processes

PROGRAM = Path(__file__).resolve().parent / "programs" / "rows_of_clicks.py"


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("kind", "option"),
    [
        # Batches of its own: the chief has all of its 24, or most of them, before the other comes.
        ("sampler", "--late=20"),
        ("stream", "--late=24"),
        ("function", "--die"),
        # Shared ones: the chief has had all that is not the other's.
        ("list", "--late=47"),
        ("loader", "--die"),
        # A loop over epochs of the program's own.
        ("list", "--passes"),
        ("sampler", "--passes"),
    ],
)
def test_each_row_is_trained_twice_in_two_epochs(tmp_path, kind, option):
    """Where a worker comes late, and where it is killed within a step and started again."""
    with Processes(tmp_path) as processes:
        tasks = ["--ps", 1, "--workers", 2, "--max-restarts", 1]
        processes.start("launch", "-m", "globalstep", "launch", *tasks, PROGRAM, kind, option)
        assert processes.wait(120.0) == {"launch": 0}, processes.output("launch")
        printed = processes.output("launch")
    assert "TRAINED 48 {2: 192}" in printed, printed


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", ["sampler", "stream", "function", "list", "loader"])
def test_where_a_ps_task_loses_its_state_a_batch_of_each_worker_is_left_out_or_had_twice(tmp_path, kind):
    with Processes(tmp_path) as processes:
        tasks = ["--ps", 1, "--workers", 2, "--max-restarts", 1]
        mark = {"TEST_MARK": str(tmp_path)}
        processes.start("launch", "-m", "globalstep", "launch", *tasks, PROGRAM, kind, "--lose", env=mark)
        waits = [tmp_path / "waits0", tmp_path / "waits1"]
        processes.until_true("launch", lambda: all(one.exists() for one in waits), 90.0, what="both workers")
        os.kill(tasks_marked("TEST_MARK", str(tmp_path))["ps:0"], signal.SIGKILL)
        (tmp_path / "killed").touch()
        assert processes.wait(120.0) == {"launch": 0}, processes.output("launch")
        printed = processes.output("launch")
    times = ast.literal_eval(re.findall("TRAINED 48 (.*)", printed)[0])
    assert times.keys() <= {1, 2, 3}, printed
    assert max(times.get(1, 0), times.get(3, 0)) <= 16, printed
