"""gs.optim: the numbers of torch.optim, step by step."""

import math
import re

import numpy as np
import pytest

import globalstep as gs

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `pip install torch==2.13.0` runs these tests")

RANDOM = np.random.default_rng(7)
START = RANDOM.normal(size=(6, 3)).astype(np.float32)
#: Some far from 1, so that an epsilon in another place would be seen.
GRADIENTS = [RANDOM.normal(size=START.shape).astype(np.float32) * scale for scale in (1.0, 1e-3, 30.0, 1e-5, 0.3, 2.0)]
OPTIMIZERS = {
    "SGD": {},
    "SGD momentum": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    "SGD nesterov": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    "Adam": {},
    "Adam eps": {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1},
    "AdamW": {},
    "AdamW decay": {"lr": 0.1, "weight_decay": 0.2},
    "Adagrad": {},
    "Adagrad decay": {"lr": 0.5, "lr_decay": 0.3, "initial_accumulator_value": 0.1, "eps": 1e-2, "weight_decay": 0.1},
    "Adadelta": {},
    "Adadelta rho": {"rho": 0.5, "eps": 1e-3},
    "RMSprop": {},
    "RMSprop momentum": {"lr": 0.05, "alpha": 0.9, "momentum": 0.8, "eps": 1e-2, "weight_decay": 0.1},
    "RMSprop centered": {"centered": True, "eps": 1e-4},
}


def trained_here(optimizer, gradients):
    """Apply gradients to START on a parameter server in the process."""
    values = []

    def given(params, gradient):
        values.append(params["w"].copy())
        return 0.0, {"w": gradient}

    result = gs.fit({"w": START}, given, [(one,) for one in gradients], optimizer=optimizer, steps=len(gradients))
    return [*values[1:], result.model["w"]]


def trained_there(make, gradients, make_schedule=None):
    w = torch.nn.Parameter(torch.tensor(START))
    optimizer = make([w])
    schedule = make_schedule(optimizer) if make_schedule else None
    values = []
    for gradient in gradients:
        w.grad = torch.tensor(gradient)
        optimizer.step()
        if schedule is not None:
            schedule.step()
        values.append(w.detach().numpy().copy())
    return values


@pytest.mark.parametrize("case", OPTIMIZERS)
def test_a_step_is_that_of_torch(case):
    name, options = case.split(" ", maxsplit=1)[0], OPTIMIZERS[case]
    here = trained_here(getattr(gs.optim, name)(**options), GRADIENTS)
    there = trained_there(lambda params: getattr(torch.optim, name)(params, **options), GRADIENTS)
    for got, wanted in zip(here, there, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6)


def test_sparse_adam_and_adagrad_change_rows_as_torch_does():
    ids, rows = np.array([4, 1, 4]), RANDOM.normal(size=(3, 3)).astype(np.float32)
    for name in ("SparseAdam", "Adagrad", "SGD"):
        table = gs.torch.Embedding.from_pretrained(torch.tensor(START), freeze=False)
        optimizer = getattr(gs.optim, name)(lr=0.1)
        batch = torch.tensor(ids), torch.tensor(rows)
        gs.fit(table, lambda model, at, grad: (model(at) * grad).sum(), [batch], optimizer=optimizer, steps=3)
        param = torch.nn.Parameter(torch.tensor(START))
        optimizer = getattr(torch.optim, name)([param], lr=0.1)
        with torch.sparse.check_sparse_tensor_invariants():
            for _ in range(3):
                param.grad = torch.sparse_coo_tensor(torch.tensor(ids)[None], torch.tensor(rows), START.shape)
                optimizer.step()
        np.testing.assert_allclose(table.weight, param.detach(), rtol=2e-5, atol=2e-6, err_msg=name)


SCHEDULES = {
    "StepLR": {"step_size": 2, "gamma": 0.5},
    "MultiStepLR": {"milestones": [1, 4], "gamma": 0.5},
    "ExponentialLR": {"gamma": 0.9},
    "CosineAnnealingLR": {"T_max": 6, "eta_min": 0.01},
    "LinearLR": {"start_factor": 0.25, "total_iters": 3},
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_is_that_of_torch(name):
    options = SCHEDULES[name]
    here = trained_here(gs.optim.SGD(getattr(gs.optim, name)(0.5, **options)), GRADIENTS)
    there = trained_there(
        lambda params: torch.optim.SGD(params, lr=0.5),
        GRADIENTS,
        lambda optimizer: getattr(torch.optim.lr_scheduler, name)(optimizer, **options),
    )
    for got, wanted in zip(here, there, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6)


MANY = [GRADIENTS[number % len(GRADIENTS)] for number in range(20)]


@pytest.mark.parametrize(
    "options",
    [
        {"total_steps": 20},
        {"epochs": 2, "steps_per_epoch": 10, "anneal_strategy": "linear", "div_factor": 10.0},
        {"total_steps": 20, "three_phase": True, "pct_start": 0.4, "final_div_factor": 100.0},
        {"total_steps": 21, "pct_start": 0.33},
    ],
)
def test_one_cycle_is_torch_s(options):
    options = {"cycle_momentum": False, **options}
    here = trained_here(gs.optim.SGD(gs.optim.OneCycleLR(0.5, **options)), MANY)
    there = trained_there(
        lambda params: torch.optim.SGD(params, lr=0.5),
        MANY,
        lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, **options),
    )
    for got, wanted in zip(here, there, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6)


