"""Distributions of classes: yes or no, one of k by number, one of k as a one-hot vector.

Layer: tf1. Source: TensorFlow 1.15 `tf.distributions` and `tf.contrib.distributions`.
"""

from __future__ import annotations

from typing import Any

from globalstep.dtypes import DTypeLike, as_dtype
from globalstep.tf1.distributions.continuous import TINY
from globalstep.tf1.distributions.distribution import Distribution
from globalstep.tf1.distributions.divergence import RegisterKL
from globalstep.tf1.distributions.parameters import logits_and_probs
from globalstep.tf1.graph.graph import Node, name_scope
from globalstep.tf1.ops.array_ops import broadcast_dynamic_shape, broadcast_to, expand_dims, identity
from globalstep.tf1.ops.array_ops import shape as shape_of
from globalstep.tf1.ops.constant_ops import zeros_like
from globalstep.tf1.ops.cross_entropy_ops import (
    sigmoid_cross_entropy_with_logits,
    sparse_softmax_cross_entropy_with_logits,
)
from globalstep.tf1.ops.indexing_ops import one_hot
from globalstep.tf1.ops.joining_ops import concat
from globalstep.tf1.ops.math_ops import cast, log, sigmoid
from globalstep.tf1.ops.matrix_ops import matrix_diag
from globalstep.tf1.ops.nn_ops import log_softmax, softmax, softplus
from globalstep.tf1.ops.random_ops import random_uniform
from globalstep.tf1.ops.reduction_ops import argmax, reduce_sum


def drawn_classes(logits: Node, shape: Any, seed: int | None) -> Node:
    """Draw class numbers with probabilities softmax(logits), by the largest of logits with Gumbel noise.

    Args:
        logits: [..., k].
        shape: Shape of the draws, an int32 node, to which that of `logits` without its last axis broadcasts.
        seed: Seed of this draw.

    Returns:
        An int64 node of `shape`.
    """
    full = concat([shape, shape_of(logits)[-1:]], 0)
    unit = random_uniform(full, minval=TINY, maxval=1.0, dtype=logits.dtype, seed=seed)
    return argmax(logits - log(-log(unit)), axis=-1)


class Bernoulli(Distribution):
    """The distribution of 1 with probability `probs`, and else 0.

    Args:
        logits: Log-odds of 1: number or node. Only one of `logits` and `probs` is given.
        probs: Probability of 1.
        dtype: Dtype of samples.
        validate_args: Accepted as in TensorFlow; values are not checked.
        allow_nan_stats: Accepted: all statistics are defined.
        name: Name scope of the nodes.
    """

    def __init__(
        self,
        logits: Any = None,
        probs: Any = None,
        dtype: DTypeLike = "int32",
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Bernoulli",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name) as scope:
            self.logits, self.probs = logits_and_probs(logits, probs, multidimensional=False)
        super().__init__([self.logits], as_dtype(dtype), scope, parameters)

    def _draw(self, shape: Any, seed: int | None) -> Node:
        return cast(random_uniform(shape, dtype=self.probs.dtype, seed=seed) < self.probs, self.dtype)

    def _log_prob(self, value: Node) -> Node:
        event = cast(value, self.logits.dtype)
        shape = broadcast_dynamic_shape(shape_of(event), shape_of(self.logits))
        labels = event + zeros_like(self.logits)
        logits = broadcast_to(self.logits, shape)
        logits.set_shape(labels.shape)
        return -sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)

    def _entropy(self) -> Node:
        return -self.logits * (sigmoid(self.logits) - 1.0) + softplus(-self.logits)

    def _mean(self) -> Node:
        return identity(self.probs)

    def _variance(self) -> Node:
        return self.probs * (1.0 - self.probs)

    def _mode(self) -> Node:
        return cast(self.probs > 0.5, self.dtype)


