"""Clusters without a job "ps", whose first task's server holds the Variables, as real processes (rung 4)."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from processes import free_addresses

from globalstep.tf1.variables.checkpoint_variables import load_variable

pytestmark = pytest.mark.processes

PROGRAMS = Path(__file__).resolve().parent / "programs"


@pytest.mark.parametrize("job", ["worker", "local"])
def test_peers_train_what_lies_on_the_first_of_them(processes, tmp_path, job):
    addresses = free_addresses(2)
    # The first one comes last.
    for index in (1, 0):
        arguments = [f"--hosts={','.join(addresses)}", f"--job={job}", f"--task_index={index}"]
        processes.start(f"{job}:{index}", PROGRAMS / "peers.py", *arguments, f"--run_dir={tmp_path / 'run'}")
    codes = processes.wait(100.0)
    assert codes == {f"{job}:{index}": 0 for index in (0, 1)}, "\n".join(map(processes.output, codes))
    assert load_variable(str(tmp_path / "run"), "global_step") == 150
    assert abs(load_variable(str(tmp_path / "run"), "slope") - 2.0) < 0.1


def test_servers_that_only_join_serve_a_client_elsewhere(processes):
    """TensorFlow's oldest tutorial: the tasks of a job "local" join, and a session is made on the address of one."""
    addresses = free_addresses(2)
    cluster = f"{{'local': {addresses!r}}}"
    for index in (0, 1):
        program = f"tf.train.Server({cluster}, job_name='local', task_index={index}).join()"
        processes.start(f"local:{index}", "-c", f"import globalstep as tf; tf.logging.set_verbosity('INFO'); {program}")
    client = f"""
import globalstep as tf
with tf.device("/job:local/task:1"):
    count = tf.Variable(40, name="count")
with tf.Session("grpc://{addresses[0]}") as session:
    session.run(tf.global_variables_initializer())
    print("count", session.run(count.assign_add(2)))
    session.cluster.finish()
"""
    processes.until_true("local:0", lambda: _serves(addresses[0]), what="serving")
    # Else the job may be done, and its PS gone, before this task knows of them.
    processes.until("local:1", "the job's parameter servers answer", 60.0)
    processes.start("client", "-c", client)
    processes.until("client", "^count 42$", 60.0)
    tasks = ["local:0", "local:1", "client"]
    assert processes.wait(100.0) == dict.fromkeys(tasks, 0), "\n".join(map(processes.output, tasks))


def test_an_address_that_is_taken_is_said_at_once(processes):
    (address,) = free_addresses(1)
    program = f"import globalstep as tf; tf.train.Server({{'worker': ['{address}']}}).join()"
    processes.start("first", "-c", program)
    processes.until_true("first", lambda: _serves(address), what="serving")
    processes.start("second", "-c", program)
    processes.until_ended(["second"], 60.0)
    assert processes.code("second") == 1
    assert f"Cannot serve on {address}: the address is taken" in processes.output("second")


def _serves(address):

    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0
