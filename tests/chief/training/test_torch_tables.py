"""gs.torch.Embedding and EmbeddingBag give what torch.nn's give, trained and not; and say what is wrong."""

import copy
import logging

import numpy as np
import pytest

import globalstep as gs
from globalstep.errors import InvalidArgumentError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
nn = torch.nn

ROWS, WIDTH = 12, 3
torch.manual_seed(0)
WEIGHT = torch.randn(ROWS, WIDTH)
FLAT = torch.tensor([1, 4, 4, 0, 11, 3, 0, 7])
OFFSETS = torch.tensor([0, 3, 3, 5])
FACTORS = torch.linspace(-1, 2, len(FLAT))


class Tables(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.table = table
        torch.manual_seed(3)
        self.out = nn.Linear(WIDTH, 1)

    def forward(self, *args, **options):
        return self.out(self.table(*args, **options)).squeeze(-1)


def losses_of(*args, **options):
    def loss_fn(model, _):
        return (model(*args, **options) - 1).square().sum()

    return loss_fn


def trained_by_torch(model, loss_fn, steps):
    optimizer = torch.optim.SGD([part for part in model.parameters() if part.requires_grad], 0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_fn(model, 0).backward()
        optimizer.step()
    return model


def assert_trained_alike(here, there, loss_fn, steps=5):
    trained_by_torch(there, loss_fn, steps)
    result = gs.fit(here, loss_fn, [np.zeros(1, np.float32)], optimizer=gs.optim.SGD(0.05), steps=steps)
    for name, value in there.state_dict().items():
        np.testing.assert_allclose(result.model.state_dict()[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding_idx", [None, 0, -8])
@pytest.mark.parametrize(
    ("args", "more"),
    [
        ((FLAT, OFFSETS), {}),
        ((FLAT, torch.tensor([0, 3, 3, 8])), {"include_last_offset": True}),
        ((FLAT.reshape(4, 2),), {}),
    ],
    ids=["offsets", "last offset", "2-D"],
)
def test_bags_are_those_of_torch(mode, padding_idx, args, more):
    options = {"mode": mode, "padding_idx": padding_idx, **more}
    here = Tables(gs.torch.EmbeddingBag.from_pretrained(WEIGHT.clone(), freeze=False, **options))
    there = Tables(nn.EmbeddingBag.from_pretrained(WEIGHT.clone(), freeze=False, **options))
    assert torch.equal(here.table(*args), there.table(*args))
    assert_trained_alike(here, there, losses_of(*args))


def test_bags_with_factors():
    args, options = (FLAT, OFFSETS, FACTORS), {"mode": "sum", "padding_idx": 4}
    here = Tables(gs.torch.EmbeddingBag.from_pretrained(WEIGHT.clone(), freeze=False, **options))
    there = Tables(nn.EmbeddingBag.from_pretrained(WEIGHT.clone(), freeze=False, **options))
    assert torch.equal(here.table(*args), there.table(*args))
    assert_trained_alike(here, there, losses_of(*args))


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("padding_idx", [None, 4])
def test_a_table_of_values(freeze, padding_idx):
    options = {"freeze": freeze, "padding_idx": padding_idx}
    here = Tables(gs.torch.Embedding.from_pretrained(WEIGHT.clone(), **options))
    there = Tables(nn.Embedding.from_pretrained(WEIGHT.clone(), **options))
    assert_trained_alike(here, there, losses_of(FLAT.reshape(2, 4)))
    assert torch.equal(here.table.weight, WEIGHT) is freeze


@pytest.mark.parametrize("optimizer", [gs.optim.SparseAdam(0.1), gs.optim.Adagrad(0.1), gs.train.FtrlOptimizer(0.1)])
def test_a_row_of_padding_never_changes(optimizer):
    model = Tables(gs.torch.Embedding(ROWS, WIDTH, padding_idx=0))
    assert not model.table(torch.tensor([0])).any()
    result = gs.fit(model, losses_of(FLAT), [np.zeros(1, np.float32)], optimizer=optimizer, steps=4)
    assert not result.model.table.weight[0].any()
    assert result.model.table.weight[1].any()
    assert repr(model.table) == "Embedding(12, 3, padding_idx=0)"


def test_values_are_drawn_alike_here_and_on_the_parameter_servers():
    torch.manual_seed(5)
    model = Tables(gs.torch.Embedding(ROWS, WIDTH, padding_idx=2, std=0.5))
    before = copy.deepcopy(model).table.weight
    result = gs.fit(model, losses_of(FLAT), [np.zeros(1, np.float32)], optimizer=gs.optim.SGD(1e-30), steps=1)
    assert torch.equal(result.model.table.weight, before)


def test_a_frozen_model_has_nothing_to_train():
    with pytest.raises(InvalidArgumentError, match="nothing to train"):
        gs.fit(
            gs.torch.Embedding.from_pretrained(WEIGHT),
            lambda model, _: model(FLAT).sum(),
            [np.zeros(1, np.float32)],
            optimizer=gs.optim.SGD(0.1),
            steps=1,
        )


@pytest.mark.parametrize("table", [gs.torch.Embedding(ROWS, WIDTH, 0), gs.torch.EmbeddingBag(ROWS, WIDTH)])
def test_a_model_is_exported(table):
    ids = torch.tensor([[1, 4], [0, 11]])
    result = gs.fit(Tables(table), losses_of(ids), [np.zeros(1, np.float32)], optimizer=gs.optim.SGD(0.1), steps=1)
    model = result.model.eval()
    program = torch.export.export(model, (ids,))
    assert torch.equal(program.module()(ids), model(ids))


@pytest.mark.parametrize("ids", [["red", "blue"], np.array(["red"]), [["red"]], np.array([b"red"], object)])
def test_strings_are_no_ids(ids):
    with pytest.raises(InvalidArgumentError, match=r"An Embedding is .* got strings\. Number them where the batch"):
        gs.torch.Embedding(3, 2)(ids)


def test_an_id_out_of_range_says_of_which_table():
    model = nn.ModuleDict({"fields": nn.ModuleList([gs.torch.Embedding(5, 2), gs.torch.Embedding(3, 2)])})

    def loss_fn(model, ids):
        return sum(part(ids).sum() for part in model["fields"])

    with pytest.raises(InvalidArgumentError, match=r"Id 4 is not in 'fields\.1', an Embedding of 3 rows"):
        gs.fit(model, loss_fn, [torch.tensor([4])], optimizer=gs.optim.SGD(0.1), steps=1)
    with pytest.raises(InvalidArgumentError, match=r"The Embedding 'fields\.1' is looked up by integer ids"):
        model["fields"][1](torch.ones(1))


@pytest.mark.parametrize("kind", ["Embedding", "EmbeddingBag"])
def test_a_large_sparse_embedding_of_torch_is_named(kind, caplog):
    part = getattr(nn, kind)(300_000, 4, sparse=True)
    with caplog.at_level(logging.WARNING, "globalstep"):
        gs.fit(
            nn.Sequential(part),
            lambda model, ids: model(ids).sum(),
            [torch.zeros(1, 1, dtype=torch.long)],
            optimizer=gs.optim.SGD(0.1),
            steps=1,
        )
    assert f"'0' is a torch.nn.{kind}(sparse=True) of 4 MiB" in caplog.text
    assert f"gs.torch.{kind}(300000, 4)" in caplog.text


def test_what_cannot_be():
    with pytest.raises(ValueError, match="padding_idx is 12; it must be one of 12 rows"):
        gs.torch.Embedding(ROWS, WIDTH, 12)
    with pytest.raises(ValueError, match="mode is 'sum', 'mean' or 'max', not 'min'"):
        gs.torch.EmbeddingBag(ROWS, WIDTH, mode="min")
    with pytest.raises(ValueError, match="2-dimensional"):
        gs.torch.Embedding.from_pretrained(torch.zeros(3))
