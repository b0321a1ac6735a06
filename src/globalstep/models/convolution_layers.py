"""The classes Conv1D and Conv2D of `gs.layers`.

Layer: shared. Source: TensorFlow 1.15 `python/layers/convolutional.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from globalstep.graph.graph import Node, as_node
from globalstep.graph.shapes import TensorShape
from globalstep.models.core_layers import activated, require_floating
from globalstep.models.layer import InputSpec, Layer, last_size, pair, require_channels_last
from globalstep.ops import conv_ops
from globalstep.ops.array_ops import expand_dims, squeeze
from globalstep.ops.init_ops import zeros_initializer
from globalstep.ops.more_conv_ops import dilated

__all__ = ["Conv1D", "Conv2D"]


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
        **kwargs: Any,
    ) -> None:
        require_channels_last(data_format)
        super().__init__(trainable, name, activity_regularizer=activity_regularizer, **kwargs)
        self.filters, self.activation, self.use_bias = int(filters), activation, bool(use_bias)
        self.kernel_size, self.strides, self.dilation_rate = map(self._sizes, (kernel_size, strides, dilation_rate))
        self.padding = padding.upper()
        if self.strides != (1, 1) and self.dilation_rate != (1, 1):
            raise ValueError("`strides > 1` not supported in conjunction with `dilation_rate > 1`.")
        self.kernel: Any = None
        self.bias: Any = None
        self._kernel = {
            "initializer": kernel_initializer, "regularizer": kernel_regularizer, "constraint": kernel_constraint,
        }  # fmt: skip
        self._bias = {
            "initializer": bias_initializer or zeros_initializer(), "regularizer": bias_regularizer,
            "constraint": bias_constraint,
        }  # fmt: skip
        self.input_spec = InputSpec(ndim=4)

    def build(self, input_shape: TensorShape) -> None:
        """See Layer."""
        require_floating(self)
        channels = last_size(input_shape, type(self).__name__)
        self.input_spec = InputSpec(ndim=input_shape.ndims, axes={-1: channels})
        shape = [*self._kernel_shape(), channels, self.filters]
        self.kernel = self.add_weight("kernel", shape, **self._kernel)
        if self.use_bias:
            self.bias = self.add_weight("bias", [self.filters], **self._bias)

    def call(self, inputs: Node, **kwargs: Any) -> Node:
        """See Layer."""
        return activated(self._convolve(inputs, as_node(self.kernel)), self.bias, self.activation)

    def _sizes(self, values: Any) -> tuple[int, int]:
        return pair(values)

    def _kernel_shape(self) -> list[int]:
        return list(self.kernel_size)

    def _convolve(self, images: Node, kernel: Node) -> Node:
        kernel = dilated(kernel, self.dilation_rate)
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

    def _sizes(self, values: Any) -> tuple[int, int]:
        (width,) = (values,) if isinstance(values, (int, np.integer)) else values
        return 1, int(width)

    def _kernel_shape(self) -> list[int]:
        return [self.kernel_size[1]]

    def _convolve(self, images: Node, kernel: Node) -> Node:
        return squeeze(super()._convolve(expand_dims(images, 1), expand_dims(kernel, 0)), [1])


# TensorFlow has these under two names.
Convolution1D = Conv1D
Convolution2D = Conv2D
