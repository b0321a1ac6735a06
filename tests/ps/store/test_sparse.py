"""Changes of rows, as a PS task makes them whether or not the client has merged them."""

from __future__ import annotations

import numpy as np
import pytest

from globalstep.ps.store.store import apply_rows, scatter_rows
from globalstep.rules import get_rule
from globalstep.wire.declarations import Op, OpKind

RNG = np.random.default_rng(4)


def op(kind, ids, rows, unique=False):
    return Op(kind, "table", rows, indices=np.asarray(ids, np.int64), unique=unique)


@pytest.mark.parametrize("count", [7, 5000])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8"])
@pytest.mark.parametrize("kind", [OpKind.ASSIGN_ADD, OpKind.ASSIGN_SUB])
def test_all_rows_of_an_id_are_added_or_subtracted(kind, dtype, count):
    table = RNG.integers(0, 100, (40, 6)).astype(dtype)
    ids, rows = RNG.integers(0, 40, count), RNG.integers(0, 3, (count, 6)).astype(dtype)
    wanted = table.copy()
    (np.add if kind is OpKind.ASSIGN_ADD else np.subtract).at(wanted, ids, rows)

    scatter_rows(table, op(kind, ids, rows))

    np.testing.assert_array_equal(table, wanted)


@pytest.mark.parametrize("kind", [OpKind.ASSIGN_ADD, OpKind.ASSIGN_SUB, OpKind.ASSIGN])
def test_rows_that_a_client_has_merged_are_taken_as_they_are(kind):
    table = RNG.normal(size=(40, 6)).astype(np.float32)
    ids, rows = RNG.permutation(40)[:30], RNG.normal(size=(30, 6)).astype(np.float32)
    wanted = table.copy()
    wanted[ids] = {OpKind.ASSIGN: rows, OpKind.ASSIGN_ADD: table[ids] + rows, OpKind.ASSIGN_SUB: table[ids] - rows}[
        kind
    ]

    scatter_rows(table, op(kind, ids, rows, unique=True))

    np.testing.assert_array_equal(table, wanted)


def test_the_last_row_of_an_id_is_assigned():
    table = np.zeros((3, 1), np.float32)
    scatter_rows(table, op(OpKind.ASSIGN, [1, 2, 1], np.array([[5.0], [6.0], [7.0]], np.float32)))
    assert table.tolist() == [[0.0], [7.0], [6.0]]


def test_half_precision_and_truth_values_are_added_too():
    half = np.zeros((3, 1), np.float16)
    scatter_rows(half, op(OpKind.ASSIGN_ADD, [1] * 20_000, np.ones((20_000, 1), np.float16) / 8))
    assert half[1, 0] == np.float16(2500)
    truth = np.zeros((3, 1), np.bool_)
    scatter_rows(truth, op(OpKind.ASSIGN_ADD, [1] * 40_000, np.ones((40_000, 1), np.bool_)))
    assert truth.tolist() == [[False], [True], [False]]


@pytest.mark.parametrize("unique", [False, True])
def test_a_gradient_s_rows_are_merged_unless_the_client_has(unique):
    values, accumulator = np.zeros((4, 2), np.float32), np.full((4, 2), 0.5, np.float32)
    ids = [2, 0] if unique else [2, 0, 2]
    rows = np.array([[3, 3], [1, 1]] if unique else [[1, 1], [1, 1], [2, 2]], np.float32)

    apply_rows(get_rule("adagrad"), values, (accumulator,), op(OpKind.APPLY, ids, rows, unique), {"learning_rate": 1.0})

    assert accumulator[:, 0].tolist() == [1.5, 0.5, 9.5, 0.5]
