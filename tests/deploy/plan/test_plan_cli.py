"""`globalstep plan` and `globalstep bench` as commands: what they print, write and refuse; the profile as a file."""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from planned_costs import profile
from rich.console import Console

from globalstep.deploy import cli
from globalstep.deploy.bench import cli as bench_cli
from globalstep.deploy.bench import cost_profile
from globalstep.deploy.bench.cost_measuring import TransportMeasuring, copy_bytes_sec, kernel_costs, pack_element_secs
from globalstep.deploy.bench.cost_profile import FORMAT, Profile
from globalstep.deploy.bench.measured_cluster import MeasuredTurn, measured_cluster
from globalstep.deploy.plan import cli as plan_cli
from globalstep.errors import InvalidArgumentError, NotFoundError

JOB = ["--params", "1e7", "--workers", "20", "--step-time", "0.1", "--nic", "25"]


@pytest.fixture
def profile_file(tmp_path):
    path = tmp_path / "folder" / "profile.json"
    profile().save(path)
    return path


@pytest.fixture
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")


def plan(capsys, profile_file, *arguments):
    code = cli.main(["plan", *JOB, "--profile", str(profile_file), *arguments])
    return code, capsys.readouterr()


# ---- The profile --------------------------------------------------------------------------------


def test_a_profile_is_read_as_it_was_written(profile_file):
    assert cost_profile.load(profile_file) == profile()
    assert json.loads(profile_file.read_text())["format"] == FORMAT


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "no JSON"), ("[]", "no profile"), ('{"format": 0}', "format 0"), (f'{{"format": {FORMAT}}}', "no profile")],
)
def test_a_file_that_is_no_profile_is_refused(tmp_path, text, said):
    path = tmp_path / "wrong.json"
    path.write_text(text)
    with pytest.raises(InvalidArgumentError, match=said):
        cost_profile.load(path)


def test_a_profile_that_is_missing_says_how_to_make_one(tmp_path):
    with pytest.raises(NotFoundError, match="globalstep bench"):
        cost_profile.load(tmp_path / "none.json")


def test_the_default_is_in_the_users_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cost_profile.default_path() == tmp_path / "globalstep" / "profile.json"


def test_sizes_that_were_not_measured_lie_on_the_lines_between():
    costs = profile().transports["grpc"]
    assert costs.step(0.0).worker_secs == pytest.approx(100e-6)
    assert costs.step(5e5).worker_secs == pytest.approx(100e-6 + 1e-3)
    assert costs.step(2e7).ps_secs == pytest.approx(2 * (100e-6 + 2e-2))
    assert profile().kernels["adam"].dense_secs(1e7) == pytest.approx(0.02)
    assert profile().kernels["adam"].dense_secs(10) == pytest.approx(2e-6)


# ---- globalstep plan ----------------------------------------------------------------------------


def test_plan_prints_a_page(capsys, profile_file, wide):
    code, said = plan(capsys, profile_file, "--batch", "32")
    assert code == 0
    for word in (
        "PS tasks",
        "throughput",
        "examples/s",
        "staleness",
        "p99",
        "memory of each PS",
        "RESOURCE",
        "BOTTLENECK",
    ):
        assert word in said.out
    assert said.err == ""


def test_plan_prints_json(capsys, profile_file):
    code, said = plan(capsys, profile_file, "--json", "--ps", "4", "--optimizer", "sgd", "--seed", "3")
    found = json.loads(said.out)
    assert code == 0
    assert found["format"] == 1
    assert (found["ps"], found["asked"]) == (4, True)
    assert found["job"]["optimizer"] == "sgd"
    assert found["forecast"]["staleness"]["p50"] <= found["forecast"]["staleness"]["p99"]
    assert sum(found["forecast"]["staleness"]["pushes"].values()) > 100
    assert found["forecast"]["memory"]["total"] > 1e7
    assert [tried["ps"] for tried in found["tried"]] == [1, 2, 4, 8]
    assert "Infinity" not in said.out
    again = json.loads(plan(capsys, profile_file, "--json", "--ps", "4", "--optimizer", "sgd", "--seed", "3")[1].out)
    assert again == found


