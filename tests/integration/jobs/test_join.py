"""`Server.join` never returns to the program, as in TensorFlow; the process ends when the job is done (rung 4)."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from processes import free_addresses

from globalstep.tf1.variables.checkpoint_variables import load_variable

pytestmark = pytest.mark.processes

PROGRAM = Path(__file__).resolve().parent / "programs" / "join_without_return.py"


def start(processes, tasks, *more):
    addresses = free_addresses(3)
    hosts = [f"--ps_hosts={addresses[0]}", f"--worker_hosts={','.join(addresses[1:])}"]
    for task in tasks:
        job, index = task.split(":")
        processes.start(task, PROGRAM, *hosts, f"--job_name={job}", f"--task_index={index}", *more)


@pytest.mark.parametrize("around", ["finally", "except"])
def test_a_workers_code_after_join_is_not_run_by_a_ps(processes, around):
    tasks = ["ps:0", "worker:0", "worker:1"]
    start(processes, tasks, f"--around_join={around}")
    assert processes.wait() == dict.fromkeys(tasks, 0), "\n".join(map(processes.output, tasks))
    served = processes.output("ps:0")
    assert "the end of serving\n" in served
    assert "an error came out of join" not in served
    # Nothing is cut off, and the interpreter ends as it always does.
    assert served.endswith("an atexit function\n")
    assert ("the PS goes on as a worker" in served) == (around == "except")
    for worker in ("worker:0", "worker:1"):
        assert "trained\n" in processes.output(worker)
    assert not any("join has returned" in processes.output(task) for task in tasks)


def test_a_ps_whose_program_goes_on_after_join_ends_with_143_when_it_is_terminated(processes):
    start(processes, ["ps:0"])
    processes.until("ps:0", "serves on")
    os.kill(processes.pid("ps:0"), signal.SIGTERM)
    assert processes.wait() == {"ps:0": 143}
    assert "goes on as a worker" not in processes.output("ps:0")


CATCHES_ALL = """
import signal, threading
import globalstep as tf
# A shell's background jobs ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
server = tf.train.Server({{"ps": ["{}"], "worker": ["{}"]}}, job_name="ps", task_index=0)
while True:
    try:
        server.join()
    except:
        print("caught", flush=True)
        threading.Event().wait(0.1)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_ps_whose_program_catches_everything_ends_all_the_same(processes, number, code):
    processes.start("ps:0", "-c", CATCHES_ALL.format(*free_addresses(2)))
    processes.until("ps:0", "serves on")
    os.kill(processes.pid("ps:0"), number)
    assert processes.wait() == {"ps:0": code}
    assert "caught\n" in processes.output("ps:0")
    assert f"this task ends with code {code}" in processes.output("ps:0")


AT_THE_END = """
import os, signal, threading
import globalstep as tf
step = tf.train.get_or_create_global_step()
count = tf.assign_add(step, 1)
session = tf.train.MonitoredTrainingSession()
session.run(count)
terminate = lambda: os.kill(os.getpid(), signal.SIGTERM)
{}
"""


@pytest.mark.parametrize("last", ["terminate()", "threading._register_atexit(terminate)"])
def test_a_process_that_is_terminated_as_its_main_thread_ends_says_so(processes, last):
    """Within the last line, and between it and the wait for threads."""
    processes.start("worker", "-c", AT_THE_END.format(last))
    assert processes.wait() == {"worker": 143}


THREADS = """
import threading
import globalstep as tf
step = tf.train.get_or_create_global_step()
count = tf.assign_add(step, 1)
session = tf.train.MonitoredTrainingSession(checkpoint_dir="{}")
session.run(count)

def train():
    threading.main_thread().join()
    if {trains}:
        while not session.should_stop():
            session.run(count)
            print("trains", flush=True)
        session.close()
    print("idles", flush=True)
    while not {trains}:
        threading.Event().wait(0.1)

threading.Thread(target=train).start()
"""


def main_thread_waits(pid, looks):
    """Say whether a main thread waits for the others; in the moment before, Python may lose a signal."""
    # One that waits for the interpreter's lock instead wakes every 5 ms, and a look comes every 20.
    status = Path(f"/proc/{pid}/task/{pid}/status").read_text()
    looks.append(re.findall(r"^(?:State|voluntary_ctxt_switches):\s+(\w+)", status, re.MULTILINE))
    return looks[-1][0] == "S" and looks[-5:] == [looks[-1]] * 5


@pytest.mark.parametrize("trains", [True, False])
def test_a_process_whose_main_thread_is_over_ends_at_sigterm(processes, tmp_path, trains):
    processes.start("worker", "-c", THREADS.format(tmp_path / "run", trains=trains))
    processes.until("worker", "trains" if trains else "idles")
    pid, looks = processes.pid("worker"), []
    processes.until_true("worker", lambda: main_thread_waits(pid, looks), what="the end of its main thread")
    os.kill(pid, signal.SIGTERM)
    assert processes.wait() == {"worker": 143}
    if trains:
        done = processes.output("worker").count("trains\n") + 1
        assert load_variable(str(tmp_path / "run"), "global_step") == done
