"""Jobs that nobody ends with a word: every process of every role ends, and with the right code (rung 4)."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import free_addresses

pytestmark = pytest.mark.processes

PROGRAM = Path(__file__).resolve().parent / "programs" / "unclosed_replica.py"
TIMEOUT_SECS = 60.0
#: For PS tasks that nobody uses any more; the default is longer than a test.
QUICK = {"GLOBALSTEP_PS_ABANDON_SECS": "2"}


@pytest.fixture
def start(processes):
    """Gives a function that starts a task of a cluster with 2 PS and 2 workers."""
    addresses = free_addresses(4)
    hosts = [f"--ps_hosts={','.join(addresses[:2])}", f"--worker_hosts={','.join(addresses[2:])}"]

    def started(job, index, *arguments):
        task = [f"--job_name={job}", f"--task_index={index}"]
        processes.start(f"{job}:{index}", PROGRAM, *hosts, *task, *arguments, env=QUICK)

    for index in range(2):
        started("ps", index)
    return started


def start_workers(processes, start, *arguments):
    # The chief comes last: it may be done before a slow machine has started another worker.
    start("worker", 1, *arguments)
    processes.until("worker:1", "^Worker 1: Waiting")
    start("worker", 0, *arguments)


def test_sessions_that_nobody_closes_end_the_job_with_their_processes(processes, start):
    start_workers(processes, start)
    codes = processes.wait(TIMEOUT_SECS)
    outputs = "\n".join(map(processes.output, codes))
    assert set(codes.values()) == {0}, outputs
    for ps in ("ps:0", "ps:1"):
        assert "the job was not declared done: all that came have left" in processes.output(ps)


def test_workers_that_crash_leave_ps_that_say_so_and_end_with_an_error(processes, start):
    start_workers(processes, start, "--ending=crash", "--train_steps=100000")
    codes = processes.wait(TIMEOUT_SECS)
    assert codes == {"ps:0": 3, "ps:1": 3, "worker:0": 1, "worker:1": 1}
    for ps in ("ps:0", "ps:1"):
        assert "/job:worker/task:1 left before the end of the job" in processes.output(ps)
