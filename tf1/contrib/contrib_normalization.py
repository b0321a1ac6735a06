"""Normalization as `tf.contrib.layers` and `tf.contrib.slim` have it.

Layer: tf1. Source: TensorFlow 1.15 `contrib/layers/python/layers/layers.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from globalstep.tf1.contrib.arg_scope import add_arg_scope
from globalstep.tf1.contrib.contrib_layers import collect_variable, collected, collections_of
from globalstep.tf1.contrib.model_variables import model_variable, renamed_getter
from globalstep.tf1.graph.graph import GraphKeys, Node, add_to_collections, as_node
from globalstep.tf1.layers.layer import chosen, known_rank
from globalstep.tf1.layers.normalization_layers import (
    BatchNormalization,
    Moments,
    batch_moments,
    moved,
    weighted_moments,
)
from globalstep.tf1.ops import normalization_ops
from globalstep.tf1.ops.control_flow_ops import with_dependencies
from globalstep.tf1.ops.init_ops import ones_initializer, zeros_initializer
from globalstep.tf1.variables.variable_scope import variable_scope

_AVERAGES = ("moving_mean", "moving_variance")


@add_arg_scope
def batch_norm(
    inputs: Any,
    decay: float = 0.999,
    center: bool = True,
    scale: bool = False,
    epsilon: float = 0.001,
    activation_fn: Callable[..., Any] | None = None,
    param_initializers: dict[str, Any] | None = None,
    param_regularizers: dict[str, Any] | None = None,
    updates_collections: Any = GraphKeys.UPDATE_OPS,
    is_training: Any = True,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    batch_weights: Any = None,
    fused: bool | None = None,
    data_format: str = "NHWC",
    zero_debias_moving_mean: bool = False,
    scope: Any = None,
    renorm: bool = False,
    renorm_clipping: Any = None,
    renorm_decay: float = 0.99,
    adjustment: Any = None,
) -> Node:
    """Normalize with the mean and variance of the batch while training, and moving averages of them otherwise.

    The operations that move the averages are in UPDATE_OPS; `create_train_op` and `optimize_loss` run them.

    Args:
        inputs: Floating node [..., n]; n must be known.
        decay: How much of the moving averages stays with each step.
        center: Whether "beta" is added.
        scale: Whether "gamma" is multiplied by.
        epsilon: What is added to the variance.
        activation_fn: Function of the result; default none.
        param_initializers: Initializers by name: "beta", "gamma", "moving_mean", "moving_variance".
        param_regularizers: Regularizers of "beta" and "gamma".
        updates_collections: Collections of the operations that move the averages; None to move them whenever the
            result is computed.
        is_training: Bool or boolean node.
        reuse: As for `fully_connected`.
        variables_collections: As for `fully_connected`, by the names of the Variables.
        outputs_collections: As for `fully_connected`.
        trainable: As for `fully_connected`.
        batch_weights: Weight of each row of the batch [batch].
        fused: False has the moving variance follow the variance of the batch itself and not, as with TensorFlow's
            fused kernel, the unbiased one.
        data_format: "NHWC", or "NCHW" for channels that come right after the batch.
        zero_debias_moving_mean: False.
        scope: Scope of the Variables; default "BatchNorm", made unique.
        renorm: False.
        renorm_clipping: Without effect.
        renorm_decay: Without effect.
        adjustment: None.

    Returns:
        A node like `inputs`.

    Raises:
        ValueError: For another data format, or what is not here.
    """
    if data_format not in ("NHWC", "NCHW"):
        raise ValueError("data_format has to be either NCHW or NHWC.")
    if zero_debias_moving_mean:
        raise ValueError("batch_norm knows no zero_debias_moving_mean: leave it out, or use a smaller decay.")
    initializers, regularizers = param_initializers or {}, param_regularizers or {}
    with variable_scope(scope, "BatchNorm", [inputs], reuse=reuse, custom_getter=renamed_getter({})) as entered:
        node = as_node(inputs)
        # TensorFlow's fused kernel takes matrices too, here but not in gs.layers.
        unbiased = fused is not False and batch_weights is None and known_rank(node) in (2, 4)
        layer = _BatchNorm(
            1 if data_format == "NCHW" else -1, decay, epsilon, center, scale,
            beta_initializer=initializers.get("beta"), gamma_initializer=initializers.get("gamma"),
            moving_mean_initializer=initializers.get("moving_mean"),
            moving_variance_initializer=initializers.get("moving_variance"),
            beta_regularizer=regularizers.get("beta"), gamma_regularizer=regularizers.get("gamma"), renorm=renorm,
            adjustment=adjustment, trainable=trainable, name=entered.name, _scope=entered, _reuse=reuse,
        )  # fmt: skip
        layer.weighted, layer.unbiased, layer.goes_to = batch_weights, unbiased, updates_collections
        if (
            updates_collections != GraphKeys.UPDATE_OPS
            or batch_weights is not None
            or (unbiased and node.shape.ndims == 2)
        ):
            layer.makes_beta_first()
        result = layer.apply(node, training=is_training)
        for name in ("beta", "gamma", *_AVERAGES):
            if (variable := getattr(layer, name)) is not None:
                collect_variable(variable, collections_of(variables_collections, name))
        return collected(outputs_collections, result if activation_fn is None else activation_fn(result))


class _BatchNorm(BatchNormalization):
    """BatchNormalization with weights of rows, and a say in when the averages move."""

    weighted: Any = None
    unbiased = False
    goes_to: Any = GraphKeys.UPDATE_OPS

    def makes_beta_first(self) -> None:
        """Make the Variables in the order of contrib's own code, which TensorFlow has where no layer will do."""
        self._order = ("beta", "gamma")

    def _normalized_last(self, inputs: Node, training: Any) -> Node:
        averages = (self.moving_mean, self.moving_variance)
        if isinstance(training, bool) and not training:
            return self._normalized(inputs, *averages)
        batch = self._moments(inputs)
        mean = chosen(training, lambda: batch.mean, lambda: averages[0])
        variance = chosen(training, lambda: batch.variance, lambda: averages[1])
        updates = moved(averages, (batch.mean, batch.unbiased), self.momentum, training)
        self.updates += updates
        if self.goes_to is None:
            moved_first: Node = with_dependencies(updates, self._normalized(inputs, mean, variance))
            return moved_first
        for update in updates:
            add_to_collections(self.goes_to, update)
        return self._normalized(inputs, mean, variance)

    def _moments(self, inputs: Node) -> Moments:
        if self.weighted is None:
            return batch_moments(inputs, self.unbiased)
        return weighted_moments(inputs, self.weighted)

    def _normalized(self, inputs: Node, mean: Any, variance: Any) -> Node:
        epsilon = max(self.epsilon, 1.001e-5) if self.unbiased else self.epsilon
        return normalization_ops.batch_normalization(inputs, mean, variance, self.beta, self.gamma, epsilon)


