"""Programs whose tasks share queues on PS tasks, as real processes (rung 4)."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from processes import free_addresses, until

from globalstep.ps.server import EXIT_TERMINATED

pytestmark = pytest.mark.processes

PROGRAMS = Path(__file__).resolve().parent / "programs" / "queues"
TIMEOUT_SECS = 150.0


def start(processes, program, ps, workers, *more):
    commands = commands_of(program, ps, workers, *more)
    for name, command in commands.items():
        processes.start(name, *command)
    return list(commands)


def commands_of(program, ps, workers, *more):
    addresses = free_addresses(ps + workers)
    hosts = [f"--ps_hosts={','.join(addresses[:ps])}", f"--worker_hosts={','.join(addresses[ps:])}"]
    tasks = [*(("ps", index) for index in range(ps)), *(("worker", index) for index in range(workers))]
    return {
        f"{job}:{index}": (PROGRAMS / program, *hosts, f"--job_name={job}", f"--task_index={index}", *more)
        for job, index in tasks
    }


@pytest.mark.long
@pytest.mark.parametrize("session", ["monitored", "supervisor", "plain"])
def test_ps_tasks_end_by_a_queue_that_the_workers_fill(processes, tmp_path, session):
    run_dir = () if session == "plain" else (f"--run_dir={tmp_path / 'run'}",)
    tasks = start(processes, "done_queue.py", 2, 2, f"--session={session}", *run_dir)
    codes = processes.wait(TIMEOUT_SECS)
    printed = {name: processes.output(name) for name in tasks}
    assert codes == dict.fromkeys(tasks, 0), "\n".join(printed.values())
    for index in range(2):
        own = [line for line in printed[f"ps:{index}"].splitlines() if line.startswith("ps ")]  # gRPC logs between them
        assert own[-2:] == [f"ps {index} received done 1", f"ps {index}: quitting"]
    # A worker that comes after the last step trains no more, but says that it is done.
    assert any("losses" in printed[f"worker:{index}"] for index in range(2))
    if session != "plain":
        # The chief saved its last checkpoint after it had said that it was done.
        assert (tmp_path / "run" / "checkpoint").exists()


@pytest.mark.long
def test_a_ps_task_whose_queue_nobody_will_fill_ends_with_the_job(processes, tmp_path):
    tasks = start(processes, "done_queue.py", 1, 2, "--fail", f"--run_dir={tmp_path / 'run'}")
    assert processes.wait(TIMEOUT_SECS) == dict.fromkeys(tasks, 0), "\n".join(map(processes.output, tasks))
    assert "quitting" not in processes.output("ps:0")
    assert "received done 0" in processes.output("ps:0")


def test_a_sigterm_ends_a_ps_task_whose_program_dequeues_as_it_ends_join(processes):
    address, worker = free_addresses(2)
    arguments = f"--ps_hosts={address}", f"--worker_hosts={worker}", "--job_name=ps", "--task_index=0"
    process = processes.start("ps:0", PROGRAMS / "done_queue.py", *arguments)
    until(lambda: catches(process.pid, signal.SIGTERM), "a PS task that waits and catches SIGTERM")
    process.send_signal(signal.SIGTERM)
    assert processes.wait(TIMEOUT_SECS) == {"ps:0": EXIT_TERMINATED}, processes.output("ps:0")


def catches(pid, signum):
    """Whether a process has a handler of its own for a signal."""
    caught = re.search(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(caught[1], 16) & 1 << (signum - 1))


@pytest.mark.long
@pytest.mark.timeout(400)
def test_actors_feed_a_learner_though_one_is_killed(processes):
    # Enough for the actor that is started again to be there before the end.
    steps = 1000
    commands = commands_of("actor_learner.py", 1, 3, f"--steps={steps}")
    for name, command in commands.items():
        processes.start(name, *command)
    for actor in ("worker:1", "worker:2"):
        processes.until(actor, "^acts$", TIMEOUT_SECS)
    processes.until("worker:0", "^learned", TIMEOUT_SECS)
    os.kill(processes.pid("worker:1"), signal.SIGKILL)
    processes.until_ended(["worker:1"], TIMEOUT_SECS)
    processes.start("worker:1", *commands["worker:1"])
    assert processes.wait(TIMEOUT_SECS) == dict.fromkeys(commands, 0), "\n".join(map(processes.output, commands))
    printed = processes.output("worker:0")
    # The learner itself looks whether an element is missing, or came twice.
    first, last = map(float, re.search(r"^losses (\S+) (\S+)$", printed, re.MULTILINE).groups())
    assert last < first
    taken, actors = map(int, re.search(r"^taken (\d+) of (\d+) actors$", printed, re.MULTILINE).groups())
    assert (taken, actors) == (4 * steps, 3)