def test_plan_chooses_the_number_of_ps(capsys, profile_file):
    found = json.loads(plan(capsys, profile_file, "--json", "--ps", "auto")[1].out)
    assert not found["asked"]
    assert found["why"]
    assert found["ps"] in [tried["ps"] for tried in found["tried"]]


@pytest.mark.long
def test_plan_advises_against_a_cluster_whose_workers_mostly_wait(capsys, profile_file, wide):
    hopeless = ("--step-time", "0.0001", "--nic", "1")
    found = json.loads(plan(capsys, profile_file, "--json", *hopeless)[1].out)
    assert found["forecast"]["efficiency"] < 0.5
    assert "of their time, and more do not help" in found["warning"]
    assert f"What holds them up: {found['forecast']['bottleneck']}. Take fewer workers" in found["warning"]
    assert "NOT ADVISED" in plan(capsys, profile_file, *hopeless)[1].out


def test_plan_does_not_warn_of_a_cluster_that_computes(capsys, profile_file, wide):
    busy = ("--step-time", "5")
    assert json.loads(plan(capsys, profile_file, "--json", *busy)[1].out)["warning"] == ""
    assert "NOT ADVISED" not in plan(capsys, profile_file, *busy)[1].out


@pytest.mark.processes
@pytest.mark.parametrize("asked", ["lines", "table", "help"])
def test_a_reader_that_has_gone_is_no_error(profile_file, asked):
    command = [sys.executable, "-m", "globalstep", "plan"]
    command += ["--help"] if asked == "help" else [*JOB, "--profile", str(profile_file)]
    if asked == "lines":
        command += ["--json"]
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        ended = subprocess.run(
            command,
            stdout=write_end,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stderr=subprocess.PIPE,
            text=True,
            timeout=100,
            check=False,
        )
    finally:
        os.close(write_end)
    assert ended.stderr == ""
    # argparse and rich, which print help and tables, end by themselves.
    assert ended.returncode == {"lines": 141, "table": 1, "help": 0}[asked]


@pytest.mark.parametrize("command", ["launch", "compose up", "slurm", "ray"])
def test_a_command_without_its_script_says_that_the_script_is_missing(capsys, command):
    with pytest.raises(SystemExit) as ended:
        cli.main(command.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith("error: the following arguments are required: script\n")


def test_plan_knows_one_machine(capsys, profile_file):
    found = json.loads(plan(capsys, profile_file, "--json", "--shared-cores", "1.5", "--accelerator")[1].out)
    assert found["job"]["transport"] == "shm"
    assert found["job"]["nic_gbps"] is None
    assert "shared cores" in found["forecast"]["busy"]


def test_between_machines_a_plan_takes_what_a_session_takes(capsys, profile_file):
    assert json.loads(plan(capsys, profile_file, "--json")[1].out)["job"]["transport"] == "tcp"


def test_plan_knows_rows_and_the_wire(capsys, profile_file):
    rows = json.loads(plan(capsys, profile_file, "--json", "--ps", "2", "--sparse-rows", "2000x64")[1].out)
    assert (rows["job"]["rows"], rows["job"]["row_width"]) == (2000, 64)
    full, half = (
        json.loads(plan(capsys, profile_file, "--json", "--ps", "2", "--wire", wire)[1].out)["job"]
        for wire in ("float32", "bfloat16")
    )
    assert (full["wire_itemsize"], half["wire_itemsize"]) == (4, 2)
    eighth = json.loads(plan(capsys, profile_file, "--json", "--ps", "2", "--wire", "int8")[1].out)["job"]
    assert (eighth["wire_itemsize"], eighth["value_itemsize"]) == (33 / 32, 2)
    said = plan(capsys, profile_file, "--wire", "int8", "--ps", "2")[1].out.split()
    assert "(8.25 bits each of gradients, 16 of values on the wire)" in " ".join(said)
    of_rows = plan(capsys, profile_file, "--json", "--wire", "int8", "--sparse-rows", "2000x64")[1].out
    assert (json.loads(of_rows)["job"]["wire_itemsize"], json.loads(of_rows)["job"]["value_itemsize"]) == (2, 2)


@pytest.mark.long
def test_plan_draws(capsys, profile_file, tmp_path):
    pytest.importorskip("matplotlib")
    code, _ = plan(capsys, profile_file, "--plot", str(tmp_path / "plan.png"))
    assert code == 0
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_plan_says_what_is_wrong(capsys, profile_file, tmp_path):
    code, said = plan(capsys, tmp_path / "none.json")
    assert code == 1
    assert "globalstep bench" in said.err
    code, said = plan(capsys, profile_file, "--transport", "unix")
    assert code == 1
    assert "'unix'" in said.err


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--workers", "0"], "'0' is no whole number of at least 1"),
        (["--workers", "1.5"], "'1.5' is no whole number"),
        (["--params", "abc"], "'abc' is no whole number of at least 1, such as 200 or 1e9"),
        (["--params", "inf"], "'inf' is no whole number"),
        (["--ps", "-1"], "'-1' is no whole number"),
        (["--sparse-rows", "64"], "'64' is not of the form ROWSxWIDTH"),
        (["--sparse-rows", "e+x64"], "'e+' is no whole number"),
    ],
)
def test_arguments_that_cannot_be_are_refused(capsys, profile_file, wrong, said):
    with pytest.raises(SystemExit):
        plan(capsys, profile_file, *wrong)
    assert f"argument {wrong[0]}: {said}" in capsys.readouterr().err


