import pytest

from globalstep.clock import ManualClock
from globalstep.errors import AbortedError
from globalstep.ps.office import Office


@pytest.fixture
def clock():
    return ManualClock(1000.0)


@pytest.fixture
def office(clock):
    return Office(clock)


def test_one_of_many_gets_an_office_that_is_due(office, clock):
    assert office.claim("chief", "/job:chief/task:0", 0.0)
    clock.advance(9.9)
    assert not office.claim("one", "", 10.0)
    clock.advance(0.2)
    assert [office.claim(name, "", 10.0) for name in ("one", "two", "three", "one")] == [True, False, False, True]
    assert office.view().holder == "one"


def test_signs_of_life_keep_the_office(office, clock):
    office.claim("chief", "", 0.0)
    term = office.view().term
    for _ in range(10):
        clock.advance(9.0)
        assert office.sign("chief", "", term)
        assert not office.claim("one", "", 10.0)


def test_one_that_was_replaced_is_told_so_and_refused(office, clock):
    office.claim("chief", "/job:chief/task:0", 0.0)
    old = office.view().term
    clock.advance(20.0)
    assert office.claim("one", "/job:worker/task:0", 10.0)
    assert not office.sign("chief", "/job:chief/task:0", old)
    with pytest.raises(AbortedError, match="/job:worker/task:0 acts as chief"):
        office.check(old)
    office.check(office.view().term)
    office.check(0)
    assert not office.claim("chief", "/job:chief/task:0", 10.0)


def test_an_office_that_was_left_is_free_at_once(office):
    office.claim("chief", "", 0.0)
    office.leave("another")
    assert not office.claim("one", "", 10.0)
    office.leave("chief")
    assert office.claim("one", "", 10.0)


def test_the_next_process_of_the_chiefs_task_succeeds_it_at_once(office):
    office.claim("chief", "/job:chief/task:0", 0.0)
    before = office.view().term
    assert office.claim("chief again", "/job:chief/task:0", 10.0)
    assert office.view().term > before


def test_where_there_was_no_chief_its_time_runs_from_the_first_claim(office, clock):
    clock.advance(3600.0)
    assert not office.claim("one", "", 10.0)
    clock.advance(10.0)
    assert office.claim("two", "", 10.0)
    assert not office.claim("the chief", "", 10.0, configured=True)


def test_the_configured_chief_is_given_an_office_at_once_that_nobody_has_held(office):
    assert not office.claim("one", "", 10.0)
    assert office.claim("the chief", "", 10.0, configured=True)


def test_a_task_that_was_started_again_learns_of_the_chief_from_its_sign(clock):
    before = Office(clock)
    before.claim("chief", "", 0.0)
    term = before.view().term
    clock.advance(1.0)
    after = Office(clock)
    assert not after.claim("one", "", 10.0)
    assert after.sign("chief", "", term)
    clock.advance(9.5)
    assert not after.claim("one", "", 10.0)
    clock.advance(1.0)
    assert after.claim("one", "", 10.0)
    assert after.view().term > term
    assert not after.sign("chief", "", term)


def test_a_clock_set_back_gives_no_smaller_term():
    before = Office(ManualClock(5000.0))
    before.claim("chief", "", 0.0)
    term = before.view().term
    after = Office(ManualClock(1000.0))
    assert after.claim("next", "", 0.0)
    assert after.view().term < term  # nobody has told it
    after.adopt(term)
    # Who has the smaller one is told that there is a greater one, and asks anew.
    assert not after.sign("next", "", after.view().term - 1)
    assert after.view().term == term
    assert after.claim("next", "", 0.0)
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
