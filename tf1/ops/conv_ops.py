"""Convolution and pooling of images, as nodes; `globalstep.tf1.ops.sliding_windows` computes them.

Products of matrices by numpy, a few images at a time; a model that lives on convolutions is better off with `gs.torch`
or `gs.jax`.

Layer: tf1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import autograd.numpy as anp
import numpy as np

from globalstep.tf1.gradients.vjps import Found, with_vjp
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops.building import operands, require_float
from globalstep.tf1.ops.sliding_windows import Fit, convolve, convolved_vjp, largest_of_windows, largest_vjp, patches

__all__ = [
    "avg_pool",
    "checked_padding",
    "conv2d",
    "is_channels_first",
    "last_order",
    "margins",
    "max_pool",
    "output_shape",
    "prepared",
    "spatial_sizes",
    "to_channels_first",
    "to_channels_last",
    "two_sizes",
]


def spatial_sizes(values: Any, what: str, rank: int) -> list[int]:
    """Take the `rank` spatial sizes, two or three, out of TensorFlow's, between those of batch and channels."""
    sizes = [int(v) for v in values] if isinstance(values, Sequence) else [int(values)] * rank
    if len(sizes) == rank + 2:
        if sizes[0] != 1 or sizes[-1] != 1:
            raise ValueError(f"{what} over batch or channels are not supported: {sizes}.")
        sizes = sizes[1:-1]
    if len(sizes) != rank:
        raise ValueError(f"{what} must be {'four' if rank == 2 else 'five'} numbers, got {sizes}.")
    return sizes


def two_sizes(values: Any, what: str) -> tuple[int, int]:
    """Take the two spatial sizes out of TensorFlow's four."""
    height, width = spatial_sizes(values, what, 2)
    return height, width


