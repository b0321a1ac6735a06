"""What the launcher gives its tasks to show."""

from __future__ import annotations

import argparse
import contextlib
import os

import pytest

from globalstep.deploy.cli import main
from globalstep.deploy.launch import live_runs
from globalstep.deploy.launch.launch import cluster_jobs, make_tasks
from globalstep.deploy.launch.launcher import Task
from globalstep.deploy.launch.options import add_security, environ_for_all, environ_of_task, with_run_token
from globalstep.deploy.status.cluster_watch import ClusterWatch
from globalstep.errors import FailedPreconditionError, OpError, UnauthenticatedError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.access.security import Security, SecurityOptions
from globalstep.ps.server import PSOptions, PSServer
from globalstep.ps.service.settler import asking
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.security.credentials import RUN_TOKEN, Credentials
from globalstep.worker.transport.grpc_transport import GrpcTransport

TOKENS = {role: f"{role}-0123456789abcdef" for role in ("chief", "standby", "worker", "ps")}


@pytest.fixture
def tokens_file(tmp_path):
    path = tmp_path / "tokens"
    path.write_text("".join(f"{role} {token}\n" for role, token in TOKENS.items()))
    path.chmod(0o600)
    return str(path)


def parsed(*arguments):
    parser = argparse.ArgumentParser()
    add_security(parser)
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


# ---- A token that the launcher makes -------------------------------------------------------------


def test_a_run_gets_a_token_of_its_own_unless_something_else_says_who_may_join(tokens_file):
    made = [environ_for_all(parsed(), {})[RUN_TOKEN] for _ in range(2)]
    assert len(set(made)) == 2
    assert all(len(token) == 64 for token in made)
    assert environ_for_all(parsed("--no-token"), {}) == {}
    for decided in ({"GLOBALSTEP_TOKEN": "x" * 16}, {"GLOBALSTEP_TLS_CERT": "c"}, {RUN_TOKEN: "y" * 16}):
        assert environ_for_all(parsed(), decided) == decided
    assert RUN_TOKEN not in environ_for_all(parsed("--tokens-file", tokens_file), {})


@pytest.fixture
def run():
    """A PS task with a run's token, and the environment of the run's tasks."""
    environ = with_run_token({})
    with contextlib.closing(PSServer(PSOptions(grace_secs=0.2, security=SecurityOptions.from_environ(environ)))) as ps:
        ps.start()
        yield ps, environ


def status(address, credentials):
    with contextlib.closing(GrpcTransport(address, 0, "grpc", credentials=credentials)) as transport:
        return transport.unary("Status", pb.StatusRequest(brief=True), 10.0).result()


def test_the_runs_tasks_know_each_other_and_nobody_else_is_let_in(run):
    ps, environ = run
    assert status(ps.address, Credentials.from_environ(environ)).state == pb.STATE_VACANT
    for stranger in (Credentials(), Credentials.from_environ(with_run_token({}))):
        with pytest.raises(UnauthenticatedError):
            status(ps.address, stranger)
    # PS tasks settle with each other, by a token that they make of it; the run's own is the chief's.
    shown = SecurityOptions.from_environ(environ)
    assert not shown.credentials.token
    with pytest.raises(Exception, match="This PS task holds no state"):
        asking(lambda: Security(shown, "127.0.0.1:0", SYSTEM_CLOCK).credentials)(
            ps.address, pb.SettleRequest(incarnation=1)
        )


def test_commands_find_the_token_of_a_run_of_this_user(run, tmp_path, monkeypatch):
    monkeypatch.setattr(live_runs.platformdirs, "user_state_path", lambda name: tmp_path / name)
    ps, environ = run
    with ClusterWatch([ps.address], {}) as watch:
        (answer,) = watch.ask()
        assert isinstance(answer, UnauthenticatedError)
    with live_runs.kept([ps.address], environ):
        (path,) = (tmp_path / "globalstep" / "runs").iterdir()
        assert path.stat().st_mode & 0o777 == 0o600
        with ClusterWatch([ps.address], {}) as watch:
            (answer,) = watch.ask()
            assert not isinstance(answer, OpError)
    assert live_runs.find_credentials(ps.address) is None


def test_a_token_that_a_killed_launcher_left_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr(live_runs.platformdirs, "user_state_path", lambda name: tmp_path / name)
    with live_runs.kept(["h:1"], {RUN_TOKEN: "t" * 16}):
        assert live_runs.find_credentials("h:1").shown_token() == "t" * 16
        monkeypatch.setattr(live_runs, "is_gone", lambda process: process.pid == os.getpid())
        assert live_runs.find_credentials("h:1") is None
        monkeypatch.undo()


def test_without_a_home_a_launcher_keeps_nothing(monkeypatch):
    def none(name):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(live_runs.platformdirs, "user_state_path", none)
    with live_runs.kept(["h:1"], {RUN_TOKEN: "t" * 16}):
        assert live_runs.find_credentials("h:1") is None
