"""Contributions that are laid out alike are added as they lie, with the same bits as one change after another."""

from __future__ import annotations

import numpy as np
import pytest

from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.aggregates.contributions import Contributions
from globalstep.ps.shard.layouts import Layout
from globalstep.ps.store.cores import Cores
from globalstep.ps.store.store import VariableStore, read_now
from globalstep.wire import codec
from globalstep.wire.codec import TensorWriter
from globalstep.wire.declarations import Op, OpKind, OptimizerDecl, Read, VariableDecl
from globalstep.wire.expressions import constant

SHAPES = {"a": (3,), "b": (150_001,), "c": (5, 7)}
HYPERS = {("o", False): {"learning_rate": 0.3, "momentum": 0.9, "use_nesterov": 0.0}}


def stored():
    """A store with SHAPES and momentum for them."""
    variables = [VariableDecl(name, "float32", shape) for name, shape in SHAPES.items()]
    variables += [
        VariableDecl(f"{name}/m", "float32", shape, primary=name, optimizer="o", slot="momentum")
        for name, shape in SHAPES.items()
    ]
    store = VariableStore()
    hypers = {name: constant(value) for name, value in HYPERS["o", False].items()}
    store.declare(variables, [OptimizerDecl("o", "momentum", hypers, {name: (f"{name}/m",) for name in SHAPES}, ())])
    rng = np.random.default_rng(1)
    assigns = [Op(OpKind.ASSIGN, decl.name, rng.normal(size=decl.shape).astype("float32")) for decl in variables]
    store.apply(assigns, {})
    return store


def contribution(seed, names=tuple(SHAPES)):
    """A contribution as a stream has it: its layout, and its data."""
    rng, request, tensors = np.random.default_rng(seed), pb.PushRequest(), TensorWriter()
    for name in names:
        gradient = (rng.normal(size=SHAPES[name]) * 10.0**seed).astype("float32")
        codec.encode_op(Op(OpKind.APPLY, name, gradient, optimizer="o"), request.ops.add(), tensors)
    data = bytearray(b"".join(bytes(piece) + bytes(-piece.nbytes % 8) for piece in tensors.pieces))
    reads = [Read(name) for name in SHAPES]
    return Layout(request.ops, codec.decode_op, reads, [], [], len(data)), memoryview(data)


def planned(store, layout, data):
    layout.plan = store.plan(layout.bind(data), layout.reads, data)
    return layout.plan


def bits(store):
    return {name: value.tobytes() for name, value in store.snapshot().items()}


def one_by_one(orders):
    """What contributions lead to whose changes are added up each by itself."""
    store, held = stored(), Contributions()
    for at, names in enumerate(orders):
        layout, data = contribution(at, names)
        held.add("step", layout.bind(data), first=not at)
    store.apply(held.close("step", len(orders)), HYPERS)
    return bits(store)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_pass_that_applies_their_mean_has_the_same_bits_and_leaves_the_values(threads):
    store, held, cores = stored(), Contributions(), Cores(threads)
    for _ in range(2):  # the second time in the memory of the first
        for at in range(2):
            layout, data = contribution(at)
            assert held.add_alike("step", layout, planned(store, layout, data).runs, data, first=not at)
            data[:] = bytes(len(data))  # it is the message's
        layout, data = contribution(2)
        total = held.close_alike("step", layout, 3)
        assert not held
        plan = planned(store, layout, data)
        store.apply_plan(plan, HYPERS, data, cores, total)
        found = b"".join(piece.tobytes() for piece in store.read_plan(plan, data))
        assert found == b"".join(piece.tobytes() for piece in read_now(plan))
        held.release(total)
        assert bits(store) == one_by_one([tuple(SHAPES)] * 3)
        store = stored()
    cores.close()


def test_one_that_is_laid_out_otherwise_is_added_too():
    store, held, other = stored(), Contributions(), ("c", "a", "b")
    layout, data = contribution(0)
    assert held.add_alike("step", layout, planned(store, layout, data).runs, data, first=True)
    layout, data = contribution(1, other)
    assert not held.add_alike("step", layout, planned(store, layout, data).runs, data, first=False)
    held.add("step", layout.bind(data), first=False)
    layout, data = contribution(2)
    assert held.close_alike("step", layout, 3) is None
    assert held.optimizers("step") == {("o", False)}
    held.add("step", layout.bind(data), first=False)
    store.apply(held.close("step", 3), HYPERS)
    assert bits(store) == one_by_one([tuple(SHAPES), other, tuple(SHAPES)])


def test_an_image_makes_the_same_sums():
    store, held = stored(), Contributions()
    for at in range(2):
        layout, data = contribution(at)
        held.add_alike("step", layout, planned(store, layout, data).runs, data, first=not at)
    again = Contributions()
    again.resume(held.image())
    layout, data = contribution(2)
    for found in (held, again):
        found.add("step", layout.bind(data), first=False)
        store = stored()
        store.apply(found.close("step", 3), HYPERS)
        assert bits(store) == one_by_one([tuple(SHAPES)] * 3)


def test_two_changes_of_a_variable_by_one_optimizer_are_added_to_each_other():
    store, held = stored(), Contributions()
    layout, data = contribution(0, ("a", "a"))
    assert not held.add_alike("step", layout, planned(store, layout, data).runs, data, first=True)