def test_every_argument_of_the_issue_is_there():
    parser = argparse.ArgumentParser()
    plan_cli.configure(parser)
    args = parser.parse_args(["--params", "1e9", "--workers", "200", "--step-time", "0.2", "--nic", "25"])
    job = plan_cli.job_of(args, cores=16)
    assert (job.params, job.workers, job.step_secs, job.nic_gbps, job.ps_cores) == (10**9, 200, 0.2, 25.0, 16)


# ---- globalstep bench ---------------------------------------------------------------------------


def test_bench_writes_and_prints_what_was_measured(monkeypatch, capsys, tmp_path, wide):
    monkeypatch.setattr(bench_cli, "measure", lambda machine, quick, progress: profile())
    path = tmp_path / "new" / "profile.json"
    assert cli.main(["bench", "--out", str(path)]) == 0
    said = capsys.readouterr().out
    for word in ("TRANSPORT", "grpc", "RULE", "adam", str(path)):
        assert word in said
    assert cost_profile.load(path) == profile()
    assert cli.main(["bench", "--out", str(path), "--json"]) == 0
    assert Profile.from_json(json.loads(capsys.readouterr().out)) == profile()


def test_bench_that_fails_says_why(monkeypatch, capsys, tmp_path):
    def fails(machine, quick, progress):
        raise RuntimeError("a process hangs")

    monkeypatch.setattr(bench_cli, "measure", fails)
    assert cli.main(["bench", "--out", str(tmp_path / "profile.json")]) == 1
    assert "a process hangs" in capsys.readouterr().err
    assert not (tmp_path / "profile.json").exists()


def test_kernels_and_memory_are_measured():
    descent, adam = kernel_costs("gradient_descent", 0.0), kernel_costs("adam", 0.0)
    assert (descent.slots, adam.slots) == (0, 2)
    assert descent.row_element_secs > 0
    assert adam.table_element_secs > 0
    assert adam.dense_secs(1e6) > descent.dense_secs(1e6) > 1e-5
    assert 1e8 < copy_bytes_sec(1, 0.01) < 1e12
    assert 1e-11 < pack_element_secs(0.0) < 1e-6


