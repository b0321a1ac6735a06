"""Jobs under a real Slurm with four nodes: tasks that are killed, a node that is lost, a requeue; exact at the end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from counted import assert_counted
from hosts import hosts
from hosts import why_not as why_no_hosts
from processes import EXAMPLES, until
from slurm_cluster import NODES, slurm, why_not

from globalstep.deploy.audit.audit import audit

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(why_not()), reason=f"no Slurm: {why_not()}"),
]

JOB = Path(__file__).parents[2] / "support" / "counting_job.py"
LAST_STEP = 600


@pytest.fixture(scope="module")
def cluster():
    # A short path: that of a unix socket has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="slurm") as folder, slurm(Path(folder)) as running:
        yield running


class Job:
    """A job that `globalstep slurm` has submitted from a folder."""

    def __init__(self, cluster, folder):
        self._cluster = cluster
        self._folder = folder
        self.id = ""

    def submit(self, *arguments):
        done = subprocess.run(
            [*self._cluster.by, sys.executable, "-m", "globalstep", "slurm", *map(str, arguments)],
            env=self._cluster.environ, cwd=self._folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        self.id = done.stdout.split()[-1]

    def printed(self):
        return "".join(path.read_text() for path in self._folder.glob(f"*-{self.id}.out"))

    def until(self, pattern, count=1, timeout_secs=90.0):
        def reached():
            return len(re.findall(pattern, self.printed(), re.MULTILINE)) >= count or self.state() in (
                "FAILED",
                "COMPLETED",
            )

        until(reached, pattern, timeout_secs)
        assert len(re.findall(pattern, self.printed(), re.MULTILINE)) >= count, self.printed()

    def pause(self, secs):
        threading.Event().wait(secs)
        assert self.state() == "RUNNING", self.printed()

    def state(self):
        shown = self._cluster.output("scontrol", "-o", "show", "job", self.id)
        return re.search(r"JobState=(\S+)", shown)[1]

    def until_ended(self):
        until(lambda: self.state() not in ("RUNNING", "PENDING", "COMPLETING"), "the job ends", 120.0)
        assert self.state() == "COMPLETED", self.printed()
        return self.printed()

    def task(self, name):
        """Give the pid of a task's own process, and the node that it is on."""
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, ValueError):
                environ = dict(
                    line.split("=", 1) for line in (folder / "environ").read_text().split("\0") if "=" in line
                )
                command = (folder / "cmdline").read_text().split("\0")
                if (
                    environ.get("SLURM_JOB_ID") != self.id
                    or "SLURM_STEP_ID" not in environ
                    or "TF_CONFIG" not in environ
                ):
                    continue
                task = json.loads(environ["TF_CONFIG"])["task"]
                if f"{task['type']}:{task['index']}" == name and "python" in command[0] and "srun" not in command:
                    return int(folder.name), environ["SLURMD_NODENAME"]
        raise AssertionError(f"no process of {name}: {self.printed()}")

    def step(self, name):
        """Give the id of the step that a task runs in, as squeue shows it; "" between two."""
        for line in self._cluster.output("squeue", "-h", "--steps", f"--jobs={self.id}", "--format=%i %j").splitlines():
            step, _, of = line.strip().partition(" ")
            if of.strip() == name.replace(":", "-"):
                return step
        return ""

    def kill(self, name):
        os.kill(self.task(name)[0], signal.SIGKILL)


@contextlib.contextmanager
def job_on(cluster, folder):
    submitted = Job(cluster, folder)
    try:
        yield submitted
    finally:
        if submitted.id:
            subprocess.run([*cluster.by, "scancel", "--full", submitted.id], env=cluster.environ, check=False)
            until(lambda: not cluster.output("squeue", "-h", "-j", submitted.id), "the job is gone", 60.0)


@pytest.fixture
def job(cluster, tmp_path):
    with job_on(cluster, tmp_path) as submitted:
        yield submitted


def counts_exactly(folder):
    assert_counted(folder, LAST_STEP)


def bring_back(cluster, node):
    # It comes back by itself when its slurmd registers, which may have been before; that is refused.
    subprocess.run(["scontrol", "update", f"nodename={node}", "state=resume"], env=cluster.environ, check=False)
    until(lambda: cluster.nodes()[node] in ("idle", "mixed", "allocated"), f"{node} is back")


def count(job, folder, *options):
    job.submit(
        "--ps", 2, "--workers", 3, *options, JOB, "--last-step", LAST_STEP, "--dir", folder, "--say-steps", 20,
        "--pause-secs", 0.02, "--verbose",
    )  # fmt: skip
    job.until(r"step \d\d\d$")


def test_the_digits_with_a_worker_and_a_ps_killed(job, tmp_path):
    job.submit(
        "--ps", 2, "--workers", 3, "--nodes", 4, EXAMPLES / "digits.py", "--steps", 4000, "--run-dir", tmp_path / "run"
    )  # fmt: skip
    job.until(r"step \d+/4000")
    for task in ("worker:1", "ps:1"):
        job.kill(task)
        job.until(rf"{task} was ended by SIGKILL \(exit code 137\); restart 1 of 10")
    printed = job.until_ended()
    assert "final global step: 4000\n" in printed
    assert float(re.search(r"test accuracy: ([\d.]+)", printed)[1]) > 0.95


