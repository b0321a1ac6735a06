"""Heads: what follows a model's logits; the loss, the predictions, the metrics and the exports of a task.

Layer: tf1. Source of keys, shapes and texts: TensorFlow 1.15 `tf.contrib.estimator` heads and `canned/head.py`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from globalstep import dtypes
from globalstep.tf1.estimator.model_fn import (
    ClassificationOutput,
    EstimatorSpec,
    ExportOutput,
    ModeKeys,
    PredictOutput,
    RegressionOutput,
)
from globalstep.tf1.feature_columns.dense import numeric_column
from globalstep.tf1.graph.callables import fn_args
from globalstep.tf1.graph.graph import control_dependencies, name_scope
from globalstep.tf1.graph.sparse_tensor import SparseTensor
from globalstep.tf1.losses import Reduction, compute_weighted_loss, mean_squared_error
from globalstep.tf1.metrics.counts import precision, recall
from globalstep.tf1.metrics.means import accuracy, mean
from globalstep.tf1.metrics.thresholds import auc
from globalstep.tf1.ops import (
    array_ops,
    constant_ops,
    control_flow_ops,
    cross_entropy_ops,
    joining_ops,
    math_ops,
    nn_ops,
    reduction_ops,
    sparse_ops,
    static_checks,
    summary_ops,
)
from globalstep.tf1.text.string_numbers import as_string
from globalstep.tf1.text.vocabularies import index_table_from_tensor, index_to_string_table_from_tensor
from globalstep.tf1.variables.training_util import get_global_step

_MEAN = "weighted_sum_over_batch_size"


class LossSpec(NamedTuple):
    """The loss of a batch.

    Attributes:
        training_loss: What is minimized, a scalar.
        unreduced_loss: The loss of each example.
        weights: Of the examples; 1.0 without.
        processed_labels: The labels as numbers.
    """

    training_loss: Any
    unreduced_loss: Any
    weights: Any
    processed_labels: Any


class Head(abc.ABC):
    """A task.

    Args:
        name: Is added to the names of metrics and summaries; "" for none.
        weight_column: Name, or numeric column, of the examples' weights.
        loss_reduction: How a batch's losses become one; see `gs.losses.Reduction`.
        loss_fn: Function of `labels`, `logits` and perhaps `features` that gives the losses.
    """

    def __init__(
        self, name: str | None = None, weight_column: Any = None, loss_reduction: str = _MEAN, loss_fn: Any = None
    ) -> None:
        if loss_reduction not in Reduction.all() or loss_reduction == Reduction.NONE:
            raise ValueError(f"Invalid loss_reduction: {loss_reduction}")
        if loss_fn is not None:
            names = fn_args(loss_fn)
            for needed in ("labels", "logits"):
                if needed not in names:
                    raise ValueError(f"loss_fn must contain argument: {needed}. Given arguments: {names}")
            others = sorted(set(names) - {"labels", "logits", "features"})
            if others:
                raise ValueError(f"loss_fn has unexpected args: {others}")
        #: How many losses an example has.
        self._losses_per_example = 1
        self._name = name
        self._weight_column = weight_column
        self._reduction = loss_reduction
        self._loss_fn = loss_fn

    @property
    def name(self) -> str | None:
        """See Head."""
        return self._name

    @property
    @abc.abstractmethod
    def logits_dimension(self) -> int:
        """The number of logits of an example."""

    def create_loss(self, features: Any, mode: str, logits: Any, labels: Any) -> LossSpec:
        """Return the loss of a batch.

        Args:
            features: Of the batch.
            mode: One of ModeKeys.
            logits: float [batch, logits_dimension].
            labels: Of the batch.
        """
        labels = self.processed(labels, logits)
        if self._loss_fn is None:
            losses = self.losses_of(labels, logits)
        else:
            losses = self._own_losses(labels, logits, features)
        weights = _weights(features, self._weight_column, logits, losses)
        training = compute_weighted_loss(losses, weights=weights, reduction=self._reduction)
        return LossSpec(training, losses, weights, labels)

    def processed(self, labels: Any, logits: Any) -> Any:
        """Return the labels of a batch as numbers, checked."""
        raise NotImplementedError  # abstract

    def losses_of(self, labels: Any, logits: Any) -> Any:
        """Return the losses of a batch's examples, where the head has no `loss_fn`."""
        raise NotImplementedError  # abstract

    def predictions_of(self, logits: Any) -> tuple[dict[str, Any], dict[str, ExportOutput]]:
        """Return the predictions of a batch, and the outputs of an export besides them, the default first."""
        raise NotImplementedError  # abstract

    def metrics_of(self, labels: Any, predictions: Mapping[str, Any], weights: Any) -> dict[str, Any]:
        """Return the metrics of a batch besides the loss, by key without the head's name."""
        raise NotImplementedError  # abstract

    def create_estimator_spec(
        self,
        features: Any,
        mode: str,
        logits: Any,
        labels: Any = None,
        optimizer: Any = None,
        train_op_fn: Callable[[Any], Any] | None = None,
        regularization_losses: Sequence[Any] | None = None,
    ) -> EstimatorSpec:
        """Return what a model function gives for a mode.

        Args:
            features: Of the batch.
            mode: One of ModeKeys.
            logits: float [batch, logits_dimension].
            labels: Of the batch; None to predict.
            optimizer: Minimizes the loss.
            train_op_fn: Function of the loss that gives the train op, where there is no optimizer.
            regularization_losses: Scalars that are added to the loss.

        Raises:
            ValueError: For both, or none, of the two, or shapes that do not fit.
        """
        with name_scope(self._name or "head"):
            logits = _checked_logits(logits, self.logits_dimension)
            predictions, outputs = self.predictions_of(logits)
            if mode == ModeKeys.PREDICT:
                default = next(iter(outputs.values()))
                served = {"serving_default": default, **outputs, "predict": PredictOutput(predictions)}
                return EstimatorSpec(mode, predictions=predictions, export_outputs=served)
            loss = self.create_loss(features, mode, logits, labels)
            regularization = math_ops.add_n(list(regularization_losses)) if regularization_losses else None
            total = loss.training_loss if regularization is None else loss.training_loss + regularization
            if mode == ModeKeys.EVAL:
                weights = None if isinstance(loss.weights, float) else loss.weights
                metrics = {"average_loss": mean(loss.unreduced_loss, weights)}
                metrics |= self.metrics_of(loss.processed_labels, predictions, weights)
                if regularization is not None:
                    metrics["regularization_loss"] = mean(regularization)
                named = {self._key(key): metric for key, metric in metrics.items()}
                return EstimatorSpec(mode, predictions=predictions, loss=total, eval_metric_ops=named)
            train_op = _train_op(total, optimizer, train_op_fn)
        summary_ops.scalar(self._key("loss"), total)
        if self._reduction == Reduction.SUM:
            count = reduction_ops.reduce_sum(loss.weights * constant_ops.ones_like(loss.unreduced_loss))
            summary_ops.scalar(self._key("average_loss"), loss.training_loss / count)
        if regularization is not None:
            summary_ops.scalar(self._key("regularization_loss"), regularization)
        return EstimatorSpec(mode, predictions=predictions, loss=total, train_op=train_op)

    def _key(self, key: str) -> str:
        return f"{key}/{self._name}" if self._name else key

    def _own_losses(self, labels: Any, logits: Any, features: Any) -> Any:
        """Return the losses that `loss_fn` gives; a run that computes them refuses another shape."""
        extra = {"features": features} if "features" in fn_args(self._loss_fn) else {}
        losses = constant_ops.convert_to_tensor(self._loss_fn(labels=labels, logits=logits, **extra))
        shapes = [
            f"loss_fn must return Tensor of shape [D0, D1, ... DN, {self._losses_per_example}]. ",
            "logits_shape: ", array_ops.shape(logits), "loss_shape: ", array_ops.shape(losses),
        ]  # fmt: skip
        wanted = joining_ops.concat([array_ops.shape(logits)[:-1], [self._losses_per_example]], 0)
        return _after(losses, control_flow_ops.assert_equal(array_ops.shape(losses), wanted, data=shapes))


