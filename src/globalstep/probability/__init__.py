"""Probability distributions whose parameters are nodes.

Layer: shared.
"""

#: What is in `gs.distributions`, and in `gs.contrib.distributions` too.
DISTRIBUTIONS = {
    "globalstep.probability.continuous": "Laplace StudentT Uniform",
    "globalstep.probability.counts": "DirichletMultinomial Multinomial",
    "globalstep.probability.discrete": "Bernoulli Categorical",
    "globalstep.probability.distribution": (
        "Distribution FULLY_REPARAMETERIZED NOT_REPARAMETERIZED ReparameterizationType"
    ),
    "globalstep.probability.divergence": "RegisterKL kl_divergence",
    "globalstep.probability.gamma": "Beta Dirichlet Exponential Gamma",
    "globalstep.probability.normal": "Normal",
}
