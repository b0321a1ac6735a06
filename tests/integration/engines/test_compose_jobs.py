"""Jobs under docker compose on a real dockerd: tasks that are killed, a rolling restart; exact at the end.

One process of pytest runs them all, as they are the first (tests/conftest.py), so that the image is made once.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from census import assert_done
from compose_engine import engine, why_not
from counted import assert_counted
from processes import EXAMPLES, ROOT, until

from globalstep.deploy.cli import main
from globalstep.deploy.compose import project_name

pytestmark = [
    pytest.mark.processes,
    # The first test makes the image.
    pytest.mark.timeout(1800),
    pytest.mark.first,
    pytest.mark.skipif(bool(why_not()), reason=f"no docker compose: {why_not()}"),
]

JOBS = Path(__file__).parents[2] / "support"
LAST_STEP = 3000
TASKS = ("ps-0", "ps-1", "chief-0", "worker-0", "worker-1")


@pytest.fixture(scope="module")
def docker():
    with engine() as running:
        yield running


class Job:
    """A job of compose in a folder, which gives the project its name."""

    def __init__(self, docker, folder):
        self.docker = docker
        self.folder = folder
        self._said = folder / "said.txt"
        self._process = None

    def start(self, *command):
        """Run a command that shows what the tasks say, in the background."""
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [*map(str, command)], cwd=self.folder, env=self.docker.environ, stdout=said, stderr=subprocess.STDOUT
            )

    def up(self, *arguments):
        self.start(sys.executable, "-m", "globalstep", "compose", "up", "--run", self.project, *arguments)

    def stop(self):
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def said(self):
        """Give what was printed, without its colours."""
        return re.sub(r"\x1b\[[\d;]*[mKAB]", "", self._said.read_text())

    def until_said(self, pattern, timeout_secs=120.0, count=1):
        def reached():
            return (
                len(re.findall(pattern, self.said(), re.MULTILINE)) >= count
                or self._process is None
                or self._process.poll() is not None
            )

        until(reached, pattern, timeout_secs)
        assert len(re.findall(pattern, self.said(), re.MULTILINE)) >= count, self.said()

    def until_goes_on(self, task):
        """Wait until a task says a step that it has not said yet."""
        step = rf"^{task}\S*\s*\| .*\bstep \d+"
        self.until_said(step, count=1 + len(re.findall(step, self.said(), re.MULTILINE)))

    def ended(self, tasks=TASKS):
        """Wait for the end, which is a good one for all tasks; gives the command's exit code."""
        code = self._process.wait(150.0)
        assert self.shown("State.ExitCode", tasks) == dict.fromkeys(tasks, "0"), self.said()
        return code

    @property
    def project(self):
        """That which docker compose takes in the folder, so that other commands need not name it."""
        return project_name(self.folder.name)

    def container(self, service):
        (found,) = self.docker.container(self.project, service).split()
        return found

    def shown(self, what, services):
        return {
            service: self.docker.docker("inspect", f"--format={{{{.{what}}}}}", self.container(service))
            for service in services
        }

    def replaced(self, service, how):
        """Do something to a service's container, and wait until it has been started anew."""
        before = self.shown("State.StartedAt", [service])
        how(self.container(service))
        until(lambda: self.shown("State.StartedAt", [service]) != before, f"{service} is started again", 60.0)
        until(lambda: self.shown("State.Status", [service]) == {service: "running"}, f"{service} runs", 60.0)

    def run_folder(self):
        """Give the folder of the volume that all tasks write to, as this machine sees it."""
        format = '{{range .Mounts}}{{if eq .Destination "/run/globalstep"}}{{.Source}}{{end}}{{end}}'
        return Path(self.docker.docker("inspect", f"--format={format}", self.container("chief-0")))


@pytest.fixture
def job(docker, tmp_path):
    started = Job(docker, tmp_path)
    yield started
    started.stop()
    docker.remove_containers()


def counts_exactly(folder, capsys):
    assert_counted(folder, LAST_STEP)
    assert main(["audit", str(folder)]) == 0
    assert "PROVEN\n" in capsys.readouterr().out


def count(job):
    """Begin a job that is slow until `run_on`; gives it in the middle of training."""
    job.up(
        "--ps", 2, "--workers", 3, JOBS / "counting_job.py", "--last-step", LAST_STEP, "--dir", "run",
        "--say-steps", 10, "--slow-until", "run_on", 1, "--verbose",
    )  # fmt: skip
    for task in TASKS[2:]:
        job.until_goes_on(task)


def run_on(job):
    (job.run_folder() / "run_on").write_text("now\n")


def test_the_file_of_the_repository_trains_the_digits(job):
    for name in ("docker-compose.yml", ".env"):
        shutil.copy(ROOT / "deploy" / "docker" / name, job.folder)
    settings = (job.folder / ".env").read_text()
    (job.folder / ".env").write_text(settings.replace("../../examples", str(EXAMPLES)))
    job.start(*job.docker.compose, "up")
    services = (*TASKS, "worker-2")
    job.until_said(r"^chief-0\S*\s*\| checkpoints: ")
    tasks = dict.fromkeys(services, "exited")
    until(lambda: job.shown("State.Status", tasks) == tasks, "all tasks have ended")
    assert set(job.shown("State.ExitCode", tasks).values()) == {"0"}
    assert set(job.shown("RestartCount", services).values()) == {"0"}
    assert "final global step: 3000\n" in job.said()
    assert float(re.search(r"test accuracy: ([\d.]+)", job.said())[1]) > 0.95