def _after(value: Any, *checks: Any) -> Any:
    """Return a value that is there once some checks are made."""
    with control_dependencies(checks):
        return array_ops.identity(value)


def _as_deep(value: Any, logits: Any) -> Any:
    """Return labels or weights with a last dimension of 1 where they have one less than the logits."""
    is_flat = value.shape.ndims is not None and value.shape.ndims == (logits.shape.ndims or 0) - 1
    return array_ops.expand_dims(value, -1) if is_flat else value


def _train_op(loss: Any, optimizer: Any, train_op_fn: Any) -> Any:
    if (optimizer is None) == (train_op_fn is None):
        raise ValueError(f"train_op_fn and optimizer cannot both be {'None' if optimizer is None else 'set'}.")
    if optimizer is not None:
        return optimizer.minimize(loss, global_step=get_global_step())
    return train_op_fn(loss)


def _checked_logits(logits: Any, dimension: int) -> Any:
    logits = math_ops.to_float(constant_ops.convert_to_tensor(logits))
    sizes, text = logits.shape, "logits shape must be [D0, D1, ... DN, logits_dimension], got "
    if sizes.ndims is not None and (sizes.ndims < 2 or sizes.as_list()[-1] not in (None, dimension)):
        raise ValueError(f"{text}{sizes}.")
    if sizes.ndims is not None and sizes.as_list()[-1] is not None:
        return logits
    shape = _after(array_ops.shape(logits), static_checks.assert_rank_at_least(logits, 2, message=text))
    return _after(logits, control_flow_ops.assert_equal(shape[-1], dimension, message=text))


