"""Programs whose workers have nets of their own beside the shared one, as real processes (rung 4)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from processes import free_addresses

from globalstep.tf1.variables.checkpoint_variables import load_variable

pytestmark = pytest.mark.processes

PROGRAMS = Path(__file__).resolve().parent / "programs"
WORKERS = 3


def start(processes, program, *more, workers=WORKERS):
    addresses = free_addresses(1 + workers)
    hosts = [f"--ps_hosts={addresses[0]}", f"--worker_hosts={','.join(addresses[1:])}"]
    tasks = [("ps", 0), *(("worker", index) for index in range(workers))]
    for job, index in tasks:
        task = [f"--job_name={job}", f"--task_index={index}"]
        processes.start(f"{job}:{index}", PROGRAMS / program, *hosts, *task, *more)
    return [f"{job}:{index}" for job, index in tasks]


@pytest.mark.parametrize("session", ["monitored", "supervisor"])
def test_each_worker_plays_with_a_net_of_its_own(processes, tmp_path, session):
    run = tmp_path / "run"
    tasks = start(processes, "a3c.py", f"--session={session}", f"--run_dir={run}")
    assert processes.wait(100.0) == dict.fromkeys(tasks, 0), "\n".join(map(processes.output, tasks))
    for index in range(WORKERS):
        printed = processes.output(f"worker:{index}")
        # By its name it would be one Variable for all workers.
        assert f"mark {index}\n" in printed
        first, last = map(float, re.search(r"^rewards (\S+) (\S+)$", printed, re.MULTILINE).groups())
        assert last > 0.6, (first, last)
    if session == "monitored":
        assert load_variable(str(run), "global_step") == 200


@pytest.mark.long
@pytest.mark.timeout(300)
def test_four_workers_play_with_nets_in_local_variables(processes, tmp_path):
    run = tmp_path / "run"
    tasks = start(processes, "a3c.py", "--own_nets=collection", f"--run_dir={run}", workers=4)
    assert processes.wait(200.0) == dict.fromkeys(tasks, 0), "\n".join(map(processes.output, tasks))
    for index in range(4):
        printed = processes.output(f"worker:{index}")
        assert f"mark {index}\n" in printed
        first, last = map(float, re.search(r"^rewards (\S+) (\S+)$", printed, re.MULTILINE).groups())
        assert last > 0.6, (first, last)
    assert load_variable(str(run), "global_step") == 200
