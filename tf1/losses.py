"""Losses with weights, gathered in a collection: `gs.tf1.losses`.

Each function gives the weighted loss of a batch and adds it to a collection, so that `get_total_loss` can
sum up all of a model. Names, arguments and formulas are those of TensorFlow 1.15 `tf.losses`.
"""

from __future__ import annotations

from typing import Any

from globalstep.tf1.graph.graph import GraphKeys, Node, add_to_collection, as_node, get_collection
from globalstep.tf1.metrics.totals import fitting
from globalstep.tf1.ops import cross_entropy_ops, math_ops
from globalstep.tf1.ops.array_ops import broadcast_to, stop_gradient
from globalstep.tf1.ops.array_ops import shape as shape_of
from globalstep.tf1.ops.constant_ops import zeros
from globalstep.tf1.ops.counting_ops import of_rank
from globalstep.tf1.ops.nn_ops import relu
from globalstep.tf1.ops.reduction_ops import reduce_mean, reduce_sum

__all__ = [
    "Reduction",
    "absolute_difference",
    "add_loss",
    "compute_weighted_loss",
    "cosine_distance",
    "get_losses",
    "get_regularization_loss",
    "get_regularization_losses",
    "get_total_loss",
    "hinge_loss",
    "huber_loss",
    "log_loss",
    "mean_squared_error",
    "sigmoid_cross_entropy",
    "softmax_cross_entropy",
    "sparse_softmax_cross_entropy",
]


class Reduction:
    """Reductions of weighted losses to one number."""

    NONE = "none"
    SUM = "weighted_sum"
    SUM_OVER_BATCH_SIZE = "weighted_sum_over_batch_size"
    MEAN = "weighted_mean"
    SUM_BY_NONZERO_WEIGHTS = "weighted_sum_by_nonzero_weights"
    SUM_OVER_NONZERO_WEIGHTS = SUM_BY_NONZERO_WEIGHTS

    @classmethod
    def all(cls) -> tuple[str, ...]:
        """Give every way."""
        return (cls.NONE, cls.SUM, cls.MEAN, cls.SUM_OVER_BATCH_SIZE, cls.SUM_BY_NONZERO_WEIGHTS)

    @classmethod
    def validate(cls, key: str) -> None:
        """Check a way.

        Raises:
            ValueError: If there is no such way.
        """
        if key not in cls.all():
            raise ValueError(f"Invalid ReductionKey {key}.")


_COLLECTION = GraphKeys.LOSSES
_DEFAULT = Reduction.SUM_BY_NONZERO_WEIGHTS


def _safe_ratio(total: Node, count: Node) -> Node:
    return math_ops.div_no_nan(total, count, name="value")


def compute_weighted_loss(
    losses: Any,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
    reduction: str = _DEFAULT,
) -> Node:
    """Give the weighted loss of a batch.

    Args:
        losses: Node or array [batch, ...].
        weights: Scalar, or a value of the rank of `losses` that broadcasts to it.
        scope: Name scope of the nodes.
        loss_collection: Collection that the loss is added to; None for none.
        reduction: A constant of `Reduction`; by default the sum divided by the number of weights that are
            not 0.

    Returns:
        A scalar node, or one like `losses` without reduction.

    Raises:
        ValueError: If the weights do not fit, or for an unknown reduction.
    """
    Reduction.validate(reduction)
    values = as_node(losses)
    with values.graph.name_scope(scope or "weighted_loss"):
        factors = fitting(weights, values)
        weighted = math_ops.multiply(values, factors)
        if reduction == Reduction.NONE:
            loss = weighted
        else:
            loss = reduce_sum(weighted)
            spread = broadcast_to(factors, shape_of(values))
            if reduction == Reduction.MEAN:
                loss = _safe_ratio(loss, reduce_sum(spread))
            elif reduction == Reduction.SUM_BY_NONZERO_WEIGHTS:
                present = math_ops.cast(math_ops.not_equal(spread, 0.0), values.dtype)
                loss = _safe_ratio(loss, reduce_sum(present))
            elif reduction == Reduction.SUM_OVER_BATCH_SIZE:
                loss = reduce_mean(weighted)
    add_loss(loss, loss_collection)
    return loss


def _pair(labels: Any, predictions: Any, name: str) -> tuple[Node, Node]:
    if labels is None:
        raise ValueError("labels must not be None.")
    if predictions is None:
        raise ValueError(f"{name} must not be None.")
    predicted = as_node(predictions)
    predicted = predicted if predicted.dtype.is_floating else math_ops.to_float(predicted)
    wanted = math_ops.cast(labels, predicted.dtype)
    predicted.shape.assert_is_compatible_with(wanted.shape)
    return wanted, predicted


