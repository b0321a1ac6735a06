"""Pushes that only count, admitted together, come out as they would one after another."""

from __future__ import annotations

import random

import numpy as np
import pytest

from globalstep.cluster.run_policy import RunPolicy
from globalstep.ps.shard import events
from globalstep.ps.shard.layouts import PushParts
from globalstep.ps.shard.shard import Shard
from globalstep.runtime.clock import ManualClock
from globalstep.wire.declarations import Increment, Op, OpKind, PushId, Read, StopLimit, VariableDecl

STEPS = ("a", "b")


def shard_of_steps(policy=None, last_step=None):
    """A shard with two steps at 0."""
    shard = Shard(ManualClock())
    shard.handle(
        events.Begin(1, shard=0, shards=1, sequencer=0, owner="chief", opened=True, policy=policy or RunPolicy())
    )
    decls = [VariableDecl(name, "int64", (), is_step=True) for name in STEPS]
    shard.handle(events.Declare(1, "chief", decls, []))
    assigns = PushParts([Op(OpKind.ASSIGN, name, fill=0.0) for name in STEPS])
    shard.handle(events.Push(1, PushId("chief", 1), assigns, (), (), {}))
    if last_step is not None:
        shard.handle(events.Open(1, "chief", [StopLimit("a", last_step=last_step)]))
    return shard


def one_by_one(shard, pushes):
    """The same by `push`."""
    out = []
    for item in pushes:
        try:
            out.append(shard.handle(item).outcome)
        except Exception as error:
            out.append(error)
    return out


def told(outcomes):
    return [(type(item), str(item)) if isinstance(item, Exception) else item for item in outcomes]


def values(shard):
    return [int(value) for value in shard.handle(events.Pull(1, "chief", [Read(name) for name in STEPS])).values]


def some_pushes(rng, sequences, count):
    """New ones, retries, wrong ones."""
    out = []
    for _ in range(count):
        client = rng.choice("xyz")
        fresh = rng.random() < 0.8
        sequences[client] += fresh
        sequence = sequences[client] if fresh else max(1, sequences[client] - rng.randrange(3))
        names = rng.choice([["a"], ["b"], ["a", "b"], ["nobody's"]])
        increments = [Increment(name, rng.choice([1, 1, 1, 2, 0])) for name in names]
        seen = {} if rng.random() < 0.5 else {"a": rng.randrange(5)}
        push = PushId(client, sequence)
        out.append(events.Push(rng.choice([1, 1, 1, 1, 2]), push, PushParts(), increments, (), seen))
    return out


@pytest.mark.parametrize("policy", [RunPolicy(), RunPolicy(staleness="drop", max_staleness=3)])
@pytest.mark.parametrize("seed", range(20))
def test_together_and_one_by_one_are_the_same(seed, policy):
    rng = random.Random(seed)
    last_step = rng.choice([None, 5, 30])
    together, singly = shard_of_steps(policy, last_step), shard_of_steps(policy, last_step)
    sequences = dict.fromkeys("xyz", 0)
    for _ in range(12):
        pushes = some_pushes(rng, sequences, rng.randrange(1, 8))
        assert told(together.handle(events.CountTogether(pushes))) == told(one_by_one(singly, pushes))
        assert values(together) == values(singly)
        assert together.handle(events.GetSteps(1)) == singly.handle(events.GetSteps(1))
    assert together.view() == singly.view()
    assert together.now.ledger.dumped_later()() == singly.now.ledger.dumped_later()()


def test_what_was_kept_of_a_clients_reads_is_let_go():
    shard = shard_of_steps()
    shard.handle(events.Push(1, PushId("x", 1), PushParts(reads=[Read("a")]), [Increment("a")], (), {}))
    assert "x" in shard.now.replies.by_client
    shard.handle(events.CountTogether([events.Push(1, PushId("x", 2), PushParts(), [Increment("a")], (), {})]))
    assert "x" not in shard.now.replies.by_client
    np.testing.assert_array_equal(values(shard), [2, 0])
