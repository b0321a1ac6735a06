"""The table of push ids stays bounded, whatever comes and goes (rung 1 and 2)."""

from __future__ import annotations

import gc
import os
import random
import tracemalloc

import pytest
from counting_run import STEP, initialize, step_push

from globalstep.errors import AbortedError, ResourceExhaustedError
from globalstep.ps.ledger.ledger import EntryKind
from globalstep.ps.ledger.push_table import LIMIT_CLIENTS, WINDOW, PushTable
from globalstep.ps.local import LocalPS
from globalstep.ps.members.presence import GONE_SECS
from globalstep.ps.shard import events
from globalstep.ps.shard.layouts import PushParts
from globalstep.runtime.clock import ManualClock
from globalstep.wire.declarations import Op, OpKind, Outcome, OutcomeKind, PushId, VariableDecl
from globalstep.worker.client.client import ClusterClient


def recorded(table, client, sequence=1):
    return table.recorded(PushId(client, sequence)) is not None


@pytest.fixture
def table():
    found = PushTable()
    for client in "abc":
        found.record(PushId(client, 1), Outcome(OutcomeKind.ACCEPTED, 1))
    return found


def refused(table, client, sequence=1):
    with pytest.raises(AbortedError, match=f"older than the {WINDOW}"):
        table.recorded(PushId(client, sequence))


def test_what_became_of_pushes_is_forgotten_at_the_second_checkpoint_without_their_client(table):
    table.forget_gone({"a"}, {"b"}, 0.0)
    assert recorded(table, "b")
    table.forget_gone({"a"}, {"b"}, 0.0)
    assert recorded(table, "a")
    assert recorded(table, "c")  # keeps no lease: nobody knows that it is gone
    # It is never taken for new.
    refused(table, "b")
    assert not recorded(table, "b", 2)


def test_who_comes_back_in_between_is_remembered(table):
    table.forget_gone({"a"}, {"b", "c"}, 0.0)
    table.record(PushId("b", 2), Outcome(OutcomeKind.ACCEPTED, 2))
    table.forget_gone({"a", "c"}, {"b"}, 0.0)
    assert recorded(table, "b")
    table.forget_gone({"a"}, {"b", "c"}, 0.0)
    refused(table, "b")
    assert recorded(table, "c")


def test_who_left_is_refused_also_after_a_restore(table):
    table.departed("a")
    refused(table, "a")
    restored = PushTable.load(table.copied()())
    refused(restored, "a")
    # What clients of the life before had under way nobody asks for.
    restored.end_of_life()
    restored.forget_gone({"b"}, set(), 0.0)
    restored.forget_gone({"b"}, set(), 0.0)
    assert recorded(restored, "b")
    refused(restored, "c")


def test_of_those_who_left_the_last_numbers_are_remembered(table):
    for number in range(LIMIT_CLIENTS + 10):
        table.record(PushId(f"n{number}", 1), Outcome(OutcomeKind.ACCEPTED, 1))
        table.departed(f"n{number}")
    over = table.forget_gone({"a"}, set(), 0.0)
    assert over == [f"n{number}" for number in range(10)]
    refused(table, "n10")
    assert recorded(table, "a")
    assert recorded(table, "b")


def test_who_was_silent_only_for_a_while_hears_of_its_last_pushes_however_many_they_are(table):
    silent = [f"n{number}" for number in range(2 * LIMIT_CLIENTS)]
    for sequence in range(1, 11):
        for name in silent:
            table.record(PushId(name, sequence), Outcome(OutcomeKind.ACCEPTED, 1))
    for now in (0.0, 20.0, GONE_SECS):
        assert not table.forget_gone({"a"}, set(), now)
    for name in silent:
        assert recorded(table, name, 10)
    refused(table, silent[0])  # most of them keep the last few only
    assert recorded(table, silent[-1])
    # No session tries so long. What kept no lease goes then as well.
    over = table.forget_gone({"a"}, set(), GONE_SECS + 1.0)
    assert len(over) == LIMIT_CLIENTS + 2
    assert recorded(table, "a")


def test_who_comes_back_after_a_long_time_counts_as_here_again(table):
    table.forget_gone({"a"}, set(), 0.0)
    table.record(PushId("b", 2), Outcome(OutcomeKind.ACCEPTED, 2))
    for now in (GONE_SECS + 1.0, GONE_SECS + 2.0):
        table.forget_gone({"a"}, set(), now)
    assert recorded(table, "b")
    refused(table, "c")


def test_a_full_table_refuses_who_is_new_by_name_and_nobody_else(monkeypatch):
    monkeypatch.setattr("globalstep.ps.ledger.push_table.MOST_CLIENTS", 20)
    monkeypatch.setattr("globalstep.ps.ledger.push_table.LIMIT_CLIENTS", 5)
    clock = ManualClock()
    shard = LocalPS(1, clock=clock).controls[0].handler.shard
    shard.handle(events.Begin(1, shard=0, shards=1, sequencer=0, owner="chief", opened=True))
    shard.handle(events.Declare(1, "chief", [VariableDecl("global_step", "int64", (), is_step=True)], []))

    def push(client, sequence=1):
        parts = PushParts([Op(OpKind.ASSIGN, "global_step", fill=0.0)] if client == "chief" else [])
        return shard.handle(events.Push(1, PushId(client, sequence), parts, () if parts.ops else STEP, (), {})).outcome

    push("chief")
    for number in range(19):
        push(f"w{number}")
    with pytest.raises(ResourceExhaustedError, match=r"20 clients.*w-new") as caught:
        push("w-new")
    assert caught.value.retry_secs > 0
    assert push("w0").duplicate
    assert push("w1", 2).steps == {"global_step": 20}
    # There is room again when the silent ones are gone for good.
    clock.advance(GONE_SECS + 1.0)
    assert push("w-new").kind is OutcomeKind.ACCEPTED


