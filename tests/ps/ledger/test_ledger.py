"""The sequencer's book, as a pure state machine (rung 1)."""

from __future__ import annotations

import pytest

from globalstep.errors import AbortedError, InvalidArgumentError, NotFoundError
from globalstep.ps.ledger.ledger import EntryKind, Ledger
from globalstep.ps.ledger.push_table import WINDOW
from globalstep.wire.declarations import Increment, OutcomeKind, PushId, StopLimit

STEP = [Increment("global_step")]


def make(shards: int = 1) -> Ledger:
    ledger = Ledger(shards, 0)
    ledger.declare_step("global_step")
    return ledger


def admit(ledger: Ledger, client: str, sequence: int, participants: tuple[int, ...] = (0,), increments=STEP):
    return ledger.admit(PushId(client, sequence), EntryKind.PUSH, participants, increments, (), 0)


def test_every_push_gets_an_index_of_its_own_and_moves_the_step():
    ledger = make()
    outcomes = [admit(ledger, client, 1) for client in "abc"]
    assert [outcome.index for outcome in outcomes] == [1, 2, 3]
    assert [outcome.steps["global_step"] for outcome in outcomes] == [1, 2, 3]
    assert ledger.visible == {"global_step": 3}


def test_a_retry_gets_the_recorded_outcome_and_changes_nothing():
    ledger = make()
    first = admit(ledger, "a", 1)
    admit(ledger, "b", 1)
    again = ledger.recorded(PushId("a", 1))
    assert again is not None
    assert again.duplicate
    assert (again.kind, again.index, again.steps) == (first.kind, first.index, first.steps)
    assert ledger.steps == {"global_step": 2}


def test_a_number_older_than_the_window_is_refused_not_guessed():
    ledger = make()
    for sequence in range(1, WINDOW + 3):
        admit(ledger, "a", sequence)
    with pytest.raises(AbortedError, match=r"older than the 64"):
        ledger.recorded(PushId("a", 1))
    assert ledger.recorded(PushId("a", 3)) is not None
    assert ledger.recorded(PushId("a", WINDOW + 3)) is None


def test_a_departed_clients_numbers_are_never_new_again():
    ledger = make()
    admit(ledger, "a", 1)
    ledger.table.departed("a")
    with pytest.raises(AbortedError):
        ledger.recorded(PushId("a", 1))


@pytest.mark.parametrize("limit", [StopLimit("global_step", last_step=2), StopLimit("global_step", num_steps=2)])
def test_no_push_passes_the_limit(limit):
    ledger = make()
    assert ledger.set_limit(limit) == 2
    assert not ledger.over_limit(STEP)
    admit(ledger, "a", 1)
    admit(ledger, "a", 2)
    assert ledger.limit_reached()
    assert ledger.over_limit(STEP)
    assert not ledger.over_limit([])
    outcome = ledger.refuse(PushId("a", 3), OutcomeKind.REFUSED_DONE)
    assert (outcome.index, outcome.steps) == (0, {"global_step": 2})
    assert ledger.recorded(PushId("a", 3)).kind is OutcomeKind.REFUSED_DONE


def test_the_push_that_steps_over_the_limit_is_the_last():
    """As in TensorFlow, where training goes on until the step is at the limit or beyond."""
    ledger, eight = make(), [Increment("global_step", 8)]
    ledger.set_limit(StopLimit("global_step", last_step=20))
    for number in (1, 2, 3):
        assert not ledger.over_limit(eight)
        assert not ledger.limit_reached()
        admit(ledger, "a", number, increments=eight)
    assert ledger.steps == {"global_step": 24}
    assert ledger.limit_reached()
    assert ledger.over_limit(eight)
    assert ledger.over_limit(STEP), "nothing moves the step any more, however little"


def test_a_limit_counts_from_the_present_step():
    ledger = make()
    admit(ledger, "a", 1)
    assert ledger.set_limit(StopLimit("global_step", num_steps=10)) == 11


def test_unknown_steps_are_refused():
    ledger = make()
    with pytest.raises(NotFoundError, match="G_global_step"):
        ledger.set_limit(StopLimit("G_global_step", last_step=1))
    with pytest.raises(InvalidArgumentError, match="not a step of this run"):
        ledger.check_increments([Increment("w")])


