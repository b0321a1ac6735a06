"""Probability distributions: densities, statistics and divergences, not samples; see value_cases."""

import numpy as np
from value_cases import Values, fed

#: What may be asked of each, and is of those that have it.
WITHOUT_MODE = ("entropy", "mean", "stddev", "variance")
STATISTICS = (*WITHOUT_MODE, "mode")


def case(make, *parameters, at=(0.1, 3.0), of=("log_prob", "prob"), statistics=STATISTICS, shape=(4, 3)):
    """Give the case of a distribution.

    Args:
        make: Function of the library and of a node for each parameter.
        parameters: Shape, low and high of each.
        at: Low and high of the values asked about.
        of: Functions of a value.
        statistics: Functions of none.
        shape: Shape of the values.
    """

    def build(tf):
        feeds, nodes = [], []
        for number, (size, low, high) in enumerate(parameters):
            node, unit = fed(tf, f"parameter {number}", *size)
            feeds.append((node, (low + (high - low) * unit).astype(np.float32)))
            nodes.append(node)
        value, unit = fed(tf, "value", *shape)
        feeds.append((value, (at[0] + (at[1] - at[0]) * unit).astype(np.float32)))
        made = make(tf, *nodes)
        outputs = {name: getattr(made, name)(value) for name in of}
        outputs.update({name: getattr(made, name)() for name in statistics})
        outputs["batch"], outputs["event"] = made.batch_shape_tensor(), made.event_shape_tensor()
        return Values(outputs, feeds, [*nodes, value])

    return build


def of_integers(make, values, *parameters, statistics=STATISTICS):
    """Give the case of a distribution of integers, which are the same in both libraries."""

    def build(tf):
        feeds, nodes = [], []
        for number, (size, low, high) in enumerate(parameters):
            node, unit = fed(tf, f"parameter {number}", *size)
            feeds.append((node, (low + (high - low) * unit).astype(np.float32)))
            nodes.append(node)
        made = make(tf, *nodes)
        outputs = {"log_prob": made.log_prob(values), "prob": made.prob(values)}
        outputs.update({name: getattr(made, name)() for name in statistics})
        outputs["batch"], outputs["event"] = made.batch_shape_tensor(), made.event_shape_tensor()
        return Values(outputs, feeds, nodes)

    return build


def divergence(make, *parameters):
    """Give the case of KL, cross entropy of two distributions of one kind."""

    def build(tf):
        made, feeds, nodes = [], [], []
        for which in "ab":
            own = []
            for number, (size, low, high) in enumerate(parameters):
                node, unit = fed(tf, f"{which} {number}", *size)
                feeds.append((node, (low + (high - low) * unit).astype(np.float32)))
                own.append(node)
            nodes += own
            made.append(make(tf, *own))
        a, b = made
        outputs = {
            "function": tf.distributions.kl_divergence(a, b),
            "method": a.kl_divergence(b),
            "cross_entropy": a.cross_entropy(b),
        }
        return Values(outputs, feeds, nodes)

    return build


def normal(tf, loc, scale):
    return tf.distributions.Normal(loc, scale)


def gamma(tf, concentration, rate):
    return tf.distributions.Gamma(concentration, rate)


def beta(tf, one, zero):
    return tf.distributions.Beta(one, zero)


CDF = ("log_prob", "prob", "cdf", "log_cdf", "survival_function", "log_survival_function")
CLASSES = np.array([2, 0, 1, 4], np.int32)

