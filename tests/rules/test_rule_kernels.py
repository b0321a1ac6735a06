"""Every rule's fused kernel equals its plain numpy reference, and a sparse update its dense one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from globalstep.rules import get_rule, merge_rows

KINDS = (
    "adadelta",
    "adagrad",
    "adagrad_da",
    "adam",
    "adamw",
    "centered_rmsprop",
    "delayed_nesterov",
    "ftrl",
    "gradient_descent",
    "lamb",
    "lazy_adam",
    "lion",
    "momentum",
    "moving_average",
    "proximal_adagrad",
    "proximal_gradient_descent",
    "rmsprop",
    "root_adagrad",
    "root_centered_rmsprop",
    "root_rmsprop",
    "zero_debias_moving_average",
)
#: Models are of the first; the second has kernels of its own.
DTYPES = [np.float32, pytest.param(np.float64, marks=pytest.mark.long)]
HYPERS = {
    "learning_rate": (0.1, 0.003),
    "momentum": (0.9, 0.0),
    "use_nesterov": (0.0, 1.0),
    "beta1": (0.9, 0.5),
    "beta2": (0.999, 0.8),
    "beta1_power": (0.9, 0.6561),
    "beta2_power": (0.999, 0.996),
    "epsilon": (1e-8, 0.1),
    "rho": (0.95, 0.5),
    "decay": (0.9, 0.9999),
    "learning_rate_power": (-0.5, -0.7, 0.0),
    "l1_regularization_strength": (0.0, 0.01),
    "l2_regularization_strength": (0.0, 0.02),
    "l2_shrinkage_regularization_strength": (0.0, 0.3),
    "weight_decay": (0.0, 0.01),
    "global_step": (1.0, 37.0),
    "delay": (4.0, 1.0, 3.0),
    "waiting_pushes": (0.0, 3.0, 2.0),
    "local_step": (0.0, 5.0),
}


def hypers_of(rule, draw):
    return {name: draw(st.sampled_from(HYPERS[name]), label=name) for name in (*rule.hypers, *rule.scalars)}


def state_of(rule, rng, shape, dtype):
    """Values of both signs; slots positive and such that every rule's roots are real."""
    values = rng.normal(size=shape).astype(dtype)
    slots = tuple(rng.uniform(0.5, 1.5, size=shape).astype(dtype) for _ in rule.slots)
    if rule.kind in ("centered_rmsprop", "root_centered_rmsprop"):  # the variance must be positive
        slots = (slots[0] + dtype(1), slots[1] * dtype(0.5), slots[2])
    return values, slots


def unaligned(array):
    raw = bytearray(array.nbytes + 1)
    view = np.frombuffer(raw, array.dtype, array.size, offset=1).reshape(array.shape)
    view[...] = array
    assert array.size == 0 or not view.flags.aligned
    return view


def assert_equal(got, wanted, hyper):
    """Bit for bit; only the last bit of a general power, which Ftrl divides by the rate, may differ."""
    if hyper.get("learning_rate_power", -0.5) in (-0.5, 0.0):
        np.testing.assert_array_equal(got, wanted)
    else:
        bound = 32 * np.finfo(got.dtype).eps / hyper["learning_rate"]
        np.testing.assert_allclose(got, wanted, rtol=bound, atol=bound)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
def test_dense_kernel_equals_the_reference(kind, dtype, data):
    rule = get_rule(kind)
    size = data.draw(st.sampled_from((0, 1, 2, 3, 7, 16, 17, 1000, 4099)), label="size")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**16), label="seed"))
    hyper = hypers_of(rule, data.draw)
    values, slots = state_of(rule, rng, size, dtype)
    grad = rng.normal(size=size).astype(dtype)
    wanted, wanted_slots = rule.reference(values, slots, grad, hyper)
    if data.draw(st.booleans(), label="unaligned"):
        grad = unaligned(grad)
    before = grad.copy()

    rule.dense(values, slots, grad, hyper)

    assert_equal(values, wanted, hyper)
    for slot, wanted_slot in zip(slots, wanted_slots, strict=True):
        assert_equal(slot, wanted_slot, hyper)
    np.testing.assert_array_equal(grad, before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
def test_sparse_kernel_equals_the_reference(kind, dtype, data):
    rule = get_rule(kind)
    count, width = data.draw(st.sampled_from(((1, 1), (5, 1), (9, 3), (64, 17))), label="shape")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**16), label="seed"))
    hyper = hypers_of(rule, data.draw)
    values, slots = state_of(rule, rng, (count, width), dtype)
    chosen = rng.permutation(count)[: data.draw(st.integers(0, count), label="touched")]
    rows = rng.normal(size=(chosen.size, width)).astype(dtype)
    wanted, wanted_slots = rule.sparse_reference(values, slots, chosen, rows, hyper)

    rule.sparse(values, slots, chosen.astype(np.int64), unaligned(rows), hyper)

    assert_equal(values, wanted, hyper)
    for slot, wanted_slot in zip(slots, wanted_slots, strict=True):
        assert_equal(slot, wanted_slot, hyper)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"adam", "adamw", "delayed_nesterov", "lamb"}))
