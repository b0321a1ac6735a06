"""Functions that move values between space and channels, or between space and the batch; patches of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops import conv_ops
from globalstep.tf1.ops.building import static_ints
from globalstep.tf1.ops.gradient_ops import rearranges


def _images(value: Any, op_type: str) -> Node:
    node = as_node(value)
    if node.shape.ndims not in (None, 4):
        raise ValueError(f"Shape must be rank 4 but is rank {node.shape.ndims} for '{op_type}': {node.shape}.")
    return node


def _divided(size: int | None, by: int, node: Node, what: str) -> int | None:
    if size is not None and size % by:
        raise ValueError(f"Dimension size must be evenly divisible by {by} but is {size}: the {what} of {node.name!r}.")
    return None if size is None else size // by


def space_to_depth(input: Any, block_size: int, name: str | None = None, data_format: str = "NHWC") -> Node:
    """Put each block of rows and columns into the channels of one place.

    Args:
        input: Node or array [batch, height, width, channels].
        block_size: Height and width of a block; divides those of the images.
        name: Name of the node.
        data_format: "NHWC", or "NCHW": then `input` and the result have their channels second.

    Returns:
        A node [batch, height / block_size, width / block_size, block_size^2 channels].

    Raises:
        ValueError: If the blocks do not divide the images.
    """
    node, block = _images(input, "SpaceToDepth"), int(block_size)
    if conv_ops.is_channels_first(data_format, 4):
        return conv_ops.to_channels_first(space_to_depth(conv_ops.to_channels_last(node), block, name))
    n, height, width, depth = node.shape.as_list() if node.shape.dims is not None else [None] * 4
    sizes = [_divided(height, block, node, "height"), _divided(width, block, node, "width")]
    shape = TensorShape([n, *sizes, None if depth is None else depth * block * block])
    return Node("SpaceToDepth", (node,), name=name, dtype=node.dtype, shape=shape, attrs={"block_size": block})


@computes("SpaceToDepth")
def _space_to_depth(value: Any, *, block_size: int) -> Any:
    (batch, rows, columns, channels), block = np.shape(value), block_size
    if rows % block or columns % block:
        raise InvalidArgumentError(f"Image height {rows} and width {columns} should be divisible by {block}")
    split = np.reshape(value, (batch, rows // block, block, columns // block, block, channels))
    turned = np.transpose(split, (0, 1, 3, 2, 4, 5))
    return np.reshape(turned, (batch, rows // block, columns // block, block * block * channels))


def depth_to_space(input: Any, block_size: int, name: str | None = None, data_format: str = "NHWC") -> Node:
    """Undo `space_to_depth`: spread the channels of each place over a block of rows and columns.

    Args:
        input: Node or array [batch, height, width, block_size^2 channels].
        block_size: Height and width of a block.
        name: Name of the node.
        data_format: As for `space_to_depth`.

    Returns:
        A node [batch, height block_size, width block_size, channels].

    Raises:
        ValueError: If the number of channels is no multiple of block_size^2.
    """
    node, block = _images(input, "DepthToSpace"), int(block_size)
    if conv_ops.is_channels_first(data_format, 4):
        return conv_ops.to_channels_first(depth_to_space(conv_ops.to_channels_last(node), block, name))
    n, height, width, depth = node.shape.as_list() if node.shape.dims is not None else [None] * 4
    sizes = [None if size is None else size * block for size in (height, width)]
    shape = TensorShape([n, *sizes, _divided(depth, block * block, node, "depth")])
    return Node("DepthToSpace", (node,), name=name, dtype=node.dtype, shape=shape, attrs={"block_size": block})


@computes("DepthToSpace")
def _depth_to_space(value: Any, *, block_size: int) -> Any:
    (batch, rows, columns, channels), block = np.shape(value), block_size
    if channels % (block * block):
        raise InvalidArgumentError(f"Depth {channels} should be divisible by {block * block}")
    split = np.reshape(value, (batch, rows, columns, block, block, channels // (block * block)))
    turned = np.transpose(split, (0, 1, 3, 2, 4, 5))
    return np.reshape(turned, (batch, rows * block, columns * block, -1))


def _pairs(values: Any, count: int, what: str) -> list[tuple[int, int]]:
    flat = static_ints(values, what)
    if len(flat) != 2 * count:
        raise ValueError(f"{what} must have the shape [{count}, 2], got {len(flat)} numbers.")
    return list(zip(flat[::2], flat[1::2], strict=True))


def space_to_batch_nd(input: Any, block_shape: Any, paddings: Any, name: str | None = None) -> Node:
    """Put the places of each block, one by one, into images of their own in the batch.

    Args:
        input: Node or array [batch, *space, ...].
        block_shape: Size of a block along each dimension of space: known before a run.
        paddings: Zeros before and after each of them: [[before, after], ...]; likewise known.
        name: Name of the node.

    Returns:
        A node with as many times more images as a block has places, each padded and then a block-th as large.
    """
    node, block = as_node(input), static_ints(block_shape, "block_shape")
    around = _pairs(paddings, len(block), "paddings")
    shape = _space_shape(node, block, around, inside=False)
    attrs = {"block_shape": block, "paddings": around}
    return Node("SpaceToBatchND", (node,), name=name, dtype=node.dtype, shape=shape, attrs=attrs)


@computes("SpaceToBatchND")
def _space_to_batch_nd(value: Any, *, block_shape: tuple[int, ...], paddings: Sequence[tuple[int, int]]) -> Any:
    ranks = len(block_shape)
    rest = np.shape(value)[1 + ranks :]
    value = np.pad(value, [(0, 0), *paddings, *[(0, 0)] * len(rest)], "constant")
    batch, space = np.shape(value)[0], np.shape(value)[1 : 1 + ranks]
    if any(size % by for size, by in zip(space, block_shape, strict=True)):
        raise InvalidArgumentError(f"padded_shape {list(space)} is not divisible by block_shape {list(block_shape)}")
    parts = [item for size, by in zip(space, block_shape, strict=True) for item in (size // by, by)]
    split = np.reshape(value, (batch, *parts, *rest))
    inner, outer = [2 + 2 * i for i in range(ranks)], [1 + 2 * i for i in range(ranks)]
    turned = np.transpose(split, (*inner, 0, *outer, *range(1 + 2 * ranks, np.ndim(split))))
    return np.reshape(turned, (batch * int(np.prod(block_shape)), *(parts[::2]), *rest))


def batch_to_space_nd(input: Any, block_shape: Any, crops: Any, name: str | None = None) -> Node:
    """Undo `space_to_batch_nd`, and cut off the margins `crops`.

    Args:
        input: Node or array [batch, *space, ...].
        block_shape: Size of a block along each dimension of space: known before a run.
        crops: What is cut off before and after each of them: [[before, after], ...]; likewise known.
        name: Name of the node.

    Returns:
        A node with as many times fewer images as a block has places, each block times as large, without the margins.
    """
    node, block = as_node(input), static_ints(block_shape, "block_shape")
    cut = _pairs(crops, len(block), "crops")
    shape = _space_shape(node, block, cut, inside=True)
    attrs = {"block_shape": block, "crops": cut}
    return Node("BatchToSpaceND", (node,), name=name, dtype=node.dtype, shape=shape, attrs=attrs)


@computes("BatchToSpaceND")
def _batch_to_space_nd(value: Any, *, block_shape: tuple[int, ...], crops: Sequence[tuple[int, int]]) -> Any:
    ranks, count = len(block_shape), int(np.prod(block_shape))
    batch, space, rest = np.shape(value)[0], np.shape(value)[1 : 1 + ranks], np.shape(value)[1 + ranks :]
    if batch % count:
        raise InvalidArgumentError(
            f"Input batch dimension ({batch}) is not divisible by product of block sizes ({count})"
        )
    split = np.reshape(value, (*block_shape, batch // count, *space, *rest))
    order = [ranks] + [axis for i in range(ranks) for axis in (ranks + 1 + i, i)]
    turned = np.transpose(split, (*order, *range(2 * ranks + 1, np.ndim(split))))
    whole = [size * by for size, by in zip(space, block_shape, strict=True)]
    joined = np.reshape(turned, (batch // count, *whole, *rest))
    slices = [slice(low, size - high) for size, (low, high) in zip(whole, crops, strict=True)]
    return joined[(slice(None), *slices)]


def _space_shape(node: Node, block: tuple[int, ...], margins: list[tuple[int, int]], *, inside: bool) -> TensorShape:
    """Give the static shape of what is moved into the batch, or out of it (`inside`)."""
    if node.shape.dims is None:
        return TensorShape(None)
    n, *sizes = node.shape.as_list()
    count = int(np.prod(block))
    for axis, (by, pair) in enumerate(zip(block, margins, strict=True)):
        size = sizes[axis]
        if size is not None:
            sizes[axis] = size * by - sum(pair) if inside else (size + sum(pair)) // by
    batch = None if n is None else n // count if inside else n * count
    return TensorShape([batch, *sizes])


def space_to_batch(
    input: Any, paddings: Any, block_size: Any = None, name: str | None = None, block_shape: Any = None
) -> Node:
    """Give `space_to_batch_nd` of images `input` with `paddings`, and blocks of one height and width."""
    block = static_ints(block_size if block_shape is None else block_shape, "block_size")
    return space_to_batch_nd(input, block * 2 if len(block) == 1 else block, paddings, name)


def batch_to_space(
    input: Any, crops: Any, block_size: Any = None, name: str | None = None, block_shape: Any = None
) -> Node:
    """Give `batch_to_space_nd` of images `input` with `crops`, and blocks of one height and width."""
    block = static_ints(block_size if block_shape is None else block_shape, "block_size")
    return batch_to_space_nd(input, block * 2 if len(block) == 1 else block, crops, name)


def extract_image_patches(
    images: Any,
    ksizes: Any = None,
    strides: Any = None,
    rates: Any = None,
    padding: str | None = None,
    name: str | None = None,
    sizes: Any = None,
) -> Node:
    """Put each window of an image into the channels of one place.

    Args:
        images: Floating node or array [batch, height, width, channels].
        ksizes: Size of the windows: four ints, the first and last 1.
        strides: Four ints, the first and last 1.
        rates: Only [1, 1, 1, 1].
        padding: "SAME" or "VALID".
        name: Name of the node.
        sizes: Newer name of `ksizes`.

    Returns:
        A node [batch, rows, columns, window's height * width * channels].

    Raises:
        ValueError: For arguments that do not fit, or other rates.
    """
    node = _images(images, "ExtractImagePatches")
    size = conv_ops.two_sizes(ksizes if sizes is None else sizes, "ksizes")
    steps = conv_ops.two_sizes(strides, "strides")
    if conv_ops.two_sizes([1, 1, 1, 1] if rates is None else rates, "rates") != (1, 1):
        raise ValueError("extract_image_patches with rates above 1 is not supported.")
    fit = conv_ops.checked_padding("VALID" if padding is None else padding)
    depth = node.shape.as_list()[-1] if node.shape.dims is not None else None
    channels = None if depth is None else depth * size[0] * size[1]
    shape = conv_ops.output_shape(node, size, steps, fit, channels)
    if channels is None:
        shape = TensorShape([*shape.as_list()[:3], None])
    attrs = {"ksizes": size, "strides": steps, "padding": fit}
    return Node("ExtractImagePatches", (node,), name=name, dtype=node.dtype, shape=shape, attrs=attrs)


@computes("ExtractImagePatches")
def _extract_image_patches(value: Any, *, ksizes: Any, strides: Any, padding: str) -> Any:
    windows = conv_ops.prepared(value, ksizes, strides, padding, 0)
    return np.reshape(windows, (*np.shape(windows)[:3], -1))


rearranges("BatchToSpaceND", "DepthToSpace", "ExtractImagePatches", "SpaceToBatchND", "SpaceToDepth")