def _checked_labels(labels: Any, logits: Any, dimension: int) -> Any:
    """Return labels [batch, dimension]; a run that computes them refuses another shape."""
    if labels is None:
        raise ValueError(
            "You must provide a labels Tensor. Given: None. Suggested troubleshooting steps: Check that your data "
            "contain your label feature. Check that your input_fn properly parses and returns labels."
        )
    if isinstance(labels, SparseTensor):
        raise ValueError(
            f"SparseTensor labels are not supported. labels must be a Tensor of shape [D0, D1, ..., DN, {dimension}], "
            f"e.g. [batch_size, {dimension}]. Make them dense in your input_fn by tf.sparse_tensor_to_dense()."
        )
    logits = constant_ops.convert_to_tensor(logits)
    labels = _as_deep(constant_ops.convert_to_tensor(labels), logits)
    last = None if labels.shape.ndims is None else labels.shape.as_list()[-1:]
    if last is not None and last != [None] and last != [dimension]:
        raise ValueError(
            f"Mismatched label shape. Expected labels dimension={dimension}.  Received "
            f"{last[0] if last else 'a scalar'}. Suggested Fix: check your n_classes "
            "argument to the estimator and/or the shape of your label."
        )
    wanted = joining_ops.concat([array_ops.shape(logits)[:-1], [dimension]], 0)
    shapes = ["expected_labels_shape: ", wanted, "labels_shape: ", array_ops.shape(labels)]
    same_rank = control_flow_ops.assert_equal(array_ops.rank(labels), array_ops.rank(logits), data=shapes)
    have = _after(array_ops.shape(labels), same_rank)
    return _after(labels, control_flow_ops.assert_equal(have, wanted, data=shapes))


