"""A job on four hosts, over TCP connections and gRPC; one is cut off while it trains and healed; exact at the end."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from counted import assert_counted
from hosts import hosts, why_not
from processes import EXAMPLES, Processes

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(240),
    pytest.mark.skipif(bool(why_not()), reason=f"no hosts: {why_not()}"),
]

JOB = Path(__file__).parents[2] / "support" / "counting_job.py"
LAST_STEP = 1000
CUT_SECS = 5.0
TASKS = ("ps:0", "ps:1", "chief:0", "worker:0")


@pytest.fixture
def network():
    with hosts(len(TASKS)) as made:
        yield made


def start(running, network, *script):
    """Start all tasks, each on a host of its own."""
    addresses = {task: f"{network.address(i)}:2222" for i, task in enumerate(TASKS, 1)}
    cluster = {
        job: [address for task, address in addresses.items() if task.startswith(f"{job}:")]
        for job in ("ps", "chief", "worker")
    }
    for i, task in enumerate(TASKS, 1):
        job, index = task.split(":")
        config = {"cluster": cluster, "task": {"type": job, "index": int(index)}}
        program = ["-m", "globalstep.ps", "--tcp-port", "2223"] if job == "ps" else script
        # As under a launcher the chief says every second how far it is.
        environ = {"TF_CONFIG": json.dumps(config), "GLOBALSTEP_INSECURE": "1", "GLOBALSTEP_LAUNCH": "1"}
        running.start(task, *program, env=environ, by=network.by(i))


@pytest.fixture
def processes(network, tmp_path):
    """A job that counts, in the middle of training."""
    script = [JOB, "--last-step", LAST_STEP, "--dir", tmp_path / "run", "--say-steps", 10, "--pause-secs", 0.01]
    with Processes(tmp_path) as running:
        start(running, network, *script, "--verbose")
        for task in TASKS[2:]:
            running.until(task, r"^step \d\d\d?$", 60.0)
        yield running


def ends_exactly(processes, tmp_path):
    assert processes.wait(90.0) == dict.fromkeys(TASKS, 0), "\n".join(map(processes.output, TASKS))
    assert_counted(tmp_path / "run", LAST_STEP)


def longest_gap(processes, task):
    return max(map(float, re.findall(r"^gap ([\d.]+)", processes.output(task), re.MULTILINE)), default=0.0)


def steps(processes, task):
    return [int(step) for step in re.findall(r"^step (\d+)$", processes.output(task), re.MULTILINE)]


def test_a_worker_that_was_cut_off_comes_back_and_the_others_do_not_wait(network, processes, tmp_path):
    before = steps(processes, "chief:0")[-1]
    network.cut(4)
    processes.pause("chief:0", CUT_SECS / 2)
    during = steps(processes, "worker:0")
    processes.pause("chief:0", CUT_SECS / 2)
    assert steps(processes, "worker:0") == during
    assert steps(processes, "chief:0")[-1] > before + 50
    network.heal(4)
    ends_exactly(processes, tmp_path)
    assert longest_gap(processes, "worker:0") > CUT_SECS / 2
    assert longest_gap(processes, "chief:0") < CUT_SECS / 2
    assert steps(processes, "worker:0")[-1] > during[-1]


def test_a_ps_that_was_cut_off_is_waited_for_and_has_lost_nothing(network, processes, tmp_path):
    network.cut(2)
    processes.pause("chief:0", CUT_SECS)
    network.heal(2)
    ends_exactly(processes, tmp_path)
    for task in ("chief:0", "worker:0"):
        assert longest_gap(processes, task) > CUT_SECS - 1
        assert "go back" not in processes.output(task)


def test_between_hosts_data_goes_over_tcp_and_over_grpc_where_a_firewall_is(network, tmp_path):
    """One PS task's port is open, the other's drops what comes, without a word."""
    if shutil.which("iptables") is None:
        pytest.skip("no iptables")
    drop = ["iptables", "-A", "INPUT", "-p", "tcp", "--dport", "2223", "-j", "DROP"]
    if subprocess.run([*network.by(2), *drop], check=False, capture_output=True).returncode:
        pytest.skip("no rules for iptables here")
    script = [JOB, "--last-step", 50, "--dir", tmp_path / "run", "--verbose"]
    with Processes(tmp_path) as processes:
        start(processes, network, *script)
        assert processes.wait(90.0) == dict.fromkeys(TASKS, 0), "\n".join(map(processes.output, TASKS))
        # One that comes after the last step has no data to send.
        trained = [task for task in TASKS[2:] if "done after 0 runs" not in processes.output(task)]
        assert trained
        for task in trained:
            lines = [line for line in processes.output(task).splitlines() if " goes over " in line]
            assert len(lines) == 2, processes.output(task)
            over_tcp, over_grpc = sorted(lines, key=lambda line: "/job:ps/task:1" in line)
            assert "The data of /job:ps/task:0 at 10.77.0.1:2222 goes over TCP, port 2223" in over_tcp
            assert "No TCP connection to /job:ps/task:1 at 10.77.0.2:2222, its data goes over gRPC" in over_grpc
            assert "port 2223 of 10.77.0.2 does not answer" in over_grpc


# The two tests above cut off either, and count exactly.
@pytest.mark.full_matrix
def test_the_digits_are_learned_though_a_worker_and_then_a_ps_are_cut_off(network, tmp_path):
    with Processes(tmp_path) as processes:
        start(processes, network, EXAMPLES / "digits.py", "--steps", 5000, "--run-dir", tmp_path / "run")
        for host in (4, 2):
            shown = processes.output("chief:0").count("progress step")
            processes.until_true(
                "chief:0",
                lambda shown=shown: processes.output("chief:0").count("progress step") > shown,
                60.0,
                f"training before the cut of host {host}",
            )
            network.cut(host)
            processes.pause("chief:0", CUT_SECS / 2)
            network.heal(host)
        assert "final global step" not in processes.output("chief:0")
        assert processes.wait(110.0) == dict.fromkeys(TASKS, 0), "\n".join(map(processes.output, TASKS))
        printed = processes.output("chief:0")
    assert "final global step: 5000\n" in printed
    assert float(re.search(r"test accuracy: ([\d.]+)", printed)[1]) > 0.95
