"""The classes Dense, Dropout and Flatten of `gs.layers`.

Layer: tf1. Source: TensorFlow 1.15 `python/layers/core.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from globalstep.tf1.graph.graph import Node
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.layers.by_name import activation_of
from globalstep.tf1.layers.layer import (
    InputSpec,
    Layer,
    chosen,
    is_channels_first,
    known_rank,
    last_size,
    weight_options,
)
from globalstep.tf1.ops import nn_ops
from globalstep.tf1.ops.array_ops import reshape
from globalstep.tf1.ops.array_ops import shape as shape_of
from globalstep.tf1.ops.conv_ops import to_channels_last
from globalstep.tf1.ops.init_ops import zeros_initializer
from globalstep.tf1.ops.joining_ops import stack
from globalstep.tf1.ops.product_ops import matmul, tensordot


class Dense(Layer):
    """activation(inputs @ kernel + bias), as a layer; see `gs.layers.dense` for the arguments.

    Attributes:
        kernel: The Variable [n, units], from the first call on.
        bias: The Variable [units]; None without.
    """

    def __init__(
        self,
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
        **kwargs: Any,
    ) -> None:
        super().__init__(trainable, name, activity_regularizer=activity_regularizer, **kwargs)
        self.units, self.activation, self.use_bias = int(units), activation_of(activation), bool(use_bias)
        self.kernel: Any = None
        self.bias: Any = None
        self._kernel = weight_options(kernel_initializer, kernel_regularizer, kernel_constraint)
        self._bias = weight_options(bias_initializer or zeros_initializer(), bias_regularizer, bias_constraint)
        self.input_spec = InputSpec(min_ndim=2)

    def build(self, input_shape: TensorShape) -> None:
        """See Layer."""
        require_floating(self)
        last = last_size(input_shape, "Dense")
        self.input_spec = InputSpec(min_ndim=2, axes={-1: last})
        self.kernel = self.add_weight("kernel", [last, self.units], **self._kernel)
        if self.use_bias:
            self.bias = self.add_weight("bias", [self.units], **self._bias)
        self.built = True

    def call(self, inputs: Node, **kwargs: Any) -> Node:
        """See Layer."""
        if inputs.shape.ndims == 2:
            result = matmul(inputs, self.kernel)
        else:
            result = tensordot(inputs, self.kernel, [[known_rank(inputs) - 1], [0]])
        return activated(result, self.bias, self.activation)


class Dropout(Layer):
    """`gs.layers.dropout` as a layer, with the same arguments; `training` is an argument of its call."""

    def __init__(
        self, rate: Any = 0.5, noise_shape: Any = None, seed: int | None = None, name: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.rate, self.noise_shape, self.seed = rate, noise_shape, seed

    def call(self, inputs: Node, training: Any = False, **kwargs: Any) -> Node:
        """See Layer."""
        rate, options = self.rate, {"noise_shape": self.noise_shape, "seed": self.seed}
        result: Node = chosen(training, lambda: nn_ops.dropout(inputs, rate=rate, **options), lambda: inputs)
        return result


class Flatten(Layer):
    """`gs.layers.flatten` as a layer: keeps the first dimension and makes the others one."""

    def __init__(self, data_format: str = "channels_last", name: str | None = None, **kwargs: Any) -> None:
        self._first = is_channels_first(data_format)
        super().__init__(name=name, **kwargs)
        self.input_spec = InputSpec(min_ndim=2)

    def call(self, inputs: Node, **kwargs: Any) -> Node:
        """See Layer."""
        if self._first and known_rank(inputs) > 2:
            inputs = to_channels_last(inputs)
        sizes = inputs.shape.as_list()
        rest = [size for size in sizes[1:] if size is not None]
        if len(rest) < len(sizes) - 1:
            return reshape(inputs, stack([shape_of(inputs)[0], -1]))
        return reshape(inputs, [-1, math.prod(rest)])


def activated(result: Node, bias: Any, activation: Callable[..., Any] | None) -> Node:
    """Give activation(result + bias); each may be None."""
    if bias is not None:
        result = nn_ops.bias_add(result, bias)
    output: Node = result if activation is None else activation(result)
    return output


def require_floating(layer: Layer) -> None:
    """Refuse a layer whose inputs are not floating.

    Raises:
        TypeError: If they are not.
    """
    # One that is built by hand, without a dtype, is of float32, which get_variable gives it.
    if layer.dtype is not None and not layer.dtype.is_floating:
        raise TypeError(f"{type(layer).__name__} takes floating inputs; {layer.name!r} got {layer.dtype}.")
