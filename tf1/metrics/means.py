"""Metrics that are means of something: `gs.metrics.mean`, `accuracy` and the errors.

Layer: tf1. Source: TensorFlow 1.15 `python/ops/metrics_impl.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from globalstep.tf1.graph.callables import named
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.metrics.totals import Collections, aligned, broadcast_weights, ratio, streamed
from globalstep.tf1.ops import math_ops
from globalstep.tf1.ops.array_ops import size
from globalstep.tf1.ops.constant_ops import ones_like, zeros_like
from globalstep.tf1.ops.indexing_ops import where
from globalstep.tf1.ops.reduction_ops import reduce_sum
from globalstep.tf1.variables.variable_scope import variable_scope


def mean(
    values: Any,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Node, Node]:
    """Make the metric sum(weights * values) / sum(weights).

    The totals are local Variables: `gs.local_variables_initializer()` starts them, checkpoints leave them out, and
    each process has its own.

    Args:
        values: Node or array of any shape.
        weights: How much each value counts: a number, or of the rank of `values` with each size that of `values`
            or 1; by default all count 1.
        metrics_collections: Collections that the value is added to.
        updates_collections: Collections that the update is added to.
        name: Scope of the Variables "total" and "count"; default "mean", made unique.

    Returns:
        A node of the value as the totals are, 0 before any update; and the op that adds this batch and gives the
        new value.

    Raises:
        ValueError: If the weights do not fit.

    >>> import globalstep as gs
    >>> x = gs.placeholder(gs.float32, [None])
    >>> value, update = gs.metrics.mean(x)
    >>> with gs.Session() as sess:
    ...     sess.run(gs.local_variables_initializer())
    ...     print(sess.run(update, {x: [1, 2]}), sess.run(update, {x: [6]}), sess.run(value))
    1.5 3.0 3.0
    """
    with variable_scope(name, "mean"):
        numbers = math_ops.cast(values, "float32")
        if weights is None:
            count = math_ops.cast(size(numbers), "float32")
        else:
            numbers, _, factors = aligned(numbers, None, weights)
            factors = broadcast_weights(factors, numbers)
            numbers, count = math_ops.multiply(numbers, factors), reduce_sum(factors)
        batch = {"total": reduce_sum(numbers), "count": count}
        return streamed(batch, ratio, Collections(metrics_collections, updates_collections))


def mean_tensor(
    values: Any,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Node, Node]:
    """Make the metric of `mean` for each element; the value has the shape of `values`, which must be known.

    The arguments are those of `mean`.
    """
    with variable_scope(name, "mean"):
        numbers = math_ops.cast(values, "float32")
        count = ones_like(numbers)
        if weights is not None:
            numbers, _, factors = aligned(numbers, None, weights)
            factors = broadcast_weights(factors, numbers)
            numbers, count = math_ops.multiply(numbers, factors), math_ops.multiply(count, factors)
        batch = {"total_tensor": numbers, "count_tensor": count}
        return streamed(batch, ratio, Collections(metrics_collections, updates_collections))


def _mean_of(metric: str, doc: str, amount: Callable[[Node, Node], Node]) -> Callable[..., tuple[Node, Node]]:
    """Make the public function of the mean of `amount(predictions, labels)`."""

    @named(metric, doc)
    def function(
        labels: Any,
        predictions: Any,
        weights: Any = None,
        metrics_collections: Any = None,
        updates_collections: Any = None,
        name: str | None = None,
    ) -> tuple[Node, Node]:
        predicted, wanted, factors = aligned(predictions, labels, weights)
        return mean(amount(predicted, wanted), factors, metrics_collections, updates_collections, name or metric)

    return function


def _is_right(predicted: Node, wanted: Node) -> Node:
    if predicted.dtype != wanted.dtype:
        predicted = math_ops.cast(predicted, wanted.dtype)
    return math_ops.cast(math_ops.equal(predicted, wanted), "float32")


accuracy = _mean_of(
    "accuracy",
    """Make the metric of how often predictions equal labels.

    `labels`: node or array of true values; `predictions`: of the same shape, cast to the dtype of `labels`;
    `weights`: as for `mean`, of what the labels have of shape. The others are those of `mean`.
    """,
    _is_right,
)
mean_absolute_error = _mean_of(
    "mean_absolute_error",
    "Make the metric of the mean of abs(predictions - labels); the arguments are those of `accuracy`.",
    lambda predicted, wanted: math_ops.abs(math_ops.subtract(predicted, wanted)),
)
mean_squared_error = _mean_of(
    "mean_squared_error",
    "Make the metric of the mean of (predictions - labels)^2; the arguments are those of `accuracy`.",
    lambda predicted, wanted: math_ops.squared_difference(wanted, predicted),
)


def root_mean_squared_error(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Node, Node]:
    """Make the metric of the root of the mean of (predictions - labels)^2; the arguments are those of `accuracy`."""
    value, update = mean_squared_error(labels, predictions, weights, name=name or "root_mean_squared_error")
    return Collections(metrics_collections, updates_collections).add(math_ops.sqrt(value), math_ops.sqrt(update))


def mean_relative_error(
    labels: Any,
    predictions: Any,
    normalizer: Any,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Node, Node]:
    """Make the metric of the mean of abs(labels - predictions) / normalizer, 0 where the normalizer is 0.

    `normalizer`: of the shape of `labels` and `predictions`. The other arguments are those of `accuracy`.
    """
    predicted, wanted, factors = aligned(predictions, labels, weights)
    predicted, scale, _ = aligned(predicted, normalizer, None)
    relative = math_ops.divide(math_ops.abs(math_ops.subtract(wanted, predicted)), scale)
    errors = where(math_ops.equal(scale, 0.0), zeros_like(wanted), relative)
    return mean(errors, factors, metrics_collections, updates_collections, name or "mean_relative_error")


def mean_cosine_distance(
    labels: Any,
    predictions: Any,
    dim: int,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Node, Node]:
    """Make the metric 1 - the mean of the sums of labels * predictions along `dim`, for unit vectors.

    `labels`, `predictions` and the other arguments are those of `accuracy`.
    """
    predicted, wanted, factors = aligned(predictions, labels, weights)
    products = reduce_sum(math_ops.multiply(predicted, wanted), [dim], keepdims=True)
    value, update = mean(products, factors, name=name or "mean_cosine_distance")
    into = Collections(metrics_collections, updates_collections)
    return into.add(math_ops.subtract(1.0, value), math_ops.subtract(1.0, update))


def percentage_below(
    values: Any,
    threshold: Any,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Node, Node]:
    """Make the metric of the share, 0 to 1, of values that are less than `threshold`.

    The other arguments are those of `mean`.
    """
    below = math_ops.cast(math_ops.less(as_node(values), threshold), "float32")
    return mean(below, weights, metrics_collections, updates_collections, name or "percentage_below_threshold")
