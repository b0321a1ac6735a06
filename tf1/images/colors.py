"""Colours of images: hue, saturation, grey, and the spaces that they are in.

Layer: tf1. Source: TensorFlow 1.15 `python/ops/image_ops_impl.py`, `core/kernels/colorspace_op.h`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from globalstep.tf1.gradients.registry import composed, gradient_of
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.images.pixel_values import as_floats, back_to, convert_image_dtype
from globalstep.tf1.ops import math_ops
from globalstep.tf1.ops.array_ops import expand_dims
from globalstep.tf1.ops.building import require_float
from globalstep.tf1.ops.constant_ops import ones_like, zeros_like
from globalstep.tf1.ops.indexing_ops import where
from globalstep.tf1.ops.joining_ops import stack, tile
from globalstep.tf1.ops.product_ops import tensordot
from globalstep.tf1.ops.random_ops import random_uniform

#: What red, green and blue weigh in grey.
_GREY = (0.2989, 0.5870, 0.1140)


def _channels(node: Node, wanted: int, what: str) -> Node:
    sizes = node.shape.as_list() if node.shape.dims is not None else [None]
    if not sizes or sizes[-1] not in (None, wanted):
        raise ValueError(f"{what} takes images of {wanted} channels; {node.op_name!r} has the shape {node.shape}.")
    return node


def rgb_to_hsv(images: Any, name: str | None = None) -> Node:
    """Give hue, saturation and value, each within [0, 1], of colours.

    Args:
        images: Floating node or array [..., 3]: red, green and blue within [0, 1].
        name: Name of the node.

    Returns:
        A node of its shape.
    """
    node = _channels(require_float("RGBToHSV", as_node(images), "images"), 3, "rgb_to_hsv")
    return Node("RGBToHSV", (node,), name=name or "RGBToHSV", dtype=node.dtype, shape=node.shape)


def hsv_to_rgb(images: Any, name: str | None = None) -> Node:
    """Give red, green and blue of colours that are hue, saturation and value; the reverse of `rgb_to_hsv`.

    Args:
        images: Floating node or array [..., 3].
        name: Name of the node.

    Returns:
        A node of its shape.
    """
    node = _channels(require_float("HSVToRGB", as_node(images), "images"), 3, "hsv_to_rgb")
    return Node("HSVToRGB", (node,), name=name or "HSVToRGB", dtype=node.dtype, shape=node.shape)


#: What the formulas below are made of, for nodes; for arrays it is numpy.
_OF_NODES = SimpleNamespace(
    abs=math_ops.abs, equal=math_ops.equal, floor=math_ops.floor, maximum=math_ops.maximum, minimum=math_ops.minimum,
    ones_like=ones_like, stack=stack, where=where, zeros_like=zeros_like,
)  # fmt: skip


@computes("RGBToHSV")
def _to_hsv(x: Any, m: Any = np) -> Any:
    red, green, blue = x[..., 0], x[..., 1], x[..., 2]
    value = m.maximum(m.maximum(red, green), blue)
    spread = value - m.minimum(m.minimum(red, green), blue)
    none = m.equal(spread, 0)
    # Where a divisor is zero another one is put in, so that no gradient is NaN.
    saturation = m.where(value > 0, spread / m.where(value > 0, value, m.ones_like(value)), m.zeros_like(value))
    norm = 1 / (6 * m.where(none, m.ones_like(spread), spread))
    hue = m.where(
        m.equal(red, value),
        norm * (green - blue),
        m.where(m.equal(green, value), norm * (blue - red) + 2 / 6, norm * (red - green) + 4 / 6),
    )
    hue = m.where(none, m.zeros_like(hue), hue)
    hue = m.where(hue < 0, hue + 1, hue)
    return m.stack([hue, saturation, value], axis=-1)


@computes("HSVToRGB")
def _to_rgb(x: Any, m: Any = np) -> Any:
    hue, saturation, value = x[..., 0] * 6, x[..., 1], x[..., 2]
    zero, one = m.zeros_like(hue), m.ones_like(hue)

    def within(shade: Any) -> Any:
        return m.minimum(m.maximum(shade, zero), one)

    shades = (within(m.abs(hue - 3) - 1), within(2 - m.abs(hue - 2)), within(2 - m.abs(hue - 4)))
    return m.stack([((1 - saturation) + saturation * shade) * value for shade in shades], axis=-1)


@computes("AdjustHue")
def _turned(x: Any, by: Any, m: Any = np) -> Any:
    hsv = _to_hsv(x, m)
    hue = hsv[..., 0] + by
    return _to_rgb(m.stack([hue - m.floor(hue), hsv[..., 1], hsv[..., 2]], axis=-1), m)


@computes("AdjustSaturation")
def _saturated(x: Any, factor: Any, m: Any = np) -> Any:
    hsv = _to_hsv(x, m)
    saturation = hsv[..., 1] * factor
    one, zero = m.ones_like(saturation), m.zeros_like(saturation)
    return _to_rgb(m.stack([hsv[..., 0], m.minimum(m.maximum(saturation, zero), one), hsv[..., 2]], axis=-1), m)


gradient_of("RGBToHSV")(composed(lambda node: _to_hsv(node.inputs[0], _OF_NODES)))
gradient_of("HSVToRGB")(composed(lambda node: _to_rgb(node.inputs[0], _OF_NODES)))
gradient_of("AdjustHue")(composed(lambda node: _turned(*_of_one_dtype(node), _OF_NODES)))
gradient_of("AdjustSaturation")(composed(lambda node: _saturated(*_of_one_dtype(node), _OF_NODES)))


def _of_one_dtype(node: Node) -> tuple[Node, Node]:
    x, factor = node.inputs
    return x, math_ops.cast(factor, x.dtype)


def _number_of(value: Any, dtype: Any = "float32") -> Node:
    return as_node(value) if isinstance(value, Node) else as_node(float(value), dtype)


def adjust_hue(image: Any, delta: Any, name: str | None = None) -> Node:
    """Turn the hue of colours by `delta` of a full turn.

    Args:
        image: Node or array [..., 3] of red, green and blue; integers span their dtype's range, floats [0, 1].
        delta: Number within [-1, 1], or a scalar node.
        name: Name scope of the nodes; default "adjust_hue".

    Returns:
        A node of the shape and dtype of `image`.
    """
    node = _channels(as_node(image), 3, "adjust_hue")

    with node.graph.name_scope(name or "adjust_hue"):
        floats, shift = as_floats(node), _number_of(delta)
        turned = Node("AdjustHue", (floats, shift), dtype=floats.dtype, shape=floats.shape)
        return back_to(turned, node.dtype)


def random_hue(image: Any, max_delta: float, seed: int | None = None) -> Node:
    """Turn the hue of colours by what is drawn evenly from [-max_delta, max_delta); see `adjust_hue`.

    Args:
        image: As there.
        max_delta: Within [0, 0.5].
        seed: Seed of this operation; see `gs.set_random_seed`.

    Raises:
        ValueError: For another `max_delta`.
    """
    if max_delta > 0.5:
        raise ValueError("max_delta must be <= 0.5.")
    if max_delta < 0:
        raise ValueError("max_delta must be non-negative.")
    return adjust_hue(image, random_uniform([], -max_delta, max_delta, seed=seed))


def adjust_saturation(image: Any, saturation_factor: Any, name: str | None = None) -> Node:
    """Multiply the saturation of colours.

    Args:
        image: Node or array [..., 3] of red, green and blue; integers span their dtype's range, floats [0, 1].
        saturation_factor: Number, or a scalar node.
        name: Name scope of the nodes; default "adjust_saturation".

    Returns:
        A node of the shape and dtype of `image`.
    """
    node = _channels(as_node(image), 3, "adjust_saturation")

    with node.graph.name_scope(name or "adjust_saturation"):
        floats, factor = as_floats(node), _number_of(saturation_factor)
        saturated = Node("AdjustSaturation", (floats, factor), dtype=floats.dtype, shape=floats.shape)
        return back_to(saturated, node.dtype)


def random_saturation(image: Any, lower: float, upper: float, seed: int | None = None) -> Node:
    """Multiply the saturation of colours by what is drawn evenly from [lower, upper); see `adjust_saturation`.

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
    return adjust_saturation(image, random_uniform([], lower, upper, seed=seed))


