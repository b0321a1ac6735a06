import math

import numpy as np
import pytest
from evaluate import evaluate

from globalstep.tf1.ops import constant_ops as c
from globalstep.tf1.ops import math_ops as m
from globalstep.tf1.optimizers import schedules as s
from globalstep.tf1.optimizers.lowering import lower
from globalstep.tf1.variables.variables import Variable
from globalstep.wire.expressions import evaluate as evaluate_expr

STEPS = [0, 1, 5, 10, 11, 15, 20, 25, 30, 37, 70, 1000]


def linear_cosine(rate, k, n, periods, alpha, beta):
    k = min(k, n)
    cosine = 0.5 * (1 + math.cos(math.pi * 2 * periods * k / n))
    return rate * ((alpha + (n - k) / n) * cosine + beta)


#: What the golden schedules do not have.
SCHEDULES = {
    "noisy_without_noise": (
        lambda k: s.noisy_linear_cosine_decay(0.1, k, 30, initial_variance=0.0),
        lambda k: linear_cosine(0.1, k, 30, 0.5, 0, 0.001),
    ),
    "warmup": (lambda k: s.linear_warmup(0.1, k, 20, 0.02), lambda k: 0.02 + 0.08 * min(k / 20, 1)),
    "warmup_to_a_schedule": (
        lambda k: s.linear_warmup(s.exponential_decay(0.1, k, 10, 0.5), k, 20),
        lambda k: 0.1 * 0.5 ** (k / 10) * min(k / 20, 1),
    ),
    "composed": (
        lambda k: m.minimum(s.exponential_decay(0.1, k, 10, 0.5), 0.03) * s.cosine_decay(2.0, k, 100),
        lambda k: min(0.1 * 0.5 ** (k / 10), 0.03) * (1 + math.cos(math.pi * min(k, 100) / 100)),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_value_and_expression_at_each_step(name):
    build, expected = SCHEDULES[name]
    step = Variable(np.int64(0), trainable=False, name="global_step", is_step=True)
    node = build(step)
    assert node.dtype.name == "float32"
    assert node.shape.as_list() == []
    expr = lower(node)
    assert (expr is None) == (name == "noisy_without_noise")
    for k in STEPS:
        value = evaluate(node, {step: k})
        assert value.dtype == np.float32
        assert float(value) == pytest.approx(expected(k), rel=1e-6, abs=1e-9)
        if expr is not None:
            found = evaluate_expr(expr, {"global_step": k})
            # A composed node multiplies in float32 by itself; the expression is exact.
            assert found == pytest.approx(expected(k), rel=1e-7 if name == "composed" else 1e-12, abs=1e-15)


@pytest.mark.parametrize("t", [2.0, 3.0, 5.0, 7.0, 1.5])
def test_a_restart_is_at_its_very_step(t):
    start, length = 0.0, 1000.0
    for _ in range(6):
        start, length = start + length, length * t
        if start != int(start):
            continue
        assert evaluate(s.cosine_decay_restarts(1.0, int(start), 1000, t)) == pytest.approx(1.0)
        assert evaluate(s.cosine_decay_restarts(1.0, int(start) - 1, 1000, t)) == pytest.approx(0.0, abs=1e-4)


def test_large_steps_are_exact():
    step = c.placeholder("int64", [])
    node = s.piecewise_constant(step, [2**24, 2**24 + 1], [1.0, 2.0, 3.0])
    assert [evaluate(node, {step: 2**24 + k}) for k in (0, 1, 2)] == [1, 2, 3]


def test_the_step_may_be_a_number_and_everything_a_node():
    assert evaluate(s.exponential_decay(0.1, 10, 10, 0.5)) == np.float32(0.05)
    feeds = {c.placeholder("float64", []): value for value in (0.1, 20.0, 10.0, 0.5)}
    node = s.exponential_decay(*feeds)
    assert node.dtype.name == "float64"
    assert evaluate(node, feeds) == pytest.approx(0.025, rel=1e-15)
    assert lower(node) is None


def test_a_rate_that_is_a_variable_closes():
    rate = Variable(np.float32(0.5), name="rate")
    node = s.natural_exp_decay(rate, Variable(np.int64(0), name="step", is_step=True), 10, 1.0)
    assert evaluate_expr(lower(node), {"rate": 0.5, "step": 10}) == pytest.approx(0.5 / math.e)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: s.exponential_decay(0.1, None, 1, 1), "global_step is required for exponential_decay."),
        (lambda: s.natural_exp_decay(0.1, None, 1, 1), "global_step is required for natural_exp_decay."),
        (lambda: s.inverse_time_decay(0.1, None, 1, 1), "global_step is required for inverse_time_decay."),
        (lambda: s.polynomial_decay(0.1, None, 1), "global_step is required for polynomial_decay."),
        (lambda: s.cosine_decay(0.1, None, 1), "cosine decay requires global_step"),
        (lambda: s.cosine_decay_restarts(0.1, None, 1), "cosine decay restarts requires global_step"),
        (lambda: s.linear_cosine_decay(0.1, None, 1), "linear cosine decay requires global_step"),
        (lambda: s.noisy_linear_cosine_decay(0.1, None, 1), "noisy linear cosine decay requires global_step"),
        (lambda: s.linear_warmup(0.1, None, 1), "global_step is required for linear_warmup."),
        (
            lambda: s.piecewise_constant(1, [1, 2], [0.1, 0.2]),
            "The length of boundaries should be 1 less than the length of values",
        ),
        (
            lambda: s.piecewise_constant(1, [1.5], [0.1, 0.2]),
            r"Boundaries \(float32\) must have the same dtype as x \(int32\)",
        ),
        (
            lambda: s.piecewise_constant(1, [1], [0.1, 2]),
            r"Values must have elements all with the same dtype \(float32 vs int32\)",
        ),
        (lambda: s.exponential_decay([0.1, 0.2], 1, 1, 1), "A schedule takes scalars"),
    ],
)
def test_errors(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_names_are_those_of_tensorflow():
    names = [
        s.exponential_decay(0.1, 1, 10, 0.5).op.name,
        s.natural_exp_decay(0.1, 1, 10, 0.5).op.name,
        s.inverse_time_decay(0.1, 1, 10, 0.5).op.name,
        s.polynomial_decay(0.1, 1, 10).op.name,
        s.piecewise_constant(1, [1], [1.0, 2.0]).op.name,
        s.cosine_decay(0.1, 1, 10).op.name,
        s.exponential_decay(0.1, 1, 10, 0.5, name="mine").op.name,
    ]
    assert names == [
        "ExponentialDecay",
        "ExponentialTimeDecay",
        "InverseTimeDecay",
        "PolynomialDecay",
        "PiecewiseConstant",
        "CosineDecay",
        "mine",
    ]


def test_noise_has_the_variance_asked_for():
    step = c.placeholder("int64", [])
    node = s.noisy_linear_cosine_decay(1.0, step, 1000, initial_variance=4.0, variance_decay=0.5, beta=0.0)
    at_start = [float(evaluate(node, {step: 0})) for _ in range(2000)]
    assert np.mean(at_start) == pytest.approx(1.0, abs=0.2)
    assert np.std(at_start) == pytest.approx(2.0, rel=0.1)
    later = [float(evaluate(node, {step: 99})) for _ in range(2000)]
    cosine = 0.5 * (1 + math.cos(math.pi * 0.099))
    assert np.std(later) == pytest.approx(2 / math.sqrt(10) * cosine, rel=0.1)
