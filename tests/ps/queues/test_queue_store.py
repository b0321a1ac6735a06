"""The pure core of queues that tasks share: slots, lines, limits, and what becomes of consumers that are gone."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from globalstep.errors import (
    AbortedError,
    CancelledError,
    InvalidArgumentError,
    OutOfRangeError,
    ResourceExhaustedError,
)
from globalstep.ps.budget import Budget
from globalstep.ps.queues import queue_store
from globalstep.ps.queues.queue_store import QueueCall, QueueStore
from globalstep.ps.queues.stored_queue import PLACE_SECS, Attributes, Element, What

FIFO = Attributes("q", "FIFOQueue", 3, ("int32",), ("()",))


class Client:
    """Makes calls as a client does, each in a slot of its own choice."""

    def __init__(self, store, name, queue=FIFO):
        self.store, self.name, self.queue = store, name, queue
        self.now = 0.0
        self.numbers, self.taken = {}, {}
        self.last = None

    def ask(self, what, slot=0, again=False, took=True, **fields):
        """Make a new call in a slot, or the last one again; gives what it is answered with."""
        if not again:
            self.numbers[slot] = self.numbers.get(slot, 0) + 1
            if took:
                self.taken[slot] = self.numbers[slot] - 1
            taken = self.taken.get(slot, 0)
            self.last = QueueCall(self.queue, what, self.name, slot, self.numbers[slot], taken, **fields)
        return self.store.call(self.last, self.now)

    def put(self, *values, **fields):
        elements = [Element(value, 8) for value in values]
        return self.ask(What.ENQUEUE, elements=elements, total=len(values), **fields)

    def take(self, count=1, **fields):
        answer = self.ask(What.DEQUEUE, count=count, **fields)
        return None if answer.waiting else [element.value for element in answer.elements]

    def look(self):
        answer = self.store.call(QueueCall(self.queue, What.LOOK, self.name), self.now)
        return answer.size, answer.closed


@pytest.fixture
def store():
    return QueueStore(Budget(2 * (1000 + queue_store._QUEUE_BYTES)), random.Random(1))


def used(store):
    return store._budget.used_bytes - queue_store._QUEUE_BYTES * len(store.queues)


def test_elements_come_in_the_order_in_which_they_were_put(store):
    one, two = Client(store, "one"), Client(store, "two")
    assert not one.put(1).waiting
    assert not two.put(2, 3).waiting
    assert one.take(2) == [1, 2]
    assert two.take() == [3]
    assert one.look() == (0, False)


def test_an_enqueue_that_comes_twice_is_in_once(store):
    one, two = Client(store, "one"), Client(store, "two")
    one.put(1)
    assert not one.ask(What.ENQUEUE, again=True).waiting
    assert two.take() == [1]
    assert two.look() == (0, False)


def test_the_same_dequeue_again_gets_the_same_elements(store):
    one = Client(store, "one")
    one.put(1, 2)
    assert one.take() == [1]
    assert [element.value for element in one.ask(What.DEQUEUE, again=True).elements] == [1]
    assert one.take() == [2]
    assert used(store) == 8
    assert one.look() == (0, False)
    one.put()
    assert used(store) == 0


def test_elements_of_an_answer_that_never_came_are_put_back_in_order(store):
    one, two = Client(store, "one"), Client(store, "two")
    one.put(1, 2, 3)
    assert two.take(2) == [1, 2]
    assert two.take(took=False) == [1]
    assert one.take(2) == [2, 3]


def test_what_was_taken_stays_so_though_the_call_that_said_so_was_lost(store):
    one, two = Client(store, "one"), Client(store, "two")
    one.put(1, 2)
    assert two.take() == [1]
    two.numbers[0], two.taken[0] = 2, 1  # it never comes, and is given up
    assert two.take(took=False) == [2]
    assert one.look() == (0, False)


def test_a_late_copy_changes_nothing(store):
    one, two = Client(store, "one"), Client(store, "two")
    one.put(1)
    late = one.last
    one.put(2)
    with pytest.raises(AbortedError, match="late copy"):
        store.call(late, 0.0)
    assert two.take(2) == [1, 2]


def test_calls_in_different_slots_are_apart(store):
    one, two = Client(store, "one"), Client(store, "two")
    assert one.take(slot=1) is None
    waits = one.last
    one.put(5, slot=0)
    assert two.take() is None  # the other came first
    assert [element.value for element in store.call(waits, 0.0).elements] == [5]


def test_an_enqueue_waits_for_space_and_goes_on_where_it_was(store):
    one, two = Client(store, "one"), Client(store, "two")
    answer = one.put(1, 2, 3, 4, 5)
    assert answer.waiting
    assert (answer.entered, answer.space) == (3, False)
    assert two.take(2) == [1, 2]
    answer = store.call(replace(one.last, elements=()), 0.0)
    assert (answer.waiting, answer.space, answer.entered) == (True, True, 3)
    assert not one.ask(What.ENQUEUE, again=True).waiting
    assert two.take(3) == [3, 4, 5]


def test_those_who_wait_are_served_in_the_order_in_which_they_came(store):
    first, second, giver = Client(store, "first"), Client(store, "second"), Client(store, "giver")
    assert first.take(2) is None
    assert second.take() is None
    giver.put(1)
    assert second.ask(What.DEQUEUE, again=True).waiting
    assert first.ask(What.DEQUEUE, again=True).waiting
    giver.put(2, 3)
    assert [e.value for e in first.ask(What.DEQUEUE, again=True).elements] == [1, 2]
    assert [e.value for e in second.ask(What.DEQUEUE, again=True).elements] == [3]


def test_who_waits_and_is_not_heard_of_loses_its_place_and_what_it_gathered(store):
    first, second, giver = Client(store, "first"), Client(store, "second"), Client(store, "giver")
    giver.put(1)
    assert first.take(2) is None
    assert second.take() is None
    second.now = PLACE_SECS / 2
    assert second.ask(What.DEQUEUE, again=True).waiting
    second.now = PLACE_SECS + 0.1
    assert [e.value for e in second.ask(What.DEQUEUE, again=True).elements] == [1]
    # It comes back, behind the others, and misses nothing.
    first.now = second.now
    giver.now = second.now
    giver.put(2, 3)
    assert [e.value for e in first.ask(What.DEQUEUE, again=True).elements] == [2, 3]


def test_a_closed_queue_gives_what_it_has_and_takes_nothing(store):
    one, two = Client(store, "one"), Client(store, "two")
    one.put(1, 2)
    assert not one.ask(What.CLOSE).waiting
    with pytest.raises(CancelledError, match="FIFOQueue 'q' is closed"):
        one.put(3)
    with pytest.raises(CancelledError, match="already closed"):
        one.ask(What.CLOSE)
    with pytest.raises(OutOfRangeError, match=r"insufficient elements \(requested 3, current size 2\)"):
        two.take(3)
    assert two.take(3, allow_fewer=True) == [1, 2]
    with pytest.raises(OutOfRangeError):
        two.take(3, allow_fewer=True)
    assert two.look() == (0, True)


def test_a_close_lets_in_those_who_wait_and_refuses_those_behind(store):
    one, two, late, taker = (Client(store, name) for name in ("one", "two", "late", "taker"))
    assert one.put(1, 2, 3, 4).waiting
    assert two.ask(What.CLOSE).waiting
    assert late.put(5).waiting
    assert taker.take() == [1]
    assert not one.ask(What.ENQUEUE, again=True).waiting
    assert not two.ask(What.CLOSE, again=True).waiting
    with pytest.raises(CancelledError, match="is closed"):
        late.ask(What.ENQUEUE, again=True)
    assert taker.take(3) == [2, 3, 4]


def test_a_close_that_cancels_turns_those_away_who_wait(store):
    one, two = Client(store, "one"), Client(store, "two")
    assert one.put(1, 2, 3, 4).waiting
    assert not two.ask(What.CLOSE, cancel=True).waiting
    assert not two.ask(What.CLOSE, cancel=True).waiting
    with pytest.raises(CancelledError, match="Enqueue operation was cancelled"):
        one.ask(What.ENQUEUE, again=True)
    assert two.take(3) == [1, 2, 3]


def test_an_enqueue_that_was_in_before_the_close_is_known_to_be_in_after_it(store):
    one = Client(store, "one")
    one.put(1)
    Client(store, "two").ask(What.CLOSE)
    assert not one.ask(What.ENQUEUE, again=True).waiting


def test_elements_of_a_consumer_that_is_gone_are_put_back(store):
    one, dead, other = Client(store, "one"), Client(store, "dead"), Client(store, "other")
    one.put(1, 2, 3)
    assert dead.take(2) == [1, 2]
    store.drop_gone({"one", "dead", "other"}, 10.0)
    store.drop_gone({"one", "other"}, 12.0)
    assert other.look() == (1, False)
    store.drop_gone({"one", "other"}, 10.0 + queue_store.GONE_SECS + 0.1)
    assert other.take(3) == [1, 2, 3]
    # It was only cut off, and tries again: its answer had been lost, so it takes others.
    one.put(4, 5)
    assert [e.value for e in dead.ask(What.DEQUEUE, again=True).elements] == [4, 5]


def test_an_enqueue_of_a_client_that_was_cut_off_is_still_known(store):
    one, other = Client(store, "one"), Client(store, "other")
    one.put(1)
    store.drop_gone({"one"}, 1.0)
    store.drop_gone(set(), 300.0)
    assert not one.ask(What.ENQUEUE, again=True).waiting
    assert other.look() == (1, False)


def test_a_client_without_a_lease_keeps_what_it_took(store):
    """A PS task's own program has none, and may do other things for a while."""
    one, program = Client(store, "one"), Client(store, "program")
    one.put(1)
    assert program.take() == [1]
    store.drop_gone({"one"}, 300.0)
    assert one.look() == (0, False)