@pytest.mark.parametrize("shards", [1, pytest.param(2, marks=pytest.mark.long)])
def test_two_thousand_workers_behind_a_switch_that_was_down_during_saves(shards):
    """None of the pushes whose answer was lost is applied twice, and every worker is told what became of its own."""
    clock = ManualClock()
    ps = LocalPS(shards, clock=clock)
    chief = ClusterClient(ps.transports(), rng=random.Random(1), clock=clock, member=False)
    chief.heartbeat.beat()
    initialize(chief)
    held = [control.handler.shard for control in ps.controls]
    sequencer = held[-1]
    incarnation, others = sequencer.view().incarnation, range(shards - 1)
    ids = [PushId(f"w{number}", 3) for number in range(2000)]

    def push(push_id):
        for shard in held[:-1]:
            shard.handle(events.Stage(incarnation, push_id, PushParts()))
        admitted = sequencer.handle(events.Push(incarnation, push_id, PushParts(), STEP, (), {}, others))
        for at, entries in admitted.pending.items():
            held[at].handle(events.Commit(incarnation, push_id, entries))
        return admitted.outcome

    for push_id in ids:
        for shard in held:
            shard.handle(events.Heartbeat(push_id.client, "", 15.0))
        push(push_id)
    # The answers are lost; leases run out while the chief, on this side of the switch, saves.
    for _ in range(3):
        clock.advance(7.0)
        chief.heartbeat.beat()
        with chief.snapshot():
            pass
    assert all(push(push_id).duplicate for push_id in ids)
    assert chief.global_steps() == {"global_step": len(ids)}
    chief.close()


@pytest.mark.long
@pytest.mark.parametrize(
    ("leave", "shards"),
    [
        pytest.param(True, 1, id="that leave-1"),
        pytest.param(False, 2, id="that die-2"),
        pytest.param(True, 2, id="that leave-2", marks=pytest.mark.full_matrix),
        pytest.param(False, 1, id="that die-1", marks=pytest.mark.full_matrix),
    ],
)
def test_a_long_job_with_thousands_of_short_lived_clients_stays_bounded(shards, leave, monkeypatch):
    monkeypatch.setattr("globalstep.ps.ledger.push_table.LIMIT_CLIENTS", 100)
    clock = ManualClock()
    ps = LocalPS(shards, clock=clock)
    held = [control.handler.shard for control in ps.controls]
    chief = ClusterClient(ps.transports(), rng=random.Random(1), clock=clock, member=False)
    initialize(chief)
    sizes, dumps = [], []
    for turn in range(1500):
        client = ClusterClient(ps.transports(), rng=random.Random(turn), clock=clock, member=False)
        client.heartbeat.beat()
        client.refresh()
        client.push(step_push())
        if leave:
            client.close()
        clock.advance(1.0)
        if turn % 50 == 49:
            with chief.snapshot() as cut:
                dumps.append(len(cut.ledger))
            sizes.append([len(shard.now.replies.by_client) + len(shard.members.presence._leases) for shard in held])
            sizes[-1].append(len(held[shards - 1].now.ledger.table))
    assert chief.global_steps() == {"global_step": 1500}
    assert max(map(max, sizes)) < 1700, sizes
    assert max(dumps) < 120_000, dumps
    assert max(dumps[15:]) <= 1.05 * max(dumps[10:15]), dumps
    chief.close()


@pytest.mark.long
@pytest.mark.parametrize("end", ["leave", "die"])
def test_short_lives_of_clients_leave_nothing_that_grows(end, monkeypatch):
    """A worker that is started, pushes twice and goes, again and again for months; `make nightly` has a million."""
    lives = int(os.environ.get("GLOBALSTEP_SHORT_LIVES", "1000"))
    if lives < 10_000:  # what is remembered of clients that went is full sooner
        monkeypatch.setattr("globalstep.ps.ledger.push_table.LIMIT_CLIENTS", 100)
    clock = ManualClock()
    shard = LocalPS(1, clock=clock).controls[0].handler.shard
    shard.handle(events.Begin(1, shard=0, shards=1, sequencer=0, owner="chief", opened=True))
    shard.handle(events.Declare(1, "chief", [VariableDecl("global_step", "int64", (), is_step=True)], []))
    shard.handle(
        events.Push(1, PushId("chief", 1), PushParts([Op(OpKind.ASSIGN, "global_step", fill=0.0)]), (), (), {})
    )
    sizes = []
    gc.collect()
    tracemalloc.start()
    for life in range(lives):
        client = f"client-{life}"
        shard.handle(events.Heartbeat(client, f"/job:worker/task:{life % 50}", 15.0))
        for sequence in (1, 2):
            shard.handle(events.Push(1, PushId(client, sequence), PushParts(), STEP, (), {}))
        if end == "leave":
            shard.handle(events.Leave(client))
        clock.advance(5.0)
        shard.handle(events.Heartbeat("chief", "/job:chief/task:0", 15.0))
        shard.members.find_losses()
        if life % (lives // 20) == 0:
            cut = PushId("chief", 2 + life)
            shard.handle(events.Push(1, cut, PushParts(), (), (), {}, kind=EntryKind.SNAPSHOT))
            shard.handle(events.Release(1, cut))
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    # Once all that is remembered of clients that went is full, it stays as large.
    settled = sizes[len(sizes) // 4 : len(sizes) // 2]
    assert max(sizes[len(sizes) // 2 :]) < 1.1 * max(settled), sizes
    assert shard.view().steps == {"global_step": 2 * lives}
