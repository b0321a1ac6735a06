"""Canned estimators: linear models, networks of dense layers, and both together (wide and deep).

Layer: tf1. Source of names of Variables, defaults and texts: TensorFlow 1.15 `tf.estimator.LinearClassifier`,
`DNNClassifier`, `DNNLinearCombinedClassifier` and their regressors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from globalstep import dtypes
from globalstep.tf1.estimator import heads
from globalstep.tf1.estimator.estimator import Estimator
from globalstep.tf1.estimator.model_fn import EstimatorSpec, ModeKeys
from globalstep.tf1.estimator.run_config import RunConfig
from globalstep.tf1.feature_columns.dense import numeric_column
from globalstep.tf1.feature_columns.layers import input_layer, linear_model, make_parse_example_spec
from globalstep.tf1.graph.graph import GraphKeys, Node, control_dependencies, get_collection
from globalstep.tf1.layers import functional_layers
from globalstep.tf1.ops import (
    array_ops,
    constant_ops,
    init_ops,
    joining_ops,
    math_ops,
    nn_ops,
    parsing_ops,
    summary_ops,
)
from globalstep.tf1.optimizers.optimizer import Optimizer
from globalstep.tf1.optimizers.optimizers import (
    AdagradOptimizer,
    AdamOptimizer,
    GradientDescentOptimizer,
    RMSPropOptimizer,
)
from globalstep.tf1.optimizers.optimizers_online import FtrlOptimizer
from globalstep.tf1.variables.assignments import assign_add
from globalstep.tf1.variables.named_variables import get_variable
from globalstep.tf1.variables.partitioned_variables import PartitionedVariable, min_max_variable_partitioner
from globalstep.tf1.variables.training_util import get_global_step
from globalstep.tf1.variables.variable_scope import variable_scope

_SUM = "weighted_sum"
_OPTIMIZERS: dict[str, Callable[[float], Any]] = {
    "Adagrad": AdagradOptimizer,
    "Adam": AdamOptimizer,
    "Ftrl": FtrlOptimizer,
    "RMSProp": RMSPropOptimizer,
    "SGD": GradientDescentOptimizer,
}


class _ModelPart(NamedTuple):
    """A part of a model, whose logits are added to those of the others.

    Attributes:
        scope: What the names of its Variables begin with.
        optimizer: What trains it: an optimizer, the name of one, or a function that gives one.
        rate: The rate of an optimizer that is given by name.
        logits: Function of the features, the mode, the configuration and the number of logits, that gives them.
    """

    scope: str
    optimizer: Any
    rate: float
    logits: Callable[[Any, str, RunConfig, int], Any]


def get_optimizer_instance(opt: Any, learning_rate: Any = None) -> Any:
    """Return an optimizer: `opt` itself, what it gives as a function, or the one of its name with a rate.

    Raises:
        ValueError: For another name, a name without a rate, or what is no optimizer.
    """
    if isinstance(opt, str):
        if opt not in _OPTIMIZERS:
            raise ValueError(f"Unsupported optimizer name: {opt}. Supported names are: {sorted(_OPTIMIZERS)}")
        if not learning_rate:
            raise ValueError("learning_rate must be specified when opt is string.")
        return _OPTIMIZERS[opt](learning_rate)
    if not isinstance(opt, Optimizer) and callable(opt):
        opt = opt()
    if not isinstance(opt, Optimizer):
        raise ValueError(f"The given object is not an Optimizer instance. Given: {opt}")
    return opt


def _model_fn(head: Any, parts: Sequence[_ModelPart], apart: bool = False) -> Callable[..., EstimatorSpec]:
    """Return the model function of a head on parts.

    Args:
        head: What follows the logits.
        parts: The parts; one, if not `apart`.
        apart: Whether each part's optimizer trains the Variables of that part alone.
    """

    def model_fn(features: Any, labels: Any, mode: str, config: RunConfig) -> EstimatorSpec:
        if not isinstance(features, Mapping):
            raise ValueError(f"features should be a dictionary of `Tensor`s. Given type: {type(features)}")
        optimizers, logits = [], []
        for part in parts:
            optimizers.append(get_optimizer_instance(part.optimizer, part.rate))
            logits.append(part.logits(features, mode, config, head.logits_dimension))

        def train(loss: Any) -> Any:
            # A batch's running averages move on with the step.
            with control_dependencies(get_collection(GraphKeys.UPDATE_OPS)):
                if not apart:
                    return optimizers[0].minimize(loss, global_step=get_global_step())
                updates = [
                    optimizer.minimize(loss, var_list=get_collection(GraphKeys.TRAINABLE_VARIABLES, scope=part.scope))
                    for optimizer, part in zip(optimizers, parts, strict=True)
                ]
                with control_dependencies(updates):
                    return assign_add(get_global_step(), 1).op

        total = math_ops.add_n(logits) if apart else logits[0]
        spec: EstimatorSpec = head.create_estimator_spec(features, mode, total, labels=labels, train_op_fn=train)
        return spec

    return model_fn


def _partitioner(config: RunConfig, partitioner: Any, least: int) -> Any:
    """Return what divides large Variables among the parameter servers."""
    if partitioner is not None:
        return partitioner
    return min_max_variable_partitioner(max_partitions=max(config.num_ps_replicas, 1), min_slice_size=least)


def _deep_part(
    optimizer: Any,
    columns: Sequence[Any],
    hidden_units: Sequence[int],
    activation_fn: Any,
    dropout: float | None,
    batch_norm: bool,
    partitioner: Any,
) -> _ModelPart:
    """Return dense layers on columns, whose Variables are in the scope "dnn"."""

    def logits_of(features: Any, mode: str, config: RunConfig, units: int) -> Any:
        divided = _partitioner(config, partitioner, 64 << 20)
        made = _dnn_logit_fn_builder(units, hidden_units, columns, activation_fn, dropout, divided, batch_norm)
        with variable_scope("dnn", partitioner=_partitioner(config, None, 256 << 10)):
            return made(features, mode)

    return _ModelPart("dnn", optimizer, 0.05, logits_of)


def _dnn_logit_fn_builder(
    units: int, hidden_units: Sequence[int], feature_columns: Any, activation_fn: Any, dropout: float | None,
    input_layer_partitioner: Any = None, batch_norm: bool = False, shared_state_manager: Any = None,
) -> Callable[[Any, str], Any]:  # fmt: skip
    """Return what gives the logits of features in a mode by dense layers; models copied from TensorFlow call it."""

    def logits_of(features: Any, mode: str) -> Any:
        initializer = init_ops.glorot_uniform_initializer()
        training = mode == ModeKeys.TRAIN
        with variable_scope("input_from_feature_columns", partitioner=input_layer_partitioner):
            net = input_layer(features, feature_columns)
        for number, size in enumerate(hidden_units):
            name = f"hiddenlayer_{number}"
            net = functional_layers.dense(
                net, size, activation=activation_fn or nn_ops.relu, kernel_initializer=initializer, name=name
            )
            if dropout is not None and training:
                net = functional_layers.dropout(net, rate=dropout, training=True)
            if batch_norm:
                net = functional_layers.batch_normalization(
                    net, momentum=0.999, training=training, name=f"{name}/batchnorm_{number}"
                )
            _summarize(name, net)
        logits = functional_layers.dense(net, units, kernel_initializer=initializer, name="logits")
        _summarize("logits", logits)
        return logits

    return logits_of


def _summarize(layer: str, value: Any) -> None:
    """Have summaries tell of a layer's outputs."""
    summary_ops.scalar(f"dnn/{layer}/fraction_of_zero_values", nn_ops.zero_fraction(value))
    summary_ops.histogram(f"dnn/{layer}/activation", value)


