"""Metrics of probabilities at many thresholds: `gs.metrics.auc` and the counts and shares at thresholds.

Layer: tf1. Source: TensorFlow 1.15 `python/ops/metrics_impl.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.tf1.graph.callables import named
from globalstep.tf1.graph.graph import Node, tuple_item
from globalstep.tf1.graph.kernels import computes, kernel_of
from globalstep.tf1.metrics.totals import Collections, aligned, broadcast_weights, streamed
from globalstep.tf1.ops import math_ops
from globalstep.tf1.variables.variable_scope import variable_scope

_log = logging.getLogger("globalstep")
#: How far the outer thresholds lie outside of [0, 1], and what divisors are raised by.
_TINY = 1e-7
_METHODS = ("trapezoidal", "careful_interpolation", "minoring", "majoring")
#: The order in which TensorFlow makes the totals.
_ALL = ("true_positives", "false_negatives", "true_negatives", "false_positives")


def auc(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    num_thresholds: int = 200,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    curve: str = "ROC",
    name: str | None = None,
    summation_method: str = "trapezoidal",
    thresholds: Sequence[float] | None = None,
) -> tuple[Node, Node]:
    """Make the metric of the area under a curve, with TensorFlow's approximation by thresholds.

    Args:
        labels: Node or array of any shape, cast to bool.
        predictions: Probabilities, 0 to 1, of the same shape.
        weights: How much each counts, as for `gs.metrics.mean`; by default 1.
        num_thresholds: How many points the curve has, evenly over [0, 1].
        metrics_collections: Collections that the value is added to.
        updates_collections: Collections that the update is added to.
        curve: "ROC", of true positives over false positives, or "PR", of precision over recall.
        name: Scope of the four Variables; default "auc", made unique.
        summation_method: "trapezoidal", "careful_interpolation" (for PR, after Davis and Goadrich 2006), "minoring"
            or "majoring" (the lower or the higher end of each stretch).
        thresholds: Inner thresholds, in place of evenly placed ones.

    Returns:
        The value and the update, as of `gs.metrics.mean`.

    Raises:
        ValueError: For another curve or method, or shapes that do not fit.

    >>> import globalstep as gs
    >>> value, update = gs.metrics.auc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8])
    >>> with gs.Session() as sess:
    ...     sess.run(gs.local_variables_initializer())
    ...     print(f"{sess.run(update):.4f}")
    0.7500
    """
    if curve not in ("ROC", "PR"):
        raise ValueError(f"curve must be either ROC or PR, {curve} unknown")
    if summation_method not in _METHODS:
        raise ValueError(
            f"Invalid summation_method: {summation_method} summation_method should be 'trapezoidal', "
            "'careful_interpolation', 'minoring', or 'majoring'."
        )
    if curve == "PR" and summation_method == "trapezoidal":
        _log.warning(
            'Trapezoidal rule is known to produce incorrect PR-AUCs; please switch to "careful_interpolation" instead.'
        )
    inner = _evenly(num_thresholds) if thresholds is None else sorted(thresholds)

    with variable_scope(name, "auc"):
        batch = _counts(labels, predictions, [-_TINY, *inner, 1 + _TINY], weights, _ALL)
        value = _scalar("AreaUnderCurve", curve=curve, method=summation_method)
        return streamed(batch, value, Collections(metrics_collections, updates_collections))


@computes("AreaUnderCurve")
def _area(tp: Any, fn: Any, tn: Any, fp: Any, *, curve: Any, method: Any) -> Any:
    if curve == "PR" and method == "careful_interpolation":
        return _interpolated_area(tp, fp, fn)
    tiny = np.float32(1e-6)
    hits = (tp + tiny) / (tp + fn + tiny)
    x, y = (fp / (fp + tn + tiny), hits) if curve == "ROC" else (hits, (tp + tiny) / (tp + fp + tiny))
    return np.sum((x[:-1] - x[1:]) * _heights(y, method), dtype=np.float32)


def sensitivity_at_specificity(
    labels: Any,
    predictions: Any,
    specificity: float,
    weights: Any = None,
    num_thresholds: int = 200,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Node, Node]:
    """Make the metric of recall at the threshold whose true negative rate is nearest to `specificity`.

    `labels`, `predictions` and the other arguments are those of `auc`.

    Raises:
        ValueError: If `specificity` is not in [0, 1].
    """
    _require_share("specificity", specificity)
    with variable_scope(name, "sensitivity_at_specificity"):
        at = [-_TINY, *_evenly(num_thresholds), 1 + _TINY]
        batch = _counts(labels, predictions, at, weights, _ALL)
        value = _scalar("SensitivityAtSpecificity", share=specificity)
        return streamed(batch, value, Collections(metrics_collections, updates_collections))


@computes("SensitivityAtSpecificity")
def _recall(tp: Any, fn: Any, tn: Any, fp: Any, *, share: float) -> Any:
    tiny = np.float32(_TINY)
    place = np.argmin(np.abs(tn / (tn + fp + tiny) - np.float32(share)))
    return tp[place] / (tp[place] + fn[place] + tiny)


def specificity_at_sensitivity(
    labels: Any,
    predictions: Any,
    sensitivity: float,
    weights: Any = None,
    num_thresholds: int = 200,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Node, Node]:
    """Make the metric of the true negative rate at the last threshold whose recall is nearest to `sensitivity`.

    `labels`, `predictions` and the other arguments are those of `auc`.

    Raises:
        ValueError: If `sensitivity` is not in [0, 1].
    """
    _require_share("sensitivity", sensitivity)
    with variable_scope(name, "specificity_at_sensitivity"):
        at = [-_TINY, *_evenly(num_thresholds), 1 - _TINY]
        batch = _counts(labels, predictions, at, weights, _ALL)
        value = _scalar("SpecificityAtSensitivity", share=sensitivity)
        return streamed(batch, value, Collections(metrics_collections, updates_collections))


@computes("SpecificityAtSensitivity")
def _true_negative_rate(tp: Any, fn: Any, tn: Any, fp: Any, *, share: float) -> Any:
    tiny = np.float32(_TINY)
    away = np.abs(tp / (tp + fn + tiny) - np.float32(share))
    place = np.flatnonzero(away == np.min(away))[-1]
    return tn[place] / (tn[place] + fp[place] + tiny)


def _at_thresholds(
    what: str, scope: str, first_line: str, counts: Sequence[str], value: Callable[[Sequence[Node], str | None], Node]
) -> Callable[..., tuple[Node, Node]]:
    """Make the public function of a metric at thresholds: what `value` makes of some counts."""
    doc = f"""{first_line}

    `thresholds`: numbers, 0 to 1. `labels`, `predictions` and the other arguments are those of `auc`.
    """

    @named(f"{what}_at_thresholds", doc)
    def function(
        labels: Any,
        predictions: Any,
        thresholds: Sequence[float],
        weights: Any = None,
        metrics_collections: Any = None,
        updates_collections: Any = None,
        name: str | None = None,
    ) -> tuple[Node, Node]:
        with variable_scope(name, scope):
            batch = _counts(labels, predictions, thresholds, weights, counts)
            return streamed(batch, value, Collections(metrics_collections, updates_collections))

    return function


def _evenly(count: int) -> list[float]:
    return [(i + 1) * 1.0 / (count - 1) for i in range(count - 2)]


def _require_share(what: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"`{what}` must be in the range [0, 1].")


def _counts(
    labels: Any, predictions: Any, thresholds: Sequence[float], weights: Any, names: Sequence[str]
) -> dict[str, Node]:
    """Give what a batch adds to each of the named counts, [thresholds]."""
    guess, so, factors = aligned(math_ops.cast(predictions, "float32"), math_ops.cast(labels, "bool"), weights)
    factors = broadcast_weights(1.0 if factors is None else factors, guess)
    limits = np.asarray(thresholds, np.float32)
    attrs = {"tuple": True, "stops_gradient": True, "limits": limits, "counts": list(names)}
    parts = Node("CountAtThresholds", (guess, so, factors), name="counts", attrs=attrs)
    return {
        name: tuple_item(parts, i, name=f"batch_{name}", dtype="float32", shape=[len(limits)])
        for i, name in enumerate(names)
    }


@kernel_of("CountAtThresholds")
def _count_at_thresholds(node: Node) -> Any:
    limits, names, guess = node.attrs["limits"], node.attrs["counts"], node.inputs[0].name

    def count(probabilities: Any, truth: Any, importance: Any) -> tuple[Any, ...]:
        if np.size(probabilities) and not (np.min(probabilities) >= 0 and np.max(probabilities) <= 1):
            low, high = np.min(probabilities), np.max(probabilities)
            raise InvalidArgumentError(
                f"assertion failed: [predictions must be in [0, 1]] {guess} has values from {low} to {high}: "
                "give probabilities, for example gs.sigmoid(logits)."
            )
        positive = probabilities.reshape(-1)[None, :] > limits[:, None]
        weight, true = importance.reshape(-1), truth.reshape(-1)
        chosen = {"true": weight * true, "false": weight * ~true}
        counts = []
        for name in names:
            # A false negative is so, but not predicted.
            side = "true" if name in ("true_positives", "false_negatives") else "false"
            rows = positive if name.endswith("positives") else ~positive
            counts.append(np.sum(rows * chosen[side], axis=1, dtype=np.float32))
        return (*counts,)

    return count


def _share(what: str) -> Callable[[Sequence[Node], str | None], Node]:
    def compute(totals: Sequence[Node], name: str | None) -> Node:
        hits, misses = totals
        return math_ops.divide(hits, math_ops.add(math_ops.add(hits, _TINY), misses), name=f"{what}_{name}")

    return compute


def _scalar(op_type: str, **attrs: Any) -> Callable[[Sequence[Node], str | None], Node]:
    """Give what makes the node of a number made of the four counts."""
    attrs["stops_gradient"] = True
    return lambda totals, name: Node(op_type, totals, name=name, dtype="float32", shape=[], attrs=dict(attrs))


def _count_of(kind: str, what: str) -> Callable[..., tuple[Node, Node]]:
    first_line = f"Make the metric of how many are {what} each threshold, [thresholds]."
    return _at_thresholds(kind, kind, first_line, (kind,), lambda totals, name: totals[0])


true_positives_at_thresholds = _count_of("true_positives", "so and predicted with more than")
false_positives_at_thresholds = _count_of("false_positives", "not so but predicted with more than")
true_negatives_at_thresholds = _count_of("true_negatives", "not so and predicted with no more than")
false_negatives_at_thresholds = _count_of("false_negatives", "so but predicted with no more than")
precision_at_thresholds = _at_thresholds(
    "precision",
    "precision_at_thresholds",
    "Make the metric of precision at each threshold.",
    ("true_positives", "false_positives"),
    _share("precision"),
)
recall_at_thresholds = _at_thresholds(
    "recall",
    "recall_at_thresholds",
    "Make the metric of recall at each threshold.",
    ("true_positives", "false_negatives"),
    _share("recall"),
)


def _heights(y: Any, method: str) -> Any:
    if method == "minoring":
        return np.minimum(y[:-1], y[1:])
    if method == "majoring":
        return np.maximum(y[:-1], y[1:])
    return (y[:-1] + y[1:]) / np.float32(2)


def _interpolated_area(tp: Any, fp: Any, fn: Any) -> Any:
    """Give the area under precision over recall with the true curve between the points (Davis and Goadrich 2006)."""
    predicted, hits = tp + fp, tp[:-1] - tp[1:]
    slope = _over(hits, predicted[:-1] - predicted[1:])
    intercept = tp[1:] - slope * predicted[1:]
    both = (predicted[:-1] > 0) & (predicted[1:] > 0)
    grown = np.where(both, _over(predicted[:-1], predicted[1:]), np.float32(1))
    return np.sum(_over(slope * (hits + intercept * np.log(grown)), tp[1:] + fn[1:]), dtype=np.float32)


def _over(x: Any, y: Any) -> Any:
    """Divide; 0 where the divisor is not positive."""
    return np.where(y > 0, x / np.where(y > 0, y, 1), np.zeros((), x.dtype))
