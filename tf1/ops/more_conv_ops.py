"""Further convolutions: transposed, separable, depthwise, dilated, of sequences; pooling of any kind; LRN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from globalstep.tf1.gradients.registry import composed, gradient_of
from globalstep.tf1.graph.graph import Node, as_node, get_default_graph
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops import conv_ops, math_ops
from globalstep.tf1.ops.array_ops import expand_dims, reshape, reshape_like, squeeze, transpose
from globalstep.tf1.ops.building import as_shape_node, operands, require_float, sizes_of
from globalstep.tf1.ops.gradient_ops import rearranges
from globalstep.tf1.ops.product_ops import matmul


@computes("Dilate")
def _spread(kernel: Any, *, rates: tuple[int, int]) -> Any:
    """Put rows and columns of zeros between those of a kernel."""
    rows, columns = (rate * (size - 1) + 1 for rate, size in zip(rates, kernel.shape, strict=False))
    wide = np.zeros((rows, columns, *kernel.shape[2:]), kernel.dtype)
    wide[:: rates[0], :: rates[1]] = kernel
    return wide


def dilated(kernel: Node, rates: tuple[int, int]) -> Node:
    """Give filters [height, width, ...] with `rate - 1` zeros between their elements."""
    if rates == (1, 1):
        return kernel
    rows, columns, *rest = kernel.shape.as_list()
    if rows is None or columns is None:
        raise ValueError(f"The size of the filters must be known: {kernel.shape}.")
    wide = [rates[0] * (rows - 1) + 1, rates[1] * (columns - 1) + 1]
    attrs = {"rates": rates}
    return Node("Dilate", (kernel,), name="dilate", dtype=kernel.dtype, shape=[*wide, *rest], attrs=attrs)


def conv2d_transpose(
    value: Any = None,
    filter: Any = None,
    output_shape: Any = None,
    strides: Any = None,
    padding: str = "SAME",
    data_format: str = "NHWC",
    name: str | None = None,
    input: Any = None,
    filters: Any = None,
    dilations: Any = None,
) -> Node:
    """Do what the gradient of `conv2d` by its images does: each value spreads a filter over the result.

    Args:
        value: Floating node or array [batch, rows, columns, inputs].
        filter: Node or array [height, width, outputs, inputs].
        output_shape: Shape of the result: four ints, or an integer node.
        strides: Four ints, the first and last 1; one or two numbers for rows and columns.
        padding: "SAME" or "VALID": that of the convolution which this is the gradient of.
        data_format: "NHWC" or "NCHW".
        name: Name of the node; default "conv2d_transpose".
        input: Newer name of `value`.
        filters: Newer name of `filter`.
        dilations: Only 1, or None.

    Returns:
        A node of `output_shape`.

    Raises:
        ValueError: For arguments that do not fit.
        InvalidArgumentError: In the run, if `output_shape` is none that such a convolution could have started from.
    """
    x, w = operands(
        "Conv2DBackpropInput", value if input is None else input, filter if filters is None else filters,
        ("value", "filter"),
    )  # fmt: skip
    require_float("Conv2DBackpropInput", x, "value")
    if dilations is not None and set(np.asarray(dilations).reshape(-1).tolist()) != {1}:
        raise ValueError("conv2d_transpose with dilations is not supported.")
    if output_shape is None or strides is None:
        raise ValueError("conv2d_transpose needs output_shape and strides.")
    sizes = as_shape_node(output_shape)
    if conv_ops.is_channels_first(data_format, 4):
        moved = Node(
            "SizesInLastOrder", (sizes,), name="Gather", dtype=sizes.dtype, shape=[4], attrs={"stops_gradient": True}
        ) if sizes.op_type != "Const" else as_shape_node([sizes.attrs["value"][i] for i in (0, 2, 3, 1)])  # fmt: skip
        made = conv2d_transpose(
            conv_ops.to_channels_last(x), w, moved, conv_ops.last_order(strides), padding, "NHWC", name
        )
        return conv_ops.to_channels_first(made)
    steps, fit = conv_ops.two_sizes(strides, "strides"), conv_ops.checked_padding(padding)
    rows, columns, outputs, inputs = w.shape.as_list()
    if rows is None or columns is None:
        raise ValueError(f"The size of the filters must be known: {w.shape}.")
    if x.shape.dims is not None and x.shape.as_list()[-1] not in (None, inputs):
        raise ValueError(f"input channels does not match filter's input channels, {x.shape.as_list()[-1]} != {inputs}")
    dims = sizes_of(sizes)
    if dims is not None and len(dims) == 4 and dims[3] not in (None, outputs):
        raise ValueError(f"output_shape does not match filter's output channels, {dims[3]} != {outputs}")
    return conv_ops.images_gradient(x, w, sizes, steps, fit, name or "conv2d_transpose")


computes("SizesInLastOrder", lambda sizes: sizes[np.array([0, 2, 3, 1])])


def depthwise_conv2d(
    input: Any,
    filter: Any = None,
    strides: Any = None,
    padding: str = "SAME",
    rate: Any = None,
    name: str | None = None,
    data_format: str | None = None,
    dilations: Any = None,
) -> Node:
    """Convolve each channel of images with filters of its own.

    Args:
        input: Floating node or array [batch, height, width, channels].
        filter: Node or array [height, width, channels, multiplier].
        strides: Four ints, the first and last 1.
        padding: "SAME" or "VALID".
        rate: Two ints: dilation of the filters; default 1.
        name: Name of the node; default "depthwise".
        data_format: "NHWC" or "NCHW".
        dilations: Newer name of `rate`.

    Returns:
        A node [batch, rows, columns, channels * multiplier].

    Raises:
        ValueError: For arguments that do not fit.
    """
    x, w = operands("DepthwiseConv2dNative", input, filter, ("input", "filter"))
    require_float("DepthwiseConv2dNative", x, "input")
    if strides is None:
        raise ValueError("depthwise_conv2d needs strides.")
    if conv_ops.is_channels_first(data_format, 4):
        made = depthwise_conv2d(
            conv_ops.to_channels_last(x), w, conv_ops.last_order(strides), padding,
            _last_order_rates(rate if dilations is None else dilations), name,
        )  # fmt: skip
        return conv_ops.to_channels_first(made)
    rates = _rates(rate if dilations is None else dilations)
    steps, fit = conv_ops.two_sizes(strides, "strides"), conv_ops.checked_padding(padding)
    if rates != (1, 1) and steps != (1, 1):
        raise ValueError("strides > 1 not supported in conjunction with rate > 1")
    kernel = dilated(w, rates)
    rows, columns, channels, multiplier = kernel.shape.as_list()
    if rows is None or columns is None:
        raise ValueError(f"The size of the filters must be known: {w.shape}.")
    if x.shape.dims is not None and x.shape.as_list()[-1] not in (None, channels):
        raise ValueError(f"The images have {x.shape.as_list()[-1]} channels, the filters {channels}.")
    outputs = None if channels is None or multiplier is None else channels * multiplier
    shape = conv_ops.output_shape(x, (rows, columns), steps, fit, outputs)
    return Node(
        "DepthwiseConv2dNative", (x, kernel), name=name or "depthwise", dtype=x.dtype, shape=shape,
        attrs={"strides": steps, "padding": fit},
    )  # fmt: skip


@computes("DepthwiseConv2dNative")
def _depthwise(images: Any, kernels: Any, *, strides: tuple[int, int], padding: str) -> Any:
    rows, columns, depth, each = np.shape(kernels)
    windows = conv_ops.prepared(images, (rows, columns), strides, padding, 0)
    # Channel by channel: [channels, places, elements] @ [channels, elements, multiplier].
    flat = np.transpose(np.reshape(windows, (-1, rows * columns, depth)), (2, 0, 1))
    weights = np.transpose(np.reshape(kernels, (rows * columns, depth, each)), (1, 0, 2))
    return np.reshape(np.transpose(np.matmul(flat, weights), (1, 0, 2)), (*np.shape(windows)[:3], depth * each))


rearranges("Dilate")


@gradient_of("DepthwiseConv2dNative")
@composed
def _depthwise_gradient(node: Node) -> Node:
    x, w = node.inputs
    rows, columns, depth, each = (int(size) for size in w.shape)
    windows = conv_ops.windows_of(x, (rows, columns), node.attrs["strides"], node.attrs["padding"])
    # Channel by channel: [channels, places, elements] @ [channels, elements, multiplier].
    flat = transpose(reshape(windows, [-1, rows * columns, depth]), [2, 0, 1])
    weights = transpose(reshape(w, [rows * columns, depth, each]), [1, 0, 2])
    return reshape_like(transpose(matmul(flat, weights), [1, 0, 2]), node)


def separable_conv2d(
    input: Any,
    depthwise_filter: Any,
    pointwise_filter: Any,
    strides: Any,
    padding: str,
    rate: Any = None,
    name: str | None = None,
    data_format: str | None = None,
    dilations: Any = None,
) -> Node:
    """Convolve each channel by itself, then mix the channels at each place.

    Args:
        input: Floating node or array [batch, height, width, channels].
        depthwise_filter: Node or array [height, width, channels, multiplier].
        pointwise_filter: Node or array [1, 1, channels * multiplier, outputs].
        strides: Four ints, the first and last 1.
        padding: "SAME" or "VALID".
        rate: Two ints: dilation of the depthwise filters; default 1.
        name: Name scope of the nodes; default "separable_conv2d".
        data_format: "NHWC" or "NCHW".
        dilations: Newer name of `rate`.

    Returns:
        A node [batch, rows, columns, outputs].

    Raises:
        ValueError: For arguments that do not fit.
    """
    shape = pointwise_filter.shape if isinstance(pointwise_filter, Node) else TensorShape(np.shape(pointwise_filter))
    if shape.dims is not None and shape.as_list()[:2] != [1, 1]:
        raise ValueError(f"The pointwise filters must be [1, 1, inputs, outputs]; got {shape}.")
    with get_default_graph().name_scope(name or "separable_conv2d"):
        between = depthwise_conv2d(input, depthwise_filter, strides, padding, rate, None, data_format, dilations)
        return conv_ops.conv2d(between, pointwise_filter, [1, 1, 1, 1], "VALID", data_format=data_format or "NHWC")


def _rates(rates: Any) -> tuple[int, int]:
    return (1, 1) if rates is None else conv_ops.two_sizes(rates, "rate")


def _last_order_rates(rates: Any) -> Any:
    return conv_ops.last_order(rates) if isinstance(rates, Sequence) and len(rates) == 4 else rates


def atrous_conv2d(value: Any, filters: Any, rate: int, padding: str, name: str | None = None) -> Node:
    """Convolve images with dilated filters: `rate - 1` zeros lie between the elements of a filter.

    Args:
        value: Floating node or array [batch, height, width, channels].
        filters: Node or array [height, width, channels, outputs].
        rate: At least 1.
        padding: "SAME" or "VALID".
        name: Name of the node; default "convolution".

    Returns:
        A node [batch, rows, columns, outputs].
    """
    x, w = operands("Conv2D", value, filters, ("value", "filters"))
    return conv_ops.conv2d(x, dilated(w, (int(rate), int(rate))), [1, 1, 1, 1], padding, name=name or "convolution")


def conv1d(
    value: Any = None,
    filters: Any = None,
    stride: Any = None,
    padding: str | None = None,
    use_cudnn_on_gpu: bool | None = None,
    data_format: str | None = None,
    name: str | None = None,
    input: Any = None,
    dilations: Any = None,
) -> Node:
    """Convolve sequences with filters.

    Args:
        value: Floating node or array [batch, width, channels].
        filters: Node or array [width, channels, outputs].
        stride: An int, or a list of one or three.
        padding: "SAME" or "VALID".
        use_cudnn_on_gpu: Accepted; without effect.
        data_format: "NWC" (or "NHWC") or "NCW" (or "NCHW").
        name: Name scope of the nodes; default "conv1d".
        input: Newer name of `value`.
        dilations: An int: dilation of the filters.

    Returns:
        A node [batch, steps, outputs].

    Raises:
        ValueError: For arguments that do not fit.
    """
    x, w = operands("Conv2D", value if input is None else input, filters, ("value", "filters"))
    if stride is None or padding is None:
        raise ValueError("conv1d needs stride and padding.")
    steps = [int(stride)] if isinstance(stride, (int, np.integer)) else [int(s) for s in stride]
    first = conv_ops.is_channels_first(data_format, 3)
    step = steps[0] if len(steps) == 1 else steps[2 if first else 1]
    (rate,) = {1} if dilations is None else {int(d) for d in np.asarray(dilations).reshape(-1)} - {1} or {1}
    with x.graph.name_scope(name or "conv1d"):
        images = expand_dims(conv_ops.to_channels_last(x) if first else x, 1)
        kernel = dilated(expand_dims(w, 0), (1, rate))
        made = squeeze(conv_ops.conv2d(images, kernel, [1, 1, step, 1], padding), [1])
        return conv_ops.to_channels_first(made) if first else made


def _spatial(numbers: Any, rank: int, what: str) -> list[int]:
    """Give a number for each spatial axis."""
    values = [1] * rank if numbers is None else list(np.asarray(numbers).reshape(-1))
    if len(values) == 1:
        values *= rank
    if len(values) != rank:
        raise ValueError(f"{what} must have {rank} numbers, got {numbers}.")
    return [int(value) for value in values]


def _rank_of(node: Node, what: str) -> int:
    if node.shape.ndims not in (3, 4):
        raise ValueError(
            f"{what} goes over one or two spatial dimensions here: of inputs of rank 3 or 4, not {node.shape}. For "
            "volumes use gs.torch or gs.jax."
        )
    return int(node.shape.ndims) - 2


def convolution(
    input: Any,
    filter: Any = None,
    padding: str = "VALID",
    strides: Any = None,
    dilation_rate: Any = None,
    name: str | None = None,
    data_format: str | None = None,
    filters: Any = None,
    dilations: Any = None,
) -> Node:
    """Convolve sequences or images with filters.

    Args:
        input: Floating node or array [batch, width, channels] or [batch, height, width, channels].
        filter: Node or array [width, channels, outputs] or [height, width, channels, outputs].
        padding: "SAME" or "VALID".
        strides: An int for each spatial dimension; default 1.
        dilation_rate: An int for each spatial dimension; default 1.
        name: Name scope of the nodes; default "convolution".
        data_format: None, or a string that begins with "NC" where the channels come first.
        filters: Newer name of `filter`.
        dilations: Newer name of `dilation_rate`.

    Returns:
        A node.

    Raises:
        ValueError: For arguments that do not fit.
    """
    x, w = operands("Conv2D", input, filter if filters is None else filters, ("input", "filter"))
    rank = _rank_of(x, "convolution")
    steps = _spatial(strides, rank, "strides")
    rates = _spatial(dilation_rate if dilations is None else dilations, rank, "dilation_rate")
    if max(steps) > 1 and max(rates) > 1:
        raise ValueError("strides > 1 not supported in conjunction with dilation_rate > 1")
    first = conv_ops.is_channels_first(data_format, rank + 2)
    with x.graph.name_scope(name or "convolution"):
        images = conv_ops.to_channels_last(x) if first else x
        if rank == 1:
            made = conv1d(images, w, steps, padding, dilations=rates)
        else:
            made = conv_ops.conv2d(images, dilated(w, (rates[0], rates[1])), [1, *steps, 1], padding)
        return conv_ops.to_channels_first(made) if first else made


def pool(
    input: Any,
    window_shape: Any,
    pooling_type: str,
    padding: str,
    dilation_rate: Any = None,
    strides: Any = None,
    name: str | None = None,
    data_format: str | None = None,
    dilations: Any = None,
) -> Node:
    """Give the largest value, or the mean, of each window of sequences or images.

    Args:
        input: Floating node or array [batch, width, channels] or [batch, height, width, channels].
        window_shape: An int for each spatial dimension.
        pooling_type: "MAX" or "AVG".
        padding: "SAME" or "VALID".
        dilation_rate: Only 1.
        strides: An int for each spatial dimension; default 1.
        name: Name scope of the nodes; default "max_pool" or "avg_pool".
        data_format: None, or a string that begins with "NC" where the channels come first.
        dilations: Newer name of `dilation_rate`.

    Returns:
        A node.

    Raises:
        ValueError: For arguments that do not fit, or a dilation.
    """
    x = as_node(input)
    rank = _rank_of(x, "pool")
    kinds: dict[str, Callable[..., Node]] = {"MAX": conv_ops.max_pool, "AVG": conv_ops.avg_pool}
    if pooling_type not in kinds:
        raise ValueError(f"pooling_type must be 'MAX' or 'AVG', got {pooling_type!r}.")
    rates = _spatial(dilation_rate if dilations is None else dilations, rank, "dilation_rate")
    if max(rates) > 1:
        raise ValueError("pool with a dilation_rate above 1 is not supported.")
    size, steps = _spatial(window_shape, rank, "window_shape"), _spatial(strides, rank, "strides")
    first = conv_ops.is_channels_first(data_format, rank + 2)
    with x.graph.name_scope(name or f"{pooling_type.lower()}_pool"):
        images = conv_ops.to_channels_last(x) if first else x
        if rank == 1:
            made = kinds[pooling_type](expand_dims(images, 1), [1, 1, *size, 1], [1, 1, *steps, 1], padding)
            made = squeeze(made, [1])
        else:
            made = kinds[pooling_type](images, [1, *size, 1], [1, *steps, 1], padding)
        return conv_ops.to_channels_first(made) if first else made


@computes("SumOfNeighbours")
def _around(x: Any, *, radius: int) -> Any:
    """Give at each channel the sum of those at most `radius` away."""
    total = x.copy()
    for step in range(1, min(radius, x.shape[-1] - 1) + 1):
        total[..., step:] += x[..., :-step]
        total[..., :-step] += x[..., step:]
    return total


def local_response_normalization(
    input: Any, depth_radius: int = 5, bias: float = 1, alpha: float = 1, beta: float = 0.5, name: str | None = None
) -> Node:
    """Divide each value by (bias + alpha * the sum of squares of the channels around it) ** beta.

    Args:
        input: Floating node or array [batch, height, width, channels].
        depth_radius: How many channels on each side count.
        bias: See above.
        alpha: See above; it is not divided by the number of channels, unlike Caffe's.
        beta: See above.
        name: Name of the node; default "LRN".

    Returns:
        A node of the shape of `input`.
    """
    x = require_float("LRN", as_node(input), "input")
    if x.shape.ndims not in (None, 4):
        raise ValueError(f"Shape must be rank 4 but is rank {x.shape.ndims} for 'LRN' with input shapes: {x.shape}.")
    attrs = {"depth_radius": int(depth_radius), "bias": float(bias), "alpha": float(alpha), "beta": float(beta)}
    return Node("LRN", (x,), name=name or "LRN", dtype=x.dtype, shape=x.shape, attrs=attrs)


@computes("LRN")
def _normalized(images: Any, *, depth_radius: int, bias: float, alpha: float, beta: float) -> Any:
    kind = images.dtype.type
    norm = _around(images * images, radius=depth_radius) * kind(alpha) + kind(bias)
    return images / np.sqrt(norm) if beta == 0.5 else images * norm ** kind(-beta)


def _neighbours(x: Node, radius: int) -> Node:
    return Node("SumOfNeighbours", (x,), dtype=x.dtype, shape=x.shape, attrs={"radius": radius})


@gradient_of("SumOfNeighbours")
def _neighbours_gradient(node: Node, grad: Node) -> Any:
    return (_neighbours(grad, node.attrs["radius"]),)


@gradient_of("LRN")
@composed
def _lrn_gradient(node: Node) -> Node:
    (x,), how = node.inputs, node.attrs
    norm = _neighbours(math_ops.square(x), how["depth_radius"]) * how["alpha"] + how["bias"]
    return x * math_ops.rsqrt(norm) if how["beta"] == 0.5 else x * math_ops.pow(norm, -how["beta"])


lrn = local_response_normalization
