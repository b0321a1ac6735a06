"""What PS tasks and sessions tell Prometheus, under known traffic, and the dashboard that asks for it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from globalstep.errors import InvalidArgumentError, ResourceExhaustedError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.budget import Account
from globalstep.ps.server import PSOptions, PSServer
from globalstep.ps.service.metrics import PSCollector
from globalstep.runtime.metrics_port import metrics_address, open_port
from globalstep.wire.declarations import Increment, Op, OpKind, Push, VariableDecl
from globalstep.worker.client.client import connect

DASHBOARD = Path(__file__).resolve().parents[3] / "deploy" / "grafana" / "globalstep.json"


def read(port):
    """Samples by name and labels, as Prometheus parses them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value for family in families for sample in family.samples
    }


@pytest.fixture
def served():
    server = PSServer(PSOptions(grace_secs=0.2, metrics_port="0"))
    server.start()
    client = connect(f"grpc://{server.address}", task="/job:worker/task:1")
    client.begin(open=True)
    client.declare(
        [VariableDecl("global_step", "int64", (), 0, is_step=True), VariableDecl("w", "float32", (8,), 0)], []
    )
    zero = Op(OpKind.ASSIGN, "global_step", np.int64(0))
    client.push(Push(ops=[zero, Op(OpKind.ASSIGN, "w", np.zeros(8, np.float32))]))
    yield server, client
    client.close()
    server.close()


def test_a_ps_task_tells_what_it_counts(served):
    server, client = served
    stale = client.global_steps()
    for _ in range(5):
        op = Op(OpKind.ASSIGN_ADD, "w", np.ones(8, np.float32))
        client.push(Push(ops=[op], increments=[Increment("global_step")], seen_steps=stale))
    found = read(server._metrics.port)
    worker = (("client", client.client_id), ("task", "/job:worker/task:1"))
    assert found["globalstep_step", ("step", "global_step")] == 5
    assert found["globalstep_ps_pushes_total", ("outcome", "accepted")] == 6
    assert found["globalstep_ps_applied_total",] == 6
    assert found["globalstep_worker_pushes_total", *worker] == 5
    # They lag 0, 1, 2, 3 and 4 behind.
    assert found["globalstep_worker_staleness_total", *worker] == 10
    assert found["globalstep_ps_staleness_bucket", ("le", "0.0")] == 1
    assert found["globalstep_ps_staleness_bucket", ("le", "1.0")] == 2
    assert found["globalstep_ps_staleness_bucket", ("le", "3.0")] == 4
    assert found["globalstep_ps_staleness_count",] == found["globalstep_ps_staleness_bucket", ("le", "+Inf")] == 5
    assert found["globalstep_ps_staleness_sum",] == 10
    assert found["globalstep_ps_state",] == 3
    assert found["globalstep_ps_value_bytes",] == 40
    assert found["globalstep_ps_received_bytes_total",] == 6 * 32 + 8
    assert found["process_resident_memory_bytes",] > 10**7


def test_a_ps_task_tells_how_many_it_sent_away(served):
    server, client = served
    budget = server.control.handler.budget
    budget.limit_bytes = 1 << 20
    held = budget.reply(Account(budget, "c"), 1 << 20)
    with pytest.raises(ResourceExhaustedError):
        budget.reply(Account(budget, "c"), 1 << 20)
    del held
    assert read(server._metrics.port)["globalstep_ps_sent_away_total",] == 1
    assert client.refresh()[0].load.sent_away == 1


def test_a_ps_task_tells_who_waits_for_whom(served):
    server, client = served
    gradient, seen = Op(OpKind.ASSIGN_ADD, "w", np.ones(8, np.float32)), {"global_step": 0}
    contribution = Push(ops=[gradient], increments=[Increment("global_step", 1, 2)], seen_steps=seen)
    step, late = ("step", "global_step"), ("outcome", "late")
    client.push(contribution, at_once=True)
    found = read(server._metrics.port)
    assert (found["globalstep_step_contributions", step], found["globalstep_step_contributions_wanted", step]) == (1, 2)
    assert found["globalstep_step_awaits_seconds", step, ("task", "a worker")] > 0
    assert found["globalstep_step_open_seconds", step] > 0
    client.push(contribution, at_once=True)  # a second one of the same client
    found = read(server._metrics.port)
    assert found["globalstep_ps_contributions_total", ("outcome", "accepted")] == 1
    assert found["globalstep_ps_contributions_total", late] == 1
    assert (found["globalstep_ps_steps_made_total",], found["globalstep_ps_contribution_wait_seconds_count",]) == (0, 0)
    other = connect(f"grpc://{server.address}", task="/job:worker/task:2")
    try:
        other.refresh()
        other.push(contribution, at_once=True)
    finally:
        other.close()
    found = read(server._metrics.port)
    assert found["globalstep_ps_steps_made_total",] == 1
    assert found["globalstep_ps_contribution_wait_seconds_count",] == 2
    assert found["globalstep_ps_contribution_wait_seconds_sum",] > 0
    assert ("globalstep_step_contributions", step) not in found


