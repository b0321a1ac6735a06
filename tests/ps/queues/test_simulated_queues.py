"""Queues that tasks share keep their promises under simulated trouble, and the simulation finds planted bugs."""

from __future__ import annotations

import pytest
from simulated_queues import SimulatedQueues, simulate

from globalstep.ps.queues.queue_store import QueueStore
from globalstep.ps.queues.stored_queue import SlotCall, StoredQueue

SEEDS = 100


@pytest.mark.seeds
def test_queues_keep_their_promises():
    wrong = {seed: found for seed in range(SEEDS) if (found := simulate(seed))}
    assert not wrong, list(wrong.items())[:3]


def test_every_kind_of_trouble_comes():
    runs = [SimulatedQueues(seed) for seed in range(30)]
    for one in runs:
        one.run()
    assert any(one.gone for one in runs)
    assert any(not client.puts and client.got for one in runs for _, client in one.gone)
    assert any(one.loss and one.copies and one.surrender for one in runs)
    assert sum(len(client.got) for one in runs for client in one.clients) > 500


def _enqueues_are_not_remembered(monkeypatch):
    enqueue = StoredQueue.enqueue

    def forgetful(self, place, call, *rest):
        enqueue(self, place, call, *rest)
        if call.over:
            call.over, call.entered = False, 0

    monkeypatch.setattr(StoredQueue, "enqueue", forgetful)


def _what_was_taken_is_not_kept(monkeypatch):
    find = QueueStore._slot_call

    def forgetful(self, queue, call, now):
        mine = find(self, queue, call, now)
        if mine.over and mine.kept:
            queue.release(mine)
        return mine

    monkeypatch.setattr(QueueStore, "_slot_call", forgetful)


def _late_copies_are_carried_out(monkeypatch):
    find = QueueStore._slot_call

    def trusting(self, queue, call, now):
        client = self._clients.get(call.client)
        before = None if client is None else client.slots.get(call.slot)
        if before is not None and call.number < before.number:
            return SlotCall(call.number, call.what, queue, now)
        return find(self, queue, call, now)

    monkeypatch.setattr(QueueStore, "_slot_call", trusting)


def _answers_count_as_taken(monkeypatch):
    settle = QueueStore._settle
    monkeypatch.setattr(QueueStore, "_settle", lambda self, place, before, took: settle(self, place, before, True))


def _what_dead_consumers_had_is_dropped(monkeypatch):
    monkeypatch.setattr(StoredQueue, "put_back", StoredQueue.release)


def _places_outlive_their_clients(monkeypatch):
    def drop(self, place, call):
        self.entering.pop(place, None)

    monkeypatch.setattr(StoredQueue, "give_up", drop)


@pytest.mark.parametrize(
    "plant",
    [
        _enqueues_are_not_remembered,
        _what_was_taken_is_not_kept,
        _late_copies_are_carried_out,
        _answers_count_as_taken,
        _what_dead_consumers_had_is_dropped,
        _places_outlive_their_clients,
    ],
)
def test_planted_bugs_are_found(plant, monkeypatch):
    plant(monkeypatch)
    assert any(simulate(seed) for seed in range(SEEDS)), "no seed found it"
