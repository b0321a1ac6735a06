"""Which block is used when: never one that somebody looks at, never one whose push may still be applied."""

import numpy as np

from globalstep.wire.shared_memory import SLACK_BYTES, block_bytes
from globalstep.worker.transport.shm_transport import BlockPool

NBYTES = 10 * SLACK_BYTES


def pool_of(count, nbytes=NBYTES):
    pool = BlockPool()
    for number in range(1, count + 1):
        pool.add(number, np.zeros(block_bytes(nbytes), np.uint8))
    return pool


def test_a_block_that_is_much_too_large_is_left_alone():
    pool = pool_of(1, 10 * NBYTES)
    assert pool.take(NBYTES) is None
    assert pool.take(6 * NBYTES)[0] == 1


def test_idle_blocks_of_other_sizes_are_given_up_one_by_one():
    pool = pool_of(4)
    assert pool.take(5 * NBYTES) is None
    assert pool.dropped() == (1,)
    assert pool.dropped() == ()
    assert pool.get(1) is None
    assert len(pool.blocks) == 3


def test_the_blocks_of_pushes_whose_end_is_never_heard_of_are_given_up_and_never_used_again():
    pool = pool_of(6)
    used = []
    for sequence in range(1, 7):
        taken = pool.take(NBYTES)
        used.append(taken[0])
        pool.stage(("me", sequence), *taken)
        del taken
    assert sorted(used) == [1, 2, 3, 4, 5, 6]
    assert pool.dropped() == tuple(used[:2])
    assert pool.take(NBYTES) is None
    assert len(pool.blocks) == 4


def test_a_closed_pool_gives_nothing():
    pool = pool_of(2)
    held = pool.take(NBYTES)
    pool.close()
    pool.add(9, np.zeros(block_bytes(NBYTES), np.uint8))
    assert (pool.take(NBYTES), len(pool.blocks), pool.offer(), pool.is_full) == (None, 0, {}, True)
    held[1][:] = 1


def test_blocks_used_last_are_offered_first():
    pool = pool_of(3)
    number, block = pool.take(NBYTES)
    del block
    assert next(iter(pool.offer())) == number
    assert len(pool.offer()) == 2
