"""Distributions: samples, shapes, errors, and those of tf.contrib; tests/golden/values has TensorFlow's numbers."""

import math

import numpy as np
import pytest

import globalstep as gs

ds = gs.contrib.distributions
MANY = 20_000


EACH = {
    "Normal": lambda: ds.Normal([0.5, -1.0], 2.0),
    "NormalWithSoftplusScale": lambda: ds.NormalWithSoftplusScale([0.5, -1.0], 0.3),
    "Uniform": lambda: ds.Uniform([-1.0, 2.0], [1.0, 5.0]),
    "Laplace": lambda: ds.Laplace([0.5, -1.0], [0.7, 1.0]),
    "Logistic": lambda: ds.Logistic([0.5, -1.0], [0.7, 1.0]),
    "StudentT": lambda: ds.StudentT(9.0, [0.5, -1.0], 0.5),
    "Gamma": lambda: ds.Gamma([1.5, 4.0], 2.0),
    "Exponential": lambda: ds.Exponential([0.5, 2.0]),
    "Beta": lambda: ds.Beta([1.5, 4.0], 2.0),
    "Dirichlet": lambda: ds.Dirichlet([[1.5, 4.0, 1.0], [2.0, 2.0, 3.0]]),
    "Bernoulli": lambda: ds.Bernoulli(probs=[0.2, 0.9]),
    "OneHotCategorical": lambda: ds.OneHotCategorical(probs=[[0.2, 0.3, 0.5], [0.9, 0.05, 0.05]]),
    "Multinomial": lambda: ds.Multinomial([3.0, 5.0], probs=[[0.2, 0.3, 0.5], [0.9, 0.05, 0.05]]),
    "DirichletMultinomial": lambda: ds.DirichletMultinomial(4.0, [[1.5, 4.0, 1.0], [2.0, 2.0, 3.0]]),
    "Poisson": lambda: ds.Poisson([0.5, 6.0]),
    "MultivariateNormalDiag": lambda: ds.MultivariateNormalDiag([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]], [0.5, 1.0, 2.0]),
    "MultivariateNormalDiagWithSoftplusScale": lambda: ds.MultivariateNormalDiagWithSoftplusScale(
        [[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]], [0.5, 1.0, 2.0]
    ),
}


@pytest.mark.parametrize("kind", EACH)
def test_samples_have_the_mean_and_the_deviation(session, kind):
    made = EACH[kind]()
    drawn = made.sample(MANY, seed=7)
    mean, deviation = session.run([made.mean(), made.stddev()])
    values = session.run(drawn)
    assert drawn.shape.as_list() == [MANY, *made.batch_shape.as_list(), *made.event_shape.as_list()]
    assert values.shape == tuple(drawn.shape.as_list())
    assert drawn.dtype == made.dtype
    assert np.all(np.abs(values.mean(axis=0) - mean) < 5 * deviation / math.sqrt(MANY))
    np.testing.assert_allclose(values.std(axis=0), deviation, rtol=0.06)


@pytest.mark.parametrize("kind", EACH)
def test_the_parameters_need_not_be_known_before_a_run(session, kind):
    known = EACH[kind]()
    fed = {}

    def unknown(value):
        if not isinstance(value, (list, float)):
            return value
        node = gs.placeholder("float32", [None] * np.ndim(value))
        fed[node] = value
        return node

    made = known.copy(**{key: unknown(value) for key, value in known.parameters.items()})
    assert fed
    drawn = made.sample([4, 2])
    shapes = session.run([known.batch_shape_tensor(), known.event_shape_tensor()])
    assert all(np.array_equal(*pair) for pair in zip(
        shapes, session.run([made.batch_shape_tensor(), made.event_shape_tensor()], fed), strict=True
    ))  # fmt: skip
    values, log_prob = session.run([drawn, made.log_prob(drawn)], fed)
    assert values.shape == (4, 2, *shapes[0], *shapes[1])
    assert log_prob.shape == (4, 2, *shapes[0])
    wanted = session.run(known.log_prob(values))
    np.testing.assert_allclose(log_prob, wanted, rtol=1e-4, atol=1e-5)