def _weights(features: Any, column: Any, logits: Any, losses: Any) -> Any:
    """Return the weights of a batch's examples, [batch, 1]; 1.0 without a column."""
    if column is None:
        return 1.0
    logits = constant_ops.convert_to_tensor(logits)
    if isinstance(column, str):
        column = numeric_column(column)
    key = getattr(column, "key", None)
    if key is None:
        raise TypeError(f"Weight column must be either a string or _NumericColumn. Given type: {type(column)}.")
    if key not in features:
        raise ValueError(f"Feature {key} is not in features dictionary.")
    weights = raw = math_ops.to_float(constant_ops.convert_to_tensor(features[key]))
    if getattr(column, "normalizer_fn", None):
        weights = column.normalizer_fn(weights)
    weights = _as_deep(weights, logits)
    shapes = ["logits_shape: ", array_ops.shape(logits), "weights_shape: ", array_ops.shape(raw)]
    same_rank = control_flow_ops.assert_equal(array_ops.rank(weights), array_ops.rank(logits), data=shapes)
    shape = _after(array_ops.shape(weights), same_rank)
    fits = math_ops.logical_or(math_ops.equal(shape[-1], 1), math_ops.equal(shape[-1], array_ops.shape(losses)[-1]))
    return _after(
        weights,
        control_flow_ops.assert_equal(shape[:-1], array_ops.shape(logits)[:-1], data=shapes),
        control_flow_ops.assert_equal(fits, True, data=shapes),
    )


def _in_range(labels: Any, classes: int, message: str | None = None) -> Any:
    """Return labels; a run that computes them refuses labels outside the classes."""
    most = math_ops.cast(classes - 1, labels.dtype)
    return _after(
        labels,
        control_flow_ops.assert_less_equal(labels, most, message=message or "Labels must <= n_classes - 1"),
        control_flow_ops.assert_non_negative(labels, message=message or "Labels must >= 0"),
    )


def _checked_thresholds(thresholds: Iterable[float] | None) -> tuple[float, ...]:
    values = tuple(thresholds or ())
    for threshold in values:
        if not 0.0 < threshold < 1.0:
            raise ValueError(f"thresholds not in (0, 1): {values}.")
    return values


def _at_thresholds(thresholds: Sequence[float], labels: Any, scores: Any, weights: Any) -> dict[str, Any]:
    """Return the metrics of the decisions that thresholds make."""
    metrics: dict[str, Any] = {}
    for threshold in thresholds:
        above = math_ops.to_float(math_ops.greater_equal(scores, threshold))
        for name, metric in (("accuracy", accuracy), ("precision", precision), ("recall", recall)):
            key = f"{name}/positive_threshold_{threshold:g}"
            metrics[key] = metric(labels, above, weights)
    return metrics


class _ClassHead(Head):
    """A head of classes, whose names a vocabulary has where labels are strings."""

    def __init__(self, n_classes: int, vocabulary: Any, *options: Any) -> None:
        super().__init__(*options)
        if vocabulary is not None and not isinstance(vocabulary, (list, tuple)):
            raise ValueError(f"label_vocabulary should be a list or tuple. Given type: {type(vocabulary)}")
        self._classes, self._vocabulary = n_classes, vocabulary

    @property
    def logits_dimension(self) -> int:
        return self._classes

    def _ids_of(self, labels: Any) -> Any:
        if self._vocabulary is None:
            return labels
        return index_table_from_tensor(constant_ops.constant(list(self._vocabulary))).lookup(labels)

    def _texts_of(self, ids: Any) -> Any:
        if self._vocabulary is None:
            return as_string(ids)
        return index_to_string_table_from_tensor(constant_ops.constant(list(self._vocabulary))).lookup(ids)

    def _classification(self, probabilities: Any) -> ClassificationOutput:
        """Return the scores of all classes, by name, for each example."""
        names = [str(number) for number in range(self._classes)] if self._vocabulary is None else list(self._vocabulary)
        batch = array_ops.shape(probabilities)[0]
        tiled = joining_ops.tile(array_ops.expand_dims(constant_ops.constant(names), 0), joining_ops.stack([batch, 1]))
        return ClassificationOutput(scores=probabilities, classes=tiled)


