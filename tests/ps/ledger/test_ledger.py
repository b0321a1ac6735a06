"""The sequencer's book, as a pure state machine (rung 1)."""

from __future__ import annotations

import pytest

from globalstep.errors import AbortedError, InvalidArgumentError
from globalstep.ps.ledger.ledger import EntryKind, Ledger
from globalstep.ps.ledger.push_table import WINDOW
from globalstep.wire.declarations import Increment, PushId, StopLimit

STEP = [Increment("global_step")]


def make(shards: int = 1) -> Ledger:
    ledger = Ledger(shards, 0)
    ledger.declare_step("global_step")
    return ledger


def admit(ledger: Ledger, client: str, sequence: int, participants: tuple[int, ...] = (0,), increments=STEP):
    return ledger.admit(PushId(client, sequence), EntryKind.PUSH, participants, increments, (), 0)


def test_a_number_older_than_the_window_is_refused_not_guessed():
    ledger = make()
    for sequence in range(1, WINDOW + 3):
        admit(ledger, "a", sequence)
    with pytest.raises(AbortedError, match=r"older than the 64"):
        ledger.table.recorded(PushId("a", 1))
    assert ledger.table.recorded(PushId("a", 3)) is not None
    assert ledger.table.recorded(PushId("a", WINDOW + 3)) is None


def test_a_limit_counts_from_the_present_step_and_the_push_that_steps_over_it_is_the_last():
    """As in TensorFlow, where training goes on until the step is at the limit or beyond."""
    ledger, eight = make(), [Increment("global_step", 8)]
    admit(ledger, "a", 1, increments=eight)
    assert ledger.set_limit(StopLimit("global_step", num_steps=12)) == 20
    for number in (2, 3):
        assert not ledger.limit_reached()
        assert not ledger.over_limit(eight)
        admit(ledger, "a", number, increments=eight)
    assert ledger.steps == {"global_step": 24}
    assert ledger.limit_reached()
    assert ledger.over_limit(STEP), "nothing moves the step any more, however little"


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


@pytest.mark.parametrize("dumped", [b"", b"{}", b"[1]", b'{"version": 2}', b'{"version": 1, "index": "x"}'])
def test_what_is_no_ledger_is_refused(dumped):
    with pytest.raises(InvalidArgumentError):
        Ledger.load(dumped, 1, 0)
