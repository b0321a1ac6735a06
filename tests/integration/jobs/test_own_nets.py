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


@pytest.mark.parametrize("session", ["monitored", "creator", "supervisor"])
def test_programs_in_which_every_worker_says_that_it_is_the_chief(processes, tmp_path, session):
    run = tmp_path / "run"
    saves = () if session == "monitored" else (f"--run_dir={run}",)
    tasks = start(processes, "a3c_all_chiefs.py", f"--session={session}", *saves)
    assert processes.wait(100.0) == dict.fromkeys(tasks, 0), "\n".join(map(processes.output, tasks))
    printed = [processes.output(f"worker:{index}") for index in range(WORKERS)]
    # Exactly one is the chief; each of the others says once where one's own Variables belong.
    assert sorted(text.count("says is_chief=True too") for text in printed) == [0, 1, 1]
    assert all("LOCAL_VARIABLES" in text for text in printed if "is_chief=True" in text)
    for text in printed:
        first, last = map(float, re.search(r"^rewards (\S+) (\S+)$", text, re.MULTILINE).groups())
        assert last > 0.6, (first, last)
    if session == "supervisor":
        assert [path.name for path in run.glob("graph.pbtxt")] == ["graph.pbtxt"]
