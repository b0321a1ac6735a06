"""Large batches of an embedding model, with ids that repeat, follow numpy's trajectory over every transport."""

from __future__ import annotations

import numpy as np
import pytest
from golden_sessions import KINDS, open_session

import globalstep as gs

ROWS, WIDTH, NAMED, STEPS = 500, 16, 3000, 4
RATE, INITIAL = np.float32(0.5), np.float32(0.1)


def expected(batches, weights):
    """Adagrad on the sum of each row's gradients, which float32 holds exactly."""
    values, squares = np.zeros((ROWS, WIDTH), np.float32), np.full((ROWS, WIDTH), INITIAL)
    for ids, weight in zip(batches, weights, strict=True):
        total = np.zeros_like(values)
        np.add.at(total, ids, weight)
        squares += total * total
        values -= RATE * total / np.sqrt(squares)
    return values


@pytest.mark.parametrize("ahead", [False, True], ids=["as it comes", "prefetched"])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_follow_adagrad(kind, parts, ahead):
    rng = np.random.default_rng(5)
    batches = [rng.integers(0, ROWS, NAMED) for _ in range(STEPS)]
    weights = [rng.integers(-8, 9, (NAMED, WIDTH)).astype(np.float32) for _ in range(STEPS)]
    step = gs.train.get_or_create_global_step()
    ids, weight = gs.placeholder(gs.int64, [NAMED]), gs.placeholder(gs.float32, [NAMED, WIDTH])
    cut = gs.fixed_size_partitioner(parts) if parts > 1 else None
    table = gs.get_variable("table", [ROWS, WIDTH], initializer=gs.zeros_initializer(), partitioner=cut)
    loss = gs.reduce_sum(gs.nn.embedding_lookup(table, ids, partition_strategy="div") * weight)
    train = gs.train.AdagradOptimizer(RATE, INITIAL).minimize(loss, global_step=step)

    with open_session(kind) as session:
        for at in range(STEPS):
            if ahead and at + 1 < STEPS:
                session.prefetch({ids: batches[at + 1]})
            session.run(train, {ids: batches[at], weight: weights[at]})
        whole = session.run(gs.convert_to_tensor(table))
        assert session.run(step) == STEPS

    np.testing.assert_allclose(whole, expected(batches, weights), rtol=1e-6)
