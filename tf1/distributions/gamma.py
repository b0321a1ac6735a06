"""Distributions made of gamma functions: gamma, exponential, beta, Dirichlet's.

Layer: tf1. Source: TensorFlow 1.15 `tf.distributions`. Samples carry no gradient, but those of `Exponential`.
"""

from __future__ import annotations

from typing import Any

from globalstep.tf1.distributions.continuous import TINY
from globalstep.tf1.distributions.distribution import FULLY_REPARAMETERIZED, Distribution, arguments
from globalstep.tf1.distributions.divergence import RegisterKL
from globalstep.tf1.distributions.parameters import floats, positive, where_defined
from globalstep.tf1.graph.graph import Node, name_scope
from globalstep.tf1.ops.array_ops import broadcast_to, expand_dims
from globalstep.tf1.ops.constant_ops import ones_like, zeros_like
from globalstep.tf1.ops.indexing_ops import where
from globalstep.tf1.ops.math_ops import exp, log, log1p, square
from globalstep.tf1.ops.matrix_ops import matrix_diag
from globalstep.tf1.ops.random_ops import random_gamma, random_uniform
from globalstep.tf1.ops.reduction_ops import reduce_min, reduce_sum
from globalstep.tf1.ops.special_ops import digamma, lbeta, lgamma


