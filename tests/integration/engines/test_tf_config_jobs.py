"""Jobs whose tasks are started by hand, each with a TF_CONFIG, in the dense and in the sparse form (rung 4)."""

from __future__ import annotations

import json
import re

import pytest
from counted import assert_counted
from processes import EXAMPLES, ROOT, free_addresses

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

COUNTING = ROOT / "tests" / "support" / "counting_job.py"


def start(processes, task, cluster, *program):
    job, _, index = task.partition(":")
    config = {"cluster": cluster, "task": {"type": job, "index": int(index)}}
    processes.start(task, *program, env={"TF_CONFIG": json.dumps(config)})


def test_the_digits_whose_ps_tasks_run_the_script_too(processes, tmp_path):
    """As with TensorFlow: one script for every role, that of a PS task ends in `Server.join`."""
    ps0, ps1, chief, worker0, worker1 = free_addresses(5)
    cluster = {"ps": [ps0, ps1], "chief": [chief], "worker": [worker0, worker1]}
    tasks = ["worker:0", "chief:0", "ps:0", "worker:1", "ps:1"]
    for task in tasks:
        start(processes, task, cluster, EXAMPLES / "digits.py", "--steps", 1500, "--run-dir", tmp_path / "run")
    assert processes.wait(150.0) == dict.fromkeys(tasks, 0), "\n".join(map(processes.output, tasks))
    printed = processes.output("chief:0")
    assert "final global step: 1500\n" in printed
    assert float(re.search(r"test accuracy: ([\d.]+)", printed)[1]) > 0.95


def test_workers_that_come_and_go_know_only_themselves_and_the_ps_tasks(processes, tmp_path):
    """Kubeflow's enableDynamicWorker: a worker sees the PS tasks and its own address, a PS task only its own."""
    last_step = 400
    ps = free_addresses(2)
    program = [COUNTING, "--last-step", last_step, "--dir", tmp_path / "run", "--say-steps", 5, "--pause-secs", 0.01]
    for index, address in enumerate(ps):
        start(processes, f"ps:{index}", {"ps": {str(index): address}}, "-m", "globalstep.ps")

    def start_worker(index):
        start(processes, f"worker:{index}", {"worker": {str(index): f"worker-{index}:2222"}, "ps": ps}, *program)

    for index in (0, 1):
        start_worker(index)
    processes.until("worker:1", r"^step \d+", 60.0)
    # One that nobody knew of joins in the middle of training.
    start_worker(2)
    processes.until("worker:2", r"^ready", 100.0)
    tasks = ["ps:0", "ps:1", "worker:0", "worker:1", "worker:2"]
    assert processes.wait(150.0) == dict.fromkeys(tasks, 0), "\n".join(map(processes.output, tasks))
    assert_counted(tmp_path / "run", last_step)