def rgb_to_grayscale(images: Any, name: str | None = None) -> Node:
    """Give the grey of colours: one channel.

    Args:
        images: Node or array [..., 3] of red, green and blue.
        name: Name scope of the nodes; default "rgb_to_grayscale".

    Returns:
        A node [..., 1] of the dtype of `images`.
    """
    node = _channels(as_node(images), 3, "rgb_to_grayscale")
    with node.graph.name_scope(name or "rgb_to_grayscale"):
        floats = as_floats(node)
        weights = np.array(_GREY, floats.dtype.as_numpy_dtype)
        grey = expand_dims(tensordot(floats, weights, [[-1 % (node.shape.ndims or 3)], [0]]), -1)
        return convert_image_dtype(grey, node.dtype)


def grayscale_to_rgb(images: Any, name: str | None = None) -> Node:
    """Give the grey of images three times, as red, green and blue.

    Args:
        images: Node or array [..., 1].
        name: Name of the node; default "grayscale_to_rgb".

    Returns:
        A node [..., 3].
    """
    node = _channels(as_node(images), 1, "grayscale_to_rgb")
    rank = node.shape.ndims
    if rank is None:
        raise ValueError(f"The rank of the image {node.op_name!r} must be known: use set_shape.")
    return tile(node, [1] * (rank - 1) + [3], name=name or "grayscale_to_rgb")
