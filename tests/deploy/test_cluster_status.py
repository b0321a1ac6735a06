"""`globalstep status` and `globalstep where`: pure readings, and a running cluster with known traffic."""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import os
import re
import subprocess
import sys
import threading
import types
import typing
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from certificates import Authority, environ_of
from rich.console import Console

from globalstep.clock import ManualClock
from globalstep.credentials import Credentials
from globalstep.declarations import Increment, Op, OpKind, OptimizerDecl, OptimizerUse, Push, StopLimit, VariableDecl
from globalstep.deploy import cli, cluster_status, status_cli
from globalstep.deploy.cluster_status import read_cluster
from globalstep.deploy.status_view import draw_status, draw_where
from globalstep.deploy.where import placed_variables
from globalstep.errors import UnavailableError
from globalstep.expressions import constant
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.security import SecurityOptions
from globalstep.ps.server import PSOptions, PSServer
from globalstep.worker.client import connect


def reply(secs=10.0, step=100, shard=0, pushes=40, **more):
    statistics = {"secs": secs, "accepted": step, "applied": step, "apply_secs": secs / 4, "bytes_in": step * 1000}
    return pb.StatusReply(
        state=pb.STATE_READY,
        incarnation=7,
        shard=shard,
        shards=2,
        process="p",
        steps={"global_step": step} if shard == 0 else {},
        limits={"global_step": 1000} if shard == 0 else {},
        clients=[
            pb.ClientInfo(client="c", task="/job:worker/task:0", pushes=pushes, staleness=3, staleness_sum=pushes * 2)
        ],
        statistics=pb.Statistics(**statistics, staleness=[0, pushes], staleness_sum=pushes * 2),
        load=pb.Load(value_bytes=4096, resident_bytes=10**8, staged_parts=2, staged_bytes=64, requests=3),
        **more,
    )


def two(secs, step, pushes):
    return [reply(secs, step, 0, pushes), reply(secs, step, 1, pushes)]


def test_rates_are_of_the_time_between_two_readings_by_the_tasks_own_clock():
    status = read_cluster(["a:1", "b:2"], two(12.0, 300, 80), two(10.0, 100, 40))
    (step,) = status.steps
    assert (step.value, step.limit, step.per_sec) == (300, 1000, 100.0)
    (worker,) = status.workers
    assert (worker.pushes, worker.pushes_per_sec, worker.staleness) == (80, 20.0, 2.0)
    assert status.pushes_per_sec == 100.0
    assert status.mean_staleness == 2.0
    first = status.shards[0]
    assert (first.bytes_in_per_sec, first.applies_per_sec, first.load) == (100_000.0, 100.0, 0.25)
    assert (first.staged_parts, first.staged_bytes, first.requests) == (2, 64, 3)
    assert first.sequencer
    assert not status.shards[1].sequencer
    assert not status.problems
    assert status_cli.exit_code(status) == 0


def test_one_reading_has_no_rates():
    status = read_cluster(["a:1", "b:2"], two(12.0, 300, 80))
    assert status.steps[0].per_sec is None
    assert status.workers[0].pushes_per_sec is None
    assert status.workers[0].staleness == 3.0
    assert status.shards[0].load is None


def test_counters_of_another_life_are_not_compared():
    before = two(10.0, 100, 40)
    before[0].process = "an earlier one"
    status = read_cluster(["a:1", "b:2"], two(12.0, 300, 80), before)
    assert status.steps[0].per_sec is None
    assert status.shards[0].load is None
    assert status.shards[1].load == 0.25


def test_a_worker_that_has_joined_since_made_all_its_pushes_since():
    before = two(10.0, 100, 40)
    del before[0].clients[:]
    status = read_cluster(["a:1", "b:2"], two(12.0, 300, 80), before)
    assert status.workers[0].pushes_per_sec == 40.0


def test_who_does_not_answer_is_named_with_the_reason():
    status = read_cluster(["a:1", "b:2"], [reply(), UnavailableError("b:2: connection refused")])
    assert status.shards[1].error == "b:2: connection refused"
    assert status.problems == ["b:2 does not answer: b:2: connection refused"]
    assert status_cli.exit_code(status) == 1
    none = read_cluster(["a:1"], [UnavailableError("x")])
    assert status_cli.exit_code(none) == 2


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda replies: replies[1].MergeFrom(pb.StatusReply(incarnation=8)), "different incarnations"),
        (lambda replies: replies[1].MergeFrom(pb.StatusReply(draining=True)), "asked to end"),
        (lambda replies: replies[1].MergeFrom(pb.StatusReply(state=pb.STATE_VACANT)), "holds no state"),
        (lambda replies: replies.pop(), "The run has 2 PS tasks; 1 were asked"),
        (lambda replies: replies[0].MergeFrom(pb.StatusReply(sequencer=1)), "orders pushes has not answered"),
    ],
)
def test_what_is_not_as_it_should_be_is_said(change, problem):
    replies = two(10.0, 100, 40)
    change(replies)
    status = read_cluster(["a:1", "b:2"][: len(replies)], replies)
    assert any(problem in text for text in status.problems)
    assert status_cli.exit_code(status) == 1


