"""Models of torch, jax and numpy: a step is a function of values, batches and seeds, and of nothing else."""

import numpy as np
import pytest

from globalstep.worker.frameworks.numpy_training import NumpyTraining
from globalstep.worker.step.model import MoreLookupsError, Values

X = np.random.default_rng(3).normal(size=(8, 3)).astype(np.float32)
Y = X @ np.array([1.0, -2.0, 3.0], np.float32)
BATCHES = [(X[:4], Y[:4]), (X[4:], Y[4:])]
SEEDS = [7, 8]


def of_numpy():
    def loss_fn(params, x, y):
        error = x @ params["w"] + params["b"] - y
        return float(np.mean(error**2)), {"w": 2 * x.T @ error / len(x), "b": np.float32(2 * error.mean())}

    return NumpyTraining({"w": np.zeros(3, np.float32), "b": np.float32(0)}, loss_fn), BATCHES


def of_jax():
    jax = pytest.importorskip("jax", reason="jax is not installed; `pip install jax` runs this test")
    from globalstep.worker.frameworks.jax_training import JaxTraining

    def loss_fn(params, x, y, rng):
        return jax.numpy.mean((x @ params["w"] - y + 0.1 * jax.random.normal(rng, y.shape)) ** 2)

    return JaxTraining({"w": jax.numpy.zeros(3)}, loss_fn), BATCHES


def of_torch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed; `pip install torch` runs this test")
    from globalstep.worker.frameworks.torch_training import TorchTraining

    torch.manual_seed(0)
    made = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1)
    )

    def loss_fn(module, x, y):
        return torch.nn.functional.mse_loss(module(x).squeeze(1), y)

    return TorchTraining(made, loss_fn), [tuple(map(torch.from_numpy, batch)) for batch in BATCHES]


def values_of(model, shift=0.0):
    dense = {}
    for name, parameter in model.parameters.items():
        dense[name] = np.array(parameter.value + shift, parameter.value.dtype)
        dense[name].flags.writeable = False
    return Values(dense)


@pytest.mark.parametrize("make", [of_numpy, of_jax, of_torch])
def test_a_step_depends_on_what_it_is_given_alone(make):
    model, batches = make()
    first = model.step(values_of(model), batches, SEEDS)
    assert set(first.gradients) == {name for name, parameter in model.parameters.items() if parameter.trained}
    # Another step with other values and batches in between leaves no trace.
    other = model.step(values_of(model, 1.0), batches[:1], SEEDS[1:])
    assert other.loss != first.loss
    again = model.step(values_of(model), batches, SEEDS)
    assert again.loss == first.loss
    for mine, same in ((again.gradients, first.gradients), (again.updates, first.updates)):
        assert {name: value.tobytes() for name, value in mine.items()} == {
            name: value.tobytes() for name, value in same.items()
        }


@pytest.mark.parametrize("make", [of_numpy, of_jax])
def test_the_gradients_of_several_batches_are_averaged(make):
    model, batches = make()
    both = model.step(values_of(model), batches, SEEDS)
    alone = [model.step(values_of(model), [batch], [seed]) for batch, seed in zip(batches, SEEDS, strict=True)]
    assert both.loss == pytest.approx(np.mean([one.loss for one in alone]), rel=1e-6)
    for name, gradient in both.gradients.items():
        np.testing.assert_allclose(gradient, np.mean([one.gradients[name] for one in alone], axis=0), rtol=1e-5)


def test_the_running_averages_of_one_batch_are_what_the_next_begins_with():
    model, batches = of_torch()
    both = model.step(values_of(model), batches, SEEDS)
    first = model.step(values_of(model), batches[:1], SEEDS[:1])
    values = values_of(model)
    second = model.step(Values({**values.dense, **first.updates}), batches[1:], SEEDS[1:])
    assert both.updates.keys() == {name for name, held in model.parameters.items() if not held.trained}
    for name, update in both.updates.items():
        assert update.tobytes() == second.updates[name].tobytes()


def test_a_lookup_beyond_those_of_the_batch_before_asks_for_more():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed; `pip install torch` runs this test")
    import globalstep as gs
    from globalstep.worker.frameworks.torch_training import TorchTraining

    table = gs.torch.Embedding(5, 2)

    def loss_fn(module, ids, twice):
        found = module(ids)
        return (found * module(ids)).sum() if twice else found.sum()

    model = TorchTraining(table, loss_fn)
    ids, rows = torch.tensor([1, 3]), np.ones((2, 2), np.float32)
    lookups = model.lookups([(ids, False)], [0])
    assert lookups.ids["weight"].tolist() == [1, 3]
    assert (
        model.step(Values({}, {"weight": rows}, lookups), [(ids, False)], [0]).rows["weight"].tolist() == [[1, 1]] * 2
    )
    lookups = model.lookups([(ids, True)], [0])
    with pytest.raises(MoreLookupsError):
        model.step(Values({}, {"weight": rows}, lookups), [(ids, True)], [0])
    lookups = model.lookups([(ids, True)], [0], all_of_them=True)
    assert lookups.ids["weight"].tolist() == [1, 3, 1, 3]
    rows = np.ones((4, 2), np.float32)
    assert model.step(Values({}, {"weight": rows}, lookups), [(ids, True)], [0]).loss == 4.0
