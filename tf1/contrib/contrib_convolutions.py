"""Convolutions of `tf.contrib.layers` and `tf.contrib.slim` that are transposed, separable, or go over volumes.

Layer: tf1. Source: TensorFlow 1.15 `contrib/layers/python/layers/layers.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from globalstep.tf1.contrib.arg_scope import add_arg_scope
from globalstep.tf1.contrib.contrib_layers import (
    WEIGHTS,
    XAVIER,
    ZEROS,
    collect_variable,
    collect_variables,
    collected,
    collections_of,
    convolution_of,
    finished,
    layer_format,
    pooling_of,
)
from globalstep.tf1.contrib.model_variables import model_variable, renamed_getter
from globalstep.tf1.graph.callables import named
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.layers import convolution_layers, pooling_layers, separable_layers
from globalstep.tf1.layers.layer import channels_of, pair, with_channels_last
from globalstep.tf1.ops import more_conv_ops, nn_ops
from globalstep.tf1.variables.variable_scope import variable_scope

_SEPARABLE = renamed_getter(
    {"bias": "biases", "depthwise_kernel": "depthwise_weights", "pointwise_kernel": "pointwise_weights"}
)


convolution3d = convolution_of(
    3,
    "convolution3d",
    "Convolve volumes: `convolution` of `inputs`, `num_outputs`, `kernel_size`; `rate` is 1.",
)


def _transposed(
    made: type[convolution_layers.Conv2DTranspose], name: str, name_scope: str, formats: tuple[str, str], doc: str
) -> Callable[..., Node]:
    """Make the function that enlarges as a class of `gs.layers` does."""

    @add_arg_scope
    @named(name, doc)
    def transposed(
        inputs: Any,
        num_outputs: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: str = "SAME",
        data_format: str = formats[0],
        activation_fn: Callable[..., Any] | None = nn_ops.relu,
        normalizer_fn: Callable[..., Any] | None = None,
        normalizer_params: dict[str, Any] | None = None,
        weights_initializer: Any = XAVIER,
        weights_regularizer: Any = None,
        biases_initializer: Any = ZEROS,
        biases_regularizer: Any = None,
        reuse: Any = None,
        variables_collections: Any = None,
        outputs_collections: Any = None,
        trainable: bool = True,
        scope: Any = None,
    ) -> Node:
        order = layer_format(data_format, formats)
        with variable_scope(scope, name_scope, [inputs], reuse=reuse, custom_getter=WEIGHTS) as entered:
            layer = made(
                num_outputs, kernel_size, stride, padding, order,
                use_bias=not normalizer_fn and biases_initializer is not None, kernel_initializer=weights_initializer,
                bias_initializer=biases_initializer, kernel_regularizer=weights_regularizer,
                bias_regularizer=biases_regularizer, trainable=trainable, name=entered.name, _scope=entered,
                _reuse=reuse,
            )  # fmt: skip
            result = layer.apply(inputs)
            collect_variables(layer, variables_collections)
            return collected(outputs_collections, finished(result, normalizer_fn, normalizer_params, activation_fn))

    return transposed


convolution2d_transpose = _transposed(
    convolution_layers.Conv2DTranspose,
    "convolution2d_transpose",
    "Conv2d_transpose",
    ("NHWC", "NCHW"),
    """Enlarge images: each value spreads a filter over the result; see `gs.layers.conv2d_transpose`.

    Args:
        inputs: Floating node [batch, height, width, channels]; the number of channels must be known.
        num_outputs: How many channels the result has.
        kernel_size: Height and width of the filters, or one int for both.
        stride: By how much height and width grow, or one int for both.
        padding: "SAME" or "VALID".
        data_format: "NHWC", or "NCHW" for channels that come right after the batch.
        weights_initializer: Initializer of "weights" [height, width, num_outputs, channels].
        scope: Scope of the Variables; default "Conv2d_transpose", made unique.

    The other arguments are those of `fully_connected`.

    Returns:
        A node [batch, rows, columns, num_outputs].

    Raises:
        ValueError: For another data format.
    """,
)
convolution3d_transpose = _transposed(
    convolution_layers.Conv3DTranspose,
    "convolution3d_transpose",
    "Conv3d_transpose",
    ("NDHWC", "NCDHW"),
    "Enlarge volumes: `convolution2d_transpose` of `inputs`, `num_outputs` and `kernel_size`.",
)


@add_arg_scope
def separable_convolution2d(
    inputs: Any,
    num_outputs: int | None,
    kernel_size: Any,
    depth_multiplier: int = 1,
    stride: Any = 1,
    padding: str = "SAME",
    data_format: str = "NHWC",
    rate: Any = 1,
    activation_fn: Callable[..., Any] | None = nn_ops.relu,
    normalizer_fn: Callable[..., Any] | None = None,
    normalizer_params: dict[str, Any] | None = None,
    weights_initializer: Any = XAVIER,
    pointwise_initializer: Any = None,
    weights_regularizer: Any = None,
    biases_initializer: Any = ZEROS,
    biases_regularizer: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    scope: Any = None,
) -> Node:
    """Convolve each channel by itself, then mix the channels at each place.

    Args:
        inputs: Floating node [batch, height, width, channels]; the number of channels must be known.
        num_outputs: How many channels the result has; None to leave the channels unmixed.
        kernel_size: Height and width of the filters, or one int for both.
        depth_multiplier: How many filters each channel has.
        stride: Steps along height and width, or one int for both.
        padding: "SAME" or "VALID".
        data_format: "NHWC", or "NCHW" for channels that come right after the batch.
        rate: Steps between the elements of a filter, or one int for both.
        activation_fn: As for `fully_connected`.
        normalizer_fn: As for `fully_connected`.
        normalizer_params: As for `fully_connected`.
        weights_initializer: Initializer of "depthwise_weights" [height, width, channels, depth_multiplier].
        pointwise_initializer: That of "pointwise_weights" [1, 1, channels * depth_multiplier, num_outputs]; default
            `weights_initializer`.
        weights_regularizer: As for `fully_connected`, for both.
        biases_initializer: As for `fully_connected`.
        biases_regularizer: As for `fully_connected`.
        reuse: As for `fully_connected`.
        variables_collections: As for `fully_connected`.
        outputs_collections: As for `fully_connected`.
        trainable: As for `fully_connected`.
        scope: Scope of the Variables; default "SeparableConv2d", made unique.

    Returns:
        A node [batch, rows, columns, num_outputs, or channels * depth_multiplier].

    Raises:
        ValueError: For another data format.
    """
    order = layer_format(data_format, ("NHWC", "NCHW"))
    with variable_scope(scope, "SeparableConv2d", [inputs], reuse=reuse, custom_getter=_SEPARABLE) as entered:
        node = as_node(inputs)
        if num_outputs is not None:
            layer = separable_layers.SeparableConv2D(
                num_outputs, kernel_size, stride, padding, order, rate, depth_multiplier,
                use_bias=not normalizer_fn and biases_initializer is not None,
                depthwise_initializer=weights_initializer,
                pointwise_initializer=pointwise_initializer or weights_initializer,
                bias_initializer=biases_initializer, depthwise_regularizer=weights_regularizer,
                pointwise_regularizer=weights_regularizer, bias_regularizer=biases_regularizer, trainable=trainable,
                name=entered.name, _scope=entered, _reuse=reuse,
            )  # fmt: skip
            result = layer.apply(node)
            kernels = (layer.depthwise_kernel, layer.pointwise_kernel)
            for variable, name in (*((kernel, "weights") for kernel in kernels), (layer.bias, "biases")):
                if variable is not None:
                    collect_variable(variable, collections_of(variables_collections, name))
            return collected(outputs_collections, finished(result, normalizer_fn, normalizer_params, activation_fn))

        channels = channels_of(node.shape, order == "channels_first", "separable_conv2d")
        weights = model_variable(
            "depthwise_weights", [*pair(kernel_size), channels, depth_multiplier], node.dtype, weights_initializer,
            weights_regularizer, trainable, collections_of(variables_collections, "weights"),
        )  # fmt: skip
        biases = None
        if normalizer_fn is None and biases_initializer is not None:
            biases = model_variable(
                "biases", [channels * depth_multiplier], node.dtype, biases_initializer, biases_regularizer,
                trainable, collections_of(variables_collections, "biases"),
            )  # fmt: skip

        def convolve(images: Node) -> Node:
            steps = [1, *pair(stride), 1]
            made = more_conv_ops.depthwise_conv2d(images, weights, steps, padding, list(pair(rate)))
            return made if biases is None else nn_ops.bias_add(made, biases)

        result = with_channels_last(order == "channels_first", node, convolve)
        return collected(outputs_collections, finished(result, normalizer_fn, normalizer_params, activation_fn))


max_pool3d = pooling_of(
    pooling_layers.MaxPooling3D,
    "MaxPool3D",
    ("NDHWC", "NCDHW"),
    """Give the largest value of each window of volumes.

    Args:
        inputs: Floating node [batch, depth, height, width, channels].
        kernel_size: Depth, height and width of the windows, or one int for all.
        stride: Steps along them, or one int for all.
        padding: "VALID" or "SAME".
        data_format: "NDHWC", or "NCDHW" for channels that come right after the batch.
        outputs_collections: Collections that the result is added to.
        scope: Name scope of the node; default "MaxPool3D".
    """,
)
avg_pool3d = pooling_of(
    pooling_layers.AveragePooling3D,
    "AvgPool3D",
    ("NDHWC", "NCDHW"),
    "Give the mean of each window of `inputs`; `kernel_size` and the others are those of `max_pool3d`.",
)

# TensorFlow has these under two names.
conv2d_transpose = convolution2d_transpose
conv3d = convolution3d
conv3d_transpose = convolution3d_transpose
separable_conv2d = separable_convolution2d
