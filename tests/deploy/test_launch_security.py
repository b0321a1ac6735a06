"""What the launcher gives its tasks to show."""

from __future__ import annotations

import argparse

import pytest

from globalstep.deploy.cli import main
from globalstep.deploy.launch import cluster_jobs, make_tasks
from globalstep.deploy.launch_security import add_arguments, environ_for_all, environ_of_task
from globalstep.deploy.launcher import Task
from globalstep.errors import FailedPreconditionError

TOKENS = {role: f"{role}-0123456789abcdef" for role in ("chief", "standby", "worker", "ps")}


@pytest.fixture
def tokens_file(tmp_path):
    path = tmp_path / "tokens"
    path.write_text("".join(f"{role} {token}\n" for role, token in TOKENS.items()))
    path.chmod(0o600)
    return str(path)


def parsed(*arguments):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(arguments)


def test_files_go_to_all_tasks_by_the_environment(tmp_path, monkeypatch, tokens_file):
    monkeypatch.chdir(tmp_path)
    args = parsed("--tls-cert", "c.pem", "--tls-key", "k.pem", "--tls-ca", "/ca.pem", "--tokens-file", tokens_file)
    assert environ_for_all(args, {"A": "1"}) == {
        "A": "1",
        "GLOBALSTEP_TLS_CERT": str(tmp_path / "c.pem"),
        "GLOBALSTEP_TLS_KEY": str(tmp_path / "k.pem"),
        "GLOBALSTEP_TLS_CA": "/ca.pem",
        "GLOBALSTEP_TOKENS_FILE": tokens_file,
    }
    assert environ_for_all(parsed(), {"GLOBALSTEP_TLS_CERT": "x"}) == {"GLOBALSTEP_TLS_CERT": "x"}
    with pytest.raises(FailedPreconditionError, match="--tls-key and --tls-ca is missing"):
        environ_for_all(parsed("--tls-cert", "c.pem"), {})


def test_each_task_gets_its_own_token_and_no_other(tokens_file):
    environ = {"GLOBALSTEP_TOKENS_FILE": tokens_file, "GLOBALSTEP_TOKEN_FILE": "x"}
    tasks = make_tasks(cluster_jobs(1, [1, 2, 3], chief=True), ["train.py"], environ)
    shown = {task.name: task.environ for task in tasks}
    assert shown["ps:0"]["GLOBALSTEP_TOKENS_FILE"] == tokens_file
    for name, role in (("chief:0", "chief"), ("worker:0", "worker")):
        assert shown[name]["GLOBALSTEP_TOKEN"] == TOKENS[role]
        assert not {"GLOBALSTEP_TOKENS_FILE", "GLOBALSTEP_TOKEN_FILE"} & set(shown[name])
    # Never on a command line, which everybody on the machine may read.
    assert not any(token in word for task in tasks for word in task.command for token in TOKENS.values())


def test_worker_0_gets_the_chiefs_token_where_it_is_the_chief(tokens_file):
    tasks = make_tasks(cluster_jobs(1, [1, 2, 3]), ["train.py"], {"GLOBALSTEP_TOKENS_FILE": tokens_file})
    shown = {task.name: task.environ.get("GLOBALSTEP_TOKEN") for task in tasks}
    assert shown == {"ps:0": None, "worker:0": TOKENS["chief"], "worker:1": TOKENS["worker"]}


def test_workers_that_may_become_chief_are_standbys(tokens_file):
    environ = {"GLOBALSTEP_TOKENS_FILE": tokens_file, "GLOBALSTEP_FAILOVER_SECS": "5"}
    assert environ_of_task(environ, "worker")["GLOBALSTEP_TOKEN"] == TOKENS["standby"]
    assert environ_of_task(environ, "chief")["GLOBALSTEP_TOKEN"] == TOKENS["chief"]


def test_a_role_without_a_token_is_named(tmp_path, capsys):
    path = tmp_path / "tokens"
    path.write_text(f"worker {TOKENS['worker']}\n")
    path.chmod(0o600)
    script = tmp_path / "train.py"
    script.write_text("")
    assert main(["launch", "--tokens-file", str(path), str(script)]) == 2
    assert "no token of role chief" in capsys.readouterr().err


def test_a_task_does_not_tell_its_environment():
    task = Task("worker:0", ["python"], {"GLOBALSTEP_TOKEN": TOKENS["worker"]})
    assert "worker:0" in repr(task)
    assert "GLOBALSTEP_TOKEN" not in repr(task)
    assert TOKENS["worker"] not in f"{task} {[task]!r}"
