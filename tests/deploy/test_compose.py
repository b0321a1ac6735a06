"""The files for docker: the committed one, and those that the command writes. No container is started here."""

import argparse
import json
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from globalstep.cluster.cluster import from_tf_config
from globalstep.deploy import compose as compose_cli
from globalstep.deploy import health
from globalstep.deploy.cli import main
from globalstep.deploy.compose import compose_file, configure, project_name
from globalstep.ps.server import PSOptions, PSServer

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "docker"
yaml = pytest.importorskip("yaml")


def parsed(*arguments):
    parser = argparse.ArgumentParser()
    configure(parser)
    return parser.parse_args(["write", *arguments])


def services(text):
    return yaml.safe_load(text)["services"]


def test_the_committed_file_is_what_the_command_would_write():
    text = compose_file(parsed("--ps=2", "--workers=3", "--chief", "digits.py"), "../../examples", "digits")
    committed = (FOLDER / "docker-compose.yml").read_text()
    assert text.splitlines()[1:] == committed.splitlines()[1:]
    assert list(services(committed)) == ["ps-0", "ps-1", "chief-0", "worker-0", "worker-1", "worker-2"]


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is not installed")
def test_docker_compose_reads_it(tmp_path):
    for name in ("docker-compose.yml", ".env"):
        shutil.copy(FOLDER / name, tmp_path)
    done = subprocess.run(
        ["docker-compose", "config"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    read = services(done.stdout)
    assert read["chief-0"]["image"] == "globalstep"
    assert read["ps-0"]["restart"] == "on-failure"


def test_every_service_is_a_task_and_finds_the_others_by_name():
    arguments = parsed("--ps=2", "--workers=3", "--evaluator", "t.py", "--price", "$5 'each'")
    found = services(compose_file(arguments, "/scripts", "t"))
    assert list(found) == ["ps-0", "ps-1", "chief-0", "worker-0", "worker-1", "evaluator-0"]
    for name, service in found.items():
        config = from_tf_config(service["environment"])
        assert (f"{config.job}-{config.index}", config.address) == (name, f"{name}:2222")
        assert service["restart"] == "on-failure"
        assert "run:/run/globalstep" in service["volumes"]
    # A dollar sign is doubled for compose.
    assert found["worker-1"]["command"] == ["python", "/app/job/t.py", "--price", "$$5 'each'"]
    assert found["ps-1"]["command"] == ["python", "-m", "globalstep.ps", "--tcp-port=2223"]


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    return "train.py"


def fake_docker(tmp_path, monkeypatch, exit_code):
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/called\n'
        f'case "$*" in inspect*) echo abc chief-0 exited {exit_code};; *" ps "*) echo abc;; esac\n'
    )
    docker.chmod(docker.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(docker.parent), prepend=":")


def test_up_writes_starts_and_gives_the_exit_code_of_the_chief(script, tmp_path, monkeypatch):
    fake_docker(tmp_path, monkeypatch, 3)
    assert main(["compose", "up", "--ps", "2", "--workers", "4", script, "--steps", "7"]) == 3
    called = (tmp_path / "called").read_text().splitlines()
    project = f"--project-name {project_name(tmp_path.name)}-train"
    assert called[:2] == ["compose version", f"compose {project} --file train.compose.yml up --detach"]
    assert f"compose {project} --file train.compose.yml logs --follow --no-color" in called
    written = services((tmp_path / "train.compose.yml").read_text())
    assert len(written) == 6
    assert written["chief-0"]["command"][-2:] == ["--steps", "7"]
    assert f"${{GLOBALSTEP_SCRIPTS:-{tmp_path}}}:/app/job:ro" in written["chief-0"]["volumes"]


def test_two_runs_of_one_script_are_two_projects(script, tmp_path, monkeypatch, capsys):
    fake_docker(tmp_path, monkeypatch, 0)
    for run in ("cats", "dogs"):
        assert main(["compose", "up", "--run", run, script]) == 0
        written = services((tmp_path / "train.compose.yml").read_text())
        assert {one["environment"]["GLOBALSTEP_RUN"] for one in written.values()} == {f"${{GLOBALSTEP_RUN:-{run}}}"}
    ups = [line for line in (tmp_path / "called").read_text().splitlines() if line.endswith("up --detach")]
    assert ups == [f"compose --project-name {run} --file train.compose.yml up --detach" for run in ("cats", "dogs")]
    # Docker compose gives the project's name to all that has no name of its own: here, to everything.
    made = yaml.safe_load((tmp_path / "train.compose.yml").read_text())
    named = [*made["services"].values(), *(made[kind].get(one) or {} for kind in ("volumes",) for one in made[kind])]
    assert not any("container_name" in one or "name" in one or "external" in one for one in named)
    assert "networks" not in made
    assert main(["compose", "up", "--run", "No Project", script]) == 2
    assert "--run No Project" in capsys.readouterr().err


def test_a_docker_that_hangs_is_not_waited_for(script, tmp_path, monkeypatch, capsys):
    fake_docker(tmp_path, monkeypatch, 0)
    asked = compose_cli._ask
    monkeypatch.setattr(compose_cli, "_ANSWER_SECS", 0.2)

    def ask(command):
        return asked(["sleep", "100"] if "inspect" in command else command)

    monkeypatch.setattr(compose_cli, "_ask", ask)
    assert main(["compose", "up", script]) == 2
    assert "docker does not say how the tasks are" in capsys.readouterr().err


def test_a_task_that_was_killed_by_hand_is_started_again(script, tmp_path, monkeypatch, capsys):
    fake_docker(tmp_path, monkeypatch, 137)
    docker = tmp_path / "bin" / "docker"
    # `docker start` mends it.
    docker.write_text(docker.read_text() + f'case "$*" in start*) sed -i s/137/0/ {docker};; esac\n')
    assert main(["compose", "up", script]) == 0
    assert "start abc" in (tmp_path / "called").read_text().splitlines()
    assert "chief-0 was killed, and starts again" in capsys.readouterr().err


def test_write_starts_nothing(script, tmp_path, monkeypatch, capsys):
    fake_docker(tmp_path, monkeypatch, 0)
    assert main(["compose", "write", "--file", "other.yml", script]) == 0
    assert not (tmp_path / "called").exists()
    assert json.dumps(["python", "/app/job/train.py"]) in (tmp_path / "other.yml").read_text()
    assert capsys.readouterr().out == "written: other.yml\n"


def test_where_there_is_no_docker(script, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["compose", "up", script]) == 2
    assert "there is no docker compose on this machine; train.compose.yml is written" in capsys.readouterr().err


def stages():
    """Give the Dockerfile's stages: name -> instructions; the last one is called ""."""
    text = (FOLDER / "Dockerfile").read_text()
    found = re.split(r"^FROM (\S+)(?: AS (\S+))?\n", text, flags=re.MULTILINE)[1:]
    return {name or "": body.splitlines() for _, name, body in zip(*[iter(found)] * 3, strict=True)}


def test_the_images_are_built_in_stages_and_do_not_run_as_root():
    built = stages()
    for name in ("ps", ""):
        assert "USER globalstep" in built[name]
    assert any("globalstep.deploy.health" in line for line in built["task"])
    assert any(line.startswith("CMD ") and "globalstep.ps" in line for line in built["task"])


def test_an_edit_of_the_source_keeps_the_layers_of_packages():
    """Only what is copied before them can make them anew."""
    built = stages()
    for name in ("pip", "ps-packages", "packages"):
        copied = [line.split()[1:-1] for line in built[name] if line.startswith("COPY")]
        assert copied == ([["pyproject.toml", "scripts/image_requirements.py", "wheel[s]"]] if name == "pip" else [])
    for name, packages in (("ps", "ps-packages"), ("", "packages")):
        copies = [line.split()[1] for line in built[name] if line.startswith("COPY --from")]
        assert copies == [f"--from={packages}", "--from=source"]


def needed(*arguments):
    root = FOLDER.parents[1]
    command = [sys.executable, root / "scripts" / "image_requirements.py", root / "pyproject.toml", *arguments]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return {re.split(r"[^\w.-]", line)[0] for line in found.stdout.splitlines()}


def test_the_image_of_a_ps_is_smaller():
    whole = needed("worker", "examples,metrics")
    assert {"numpy", "numba", "tensorboard", "scikit-learn", "prometheus-client"} <= whole
    assert whole - needed("ps", "metrics") == {"pillow", "scikit-learn", "tensorboard"}
    assert needed("worker", "") < whole


def test_a_ps_task_serves_without_what_its_image_lacks():
    lacks = needed("worker", "examples,metrics") - needed("ps", "metrics")
    modules = [{"scikit-learn": "sklearn", "pillow": "PIL"}.get(name, name) for name in sorted(lacks)]
    program = f"""
import sys
for name in {modules}:
    sys.modules[name] = None
from globalstep.deploy import health
from globalstep.ps.server import PSOptions, PSServer
import globalstep.ps.__main__
for name in __import__("pkgutil").walk_packages(__import__("globalstep.ps").ps.__path__, "globalstep.ps."):
    __import__(name.name)
server = PSServer(PSOptions(metrics_port="0"))
server.start()
sys.exit(health.main(["--address", server.address]) or server.close())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr


def test_the_health_check_asks_the_ps(capsys):
    server = PSServer(PSOptions(bind="127.0.0.1:0"))
    server.start()
    try:
        assert health.main(["--address", server.address]) == 0
    finally:
        server.close()
    assert health.main(["--address", server.address, "--timeout-secs", "0.5"]) == 1
    assert "does not answer" in capsys.readouterr().err


def test_a_worker_is_healthy_without_serving(monkeypatch):
    config = {"cluster": {"ps": ["h:1"], "worker": ["h:2"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    assert health.main([]) == 0