CASES = {
    "normal": case(normal, ((4, 3), -1, 1), ((3,), 0.3, 2), at=(-3, 3), of=CDF),
    "normal far down": case(normal, ((4, 3), -1, 1), ((3,), 0.3, 0.4), at=(-7, -4), of=("log_prob", "log_cdf")),
    "normal of one mean": case(normal, ((), -1, 1), ((4, 1), 0.3, 2), at=(-3, 3)),
    "normal's quantiles": case(normal, ((4, 3), -1, 1), ((3,), 0.3, 2), at=(0.05, 0.95), of=("quantile",)),
    "uniform": case(
        lambda tf, low, high: tf.distributions.Uniform(low, high),
        ((4, 1), -1, 0), ((3,), 1, 2), at=(-0.5, 2.5), of=("prob", "cdf"), statistics=WITHOUT_MODE,
    ),
    "uniform within": case(
        lambda tf, low, high: tf.distributions.Uniform(low, high),
        ((4, 1), -1, 0), ((3,), 1, 2), at=(0.1, 0.9), of=("prob", "log_prob"), statistics=(),
    ),
    "laplace": case(
        lambda tf, a, b: tf.distributions.Laplace(a, b), ((4, 3), -1, 1), ((3,), 0.3, 2), at=(-3, 3), of=CDF
    ),
    "student": case(
        lambda tf, df, a, b: tf.distributions.StudentT(df, a, b),
        ((4, 3), 1.1, 5), ((3,), -1, 1), ((3,), 0.3, 2), at=(-3, 3), statistics=("entropy", "mean", "mode"),
    ),
    "student's variance": case(
        lambda tf, df, a, b: tf.distributions.StudentT(df, a, b),
        ((4, 3), 2.1, 5), ((3,), -1, 1), ((3,), 0.3, 2), of=(), statistics=("variance", "stddev"),
    ),
    "student without a mean": lambda tf: {
        name: getattr(tf.distributions.StudentT([0.5, 1.5, 2.5], 1.0, 2.0), name)() for name in ("mean", "variance")
    },
    "gamma": case(gamma, ((4, 3), 1.1, 4), ((3,), 0.3, 2)),
    "gamma without a mode": lambda tf: {"mode": tf.distributions.Gamma([0.5, 1.0, 2.5], 2.0).mode()},
    "exponential": case(
        lambda tf, rate: tf.distributions.Exponential(rate), ((4, 3), 0.3, 2), of=("log_prob", "prob", "cdf"),
        statistics=WITHOUT_MODE,
    ),
    "beta": case(beta, ((4, 3), 1.1, 4), ((3,), 1.1, 2), at=(0.05, 0.95)),
    "beta without a mode": lambda tf: {"mode": tf.distributions.Beta([0.5, 1.5], [3.0, 0.5]).mode()},
    "dirichlet": case(
        lambda tf, alpha: tf.distributions.Dirichlet(alpha), ((4, 3), 1.1, 4), at=(0.05, 0.95),
        statistics=("entropy", "mean", "stddev", "variance", "covariance"),
    ),
    "bernoulli of logits": of_integers(
        lambda tf, logits: tf.distributions.Bernoulli(logits=logits), np.array([[1, 0, 1]], np.int32), ((4, 3), -2, 2)
    ),
    "bernoulli of probs": of_integers(
        lambda tf, probs: tf.distributions.Bernoulli(probs=probs), np.array([[1, 0, 1]], np.int32), ((4, 3), 0.1, 0.9)
    ),
    "bernoulli of floats": case(
        lambda tf, probs: tf.distributions.Bernoulli(probs=probs, dtype=tf.float32), ((4, 3), 0.1, 0.9), at=(0, 1)
    ),
    "categorical of logits": of_integers(
        lambda tf, logits: tf.distributions.Categorical(logits=logits), CLASSES, ((4, 5), -2, 2),
        statistics=("entropy", "mode"),
    ),
    "categorical of probs": of_integers(
        lambda tf, x: tf.distributions.Categorical(probs=tf.nn.softmax(x)), CLASSES, ((4, 5), -2, 2),
        statistics=("entropy", "mode"),
    ),
    "categorical of more values": of_integers(
        lambda tf, logits: tf.distributions.Categorical(logits=logits), np.array([[0], [4], [3]], np.int32),
        ((4, 5), -2, 2), statistics=(),
    ),
    "categorical alone": of_integers(
        lambda tf, logits: tf.distributions.Categorical(logits=logits), CLASSES, ((5,), -2, 2),
        statistics=("entropy", "mode"),
    ),
    "multinomial": of_integers(
        lambda tf, logits: tf.distributions.Multinomial(6.0, logits=logits), np.float32([[1, 2, 3]] * 4),
        ((4, 3), -2, 2), statistics=("mean", "variance", "stddev", "covariance"),
    ),
    "multinomial of counts": of_integers(
        lambda tf, x: tf.distributions.Multinomial([3.0, 4.0], probs=tf.nn.softmax(x)),
        np.float32([[1, 2, 0], [1, 0, 3]]), ((2, 3), -2, 2), statistics=("mean", "variance"),
    ),
    "dirichlet multinomial": of_integers(
        lambda tf, alpha: tf.distributions.DirichletMultinomial(3.0, alpha), np.float32([[1, 2, 0], [1, 0, 2]]),
        ((2, 3), 0.5, 2), statistics=("mean", "variance", "covariance"),
    ),
    "divergence of normals": divergence(normal, ((4, 3), -1, 1), ((3,), 0.3, 2)),
    "divergence of gammas": divergence(gamma, ((4, 3), 1.1, 4), ((3,), 0.3, 2)),
    "divergence of betas": divergence(beta, ((4, 3), 1.1, 4), ((3,), 0.3, 2)),
    "divergence of dirichlets": divergence(lambda tf, alpha: tf.distributions.Dirichlet(alpha), ((4, 3), 0.5, 4)),
    "divergence of bernoullis": divergence(lambda tf, x: tf.distributions.Bernoulli(logits=x), ((4, 3), -2, 2)),
    "divergence of categoricals": divergence(lambda tf, x: tf.distributions.Categorical(logits=x), ((4, 3), -2, 2)),
    "divergence of exponentials": divergence(lambda tf, x: tf.distributions.Exponential(x), ((4, 3), 0.3, 2)),
}  # fmt: skip
