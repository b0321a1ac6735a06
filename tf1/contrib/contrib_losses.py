"""Losses under the names of `tf.contrib.losses`, which take predictions before labels.

Layer: tf1. Source: TensorFlow 1.15 `contrib/losses/python/losses/loss_ops.py`.
"""

from __future__ import annotations

from typing import Any

from globalstep.tf1 import losses
from globalstep.tf1.graph.graph import Node


def absolute_difference(predictions: Any, labels: Any = None, weights: Any = 1.0, scope: str | None = None) -> Node:
    """Give the loss `gs.losses.absolute_difference` of `predictions` and labels."""
    return losses.absolute_difference(labels, predictions, weights, scope)


def mean_squared_error(predictions: Any, labels: Any = None, weights: Any = 1.0, scope: str | None = None) -> Node:
    """Give the loss `gs.losses.mean_squared_error` of `predictions` and labels."""
    return losses.mean_squared_error(labels, predictions, weights, scope)


def log_loss(
    predictions: Any, labels: Any = None, weights: Any = 1.0, epsilon: float = 1e-7, scope: str | None = None
) -> Node:
    """Give the loss `gs.losses.log_loss` of `predictions` and labels."""
    return losses.log_loss(labels, predictions, weights, epsilon, scope)


def hinge_loss(logits: Any, labels: Any = None, scope: str | None = None) -> Node:
    """Give `gs.losses.hinge_loss` of `logits` and labels, element by element: neither weighed nor in a collection."""
    return losses.hinge_loss(labels, logits, 1.0, scope, None, losses.Reduction.NONE)


def cosine_distance(
    predictions: Any,
    labels: Any = None,
    axis: int | None = None,
    weights: Any = 1.0,
    scope: str | None = None,
    dim: int | None = None,
) -> Node:
    """Give the loss `gs.losses.cosine_distance` of `predictions` and labels."""
    return losses.cosine_distance(labels, predictions, axis, weights, scope, dim=dim)


def sigmoid_cross_entropy(
    logits: Any, multi_class_labels: Any, weights: Any = 1.0, label_smoothing: float = 0, scope: str | None = None
) -> Node:
    """Give the loss `gs.losses.sigmoid_cross_entropy` of `logits` and `multi_class_labels`."""
    return losses.sigmoid_cross_entropy(multi_class_labels, logits, weights, label_smoothing, scope)


def softmax_cross_entropy(
    logits: Any, onehot_labels: Any, weights: Any = 1.0, label_smoothing: float = 0, scope: str | None = None
) -> Node:
    """Give the loss `gs.losses.softmax_cross_entropy` of `logits` and `onehot_labels`."""
    return losses.softmax_cross_entropy(onehot_labels, logits, weights, label_smoothing, scope)


def sparse_softmax_cross_entropy(logits: Any, labels: Any, weights: Any = 1.0, scope: str | None = None) -> Node:
    """Give the loss `gs.losses.sparse_softmax_cross_entropy` of `logits` and `labels`."""
    return losses.sparse_softmax_cross_entropy(labels, logits, weights, scope)


#: TensorFlow's oldest name.
sum_of_squares = mean_squared_error
