"""`globalstep status` and `globalstep where` beside a running cluster with known traffic."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
from certificates import Authority, environ_of

from globalstep.deploy import cli
from globalstep.deploy.status import cli as status_cli
from globalstep.deploy.status import where
from globalstep.ps.access.security import SecurityOptions
from globalstep.ps.server import PSOptions, PSServer
from globalstep.ps.shard import events
from globalstep.ps.shard.layouts import PushParts
from globalstep.runtime.clock import ManualClock
from globalstep.security.credentials import Credentials
from globalstep.wire.declarations import (
    Increment,
    Op,
    OpKind,
    OptimizerDecl,
    OptimizerUse,
    Push,
    PushId,
    StopLimit,
    VariableDecl,
)
from globalstep.wire.expressions import constant
from globalstep.worker.client.client import connect


class Traffic:
    """Two PS tasks, and a worker that pushes when it is told to."""

    def __init__(self):
        self.servers = [PSServer(PSOptions(grace_secs=0.2)) for _ in range(2)]
        for server in self.servers:
            server.start()
        self.addresses = [server.address for server in self.servers]
        self.client = connect("grpc://" + ",".join(self.addresses), task="/job:worker/task:3")
        self.client.begin(open=False)
        variables = [
            VariableDecl("global_step", "int64", (), 0, is_step=True),
            VariableDecl("w", "float32", (4,), 0),
            VariableDecl("v", "float32", (100,), 1),
            VariableDecl("later", "float32", (2,), 1),
        ]
        self.client.declare(
            variables, [OptimizerDecl("sgd", "gradient_descent", {"learning_rate": constant(0.5)}, {"w": (), "v": ()})]
        )
        zeros = [Op(OpKind.ASSIGN, "w", np.zeros(4, np.float32)), Op(OpKind.ASSIGN, "v", np.zeros(100, np.float32))]
        self.client.push(Push(ops=[Op(OpKind.ASSIGN, "global_step", np.int64(0)), *zeros]))
        self.client.open([StopLimit("global_step", last_step=1000)])

    def push(self, count, *names, seen=None):
        sizes = {"w": 4, "v": 100}
        for _ in range(count):
            ops = [Op(OpKind.APPLY, name, np.ones(sizes[name], np.float32), optimizer="sgd") for name in names]
            uses = [OptimizerUse("sgd")]
            steps = self.client.global_steps() if seen is None else seen
            self.client.push(Push(ops=ops, increments=[Increment("global_step")], uses=uses, seen_steps=steps))

    def close(self):
        self.client.close()
        for server in self.servers:
            server.close()


@pytest.fixture
def traffic():
    made = Traffic()
    yield made
    made.close()


class PushingClock(ManualClock):
    """Where a tool waits between two readings, the worker pushes."""

    def __init__(self, work):
        super().__init__()
        self._work = work

    def wait(self, event, secs):
        self._work()
        return event.is_set()


def arguments(*argv):
    parser = argparse.ArgumentParser()
    status_cli.configure(parser)
    return parser.parse_args(argv)


def test_status_of_a_running_cluster(traffic, capsys):
    traffic.push(3, "w")
    clock = PushingClock(lambda: traffic.push(5, "w", "v"))
    assert status_cli.run(arguments("--json", *traffic.addresses), clock) == 0
    found = json.loads(capsys.readouterr().out)
    (step,) = found["steps"]
    assert (step["name"], step["value"], step["limit"]) == ("global_step", 8, 1000)
    (worker,) = found["workers"]
    assert (worker["task"], worker["pushes"], worker["staleness"]) == ("/job:worker/task:3", 8, 0.0)
    # Five pushes, by the clock of the PS task, in both.
    assert step["per_sec"] == worker["pushes_per_sec"] == found["pushes_per_sec"] > 0
    secs = 5 / step["per_sec"]
    first, second = found["shards"]
    assert first["bytes_in_per_sec"] * secs == pytest.approx(5 * 16)
    assert second["applies_per_sec"] > 0
    assert second["bytes_in_per_sec"] > first["bytes_in_per_sec"]
    # 4 floats and a step here; 102 floats there.
    assert (first["value_bytes"], second["value_bytes"]) == (24, 408)
    assert first["resident_bytes"] > 10**7
    assert found["incarnation"] > 0
    assert found["problems"] == []


def test_where_of_a_running_cluster(traffic, capsys):
    traffic.push(3, "w")
    traffic.push(4, "w", "v")
    assert cli.main(["where", "--json", "--interval", "0", *traffic.addresses]) == 0
    found = {item["name"]: item for item in json.loads(capsys.readouterr().out)["variables"]}
    assert {name: item["shards"] for name, item in found.items()} == {
        "global_step": [0], "w": [0], "v": [1], "later": [1],
    }  # fmt: skip
    # The initializers' push counts as well.
    assert {name: item["pushes"] for name, item in found.items()} == {"global_step": 7, "w": 8, "v": 5, "later": 0}
    assert (found["v"]["nbytes"], found["v"]["dtype"], found["v"]["shape"]) == (400, "float32", [100])
    assert [name for name, item in found.items() if not item["initialized"]] == ["later"]


def test_the_lag_of_a_worker_that_pushes_late(traffic, capsys):
    seen = traffic.client.global_steps()
    # Five pushes that have seen nothing of each other lag 0, 1, 2, 3 and 4 steps behind.
    clock = PushingClock(lambda: traffic.push(5, "w", seen=seen))
    assert status_cli.run(arguments("--json", *traffic.addresses), clock) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["workers"][0]["staleness"] == found["mean_staleness"] == 2.0


def test_queues_and_load_of_a_task_that_is_held_up(traffic, capsys, monkeypatch):
    shard, go_on = traffic.servers[1].shard, threading.Event()
    shard.handle(
        events.Stage(traffic.client.incarnation, PushId("somebody", 1), PushParts(data=memoryview(bytes(400))))
    )
    handle, entered = shard.handle, threading.Event()

    def slow(event):
        if isinstance(event, events.Stage):
            entered.set()
            assert go_on.wait(30)
        return handle(event)

    monkeypatch.setattr(shard, "handle", slow)
    pusher = threading.Thread(target=traffic.push, args=(1, "w", "v"), name="pusher")
    pusher.start()
    try:
        assert entered.wait(30)
        assert status_cli.run(arguments("--json", "--interval", "0", *traffic.addresses)) == 0
    finally:
        go_on.set()
        pusher.join()
    first, second = json.loads(capsys.readouterr().out)["shards"]
    assert (second["staged_parts"], second["staged_bytes"], second["requests"]) == (1, 400, 1)
    assert first["staged_parts"] in (0, 1)  # its own part of that push comes with the ADMIT, which may be there already
    clock = PushingClock(lambda: traffic.push(50, "w", "v"))
    assert status_cli.run(arguments("--json", *traffic.addresses), clock) == 0
    assert all(0 < item["load"] < 1 for item in json.loads(capsys.readouterr().out)["shards"])


def test_push_rates_of_each_variable(traffic, capsys, monkeypatch):
    traffic.push(3, "w")
    clock = PushingClock(lambda: (traffic.push(4, "w", "v"), traffic.push(2, "w")))
    assert where.run(arguments("--json", *traffic.addresses), clock) == 0
    found = {item["name"]: item for item in json.loads(capsys.readouterr().out)["variables"]}
    # By the clock of each task: what is on one task can be compared.
    assert found["w"]["pushes_per_sec"] == found["global_step"]["pushes_per_sec"] > 0
    assert found["v"]["pushes_per_sec"] > 0
    assert found["later"]["pushes_per_sec"] == 0
    assert (found["w"]["pushes"], found["v"]["pushes"]) == (10, 5)


def test_the_last_save_is_told(traffic, capsys):
    traffic.push(6, "w")
    with traffic.client.snapshot():
        pass
    assert cli.main(["status", "--json", "--interval", "0", *traffic.addresses]) == 0
    save = json.loads(capsys.readouterr().out)["last_save"]
    assert save["steps"] == {"global_step": 6}
    assert save["age_secs"] >= 0
    assert cli.main(["status", "--interval", "0", *traffic.addresses]) == 0
    assert "last checkpoint: global_step 6, " in capsys.readouterr().out


def test_a_file_gets_whole_lines(traffic, capsys):
    assert cli.main(["status", "--interval", "0", *traffic.addresses]) == 0
    printed = capsys.readouterr().out
    assert "…" not in printed
    assert re.search(r"PS +STATE .* LOAD", printed)


def test_a_task_that_is_gone_is_named(traffic, capsys):
    traffic.servers[1].close()
    assert cli.main(["status", "--interval", "0", *traffic.addresses]) == 1
    assert f"! {traffic.addresses[1]} does not answer" in capsys.readouterr().out.replace("\n", " ")


def test_it_shows_certificates_and_token_as_a_session_does(tmp_path, capsys, monkeypatch):
    authority = Authority(tmp_path)
    security = SecurityOptions(Credentials(authority.issue("ps", "127.0.0.1")))
    server = PSServer(PSOptions(grace_secs=0.2, security=security))
    server.start()
    try:
        assert cli.main(["status", "--interval", "0", server.address]) == 2
        assert "does not answer" in capsys.readouterr().out
        for name, value in environ_of(authority.issue("tool")).items():
            monkeypatch.setenv(name, value)
        assert cli.main(["status", "--interval", "0", server.address]) == 1
        assert "holds no state" in capsys.readouterr().out
    finally:
        server.close()


def test_no_task_at_all(capsys, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert cli.main(["status"]) == 2
    assert "Name the addresses" in capsys.readouterr().err


def test_addresses_come_from_tf_config(traffic, capsys, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"ps": traffic.addresses}}))
    assert cli.main(["status", "--interval", "0"]) == 0
    assert traffic.addresses[1] in capsys.readouterr().out


def test_watch_draws_again_and_again(traffic, capsys):
    rounds, stop = [], threading.Event()

    def work():
        traffic.push(1, "w")
        rounds.append(1)
        if len(rounds) == 3:
            stop.set()

    assert status_cli.run(arguments("--watch", *traffic.addresses), PushingClock(work), stop) == 0
    assert "global_step: 2 of 1,000" in capsys.readouterr().out


@pytest.mark.processes
def test_the_command_beside_a_running_process(traffic):
    process = subprocess.Popen(
        [sys.executable, "-m", "globalstep.ps", "--port", "0"], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    try:
        address = process.stdout.readline().removeprefix("serving on ").strip()
        command = [sys.executable, "-m", "globalstep", "status", "--json", "--interval", "0", address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        # It answers, and waits for a chief.
        assert done.returncode == 1, done.stderr
        (shard,) = json.loads(done.stdout)["shards"]
        assert (shard["state"], shard["address"]) == ("vacant", address)
        assert shard["resident_bytes"] > 10**7
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