def absolute_difference(
    labels: Any,
    predictions: Any,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
    reduction: str = _DEFAULT,
) -> Node:
    """Give the loss abs(predictions - labels).

    `labels`: node or array of true values; `predictions`: node of the shape of `labels`. The other arguments
    are those of `compute_weighted_loss`.
    """
    y, p = _pair(labels, predictions, "predictions")
    losses = math_ops.abs(math_ops.subtract(p, y))
    return compute_weighted_loss(losses, weights, scope or "absolute_difference", loss_collection, reduction)


def mean_squared_error(
    labels: Any,
    predictions: Any,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
    reduction: str = _DEFAULT,
) -> Node:
    """Give the loss (predictions - labels)^2.

    `labels`: node or array of true values; `predictions`: node of the shape of `labels`. The other arguments
    are those of `compute_weighted_loss`.
    """
    y, p = _pair(labels, predictions, "predictions")
    losses = math_ops.squared_difference(p, y)
    return compute_weighted_loss(losses, weights, scope or "mean_squared_error", loss_collection, reduction)


def log_loss(
    labels: Any,
    predictions: Any,
    weights: Any = 1.0,
    epsilon: float = 1e-7,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
    reduction: str = _DEFAULT,
) -> Node:
    """Give the loss -y log(p + epsilon) - (1 - y) log(1 - p + epsilon).

    `labels`: node or array of y, 0 to 1; `predictions`: node of p, probabilities, of the shape of `labels`;
    `epsilon`: keeps the logarithms finite. The other arguments are those of `compute_weighted_loss`.
    """
    y, p = _pair(labels, predictions, "predictions")
    hit = math_ops.multiply(y, math_ops.log(math_ops.add(p, epsilon)))
    other = math_ops.subtract(1.0, p)
    miss = math_ops.multiply(math_ops.subtract(1.0, y), math_ops.log(math_ops.add(other, epsilon)))
    losses = math_ops.negative(math_ops.add(hit, miss))
    return compute_weighted_loss(losses, weights, scope or "log_loss", loss_collection, reduction)


def hinge_loss(
    labels: Any,
    logits: Any,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
    reduction: str = _DEFAULT,
) -> Node:
    """Give the loss max(0, 1 - logits * (2 labels - 1)).

    `labels`: node or array of 0 and 1; `logits`: node of the shape of `labels`. The other arguments are those
    of `compute_weighted_loss`.
    """
    y, x = _pair(labels, logits, "logits")
    signs = math_ops.subtract(math_ops.multiply(y, 2.0), 1.0)
    losses = relu(math_ops.subtract(1.0, math_ops.multiply(signs, x)))
    return compute_weighted_loss(losses, weights, scope or "hinge_loss", loss_collection, reduction)


def huber_loss(
    labels: Any,
    predictions: Any,
    weights: Any = 1.0,
    delta: float = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
    reduction: str = _DEFAULT,
) -> Node:
    """Give the loss d^2 / 2 up to d = abs(predictions - labels) = delta, linear beyond.

    `labels`: node or array of true values; `predictions`: node of the shape of `labels`; `delta`: where it
    becomes linear. The other arguments are those of `compute_weighted_loss`.
    """
    y, p = _pair(labels, predictions, "predictions")
    error = math_ops.abs(math_ops.subtract(p, y))
    near = math_ops.minimum(error, delta)
    far = math_ops.subtract(error, near)
    losses = math_ops.add(math_ops.multiply(math_ops.square(near), 0.5), math_ops.multiply(far, float(delta)))
    return compute_weighted_loss(losses, weights, scope or "huber_loss", loss_collection, reduction)


def cosine_distance(
    labels: Any,
    predictions: Any,
    axis: int | None = None,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
    reduction: str = _DEFAULT,
    dim: int | None = None,
) -> Node:
    """Give the loss 1 - sum(labels * predictions) along `axis`, for unit vectors.

    Raises:
        ValueError: Without an axis.
    """
    place = dim if axis is None else axis
    if place is None:
        raise ValueError("You must specify 'axis'.")
    y, p = _pair(labels, predictions, "predictions")
    losses = math_ops.subtract(1.0, reduce_sum(math_ops.multiply(y, p), place, keepdims=True))
    return compute_weighted_loss(losses, weights, scope or "cosine_distance_loss", loss_collection, reduction)


