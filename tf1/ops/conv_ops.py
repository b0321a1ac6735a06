"""Convolution and pooling of images, as nodes; `globalstep.tf1.ops.sliding_windows` computes them.

Products of matrices by numpy, a few images at a time; a model that lives on convolutions is better off with `gs.torch`
or `gs.jax`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.tf1.gradients.registry import composed, gradient_of
from globalstep.tf1.graph.callables import named
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.kernels import kernel_of
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops.array_ops import moved_axis
from globalstep.tf1.ops.array_ops import shape as shape_of
from globalstep.tf1.ops.building import operands, require_float, sizes_of
from globalstep.tf1.ops.gradient_ops import ones
from globalstep.tf1.ops.reduction_ops import reduce_sum
from globalstep.tf1.ops.sliding_windows import (
    Fit,
    collect,
    convolve,
    largest_of_windows,
    overlay,
    patches,
    share_of_windows,
    to_images,
    to_kernels,
)

_Sizes = tuple[int, ...]
#: Of the attributes of nodes: how windows lie.
_steps, _how = itemgetter("strides", "padding"), itemgetter("size", "strides", "padding")
_pool = itemgetter("ksize", "strides", "padding")


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


def _margins(length: int, size: int, stride: int, padding: str) -> tuple[int, int]:
    if padding == "VALID":
        return 0, 0
    missing = max((-(-length // stride) - 1) * stride + size - length, 0)
    return missing // 2, missing - missing // 2


def around(space: Sequence[int], size: _Sizes, strides: _Sizes, padding: str) -> list[tuple[int, int]]:
    """Give how many elements are put before and after each dimension of space."""
    return [_margins(length, k, step, padding) for length, k, step in zip(space, size, strides, strict=True)]


def _fit_of(shape: Sequence[int], size: tuple[int, int], strides: tuple[int, int], padding: str) -> Fit:
    """Give how windows lie on images of a shape [n, height, width, channels] as the padding says."""
    rows, columns = around(shape[1:3], size, strides, padding)
    return Fit(strides, rows, columns)


def prepared(images: Any, size: _Sizes, strides: _Sizes, padding: str, fill: float = 0) -> Any:
    """Give the windows of images, or volumes, with `fill` put around them as the padding says; see `patches`."""
    outside = around(np.shape(images)[1:-1], size, strides, padding)
    if any(map(any, outside)):
        images = np.pad(images, ((0, 0), *outside, (0, 0)), "constant", constant_values=fill)
    return patches(images, size, strides)


def laid_over(windows: Any, shape: Sequence[int], size: _Sizes, strides: _Sizes, padding: str) -> Any:
    """Add windows up where `prepared` took them from images, or volumes, of a shape."""
    space, outside = shape[1:-1], around(shape[1:-1], size, strides, padding)
    padded = (shape[0], *(length + sum(pair) for length, pair in zip(space, outside, strict=True)), shape[-1])
    inner = (slice(first, first + length) for length, (first, _) in zip(space, outside, strict=True))
    return overlay(windows, size, strides, padded)[(slice(None), *inner)]


def means(images: Any, size: _Sizes, strides: _Sizes, padding: str) -> Any:
    """Give the mean of each window of images, or volumes, of the elements inside."""
    axes = tuple(range(1 + len(size), 1 + 2 * len(size)))
    inside = np.ones((1, *np.shape(images)[1:-1], 1), images.dtype)
    total, count = (np.sum(prepared(one, size, strides, padding), axis=axes) for one in (images, inside))
    return total / count


def windows_of(images: Node, size: _Sizes, strides: _Sizes, padding: str) -> Node:
    """Give the node of `prepared`, with zeros around the images or volumes."""
    return Node(
        "Windows", (images,), dtype=images.dtype, shape=[None] * (2 + 2 * len(size)),
        attrs={"size": size, "strides": strides, "padding": padding},
    )  # fmt: skip


kernel_of("Windows")(lambda node: lambda images: prepared(images, *_how(node.attrs)))


def inside(images: Node) -> Node:
    """Give ones in place of one image, or volume, of one channel."""
    return ones(images[:1, ..., :1])


@gradient_of("Windows")
def _windows_gradient(node: Node, grad: Node) -> Any:
    (images,) = node.inputs
    return (Node("LaidOver", (grad, images), dtype=grad.dtype, shape=images.shape, attrs=dict(node.attrs)),)


kernel_of("LaidOver")(lambda node: lambda windows, like: laid_over(windows, like.shape, *_how(node.attrs)))


@gradient_of("LaidOver")
def _laid_over_gradient(node: Node, grad: Node) -> Any:
    return windows_of(grad, *_how(node.attrs)), None


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


def to_channels_last(node: Node) -> Node:
    """Give [batch, channels, ...] as [batch, ..., channels]."""
    return moved_axis(node, 1, -1)


def to_channels_first(node: Node) -> Node:
    """Give [batch, ..., channels] as [batch, channels, ...]."""
    return moved_axis(node, -1, 1)


def last_order(values: Any) -> Any:
    """Give numbers for [batch, channels, *space], four or five, in the order with the channels last."""
    if isinstance(values, Sequence) and len(values) in (4, 5):
        return [values[0], *values[2:], values[1]]
    return values


def output_shape(x: Node, size: _Sizes, strides: _Sizes, padding: str, channels: int | None) -> TensorShape:
    """Give the static shape of what windows over images, or volumes, give; `channels` None for as many as `x` has."""
    if x.shape.dims is None:
        return TensorShape([None] * (2 + len(size)))
    n, *space, own = x.shape.as_list()
    lengths = [
        None if length is None else -(-(length if padding == "SAME" else length - k + 1) // step)
        for length, k, step in zip(space, size, strides, strict=True)
    ]
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
    shape = output_shape(x, (rows, columns), steps, fit, outputs)
    attrs = {"strides": steps, "padding": fit}
    return Node("Conv2D", (x, w), name=name or "Conv2D", dtype=x.dtype, shape=shape, attrs=attrs)


@kernel_of("Conv2D")
def _conv2d(node: Node) -> Any:
    how = _steps(node.attrs)
    return lambda images, kernels: convolve(images, kernels, _fit_of(images.shape, kernels.shape[:2], *how))


@gradient_of("Conv2D")
def _conv2d_gradient(node: Node, grad: Node) -> Any:
    (x, w), how = node.inputs, _steps(node.attrs)
    return images_gradient(grad, w, shape_of(x), *how), _filters_gradient(x, grad, w, *how)


def images_gradient(
    grad: Node, filters: Node, sizes: Node, strides: tuple[int, int], padding: str, name: str | None = None
) -> Node:
    """Give the gradient of `conv2d` by its images, of the shape `sizes`."""
    dims = sizes_of(sizes) or [None, None, None, filters.shape.as_list()[2]]
    attrs = {"strides": strides, "padding": padding}
    return Node("Conv2DBackpropInput", (grad, filters, sizes), name=name, dtype=grad.dtype, shape=dims, attrs=attrs)


def _spread(g: Any, kernels: Any, wanted: Any, strides: tuple[int, int], padding: str) -> Any:
    shape = tuple(int(n) for n in np.asarray(wanted).reshape(-1))
    size = kernels.shape[:2]
    fit = _fit_of(shape, size, strides, padding)
    for at, outside in ((1, fit.rows), (2, fit.columns)):
        computed = (shape[at] + sum(outside) - size[at - 1]) // strides[at - 1] + 1
        if computed != g.shape[at]:
            raise InvalidArgumentError(
                "Conv2DBackpropInput: Size of out_backprop doesn't match computed: actual = "
                f"{g.shape[at]}, computed = {computed}"
            )
    return to_images(g, kernels, shape, fit)


kernel_of("Conv2DBackpropInput")(lambda node: lambda *values: _spread(*values, *_steps(node.attrs)))


def _filters_gradient(images: Node, grad: Node, like: Node, strides: tuple[int, int], padding: str) -> Node:
    attrs = {"strides": strides, "padding": padding}
    return Node("Conv2DBackpropFilter", (images, grad), dtype=grad.dtype, shape=like.shape, attrs=attrs)


@kernel_of("Conv2DBackpropFilter")
def _conv2d_backprop_filter(node: Node) -> Any:
    size, how = (int(node.shape[0]), int(node.shape[1])), _steps(node.attrs)
    return lambda x, g: to_kernels(x, g, size, _fit_of(x.shape, size, *how))


# A convolution is linear in both operands, so the three are each other's derivatives.
@gradient_of("Conv2DBackpropInput")
def _images_gradient_gradient(node: Node, grad: Node) -> Any:
    (g, w, _), how = node.inputs, _steps(node.attrs)
    return conv2d(grad, w, [1, *how[0], 1], how[1]), _filters_gradient(grad, g, w, *how), None


@gradient_of("Conv2DBackpropFilter")
def _filters_gradient_gradient(node: Node, grad: Node) -> Any:
    (x, g), how = node.inputs, _steps(node.attrs)
    return images_gradient(g, grad, shape_of(x), *how), conv2d(x, grad, [1, *how[0], 1], how[1])


def _pooling(op_type: str, name: str, first_line: str) -> Callable[..., Node]:
    """Make the public function of a kind of pooling."""
    doc = f"""{first_line}

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

    @named(name, doc)
    def function(
        value: Any, ksize: Any, strides: Any, padding: str, data_format: str = "NHWC", name: str | None = None
    ) -> Node:
        x = require_float(op_type, as_node(value), "value")
        if is_channels_first(data_format, 4):
            return to_channels_first(
                function(to_channels_last(x), last_order(ksize), last_order(strides), padding, name=name)
            )
        size, steps, fit = two_sizes(ksize, "ksize"), two_sizes(strides, "strides"), checked_padding(padding)
        shape = output_shape(x, size, steps, fit, None)
        attrs = {"ksize": size, "strides": steps, "padding": fit}
        return Node(op_type, (x,), name=name or op_type, dtype=x.dtype, shape=shape, attrs=attrs)

    return function


