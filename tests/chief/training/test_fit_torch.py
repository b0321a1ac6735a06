"""gs.fit with PyTorch: a run equals PyTorch's own, and embeddings are pulled and pushed by rows."""

import copy

import numpy as np
import pytest

import globalstep as gs
from globalstep.errors import InvalidArgumentError
from globalstep.wire.declarations import OpKind
from globalstep.worker.client.client import ClusterClient

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `pip install torch==2.13.0` runs these tests")
nn = torch.nn

torch.set_num_threads(1)
RANDOM = np.random.default_rng(11)
IDS = torch.from_numpy(RANDOM.integers(50, size=(24, 2)))
X = torch.from_numpy(RANDOM.normal(size=(24, 4)).astype(np.float32))
Y = torch.from_numpy(RANDOM.integers(2, size=24).astype(np.float32))
BATCHES = [(IDS[at : at + 6], X[at : at + 6], Y[at : at + 6]) for at in range(0, 24, 6)]


class Clicks(nn.Module):
    """A model of clicks, with embeddings of one kind or the other."""

    def __init__(self, embedding, *layers):
        super().__init__()
        torch.manual_seed(4)
        self.table = embedding(50, 3)
        self.layers = nn.Sequential(nn.Linear(4 + 6, 8, bias=not layers), *layers, nn.ReLU(), nn.Linear(8, 1))

    def forward(self, ids, x):
        return self.layers(torch.cat([self.table(ids).flatten(1), x], 1)).squeeze(1)


def loss_fn(model, ids, x, y):
    return nn.functional.binary_cross_entropy_with_logits(model(ids, x), y)


def trained_by_torch(model, make, steps, **options):
    optimizer = make(model)
    for step in range(steps):
        optimizer.zero_grad()
        loss_fn(model, *BATCHES[step % 4]).backward()
        if options.get("clip"):
            nn.utils.clip_grad_norm_(model.parameters(), options["clip"])
        optimizer.step()
    return model


def assert_alike(one, other):
    for name, value in one.state_dict().items():
        np.testing.assert_allclose(value, other.state_dict()[name], rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("here", "there", "options"),
    [
        (gs.optim.Adam(0.01), lambda model: torch.optim.Adam(model.parameters(), 0.01), {}),
        (gs.optim.Adagrad(0.05), lambda model: torch.optim.Adagrad(model.parameters(), 0.05), {}),
        (gs.optim.SGD(0.1), lambda model: torch.optim.SGD(model.parameters(), 0.1), {"clip": 0.05}),
    ],
)
def test_a_run_is_that_of_torch(here, there, options):
    plain = Clicks(nn.Embedding, nn.BatchNorm1d(8))
    model = Clicks(gs.torch.Embedding, nn.BatchNorm1d(8))
    model.load_state_dict(plain.state_dict())
    result = gs.fit(model, loss_fn, BATCHES, optimizer=here, steps=10, clip_grad_norm=options.get("clip"))
    assert result.model is model
    assert_alike(trained_by_torch(plain, there, 10, **options), model)


def test_only_the_rows_of_a_batch_are_pulled_and_changed(monkeypatch):
    model = Clicks(gs.torch.Embedding)
    before = model.table.weight.clone()
    monkeypatch.setattr(gs.torch.Embedding, "initial_weight", lambda part: part._weight)
    gs.fit(model, loss_fn, BATCHES[:1], optimizer=gs.optim.SGD(0.1), steps=1)
    changed = (model.table.weight != before).any(1)
    assert set(torch.nonzero(changed).flatten().tolist()) <= set(BATCHES[0][0].flatten().tolist())
    assert changed.any()


def test_a_run_that_goes_on_ends_as_one_that_never_stopped(tmp_path):
    """With dropout, running averages, a table, and a loader that shuffles."""
    data = torch.utils.data.TensorDataset(IDS, X, Y)

    def run(steps, run_dir):
        model = Clicks(gs.torch.Embedding, nn.Dropout(0.5), nn.BatchNorm1d(8))
        loader = torch.utils.data.DataLoader(data, batch_size=6, shuffle=True)
        return gs.fit(model, loss_fn, loader, optimizer=gs.optim.AdamW(0.01), steps=steps, run_dir=run_dir, seed=9)

    whole = run(11, None)
    run(5, tmp_path)
    rest = run(11, tmp_path)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, rest.model.state_dict()[name]), name


