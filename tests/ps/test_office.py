from dataclasses import replace

import pytest

from globalstep.clock import ManualClock
from globalstep.errors import AbortedError
from globalstep.process_place import Process
from globalstep.ps.office import Claim, Office


@pytest.fixture
def clock():
    return ManualClock(1000.0)


@pytest.fixture
def office(clock):
    return Office(clock)


def test_one_of_many_gets_an_office_that_is_due(office, clock):
    assert office.claim(Claim("chief", "/job:chief/task:0", 0.0))
    clock.advance(9.9)
    assert not office.claim(Claim("one", "", 10.0))
    clock.advance(0.2)
    assert [office.claim(Claim(name, "", 10.0)) for name in ("one", "two", "three", "one")] == [
        True,
        False,
        False,
        True,
    ]
    assert office.view().holder == "one"


def test_signs_of_life_keep_the_office(office, clock):
    office.claim(Claim("chief", "", 0.0))
    term = office.view().term
    for _ in range(10):
        clock.advance(9.0)
        assert office.sign("chief", "", term)
        assert not office.claim(Claim("one", "", 10.0))


def test_one_that_was_replaced_is_told_so_and_refused(office, clock):
    office.claim(Claim("chief", "/job:chief/task:0", 0.0))
    old = office.view().term
    clock.advance(20.0)
    assert office.claim(Claim("one", "/job:worker/task:0", 10.0))
    assert not office.sign("chief", "/job:chief/task:0", old)
    with pytest.raises(AbortedError, match="/job:worker/task:0 acts as chief"):
        office.check(old)
    office.check(office.view().term)
    office.check(0)
    assert not office.claim(Claim("chief", "/job:chief/task:0", 10.0))


def test_an_office_that_was_left_is_free_at_once(office):
    office.claim(Claim("chief", "", 0.0))
    office.leave("another")
    assert not office.claim(Claim("one", "", 10.0))
    office.leave("chief")
    assert office.claim(Claim("one", "", 10.0))


AGAIN = Claim("chief again", "/job:chief/task:0", 10.0)


def test_the_next_process_of_the_chiefs_task_succeeds_it_once_it_gives_no_sign_of_life(office, clock):
    office.claim(Claim("chief", "/job:chief/task:0", 0.0))
    before = office.view().term
    assert not office.claim(AGAIN)
    assert office.contests(AGAIN)
    clock.advance(1.0)
    office.sign("chief", "/job:chief/task:0", before)
    clock.advance(2.4)
    assert not office.claim(AGAIN)
    clock.advance(0.2)
    assert office.claim(AGAIN)
    assert office.view().term > before
    assert "had been silent for 3 s" in office.view().why


def test_a_holder_that_was_seen_to_be_gone_is_not_waited_for(office):
    office.claim(Claim("chief", "/job:chief/task:0", 0.0))
    assert not office.claim(replace(AGAIN, gone="another"))
    assert office.claim(replace(AGAIN, gone="chief"))


def test_the_same_process_has_the_office_already(office):
    here, there = Process("h", 1, "p", "1"), Process("h", 2, "p", "1")
    office.claim(Claim("chief", "", process=here))
    assert not office.claim(Claim("another", "", process=there))
    assert office.claim(Claim("again", "", process=here))


def test_two_chiefs_that_would_not_wait_do_not_take_the_office_from_each_other(office, clock):
    first, second = Claim("one", "/job:worker/task:0"), Claim("two", "/job:worker/task:1", configured=True)
    assert office.claim(replace(first, configured=True))
    for _ in range(5):
        clock.advance(1.0)
        office.sign("one", "/job:worker/task:0", office.view().term)
        assert not office.claim(second)
        assert office.contests(second)
    assert office.claim(replace(second, take_over=True))
    assert "GLOBALSTEP_TAKE_OVER" in office.view().why


def test_a_candidate_that_would_wait_does_not_contest_the_office(office):
    office.claim(Claim("chief", "/job:chief/task:0", configured=True))
    assert not office.contests(Claim("one", "/job:worker/task:0", 10.0))


def test_where_there_was_no_chief_its_time_runs_from_the_first_claim(office, clock):
    clock.advance(3600.0)
    assert not office.claim(Claim("one", "", 10.0))
    clock.advance(10.0)
    assert office.claim(Claim("two", "", 10.0))
    assert not office.claim(Claim("the chief", "", 10.0, configured=True))


def test_the_configured_chief_is_given_an_office_at_once_that_nobody_has_held(office):
    assert not office.claim(Claim("one", "", 10.0))
    assert office.claim(Claim("the chief", "", 10.0, configured=True))


def test_a_task_that_was_started_again_learns_of_the_chief_from_its_sign(clock):
    before = Office(clock)
    before.claim(Claim("chief", "", 0.0))
    term = before.view().term
    clock.advance(1.0)
    after = Office(clock)
    assert not after.claim(Claim("one", "", 10.0))
    assert after.sign("chief", "", term)
    clock.advance(9.5)
    assert not after.claim(Claim("one", "", 10.0))
    clock.advance(1.0)
    assert after.claim(Claim("one", "", 10.0))
    assert after.view().term > term
    assert not after.sign("chief", "", term)


def test_a_clock_set_back_gives_no_smaller_term():
    before = Office(ManualClock(5000.0))
    before.claim(Claim("chief", "", 0.0))
    term = before.view().term
    after = Office(ManualClock(1000.0))
    assert after.claim(Claim("next", "", 0.0))
    assert after.view().term < term  # nobody has told it
    after.adopt(term)
    # Who has the smaller one is told that there is a greater one, and asks anew.
    assert not after.sign("next", "", after.view().term - 1)
    assert after.view().term == term
    assert after.claim(Claim("next", "", 0.0))
    assert after.view().term == term + 1
    assert not after.sign("chief", "", term)
    with pytest.raises(AbortedError, match=f"term {term}"):
        after.check(term)


def test_a_sleeper_is_no_chief_of_a_task_that_has_heard_of_a_later_term():
    office = Office(ManualClock(1000.0))
    office.adopt(100 << 40)
    assert not office.sign("sleeper", "", 99 << 40)
    assert office.sign("chief", "", 100 << 40)
    office.adopt(1 << 63)  # nobody's: no term could be above it
    assert office.sign("chief", "", 100 << 40)
