"""Probability distributions whose parameters are nodes.

Layer: tf1.
"""

#: What is in `gs.distributions`, and in `gs.contrib.distributions` too.
DISTRIBUTIONS = {
    "globalstep.tf1.distributions.continuous": "Laplace StudentT Uniform",
    "globalstep.tf1.distributions.counts": "DirichletMultinomial Multinomial",
    "globalstep.tf1.distributions.discrete": "Bernoulli Categorical",
    "globalstep.tf1.distributions.distribution": (
        "Distribution FULLY_REPARAMETERIZED NOT_REPARAMETERIZED ReparameterizationType"
    ),
    "globalstep.tf1.distributions.divergence": "RegisterKL kl_divergence",
    "globalstep.tf1.distributions.gamma": "Beta Dirichlet Exponential Gamma",
    "globalstep.tf1.distributions.normal": "Normal",
}
