"""`globalstep status`: what readings say, and how it is drawn."""

from __future__ import annotations

import io
import json
import re

import pytest
from rich.console import Console

from globalstep.deploy import cli
from globalstep.deploy.status.view import Reading, draw_status, draw_variables
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


def drawn(reading, draw=draw_status):
    console = Console(file=io.StringIO(), width=140, record=True)
    console.print(draw(reading))
    return console.export_text()


#: How the lines of a worker and of the two PS tasks end: with what has changed since the earlier reading.
WORKER, FIRST, SECOND = r"worker:0 +80 +%s +0 s", r"a:1 \* .* 3 +%s$", r"b:2 .* 3 +%s$"


def test_rates_are_of_the_time_between_two_readings_by_the_tasks_own_clock():
    reading = Reading(["a:1", "b:2"], two(12.0, 300, 80), two(10.0, 100, 40))
    text = drawn(reading)
    assert "global_step: 300 of 1,000, 100.0 steps/s, 7 s to go" in text
    assert "100.0 pushes/s, staleness 2.00, refused 0, dropped 0, duplicates 0" in text
    assert re.search(WORKER % r"20\.0 +2\.00", text)
    assert re.search(r"a:1 \* +ready +4\.1 kB +100 MB +2 \(64 B\) +3 +100 kB +0 B +100\.0 +25%", text)
    assert re.search(r"b:2 +ready", text)
    assert not reading.problems


def test_one_reading_has_no_rates():
    text = drawn(Reading(["a:1", "b:2"], two(12.0, 300, 80)))
    assert "steps/s" not in text
    assert re.search(WORKER % r"- +3\.00", text)
    assert re.search(FIRST % "- +- +- +-", text, re.MULTILINE)


def test_counters_of_another_life_are_not_compared():
    before = two(10.0, 100, 40)
    before[0].process = "an earlier one"
    text = drawn(Reading(["a:1", "b:2"], two(12.0, 300, 80), before))
    assert "steps/s" not in text
    assert re.search(FIRST % "- +- +- +-", text, re.MULTILINE)
    assert re.search(SECOND % r".* 25%", text, re.MULTILINE)


def test_a_worker_that_has_joined_since_made_all_its_pushes_since():
    before = two(10.0, 100, 40)
    del before[0].clients[:]
    assert re.search(WORKER % r"40\.0 +2\.00", drawn(Reading(["a:1", "b:2"], two(12.0, 300, 80), before)))


def test_who_waits_for_slower_workers_is_shown_where_the_policy_has_them_wait():
    replies = [reply(policy=pb.RunPolicy(staleness="wait", max_staleness=2)), reply(shard=1)]
    replies[0].clients[0].lead, replies[0].clients[0].waited_secs = 3, 4.25
    text = drawn(Reading(["a:1", "b:2"], replies))
    assert re.search(r"SILENT +AHEAD +WAITS", text)
    assert re.search(r"3 +4\.2 s$", text, re.MULTILINE)
    assert "AHEAD" not in drawn(Reading(["a:1", "b:2"], two(12.0, 300, 80)))


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
    text = drawn(Reading(["a:1", "b:2"], now, before))
    assert "contributions: 16, 1 late; 4 steps made of them; one waits 0.250 s for its step, on average" in text
    assert "global_step 103 has 2 of 4 contributions, for 5.0 s; waits for worker:1, which was heard of 9 s ago" in text
    assert "waits for slower workers: 3, 1.2 s together" in text
    assert "\x1b" not in text
    assert "contributions" not in drawn(Reading(["a:1", "b:2"], two(12.0, 300, 80)))


def test_who_does_not_answer_is_named_with_the_reason():
    reading = Reading(["a:1", "b:2"], [reply(), UnavailableError("b:2: connection refused")])
    assert reading.problems == ["b:2 does not answer: b:2: connection refused"]
    assert re.search(r"b:2 +no answer", drawn(reading))


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
    assert any(problem in text for text in Reading(["a:1", "b:2"][: len(replies)], replies).problems)


def test_json_has_the_names_of_the_protocol():
    found = json.loads(json.dumps(Reading(["a:1", "b:2"], [reply(), UnavailableError("gone")]).as_json()))
    assert (found["format"], found["problems"]) == (2, ["b:2 does not answer: gone"])
    one, two = found["tasks"]
    assert (one["address"], one["state"], one["steps"]) == ("a:1", "STATE_READY", {"global_step": "100"})
    assert one["clients"][0]["pushes"] == "40"
    assert two == {"address": "b:2", "error": "gone"}


def test_the_last_save_is_said():
    replies = two(12.0, 300, 80)
    replies[0].load.MergeFrom(pb.Load(save_age_secs=75, save_steps={"global_step": 200}))
    assert "last checkpoint: global_step 200, 1 min 15 s ago" in drawn(Reading(["a:1", "b:2"], replies))
    text = drawn(Reading(["[::1]:5"], [UnavailableError("refused [x]")]))
    assert "! [::1]:5 does not answer: refused [x]" in text


def test_nothing_is_shortened_on_a_narrow_terminal():
    addresses = ["ps-0.training.example.internal:2222", "b:2"]
    console = Console(file=io.StringIO(), width=80, record=True)
    console.print(draw_status(Reading(addresses, two(12.0, 300, 80), two(10.0, 100, 40))))
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
    text = drawn(Reading(["a:1", "b:2"], parts), draw_variables)
    assert re.search(r"table +0,1 \(2 parts\) +120 B +float32 +\[10, 3\] +no +6 +-", text)
    assert "1 Variables, 120 B" in text


@pytest.mark.parametrize("address", ["foo", "127.0.0.1", "localhost:abc", f"localhost:{1 << 16}", "localhost:-1"])
def test_what_is_no_address_is_said_in_a_line(address, capsys):
    assert cli.main(["status", address]) == 2
    assert capsys.readouterr().err == (
        f'globalstep status: The address of a PS task is "host:port" with a port up to 65535, not {address!r}, '
        "and there is no directory of that name.\n"
    )


def test_queues_that_tasks_share_are_listed():
    info = pb.QueueInfo(
        name="done_queue0", kind="FIFOQueue", size=3, capacity=8, bytes=66, entering=1, leaving=2, kept=1
    )
    endless = pb.QueueInfo(name="unrolls\x1b[2J", kind="FIFOQueue", capacity=-1, closed=True)
    replies = [reply(queues=[info]), pb.StatusReply(state=pb.STATE_VACANT, queues=[endless])]
    shown = drawn(Reading(["a:1", "b:2"], replies))
    assert re.search(r"done_queue0 +a:1 +3 of 8 +66 B +1 +1 +2", shown)
    assert re.search(r"unrolls.*, closed +b:2 +0 +0 B", shown)
    assert "\x1b[2J" not in shown