class BinaryClassHead(_ClassHead):
    """A classification into two classes, by one logit. Arguments that are not named here are Head's.

    Args:
        thresholds: Further thresholds, in (0, 1), for accuracy, precision and recall.
        label_vocabulary: The classes, where labels are strings.
    """

    def __init__(
        self,
        weight_column: Any = None,
        thresholds: Iterable[float] | None = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = _MEAN,
        loss_fn: Callable[..., Any] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(2, label_vocabulary, name, weight_column, loss_reduction, loss_fn)
        self._thresholds = _checked_thresholds(thresholds)

    @property
    def logits_dimension(self) -> int:
        """See Head."""
        return 1

    def processed(self, labels: Any, logits: Any) -> Any:
        """See Head."""
        labels = self._ids_of(_checked_labels(labels, logits, 1))
        return _in_range(math_ops.to_float(labels), 2)

    def losses_of(self, labels: Any, logits: Any) -> Any:
        """See Head."""
        return cross_entropy_ops.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)

    def predictions_of(self, logits: Any) -> tuple[dict[str, Any], dict[str, ExportOutput]]:
        """See Head."""
        logistic = math_ops.sigmoid(logits, name="logistic")
        both = joining_ops.concat([constant_ops.zeros_like(logits), logits], -1, name="two_class_logits")
        probabilities = nn_ops.softmax(both, name="probabilities")
        class_ids = array_ops.expand_dims(reduction_ops.argmax(both, -1, name="class_ids"), -1)
        predictions = {
            "logits": logits,
            "logistic": logistic,
            "probabilities": probabilities,
            "class_ids": class_ids,
            "classes": self._texts_of(class_ids),
        }
        classification = self._classification(probabilities)
        return predictions, {"classification": classification, "regression": RegressionOutput(logistic)}

    def metrics_of(self, labels: Any, predictions: Mapping[str, Any], weights: Any) -> dict[str, Any]:
        """See Head."""
        logistic, class_ids = predictions["logistic"], predictions["class_ids"]
        label_mean = mean(labels, weights)
        return {
            "accuracy": accuracy(labels, class_ids, weights),
            "precision": precision(labels, class_ids, weights),
            "recall": recall(labels, class_ids, weights),
            "prediction/mean": mean(logistic, weights),
            "label/mean": label_mean,
            "accuracy_baseline": tuple(math_ops.maximum(value, 1 - value) for value in label_mean),
            **_areas(labels, logistic, weights),
            **_at_thresholds(self._thresholds, labels, logistic, weights),
        }


