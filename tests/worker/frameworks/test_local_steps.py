"""Local steps: a run of one worker, and of two taking turns, against DiLoCo written out in numpy."""

import numpy as np
import pytest

import globalstep as gs
from globalstep.errors import InvalidArgumentError
from globalstep.wire.declarations import OutcomeKind
from globalstep.worker.frameworks.local_rounds import LocalRounds
from globalstep.worker.step.model import StepResult, Values

RANDOM = np.random.default_rng(7)
X = RANDOM.normal(size=(40, 3)).astype(np.float32)
Y = X @ np.array([1.0, -2.0, 3.0], np.float32)
BATCHES = [(X[at : at + 4], Y[at : at + 4]) for at in range(0, 40, 4)]
OUTER = gs.optim.SGD(0.7, momentum=0.9, nesterov=True)


def loss_fn(w, x, y):
    error = x @ w - y
    return np.mean(error**2), 2 * x.T @ error / len(x)


class Adam:
    """Adam with PyTorch's formula, in float64."""

    def __init__(self, rate):
        self.rate, self.steps = rate, 0
        self.first, self.second = np.zeros(3), np.zeros(3)

    def step(self, w, gradient):
        self.steps += 1
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.999 * self.second + 0.001 * gradient**2
        root = np.sqrt(self.second / (1 - 0.999**self.steps)) + 1e-8
        return w - self.rate(self.steps - 1) * self.first / (1 - 0.9**self.steps) / root


def diloco(rate, every, rounds):
    w, momentum, inner, at = np.zeros(3), np.zeros(3), Adam(rate), 0
    for _ in range(rounds):
        local = w
        for _ in range(every):
            local = inner.step(local, loss_fn(local, *BATCHES[at % 10])[1])
            at += 1
        momentum = 0.9 * momentum + (w - local)
        w = w - 0.7 * ((w - local) + 0.9 * momentum)
    return w


def fit(local, **options):
    return gs.fit(np.zeros(3, np.float32), loss_fn, BATCHES, optimizer=OUTER, local_steps=local, **options)


@pytest.mark.parametrize("replicas", [None, 1])
def test_rounds_are_those_of_diloco(replicas):
    result = fit(gs.LocalSteps(gs.optim.Adam(0.05), every=7, replicas=replicas), steps=9)
    assert result.step == 9
    np.testing.assert_allclose(result.model, diloco(lambda step: 0.05, 7, 9), rtol=1e-4, atol=1e-5)