def test_a_port_that_is_taken_does_not_stop_anybody(served, caplog):
    server, _ = served
    assert open_port(str(server._metrics.port), object) is None
    assert "There is no port for metrics" in caplog.text
    assert open_port("", object) is None


@pytest.mark.parametrize("text", ["", "x", "1.2.3.4:", "99999", "\u00b2", "9" * 5000])
def test_what_is_no_port_is_refused(text):
    with pytest.raises(InvalidArgumentError, match="PORT or HOST:PORT"):
        metrics_address(text)


def names_of(*collectors):
    found = set()
    for collector in collectors:
        for family in collector.collect():
            suffixes = {
                "counter": ("_total",),
                "histogram": ("_bucket", "_sum", "_count"),
                "summary": ("_sum", "_count"),
            }.get(family.type, ("",))
            found.update(family.name + suffix for suffix in suffixes)
    return found


def test_the_dashboard_asks_for_metrics_that_exist():
    full = pb.StatusReply(
        load=pb.Load(save_age_secs=0),
        statistics=pb.Statistics(staleness=[1, 2]),
        policy=pb.RunPolicy(staleness="wait"),
        open_steps=[pb.OpenStep(step="global_step", waits_for={"/job:worker/task:1": ""})],
    )
    existing = names_of(PSCollector(lambda: full)) | {"process_resident_memory_bytes"}
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = {name for query in queries for name in re.findall(r"\b(?:globalstep|process)_\w+", query)}
    assert len(queries) >= 14
    assert not asked - existing
    # Nothing that is told is left out without a reason.
    assert {name for name in existing if name.startswith("globalstep_worker_")} - asked == {
        "globalstep_worker_silent_seconds",
        # Of few runs.
        "globalstep_worker_lead",
        "globalstep_worker_waited_seconds",
    }
    page = (DASHBOARD.parents[2] / "docs" / "status.md").read_text()
    told = set(re.findall(r"`(globalstep_\w+)`", page))
    # Of a histogram and of a summary the page names the family.
    families = {name: re.sub("_(bucket|sum|count)$", "", name) for name in existing if name.startswith("globalstep_")}
    assert {name if name in told else family for name, family in families.items()} == told
    assert all(query.count("(") == query.count(")") for query in queries)


@pytest.mark.processes
def test_a_process_with_json_lines_and_a_metrics_port():
    environ = {**os.environ, "GLOBALSTEP_METRICS_PORT": "0", "GLOBALSTEP_LOG_FORMAT": "json"}
    process = subprocess.Popen(
        [sys.executable, "-m", "globalstep.ps", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    )
    try:
        assert process.stdout.readline().startswith("serving on ")
        lines = [json.loads(process.stderr.readline()) for _ in range(2)]
        assert [line["level"] for line in lines] == ["INFO", "INFO"]
        (port,) = re.findall(r":(\d+)/metrics", lines[0]["message"])
        assert lines[1]["message"].startswith("PS task serves on 127.0.0.1:")
        assert lines[1]["pid"] == process.pid
        assert read(port)["globalstep_ps_state",] == 1
    finally:
        process.kill()
        process.communicate()


def test_an_unknown_log_format_is_refused():
    environ = {**os.environ, "GLOBALSTEP_LOG_FORMAT": "xml"}
    done = subprocess.run(
        [sys.executable, "-m", "globalstep.ps"], capture_output=True, text=True, env=environ, timeout=60
    )
    assert done.returncode == 2
    assert "'xml'" in done.stderr
