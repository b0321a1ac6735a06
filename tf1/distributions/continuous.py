"""Distributions of floating numbers with a center and a width: uniform, Laplace's, logistic, Student's t.

Layer: tf1. Source: TensorFlow 1.15 `tf.distributions` and `tf.contrib.distributions`.
"""

from __future__ import annotations

import math
from typing import Any

from globalstep.tf1.distributions.distribution import FULLY_REPARAMETERIZED, Distribution
from globalstep.tf1.distributions.parameters import floats, positive, where_defined
from globalstep.tf1.graph.graph import Node, name_scope
from globalstep.tf1.ops.array_ops import broadcast_to, identity
from globalstep.tf1.ops.constant_ops import ones_like, zeros_like
from globalstep.tf1.ops.control_flow_ops import assert_less, with_dependencies
from globalstep.tf1.ops.indexing_ops import where
from globalstep.tf1.ops.math_ops import abs as absolute
from globalstep.tf1.ops.math_ops import exp, is_nan, log, log1p, logical_or, sigmoid, sign, sqrt, square
from globalstep.tf1.ops.nn_ops import softplus
from globalstep.tf1.ops.random_ops import random_gamma, random_normal, random_uniform
from globalstep.tf1.ops.special_ops import digamma, lgamma

#: Smallest number that is drawn where 0 must not be; both dtypes have it.
TINY = 1.2e-38


