"""Which batches are a worker's."""

import itertools

import numpy as np
import pytest

from globalstep.chief.training.batches import Share, share_of
from globalstep.errors import InvalidArgumentError


def first(count, batches, **share):
    return list(itertools.islice(share_of(batches, Share(**share)), count))


def test_workers_share_an_iterable():
    assert first(5, [0, 1, 2, 3, 4]) == [0, 1, 2, 3, 4]
    assert first(5, [0, 1, 2, 3, 4], rank=0, world_size=2) == [0, 2, 4, 1, 3]
    assert first(5, [0, 1, 2, 3, 4], rank=1, world_size=2) == [1, 3, 0, 2, 4]


def test_epochs_end():
    assert list(share_of([1, 2], Share(), epochs=2)) == [1, 2, 1, 2]


def test_an_iterator_is_gone_through_once():
    assert list(share_of(iter(range(5)), Share(rank=1, world_size=2))) == [1, 3]


@pytest.mark.parametrize("start", [0, 1, 4, 5, 7, 23])
@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (1, 3)])
def test_a_run_goes_on_with_the_next_batch(start, rank, world_size):
    batches = list(range(7))
    whole = first(40, batches, rank=rank, world_size=world_size)
    rest = first(40 - start, batches, rank=rank, world_size=world_size, start=start)
    assert rest == whole[start:]


def test_a_function_that_asks_for_its_rank_gives_its_own_batches():
    def batches(rank, world_size, epoch):
        return [f"{rank} of {world_size}, {epoch}"]

    assert first(2, batches, rank=1, world_size=3) == ["1 of 3, 0", "1 of 3, 1"]
    assert first(3, lambda: range(4), rank=1, world_size=2) == [1, 3, 1]


def test_a_function_that_asks_where_to_start_leaves_out_what_was_had():
    assert first(2, lambda rank, start: range(start, 10), start=4) == [4, 5]


@pytest.mark.parametrize("start", [0, 5, 12, 13, 14, 26, 30])
def test_a_function_of_epoch_and_start_goes_on_in_the_right_epoch(start):
    def batches(epoch, start):
        order = np.random.permutation(13 - epoch % 2)
        yield from [(epoch, int(at)) for at in order[start:]]

    whole = first(60, batches)
    assert [epoch for epoch, _ in whole] == [0] * 13 + [1] * 12 + [2] * 13 + [3] * 12 + [4] * 10
    assert first(60 - start, batches, start=start) == whole[start:]
    assert list(share_of(batches, Share(start=start), epochs=3)) == whole[start:38]


def test_a_function_that_gives_nothing_wherever_it_starts_is_refused():
    with pytest.raises(InvalidArgumentError, match="batches gave no batch"):
        first(1, lambda epoch, start: [], start=4)


class Divided(list):
    """Stands for a DataLoader with a DistributedSampler."""

    def __init__(self, rows, replicas, rank):
        super().__init__(rows[rank::replicas])
        self.sampler = type("DistributedSampler", (), {"num_replicas": replicas, "rank": rank})()


def test_a_sampler_gives_each_worker_its_own_part():
    parts = [list(share_of(Divided(range(9), 3, rank), Share(rank, 3), epochs=2)) for rank in range(3)]
    assert sorted(row for part in parts for row in part) == sorted([*range(9)] * 2)


@pytest.mark.parametrize(("replicas", "rank"), [(2, 1), (3, 0), (3, 2)])
def test_a_sampler_of_other_workers_is_refused(replicas, rank):
    with pytest.raises(InvalidArgumentError, match=f"part {rank} of {replicas}, and this is worker 1 of 3"):
        first(1, Divided(range(9), replicas, rank), rank=1, world_size=3)


def test_shuffling_is_decided_by_seed_and_epoch():
    class Shuffled:
        def __iter__(self):
            return iter(np.random.permutation(10))

    once, again, other = (first(30, Shuffled(), seed=seed) for seed in (1, 1, 2))
    assert once == again != other
    assert once[:10] != once[10:20]
    # All workers see one order, so that no batch is had twice.
    assert first(5, Shuffled(), seed=1, rank=1, world_size=2) == once[1:10:2]


def test_samplers_are_told_of_the_epoch():
    class Loader(list):
        def set_epoch(self, epoch):
            self[:] = [epoch]

    assert first(3, Loader([0])) == [0, 1, 2]


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        (np.zeros((4, 2)), r"float64\[4, 2\]; it must be an iterable of batches.*\[batch\]"),
        ("data.csv", "batches is str"),
        ({"x": 1}, "it must be an iterable of batches"),
        (7, "batches is a int"),
        ([], "is the dataset empty"),
        (iter([]), "the iterator used up"),
        (lambda worker: [], "has an argument 'worker'; it may ask for rank, world_size, seed, epoch, start"),
    ],
)
def test_what_gives_no_batches(batches, message):
    with pytest.raises(InvalidArgumentError, match=message):
        list(share_of(batches, Share()))


def test_fewer_batches_than_workers_are_shared_over_epochs():
    assert first(2, ["a"], rank=2, world_size=3) == ["a", "a"]


class Workers:
    """Workers that push in a given order; who pushes what is next."""

    def __init__(self, count, batches, start=0, per_step=1, end=None):
        self.had, self.steps, self.now = [], [start] * count, start

        def claim(rank):
            return lambda last: start + rank if last < 0 else max(last + 1, self.steps[rank] + count - 1)

        shares = [Share(rank, count, 0, start, claim(rank), per_step, end) for rank in range(count)]
        self.workers = [share_of(batches, share) for share in shares]
        self.per_step = per_step

    def push(self, order):
        for rank in order:
            self.had += [next(self.workers[rank]) for _ in range(self.per_step)]
            self.now += 1
            self.steps[rank] = self.now


@pytest.mark.parametrize(
    "order", [[0, 1, 2] * 4, [0, 1, 2, 0, 0, 0, 1, 0, 0, 2, 0, 0], [2, 2, 2, 1, 1, 0, 0, 0, 1, 2, 2, 2]]
)
@pytest.mark.parametrize(("start", "per_step"), [(0, 1), (7, 1), (0, 2)])
def test_no_batch_is_had_twice_however_quick_a_worker_is(order, start, per_step):
    workers = Workers(3, list(range(100)), start, per_step)
    workers.push(order)
    assert len(set(workers.had)) == len(workers.had) == 12 * per_step
    assert max(workers.had) < (start + 12 + 2) * per_step


def test_claims_go_on_in_the_next_epoch():
    workers = Workers(2, list(range(4)))
    workers.push([0, 1, 0, 1, 0, 1, 0, 1])
    assert sorted(workers.had) == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("start", [0, 3])
def test_a_quick_worker_leaves_a_slow_one_its_last_batch(start):
    workers = Workers(2, list(range(4)), start, end=8)
    slow = next(workers.workers[1])
    for batch in workers.workers[0]:
        workers.had.append(batch)
        workers.now += 1
        workers.steps[0] = workers.now
    workers.steps[1] = workers.now + 1
    assert sorted([*workers.had, slow]) == sorted([*range(4), *range(4)][start:])
    assert list(workers.workers[1]) == []
