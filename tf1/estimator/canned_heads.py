"""The heads that TensorFlow's canned Estimators make, by the names that programs import from its own modules.

Their loss is the sum over a batch. Source: TensorFlow 1.15 `tensorflow_estimator/python/estimator/canned/head.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from globalstep.tf1.estimator.heads import BinaryClassHead, Head, MultiClassHead, RegressionHead
from globalstep.tf1.losses import Reduction

__all__ = [
    "_binary_logistic_head_with_sigmoid_cross_entropy_loss",
    "_binary_logistic_or_multi_class_head",
    "_multi_class_head_with_softmax_cross_entropy_loss",
    "_regression_head",
    "_regression_head_with_mean_squared_error_loss",
]


def _binary_logistic_head_with_sigmoid_cross_entropy_loss(
    weight_column: Any = None,
    thresholds: Iterable[float] | None = None,
    label_vocabulary: Sequence[str] | None = None,
    loss_reduction: str = Reduction.SUM,
    loss_fn: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Head:
    return BinaryClassHead(weight_column, thresholds, label_vocabulary, loss_reduction, loss_fn, name)


def _multi_class_head_with_softmax_cross_entropy_loss(
    n_classes: int,
    weight_column: Any = None,
    label_vocabulary: Sequence[str] | None = None,
    loss_reduction: str = Reduction.SUM,
    loss_fn: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Head:
    return MultiClassHead(n_classes, weight_column, label_vocabulary, loss_reduction, loss_fn, name)


def _regression_head(
    weight_column: Any = None,
    label_dimension: int = 1,
    loss_reduction: str = Reduction.SUM,
    loss_fn: Callable[..., Any] | None = None,
    inverse_link_fn: Callable[[Any], Any] | None = None,
    name: str | None = None,
) -> Head:
    return RegressionHead(label_dimension, weight_column, loss_reduction, loss_fn, inverse_link_fn, name)


_regression_head_with_mean_squared_error_loss = _regression_head


def _binary_logistic_or_multi_class_head(
    n_classes: int, weight_column: Any, label_vocabulary: Sequence[str] | None, loss_reduction: str
) -> Head:
    if n_classes == 2:
        return BinaryClassHead(weight_column, None, label_vocabulary, loss_reduction)
    return MultiClassHead(n_classes, weight_column, label_vocabulary, loss_reduction)
