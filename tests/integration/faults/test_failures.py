"""Real processes that are killed, stopped, late (rung 4): the job ends at its last step, and its sums are exact.

The job is counting_job.py: it ends with an error when a Variable does not equal global_step in some cut.
"""

from __future__ import annotations

import json
import os
import re
import signal
import uuid
from pathlib import Path

import pytest
from counted import assert_counted
from processes import free_addresses, tasks_marked

from globalstep.chief.checkpoints.checkpoint_state import latest_checkpoint

pytestmark = pytest.mark.processes

JOB = Path(__file__).parents[2] / "support" / "counting_job.py"
LAST_STEP = 800
CAME_BACK = r"lost (its|their) state\. All PS tasks go back together, from .* to step (\d+), to checkpoint"


@pytest.fixture
def launched(processes, tmp_path):
    """Launch the job with two PS, a chief and two workers; gives the pids of its tasks, by name.

    It goes slowly until the file `fast` is there, so that it cannot end before what a test does to it.
    """
    mark = uuid.uuid4().hex

    def pids():
        return tasks_marked("TEST_MARK", mark)

    processes.start(
        "launch", "-m", "globalstep", "launch", "--ps", 2, "--chief", "--workers", 2, "--max-restarts", 2,
        JOB, "--last-step", LAST_STEP, "--dir", tmp_path / "run", "--say-steps", 5, "--save-steps", 20,
        "--slow-until", tmp_path / "fast", 0, env={"TEST_MARK": mark},
    )  # fmt: skip

    def has_saved():
        newest = latest_checkpoint(str(tmp_path / "run"))
        return newest is not None and int(newest.rpartition("-")[2]) >= 20

    processes.until_true("launch", has_saved, what="a checkpoint")
    return pids


def ends_exactly(processes, tmp_path, names=("launch",)):
    """Every process ends well, and the last checkpoint holds exactly the pushes up to the last step."""
    (tmp_path / "fast").touch()
    codes = processes.wait()
    printed = "\n".join(processes.output(name) for name in names)
    assert set(codes.values()) == {0}, printed
    assert_counted(tmp_path / "run", LAST_STEP, printed)
    return printed


def test_after_all_ps_died_all_go_back_to_a_checkpoint_together(launched, processes, tmp_path):
    """One of them is killed at every moment by test_fault_matrix_processes.py."""
    pids = launched()
    for task in ("ps:0", "ps:1"):
        os.kill(pids[task], signal.SIGKILL)
    for task in ("ps:0", "ps:1"):
        processes.until("launch", rf"{task} was ended by SIGKILL \(exit code 137\); restart 1 of 2")
    printed = ends_exactly(processes, tmp_path)
    came_back = re.search(CAME_BACK, printed)
    assert came_back, printed
    assert int(came_back[2]) >= 20


@pytest.fixture
def cluster(processes, tmp_path):
    """Starts tasks of a cluster by hand: two PS, a chief and two workers."""
    addresses = free_addresses(5)
    jobs = {"ps": addresses[:2], "chief": addresses[2:3], "worker": addresses[3:]}

    def start(task, *more):
        job, index = task.split(":")
        config = {"cluster": jobs, "task": {"type": job, "index": int(index)}}
        script = ["-m", "globalstep.ps"]
        if job != "ps":
            script = [JOB, "--last-step", LAST_STEP, "--dir", tmp_path / "run", "--say-steps", 5, *more]
        return processes.start(task, *script, env={"TF_CONFIG": json.dumps(config)})

    return start


def test_a_worker_that_comes_after_the_end_is_told_so(cluster, processes, tmp_path):
    on_time = ["ps:0", "ps:1", "chief:0", "worker:0"]
    for task in on_time:
        cluster(task)
    processes.until("chief:0", r"^done")
    cluster("worker:1")
    printed = ends_exactly(processes, tmp_path, [*on_time, "worker:1"])
    assert "done after 0 runs" in printed


def test_a_dead_worker_keeps_neither_the_others_nor_the_ps(cluster, processes, tmp_path):
    tasks = ["ps:0", "ps:1", "chief:0", "worker:0", "worker:1"]
    # The job goes slowly until worker:1 has said "ready" and a step: it may come up late.
    slowly = ("--slow-until", tmp_path / "worker:1.log", 2)
    running = {task: cluster(task, *(slowly if "ps" not in task else ())) for task in tasks}
    processes.until("worker:1", r"^step")
    running["worker:1"].kill()
    codes = processes.wait()
    assert codes.pop("worker:1") == -signal.SIGKILL
    assert codes == dict.fromkeys(tasks[:-1], 0), processes.output("chief:0")
    assert latest_checkpoint(str(tmp_path / "run")).endswith(f"-{LAST_STEP}")


@pytest.mark.full_matrix
def test_a_worker_that_sleeps_past_the_end_leaves_soon(cluster, processes, tmp_path):
    """Its lease is over, the PS tasks have ended without it; the last checkpoint tells it that the job is done."""
    others = ["ps:0", "ps:1", "chief:0"]
    for task in others:
        cluster(task)
    worker = cluster("worker:0")
    processes.until("worker:0", r"^step")
    worker.send_signal(signal.SIGSTOP)
    try:
        processes.until_ended(others, 120.0)
    finally:
        worker.send_signal(signal.SIGCONT)
    printed = ends_exactly(processes, tmp_path, ["worker:0"])
    assert "Nothing is left to do" in printed or "done after" in printed
