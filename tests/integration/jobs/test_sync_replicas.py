"""Programs in synchronous steps as processes: they end at the last step exactly, also where a worker is killed."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from processes import free_addresses

from globalstep.chief.checkpoints.checkpoint_state import latest_checkpoint
from globalstep.tf1.variables.checkpoint_variables import load_checkpoint

pytestmark = [pytest.mark.processes, pytest.mark.long]

PROGRAMS = Path(__file__).parent / "programs" / "synchronous"


def start(processes, program, run_dir, workers, *options):
    """Two PS tasks and workers; gives their names."""
    addresses = free_addresses(2 + workers)
    tasks = ["ps:0", "ps:1", *(f"worker:{at}" for at in range(workers))]
    for task in tasks:
        job, index = task.split(":")
        processes.start(
            task,
            PROGRAMS / program,
            f"--ps_hosts={','.join(addresses[:2])}",
            f"--worker_hosts={','.join(addresses[2:])}",
            f"--job_name={job}",
            f"--task_index={index}",
            f"--run_dir={run_dir}",
            *options,
        )
    return tasks


def steps_made(processes, worker):
    """By each run of a worker: the step that it made."""
    return [int(step) for step in re.findall(r"^run \d+ made step (\d+)", processes.output(worker), re.MULTILINE)]


def ps_output(processes):
    return processes.output("ps:0") + processes.output("ps:1")


def saved_step(run_dir):
    return load_checkpoint(latest_checkpoint(str(run_dir))).get_tensor("global_step")


def test_a_backup_worker_is_not_waited_for(processes, tmp_path):
    tasks = start(processes, "sync_monitored.py", tmp_path / "run", 3, "--last_step=60", "--replicas_to_aggregate=2")
    assert processes.wait() == dict.fromkeys(tasks, 0)
    assert saved_step(tmp_path / "run") == 60


def test_workers_that_are_killed_or_stopped_cost_a_lease_and_no_step(processes, tmp_path):
    tasks = start(processes, "sync_monitored.py", tmp_path / "run", 4, "--last_step=300")
    processes.until("worker:2", r"run 20 made", 120.0)
    os.kill(processes.pid("worker:3"), signal.SIGSTOP)
    try:
        os.kill(processes.pid("worker:2"), signal.SIGKILL)
        processes.until_true("ps:0", lambda: "is made of 2 instead of 4" in ps_output(processes), 120.0)
    finally:
        os.kill(processes.pid("worker:3"), signal.SIGCONT)
    # The stopped one takes part again, or hears that the job is done.
    codes = processes.wait(120.0)
    assert codes == dict.fromkeys(tasks, 0) | {"worker:2": -signal.SIGKILL}
    assert saved_step(tmp_path / "run") == 300
    for worker in ("worker:0", "worker:1"):
        made = steps_made(processes, worker)
        assert made == list(range(1, 301)), worker
    made = steps_made(processes, "worker:3")
    assert made == sorted(set(made))
    said = ps_output(processes)
    assert len(re.findall(r"is made of 2 instead of 4 contributions", said)) == 1, said


def test_a_supervisors_program_runs_as_it_is(processes, tmp_path):
    tasks = start(processes, "sync_supervisor.py", tmp_path / "run", 2, "--last_step=60")
    assert processes.wait() == dict.fromkeys(tasks, 0)
    for worker in tasks[2:]:
        assert re.search(
            r"step 60 after 61 runs: 2\.0\d\d 10\.0\d\d|step 60 after 61 runs: 1\.9\d\d 9\.9\d\d",
            processes.output(worker),
        )