def test_a_worker_whose_node_is_lost_goes_to_another(cluster, job, tmp_path):
    count(job, tmp_path / "run", "--nodes", 4)
    node = job.task("worker:0")[1]
    assert node == "node4"
    cluster.output("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    try:
        # srun ends with 0, or with the code of the kill where slurmd was faster.
        job.until(r"worker:0\] the node of worker-0 is lost$|worker:0\] srun: error: Node failure on node4$")
        job.until(r"worker:0\] node node4 is lost: worker-0 runs on node3 now$")
        job.until_ended()
    finally:
        bring_back(cluster, node)
    counts_exactly(tmp_path / "run")


def test_every_role_is_restarted_one_after_the_other(cluster, job, tmp_path):
    """As an operator does it, for a new version of the image or of a node's kernel."""
    restarted = tmp_path / "restarted"
    roles = ["ps:0", "ps:1", "worker:0", "worker:1", "chief:0"]
    job.submit(
        "--ps", 2, "--workers", 3, "--nodes", 4, JOB, "--last-step", LAST_STEP, "--dir", tmp_path / "run",
        "--say-steps", 5, "--save-steps", 20, "--verbose", "--slow-until", restarted, len(roles),
    )  # fmt: skip
    job.until(r"step \d\d+$")
    for role in roles:
        step, pid = job.step(role), job.task(role)[0]
        # Its exit code is that of an error here ("Invalid job id specified"), though the signal arrives.
        subprocess.run(["scancel", "--signal=TERM", step], env=cluster.environ, capture_output=True, check=False)
        job.until(rf"{role} was ended by SIGTERM \(exit code 143\); restart 1 of 10")
        until(lambda role=role, step=step: job.step(role) not in ("", step), f"{role} has a new step", 60.0)
        # The others have gone on, and the one that was restarted is there again.
        said = len(re.findall(r"step \d+$", job.printed(), re.MULTILINE))
        job.until(r"step \d+$", said + 6)
        assert job.task(role)[0] != pid
        with restarted.open("a") as file:
            file.write(f"{role}\n")
    printed = job.until_ended()
    assert len(re.findall(r"; restart \d of 10", printed)) == len(roles), printed
    counts_exactly(tmp_path / "run")
    found = audit(str(tmp_path / "run"))
    assert found.proven, found.findings
    assert found.steps["global_step"].value == LAST_STEP


def test_a_requeue_goes_on_from_the_checkpoint(cluster, job, tmp_path):
    count(job, tmp_path / "run")
    cluster.output("scontrol", "requeue", job.id)
    until(lambda: job.state() != "RUNNING", "the job has stopped")
    printed = job.until_ended()
    assert "Restoring parameters from" in printed or "restored" in printed, printed
    counts_exactly(tmp_path / "run")
    assert not re.search(r"restart \d of 10", printed), printed


def test_a_ps_whose_node_is_lost_has_the_job_begin_again(cluster, job, tmp_path):
    count(job, tmp_path / "run", "--nodes", 3)
    node = job.task("ps:1")[1]
    assert node == "node3"
    cluster.output("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    try:
        job.until(r"ps:1\] node node3 is lost, and ps-1 can run on no other: the job begins again$")
        job.until_ended()
    finally:
        bring_back(cluster, node)
    counts_exactly(tmp_path / "run")


@pytest.mark.skipif(bool(why_no_hosts()), reason=f"no hosts: {why_no_hosts()}")
def test_nodes_that_are_cut_off_for_less_than_slurmd_timeout_and_healed(tmp_path):
    """Each node is a host; the links of a worker's and then of a PS task's are cut in the middle of training."""
    with (
        tempfile.TemporaryDirectory(prefix="slurm") as folder,
        hosts(NODES) as network,
        slurm(Path(folder), network) as cluster,
        job_on(cluster, tmp_path) as job,
    ):
        job.submit(
            "--ps", 2, "--workers", 3, "--nodes", NODES, "--insecure", JOB, "--last-step", LAST_STEP,
            "--dir", tmp_path / "run", "--say-steps", 5, "--verbose", "--slow-until", tmp_path / "healed", 2,
        )  # fmt: skip
        job.until(r"step \d\d+$")
        for role in ("worker:0", "ps:1"):
            node = job.task(role)[1]
            assert node != "node1"
            network.cut(int(node.removeprefix("node")))
            job.pause(4.0)
            network.heal(int(node.removeprefix("node")))
            said = len(re.findall(rf"{re.escape(role.replace('ps:1', 'worker:0'))}\] step", job.printed()))
            job.until(r"worker:0\] step \d+$", said + 2)
            with (tmp_path / "healed").open("a") as file:
                file.write(f"{role}\n")
        printed = job.until_ended()
    assert not re.search(r"; restart \d of 10", printed), printed
    assert max(map(float, re.findall(r"worker:0\] gap ([\d.]+)", printed))) > 3
    # Between nodes, by the port behind those of the tasks.
    ports = [int(port) for port in re.findall(r" goes over TCP, port (\d+): ", printed)]
    tasks = [int(port) for port in re.findall(r"/job:ps/task:\d at \S+:(\d+)", printed)]
    assert ports
    assert min(ports) > max(tasks)
    counts_exactly(tmp_path / "run")