class Categorical(Distribution):
    """The distribution of one of k classes, by its number.

    Args:
        logits: [..., k]: the logarithms of probabilities, up to a constant. Only one of `logits` and `probs` is given.
        probs: Probabilities [..., k].
        dtype: Dtype of samples.
        validate_args: Accepted as in TensorFlow; values are not checked.
        allow_nan_stats: Accepted: all statistics are defined.
        name: Name scope of the nodes.
    """

    inner_axes = 1

    def __init__(
        self,
        logits: Any = None,
        probs: Any = None,
        dtype: DTypeLike = "int32",
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Categorical",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name) as scope:
            self.logits, self.probs = logits_and_probs(logits, probs, multidimensional=True)
            self.event_size = shape_of(self.logits)[-1]
        super().__init__([self.logits], as_dtype(dtype), scope, parameters)

    def _draw(self, shape: Any, seed: int | None) -> Node:
        return cast(drawn_classes(self.logits, shape, seed), self.dtype)

    def _log_prob(self, value: Node) -> Node:
        batch = shape_of(self.logits)[:-1]
        shape = broadcast_dynamic_shape(shape_of(value), batch)
        classes, logits = value, self.logits
        if value.shape.dims is None or value.shape != self.batch_shape or not value.shape.is_fully_defined():
            static = (value + zeros_like(argmax(self.logits, axis=-1, output_type=value.dtype))).shape
            classes = broadcast_to(value, shape)
            classes.set_shape(static)
            logits = broadcast_to(self.logits, concat([shape, shape_of(self.logits)[-1:]], 0))
            logits.set_shape(static.concatenate(self.logits.shape[-1:]))
        return -sparse_softmax_cross_entropy_with_logits(labels=classes, logits=logits)

    def _entropy(self) -> Node:
        return -reduce_sum(log_softmax(self.logits) * softmax(self.logits), axis=-1)

    def _mode(self) -> Node:
        return cast(argmax(self.logits, axis=-1), self.dtype)


class OneHotCategorical(Distribution):
    """The distribution of one of k classes, as a vector with 1 in its place; see `Categorical` for the arguments."""

    inner_axes = event_rank = 1

    def __init__(
        self,
        logits: Any = None,
        probs: Any = None,
        dtype: DTypeLike = "int32",
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "OneHotCategorical",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name) as scope:
            self.logits, self.probs = logits_and_probs(logits, probs, multidimensional=True)
            self.event_size = shape_of(self.logits)[-1]
        super().__init__([self.logits], as_dtype(dtype), scope, parameters)

    def _draw(self, shape: Any, seed: int | None) -> Node:
        return self._vectors(drawn_classes(self.logits, shape[:-1], seed))

    def _vectors(self, classes: Node) -> Node:
        return one_hot(classes, self.event_size, dtype=self.dtype)

    def _log_prob(self, value: Node) -> Node:
        return reduce_sum(cast(value, self.logits.dtype) * log_softmax(self.logits), axis=-1)

    def _entropy(self) -> Node:
        return -reduce_sum(log_softmax(self.logits) * softmax(self.logits), axis=-1)

    def _mean(self) -> Node:
        return identity(self.probs)

    def _variance(self) -> Node:
        return self.probs * (1.0 - self.probs)

    def _covariance(self) -> Node:
        return matrix_diag(self.probs) - expand_dims(self.probs, -1) * expand_dims(self.probs, -2)

    def _mode(self) -> Node:
        return self._vectors(argmax(self.logits, axis=-1))


@RegisterKL(Bernoulli, Bernoulli)
def _of_bernoullis(a: Bernoulli, b: Bernoulli, name: str | None = None) -> Node:
    with name_scope(name or "kl_bernoulli_bernoulli"):
        zeros = softplus(b.logits) - softplus(a.logits)
        ones = softplus(-b.logits) - softplus(-a.logits)
        return sigmoid(a.logits) * ones + sigmoid(-a.logits) * zeros


@RegisterKL(Categorical, Categorical)
@RegisterKL(OneHotCategorical, OneHotCategorical)
def _of_classes(a: Any, b: Any, name: str | None = None) -> Node:
    with name_scope(name or "kl_categorical_categorical"):
        return reduce_sum(softmax(a.logits) * (log_softmax(a.logits) - log_softmax(b.logits)), axis=-1)
