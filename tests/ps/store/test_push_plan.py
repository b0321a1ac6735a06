"""A planned push changes and reads what the same push would without a plan, wherever its values end up."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from globalstep.ps.store import arena
from globalstep.ps.store.store import VariableStore
from globalstep.wire.declarations import Op, OpKind, OptimizerDecl, Read, VariableDecl
from globalstep.wire.expressions import constant

SHAPES = {"a": (3,), "b": (70_001,), "c": (5, 7), "d": (1,)}
HYPERS = {
    "gradient_descent": {"learning_rate": 0.5},
    "adam": {
        "learning_rate": 0.1, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "beta1_power": 0.9, "beta2_power": 0.999,
    },
    "lamb": {
        "learning_rate": 0.1, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6, "weight_decay": 0.0,
        "beta1_power": 0.9, "beta2_power": 0.999,
    },
}  # fmt: skip


def stored(kind, dtype):
    """A store with SHAPES, each element another number, a step, and one optimizer for all but d."""
    store = VariableStore()
    slots = {name: ((f"{name}/m", f"{name}/v") if kind != "gradient_descent" else ()) for name in "abc"}
    variables = [VariableDecl("step", "int64", (), is_step=True)]
    variables += [VariableDecl(name, dtype, shape) for name, shape in SHAPES.items()]
    variables += [
        VariableDecl(slot, dtype, SHAPES[name], primary=name, optimizer="o", slot=slot[-1])
        for name, names in slots.items()
        for slot in names
    ]
    hypers = {name: constant(value) for name, value in HYPERS[kind].items() if not name.endswith("power")}
    scalars = tuple(name for name in HYPERS[kind] if name.endswith("power"))
    store.declare(variables, [OptimizerDecl("o", kind, hypers, slots, scalars)])
    rng = np.random.default_rng(3)
    ops = []
    for decl in variables:
        zero = decl.is_step or decl.slot
        value = np.zeros(decl.shape) if zero else rng.normal(size=decl.shape)
        ops.append(Op(OpKind.ASSIGN, decl.name, value.astype(decl.dtype)))
    store.apply(ops, {})
    return store


def message(dtype, names, kind_of_bytes=bytearray):
    """Gradients for the names, as ops bound to the bytes of a message."""
    rng = np.random.default_rng(len(names))
    grads = [rng.normal(size=SHAPES[name]).astype(dtype) for name in names]
    data = bytearray()
    offsets = []
    for grad in grads:
        offsets.append(len(data))
        data += grad.tobytes() + bytes(-grad.nbytes % 8)
    data = kind_of_bytes(data)
    ops = [
        Op(
            OpKind.APPLY, name,
            np.frombuffer(data, dtype, int(np.prod(SHAPES[name])), at).reshape(SHAPES[name]), optimizer="o",
        )
        for name, at in zip(names, offsets, strict=True)
    ]  # fmt: skip
    return ops, data


def planned(store, ops, data, reads, hypers):
    plan = store.plan(ops, [Read(name) for name in reads], memoryview(data))
    out = []
    for _ in range(2):
        mine = memoryview(type(data)(data))
        store.apply_plan(plan, hypers, mine)
        packed = b"".join(piece.tobytes() for piece in store.read_plan(plan, mine))
        out.append([np.frombuffer(packed, d, int(np.prod(s)), at).reshape(s) for d, s, at in plan.places])
    return out


READS = [(), ("a", "b", "c"), ("c", "b", "a"), ("b",), ("c",), ("step", "a", "b", "c"), ("d", "b", "step"), ("b", "b")]


@pytest.mark.parametrize("kind_of_bytes", [bytes, bytearray])
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("gradient_descent", "float32"), ("adam", "float32"), ("lamb", "float32"), ("gradient_descent", "float16")],
)
@pytest.mark.parametrize("names", ["abc", "b", "ca"])
def test_values_are_those_of_a_push_without_a_plan(kind, dtype, names, kind_of_bytes):
    hypers = {("o", False): HYPERS[kind]}
    ops, data = message(dtype, names, kind_of_bytes)
    for reads in READS:
        plain, store = stored(kind, dtype), stored(kind, dtype)
        got = planned(store, ops, data, reads, hypers)
        for values in got:
            plain.apply(ops, hypers)
            for value, want in zip(values, plain.read([Read(name) for name in reads]), strict=True):
                np.testing.assert_array_equal(value, want)
        for name in SHAPES:
            np.testing.assert_array_equal(store.read([Read(name)])[0], plain.read([Read(name)])[0])


def test_values_that_are_pushed_and_read_take_the_gradients_place():
    store = stored("gradient_descent", "float32")
    ops, data = message("float32", "abc")
    plan = store.plan(ops, [Read(name) for name in ("step", "a", "b", "c")], memoryview(data))
    store.apply_plan(plan, {("o", False): HYPERS["gradient_descent"]}, memoryview(data))
    pieces = store.read_plan(plan, memoryview(data))
    where = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    assert [piece.__array_interface__["data"][0] == where for piece in pieces] == [False, True]
    assert len(plan.steps) == 1, "one kernel's worth of gradients"


def test_gradients_are_left_alone_where_nothing_of_them_is_read():
    store = stored("gradient_descent", "float32")
    ops, data = message("float32", "abc")
    before = bytes(data)
    plan = store.plan(ops, [Read("d"), Read("step")], memoryview(data))
    store.apply_plan(plan, {("o", False): HYPERS["gradient_descent"]}, memoryview(data))
    assert bytes(data) == before


@pytest.mark.parametrize("order", list(itertools.permutations("abb")))
def test_a_variable_that_is_changed_twice_is_read_after_both(order):
    hypers = {("o", False): HYPERS["gradient_descent"]}
    ops, data = message("float32", "".join(order))
    plain, store = stored("gradient_descent", "float32"), stored("gradient_descent", "float32")
    got = planned(store, ops, data, ("a", "b"), hypers)
    for values in got:
        plain.apply(ops, hypers)
        for value, want in zip(values, plain.read([Read("a"), Read("b")]), strict=True):
            np.testing.assert_array_equal(value, want)


def test_the_blocks_are_smaller_than_the_largest_variable():
    """Otherwise the tests above would not see one follow another."""
    assert SHAPES["b"][0] > arena._BLOCK
