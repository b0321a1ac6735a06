"""`globalstep status` beside a running cluster with known traffic."""

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


def told(capsys):
    """The tasks of the JSON that was printed last."""
    return json.loads(capsys.readouterr().out)["tasks"]


def test_status_of_a_running_cluster(traffic, capsys):
    traffic.push(3, "w")
    clock = PushingClock(lambda: traffic.push(5, "w", "v"))
    assert status_cli.run(arguments(*traffic.addresses), clock) == 0
    text = capsys.readouterr().out
    (rate,) = re.findall(r"global_step: 8 of 1,000, ([0-9.]+) steps/s", text)
    # Five pushes, by the clock of the PS task, in both.
    assert re.search(rf"worker:3 +8 +{rate} +0\.00", text)
    assert status_cli.run(arguments("--json", *traffic.addresses)) == 0
    first, second = told(capsys)
    assert (first["steps"], first["clients"][0]["pushes"]) == ({"global_step": "8"}, "8")
    assert int(second["statistics"]["bytes_in"]) > int(first["statistics"]["bytes_in"])
    # 4 floats and a step here; 102 floats there.
    assert (first["load"]["value_bytes"], second["load"]["value_bytes"]) == ("24", "408")
    assert int(first["load"]["resident_bytes"]) > 10**7
    assert int(first["incarnation"]) > 0


def test_variables_of_a_running_cluster(traffic, capsys):
    traffic.push(3, "w")
    clock = PushingClock(lambda: (traffic.push(4, "w", "v"), traffic.push(2, "w")))
    assert status_cli.run(arguments("--variables", *traffic.addresses), clock) == 0
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    # Shard, bytes, dtype, shape, initialized, pushes; the initializers' push counts as well.
    assert lines["w"][1:-1] == ["0", "16", "B", "float32", "[4]", "yes", "10"]
    assert lines["v"][1:-1] == ["1", "400", "B", "float32", "[100]", "yes", "5"]
    assert lines["later"][1:] == ["1", "8", "B", "float32", "[2]", "no", "0", "0.0"]
    # By the clock of each task: what is on one task can be compared.
    assert float(lines["w"][-1]) == float(lines["global_step"][-1]) > 0
    assert float(lines["v"][-1]) > 0


def test_the_lag_of_a_worker_that_pushes_late(traffic, capsys):
    seen = traffic.client.global_steps()
    # Five pushes that have seen nothing of each other lag 0, 1, 2, 3 and 4 steps behind.
    clock = PushingClock(lambda: traffic.push(5, "w", seen=seen))
    assert status_cli.run(arguments(*traffic.addresses), clock) == 0
    text = capsys.readouterr().out
    assert "staleness 2.00" in text
    assert re.search(r"worker:3 +5 +[0-9.]+ +2\.00", text)


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
    load = told(capsys)[1]["load"]
    assert (load["staged_parts"], load["staged_bytes"], load["requests"]) == (1, "400", 1)
    clock = PushingClock(lambda: traffic.push(50, "w", "v"))
    assert status_cli.run(arguments(*traffic.addresses), clock) == 0
    assert re.search(r"127.*[1-9]\d?%$", capsys.readouterr().out, re.MULTILINE)


def test_the_last_save_is_told(traffic, capsys):
    traffic.push(6, "w")
    with traffic.client.snapshot():
        pass
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
        (task,) = json.loads(done.stdout)["tasks"]
        assert (task["state"], task["address"]) == ("STATE_VACANT", address)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
