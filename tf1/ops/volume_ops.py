"""Convolution and pooling of volumes, as products of matrices over sliding windows.

Plain numpy: right, and quick enough for small volumes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.tf1.gradients.registry import composed, gradient_of
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops import conv_ops
from globalstep.tf1.ops.array_ops import reshape, reshape_like
from globalstep.tf1.ops.building import as_shape_node, operands, require_float, sizes_of
from globalstep.tf1.ops.product_ops import matmul
from globalstep.tf1.ops.reduction_ops import reduce_max

_Sizes = tuple[int, int, int]


def _three(values: Any, what: str) -> _Sizes:
    """Take the three spatial sizes out of TensorFlow's five."""
    depth, height, width = conv_ops.spatial_sizes(values, what, 3)
    return depth, height, width


def _size_of(w: Node) -> tuple[_Sizes, int | None, int | None]:
    depth, rows, columns, inputs, outputs = w.shape.as_list()
    if depth is None or rows is None or columns is None:
        raise ValueError(f"The size of the filters must be known: {w.shape}.")
    return (depth, rows, columns), inputs, outputs


def conv3d(
    input: Any,
    filter: Any = None,
    strides: Any = None,
    padding: str | None = None,
    data_format: str = "NDHWC",
    dilations: Any = (1, 1, 1, 1, 1),
    name: str | None = None,
    filters: Any = None,
) -> Node:
    """Convolve volumes with filters.

    Args:
        input: Floating node or array [batch, depth, height, width, channels].
        filter: Node or array [depth, height, width, channels, outputs].
        strides: Five ints, the first and last 1.
        padding: "SAME" or "VALID".
        data_format: "NDHWC", or "NCDHW": then `input` and the result have their channels second.
        dilations: Only 1.
        name: Name of the node.
        filters: Newer name of `filter`.

    Returns:
        A node [batch, planes, rows, columns, outputs].

    Raises:
        ValueError: For arguments that do not fit.
    """
    x, w = operands("Conv3D", input, filter if filters is None else filters, ("input", "filter"))
    require_float("Conv3D", x, "input")
    if strides is None or padding is None:
        raise ValueError("conv3d needs strides and padding.")
    if set(np.asarray(dilations).reshape(-1).tolist()) != {1}:
        raise ValueError("conv3d with dilations is not supported.")
    if conv_ops.is_channels_first(data_format, 5):
        return conv_ops.to_channels_first(
            conv3d(conv_ops.to_channels_last(x), w, conv_ops.last_order(strides), padding, name=name)
        )
    steps, fit = _three(strides, "strides"), conv_ops.checked_padding(padding)
    size, channels, outputs = _size_of(w)
    if x.shape.dims is not None and x.shape.as_list()[-1] not in (None, channels):
        raise ValueError(f"The volumes have {x.shape.as_list()[-1]} channels, the filters {channels}.")
    shape = conv_ops.output_shape(x, size, steps, fit, outputs)
    return Node("Conv3D", (x, w), name=name, dtype=x.dtype, shape=shape, attrs={"strides": steps, "padding": fit})


@computes("Conv3D")
def _conv3d(volumes: Any, kernels: Any, *, strides: _Sizes, padding: str) -> Any:
    windows = conv_ops.prepared(volumes, np.shape(kernels)[:3], strides, padding, 0)
    lead = np.shape(windows)[:4]
    flat = np.reshape(windows, (int(np.prod(lead)), -1))
    return np.reshape(np.matmul(flat, np.reshape(kernels, (-1, np.shape(kernels)[-1]))), (*lead, -1))


@gradient_of("Conv3D")
@composed
def _conv3d_gradient(node: Node) -> Node:
    x, w = node.inputs
    size, _, outputs = _size_of(w)
    windows = reshape(_windows(x, node, size), [-1, int(np.prod([int(n) for n in w.shape[:-1]]))])
    return reshape_like(matmul(windows, reshape(w, [-1, outputs])), node)


def _windows(volumes: Node, node: Node, size: _Sizes) -> Node:
    """Give windows of volumes that lie as those of a node do."""
    return conv_ops.windows_of(volumes, size, node.attrs["strides"], node.attrs["padding"])


@gradient_of("Conv3DBackpropInputV2")
def _conv3d_transpose_gradient(node: Node, grad: Node) -> Any:
    x, w, _ = node.inputs
    size, _, inputs = _size_of(w)
    windows = reshape(_windows(grad, node, size), [-1, int(np.prod([int(n) for n in w.shape[:-1]]))])
    to_x = reshape_like(matmul(windows, reshape(w, [-1, inputs])), x)
    return to_x, reshape_like(matmul(windows, reshape(x, [-1, inputs]), transpose_a=True), w), None


