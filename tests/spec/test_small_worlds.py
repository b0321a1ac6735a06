"""Every order, loss and double of the messages of a small world: what the PS tasks answer is what the protocol says."""

from __future__ import annotations

import pytest
from planted_bugs import planted
from search import search
from small_world import Setting
from worlds import SHOWN_IN, WORLDS


def test_all_that_may_happen_to_one_push_of_each_of_two_clients_is_right():
    found = search(WORLDS["one push each"])
    assert (found.wrong, found.whole) == ("", True)
    assert found.states > 1000


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["a crash", "a crash and a liar", "contributions"])
def test_all_that_may_happen_is_right(name):
    """The world of docs/design/simulation.md is gone through by `make nightly`."""
    found = search(WORLDS[name], most_secs=1100, traced=False)
    assert (found.wrong, found.whole) == ("", True)
    assert found.states > 3_000


@pytest.mark.long
@pytest.mark.parametrize("bug", SHOWN_IN)
def test_a_planted_bug_is_found_with_its_shortest_trace(bug):
    with planted(bug):
        found = search(WORLDS[SHOWN_IN[bug]], most_secs=100)
    assert found.wrong
    assert len(found.trace) in (found.depth, 1)
    print(f"{bug}: {found.states} states", *found.trace, found.wrong, sep="\n  ")


def test_states_that_differ_by_the_clients_names_are_one():
    """One client that pushes alone leads to as many states as the other one: none is counted twice."""
    one = search(Setting(pushes=1, crashes=0, settles=0))
    assert one.whole
    assert one.states == 96
