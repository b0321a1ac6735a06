"""Metrics under the names of `tf.contrib.metrics`, which take predictions before labels.

Layer: tf1. Source: TensorFlow 1.15 `contrib/metrics/python/ops/metric_ops.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from globalstep.tf1.graph.callables import named
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.metrics import classes, counts, means, ranking, thresholds
from globalstep.tf1.metrics.totals import broadcast_weights
from globalstep.tf1.ops import math_ops
from globalstep.tf1.ops.nn_ops import in_top_k
from globalstep.tf1.ops.reduction_ops import reduce_mean, reduce_sum

_Metric = tuple[Node, Node]


def _turned(name: str, metric: Callable[..., _Metric]) -> Callable[..., _Metric]:
    """Give the metric as contrib has it: predictions before labels, all else as in `gs.metrics`."""
    doc = (
        f"Make the metric of `gs.metrics.{metric.__name__}`; contrib takes `predictions` before `labels`, and the "
        "other arguments in the same order."
    )

    @named(name, doc)
    def function(predictions: Any, labels: Any, *args: Any, **options: Any) -> _Metric:
        return metric(labels, predictions, *args, **options)

    return function


streaming_accuracy = _turned("streaming_accuracy", means.accuracy)
streaming_auc = _turned("streaming_auc", thresholds.auc)
streaming_false_negatives = _turned("streaming_false_negatives", counts.false_negatives)
streaming_false_positives = _turned("streaming_false_positives", counts.false_positives)
streaming_mean = means.mean
streaming_mean_absolute_error = _turned("streaming_mean_absolute_error", means.mean_absolute_error)
streaming_mean_cosine_distance = _turned("streaming_mean_cosine_distance", means.mean_cosine_distance)
streaming_mean_iou = _turned("streaming_mean_iou", classes.mean_iou)
streaming_mean_relative_error = _turned("streaming_mean_relative_error", means.mean_relative_error)
streaming_mean_squared_error = _turned("streaming_mean_squared_error", means.mean_squared_error)
streaming_mean_tensor = means.mean_tensor
streaming_percentage_less = means.percentage_below
streaming_precision = _turned("streaming_precision", counts.precision)
streaming_precision_at_thresholds = _turned("streaming_precision_at_thresholds", thresholds.precision_at_thresholds)
streaming_recall = _turned("streaming_recall", counts.recall)
streaming_recall_at_thresholds = _turned("streaming_recall_at_thresholds", thresholds.recall_at_thresholds)
streaming_root_mean_squared_error = _turned("streaming_root_mean_squared_error", means.root_mean_squared_error)
streaming_sensitivity_at_specificity = _turned(
    "streaming_sensitivity_at_specificity", thresholds.sensitivity_at_specificity
)
streaming_sparse_precision_at_k = _turned("streaming_sparse_precision_at_k", ranking.precision_at_k)
streaming_sparse_recall_at_k = _turned("streaming_sparse_recall_at_k", ranking.recall_at_k)
streaming_specificity_at_sensitivity = _turned(
    "streaming_specificity_at_sensitivity", thresholds.specificity_at_sensitivity
)
streaming_true_negatives = _turned("streaming_true_negatives", counts.true_negatives)
streaming_true_positives = _turned("streaming_true_positives", counts.true_positives)


def streaming_recall_at_k(
    predictions: Any,
    labels: Any,
    k: int,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> _Metric:
    """Make the metric of how often the one label is among the `k` largest predictions.

    Args:
        predictions: Floating node [batch, classes].
        labels: Integer node [batch].
        k: How many predictions count.
        weights: As for `gs.metrics.mean`.
        metrics_collections: Collections that the value is added to.
        updates_collections: Collections that the update is added to.
        name: Scope of the Variables; default "recall_at_<k>".
    """
    inside = math_ops.cast(in_top_k(predictions, labels, k), "float32")
    return means.mean(inside, weights, metrics_collections, updates_collections, name or f"recall_at_{k}")


def accuracy(predictions: Any, labels: Any, weights: Any = None, name: str | None = None) -> Node:
    """Give how often predictions equal labels in this batch alone.

    Args:
        predictions: Node of integers, bools or strings.
        labels: The same, of the same shape and dtype.
        weights: How much each counts, of a shape that broadcasts; by default 1.
        name: Name scope of the nodes; default "accuracy".

    Returns:
        A float32 scalar node.

    Raises:
        ValueError: If dtypes or shapes differ, or the dtype is floating.
    """
    predicted, wanted = as_node(predictions), as_node(labels)
    if predicted.dtype != wanted.dtype:
        raise ValueError(f"dtypes of predictions and labels differ: {predicted.dtype.name}, {wanted.dtype.name}")
    if predicted.dtype.is_floating:
        raise ValueError(f"Labels should have bool, integer, or string dtype, but got {wanted.dtype.name}")
    predicted.shape.assert_is_compatible_with(wanted.shape)
    with predicted.graph.name_scope(name or "accuracy"):
        correct = math_ops.cast(math_ops.equal(predicted, wanted), "float32")
        if weights is None:
            return reduce_mean(correct)
        factors = broadcast_weights(weights, correct)
        return math_ops.divide(reduce_sum(math_ops.multiply(correct, factors)), reduce_sum(factors))


def aggregate_metrics(*value_update_tuples: _Metric) -> tuple[list[Node], list[Node]]:
    """Give the values of several metrics, and their updates, each as a list.

    Raises:
        ValueError: Without any metric.
    """
    if not value_update_tuples:
        raise ValueError("Expected at least one value_tensor/update_op pair")
    values, updates = zip(*value_update_tuples, strict=True)
    return list(values), list(updates)


def aggregate_metric_map(names_to_tuples: Mapping[str, _Metric]) -> tuple[dict[str, Node], dict[str, Node]]:
    """Give the values of several metrics, and their updates, each by the metric's name."""
    values = {name: pair[0] for name, pair in names_to_tuples.items()}
    return values, {name: pair[1] for name, pair in names_to_tuples.items()}
