"""What a loss function gives beside the loss reaches callbacks and logs, and changes nothing of training."""

import csv

import numpy as np
import pytest

import globalstep as gs
from globalstep.errors import InvalidArgumentError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

X = np.eye(4, 3, dtype=np.float32)
Y = np.arange(4, dtype=np.float32)
PARTS = ["fit", "size"]


class Seen(gs.Callback):
    def __init__(self):
        self.parts = []

    def on_step(self, trainer, step, loss):
        self.parts.append((loss, trainer.loss_parts))


def torch_case(form):
    module = torch.nn.Linear(3, 1)
    with torch.no_grad():
        module.weight.fill_(0.5)
        module.bias.zero_()

    def loss_fn(module, x, y):
        fit = torch.mean((module(x)[:, 0] - y) ** 2)
        size = 0.1 * module.weight.square().sum()
        return form(fit + size, {"fit": fit, "size": size})

    return module, loss_fn, [(torch.from_numpy(X), torch.from_numpy(Y))]


def jax_case(form):
    jnp = pytest.importorskip("jax", reason="jax is not installed").numpy

    def loss_fn(w, x, y):
        fit = jnp.mean((x @ w - y) ** 2)
        size = 0.1 * (w**2).sum()
        return form(fit + size, {"fit": fit, "size": size})

    return jnp.full(3, 0.5), loss_fn, [(X, Y)]


def numpy_case(form):
    def loss_fn(w, x, y):
        error = x @ w - y
        fit, size = np.mean(error**2), 0.1 * np.sum(w**2)
        return form(fit + size, {"fit": fit, "size": size}), 2 * x.T @ error / len(x) + 0.2 * w

    return np.full(3, 0.5, np.float32), loss_fn, [(X, Y)]


def beside(loss, parts):
    return loss, parts


def in_a_dict(loss, parts):
    return {"loss": loss, **parts}


def alone(loss, parts):
    return loss


def fit(case, form, *callbacks, **options):
    model, loss_fn, batches = case(form)
    seen = Seen()
    evaluate = gs.Evaluate(batches, every_steps=3)
    result = gs.fit(
        model, loss_fn, batches, optimizer=gs.optim.SGD(0.1), steps=3, callbacks=[seen, *callbacks], evaluate=evaluate,
        **options,
    )  # fmt: skip
    return result, seen.parts


@pytest.mark.parametrize("form", [beside, in_a_dict])
@pytest.mark.parametrize("case", [torch_case, jax_case, numpy_case])
def test_parts_of_a_loss_are_for_logs_and_change_nothing(case, form, tmp_path):
    result, seen = fit(case, form, gs.CSVLogger(tmp_path / "log.csv", every_steps=1))
    assert len(seen) == 3
    for loss, parts in seen:
        assert sorted(parts) == PARTS
        assert parts["fit"] + parts["size"] == pytest.approx(loss, rel=1e-5)
    plain, nothing = fit(case, alone)
    assert [loss for loss, _ in seen] == [loss for loss, _ in nothing]
    assert [parts for _, parts in nothing] == [{}] * 3
    assert result.metrics == plain.metrics
    with open(tmp_path / "log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["name"] for row in rows} >= {"loss", "loss/fit", "loss/size"}
    first = next(row for row in rows if row["name"] == "loss/fit")
    assert float(first["value"]) == seen[0][1]["fit"]


def test_parts_are_means_over_the_batches_of_a_step():
    def loss_fn(w, x):
        return (float(np.sum(w)), {"mean": x.mean()}), np.ones_like(w)

    with gs.Trainer(np.zeros(2, np.float32), loss_fn, optimizer=gs.optim.SGD(0.1), steps=2) as trainer:
        trainer.step(np.full(2, 1.0), np.full(2, 3.0))
        assert trainer.loss_parts == {"mean": 2.0}
        trainer.step(np.full(2, 5.0))
        assert trainer.loss_parts == {"mean": 5.0}


@pytest.mark.parametrize("case", [torch_case, jax_case, numpy_case])
def test_a_part_that_is_no_number_is_refused_by_name(case):
    with pytest.raises(InvalidArgumentError, match="as 'many' beside the loss"):
        fit(case, lambda loss, parts: (loss, {"many": np.ones(2)}))