def test_an_increment_is_visible_only_when_every_participant_has_applied_it():
    ledger = make(3)
    admit(ledger, "a", 1, (0, 1, 2))
    admit(ledger, "b", 1, (0, 2))
    assert ledger.visible == {"global_step": 0}
    ledger.raise_floor(2, 2)
    assert ledger.visible == {"global_step": 0}
    ledger.raise_floor(1, 1)
    assert ledger.visible == {"global_step": 2}


def test_a_later_push_is_not_visible_before_an_earlier_one():
    ledger = make(2)
    admit(ledger, "a", 1, (0, 1))
    admit(ledger, "b", 1, (0,))
    assert ledger.visible == {"global_step": 0}
    ledger.raise_floor(1, 1)
    assert ledger.visible == {"global_step": 2}


def test_entries_form_a_chain_for_each_participant():
    ledger = make(3)
    admit(ledger, "a", 1, (1, 2))
    admit(ledger, "b", 1, (2,))
    admit(ledger, "c", 1, (1,))
    assert [(e.index, e.previous) for e in ledger.pending(1, 3)] == [(1, 0), (3, 1)]
    assert [(e.index, e.previous) for e in ledger.pending(2, 3)] == [(1, 0), (2, 1)]
    assert [e.index for e in ledger.pending(2, 1)] == [1]
    ledger.raise_floor(2, 1)
    assert [e.index for e in ledger.pending(2, 3)] == [2]


def test_old_and_impossible_floors():
    ledger = make(2)
    admit(ledger, "a", 1, (0, 1))
    ledger.raise_floor(1, 1)
    ledger.raise_floor(1, 0)
    assert ledger.visible == {"global_step": 1}
    with pytest.raises(InvalidArgumentError):
        ledger.raise_floor(1, 2)
    with pytest.raises(InvalidArgumentError):
        ledger.raise_floor(2, 1)


def test_what_is_applied_is_visible_and_kept_for_its_shard_no_more():
    ledger = make(2)
    admit(ledger, "a", 1, (0, 1))
    admit(ledger, "b", 1, (0, 1))
    assert [entry.index for entry in ledger.pending(1, 2)] == [1, 2]
    assert ledger.raise_floor(1, 1)
    assert not ledger.raise_floor(1, 1)
    assert ledger.visible == {"global_step": 1}
    assert list(ledger.floors) == [2, 1]
    assert [entry.index for entry in ledger.pending(1, 2)] == [2]
    assert ledger.raise_floor(1, 2)
    assert ledger.visible == {"global_step": 2}
    assert not list(ledger.pending(1, 2))


def test_settling_fences_a_push_that_was_never_admitted():
    ledger = make(2)
    admit(ledger, "a", 1, (0, 1))
    entries = ledger.settle([PushId("a", 1), PushId("b", 7)], 1, 0)
    assert [entry.push for entry in entries] == [PushId("a", 1)]
    fenced = ledger.recorded(PushId("b", 7))
    assert fenced is not None
    assert fenced.kind is OutcomeKind.ABANDONED
    assert ledger.steps == {"global_step": 1}


def test_staleness_counts_the_steps_since_the_worker_read():
    ledger = make()
    for sequence in range(1, 6):
        admit(ledger, "a", sequence)
    assert ledger.staleness(STEP, {"global_step": 2}) == 3
    assert ledger.staleness(STEP, {}) is None


def test_a_checkpoint_keeps_the_table_and_the_steps():
    ledger = make(2)
    admit(ledger, "a", 1, (0, 1))
    admit(ledger, "a", 2, (1,))
    loaded = Ledger.load(ledger.dumped_later()(), 3, 1)
    assert (loaded.index, loaded.steps, loaded.visible) == (2, {"global_step": 2}, {"global_step": 2})
    again = loaded.recorded(PushId("a", 2))
    assert again is not None
    assert (again.index, again.duplicate) == (2, True)
    outcome = admit(loaded, "b", 1, (0, 1, 2))
    assert outcome.index == 3
    assert [entry.previous for entry in loaded.pending(2, 3)] == [0], "a restored shard starts with nothing applied"


@pytest.mark.parametrize("dumped", [b"", b"{}", b"[1]", b'{"version": 2}', b'{"version": 1, "index": "x"}'])
def test_what_is_no_ledger_is_refused(dumped):
    with pytest.raises(InvalidArgumentError):
        Ledger.load(dumped, 1, 0)