def _linear_part(optimizer: Any, columns: Sequence[Any], most: float, combiner: str, partitioner: Any) -> _ModelPart:
    """Return a linear model of columns, whose Variables are in the scope "linear"; its rate is `most` at most."""

    def logits_of(features: Any, mode: str, config: RunConfig, units: int) -> Any:
        with variable_scope("linear", partitioner=_partitioner(config, partitioner, 64 << 20)):
            return _linear_logit_fn_builder(units, columns, combiner)(features)

    # Smaller, the more columns there are.
    return _ModelPart("linear", optimizer, min(most, 1.0 / math.sqrt(len(columns))), logits_of)


def _linear_logit_fn_builder(units: int, feature_columns: Any, sparse_combiner: str = "sum") -> Callable[[Any], Any]:
    """Return what gives the logits of features by a linear model; models copied from TensorFlow call it."""

    def logits_of(features: Any) -> Any:
        weights: dict[Any, list[Any]] = {}
        logits = linear_model(
            features, feature_columns, units=units, sparse_combiner=sparse_combiner, cols_to_vars=weights
        )
        bias = weights.pop("bias")[0]
        if units > 1:
            summary_ops.histogram("bias", bias)
        else:
            summary_ops.scalar("bias", array_ops.reshape(bias, []))
        wholes = [whole for parts in weights.values() for whole in parts]
        every = [array_ops.reshape(part, [-1]) for whole in wholes for part in _parts_of(whole)]
        summary_ops.scalar("fraction_of_zero_weights", nn_ops.zero_fraction(joining_ops.concat(every, 0)))
        return logits

    return logits_of


