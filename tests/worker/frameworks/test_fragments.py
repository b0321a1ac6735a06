"""Fragments: how a model is split, whose turn it is, and what a worker's copy becomes by the outcome of a push."""

import numpy as np
import pytest

from globalstep.wire.declarations import OutcomeKind
from globalstep.worker.frameworks.fragments import FragmentCopies, FragmentTurns, split_evenly
from globalstep.worker.running.local_optimizers import OwnState


@pytest.mark.parametrize("seed", range(20))
def test_each_variable_is_in_one_fragment_and_their_bytes_are_near_each_other(seed):
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 6))
    sizes = {f"v{at}": int(random.integers(0, 1000)) for at in range(int(random.integers(count, 30)))}
    found = split_evenly(sizes, count)
    assert sorted(name for names in found for name in names) == sorted(sizes)
    assert all(found)
    loads = [sum(sizes[name] for name in names) for names in found]
    assert max(loads) - min(loads) <= max(sizes.values())
    assert found == split_evenly(dict(sizes), count)


def test_layers_of_one_size_are_dealt_out_in_turn():
    assert split_evenly(dict.fromkeys("abcdef", 8), 3) == (("a", "d"), ("b", "e"), ("c", "f"))


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_together_each_step_has_one_fragment_whoever_asks_and_the_last_all(count):
    steps = 4 * count + 1
    quick, late = (FragmentTurns(count, last=steps, workers=1) for _ in range(2))
    turns = [quick.next(step) for step in range(steps)]
    assert turns == [step % count for step in range(steps - 1)] + [None]
    late.made()  # of a contribution that did not count
    assert [late.next(step) for step in range(steps)] == turns


@pytest.mark.parametrize(("workers", "count"), [(1, 1), (1, 4), (2, 2), (3, 2), (4, 6)])
def test_as_they_come_each_worker_has_every_fragment_in_turn_and_its_last_push_brings_all(workers, count):
    """Workers that are equally fast: each pushes once in as many steps as there are workers."""
    last = 7 * workers * count + workers // 2
    turns = [FragmentTurns(count, last, workers, own=rank) for rank in range(workers)]
    known, made = [0] * workers, [[] for _ in range(workers)]
    for step in range(last):
        rank = step % workers
        made[rank].append(turns[rank].next(known[rank]))
        turns[rank].made()
        known[rank] = step + 1
    for rank in range(workers):
        in_turn = [turn for turn in made[rank] if turn is not None]
        assert in_turn == [(rank + at) % count for at in range(len(in_turn))]
        assert made[rank][-1] is None
        assert len(made[rank]) - len(in_turn) <= 2


def copies_of(began, now):
    copies = FragmentCopies.of({"a": np.float32(began), "b": np.zeros(2, np.float32)}, 3, OwnState({}))
    copies.now["a"] = np.float32(now)
    return copies


@pytest.mark.parametrize(
    ("kind", "alpha", "becomes"),
    [
        (OutcomeKind.ACCEPTED, 0.0, 10.0),
        (OutcomeKind.ACCEPTED, 0.25, 0.25 * 5.0 + 0.75 * 10.0),
        # As far from the values of now as it was from those that it began with.
        (OutcomeKind.LATE, 0.5, 14.0),
        (OutcomeKind.DROPPED_STALE, 0.0, 14.0),
        (OutcomeKind.ABANDONED, 0.0, 14.0),
        (OutcomeKind.DROPPED_NAN, 0.5, 10.0),
    ],
)
def test_a_push_settles_its_fragment_alone(kind, alpha, becomes):
    copies = copies_of(began=1.0, now=5.0)
    copies.settle(kind, {"a": np.float32(10.0)}, 8, alpha)
    assert (copies.now["a"], copies.began["a"], copies.seen, copies.step) == (becomes, 10.0, {"a": 8, "b": 3}, 8)
    assert not copies.now["b"].any()
    np.testing.assert_array_equal(copies.differences(["a", "b"])[0], 10.0 - becomes)


def test_a_writable_copy_leaves_the_other_as_it_is():
    copies = copies_of(began=1.0, now=5.0)
    copies.state.slots["b"] = [np.zeros(2)]
    other = copies.writable()
    other.now["b"] += 1
    other.state.slots["b"][0] += 1
    other.settle(OutcomeKind.ACCEPTED, {"a": np.float32(0)}, 9)
    assert not copies.now["b"].any()
    assert not copies.state.slots["b"][0].any()
    assert (copies.now["a"], copies.began["a"], copies.seen["a"], copies.step) == (5.0, 1.0, 3, 3)
