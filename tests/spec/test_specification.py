"""The specification stands by itself, and keeps the promises of the protocol's page where a reader would look first."""

from __future__ import annotations

import ast
import sys
from dataclasses import replace

import push_protocol as spec
import pytest
from product_code import ROOT

_SOURCE = ROOT / "spec" / "push_protocol.py"
_A, _B = spec.PushId("a", 1), spec.PushId("b", 1)
_ASKED = spec.Asked((spec.Increment("step"),), uses_optimizer=True)


def _run():
    def rule(values, name, grad, numbers):
        return {**values, name: tuple(value - numbers[0] * g for value, g in zip(values[name], grad, strict=True))}

    return spec.Run(0, lambda steps: (steps["step"] + 1.0,), rule)


def _begun(limit=10):
    """Two shards, each with a Variable of one element that is 0."""
    shards = [spec.begin(spec.Shard(_run(), at), 1, "chief", opened=True) for at in (0, 1)]
    shards[0] = spec.open_to_all(spec.declare(shards[0], ["step"]), {"step": limit})
    return [replace(shard, values={f"w{shard.at}": (0.0,)}) for shard in shards]


def _part(at):
    return spec.Part((spec.Change("gradient", f"w{at}", (1.0,)),), (f"w{at}",))


def _staged(shards, push):
    """Have the other shard keep its part; the sequencer's comes with the push."""
    return [shards[0], spec.stage(shards[1], push, _part(1))]


def _pushed(sequencer, push):
    return spec.push(sequencer, push, _part(0), (1,), _ASKED)


def _holds(sequencer, other):
    return spec.exactly_once(sequencer) and spec.in_order(sequencer, other) and spec.stops(sequencer)


def test_it_is_plain_python_without_a_library_or_the_product():
    modules = set()
    for node in ast.walk(ast.parse(_SOURCE.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add(node.module)
    assert {module.split(".")[0] for module in modules} <= sys.stdlib_module_names
    assert [path.name for path in _SOURCE.parent.rglob("*.py")] == [_SOURCE.name]


def test_it_is_read_in_a_quarter_of_an_hour():
    assert sum(bool(line.strip()) for line in _SOURCE.read_text().splitlines()) <= 500


def test_a_push_over_two_shards_counts_once_and_is_visible_when_both_have_it():
    first, second = _staged(_begun(), _A)
    first, (outcome, told, answer) = _pushed(first, _A)
    assert (outcome.index, outcome.steps, answer.values) == (1, {"step": 1}, ((-1.0,),))
    again, (retried, *_) = _pushed(first, _A)
    assert (retried, again.book) == (outcome, first.book)
    assert spec.pull(first, ["step"]) == ((0.0,),)
    second, answer = spec.commit(second, _A, told[1])
    assert answer == spec.Answer(((-1.0,),), 1)
    first = spec.raise_floors(first, {1: second.applied})
    assert spec.pull(first, ["step"]) == ((1.0,),)
    assert _holds(first, second)


def test_a_worker_that_dies_after_its_push_is_decided_is_finished_by_the_next_one():
    first, second = _staged(_staged(_begun(), _A), _B)
    first, _ = _pushed(first, _A)
    first, (_, told, _) = _pushed(first, _B)
    with pytest.raises(spec.Refused, match="ABORTED"):
        spec.commit(second, _B, told[1][1:])
    second, _ = spec.commit(second, _B, told[1])
    assert (first.values, second.values) == ({"w0": (-3.0,)}, {"w1": (-3.0,)})
    assert _holds(first, second)


def test_what_settle_has_fenced_is_admitted_by_no_late_copy():
    first, second = _staged(_begun(), _A)
    first, told = spec.settle(first, [_A], 1)
    second = spec.settled(second, [_A], told)
    first, (outcome, *_) = _pushed(first, _A)
    assert (outcome.kind, first.book.steps, second.staged) == (spec.ABANDONED, {"step": 0}, {})


def test_no_push_moves_a_step_beyond_its_limit():
    first, second = _staged(_staged(_begun(limit=1), _A), _B)
    first, _ = _pushed(first, _A)
    first, (outcome, *_) = _pushed(first, _B)
    assert outcome.kind == spec.REFUSED_DONE
    assert _holds(first, second)


def test_a_shard_that_lost_its_state_serves_nothing():
    first = spec.lose(_begun()[0])
    with pytest.raises(spec.Refused, match="LOST"):
        spec.check(first, 1, "a")
    assert spec.monotone(_begun()[0], first)