def _parts_of(variable: Any) -> list[Any]:
    return list(variable) if isinstance(variable, PartitionedVariable) else [variable]


def _classes_head(n_classes: int, weight_column: Any, vocabulary: Any, reduction: str) -> Any:
    if n_classes == 2:
        return heads.binary_classification_head(weight_column, None, vocabulary, reduction)
    return heads.multi_class_head(n_classes, weight_column, vocabulary, reduction)


class LinearEstimator(Estimator):
    """A linear model of feature columns under a head.

    Args:
        head: What follows the logits.
        feature_columns: The columns.
        model_dir: See Estimator.
        optimizer: One, its name, or a function that gives one; by default FTRL.
        config: See Estimator.
        partitioner: Divides large Variables; default by the number of parameter servers.
        sparse_combiner: How the weights of one example's categories become one: "sum", "mean" or "sqrtn".
        warm_start_from: See Estimator.
    """

    def __init__(
        self,
        head: Any,
        feature_columns: Sequence[Any],
        model_dir: Any = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        partitioner: Any = None,
        sparse_combiner: str = "sum",
        warm_start_from: Any = None,
    ) -> None:
        columns = tuple(feature_columns or ())
        if not columns:
            raise ValueError("feature_columns must not be empty.")
        parts = [_linear_part(optimizer, columns, 0.2, sparse_combiner, partitioner)]
        super().__init__(_model_fn(head, parts), model_dir, config, warm_start_from=warm_start_from)


class LinearClassifier(LinearEstimator):
    """A linear classifier: logistic regression, or softmax regression for more than two classes.

    Arguments that are not named here are LinearEstimator's.

    Args:
        n_classes: How many classes.
        weight_column: Name, or numeric column, of the examples' weights.
        label_vocabulary: The classes, where labels are strings.
        loss_reduction: How a batch's losses become one; default their sum.
    """

    def __init__(
        self,
        feature_columns: Sequence[Any],
        model_dir: Any = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Any = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        partitioner: Any = None,
        warm_start_from: Any = None,
        loss_reduction: str = _SUM,
        sparse_combiner: str = "sum",
    ) -> None:
        head = _classes_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        super().__init__(
            head, feature_columns, model_dir, optimizer, config, partitioner, sparse_combiner, warm_start_from
        )