class MultiClassHead(_ClassHead):
    """A classification into more than two classes. Arguments that are not named here are Head's.

    Args:
        n_classes: How many.
        label_vocabulary: The classes, where labels are strings.
    """

    def __init__(
        self,
        n_classes: int,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = _MEAN,
        loss_fn: Callable[..., Any] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(n_classes, label_vocabulary, name, weight_column, loss_reduction, loss_fn)
        if n_classes is None or n_classes <= 2:
            raise ValueError(f"n_classes must be > 2: {n_classes}.")

    def processed(self, labels: Any, logits: Any) -> Any:
        """See Head."""
        labels = _checked_labels(labels, logits, 1)
        if self._vocabulary is None and not labels.dtype.is_integer:
            raise ValueError(f"Labels dtype should be integer. Instead got {labels.dtype}.")
        return _in_range(self._ids_of(labels), self._classes)

    def losses_of(self, labels: Any, logits: Any) -> Any:
        """See Head."""
        ids = array_ops.squeeze(labels, [-1])
        losses = cross_entropy_ops.sparse_softmax_cross_entropy_with_logits(labels=ids, logits=logits)
        return array_ops.expand_dims(losses, -1)

    def predictions_of(self, logits: Any) -> tuple[dict[str, Any], dict[str, ExportOutput]]:
        """See Head."""
        class_ids = array_ops.expand_dims(reduction_ops.argmax(logits, -1, name="class_ids"), -1)
        probabilities = nn_ops.softmax(logits, name="probabilities")
        predictions = {
            "logits": logits,
            "probabilities": probabilities,
            "class_ids": class_ids,
            "classes": self._texts_of(class_ids),
        }
        return predictions, {"classification": self._classification(probabilities)}

    def metrics_of(self, labels: Any, predictions: Mapping[str, Any], weights: Any) -> dict[str, Any]:
        """See Head."""
        return {"accuracy": accuracy(labels, predictions["class_ids"], weights)}


class RegressionHead(Head):
    """A regression by the squared error. Arguments that are not named here are Head's.

    Args:
        label_dimension: Numbers of a label.
        inverse_link_fn: Function of the logits that gives the predictions.
    """

    def __init__(
        self,
        label_dimension: int = 1,
        weight_column: Any = None,
        loss_reduction: str = _MEAN,
        loss_fn: Callable[..., Any] | None = None,
        inverse_link_fn: Callable[[Any], Any] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name, weight_column, loss_reduction, loss_fn)
        if label_dimension is None or label_dimension < 1:
            raise ValueError(f"Invalid label_dimension {label_dimension}.")
        self._losses_per_example, self._inverse_link = label_dimension, inverse_link_fn

    @property
    def logits_dimension(self) -> int:
        """See Head."""
        return self._losses_per_example

    def processed(self, labels: Any, logits: Any) -> Any:
        """See Head."""
        return math_ops.to_float(_checked_labels(labels, logits, self.logits_dimension))

    def losses_of(self, labels: Any, logits: Any) -> Any:
        """See Head."""
        return mean_squared_error(labels, logits, reduction=Reduction.NONE)

    def predictions_of(self, logits: Any) -> tuple[dict[str, Any], dict[str, ExportOutput]]:
        """See Head."""
        if self._inverse_link is None:
            predictions = {"predictions": logits}
        else:
            predictions = {"predictions": self._inverse_link(logits), "logits": logits}
        return predictions, {"regression": RegressionOutput(predictions["predictions"])}

    def metrics_of(self, labels: Any, predictions: Mapping[str, Any], weights: Any) -> dict[str, Any]:
        """See Head."""
        return {"prediction/mean": mean(predictions["predictions"], weights), "label/mean": mean(labels, weights)}


class PoissonRegressionHead(RegressionHead):
    """A regression of counts: the logits are logarithms of the means; see RegressionHead."""

    def __init__(
        self,
        label_dimension: int = 1,
        weight_column: Any = None,
        loss_reduction: str = _MEAN,
        compute_full_loss: bool = True,
        name: str | None = None,
    ) -> None:
        def loss_fn(labels: Any, logits: Any) -> Any:
            return cross_entropy_ops.log_poisson_loss(
                targets=labels, log_input=logits, compute_full_loss=compute_full_loss
            )

        super().__init__(label_dimension, weight_column, loss_reduction, loss_fn, math_ops.exp, name)


class LogisticRegressionHead(RegressionHead):
    """A regression of probabilities in [0, 1]; see RegressionHead."""

    def __init__(self, weight_column: Any = None, loss_reduction: str = _MEAN, name: str | None = None) -> None:
        def loss_fn(labels: Any, logits: Any) -> Any:
            return cross_entropy_ops.sigmoid_cross_entropy_with_logits(
                labels=_in_range(labels, 2, "Labels must be in range [0, 1]"), logits=logits
            )

        super().__init__(1, weight_column, loss_reduction, loss_fn, math_ops.sigmoid, name)


class MultiLabelHead(_ClassHead):
    """A classification in which an example may be of several classes, or of none.

    Labels are a dense [batch, n_classes] of zeros and ones, or a SparseTensor of classes. Arguments that are
    not named here are Head's.

    Args:
        n_classes: How many.
        thresholds: Thresholds, in (0, 1), for accuracy, precision and recall.
        label_vocabulary: The classes, where labels are strings.
        classes_for_class_based_metrics: Numbers, or names, of classes that have metrics of their own.
    """

    def __init__(
        self,
        n_classes: int,
        weight_column: Any = None,
        thresholds: Iterable[float] | None = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = _MEAN,
        loss_fn: Callable[..., Any] | None = None,
        classes_for_class_based_metrics: Sequence[int | str] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(n_classes, label_vocabulary, name, weight_column, loss_reduction, loss_fn)
        if n_classes is None or n_classes < 2:
            raise ValueError(f"n_classes must be > 1 for multi-class classification. Given: {n_classes}")
        self._thresholds = _checked_thresholds(thresholds)
        if label_vocabulary is not None and len(label_vocabulary) != n_classes:
            raise ValueError(
                f"Length of label_vocabulary must be n_classes ({n_classes}). Given: {len(label_vocabulary)}"
            )
        self._measured = [self._number_of(one) for one in classes_for_class_based_metrics or ()]

    def _number_of(self, of_class: int | str) -> int:
        if isinstance(of_class, str):
            if self._vocabulary is None:
                raise ValueError("label_vocabulary must be provided when classes_for_class_based_metrics are sting.")
            return list(self._vocabulary).index(of_class)
        if not 0 <= of_class < self._classes:
            raise ValueError(
                f"All classes_for_class_based_metrics must be in range [0, {self._classes - 1}]. Given: {of_class}"
            )
        return of_class

    def processed(self, labels: Any, logits: Any) -> Any:
        """See Head."""
        if not isinstance(labels, SparseTensor):
            text = "labels must be an integer indicator Tensor with values in [0, 1]"
            return _in_range(math_ops.to_float(_checked_labels(labels, logits, self._classes)), 2, text)
        text = f"labels must be an integer SparseTensor with values in [0, {self._classes})"
        values = _in_range(self._ids_of(labels.values), self._classes, text)
        ids = SparseTensor(labels.indices, math_ops.cast(values, dtypes.int64), labels.dense_shape)
        wide = math_ops.to_float(sparse_ops.sparse_to_indicator(ids, self._classes))
        return array_ops.reshape(wide, array_ops.shape(logits))

    def losses_of(self, labels: Any, logits: Any) -> Any:
        """See Head."""
        each = cross_entropy_ops.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
        return reduction_ops.reduce_mean(each, -1, keepdims=True)

    def predictions_of(self, logits: Any) -> tuple[dict[str, Any], dict[str, ExportOutput]]:
        """See Head."""
        probabilities = math_ops.sigmoid(logits, name="probabilities")
        predictions = {"logits": logits, "probabilities": probabilities}
        return predictions, {"classification": self._classification(probabilities)}

    def metrics_of(self, labels: Any, predictions: Mapping[str, Any], weights: Any) -> dict[str, Any]:
        """See Head."""
        probabilities = predictions["probabilities"]
        metrics = _areas(labels, probabilities, weights)
        metrics |= _at_thresholds(self._thresholds, labels, probabilities, weights)
        for number in self._measured:
            name = f"class{number}" if self._vocabulary is None else self._vocabulary[number]
            own = probabilities[..., number : number + 1]
            metrics[f"probability_mean/{name}"] = mean(own, weights)
            areas = _areas(labels[..., number : number + 1], own, weights)
            metrics |= {f"{key}/{name}": area for key, area in areas.items()}
        return metrics


def _areas(labels: Any, scores: Any, weights: Any) -> dict[str, Any]:
    precision_recall = auc(labels, scores, weights, curve="PR")
    return {"auc": auc(labels, scores, weights), "auc_precision_recall": precision_recall}


class MultiHead(Head):
    """Several heads on one model: the losses add up.

    Args:
        heads: Each with a name; labels are a dict by these names.
        head_weights: By what each loss is multiplied; default 1.
    """

    def __init__(self, heads: Sequence[Head], head_weights: Sequence[float] | None = None) -> None:
        if not heads:
            raise ValueError("Must specify heads. Given: []")
        if head_weights is not None and len(head_weights) != len(heads):
            raise ValueError(
                f"heads and head_weights must have the same size. Given len(heads): {len(heads)}. Given "
                f"len(head_weights): {len(head_weights)}."
            )
        names = [head.name for head in heads]
        if not all(names):
            raise ValueError(f"All given heads must have name specified. Given: {names}")
        super().__init__("_".join(str(name) for name in names), None, Reduction.SUM, None)
        self._heads = {str(head.name): head for head in heads}
        self._head_weights = list(head_weights or [1.0] * len(heads))

    @property
    def logits_dimension(self) -> int:
        """See Head."""
        return sum(head.logits_dimension for head in self._heads.values())

    def _divided(self, logits: Any) -> dict[str, Any]:
        if isinstance(logits, Mapping):
            return dict(logits)
        sizes = [head.logits_dimension for head in self._heads.values()]
        return dict(zip(self._heads, joining_ops.split(logits, sizes, -1), strict=True))

    def create_loss(self, features: Any, mode: str, logits: Any, labels: Any) -> LossSpec:
        """See Head."""
        parts = self._divided(logits)
        specs = {
            name: head.create_loss(features, mode, parts[name], labels[name]) for name, head in self._heads.items()
        }
        weighed = list(zip(self._head_weights, specs.items(), strict=True))
        total = math_ops.add_n([weight * spec.training_loss for weight, (_, spec) in weighed])
        each = {name: weight * spec.unreduced_loss for weight, (name, spec) in weighed}
        weights = {name: spec.weights for name, spec in specs.items()}
        return LossSpec(total, each, weights, {name: spec.processed_labels for name, spec in specs.items()})

    def create_estimator_spec(
        self,
        features: Any,
        mode: str,
        logits: Any,
        labels: Any = None,
        optimizer: Any = None,
        train_op_fn: Callable[[Any], Any] | None = None,
        regularization_losses: Sequence[Any] | None = None,
    ) -> EstimatorSpec:
        """See Head."""
        parts = self._divided(logits)
        targets = labels or dict.fromkeys(self._heads)
        specs = {
            name: head.create_estimator_spec(
                features, mode, parts[name], targets[name], train_op_fn=lambda loss: control_flow_ops.no_op()
            )
            for name, head in self._heads.items()
        }
        predictions = {(name, key): value for name, spec in specs.items() for key, value in spec.predictions.items()}
        if mode == ModeKeys.PREDICT:
            outputs: dict[str, ExportOutput] = {}
            for name, spec in specs.items():
                for key, output in spec.export_outputs.items():
                    outputs[name if key == "serving_default" else f"{name}/{key}"] = output
            outputs["serving_default"] = next(iter(specs.values())).export_outputs["serving_default"]
            outputs["predict"] = PredictOutput({f"{name}/{key}": value for (name, key), value in predictions.items()})
            return EstimatorSpec(mode, predictions=predictions, export_outputs=outputs)
        weighed = zip(self._head_weights, specs.values(), strict=True)
        total = math_ops.add_n([weight * spec.loss for weight, spec in weighed])
        if regularization_losses:
            total = total + math_ops.add_n(list(regularization_losses))
        if mode == ModeKeys.EVAL:
            metrics = {key: metric for spec in specs.values() for key, metric in spec.eval_metric_ops.items()}
            metrics |= {f"loss/{name}": mean(spec.loss) for name, spec in specs.items()}
            return EstimatorSpec(mode, predictions=predictions, loss=total, eval_metric_ops=metrics)
        train_op = _train_op(total, optimizer, train_op_fn)
        summary_ops.scalar("loss", total)
        return EstimatorSpec(mode, predictions=predictions, loss=total, train_op=train_op)


#: The names of `tf.contrib.estimator`.
binary_classification_head = BinaryClassHead
multi_class_head = MultiClassHead
multi_label_head = MultiLabelHead
multi_head = MultiHead
logistic_regression_head = LogisticRegressionHead


def regression_head(
    weight_column: Any = None,
    label_dimension: int = 1,
    loss_reduction: str = _MEAN,
    loss_fn: Callable[..., Any] | None = None,
    inverse_link_fn: Callable[[Any], Any] | None = None,
    name: str | None = None,
) -> Head:
    """Return a RegressionHead."""
    return RegressionHead(label_dimension, weight_column, loss_reduction, loss_fn, inverse_link_fn, name)


def poisson_regression_head(
    weight_column: Any = None,
    label_dimension: int = 1,
    loss_reduction: str = _MEAN,
    compute_full_loss: bool = True,
    name: str | None = None,
) -> Head:
    """Return a PoissonRegressionHead."""
    return PoissonRegressionHead(label_dimension, weight_column, loss_reduction, compute_full_loss, name)
