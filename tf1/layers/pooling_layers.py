"""The classes of `gs.layers` that pool: the largest or mean value of windows.

Layer: tf1. Source: TensorFlow 1.15 `python/layers/pooling.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globalstep.tf1.graph.graph import Node
from globalstep.tf1.layers.layer import InputSpec, Layer, is_channels_first, pair, triple, with_channels_last
from globalstep.tf1.ops import conv_ops, volume_ops
from globalstep.tf1.ops.array_ops import expand_dims, squeeze


class MaxPooling2D(Layer):
    """`gs.layers.max_pooling2d` as a layer, with the same arguments."""

    _largest = True

    def __init__(
        self,
        pool_size: Any,
        strides: Any,
        padding: str = "valid",
        data_format: str = "channels_last",
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        self._first = is_channels_first(data_format)
        super().__init__(name=name, **kwargs)
        self.pool_size, self.strides, self.padding = self._sizes(pool_size), self._sizes(strides), padding.upper()
        self.input_spec = InputSpec(ndim=4)

    def call(self, inputs: Node, **kwargs: Any) -> Node:
        """See Layer."""
        return with_channels_last(self._first, inputs, self._pooled)

    def _sizes(self, values: Any) -> tuple[int, ...]:
        return pair(values)

    def _pooled(self, images: Node) -> Node:
        pool = conv_ops.max_pool if self._largest else conv_ops.avg_pool
        return pool(images, [1, *self.pool_size, 1], [1, *self.strides, 1], self.padding)


class AveragePooling2D(MaxPooling2D):
    """`gs.layers.average_pooling2d` as a layer, with the same arguments."""

    _largest = False


class MaxPooling1D(MaxPooling2D):
    """`gs.layers.max_pooling1d` as a layer, with the same arguments."""

    def __init__(self, pool_size: Any, strides: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(pool_size, strides, *args, **kwargs)
        self.input_spec = InputSpec(ndim=3)

    def _sizes(self, values: Any) -> tuple[int, ...]:
        (value,) = (values,) if isinstance(values, (int, np.integer)) else values
        return 1, int(value)

    def _pooled(self, images: Node) -> Node:
        return squeeze(super()._pooled(expand_dims(images, 1)), [1])


class AveragePooling1D(MaxPooling1D):
    """`gs.layers.average_pooling1d` as a layer, with the same arguments."""

    _largest = False


class MaxPooling3D(MaxPooling2D):
    """`gs.layers.max_pooling3d` as a layer, with the same arguments."""

    def __init__(self, pool_size: Any, strides: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(pool_size, strides, *args, **kwargs)
        self.input_spec = InputSpec(ndim=5)

    def _sizes(self, values: Any) -> tuple[int, ...]:
        return triple(values)

    def _pooled(self, images: Node) -> Node:
        pool = volume_ops.max_pool3d if self._largest else volume_ops.avg_pool3d
        return pool(images, [1, *self.pool_size, 1], [1, *self.strides, 1], self.padding)


class AveragePooling3D(MaxPooling3D):
    """`gs.layers.average_pooling3d` as a layer, with the same arguments."""

    _largest = False
