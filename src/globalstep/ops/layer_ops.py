"""Layers that make their own Variables: `gs.layers`, in its functional form.

Names, arguments, defaults and Variable names are those of TensorFlow 1.15 `tf.layers`; a layer without a
name gets "dense", "dense_1", ... and one with a name shares its Variables under `reuse`.

Layer: shared. Source: TensorFlow 1.15 `python/layers/core.py`, `convolutional.py` and `normalization.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from globalstep.dtypes import as_dtype
from globalstep.graph.graph import GraphKeys, Node, as_node, get_default_graph
from globalstep.ops import conv_ops, math_ops, nn_ops, normalization_ops
from globalstep.ops.array_ops import reshape
from globalstep.ops.array_ops import shape as shape_of
from globalstep.ops.conditional_ops import cond
from globalstep.ops.init_ops import ones_initializer, zeros_initializer
from globalstep.ops.joining_ops import stack
from globalstep.ops.product_ops import matmul, tensordot
from globalstep.variables.named_variables import get_variable
from globalstep.variables.variable_scope import variable_scope

__all__ = ["average_pooling2d", "batch_normalization", "conv2d", "dense", "dropout", "flatten", "max_pooling2d"]


def dense(
    inputs: Any,
    units: int,
    activation: Callable[..., Any] | None = None,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    bias_initializer: Any = None,
    kernel_regularizer: Any = None,
    bias_regularizer: Any = None,
    activity_regularizer: Any = None,
    kernel_constraint: Any = None,
    bias_constraint: Any = None,
    trainable: bool = True,
    name: str | None = None,
    reuse: Any = None,
) -> Node:
    """Give activation(inputs @ kernel + bias).

    Args:
        inputs: Floating node [..., n]; n must be known.
        units: Size of the last dimension of the result.
        activation: Function of the result; default none.
        use_bias: Whether there is a bias.
        kernel_initializer: Initializer of "kernel" [n, units]; default the scope's, Glorot uniform.
        bias_initializer: Initializer of "bias" [units]; default zeros.
        kernel_regularizer: Function of the kernel to a loss, which goes to REGULARIZATION_LOSSES.
        bias_regularizer: The same for the bias.
        activity_regularizer: The same for the result.
        kernel_constraint: As for gs.Variable.
        bias_constraint: As for gs.Variable.
        trainable: Whether optimizers train the Variables by default.
        name: Scope of the Variables; default "dense", made unique.
        reuse: True to share the Variables of the layer of this name, `gs.AUTO_REUSE` to make them if needed.

    Returns:
        A node [..., units].

    Raises:
        ValueError: If the last dimension of `inputs` is not known.

    >>> import globalstep as gs
    >>> hidden = gs.layers.dense(gs.placeholder(gs.float32, [None, 3]), 4, activation=gs.nn.relu)
    >>> [variable.name for variable in gs.trainable_variables()]
    ['dense/kernel:0', 'dense/bias:0']
    """
    node = as_node(inputs)
    with variable_scope(name, default_name="dense", reuse=reuse):
        last = _last(node, "Dense")
        kernel = get_variable(
            "kernel", [last, units], node.dtype, kernel_initializer, kernel_regularizer, trainable,
            constraint=kernel_constraint,
        )  # fmt: skip
        result = matmul(node, kernel) if node.shape.ndims == 2 else tensordot(node, kernel, [[_rank(node) - 1], [0]])
        if use_bias:
            result = _with_bias(result, units, bias_initializer, bias_regularizer, trainable, bias_constraint)
        return _finished(result, activation, activity_regularizer)


def conv2d(
    inputs: Any,
    filters: int,
    kernel_size: Any,
    strides: Any = (1, 1),
    padding: str = "valid",
    data_format: str = "channels_last",
    dilation_rate: Any = (1, 1),
    activation: Callable[..., Any] | None = None,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    bias_initializer: Any = None,
    kernel_regularizer: Any = None,
    bias_regularizer: Any = None,
    activity_regularizer: Any = None,
    kernel_constraint: Any = None,
    bias_constraint: Any = None,
    trainable: bool = True,
    name: str | None = None,
    reuse: Any = None,
) -> Node:
    """Convolve images with filters of its own; see `gs.nn.conv2d`.

    Args:
        inputs: Floating node [batch, height, width, channels].
        filters: How many filters.
        kernel_size: Height and width of the filters, or one int for both.
        strides: Steps along height and width, or one int for both.
        padding: "valid" or "same".
        data_format: "channels_last".
        dilation_rate: (1, 1).
        activation: Function of the result; default none.
        use_bias: Whether there is a bias.
        kernel_initializer: As for `dense`, of shape [height, width, channels, filters].
        bias_initializer: As for `dense`.
        kernel_regularizer: As for `dense`.
        bias_regularizer: As for `dense`.
        activity_regularizer: As for `dense`.
        kernel_constraint: As for `dense`.
        bias_constraint: As for `dense`.
        trainable: As for `dense`.
        name: Scope of the Variables; default "conv2d", made unique.
        reuse: As for `dense`.

    Returns:
        A node [batch, rows, columns, filters].

    Raises:
        ValueError: For another data format or dilation, or if the number of channels is not known.
    """
    _require_channels_last(data_format)
    if _pair(dilation_rate) != (1, 1):
        raise ValueError("gs.layers.conv2d knows no dilation; dilation_rate must be 1.")
    node = as_node(inputs)
    with variable_scope(name, default_name="conv2d", reuse=reuse):
        shape = [*_pair(kernel_size), _last(node, "Conv2D"), filters]
        kernel = get_variable(
            "kernel", shape, node.dtype, kernel_initializer, kernel_regularizer, trainable,
            constraint=kernel_constraint,
        )  # fmt: skip
        result = conv_ops.conv2d(node, kernel, [1, *_pair(strides), 1], padding.upper())
        if use_bias:
            result = _with_bias(result, filters, bias_initializer, bias_regularizer, trainable, bias_constraint)
        return _finished(result, activation, activity_regularizer)


def max_pooling2d(
    inputs: Any,
    pool_size: Any,
    strides: Any,
    padding: str = "valid",
    data_format: str = "channels_last",
    name: str | None = None,
) -> Node:
    """Give the largest value of each window; see `gs.nn.max_pool`.

    Args:
        inputs: Floating node [batch, height, width, channels].
        pool_size: Height and width of the windows, or one int for both.
        strides: Steps along height and width, or one int for both.
        padding: "valid" or "same".
        data_format: "channels_last".
        name: Name of the node.
    """
    _require_channels_last(data_format)
    sizes, steps = [1, *_pair(pool_size), 1], [1, *_pair(strides), 1]
    return conv_ops.max_pool(inputs, sizes, steps, padding.upper(), name=name or "max_pooling2d")


def average_pooling2d(
    inputs: Any,
    pool_size: Any,
    strides: Any,
    padding: str = "valid",
    data_format: str = "channels_last",
    name: str | None = None,
) -> Node:
    """Give the mean of each window; see `gs.nn.avg_pool`.

    Args:
        inputs: Floating node [batch, height, width, channels].
        pool_size: Height and width of the windows, or one int for both.
        strides: Steps along height and width, or one int for both.
        padding: "valid" or "same".
        data_format: "channels_last".
        name: Name of the node.
    """
    _require_channels_last(data_format)
    sizes, steps = [1, *_pair(pool_size), 1], [1, *_pair(strides), 1]
    return conv_ops.avg_pool(inputs, sizes, steps, padding.upper(), name=name or "average_pooling2d")


def dropout(
    inputs: Any,
    rate: Any = 0.5,
    noise_shape: Any = None,
    seed: int | None = None,
    training: Any = False,
    name: str | None = None,
) -> Node:
    """Set random elements to 0 while training; see `gs.nn.dropout`.

    Args:
        inputs: Floating node.
        rate: Probability that an element becomes 0.
        noise_shape: As for `gs.nn.dropout`.
        seed: Seed of this operation.
        training: Bool or boolean node; otherwise the result is `inputs`.
        name: Name of the nodes.
    """
    node = as_node(inputs)
    with node.graph.name_scope(name or "dropout"):
        return _if(training, lambda: nn_ops.dropout(node, noise_shape=noise_shape, seed=seed, rate=rate), lambda: node)


def flatten(inputs: Any, name: str | None = None) -> Node:
    """Keep the first dimension and make the others one.

    Args:
        inputs: Node [batch, ...].
        name: Name of the node.

    Returns:
        A node [batch, the rest].
    """
    node = as_node(inputs)
    sizes = node.shape.as_list()
    rest = [size for size in sizes[1:] if size is not None]
    if len(rest) < len(sizes) - 1:
        return reshape(node, stack([shape_of(node)[0], -1]), name=name or "flatten")
    return reshape(node, [-1, math.prod(rest)], name=name or "flatten")


def batch_normalization(
    inputs: Any,
    axis: int = -1,
    momentum: float = 0.99,
    epsilon: float = 1e-3,
    center: bool = True,
    scale: bool = True,
    beta_initializer: Any = None,
    gamma_initializer: Any = None,
    moving_mean_initializer: Any = None,
    moving_variance_initializer: Any = None,
    beta_regularizer: Any = None,
    gamma_regularizer: Any = None,
    beta_constraint: Any = None,
    gamma_constraint: Any = None,
    training: Any = False,
    trainable: bool = True,
    name: str | None = None,
    reuse: Any = None,
    fused: bool | None = None,
) -> Node:
    """Normalize with the mean and variance of the batch while training, and moving averages of them otherwise.

    The operations that move the averages are in UPDATE_OPS; a training step must depend on them:

        with gs.control_dependencies(gs.get_collection(gs.GraphKeys.UPDATE_OPS)):
            train_op = optimizer.minimize(loss)

    Workers move the averages without knowing of each other, as everything asynchronous does.

    Args:
        inputs: Floating node [..., n].
        axis: The last axis.
        momentum: How much of the moving averages stays with each step.
        epsilon: What is added to the variance.
        center: Whether "beta" is added.
        scale: Whether "gamma" is multiplied by.
        beta_initializer: Default zeros.
        gamma_initializer: Default ones.
        moving_mean_initializer: Default zeros.
        moving_variance_initializer: Default ones.
        beta_regularizer: As for `dense`.
        gamma_regularizer: As for `dense`.
        beta_constraint: As for gs.Variable.
        gamma_constraint: As for gs.Variable.
        training: Bool or boolean node.
        trainable: As for `dense`.
        name: Scope of the Variables; default "batch_normalization", made unique.
        reuse: As for `dense`.
        fused: Accepted as in TensorFlow.

    Returns:
        A node like `inputs`.

    Raises:
        ValueError: For another axis, or if n is not known.
    """
    node = as_node(inputs)
    if axis not in (-1, _rank(node) - 1):
        raise ValueError(f"gs.layers.batch_normalization normalizes the last axis, not {axis}.")
    with variable_scope(name, default_name="batch_normalization", reuse=reuse):
        size = [_last(node, "BatchNormalization")]

        def variable(key: str, initializer: Any, default: Any, trained: bool = False, **options: Any) -> Any:
            return get_variable(key, size, node.dtype, initializer or default, trainable=trained, **options)

        zeros, ones = zeros_initializer(), ones_initializer()
        gamma = beta = None
        if scale:
            gamma = variable("gamma", gamma_initializer, ones, trainable, regularizer=gamma_regularizer,
                             constraint=gamma_constraint)  # fmt: skip
        if center:
            beta = variable("beta", beta_initializer, zeros, trainable, regularizer=beta_regularizer,
                            constraint=beta_constraint)  # fmt: skip
        moving = (
            variable("moving_mean", moving_mean_initializer, zeros),
            variable("moving_variance", moving_variance_initializer, ones),
        )
        if training is False:
            mean, variance = moving
        else:
            batch = normalization_ops.moments(node, list(range(_rank(node) - 1)))
            mean = _if(training, lambda: batch[0], lambda: moving[0])
            variance = _if(training, lambda: batch[1], lambda: moving[1])
            step = _if(training, lambda: as_node(1 - momentum, node.dtype), lambda: as_node(0.0, node.dtype))
            for average, now in zip(moving, batch, strict=True):
                update = average.assign_sub(math_ops.multiply(math_ops.subtract(average, now), step))
                get_default_graph().add_to_collection(GraphKeys.UPDATE_OPS, update)
        return normalization_ops.batch_normalization(node, mean, variance, beta, gamma, epsilon)


def _if(choice: Any, yes: Callable[[], Node], no: Callable[[], Node]) -> Node:
    """Choose now for a bool, in the run for a node."""
    if isinstance(choice, (bool, int, np.bool_)):
        return yes() if choice else no()
    chosen: Node = cond(choice, yes, no)
    return chosen


def _with_bias(result: Node, size: int, initializer: Any, regularizer: Any, trainable: bool, constraint: Any) -> Node:
    bias = get_variable(
        "bias", [size], result.dtype, initializer or zeros_initializer(), regularizer, trainable,
        constraint=constraint,
    )  # fmt: skip
    return nn_ops.bias_add(result, bias)


def _finished(result: Node, activation: Callable[..., Any] | None, activity_regularizer: Any) -> Node:
    given: Node = result if activation is None else activation(result)
    if activity_regularizer is not None:
        get_default_graph().add_to_collection(GraphKeys.REGULARIZATION_LOSSES, activity_regularizer(given))
    return given


def _rank(node: Node) -> int:
    rank = node.shape.ndims
    if rank is None:
        raise ValueError(f"The rank of {node.op_name!r} must be known; it has the shape {node.shape}.")
    return rank


def _last(node: Node, layer: str) -> int:
    if not as_dtype(node.dtype).is_floating:
        raise TypeError(f"{layer} takes floating inputs; {node.op_name!r} is {node.dtype.name}.")
    sizes = node.shape.as_list() if _rank(node) else [None]
    if sizes[-1] is None:
        raise ValueError(f"The last dimension of the inputs to `{layer}` should be defined. Found `None`.")
    return int(sizes[-1])


def _pair(values: Any) -> tuple[int, int]:
    first, second = (values, values) if isinstance(values, int) else values
    return int(first), int(second)


def _require_channels_last(data_format: str) -> None:
    if data_format != "channels_last":
        raise ValueError(f"data_format must be 'channels_last', got {data_format!r}: transpose the images.")
