"""The classes Conv1D, Conv2D and Conv3D of `gs.layers`, and those that are transposed.

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
    triple,
    weight_options,
    with_channels_last,
)
from globalstep.tf1.ops import conv_ops, more_conv_ops, volume_ops
from globalstep.tf1.ops.array_ops import expand_dims, squeeze
from globalstep.tf1.ops.array_ops import shape as shape_of
from globalstep.tf1.ops.init_ops import zeros_initializer
from globalstep.tf1.ops.more_conv_ops import dilated


class Conv2D(Layer):
    """A convolution of images as a layer; see `gs.layers.conv2d` for the arguments.

    Attributes:
        kernel: The Variable [height, width, channels, filters], from the first call on.
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
        **kwargs: Any,
    ) -> None:
        self._first = is_channels_first(data_format)
        super().__init__(trainable, name, activity_regularizer=activity_regularizer, **kwargs)
        self.filters, self.activation, self.use_bias = int(filters), activation_of(activation), bool(use_bias)
        self.kernel_size, self.strides, self.dilation_rate = map(self._sizes, (kernel_size, strides, dilation_rate))
        self.padding = padding.upper()
        if max(self.strides) > 1 and max(self.dilation_rate) > 1:
            raise ValueError("`strides > 1` not supported in conjunction with `dilation_rate > 1`.")
        self.kernel: Any = None
        self.bias: Any = None
        self._kernel = weight_options(kernel_initializer, kernel_regularizer, kernel_constraint)
        self._bias = weight_options(bias_initializer or zeros_initializer(), bias_regularizer, bias_constraint)
        self.input_spec = InputSpec(ndim=4)

    def build(self, input_shape: TensorShape) -> None:
        """See Layer."""
        require_floating(self)
        channels = channels_of(input_shape, self._first, type(self).__name__)
        self.input_spec = InputSpec(ndim=input_shape.ndims, axes={1 if self._first else -1: channels})
        self.kernel = self.add_weight("kernel", self._kernel_shape(channels), **self._kernel)
        if self.use_bias:
            self.bias = self.add_weight("bias", [self.filters], **self._bias)
        self.built = True

    def call(self, inputs: Node, **kwargs: Any) -> Node:
        """See Layer."""
        kernel = as_node(self.kernel)
        convolved = with_channels_last(
            self._first, inputs, lambda node: activated(self._convolve(node, kernel), self.bias, None)
        )
        return activated(convolved, None, self.activation)

    def _sizes(self, values: Any) -> tuple[int, ...]:
        return pair(values)

    def _kernel_shape(self, channels: int) -> list[int]:
        return [*self.kernel_size, channels, self.filters]

    def _convolve(self, images: Node, kernel: Node) -> Node:
        kernel = dilated(kernel, (self.dilation_rate[0], self.dilation_rate[1]))
        return conv_ops.conv2d(images, kernel, [1, *self.strides, 1], self.padding)


class Conv1D(Conv2D):
    """A convolution of sequences as a layer; see `gs.layers.conv1d` for the arguments.

    Attributes:
        kernel: The Variable [width, channels, filters], from the first call on.
        bias: The Variable [filters]; None without.
    """

    def __init__(self, filters: int, kernel_size: Any, strides: Any = 1, *args: Any, **kwargs: Any) -> None:
        if len(args) < 3:
            kwargs.setdefault("dilation_rate", 1)
        super().__init__(filters, kernel_size, strides, *args, **kwargs)
        self.input_spec = InputSpec(ndim=3)

    def _sizes(self, values: Any) -> tuple[int, ...]:
        (width,) = (values,) if isinstance(values, (int, np.integer)) else values
        return 1, int(width)

    def _kernel_shape(self, channels: int) -> list[int]:
        return [self.kernel_size[1], channels, self.filters]

    def _convolve(self, images: Node, kernel: Node) -> Node:
        return squeeze(super()._convolve(expand_dims(images, 1), expand_dims(kernel, 0)), [1])


class Conv3D(Conv2D):
    """A convolution of volumes as a layer; see `gs.layers.conv3d` for the arguments.

    Attributes:
        kernel: The Variable [depth, height, width, channels, filters], from the first call on.
        bias: The Variable [filters]; None without.
    """

    def __init__(self, filters: int, kernel_size: Any, strides: Any = (1, 1, 1), *args: Any, **kwargs: Any) -> None:
        if len(args) < 3:
            kwargs.setdefault("dilation_rate", 1)
        super().__init__(filters, kernel_size, strides, *args, **kwargs)
        if max(self.dilation_rate) > 1:
            raise ValueError("gs.layers.Conv3D with a dilation_rate above 1 is not supported.")
        self.input_spec = InputSpec(ndim=5)

    def _sizes(self, values: Any) -> tuple[int, ...]:
        return triple(values)

    def _convolve(self, images: Node, kernel: Node) -> Node:
        return volume_ops.conv3d(images, kernel, [1, *self.strides, 1], self.padding)


class Conv2DTranspose(Conv2D):
    """A transposed convolution of images as a layer; see `gs.layers.conv2d_transpose` for the arguments.

    Attributes:
        kernel: The Variable [height, width, filters, channels], from the first call on.
        bias: The Variable [filters]; None without.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = (1, 1),
        padding: str = "valid",
        data_format: str = "channels_last",
        activation: Callable[..., Any] | str | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(filters, kernel_size, strides, padding, data_format, 1, activation, *args, **kwargs)

    def _kernel_shape(self, channels: int) -> list[int]:
        return [*self.kernel_size, self.filters, channels]

    def _convolve(self, images: Node, kernel: Node) -> Node:
        transposed = more_conv_ops.conv2d_transpose
        return transposed(images, kernel, self._output_shape(images), [1, *self.strides, 1], self.padding)

    def _output_shape(self, images: Node) -> Any:
        """Give the shape of the result: ints, or a node where the inputs' is not known."""
        static, dynamic = images.shape.as_list(), shape_of(images)
        lengths = [dynamic[i] if size is None else size for i, size in enumerate(static[:-1])]
        # TensorFlow's `deconv_output_length`.
        for axis, (size, step) in enumerate(zip(self.kernel_size, self.strides, strict=True), 1):
            lengths[axis] = lengths[axis] * step + (max(size - step, 0) if self.padding == "VALID" else 0)
        return [*lengths, self.filters]


class Conv3DTranspose(Conv2DTranspose):
    """A transposed convolution of volumes as a layer; see `gs.layers.conv3d_transpose` for the arguments.

    Attributes:
        kernel: The Variable [depth, height, width, filters, channels], from the first call on.
        bias: The Variable [filters]; None without.
    """

    def __init__(self, filters: int, kernel_size: Any, strides: Any = (1, 1, 1), *args: Any, **kwargs: Any) -> None:
        super().__init__(filters, kernel_size, strides, *args, **kwargs)
        self.input_spec = InputSpec(ndim=5)

    def _sizes(self, values: Any) -> tuple[int, ...]:
        return triple(values)

    def _convolve(self, images: Node, kernel: Node) -> Node:
        transposed = volume_ops.conv3d_transpose
        return transposed(images, kernel, self._output_shape(images), [1, *self.strides, 1], self.padding)


# TensorFlow has these under two names.
Convolution1D = Conv1D
Convolution2D = Conv2D
Convolution3D = Conv3D
Convolution2DTranspose = Conv2DTranspose
Convolution3DTranspose = Conv3DTranspose
