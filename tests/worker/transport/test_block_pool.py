"""Which block is used when: never one that somebody looks at, never one whose push may still be applied."""

import numpy as np

from globalstep.wire.shared_memory import MOST_BLOCKS, SLACK_BYTES, block_bytes
from globalstep.worker.transport.shm_transport import BlockPool, data_area

NBYTES = 10 * SLACK_BYTES


def pool_of(count, nbytes=NBYTES):
    pool = BlockPool()
    for number in range(1, count + 1):
        pool.add(number, np.zeros(block_bytes(nbytes), np.uint8))
    return pool


def test_a_block_is_taken_again_once_nobody_looks_at_it():
    pool = pool_of(1)
    taken = pool.take(NBYTES)
    view = np.frombuffer(memoryview(taken[1])[64:].toreadonly(), np.float32).reshape(2, -1)[1]
    del taken
    assert pool.take(NBYTES) is None
    del view
    assert pool.take(NBYTES)[0] == 1


def test_two_blocks_in_turn_serve_a_program_that_keeps_its_last_values():
    pool = pool_of(2)
    seen, values = [], None
    for _ in range(6):
        number, block = pool.take(NBYTES)
        values, block = data_area(block, NBYTES), None
        seen.append(number)
    assert values is not None
    assert seen[:2] * 3 == seen


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
    assert len(pool) == 3


def test_a_program_that_keeps_everything_fills_the_pool_and_no_more():
    pool = pool_of(MOST_BLOCKS)
    kept = [pool.take(NBYTES) for _ in range(MOST_BLOCKS)]
    assert pool.take(NBYTES) is None
    assert pool.is_full
    assert pool.dropped() == ()
    assert len({number for number, _ in kept}) == MOST_BLOCKS


def test_what_was_written_into_a_block_is_found_there_and_nothing_else_is():
    pool = pool_of(2)
    written = data_area(pool.get(2), NBYTES).data
    number, block, offset = pool.locate(written)
    assert (number, offset) == (2, SLACK_BYTES)
    assert block is pool.get(2)
    assert pool.locate(np.zeros(96, np.uint8).data) is None
    assert pool.locate(written.toreadonly()) is None  # values are never taken for gradients


def test_a_staged_pushs_block_is_held_until_the_push_is_applied():
    pool = pool_of(1)
    pool.stage(("me", 1), *pool.take(NBYTES))
    assert pool.take(NBYTES) is None
    pool.release(("me", 2))
    assert pool.take(NBYTES) is None
    pool.release(("me", 1))
    assert pool.take(NBYTES)[0] == 1


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
    assert len(pool) == 4


def test_a_closed_pool_gives_nothing():
    pool = pool_of(2)
    held = pool.take(NBYTES)
    pool.close()
    pool.add(9, np.zeros(block_bytes(NBYTES), np.uint8))
    assert (pool.take(NBYTES), len(pool), pool.offer(), pool.is_full) == (None, 0, {}, True)
    held[1][:] = 1


def test_blocks_used_last_are_offered_first():
    pool = pool_of(3)
    number, block = pool.take(NBYTES)
    del block
    assert next(iter(pool.offer())) == number
    assert len(pool.offer()) == 2
