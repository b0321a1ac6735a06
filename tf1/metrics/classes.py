"""Metrics over classes: `gs.metrics.mean_iou` and `mean_per_class_accuracy`.

Layer: tf1. Source: TensorFlow 1.15 `python/ops/metrics_impl.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.tf1.graph.graph import Node, tuple_item
from globalstep.tf1.graph.kernels import computes, kernel_of
from globalstep.tf1.metrics.totals import Collections, metric_variable, ratio
from globalstep.tf1.ops import math_ops
from globalstep.tf1.ops.array_ops import reshape
from globalstep.tf1.ops.counting_ops import confusion_matrix
from globalstep.tf1.ops.reduction_ops import reduce_mean
from globalstep.tf1.variables.variable_scope import variable_scope
from globalstep.tf1.variables.variables import Variable


def mean_per_class_accuracy(
    labels: Any,
    predictions: Any,
    num_classes: int,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Node, Node]:
    """Make the metric of the mean over classes of the share of each class that is predicted as it.

    Args:
        labels: Node or array of class numbers, of any shape.
        predictions: The same, of the same shape.
        num_classes: How many classes there are.
        weights: How much each counts: of the shape of `labels`; by default 1.
        metrics_collections: Collections that the value is added to.
        updates_collections: Collections that the update is added to.
        name: Scope of the Variables "total" and "count", [num_classes]; default "mean_accuracy", made unique.

    Returns:
        The value, a number; and the op that adds this batch and gives the accuracy of each class.

    Raises:
        ValueError: If the shapes do not fit.
    """
    with variable_scope(name, "mean_accuracy"):
        so, guess, factors = _flat(labels, predictions, weights)
        attrs = {"tuple": True, "stops_gradient": True, "num_classes": num_classes}
        parts = Node("CountByClass", (so, guess, factors), name="counts", attrs=attrs)
        amounts = [
            tuple_item(parts, i, name=name, dtype="float32", shape=[num_classes])
            for i, name in enumerate(("batch_total", "batch_count"))
        ]
        total, correct = (metric_variable([num_classes], "float32", name) for name in ("total", "count"))
        update = ratio([correct.assign_add(amounts[1]), total.assign_add(amounts[0])], "update_op")
        value = reduce_mean(ratio([correct, total], None), name="mean_accuracy")
        return Collections(metrics_collections, updates_collections).add(value, update)


@kernel_of("CountByClass")
def _count_by_class(node: Node) -> Any:
    num_classes, name = node.attrs["num_classes"], node.inputs[0].name

    def count(truth: Any, guesses: Any, importance: Any) -> tuple[Any, Any]:
        wrong = truth[(truth < 0) | (truth >= num_classes)]
        if np.size(wrong):
            raise InvalidArgumentError(
                f"{name} has the class {wrong[0]}; the metric has {num_classes} classes, from 0."
            )
        total = np.bincount(truth, importance, num_classes)
        correct = np.bincount(truth, importance * (truth == guesses), num_classes)
        return total.astype(np.float32), correct.astype(np.float32)

    return count


def mean_iou(
    labels: Any,
    predictions: Any,
    num_classes: int,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Node, Node]:
    """Make the metric of the mean over classes of intersection over union.

    `labels`, `predictions`, `num_classes` and the others are those of
    `mean_per_class_accuracy`. The Variable is "total_confusion_matrix", float64, whose
    rows are labels; the update gives it.
    """
    with variable_scope(name, "mean_iou"):
        total, update = _streaming_confusion_matrix(labels, predictions, num_classes, weights)
        value = Node("MeanIou", (total,), name="mean_iou", dtype="float32", shape=[], attrs={"stops_gradient": True})
        return Collections(metrics_collections, updates_collections).add(value, update)


def _streaming_confusion_matrix(
    labels: Any, predictions: Any, num_classes: int, weights: Any = None
) -> tuple[Variable, Node]:
    """Add up how often each label got each prediction; libraries of metrics take it from TensorFlow's own module."""
    so, guess, factors = _flat(labels, predictions, weights)
    batch = confusion_matrix(so, guess, num_classes, "float64", weights=factors)
    total = metric_variable([num_classes, num_classes], "float64", "total_confusion_matrix")
    return total, total.assign_add(batch)


@computes("MeanIou")
def _mean_iou(matrix: Any) -> Any:
    own = np.diag(matrix).astype(np.float32)
    union = matrix.sum(axis=0).astype(np.float32) + matrix.sum(axis=1).astype(np.float32) - own
    there = np.sum(union != 0, dtype=np.float32)
    share = own / np.where(union > 0, union, np.float32(1))
    return np.sum(share, dtype=np.float32) / there if there else np.float32(0)


def _flat(labels: Any, predictions: Any, weights: Any) -> tuple[Node, Node, Node]:
    """Give labels and predictions as int64 vectors, and weights as a float64 one."""
    so, guess = math_ops.cast(labels, "int64"), math_ops.cast(predictions, "int64")
    guess.shape.assert_is_compatible_with(so.shape)
    so, guess = reshape(so, [-1]), reshape(guess, [-1])
    factors = math_ops.cast(math_ops.equal(so, so) if weights is None else weights, "float64")
    factors = reshape(factors, [-1])
    guess.shape.assert_is_compatible_with(factors.shape)
    return so, guess, factors