@add_arg_scope
def layer_norm(
    inputs: Any,
    center: bool = True,
    scale: bool = True,
    activation_fn: Callable[..., Any] | None = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    begin_norm_axis: int = 1,
    begin_params_axis: int = -1,
    scope: Any = None,
) -> Node:
    """Normalize each row of the batch with its own mean and variance.

    Args:
        inputs: Floating node.
        center: Whether "beta" is added.
        scale: Whether "gamma" is multiplied by.
        activation_fn: Function of the result; default none.
        reuse: As for `fully_connected`.
        variables_collections: As for `fully_connected`, by the names of the Variables.
        outputs_collections: As for `fully_connected`.
        trainable: As for `fully_connected`.
        begin_norm_axis: First axis that is normalized over.
        begin_params_axis: First axis of the Variables.
        scope: Scope of the Variables; default "LayerNorm", made unique.

    Returns:
        A node like `inputs`.

    Raises:
        ValueError: If an axis does not exist, or the Variables' shape is not known.
    """
    with variable_scope(scope, "LayerNorm", [inputs], reuse=reuse):
        node = as_node(inputs)
        rank = known_rank(node)
        first = begin_norm_axis + rank if begin_norm_axis < 0 else begin_norm_axis
        if begin_params_axis >= rank or first >= rank:
            raise ValueError(
                f"begin_params_axis ({begin_params_axis}) and begin_norm_axis ({first}) must be < rank(inputs) ({rank})"
            )
        shape = node.shape.as_list()[begin_params_axis:]
        if None in shape:
            raise ValueError(f"Inputs {node.name}: shape(inputs)[{begin_params_axis}:] is not fully defined: {shape}")

        def parameter(name: str, initializer: Any) -> Any:
            keys = collections_of(variables_collections, name)
            return model_variable(name, shape, node.dtype, initializer, trainable=trainable, collections=keys)

        beta = parameter("beta", zeros_initializer()) if center else None
        gamma = parameter("gamma", ones_initializer()) if scale else None
        mean, variance = normalization_ops.moments(node, list(range(first, rank)), keep_dims=True)
        epsilon = 1e-3 if node.dtype.name == "float16" else 1e-12
        result = normalization_ops.batch_normalization(node, mean, variance, beta, gamma, epsilon)
        return collected(outputs_collections, result if activation_fn is None else activation_fn(result))
