"""Jobs on a real Ray of this machine: actors that are killed, a drain, a script that fails; exact at the end."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import uuid
from pathlib import Path

import pytest
from counted import assert_counted
from processes import EXAMPLES, Processes, tasks_marked, until

from globalstep.chief.checkpoints.checkpoint_state import latest_checkpoint
from globalstep.deploy.audit.audit import audit
from globalstep.errors import UnauthenticatedError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.security.credentials import Credentials
from globalstep.worker.transport.grpc_transport import GrpcTransport

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install ray"),
]

JOB = Path(__file__).parents[2] / "support" / "counting_job.py"
LAST_STEP = 600
#: Says how the job has ended, and that Ray has its CPUs back.
PROGRAM = """
import json, logging, sys, threading
import ray
from globalstep.deploy.ray.job import launch
arguments = json.loads(sys.argv[1])
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
end = launch(arguments.pop("script"), arguments.pop("args"), **arguments)
print("end:", json.dumps({"codes": end.codes, "restarts": end.restarts, "output": end.output}), flush=True)
assert ray.is_initialized()
for _ in range(100):
    if ray.available_resources().get("CPU") == 2:
        break
    threading.Event().wait(0.1)
else:
    sys.exit(f"not given back: {ray.available_resources()}")
sys.exit(end.code)
"""


class Ray:
    """A job, in the process that has called `launch`."""

    def __init__(self, folder, processes):
        self._folder = folder
        self._processes = processes
        self._mark = uuid.uuid4().hex

    def start(self, script, *args, **options):
        arguments = {"script": str(script), "args": [*map(str, args)], **options}
        environ = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "TEST_MARK": self._mark}
        return self._processes.start("ray", "-c", PROGRAM, json.dumps(arguments), env=environ)

    def until(self, pattern, count=1):
        def reached():
            return len(re.findall(pattern, self.output(), re.MULTILINE)) >= count

        self._processes.until_true("ray", reached, 100.0, repr(pattern))

    def output(self):
        return self._processes.output("ray")

    def tasks(self):
        return tasks_marked("TEST_MARK", self._mark)

    def kill_actor(self, task):
        """Kill the actor of a task, which is its process's parent."""
        pid = self.tasks()[task]
        stat = Path(f"/proc/{pid}/stat").read_text()
        os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
        until(lambda: self.tasks().get(task) != pid, f"{task} ends with its actor")

    def wait(self, timeout_secs=150.0):
        code = self._processes.wait(timeout_secs)["ray"]
        assert self.tasks() == {}
        return code

    def end(self):
        return json.loads(re.search(r"^end: (.*)$", self.output(), re.MULTILINE)[1])


@pytest.fixture
def ray(tmp_path):
    with Processes(tmp_path) as processes:
        yield Ray(tmp_path, processes)


def test_the_digits(ray, tmp_path):
    ray.start(EXAMPLES / "digits.py", "--steps", 2000, "--run-dir", tmp_path / "run", ps=2, workers=3, cpus=0.25)
    assert ray.wait() == 0, ray.output()
    assert "[chief:0] final global step: 2000\n" in ray.output()
    assert float(re.search(r"test accuracy: ([\d.]+)", ray.output())[1]) > 0.95
    end = ray.end()
    assert end["codes"] == dict.fromkeys(["ps:0", "ps:1", "chief:0", "worker:0", "worker:1"], 0)
    assert set(end["restarts"].values()) == {0}
    assert "final global step: 2000" in end["output"]["chief:0"]


