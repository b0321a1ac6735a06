"""Runs by their directories: `globalstep status RUN_DIR` and `globalstep runs`."""

from __future__ import annotations

import contextlib
import json
import os
import re

import pytest
from processes import ROOT, Processes, free_addresses
from small_model import build

from globalstep.chief.journal.run_directory import FILE_NAME, keep_identity, keep_incarnation, kept_addresses
from globalstep.chief.journal.run_lock import hold, living_holder
from globalstep.chief.sessions import other_tasks
from globalstep.cluster.process_place import NO_PROCESS, this_process
from globalstep.cluster.run_identity import RunIdentity
from globalstep.deploy.cli import main
from globalstep.deploy.launch import live_runs
from globalstep.deploy.status.cluster_watch import ClusterWatch, watch_of
from globalstep.errors import InvalidArgumentError, NotFoundError, UnavailableError
from globalstep.ps.server import PSOptions, PSServer
from globalstep.tf1.ops.summaries import SummaryWriterCache
from globalstep.tf1.sessions.training_session import MonitoredTrainingSession


@pytest.fixture(autouse=True)
def _own_state(tmp_path, monkeypatch):
    monkeypatch.setattr(live_runs.platformdirs, "user_state_path", lambda name: tmp_path / "state" / name)
    monkeypatch.chdir(tmp_path)
    yield
    SummaryWriterCache.clear()


@pytest.fixture
def ps():
    with contextlib.closing(PSServer(PSOptions(grace_secs=0.2))) as server:
        server.start()
        yield server


@contextlib.contextmanager
def training(address, directory):
    """A session that has made one step of a run with a directory; by TF_CONFIG where no address is given."""
    model = build()
    with MonitoredTrainingSession(
        f"grpc://{address}" if address else "", checkpoint_dir=str(directory), save_checkpoint_steps=100, progress=False
    ) as session:
        session.run(model.train, {model.by: 1.0})
        yield session


def test_a_run_is_found_by_its_directory(ps, tmp_path, capsys):
    with training(ps.address, tmp_path / "run"):
        assert kept_addresses(str(tmp_path / "run")) == [ps.address]
        assert main(["status", "--json", "--interval", "0", "run"]) == 0
        (task,) = json.loads(capsys.readouterr().out)["tasks"]
        assert (task["steps"], task["address"]) == ({"global_step": "1"}, ps.address)


def test_a_run_that_has_ended_is_said_to_have(tmp_path, capsys):
    run = RunIdentity("0" * 32, "digits", str(tmp_path / "run"))
    keep_identity(run)
    keep_incarnation(run, 7, free_addresses(1))
    assert main(["status", "--interval", "0", "run"]) == 2
    assert "The run in run has ended, or cannot be reached from here" in capsys.readouterr().err


def test_another_run_at_the_same_address_is_not_taken_for_it(ps, tmp_path):
    with training(ps.address, tmp_path / "run"), ClusterWatch([ps.address], {}, "f" * 32) as watch:
        (answer,) = watch.ask()
    assert isinstance(answer, UnavailableError)
    assert "another one serves there now" in str(answer)


def test_directories_that_name_no_ps_task_say_why(tmp_path):
    with pytest.raises(NotFoundError, match="No run has begun in"):
        watch_of([str(tmp_path)], {})
    keep_identity(RunIdentity("0" * 32, "", str(tmp_path)))
    with pytest.raises(
        NotFoundError, match="that trained, which has ended, or its chief is only about to begin: then ask"
    ):
        watch_of([str(tmp_path)], {})
    release = hold(str(tmp_path))
    try:
        with pytest.raises(NotFoundError, match=rf"in the process that trains, host .*, pid {os.getpid()}"):
            watch_of([str(tmp_path)], {})
    finally:
        release()
    with pytest.raises(InvalidArgumentError, match="there is no directory of that name"):
        watch_of(["no/such"], {})


def test_an_older_directory_has_no_addresses(tmp_path):
    (tmp_path / FILE_NAME).write_text(json.dumps({"id": "x", "name": "", "incarnation": 3}))
    assert kept_addresses(str(tmp_path)) == []


def test_runs_lists_launched_ones_and_those_with_a_ps_of_their_own(ps, tmp_path, capsys):
    assert main(["runs"]) == 0
    assert capsys.readouterr().out == "No run of this user is alive on this machine, and none trains in runs/.\n"
    release = hold("runs/alone")
    try:
        launched = live_runs.kept([ps.address], {"GLOBALSTEP_RUN": "digits"}, ["x.py"])
        with launched, training(ps.address, tmp_path / "runs" / "digits"):
            assert main(["runs"]) == 0
            _, *lines = capsys.readouterr().out.splitlines()
    finally:
        release()
    launched, alone = sorted(lines, reverse=True)
    assert re.search(rf"^digits +{os.getpid()} +\d+ s +1 +1 +1 +runs/digits +x\.py$", launched.rstrip())
    assert re.search(rf"^- +{os.getpid()} +\d+ s +- +own +1 +runs/alone +-$", alone.rstrip())


def test_runs_counts_the_workers_that_are_still_to_come(ps, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(other_tasks, "TO_COME_SECS", 0.0)  # the chief's end waits for none of them
    tasks = {"ps": [ps.address], "worker": ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": tasks, "task": {"type": "worker", "index": 0}}))
    with live_runs.kept([ps.address], {"GLOBALSTEP_RUN": "digits"}), training("", tmp_path / "run"):
        assert main(["runs"]) == 0
    assert re.search(r"\b1 of 3\b", capsys.readouterr().out)


def test_a_lock_that_an_ended_process_has_left_is_no_run(tmp_path):
    release = hold(str(tmp_path))
    assert living_holder(str(tmp_path)) == this_process()
    path = tmp_path / "globalstep-run.lock"
    fields = json.loads(path.read_text())
    path.write_text(json.dumps(fields | {"started": "1"}))  # the pid is another process's now
    assert living_holder(str(tmp_path)) == NO_PROCESS
    release()
    assert living_holder(str(tmp_path)) == NO_PROCESS


@pytest.mark.processes
def test_a_launched_module_is_found_and_summed_up(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "job.py").write_text((ROOT / "tests" / "support" / "counting_job.py").read_text())
    with Processes(tmp_path) as processes:
        home = {"XDG_STATE_HOME": str(tmp_path / "home")}
        running = processes.start(
            "launch", "-m", "globalstep", "launch", "--log-dir", "logs", "-m", "package.job", "--last-step", 10**6,
            "--dir", "run", "--pause-secs", 0.01, env=home,
        )  # fmt: skip
        processes.until("launch", r"\[worker:0\] step \d+", 100.0)
        processes.start("status", "-m", "globalstep", "status", "run", env=home)
        processes.start("runs", "-m", "globalstep", "runs", env=home)
        processes.until_ended(["status", "runs"], 100.0)
        assert "global_step: " in processes.output("status")
        assert str(running.pid) in processes.output("runs")
        running.terminate()
        processes.until_ended(["launch"], 100.0)
        said = processes.output("launch")
    end = said[said.index("globalstep launch: ended with code 143 after") :]
    for line in (r"exit codes: ps:0 ", r"global_step [\d,]+: [\d,]+ steps in", r"checkpoint: run/", r"logs: logs/"):
        assert re.search(line, end), said
