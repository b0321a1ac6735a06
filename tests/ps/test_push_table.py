"""The table of push ids stays bounded, whatever comes and goes (rung 1 and 2)."""

from __future__ import annotations

import random

import pytest
from counting_run import initialize, step_push

from globalstep.clock import ManualClock
from globalstep.declarations import Outcome, OutcomeKind, PushId
from globalstep.errors import AbortedError
from globalstep.ps.local import LocalPS
from globalstep.ps.push_table import LIMIT_CLIENTS, WINDOW, PushTable
from globalstep.worker.client import ClusterClient


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
    table.forget_gone({"a"}, {"b"})
    assert recorded(table, "b")
    table.forget_gone({"a"}, {"b"})
    assert recorded(table, "a")
    assert recorded(table, "c")  # keeps no lease: nobody knows that it is gone
    # It is never taken for new.
    refused(table, "b")
    assert not recorded(table, "b", 2)


def test_who_comes_back_in_between_is_remembered(table):
    table.forget_gone({"a"}, {"b", "c"})
    table.record(PushId("b", 2), Outcome(OutcomeKind.ACCEPTED, 2))
    table.forget_gone({"a", "c"}, {"b"})
    assert recorded(table, "b")
    table.forget_gone({"a"}, {"b", "c"})
    refused(table, "b")
    assert recorded(table, "c")


def test_who_left_is_refused_also_after_a_restore(table):
    table.departed("a")
    refused(table, "a")
    restored = PushTable.load(table.dump())
    refused(restored, "a")
    # What clients of the life before had under way nobody asks for.
    restored.end_of_life()
    restored.forget_gone({"b"}, set())
    restored.forget_gone({"b"}, set())
    assert recorded(restored, "b")
    refused(restored, "c")


def test_of_those_who_are_not_here_the_last_are_remembered(table):
    for number in range(LIMIT_CLIENTS + 10):
        table.record(PushId(f"n{number}", 1), Outcome(OutcomeKind.ACCEPTED, 1))
    table.record(PushId("c", 2), Outcome(OutcomeKind.ACCEPTED, 1))
    over = table.forget_gone({"a"}, set())
    assert len(table) == LIMIT_CLIENTS + 1
    assert over == ["b", *(f"n{number}" for number in range(11))]
    assert recorded(table, "a")
    assert recorded(table, "c")


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("leave", [True, False], ids=["that leave", "that die"])
def test_a_long_job_with_thousands_of_short_lived_clients_stays_bounded(shards, leave, monkeypatch):
    monkeypatch.setattr("globalstep.ps.push_table.LIMIT_CLIENTS", 100)
    clock = ManualClock()
    ps = LocalPS(shards, clock=clock)
    held = [control.handler.shard for control in ps.controls]
    chief = ClusterClient(ps.lanes(), rng=random.Random(1), clock=clock, member=False)
    initialize(chief)
    sizes, dumps = [], []
    for turn in range(3000):
        client = ClusterClient(ps.lanes(), rng=random.Random(turn), clock=clock, member=False)
        client._heartbeat.beat()
        client.refresh()
        client.push(step_push())
        if leave:
            client.close()
        clock.advance(1.0)
        if turn % 100 == 99:
            with chief.snapshot() as cut:
                dumps.append(len(cut.ledger))
            sizes.append([len(shard._kept) + len(shard.presence._leases) for shard in held])
            sizes[-1].append(len(held[shards - 1]._ledger.table))
    assert chief.global_steps() == {"global_step": 3000}
    assert max(map(max, sizes)) < 1700, sizes
    assert max(dumps) < 100_000, dumps
    assert max(dumps[15:]) <= 1.05 * max(dumps[10:15]), dumps
    chief.close()
