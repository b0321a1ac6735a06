"""Values of pixels: brightness, contrast, gamma, standardization, dtypes.

Layer: tf1. Source: TensorFlow 1.15 `python/ops/image_ops_impl.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globalstep.dtypes import DType, DTypeLike, as_dtype
from globalstep.tf1.gradients.registry import composed, gradient_of
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.images.geometry import image_node, sizes_of_image
from globalstep.tf1.ops.array_ops import shape as shape_of
from globalstep.tf1.ops.math_ops import abs as absolute
from globalstep.tf1.ops.math_ops import add, cast, floordiv, log, maximum, multiply, saturate_cast, sqrt, square
from globalstep.tf1.ops.random_ops import random_uniform
from globalstep.tf1.ops.reduction_ops import reduce_mean, reduce_prod, reduce_sum


def convert_image_dtype(image: Any, dtype: DTypeLike, saturate: bool = False, name: str | None = None) -> Node:
    """Give an image in another dtype, scaled: floats lie within [0, 1], integers span their dtype's range.

    Args:
        image: Node or array.
        dtype: The dtype wanted.
        saturate: Whether what is out of range becomes the nearest value in range.
        name: Name scope of the nodes; default "convert_image".

    Returns:
        A node; `image` itself if it has the dtype.
    """
    node, wanted = as_node(image), as_dtype(dtype)
    if node.dtype == wanted:
        return node
    to = saturate_cast if saturate else cast
    with node.graph.name_scope(name or "convert_image"):
        if node.dtype.is_integer and wanted.is_integer:
            have, want = int(node.dtype.max), int(wanted.max)
            if have > want:
                return to(floordiv(node, (have + 1) // (want + 1)), wanted)
            return multiply(to(node, wanted), (want + 1) // (have + 1))
        if node.dtype.is_floating and wanted.is_floating:
            return cast(node, wanted)
        if node.dtype.is_integer:
            return multiply(cast(node, wanted), 1.0 / node.dtype.max)
        return to(multiply(node, wanted.max + 0.5), wanted)


def as_floats(node: Node) -> Node:
    """Give an image as floats, as functions of values take it."""
    return node if node.dtype.is_floating else convert_image_dtype(node, "float32")


def back_to(node: Node, dtype: DType) -> Node:
    """Give an image that was made `as_floats` in the dtype that it had."""
    return convert_image_dtype(node, dtype, saturate=True)


def adjust_brightness(image: Any, delta: Any) -> Node:
    """Add to all values.

    Args:
        image: Node or array; integers span their dtype's range, floats [0, 1].
        delta: Number, or a scalar node: 1 is all of the range.

    Returns:
        A node of the shape and dtype of `image`.
    """
    node = as_node(image)
    with node.graph.name_scope("adjust_brightness"):
        floats = as_floats(node)
        return back_to(add(floats, cast(delta, floats.dtype)), node.dtype)


def random_brightness(image: Any, max_delta: float, seed: int | None = None) -> Node:
    """Add to all values what is drawn evenly from [-max_delta, max_delta); see `adjust_brightness`.

    Args:
        image: As there.
        max_delta: Not negative.
        seed: Seed of this operation; see `gs.set_random_seed`.

    Raises:
        ValueError: For a negative `max_delta`.
    """
    if max_delta < 0:
        raise ValueError("max_delta must be non-negative.")
    return adjust_brightness(image, random_uniform([], -max_delta, max_delta, seed=seed))


def adjust_contrast(images: Any, contrast_factor: Any) -> Node:
    """Multiply what each value differs by from the mean of its channel in its image.

    Args:
        images: Node or array [..., height, width, channels]; integers span their dtype's range.
        contrast_factor: Number, or a scalar node.

    Returns:
        A node of the shape and dtype of `images`.
    """
    node = as_node(images)
    if node.shape.ndims is not None and node.shape.ndims < 3:
        raise ValueError(f"'image' (shape {node.shape}) must be at least three-dimensional.")
    with node.graph.name_scope("adjust_contrast"):
        floats = as_floats(node)
        factor = contrast_factor if isinstance(contrast_factor, Node) else as_node(float(contrast_factor), "float32")
        changed = Node("AdjustContrastv2", (floats, factor), dtype=floats.dtype, shape=floats.shape)
        return back_to(changed, node.dtype)


@computes("AdjustContrastv2")
def _contrast(x: Any, by: Any) -> Any:
    count = np.shape(x)[-3] * np.shape(x)[-2]
    mean = np.sum(x, axis=(np.ndim(x) - 3, np.ndim(x) - 2), keepdims=True) / np.asarray(count, np.float32)
    return (x - mean) * by + mean


def random_contrast(image: Any, lower: float, upper: float, seed: int | None = None) -> Node:
    """Change the contrast by a factor that is drawn evenly from [lower, upper); see `adjust_contrast`.

    Args:
        image: As there.
        lower: Not negative.
        upper: Above `lower`.
        seed: Seed of this operation; see `gs.set_random_seed`.

    Raises:
        ValueError: For other bounds.
    """
    if upper <= lower:
        raise ValueError("upper must be > lower.")
    if lower < 0:
        raise ValueError("lower must be non-negative.")
    return adjust_contrast(image, random_uniform([], lower, upper, seed=seed))


def adjust_gamma(image: Any, gamma: float = 1, gain: float = 1) -> Node:
    """Give gain * image ** gamma.

    Args:
        image: Node or array; integers span their dtype's range, floats [0, 1].
        gamma: Not negative.
        gain: A factor.

    Returns:
        A node of the shape and dtype of `image`.

    Raises:
        ValueError: For a negative `gamma`.
    """
    if gamma < 0:
        raise ValueError("Gamma should be a non-negative real number.")
    node = as_node(image)
    with node.graph.name_scope("adjust_gamma"):
        floats = as_floats(node)
        return back_to(multiply(floats**gamma, gain), node.dtype)


def per_image_standardization(image: Any) -> Node:
    """Bring each image to mean 0 and deviation 1: (x - mean) / max(deviation, 1 / sqrt(number of values)).

    Args:
        image: Node or array [height, width, channels] or [batch, height, width, channels].

    Returns:
        A node, float32.

    >>> import globalstep as gs
    >>> image = gs.reshape(gs.range(4), [2, 2, 1])
    >>> with gs.Session() as sess:
    ...     print(sess.run(gs.image.per_image_standardization(image))[..., 0].round(3))
    [[-1.342 -0.447]
     [ 0.447  1.342]]
    """
    node = image_node(image)
    with node.graph.name_scope("per_image_standardization"):
        floats = cast(node, "float32")
        return Node("Standardize", (floats,), dtype="float32", shape=floats.shape)


def _axes(x: Any) -> tuple[int, ...]:
    return tuple(range(np.ndim(x) - 3, np.ndim(x)))


@computes("Standardize")
def _standardize(x: Any) -> Any:
    axes, count = _axes(x), np.float32(np.prod(np.shape(x)[-3:]))
    centred = x - np.sum(x, axis=axes, keepdims=True) / count
    variance = np.sum(centred * centred, axis=axes, keepdims=True) / count
    least = np.asarray(1 / np.sqrt(count), np.float32)
    return centred / np.sqrt(np.maximum(variance, least * least))


def total_variation(images: Any, name: str | None = None) -> Node:
    """Give the sum of the differences between neighbouring pixels, of each image.

    Args:
        images: Floating node or array [height, width, channels] or [batch, height, width, channels].
        name: Name of the node; default "total_variation".

    Returns:
        A node: a scalar, or [batch].
    """
    node = image_node(images)
    lead = sizes_of_image(node)[0]
    return Node("TotalVariation", (node,), name=name or "total_variation", dtype=node.dtype, shape=lead)


@computes("TotalVariation")
def _variation(x: Any) -> Any:
    down = np.sum(np.abs(x[..., 1:, :, :] - x[..., :-1, :, :]), axis=_axes(x))
    return down + np.sum(np.abs(x[..., 1:, :] - x[..., :-1, :]), axis=_axes(x))


def psnr(a: Any, b: Any, max_val: float, name: str | None = None) -> Node:
    """Give the peak signal-to-noise ratio of pairs of images, in decibel.

    Args:
        a: Node or array [..., height, width, channels].
        b: Another of the same shape.
        max_val: How far apart the least and the greatest possible value are.
        name: Name scope of the nodes; default "PSNR".

    Returns:
        A node [...], float32.
    """
    one, other = as_node(a), as_node(b)
    with one.graph.name_scope(name or "PSNR"):
        largest = max_val / one.dtype.max if one.dtype.is_integer else max_val
        floats = convert_image_dtype(one, "float32"), convert_image_dtype(other, "float32")
        shape = None if one.shape.dims is None else one.shape.as_list()[:-3]
        return Node("PSNR", floats, dtype="float32", shape=TensorShape(shape), attrs={"largest": largest})


@computes("PSNR")
def _psnr(x: Any, y: Any, *, largest: float) -> Any:
    error = np.sum((x - y) ** 2, axis=_axes(x)) / np.float32(np.prod(np.shape(x)[-3:]))
    return np.float32(20 * np.log10(largest)) - np.float32(10 / np.log(10)) * np.log(error)


_IMAGE = [-3, -2, -1]


def _contrast_of(node: Node) -> Node:
    x, factor = node.inputs
    mean = reduce_mean(x, [-3, -2], keepdims=True)
    return (x - mean) * cast(factor, x.dtype) + mean


def _standardized(node: Node) -> Node:
    (x,) = node.inputs
    centred = x - reduce_mean(x, _IMAGE, keepdims=True)
    # The root of a variance of zero has no gradient; the least deviation is taken there anyway.
    least = 1.0 / cast(reduce_prod(shape_of(x)[-3:]), "float32")
    return centred / sqrt(maximum(reduce_mean(square(centred), _IMAGE, keepdims=True), least))


def _variation_of(node: Node) -> Node:
    (x,) = node.inputs
    down = reduce_sum(absolute(x[..., 1:, :, :] - x[..., :-1, :, :]), _IMAGE)
    return down + reduce_sum(absolute(x[..., 1:, :] - x[..., :-1, :]), _IMAGE)


def _ratio_of(node: Node) -> Node:
    """Return the ratio but for a constant."""
    x, y = node.inputs
    return float(-10 / np.log(10)) * log(reduce_mean(square(x - y), _IMAGE))


gradient_of("AdjustContrastv2")(composed(_contrast_of))
gradient_of("PSNR")(composed(_ratio_of))
gradient_of("Standardize")(composed(_standardized))
gradient_of("TotalVariation")(composed(_variation_of))