def test_a_ps_a_worker_and_the_chief_whose_actors_are_killed(ray, tmp_path):
    run, killed = tmp_path / "run", tmp_path / "killed"
    ray.start(
        JOB, "--last-step", LAST_STEP, "--dir", run, "--say-steps", 5, "--save-steps", 20, "--slow-until", killed, 3,
        ps=2, workers=2, chief=True, cpus=0.25, log_dir=str(tmp_path / "logs"),
    )  # fmt: skip
    ray.until(r"step \d\d+$")
    for task in ("worker:0", "ps:1", "chief:0"):
        ray.kill_actor(task)
        ray.until(rf"{task} was ended by SIGKILL \(exit code 137\); restart 1 of 10")
        said = ray.output().count("worker:1] step")
        ray.until(r"worker:1\] step", said + 2)
        with killed.open("a") as file:
            file.write(f"{task}\n")
    assert ray.wait() == 0, ray.output()
    restarts = ray.end()["restarts"]
    assert {task: restarts[task] for task in ("worker:0", "ps:1", "chief:0", "worker:1")} == {
        "worker:0": 1, "ps:1": 1, "chief:0": 1, "worker:1": 0,
    }  # fmt: skip
    assert_counted(run, LAST_STEP)
    found = audit(str(run))
    assert found.proven, found.findings
    assert "done after" in (tmp_path / "logs" / "worker-0.log").read_text()


def test_a_drain_saves_and_the_next_job_goes_on(ray, tmp_path):
    count = [JOB, "--last-step", LAST_STEP, "--dir", tmp_path / "run", "--say-steps", 10, "--verbose"]
    running = ray.start(*count, "--pause-secs", 0.02, workers=2, cpus=0.25)
    ray.until(r"step \d\d\d?$")
    running.send_signal(signal.SIGTERM)
    assert ray.wait() == 128 + signal.SIGTERM, ray.output()
    saved = int(latest_checkpoint(str(tmp_path / "run")).rpartition("-")[2])
    assert 0 < saved < LAST_STEP
    assert ray.end()["codes"] == {"ps:0": 143, "chief:0": 143, "worker:0": 143}
    ray.start(*count, workers=2, cpus=0.25)
    assert ray.wait() == 0, ray.output()
    assert latest_checkpoint(str(tmp_path / "run")) == str(tmp_path / "run" / f"model.ckpt-{LAST_STEP}")


def test_a_script_that_fails_is_named_with_its_exit_code_and_everything_ends(ray, tmp_path):
    (tmp_path / "fails.py").write_text("import sys\nprint('about to fail')\nsys.exit(5)\n")
    ray.start(tmp_path / "fails.py", max_restarts=1, grace_secs=3, cpus=0.25)
    assert ray.wait() == 5, ray.output()
    assert "chief:0 failed with exit code 5; restart 1 of 1" in ray.output()
    assert "chief:0 failed with exit code 5; its last lines:\n    about to fail" in ray.output()
    assert ray.end()["codes"]["chief:0"] == 5


def test_a_job_has_a_token_of_its_own_that_no_actor_shows(ray, tmp_path):
    go = tmp_path / "go"
    count = [JOB, "--last-step", 60, "--dir", tmp_path / "run", "--say-steps", 5, "--slow-until", go, 1]
    ray.start(*count, workers=1, cpus=0.25)
    ray.until(r"step \d+$")
    for pid in ray.tasks().values():
        token = environ_of(pid)["GLOBALSTEP_RUN_TOKEN"]
        actor = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        for process in (actor, pid):
            assert token not in Path(f"/proc/{process}/cmdline").read_text()
        assert "GLOBALSTEP_RUN_TOKEN" not in environ_of(actor)
    address = json.loads(environ_of(pid)["TF_CONFIG"])["cluster"]["ps"][0]
    for shown, answers in ((Credentials(), False), (Credentials(token=token), True)):
        with contextlib.closing(GrpcTransport(address, 0, "grpc", credentials=shown)) as transport:
            call = transport.unary("Status", pb.StatusRequest(brief=True), 10.0)
            if answers:
                assert call.result().state == pb.STATE_READY
            else:
                with pytest.raises(UnauthenticatedError):
                    call.result()
    go.write_text("on\n")
    assert ray.wait() == 0, ray.output()
    assert token not in ray.output()


def environ_of(pid):
    text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    return dict(line.split("=", 1) for line in text.split("\0") if "=" in line)