@pytest.mark.processes
def test_messages_are_measured_between_real_processes():
    with measured_cluster(3, 4) as cluster:
        measuring = TransportMeasuring(cluster, profile().kernels["gradient_descent"], ["tcp"], (240, 24_000), 0.01)
        measuring.round()
        cluster.create(2, [240], "adam")
        turn = cluster.run(2, 2, "grpc", 240, 0.05, step_secs=0.001, least_steps=10)
    costs = measuring.costs()["tcp"]
    assert [cost.nbytes for cost in costs.alone] == [0.0, 96_000.0]
    assert all(1e-6 < cost.worker_secs < 1.0 and 1e-7 <= cost.ps_secs < 1.0 for cost in (*costs.alone, *costs.crowded))
    assert 1e-6 < costs.part_worker_secs < costs.admit_worker_secs + costs.part_worker_secs
    assert turn.steps >= 20
    assert sum(turn.staleness.values()) == turn.steps
    assert len(turn.ps_cpu_secs) == 2
    assert turn.rate > 0
    assert math.isfinite(turn.free_cores)


@pytest.mark.processes
def test_what_a_ps_task_did_before_the_first_step_is_no_part_of_the_steps():
    """Of few steps it was a good part: the parts were longer than the whole, and the delay less than none."""
    with measured_cluster(1, 1) as cluster:
        cluster.create(1, [240, 4_000_000], "gradient_descent")
        asked = []
        for server in cluster._servers:
            read = server.cpu_secs
            server.cpu_secs = lambda read=read: asked.append("cpu") or read()
        for worker in cluster._workers:
            tell = worker.tell
            worker.tell = lambda command, tell=tell: asked.append(command["do"]) or tell(command)
        cluster.run(1, 1, "tcp", 4_000_000, 0.0, least_steps=1)
    first = asked.index("cpu")
    # The values are read for the first time by what is not timed; between both readings there are steps only.
    assert asked[first - 2 : first] == ["applied", "prepare"] or asked[first - 2 : first] == ["prepare", "applied"]
    assert asked[first:] == ["cpu", "run", "cpu", "applied"]


def turn(step, worker, ps):
    return MeasuredTurn(10, 1.0, step, worker, (ps,), (0.0,), {0: 10}, 2.0)


def test_a_delay_that_cannot_be_is_said_to_be_not_measurable(wide):
    descent = profile().kernels["gradient_descent"]
    measuring = TransportMeasuring(None, descent, ["tcp"], (240,))

    def cost(*turns):
        return measuring._step_cost(240, turns)

    usual = turn(300e-6, 100e-6, 150e-6)
    assert cost(usual).delay_secs == pytest.approx(50e-6)
    assert cost(usual).delay_measured
    # Both sides work at the same time: no more can be saved than the shorter of the two.
    assert cost(turn(200e-6, 100e-6, 150e-6)).delay_secs == pytest.approx(-50e-6)
    # One turn that cannot be says nothing where another can.
    impossible, held_up = turn(100e-6, 100e-6, 150e-6), turn(900e-6, 100e-6, 150e-6)
    assert cost(impossible, usual, held_up).delay_secs == pytest.approx(50e-6)
    for beyond in (impossible, held_up):
        assert not cost(beyond).delay_measured
    drawn = profile()
    costs = drawn.transports["grpc"]
    alone = (replace(costs.alone[0], delay_measured=False), *costs.alone[1:])
    drawn = replace(drawn, transports={**drawn.transports, "grpc": replace(costs, alone=alone)})
    assert Profile.from_json(json.loads(json.dumps(drawn.as_json()))) == drawn
    console = Console(width=160)
    with console.capture() as capture:
        console.print(bench_cli.draw_profile(drawn))
    assert "not measurable" in capture.get()
    assert "again" in capture.get()


@pytest.mark.processes
def test_a_process_that_ends_is_named():
    with pytest.raises(RuntimeError, match="globalstep.ps"), measured_cluster(1, 1, host=lambda at: "no.such.host"):
        pass


def test_a_profile_is_drawn(wide):
    console = Console(width=160)
    with console.capture() as capture:
        console.print(bench_cli.draw_profile(profile()))
    assert "a test's, 8 cores" in capture.get()
