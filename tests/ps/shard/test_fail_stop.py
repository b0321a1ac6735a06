"""What `check` passes applies; and what fails all the same takes the shard out of service, never half of it stays."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from globalstep import rules
from globalstep.cluster.run_policy import RunPolicy
from globalstep.errors import (
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    LostStateError,
    NotFoundError,
    OpError,
    ResourceExhaustedError,
)
from globalstep.ps.ledger.ledger import Entry, EntryKind, HyperValues
from globalstep.ps.members.presence import State
from globalstep.ps.shard import events
from globalstep.ps.shard.event_log import NO_LOG, EventLog
from globalstep.ps.shard.layouts import PushParts
from globalstep.ps.shard.resources import FailStop
from globalstep.ps.shard.shard import Shard
from globalstep.ps.store import snapshots, store
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.runtime.faults import APPLY, BEFORE
from globalstep.wire.declarations import Increment, Op, OpKind, OptimizerDecl, OptimizerUse, PushId, Read, VariableDecl
from globalstep.wire.expressions import constant

DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32"]
DTYPES += ["float64", "complex64", "complex128"]
SHAPES = [(), (0,), (3,), (2, 0), (4, 3), (2, 2, 2)]
KINDS = sorted(rules.BUILT_IN)
UP = Increment("step")
#: What says that nothing was changed.
REFUSED = (InvalidArgumentError, NotFoundError, FailedPreconditionError)


class Recording(EventLog):
    """Remembers what a log would."""

    def __init__(self):
        self.told = []

    def append(self, event):
        if isinstance(event, events.Decided):
            self.told.append(event.push)
        elif isinstance(event, events.Applied):
            self.told += [*(entry.push for entry in event.entries), *event.dropped]


def begun(shard=None, policy=None, sequencer=0, log=None):
    shard = shard or Shard(SYSTEM_CLOCK)
    begin = events.Begin(
        1, shard=0, shards=1 + sequencer, sequencer=sequencer, owner="chief", opened=True,
        policy=policy or RunPolicy(), log=log or NO_LOG,
    )  # fmt: skip
    shard.handle(begin)
    return shard


def small(policy=None, log=None):
    """A shard with a step and two Variables, one of them trained."""
    shard = begun(policy=policy, log=log)
    decls = [VariableDecl("step", "int64", (), is_step=True), *(VariableDecl(n, "float32", (2,)) for n in "ab")]
    shard.handle(
        events.Declare(
            1, "chief", decls, [OptimizerDecl("o", "gradient_descent", {"learning_rate": constant(1.0)}, {"a": ()})]
        )
    )
    shard.handle(
        events.Push(1, PushId("chief", 1), PushParts([Op(OpKind.ASSIGN, d.name, fill=0.0) for d in decls]), (), (), {})
    )
    return shard


def ones(shard, number=1, reads=()):
    op = Op(OpKind.APPLY, "a", np.ones(2, np.float32), optimizer="o")
    parts = PushParts([op], [Read(name) for name in reads])
    return shard.handle(events.Push(1, PushId("worker", number), parts, [UP], [OptimizerUse("o")], {}))


def failing(monkeypatch, error):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(store.VariableStore, "apply", fail)
    monkeypatch.setattr(store.VariableStore, "apply_plan", fail)


# ---- What check passes applies ----------------------------------------------------------------


def operands(rng, dtype, shape):
    """Give every way to say with what: dense, some rows, one number, another Variable; good ones and bad ones."""
    kind = np.dtype(dtype).kind

    def values(of):
        if kind == "b":
            return rng.integers(0, 2, of).astype(dtype)
        return (rng.normal(size=of) * 5).astype(dtype)

    yield {"value": values(shape)}
    yield {"value": values((*shape, 1))}
    yield {"value": np.zeros(shape, "float32" if dtype != "float32" else "float64")}
    for fill in (0.0, 1.0, -1.0, 0.5, 1e30, float("nan"), float("inf")):
        yield {"fill": fill}
    yield {"source": "other"}
    yield {"source": "twin"}
    yield {}
    for indices in ([], [0], [0, 0], [1, 0, 1], [99], [-1]):
        rows = np.array(indices, np.int64)
        yield {"indices": rows, "value": values((len(rows), *shape[1:]))}
        yield {"indices": rows, "fill": 1.0}
        yield {"indices": rows, "source": "twin"}
        yield {"indices": rows.astype(np.int32), "value": values((len(rows), *shape[1:]))}
        yield {"indices": rows.reshape(1, -1), "value": values((1, len(rows), *shape[1:]))}


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_change_that_is_not_refused_applies(dtype):
    rng = np.random.default_rng(5)
    done = 0
    for shape, kind in itertools.product(SHAPES, OpKind):
        shard = begun()
        slots = tuple(f"x/{slot}" for slot in rules.get_rule("adam").slots)
        decls = [VariableDecl(name, dtype, shape) for name in ("x", "twin", *slots)]
        decls += [
            VariableDecl("other", "uint16", (5,)),
            VariableDecl("p1", "float32", ()),
            VariableDecl("p2", "float32", ()),
        ]
        hypers = dict.fromkeys(rules.get_rule("adam").hypers, constant(0.5))
        trained = np.dtype(dtype).kind == "f"
        optimizers = [OptimizerDecl("o", "adam", hypers, {"x": slots}, ("p1", "p2"))] if trained else []
        shard.handle(events.Declare(1, "chief", decls, optimizers))
        start = PushParts([Op(OpKind.ASSIGN, decl.name, fill=1.0) for decl in decls])
        shard.handle(events.Push(1, PushId("chief", 1), start, (), (), {}))
        for number, operand in enumerate(operands(rng, dtype, shape)):
            op = Op(kind, "x", optimizer="o" if kind is OpKind.APPLY else "", **operand)
            uses = [OptimizerUse("o")] if kind is OpKind.APPLY else []
            parts = PushParts([op], [Read("x")])
            try:
                shard.handle(events.Push(1, PushId("worker", number + 1), parts, (), uses, {}))
            except REFUSED:
                continue
            done += 1
    assert done > 50


@pytest.mark.parametrize("kind", KINDS)
def test_every_rule_applies_what_is_not_refused(kind):
    rng, rule = np.random.default_rng(7), rules.get_rule(kind)
    done = 0
    for dtype, shape in itertools.product(["float16", "float32", "float64"], [(), (0,), (4,), (4, 3), (4, 0)]):
        if rule.by_rows and len(shape) < 2:
            continue
        shard = begun()
        slots = tuple(f"x/{slot}" for slot in rule.slots)
        scalars = tuple(f"s/{scalar}" for scalar in rule.scalars)
        decls = [VariableDecl(name, dtype, shape) for name in ("x", "g")]
        decls += [VariableDecl(name, dtype, (shape[0], 1) if rule.by_rows else shape) for name in slots]
        decls += [VariableDecl(name, "float32", ()) for name in scalars]
        shard.handle(events.Declare(1, "chief", decls, [OptimizerDecl("o", kind, {}, {"x": slots}, scalars)]))
        start = PushParts([Op(OpKind.ASSIGN, decl.name, fill=0.5) for decl in decls])
        shard.handle(events.Push(1, PushId("chief", 1), start, (), (), {}))
        shard.handle(
            events.Push(1, PushId("chief", 2), PushParts([Op(OpKind.ASSIGN, "g", fill=float("inf"))]), (), (), {})
        )
        rows = np.array([1, 0, 1], np.int64)
        gradients = [{"value": np.asarray(rng.normal(size=shape), dtype)}, {"fill": 2.0}, {"source": "g"}]
        gradients += [{"value": np.full(shape, np.nan, dtype)}, {"value": np.full(shape, np.finfo(dtype).max, dtype)}]
        gradients += [{"indices": rows, "value": np.ones((3, *shape[1:]), dtype)}]
        numbers = [0.0, -0.0, 0.5, -1.0, 1.0, 1e300, -1e300, float("inf"), 5e-324]
        for number, (gradient, value) in enumerate(itertools.product(gradients, numbers)):
            op = Op(OpKind.APPLY, "x", optimizer="o", **gradient)
            use = OptimizerUse("o", overrides=dict.fromkeys(rule.hypers, value))
            try:
                shard.handle(events.Push(1, PushId("worker", number + 1), PushParts([op], [Read("x")]), (), [use], {}))
            except REFUSED:
                continue
            done += 1
    assert done > 20


@pytest.mark.parametrize("kind", [OpKind.ASSIGN_ADD, OpKind.ASSIGN_SUB])
def test_nothing_is_added_to_a_bool(kind):
    shard = begun()
    shard.handle(events.Declare(1, "chief", [VariableDecl("x", "bool", (2,))], []))
    shard.handle(events.Push(1, PushId("chief", 1), PushParts([Op(OpKind.ASSIGN, "x", fill=1.0)]), (), (), {}))
    with pytest.raises(InvalidArgumentError, match="'x' is bool"):
        shard.handle(events.Push(1, PushId("chief", 2), PushParts([Op(kind, "x", np.ones(2, bool))]), (), (), {}))
    assert shard.view().applied == 1


@pytest.mark.parametrize("count", [False, True])
def test_a_step_is_not_moved_by_more_than_an_int64(count):
    shard = begun(log=Recording())
    shard._directory = "somewhere"
    shard.handle(events.Declare(1, "chief", [VariableDecl("step", "int64", (), is_step=True)], []))
    lowest = Op(OpKind.ASSIGN, "step", np.array(-(2**63)))
    shard.handle(events.Push(1, PushId("chief", 1), PushParts([lowest]), (), (), {}))
    ups = [Increment("step", 2**63 - 1), Increment("step", 2**63 - 1)]
    if count:
        (error,) = shard.handle(events.CountTogether([events.Push(1, PushId("worker", 1), PushParts(), ups, (), {})]))
        assert isinstance(error, InvalidArgumentError)
    else:
        with pytest.raises(InvalidArgumentError, match="beyond int64"):
            shard.handle(events.Push(1, PushId("worker", 1), PushParts(), ups, (), {}))
    assert shard.view().steps == {"step": -(2**63)}
    assert shard.view().applied == 1


# ---- What fails all the same ------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("a rule's own"), MemoryError(), KeyError("x")], ids=repr)
def test_a_push_that_fails_halfway_leaves_nothing(error, monkeypatch):
    shard = small()
    ones(shard)
    failing(monkeypatch, error)
    with pytest.raises(LostStateError, match=type(error).__name__):
        ones(shard, 2)
    assert shard.view().state is State.VACANT
    with pytest.raises(LostStateError, match="holds no state"):
        ones(shard, 2)
    # Incarnations up to the one that was lost are not given again.
    assert shard.spent_incarnations >= 1
    assert "could not be carried out" in shard.resources.fail_stop.reports[0]


def test_what_ends_the_program_drops_the_state_too(monkeypatch):
    shard = small()
    failing(monkeypatch, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        ones(shard)
    assert shard.view().state is State.VACANT


def test_what_failed_is_told_to_no_log_and_what_came_before_is():
    log = Recording()
    shard = small(log=log)
    ones(shard)

    class At:
        def at(self, point, method):
            if (point, method) == (BEFORE, APPLY):
                raise RuntimeError("here")

    shard.resources.faults = At()
    with pytest.raises(LostStateError):
        ones(shard, 2)
    assert log.told == [PushId("chief", 1), PushId("worker", 1)]
    shard.handle(events.Leave("worker"))
    shard.handle(events.Finish(1, "chief"))


def test_a_log_that_cannot_be_told_takes_the_shard_out_of_service_too(monkeypatch):
    log = Recording()
    shard = small(log=log)

    def fail(*args):
        raise MemoryError

    monkeypatch.setattr(log, "append", fail)
    with pytest.raises(LostStateError):
        ones(shard)
    assert shard.view().state is State.VACANT
    shard = small(log=(log := Recording()))
    monkeypatch.setattr(log, "append", fail)
    pushes = [events.Push(1, PushId(name, 1), PushParts(), [UP], (), {}) for name in ("one", "two")]
    assert [type(found) for found in shard.handle(events.CountTogether(pushes))] == [LostStateError, LostStateError]
    assert shard.view().state is State.VACANT


def test_a_participant_that_fails_halfway_leaves_nothing(monkeypatch):
    log = Recording()
    shard = begun(sequencer=1, log=log)
    decls = [VariableDecl("a", "float32", (2,))]
    shard.handle(events.Declare(1, "chief", decls, []))
    for number in (1, 2):
        change = Op(OpKind.ASSIGN_ADD if number > 1 else OpKind.ASSIGN, "a", np.ones(2, np.float32))
        if number == 1:
            shard.handle(events.Stage(1, PushId("worker", 1), PushParts([change])))
            shard.handle(events.Commit(1, PushId("worker", 1), [signed(shard, 1, PushId("worker", 1), 0)]))
        else:
            shard.handle(events.Stage(1, PushId("worker", 2), PushParts([change])))
    failing(monkeypatch, ZeroDivisionError("division by zero"))
    with pytest.raises(LostStateError, match="ZeroDivisionError"):
        shard.handle(events.Commit(1, PushId("worker", 2), [signed(shard, 2, PushId("worker", 2), 1)]))
    assert shard.view().state is State.VACANT
    assert log.told == [PushId("worker", 1)]


def signed(shard, index, push, previous, hypers: tuple[HyperValues, ...] = ()):
    signature = shard.now.signer.decision(index, EntryKind.PUSH, push, hypers).for_shard(0, previous)
    return Entry(index, EntryKind.PUSH, push, previous, hypers, signature)


def test_what_fails_again_and_again_is_said_to_be_hopeless():
    lost = []
    stop = FailStop(lambda: lost.append(1))
    told = []
    for number in range(4):
        with pytest.raises(OpError) as caught:
            stop.failed(PushId("worker", number), ValueError("a rule's own"))
        told.append(type(caught.value))
    assert told == [LostStateError, LostStateError, InternalError, InternalError]
    assert len(lost) == 4
    for _ in range(4):  # which may be over any time
        with pytest.raises(LostStateError):
            stop.failed("a push", MemoryError())


# ---- Memory -----------------------------------------------------------------------------------


def test_reads_without_memory_are_tried_again_and_the_push_is_done_once(monkeypatch):
    shard = small(log=(log := Recording()))

    def full(*args):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(store, "copies", full)
        with pytest.raises(ResourceExhaustedError) as caught:
            ones(shard, 1, ["a", "step"])
        assert caught.value.retry_secs > 0
        with pytest.raises(ResourceExhaustedError):
            shard.handle(events.Pull(1, "worker", [Read("a")]))
    assert log.told[-1] == PushId("worker", 1)
    again = ones(shard, 1, ["a", "step"])
    assert again.outcome.duplicate
    assert [value.tolist() for value in again.answer.values] == [[-1.0, -1.0], 1]


def test_a_snapshot_without_memory_changes_nothing(monkeypatch):
    shard = small()

    def full(nbytes):
        raise OSError(12, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(snapshots, "_new_block", full)
        with pytest.raises(ResourceExhaustedError, match="a save needs"):
            shard.handle(events.Push(1, PushId("saver", 1), PushParts(), (), (), {}, kind=EntryKind.SNAPSHOT))
    assert (shard.view().state, shard.view().applied) == (State.READY, 1)
    shard.handle(events.Push(1, PushId("saver", 1), PushParts(), (), (), {}, kind=EntryKind.SNAPSHOT))
    assert shard.view().applied == 2
