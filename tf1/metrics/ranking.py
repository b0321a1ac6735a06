"""Metrics of the k best of many classes: `gs.metrics.precision_at_k`, `recall_at_k` and `average_precision_at_k`.

Layer: tf1. Source: TensorFlow 1.15 `python/ops/metrics_impl.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from globalstep.tf1.graph.callables import named
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.sparse_tensor import SparseTensor, SparseTensorValue
from globalstep.tf1.metrics.totals import Collections, broadcast_weights, metric_variable, ratio
from globalstep.tf1.ops import math_ops
from globalstep.tf1.ops.array_ops import expand_dims
from globalstep.tf1.ops.nn_ops import top_k
from globalstep.tf1.ops.parsing_ops import sparse_tensor_to_dense
from globalstep.tf1.ops.reduction_ops import reduce_sum

#: Stands where a row of sparse labels has fewer than another.
_NONE = -(2**62)


def _at_k(name: str, k: int | None, class_id: int | None) -> str:
    name = f"{name}_at_k" if k is None else f"{name}_at_{k}"
    return name if class_id is None else f"{name}_class{class_id}"


def _share_at_k(others: str, args: Sequence[Any], into: Collections, scope: str) -> tuple[Node, Node]:
    """Make the metric true positives / (true positives + others)."""
    labels, places, k, class_id, weights = args
    wanted, places = _labels(labels, places), math_ops.cast(places, "int64")

    def counted(what: str) -> tuple[Node, Node]:
        with places.graph.name_scope(_at_k(what, k, class_id)) as inner:
            rows = Node(
                "CountAtK", (places, wanted), name=f"{what}s", dtype="float64", shape=places.shape.as_list()[:-1],
                attrs={"counts": what, "class_id": class_id, "stops_gradient": True},
            )  # fmt: skip
            if weights is not None:
                rows = math_ops.multiply(rows, broadcast_weights(weights, rows))
            total = metric_variable([], "float64", inner)
            return total, total.assign_add(reduce_sum(rows), name="update")

    hits, misses = counted("true_positive"), counted(others)
    value = math_ops.divide(hits[0], math_ops.add(hits[0], misses[0]), name=scope)
    return into.add(value, math_ops.divide(hits[1], math_ops.add(hits[1], misses[1]), name="update"))


def _of_classes(what: str, others: str) -> Callable[..., tuple[Node, Node]]:
    """Make the public function of a metric of classes predicted; `others` are what it counts beside true positives."""
    doc = f"Make the metric of `{what}_at_k` from `labels` and the classes predicted, `predictions_idx` [..., k]."

    @named(f"{what}_at_top_k", doc)
    def function(
        labels: Any,
        predictions_idx: Any,
        k: int | None = None,
        class_id: int | None = None,
        weights: Any = None,
        metrics_collections: Any = None,
        updates_collections: Any = None,
        name: str | None = None,
    ) -> tuple[Node, Node]:
        into = Collections(metrics_collections, updates_collections)
        places = as_node(predictions_idx)
        with places.graph.name_scope(name or _at_k(what, k, class_id)) as scope:
            return _share_at_k(others, (labels, places, k, class_id, weights), into, scope)

    return function


def _of_scores(what: str, of_classes: Callable[..., tuple[Node, Node]], doc: str) -> Callable[..., tuple[Node, Node]]:
    """Make the public function of a metric of the classes with the best scores."""

    @named(f"{what}_at_k", doc)
    def function(
        labels: Any,
        predictions: Any,
        k: int,
        class_id: int | None = None,
        weights: Any = None,
        metrics_collections: Any = None,
        updates_collections: Any = None,
        name: str | None = None,
    ) -> tuple[Node, Node]:
        scores = as_node(predictions)
        with scores.graph.name_scope(name or _at_k(what, k, class_id)) as scope:
            places = top_k(scores, k)[1]
            return of_classes(labels, places, k, class_id, weights, metrics_collections, updates_collections, scope)

    return function


precision_at_top_k = _of_classes("precision", "false_positive")
recall_at_top_k = _of_classes("recall", "false_negative")
precision_at_k = _of_scores(
    "precision",
    precision_at_top_k,
    """Make the metric of the share of the `k` best predictions that are among the labels.

    Args:
        labels: Integer node, array or SparseTensor [..., number of labels] of classes, or [...] for one label each.
        predictions: Floating node or array [..., classes].
        k: How many predictions count.
        class_id: Count this class only.
        weights: How much each row counts: a number, or of the shape of `labels` without its last dimension.
        metrics_collections: Collections that the value is added to.
        updates_collections: Collections that the update is added to.
        name: Scope of the Variables, float64; default "precision_at_<k>", made unique.

    Returns:
        The value, NaN before any update, and the update.

    Raises:
        ValueError: If the shapes do not fit.
    """,
)
recall_at_k = _of_scores(
    "recall",
    recall_at_top_k,
    """Make the metric of the share of the labels that are among the `k` best predictions.

    The arguments are those of `precision_at_k`: `labels`, `predictions`, `k` and the others.
    """,
)


def average_precision_at_k(
    labels: Any,
    predictions: Any,
    k: int,
    weights: Any = None,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Node, Node]:
    """Make the metric of the mean over rows of the average precision of the `k` best predictions.

    `labels`, `predictions` and the other arguments are those of `precision_at_k`.

    Raises:
        ValueError: If `k` is less than 1.
    """
    if k < 1:
        raise ValueError(f"Invalid k={k}.")
    scores = as_node(predictions)
    with scores.graph.name_scope(name or _at_k("average_precision", k, None)) as scope:
        places = top_k(scores, k)[1]
        wanted = _labels(labels, scores)
        precisions = Node(
            "AveragePrecision", (places, wanted, scores),
            name="average_precision", dtype="float64", shape=places.shape.as_list()[:-1],
            attrs={"stops_gradient": True},
        )  # fmt: skip
        factors = broadcast_weights(1.0 if weights is None else weights, precisions)
        # As in TensorFlow, where an op "Max" comes before it: names are told apart without their case.
        best = metric_variable([], "float64", "max_1")
        total = metric_variable([], "float64", "total")
        updated = [
            total.assign_add(reduce_sum(math_ops.multiply(precisions, factors))),
            best.assign_add(reduce_sum(factors)),
        ]
        into = Collections(metrics_collections, updates_collections)
        return into.add(ratio([total, best], "mean"), ratio(updated, scope))


# Their older names.
sparse_precision_at_k = precision_at_k
sparse_average_precision_at_k = average_precision_at_k


def _labels(labels: Any, predictions: Node) -> Node:
    """Give labels with a last dimension for several of them, `_NONE` where a sparse one has none."""
    if isinstance(labels, (SparseTensor, SparseTensorValue)):
        labels = sparse_tensor_to_dense(math_ops.cast(labels, "int64"), _NONE)  # type: ignore[arg-type]
    wanted = math_ops.cast(labels, "int64")
    rank, own = predictions.shape.ndims, wanted.shape.ndims
    if rank is None or own is None or rank == own:
        return wanted
    if rank == own + 1:
        return expand_dims(wanted, -1)
    raise ValueError(
        f"Unexpected labels shape {wanted.shape} for predictions shape {predictions.shape}. Predictions rank should "
        "be the same rank as labels rank or labels rank plus one ."
    )


@computes("CountAtK")
def _count_at_k(places: Any, labels: Any, *, counts: Any, class_id: Any) -> Any:
    """Count in each row, as sets: a class counts once."""
    predicted = np.sort(places.reshape(-1, np.shape(places)[-1]), axis=1)
    wanted = np.sort(labels.reshape(-1, np.shape(labels)[-1]), axis=1)
    counted, others = (wanted, predicted) if counts == "false_negative" else (predicted, wanted)
    chosen = _among(counted, others) == (counts == "true_positive")
    return np.sum(_firsts(counted, class_id) & chosen, axis=1).reshape(places.shape[:-1]).astype(np.float64)


def _firsts(rows: Any, class_id: int | None) -> Any:
    """Say which elements of sorted rows count: each class once, or only `class_id` where it is not None."""
    first = np.ones(rows.shape, bool)
    first[:, 1:] = rows[:, 1:] != rows[:, :-1]
    first &= rows != _NONE
    return first if class_id is None else first & (rows == class_id)


def _among(rows: Any, others: Any) -> Any:
    return (rows[:, :, None] == others[:, None, :]).any(axis=2)


@computes("AveragePrecision")
def _average_precision(places: Any, labels: Any, predictions: Any) -> Any:
    """Give the average precision of each row; labels that are no class count for nothing."""
    shape, k = np.shape(places)[:-1], np.shape(places)[-1]
    predicted, wanted = places.reshape(-1, k), labels.reshape(-1, np.shape(labels)[-1])
    there = (wanted >= 0) & (wanted < predictions.shape[-1])
    relevant = _among(predicted, np.where(there, wanted, -1)).astype(np.float64)
    precision = np.cumsum(relevant, axis=1) / np.arange(1, k + 1)
    return (np.sum(precision * relevant, axis=1) / np.minimum(np.sum(there, axis=1), k)).reshape(shape)
