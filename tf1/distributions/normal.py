"""Normal distributions, of numbers and of vectors with a diagonal covariance.

Layer: tf1. Source: TensorFlow 1.15 `tf.distributions.Normal`, `tf.contrib.distributions.MultivariateNormalDiag`;
the asymptotic series: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.2.12.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from globalstep.tf1.distributions.distribution import FULLY_REPARAMETERIZED, Distribution, arguments
from globalstep.tf1.distributions.divergence import RegisterKL
from globalstep.tf1.distributions.parameters import floats, positive
from globalstep.tf1.gradients.registry import gradient_of
from globalstep.tf1.graph.graph import Node, name_scope
from globalstep.tf1.ops.array_ops import broadcast_to, expand_dims
from globalstep.tf1.ops.building import unary
from globalstep.tf1.ops.constant_ops import convert_to_tensor, ones_like, zeros_like
from globalstep.tf1.ops.indexing_ops import where
from globalstep.tf1.ops.math_ops import abs as absolute
from globalstep.tf1.ops.math_ops import exp, log, maximum, minimum, square
from globalstep.tf1.ops.matrix_ops import matrix_diag
from globalstep.tf1.ops.nn_ops import softplus
from globalstep.tf1.ops.random_ops import random_normal
from globalstep.tf1.ops.reduction_ops import reduce_sum
from globalstep.tf1.ops.special_ops import erfc

_LOG_SQRT_2_PI = 0.5 * math.log(2 * math.pi)
_FAR = {"float32": -5.0, "float64": -20.0}


def _quantile_of(p: float) -> float:
    if p in (0.0, 1.0):
        return math.inf if p else -math.inf
    return NormalDist().inv_cdf(p) if 0 < p < 1 else math.nan


def _quantiles(p: Any) -> Any:
    return np.vectorize(_quantile_of, otypes=[np.float64])(p).astype(p.dtype)


_ndtri = unary("_ndtri", "Ndtri", _quantiles, "Give the standard normal distribution's quantiles.", floats=True)


@gradient_of("Ndtri")
def _ndtri_gradient(node: Node, grad: Node) -> Sequence[Node]:
    return (grad * exp(0.5 * square(node)) * math.sqrt(2 * math.pi),)


def _ndtr(z: Node) -> Node:
    return 0.5 * erfc(z * -math.sqrt(0.5))


def _log_ndtr(z: Node) -> Node:
    """Give the logarithm of the standard normal's cdf: far down, where that is 0, by its asymptotic series."""
    limit = _FAR[z.dtype.name]
    far = minimum(z, limit)
    inverse = 1.0 / square(far)
    series = 1.0 - inverse * (1.0 - inverse * (3.0 - inverse * (15.0 - inverse * 105.0)))
    tail = -0.5 * square(far) - log(-far) - _LOG_SQRT_2_PI + log(series)
    return where(z > limit, log(_ndtr(maximum(z, limit))), tail)


class Normal(Distribution):
    """The normal distribution.

    Args:
        loc: Mean: number or node.
        scale: Standard deviation, above 0, of a shape that broadcasts with that of `loc`.
        validate_args: Whether runs check that `scale` is above 0.
        allow_nan_stats: Accepted: all statistics are defined.
        name: Name scope of the nodes.

    >>> import globalstep as gs
    >>> with gs.Graph().as_default(), gs.Session() as session:
    ...     print(session.run(gs.distributions.Normal(0.0, 2.0).prob(1.0)).round(4))
    0.176
    """

    reparameterization_type = FULLY_REPARAMETERIZED

    def __init__(
        self, loc: Any, scale: Any, validate_args: bool = False, allow_nan_stats: bool = True, name: str = "Normal"
    ) -> None:
        parameters = dict(locals())
        with name_scope(name) as scope:
            self.loc, spread = floats(loc, scale)
            (self.scale,) = positive(validate_args, spread)
        super().__init__([self.loc, self.scale], self.loc.dtype, scope, parameters)

    def _z(self, value: Node) -> Node:
        return (value - self.loc) / self.scale

    def _draw(self, shape: Any, seed: int | None) -> Node:
        return self.loc + self.scale * random_normal(shape, dtype=self.dtype, seed=seed)

    def _log_prob(self, value: Node) -> Node:
        return -0.5 * square(self._z(value)) - (log(self.scale) + _LOG_SQRT_2_PI)

    def _cdf(self, value: Node) -> Node:
        return _ndtr(self._z(value))

    def _log_cdf(self, value: Node) -> Node:
        return _log_ndtr(self._z(value))

    def _survival_function(self, value: Node) -> Node:
        return _ndtr(-self._z(value))

    def _log_survival_function(self, value: Node) -> Node:
        return _log_ndtr(-self._z(value))

    def _quantile(self, value: Node) -> Node:
        return self.loc + self.scale * _ndtri(value)

    def _entropy(self) -> Node:
        return log(self.scale * ones_like(self.loc)) + (0.5 + _LOG_SQRT_2_PI)

    def _mean(self) -> Node:
        return self.loc * ones_like(self.scale)

    _mode = _mean

    def _stddev(self) -> Node:
        return self.scale * ones_like(self.loc)


