"""Layers in functional form that go over volumes, are transposed, or separable: the rest of `gs.layers`.

Layer: tf1. Source: TensorFlow 1.15 `python/layers/convolutional.py` and `pooling.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from globalstep.tf1.graph.graph import Node
from globalstep.tf1.layers.convolution_layers import Conv2DTranspose, Conv3D, Conv3DTranspose
from globalstep.tf1.layers.layer import made_by
from globalstep.tf1.layers.pooling_layers import AveragePooling3D, MaxPooling3D
from globalstep.tf1.layers.separable_layers import SeparableConv1D, SeparableConv2D


def conv3d(
    inputs: Any,
    filters: int,
    kernel_size: Any,
    strides: Any = (1, 1, 1),
    padding: str = "valid",
    data_format: str = "channels_last",
    dilation_rate: Any = (1, 1, 1),
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
    """Convolve volumes [batch, depth, height, width, channels]; three sizes and steps, the rest as for `conv2d`.

    Args:
        inputs: Floating node.
        filters: How many filters.
        kernel_size: Depth, height and width of the filters, or one int for all.
        strides: Steps along them, or one int for all.
        padding: "valid" or "same".
        data_format: As for `conv2d`.
        dilation_rate: Only 1.
        activation: As for `conv2d`.
        use_bias: As for `conv2d`.
        kernel_initializer: Initializer of "kernel" [*kernel_size, channels, filters].
        bias_initializer: As for `conv2d`.
        kernel_regularizer: As for `conv2d`.
        bias_regularizer: As for `conv2d`.
        activity_regularizer: As for `conv2d`.
        kernel_constraint: As for `conv2d`.
        bias_constraint: As for `conv2d`.
        trainable: As for `conv2d`.
        name: Scope of the Variables; default "conv3d", made unique.
        reuse: As for `conv2d`.

    Returns:
        A node [batch, planes, rows, columns, filters].

    Raises:
        ValueError: For a dilation, or if the number of channels is not known.
    """
    layer = Conv3D(
        filters, kernel_size, strides, padding, data_format, dilation_rate, activation, use_bias, kernel_initializer,
        bias_initializer, kernel_regularizer, bias_regularizer, activity_regularizer, kernel_constraint,
        bias_constraint, trainable, name, _scope=name, _reuse=reuse,
    )  # fmt: skip
    return made_by(layer, inputs)


def conv2d_transpose(
    inputs: Any,
    filters: int,
    kernel_size: Any,
    strides: Any = (1, 1),
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
    """Enlarge images: each value spreads a filter over the result; see `gs.nn.conv2d_transpose`.

    Args:
        inputs: Floating node [batch, height, width, channels].
        filters: How many channels the result has.
        kernel_size: Height and width of the filters, or one int for both.
        strides: By how much height and width grow, or one int for both.
        padding: "valid" or "same".
        data_format: As for `conv2d`.
        activation: As for `conv2d`.
        use_bias: As for `conv2d`.
        kernel_initializer: Initializer of "kernel" [height, width, filters, channels].
        bias_initializer: As for `conv2d`.
        kernel_regularizer: As for `conv2d`.
        bias_regularizer: As for `conv2d`.
        activity_regularizer: As for `conv2d`.
        kernel_constraint: As for `conv2d`.
        bias_constraint: As for `conv2d`.
        trainable: As for `conv2d`.
        name: Scope of the Variables; default "conv2d_transpose", made unique.
        reuse: As for `conv2d`.

    Returns:
        A node [batch, rows, columns, filters]: with "same", of `strides` times the size.

    Raises:
        ValueError: If the number of channels is not known.
    """
    layer = Conv2DTranspose(
        filters, kernel_size, strides, padding, data_format, activation, use_bias, kernel_initializer,
        bias_initializer, kernel_regularizer, bias_regularizer, activity_regularizer, kernel_constraint,
        bias_constraint, trainable, name, _scope=name, _reuse=reuse,
    )  # fmt: skip
    return made_by(layer, inputs)


def conv3d_transpose(
    inputs: Any,
    filters: int,
    kernel_size: Any,
    strides: Any = (1, 1, 1),
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
    """Enlarge volumes: `conv2d_transpose` of `inputs` [batch, depth, height, width, channels].

    `filters`, `kernel_size` and the others are those of `conv3d`.
    """
    layer = Conv3DTranspose(
        filters, kernel_size, strides, padding, data_format, activation, use_bias, kernel_initializer,
        bias_initializer, kernel_regularizer, bias_regularizer, activity_regularizer, kernel_constraint,
        bias_constraint, trainable, name, _scope=name, _reuse=reuse,
    )  # fmt: skip
    return made_by(layer, inputs)


def separable_conv2d(
    inputs: Any,
    filters: int,
    kernel_size: Any,
    strides: Any = (1, 1),
    padding: str = "valid",
    data_format: str = "channels_last",
    dilation_rate: Any = (1, 1),
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
    """Convolve each channel by itself, then mix the channels at each place; see `gs.nn.separable_conv2d`.

    Args:
        inputs: Floating node [batch, height, width, channels].
        filters: How many channels the result has.
        kernel_size: Height and width of the filters, or one int for both.
        strides: Steps along height and width, or one int for both.
        padding: "valid" or "same".
        data_format: As for `conv2d`.
        dilation_rate: Steps between the elements of a filter, or one int for both.
        depth_multiplier: How many filters each channel has.
        activation: As for `conv2d`.
        use_bias: As for `conv2d`.
        depthwise_initializer: Initializer of "depthwise_kernel" [height, width, channels, depth_multiplier].
        pointwise_initializer: Initializer of "pointwise_kernel" [1, 1, channels * depth_multiplier, filters].
        bias_initializer: As for `conv2d`.
        depthwise_regularizer: Function of the depthwise kernel to a loss, which goes to REGULARIZATION_LOSSES.
        pointwise_regularizer: The same for the pointwise kernel.
        bias_regularizer: As for `conv2d`.
        activity_regularizer: As for `conv2d`.
        depthwise_constraint: As for `conv2d`.
        pointwise_constraint: As for `conv2d`.
        bias_constraint: As for `conv2d`.
        trainable: As for `conv2d`.
        name: Scope of the Variables; default "separable_conv2d", made unique.
        reuse: As for `conv2d`.

    Returns:
        A node [batch, rows, columns, filters].

    Raises:
        ValueError: If the number of channels is not known.
    """
    layer = SeparableConv2D(
        filters, kernel_size, strides, padding, data_format, dilation_rate, depth_multiplier, activation, use_bias,
        depthwise_initializer, pointwise_initializer, bias_initializer, depthwise_regularizer, pointwise_regularizer,
        bias_regularizer, activity_regularizer, depthwise_constraint, pointwise_constraint, bias_constraint,
        trainable, name, _scope=name, _reuse=reuse,
    )  # fmt: skip
    return made_by(layer, inputs)


def separable_conv1d(
    inputs: Any,
    filters: int,
    kernel_size: Any,
    strides: Any = 1,
    padding: str = "valid",
    data_format: str = "channels_last",
    dilation_rate: Any = 1,
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
    """Do what `separable_conv2d` does to sequences: `inputs` [batch, length, channels].

    `filters`, `kernel_size` (one number) and the others are as there.
    """
    layer = SeparableConv1D(
        filters, kernel_size, strides, padding, data_format, dilation_rate, depth_multiplier, activation, use_bias,
        depthwise_initializer, pointwise_initializer, bias_initializer, depthwise_regularizer, pointwise_regularizer,
        bias_regularizer, activity_regularizer, depthwise_constraint, pointwise_constraint, bias_constraint,
        trainable, name, _scope=name, _reuse=reuse,
    )  # fmt: skip
    return made_by(layer, inputs)


def max_pooling3d(
    inputs: Any,
    pool_size: Any,
    strides: Any,
    padding: str = "valid",
    data_format: str = "channels_last",
    name: str | None = None,
) -> Node:
    """Give the largest value of each window of volumes; see `gs.nn.max_pool3d`.

    Args:
        inputs: Floating node [batch, depth, height, width, channels].
        pool_size: Depth, height and width of the windows, or one int for all.
        strides: Steps along them, or one int for all.
        padding: "valid" or "same".
        data_format: As for `conv2d`.
        name: Name of the node.
    """
    return made_by(MaxPooling3D(pool_size, strides, padding, data_format, name, _scope=name), inputs)


def average_pooling3d(
    inputs: Any,
    pool_size: Any,
    strides: Any,
    padding: str = "valid",
    data_format: str = "channels_last",
    name: str | None = None,
) -> Node:
    """Give the mean of each window of `inputs`; `pool_size`, `strides` and the others are those of `max_pooling3d`."""
    return made_by(AveragePooling3D(pool_size, strides, padding, data_format, name, _scope=name), inputs)