def test_a_schedule_counts_the_workers_own_steps():
    result = fit(gs.LocalSteps(gs.optim.Adam(gs.optim.StepLR(0.1, step_size=5, gamma=0.5)), every=4), steps=6)
    np.testing.assert_allclose(result.model, diloco(lambda step: 0.1 * 0.5 ** (step // 5), 4, 6), rtol=1e-4, atol=1e-5)


def test_a_rate_that_is_a_function_is_called_with_the_workers_own_step():
    asked = []

    def rate(step):
        asked.append(step)
        return 0.1 * 0.5 ** (step // 5)

    result = fit(gs.LocalSteps(gs.optim.Adam(rate), every=4), steps=6)
    assert asked == list(range(24))
    np.testing.assert_allclose(result.model, diloco(lambda step: 0.1 * 0.5 ** (step // 5), 4, 6), rtol=1e-4, atol=1e-5)


def test_one_inner_step_with_plain_descent_outside_is_the_inner_optimizer():
    every_step = gs.fit(np.zeros(3, np.float32), loss_fn, BATCHES, optimizer=gs.optim.SGD(0.05), steps=20)
    local = gs.LocalSteps(gs.optim.SGD(0.05), every=1)
    averaged = gs.fit(np.zeros(3, np.float32), loss_fn, BATCHES, optimizer=gs.optim.SGD(1.0), local_steps=local,
                      steps=20)  # fmt: skip
    np.testing.assert_allclose(averaged.model, every_step.model, rtol=1e-5, atol=1e-6)


def test_epochs_are_rounds():
    assert fit(gs.LocalSteps(gs.optim.SGD(0.05), every=5), epochs=3).step == 6


def test_a_round_that_fails_leaves_the_inner_optimizer_as_it_was():
    bad = (X[:4], np.full(4, np.nan, np.float32))
    local = gs.LocalSteps(gs.optim.Adam(0.05), every=2)
    with gs.Trainer(np.zeros(3, np.float32), loss_fn, optimizer=OUTER, local_steps=local) as trainer:
        trainer.step(BATCHES[0], BATCHES[1])
        with pytest.raises(InvalidArgumentError, match="The loss is nan"):
            trainer.step(BATCHES[2], bad)
        assert trainer.global_step == 1
        trainer.step(BATCHES[2], BATCHES[3])
    np.testing.assert_allclose(trainer.result.model, diloco(lambda step: 0.05, 2, 2), rtol=1e-4, atol=1e-5)


def test_a_parameter_may_be_a_single_number():
    def loss_fn(params, x, y):
        error = x * params["w"] + params["b"] - y
        return np.mean(error**2), {"w": np.mean(2 * error * x), "b": np.mean(2 * error)}

    x = np.linspace(-1, 1, 8, dtype=np.float32)
    params = {"w": np.zeros((), np.float32), "b": np.float32(0)}
    local = gs.LocalSteps(gs.optim.SGD(0.1, momentum=0.5), every=5)
    config = gs.ConfigProto(wire=gs.WireOptions("int8"))
    result = gs.fit(params, loss_fn, [(x, 3 * x - 2)], optimizer=OUTER, local_steps=local, steps=60, config=config)
    np.testing.assert_allclose([result.model["w"], result.model["b"]], [3, -2], atol=0.05)


def rounds_of(every):
    rounds = LocalRounds(gs.optim.SGD(0.05))

    def step(values, batches, seeds):
        loss, gradient = loss_fn(values.dense["w"], *batches[0])
        return StepResult(loss, {"w": gradient})

    def take(first, values):
        batches = [BATCHES[(first + at) % 10] for at in range(every)]
        return rounds.round(step, Values({"w": values}), batches, [0] * every).gradients["w"]

    return rounds, take


def descended(w, first, every):
    for at in range(first, first + every):
        w = w - 0.05 * loss_fn(w, *BATCHES[at % 10])[1]
    return w


@pytest.mark.parametrize("kind", [OutcomeKind.LATE, OutcomeKind.DROPPED_STALE])
def test_rounds_that_came_too_late_are_brought_with_the_next(kind):
    rounds, take = rounds_of(5)
    begins = [np.full(3, value, np.float32) for value in (0.0, 0.5, -0.5, 1.0)]
    first = take(0, begins[0])
    np.testing.assert_allclose(first, begins[0] - descended(begins[0].astype(float), 0, 5), rtol=1e-5)
    rounds.settle(kind)
    # Others have moved the values meanwhile: the round begins as far from them as the last one ended.
    second = take(5, begins[1])
    ended = descended(begins[1].astype(float) - first, 5, 5)
    np.testing.assert_allclose(second, begins[1] - ended, rtol=1e-5)
    rounds.settle(kind)
    third = take(10, begins[2])
    np.testing.assert_allclose(third, begins[2] - descended(begins[2].astype(float) - second, 10, 5), rtol=1e-4)
    rounds.settle(OutcomeKind.ACCEPTED)
    fourth = take(15, begins[3])
    np.testing.assert_allclose(fourth, begins[3] - descended(begins[3].astype(float), 15, 5), rtol=1e-5)


def test_a_round_whose_difference_was_not_finite_is_not_carried():
    rounds, take = rounds_of(2)
    take(0, np.zeros(3, np.float32))
    rounds.settle(OutcomeKind.DROPPED_NAN)
    again = take(0, np.zeros(3, np.float32))
    np.testing.assert_allclose(again, -descended(np.zeros(3), 0, 2), rtol=1e-5)


def test_a_trainer_carries_the_round_of_a_push_that_came_too_late(monkeypatch):
    settled = []
    monkeypatch.setattr(LocalRounds, "settle", lambda self, kind: settled.append(kind))
    fit(gs.LocalSteps(gs.optim.SGD(0.05), every=2, replicas=1), steps=3)
    assert settled[:3] == [OutcomeKind.ACCEPTED] * 3


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: gs.LocalSteps(gs.optim.SGD(0.1), every=0), "every is 0"),
        (lambda: gs.LocalSteps(gs.train.GradientDescentOptimizer(0.1), every=5), "one of gs.optim"),
        (lambda: gs.LocalSteps(gs.optim.SGD(0.1), every=5, replicas=0), "replicas is 0"),
        (lambda: fit(gs.LocalSteps(gs.optim.SGD(0.1), every=5), accumulate=2, steps=1), "not both"),
        (lambda: fit(gs.LocalSteps(gs.optim.SGD(0.1), every=5), clip_grad_norm=1.0, steps=1), "clip_grad_norm"),
        (
            lambda: fit(gs.LocalSteps(gs.optim.SGD(0.1), every=5), config=gs.ConfigProto(pushes_in_flight=1), steps=1),
            "does not go with pushes_in_flight",
        ),
        (lambda: fit(50, steps=1), "must be gs.LocalSteps"),
    ],
)
def test_what_cannot_be_is_refused(make, said):
    with pytest.raises(InvalidArgumentError, match=said):
        make()


@pytest.fixture(scope="module")
def digits():
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return (images / 16).astype(np.float32), np.eye(10, dtype=np.float32)[labels]


def trained_on(images, labels, wire, **options):
    """Train a network of one hidden layer on digits by 40 rounds; gives its loss, and the bytes sent and read."""
    batches = [(images[at : at + 64], labels[at : at + 64]) for at in range(0, 1792, 64)]
    random = np.random.default_rng(0)
    params = {
        "hidden": random.normal(0, 0.2, (64, 64)).astype(np.float32),
        "output": random.normal(0, 0.2, (64, 10)).astype(np.float32),
    }

    def loss_fn(params, x, y):
        hidden = np.maximum(x @ params["hidden"], 0)
        logits = hidden @ params["output"]
        logits -= logits.max(axis=1, keepdims=True)
        log_probabilities = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        to_logits = (np.exp(log_probabilities) - y) / np.float32(len(y))
        to_hidden = (to_logits @ params["output"].T) * (hidden > 0)
        gradients = {"hidden": x.T @ to_hidden, "output": hidden.T @ to_logits}
        return -np.mean((log_probabilities * y).sum(axis=1)), gradients

    local = gs.LocalSteps(gs.optim.SGD(0.2), every=14, **options)
    config = gs.ConfigProto(wire=wire)
    with gs.Trainer(params, loss_fn, optimizer=OUTER, local_steps=local, config=config, steps=40) as trainer:
        traffic = []
        for at in range(40):
            trainer.step(*batches[14 * (at % 2) : 14 * (at % 2) + 14])
            if at in (1, 10):
                traffic.append(trainer._session.cluster.traffic)
    loss, _ = loss_fn(trainer.result.model, images[:1792], labels[:1792])
    return loss, *(now - then for then, now in zip(*traffic, strict=True))


@pytest.mark.parametrize("replicas", [None, 1])
def test_differences_in_fewer_bytes_train_as_well(digits, replicas):
    loss, sent, read = trained_on(*digits, None, replicas=replicas)
    assert loss < 0.1
    for wire, of_sent, of_read in [
        (gs.WireOptions("bfloat16"), 0.51, 0.51),
        (gs.WireOptions("int8"), 0.27, 0.51),
        # 640 of its 4,736 elements are in a tensor that is too small to be thinned out.
        (gs.WireOptions(top_k=0.1), 0.33, 1.0),
    ]:
        packed = trained_on(*digits, wire, replicas=replicas)
        assert packed[0] < 1.15 * loss + 0.002, wire
        assert packed[1] < of_sent * sent, wire
        assert packed[2] <= of_read * read, wire


def test_what_differences_lose_by_rounding_is_kept_and_added():
    """One weight moves so far that another's way is less than what int8 has between 0 and the next."""
    target = np.array([1000.0, 1.0], np.float32)

    def loss_fn(w):
        return np.sum((w - target) ** 2), 2 * (w - target)

    for dtype in ("int8", "bfloat16"):
        local = gs.LocalSteps(gs.optim.SGD(0.01), every=1)
        config = gs.ConfigProto(wire=gs.WireOptions(dtype))
        values = np.zeros(2, np.float32)
        result = gs.fit(values, lambda w, _: loss_fn(w), [0], optimizer=gs.optim.SGD(1.0), local_steps=local,
                        steps=400, config=config)  # fmt: skip
        np.testing.assert_allclose(result.model, target, rtol=0.01)
    assert config.wire == gs.WireOptions("bfloat16")
