"""The book of open aggregates."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from globalstep.errors import InvalidArgumentError
from globalstep.ps.ledger.aggregates import Aggregates, check_contribution
from globalstep.wire.declarations import Increment

STEP = Increment("step", contributions=3)


def test_a_push_is_a_contribution_by_its_one_increment():
    check_contribution(STEP, [STEP], {"step": 4})
    with pytest.raises(InvalidArgumentError, match="moves one step on, by one; this one moves step by 1, other by 1"):
        check_contribution(STEP, [STEP, Increment("other")], {"step": 4})
    with pytest.raises(InvalidArgumentError, match="does not say from which value"):
        check_contribution(STEP, [STEP], {})
    with pytest.raises(InvalidArgumentError, match="65536 are the most"):
        check_contribution(many := Increment("step", contributions=1 << 20), [many], {"step": 0})


def test_what_closes_needs_an_aggregate_of_its_step():
    book, closing = Aggregates(), Increment("step", contributions=3, closes=True)
    assert book.is_late(closing, "a", 4, 4)
    book.count(STEP, "a", 4, (0,))
    assert not book.is_late(closing, "a", 4, 4)
    assert book.is_late(closing, "a", 4, 5)


def test_contributions_that_do_not_fit_are_refused():
    book = Aggregates()
    book.count(STEP, "a", 4, (0, 1))
    with pytest.raises(InvalidArgumentError, match="made of 2 contributions, by this one, and of 3 by those"):
        book.check(Increment("step", contributions=2), 4, (0, 1))
    with pytest.raises(InvalidArgumentError, match=r"parts on PS tasks \[0\], and those that are there on \[0, 1\]"):
        book.check(STEP, 4, (0,))
    book.check(Increment("step", contributions=2), 5, (0,))


def test_an_image_brings_the_book_back():
    book = Aggregates()
    book.count(Increment("step", contributions=4, most_of_client=2), "a", 4, (0, 1))
    again = Aggregates.of_image(json.loads(json.dumps(book.image())))
    assert again.open("step", 4) == book.open("step", 4)


def test_each_unit_counts_once_whoever_brings_it():
    book, units = Aggregates(), [replace(STEP, unit=number) for number in (1, 2, 3)]
    book.count(units[2], "a", 4, (0,))
    book.count(units[0], "a", 4, (0,))
    late = [[book.is_late(unit, client, 4, 4) for unit in units] for client in ("a", "b")]
    assert late == [[True, False, True]] * 2
    assert [book.is_last(units[1], base) for base in (4, 5)] == [True, False]
    assert book.is_late(replace(STEP, closes=True), "a", 4, 4)
    again = Aggregates.of_image(json.loads(json.dumps(book.image())))
    assert again.image() == book.image()
    assert again.is_late(units[0], "b", 4, 4)
    assert again.count(units[1], "b", 4, (0,)) == 3
