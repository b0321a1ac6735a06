"""Whole jobs with durability="log" whose tasks are killed (rung 4): no step is taken back, and no sum is off by one."""

from __future__ import annotations

import os
import re
import shutil
import signal
import uuid
from pathlib import Path

import pytest
from counted import assert_counted
from processes import tasks_marked

pytestmark = pytest.mark.processes

JOB = Path(__file__).parents[2] / "support" / "counting_job.py"
LAST_STEP = 500


def launch(processes, tmp_path, name, restarts):
    """Start the job with two PS, a chief and a worker, slow at first; gives what tells the pids of its tasks."""
    mark = uuid.uuid4().hex
    processes.start(
        name, "-m", "globalstep", "launch", "--ps", 2, "--chief", "--workers", 1, "--max-restarts", restarts,
        JOB, "--last-step", LAST_STEP, "--dir", tmp_path / "run", "--say-steps", 5, "--save-steps", 20,
        "--slow-until", tmp_path / "fast", 0,
        env={"TEST_MARK": mark, "GLOBALSTEP_RUN_POLICY": "spread_above=0,durability=log"},
    )  # fmt: skip
    return lambda: tasks_marked("TEST_MARK", mark)


def steps_in(printed):
    return [int(step) for step in re.findall(r"\bstep (\d+)$", printed, re.MULTILINE)]


def ends_exactly(tmp_path, printed):
    assert_counted(tmp_path / "run", LAST_STEP, printed)
    # The log of a job that is over is of no use, but one that was moved aside is for its user to delete.
    left = [path.name for path in (tmp_path / "run").glob("log/*")]
    assert all(name.startswith("abandoned-") for name in left), left


@pytest.mark.parametrize("victims", [["ps:0"], ["ps:1"], ["ps:0", "ps:1"]], ids=" ".join)
def test_no_other_task_goes_back_when_ps_are_killed(processes, tmp_path, victims):
    pids = launch(processes, tmp_path, "launch", restarts=3)
    processes.until("launch", r"\bstep \d\d$", 60.0)
    for victim in victims:
        os.kill(pids()[victim], signal.SIGKILL)
    (tmp_path / "fast").touch()
    assert processes.wait(120.0) == {"launch": 0}, processes.output("launch")
    printed = processes.output("launch")
    assert "go back together" not in printed
    for victim in victims:
        assert f"PS task {victim[-1]} is back at entry" in printed
    ends_exactly(tmp_path, printed)


def test_when_a_log_is_gone_all_go_back_to_the_checkpoint_as_without_one(processes, tmp_path):
    pids = launch(processes, tmp_path, "launch", restarts=3)
    processes.until("launch", r"\bstep ([3-9]\d|\d{3})$", 60.0)
    victim = pids()["ps:1"]
    (log,) = (tmp_path / "run" / "log").glob("*/shard-1-of-2")
    # Stopped, so that it writes and deletes nothing there meanwhile.
    os.kill(victim, signal.SIGSTOP)
    shutil.rmtree(log)
    os.kill(victim, signal.SIGKILL)
    (tmp_path / "fast").touch()
    assert processes.wait(120.0) == {"launch": 0}, processes.output("launch")
    printed = processes.output("launch")
    assert re.search(
        r"Cannot recover from the write-ahead logs, but from a checkpoint: .*There is no write-ahead log in", printed
    )
    assert re.search(r"All PS tasks go back together, from step \d+ to step [1-9]\d+, to checkpoint", printed)
    ends_exactly(tmp_path, printed)


def test_a_job_that_was_killed_as_a_whole_goes_on_at_its_last_push(processes, tmp_path):
    pids = launch(processes, tmp_path, "first", restarts=0)
    processes.until("first", r"\bstep ([3-9]\d|\d{3})$", 60.0)
    for pid in pids().values():
        os.kill(pid, signal.SIGKILL)
    processes.wait(60.0)
    reached = max(steps_in(processes.output("first")))
    (tmp_path / "fast").touch()
    launch(processes, tmp_path, "second", restarts=0)
    assert processes.wait(120.0)["second"] == 0, processes.output("second")
    printed = processes.output("second")
    assert len(re.findall(r"PS task \d is back at entry", printed)) == 2
    # Not at a checkpoint.
    assert min(steps_in(printed)) >= reached
    ends_exactly(tmp_path, printed)