def test_a_policy_of_continuous_actions_learns(session):
    """What A3C and PPO do: the actions of a normal distribution, by the logarithms of their probabilities."""
    gs.set_random_seed(3)
    mu = gs.Variable([[0.0]])
    policy = gs.distributions.Normal(mu, 0.4)
    action = gs.clip_by_value(gs.squeeze(policy.sample(1), axis=0), -2, 2)
    taken, reward = gs.placeholder("float32", [None, 1]), gs.placeholder("float32", [None, 1])
    gain = policy.log_prob(taken) * reward + 0.01 * policy.entropy()
    train_op = gs.train.GradientDescentOptimizer(0.02).minimize(-gs.reduce_mean(gain))
    session.run(gs.global_variables_initializer())
    assert action.shape.as_list() == [1, 1]
    for _ in range(300):
        a = session.run(action)
        session.run(train_op, {taken: a, reward: -((a - 1.5) ** 2)})
    assert abs(float(session.run(mu)[0, 0]) - 1.5) < 0.5


def test_classes_are_drawn_with_their_probabilities(session):
    made = ds.Categorical(probs=[[0.2, 0.3, 0.5], [0.9, 0.0, 0.1]])
    values = session.run(made.sample(MANY, seed=5))
    assert values.shape == (MANY, 2)
    assert values.dtype == np.int32
    for column, wanted in zip(values.T, ([0.2, 0.3, 0.5], [0.9, 0.0, 0.1]), strict=True):
        np.testing.assert_allclose(np.bincount(column, minlength=3) / MANY, wanted, atol=0.015)


def test_classes_of_a_batch_of_unknown_size(session):
    logits = gs.placeholder("float32", [None, 4])
    made = gs.distributions.Categorical(logits=logits)
    action = made.sample()
    log_prob = made.log_prob(action)
    (gradient,) = gs.gradients(log_prob, logits)
    assert action.shape.as_list() == [None]
    fed = {logits: np.zeros((5, 4), np.float32)}
    chosen, logs, slopes = session.run([action, log_prob, gradient], fed)
    np.testing.assert_allclose(logs, math.log(0.25), rtol=1e-5)
    np.testing.assert_allclose(slopes, np.eye(4)[chosen] - 0.25, atol=1e-6)


def test_samples_of_a_seed_repeat_and_two_draws_differ(session):
    made = gs.distributions.Normal(gs.zeros([3]), 1.0)
    first, second, again = (session.run(made.sample(seed=seed)) for seed in (1, 2, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, second)


def test_gradients_go_through_samples_that_are_functions_of_the_parameters(session):
    loc, scale = gs.constant(1.0), gs.constant(2.0)
    made = gs.distributions.Normal(loc, scale)
    drawn = made.sample()
    value, *slopes = session.run([drawn, *gs.gradients(drawn, [loc, scale])])
    np.testing.assert_allclose(slopes, [1.0, (value - 1.0) / 2.0], rtol=1e-5, atol=1e-6)  # a draw may be near 1
    assert made.reparameterization_type is gs.distributions.FULLY_REPARAMETERIZED
    rate = gs.constant(2.0)
    assert gs.gradients(gs.distributions.Gamma(rate, rate).sample(), rate) == [None]
    assert gs.distributions.Gamma(rate, rate).reparameterization_type is gs.distributions.NOT_REPARAMETERIZED
    assert repr(gs.distributions.NOT_REPARAMETERIZED) == "<Reparameterization Type: NOT_REPARAMETERIZED>"


def test_vectors_are_numbers_side_by_side(session):
    loc, deviations, x = (np.float32(v) for v in ([[1, 2], [3, 4]], [0.5, 2], [[0, 1], [2, 5]]))
    vectors = ds.MultivariateNormalDiag(loc, deviations)
    numbers = ds.Normal(loc, deviations)
    other = ds.MultivariateNormalDiag(scale_diag=deviations), ds.Normal(gs.zeros([2]), deviations)
    found = session.run([
        vectors.log_prob(x), vectors.entropy(), vectors.kl_divergence(other[0]), vectors.covariance(), vectors.mode()
    ])  # fmt: skip
    each = session.run([numbers.log_prob(x), numbers.entropy(), numbers.kl_divergence(other[1])])
    for whole, parts in zip(found, each, strict=False):
        np.testing.assert_allclose(whole, parts.sum(axis=-1), rtol=1e-5)
    assert found[3].tolist() == [[[0.25, 0], [0, 4]]] * 2
    assert found[4].tolist() == loc.tolist()


def test_how_wide_vectors_are(session):
    ones = session.run(ds.MultivariateNormalDiag(loc=[1.0, 2.0]).stddev())
    alike = session.run(ds.MultivariateNormalDiag(loc=[1.0, 2.0], scale_identity_multiplier=3.0).stddev())
    both = ds.MultivariateNormalDiag(scale_diag=[1.0, 2.0], scale_identity_multiplier=[3.0, 4.0])
    assert (ones.tolist(), alike.tolist()) == ([1, 1], [3, 3])
    assert session.run(both.stddev()).tolist() == [[4, 5], [5, 6]]
    with pytest.raises(ValueError, match="Must pass loc or scale_diag"):
        ds.MultivariateNormalDiag()


def test_one_hot_vectors_are_classes(session):
    logits = np.float32([[0.5, 1, -1], [0, 0, 3]])
    vectors, classes = ds.OneHotCategorical(logits), ds.Categorical(logits)
    other = np.float32([0.0, 0.3, 0.1])
    found = session.run([
        vectors.log_prob([[0, 1, 0], [1, 0, 0]]), vectors.entropy(), vectors.mode(), vectors.covariance(),
        vectors.kl_divergence(ds.OneHotCategorical(other)),
    ])  # fmt: skip
    wanted = session.run([classes.log_prob([1, 0]), classes.entropy(), classes.kl_divergence(ds.Categorical(other))])
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-5)
    np.testing.assert_allclose(found[4], wanted[2], rtol=1e-5)
    assert found[2].tolist() == [[0, 1, 0], [0, 0, 1]]
    probs = np.exp(logits[0]) / np.exp(logits[0]).sum()
    np.testing.assert_allclose(found[3][0], np.diag(probs) - np.outer(probs, probs), atol=1e-6)


