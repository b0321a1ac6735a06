"""Layers that make their own Variables: `gs.layers`, in its functional form.

Names, arguments, defaults and Variable names are those of TensorFlow 1.15 `tf.layers`; a layer without a
name gets "dense", "dense_1", ... and one with a name shares its Variables under `reuse`.

Layer: tf1. Source: TensorFlow 1.15 `python/layers/core.py`, `convolutional.py` and `normalization.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from globalstep.tf1.graph.graph import Node
from globalstep.tf1.layers.convolution_layers import Conv1D, Conv2D
from globalstep.tf1.layers.core_layers import Dense, Dropout, Flatten
from globalstep.tf1.layers.layer import made_by
from globalstep.tf1.layers.normalization_layers import BatchNormalization
from globalstep.tf1.layers.pooling_layers import AveragePooling1D, AveragePooling2D, MaxPooling1D, MaxPooling2D


def dense(
    inputs: Any,
    units: int,
    activation: Callable[..., Any] | str | None = None,
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
        activation: Function of the result, or the name of one ("relu"); default none.
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
    layer = Dense(
        units, activation, use_bias, kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer,
        activity_regularizer, kernel_constraint, bias_constraint, trainable, name, _scope=name, _reuse=reuse,
    )  # fmt: skip
    return made_by(layer, inputs)


def conv2d(
    inputs: Any,
    filters: int,
    kernel_size: Any,
    strides: Any = (1, 1),
    padding: str = "valid",
    data_format: str = "channels_last",
    dilation_rate: Any = (1, 1),
    activation: Callable[..., Any] | str | None = None,
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
        data_format: "channels_last", or "channels_first": the channels of inputs and result come after the batch.
        dilation_rate: Steps along height and width between the elements of a filter, or one int for both.
        activation: Function of the result, or the name of one ("relu"); default none.
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
        ValueError: For both strides and dilation, or if the number of channels is not known.
    """
    layer = Conv2D(
        filters, kernel_size, strides, padding, data_format, dilation_rate, activation, use_bias, kernel_initializer,
        bias_initializer, kernel_regularizer, bias_regularizer, activity_regularizer, kernel_constraint,
        bias_constraint, trainable, name, _scope=name, _reuse=reuse,
    )  # fmt: skip
    return made_by(layer, inputs)


