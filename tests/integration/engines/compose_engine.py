"""A real dockerd on this machine for tests, in namespaces of its own, and the project's image, made without a registry.

All of it is one tree of processes in a mount, a network and a process namespace: when its first process ends, however
it ends, the kernel ends the rest, and with them go mounts, bridges and iptables rules. The base of the image comes from
Debian's mirror as apt on this machine knows it, the Python packages from where pip takes them.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import ROOT, until

PROGRAMS = {
    "dockerd": "docker.io",
    "docker": "docker.io or docker-cli",
    "mmdebstrap": "mmdebstrap",
    "ip": "iproute2",
    "iptables": "iptables",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "unshare": "util-linux",
}
#: A tree of processes that ends with the tests, even when they are killed.
TREE = ["setpriv", "--pdeathsig=KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
#: What the image is built from.
CONTEXT = (
    *("pyproject.toml", "docs/package.md", "LICENSE", "scripts/image_requirements.py"),
    *("src", "proto", "ps", "worker", "chief", "deploy", "tf1", "examples"),
)
#: A private /run hides another container engine of this machine from ours, and ours from it.
START = """
mount -t tmpfs none /run
ip link set lo up
exec dockerd --host=unix://$FOLDER/docker.sock --data-root=$FOLDER/data --exec-root=$FOLDER/exec \
  --pidfile=$FOLDER/dockerd.pid --cgroup-parent=/$GROUP --exec-opt=native.cgroupdriver=cgroupfs
"""
SANE = {**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}


def why_not() -> str:
    """Say why docker cannot run here; "" if it can, as far as can be told without trying."""
    if os.geteuid():
        return "dockerd needs root"
    missing = {package for name, package in PROGRAMS.items() if shutil.which(name, path=SANE["PATH"]) is None}
    if not _compose():
        missing.add("docker-compose")
    if missing:
        return f"not installed (Debian): {', '.join(sorted(missing))}"
    if "VERSION_CODENAME" not in platform.freedesktop_os_release() or not _sources():
        return "the image is made from Debian's packages: there is no codename in os-release, or no source in /etc/apt"
    tried = subprocess.run([*TREE, "--net", "true"], capture_output=True, text=True, check=False)
    return f"`unshare` fails here: {tried.stderr.strip()}" if tried.returncode else ""


def _compose() -> list[str]:
    """Find compose as users have it: the plugin of docker, or the older program; [] if there is none."""
    with contextlib.suppress(OSError):
        if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0:
            return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else []


def _sources() -> list[str]:
    """Give the files that say where apt takes this release's packages from."""
    files = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    release = platform.freedesktop_os_release().get("VERSION_CODENAME", "?")
    return [
        str(one)
        for one in files
        if one.suffix in (".list", ".sources")
        and one.is_file()
        and f" {release} " in one.read_text().replace("\n", " ")
    ]


class Engine:
    """A running dockerd with the image `globalstep`; commands for it run in `environ`."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self.compose = _compose()
        self.environ = {
            name: value for name, value in SANE.items() if not name.startswith(("DOCKER_", "COMPOSE_", "GLOBALSTEP_"))
        } | {
            "DOCKER_HOST": f"unix://{folder}/docker.sock",
            "DOCKER_CONFIG": str(folder / "config"),
            # The newer builder is a plugin that Debian does not have.
            "DOCKER_BUILDKIT": "0",
        }
        self._process = process

    def docker(self, *command: object, timeout_secs: float = 60.0) -> str:
        """Run a command of docker; gives what it prints."""
        return self._output("docker", *command, timeout_secs=timeout_secs).strip()

    def kill(self, container: str) -> None:
        """Kill a container's process as the kernel would that is out of memory: docker has not been asked to."""
        pid = self.docker("inspect", "--format={{.State.Pid}}", container)
        self._output("nsenter", f"--target={self._first()}", "--mount", "--pid", "kill", "-9", pid)

    def container(self, project: str, service: str) -> str:
        """Give the id of a service's container; "" if there is none."""
        labels = [f"--filter=label=com.docker.compose.{a}={b}" for a, b in (("project", project), ("service", service))]
        return self.docker("ps", "--all", "--quiet", *labels)

    def remove_containers(self) -> None:
        """Remove all containers, and their networks."""
        if found := self.docker("ps", "--all", "--quiet").split():
            self.docker("rm", "--force", "--volumes", *found)
        self.docker("network", "prune", "--force")

    def _first(self) -> int:
        """Give the process in the namespaces, which is their first."""
        return int(Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()[0])

    def _output(self, *command: object, timeout_secs: float = 60.0) -> str:
        done = subprocess.run(
            [*map(str, command)], env=self.environ, capture_output=True, text=True, check=False, timeout=timeout_secs
        )
        assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout


@contextlib.contextmanager
def engine() -> Iterator[Engine]:
    """Run a dockerd that has the project's image until the end of the block; a test that asks for it where it cannot
    be is skipped.
    """
    group = f"globalstep-{os.getpid()}"
    # A short path: that of a unix socket has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="docker") as name:
        folder = Path(name)
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [*TREE, "--net", "sh", "-ec", START],
                env={**SANE, "FOLDER": name, "GROUP": group}, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        running = Engine(folder, process)
        try:
            _wait_for(running, process)
            _build(running)
            yield running
            running.remove_containers()
        finally:
            process.kill()
            process.wait()
            until(lambda: _remove_groups(group), "the control groups are empty")


def _wait_for(running: Engine, process: subprocess.Popen[bytes]) -> None:
    def serves() -> bool:
        ask = subprocess.run(["docker", "version"], env=running.environ, capture_output=True, check=False, timeout=30)
        return ask.returncode == 0 or process.poll() is not None

    until(serves, "dockerd serves", 60.0)
    if process.poll() is not None:
        lines = (running.folder / "log").read_text().splitlines()
        pytest.skip(f"dockerd does not run here: {lines[-1] if lines else 'it says nothing'}")


def _remove_groups(group: str) -> bool:
    for top in [*Path("/sys/fs/cgroup").glob(f"*/{group}"), *Path("/sys/fs/cgroup").glob(group)]:
        for folder, _, _ in os.walk(top, topdown=False):
            try:
                os.rmdir(folder)
            except OSError:
                return False
    return True


def _build(running: Engine) -> None:
    """Make the image as a user would who has no registry: a base of Debian's packages, wheels in a folder."""
    context = running.folder / "context"
    for name in CONTEXT:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (context / name).parent.mkdir(exist_ok=True)
        copy(ROOT / name, context / name)
    with (running.folder / "base.log").open("wb") as log:
        environ = {**running.environ, "TMPDIR": str(running.folder)}
        making = subprocess.Popen([*TREE, *_base(running.folder)], env=environ, stdout=log, stderr=subprocess.STDOUT)
    try:
        _download_wheels(running.folder, context / "wheels")
        making.wait(900)
    finally:
        making.kill()
        making.wait()
    if making.returncode:
        pytest.skip(f"no base image: {(running.folder / 'base.log').read_text()[-500:]}")
    running.docker("import", running.folder / "base.tar", "base", timeout_secs=300)
    running.docker(
        "build", f"--file={context}/deploy/docker/Dockerfile", "--build-arg=BASE=base",
        "--build-arg=PIP=--no-index --find-links wheels", "--tag=globalstep", context, timeout_secs=900,
    )  # fmt: skip
    shutil.rmtree(context)
    (running.folder / "base.tar").unlink()


def _base(folder: Path) -> list[str]:
    # How this machine's apt reaches its mirror: proxies, time limits.
    dumped = subprocess.run(["apt-config", "dump", "Acquire"], capture_output=True, text=True, check=True).stdout
    (folder / "apt.conf").write_text(dumped)
    left_out = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")]
    return [
        "mmdebstrap", "--variant=minbase", "--include=python3-venv", *left_out, "--dpkgopt=force-unsafe-io",
        f"--aptopt={folder}/apt.conf", platform.freedesktop_os_release()["VERSION_CODENAME"],
        str(folder / "base.tar"), *_sources(),
    ]  # fmt: skip


def _download_wheels(folder: Path, wheels: Path) -> None:
    """Fetch what the Dockerfile installs, in the versions that are installed here, for Debian's Python."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    frozen = subprocess.run([*pip, "freeze"], capture_output=True, text=True, check=True).stdout
    (folder / "constraints.txt").write_text("".join(re.findall(r"^[\w.-]+==\S+\n", frozen, re.MULTILINE)))
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [
        *about["build-system"]["requires"],
        *about["project"]["dependencies"],
        *(one for extra in ("examples", "metrics") for one in about["project"]["optional-dependencies"][extra]),
    ]
    shown = subprocess.run(["/usr/bin/python3", "--version"], capture_output=True, text=True, check=True).stdout
    subprocess.run(
        [
            *pip, "download", "--only-binary=:all:", f"--python-version={shown.split()[1].rpartition('.')[0]}",
            f"--constraint={folder / 'constraints.txt'}", f"--dest={wheels}", *wanted,
        ],
        check=True, timeout=600, stdout=subprocess.DEVNULL,
    )  # fmt: skip