def margins(length: int, size: int, stride: int, padding: str) -> tuple[int, int]:
    """Give how many elements are put before and after a dimension."""
    if padding == "VALID":
        return 0, 0
    missing = max((-(-length // stride) - 1) * stride + size - length, 0)
    return missing // 2, missing - missing // 2


def _fit_of(images: Any, size: tuple[int, int], strides: tuple[int, int], padding: str) -> Fit:
    """Give how windows lie on images [n, height, width, channels] as the padding says."""
    height, width = np.shape(images)[1:3]
    return Fit(strides, margins(height, size[0], strides[0], padding), margins(width, size[1], strides[1], padding))


def prepared(images: Any, size: tuple[int, int], strides: tuple[int, int], padding: str, fill: float) -> Any:
    """Give the windows of images, with `fill` put around them as the padding says; see `patches`."""
    fit = _fit_of(images, size, strides, padding)
    if any(fit.rows) or any(fit.columns):
        around = ((0, 0), fit.rows, fit.columns, (0, 0))
        images = anp.pad(images, around, "constant", constant_values=fill)
    return patches(images, size, strides)


def checked_padding(padding: str) -> str:
    """Give the padding in capitals.

    Raises:
        ValueError: If it is none.
    """
    if not isinstance(padding, str) or padding.upper() not in ("SAME", "VALID"):
        raise ValueError(f"Unknown padding scheme {padding!r}: use 'SAME' or 'VALID'.")
    return padding.upper()


#: Rank -> the two orders of dimensions, channels last and first, each by its names.
_ORDERS = {3: (("NWC", "NHWC"), ("NCW", "NCHW")), 4: (("NHWC",), ("NCHW",)), 5: (("NDHWC",), ("NCDHW",))}


def is_channels_first(data_format: str | None, rank: int) -> bool:
    """Say whether the channels of inputs of a rank come before the other dimensions.

    Raises:
        ValueError: If `data_format` is no order of dimensions.
    """
    last, first = _ORDERS[rank]
    if data_format is None or data_format in last:
        return False
    if data_format in first:
        return True
    raise ValueError(f"data_format {data_format!r} is not supported: use {last[0]!r} or {first[0]!r}.")


def _moved(node: Node, source: int, target: int) -> Node:
    shape = None
    if node.shape.dims is not None:
        shape = node.shape.as_list()
        shape.insert(target % len(shape), shape.pop(source))
    return Node(
        "Transpose", (node,), lambda x: anp.moveaxis(x, source, target), name="transpose", dtype=node.dtype,
        shape=TensorShape(shape), attrs={"moved": (source, target)},
    )  # fmt: skip


def to_channels_last(node: Node) -> Node:
    """Give [batch, channels, ...] as [batch, ..., channels]."""
    return _moved(node, 1, -1)


def to_channels_first(node: Node) -> Node:
    """Give [batch, ..., channels] as [batch, channels, ...]."""
    return _moved(node, -1, 1)


def last_order(values: Any) -> Any:
    """Give four numbers for [batch, channels, height, width] in the order with the channels last."""
    if isinstance(values, Sequence) and len(values) == 4:
        return [values[0], values[2], values[3], values[1]]
    return values


def output_shape(
    x: Node, size: tuple[int, int], strides: tuple[int, int], padding: str, channels: int | None
) -> TensorShape:
    """Give the static shape of what windows over images give; `channels` None for as many as `x` has."""
    if x.shape.dims is None:
        return TensorShape([None] * 4)
    n, height, width, own = x.shape.as_list()
    lengths: list[int | None] = []
    for length, window, stride in ((height, size[0], strides[0]), (width, size[1], strides[1])):
        if length is None:
            lengths.append(None)
        else:
            lengths.append(-(-(length if padding == "SAME" else length - window + 1) // stride))
    return TensorShape([n, *lengths, own if channels is None else channels])


def conv2d(
    input: Any,
    filter: Any = None,
    strides: Any = None,
    padding: str | None = None,
    use_cudnn_on_gpu: bool = True,
    data_format: str = "NHWC",
    name: str | None = None,
    filters: Any = None,
) -> Node:
    """Convolve images with filters.

    Args:
        input: Floating node or array [batch, height, width, channels].
        filter: Node or array [height, width, channels, outputs].
        strides: Four ints, the first and last 1.
        padding: "SAME" or "VALID".
        use_cudnn_on_gpu: Accepted; without effect.
        data_format: "NHWC", or "NCHW": then `input` and the result have their channels second.
        name: Name of the node.
        filters: Newer name of `filter`.

    Returns:
        A node [batch, rows, columns, outputs].

    Raises:
        ValueError: For arguments that do not fit.
    """
    x, w = operands("Conv2D", input, filter if filters is None else filters, ("input", "filter"))
    require_float("Conv2D", x, "input")
    if strides is None or padding is None:
        raise ValueError("conv2d needs strides and padding.")
    if is_channels_first(data_format, 4):
        return to_channels_first(conv2d(to_channels_last(x), w, last_order(strides), padding, name=name))
    steps, fit = two_sizes(strides, "strides"), checked_padding(padding)
    rows, columns, channels, outputs = w.shape.as_list()
    if rows is None or columns is None:
        raise ValueError(f"The size of the filters must be known: {w.shape}.")
    if x.shape.dims is not None and x.shape.as_list()[-1] not in (None, channels):
        raise ValueError(f"The images have {x.shape.as_list()[-1]} channels, the filters {channels}.")
    size = (rows, columns)

    def evaluate(images: Any, kernels: Any) -> Any:
        return convolve(images, kernels, _fit_of(images, size, steps, fit))

    def vjp(images: Any, kernels: Any) -> Found:
        return convolved_vjp(images, kernels, _fit_of(images, size, steps, fit))

    with_vjp(evaluate, vjp)
    shape = output_shape(x, size, steps, fit, outputs)
    attrs = {"strides": steps, "padding": fit}
    return Node("Conv2D", (x, w), evaluate, name=name or "Conv2D", dtype=x.dtype, shape=shape, attrs=attrs)


def max_pool(
    value: Any, ksize: Any, strides: Any, padding: str, data_format: str = "NHWC", name: str | None = None
) -> Node:
    """Give the largest value of each window.

    Args:
        value: Floating node or array [batch, height, width, channels].
        ksize: Size of the windows: four ints, the first and last 1.
        strides: Four ints, the first and last 1.
        padding: "SAME" or "VALID".
        data_format: "NHWC", or "NCHW": then `value` and the result have their channels second.
        name: Name of the node.

    Returns:
        A node [batch, rows, columns, channels].
    """
    x = require_float("MaxPool", as_node(value), "value")
    if is_channels_first(data_format, 4):
        return to_channels_first(
            max_pool(to_channels_last(x), last_order(ksize), last_order(strides), padding, name=name)
        )
    size, steps, fit = two_sizes(ksize, "ksize"), two_sizes(strides, "strides"), checked_padding(padding)

    def pool(images: Any) -> Any:
        return largest_of_windows(images, size, _fit_of(images, size, steps, fit))

    with_vjp(pool, lambda images: largest_vjp(images, size, _fit_of(images, size, steps, fit)))
    shape = output_shape(x, size, steps, fit, None)
    attrs = {"ksize": size, "strides": steps, "padding": fit}
    return Node("MaxPool", (x,), pool, name=name or "MaxPool", dtype=x.dtype, shape=shape, attrs=attrs)


def avg_pool(
    value: Any, ksize: Any, strides: Any, padding: str, data_format: str = "NHWC", name: str | None = None
) -> Node:
    """Give the mean of each window, of the elements inside the image.

    Args:
        value: Floating node or array [batch, height, width, channels].
        ksize: Size of the windows: four ints, the first and last 1.
        strides: Four ints, the first and last 1.
        padding: "SAME" or "VALID".
        data_format: "NHWC", or "NCHW": then `value` and the result have their channels second.
        name: Name of the node.

    Returns:
        A node [batch, rows, columns, channels].
    """
    x = require_float("AvgPool", as_node(value), "value")
    if is_channels_first(data_format, 4):
        return to_channels_first(
            avg_pool(to_channels_last(x), last_order(ksize), last_order(strides), padding, name=name)
        )
    size, steps, fit = two_sizes(ksize, "ksize"), two_sizes(strides, "strides"), checked_padding(padding)

    def pool(images: Any) -> Any:
        total = anp.sum(prepared(images, size, steps, fit, 0), axis=(3, 4))
        inside = np.ones((1, *np.shape(images)[1:3], 1), images.dtype)
        return total / np.sum(prepared(inside, size, steps, fit, 0), axis=(3, 4))

    shape = output_shape(x, size, steps, fit, None)
    attrs = {"ksize": size, "strides": steps, "padding": fit}
    return Node("AvgPool", (x,), pool, name=name or "AvgPool", dtype=x.dtype, shape=shape, attrs=attrs)
