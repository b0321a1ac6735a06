"""Geometry of images: flips, rotations, crops and padding.

Layer: tf1. Source: TensorFlow 1.15 `python/ops/image_ops_impl.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.tf1.gradients.registry import gradient_of
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops.array_ops import shape as shape_of
from globalstep.tf1.ops.building import as_shape_node, sizes_of, static_ints, static_value
from globalstep.tf1.ops.gradient_ops import again, rearranges
from globalstep.tf1.ops.random_ops import random_uniform


def image_node(image: Any, ranks: Sequence[int] = (3, 4)) -> Node:
    """Give an image, or a batch of them, as a node.

    Args:
        image: Node or array [height, width, channels] or [batch, height, width, channels].
        ranks: The ranks that it may have.

    Raises:
        ValueError: If its rank is known, and another one.
    """
    node = as_node(image)
    if node.shape.ndims is not None and node.shape.ndims not in ranks:
        words = " or ".join(map(str, ranks))
        raise ValueError(f"'image' (shape {node.shape}) must have {words} dimensions.")
    return node


def sizes_of_image(node: Node) -> tuple[list[int | None], int | None, int | None, list[int | None]]:
    """Give what is known of the shape of an image of known rank: what comes before, height, width, what comes after."""
    if node.shape.dims is None:
        raise ValueError(f"The rank of the image {node.op_name!r} must be known: use set_shape.")
    sizes = node.shape.as_list()
    return sizes[:-3], sizes[-3], sizes[-2], sizes[-1:]


def _of_image(op_type: str, name: str, shape: Any, node: Node, *others: Node, **attrs: Any) -> Node:
    return Node(op_type, (node, *others), name=name, dtype=node.dtype, shape=TensorShape(shape), attrs=attrs)


def flip_left_right(image: Any) -> Node:
    """Mirror each image: the left becomes the right.

    Args:
        image: Node or array [height, width, channels] or [batch, height, width, channels].

    Returns:
        A node of its shape and dtype.
    """
    node = image_node(image)
    return _of_image("FlipImage", "ReverseV2", node.shape, node, axis=-2)


def flip_up_down(image: Any) -> Node:
    """Turn each image upside down; see `flip_left_right`.

    Args:
        image: As there.
    """
    node = image_node(image)
    return _of_image("FlipImage", "ReverseV2", node.shape, node, axis=-3)


computes("FlipImage", lambda x, *, axis: np.flip(x, axis))


def random_flip_left_right(image: Any, seed: int | None = None) -> Node:
    """Mirror an image with probability 1/2; of a batch, each image by itself.

    Args:
        image: Node or array [height, width, channels] or [batch, height, width, channels].
        seed: Seed of this operation; see `gs.set_random_seed`.

    Returns:
        A node of its shape and dtype.
    """
    return _random_flip(image, -2, seed, "random_flip_left_right")


def random_flip_up_down(image: Any, seed: int | None = None) -> Node:
    """Turn an image upside down with probability 1/2; see `random_flip_left_right`.

    Args:
        image: As there.
        seed: As there.
    """
    return _random_flip(image, -3, seed, "random_flip_up_down")


def _random_flip(image: Any, axis: int, seed: int | None, name: str) -> Node:
    node = image_node(image)
    if node.shape.ndims is None:
        raise ValueError(f"The rank of the image {node.op_name!r} must be known: use set_shape.")
    with node.graph.name_scope(name):
        draw = random_uniform(shape_of(node)[:-3], seed=seed)
        return _of_image("RandomFlip", "Flip", node.shape, node, draw, axis=axis)


@computes("RandomFlip")
def _flip_some(x: Any, drawn: Any, *, axis: Any) -> Any:
    turned = np.flip(x, axis)
    if np.ndim(x) == 3:
        return turned if drawn < 0.5 else x
    # TensorFlow rounds what it draws: 1 flips.
    flips = np.reshape(np.round(drawn), (-1, 1, 1, 1)).astype(x.dtype)
    return flips * turned + (1 - flips) * x


def transpose_image(image: Any, name: str | None = None) -> Node:
    """Exchange the rows and columns of each image.

    Args:
        image: Node or array [height, width, channels] or [batch, height, width, channels].
        name: Name of the node.

    Returns:
        A node.
    """
    node = image_node(image)
    shape = None
    if node.shape.dims is not None:
        lead, height, width, rest = sizes_of_image(node)
        shape = [*lead, width, height, *rest]
    return _of_image("TransposeImage", name or "Transpose", shape, node)


computes("TransposeImage", lambda x: np.swapaxes(x, -3, -2))


def rot90(image: Any, k: Any = 1, name: str | None = None) -> Node:
    """Turn each image counter-clockwise by 90 degrees, `k` times.

    Args:
        image: Node or array [height, width, channels] or [batch, height, width, channels].
        k: How often: an int, or a scalar integer node.
        name: Name of the node.

    Returns:
        A node.
    """
    node, times = image_node(image), as_node(k, name="k")
    lead, height, width, rest = sizes_of_image(node)
    static = static_value(times)
    shape = [*lead, height, width, *rest]
    if static is None and height != width:
        shape = [*lead, None, None, *rest]
    elif static is not None and int(static) % 2:
        shape = [*lead, width, height, *rest]
    return _of_image("Rot90", name or "rot90", shape, node, times)


computes("Rot90", lambda x, count: np.rot90(x, int(count) % 4, (-3, -2)))


def central_crop(image: Any, central_fraction: float) -> Node:
    """Cut out the middle of each image.

    Args:
        image: Node or array [height, width, channels] or [batch, height, width, channels].
        central_fraction: Which part of the height, and of the width, is kept; within (0, 1].

    Returns:
        A node.

    Raises:
        ValueError: If `central_fraction` is not within (0, 1].
    """
    node = image_node(image)
    fraction = float(static_value(central_fraction))
    if fraction <= 0 or fraction > 1:
        raise ValueError("central_fraction must be within (0, 1]")
    if fraction == 1:
        return node
    lead, height, width, rest = sizes_of_image(node)
    lengths = [None if size is None else size - 2 * _margin(size, fraction) for size in (height, width)]
    return _of_image("CentralCrop", "central_crop", [*lead, *lengths, *rest], node, fraction=fraction)


def _margin(size: int, fraction: float) -> int:
    return int((size - size * fraction) / 2)


@computes("CentralCrop")
def _crop_middle(x: Any, *, fraction: Any) -> Any:
    rows, columns = np.shape(x)[-3:-1]
    top, left = _margin(rows, fraction), _margin(columns, fraction)
    return x[..., top : rows - top, left : columns - left, :]


def _box(values: Sequence[Any]) -> tuple[list[Node], list[int | None]]:
    """Give numbers, or scalar nodes, as nodes, with their static values."""
    nodes = [as_node(value) for value in values]
    static = [static_value(node) for node in nodes]
    return nodes, [None if value is None else int(value) for value in static]


def _require(holds: bool | None, text: str) -> None:
    """Raise ValueError if something is known not to hold."""
    if holds is not None and not holds:
        raise ValueError(text)


def _least(value: int | None, least: int) -> bool | None:
    return None if value is None else value >= least


def crop_to_bounding_box(
    image: Any, offset_height: Any, offset_width: Any, target_height: Any, target_width: Any
) -> Node:
    """Cut a box out of each image.

    Args:
        image: Node or array [height, width, channels] or [batch, height, width, channels].
        offset_height: Its first row: an int or a scalar node, as the others.
        offset_width: Its first column.
        target_height: Its height.
        target_width: Its width.

    Returns:
        A node.

    Raises:
        ValueError: If the box is known not to lie within the image.
        InvalidArgumentError: In the run, if it does not.
    """
    node = image_node(image)
    lead, height, width, rest = sizes_of_image(node)
    nodes, (top, left, rows, columns) = _box((offset_height, offset_width, target_height, target_width))
    _check_crop(height, width, top, left, rows, columns)
    return _of_image("CropToBoundingBox", "crop_to_bounding_box", [*lead, rows, columns, *rest], node, *nodes)


def _check_crop(h: int | None, w: int | None, t: int | None, e: int | None, r: int | None, c: int | None) -> None:
    _require(_least(e, 0), "offset_width must be >= 0.")
    _require(_least(t, 0), "offset_height must be >= 0.")
    _require(_least(c, 1), "target_width must be > 0.")
    _require(_least(r, 1), "target_height must be > 0.")
    if w is not None and c is not None and e is not None:
        _require(w >= c + e, "width must be >= target + offset.")
    if h is not None and r is not None and t is not None:
        _require(h >= r + t, "height must be >= target + offset.")


@computes("CropToBoundingBox")
def _crop(x: Any, *box: Any) -> Any:
    t, e, r, c = (int(item) for item in box)
    _checked(_check_crop, (*np.shape(x)[-3:-1], t, e, r, c))
    return x[..., t : t + r, e : e + c, :]


def _checked(check: Callable[..., None], arguments: Sequence[Any]) -> None:
    """Check in a run what could not be checked before."""
    try:
        check(*arguments)
    except ValueError as error:
        raise InvalidArgumentError(f"assertion failed: {error}") from None


def pad_to_bounding_box(
    image: Any, offset_height: Any, offset_width: Any, target_height: Any, target_width: Any
) -> Node:
    """Put zeros around each image.

    Args:
        image: Node or array [height, width, channels] or [batch, height, width, channels].
        offset_height: Rows of zeros above it: an int or a scalar node, as the others.
        offset_width: Columns of zeros on its left.
        target_height: Height of the result.
        target_width: Width of the result.

    Returns:
        A node.

    Raises:
        ValueError: If the image is known not to fit in.
        InvalidArgumentError: In the run, if it does not.
    """
    node = image_node(image)
    lead, height, width, rest = sizes_of_image(node)
    nodes, (top, left, rows, columns) = _box((offset_height, offset_width, target_height, target_width))
    _check_pad(height, width, top, left, rows, columns)
    return _of_image("PadToBoundingBox", "pad_to_bounding_box", [*lead, rows, columns, *rest], node, *nodes)


def _check_pad(h: int | None, w: int | None, t: int | None, e: int | None, r: int | None, c: int | None) -> None:
    _require(_least(t, 0), "offset_height must be >= 0")
    _require(_least(e, 0), "offset_width must be >= 0")
    if w is not None and c is not None and e is not None:
        _require(c - e - w >= 0, "width must be <= target - offset")
    if h is not None and r is not None and t is not None:
        _require(r - t - h >= 0, "height must be <= target - offset")


@computes("PadToBoundingBox")
def _pad(x: Any, *box: Any) -> Any:
    t, e, r, c = (int(item) for item in box)
    h, w = np.shape(x)[-3:-1]
    _checked(_check_pad, (h, w, t, e, r, c))
    margins = [(0, 0)] * (np.ndim(x) - 3) + [(t, r - t - h), (e, c - e - w), (0, 0)]
    return np.pad(x, margins, "constant")


def resize_image_with_crop_or_pad(image: Any, target_height: Any, target_width: Any) -> Node:
    """Bring each image to a size by cutting its margins off, or putting zeros around it, evenly on both sides.

    Args:
        image: Node or array [height, width, channels] or [batch, height, width, channels].
        target_height: Height of the result: an int or a scalar node.
        target_width: Width of the result.

    Returns:
        A node.

    Raises:
        ValueError: If a size is known not to be positive.

    >>> import globalstep as gs
    >>> image = gs.reshape(gs.range(12), [2, 6, 1])
    >>> with gs.Session() as sess:
    ...     print(sess.run(gs.image.resize_image_with_crop_or_pad(image, 4, 2))[..., 0])
    [[0 0]
     [2 3]
     [8 9]
     [0 0]]
    """
    node = image_node(image)
    lead, _, _, rest = sizes_of_image(node)
    nodes, (rows, columns) = _box((target_height, target_width))
    _require(_least(columns, 1), "target_width must be > 0.")
    _require(_least(rows, 1), "target_height must be > 0.")
    return _of_image(
        "ResizeWithCropOrPad", "resize_image_with_crop_or_pad", [*lead, rows, columns, *rest], node, *nodes
    )


@computes("ResizeWithCropOrPad")
def _fit(x: Any, *size: Any) -> Any:
    margins: list[tuple[int, int]] = []
    for axis, wanted in zip((-3, -2), size, strict=True):
        have, want = np.shape(x)[axis], int(wanted)
        if want <= 0:
            raise InvalidArgumentError(f"assertion failed: target sizes must be > 0, got {want}.")
        first = max(have - want, 0) // 2
        slices = [slice(None)] * np.ndim(x)
        slices[axis] = slice(first, first + min(have, want))
        x = x[tuple(slices)]
        before = max(want - have, 0) // 2
        margins.append((before, max(want - have, 0) - before))
    if not any(map(any, margins)):
        return x
    return np.pad(x, [(0, 0)] * (np.ndim(x) - 3) + margins + [(0, 0)], "constant")


def random_crop(value: Any, size: Any, seed: int | None = None, name: str | None = None) -> Node:
    """Cut a part of `size` out of a value, at a place drawn evenly.

    Args:
        value: Node or array of any rank.
        size: Ints or integer node [rank].
        seed: Seed of this operation; see `gs.set_random_seed`.
        name: Name of the node; default "random_crop".

    Returns:
        A node of shape `size`.

    Raises:
        ValueError: If `value` is known to be smaller.
        InvalidArgumentError: In the run, if it is.
    """
    node, sizes = as_node(value), as_shape_node(size)
    static = sizes_of(sizes)
    if node.shape.dims is not None and sizes.op_type == "Const":
        wanted = static_ints(sizes, "size")
        if len(wanted) != node.shape.ndims or any(
            have is not None and want > have for have, want in zip(node.shape.as_list(), wanted, strict=True)
        ):
            raise ValueError(f"Need value.shape >= size, got {node.shape} and {list(wanted)}.")
    with node.graph.name_scope(name or "random_crop"):
        draw = random_uniform(shape_of(sizes), maxval=1.0, dtype="float64", seed=seed)
        return _of_image("RandomCrop", "Slice", static, node, sizes, draw)


@computes("RandomCrop")
def _crop_anywhere(x: Any, want: Any, drawn: Any) -> Any:
    have, count = np.array(np.shape(x)), np.asarray(want, np.int64)
    if have.shape != count.shape or np.any(have < count):
        raise InvalidArgumentError(f"assertion failed: Need value.shape >= size, got {have} {count}")
    first = np.floor(drawn * (have - count + 1)).astype(np.int64)
    return x[tuple(slice(int(at), int(at + n)) for at, n in zip(first, count, strict=True))]


rearranges("CentralCrop", "CropToBoundingBox", "FlipImage", "RandomCrop", "Rot90", "TransposeImage", views=True)
rearranges("PadToBoundingBox", "ResizeWithCropOrPad")


@gradient_of("RandomFlip")
def _random_flip_gradient(node: Node, grad: Node) -> Sequence[Node | None]:
    return again(node, (grad, node.inputs[1])), None