def test_a_sparse_update_leaves_other_rows_alone(kind):
    rule = get_rule(kind)
    hyper = {name: HYPERS[name][0] for name in (*rule.hypers, *rule.scalars)}
    values, slots = state_of(rule, np.random.default_rng(3), (6, 2), np.float32)
    before = [array.copy() for array in (values, *slots)]

    rule.sparse(values, slots, np.array([4]), np.ones((1, 2), np.float32), hyper)

    for array, old in zip((values, *slots), before, strict=True):
        np.testing.assert_array_equal(np.delete(array, 4, 0), np.delete(old, 4, 0))
    assert not np.array_equal(values[4], before[0][4])


@pytest.mark.parametrize("kind", ["adam", "adamw", "delayed_nesterov", "lamb"])
def test_a_sparse_update_of_a_dense_equivalent_rule_equals_a_dense_one_with_zeros(kind):
    rule = get_rule(kind)
    hyper = {name: HYPERS[name][1] for name in (*rule.hypers, *rule.scalars)}
    values, slots = state_of(rule, np.random.default_rng(3), (6, 2), np.float64)
    rows = np.full((2, 2), 0.5)
    grad = np.zeros((6, 2))
    grad[[4, 1]] = rows
    wanted, wanted_slots = rule.reference(values, slots, grad, hyper)

    rule.sparse(values, slots, np.array([4, 1]), rows, hyper)

    np.testing.assert_allclose(values, wanted, rtol=1e-14)
    for slot, wanted_slot in zip(slots, wanted_slots, strict=True):
        np.testing.assert_allclose(slot, wanted_slot, rtol=1e-14)


def test_gradient_descent_applies_repeated_rows_one_after_another():
    rule = get_rule("gradient_descent")
    values = np.zeros((3, 1), np.float32)
    rows = np.array([[1.0], [2.0], [4.0]], np.float32)
    rule.sparse(values, (), np.array([2, 0, 2]), rows, {"learning_rate": 1.0})
    assert values.tolist() == [[-2.0], [0.0], [-5.0]]
    assert not rule.merges_duplicates


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_is_computed_in_float32(kind):
    rule = get_rule(kind)
    hyper = {name: HYPERS[name][0] for name in (*rule.hypers, *rule.scalars)}
    values, slots = state_of(rule, np.random.default_rng(5), (4, 3), np.float32)
    half, half_slots = values.astype(np.float16), tuple(slot.astype(np.float16) for slot in slots)
    grad = np.full((4, 3), 0.25, np.float16)
    wanted, wanted_slots = rule.reference(
        half.astype(np.float32), tuple(slot.astype(np.float32) for slot in half_slots), grad.astype(np.float32), hyper
    )
    sparse, sparse_slots = half.copy(), tuple(slot.copy() for slot in half_slots)

    rule.dense(half.reshape(-1), tuple(slot.reshape(-1) for slot in half_slots), grad.reshape(-1), hyper)
    rule.sparse(sparse, sparse_slots, np.arange(4), grad, hyper)

    np.testing.assert_array_equal(half, wanted.astype(np.float16))
    np.testing.assert_allclose(sparse, wanted.astype(np.float16), rtol=2e-3)
    for slot, wanted_slot in zip(half_slots, wanted_slots, strict=True):
        np.testing.assert_array_equal(slot, wanted_slot.astype(np.float16))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_merged_rows_are_sums_in_order(data):
    dtype = data.draw(st.sampled_from((np.float32, np.float64)))
    top = data.draw(st.sampled_from((1, 4, 40, 2**40)))
    ids = np.array(data.draw(st.lists(st.integers(0, top), max_size=30)), np.int64)
    rows = np.random.default_rng(len(ids)).normal(size=(ids.size, 3)).astype(dtype)
    wanted = {}
    for i, row in zip(ids.tolist(), rows, strict=True):
        wanted[i] = wanted[i] + row if i in wanted else row

    unique, summed = merge_rows(ids, rows)

    assert unique.tolist() == list(wanted)
    assert summed.dtype == dtype
    for i, row in zip(unique.tolist(), summed, strict=True):
        np.testing.assert_array_equal(row, wanted[i])


def test_rows_of_ids_that_do_not_repeat_are_merged_without_a_copy():
    ids, rows = np.array([9, 1, 5]), np.ones((3, 2))
    assert merge_rows(ids, rows) == (ids, rows)


def test_merging_half_precision_sums_in_float32():
    ids = np.zeros(4097, np.int64)
    _, summed = merge_rows(ids, np.ones((4097, 1), np.float16))
    assert summed.dtype == np.float16
    assert summed[0, 0] == np.float16(4097)  # adding in half precision would stop at 2048
