"""Fetches of a run: what it gives back has their structure, however often they were taken apart before."""

from collections import OrderedDict, namedtuple

import pytest

import globalstep as gs
from globalstep.tf1.execution.fetches import Fetches

Pair = namedtuple("Pair", "first second")


@pytest.fixture
def nodes():
    return [gs.constant(float(number)) for number in range(3)]


def test_fetches_of_the_same_nodes_keep_their_own_structures(nodes):
    a, b, _ = nodes
    fetches = Fetches(a.graph)
    same = ([a, b], (a, b), Pair(a, b), {"first": a, "second": [b]}, OrderedDict(first=a, second=b))
    for _ in range(2):
        for given in same:
            found, rebuild = fetches.flatten(given)
            assert found == (a, b)
            made = rebuild([1, 2])
            assert type(made) is type(given)
            assert list(made.values() if isinstance(made, dict) else made) == (
                [1, [2]] if type(given) is dict else [1, 2]
            )


def test_a_list_that_was_changed_is_taken_as_it_is_now(nodes):
    a, b, c = nodes
    fetches = Fetches(a.graph)
    given, held = [a, b], {"list": [a]}
    assert fetches.flatten(given)[0] == (a, b)
    assert fetches.flatten(held)[0] == (a,)
    given.append(c)
    held["list"].append(c)
    assert fetches.flatten(given)[1]([1, 2, 3]) == [1, 2, 3]
    found, rebuild = fetches.flatten(held)
    assert found == (a, c)
    assert rebuild([1, 3]) == {"list": [1, 3]}


def test_a_tuple_within_a_list_is_not_taken_for_another_kind_of_tuple(nodes):
    a, b, _ = nodes
    fetches = Fetches(a.graph)
    for given in ([(a, b)], [Pair(a, b)], [[a, b]], [(a, b)]):
        (made,) = fetches.flatten(given)[1]([1, 2])
        assert type(made) is type(given[0])
        assert list(made) == [1, 2]


def test_usual_fetches_are_taken_apart_once(nodes):
    fetches = Fetches(nodes[0].graph)
    for make in (lambda: nodes[0], lambda: nodes[:2], lambda: tuple(nodes), lambda: {"a": nodes[0], 1: nodes[1:]}):
        assert fetches.flatten(make()) is fetches.flatten(make())


def test_a_fetch_of_another_graph_is_refused_each_time(nodes):
    fetches = Fetches(gs.Graph())
    for _ in range(2):
        with pytest.raises(ValueError, match="cannot be interpreted as a Tensor"):
            fetches.flatten([nodes[0]])
