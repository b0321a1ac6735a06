"""A push that several threads share leaves what one thread leaves, bit for bit."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from globalstep.ps.server import PSOptions, PSServer
from globalstep.ps.store import arena, cores
from globalstep.ps.store.arena import ApplySpan
from globalstep.ps.store.cores import Cores
from globalstep.rules import get_rule
from globalstep.runtime.clock import SYSTEM_CLOCK

HYPERS = {
    "learning_rate": 0.1, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "beta1_power": 0.9, "beta2_power": 0.999,
    "l1_regularization_strength": 0.01, "l2_regularization_strength": 0.01, "weight_decay": 0.0,
}  # fmt: skip


@pytest.fixture
def four():
    made = Cores(4)
    yield made
    made.close()


def applied(kind, threads, leaves, monkeypatch, dtype=np.float32):
    """Values, slots and data after a push of an odd number of elements."""
    monkeypatch.setattr(arena, "WORTH_BYTES", 0)
    monkeypatch.setattr(arena, "_PIECE", 1 << 10)
    monkeypatch.setattr(arena, "_BLOCK", 300)
    rule = get_rule(kind)
    count = 10_001
    rng = np.random.default_rng(7)
    values, *slots = (rng.random(count).astype(dtype) for _ in range(1 + len(rule.slots)))
    data = bytearray(rng.normal(size=count).astype(dtype).tobytes())
    run = ApplySpan(rule, ("o", False), values, tuple(slots), 0, count, leaves)
    run.apply(run.bound.numbers(HYPERS), memoryview(data), threads)
    return values, slots, np.frombuffer(data, dtype)


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("kind", ["gradient_descent", "adam", "proximal_adagrad", "lamb"])
def test_shared_work_is_bit_identical(kind, leaves, four, monkeypatch):
    one = applied(kind, cores.ONE_CORE, leaves, monkeypatch)
    several = applied(kind, four, leaves, monkeypatch)
    np.testing.assert_array_equal(several[0], one[0])
    np.testing.assert_array_equal(several[2], one[2])
    for slot, expected in zip(several[1], one[1], strict=True):
        np.testing.assert_array_equal(slot, expected)
    if leaves:
        np.testing.assert_array_equal(several[2], several[0])


def test_an_overflow_on_a_helper_is_inf_and_no_warning(four, monkeypatch):
    monkeypatch.setattr(arena, "WORTH_BYTES", 0)
    monkeypatch.setattr(arena, "_PIECE", 16)
    rule = get_rule("gradient_descent")
    values = np.full(4096, 6e4, np.float16)  # plain numpy, which would warn
    grad = np.full(4096, -6e4, np.float16)
    run = ApplySpan(rule, ("o", False), values, (), 0, 4096)
    run.apply(run.bound.numbers({"learning_rate": 1.0}), memoryview(grad.view(np.uint8)), four)
    assert np.all(np.isinf(values))


def test_every_piece_is_done_once_and_by_more_than_one_thread():
    made = Cores(3)
    everybody = threading.Barrier(3, timeout=30.0)
    done, by = [], set()

    def work(number):
        if number < 3:
            everybody.wait()  # each of the first three is another thread's
        done.append(number)
        by.add(threading.current_thread().name)

    made.share(work, 100)
    made.close()
    assert sorted(done) == list(range(100))
    assert len(by) == 3
    assert {name[:16] for name in by} >= {"globalstep-apply"}


def test_an_error_of_a_helper_comes_to_the_caller_after_all_have_stopped():
    made = Cores(2)
    both = threading.Barrier(2, timeout=30.0)
    caller = threading.current_thread()

    def work(number):
        both.wait()
        if threading.current_thread() is not caller:
            raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        made.share(work, 2)
    made.close()


def test_threads_start_with_the_first_shared_work_and_end_with_close():
    def helpers():
        return [thread for thread in threading.enumerate() if thread.name.startswith("globalstep-apply")]

    made = Cores(2)
    assert helpers() == []
    made.share(lambda number: None, 1)
    assert helpers() == []
    made.share(lambda number: None, 8)
    made.close()
    assert helpers() == []


def test_a_server_has_the_threads_it_was_given_and_ends_them():
    server = PSServer(PSOptions(apply_threads=3), clock=SYSTEM_CLOCK)
    assert server.shard.resources.cores.threads == 3
    server.start()
    server.shard.resources.cores.share(lambda number: None, 8)
    server.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("globalstep-apply")]


def test_no_thread_at_all_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        Cores(0)