def test_schedules_one_after_another_are_torch_s():
    def of(module, *first):
        return [
            module.LinearLR(*first, start_factor=0.1, total_iters=4),
            module.CosineAnnealingLR(*first, T_max=8, eta_min=0.01),
            module.StepLR(*first, step_size=3, gamma=0.5),
        ]

    here = trained_here(gs.optim.SGD(gs.optim.SequentialLR(of(gs.optim, 0.5), milestones=[5, 12])), MANY)
    schedulers = torch.optim.lr_scheduler
    there = trained_there(
        lambda params: torch.optim.SGD(params, lr=0.5),
        MANY,
        lambda optimizer: schedulers.SequentialLR(optimizer, of(schedulers, optimizer), milestones=[5, 12]),
    )
    for got, wanted in zip(here, there, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6)


def test_a_rate_may_be_a_function_of_the_step():
    here = trained_here(gs.optim.SGD(lambda step: 0.1 * (step + 1)), GRADIENTS)
    assert np.allclose(here[1], START - 0.1 * GRADIENTS[0] - 0.2 * GRADIENTS[1], atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gs.optim.Adam(-1.0), "lr is -1.0; it must be a number of at least 0"),
        (lambda: gs.optim.Adam(float("nan")), "lr is nan"),
        (lambda: gs.optim.SGD(nesterov=True), "nesterov needs a momentum"),
        (lambda: gs.optim.Adam(betas=(0.9, 1.0)), "two numbers from 0 to below 1"),
        (lambda: gs.optim.Adagrad(gs.optim.ExponentialLR(0.1, 0.9), lr_decay=0.1), "not both"),
        (lambda: gs.optim.DelayedNesterov(delay=0), "delay is 0; it must be a whole number, at least 1"),
    ],
)
def test_numbers_that_cannot_be(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_delayed_nesterov_moves_its_momentum_once_in_delay_pushes():
    here = trained_here(gs.optim.DelayedNesterov(0.4, delay=3), GRADIENTS)
    value, momentum, waiting = START.astype(np.float64), np.zeros_like(START, np.float64), []
    for count, (gradient, got) in enumerate(zip(GRADIENTS, here, strict=True), start=1):
        waiting.append(gradient)
        value = value - 0.4 * gradient / 3
        if count % 3 == 0:
            momentum, waiting = 0.9 * momentum + sum(waiting) / 3, []
            value = value - 0.4 * 0.9 * momentum
        np.testing.assert_allclose(got, value, rtol=2e-5, atol=2e-6)
    assert len(GRADIENTS) > 3


def test_delayed_nesterov_of_every_push_is_nesterovs_momentum():
    delayed = trained_here(gs.optim.DelayedNesterov(0.1, 0.9, delay=1), GRADIENTS)
    plain = trained_here(gs.optim.SGD(0.1, momentum=0.9, nesterov=True), GRADIENTS)
    np.testing.assert_allclose(delayed, plain, rtol=2e-5, atol=2e-6)


def test_a_rate_that_is_none():
    with pytest.raises(TypeError, match=r"lr is '0.1'; it must be a number, a schedule such as gs.optim.StepLR"):
        gs.optim.SGD("0.1")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: gs.optim.StepLR(0.1, step_size=0), "StepLR: step_size is 0; it must be a number above 0."),
        (lambda: gs.optim.StepLR("0.1", step_size=2), "StepLR: lr is '0.1'; it must be a number of at least 0."),
        (lambda: gs.optim.MultiStepLR(-1, [2]), "MultiStepLR: lr is -1; it must be a number of at least 0."),
        (lambda: gs.optim.ExponentialLR(math.nan, 0.9), "ExponentialLR: lr is nan; it must be a number of at least 0."),
        (lambda: gs.optim.CosineAnnealingLR(1e-3, -5), "CosineAnnealingLR: T_max is -5; it must be a number above 0."),
        (lambda: gs.optim.CosineAnnealingLR(0, 5), "CosineAnnealingLR: lr is 0; it must be a number above 0."),
        (lambda: gs.optim.LinearLR(0.1, total_iters=0), "LinearLR: total_iters is 0; it must be a number above 0."),
        (lambda: gs.optim.OneCycleLR(0.1, 100), "Give cycle_momentum=False."),
        (lambda: gs.optim.OneCycleLR(0, 100), "OneCycleLR: max_lr is 0; it must be a number above 0."),
        (lambda: gs.optim.OneCycleLR(0.1, cycle_momentum=False), "give total_steps, or epochs and steps_per_epoch"),
        (lambda: gs.optim.OneCycleLR(0.1, 3, cycle_momentum=False), "leaves a part of the cycle without a step"),
        (
            lambda: gs.optim.OneCycleLR(0.1, 99, anneal_strategy="exp", cycle_momentum=False),
            "anneal_strategy is 'exp'; it must be 'cos' or 'linear'.",
        ),
        (lambda: gs.optim.SequentialLR([], []), "SequentialLR: schedulers has none; give schedules of gs.optim."),
        (lambda: gs.optim.SequentialLR([gs.optim.StepLR(0.1, 2)], [3]), "1 schedules and 1 milestones"),
        (
            lambda: gs.optim.SequentialLR([gs.optim.StepLR(0.1, 2)] * 3, [3, 3]),
            "SequentialLR: milestones [3, 3] must ascend, from 1 on.",
        ),
    ],
)
def test_numbers_of_a_schedule_that_cannot_be(make, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        make()
