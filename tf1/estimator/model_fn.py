"""The result of a model function: an EstimatorSpec, checked, and the outputs that an export serves.

Layer: tf1. Source of checks and texts: TensorFlow 1.15 `tf.estimator.EstimatorSpec` and `tf.estimator.export`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from globalstep.chief.hooks.session_run_hook import SessionRunHook
from globalstep.tf1.exporting.signatures import (
    classification_signature_def,
    predict_signature_def,
    regression_signature_def,
)
from globalstep.tf1.graph.graph import Node, Operation, get_default_graph
from globalstep.tf1.ops.array_ops import reshape
from globalstep.tf1.sessions.scaffold import Scaffold
from globalstep.tf1.variables.variables import Variable

#: The signature that is served where a request names none.
DEFAULT_SIGNATURE = "serving_default"


class ModeKeys:
    """Modes that a model function is called for."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


class ExportOutput:
    """An output of an exported model; see its three kinds."""

    def as_signature_def(self, receiver_tensors: Mapping[str, Any]) -> Any:
        """Return the signature by which this output is served for these inputs."""
        raise NotImplementedError  # abstract


class ClassificationOutput(ExportOutput):
    """Scores of classes, or the classes, of a batch of serialized examples.

    Args:
        scores: float [batch, classes].
        classes: strings [batch, classes].

    Raises:
        ValueError: If neither is given, or one has another dtype.
    """

    def __init__(self, scores: Any = None, classes: Any = None) -> None:
        if scores is not None and not (isinstance(scores, Node) and scores.dtype.is_floating):
            raise ValueError(f"Classification scores must be a float32 Tensor; got {scores}")
        if classes is not None and not (isinstance(classes, Node) and classes.dtype.name == "string"):
            raise ValueError(f"Classification classes must be a string Tensor; got {classes}")
        if scores is None and classes is None:
            raise ValueError("At least one of scores and classes must be set.")
        self.scores, self.classes = scores, classes

    def as_signature_def(self, receiver_tensors: Mapping[str, Any]) -> Any:
        """See ExportOutput."""
        return classification_signature_def(_examples("Classification", receiver_tensors), self.classes, self.scores)


class RegressionOutput(ExportOutput):
    """A number for each of a batch of serialized examples.

    Args:
        value: float [batch].

    Raises:
        ValueError: If it has another dtype.
    """

    def __init__(self, value: Any) -> None:
        if not (isinstance(value, Node) and value.dtype.is_floating):
            raise ValueError(f"Regression output value must be a float32 Tensor; got {value}")
        self.value = value

    def as_signature_def(self, receiver_tensors: Mapping[str, Any]) -> Any:
        """See ExportOutput."""
        return regression_signature_def(_examples("Regression", receiver_tensors), self.value)


class PredictOutput(ExportOutput):
    """Any outputs of any inputs.

    Args:
        outputs: A node, or a dict of them.
    """

    def __init__(self, outputs: Any) -> None:
        self.outputs = outputs if isinstance(outputs, dict) else {"output": outputs}
        for key, value in self.outputs.items():
            if not isinstance(key, str):
                raise ValueError(f"output output key must be a string; got {key}.")
            if not isinstance(value, Node):
                raise ValueError(f"Prediction output value must be a Tensor; got {value}.")

    def as_signature_def(self, receiver_tensors: Mapping[str, Any]) -> Any:
        """See ExportOutput."""
        return predict_signature_def(receiver_tensors, self.outputs)


def _examples(what: str, receiver_tensors: Mapping[str, Any]) -> Any:
    """Return the one input of strings that a classification or regression has."""
    inputs = list(receiver_tensors.values())
    if len(inputs) != 1 or inputs[0].dtype.name != "string":
        raise ValueError(f"{what} input must be a single string Tensor; got {dict(receiver_tensors)}")
    return inputs[0]


class _Spec(NamedTuple):
    mode: str
    predictions: Any
    loss: Any
    train_op: Any
    eval_metric_ops: dict[str, Any]
    export_outputs: Any
    training_chief_hooks: tuple[SessionRunHook, ...]
    training_hooks: tuple[SessionRunHook, ...]
    scaffold: Scaffold
    evaluation_hooks: tuple[SessionRunHook, ...]
    prediction_hooks: tuple[SessionRunHook, ...]


