"""The class BatchNormalization of `gs.layers`.

Layer: tf1. Source: TensorFlow 1.15 `python/layers/normalization.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.layers.core_layers import require_floating
from globalstep.tf1.layers.layer import Layer, channels_of, chosen, known_rank, weight_options, with_channels_last
from globalstep.tf1.ops import math_ops, normalization_ops
from globalstep.tf1.ops.array_ops import reshape
from globalstep.tf1.ops.array_ops import shape as shape_of
from globalstep.tf1.ops.init_ops import ones_initializer, zeros_initializer
from globalstep.tf1.ops.reduction_ops import reduce_prod, reduce_sum

#: What TensorFlow's fused kernel wants at least, as cuDNN does.
_LEAST_EPSILON = 1.001e-5


class Moments(NamedTuple):
    """Mean and variance of a batch.

    Attributes:
        mean: Its mean.
        variance: Its variance, which it is normalized with.
        unbiased: What the moving variance follows.
    """

    mean: Node
    variance: Node
    unbiased: Node


class BatchNormalization(Layer):
    """Normalization over batches, as a layer; see `gs.layers.batch_normalization` for the arguments.

    `training` is an argument of its call.

    Attributes:
        gamma: The factor, a Variable [n], from the first call on; None without.
        beta: What is added, a Variable [n]; None without.
        moving_mean: The moving average of the means, a Variable [n].
        moving_variance: That of the variances.
    """

    def __init__(
        self,
        axis: Any = -1,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = None,
        gamma_initializer: Any = None,
        moving_mean_initializer: Any = None,
        moving_variance_initializer: Any = None,
        beta_regularizer: Any = None,
        gamma_regularizer: Any = None,
        beta_constraint: Any = None,
        gamma_constraint: Any = None,
        renorm: bool = False,
        renorm_clipping: Any = None,
        renorm_momentum: float = 0.99,
        fused: bool | None = None,
        trainable: bool = True,
        virtual_batch_size: int | None = None,
        adjustment: Any = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        for what, value in (("renorm", renorm), ("virtual_batch_size", virtual_batch_size), ("adjustment", adjustment)):
            if value:
                raise ValueError(f"gs.layers.BatchNormalization knows no {what}.")
        super().__init__(trainable, name, **kwargs)
        self.axis, self.momentum, self.epsilon, self.fused = axis, momentum, epsilon, fused
        self.center, self.scale = center, scale
        self.gamma: Any = None
        self.beta: Any = None
        self.moving_mean: Any = None
        self.moving_variance: Any = None
        zeros, ones = zeros_initializer(), ones_initializer()
        self._gamma = weight_options(gamma_initializer or ones, gamma_regularizer, gamma_constraint)
        self._beta = weight_options(beta_initializer or zeros, beta_regularizer, beta_constraint)
        self._order = ("gamma", "beta")
        self._first = False
        self._moving = (moving_mean_initializer or zeros, moving_variance_initializer or ones)

    def build(self, input_shape: TensorShape) -> None:
        """See Layer."""
        require_floating(self)
        rank = input_shape.ndims
        axis = self.axis[0] if isinstance(self.axis, (list, tuple)) and len(self.axis) == 1 else self.axis
        if rank is None:
            raise ValueError("Input has undefined rank:", input_shape)
        self._first = axis in (1, 1 - rank) and rank > 2
        if not self._first and axis not in (-1, rank - 1):
            raise ValueError(
                f"gs.layers.batch_normalization normalizes the last axis or that after the batch, not {axis}."
            )
        self.fused = rank == 4 and self.fused is not False
        size = [channels_of(input_shape, self._first, "BatchNormalization")]
        for name in self._order:
            if name == "gamma" and self.scale:
                self.gamma = self.add_weight("gamma", size, **self._gamma)
            if name == "beta" and self.center:
                self.beta = self.add_weight("beta", size, **self._beta)
        mean, variance = self._moving
        options: dict[str, Any] = {"trainable": False, "partitioned": False}
        self.moving_mean = self.add_weight("moving_mean", size, initializer=mean, **options)
        self.moving_variance = self.add_weight("moving_variance", size, initializer=variance, **options)
        self.built = True

    def call(self, inputs: Node, training: Any = False, **kwargs: Any) -> Node:
        """See Layer."""
        return with_channels_last(self._first, inputs, lambda node: self._normalized_last(node, training))

    def _normalized_last(self, inputs: Node, training: Any) -> Node:
        moving = (self.moving_mean, self.moving_variance)
        epsilon = max(self.epsilon, _LEAST_EPSILON) if self.fused else self.epsilon
        if training is False:
            mean, variance = moving
        else:
            batch = batch_moments(inputs, bool(self.fused))
            mean = chosen(training, lambda: batch.mean, lambda: moving[0])
            variance = chosen(training, lambda: batch.variance, lambda: moving[1])
            self.add_update(moved(moving, (batch.mean, batch.unbiased), self.momentum, training))
        return normalization_ops.batch_normalization(inputs, mean, variance, self.beta, self.gamma, epsilon)


def batch_moments(inputs: Node, unbiased: bool) -> Moments:
    """Give mean and variance over all dimensions but the last.

    Args:
        inputs: Floating node [..., n].
        unbiased: Whether the moving variance follows the unbiased variance, as with TensorFlow's fused kernel.
    """
    axes = list(range(known_rank(inputs) - 1))
    mean, variance = normalization_ops.moments(inputs, axes)
    if not unbiased:
        return Moments(mean, variance, variance)
    count = math_ops.cast(reduce_prod(shape_of(inputs)[:-1]), inputs.dtype)
    corrected = math_ops.multiply(variance, math_ops.divide(count, math_ops.maximum(count - 1.0, 1.0)))
    return Moments(mean, variance, corrected)


def weighted_moments(inputs: Node, batch_weights: Any) -> Moments:
    """Give mean and variance over all dimensions but the last, where each row of the batch counts by its weight."""
    rank = known_rank(inputs)
    weights = reshape(math_ops.cast(batch_weights, inputs.dtype), [-1, *[1] * (rank - 1)])
    factors = math_ops.multiply(weights, math_ops.cast(math_ops.equal(inputs, inputs), inputs.dtype))
    axes, total = list(range(rank - 1)), reduce_sum(factors, list(range(rank - 1)))
    mean = math_ops.divide(reduce_sum(math_ops.multiply(factors, inputs), axes), total)
    squares = math_ops.multiply(factors, math_ops.squared_difference(inputs, mean))
    variance = math_ops.divide(reduce_sum(squares, axes), total)
    return Moments(mean, variance, variance)


def moved(averages: Sequence[Any], now: Sequence[Node], momentum: float, training: Any) -> list[Any]:
    """Make the ops that move averages towards the values of a batch; they stay where `training` is false."""
    dtype = now[0].dtype
    by = chosen(training, lambda: as_node(1 - momentum, dtype), lambda: as_node(0.0, dtype))
    return [
        average.assign_sub(math_ops.multiply(math_ops.subtract(average, value), by))
        for average, value in zip(averages, now, strict=True)
    ]