def as_declared(value, kind):
    """Whether a value read from JSON is what a field's annotation says."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(as_declared(value, one) for one in arguments)
    if origin is Sequence:
        return isinstance(value, list) and all(as_declared(item, arguments[0]) for item in value)
    if origin is Mapping:
        return isinstance(value, dict) and all(as_declared(item, arguments[1]) for item in value.values())
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind, vars(cluster_status))
        return (
            isinstance(value, dict)
            and set(value) == set(hints)
            and all(as_declared(value[name], hint) for name, hint in hints.items())
        )
    if kind is type(None):
        return value is None
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return kind is typing.Any or type(value) is kind


def test_json_has_the_declared_names_and_types():
    status = read_cluster(["a:1", "b:2"], two(12.0, 300, 80), two(10.0, 100, 40))
    found = json.loads(json.dumps(status.as_json()))
    assert found.pop("format") == 1
    assert as_declared(found, cluster_status.ClusterStatus)
    assert not as_declared({**found, "chief": 5}, cluster_status.ClusterStatus)


def drawn(what):
    console = Console(file=io.StringIO(), width=140, record=True)
    console.print(what)
    return console.export_text()


def test_the_tables_say_it():
    save = pb.Load(last_save=pb.LastSave(age_secs=75, steps={"global_step": 200}))
    replies = two(12.0, 300, 80)
    replies[0].load.MergeFrom(save)
    text = drawn(draw_status(read_cluster(["a:1", "b:2"], replies, two(10.0, 100, 40))))
    assert "global_step: 300 of 1,000, 100.0 steps/s, 7 s to go" in text
    assert re.search(r"worker:0 +80 +20\.0 +2\.00 +0 s", text)
    assert re.search(r"a:1 \* +ready +4\.1 kB +100 MB +2 \(64 B\) +3 +100 kB +0 B +100\.0 +25%", text)
    assert "last checkpoint: global_step 200, 1 min 15 s ago" in text
    text = drawn(draw_status(read_cluster(["[::1]:5"], [UnavailableError("refused [x]")])))
    assert "! [::1]:5 does not answer: refused [x]" in text


def test_nothing_is_shortened_on_a_narrow_terminal():
    status = read_cluster(["ps-0.training.example.internal:2222", "b:2"], two(12.0, 300, 80), two(10.0, 100, 40))
    console = Console(file=io.StringIO(), width=80, record=True)
    console.print(draw_status(status))
    text = console.export_text()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    # What has no room beside the rest is in a table below it.
    assert re.search(r"internal:2222 \* +ready +4\.1 kB +100 MB +2 \(64 B\) +3", text)
    assert re.search(r"internal:2222 \* +100 kB +0 B +100\.0 +25%", text)


def test_a_file_gets_whole_lines(traffic, capsys):
    assert cli.main(["status", "--interval", "0", *traffic.addresses]) == 0
    printed = capsys.readouterr().out
    assert "…" not in printed
    assert re.search(r"PS +STATE .* LOAD", printed)


def test_parts_of_a_variable_are_one_line():
    parts = [reply(shard=shard) for shard in (0, 1)]
    for shard, rows in enumerate((6, 4)):
        parts[shard].variables.add(
            name=f"table/part_{shard}", dtype="float32", shape=[rows, 3], shard=shard, whole="table",
            first_row=6 * shard, whole_rows=10,
        )  # fmt: skip
        parts[shard].variable_pushes[f"table/part_{shard}"] = 5 + shard
    parts[1].uninitialized.append("table/part_1")
    (table,) = placed_variables(parts)
    assert (table.name, table.shape, table.shards, table.parts) == ("table", [10, 3], [0, 1], 2)
    assert (table.nbytes, table.initialized, table.pushes) == (120, False, 6)
    assert re.search(r"table +0,1 \(2 parts\) +120 B +float32 +\[10, 3\] +no +6", drawn(draw_where([table], [])))


# ---- A running cluster --------------------------------------------------------------------------


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
            variables,
            [OptimizerDecl("sgd", "gradient_descent", {"learning_rate": constant(0.5)}, {"w": (), "v": ()})],
        )
        zeros = [Op(OpKind.ASSIGN, "w", np.zeros(4, np.float32)), Op(OpKind.ASSIGN, "v", np.zeros(100, np.float32))]
        self.client.push(Push(ops=[Op(OpKind.ASSIGN, "global_step", np.int64(0)), *zeros]))
        self.client.open([StopLimit("global_step", last_step=1000)])

    def push(self, count, *names):
        sizes = {"w": 4, "v": 100}
        for _ in range(count):
            ops = [Op(OpKind.APPLY, name, np.ones(sizes[name], np.float32), optimizer="sgd") for name in names]
            uses = [OptimizerUse("sgd")]
            seen = self.client.global_steps()
            self.client.push(Push(ops=ops, increments=[Increment("global_step")], uses=uses, seen_steps=seen))

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


def test_the_last_save_is_told(traffic, capsys):
    traffic.push(6, "w")
    with traffic.client.snapshot():
        pass
    assert cli.main(["status", "--interval", "0", *traffic.addresses]) == 0
    assert "last checkpoint: global_step 6, " in capsys.readouterr().out


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
