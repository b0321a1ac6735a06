"""Memory is given out again once nobody refers to it, and never before."""

import numpy as np

from globalstep.runtime.memory import MemoryPool

SIZE = 1 << 20


def address(array):
    return array.__array_interface__["data"][0]


def test_a_block_comes_back_once_the_last_view_of_it_is_gone():
    pool = MemoryPool()
    taken = pool.take(SIZE)
    taken[:] = 1
    where = address(taken)
    view = np.frombuffer(memoryview(taken)[8:], np.int32)[3:].reshape(-1, 1)
    del taken
    for _ in range(3):
        pool.take(SIZE)[:] = 255
    assert np.all(view == 0x01010101)
    del view
    assert where in {address(block) for block in [pool.take(SIZE), pool.take(SIZE)]}


def test_two_users_in_turn_need_two_blocks_for_ever():
    """As the values of a step do, which live until those of the next are there."""
    pool = MemoryPool()
    seen = set()
    held = None
    for _ in range(20):
        held = pool.take(SIZE)
        seen.add(address(held))
    assert len(seen) == 2


def test_messages_of_two_sizes_in_turn_find_their_blocks_again():
    pool = MemoryPool()
    seen = {address(pool.take(size)) for _ in range(10) for size in (SIZE, 10 * SIZE)}
    assert len(seen) == 2


def test_little_memory_does_not_hold_much():
    pool = MemoryPool()
    pool.take(100 * SIZE)
    small = pool.take(SIZE)
    assert small.base.nbytes == SIZE


def test_blocks_of_sizes_that_are_over_are_freed():
    pool = MemoryPool()
    for power in range(6):
        pool.take(SIZE << (2 * power))
    assert len(pool._blocks) <= 3


def test_small_memory_is_not_kept():
    pool = MemoryPool()
    assert pool.take(100).nbytes == 100
    assert pool.take(0).nbytes == 0
    assert pool._blocks == []