def test_a_client_that_left_in_good_order_has_what_it_took(store):
    one, other = Client(store, "one"), Client(store, "other")
    one.put(1, 2)
    assert other.take() == [1]
    store.left("other", finished=True)
    assert one.look() == (1, False)
    assert used(store) == 8
    with pytest.raises(AbortedError, match="has left"):
        other.ask(What.DEQUEUE, again=True)
    failed = Client(store, "failed")
    assert failed.take() == [2]
    store.left("failed", finished=False)
    assert one.take() == [2]


def test_a_client_that_left_waits_no_more(store):
    one, other = Client(store, "one"), Client(store, "other")
    assert one.take(2) is None
    other.put(1)
    one.ask(What.DEQUEUE, again=True)
    store.left("one", finished=True)
    assert other.take() == [1]


def test_a_queue_is_made_as_the_first_call_says(store):
    Client(store, "one").put(1)
    for other, text in (
        (replace(FIFO, capacity=4), "Shared queue 'q' has capacity 3 but requested capacity was 4"),
        (replace(FIFO, dtypes=("float32",)), r"has component types \['int32'\] but requested component types were"),
        (replace(FIFO, shapes=("(2,)",)), "has component shapes"),
        (replace(FIFO, kind="RandomShuffleQueue"), "has kind FIFOQueue but requested kind was RandomShuffleQueue"),
    ):
        with pytest.raises(InvalidArgumentError, match=text):
            Client(store, "two", other).put(2)
    assert Client(store, "three").look() == (1, False)


