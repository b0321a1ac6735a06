"""Local steps in fragments: runs of one worker against Streaming DiLoCo written out in numpy."""

import threading

import numpy as np
import pytest

import globalstep as gs
from globalstep.errors import InvalidArgumentError
from globalstep.worker.frameworks.fragment_rounds import FragmentPushes

RANDOM = np.random.default_rng(7)
X = RANDOM.normal(size=(40, 3)).astype(np.float32)
Y = X @ np.array([1.0, -2.0, 3.0], np.float32) + 0.5
BATCHES = [(X[at : at + 4], Y[at : at + 4]) for at in range(0, 40, 4)]
OUTER = gs.optim.SGD(0.7, momentum=0.9, nesterov=True)
BEGIN = {"w": np.zeros(3, np.float32), "b": np.float32(0), "c": np.ones(2, np.float32)}
#: As `split_evenly` has them.
FRAGMENTS = {1: [["w", "b", "c"]], 2: [["w"], ["b", "c"]], 3: [["w"], ["c"], ["b"]]}


def loss_fn(params, x, y):
    error = x @ params["w"] + params["b"] + params["c"].sum() - y
    toward = 2 * np.mean(error)
    found = {"w": 2 * x.T @ error / len(x), "b": toward, "c": np.full_like(params["c"], toward)}
    return np.mean(error**2), found


class Adam:
    """Adam with PyTorch's formula, in float64."""

    def __init__(self, rate):
        self.rate, self.steps, self.moments = rate, 0, {}

    def step(self, params, gradients):
        self.steps += 1
        for name, gradient in gradients.items():
            first, second = self.moments.get(name, (0.0, 0.0))
            first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
            self.moments[name] = first, second
            root = np.sqrt(second / (1 - 0.999**self.steps)) + 1e-8
            params[name] = params[name] - self.rate * first / (1 - 0.9**self.steps) / root


class Nesterov:
    def __init__(self, lr=0.7, momentum=0.9):
        self.lr, self.momentum, self.kept = lr, momentum, {}

    def applied(self, values, differences):
        for name, difference in differences.items():
            self.kept[name] = self.momentum * self.kept.get(name, 0.0) + difference
            values[name] = values[name] - self.lr * (difference + self.momentum * self.kept[name])


class DelayedNesterov:
    """Of arXiv 2401.09135 (c = 0); its count of pushes is a fragment's own."""

    def __init__(self, lr=0.4, momentum=0.9, delay=2):
        self.lr, self.momentum, self.delay, self.kept = lr, momentum, delay, {}

    def applied(self, values, differences):
        for name, found in differences.items():
            kept, waiting, count = self.kept.get(name, (0.0, 0.0, 0))
            waiting, count = waiting + found, count + 1
            if count % self.delay:
                values[name] = values[name] - self.lr * found / self.delay
            else:
                kept = self.momentum * kept + waiting / self.delay
                values[name] = values[name] - self.lr * (self.momentum * kept + found / self.delay)
                waiting = np.zeros_like(waiting)
            self.kept[name] = kept, waiting, count


def streaming_diloco(every, fragments, pushes, overlap=0, alpha=0.5, outer=None):
    """Step by step: fragment p is sent after step (p + 1) H/P + k H, and mixed in `overlap` steps later."""
    outer, inner = outer or Nesterov(), Adam(0.05)
    values = {name: np.asarray(value, np.float64) for name, value in BEGIN.items()}
    began, local, names, between = dict(values), dict(values), FRAGMENTS[fragments], every // fragments
    under_way = {}
    for step in range(1, pushes * between + 1):
        inner.step(local, loss_fn(local, *BATCHES[(step - 1) % 10])[1])
        for name in under_way.pop(step, []):
            local[name] = alpha * local[name] + (1 - alpha) * values[name]
            began[name] = values[name]
        if step % between:
            continue
        number = step // between - 1
        sent = list(values) if number == pushes - 1 else names[number % fragments]
        outer.applied(values, {name: began[name] - local[name] for name in sent})
        if overlap:
            under_way[step + overlap] = sent
        else:
            for name in sent:
                began[name] = local[name] = values[name]
    return values


