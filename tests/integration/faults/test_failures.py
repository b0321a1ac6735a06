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


@pytest.mark.parametrize(
    ("tasks", "number"),
    [
        (["ps:0"], signal.SIGKILL),
        # test_fault_matrix_processes.py kills it at every moment.
        pytest.param(["ps:1"], signal.SIGKILL, marks=pytest.mark.full_matrix),
        (["ps:0", "ps:1"], signal.SIGKILL),
        (["ps:1"], signal.SIGTERM),
    ],
    ids=["kill ps 0", "kill ps 1", "kill both ps", "terminate ps 1"],
)
def test_after_a_ps_died_all_go_back_to_a_checkpoint_together(launched, processes, tmp_path, tasks, number):
    pids = launched()
    for task in tasks:
        os.kill(pids[task], number)
    for task in tasks:
        processes.until("launch", rf"{task} was ended by {number.name} \(exit code {128 + number}\); restart 1 of 2")
    printed = ends_exactly(processes, tmp_path)
    came_back = re.search(CAME_BACK, printed)
    assert came_back, printed
    assert int(came_back[2]) >= 20


def test_a_chief_that_died_takes_over_again_without_a_restore(launched, processes, tmp_path):
    os.kill(launched()["chief:0"], signal.SIGKILL)
    processes.until("launch", r"chief:0 was ended by SIGKILL \(exit code 137\); restart 1 of 2")
    printed = ends_exactly(processes, tmp_path)
    assert "go back" not in printed


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_place_of_a_worker_that_died_is_taken_by_a_new_one(launched, processes, tmp_path, number):
    os.kill(launched()["worker:1"], number)
    processes.until("launch", rf"worker:1 was ended by {number.name} \(exit code {128 + number}\); restart 1 of 2")
    printed = ends_exactly(processes, tmp_path)
    assert "go back" not in printed


def test_a_worker_that_was_stopped_goes_on_exactly(launched, processes, tmp_path):
    worker = launched()["worker:0"]
    os.kill(worker, signal.SIGSTOP)
    (tmp_path / "fast").touch()
    try:
        processes.until("launch", r"step [56]\d\d$")
    finally:
        os.kill(worker, signal.SIGCONT)
    ends_exactly(processes, tmp_path)


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


def test_ps_that_come_last_are_found(cluster, processes, tmp_path):
    for task in ("worker:0", "worker:1", "chief:0"):
        cluster(task)
    for task in ("ps:1", "ps:0"):
        cluster(task)
    ends_exactly(processes, tmp_path, ["chief:0"])


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