def sigmoid_cross_entropy(
    multi_class_labels: Any,
    logits: Any,
    weights: Any = 1.0,
    label_smoothing: float = 0,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
    reduction: str = _DEFAULT,
) -> Node:
    """Give the sigmoid cross entropy.

    `multi_class_labels`: node or array of 0 and 1, of the shape of `logits`; `logits`: node [batch, classes];
    `label_smoothing`: how far labels are moved, 0 to 1, towards 1/2. The other arguments are those of
    `compute_weighted_loss`.
    """
    y, x = _pair(multi_class_labels, logits, "logits")
    if label_smoothing > 0:
        y = math_ops.add(math_ops.multiply(y, 1 - label_smoothing), 0.5 * label_smoothing)
    losses = cross_entropy_ops.sigmoid_cross_entropy_with_logits(labels=y, logits=x)
    name = scope or "sigmoid_cross_entropy_loss"
    return compute_weighted_loss(losses, weights, name, loss_collection, reduction)


def softmax_cross_entropy(
    onehot_labels: Any,
    logits: Any,
    weights: Any = 1.0,
    label_smoothing: float = 0,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
    reduction: str = _DEFAULT,
) -> Node:
    """Give the softmax cross entropy.

    `onehot_labels`: node or array [batch, classes] of probabilities; `logits`: node [batch, classes];
    `label_smoothing`: how far labels are moved, 0 to 1, towards 1/classes. The other arguments are those of
    `compute_weighted_loss`.
    """
    y, x = _pair(onehot_labels, logits, "logits")
    if label_smoothing > 0:
        classes = x.shape.as_list()[-1]
        if classes is None:
            raise ValueError(f"label_smoothing needs the number of classes; the shape is {x.shape}.")
        y = math_ops.add(math_ops.multiply(y, 1 - label_smoothing), label_smoothing / classes)
    losses = cross_entropy_ops.softmax_cross_entropy_with_logits_v2(labels=stop_gradient(y), logits=x)
    name = scope or "softmax_cross_entropy_loss"
    return compute_weighted_loss(losses, weights, name, loss_collection, reduction)


def sparse_softmax_cross_entropy(
    labels: Any,
    logits: Any,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _COLLECTION,
    reduction: str = _DEFAULT,
) -> Node:
    """Give the softmax cross entropy with class numbers.

    `labels`: integer node or array [batch] or [batch, 1]; `logits`: node [batch, classes]. The other arguments
    are those of `compute_weighted_loss`.
    """
    if labels is None:
        raise ValueError("labels must not be None.")
    if logits is None:
        raise ValueError("logits must not be None.")
    x, y = as_node(logits), as_node(labels)
    x, y = of_rank(x, y, 1), of_rank(y, x, -1)
    losses = cross_entropy_ops.sparse_softmax_cross_entropy_with_logits(labels=y, logits=x)
    factors = of_rank(as_node(weights), y)
    name = scope or "sparse_softmax_cross_entropy_loss"
    return compute_weighted_loss(losses, factors, name, loss_collection, reduction)


def add_loss(loss: Any, loss_collection: str | None = _COLLECTION) -> None:
    """Add a loss to the collection that `get_total_loss` sums up."""
    if loss_collection:
        add_to_collection(loss_collection, loss)


def get_losses(scope: str | None = None, loss_collection: str = _COLLECTION) -> list[Node]:
    """Give the losses of the collection, of one name scope if `scope` is given."""
    return get_collection(loss_collection, scope)


def get_regularization_losses(scope: str | None = None) -> list[Node]:
    """Give the regularization losses of the graph."""
    return get_collection(GraphKeys.REGULARIZATION_LOSSES, scope)


def get_regularization_loss(scope: str | None = None, name: str = "total_regularization_loss") -> Node:
    """Give the sum of the regularization losses; 0 if there are none."""
    losses = get_regularization_losses(scope)
    return math_ops.add_n(losses, name=name) if losses else zeros([], name=name)


def get_total_loss(add_regularization_losses: bool = True, name: str = "total_loss", scope: str | None = None) -> Node:
    """Give the sum of all losses of the collection, with the regularization losses.

    Raises:
        ValueError: If there are none.
    """
    losses = get_losses(scope)
    if add_regularization_losses:
        losses = losses + get_regularization_losses(scope)
    return math_ops.add_n(losses, name=name)