def test_poissons_closed_form(session):
    rates, counts = [0.5, 6.0], np.float32([[0, 1], [3, 4]])
    wanted = [[k * math.log(r) - r - math.lgamma(k + 1) for k, r in zip(row, rates, strict=True)] for row in counts]
    by_rate, by_log = ds.Poisson(rates), ds.Poisson(log_rate=np.log(np.float32(rates)))
    for made in (by_rate, by_log):
        np.testing.assert_allclose(session.run(made.log_prob(counts)), wanted, rtol=1e-5)
    assert session.run(by_rate.mode()).tolist() == [0, 6]
    between = ds.Poisson(rates, interpolate_nondiscrete=False).prob([[0.5, 2.5], [-1.0, -1.0]])
    assert session.run(between).tolist() == [[0, 0], [0, 0]]
    with pytest.raises(ValueError, match="exactly one"):
        ds.Poisson()


def test_the_logistic_distributions_closed_form(session):
    made, x = ds.Logistic(1.0, 2.0), np.float32([-3, 0.5, 4])
    e = np.exp(-(x - 1) / 2)
    np.testing.assert_allclose(session.run(made.prob(x)), e / (2 * (1 + e) ** 2), rtol=1e-5)
    np.testing.assert_allclose(session.run(made.cdf(x)), 1 / (1 + e), rtol=1e-5)
    np.testing.assert_allclose(session.run(made.log_cdf(x)), -np.log(1 + e), rtol=1e-5)


def test_the_mode_of_dirichlets_distribution(session):
    mode = session.run(ds.Dirichlet([[2.0, 3.0, 4.0], [0.5, 3.0, 4.0]]).mode())
    np.testing.assert_allclose(mode[0], [1 / 6, 2 / 6, 3 / 6], rtol=1e-5)
    assert np.isnan(mode[1]).all()


def test_a_width_of_softplus(session):
    assert session.run(ds.NormalWithSoftplusScale(0.0, ds.softplus_inverse(0.7)).stddev()) == pytest.approx(0.7)
    vectors = ds.MultivariateNormalDiagWithSoftplusScale([0.0, 0.0], ds.softplus_inverse([0.7, 2.0]))
    np.testing.assert_allclose(session.run(vectors.stddev()), [0.7, 2.0], rtol=1e-5)


