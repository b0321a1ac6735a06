"""A chief of real processes that dies for good, or sleeps: one worker takes its place, and the job ends exactly."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from counted import assert_counted
from processes import free_addresses, tasks_marked

pytestmark = pytest.mark.processes

JOB = Path(__file__).parents[2] / "support" / "counting_job.py"
LAST_STEP = 1500
#: A PS task that does not wait as long as others for who never came: it has lost what it knew of a chief that is gone.
PS = """
import sys
import globalstep.ps.members.presence
import globalstep.ps.members.ending
globalstep.ps.members.presence.LINGER_SECS = globalstep.ps.members.ending.LINGER_SECS = 5.0
from globalstep.ps.__main__ import main
sys.exit(main())
"""
TAKEN = "acts as chief from now on"


@pytest.fixture
def launched(processes, tmp_path):
    """Launches the job with failover, waits until it is at a step, and gives the pids of its tasks."""
    mark = uuid.uuid4().hex
    processes.start(
        "launch", "-m", "globalstep", "launch", "--ps", 2, "--chief", "--workers", 2, "--failover", 2,
        JOB, "--last-step", LAST_STEP, "--dir", tmp_path / "run", "--say-steps", 5, "--save-steps", 100,
        "--pause-secs", 0.01, "--verbose", env={"TEST_MARK": mark},
    )  # fmt: skip
    processes.until("launch", r"step [12]\d\d$")
    return tasks_marked("TEST_MARK", mark)


def ends_exactly(processes, tmp_path, name="launch"):
    codes = processes.wait()
    printed = processes.output(name)
    assert codes[name] == 0, printed
    assert_counted(tmp_path / "run", LAST_STEP, printed)
    return printed


def test_one_worker_takes_the_place_of_a_chief_that_died(launched, processes, tmp_path):
    os.kill(launched["chief:0"], signal.SIGKILL)
    printed = ends_exactly(processes, tmp_path)
    assert printed.count(TAKEN) == 1
    acting = re.search(rf"\[(worker:\d)\].*{TAKEN}", printed)[1]
    # Each line says the step before its save: others push meanwhile, so the last one may name an earlier one.
    saved = re.findall(r"\[(.*?)\].*Saving checkpoints for \d+ into", printed.partition(TAKEN)[2])
    assert len(saved) >= 3
    assert set(saved) == {acting}
    assert "/job:chief/task:0 is gone: nothing was heard of it for" in printed
    assert "go back" not in printed


def test_a_chief_that_slept_goes_on_as_a_worker(launched, processes, tmp_path):
    os.kill(launched["chief:0"], signal.SIGSTOP)
    try:
        processes.until("launch", TAKEN)
    finally:
        os.kill(launched["chief:0"], signal.SIGCONT)
    printed = ends_exactly(processes, tmp_path)
    assert printed.count(TAKEN) == 1
    told = re.search(r"\[chief:0\].*/job:worker/task:\d acts as chief; this task goes on as a worker", printed)
    after = printed[told.end() :]
    assert not re.search(r"\[chief:0\].*Saving checkpoints", after)
    assert re.search(r"\[chief:0\] done after \d+ runs", after)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("durability", "lost"),
    [
        ("checkpoint", "ps:0"),
        ("checkpoint", "ps:1"),
        pytest.param("checkpoint", "both", marks=pytest.mark.full_matrix),
        pytest.param("log", "ps:0", marks=pytest.mark.full_matrix),
        pytest.param("log", "ps:1", marks=pytest.mark.full_matrix),
        ("log", "both"),
    ],
)
def test_who_takes_the_chiefs_place_mends_what_is_lost_meanwhile(processes, tmp_path, lost, durability):
    """The chief is gone for good, and PS tasks come back empty before anybody has its lease: PS 0 gives it."""
    last_step = 500
    addresses = free_addresses(5)
    jobs = {"ps": addresses[:2], "chief": addresses[2:3], "worker": addresses[3:]}
    environ = {"GLOBALSTEP_FAILOVER_SECS": "3", "GLOBALSTEP_RUN_POLICY": f"spread_above=0,durability={durability}"}

    def start(task):
        job, index = task.split(":")
        script = ["-c", PS]
        if job != "ps":
            script = [
                JOB, "--last-step", last_step, "--dir", tmp_path / "run", "--say-steps", 5, "--save-steps", 50,
                "--pause-secs", 0.02, "--verbose",
            ]  # fmt: skip
        config = {"cluster": jobs, "task": {"type": job, "index": int(index)}}
        return processes.start(task, *script, env={"TF_CONFIG": json.dumps(config), **environ})

    servers = ["ps:0", "ps:1"]
    running = {task: start(task) for task in [*servers, "chief:0", "worker:0", "worker:1"]}
    processes.until("worker:0", r"step \d\d\d$", 90.0)
    running["chief:0"].kill()
    for task in servers if lost == "both" else [lost]:
        running[task].kill()
        running[task].wait()
    for task in servers if lost == "both" else [lost]:
        start(task)
    processes.until_ended(["worker:0", "worker:1", *servers], 120.0)
    workers = ["worker:0", "worker:1"]
    printed = {task: processes.output(task) for task in [*servers, *workers]}
    assert {task: processes.code(task) for task in printed} == dict.fromkeys(printed, 0), printed
    assert_counted(tmp_path / "run", last_step, printed)
    took = [task for task in workers if TAKEN in printed[task]]
    assert len(took) == 1, printed
    # With a log any client brings a task back; otherwise it waits for who may restore.
    back = {task: "go back together" in printed[task] for task in workers}
    assert back == {task: durability == "checkpoint" and task in took for task in workers}, printed
    audit = subprocess.run(
        [sys.executable, "-m", "globalstep", "audit", str(tmp_path / "run")], capture_output=True, text=True
    )
    assert (audit.returncode, "PROVEN" in audit.stdout) == (0, True), audit.stdout + audit.stderr


def test_workers_that_the_cluster_spec_does_not_name_join_and_leave(processes, tmp_path):
    addresses = free_addresses(5)
    jobs = {"ps": addresses[:1], "chief": addresses[1:2], "worker": addresses[2:3]}

    def start(task, cluster=jobs):
        job, index = task.split(":")
        script = ["-m", "globalstep.ps"]
        if job != "ps":
            script = [JOB, "--last-step", LAST_STEP, "--dir", tmp_path / "run", "--say-steps", 5, "--pause-secs", 0.02]
        config = {"cluster": cluster, "task": {"type": job, "index": int(index)}}
        return processes.start(task, *script, env={"TF_CONFIG": json.dumps(config)})

    for task in ("ps:0", "chief:0", "worker:0"):
        start(task)
    processes.until("worker:0", r"^step")
    wider = {**jobs, "worker": addresses[2:]}
    late = start("worker:1", wider)
    processes.until("worker:1", r"^step")
    late.terminate()
    start("worker:2", wider)
    printed = ends_exactly(processes, tmp_path, "worker:2")
    assert late.returncode == 143
    assert int(re.search(r"done after (\d+) runs", printed)[1]) > 0
    assert "/job:worker/task:1 is gone" not in processes.output("ps:0")
