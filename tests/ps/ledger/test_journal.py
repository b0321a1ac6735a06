"""The sequencer's journal of its decisions (rung 1)."""

import numpy as np
import pytest

from globalstep.files.journal_records import NO_STEP, RECORD_DTYPE, EventKind
from globalstep.ps.ledger.journal import Journal
from globalstep.ps.ledger.ledger import EntryKind, Ledger
from globalstep.wire.declarations import Increment, OutcomeKind, PushId, StopLimit

STEP = [Increment("global_step")]


@pytest.fixture
def ledger():
    book = Ledger(1, 0)
    book.declare_step("global_step")
    book.journal = Journal("a life", book, {"c": "/job:worker/task:0"}.get)
    return book


def push(ledger, sequence, increments=STEP, staleness=0, client="c", kind=EntryKind.PUSH):
    return ledger.admit(PushId(client, sequence), kind, (0,), increments, (), staleness)


def rows(part):
    return np.frombuffer(part.records, RECORD_DTYPE)


def test_every_decision_is_written_down(ledger):
    push(ledger, 1, ())
    ledger.assign_step("global_step", 7)
    push(ledger, 2, staleness=3)
    push(ledger, 3, (), kind=EntryKind.SNAPSHOT)
    ledger.set_limit(StopLimit("global_step", last_step=8))
    ledger.refuse(PushId("c", 4), OutcomeKind.REFUSED_DONE, 5)
    ledger.journal.duplicate(PushId("c", 2), ledger.table.recorded(PushId("c", 2)))
    part = ledger.journal.read("", 0, 0, 0, 0)
    assert [tuple(row) for row in rows(part)] == [
        (1, 1, 0, 0, 0, 0, EventKind.PUSH, NO_STEP),
        (1, 1, 7, 0, 0, 0, EventKind.ASSIGNED, 0),
        (2, 2, 8, 1, 0, 3, EventKind.PUSH, 0),
        (3, 3, 0, 0, 0, 0, EventKind.SNAPSHOT, NO_STEP),
        (0, 4, 0, 0, 0, 5, EventKind.REFUSED_DONE, NO_STEP),
        (2, 2, 0, 0, 0, 3, EventKind.DUPLICATE, NO_STEP),
    ]
    assert (part.first, part.end, part.steps) == (0, 6, ["global_step"])
    assert part.clients == [(0, "c", "/job:worker/task:0")]


def test_a_step_that_two_increments_move_has_one_record(ledger):
    ledger.declare_step("other")
    push(ledger, 1, [Increment("global_step"), Increment("other", 5), Increment("global_step", 2)])
    found = rows(ledger.journal.read("", 0, 0, 0, 0))
    told = [(row["kind"], row["by"], row["value"]) for row in found]
    assert told == [(EventKind.PUSH, 3, 3), (EventKind.CARRIED, 5, 5)]


def test_a_reader_goes_on_where_it_was_and_what_it_has_is_freed(ledger):
    for sequence in range(1, 50_001):
        push(ledger, sequence)
    part = ledger.journal.read("", 0, 0, 0, 20_000)
    position, seen = 0, []
    while position < part.end:
        part = ledger.journal.read("a life", position, 1, 0, 20_000)
        assert part.first == position
        assert not part.clients
        seen += rows(part)["index"].tolist()
        position = part.first + len(rows(part))
    assert seen == list(range(1, 50_001))
    assert len(ledger.journal._records) < 20_000 * RECORD_DTYPE.itemsize
    assert ledger.journal.read("a life", 50_000, 1, 0, 0).records == b""


def test_what_must_go_leaves_a_gap():
    book = Ledger(1, 0)
    book.declare_step("global_step")
    book.journal = Journal("a life", book, lambda client: "", limit_records=40_000)
    for sequence in range(1, 70_001):
        push(book, sequence)
    part = book.journal.read("a life", 5, 0, 0, 0)
    assert part.first > 5
    assert rows(part)["index"][0] == part.first + 1
    assert part.end == 70_000


@pytest.mark.parametrize("after", [0, 1, 16_383, 16_384, 30_000, 40_000, 50_000])
def test_in_another_life_a_reader_goes_on_after_the_last_entry_that_it_has(ledger, after):
    for sequence in range(1, 40_001):
        push(ledger, sequence)
    part = ledger.journal.read("an earlier life", 123, 77, after, 0)
    assert part.clients
    assert part.first == min(after, 40_000)
    assert after >= 40_000 or rows(part)["index"][0] == after + 1


def test_a_client_that_is_forgotten_is_told_again(ledger, monkeypatch):
    monkeypatch.setattr("globalstep.ps.ledger.journal._LIMIT_CLIENTS", 2)
    for client in "abca":
        push(ledger, 1 if client != "a" else ledger.index + 1, client=client)
    part = ledger.journal.read("", 0, 0, 0, 0)
    names = {number: client for number, client, _ in part.clients}
    assert [names[number] for number in rows(part)["client"]] == list("abca")


def test_an_incarnation_says_from_which_it_began(ledger):
    ledger.incarnation = 5
    push(ledger, 1)
    restored = Ledger.load(ledger.dumped_later()(), 1, 0)
    part = Journal("b", restored, lambda client: "").read("", 0, 0, 0, 0)
    assert (part.parent, part.begin_index, part.begin_steps) == (5, 1, {"global_step": 1})