class NormalWithSoftplusScale(Normal):
    """The normal distribution whose standard deviation is softplus(scale); its arguments are those of `Normal`."""

    def __init__(
        self,
        loc: Any,
        scale: Any,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "NormalWithSoftplusScale",
    ) -> None:
        parameters = dict(locals())
        loc, scale = floats(loc, scale)
        super().__init__(loc, softplus(scale), validate_args, allow_nan_stats, name)
        self.parameters = arguments(parameters)


class MultivariateNormalDiag(Distribution):
    """The normal distribution of vectors whose elements are independent.

    Args:
        loc: Means [..., k]; default 0.
        scale_diag: Standard deviations [..., k]; default 1.
        scale_identity_multiplier: A number, or one for each of the batch [...], that is added to all of them; alone, it
            is all of them.
        validate_args: Whether runs check that the standard deviations are above 0.
        allow_nan_stats: Accepted: all statistics are defined.
        name: Name scope of the nodes.

    Raises:
        ValueError: Without any parameter, or where none says how long the vectors are.
    """

    inner_axes = event_rank = 1
    reparameterization_type = FULLY_REPARAMETERIZED

    def __init__(
        self,
        loc: Any = None,
        scale_diag: Any = None,
        scale_identity_multiplier: Any = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "MultivariateNormalDiag",
    ) -> None:
        parameters = dict(locals())
        if loc is None and scale_diag is None:
            raise ValueError("Must pass loc or scale_diag: one of them says how long the vectors are.")
        with name_scope(name) as scope:
            center, spread = floats(
                zeros_like(convert_to_tensor(scale_diag)) if loc is None else loc,
                ones_like(convert_to_tensor(loc)) if scale_diag is None else scale_diag,
            )
            if scale_identity_multiplier is not None:
                _, multiplier = floats(center, scale_identity_multiplier)
                extra = expand_dims(multiplier, -1)
                spread = spread * extra if scale_diag is None else spread + extra
            self.loc = center
            (self._scale_diag,) = positive(validate_args, spread)
        super().__init__([self.loc, self._scale_diag], self.loc.dtype, scope, parameters)

    def _whole(self, parameter: Node) -> Node:
        """Give a parameter in the full shape."""
        return broadcast_to(parameter, self._extent_shape_node())

    def _draw(self, shape: Any, seed: int | None) -> Node:
        return self.loc + self._scale_diag * random_normal(shape, dtype=self.dtype, seed=seed)

    def _log_prob(self, value: Node) -> Node:
        z = (value - self.loc) / self._scale_diag
        return reduce_sum(-0.5 * square(z) - (log(self._scale_diag) + _LOG_SQRT_2_PI), axis=-1)

    def _entropy(self) -> Node:
        return reduce_sum(log(self._whole(self._scale_diag)) + (0.5 + _LOG_SQRT_2_PI), axis=-1)

    def _mean(self) -> Node:
        return self._whole(self.loc)

    _mode = _mean

    def _stddev(self) -> Node:
        return self._whole(absolute(self._scale_diag))

    def _covariance(self) -> Node:
        return matrix_diag(square(self._whole(self._scale_diag)))


class MultivariateNormalDiagWithSoftplusScale(MultivariateNormalDiag):
    """The `MultivariateNormalDiag` whose standard deviations are softplus(scale_diag).

    Args:
        loc: Means [..., k].
        scale_diag: What softplus makes the standard deviations of [..., k].
        validate_args: As of `MultivariateNormalDiag`.
        allow_nan_stats: The same.
        name: Name scope of the nodes.
    """

    def __init__(
        self,
        loc: Any,
        scale_diag: Any,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "MultivariateNormalDiagWithSoftplusScale",
    ) -> None:
        parameters = dict(locals())
        loc, scale_diag = floats(loc, scale_diag)
        super().__init__(loc, softplus(scale_diag), None, validate_args, allow_nan_stats, name)
        self.parameters = arguments(parameters)


def _of_numbers(mean_a: Node, scale_a: Node, mean_b: Node, scale_b: Node) -> Node:
    ratio = square(scale_a / scale_b)
    return 0.5 * (square((mean_a - mean_b) / scale_b) + ratio - 1.0 - log(ratio))


@RegisterKL(Normal, Normal)
def _of_normals(a: Normal, b: Normal, name: str | None = None) -> Node:
    with name_scope(name or "kl_normal_normal"):
        return _of_numbers(a.loc, a.scale, b.loc, b.scale)


@RegisterKL(MultivariateNormalDiag, MultivariateNormalDiag)
def _of_vectors(a: MultivariateNormalDiag, b: MultivariateNormalDiag, name: str | None = None) -> Node:
    with name_scope(name or "kl_mvn_mvn"):
        return reduce_sum(_of_numbers(a.mean(), a.stddev(), b.mean(), b.stddev()), axis=-1)