def test_a_copy_has_the_other_arguments(session):
    made = gs.distributions.Normal(1.0, 2.0).copy(loc=3.0)
    assert session.run([made.mean(), made.stddev()]) == [3, 2]
    made = gs.distributions.Exponential(2.0).copy(name="Other")
    assert session.run(made.mean()) == 0.5
    assert made.name == "Other/"
    made = ds.NormalWithSoftplusScale(1.0, 2.0).copy(loc=0.0)
    assert session.run(made.stddev()) == pytest.approx(math.log1p(math.exp(2)))


def test_names_and_texts():
    made = gs.distributions.Normal(gs.zeros([2]), 1.0)
    assert made.name == "Normal/"
    assert repr(made) == "<tf.distributions.Normal 'Normal/' batch_shape=(2,) event_shape=() dtype=float32>"
    assert made.sample().name.startswith("Normal/sample/")


def test_what_a_distribution_has_not():
    with pytest.raises(NotImplementedError, match="mean is not implemented: Categorical"):
        gs.distributions.Categorical(probs=[0.5, 0.5]).mean()
    with pytest.raises(NotImplementedError, match="covariance is not implemented: Normal"):
        gs.distributions.Normal(0.0, 1.0).covariance()
    with pytest.raises(NotImplementedError, match="distribution_a type Normal and distribution_b type Uniform"):
        gs.distributions.kl_divergence(gs.distributions.Normal(0.0, 1.0), gs.distributions.Uniform())


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: gs.distributions.Bernoulli(), ValueError, "Must pass probs or logits, but not both"),
        (lambda: gs.distributions.Categorical(logits=[1.0], probs=[1.0]), ValueError, "Must pass probs or logits"),
        (lambda: gs.distributions.Normal(0, 1), ValueError, "Expected floating point type, got int32"),
        (lambda: gs.distributions.Normal([0.0, 1.0], [1.0, 1.0, 1.0]), ValueError, "Incompatible shapes"),
        (lambda: gs.distributions.Normal(gs.constant(0.0), gs.constant(1.0, "float64")), TypeError, "don't all match"),
    ],
)
def test_parameters_that_are_refused(make, kind, text):
    with pytest.raises(kind, match=text):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: gs.distributions.Normal(0.0, [1.0, -1.0], validate_args=True).stddev(),
        lambda: gs.distributions.Uniform([0.0, 2.0], 1.0, validate_args=True).mean(),
        lambda: gs.distributions.Gamma([0.5, 2.0], 1.0, allow_nan_stats=False).mode(),
    ],
)
def test_runs_check_what_they_are_asked_to(session, make):
    node = make()
    with pytest.raises(gs.errors.InvalidArgumentError):
        session.run(node)


def test_a_divergence_that_must_not_be_nan(session):
    ones = gs.distributions.Normal(float("nan"), 1.0)
    assert math.isnan(session.run(gs.distributions.kl_divergence(ones, ones)))
    with pytest.raises(gs.errors.InvalidArgumentError, match="KL calculation between Normal/"):
        session.run(gs.distributions.kl_divergence(ones, ones, allow_nan_stats=False))


def test_a_divergence_of_the_programs_own(session):
    class Mine(gs.distributions.Normal):
        pass

    @gs.distributions.RegisterKL(Mine, gs.distributions.Uniform)
    def _divergence(a, b, name=None):
        return a.loc - b.low

    uniform = gs.distributions.Uniform(1.0, 2.0)
    assert session.run(Mine(5.0, 1.0).kl_divergence(uniform)) == 4
    assert session.run(gs.distributions.kl_divergence(Mine(5.0, 1.0), gs.distributions.Normal(5.0, 1.0))) == 0
    with pytest.raises(ValueError, match="already been registered"):
        gs.distributions.RegisterKL(Mine, gs.distributions.Uniform)(_divergence)
    with pytest.raises(TypeError, match="must be callable"):
        gs.distributions.RegisterKL(Mine, Mine)(3)


def test_densities_in_double_precision(session):
    made = gs.distributions.Normal(gs.constant(0.0, "float64"), 1.0)
    found = session.run([made.log_prob(2.0), made.log_cdf(-30.0), made.sample()])
    assert [value.dtype for value in found] == ["float64"] * 3
    np.testing.assert_allclose(found[:2], [-2 - 0.5 * math.log(2 * math.pi), -454.3212439563], rtol=1e-10)
