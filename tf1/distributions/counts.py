"""Distributions of counts: of how often each class was drawn, of events within a time.

Layer: tf1. Source: TensorFlow 1.15 `tf.distributions` and `tf.contrib.distributions`.
"""

from __future__ import annotations

from typing import Any

from globalstep.tf1.distributions.discrete import drawn_classes
from globalstep.tf1.distributions.distribution import Distribution
from globalstep.tf1.distributions.parameters import floats, logits_and_probs, positive
from globalstep.tf1.graph.graph import Node, name_scope
from globalstep.tf1.ops.array_ops import broadcast_to, expand_dims, identity
from globalstep.tf1.ops.array_ops import shape as shape_of
from globalstep.tf1.ops.constant_ops import ones_like, range, zeros_like
from globalstep.tf1.ops.indexing_ops import one_hot, where
from globalstep.tf1.ops.joining_ops import concat
from globalstep.tf1.ops.math_ops import cast, exp, floor, less, log
from globalstep.tf1.ops.matrix_ops import matrix_diag
from globalstep.tf1.ops.nn_ops import log_softmax
from globalstep.tf1.ops.random_ops import random_gamma, random_poisson
from globalstep.tf1.ops.reduction_ops import reduce_max, reduce_sum
from globalstep.tf1.ops.special_ops import lbeta, lgamma, xlogy


def _drawn_counts(logits: Node, total_count: Node, shape: Any, seed: int | None) -> Node:
    """Draw how often each class comes in `total_count` draws: as many draws as the largest, the first of them count."""
    largest = cast(reduce_max(total_count), "int32")
    classes = drawn_classes(expand_dims(logits, -2), concat([shape[:-1], expand_dims(largest, 0)], 0), seed)
    vectors = one_hot(classes, shape_of(logits)[-1], dtype=total_count.dtype)
    counted = less(cast(range(largest), total_count.dtype), expand_dims(total_count, -1))
    return reduce_sum(vectors * expand_dims(cast(counted, total_count.dtype), -1), axis=-2)


def _log_ways(total_count: Node, counts: Node) -> Node:
    """Give the logarithm of how many orders of draws have these counts."""
    return lgamma(total_count + 1.0) - reduce_sum(lgamma(counts + 1.0), axis=-1)