def conv1d(
    inputs: Any,
    filters: int,
    kernel_size: Any,
    strides: Any = 1,
    padding: str = "valid",
    data_format: str = "channels_last",
    dilation_rate: Any = 1,
    activation: Callable[..., Any] | str | None = None,
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
    """Convolve sequences with filters of its own.

    Args:
        inputs: Floating node [batch, length, channels].
        filters: How many filters.
        kernel_size: Width of the filters.
        strides: Steps along the length.
        padding: "valid" or "same".
        data_format: "channels_last", or "channels_first": the channels of inputs and result come after the batch.
        dilation_rate: Steps between the elements of a filter.
        activation: Function of the result, or the name of one ("relu"); default none.
        use_bias: Whether there is a bias.
        kernel_initializer: As for `dense`, of shape [width, channels, filters].
        bias_initializer: As for `dense`.
        kernel_regularizer: As for `dense`.
        bias_regularizer: As for `dense`.
        activity_regularizer: As for `dense`.
        kernel_constraint: As for `dense`.
        bias_constraint: As for `dense`.
        trainable: As for `dense`.
        name: Scope of the Variables; default "conv1d", made unique.
        reuse: As for `dense`.

    Returns:
        A node [batch, new length, filters].

    Raises:
        ValueError: For both strides and dilation, or if the number of channels is not known.
    """
    layer = Conv1D(
        filters, kernel_size, strides, padding, data_format, dilation_rate, activation, use_bias, kernel_initializer,
        bias_initializer, kernel_regularizer, bias_regularizer, activity_regularizer, kernel_constraint,
        bias_constraint, trainable, name, _scope=name, _reuse=reuse,
    )  # fmt: skip
    return made_by(layer, inputs)


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
        data_format: "channels_last", or "channels_first": the channels of inputs and result come after the batch.
        name: Name of the node.
    """
    return made_by(MaxPooling2D(pool_size, strides, padding, data_format, name, _scope=name), inputs)


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
        data_format: "channels_last", or "channels_first": the channels of inputs and result come after the batch.
        name: Name of the node.
    """
    return made_by(AveragePooling2D(pool_size, strides, padding, data_format, name, _scope=name), inputs)


def max_pooling1d(
    inputs: Any,
    pool_size: Any,
    strides: Any,
    padding: str = "valid",
    data_format: str = "channels_last",
    name: str | None = None,
) -> Node:
    """Give the largest value of each window.

    Args:
        inputs: Floating node [batch, length, channels].
        pool_size: Width of the windows.
        strides: Steps along the length.
        padding: "valid" or "same".
        data_format: "channels_last", or "channels_first": the channels of inputs and result come after the batch.
        name: Name of the node.
    """
    return made_by(MaxPooling1D(pool_size, strides, padding, data_format, name, _scope=name), inputs)


def average_pooling1d(
    inputs: Any,
    pool_size: Any,
    strides: Any,
    padding: str = "valid",
    data_format: str = "channels_last",
    name: str | None = None,
) -> Node:
    """Give the mean of each window.

    Args:
        inputs: Floating node [batch, length, channels].
        pool_size: Width of the windows.
        strides: Steps along the length.
        padding: "valid" or "same".
        data_format: "channels_last", or "channels_first": the channels of inputs and result come after the batch.
        name: Name of the node.
    """
    return made_by(AveragePooling1D(pool_size, strides, padding, data_format, name, _scope=name), inputs)


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
    return made_by(Dropout(rate, noise_shape, seed, name, _scope=name), inputs, training=training)


def flatten(inputs: Any, name: str | None = None, data_format: str = "channels_last") -> Node:
    """Keep the first dimension and make the others one.

    Args:
        inputs: Node [batch, ...].
        name: Name scope of the node.
        data_format: "channels_first" has channels that come after the batch moved to the end before.

    Returns:
        A node [batch, the rest].
    """
    return made_by(Flatten(data_format, name, _scope=name), inputs)


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
    renorm: bool = False,
    renorm_clipping: Any = None,
    renorm_momentum: float = 0.99,
    fused: bool | None = None,
    virtual_batch_size: int | None = None,
    adjustment: Any = None,
) -> Node:
    """Normalize with the mean and variance of the batch while training, and moving averages of them otherwise.

    The operations that move the averages are in UPDATE_OPS; a training step must depend on them:

        with gs.control_dependencies(gs.get_collection(gs.GraphKeys.UPDATE_OPS)):
            train_op = optimizer.minimize(loss)

    Workers move the averages without knowing of each other, as everything asynchronous does.

    Args:
        inputs: Floating node [..., n].
        axis: The axis of the channels: the last one, or 1.
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
        renorm: False.
        renorm_clipping: Without effect.
        renorm_momentum: Without effect.
        fused: For images, [batch, height, width, n], False has the moving variance follow the variance of the batch
            itself and not, as with TensorFlow's fused kernel, the unbiased one.
        virtual_batch_size: None.
        adjustment: None.

    Returns:
        A node like `inputs`.

    Raises:
        ValueError: For another axis, if n is not known, or for renorm, virtual_batch_size or adjustment.
    """
    layer = BatchNormalization(
        axis, momentum, epsilon, center, scale, beta_initializer, gamma_initializer, moving_mean_initializer,
        moving_variance_initializer, beta_regularizer, gamma_regularizer, beta_constraint, gamma_constraint, renorm,
        renorm_clipping, renorm_momentum, fused, trainable, virtual_batch_size, adjustment, name, _scope=name,
        _reuse=reuse,
    )  # fmt: skip
    return made_by(layer, inputs, training=training)
