"""`globalstep status` and `globalstep where`: what readings say, and how it is drawn."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import types
import typing
from collections.abc import Mapping, Sequence

import pytest
from rich.console import Console

from globalstep.deploy import cli
from globalstep.deploy.status import cli as status_cli
from globalstep.deploy.status import cluster_status
from globalstep.deploy.status.cluster_status import read_cluster
from globalstep.deploy.status.view import draw_status
from globalstep.deploy.status.where import draw_where, placed_variables
from globalstep.errors import UnavailableError
from globalstep.proto import globalstep_pb2 as pb


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


def test_who_waits_for_slower_workers_is_shown_where_the_policy_has_them_wait():
    replies = [reply(policy=pb.RunPolicy(staleness="wait", max_staleness=2)), reply(shard=1)]
    replies[0].clients[0].lead, replies[0].clients[0].waited_secs = 3, 4.25
    status = read_cluster(["a:1", "b:2"], replies)
    assert (status.workers[0].lead, status.workers[0].waited_secs) == (3, 4.25)
    assert re.search(r"SILENT +AHEAD +WAITS", drawn(draw_status(status)))
    assert re.search(r"3 +4\.2 s$", drawn(draw_status(status)), re.MULTILINE)
    assert "AHEAD" not in drawn(draw_status(read_cluster(["a:1", "b:2"], two(12.0, 300, 80))))


def test_who_waits_for_whom_is_said_of_steps_that_workers_make_together():
    before, now = (two(10.0, 100, 40), two(12.0, 102, 80))
    before[0].statistics.MergeFrom(pb.Statistics(contributions=8, made=2, waited=8, waited_secs=4.0))
    now[0].statistics.MergeFrom(
        pb.Statistics(contributions=16, late=1, made=4, waited=16, waited_secs=6.0, lead_waits=3, lead_wait_secs=1.25)
    )
    awaited = {
        "/job:worker/task:1": "which was heard of 9 s ago",
        "client x\x1b[2J": "which contributed 3 s ago",
    }
    now[0].open_steps.add(step="global_step", base=102, contributions=2, wanted=4, open_secs=5.04, waits_for=awaited)
    found = read_cluster(["a:1", "b:2"], now, before)
    together = found.together
    assert (together.contributions, together.late, together.made, together.wait_secs) == (16, 1, 4, 0.25)
    (step,) = together.open
    assert (step.value, step.contributions, step.wanted, step.waits_for[0].who) == (102, 2, 4, "/job:worker/task:1")
    text = drawn(draw_status(found))
    assert "contributions: 16, 1 late; 4 steps made of them; one waits 0.250 s for its step, on average" in text
    assert "global_step 103 has 2 of 4 contributions, for 5.0 s; waits for worker:1, which was heard of 9 s ago" in text
    assert "waits for slower workers: 3, 1.2 s together" in text
    assert "\x1b" not in text
    as_json = json.loads(json.dumps(found.as_json()))
    as_json.pop("format")
    assert as_declared(as_json, cluster_status.ClusterStatus)
    assert "contributions" not in drawn(draw_status(read_cluster(["a:1", "b:2"], two(12.0, 300, 80))))


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
    save = pb.Load(save_age_secs=75, save_steps={"global_step": 200})
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


@pytest.mark.parametrize("command", ["status", "where"])
@pytest.mark.parametrize("address", ["foo", "127.0.0.1", "localhost:abc", f"localhost:{1 << 16}", "localhost:-1"])
def test_what_is_no_address_is_said_in_a_line(command, address, capsys):
    assert cli.main([command, address]) == 2
    assert capsys.readouterr().err == (
        f'globalstep {command}: The address of a PS task is "host:port" with a port up to 65535, not {address!r}, '
        "and there is no directory of that name.\n"
    )


def test_queues_that_tasks_share_are_listed():
    info = pb.QueueInfo(
        name="done_queue0", kind="FIFOQueue", size=3, capacity=8, bytes=66, entering=1, leaving=2, kept=1
    )
    endless = pb.QueueInfo(name="unrolls\x1b[2J", kind="FIFOQueue", capacity=-1, closed=True)
    replies = [reply(queues=[info]), pb.StatusReply(state=pb.STATE_VACANT, queues=[endless])]
    status = read_cluster(["a:1", "b:2"], replies)
    one, two = status.queues
    assert (one.name, one.address, one.size, one.capacity, one.nbytes, one.kept) == ("done_queue0", "a:1", 3, 8, 66, 1)
    assert (one.producers, one.consumers, one.closed) == (1, 2, False)
    assert (two.address, two.capacity, two.closed) == ("b:2", None, True)
    console = Console(width=120, file=io.StringIO())
    console.print(draw_status(status))
    shown = console.file.getvalue()
    assert re.search(r"done_queue0 +a:1 +3 of 8 +66 B +1 +1 +2", shown)
    assert ", closed" in shown
    assert "\x1b[2J" not in shown
    assert [queue["name"] for queue in status.as_json()["queues"]] == ["done_queue0", endless.name]