class Uniform(Distribution):
    """The uniform distribution on [low, high).

    Args:
        low: The lower bound: number or node.
        high: The upper bound, not reached.
        validate_args: Whether runs check that `low` is below `high`.
        allow_nan_stats: Accepted: all statistics are defined.
        name: Name scope of the nodes.
    """

    reparameterization_type = FULLY_REPARAMETERIZED

    def __init__(
        self,
        low: Any = 0.0,
        high: Any = 1.0,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Uniform",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name) as scope:
            self.low, self.high = floats(low, high)
            if validate_args:
                self.low = with_dependencies([assert_less(self.low, self.high)], self.low)
        super().__init__([self.low, self.high], self.low.dtype, scope, parameters)

    def range(self, name: str = "range") -> Node:
        """Give high - low."""
        with self._scope(name):
            return self.high - self.low

    def _draw(self, shape: Any, seed: int | None) -> Node:
        return self.low + self.range() * random_uniform(shape, dtype=self.dtype, seed=seed)

    def _prob(self, value: Node) -> Node:
        whole = value * ones_like(self.range())
        density = ones_like(whole) / self.range()
        outside = where(logical_or(value < self.low, value >= self.high), zeros_like(whole), density)
        return where(is_nan(whole), whole, outside)

    def _cdf(self, value: Node) -> Node:
        whole = value * ones_like(self.range())
        below, above = whole < self.low, whole >= self.high
        return where(below, zeros_like(whole), where(above, ones_like(whole), (value - self.low) / self.range()))

    def _entropy(self) -> Node:
        return log(self.range())

    def _mean(self) -> Node:
        return (self.low + self.high) / 2.0

    def _stddev(self) -> Node:
        return self.range() / math.sqrt(12.0)


class _Centered(Distribution):
    """A distribution whose samples are a function of a center `loc` and a width `scale`."""

    reparameterization_type = FULLY_REPARAMETERIZED
    loc: Node
    scale: Node

    def _z(self, value: Node) -> Node:
        return (value - self.loc) / self.scale

    def _mean(self) -> Node:
        return self.loc + zeros_like(self.scale)

    def _mode(self) -> Node:
        return _Centered._mean(self)


class Laplace(_Centered):
    """Laplace's distribution, which falls off from its center to both sides as the exponential one does.

    Args:
        loc: Mean: number or node.
        scale: Width, above 0.
        validate_args: Whether runs check that `scale` is above 0.
        allow_nan_stats: Accepted: all statistics are defined.
        name: Name scope of the nodes.
    """

    def __init__(
        self, loc: Any, scale: Any, validate_args: bool = False, allow_nan_stats: bool = True, name: str = "Laplace"
    ) -> None:
        parameters = dict(locals())
        with name_scope(name) as scope:
            self.loc, spread = floats(loc, scale)
            (self.scale,) = positive(validate_args, spread)
        super().__init__([self.loc, self.scale], self.loc.dtype, scope, parameters)

    def _draw(self, shape: Any, seed: int | None) -> Node:
        unit = random_uniform(shape, minval=-1.0 + 1e-7, maxval=1.0, dtype=self.dtype, seed=seed)
        return self.loc - self.scale * sign(unit) * log1p(-absolute(unit))

    def _log_prob(self, value: Node) -> Node:
        return -absolute(self._z(value)) - math.log(2.0) - log(self.scale)

    def _cdf(self, value: Node) -> Node:
        z = self._z(value)
        return 0.5 + 0.5 * sign(z) * (1.0 - exp(-absolute(z)))

    def _entropy(self) -> Node:
        return (1.0 + math.log(2.0)) + log(self.scale + zeros_like(self.loc))

    def _stddev(self) -> Node:
        return math.sqrt(2.0) * (self.scale + zeros_like(self.loc))


class Logistic(_Centered):
    """The logistic distribution, whose cdf is sigmoid((x - loc) / scale); its arguments are those of `Laplace`."""

    def __init__(
        self, loc: Any, scale: Any, validate_args: bool = False, allow_nan_stats: bool = True, name: str = "Logistic"
    ) -> None:
        parameters = dict(locals())
        with name_scope(name) as scope:
            self.loc, spread = floats(loc, scale)
            (self.scale,) = positive(validate_args, spread)
        super().__init__([self.loc, self.scale], self.loc.dtype, scope, parameters)

    def _draw(self, shape: Any, seed: int | None) -> Node:
        unit = random_uniform(shape, minval=TINY, maxval=1.0, dtype=self.dtype, seed=seed)
        return self.loc + self.scale * (log(unit) - log1p(-unit))

    def _log_prob(self, value: Node) -> Node:
        z = self._z(value)
        return -z - 2.0 * softplus(-z) - log(self.scale)

    def _log_cdf(self, value: Node) -> Node:
        return -softplus(-self._z(value))

    def _cdf(self, value: Node) -> Node:
        return sigmoid(self._z(value))

    def _entropy(self) -> Node:
        return 2.0 + log(self.scale + zeros_like(self.loc))

    def _stddev(self) -> Node:
        return (self.scale + zeros_like(self.loc)) * (math.pi / math.sqrt(3.0))


class StudentT(_Centered):
    """Student's t distribution.

    Args:
        df: Degrees of freedom, above 0: number or node.
        loc: Center.
        scale: Width.
        validate_args: Whether runs check that `df` is above 0.
        allow_nan_stats: Whether the mean and the variance are NaN where they are not defined; else the run fails.
        name: Name scope of the nodes.
    """

    def __init__(
        self,
        df: Any,
        loc: Any,
        scale: Any,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "StudentT",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name) as scope:
            degrees, self.loc, self.scale = floats(df, loc, scale)
            (self.df,) = positive(validate_args, degrees)
        super().__init__([self.df, self.loc, self.scale], self.df.dtype, scope, parameters)

    def _draw(self, shape: Any, seed: int | None) -> Node:
        chi_squared = random_gamma([], broadcast_to(0.5 * self.df, shape), beta=0.5, dtype=self.dtype, seed=seed)
        return self.loc + self.scale * random_normal(shape, dtype=self.dtype, seed=seed) * sqrt(self.df / chi_squared)

    def _log_prob(self, value: Node) -> Node:
        exponent = -0.5 * (self.df + 1.0)
        density = exponent * log1p(square(self._z(value)) / self.df)
        half = 0.5 * self.df
        normal = log(absolute(self.scale)) + 0.5 * log(self.df) + 0.5 * math.log(math.pi)
        return density - normal - lgamma(half) + lgamma(half + 0.5)

    def _entropy(self) -> Node:
        half = 0.5 * self.df
        beta = lgamma(half) + math.lgamma(0.5) - lgamma(half + 0.5)
        spread = log(absolute(self.scale)) + 0.5 * log(self.df) + beta
        return spread + (half + 0.5) * (digamma(half + 0.5) - digamma(half)) + zeros_like(self.loc)

    def _mean(self) -> Node:
        mean = self.loc + zeros_like(self.scale) + zeros_like(self.df)
        return where_defined(self.allow_nan_stats, mean, (self.df + zeros_like(mean), 1.0))

    def _mode(self) -> Node:
        return identity(self.loc)

    def _variance(self) -> Node:
        zeros = zeros_like(self.loc) + zeros_like(self.scale) + zeros_like(self.df)
        df, scale = self.df + zeros, self.scale + zeros
        finite = where(df > 2.0, df, ones_like(df) * 3.0)
        variance = where(df > 2.0, square(scale) * finite / (finite - 2.0), ones_like(df) * float("inf"))
        return where_defined(self.allow_nan_stats, variance, (df, 1.0))
