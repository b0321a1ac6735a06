"""Boxes in images: crops of them, the best of those that overlap, their outlines.

A box is [top, left, bottom, right], of numbers within [0, 1] that count in heights and widths of the image.

Layer: tf1. Source: TensorFlow 1.15 `core/kernels/crop_and_resize_op.cc`, `non_max_suppression_op.cc` and
`draw_bounding_box_op.cc`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.tf1.gradients.registry import gradient_of
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.images.geometry import image_node
from globalstep.tf1.ops.building import static_value
from globalstep.tf1.ops.math_ops import cast

#: What TensorFlow draws boxes with, one after the other: red, green, blue and alpha.
_COLORS = [
    [1, 1, 0, 1], [0, 0, 1, 1], [1, 0, 0, 1], [0, 1, 0, 1], [0.5, 0, 0.5, 1], [0.5, 0.5, 0, 1], [0.5, 0, 0, 1],
    [0, 0, 0.5, 1], [0, 1, 1, 1], [1, 0, 1, 1],
]  # fmt: skip


def crop_and_resize(
    image: Any,
    boxes: Any,
    box_ind: Any = None,
    crop_size: Any = None,
    method: str = "bilinear",
    extrapolation_value: float = 0,
    name: str | None = None,
    box_indices: Any = None,
) -> Node:
    """Cut boxes out of images, each made to one size.

    Args:
        image: Node or array [batch, height, width, channels]; gradients go to it, and not to the boxes.
        boxes: Node or array [n, 4], of normalized numbers: 1 is the middle of the last row or column.
        box_ind: Integer node or array [n]: the image of each box.
        crop_size: Height and width of the results: two ints, or an integer node.
        method: "bilinear" or "nearest".
        extrapolation_value: What is outside of the image.
        name: Name of the node; default "CropAndResize".
        box_indices: Newer name of `box_ind`.

    Returns:
        A float32 node [n, height, width, channels].

    Raises:
        ValueError: For another method.
        InvalidArgumentError: In the run, for an image that is not there.
    """
    if method not in ("bilinear", "nearest"):
        raise ValueError(f"method must be 'bilinear' or 'nearest', got {method!r}.")
    if crop_size is None:
        raise ValueError("crop_and_resize needs crop_size.")
    images = cast(image_node(image, (4,)), "float32")
    places, numbers, size = as_node(boxes), as_node(box_indices if box_ind is None else box_ind), as_node(crop_size)
    static = static_value(size)
    lengths = [None, None] if static is None else [int(n) for n in np.asarray(static).reshape(-1)]
    count = places.shape.as_list()[0] if places.shape.ndims == 2 else None
    depth = images.shape.as_list()[-1] if images.shape.dims is not None else None
    return Node(
        "CropAndResize", (images, places, numbers, size), name=name, dtype="float32",
        shape=TensorShape([count, *lengths, depth]), attrs={"method": method, "outside": extrapolation_value},
    )  # fmt: skip


@computes("CropAndResize")
def _crop(pixels: Any, frames: Any, of: Any, wanted: Any, *, method: str, outside: float) -> Any:
    batch, height, width = np.shape(pixels)[:3]
    if np.size(of) and (np.min(of) < 0 or np.max(of) >= batch):
        raise InvalidArgumentError(f"box_index has values outside [0, {batch})")
    corners, across, down, inside = _corners(method, frames, of, wanted, height, width)
    crops = [pixels[at] for at in corners]
    if method == "bilinear":
        upper, lower = crops[0] + (crops[1] - crops[0]) * across, crops[2] + (crops[3] - crops[2]) * across
        crops = [upper + (lower - upper) * down]
    return np.where(inside, crops[0], np.float32(outside)).astype(np.float32)


@gradient_of("CropAndResize")
def _crop_gradient(node: Node, grad: Node) -> Sequence[Node | None]:
    shape, attrs = node.inputs[0].shape, {"method": node.attrs["method"]}
    found = Node("CropAndResizeGrad", (grad, *node.inputs), dtype="float32", shape=shape, attrs=attrs)
    return found, None, None, None


@computes("CropAndResizeGrad")
def _crop_back(gradient: Any, pixels: Any, frames: Any, of: Any, wanted: Any, *, method: Any) -> Any:
    corners, across, down, inside = _corners(method, frames, of, wanted, *pixels.shape[1:3])
    found, gradient = np.zeros_like(pixels), np.where(inside, gradient, np.float32(0))
    weights = [1]
    if method == "bilinear":
        weights = [(1 - across) * (1 - down), across * (1 - down), (1 - across) * down, across * down]
    for at, weight in zip(corners, weights, strict=True):
        np.add.at(found, at, gradient * weight)
    return found


def _sampled(low: Any, high: Any, count: int, size: int) -> tuple[Any, Any]:
    """Give where along an axis the values of each box are taken [n, count], and whether that is in the image."""
    one, last = np.float32(1), np.float32(size - 1)
    low, high = low.astype(np.float32), high.astype(np.float32)
    if count > 1:
        step = (high - low) * last / np.float32(count - 1)
        places = (low * last)[:, None] + np.arange(count, dtype=np.float32) * step[:, None]
    else:
        places = (one / 2 * (low + high) * last)[:, None]
    return places, (places >= 0) & (places <= last)


def _corners(method: str, frames: Any, of: Any, wanted: Any, height: int, width: int) -> tuple[Any, Any, Any, Any]:
    """Give the pixels that crops are made of: the upper left, upper right, lower left and lower right ones.

    Returns:
        The indices of each of the four, or of the nearest alone; how far the place lies from the left ones to the right
        ones, and down; and whether it is in the image.
    """
    rows, columns = (int(n) for n in np.asarray(wanted).reshape(-1))
    ys, in_rows = _sampled(frames[:, 0], frames[:, 2], rows, height)
    xs, in_columns = _sampled(frames[:, 1], frames[:, 3], columns, width)
    inside = in_rows[:, :, None, None] & in_columns[:, None, :, None]
    image_of = np.asarray(of)[:, None, None]
    if method == "nearest":
        # As C++ rounds: halves away from 0.
        row, column = (np.floor(np.clip(v, 0, None) + np.float32(0.5)).astype(np.int64) for v in (ys, xs))
        places = image_of, np.clip(row, 0, height - 1)[:, :, None], np.clip(column, 0, width - 1)[:, None, :]
        return [places], None, None, inside
    edges = []
    for places, size in ((ys, height), (xs, width)):
        lower = np.clip(np.floor(places), 0, size - 1)
        upper = np.clip(np.ceil(places), 0, size - 1)
        edges.append((lower.astype(np.int64), upper.astype(np.int64), (places - np.floor(places)).astype(np.float32)))
    (top, bottom, down), (left, right, across) = edges
    corners = [(image_of, row[:, :, None], column[:, None, :]) for row in (top, bottom) for column in (left, right)]
    return corners, across[:, None, :, None], down[:, :, None, None], inside


def non_max_suppression(
    boxes: Any,
    scores: Any,
    max_output_size: Any,
    iou_threshold: Any = 0.5,
    score_threshold: Any = float("-inf"),
    name: str | None = None,
) -> Node:
    """Choose the boxes with the highest scores, of those that overlap only the best.

    Args:
        boxes: Node or array [n, 4]: two opposite corners of each, [y1, x1, y2, x2], in any unit.
        scores: Node or array [n].
        max_output_size: How many at most: an int or an integer node.
        iou_threshold: Boxes overlap whose common part is more than this share of what they cover together.
        score_threshold: Boxes with this score or less are left out.
        name: Name of the node; default "NonMaxSuppressionV3".

    Returns:
        An int32 node [m]: which boxes, the best first.
    """
    inputs = [as_node(boxes), as_node(scores), as_node(max_output_size), as_node(iou_threshold, "float32"),
              as_node(score_threshold, "float32")]  # fmt: skip
    return Node("NonMaxSuppressionV3", inputs, name=name, dtype="int32", shape=[None], attrs={"stops_gradient": True})


@computes("NonMaxSuppressionV3")
def _choose(frames: Any, values: Any, most: Any, overlap: Any, least: Any) -> Any:
    low, high = np.minimum(frames[:, :2], frames[:, 2:]), np.maximum(frames[:, :2], frames[:, 2:])
    areas = np.prod(high - low, axis=1)
    order = np.argsort(-values, kind="stable")
    order = order[values[order] > least]
    chosen: list[int] = []
    while order.size and len(chosen) < int(most):
        best, order = order[0], order[1:]
        chosen.append(int(best))
        common = np.prod(np.maximum(np.minimum(high[best], high[order]) - np.maximum(low[best], low[order]), 0), axis=1)
        # A box without an area overlaps nothing.
        empty = (areas[best] <= 0) | (areas[order] <= 0)
        together = np.where(empty, 1, areas[best] + areas[order] - common)
        order = order[np.where(empty, 0, common / together) <= overlap]
    return np.array(chosen, np.int32)


def draw_bounding_boxes(images: Any, boxes: Any, name: str | None = None, colors: Any = None) -> Node:
    """Draw the outlines of boxes over images.

    Args:
        images: Floating node or array [batch, height, width, 1, 3 or 4].
        boxes: Node or array [batch, n, 4], of normalized numbers.
        name: Name of the node; default "DrawBoundingBoxes".
        colors: Node or array [m, channels]: of the boxes in turn; default TensorFlow's own ten.

    Returns:
        A node like `images`.
    """
    pixels, frames = image_node(images, (4,)), as_node(boxes)
    nodes = [] if colors is None else [as_node(colors)]
    return Node(
        "DrawBoundingBoxes", (pixels, frames, *nodes), name=name, dtype=pixels.dtype, shape=pixels.shape,
        attrs={"stops_gradient": True},
    )  # fmt: skip


@computes("DrawBoundingBoxes")
def _draw(batch: Any, places: Any, *palette: Any) -> Any:
    result = np.array(batch)
    height, width, depth = np.shape(batch)[1:]
    paints = np.asarray(palette[0] if palette else _COLORS, np.float32)
    if not palette and depth == 1:
        paints = np.ones_like(paints)
    for image, own in zip(result, places, strict=True):
        for number, (top, left, bottom, right) in enumerate(own):
            # As C++ cuts floats to ints.
            rows = [int(np.float32(v) * np.float32(height - 1)) for v in (top, bottom)]
            columns = [int(np.float32(v) * np.float32(width - 1)) for v in (left, right)]
            if rows[0] > rows[1] or columns[0] > columns[1]:
                continue
            if rows[0] >= height or rows[1] < 0 or columns[0] >= width or columns[1] < 0:
                continue
            paint = paints[number % len(paints)][:depth]
            lines = slice(max(rows[0], 0), min(rows[1], height - 1) + 1)
            across = slice(max(columns[0], 0), min(columns[1], width - 1) + 1)
            for row in rows:
                if 0 <= row < height:
                    image[row, across] = paint
            for column in columns:
                if 0 <= column < width:
                    image[lines, column] = paint
    return result