class LinearRegressor(LinearEstimator):
    """A linear regression. Arguments that are not named here are LinearEstimator's.

    Args:
        label_dimension: Numbers of a label.
        weight_column: Name, or numeric column, of the examples' weights.
        loss_reduction: How a batch's losses become one; default their sum.
    """

    def __init__(
        self,
        feature_columns: Sequence[Any],
        model_dir: Any = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        partitioner: Any = None,
        warm_start_from: Any = None,
        loss_reduction: str = _SUM,
        sparse_combiner: str = "sum",
    ) -> None:
        head = heads.regression_head(weight_column, label_dimension, loss_reduction)
        super().__init__(
            head, feature_columns, model_dir, optimizer, config, partitioner, sparse_combiner, warm_start_from
        )


class DNNEstimator(Estimator):
    """Dense layers on feature columns under a head.

    Args:
        head: What follows the logits.
        hidden_units: Units of each hidden layer.
        feature_columns: The columns.
        model_dir: See Estimator.
        optimizer: One, its name, or a function that gives one; by default Adagrad with a rate of 0.05.
        activation_fn: Of the hidden layers; default ReLU.
        dropout: Share of a hidden layer's outputs that is dropped in training.
        input_layer_partitioner: Divides large tables; default by the number of parameter servers.
        config: See Estimator.
        warm_start_from: See Estimator.
        batch_norm: Whether each hidden layer is normalized over the batch.
    """

    def __init__(
        self,
        head: Any,
        hidden_units: Sequence[int],
        feature_columns: Sequence[Any],
        model_dir: Any = None,
        optimizer: Any = "Adagrad",
        activation_fn: Any = None,
        dropout: float | None = None,
        input_layer_partitioner: Any = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        batch_norm: bool = False,
    ) -> None:
        columns = tuple(feature_columns)
        parts = [
            _deep_part(optimizer, columns, hidden_units, activation_fn, dropout, batch_norm, input_layer_partitioner)
        ]
        super().__init__(_model_fn(head, parts), model_dir, config, warm_start_from=warm_start_from)


class DNNClassifier(DNNEstimator):
    """A classifier of dense layers. Arguments that are not named here are DNNEstimator's.

    Args:
        n_classes: How many classes.
        weight_column: Name, or numeric column, of the examples' weights.
        label_vocabulary: The classes, where labels are strings.
        loss_reduction: How a batch's losses become one; default their sum.
    """

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Sequence[Any],
        model_dir: Any = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Any = None,
        optimizer: Any = "Adagrad",
        activation_fn: Any = None,
        dropout: float | None = None,
        input_layer_partitioner: Any = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = _SUM,
        batch_norm: bool = False,
    ) -> None:
        head = _classes_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        super().__init__(
            head, hidden_units, feature_columns, model_dir, optimizer, activation_fn, dropout, input_layer_partitioner,
            config, warm_start_from, batch_norm,
        )  # fmt: skip


class DNNRegressor(DNNEstimator):
    """A regression by dense layers. Arguments that are not named here are DNNEstimator's.

    Args:
        label_dimension: Numbers of a label.
        weight_column: Name, or numeric column, of the examples' weights.
        loss_reduction: How a batch's losses become one; default their sum.
    """

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Sequence[Any],
        model_dir: Any = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Adagrad",
        activation_fn: Any = None,
        dropout: float | None = None,
        input_layer_partitioner: Any = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = _SUM,
        batch_norm: bool = False,
    ) -> None:
        head = heads.regression_head(weight_column, label_dimension, loss_reduction)
        super().__init__(
            head, hidden_units, feature_columns, model_dir, optimizer, activation_fn, dropout, input_layer_partitioner,
            config, warm_start_from, batch_norm,
        )  # fmt: skip


