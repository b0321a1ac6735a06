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

__all__ = ["avg_pool", "conv2d", "max_pool"]


@primitive
def _patches(images: Any, size: tuple[int, int], strides: tuple[int, int]) -> Any:
    """Give the windows of images [n, h, w, c] as [n, rows, columns, *size, c]."""
    windows = np.lib.stride_tricks.sliding_window_view(images, size, axis=(1, 2))
    chosen = windows[:, :: strides[0], :: strides[1]]
    return np.ascontiguousarray(np.moveaxis(chosen, 3, -1))


@primitive
def _overlay(windows: Any, size: tuple[int, int], strides: tuple[int, int], shape: tuple[int, ...]) -> Any:
    """Add windows up where `_patches` took them from."""
    out = np.zeros(shape, windows.dtype)
    rows, columns = windows.shape[1:3]
    for i in range(size[0]):
        for j in range(size[1]):
            bottom, right = i + strides[0] * (rows - 1) + 1, j + strides[1] * (columns - 1) + 1
            out[:, i : bottom : strides[0], j : right : strides[1]] += windows[:, :, :, i, j]
    return out


defvjp(_patches, lambda ans, x, size, strides: lambda g: _overlay(g, size, strides, np.shape(x)))
defvjp(_overlay, lambda ans, w, size, strides, shape: lambda g: _patches(g, size, strides))


def _pair(values: Any, what: str) -> tuple[int, int]:
    """Take the two spatial sizes out of TensorFlow's four."""
    given = [int(v) for v in values] if isinstance(values, Sequence) else [int(values)] * 2
    if len(given) == 4:
        if given[0] != 1 or given[3] != 1:
            raise ValueError(f"{what} over batch or channels are not supported: {given}.")
        given = given[1:3]
    if len(given) != 2:
        raise ValueError(f"{what} must be four numbers, got {list(given)}.")
    return given[0], given[1]


def _margins(length: int, size: int, stride: int, padding: str) -> tuple[int, int]:
    """Give how many elements are put before and after a dimension."""
    if padding == "VALID":
        return 0, 0
    missing = max((-(-length // stride) - 1) * stride + size - length, 0)
    return missing // 2, missing - missing // 2


def _prepare(images: Any, size: tuple[int, int], strides: tuple[int, int], padding: str, fill: float) -> Any:
    height, width = np.shape(images)[1:3]
    margins = (
        (0, 0),
        _margins(height, size[0], strides[0], padding),
        _margins(width, size[1], strides[1], padding),
        (0, 0),
    )
    if any(a or b for a, b in margins):
        images = anp.pad(images, margins, "constant", constant_values=fill)
    return _patches(images, size, strides)


def _check(padding: str, data_format: str) -> str:
    if padding.upper() not in ("SAME", "VALID"):
        raise ValueError(f"Unknown padding scheme {padding!r}: use 'SAME' or 'VALID'.")
    if data_format != "NHWC":
        raise ValueError(f"data_format {data_format!r} is not supported: use 'NHWC'.")
    return padding.upper()


def _output_shape(
    x: Node, size: tuple[int, int], strides: tuple[int, int], padding: str, channels: int | None
) -> TensorShape:
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
        data_format: "NHWC".
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
    steps, fit = _pair(strides, "strides"), _check(padding, data_format)
    rows, columns, channels, outputs = w.shape.as_list()
    if rows is None or columns is None:
        raise ValueError(f"The size of the filters must be known: {w.shape}.")
    if x.shape.dims is not None and x.shape.as_list()[-1] not in (None, channels):
        raise ValueError(f"The images have {x.shape.as_list()[-1]} channels, the filters {channels}.")
    size = (rows, columns)

    def convolve(images: Any, kernels: Any) -> Any:
        windows = _prepare(images, size, steps, fit, 0)
        lead = np.shape(windows)[:3]
        flat = anp.reshape(windows, (int(np.prod(lead)), -1))
        return anp.reshape(anp.matmul(flat, anp.reshape(kernels, (-1, np.shape(kernels)[-1]))), (*lead, -1))

    shape = _output_shape(x, size, steps, fit, outputs)
    return Node("Conv2D", (x, w), convolve, name=name or "Conv2D", dtype=x.dtype, shape=shape)


def max_pool(
    value: Any, ksize: Any, strides: Any, padding: str, data_format: str = "NHWC", name: str | None = None
) -> Node:
    """Give the largest value of each window.

    Args:
        value: Floating node or array [batch, height, width, channels].
        ksize: Size of the windows: four ints, the first and last 1.
        strides: Four ints, the first and last 1.
        padding: "SAME" or "VALID".
        data_format: "NHWC".
        name: Name of the node.

    Returns:
        A node [batch, rows, columns, channels].
    """
    x = require_float("MaxPool", as_node(value), "value")
    size, steps, fit = _pair(ksize, "ksize"), _pair(strides, "strides"), _check(padding, data_format)

    def pool(images: Any) -> Any:
        windows = _prepare(images, size, steps, fit, -np.inf)
        return anp.squeeze(largest(windows, (3, 4)), axis=(3, 4))

    shape = _output_shape(x, size, steps, fit, None)
    return Node("MaxPool", (x,), pool, name=name or "MaxPool", dtype=x.dtype, shape=shape)


def avg_pool(
    value: Any, ksize: Any, strides: Any, padding: str, data_format: str = "NHWC", name: str | None = None
) -> Node:
    """Give the mean of each window, of the elements inside the image.

    Args:
        value: Floating node or array [batch, height, width, channels].
        ksize: Size of the windows: four ints, the first and last 1.
        strides: Four ints, the first and last 1.
        padding: "SAME" or "VALID".
        data_format: "NHWC".
        name: Name of the node.

    Returns:
        A node [batch, rows, columns, channels].
    """
    x = require_float("AvgPool", as_node(value), "value")
    size, steps, fit = _pair(ksize, "ksize"), _pair(strides, "strides"), _check(padding, data_format)

    def pool(images: Any) -> Any:
        total = anp.sum(_prepare(images, size, steps, fit, 0), axis=(3, 4))
        inside = np.ones((1, *np.shape(images)[1:3], 1), images.dtype)
        return total / np.sum(_prepare(inside, size, steps, fit, 0), axis=(3, 4))

    shape = _output_shape(x, size, steps, fit, None)
    return Node("AvgPool", (x,), pool, name=name or "AvgPool", dtype=x.dtype, shape=shape)