class EstimatorSpec(_Spec):
    """The result of a model function for a mode: the nodes and hooks of that mode.

    Args:
        mode: One of ModeKeys.
        predictions: A node, or a dict of them; needed to predict.
        loss: Scalar node; needed to train and to evaluate.
        train_op: Node or operation whose run is a step; needed to train.
        eval_metric_ops: Name -> (value, update), as the functions of `gs.metrics` give.
        export_outputs: Signature -> ExportOutput; default the predictions.
        training_chief_hooks: Hooks of the chief.
        training_hooks: Hooks of every task that trains.
        scaffold: What makes the model ready.
        evaluation_hooks: Hooks of evaluations.
        prediction_hooks: Hooks of predictions.

    Raises:
        ValueError: If something is missing, is of another graph, or the loss is no scalar.
        TypeError: If something is not what it should be.
    """

    __slots__ = ()

    def __new__(
        cls,
        mode: str,
        predictions: Any = None,
        loss: Any = None,
        train_op: Any = None,
        eval_metric_ops: Mapping[str, Any] | None = None,
        export_outputs: Mapping[str, ExportOutput] | None = None,
        training_chief_hooks: Iterable[SessionRunHook] | None = None,
        training_hooks: Iterable[SessionRunHook] | None = None,
        scaffold: Scaffold | None = None,
        evaluation_hooks: Iterable[SessionRunHook] | None = None,
        prediction_hooks: Iterable[SessionRunHook] | None = None,
    ) -> EstimatorSpec:
        """Check what is given."""
        if train_op is None and mode == ModeKeys.TRAIN:
            raise ValueError("Missing train_op.")
        if loss is None and mode in (ModeKeys.TRAIN, ModeKeys.EVAL):
            raise ValueError("Missing loss.")
        if predictions is None and mode == ModeKeys.PREDICT:
            raise ValueError("Missing predictions.")
        scaffold = scaffold or Scaffold()
        if not isinstance(scaffold, Scaffold):
            raise TypeError(f"scaffold must be tf.train.Scaffold. Given: {scaffold}")
        predictions = _predictions({} if predictions is None else predictions)
        if mode == ModeKeys.PREDICT:
            export_outputs = _with_default(export_outputs, predictions)
        return super().__new__(
            cls,
            mode,
            predictions,
            None if loss is None else _loss(loss),
            None if train_op is None else _train_op(train_op),
            _metrics({} if eval_metric_ops is None else eval_metric_ops),
            export_outputs,
            checked_hooks(training_chief_hooks),
            checked_hooks(training_hooks),
            scaffold,
            checked_hooks(evaluation_hooks),
            checked_hooks(prediction_hooks),
        )

    def _replace(self, **kwargs: Any) -> EstimatorSpec:
        if kwargs.get("mode", self.mode) != self.mode:
            raise ValueError("mode of EstimatorSpec cannot be changed.")
        return EstimatorSpec(**{**self._asdict(), **kwargs})


def checked_hooks(hooks: Iterable[Any] | None) -> tuple[SessionRunHook, ...]:
    """Return hooks, all of which are SessionRunHooks."""
    checked = tuple(hooks or ())
    for hook in checked:
        if not isinstance(hook, SessionRunHook):
            raise TypeError(f"All hooks must be SessionRunHook instances, given: {hook}")
    return checked


def _require_own(node: Any, what: str, name: str = "") -> None:
    if node.graph is not get_default_graph():
        raise ValueError(
            f'{what} with "{name or node.name}" must be from the default graph. Possible causes of this error include: '
            f"\n\n1) {what} was created outside the context of the default graph.\n\n2) The object passed through to "
            'EstimatorSpec was not created in the most recent call to "model_fn".'
        )


def _tensor(value: Any, what: str) -> Any:
    if not isinstance(value, Node):
        raise TypeError(f"{what} must be Tensor, given: {value}")
    return value


def _train_op(train_op: Any) -> Any:
    if not isinstance(train_op, (Node, Operation, Variable)):
        raise TypeError(f"train_op must be Operation or Tensor, given: {train_op}")
    _require_own(train_op, "train_op")
    return train_op


def _loss(loss: Any) -> Any:
    _tensor(loss, "loss")
    if loss.shape.num_elements() not in (None, 1):
        raise ValueError(f"Loss must be scalar, given: {loss}")
    _require_own(loss, "loss")
    return loss if loss.shape.ndims in (0, None) else reshape(loss, [])


def _predictions(predictions: Any) -> Any:
    if not isinstance(predictions, dict):
        _require_own(_tensor(predictions, "predictions"), "prediction values")
        return predictions
    for key, value in predictions.items():
        _require_own(_tensor(value, f"predictions[{key}]"), "prediction values", f"{key}: {getattr(value, 'name', '')}")
    return predictions


def _metrics(metrics: Any) -> dict[str, Any]:
    if not isinstance(metrics, Mapping):
        raise TypeError(f"eval_metric_ops must be a dict, given: {metrics}")
    for key, value in metrics.items():
        if not isinstance(value, tuple) or len(value) != 2:
            raise TypeError(
                f"Values of eval_metric_ops must be (metric_value, update_op) tuples, given: {value} for key: {key}"
            )
        for node in value:
            if not isinstance(node, (Node, Operation, Variable)):
                raise TypeError(f"Values of eval_metric_ops must be nodes, given: {value} for key: {key}")
            _require_own(node, "eval_metric_ops", f"{key}: {getattr(node, 'name', '')}")
    return dict(metrics)


def _with_default(outputs: Mapping[str, ExportOutput] | None, predictions: Any) -> Mapping[str, ExportOutput]:
    """Return the outputs of an export, among them the one that is served by default."""
    if outputs is None:
        return {DEFAULT_SIGNATURE: PredictOutput(predictions)}
    if not isinstance(outputs, dict):
        raise TypeError(f"export_outputs must be dict, given: {outputs}")
    for output in outputs.values():
        if not isinstance(output, ExportOutput):
            raise TypeError(f"Values in export_outputs must be ExportOutput objects. Given: {outputs}")
    if len(outputs) == 1 and DEFAULT_SIGNATURE not in outputs:
        outputs = {**outputs, DEFAULT_SIGNATURE: next(iter(outputs.values()))}
    if len(outputs) > 1 and DEFAULT_SIGNATURE not in outputs:
        raise ValueError(
            "Multiple export_outputs were provided, but none of them is specified as the default.  Do this by naming "
            "one of them with signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY."
        )
    return outputs
