"""The classes of `gs.layers` that pool: the largest or mean value of windows.

Layer: shared. Source: TensorFlow 1.15 `python/layers/pooling.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globalstep.graph.graph import Node
from globalstep.models.layer import InputSpec, Layer, pair, require_channels_last
from globalstep.ops import conv_ops
from globalstep.ops.array_ops import expand_dims, squeeze

__all__ = ["AveragePooling1D", "AveragePooling2D", "MaxPooling1D", "MaxPooling2D"]


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
        require_channels_last(data_format)
        super().__init__(name=name, **kwargs)
        self.pool_size, self.strides, self.padding = pair(pool_size), pair(strides), padding.upper()
        self.input_spec = InputSpec(ndim=4)

    def call(self, inputs: Node, **kwargs: Any) -> Node:
        """See Layer."""
        pool = conv_ops.max_pool if self._largest else conv_ops.avg_pool
        return pool(inputs, [1, *self.pool_size, 1], [1, *self.strides, 1], self.padding)


class AveragePooling2D(MaxPooling2D):
    """`gs.layers.average_pooling2d` as a layer, with the same arguments."""

    _largest = False


class MaxPooling1D(MaxPooling2D):
    """`gs.layers.max_pooling1d` as a layer, with the same arguments."""

    def __init__(self, pool_size: Any, strides: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__((1, _one(pool_size)), (1, _one(strides)), *args, **kwargs)
        self.input_spec = InputSpec(ndim=3)

    def call(self, inputs: Node, **kwargs: Any) -> Node:
        """See Layer."""
        return squeeze(super().call(expand_dims(inputs, 1)), [1])


class AveragePooling1D(MaxPooling1D):
    """`gs.layers.average_pooling1d` as a layer, with the same arguments."""

    _largest = False


def _one(values: Any) -> int:
    (value,) = (values,) if isinstance(values, (int, np.integer)) else values
    return int(value)