class Multinomial(Distribution):
    """The distribution of how often each of k classes comes in `total_count` draws.

    Args:
        total_count: How many draws, a floating number: one, or one for each of the batch.
        logits: [..., k]: the logarithms of probabilities, up to a constant. Only one of `logits` and `probs` is given.
        probs: Probabilities [..., k].
        validate_args: Whether runs check that `total_count` is above 0.
        allow_nan_stats: Accepted: all statistics are defined.
        name: Name scope of the nodes.
    """

    inner_axes = event_rank = 1

    def __init__(
        self,
        total_count: Any,
        logits: Any = None,
        probs: Any = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Multinomial",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name) as scope:
            self.logits, self.probs = logits_and_probs(logits, probs, multidimensional=True)
            _, total = floats(self.probs, total_count)
            (self.total_count,) = positive(validate_args, total)
        super().__init__([self.probs, expand_dims(self.total_count, -1)], self.probs.dtype, scope, parameters)

    def _draw(self, shape: Any, seed: int | None) -> Node:
        return _drawn_counts(self.logits, self.total_count, shape, seed)

    def _log_prob(self, value: Node) -> Node:
        return reduce_sum(value * log_softmax(self.logits), axis=-1) + _log_ways(self.total_count, value)

    def _mean(self) -> Node:
        return self.probs * expand_dims(self.total_count, -1)

    def _variance(self) -> Node:
        return self._mean() * (1.0 - self.probs)

    def _covariance(self) -> Node:
        mean = self._mean()
        return matrix_diag(mean) - expand_dims(mean, -1) * expand_dims(self.probs, -2)


class DirichletMultinomial(Distribution):
    """The `Multinomial` whose probabilities are drawn from Dirichlet's distribution.

    Args:
        total_count: How many draws, a floating number: one, or one for each of the batch.
        concentration: Alpha of Dirichlet's distribution [..., k], above 0.
        validate_args: Whether runs check that both are above 0.
        allow_nan_stats: Accepted: all statistics are defined.
        name: Name scope of the nodes.
    """

    inner_axes = event_rank = 1

    def __init__(
        self,
        total_count: Any,
        concentration: Any,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "DirichletMultinomial",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name) as scope:
            alpha, total = floats(concentration, total_count)
            self.concentration, self.total_count = positive(validate_args, alpha, total)
            self.total_concentration = reduce_sum(self.concentration, axis=-1)
        super().__init__([self.concentration, expand_dims(self.total_count, -1)], alpha.dtype, scope, parameters)

    def _draw(self, shape: Any, seed: int | None) -> Node:
        parts = random_gamma([], broadcast_to(self.concentration, shape), dtype=self.dtype, seed=seed)
        return _drawn_counts(log(parts), self.total_count, shape, None if seed is None else seed + 1)

    def _log_prob(self, value: Node) -> Node:
        ways = _log_ways(self.total_count, value)
        return lbeta(self.concentration + value) - lbeta(self.concentration) + ways

    def _share(self) -> Node:
        return self.concentration / expand_dims(self.total_concentration, -1)

    def _scale(self) -> Node:
        """The ratio of the counts' covariance to that of the multinomial distribution."""
        total = self.total_concentration
        return expand_dims((self.total_count + total) / (1.0 + total), -1)

    def _mean(self) -> Node:
        return expand_dims(self.total_count, -1) * self._share()

    def _variance(self) -> Node:
        return self._mean() * (1.0 - self._share()) * self._scale()

    def _covariance(self) -> Node:
        mean = self._mean()
        spread = matrix_diag(mean) - expand_dims(mean, -1) * expand_dims(self._share(), -2)
        return spread * expand_dims(self._scale(), -1)


class Poisson(Distribution):
    """The distribution of how many events come in a time, when `rate` come on average.

    Args:
        rate: The mean, above 0: number or node. Only one of `rate` and `log_rate` is given.
        log_rate: Its logarithm.
        interpolate_nondiscrete: Whether values between whole numbers have a probability, too; else it is 0.
        validate_args: Whether runs check that the rate is above 0.
        allow_nan_stats: Accepted: all statistics are defined.
        name: Name scope of the nodes.

    Raises:
        ValueError: If both or neither is given.
    """

    def __init__(
        self,
        rate: Any = None,
        log_rate: Any = None,
        interpolate_nondiscrete: bool = True,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Poisson",
    ) -> None:
        parameters = dict(locals())
        if (rate is None) == (log_rate is None):
            raise ValueError("Must specify exactly one of `rate` and `log_rate`.")
        with name_scope(name) as scope:
            (node,) = floats(log_rate if rate is None else rate)
            (self.rate,) = positive(validate_args, exp(node) if rate is None else node)
            self.log_rate = node if rate is None else log(self.rate)
        self.interpolate_nondiscrete = interpolate_nondiscrete
        super().__init__([self.rate], self.rate.dtype, scope, parameters)

    def _draw(self, shape: Any, seed: int | None) -> Node:
        return random_poisson(broadcast_to(self.rate, shape), [], dtype=self.dtype, seed=seed)

    def _log_prob(self, value: Node) -> Node:
        log_prob = xlogy(value, self.rate) - self.rate - lgamma(1.0 + value)
        if self.interpolate_nondiscrete:
            return log_prob
        whole = (value >= 0.0) & (floor(value) >= value) & (zeros_like(log_prob) >= 0.0)
        return where(whole, log_prob, ones_like(log_prob) * float("-inf"))

    def _mean(self) -> Node:
        return identity(self.rate)

    _variance = _mean

    def _mode(self) -> Node:
        return floor(self.rate)
