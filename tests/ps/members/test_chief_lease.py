from dataclasses import replace

import pytest

from globalstep.cluster.process_place import Process
from globalstep.errors import AbortedError
from globalstep.ps.members.chief_lease import ChiefLease, Claim
from globalstep.runtime.clock import ManualClock


@pytest.fixture
def clock():
    return ManualClock(1000.0)


@pytest.fixture
def lease(clock):
    return ChiefLease(clock)


def test_one_of_many_gets_a_lease_that_is_due(lease, clock):
    assert lease.claim(Claim("chief", "/job:chief/task:0", 0.0))
    clock.advance(9.9)
    assert not lease.claim(Claim("one", "", 10.0))
    clock.advance(0.2)
    assert [lease.claim(Claim(name, "", 10.0)) for name in ("one", "two", "three", "one")] == [True, False, False, True]
    assert lease.view().holder == "one"


def test_signs_of_life_keep_the_lease(lease, clock):
    lease.claim(Claim("chief", "", 0.0))
    term = lease.view().term
    for _ in range(10):
        clock.advance(9.0)
        assert lease.sign("chief", "", term)
        assert not lease.claim(Claim("one", "", 10.0))


def test_one_that_was_replaced_is_told_so_and_refused(lease, clock):
    lease.claim(Claim("chief", "/job:chief/task:0", 0.0))
    old = lease.view().term
    clock.advance(20.0)
    assert lease.claim(Claim("one", "/job:worker/task:0", 10.0))
    assert not lease.sign("chief", "/job:chief/task:0", old)
    with pytest.raises(AbortedError, match="/job:worker/task:0 acts as chief"):
        lease.check(old)
    lease.check(lease.view().term)
    lease.check(0)
    assert not lease.claim(Claim("chief", "/job:chief/task:0", 10.0))


def test_a_lease_that_was_left_is_free_at_once(lease):
    lease.claim(Claim("chief", "", 0.0))
    lease.leave("another")
    assert not lease.claim(Claim("one", "", 10.0))
    lease.leave("chief")
    assert lease.claim(Claim("one", "", 10.0))


AGAIN = Claim("chief again", "/job:chief/task:0", 10.0)


def test_the_next_process_of_the_chiefs_task_succeeds_it_once_it_gives_no_sign_of_life(lease, clock):
    lease.claim(Claim("chief", "/job:chief/task:0", 0.0))
    before = lease.view().term
    assert not lease.claim(AGAIN)
    assert lease.contests(AGAIN)
    clock.advance(1.0)
    lease.sign("chief", "/job:chief/task:0", before)
    clock.advance(2.4)
    assert not lease.claim(AGAIN)
    clock.advance(0.2)
    assert lease.claim(AGAIN)
    assert lease.view().term > before
    assert "had been silent for 3 s" in lease.view().why


def test_a_holder_that_was_seen_to_be_gone_is_not_waited_for(lease):
    lease.claim(Claim("chief", "/job:chief/task:0", 0.0))
    assert not lease.claim(replace(AGAIN, gone="another"))
    assert lease.claim(replace(AGAIN, gone="chief"))


def test_the_same_process_has_the_lease_already(lease):
    here, there = Process("h", 1, "p", "1"), Process("h", 2, "p", "1")
    lease.claim(Claim("chief", "", process=here))
    assert not lease.claim(Claim("another", "", process=there))
    assert lease.claim(Claim("again", "", process=here))


def test_two_chiefs_that_would_not_wait_do_not_take_the_lease_from_each_other(lease, clock):
    first, second = Claim("one", "/job:worker/task:0"), Claim("two", "/job:worker/task:1", configured=True)
    assert lease.claim(replace(first, configured=True))
    for _ in range(5):
        clock.advance(1.0)
        lease.sign("one", "/job:worker/task:0", lease.view().term)
        assert not lease.claim(second)
        assert lease.contests(second)
    assert lease.claim(replace(second, take_over=True))
    assert "GLOBALSTEP_TAKE_OVER" in lease.view().why


def test_a_candidate_that_would_wait_does_not_contest_the_lease(lease):
    lease.claim(Claim("chief", "/job:chief/task:0", configured=True))
    assert not lease.contests(Claim("one", "/job:worker/task:0", 10.0))


def test_where_there_was_no_chief_its_time_runs_from_the_first_claim(lease, clock):
    clock.advance(3600.0)
    assert not lease.claim(Claim("one", "", 10.0))
    clock.advance(10.0)
    assert lease.claim(Claim("two", "", 10.0))
    assert not lease.claim(Claim("the chief", "", 10.0, configured=True))


def test_the_configured_chief_is_given_a_lease_at_once_that_nobody_has_held(lease):
    assert not lease.claim(Claim("one", "", 10.0))
    assert lease.claim(Claim("the chief", "", 10.0, configured=True))


def test_a_task_that_was_started_again_learns_of_the_chief_from_its_sign(clock):
    before = ChiefLease(clock)
    before.claim(Claim("chief", "", 0.0))
    term = before.view().term
    clock.advance(1.0)
    after = ChiefLease(clock)
    assert not after.claim(Claim("one", "", 10.0))
    assert after.sign("chief", "", term)
    clock.advance(9.5)
    assert not after.claim(Claim("one", "", 10.0))
    clock.advance(1.0)
    assert after.claim(Claim("one", "", 10.0))
    assert after.view().term > term
    assert not after.sign("chief", "", term)


def test_a_clock_set_back_gives_no_smaller_term():
    before = ChiefLease(ManualClock(5000.0))
    before.claim(Claim("chief", "", 0.0))
    term = before.view().term
    after = ChiefLease(ManualClock(1000.0))
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
    lease = ChiefLease(ManualClock(1000.0))
    lease.adopt(100 << 40)
    assert not lease.sign("sleeper", "", 99 << 40)
    assert lease.sign("chief", "", 100 << 40)
    lease.adopt(1 << 63)  # nobody's: no term could be above it
    assert lease.sign("chief", "", 100 << 40)