class DNNLinearCombinedEstimator(Estimator):
    """A linear model and dense layers whose logits add up: wide and deep.

    Args:
        head: What follows the logits.
        model_dir: See Estimator.
        linear_feature_columns: Columns of the linear model.
        linear_optimizer: Trains it; by default FTRL.
        dnn_feature_columns: Columns of the layers.
        dnn_optimizer: Trains them; by default Adagrad with a rate of 0.05.
        dnn_hidden_units: Units of each hidden layer.
        dnn_activation_fn: Of the hidden layers; default ReLU.
        dnn_dropout: Share of a hidden layer's outputs that is dropped in training.
        input_layer_partitioner: Divides large tables; default by the number of parameter servers.
        config: See Estimator.
        batch_norm: Whether each hidden layer is normalized over the batch.
        linear_sparse_combiner: See LinearEstimator.
        warm_start_from: See Estimator.
    """

    def __init__(
        self,
        head: Any,
        model_dir: Any = None,
        linear_feature_columns: Sequence[Any] | None = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Sequence[Any] | None = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Any = None,
        dnn_dropout: float | None = None,
        input_layer_partitioner: Any = None,
        config: RunConfig | None = None,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
        warm_start_from: Any = None,
    ) -> None:
        wide, deep = tuple(linear_feature_columns or ()), tuple(dnn_feature_columns or ())
        if not wide and not deep:
            raise ValueError("Either linear_feature_columns or dnn_feature_columns must be defined.")
        if deep and not dnn_hidden_units:
            raise ValueError("dnn_hidden_units must be defined when dnn_feature_columns is specified.")
        parts = []
        if deep:
            parts.append(
                _deep_part(
                    dnn_optimizer, deep, dnn_hidden_units or (), dnn_activation_fn, dnn_dropout, batch_norm,
                    input_layer_partitioner,
                )
            )  # fmt: skip
        if wide:
            parts.append(_linear_part(linear_optimizer, wide, 0.005, linear_sparse_combiner, input_layer_partitioner))
        super().__init__(_model_fn(head, parts, apart=True), model_dir, config, warm_start_from=warm_start_from)


