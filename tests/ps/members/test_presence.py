"""Who is here, by a clock that is moved by hand (rung 1)."""

import pytest

from globalstep.ps.members.presence import (
    _MOST_SEEN,
    LINGER_SECS,
    MOST_DONE_SECS,
    REPLACED_LEASE_SECS,
    UNMET_SECS,
    Presence,
    Standing,
)
from globalstep.runtime.clock import ManualClock

WORKER = "/job:worker/task:0"
LEASE_SECS = 15.0


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def presence(clock):
    presence = Presence(clock)
    presence.begin([WORKER])
    return presence


def here(presence):
    return [view.client for view in presence.clients()]


def test_a_silent_client_is_here_until_its_lease_is_over(presence, clock):
    presence.heard("a", WORKER, LEASE_SECS)
    presence.finish()
    clock.advance(LEASE_SECS)
    assert here(presence) == ["a"]
    clock.advance(0.1)
    assert here(presence) == []
    assert presence.empty()


def test_a_task_that_was_started_again_is_not_waited_for_twice(presence, clock):
    presence.heard("killed", WORKER, LEASE_SECS)
    clock.advance(1.0)
    presence.heard("started again", WORKER, LEASE_SECS)
    presence.left("started again")
    presence.finish()
    assert not presence.empty()
    clock.advance(REPLACED_LEASE_SECS)
    assert presence.empty()


def test_one_that_holds_no_run_waits_for_those_who_have_not_found_it_yet(clock):
    """Started again, it heard of the end first, and nobody told the workers of it; found by the soak."""
    presence = Presence(clock)
    presence.finish()
    clock.advance(1.0)
    assert not presence.empty()
    presence.heard("a", WORKER, LEASE_SECS)
    clock.advance(UNMET_SECS)
    assert not presence.empty()
    presence.left("a", WORKER)
    assert presence.empty()


def test_two_clients_of_one_task_that_both_live_are_both_here(presence, clock):
    presence.heard("a", WORKER, LEASE_SECS)
    presence.heard("b", WORKER, LEASE_SECS)
    clock.advance(2.0)
    presence.heard("a", WORKER, LEASE_SECS)
    clock.advance(REPLACED_LEASE_SECS + 1.0)
    assert here(presence) == ["a", "b"]


def test_a_ghost_keeps_a_finished_ps_no_longer_than_the_longest_lease(presence, clock):
    presence.heard("ghost", WORKER, 1e9)
    presence.finish()
    presence.heard("another", WORKER, 1e9)
    clock.advance(60.1)
    assert presence.empty()


def test_a_ghost_that_gives_signs_of_life_keeps_a_finished_ps_for_an_hour_at_most(presence, clock):
    presence.heard("ghost", WORKER, LEASE_SECS)
    presence.finish()
    for _ in range(int(MOST_DONE_SECS / 10.0)):
        clock.advance(10.0)
        presence.heard("ghost", WORKER, LEASE_SECS)
    assert not presence.empty()
    clock.advance(0.1)
    assert presence.empty()


@pytest.mark.parametrize(("token", "stays"), [("b", True), ("a", False)])
def test_who_takes_a_tasks_name_by_another_token_shortens_no_lease(presence, clock, token, stays):
    presence.heard("a", WORKER, LEASE_SECS, Standing(token="a"))
    presence.heard("newcomer", WORKER, LEASE_SECS, Standing(token=token))
    clock.advance(REPLACED_LEASE_SECS + 1.0)
    assert ("a" in here(presence)) == stays


def test_clients_without_a_task_do_not_replace_one_another(presence, clock):
    presence.heard("a", "", LEASE_SECS)
    presence.heard("b", "", LEASE_SECS)
    clock.advance(REPLACED_LEASE_SECS + 1.0)
    assert here(presence) == ["a", "b"]


def test_a_task_that_never_came_is_waited_for_a_little(presence, clock):
    presence.heard("chief", "/job:chief/task:0", LEASE_SECS)
    presence.finish()
    presence.left("chief")
    clock.advance(LINGER_SECS)
    assert not presence.empty()
    clock.advance(0.1)
    assert presence.empty()


def test_who_left_before_its_first_sign_of_life_has_come(presence):
    presence.left("quick", WORKER)
    presence.finish()
    assert presence.empty()


def test_a_sign_of_life_that_comes_after_its_client_left_brings_nobody_back(presence):
    presence.heard("a", WORKER, LEASE_SECS)
    presence.left("a", WORKER)
    presence.heard("a", WORKER, LEASE_SECS)
    presence.finish()
    assert here(presence) == []
    assert presence.empty()


def test_names_of_tasks_that_nobody_expects_do_not_fill_the_memory(presence):
    for number in range(_MOST_SEEN + 100):
        presence.left(f"c{number}", f"/job:worker/task:{number + 10}", unfinished=True)
    presence.left("late", WORKER)
    assert max(map(len, (presence._seen_tasks, presence._last_of, presence._failed))) <= _MOST_SEEN + 1
    assert presence.absence().missing == []


def test_what_a_task_has_trained_is_known_whoever_of_it_is_here(presence):
    presence.opened({"step": 7})
    presence.heard("first", WORKER, LEASE_SECS)
    presence.pushed("first", {"step": 8})
    presence.pushed("first", {"step": 10})
    presence.left("first", unfinished=True)
    presence.heard("second", WORKER, LEASE_SECS)
    assert presence.trained(WORKER) == ({"step": 7}, 2, {"step": 10})
    presence.pushed("second", {"step": 11})
    assert presence.trained(WORKER) == ({"step": 7}, 3, {"step": 11})
    assert presence.trained("/job:worker/task:1") == ({"step": 7}, 0, {})
    presence.begin([WORKER])  # from a checkpoint: what was pushed after it is lost
    assert presence.trained(WORKER) == ({}, 0, {})
    presence.opened({"step": 9})
    presence.pushed("second", {"step": 10})
    assert presence.trained(WORKER) == ({"step": 9}, 1, {"step": 10})
