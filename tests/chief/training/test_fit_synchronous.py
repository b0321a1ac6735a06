"""gs.fit with SyncReplicasOptimizer: what it wraps, which batches make a step, and what it does not go with."""

import numpy as np
import pytest

import globalstep as gs
from globalstep.chief.training.model_run import Replicas
from globalstep.errors import InvalidArgumentError

X = np.random.default_rng(3).normal(size=(40, 3)).astype(np.float32)
Y = X @ np.array([1.0, -2.0, 3.0], np.float32)
BATCHES = [(X[at : at + 4], Y[at : at + 4]) for at in range(0, 40, 4)]


def loss_fn(params, x, y):
    error = x @ params["w"] - y
    return np.mean(error**2), {"w": 2 * x.T @ error / len(x)}


def fit(optimizer, **options):
    return gs.fit({"w": np.zeros(3, np.float32)}, loss_fn, BATCHES, optimizer=optimizer, **options)


@pytest.mark.parametrize(
    "inner", [gs.optim.AdamW(0.05), gs.optim.SGD(gs.optim.StepLR(0.1, step_size=5), weight_decay=0.01)]
)
def test_one_worker_makes_the_steps_of_the_optimizer_that_is_wrapped(inner):
    together = fit(gs.train.SyncReplicasOptimizer(inner, 1), steps=25)
    np.testing.assert_allclose(together.model["w"], fit(inner, steps=25).model["w"], rtol=1e-6)


def test_epochs_count_all_batches_of_a_step():
    inner = gs.optim.SGD(0.05)
    together = fit(gs.train.SyncReplicasOptimizer(inner, 2, 1), epochs=3)
    assert together.step == 15
    np.testing.assert_allclose(together.model["w"], fit(inner, epochs=3, accumulate=2).model["w"], rtol=1e-5)


@pytest.mark.parametrize(("count", "workers", "each"), [(3, 3, 1), (2, 3, 1), (4, 2, 2), (3, 2, 2)])
def test_how_many_gradients_of_a_step_a_worker_gives(count, workers, each):
    assert Replicas(count, workers, "").each == each


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"local_steps": gs.LocalSteps(gs.optim.SGD(0.1), every=5)}, "with local_steps. Give the optimizer alone"),
        ({"units": gs.WorkUnits(2)}, "with units"),
        ({"ema_decay": 0.9}, "SyncReplicasOptimizer has one optimizer, no ema_decay"),
    ],
)
def test_what_does_not_go_with_it(options, said):
    with pytest.raises(InvalidArgumentError, match=said):
        fit(gs.train.SyncReplicasOptimizer(gs.optim.SGD(0.1), 1), steps=2, **options)


def test_it_cannot_be_one_of_several():
    with pytest.raises(InvalidArgumentError, match="SyncReplicasOptimizer cannot be in a dict"):
        fit({"w": gs.train.SyncReplicasOptimizer(gs.optim.SGD(0.1), 1)}, steps=2)


def test_fewer_workers_than_it_counts_on_give_more_gradients_each():
    inner = gs.optim.SGD(0.05)
    together = fit(gs.train.SyncReplicasOptimizer(inner, 4), steps=10)
    assert together.step == 10
    np.testing.assert_allclose(together.model["w"], fit(inner, steps=10, accumulate=4).model["w"], rtol=1e-5)
    assert Replicas(6, 6, "").among(2).each == 3
    assert Replicas(2, 3, "").among(3) == Replicas(2, 3, "")