def test_a_shuffle_queue_keeps_some_back_and_mixes(store):
    shuffled = Attributes("s", "RandomShuffleQueue", 20, ("int32",), ("()",), 2, 7)
    one = Client(store, "one", shuffled)
    one.put(*range(10))
    first = one.take(8)
    assert first != sorted(first)
    assert one.take() is None
    one.ask(What.CLOSE, slot=1)
    rest = one.take(2, took=False)
    assert sorted(first + rest) == list(range(10))


def test_memory_is_bounded_and_comes_back(store):
    wide = replace(FIFO, capacity=-1)
    one, two = Client(store, "one", wide), Client(store, "two", wide)
    big = [Element(number, 400) for number in range(3)]
    answer = one.ask(What.ENQUEUE, elements=big, total=3)
    assert (answer.waiting, answer.entered) == (True, 2)
    assert two.take() == [0]
    assert one.ask(What.ENQUEUE, again=True).waiting  # what the consumer has not said that it has counts
    assert two.take() == [1]
    assert not one.ask(What.ENQUEUE, again=True).waiting
    with pytest.raises(InvalidArgumentError, match="never fits"):
        two.ask(What.ENQUEUE, elements=[Element(0, 1001 + queue_store._QUEUE_BYTES)], total=1)


def test_a_dequeue_of_more_than_fits_is_refused_and_changes_nothing(store):
    wide = replace(FIFO, capacity=-1)
    store._budget.limit_bytes = 200_000
    one, two = Client(store, "one", wide), Client(store, "two", wide)
    one.ask(What.ENQUEUE, elements=[Element(number, 30_000) for number in range(2)], total=2)
    with pytest.raises(InvalidArgumentError, match="dequeue fewer at a time"):
        two.take(3)
    assert two.take() == [0]


def test_there_are_bounds_on_what_is_remembered(store, monkeypatch):
    monkeypatch.setattr(queue_store, "MOST_QUEUES", 2)
    store._budget.limit_bytes = 200_000
    monkeypatch.setattr(queue_store, "MOST_CALLS", 2)
    Client(store, "one").put(1)
    Client(store, "two", replace(FIFO, name="r")).put(1)
    with pytest.raises(ResourceExhaustedError, match="2 queues"):
        Client(store, "two", replace(FIFO, name="s")).put(1)
    with pytest.raises(ResourceExhaustedError, match="Too many clients"):
        Client(store, "three").put(1)
    for fields in ({"slot": 256}, {"slot": -1}):
        with pytest.raises(InvalidArgumentError, match="256 calls"):
            Client(store, "one").put(1, **fields)
    with pytest.raises(InvalidArgumentError, match="must name its client"):
        Client(store, "").put(1)
    with pytest.raises(InvalidArgumentError, match="no fewer than 0"):
        Client(store, "one").take(-1)


def test_another_run_finds_no_queues(store):
    one = Client(store, "one")
    one.put(1, 2)
    assert one.take() == [1]
    store.clear()
    assert used(store) == 0
    assert one.look() == (0, False)
    one.put(3)
    assert one.take() == [3]
    assert used(store) == 8


def test_a_queue_counts_its_elements_and_who_waits(store):
    one, two = Client(store, "one"), Client(store, "two")
    one.put(1, 2, 3, 4)
    two.take()
    one.ask(What.ENQUEUE, again=True)
    queue = store.queues["q"]
    assert (len(queue.elements), queue.nbytes, queue.closed) == (3, 24, False)
    assert (len(queue.entering), len(queue.leaving), queue.kept) == (0, 0, 1)
