"""Metrics that count hits and misses of a yes or no: `gs.metrics.precision`, `recall` and the four counts.

Layer: tf1. Source: TensorFlow 1.15 `python/ops/metrics_impl.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from globalstep.tf1.graph.callables import named
from globalstep.tf1.graph.graph import Node
from globalstep.tf1.metrics.totals import Collections, aligned, broadcast_weights, ratio, streamed
from globalstep.tf1.ops import math_ops
from globalstep.tf1.ops.reduction_ops import reduce_sum
from globalstep.tf1.variables.variable_scope import variable_scope

_Metric = Callable[..., tuple[Node, Node]]


def _metric(
    name: str, doc: str, make: Callable[[Sequence[Any], Collections, str | None], tuple[Node, Node]]
) -> _Metric:
    """Make the public function of a metric that `make` makes of labels, predictions and weights."""

    @named(name, doc)
    def function(
        labels: Any,
        predictions: Any,
        weights: Any = None,
        metrics_collections: Any = None,
        updates_collections: Any = None,
        name: str | None = None,
    ) -> tuple[Node, Node]:
        return make((labels, predictions, weights), Collections(metrics_collections, updates_collections), name)

    return function


def _counted(what: str, inputs: Sequence[Any], into: Collections, name: str | None) -> tuple[Node, Node]:
    """Make the metric of one of the four counts, which is named by `what`, of labels, predictions and weights."""
    labels, predictions, weights = inputs
    with variable_scope(name, what):
        predicted, so, factors = aligned(math_ops.cast(predictions, "bool"), math_ops.cast(labels, "bool"), weights)
        predicted = predicted if what.endswith("positives") else math_ops.logical_not(predicted)
        wanted_so = what in ("true_positives", "false_negatives")
        hits = math_ops.logical_and(predicted, so if wanted_so else math_ops.logical_not(so))
        amounts = math_ops.cast(hits, "float32")
        if factors is not None:
            amounts = math_ops.multiply(amounts, broadcast_weights(factors, amounts))
        return streamed({"count": reduce_sum(amounts)}, lambda totals, name: totals[0], into)


def _share(default: str, others: str, batch: Sequence[Any], into: Collections, name: str | None) -> tuple[Node, Node]:
    """Make the metric true positives / (true positives + others)."""
    with variable_scope(name, default):
        hits = _counted("true_positives", batch, Collections(), None)
        misses = _counted(others, batch, Collections(), None)
        ratios = [
            ratio([hit, math_ops.add(hit, miss)], node_name)
            for hit, miss, node_name in zip(hits, misses, ("value", "update_op"), strict=True)
        ]
        return into.add(ratios[0], ratios[1])


def _count(name: str) -> _Metric:
    doc = f"Make the metric of the number of {name.replace('_', ' ')}; the arguments are those of `true_positives`."
    return _metric(name, doc, functools.partial(_counted, name))


true_positives = _metric(
    "true_positives",
    """Make the metric of how many are predicted and are so.

    Args:
        labels: Node or array of any shape, cast to bool.
        predictions: The same, of the same shape.
        weights: How much each counts, as for `mean`; by default 1.
        metrics_collections: Collections that the value is added to.
        updates_collections: Collections that the update is added to.
        name: Scope of the Variable "count"; default "true_positives", made unique.

    Returns:
        The value and the update, as of `mean`.

    Raises:
        ValueError: If the shapes do not fit.
    """,
    functools.partial(_counted, "true_positives"),
)
false_positives = _count("false_positives")
true_negatives = _count("true_negatives")
false_negatives = _count("false_negatives")
precision = _metric(
    "precision",
    """Make the metric of precision, the share of predicted positives that are true; 0 where none is predicted.

    The arguments are those of `true_positives`.
    """,
    functools.partial(_share, "precision", "false_positives"),
)
recall = _metric(
    "recall",
    """Make the metric of recall, the share of actual positives that are predicted; 0 where there is none.

    The arguments are those of `true_positives`.
    """,
    functools.partial(_share, "recall", "false_negatives"),
)