def test_a_checkpoint_becomes_a_module_again(tmp_path):
    model = Clicks(gs.torch.Embedding, nn.BatchNorm1d(8))
    gs.fit(model, loss_fn, BATCHES, optimizer=gs.optim.Adagrad(0.05), steps=6, run_dir=tmp_path)
    again = gs.load(tmp_path, Clicks(gs.torch.Embedding, nn.BatchNorm1d(8)))
    plain = Clicks(nn.Embedding, nn.BatchNorm1d(8))
    plain.load_state_dict(again.state_dict())
    assert torch.equal(again.eval()(IDS, X), model.eval()(IDS, X))
    assert torch.equal(plain.eval()(IDS, X), model(IDS, X))
    assert torch.equal(gs.load(tmp_path, plain)(IDS, X), model(IDS, X))
    with pytest.raises(InvalidArgumentError, match=r"Linear has no 'layers.0.weight'; it has bias, weight"):
        gs.load(tmp_path, nn.Linear(1, 1))


def test_evaluation_leaves_the_model_in_training_alone():
    model = Clicks(gs.torch.Embedding, nn.Dropout(0.5))
    modes = []

    def predict(evaluated, ids, x, y):
        modes.append((evaluated is model, evaluated.training, torch.is_grad_enabled()))
        return y, evaluated(ids, x)

    evaluate = gs.Evaluate(BATCHES, {"mean": lambda y, z: z.mean()}, predict=predict, every_steps=2)
    result = gs.fit(model, loss_fn, BATCHES, optimizer=gs.optim.Adam(), steps=4, evaluate=evaluate)
    assert set(modes) == {(False, False, False)}
    assert model.training
    copied = copy.deepcopy(model).eval()
    with torch.no_grad():
        assert np.isclose(result.metrics["mean"], copied(IDS, X).mean())


def test_batches_may_be_of_any_structure():
    model = nn.Linear(4, 1)

    def loss(model, batch):
        return sum((model(x) ** 2).mean() for x in batch["parts"])

    result = gs.fit(model, loss, [{"parts": [X, X[:5]], "name": "first"}], optimizer=gs.optim.SGD(0.1), steps=20)
    assert result.loss < 0.1


