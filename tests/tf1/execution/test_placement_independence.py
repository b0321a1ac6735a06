"""Where Variables lie makes no difference: one PS or three, whole or in parts (rung 2)."""

from __future__ import annotations

import numpy as np
import pytest

import globalstep as gs
from globalstep.ps.local import drop, named
from globalstep.tf1.graph.graph import Graph

OPTIMIZERS = {
    "sgd": lambda: gs.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: gs.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: gs.train.AdamOptimizer(0.05),
    "ftrl": lambda: gs.train.FtrlOptimizer(0.1, l1_regularization_strength=0.01),
}
STEPS = 6


@pytest.fixture
def splitting(monkeypatch):
    """Small Variables are split as large ones are."""
    monkeypatch.setenv("GLOBALSTEP_RUN_POLICY", "spread_above=0,split_above=1")


def train(optimizer, shards, partitioner, sparse):
    """Train a small model on a cluster of its own; gives table and weights at the end."""
    name = f"placement-{shards}"
    named(name, shards)
    try:
        with Graph().as_default() as graph:
            rng = np.random.default_rng(5)
            start = rng.normal(size=(10, 4)).astype(np.float32)

            def its_part(shape, dtype=None, partition_info=None):
                first = 0 if partition_info is None else partition_info.var_offset[0]
                return gs.constant(start[first : first + int(shape[0])])

            table = gs.get_variable("table", [10, 4], initializer=its_part, partitioner=partitioner)
            weights = gs.Variable(np.ones((4, 1), np.float32), name="weights")
            ids, y = gs.placeholder(gs.int64, [None]), gs.placeholder(gs.float32, [None, 1])
            if sparse:
                rows = gs.nn.embedding_lookup(table, ids, partition_strategy="div")
            else:
                rows = gs.matmul(gs.one_hot(ids, 10), table)
            loss = gs.reduce_mean(gs.square(gs.matmul(rows, weights) - y))
            step = gs.train.get_or_create_global_step()
            train_op = OPTIMIZERS[optimizer]().minimize(loss, global_step=step)
            with gs.Session(f"local://{name}", graph=graph) as session:
                session.run(gs.global_variables_initializer())
                for _ in range(STEPS):
                    batch = rng.integers(0, 10, 7)
                    session.run(train_op, {ids: batch, y: rng.normal(size=(7, 1)).astype(np.float32)})
                assert session.run(step) == STEPS
                used = len(set(session.cluster.where.values()))
                return session.run(gs.identity(table)), session.run(weights), used
    finally:
        drop(name)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_ps_or_three_whole_or_in_parts(optimizer, sparse):
    whole, weights, _ = train(optimizer, 1, None, sparse)
    assert not np.allclose(weights, 1.0), "it has trained"
    for shards in (1, 3):
        for partitioner in (None, gs.fixed_size_partitioner(3)):
            table_there, weights_there, used = train(optimizer, shards, partitioner, sparse)
            # The order in which a product sums is the same, so equality is exact but for the whole-table read.
            np.testing.assert_allclose(table_there, whole, rtol=1e-6, atol=1e-7)
            np.testing.assert_allclose(weights_there, weights, rtol=1e-6, atol=1e-7)
            assert used == min(shards, 3), "the Variables are spread over the PS tasks"


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_split_by_rows_over_all_ps(splitting, optimizer, sparse):
    whole, weights, _ = train(optimizer, 1, None, sparse)
    for shards in (2, 3):
        table_there, weights_there, used = train(optimizer, shards, None, sparse)
        np.testing.assert_allclose(table_there, whole, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(weights_there, weights, rtol=1e-6, atol=1e-7)
        assert used == shards
