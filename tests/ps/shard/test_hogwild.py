"""Pushes race where the policy says so; identity, order, steps and snapshots stay exact all the same."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from globalstep.cluster.run_policy import RunPolicy
from globalstep.ps.ledger.ledger import EntryKind
from globalstep.ps.local import LocalPS
from globalstep.ps.shard import events
from globalstep.ps.shard.hogwild import Gate
from globalstep.ps.shard.layouts import PushParts
from globalstep.ps.shard.shard import Shard
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.wire.declarations import (
    Increment,
    Op,
    OpKind,
    OptimizerDecl,
    OptimizerUse,
    Push,
    PushId,
    Read,
    VariableDecl,
)
from globalstep.wire.expressions import constant
from globalstep.worker.client.client import ClusterClient

WAIT_SECS = 30.0
SIZE = 20_000
UP = Increment("step")


@pytest.fixture
def racing():
    return begun(Shard(SYSTEM_CLOCK), RunPolicy(hogwild=True))


def begun(shard, policy, names=("a", "b")):
    """A shard with a step and two Variables of zeros, trained with a learning rate of -1."""
    shard.handle(events.Begin(1, shard=0, shards=1, sequencer=0, owner="chief", opened=True, policy=policy))
    decls = [
        VariableDecl("step", "int64", (), is_step=True),
        *(VariableDecl(name, "float32", (SIZE,)) for name in names),
    ]
    decl = OptimizerDecl("o", "gradient_descent", {"learning_rate": constant(-1.0)}, dict.fromkeys(names, ()))
    shard.handle(events.Declare(1, "chief", decls, [decl]))
    parts = PushParts([Op(OpKind.ASSIGN, d.name, fill=0.0) for d in decls])
    shard.handle(events.Push(1, PushId("chief", 1), parts, (), (), {}))
    return shard


def add_one(shard, client, number, name, reads=()):
    """Push ones to a Variable, and count one."""
    op = Op(OpKind.APPLY, name, np.ones(SIZE, np.float32), optimizer="o")
    parts = PushParts([op], [Read(read) for read in reads])
    return shard.handle(events.Push(1, PushId(client, number), parts, [UP], [OptimizerUse("o")], {}))


class Held:
    """Holds up applies of a shard between their changes and their end."""

    def __init__(self, shard, monkeypatch, expected=1):
        self.inside = threading.Barrier(expected + 1, timeout=WAIT_SECS)
        self.go = threading.Event()
        make_changes = shard._applier.make_changes

        def held_up(now, parts, hypers):
            made = make_changes(now, parts, hypers)
            if not self.go.is_set():
                self.inside.wait()
                assert self.go.wait(WAIT_SECS)
            return made

        monkeypatch.setattr(shard._applier, "make_changes", held_up)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as threads:
        yield threads


def test_two_pushes_are_applied_at_the_same_time(racing, pool, monkeypatch):
    held = Held(racing, monkeypatch, expected=2)
    pushes = [pool.submit(add_one, racing, client, 1, "a", ["step"]) for client in ("one", "two")]
    held.inside.wait()  # both are in the middle of it
    held.go.set()
    outcomes = sorted((push.result(WAIT_SECS) for push in pushes), key=lambda admission: admission.outcome.index)
    assert [admission.outcome.steps["step"] for admission in outcomes] == [1, 2]
    # What a push reads of the step is the step right after itself, though both were counted before either read.
    assert [int(admission.answer.values[0]) for admission in outcomes] == [1, 2]


def test_without_the_policy_one_waits_for_the_other(pool, monkeypatch):
    shard = begun(Shard(SYSTEM_CLOCK), RunPolicy())
    held = Held(shard, monkeypatch)
    first = pool.submit(add_one, shard, "one", 1, "a")
    held.inside.wait()
    second = pool.submit(add_one, shard, "two", 1, "a")
    assert shard._lock.locked()
    assert not second.done()
    held.go.set()
    assert {first.result(WAIT_SECS).outcome.index, second.result(WAIT_SECS).outcome.index} == {2, 3}


def test_a_snapshot_waits_for_applies_and_holds_them_whole(racing, pool, monkeypatch):
    held = Held(racing, monkeypatch)
    pushing = pool.submit(add_one, racing, "one", 1, "a")
    held.inside.wait()
    cut = PushId("saver", 1)
    cutting = pool.submit(racing.handle, events.Admit(1, cut, EntryKind.SNAPSHOT, [0], (), (), {}))
    late = None
    while not racing._racing.gate._queue:  # the snapshot stands in the queue
        threading.Event().wait(0.001)
    late = pool.submit(add_one, racing, "two", 1, "b")  # and this push behind it
    assert not cutting.done()
    held.go.set()
    assert cutting.result(WAIT_SECS).outcome.steps["step"] == 1
    pushing.result(WAIT_SECS)
    late.result(WAIT_SECS)
    values, _ = racing.handle(events.ReadSnapshot(1, cut))
    assert int(values["step"]) == 1
    np.testing.assert_array_equal(values["a"], np.ones(SIZE))
    np.testing.assert_array_equal(values["b"], np.zeros(SIZE))


def test_a_step_that_is_read_counts_applied_pushes_only(racing, pool, monkeypatch):
    held = Held(racing, monkeypatch)
    pushing = pool.submit(add_one, racing, "one", 1, "a")
    held.inside.wait()
    reading = pool.submit(racing.handle, events.Pull(1, "two", [Read("step"), Read("a")]))
    asking = pool.submit(racing.handle, events.GetSteps(1))
    assert not reading.done()
    assert not asking.done()
    held.go.set()
    (step, a), _ = reading.result(WAIT_SECS)
    assert (int(step), asking.result(WAIT_SECS)) == (1, {"step": 1})
    np.testing.assert_array_equal(a, np.ones(SIZE))
    pushing.result(WAIT_SECS)


def test_a_retry_of_a_push_under_way_hears_what_the_first_hears(racing, pool, monkeypatch):
    held = Held(racing, monkeypatch)
    first = pool.submit(add_one, racing, "one", 1, "a", ["a"])
    held.inside.wait()
    again = pool.submit(add_one, racing, "one", 1, "a", ["a"])
    held.go.set()
    one, two = first.result(WAIT_SECS), again.result(WAIT_SECS)
    assert (one.outcome.index, one.outcome.duplicate) == (two.outcome.index, False)
    assert two.outcome.duplicate
    for admission in (one, two):
        np.testing.assert_array_equal(admission.answer.values[0], np.ones(SIZE))


def test_a_push_that_is_wrong_changes_nothing_and_holds_up_nobody(racing):
    with pytest.raises(Exception, match="no step|not a step"):
        racing.handle(events.Push(1, PushId("one", 1), PushParts(), [Increment("nothing")], (), {}))
    assert add_one(racing, "one", 2, "a").outcome.steps == {"step": 1}
    assert not racing._applier.deferred


@pytest.mark.parametrize("layout", [None, "same"])
def test_steps_are_exact_and_no_snapshot_is_torn(layout):
    """Four clients, each with a Variable of its own; another one saves, pulls and assigns meanwhile."""
    ps = LocalPS()
    names = [f"v{i}" for i in range(4)]
    rounds = 60
    with_policy = [ClusterClient(ps.transports(), policy=RunPolicy(hogwild=True)) for _ in range(5)]
    chief = with_policy[-1]
    try:
        chief.begin(open=True)
        decls = [VariableDecl("step", "int64", (), is_step=True), VariableDecl("noise", "float32", ())]
        decls += [VariableDecl(name, "float32", (SIZE,)) for name in names]
        slots = dict.fromkeys(names, ())
        chief.declare(decls, [OptimizerDecl("o", "gradient_descent", {"learning_rate": constant(-1.0)}, slots)])
        chief.push(Push([Op(OpKind.ASSIGN, decl.name, fill=0.0) for decl in decls]))
        assert ps.controls[0].handler.shard.view().policy.hogwild

        def work(client, name):
            for number in range(1, rounds + 1):
                op = Op(OpKind.APPLY, name, np.ones(SIZE, np.float32), optimizer="o")
                push = Push([op], [Increment("step")], [OptimizerUse("o")], [Read(name), Read("step")], layout=layout)
                value, step = client.push(push).values
                assert np.all(value == number)
                assert int(step) >= number

        with ThreadPoolExecutor(4) as threads:
            working = [threads.submit(work, *each) for each in zip(with_policy, names, strict=False)]
            seen = 0
            while not all(future.done() for future in working):
                with chief.snapshot() as cut:
                    values = dict(zip(names, cut.read(names), strict=True))
                    assert all(np.all(value == value[0]) for value in values.values())
                    assert sum(int(value[0]) for value in values.values()) == cut.steps["step"]
                (step,) = chief.pull([Read("step")])
                assert int(step) >= max(seen, cut.steps["step"])
                seen = int(step)
                chief.push(Push([Op(OpKind.ASSIGN_ADD, "noise", np.float32(1.0))]))
            for future in working:
                future.result()
        assert chief.global_steps() == {"step": 4 * rounds}
        for value in chief.pull([Read(name) for name in names]):
            np.testing.assert_array_equal(value, np.full(SIZE, rounds))
    finally:
        for client in with_policy:
            client.close()


def test_the_gate_lets_nobody_overtake():
    """Who waits to be alone is not passed by those who come later, nor they by the next who wants to be alone."""
    gate, order, inside = Gate(), [], threading.Event()
    threads = []

    def enter(kind, name):
        with getattr(gate, kind)():
            order.append(name)

    def start(kind, name):
        before = len(gate._queue)
        threads.append(threading.Thread(target=enter, args=(kind, name), name=f"test-{name}"))
        threads[-1].start()
        while len(gate._queue) == before:
            inside.wait(0.001)

    with gate.together():
        for kind, name in [("alone", "1"), ("together", "2"), ("together", "3"), ("alone", "4"), ("together", "5")]:
            start(kind, name)
        assert order == []
    for thread in threads:
        thread.join(WAIT_SECS)
    assert [sorted(order[1:3]), *order[:1], *order[3:]] == [["2", "3"], "1", "4", "5"]