class TestLookups:
    def fit(self, forward, **options):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.table = gs.torch.Embedding(50, 3, std=0.1)
                self.forward_of = forward

            def forward(self, ids):
                return self.forward_of(self.table, ids)

        net = Net()
        return gs.fit(
            net, lambda net, ids, x, y: (net(ids) ** 2).mean(), BATCHES, optimizer=gs.optim.SGD(1.0), **options
        )

    def test_one_table_may_be_looked_up_several_times(self):
        result = self.fit(lambda table, ids: table(ids[:, 0]) + table(ids[:, 1] // 2) + table(ids).sum(1), steps=40)
        assert result.loss < 1e-2

    def test_a_batch_may_need_more_lookups_than_the_one_before(self):
        def forward(table, ids, calls=iter([1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2])):  # noqa: B008
            return sum(table(ids) for _ in range(next(calls)))

        assert self.fit(forward, steps=2).step == 2

    def test_no_lookup_at_all(self):
        frozen = torch.zeros(1, requires_grad=True)
        assert self.fit(lambda table, ids: frozen + ids.float().mean() + 0 * table(ids[:0]).sum(), steps=1).step == 1

    def test_ids_that_differ_each_time(self):
        ids_of = np.random.default_rng(1)
        with pytest.raises(
            InvalidArgumentError, match=r"other ids .* called twice a step, so ids must come from the batch"
        ):
            self.fit(lambda table, ids: table(torch.from_numpy(ids_of.integers(50, size=4))), steps=2)

    def test_ids_drawn_by_torch_are_the_same_each_time(self):
        assert self.fit(lambda table, ids: table(torch.randint(50, (4,))), steps=3).step == 3

    def test_ids_that_cannot_be(self):
        with pytest.raises(
            InvalidArgumentError, match=r"Id 50 is not in 'table', an Embedding of 50 rows: ids are 0 to"
        ):
            self.fit(lambda table, ids: table(ids + 50 - ids), steps=1)
        with pytest.raises(InvalidArgumentError, match=r"looked up by integer ids; it got torch.float32.*ids.long"):
            self.fit(lambda table, ids: table(ids.float()), steps=1)


def test_an_embedding_by_itself():
    torch.manual_seed(2)
    table = gs.torch.Embedding(7, 2)
    assert table(torch.tensor([[1, 2]])).shape == (1, 2, 2)
    assert torch.equal(table.weight[3], table(torch.tensor(3)))
    plain = nn.Embedding(7, 2)
    plain.load_state_dict(table.state_dict())
    assert torch.equal(plain.weight, table.weight)
    assert repr(table) == "Embedding(7, 2)"
    assert not list(table.parameters())
    with pytest.raises(RuntimeError, match="cannot take a weight of shape"):
        table.load_state_dict({"weight": torch.zeros(3, 2)})
    with pytest.raises(RuntimeError, match="Missing key"):
        table.load_state_dict({})
    for rows, width in ((0, 2), (2, -1), (2, 2.5), ("2", 2), (True, 2)):
        with pytest.raises(
            ValueError, match=f"An Embedding of {rows} rows of {width}: both must be whole numbers of a"
        ):
            gs.torch.Embedding(rows, width)


def test_a_step_of_several_optimizers_is_one_push(monkeypatch):
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    optimizer = {"0.*": gs.optim.SGD(0.1), "*": gs.optim.Adam(0.1, weight_decay=0.01)}
    pushed, push = [], ClusterClient.push

    def counted(self, given, *rest, **options):
        pushed.append({op.variable for op in given.ops if op.kind is OpKind.APPLY})
        return push(self, given, *rest, **options)

    monkeypatch.setattr(ClusterClient, "push", counted)
    batches = [(torch.randn(8, 3), torch.randn(8, 1))]
    gs.fit(module, lambda m, x, y: ((m(x) - y) ** 2).mean(), batches, optimizer=optimizer, steps=3)
    assert [names for names in pushed if names] == [{f"model/{name}" for name, _ in module.named_parameters()}] * 3


class Heads(nn.ModuleDict):
    """A model of two tasks, and of a head that no task uses."""

    def __init__(self):
        torch.manual_seed(5)
        super().__init__({name: nn.Linear(4, 1) for name in ("even", "odd", "never")})

    def loss(self, task, x, y):
        return nn.functional.mse_loss(self[task](x).squeeze(1), y)


def test_a_step_leaves_alone_what_its_loss_does_not_depend_on():
    batches = [("even", X[:6], Y[:6]), ("odd", X[6:12], Y[6:12]), ("even", X[12:18], Y[12:18])]
    there = Heads()
    optimizer = torch.optim.SGD(there.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
    for step in range(9):
        optimizer.zero_grad()
        there.loss(*batches[step % 3]).backward()
        optimizer.step()
    here = gs.optim.SGD(0.1, momentum=0.9, weight_decay=0.1)
    assert_alike(gs.fit(Heads(), Heads.loss, batches, optimizer=here, steps=9).model, there)


def test_a_round_and_a_mean_of_batches_change_what_one_of_them_uses():
    batches = [("even", X[:6], Y[:6]), ("odd", X[6:12], Y[6:12]), ("even", X[12:18], Y[12:18]), ("even", X, Y)]
    began = Heads()
    for options in ({"accumulate": 2}, {"local_steps": gs.LocalSteps(gs.optim.SGD(0.1), every=2)}):
        steps = {}
        for count in (1, 2):
            trained = gs.fit(Heads(), Heads.loss, batches, optimizer=gs.optim.SGD(0.5), steps=count, **options).model
            steps[count] = {name: trained[name].weight.tolist() for name in ("even", "odd", "never")}
        assert steps[1]["never"] == steps[2]["never"] == began["never"].weight.tolist(), options
        assert steps[1]["odd"] == steps[2]["odd"] != began["odd"].weight.tolist(), options
        assert began["even"].weight.tolist() != steps[1]["even"] != steps[2]["even"], options
