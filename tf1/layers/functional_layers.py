"""Layers that make their own Variables: `gs.layers`, in its functional form.

Names, arguments, defaults and Variable names are those of TensorFlow 1.15 `tf.layers`; a layer without a
name gets "dense", "dense_1", ... and one with a name shares its Variables under `reuse`.

Layer: tf1. Source: TensorFlow 1.15 `python/layers/core.py`, `convolutional.py`, `pooling.py` and `normalization.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from globalstep.tf1.graph.callables import named
from globalstep.tf1.graph.graph import Node
from globalstep.tf1.layers.convolution_layers import Conv1D, Conv2D, Conv2DTranspose, Conv3D, Conv3DTranspose
from globalstep.tf1.layers.core_layers import Dense, Dropout, Flatten
from globalstep.tf1.layers.layer import made_by, snake_case
from globalstep.tf1.layers.normalization_layers import BatchNormalization
from globalstep.tf1.layers.pooling_layers import (
    AveragePooling1D,
    AveragePooling2D,
    AveragePooling3D,
    MaxPooling1D,
    MaxPooling2D,
    MaxPooling3D,
)
from globalstep.tf1.layers.separable_layers import SeparableConv1D, SeparableConv2D


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


def _convolution(layer: type[Conv2D], steps: Any, doc: str) -> Callable[..., Node]:
    """Make the function of a class of convolutions; `steps` are its default strides and dilation."""

    @named(snake_case(layer.__name__), doc)
    def convolution(
        inputs: Any,
        filters: int,
        kernel_size: Any,
        strides: Any = steps,
        padding: str = "valid",
        data_format: str = "channels_last",
        dilation_rate: Any = steps,
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
        made = layer(
            filters, kernel_size, strides, padding, data_format, dilation_rate, activation, use_bias,
            kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer, activity_regularizer,
            kernel_constraint, bias_constraint, trainable, name, _scope=name, _reuse=reuse,
        )  # fmt: skip
        return made_by(made, inputs)

    return convolution


def _transposed(layer: type[Conv2DTranspose], steps: Any, doc: str) -> Callable[..., Node]:
    """Make the function of a class of transposed convolutions; `steps` are its default strides."""

    @named(snake_case(layer.__name__), doc)
    def transposed(
        inputs: Any,
        filters: int,
        kernel_size: Any,
        strides: Any = steps,
        padding: str = "valid",
        data_format: str = "channels_last",
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
        made = layer(
            filters, kernel_size, strides, padding, data_format, activation, use_bias, kernel_initializer,
            bias_initializer, kernel_regularizer, bias_regularizer, activity_regularizer, kernel_constraint,
            bias_constraint, trainable, name, _scope=name, _reuse=reuse,
        )  # fmt: skip
        return made_by(made, inputs)

    return transposed


def _separable(layer: type[SeparableConv2D], steps: Any, doc: str) -> Callable[..., Node]:
    """Make the function of a class of separable convolutions; `steps` are its default strides and dilation."""

    @named(snake_case(layer.__name__), doc)
    def separable(
        inputs: Any,
        filters: int,
        kernel_size: Any,
        strides: Any = steps,
        padding: str = "valid",
        data_format: str = "channels_last",
        dilation_rate: Any = steps,
        depth_multiplier: int = 1,
        activation: Callable[..., Any] | str | None = None,
        use_bias: bool = True,
        depthwise_initializer: Any = None,
        pointwise_initializer: Any = None,
        bias_initializer: Any = None,
        depthwise_regularizer: Any = None,
        pointwise_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        depthwise_constraint: Any = None,
        pointwise_constraint: Any = None,
        bias_constraint: Any = None,
        trainable: bool = True,
        name: str | None = None,
        reuse: Any = None,
    ) -> Node:
        made = layer(
            filters, kernel_size, strides, padding, data_format, dilation_rate, depth_multiplier, activation, use_bias,
            depthwise_initializer, pointwise_initializer, bias_initializer, depthwise_regularizer,
            pointwise_regularizer, bias_regularizer, activity_regularizer, depthwise_constraint, pointwise_constraint,
            bias_constraint, trainable, name, _scope=name, _reuse=reuse,
        )  # fmt: skip
        return made_by(made, inputs)

    return separable


def _pooling(layer: type[MaxPooling2D], dimensions: str, operator: str) -> Callable[..., Node]:
    """Make the function of a class that pools.

    Args:
        layer: The class.
        dimensions: The names of the dimensions that its windows go over.
        operator: The name of the operator in `gs.nn`; "" where there is none.
    """
    or_one = ", or one int for all" if "," in dimensions else ""
    value = "largest value" if layer._largest else "mean"
    first = f"Give the {value} of each window" + (f"; see `gs.nn.{operator}`." if operator else ".")
    doc = f"""{first}

    Args:
        inputs: Floating node [batch, {dimensions}, channels].
        pool_size: Sizes of the windows along {dimensions}{or_one}.
        strides: Steps along {dimensions}{or_one}.
        padding: "valid" or "same".
        data_format: "channels_last", or "channels_first": the channels of inputs and result come after the batch.
        name: Name of the node.
    """

    @named(snake_case(layer.__name__), doc)
    def pooling(
        inputs: Any,
        pool_size: Any,
        strides: Any,
        padding: str = "valid",
        data_format: str = "channels_last",
        name: str | None = None,
    ) -> Node:
        return made_by(layer(pool_size, strides, padding, data_format, name, _scope=name), inputs)

    return pooling


conv2d = _convolution(
    Conv2D,
    (1, 1),
    """Convolve images with filters of its own; see `gs.nn.conv2d`.

    Args:
        inputs: Floating node [batch, height, width, channels].
        filters: How many filters.
        kernel_size: Height and width of the filters, or one int for both.
        strides: Steps along height and width, or one int for both.
        padding: "valid" or "same".
        data_format: "channels_last", or "channels_first": the channels of inputs and result come after the batch.
        dilation_rate: Steps along height and width between the elements of a filter, or one int for both.
        kernel_initializer: As for `dense`, of shape [height, width, channels, filters].
        name: Scope of the Variables; default "conv2d", made unique.

    The other arguments are those of `dense`.

    Returns:
        A node [batch, rows, columns, filters].

    Raises:
        ValueError: For both strides and dilation, or if the number of channels is not known.
    """,
)
conv1d = _convolution(
    Conv1D,
    1,
    """Convolve sequences with filters of its own.

    Args:
        inputs: Floating node [batch, length, channels].
        filters: How many filters.
        kernel_size: Width of the filters.
        strides: Steps along the length.
        dilation_rate: Steps between the elements of a filter.
        kernel_initializer: Initializer of "kernel" [width, channels, filters].
        name: Scope of the Variables; default "conv1d", made unique.

    The other arguments, and what is raised, are those of `conv2d`.

    Returns:
        A node [batch, new length, filters].
    """,
)
conv3d = _convolution(
    Conv3D,
    (1, 1, 1),
    """Convolve volumes with filters of its own.

    Args:
        inputs: Floating node [batch, depth, height, width, channels].
        filters: How many filters.
        kernel_size: Depth, height and width of the filters, or one int for all.
        strides: Steps along them, or one int for all.
        dilation_rate: Only 1.
        kernel_initializer: Initializer of "kernel" [*kernel_size, channels, filters].
        name: Scope of the Variables; default "conv3d", made unique.

    The other arguments are those of `conv2d`.

    Returns:
        A node [batch, planes, rows, columns, filters].

    Raises:
        ValueError: For a dilation, or if the number of channels is not known.
    """,
)
conv2d_transpose = _transposed(
    Conv2DTranspose,
    (1, 1),
    """Enlarge images: each value spreads a filter over the result; see `gs.nn.conv2d_transpose`.

    Args:
        inputs: Floating node [batch, height, width, channels].
        filters: How many channels the result has.
        kernel_size: Height and width of the filters, or one int for both.
        strides: By how much height and width grow, or one int for both.
        kernel_initializer: Initializer of "kernel" [height, width, filters, channels].
        name: Scope of the Variables; default "conv2d_transpose", made unique.

    The other arguments are those of `conv2d`.

    Returns:
        A node [batch, rows, columns, filters]: with "same", of `strides` times the size.

    Raises:
        ValueError: If the number of channels is not known.
    """,
)
conv3d_transpose = _transposed(
    Conv3DTranspose,
    (1, 1, 1),
    """Enlarge volumes: `conv2d_transpose` of `inputs` [batch, depth, height, width, channels].

    `filters`, `kernel_size` and the others are those of `conv3d`.
    """,
)
separable_conv2d = _separable(
    SeparableConv2D,
    (1, 1),
    """Convolve each channel by itself, then mix the channels at each place; see `gs.nn.separable_conv2d`.

    Args:
        inputs: Floating node [batch, height, width, channels].
        filters: How many channels the result has.
        kernel_size: Height and width of the filters, or one int for both.
        strides: Steps along height and width, or one int for both.
        dilation_rate: Steps between the elements of a filter, or one int for both.
        depth_multiplier: How many filters each channel has.
        depthwise_initializer: Initializer of "depthwise_kernel" [height, width, channels, depth_multiplier].
        pointwise_initializer: Initializer of "pointwise_kernel" [1, 1, channels * depth_multiplier, filters].
        depthwise_regularizer: Function of the depthwise kernel to a loss, which goes to REGULARIZATION_LOSSES.
        pointwise_regularizer: The same for the pointwise kernel.
        name: Scope of the Variables; default "separable_conv2d", made unique.

    The other arguments are those of `conv2d`.

    Returns:
        A node [batch, rows, columns, filters].

    Raises:
        ValueError: If the number of channels is not known.
    """,
)
separable_conv1d = _separable(
    SeparableConv1D,
    1,
    """Do what `separable_conv2d` does to sequences: `inputs` [batch, length, channels].

    `filters`, `kernel_size` (one number) and the others are as there.
    """,
)

max_pooling1d = _pooling(MaxPooling1D, "length", "")
max_pooling2d = _pooling(MaxPooling2D, "height, width", "max_pool")
max_pooling3d = _pooling(MaxPooling3D, "depth, height, width", "max_pool3d")
average_pooling1d = _pooling(AveragePooling1D, "length", "")
average_pooling2d = _pooling(AveragePooling2D, "height, width", "avg_pool")
average_pooling3d = _pooling(AveragePooling3D, "depth, height, width", "avg_pool3d")


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