class Gamma(Distribution):
    """The gamma distribution.

    Args:
        concentration: Its shape, alpha, above 0: number or node.
        rate: The inverse of its width, beta, above 0.
        validate_args: Whether runs check that both are above 0.
        allow_nan_stats: Whether the mode is NaN where it is not defined; else the run fails.
        name: Name scope of the nodes.
    """

    def __init__(
        self,
        concentration: Any,
        rate: Any,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Gamma",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name) as scope:
            self.concentration, self.rate = positive(validate_args, *floats(concentration, rate))
        super().__init__([self.concentration, self.rate], self.rate.dtype, scope, parameters)

    def _draw(self, shape: Any, seed: int | None) -> Node:
        return random_gamma([], broadcast_to(self.concentration, shape), self.rate, dtype=self.dtype, seed=seed)

    def _log_prob(self, value: Node) -> Node:
        unnormalized = (self.concentration - 1.0) * log(value) - self.rate * value
        return unnormalized - (lgamma(self.concentration) - self.concentration * log(self.rate))

    def _entropy(self) -> Node:
        alpha = self.concentration
        return alpha - log(self.rate) + lgamma(alpha) + (1.0 - alpha) * digamma(alpha)

    def _mean(self) -> Node:
        return self.concentration / self.rate

    def _variance(self) -> Node:
        return self.concentration / square(self.rate)

    def _mode(self) -> Node:
        mode = (self.concentration - 1.0) / self.rate
        return where_defined(self.allow_nan_stats, mode, (self.concentration + zeros_like(mode), 1.0))


class Exponential(Gamma):
    """The exponential distribution.

    Args:
        rate: The inverse of the mean, above 0: number or node.
        validate_args: Whether runs check that it is above 0.
        allow_nan_stats: Accepted: all statistics are defined.
        name: Name scope of the nodes.
    """

    reparameterization_type = FULLY_REPARAMETERIZED

    def __init__(
        self, rate: Any, validate_args: bool = False, allow_nan_stats: bool = True, name: str = "Exponential"
    ) -> None:
        parameters = dict(locals())
        (rate,) = floats(rate)
        super().__init__(ones_like(rate), rate, validate_args, allow_nan_stats, name)
        self.parameters = arguments(parameters)

    def _draw(self, shape: Any, seed: int | None) -> Node:
        return -log(random_uniform(shape, minval=TINY, maxval=1.0, dtype=self.dtype, seed=seed)) / self.rate

    def _cdf(self, value: Node) -> Node:
        return where(value > 0.0, 1.0 - exp(-self.rate * value), zeros_like(self.rate * value))


class Beta(Distribution):
    """The beta distribution, of numbers between 0 and 1.

    Args:
        concentration1: Alpha, above 0: number or node.
        concentration0: Beta, above 0.
        validate_args: Whether runs check that both are above 0.
        allow_nan_stats: Whether the mode is NaN where it is not defined; else the run fails.
        name: Name scope of the nodes.
    """

    def __init__(
        self,
        concentration1: Any = None,
        concentration0: Any = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Beta",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name) as scope:
            self.concentration1, self.concentration0 = positive(validate_args, *floats(concentration1, concentration0))
            self.total_concentration = self.concentration1 + self.concentration0
        super().__init__([self.total_concentration], self.total_concentration.dtype, scope, parameters)

    def _draw(self, shape: Any, seed: int | None) -> Node:
        # A seed of its own for each, or they would be one number.
        second = None if seed is None else seed + 1
        x = random_gamma([], broadcast_to(self.concentration1, shape), dtype=self.dtype, seed=seed)
        y = random_gamma([], broadcast_to(self.concentration0, shape), dtype=self.dtype, seed=second)
        return x / (x + y)

    def _log_beta(self) -> Node:
        return lgamma(self.concentration1) + lgamma(self.concentration0) - lgamma(self.total_concentration)

    def _log_prob(self, value: Node) -> Node:
        a, b = self.concentration1 - 1.0, self.concentration0 - 1.0
        return a * log(value) + b * log1p(-value) - self._log_beta()

    def _entropy(self) -> Node:
        a, b, total = self.concentration1, self.concentration0, self.total_concentration
        return self._log_beta() - (a - 1.0) * digamma(a) - (b - 1.0) * digamma(b) + (total - 2.0) * digamma(total)

    def _mean(self) -> Node:
        return self.concentration1 / self.total_concentration

    def _variance(self) -> Node:
        mean = self._mean()
        return mean * (1.0 - mean) / (1.0 + self.total_concentration)

    def _mode(self) -> Node:
        mode = (self.concentration1 - 1.0) / (self.total_concentration - 2.0)
        none = zeros_like(mode)
        limits = ((node + none, 1.0) for node in (self.concentration1, self.concentration0))
        return where_defined(self.allow_nan_stats, mode, *limits)


class Dirichlet(Distribution):
    """Dirichlet's distribution, of vectors of probabilities.

    Args:
        concentration: Alpha [..., k], above 0.
        validate_args: Whether runs check that all are above 0.
        allow_nan_stats: Whether the mode is NaN where it is not defined; else the run fails.
        name: Name scope of the nodes.
    """

    inner_axes = event_rank = 1

    def __init__(
        self, concentration: Any, validate_args: bool = False, allow_nan_stats: bool = True, name: str = "Dirichlet"
    ) -> None:
        parameters = dict(locals())
        with name_scope(name) as scope:
            (self.concentration,) = positive(validate_args, *floats(concentration))
            self.total_concentration = reduce_sum(self.concentration, axis=-1)
        super().__init__([self.concentration], self.concentration.dtype, scope, parameters)

    def _total(self) -> Node:
        return expand_dims(self.total_concentration, -1)

    def _draw(self, shape: Any, seed: int | None) -> Node:
        parts = random_gamma([], broadcast_to(self.concentration, shape), dtype=self.dtype, seed=seed)
        return parts / reduce_sum(parts, axis=-1, keepdims=True)

    def _log_prob(self, value: Node) -> Node:
        return reduce_sum((self.concentration - 1.0) * log(value), axis=-1) - lbeta(self.concentration)

    def _entropy(self) -> Node:
        count = reduce_sum(ones_like(self.concentration), axis=-1)
        total = self.total_concentration
        weighted = reduce_sum((self.concentration - 1.0) * digamma(self.concentration), axis=-1)
        return lbeta(self.concentration) + (total - count) * digamma(total) - weighted

    def _mean(self) -> Node:
        return self.concentration / self._total()

    def _variance(self) -> Node:
        mean = self._mean()
        return mean * (1.0 - mean) / (1.0 + self._total())

    def _covariance(self) -> Node:
        mean = self._mean()
        products = expand_dims(mean, -1) * expand_dims(mean, -2)
        return (matrix_diag(mean) - products) / expand_dims(1.0 + self._total(), -1)

    def _mode(self) -> Node:
        count = reduce_sum(ones_like(self.concentration), axis=-1, keepdims=True)
        mode = (self.concentration - 1.0) / (self._total() - count)
        inside = zeros_like(mode) + reduce_min(self.concentration, axis=-1, keepdims=True)
        return where_defined(self.allow_nan_stats, mode, (inside, 1.0))


@RegisterKL(Gamma, Gamma)
def _of_gammas(a: Gamma, b: Gamma, name: str | None = None) -> Node:
    with name_scope(name or "kl_gamma_gamma"):
        form, rate, form_b, rate_b = a.concentration, a.rate, b.concentration, b.rate
        parts = (form - form_b) * digamma(form) + lgamma(form_b) - lgamma(form) + form_b * (log(rate) - log(rate_b))
        return parts + form * (rate_b / rate - 1.0)


@RegisterKL(Beta, Beta)
def _of_betas(a: Beta, b: Beta, name: str | None = None) -> Node:
    with name_scope(name or "kl_beta_beta"):
        ones = (a.concentration1 - b.concentration1) * digamma(a.concentration1)
        zeros = (a.concentration0 - b.concentration0) * digamma(a.concentration0)
        total = (b.total_concentration - a.total_concentration) * digamma(a.total_concentration)
        return b._log_beta() - a._log_beta() + ones + zeros + total


@RegisterKL(Dirichlet, Dirichlet)
def _of_dirichlets(a: Dirichlet, b: Dirichlet, name: str | None = None) -> Node:
    with name_scope(name or "kl_dirichlet_dirichlet"):
        difference = digamma(a.concentration) - digamma(expand_dims(a.total_concentration, -1))
        weighted = reduce_sum((a.concentration - b.concentration) * difference, axis=-1)
        return weighted - lbeta(a.concentration) + lbeta(b.concentration)