def fit(local, outer=OUTER, **options):
    return gs.fit(BEGIN, loss_fn, BATCHES, optimizer=outer, local_steps=local, **options)


def assert_near(model, expected):
    for name, value in expected.items():
        np.testing.assert_allclose(model[name], value, rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("replicas", [None, 1])
@pytest.mark.parametrize(("every", "fragments", "pushes"), [(6, 2, 9), (6, 3, 10), (3, 3, 4), (2, 1, 5)])
@pytest.mark.parametrize(("overlap", "alpha"), [(0, 0.5), (1, 0.5), (1, 0.0), (2, 0.25)])
def test_values_are_those_of_streaming_diloco(every, fragments, pushes, overlap, alpha, replicas):
    overlap = min(overlap, every // fragments)
    local = gs.LocalSteps(gs.optim.Adam(0.05), every, replicas, fragments=fragments, overlap=overlap, alpha=alpha)
    result = fit(local, steps=pushes)
    assert result.step == pushes
    assert_near(result.model, streaming_diloco(every, fragments, pushes, overlap, alpha))


def test_each_fragment_has_an_outer_optimizer_of_its_own():
    local = gs.LocalSteps(gs.optim.Adam(0.05), every=4, fragments=2)
    result = fit(local, gs.optim.DelayedNesterov(0.4, momentum=0.9, delay=2), steps=11)
    assert_near(result.model, streaming_diloco(4, 2, 11, outer=DelayedNesterov()))


def torch_model():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed; `pip install torch==2.13.0` runs this")

    class Linear(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name, value in BEGIN.items():
                setattr(self, name, torch.nn.Parameter(torch.tensor(value)))

    def loss(model, x, y):
        x, y = torch.from_numpy(x), torch.from_numpy(y)
        return ((x @ model.w + model.b + model.c.sum() - y) ** 2).mean()

    return Linear(), loss, lambda model: {name: value.detach().numpy() for name, value in model.named_parameters()}


def jax_model():
    jax = pytest.importorskip("jax", reason="jax is not installed; `pip install jax` runs this")

    def loss(params, x, y):
        return jax.numpy.mean((x @ params["w"] + params["b"] + params["c"].sum() - y) ** 2)

    return {name: jax.numpy.asarray(value) for name, value in BEGIN.items()}, loss, dict


@pytest.mark.parametrize("make", [torch_model, jax_model])
def test_modules_of_torch_and_parameters_of_jax_are_trained_alike(make):
    model, loss, values_of = make()
    local = gs.LocalSteps(gs.optim.Adam(0.05), every=6, fragments=3, overlap=1)
    result = gs.fit(model, loss, BATCHES, optimizer=OUTER, local_steps=local, steps=10)
    expected = streaming_diloco(6, 3, 10, overlap=1)
    assert_near(values_of(result.model), expected)


def test_a_module_with_running_averages_is_refused():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed; `pip install torch==2.13.0` runs this")
    module = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.BatchNorm1d(1))
    local = gs.LocalSteps(gs.optim.SGD(0.1), every=4, fragments=2)
    with pytest.raises(InvalidArgumentError, match="without running averages such as"):
        gs.fit(module, lambda module, x, y: module(x).sum(), BATCHES, optimizer=OUTER, local_steps=local, steps=3)


def test_a_slow_worker_takes_fewer_steps_between_two_synchronizations():
    local = gs.LocalSteps(gs.optim.SGD(0.05), every=12, fragments=2, adapt_to_speed=True)
    sizes = []
    with gs.Trainer(BEGIN, loss_fn, optimizer=OUTER, local_steps=local, steps=4) as trainer:
        while not trainer.done:
            pace = trainer._rounds.pace
            pace.fastest = 3 * pace.speed if len(sizes) % 2 else 0.0
            sizes.append(trainer.round_steps)
            trainer.step(*BATCHES[: sizes[-1]])
    assert sizes == [6, 2, 6, 2]


@pytest.mark.parametrize("outer", [{"w": gs.optim.SGD(0.5), "*": OUTER}, gs.train.MomentumOptimizer(0.1, 0.5)])
def test_outer_optimizers_by_name_and_of_gs_train(outer):
    """Each parameter has the optimizer that it has without fragments, where each push brings all."""
    at_once = fit(gs.LocalSteps(gs.optim.SGD(0.02), every=1), outer, steps=1)
    in_one = fit(gs.LocalSteps(gs.optim.SGD(0.02), every=2, fragments=2), outer, steps=1)
    assert_near(in_one.model, at_once.model)


def test_weight_decay_of_the_outer_optimizer_is_of_the_values_that_a_fragment_began_with():
    """A loss without a gradient: what is left is the decay, once for each push of a Variable."""
    local = gs.LocalSteps(gs.optim.SGD(0.1), every=2, fragments=2)
    begin = {"w": np.ones(3, np.float32), "c": np.ones(2, np.float32)}
    result = gs.fit(begin, lambda params, *_: (0.0, {name: 0 * value for name, value in params.items()}), BATCHES,
                    optimizer=gs.optim.SGD(1.0, weight_decay=0.25), local_steps=local, steps=5)  # fmt: skip
    assert_near(result.model, {"w": np.full(3, 0.75**3), "c": np.full(2, 0.75**3)})


def test_epochs_are_counted_in_synchronizations():
    assert fit(gs.LocalSteps(gs.optim.SGD(0.05), every=4, fragments=2), epochs=3).step == 15


def test_the_tensor_bytes_of_a_push_are_those_of_its_fragment():
    params = {f"layer{at}": np.zeros(2048, np.float32) for at in range(4)}
    sent, received = {}, {}
    for fragments in (1, 4):
        local = gs.LocalSteps(gs.optim.SGD(0.05), every=4, overlap=1, fragments=fragments)
        with gs.Trainer(
            params, lambda params, _: (1.0, dict(params)), optimizer=OUTER, local_steps=local, steps=16
        ) as trainer:
            traffic = []
            for _ in range(12):
                trainer.step(*[0] * trainer.round_steps)
                traffic.append(trainer._session.run_step_fn(lambda step_context: step_context.session.cluster.traffic))
        took = np.diff(np.array(traffic), axis=0)[1:]
        sent[fragments], received[fragments] = took.max(axis=0)
        assert (took[0] == took).all()
    assert sent[4] == sent[1] / 4
    assert received[4] <= received[1] / 4 + 8


def test_a_step_is_taken_while_a_push_is_under_way(monkeypatch):
    """Each push waits until the model has been evaluated after it was begun: without overlap it would wait for ever."""
    evaluated, begun = threading.Event(), []
    send = FragmentPushes.send

    def waiting(self, executor, cut):
        if cut.turn is not None:
            begun.append(threading.current_thread().name)
            assert evaluated.wait(30.0)
        evaluated.clear()
        return send(self, executor, cut)

    def noted(params, x, y):
        evaluated.set()
        assert threading.current_thread() is threading.main_thread()
        return loss_fn(params, x, y)

    monkeypatch.setattr(FragmentPushes, "send", waiting)
    local = gs.LocalSteps(gs.optim.SGD(0.05), every=4, fragments=2, overlap=1)
    trainer = gs.Trainer(BEGIN, noted, optimizer=OUTER, local_steps=local, steps=5)
    with trainer:
        while not trainer.done:
            evaluated.clear()
            trainer.step(BATCHES[0], BATCHES[1])
    assert len(begun) == 4
    assert all(name.startswith("globalstep-fragment") for name in begun)
    assert not [one for one in threading.enumerate() if one.name.startswith("globalstep-fragment")]


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("bad_at", [0, 1])
def test_steps_that_fail_leave_everything_as_it_was_but_for_what_was_under_way(overlap, bad_at):
    bad = (X[:4], np.full(4, np.nan, np.float32))
    local = gs.LocalSteps(gs.optim.Adam(0.05), every=4, fragments=2, overlap=overlap, alpha=0.0)
    trainer = gs.Trainer(BEGIN, loss_fn, optimizer=OUTER, local_steps=local, steps=4)
    with trainer:
        trainer.step(BATCHES[0], BATCHES[1])
        for _ in range(2):
            failing = [BATCHES[2], BATCHES[3]]
            failing[bad_at] = bad
            with pytest.raises(InvalidArgumentError, match="The loss is nan"):
                trainer.step(*failing)
        at = 2
        while not trainer.done:
            trainer.step(BATCHES[at], BATCHES[at + 1])
            at += 2
    assert at == 8
    if not overlap:
        assert_near(trainer.result.model, streaming_diloco(4, 2, 4))
    else:
        # The first push was mixed in before the steps that had failed, not after one of them.
        assert_near(trainer.result.model, mixed_at_once_after_the_first_push())


def mixed_at_once_after_the_first_push():
    outer, inner = Nesterov(), Adam(0.05)
    values = {name: np.asarray(value, np.float64) for name, value in BEGIN.items()}
    began, local, waiting, names = dict(values), dict(values), [], FRAGMENTS[2]
    for call in range(4):
        for within in range(2):
            if call == 1 and within == 0:
                local |= {name: values[name] for name in waiting}
            inner.step(local, loss_fn(local, *BATCHES[2 * call + within])[1])
            if call > 1 and within == 0:
                local |= {name: values[name] for name in waiting}
            began |= {name: values[name] for name in waiting}
        waiting = names[call % 2] if call < 3 else list(values)
        outer.applied(values, {name: began[name] - local[name] for name in waiting})
    return values


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: gs.LocalSteps(gs.optim.SGD(0.1), every=5, fragments=2), "no multiple of fragments"),
        (lambda: gs.LocalSteps(gs.optim.SGD(0.1), every=4, fragments=0), "fragments is 0"),
        (lambda: gs.LocalSteps(gs.optim.SGD(0.1), every=4, fragments=2, overlap=3), "overlap is 3"),
        (lambda: gs.LocalSteps(gs.optim.SGD(0.1), every=4, overlap=-1), "overlap is -1"),
        (lambda: gs.LocalSteps(gs.optim.SGD(0.1), every=4, overlap=1, alpha=1.5), "alpha is 1.5"),
        (lambda: fit(gs.LocalSteps(gs.optim.SGD(0.1), every=4, fragments=4), steps=3), "has 3 parameters to train"),
        (lambda: fit(gs.LocalSteps(gs.optim.SGD(0.1), every=4, fragments=2), steps=3, ema_decay=0.9), "no ema_decay"),
        (
            lambda: fit(gs.LocalSteps(gs.optim.SGD(0.1), every=4, fragments=2), gs.train.AdamOptimizer(), steps=3),
            "AdamOptimizer has state of its own",
        ),
        (
            lambda: gs.Trainer(
                BEGIN, loss_fn, optimizer=OUTER, local_steps=gs.LocalSteps(gs.optim.SGD(0.1), every=4, overlap=1)
            ).__enter__(),
            "give steps",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, said):
    with pytest.raises(InvalidArgumentError, match=said):
        make()


def test_no_batch_is_claimed_for_a_step_that_a_worker_with_overlap_has_not_made():
    """Before its first push a worker takes batches that others would claim as well: each goes through its own part."""
    claims = [
        gs.LocalSteps(gs.optim.SGD(0.1), every=4, **options).claims_batches
        for options in ({}, {"fragments": 2}, {"overlap": 1}, {"overlap": 1, "replicas": 2}, {"adapt_to_speed": True})
    ]
    assert claims == [True, True, False, True, False]