def conv3d_transpose(
    value: Any,
    filter: Any = None,
    output_shape: Any = None,
    strides: Any = None,
    padding: str = "SAME",
    data_format: str = "NDHWC",
    name: str | None = None,
    input: Any = None,
    filters: Any = None,
) -> Node:
    """Do what the gradient of `conv3d` by its volumes does: each value spreads a filter over the result.

    Args:
        value: Floating node or array [batch, planes, rows, columns, inputs].
        filter: Node or array [depth, height, width, outputs, inputs].
        output_shape: Shape of the result: five ints, or an integer node.
        strides: Five ints, the first and last 1.
        padding: "SAME" or "VALID": that of the convolution which this is the gradient of.
        data_format: "NDHWC".
        name: Name of the node; default "conv3d_transpose".
        input: Newer name of `value`.
        filters: Newer name of `filter`.

    Returns:
        A node of `output_shape`.

    Raises:
        ValueError: For arguments that do not fit.
        InvalidArgumentError: In the run, if `output_shape` is none that such a convolution could have started from.
    """
    x, w = operands(
        "Conv3DBackpropInputV2", value if input is None else input, filter if filters is None else filters,
        ("value", "filter"),
    )  # fmt: skip
    require_float("Conv3DBackpropInputV2", x, "value")
    if conv_ops.is_channels_first(data_format, 5):
        raise ValueError("conv3d_transpose takes data_format 'NDHWC' only: transpose the value first.")
    if output_shape is None or strides is None:
        raise ValueError("conv3d_transpose needs output_shape and strides.")
    sizes, steps, fit = as_shape_node(output_shape), _three(strides, "strides"), conv_ops.checked_padding(padding)
    _, outputs, inputs = _size_of(w)
    if x.shape.dims is not None and x.shape.as_list()[-1] not in (None, inputs):
        raise ValueError(f"input channels does not match filter's input channels, {x.shape.as_list()[-1]} != {inputs}")
    dims = sizes_of(sizes) or [None, None, None, None, outputs]
    return Node(
        "Conv3DBackpropInputV2", (x, w, sizes), name=name or "conv3d_transpose", dtype=x.dtype,
        shape=TensorShape(dims), attrs={"strides": steps, "padding": fit},
    )  # fmt: skip


@computes("Conv3DBackpropInputV2")
def _spread(values: Any, kernels: Any, target: Any, *, strides: _Sizes, padding: str) -> Any:
    batch, *space, depth = (int(n) for n in np.asarray(target).reshape(-1))
    size = np.shape(kernels)[:3]
    around = conv_ops.around(space, size, strides, padding)
    wide = [n + sum(pair) for n, pair in zip(space, around, strict=True)]
    expected = [(n - k) // step + 1 for n, k, step in zip(wide, size, strides, strict=True)]
    if [batch, *expected] != list(np.shape(values)[:4]):
        raise InvalidArgumentError(
            f"Conv3DBackpropInput: a value of shape {np.shape(values)} does not come from volumes of shape "
            f"{(batch, *space, depth)} by filters of {size} with strides {strides} and padding {padding}"
        )
    flat = np.reshape(values, (-1, np.shape(values)[-1]))
    each = np.matmul(flat, np.transpose(np.reshape(kernels, (-1, np.shape(kernels)[-1]))))
    windows = np.reshape(each, (*np.shape(values)[:4], *size, depth))
    return conv_ops.laid_over(windows, (batch, *space, depth), size, strides, padding)


def _pooled(op_type: str, value: Any, arguments: tuple[Any, Any, str, str], name: str | None) -> Node:
    ksize, strides, padding, data_format = arguments
    x = require_float(op_type, as_node(value), "input")
    first = conv_ops.is_channels_first(data_format, 5)
    if first:
        x, ksize, strides = conv_ops.to_channels_last(x), conv_ops.last_order(ksize), conv_ops.last_order(strides)
    size, steps, fit = _three(ksize, "ksize"), _three(strides, "strides"), conv_ops.checked_padding(padding)
    shape = conv_ops.output_shape(x, size, steps, fit, None)
    attrs = {"ksize": size, "strides": steps, "padding": fit}
    made = Node(op_type, (x,), name=name, dtype=x.dtype, shape=shape, attrs=attrs)
    return conv_ops.to_channels_first(made) if first else made


def _largest_of(volumes: Any, size: _Sizes, strides: _Sizes, padding: str) -> Any:
    return conv_ops.prepared(volumes, size, strides, padding, -np.inf).max(axis=(4, 5, 6))


@gradient_of("MaxPool3D")
@composed
def _max_pool_gradient(node: Node) -> Node:
    (x,), size = node.inputs, node.attrs["ksize"]
    windows, inside = (_windows(one, node, size) for one in (x, conv_ops.inside(x)))
    lowest = np.asarray(np.finfo(x.dtype.as_numpy_dtype).min)
    return reduce_max(windows + (1.0 - inside) * lowest, [4, 5, 6])


def _pool(op_type: str, name: str, first_line: str, fn: Callable[..., Any]) -> Callable[..., Node]:
    def function(
        input: Any, ksize: Any, strides: Any, padding: str, data_format: str = "NDHWC", name: str | None = None
    ) -> Node:
        return _pooled(op_type, input, (ksize, strides, padding, data_format), name)

    @computes(op_type)
    def _kernel(volumes: Any, *, ksize: _Sizes, strides: _Sizes, padding: str) -> Any:
        return fn(volumes, ksize, strides, padding)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""{first_line}

    Args:
        input: Floating node or array [batch, depth, height, width, channels].
        ksize: Size of the windows: five ints, the first and last 1.
        strides: Five ints, the first and last 1.
        padding: "SAME" or "VALID".
        data_format: "NDHWC", or "NCDHW": then `input` and the result have their channels second.
        name: Name of the node.

    Returns:
        A node [batch, planes, rows, columns, channels].
    """
    return function


max_pool3d = _pool("MaxPool3D", "max_pool3d", "Give the largest value of each window of volumes.", _largest_of)
avg_pool3d = _pool(
    "AvgPool3D", "avg_pool3d", "Give the mean of each window of volumes, of the elements inside.", conv_ops.means
)