class DNNLinearCombinedClassifier(DNNLinearCombinedEstimator):
    """A wide and deep classifier. Arguments that are not named here are DNNLinearCombinedEstimator's.

    Args:
        n_classes: How many classes.
        weight_column: Name, or numeric column, of the examples' weights.
        label_vocabulary: The classes, where labels are strings.
        loss_reduction: How a batch's losses become one; default their sum.
    """

    def __init__(
        self,
        model_dir: Any = None,
        linear_feature_columns: Sequence[Any] | None = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Sequence[Any] | None = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Any = None,
        dnn_dropout: float | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Any = None,
        input_layer_partitioner: Any = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = _SUM,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        head = _classes_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        super().__init__(
            head, model_dir, linear_feature_columns, linear_optimizer, dnn_feature_columns, dnn_optimizer,
            dnn_hidden_units, dnn_activation_fn, dnn_dropout, input_layer_partitioner, config, batch_norm,
            linear_sparse_combiner, warm_start_from,
        )  # fmt: skip


class DNNLinearCombinedRegressor(DNNLinearCombinedEstimator):
    """A wide and deep regression. Arguments that are not named here are DNNLinearCombinedEstimator's.

    Args:
        label_dimension: Numbers of a label.
        weight_column: Name, or numeric column, of the examples' weights.
        loss_reduction: How a batch's losses become one; default their sum.
    """

    def __init__(
        self,
        model_dir: Any = None,
        linear_feature_columns: Sequence[Any] | None = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Sequence[Any] | None = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Any = None,
        dnn_dropout: float | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        input_layer_partitioner: Any = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = _SUM,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        head = heads.regression_head(weight_column, label_dimension, loss_reduction)
        super().__init__(
            head, model_dir, linear_feature_columns, linear_optimizer, dnn_feature_columns, dnn_optimizer,
            dnn_hidden_units, dnn_activation_fn, dnn_dropout, input_layer_partitioner, config, batch_norm,
            linear_sparse_combiner, warm_start_from,
        )  # fmt: skip


class _Baseline(Estimator):
    """A model that looks at no feature: it learns the labels' mean, or their frequencies."""

    def __init__(self, head: Any, model_dir: Any, optimizer: Any, config: RunConfig | None) -> None:
        def logits_of(features: Any, mode: str, config: RunConfig, units: int) -> Any:
            sizes = [array_ops.shape(one)[0] for one in features.values() if isinstance(one, Node)]
            with variable_scope("baseline"):
                bias = get_variable("bias", [units], initializer=init_ops.zeros_initializer())
                return constant_ops.ones(joining_ops.stack([sizes[0], 1])) * bias

        super().__init__(_model_fn(head, [_ModelPart("baseline", optimizer, 0.3, logits_of)]), model_dir, config)


class BaselineClassifier(_Baseline):
    """A classifier that gives each class the share that it has of the labels.

    Args:
        model_dir: See Estimator.
        n_classes: How many classes.
        weight_column: Name, or numeric column, of the examples' weights.
        label_vocabulary: The classes, where labels are strings.
        optimizer: One, its name, or a function that gives one; by default FTRL with a rate of 0.3.
        config: See Estimator.
        loss_reduction: How a batch's losses become one; default their sum.
    """

    def __init__(
        self,
        model_dir: Any = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Any = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: str = _SUM,
    ) -> None:
        super().__init__(
            _classes_head(n_classes, weight_column, label_vocabulary, loss_reduction), model_dir, optimizer, config
        )


class BaselineRegressor(_Baseline):
    """A regression that predicts the mean of the labels.

    Args:
        model_dir: See Estimator.
        label_dimension: Numbers of a label.
        weight_column: Name, or numeric column, of the examples' weights.
        optimizer: One, its name, or a function that gives one; by default FTRL with a rate of 0.3.
        config: See Estimator.
        loss_reduction: How a batch's losses become one; default their sum.
    """

    def __init__(
        self,
        model_dir: Any = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: str = _SUM,
    ) -> None:
        head = heads.regression_head(weight_column, label_dimension, loss_reduction)
        super().__init__(head, model_dir, optimizer, config)


def classifier_parse_example_spec(
    feature_columns: Sequence[Any],
    label_key: str,
    label_dtype: Any = dtypes.int64,
    label_default: Any = None,
    weight_column: Any = None,
) -> dict[str, Any]:
    """Return how the serialized examples of a classifier are parsed: its columns, label and weight.

    Args:
        feature_columns: The columns.
        label_key: Name of the label.
        label_dtype: int64 or string.
        label_default: Where an example has no label.
        weight_column: Name, or numeric column, of the weights.
    """
    label = parsing_ops.FixedLenFeature((1,), label_dtype, label_default)
    return _parse_spec(feature_columns, label_key, label, weight_column)


def regressor_parse_example_spec(
    feature_columns: Sequence[Any],
    label_key: str,
    label_dtype: Any = dtypes.float32,
    label_default: Any = None,
    label_dimension: int = 1,
    weight_column: Any = None,
) -> dict[str, Any]:
    """Return how the serialized examples of a regression are parsed; see `classifier_parse_example_spec`."""
    label = parsing_ops.FixedLenFeature((label_dimension,), label_dtype, label_default)
    return _parse_spec(feature_columns, label_key, label, weight_column)


def _parse_spec(columns: Sequence[Any], label_key: str, label: Any, weight_column: Any) -> dict[str, Any]:
    spec: dict[str, Any] = make_parse_example_spec(columns)
    if label_key in spec:
        raise ValueError(f"label should not be used as feature. label_key: {label_key}, features: {sorted(spec)}")
    spec[label_key] = label
    if weight_column is not None:
        if isinstance(weight_column, str):
            weight_column = numeric_column(weight_column)
        if weight_column.key in spec:
            raise ValueError(f"weight_column should not be used as feature. weight_column: {weight_column.key}")
        spec.update(make_parse_example_spec([weight_column]))
    return spec
