"""The memory for what is under way: within its limit, whoever holds it; waited for, and refused at last."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from globalstep.errors import ResourceExhaustedError
from globalstep.ps.service.in_flight import (
    PATIENCE_SECS,
    RETRY_SECS,
    BufferInFlight,
    InFlightMemory,
    default_limit_bytes,
)
from globalstep.runtime.clock import SYSTEM_CLOCK, ManualClock

BLOCK = 1 << 20


@pytest.fixture
def memory():
    """Room for three blocks; a manual clock, so that whoever waits is sent away at once."""
    return InFlightMemory(3 * BLOCK, ManualClock())


def test_what_is_given_is_counted_until_the_last_view_of_it_is_gone(memory):
    first = memory.take(BLOCK)
    assert (first.nbytes, first.dtype, memory.used_bytes) == (BLOCK, np.uint8, BLOCK)
    view = np.frombuffer(first.data[100:200], np.int8)
    del first
    assert memory.used_bytes == BLOCK
    del view
    assert memory.used_bytes == 0


def test_it_is_given_again(memory):
    address = memory.take(BLOCK).ctypes.data
    assert memory.take(BLOCK).ctypes.data == address


def test_beyond_the_limit_one_waits_and_is_refused_with_a_time_to_come_back(memory):
    held = [memory.take(BLOCK) for _ in range(3)]
    clock = memory._clock
    began = clock.monotonic()
    with pytest.raises(ResourceExhaustedError, match="--max-inflight-bytes") as raised:
        memory.take(BLOCK)
    assert raised.value.retry_secs == RETRY_SECS
    assert PATIENCE_SECS <= clock.monotonic() - began < PATIENCE_SECS + 1
    assert memory.refusals == 1
    held.pop()
    assert memory.take(BLOCK).nbytes == BLOCK


def test_little_is_not_counted(memory):
    held = [memory.take(1000) for _ in range(10_000)]
    assert len(held) == 10_000
    assert memory.used_bytes == 0


def test_one_message_larger_than_the_limit_passes_when_nothing_else_is_under_way(memory):
    large = memory.take(10 * BLOCK)
    with pytest.raises(ResourceExhaustedError):
        memory.take(BLOCK)
    del large
    assert memory.take(BLOCK).nbytes == BLOCK


def test_what_lies_idle_is_within_the_limit_too(memory):
    sizes = [BLOCK, BLOCK + BLOCK // 4, BLOCK // 2, BLOCK * 2, BLOCK * 3]
    for size in sizes * 3:
        memory.take(size)
        assert sum(block.nbytes for block in memory._blocks) <= 3 * BLOCK


def test_those_who_wait_are_served_in_the_order_in_which_they_came():
    memory = InFlightMemory(BLOCK, SYSTEM_CLOCK, patience_secs=30.0)
    held = [memory.take(BLOCK)]
    served = []
    lock = threading.Lock()

    def wait(number):
        block = memory.take(BLOCK)
        with lock:
            served.append(number)
        del block

    threads = []
    for number in range(5):
        threads.append(threading.Thread(target=wait, args=(number,), name=f"waits-{number}"))
        threads[-1].start()
        while len(memory._waiting) <= number:
            SYSTEM_CLOCK.wait(threading.Event(), 0.001)
    held.clear()
    for thread in threads:
        thread.join(20)
    assert served == [0, 1, 2, 3, 4]
    assert memory.used_bytes == 0


def test_replies_do_not_wait_since_the_shard_is_locked_meanwhile(memory):
    buffer = BufferInFlight(memory)
    held = [buffer.take(BLOCK) for _ in range(3)]
    assert [one.nbytes for one in held if one is not None] == [BLOCK] * 3
    began = memory._clock.monotonic()
    with pytest.raises(ResourceExhaustedError):
        buffer.take(BLOCK)
    assert memory._clock.monotonic() == began
    assert buffer.take(100) is None  # anywhere


def test_shared_memory_has_a_limit_of_its_own(memory):
    assert [memory.share(BLOCK) for _ in range(5)] == [True, True, True, False, False]
    memory.unshare(BLOCK)
    assert memory.share(BLOCK)
    assert InFlightMemory(1, ManualClock()).share(BLOCK)  # the first one, always


def test_a_finalizer_gives_shared_memory_back_whoever_holds_the_lock(memory):
    """The garbage collector runs finalizers in any thread, also in one that is within the lock."""
    assert memory.share(3 * BLOCK)
    with memory._lock:
        memory.unshare(3 * BLOCK)
    assert memory.share(3 * BLOCK)


def test_a_task_that_is_told_no_limit_has_one():
    assert 64 << 20 <= default_limit_bytes() < 1 << 50


def waiting(memory, *wanted):
    """Threads that wait for so much each, of a holder each; gives what they were given, by number, and the threads."""
    given = {}

    def wait(number, nbytes, holder):
        try:
            given[number] = memory.take(nbytes, holder)
        except ResourceExhaustedError:
            given[number] = None

    threads = []
    for number, (nbytes, holder) in enumerate(wanted):
        threads.append(threading.Thread(target=wait, args=(number, nbytes, holder), name=f"waits-{number}"))
        threads[-1].start()
        while len(memory._waiting) <= number:
            SYSTEM_CLOCK.wait(threading.Event(), 0.001)
    return given, threads


def test_who_wants_little_passes_who_waits_for_much_but_not_for_ever():
    memory = InFlightMemory(4 * BLOCK, SYSTEM_CLOCK, patience_secs=30.0)
    held = [memory.take(BLOCK) for _ in range(2)]
    given, threads = waiting(memory, (4 * BLOCK, "much"))
    passed = 0
    while (small := memory.take_at_once(BLOCK // 2, f"little {passed}")) is not None:
        passed += 1
        assert passed < 100
        del small
    assert passed == 16
    held.clear()
    threads[0].join(20)
    assert given[0].nbytes == 4 * BLOCK


def test_one_connection_has_a_quarter_at_most_while_another_waits():
    memory = InFlightMemory(8 * BLOCK, SYSTEM_CLOCK, patience_secs=30.0)
    greedy = [memory.take(BLOCK, "greedy") for _ in range(7)]
    given, threads = waiting(memory, (2 * BLOCK, "honest"))
    # There is room for it, and it has more than its share.
    assert memory.take_at_once(BLOCK // 2, "greedy") is None
    assert memory.take_at_once(BLOCK // 2, "another") is not None
    greedy.clear()
    threads[0].join(20)
    assert given[0].nbytes == 2 * BLOCK
    assert memory.take_at_once(3 * BLOCK, "greedy") is not None


def test_who_gave_up_waiting_holds_nothing():
    memory = InFlightMemory(BLOCK, SYSTEM_CLOCK, patience_secs=0.05)
    held = memory.take(BLOCK)
    given, threads = waiting(memory, (BLOCK, "one"))
    threads[0].join(20)
    assert given == {0: None}
    del held
    assert memory.used_bytes == 0
    assert not memory._waiting
