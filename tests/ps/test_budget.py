"""The budget of what is kept for callers: within its limit, whoever holds it; shared out, waited for, given back."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading

import numpy as np
import pytest

from globalstep.errors import ResourceExhaustedError
from globalstep.ps.budget import PATIENCE_SECS, RETRY_SECS, SMALL_BYTES, Account, Budget, Kind, ReplyMemory
from globalstep.ps.server import default_limit_bytes
from globalstep.runtime.clock import SYSTEM_CLOCK, ManualClock

BLOCK = 1 << 20
LASTING = [kind for kind in Kind if kind not in (Kind.REQUEST, Kind.REPLY)]


@pytest.fixture
def budget():
    """Room for messages of three blocks; a manual clock, so that whoever waits is sent away at once."""
    return Budget(4 * BLOCK, ManualClock())


@pytest.fixture
def memory(budget):
    return Account(budget, "somebody")


def test_what_is_given_is_counted_until_the_last_view_of_it_is_gone(budget, memory):
    first = memory.take(BLOCK)
    assert (first.nbytes, first.dtype, budget.used_bytes) == (BLOCK, np.uint8, BLOCK)
    view = np.frombuffer(first.data[100:200], np.int8)
    del first
    address = view.ctypes.data - 100
    assert budget.used_bytes == BLOCK
    del view
    assert budget.used_bytes == 0
    assert memory.take(BLOCK).ctypes.data == address, "the same memory again"


def test_beyond_the_limit_one_waits_and_is_refused_with_a_time_to_come_back(budget, memory):
    held = [memory.take(BLOCK) for _ in range(3)]
    clock, began = budget._clock, budget._clock.monotonic()
    with pytest.raises(
        ResourceExhaustedError,
        match=r"no memory for 1,048,576 bytes of requests of another: 3,145,728 bytes are kept for all callers, of "
        r"3,670,016; somebody has most, 3,145,728 of requests\. The limit is 4,194,304 \(--max",
    ) as raised:
        Account(budget, "another").take(BLOCK)
    assert raised.value.retry_secs == RETRY_SECS
    assert PATIENCE_SECS <= clock.monotonic() - began < PATIENCE_SECS + 1
    assert (budget.refusals, budget.is_short()) == (1, True)
    clock.advance(60.0)
    assert not budget.is_short()
    held.pop()
    assert (memory.take(BLOCK).nbytes, budget._line) == (BLOCK, [])


def test_one_message_larger_than_the_limit_passes_when_no_other_is_under_way(budget, memory):
    lasting = budget.claim(Kind.QUEUE, memory, BLOCK)
    large = memory.take(10 * BLOCK)
    with pytest.raises(ResourceExhaustedError):
        memory.take(BLOCK)
    del large
    assert memory.take(BLOCK).nbytes == BLOCK
    assert budget.used_bytes == lasting.nbytes


def test_one_of_a_kind_is_as_large_as_half_of_what_is_free_and_no_larger():
    most = 4 * BLOCK
    budget = Budget(BLOCK, ManualClock(), available=lambda: 2 * most)
    account = Account(budget)
    asks = [account.take, account.take_at_once, account.claim, ReplyMemory(account).take]
    asks += [lambda nbytes, kind=kind: budget.claim(kind, account, nbytes) for kind in (Kind.SHARED, Kind.PART)]
    for ask in asks:
        with pytest.raises(ResourceExhaustedError, match="no memory for 4,194,305"):
            ask(most + 1)
        ask(most)
    for kind in (Kind.LAYOUT, Kind.QUEUE, Kind.CLIENT):
        assert budget.try_claim(kind, account, BLOCK + 1) is None
    assert budget.used_bytes == 0


def test_replies_do_not_wait_since_the_shard_is_locked_meanwhile(budget, memory):
    buffer = ReplyMemory(memory)
    held = [buffer.take(BLOCK) for _ in range(3)]
    assert [one.nbytes for one in held if one is not None] == [BLOCK] * 3
    began = budget._clock.monotonic()
    with pytest.raises(ResourceExhaustedError):
        buffer.take(BLOCK)
    assert budget._clock.monotonic() == began
    assert buffer.take(100) is None  # anywhere
    assert memory.take(1000).nbytes == 1000  # little is not counted


def test_those_who_wait_are_served_in_the_order_in_which_they_came():
    budget = Budget(BLOCK, SYSTEM_CLOCK, patience_secs=30.0)
    memory = Account(budget)
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
        while len(budget._line) <= number:
            SYSTEM_CLOCK.wait(threading.Event(), 0.001)
    held.clear()
    for thread in threads:
        thread.join(20)
    assert served == [0, 1, 2, 3, 4]
    assert budget.used_bytes == 0


def waiting(budget, *wanted):
    """Have threads wait for so much each, of an account each; gives what each was given, and the threads."""
    given = {}

    def wait(number, nbytes, name):
        try:
            given[number] = Account(budget, name).take(nbytes)
        except ResourceExhaustedError:
            given[number] = None

    threads = []
    for number, (nbytes, name) in enumerate(wanted):
        threads.append(threading.Thread(target=wait, args=(number, nbytes, name), name=f"waits-{number}"))
        threads[-1].start()
        while len(budget._line) <= number:
            SYSTEM_CLOCK.wait(threading.Event(), 0.001)
    return given, threads


def test_who_wants_little_passes_who_waits_for_much_but_not_for_ever():
    budget = Budget(4 * BLOCK, SYSTEM_CLOCK, patience_secs=30.0)
    held = [Account(budget).take(BLOCK) for _ in range(2)]
    given, threads = waiting(budget, (4 * BLOCK, "much"))
    passed = 0
    while (small := Account(budget, f"little {passed}").take_at_once(BLOCK // 2)) is not None:
        passed += 1
        assert passed < 100
        del small
    assert passed == 16
    held.clear()
    threads[0].join(20)
    assert given[0].nbytes == 4 * BLOCK


def test_one_client_has_a_quarter_at_most_while_another_waits():
    budget = Budget(8 * BLOCK, SYSTEM_CLOCK, patience_secs=30.0)
    greedy = Account(budget, "greedy")
    held = [greedy.take(BLOCK) for _ in range(6)]
    given, threads = waiting(budget, (2 * BLOCK, "honest"))
    # There is room for it, and it has more than its share.
    assert greedy.take_at_once(BLOCK // 2) is None
    assert Account(budget, "another").take_at_once(BLOCK // 2) is not None
    held.clear()
    threads[0].join(20)
    assert given[0].nbytes == 2 * BLOCK
    assert greedy.take_at_once(3 * BLOCK) is not None


@pytest.mark.parametrize("kind", LASTING)
def test_a_kind_has_half_and_all_that_last_long_have_three_quarters(budget, kind):
    account, unit = Account(budget, "one"), BLOCK // 2
    held = [budget.claim(kind, account, unit) for _ in range(4)]
    with pytest.raises(ResourceExhaustedError, match=rf"of {kind} of one: {kind} have 2,097,152, and 2,097,152 at"):
        budget.claim(kind, account, unit)
    if kind in (Kind.LAYOUT, Kind.SHARED, Kind.CONTRIBUTION):
        held += [budget.claim(Kind.QUEUE, account, unit) for _ in range(2)]
        with pytest.raises(ResourceExhaustedError, match="all that lasts has 3,145,728, and 3,145,728 at most"):
            budget.claim(Kind.QUEUE, account, unit)
    assert Account(budget, "two").take(unit).nbytes == unit  # messages pass
    held += [budget.claim(other, account, 1000) for other in (Kind.PART, Kind.CLIENT) if other is not kind]


def test_where_there_are_roles_a_worker_has_its_share_and_the_chief_the_rest(budget):
    worker, chief = Account(budget, "worker", limited=True), Account(budget, "chief")
    unit = BLOCK // 2
    held = [budget.claim(Kind.QUEUE, worker, unit) for _ in range(2)]
    with pytest.raises(ResourceExhaustedError, match="it has 1,048,576 of them, and one worker has 1,048,576 at most"):
        budget.claim(Kind.QUEUE, worker, unit)
    held.append(budget.claim(Kind.QUEUE, Account(budget, "another", limited=True), unit))
    blocks = [worker.take(unit) for _ in range(3)]
    with pytest.raises(ResourceExhaustedError, match="of 3,145,728; worker has most"):
        worker.take(unit)
    blocks.append(chief.take(unit))
    assert budget.used_bytes == 7 * unit


def test_what_is_kept_of_a_message_counts_once_as_what_it_is_kept_for(budget, memory):
    data = memory.take(BLOCK)
    small = np.empty(1000, np.uint8)
    claim = budget.keep(Kind.PART, memory, [data[100:200], data.data[:8], small], 24, forced=False)
    assert budget.view()[0] == {"staged parts": BLOCK + 1000 + 24}
    del data
    assert budget.view()[0] == {"staged parts": 1000 + 24}
    del claim
    assert budget.view() == ({}, {})
    data, others = memory.take(2 * BLOCK), budget.claim(Kind.PART, memory, BLOCK)
    assert budget.keep(Kind.PART, memory, [data], 0, forced=False) is None
    assert budget.view()[0] == {"staged parts": others.nbytes, "requests": data.nbytes}


def test_it_tells_who_holds_most():
    budget = Budget(1000)
    held = [budget.claim(Kind.QUEUE, Account(budget, f"c{n}"), n) for n in range(1, 21)]
    held.append(budget.claim(Kind.LAYOUT, Account(budget, "c20"), 7))
    assert budget.view(most=3) == ({"queues": 210, "layouts": 7}, {"c20": 27, "c19": 19, "c18": 18})


def test_a_claim_is_given_back_whoever_holds_the_lock(budget, memory):
    """The garbage collector lets go of things in any thread, also in one that is within the lock."""
    claims = [budget.claim(Kind.SHARED, memory, BLOCK)]
    with budget._lock:
        claims.clear()
    assert budget.used_bytes == 0


def test_a_task_that_is_told_no_limit_has_one():
    assert 64 << 20 <= default_limit_bytes() < 1 << 50


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_it_holds_its_limit_and_comes_back_to_nothing(seed):
    """Random claims, blocks, parts that are kept, refusals, and things that are let go of in any order."""
    rng = random.Random(seed)
    limit = 16 * BLOCK
    budget = Budget(limit, ManualClock(), patience_secs=0.0, available=lambda: 0)
    accounts = [Account(budget, f"c{n}", limited=bool(n % 2)) for n in range(4)]
    held = []
    for _ in range(2000):
        account, nbytes = rng.choice(accounts), rng.randrange(1, 3 * BLOCK)
        blocks = [one for one in held if isinstance(one, np.ndarray)]
        what = rng.randrange(6)
        with contextlib.suppress(ResourceExhaustedError):
            if what == 0:
                held.append(account.take(nbytes))
            elif what == 1:
                held.append(budget.reply(account, nbytes))
            elif what == 2:
                held.append(budget.claim(rng.choice(LASTING), account, nbytes))
            elif what == 3 and blocks:
                kind = rng.choice([Kind.PART, Kind.KEPT])
                held.append(budget.keep(kind, account, [rng.choice(blocks)[:10]], rng.randrange(1000), forced=False))
            elif held:
                held.pop(rng.randrange(len(held)))
        kinds, holders = budget.view()
        assert budget.used_bytes == sum(kinds.values()) == sum(holders.values()) <= limit
        assert budget.used_bytes + sum(block.nbytes for block in budget._idle) <= limit
        assert all(nbytes > 0 for nbytes in (*kinds.values(), *holders.values()))
    assert budget.refusals > 20
    held.clear()
    del blocks
    assert (budget.used_bytes, budget.view(), budget._held) == (0, ({}, {}), {})


def test_memory_of_another_tasks_budget_is_claimed_anew():
    one, other = Budget(1 << 30), Budget(1 << 30)
    block = one.take(Account(one, "a"), 4 * SMALL_BYTES)
    _claim = other.keep(Kind.PART, Account(other, "a"), [block], 0, forced=False)
    assert [one.view()[0], other.view()[0]] == [{"requests": 1 << 18}, {"staged parts": 1 << 18}]


def test_what_a_program_keeps_to_its_very_end_makes_no_noise():
    program = """
import globalstep as tf
from globalstep.tf1.ops import sliding_windows
sliding_windows.later = lambda: None  # which holds the program's names until the package's are gone
v = tf.get_variable("v", [300, 300])
gradient = tf.gradients(tf.reduce_sum(v * v), [v])
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    session.run(gradient)
    kept = session.run(v)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
