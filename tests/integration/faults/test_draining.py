"""SIGTERM on each task of a job of real processes: its work is handed over, and the job ends exactly."""

from __future__ import annotations

import json
import os
import re
import signal
import uuid
from pathlib import Path

import numpy as np
import pytest
from counted import assert_counted
from planned_faults import environ_with
from processes import free_addresses, tasks_marked

from globalstep.chief.checkpoints.checkpoint_state import latest_checkpoint
from globalstep.tf1.variables.checkpoint_variables import list_variables, load_checkpoint

pytestmark = pytest.mark.processes

JOB = Path(__file__).parents[2] / "support" / "counting_job.py"
LAST_STEP = 800
ENDED = r"{} was ended by SIGTERM \(exit code 143\); restart 1 of 2"


@pytest.fixture
def launch(processes, tmp_path):
    """Launches the job, which saves no checkpoints by itself; gives the pids of its tasks once it is at a step.

    It goes slowly until `ends_exactly`, so that it does not end before a task does.
    """

    def start(*options, last_step=LAST_STEP, **environ):
        mark = uuid.uuid4().hex
        processes.start(
            "launch", "-m", "globalstep", "launch", "--ps", 2, "--chief", "--workers", 2, "--max-restarts", 2, *options,
            JOB, "--last-step", last_step, "--dir", tmp_path / "run", "--say-steps", 5, "--save-steps", 10**9,
            "--slow-until", tmp_path / "fast", 0, "--verbose", env={"TEST_MARK": mark, **environ},
        )  # fmt: skip
        # Before it has a session, a task has nothing to hand over: SIGTERM ends it as any process.
        processes.until("launch", r"^\[worker:0\] ready$", 60.0)
        processes.until("launch", r"step \d\d$")
        return tasks_marked("TEST_MARK", mark)

    return start


def ends_exactly(processes, tmp_path, task):
    processes.until("launch", ENDED.format(task))
    (tmp_path / "fast").touch()
    codes = processes.wait()
    printed = processes.output("launch")
    assert set(codes.values()) == {0}, printed
    assert_counted(tmp_path / "run", LAST_STEP, printed)
    return printed


def test_a_worker_leaves_and_its_place_is_taken(launch, processes, tmp_path):
    os.kill(launch()["worker:0"], signal.SIGTERM)
    printed = ends_exactly(processes, tmp_path, "worker:0")
    assert "[worker:0] WARNING:globalstep:SIGTERM: this task hands over its work and exits with 143" in printed
    assert "/job:worker/task:0 is gone" not in printed


def test_the_chief_saves_and_its_successor_goes_on_from_the_running_model(launch, processes, tmp_path):
    os.kill(launch()["chief:0"], signal.SIGTERM)
    printed = ends_exactly(processes, tmp_path, "chief:0")
    before, after = re.split(ENDED.format("chief:0"), printed)
    saved = [int(step) for step in re.findall(r"\[chief:0\].*Saving checkpoints for (\d+) into", before)]
    assert len(saved) == 2
    assert saved[0] == 0
    assert saved[1] >= 10
    assert "[chief:0] INFO:globalstep:Taking over a running model" in after
    assert "go back" not in printed


@pytest.mark.parametrize("task", ["ps:0", "ps:1"])
def test_a_ps_waits_for_a_checkpoint_and_the_job_goes_on_from_it(launch, processes, tmp_path, task):
    os.kill(launch()[task], signal.SIGTERM)
    printed = ends_exactly(processes, tmp_path, task)
    before, after = re.split(ENDED.format(task), printed)
    asked = re.search(rf"Saving a checkpoint now: .*{task[-1]} .* about to end", before)
    assert asked, printed
    drained = int(re.search(r"Saving checkpoints for (\d+) into", before[asked.end() :])[1])
    begun = r"go back together, from (?:(?:at least )?step (\d+)|a step that no task here has heard of)"
    back = re.search(rf"{begun} to step (\d+), to checkpoint", after)
    # Pushes go on until the cut is taken.
    assert drained <= int(back[2]) <= drained + 20
    if back[1] is not None:
        assert int(back[1]) - int(back[2]) < 300


