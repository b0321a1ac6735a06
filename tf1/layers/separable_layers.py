"""The classes SeparableConv1D and SeparableConv2D of `gs.layers`.

Layer: tf1. Source: TensorFlow 1.15 `python/layers/convolutional.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.layers.by_name import activation_of
from globalstep.tf1.layers.core_layers import activated, require_floating
from globalstep.tf1.layers.layer import (
    InputSpec,
    Layer,
    channels_of,
    is_channels_first,
    pair,
    weight_options,
    with_channels_last,
)
from globalstep.tf1.ops import more_conv_ops
from globalstep.tf1.ops.array_ops import expand_dims, squeeze
from globalstep.tf1.ops.init_ops import zeros_initializer


class SeparableConv2D(Layer):
    """A convolution of each channel by itself, and a mixture of channels, as a layer; see `gs.layers.separable_conv2d`.

    Attributes:
        depthwise_kernel: The Variable [height, width, channels, depth_multiplier], from the first call on.
        pointwise_kernel: The Variable [1, 1, channels * depth_multiplier, filters].
        bias: The Variable [filters]; None without.
    """

    def __init__(
        self,
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
        **kwargs: Any,
    ) -> None:
        self._first = is_channels_first(data_format)
        super().__init__(trainable, name, activity_regularizer=activity_regularizer, **kwargs)
        self.filters, self.depth_multiplier = int(filters), int(depth_multiplier)
        self.activation, self.use_bias, self.padding = activation_of(activation), bool(use_bias), padding.upper()
        self.kernel_size, self.strides, self.dilation_rate = map(self._sizes, (kernel_size, strides, dilation_rate))
        self.depthwise_kernel: Any = None
        self.pointwise_kernel: Any = None
        self.bias: Any = None
        self._depthwise = weight_options(depthwise_initializer, depthwise_regularizer, depthwise_constraint)
        self._pointwise = weight_options(pointwise_initializer, pointwise_regularizer, pointwise_constraint)
        self._bias = weight_options(bias_initializer or zeros_initializer(), bias_regularizer, bias_constraint)
        self.input_spec = InputSpec(ndim=4)

    def build(self, input_shape: TensorShape) -> None:
        """See Layer."""
        require_floating(self)
        channels = channels_of(input_shape, self._first, type(self).__name__)
        self.input_spec = InputSpec(ndim=input_shape.ndims, axes={1 if self._first else -1: channels})
        size, ones = self._window(), [1] * len(self._window())
        shape = [*size, channels, self.depth_multiplier]
        self.depthwise_kernel = self.add_weight("depthwise_kernel", shape, **self._depthwise)
        shape = [*ones, channels * self.depth_multiplier, self.filters]
        self.pointwise_kernel = self.add_weight("pointwise_kernel", shape, **self._pointwise)
        if self.use_bias:
            self.bias = self.add_weight("bias", [self.filters], **self._bias)
        self.built = True

    def call(self, inputs: Node, **kwargs: Any) -> Node:
        """See Layer."""
        convolved = with_channels_last(
            self._first, inputs, lambda node: activated(self._convolve(node), self.bias, None)
        )
        return activated(convolved, None, self.activation)

    def _sizes(self, values: Any) -> tuple[int, int]:
        return pair(values)

    def _window(self) -> list[int]:
        return list(self.kernel_size)

    def _convolve(self, images: Node) -> Node:
        return self._separable(images, as_node(self.depthwise_kernel), as_node(self.pointwise_kernel))

    def _separable(self, images: Node, depthwise: Node, pointwise: Node) -> Node:
        steps, rate = [1, *self.strides, 1], list(self.dilation_rate)
        return more_conv_ops.separable_conv2d(images, depthwise, pointwise, steps, self.padding, rate)


class SeparableConv1D(SeparableConv2D):
    """`SeparableConv2D` of sequences; see `gs.layers.separable_conv1d`.

    Attributes:
        depthwise_kernel: The Variable [width, channels, depth_multiplier], from the first call on.
        pointwise_kernel: The Variable [1, channels * depth_multiplier, filters].
        bias: The Variable [filters]; None without.
    """

    def __init__(self, filters: int, kernel_size: Any, strides: Any = 1, *args: Any, **kwargs: Any) -> None:
        if len(args) < 3:
            kwargs.setdefault("dilation_rate", 1)
        super().__init__(filters, kernel_size, strides, *args, **kwargs)
        self.input_spec = InputSpec(ndim=3)

    def _sizes(self, values: Any) -> tuple[int, int]:
        (width,) = (values,) if isinstance(values, (int, np.integer)) else values
        return int(width), int(width)

    def _window(self) -> list[int]:
        return [self.kernel_size[1]]

    def _convolve(self, images: Node) -> Node:
        kernels = [expand_dims(as_node(kernel), 0) for kernel in (self.depthwise_kernel, self.pointwise_kernel)]
        return squeeze(self._separable(expand_dims(images, 1), *kernels), [1])


# TensorFlow has these under two names.
SeparableConvolution1D = SeparableConv1D
SeparableConvolution2D = SeparableConv2D
