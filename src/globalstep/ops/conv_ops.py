"""Convolution and pooling of images, as products of matrices over sliding windows.

Plain numpy: right, and quick enough for small images; a model that lives on convolutions is better off
with `gs.torch` or `gs.jax`.

Layer: shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.extend import defvjp, primitive

from globalstep.graph.graph import Node, as_node
from globalstep.graph.shapes import TensorShape
from globalstep.ops.building import operands, require_float
from globalstep.ops.primitives import largest

__all__ = [
    "avg_pool",
    "checked_padding",
    "conv2d",
    "is_channels_first",
    "last_order",
    "margins",
    "max_pool",
    "output_shape",
    "overlay",
    "prepared",
    "to_channels_first",
    "to_channels_last",
    "two_sizes",
]


@primitive
def _patches(images: Any, size: tuple[int, int], strides: tuple[int, int]) -> Any:
    """Give the windows of images [n, h, w, c] as [n, rows, columns, *size, c]."""
    windows = np.lib.stride_tricks.sliding_window_view(images, size, axis=(1, 2))
    chosen = windows[:, :: strides[0], :: strides[1]]
    return np.ascontiguousarray(np.moveaxis(chosen, 3, -1))


@primitive
def overlay(windows: Any, size: tuple[int, int], strides: tuple[int, int], shape: tuple[int, ...]) -> Any:
    """Add windows up where `_patches` took them from."""
    out = np.zeros(shape, windows.dtype)
    rows, columns = windows.shape[1:3]
    for i in range(size[0]):
        for j in range(size[1]):
            bottom, right = i + strides[0] * (rows - 1) + 1, j + strides[1] * (columns - 1) + 1
            out[:, i : bottom : strides[0], j : right : strides[1]] += windows[:, :, :, i, j]
    return out


defvjp(_patches, lambda ans, x, size, strides: lambda g: overlay(g, size, strides, np.shape(x)))
defvjp(overlay, lambda ans, w, size, strides, shape: lambda g: _patches(g, size, strides))


def two_sizes(values: Any, what: str) -> tuple[int, int]:
    """Take the two spatial sizes out of TensorFlow's four."""
    given = [int(v) for v in values] if isinstance(values, Sequence) else [int(values)] * 2
    if len(given) == 4:
        if given[0] != 1 or given[3] != 1:
            raise ValueError(f"{what} over batch or channels are not supported: {given}.")
        given = given[1:3]
    if len(given) != 2:
        raise ValueError(f"{what} must be four numbers, got {list(given)}.")
    return given[0], given[1]


def margins(length: int, size: int, stride: int, padding: str) -> tuple[int, int]:
    """Give how many elements are put before and after a dimension."""
    if padding == "VALID":
        return 0, 0
    missing = max((-(-length // stride) - 1) * stride + size - length, 0)
    return missing // 2, missing - missing // 2


def prepared(images: Any, size: tuple[int, int], strides: tuple[int, int], padding: str, fill: float) -> Any:
    """Give the windows of images, with `fill` put around them as the padding says; see `_patches`."""
    height, width = np.shape(images)[1:3]
    around = (
        (0, 0),
        margins(height, size[0], strides[0], padding),
        margins(width, size[1], strides[1], padding),
        (0, 0),
    )
    if any(a or b for a, b in around):
        images = anp.pad(images, around, "constant", constant_values=fill)
    return _patches(images, size, strides)


def checked_padding(padding: str) -> str:
    """Give the padding in capitals.

    Raises:
        ValueError: If it is none.
    """
    if not isinstance(padding, str) or padding.upper() not in ("SAME", "VALID"):
        raise ValueError(f"Unknown padding scheme {padding!r}: use 'SAME' or 'VALID'.")
    return padding.upper()


#: Rank -> the two orders of dimensions, channels last and first, each by its names.
_ORDERS = {
    3: (("NWC", "NHWC"), ("NCW", "NCHW")),
    4: (("NHWC",), ("NCHW",)),
}


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

    def convolve(images: Any, kernels: Any) -> Any:
        windows = prepared(images, size, steps, fit, 0)
        lead = np.shape(windows)[:3]
        flat = anp.reshape(windows, (int(np.prod(lead)), -1))
        return anp.reshape(anp.matmul(flat, anp.reshape(kernels, (-1, np.shape(kernels)[-1]))), (*lead, -1))

    shape = output_shape(x, size, steps, fit, outputs)
    attrs = {"strides": steps, "padding": fit}
    return Node("Conv2D", (x, w), convolve, name=name or "Conv2D", dtype=x.dtype, shape=shape, attrs=attrs)


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
        windows = prepared(images, size, steps, fit, -np.inf)
        return anp.squeeze(largest(windows, (3, 4)), axis=(3, 4))

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
