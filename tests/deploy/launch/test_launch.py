import argparse
import json
import os
import select
import shutil
import socket
import subprocess
import sys

import pytest

from globalstep.cluster.cluster import from_tf_config
from globalstep.deploy import cli
from globalstep.deploy.launch.launch import cluster_jobs, configure, make_tasks, reserve_ports
from globalstep.deploy.launch.launcher import Task
from globalstep.deploy.launch.options import apply_options
from globalstep.errors import InvalidArgumentError


def test_reserved_ports_are_free_for_tasks_and_for_nobody_else():
    with reserve_ports(3) as ports:
        assert len(set(ports)) == 3
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", ports[0]))
        with socket.socket() as server, socket.socket() as client:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            server.bind(("127.0.0.1", ports[0]))
            server.listen()
            client.connect(("127.0.0.1", ports[0]))


def test_programs_that_know_only_ps_and_worker_find_no_other_job():
    jobs = cluster_jobs(2, range(100, 105))
    assert jobs == {
        "ps": ["127.0.0.1:100", "127.0.0.1:101"], "worker": ["127.0.0.1:102", "127.0.0.1:103", "127.0.0.1:104"]
    }  # fmt: skip
    configs = [task.environ["TF_CONFIG"] for task in make_tasks(jobs, ["x.py"], {}) if not task.is_ps]
    assert [from_tf_config({"TF_CONFIG": text}).is_chief for text in configs] == [True, False, False]


def test_a_chief_that_was_asked_for_is_the_first_after_the_ps():
    jobs = cluster_jobs(2, range(100, 105), chief=True)
    assert jobs["ps"] == ["127.0.0.1:100", "127.0.0.1:101"]
    assert jobs["chief"] == ["127.0.0.1:102"]
    assert jobs["worker"] == ["127.0.0.1:103", "127.0.0.1:104"]
    assert [task.name for task in make_tasks(jobs, ["x.py"], {}) if task.is_chief] == ["chief:0"]


def test_no_worker_beside_the_chief_means_no_worker_job():
    assert list(cluster_jobs(1, [1, 2], chief=True)) == ["ps", "chief"]


@pytest.mark.parametrize("chief", [False, True])
def test_host_flags_tell_a_script_its_place_as_tensorflows_own_trainer_takes_it(chief):
    tasks = make_tasks(cluster_jobs(2, range(100, 105), chief), ["x.py", "--steps", "5"], {}, host_flags=True)
    hosts = "--worker_hosts=127.0.0.1:102,127.0.0.1:103,127.0.0.1:104"
    for index, task in enumerate(task for task in tasks if not task.is_ps):
        flags = ["--job_name=worker", f"--task_index={index}", "--ps_hosts=127.0.0.1:100,127.0.0.1:101", hosts]
        assert task.command[-7:] == ["x.py", "--steps", "5", *flags]
    assert tasks[0].command[-2:] == ["-m", "globalstep.ps"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--ps", "0", "x.py"], "at least one PS"),
        (["--workers", "0", "x.py"], "at least one PS"),
        (["no_such_script.py"], "there is no script no_such_script.py"),
    ],
)
def test_wrong_arguments_are_refused(arguments, text, capsys):
    assert cli.main(["launch", *arguments]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "has_script"),
    [(["launch", "--pss", "2", "x.py"], True), (["status", "--jsn"], False)],
)
def test_an_unknown_option_is_refused_with_the_usage_of_the_command(arguments, has_script, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"usage: globalstep {arguments[0]} ")
    assert f"globalstep {arguments[0]}: error: unrecognized arguments: --" in said
    assert ("options of the script come after its name" in said) == has_script