# The digits are in the test above, killed tasks in the next one, and a kill that docker was not asked for in the last.
@pytest.mark.full_matrix
def test_the_digits_by_one_command_with_a_worker_and_a_ps_killed(job):
    job.up("--ps", 2, "--workers", 2, EXAMPLES / "digits.py", "--steps", 6000)
    tasks = TASKS[:4]
    job.until_said(r"^ps-1\S*\s*\| serving on ps-1:2222")
    until(lambda: list(job.run_folder().glob("runs/digits/model.ckpt-0*")), "training has begun", 60.0)
    job.replaced("worker-0", job.docker.kill)
    job.replaced("ps-1", lambda container: job.docker.docker("kill", container))
    assert job.ended(tasks) == 0
    assert "globalstep compose: ps-1 was killed, and starts again\n" in job.said()
    assert job.shown("RestartCount", ["worker-0"]) == {"worker-0": "1"}
    assert job.said().count("final global step: 6000\n") == 1
    assert float(re.search(r"test accuracy: ([\d.]+)", job.said())[1]) > 0.95
    assert set(job.shown("Config.User", tasks).values()) == {"globalstep"}


def test_a_ps_a_worker_and_the_chief_are_killed(job, capsys):
    count(job)
    is_healthy(job, *TASKS)
    assert set(job.shown("Config.User", TASKS).values()) == {"globalstep"}
    for task in ("ps-1", "worker-0", "chief-0"):
        job.replaced(task, lambda container: job.docker.docker("kill", container))
        job.until_goes_on("worker-1")
    job.until_goes_on("chief-0")
    run_on(job)
    assert job.ended() == 0
    assert set(re.findall("compose: (.*) was killed", job.said())) == {"ps-1", "worker-0", "chief-0"}
    counts_exactly(job.run_folder() / "run", capsys)


def test_every_role_is_restarted_one_after_the_other(job, capsys):
    count(job)
    for task in TASKS:
        job.replaced(task, lambda container: job.docker.docker("restart", container, timeout_secs=100))
        job.until_goes_on("worker-0" if task == "worker-1" else "worker-1")
    run_on(job)
    assert job.ended() == 0
    assert "was killed" not in job.said()
    counts_exactly(job.run_folder() / "run", capsys)


def test_an_estimator_with_its_evaluator(job, capsys):
    script = [EXAMPLES / "census.py", "--run-dir", "run", "--steps", 6000]
    job.up("--ps", 2, "--workers", 2, "--chief", "--evaluator", *script)
    job.until_said(r"^ps-0\S*\s*\| serving on ps-0:2222")
    for task in ("worker-0", "ps-0", "chief-0"):
        saved = set(job.run_folder().glob("run/model.ckpt-*.meta"))
        until(lambda saved=saved: set(job.run_folder().glob("run/model.ckpt-*.meta")) - saved, "a checkpoint", 120.0)
        job.replaced(task, lambda container: job.docker.docker("kill", container))
    assert job.ended((*TASKS, "evaluator-0")) == 0
    assert set(re.findall("compose: (.*) was killed", job.said())) == {"worker-0", "ps-0", "chief-0"}
    assert_done(job.run_folder() / "run", 6000, capsys)


#: What docs/deploy/compose.md says, for one PS task and the chief.
SHARED_HOST = """\
services:
  host-0:
    image: ${GLOBALSTEP_IMAGE:-globalstep}
    command: ["sleep", "infinity"]
    stop_signal: SIGKILL
    healthcheck: {disable: true}
    networks: {default: {aliases: [ps-0]}}
  ps-0:
    network_mode: "service:host-0"
  chief-0:
    network_mode: "service:host-0"
"""


def test_memory_is_shared_where_the_network_is(job):
    """More of it than /dev/shm has room for. Containers that have networks of their own use TCP."""
    files = ("job.yml", "shared.yml")
    script = [str(Path(__file__).with_name("large_values_job.py")), "--last-step", "60", "--dir", "run"]
    assert main(["compose", "write", "--workers", "2", "--file", str(job.folder / files[0]), *script]) == 0
    (job.folder / files[1]).write_text(SHARED_HOST)
    job.start(*job.docker.compose, *(f"--file={name}" for name in files), "up")
    tasks = ("ps-0", "chief-0", "worker-0")
    job.until_said(r"chief-0\S*\s*\| ran$", count=3)
    room = int(job.docker.docker("exec", job.container("ps-0"), "df", "--output=size", "-B1", "/dev/shm").split()[-1])
    assert room == 64 * 2**20
    memory_is_shared(job, room)
    # A PS task that is killed comes back where the chief is.
    job.replaced("ps-0", job.docker.kill)
    job.until_said(r"chief-0\S*\s*\| ran$", count=job.said().count("| ran") + 3)
    memory_is_shared(job, room)
    until(lambda: job.said().count("| ended") == 2, "both have ended", 100.0)
    exited = dict.fromkeys(tasks, "exited")
    until(lambda: job.shown("State.Status", tasks) == exited, "all have exited")
    assert set(job.shown("State.ExitCode", tasks).values()) == {"0"}


def memory_is_shared(job, room):
    shared = {task: shared_bytes(job, task) for task in ("ps-0", "chief-0", "worker-0")}
    assert min(shared["ps-0"], shared["chief-0"]) > room, shared
    assert shared["worker-0"] == 0


def is_healthy(job, *services):
    healthy = dict.fromkeys(services, "healthy")
    until(lambda: job.shown("State.Health.Status", services) == healthy, "all are healthy", 90.0)


def shared_bytes(job, service):
    """Give the size of the blocks that a task has in its memory."""
    maps = job.docker.docker("exec", job.container(service), "cat", "/proc/1/maps")
    blocks = re.findall(r"^(\w+)-(\w+) .*memfd:globalstep", maps, re.MULTILINE)
    return sum(int(end, 16) - int(start, 16) for start, end in blocks)
