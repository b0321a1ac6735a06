"""Similarity of images, and differences of neighbouring pixels.

Layer: tf1. Source: TensorFlow 1.15 `python/ops/image_ops_impl.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.images.geometry import image_node
from globalstep.tf1.images.pixel_values import convert_image_dtype
from globalstep.tf1.ops import math_ops
from globalstep.tf1.ops.array_ops import reshape
from globalstep.tf1.ops.array_ops import shape as shape_of
from globalstep.tf1.ops.joining_ops import concat, pad
from globalstep.tf1.ops.more_conv_ops import depthwise_conv2d
from globalstep.tf1.ops.reduction_ops import reduce_mean

_SCALES = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)


def _window(size: int, sigma: float) -> Any:
    """Give weights [size, size] of a normal distribution, that add up to 1."""
    across = np.arange(size, dtype=np.float32) - np.float32((size - 1) / 2)
    line = -0.5 / np.float32(sigma) ** 2 * across**2
    weights = np.exp(line[None, :] + line[:, None])
    return (weights / weights.sum()).astype(np.float32)


def _per_channel(x: Node, y: Node, max_val: float, window: tuple[int, float], ks: tuple[float, float]) -> Any:
    """Give the similarity of images [n, height, width, channels], and its part that is contrast: two [n, channels]."""
    size, sigma = window
    c1, c2 = (ks[0] * max_val) ** 2, (ks[1] * max_val) ** 2
    depth = _known(x)[2]
    kernel = np.tile(_window(size, sigma)[:, :, None, None], (1, 1, depth, 1))

    def blurred(node: Node) -> Node:
        return depthwise_conv2d(node, kernel, [1, 1, 1, 1], "VALID")

    mean_x, mean_y = blurred(x), blurred(y)
    product = mean_x * mean_y * 2.0
    squares = math_ops.square(mean_x) + math_ops.square(mean_y)
    luminance = (product + c1) / (squares + c1)
    products = blurred(x * y) * 2.0
    both = blurred(math_ops.square(x) + math_ops.square(y))
    contrast = (products - product + c2) / (both - squares + c2)
    return reduce_mean(luminance * contrast, [1, 2]), reduce_mean(contrast, [1, 2])


def _pair(img1: Any, img2: Any, max_val: Any) -> tuple[Node, Node, Any, float]:
    """Give two batches of images as floats [n, height, width, channels], what comes before those, and the range."""
    one, other = as_node(img1), as_node(img2)
    if one.dtype != other.dtype:
        raise TypeError(f"Images of one dtype are compared, not {one.dtype.name} and {other.dtype.name}.")
    for node in (one, other):
        if node.shape.ndims is None or node.shape.ndims < 3 or None in node.shape.as_list()[-3:]:
            raise ValueError(f"Height, width and channels of {node.name!r} must be known: {node.shape}.")
    one.shape[-3:].assert_is_compatible_with(other.shape[-3:])
    largest = float(max_val) / one.dtype.max if one.dtype.is_integer else float(max_val)
    lead, sizes = shape_of(one)[:-3], one.shape.as_list()[-3:]
    first, second = (reshape(convert_image_dtype(node, "float32"), [-1, *sizes]) for node in (one, other))
    return first, second, lead, largest


def _known(images: Node) -> tuple[int, int, int]:
    """Give height, width and channels, which `_pair` saw to be known."""
    rows, columns, depth = (int(size or 0) for size in images.shape.as_list()[-3:])
    return rows, columns, depth


def ssim(
    img1: Any,
    img2: Any,
    max_val: float,
    filter_size: int = 11,
    filter_sigma: float = 1.5,
    k1: float = 0.01,
    k2: float = 0.03,
) -> Node:
    """Give the structural similarity of pairs of images: 1 for equal ones.

    Args:
        img1: Node or array [..., height, width, channels], not smaller than the window.
        img2: Another of the same shape and dtype.
        max_val: How far apart the least and the greatest possible value are.
        filter_size: Height and width of the window.
        filter_sigma: Width of the normal distribution in it.
        k1: See `c1` of Wang and others, Image Quality Assessment: From Error Visibility to Structural Similarity, 2004.
        k2: Likewise.

    Returns:
        A float32 node [...].

    Raises:
        ValueError: If a size is not known, or is less than the window's.
    """
    one = as_node(img1)
    with one.graph.name_scope("SSIM"):
        x, y, lead, largest = _pair(one, img2, max_val)
        if min(_known(x)[:2]) < filter_size:
            raise ValueError(f"The images {_known(x)[:2]} are smaller than the window, {filter_size}.")
        similarity, _ = _per_channel(x, y, largest, (filter_size, filter_sigma), (k1, k2))
        made = reshape(reduce_mean(similarity, [-1]), lead)
    return _with_shape(made, one)


def _with_shape(node: Node, image: Node) -> Node:
    node.set_shape(image.shape.as_list()[:-3])
    return node


def ssim_multiscale(
    img1: Any,
    img2: Any,
    max_val: float,
    power_factors: Any = _SCALES,
    filter_size: int = 11,
    filter_sigma: float = 1.5,
    k1: float = 0.01,
    k2: float = 0.03,
) -> Node:
    """Give the structural similarity of pairs of images over several sizes, each half of the one before.

    `power_factors` is the weight of each size, the largest first; `img1`, `img2`, `max_val` and the others are those of
    `ssim`.

    Returns:
        A float32 node [...].

    Raises:
        ValueError: If the smallest size is less than the window's.
    """
    one = as_node(img1)
    with one.graph.name_scope("MS-SSIM"):
        x, y, lead, largest = _pair(one, img2, max_val)
        parts = []
        for number, _ in enumerate(power_factors):
            if number:
                x, y = _halved(x), _halved(y)
            if min(_known(x)[:2]) < filter_size:
                raise ValueError(f"Size {number} of the images, {x.shape}, is less than the window, {filter_size}.")
            similarity, contrast = _per_channel(x, y, largest, (filter_size, filter_sigma), (k1, k2))
            parts.append(math_ops.maximum(contrast if number < len(power_factors) - 1 else similarity, 0.0))
        total = parts[0] ** float(power_factors[0])
        for part, power in zip(parts[1:], power_factors[1:], strict=True):
            total = total * part ** float(power)
        made = reshape(reduce_mean(total, [-1]), lead)
    return _with_shape(made, one)


def _halved(images: Node) -> Node:
    """Give the mean of each two rows and columns; the last ones count twice where their number is odd."""
    rows, columns, depth = _known(images)
    if rows % 2 or columns % 2:
        images = pad(images, [[0, 0], [0, rows % 2], [0, columns % 2], [0, 0]], "SYMMETRIC")
    return depthwise_conv2d(images, np.full((2, 2, depth, 1), 0.25, np.float32), [1, 2, 2, 1], "VALID")


def image_gradients(image: Any) -> tuple[Node, Node]:
    """Give by how much each pixel differs from the one below, and from the one to the right; 0 at the edges.

    Args:
        image: Node or array [batch, height, width, channels].

    Returns:
        Two nodes of its shape and dtype.
    """
    node = image_node(image, (4,))
    down = pad(node[:, 1:] - node[:, :-1], [[0, 0], [0, 1], [0, 0], [0, 0]])
    right = pad(node[:, :, 1:] - node[:, :, :-1], [[0, 0], [0, 0], [0, 1], [0, 0]])
    return down, right


def sobel_edges(image: Any) -> Node:
    """Give the edges of images down and across: [batch, height, width, channels, 2].

    Args:
        image: Floating node or array [batch, height, width, channels], whose number of channels is known.
    """
    node = image_node(image, (4,))
    depth = node.shape.as_list()[-1]
    if depth is None:
        raise ValueError(f"The number of channels of {node.name!r} must be known: {node.shape}.")
    filters = np.array([[[-1, -2, -1], [0, 0, 0], [1, 2, 1]], [[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]]], np.float32)
    kernel = np.tile(np.moveaxis(filters, 0, -1)[:, :, None, :], (1, 1, depth, 1))
    padded = pad(node, [[0, 0], [1, 1], [1, 1], [0, 0]], "REFLECT")
    edges = depthwise_conv2d(padded, kernel, [1, 1, 1, 1], "VALID")
    return reshape(edges, concat([shape_of(node), [2]], 0))