def test_tasks_know_their_cluster_and_share_the_cores():
    jobs = {"ps": ["h:1"], "chief": ["h:2"], "worker": ["h:3"]}
    tasks = {task.name: task for task in make_tasks(jobs, ["x.py", "--steps", "5"], {"HOME": "/home/me"})}
    assert list(tasks) == ["ps:0", "chief:0", "worker:0"]
    assert tasks["ps:0"].command[-2:] == ["-m", "globalstep.ps"]
    assert tasks["worker:0"].command[-3:] == ["x.py", "--steps", "5"]
    environ = tasks["worker:0"].environ
    assert json.loads(environ["TF_CONFIG"]) == {"cluster": jobs, "task": {"type": "worker", "index": 0}}
    assert int(environ["OMP_NUM_THREADS"]) >= 1
    assert environ["HOME"] == "/home/me"


def test_settings_of_the_user_win():
    (task,) = make_tasks({"chief": ["h:2"]}, ["x.py"], {"OMP_NUM_THREADS": "7", "MALLOC_ARENA_MAX": "3"})
    assert task.environ["OMP_NUM_THREADS"] == "7"
    assert task.environ["MALLOC_ARENA_MAX"] == "3"


@pytest.mark.processes
def test_a_script_runs_as_chief_and_worker(tmp_path, capfd):
    script = tmp_path / "show.py"
    script.write_text("import os, sys\nprint(sys.argv[1], 'TF_CONFIG' in os.environ)\n")
    code = cli.main(["launch", "--workers", "2", "--grace-secs", "0.1", str(script), "hello"])
    output = capfd.readouterr().out.splitlines()
    assert code == 0, output
    assert "[worker:0] hello True" in output
    assert "[worker:1] hello True" in output


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv of util-linux")
def test_nothing_outlives_a_launcher_that_is_killed(tmp_path):
    script = tmp_path / "wait.py"
    script.write_text("import os, signal\nprint('pid', os.getpid(), flush=True)\nsignal.pause()\n")
    launcher = subprocess.Popen(
        [sys.executable, "-m", "globalstep", "launch", str(script)], stdout=subprocess.PIPE, text=True
    )
    with launcher:
        chief = next(int(line.split()[-1]) for line in launcher.stdout if "[worker:0] pid" in line)
        descriptor = os.pidfd_open(chief)
        launcher.kill()
    try:
        ended, _, _ = select.select([descriptor], [], [], 20.0)
    finally:
        os.close(descriptor)
    assert ended


def test_options_reach_the_tasks():
    parser = argparse.ArgumentParser()
    configure(parser)
    tasks = [Task("ps:0", ["a"], {}), Task("ps:1", ["a"], {}), Task("chief:0", ["b"], {})]
    args = parser.parse_args(["--metrics-port", "9100", "--log-format", "json", "train.py"])
    assert apply_options(args, tasks) == "json"
    ports = [task.environ.get("GLOBALSTEP_METRICS_PORT", "").rpartition(":")[2] for task in tasks]
    assert ports == ["9100", "9101", ""]
    assert tasks[2].environ["GLOBALSTEP_LOG_FORMAT"] == "json"
    with pytest.raises(InvalidArgumentError, match="no room for 2"):
        apply_options(parser.parse_args(["--metrics-port", "65535", "train.py"]), tasks)


def test_take_over_is_told_to_the_chief_alone():
    parser = argparse.ArgumentParser()
    configure(parser)
    for given, told in (([], None), (["--take-over"], "1")):
        args = parser.parse_args([*given, "--workers=2", "train.py"])
        tasks = make_tasks({"ps": ["a:1"], "worker": ["b:1", "c:1"]}, ["train.py"], {})
        apply_options(args, tasks)
        found = {task.name: task.environ.get("GLOBALSTEP_TAKE_OVER") for task in tasks}
        assert found == {"ps:0": None, "worker:0": told, "worker:1": None}


def test_what_comes_after_a_module_is_its_own():
    parser = argparse.ArgumentParser()
    configure(parser)
    args = parser.parse_args(["--ps", "2", "-m", "package.job", "-m", "x", "--ps", "3"])
    assert (args.module, args.script, args.args, args.ps) == (True, "package.job", ["-m", "x", "--ps", "3"], 2)
