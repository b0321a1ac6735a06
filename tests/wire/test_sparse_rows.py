"""Equal ids are found, their rows summed in order and given back to all."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from globalstep.wire.sparse_rows import group_rows, sum_rows

IDS = st.lists(st.integers(0, 9) | st.integers(-(2**63), 2**63 - 1), max_size=60)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(ids=IDS)
def test_each_id_is_found_once_in_the_order_of_its_first_place(ids):
    groups = group_rows(np.array(ids, np.int64))

    assert groups.ids.tolist() == list(dict.fromkeys(ids))
    assert groups.ids[groups.of].tolist() == ids
    assert groups.repeats == (len(set(ids)) < len(ids))


def test_ids_that_hash_to_neighbouring_places_are_told_apart():
    ids = np.arange(100_000, dtype=np.int64)[::-1] * 2**20
    groups = group_rows(np.concatenate([ids, ids]))

    assert groups.ids.tolist() == ids.tolist()
    assert groups.of.tolist() == [*range(100_000)] * 2


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8"])
def test_sums_are_those_of_adding_one_after_another(dtype):
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 50, 3000)
    rows = (rng.normal(size=(3000, 5)) * 100).astype(dtype)
    groups = group_rows(ids)
    wanted = np.zeros((50, 5), dtype)
    np.add.at(wanted, ids, rows)

    out = np.full((groups.ids.size, 5), 77, dtype)
    sum_rows(groups, rows, out)

    np.testing.assert_array_equal(out, wanted[groups.ids])


def test_a_program_without_sparse_work_does_not_load_numba():
    program = (
        "import sys, numpy as np, globalstep as tf, globalstep.worker.protocol.row_merging\n"
        "table = tf.Variable(np.zeros((4, 2), np.float32), trainable=False)\n"
        "rows = tf.gather(table, tf.constant([1, 1]))\n"
        "import globalstep.tf1.sessions.session\n"
        "print('numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