max_pool = _pooling("MaxPool", "max_pool", "Give the largest value of each window.")
avg_pool = _pooling("AvgPool", "avg_pool", "Give the mean of each window, of the elements inside the image.")


@kernel_of("MaxPool")
def _max_pool(node: Node) -> Any:
    how = _pool(node.attrs)
    return lambda images: largest_of_windows(images, how[0], _fit_of(images.shape, *how))


@gradient_of("MaxPool")
def _max_pool_gradient(node: Node, grad: Node) -> Any:
    """Equal values of a window share the gradient evenly."""
    return (_max_pool_grad(grad, node.inputs[0], node, _pool(node.attrs)),)


def _max_pool_grad(grad: Node, x: Node, largest: Node, how: tuple[Any, Any, str]) -> Node:
    return Node("MaxPoolGrad", (grad, x, largest), dtype=x.dtype, shape=x.shape, attrs={"how": how})


@kernel_of("MaxPoolGrad", "MaxPoolGradGrad")
def _max_pool_share(node: Node) -> Any:
    how, function = node.attrs["how"], share_of_windows if node.op_type == "MaxPoolGrad" else collect
    return lambda g, images, maxima: function(g, images, maxima, how[0], _fit_of(images.shape, *how))


@gradient_of("MaxPoolGrad")
def _max_pool_grad_gradient(node: Node, grad: Node) -> Any:
    (of, x, largest), attrs = node.inputs, {"how": node.attrs["how"]}
    return Node("MaxPoolGradGrad", (grad, x, largest), dtype=of.dtype, shape=of.shape, attrs=attrs), None, None


@gradient_of("MaxPoolGradGrad")
def _max_pool_grad_grad_gradient(node: Node, grad: Node) -> Any:
    _, x, largest = node.inputs
    return _max_pool_grad(grad, x, largest, node.attrs["how"]), None, None


kernel_of("AvgPool")(lambda node: lambda images: means(images, *_pool(node.attrs)))


@gradient_of("AvgPool", "AvgPool3D")
@composed
def _avg_pool_gradient(node: Node) -> Node:
    (x,), how = node.inputs, _pool(node.attrs)
    axes = range(1 + len(how[0]), 1 + 2 * len(how[0]))
    total, count = (reduce_sum(windows_of(one, *how), list(axes)) for one in (x, inside(x)))
    return total / count
