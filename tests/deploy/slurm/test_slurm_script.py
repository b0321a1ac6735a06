"""The sbatch script, and which steps a job starts: without Slurm."""

import argparse
import json
import shlex
import stat
import subprocess
import sys

import pytest

from globalstep.cluster.cluster import ClusterSpec
from globalstep.deploy.cli import main
from globalstep.deploy.slurm.cli import batch_script, configure
from globalstep.deploy.slurm.job import addresses_of_nodes, make_tasks
from globalstep.deploy.slurm.step import choose_node


def directives(text):
    return [shlex.split(line)[1] for line in text.splitlines() if line.startswith("#SBATCH ")]


def parsed(*arguments):
    parser = argparse.ArgumentParser()
    configure(parser)
    return parser.parse_args(arguments)


def test_what_the_script_asks_for():
    text = batch_script(
        parsed("--ps=2", "--workers=3", "--nodes=4", "--cpus=2", "a/my train.py", "--name", "two words")
    )
    assert text.startswith("#!/bin/sh\n")
    assert directives(text) == [
        "--job-name=my-train", "--nodes=4", "--ntasks=5", "--cpus-per-task=2", "--no-kill", "--requeue",
        "--open-mode=append", "--output=my-train-%j.out",
    ]  # fmt: skip
    command = shlex.split(text.splitlines()[-1])
    assert command[:4] == ["exec", sys.executable, "-m", "globalstep.deploy.slurm.job"]
    assert command[-3:] == ["a/my train.py", "--name", "two words"]
    assert "INSECURE" not in text


def test_options_of_the_user_come_last_and_win():
    options = ["--sbatch=--partition=big one", "--sbatch=--no-requeue"]
    text = batch_script(parsed("--workers=1", "--chief", "--insecure", *options, "t.py"))
    assert directives(text)[-2:] == ["--partition=big one", "--no-requeue"]
    assert "--ntasks=3" in directives(text)
    assert "export GLOBALSTEP_INSECURE=1\n" in text


@pytest.mark.parametrize("option", ["partition=x", "--comment=a\nrm -rf x"])
def test_what_is_no_option(option):
    with pytest.raises(ValueError, match="is not an option of sbatch"):
        batch_script(parsed(f"--sbatch={option}", "t.py"))


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    return "train.py"


def test_the_command_writes_a_script_that_a_shell_understands(script, tmp_path, capsys):
    assert main(["slurm", "--ps", "2", "--workers", "4", "--no-submit", script, "--steps", "7"]) == 0
    assert capsys.readouterr().out == "written: train.sbatch\n"
    assert subprocess.run(["sh", "-n", "train.sbatch"], check=False).returncode == 0
    assert f"exec {sys.executable}" in (tmp_path / "train.sbatch").read_text()


def test_the_command_submits_it(script, tmp_path, monkeypatch):
    sbatch = tmp_path / "sbatch"
    sbatch.write_text('#!/bin/sh\necho "$@" > called\nexit 3\n')
    sbatch.chmod(sbatch.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert main(["slurm", "--wait", "--file", "other", script]) == 3
    assert (tmp_path / "called").read_text() == "--wait other\n"


def test_where_there_is_no_slurm(script, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["slurm", script]) == 2
    assert "there is no sbatch on this machine; train.sbatch is written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["none.py"], "there is no script none.py"), (["--workers", "0", "train.py"], "at least one PS and one worker")],
)
def test_what_the_command_refuses(script, capsys, arguments, said):
    assert main(["slurm", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_each_task_is_a_step_on_its_node(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text(f"chief {'c' * 20}\nworker {'w' * 20}\n")
    tokens.chmod(0o600)
    cluster = ClusterSpec({"chief": ["h1:1"], "ps": ["h2:2"], "worker": ["h1:3"]})
    environ = {"SLURM_TASKS_PER_NODE": "2,1", "SLURM_JOB_ID": "7", "GLOBALSTEP_TOKENS_FILE": str(tokens)}
    tasks = make_tasks(["n1", "n2", "n1"], cluster, ["t.py", "-x"], 2, environ)
    assert [task.name for task in tasks] == ["chief:0", "ps:0", "worker:0"]
    chief, ps, worker = tasks
    step = [sys.executable, "-m", "globalstep.deploy.slurm.step"]
    assert chief.command == [*step, "--name=chief-0", "--node=n1", "--cpus=2", "--", sys.executable, "t.py", "-x"]
    assert ps.command[3:] == [
        "--name=ps-0",
        "--node=n2",
        "--cpus=2",
        "--stay",
        "--",
        sys.executable,
        "-m",
        "globalstep.ps",
        "--tcp-port=4",
    ]
    assert json.loads(worker.environ["TF_CONFIG"])["task"] == {"type": "worker", "index": 0}
    assert json.loads(worker.environ["TF_CONFIG"])["cluster"]["ps"] == ["h2:2"]
    assert "SLURM_TASKS_PER_NODE" not in worker.environ
    assert worker.environ["SLURM_JOB_ID"] == "7"
    # Only a PS task learns all tokens.
    assert worker.environ["GLOBALSTEP_TOKEN"] == "w" * 20
    assert "GLOBALSTEP_TOKENS_FILE" not in worker.environ
    assert ps.environ["GLOBALSTEP_TOKENS_FILE"] == str(tokens)


def test_nodes_that_slurm_does_not_describe_keep_their_names():
    shown = "NodeName=n2 Arch=x NodeAddr=10.0.0.2 Port=1"
    assert addresses_of_nodes(["n1", "n2"], shown) == {"n1": "n1", "n2": "10.0.0.2"}


@pytest.mark.parametrize(
    ("node", "up", "stay", "chosen"),
    [
        ("n2", ["n1", "n2"], True, "n2"),
        ("n3", ["n1", "n2"], True, ""),
        ("n3", ["n1", "n2"], False, "n2"),
        ("n3", [], False, ""),
    ],
)
def test_where_a_task_goes_whose_node_is_lost(node, up, stay, chosen):
    assert choose_node(node, up, stay) == chosen