def test_a_ps_with_a_log_loses_nothing(launch, processes, tmp_path):
    pids = launch(GLOBALSTEP_RUN_POLICY="spread_above=0,durability=log")
    os.kill(pids["ps:1"], signal.SIGTERM)
    printed = ends_exactly(processes, tmp_path, "ps:1")
    assert "go back" not in printed
    assert "about to end" not in printed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_whole_job_that_is_asked_to_end_leaves_a_checkpoint(launch, processes, tmp_path, number):
    launch(last_step=10**6)
    os.kill(processes.pid("launch"), number)
    codes = processes.wait()
    printed = processes.output("launch")
    assert codes == {"launch": 128 + number}, printed
    assert "killing" not in printed
    step = int(latest_checkpoint(str(tmp_path / "run")).rpartition("-")[2])
    assert step >= 10
    for name, _ in list_variables(str(tmp_path / "run" / f"model.ckpt-{step}")):
        assert np.all(load_checkpoint(str(tmp_path / "run" / f"model.ckpt-{step}")).get_tensor(name) == step), name


@pytest.fixture
def cluster(processes, tmp_path):
    """Starts tasks by hand: two PS tasks, a chief and a worker; nothing is started again."""
    addresses = free_addresses(4)
    jobs = {"ps": addresses[:2], "chief": addresses[2:3], "worker": addresses[3:]}

    def start(task, **environ):
        job, index = task.split(":")
        config = {"cluster": jobs, "task": {"type": job, "index": int(index)}}
        script = ["-m", "globalstep.ps"]
        if job != "ps":
            script = [JOB, "--last-step", 10**6, "--dir", tmp_path / "run", "--say-steps", 5, "--verbose"]
        return processes.start(task, *script, env={"TF_CONFIG": json.dumps(config), **environ})

    return start


def asked_to_end(processes, tasks):
    """SIGTERM to tasks that nobody answers; they are to end within a grace period, and to say why."""
    for task in tasks:
        os.kill(processes.pid(task), signal.SIGTERM)
    processes.until_ended(tasks, 25.0)
    for task in tasks:
        assert processes.code(task) == 143, processes.output(task)
        assert "SIGTERM" in processes.output(task), processes.output(task)
        assert "Traceback" not in processes.output(task), processes.output(task)


def test_tasks_that_wait_for_ps_tasks_end(cluster, processes):
    for task in ("chief:0", "worker:0"):
        cluster(task)
        processes.until(task, "waiting for the parameter servers|waiting for")
    asked_to_end(processes, ["chief:0", "worker:0"])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("transport", ["shm", "grpc"])
def test_tasks_whose_ps_tasks_are_gone_end(cluster, processes, number, transport):
    """In the midst of training, at whatever they do then: a step, a recovery, a restore."""
    tasks = ["ps:0", "ps:1", "chief:0", "worker:0"]
    for task in tasks:
        cluster(task, GLOBALSTEP_TRANSPORT=transport)
    for task in ("chief:0", "worker:0"):
        processes.until(task, r"^step \d+")
    for task in ("ps:0", "ps:1"):
        os.kill(processes.pid(task), number)
    asked_to_end(processes, ["chief:0", "worker:0"])


def test_a_chief_within_a_restore_ends(cluster, processes, tmp_path):
    """The PS tasks are stopped where the values of the checkpoint come to one of them."""
    tasks = ["ps:0", "ps:1", "chief:0"]
    for task in tasks:
        cluster(task)
    processes.until("chief:0", r"^step \d+")
    os.kill(processes.pid("chief:0"), signal.SIGTERM)
    processes.until_ended(["chief:0"])
    for task in ("ps:0", "ps:1"):
        os.kill(processes.pid(task), signal.SIGKILL)
    processes.until_ended(["ps:0", "ps:1"])
    trace = tmp_path / "trace"
    for task in tasks:
        plan = "ps:1 stop at stage.before; ps:0 stop at status.before"
        cluster(task, **environ_with(plan, trace))
    processes.until_true("chief:0", lambda: trace.exists() and "ps:1 stop at stage.before" in trace.read_text())
    asked_to_end(processes, ["chief:0"])
    assert "SIGTERM came while this task made its session" in processes.output("chief:0")
