"""Functions that sum up an axis: reductions, positions of extremes, and running sums."""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Callable
from string import ascii_letters
from typing import Any, NamedTuple

import numpy as np

from globalstep.dtypes import DTypeLike, as_dtype
from globalstep.tf1.gradients.registry import composed, gradient_of
from globalstep.tf1.graph.callables import named
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.kernels import computes, kernel_of
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops import math_ops
from globalstep.tf1.ops.building import elementwise, from_front, is_node, normal_axes, static_ints
from globalstep.tf1.ops.gradient_ops import MAX_CONSTANT
from globalstep.tf1.ops.primitives import product_of_others

__all__ = [
    "argmax",
    "argmin",
    "bincount",
    "count_nonzero",
    "cumsum",
    "norm",
    "reduce_all",
    "reduce_any",
    "reduce_euclidean_norm",
    "reduce_logsumexp",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_std",
    "reduce_sum",
    "reduce_variance",
]


#: Over shorter runs of numbers numpy's sum is slow.
_SHORT_RUN = 128

_Reduction = Callable[[Any, tuple[int, ...]], Any]


def _either(old: Any, new: Any, old_name: str, new_name: str) -> Any:
    if old is not None and new is not None:
        raise ValueError(f"Cannot specify both '{old_name}' and '{new_name}'")
    return new if new is not None else old


class _Summation(NamedTuple):
    """How to sum arrays of one shape over some axes."""

    axes: tuple[int, ...]
    #: How many numbers go into each sum.
    terms: int
    #: Of the result, with these axes as size 1 and without them.
    kept: tuple[int, ...]
    shape: tuple[int, ...]
    #: Of einsum, where that adds in the same order in a quarter of the time.
    subscripts: str | None
    #: Whether each run of numbers of the gradient is repeated.
    repeats: bool


@functools.lru_cache
def _summation_of(shape: tuple[int, ...], axes: tuple[int, ...] | None) -> _Summation:
    rank = len(shape)
    wanted = from_front(axes, rank)
    repeats = len(wanted) == 1 and wanted[0] < rank - 1
    subscripts = None
    if repeats and rank <= len(ascii_letters) and 1 < math.prod(shape[wanted[0] + 1 :]) < _SHORT_RUN:
        letters = ascii_letters[:rank]
        subscripts = f"{letters}->{letters.replace(letters[wanted[0]], '')}"
    return _Summation(
        wanted,
        math.prod(shape[axis] for axis in wanted),
        tuple(1 if axis in wanted else size for axis, size in enumerate(shape)),
        tuple(size for axis, size in enumerate(shape) if axis not in wanted),
        subscripts,
        repeats,
    )


def _reduce(
    op_type: str,
    x: Node,
    axis: Any,
    keepdims: bool,
    name: str | None,
    dtype: DTypeLike | None = None,
    **attrs: Any,
) -> Node:
    """Make a reduction."""
    axes = None if axis is None else normal_axes(axis, x)
    return Node(
        op_type, (x,), name=name or op_type, dtype=dtype or x.dtype, shape=_reduced_shape(x, axes, keepdims),
        attrs={"axis": axes, "keepdims": keepdims, **attrs},
    )  # fmt: skip


def _reducing(node: Node, fn: _Reduction) -> Callable[[Any], Any]:
    """Give the function of a reduction; `fn(value, axes)` gives the result with the reduced axes kept as size 1."""
    axes, keepdims, mean = node.attrs["axis"], node.attrs["keepdims"], fn is _mean

    def reduce(value: Any) -> Any:
        wanted = from_front(axes, np.ndim(value))
        reduced = fn(value, wanted) if wanted else fn(np.reshape(value, (1, *np.shape(value))), (0,))[0]
        if keepdims or not wanted:
            return reduced
        return np.reshape(reduced, tuple(n for i, n in enumerate(np.shape(value)) if i not in wanted))

    def total(value: Any) -> Any:
        how = _summation_of(value.shape, axes)
        if not how.axes or not how.terms:
            return reduce(value)
        if how.subscripts is not None and value.flags.c_contiguous:
            result = np.einsum(how.subscripts, value)
        else:
            result = value.sum(axis=how.axes, keepdims=True, dtype=value.dtype)
        return (result / how.terms if mean else result).reshape(how.kept if keepdims else how.shape)

    return total if fn in (_sum, _mean) and node.dtype.is_floating else reduce


def _reduced_shape(x: Node, axes: tuple[int, ...] | None, keepdims: bool) -> TensorShape:
    if x.shape.dims is None:
        return TensorShape([] if axes is None and not keepdims else None)
    sizes = x.shape.as_list()
    gone = range(len(sizes)) if axes is None else axes
    if keepdims:
        return TensorShape([1 if i in gone else size for i, size in enumerate(sizes)])
    return TensorShape([size for i, size in enumerate(sizes) if i not in gone])


def _sum(value: Any, axes: tuple[int, ...]) -> Any:
    return np.sum(value, axis=axes, keepdims=True, dtype=value.dtype)


def _mean(value: Any, axes: tuple[int, ...]) -> Any:
    count = int(np.prod([np.shape(value)[axis] for axis in axes]))
    if np.dtype(value.dtype).kind in "iu":
        # Added up in 64 bits, so that the sum does not overflow; the quotient is rounded towards 0.
        whole = np.sum(value, axis=axes, keepdims=True)
        return (np.sign(whole) * (np.abs(whole) // max(count, 1))).astype(value.dtype)
    total = _sum(value, axes)
    return total / count if count else total * np.nan


def _log_sum_exp(value: Any, axes: tuple[int, ...]) -> Any:
    peak = np.max(value, axis=axes, keepdims=True)
    peak = np.where(np.isfinite(peak), peak, np.zeros((), peak.dtype))
    return np.log(np.sum(np.exp(value - peak), axis=axes, keepdims=True)) + peak


def _numpys(function: Callable[..., Any]) -> _Reduction:
    return lambda value, axes: function(value, axis=axes, keepdims=True)


def _reduction(
    name: str, op_type: str, fn: _Reduction, first_line: str, dtype: DTypeLike | None = None
) -> Callable[..., Node]:
    """Make the public function `name(input_tensor, axis=None, ...)` of a reduction."""
    kernel_of(op_type)(lambda node: _reducing(node, fn))
    doc = f"""{first_line}

    Args:
        input_tensor: Node or array.
        axis: Axis or list of axes; None for all.
        keepdims: Whether reduced axes stay, with size 1.
        name: Name of the node.
        reduction_indices: Older name of `axis`.
        keep_dims: Older name of `keepdims`.

    Returns:
        A node of the dtype of `input_tensor`.

    Raises:
        ValueError: If an axis is out of range.
    """

    @named(name, doc)
    def function(
        input_tensor: Any,
        axis: Any = None,
        keepdims: bool | None = None,
        name: str | None = None,
        reduction_indices: Any = None,
        keep_dims: bool | None = None,
    ) -> Node:
        axis = _either(reduction_indices, axis, "reduction_indices", "axis")
        keeps = bool(_either(keep_dims, keepdims, "keep_dims", "keepdims"))
        return _reduce(op_type, as_node(input_tensor, dtype), axis, keeps, name)

    return function


reduce_sum = _reduction("reduce_sum", "Sum", _sum, "Sum over axes.")
reduce_mean = _reduction("reduce_mean", "Mean", _mean, "Average over axes; integers round towards 0.")
reduce_max = _reduction("reduce_max", "Max", _numpys(np.max), "Give the largest value over axes.")
reduce_min = _reduction("reduce_min", "Min", _numpys(np.min), "Give the smallest value over axes.")
reduce_prod = _reduction("reduce_prod", "Prod", _numpys(np.prod), "Multiply over axes.")
reduce_logsumexp = _reduction(
    "reduce_logsumexp", "LogSumExp", _log_sum_exp, "Give log(sum(exp(x))) over axes, without overflow."
)
reduce_all = _reduction("reduce_all", "All", _numpys(np.all), "Say whether all hold.", "bool")
reduce_any = _reduction("reduce_any", "Any", _numpys(np.any), "Say whether any holds.", "bool")


def _variance(value: Any, axes: tuple[int, ...]) -> Any:
    return _mean((value - _mean(value, axes)) ** 2, axes)


reduce_variance = _reduction("reduce_variance", "Variance", _variance, "Give the variance over axes.")
reduce_std = _reduction(
    "reduce_std",
    "StandardDeviation",
    lambda v, axes: np.sqrt(_variance(v, axes)),
    "Give the square root of `reduce_variance`.",
)
reduce_euclidean_norm = _reduction(
    "reduce_euclidean_norm", "EuclideanNorm", lambda v, axes: np.sqrt(_sum(v * v, axes)), "Give the 2-norm over axes."
)


def _spread(node: Node, grad: Node) -> Node:
    """Give a gradient of a reduction at each element that went into it; of a mean, divided by their number."""
    x, axes, mean = node.inputs[0], node.attrs["axis"], node.op_type == "Mean"
    known = tuple(int(size) for size in x.shape) if x.shape.is_fully_defined() else None
    if known is not None and "filled" in grad.attrs and (x.shape.num_elements() or 0) <= MAX_CONSTANT:
        dtype = np.dtype(x.dtype.as_numpy_dtype)
        made = as_node(_spread_out(grad.attrs["value"], known, dtype, axes, mean))
        if not mean:
            made.attrs["filled"] = grad.attrs["filled"]
        return made
    attrs = {"axis": axes, "keepdims": node.attrs["keepdims"], "mean": mean}
    inputs = (grad,) if known is not None else (grad, x)
    return Node("Spread", inputs, dtype=x.dtype, shape=x.shape, attrs=attrs)


@kernel_of("Spread")
def _spreading(node: Node) -> Any:
    axes, mean, dtype = node.attrs["axis"], node.attrs["mean"], np.dtype(node.dtype.as_numpy_dtype)
    if len(node.inputs) == 2:
        return lambda g, like: _spread_out(g, like.shape, dtype, axes, mean)
    shape = tuple(int(size) for size in node.shape)
    return lambda g: _spread_out(g, shape, dtype, axes, mean)


def _spread_out(g: Any, shape: Any, dtype: Any, axes: tuple[int, ...] | None, mean: bool) -> Any:
    how = _summation_of(shape, axes)
    g = g.reshape(how.kept)
    g = g / how.terms if mean else g
    if how.repeats and how.terms:
        return np.add(g, 0, dtype=dtype).repeat(how.terms, how.axes[0])
    # Added to zero before it is spread: numpy adds no two numbers as slowly as repeated ones.
    spread = np.empty(shape, dtype)
    spread[...] = np.add(g, 0)
    return spread


@gradient_of("Spread")
def _spread_gradient(node: Node, grad: Node) -> Any:
    reduce = reduce_mean if node.attrs["mean"] else reduce_sum
    return reduce(grad, node.attrs["axis"], node.attrs["keepdims"]), *[None] * (len(node.inputs) - 1)


@gradient_of("Sum", "Mean")
def _sum_gradient(node: Node, grad: Node) -> Any:
    return (_spread(node, grad),)


@gradient_of("Max", "Min")
def _extreme_gradient(node: Node, grad: Node) -> Any:
    return (_to_extremes(node, grad, node.inputs[0]),)


def _to_extremes(node: Node, grad: Node, x: Node) -> Node:
    """Give the gradient at what a node is the largest or smallest of: equal ones share it evenly."""
    chosen = math_ops.cast(math_ops.equal(x, _spread(node, node)), x.dtype)
    count = reduce_sum(chosen, node.attrs["axis"], node.attrs["keepdims"])
    return _spread(node, grad / count) * chosen


@gradient_of("Prod")
def _product_gradient(node: Node, grad: Node) -> Any:
    (x,) = node.inputs
    rest = Node("ProductOfOthers", (x,), dtype=x.dtype, shape=x.shape, attrs={"of": node})
    return (_spread(node, grad) * rest,)


@computes("ProductOfOthers")
def _product_of_others(value: Any, *, of: Node) -> Any:
    axes = from_front(of.attrs["axis"], np.ndim(value))
    return product_of_others(value, axes) if axes else np.ones_like(value)


gradient_of("ProductOfOthers")(composed(lambda node: _spread(node.attrs["of"], node.attrs["of"]) / node.inputs[0]))


@gradient_of("LogSumExp")
def _log_sum_exp_gradient(node: Node, grad: Node) -> Any:
    (x,) = node.inputs
    return (_spread(node, grad) * math_ops.exp(x - _spread(node, node)),)


@gradient_of("EuclideanNorm")
def _euclidean_norm_gradient(node: Node, grad: Node) -> Any:
    return (_spread(node, grad / node) * node.inputs[0],)


def _variance_of(node: Node) -> Node:
    (x,) = node.inputs
    axes = node.attrs["axis"]
    return reduce_mean(math_ops.square(x - reduce_mean(x, axes, True)), axes, node.attrs["keepdims"])


gradient_of("Variance")(composed(_variance_of))
gradient_of("StandardDeviation")(composed(lambda node: math_ops.sqrt(_variance_of(node))))


def count_nonzero(
    input_tensor: Any,
    axis: Any = None,
    keepdims: bool | None = None,
    dtype: DTypeLike = "int64",
    name: str | None = None,
    reduction_indices: Any = None,
    keep_dims: bool | None = None,
) -> Node:
    """Count the elements that are not 0 over axes; see `reduce_sum` for the arguments."""
    axis = _either(reduction_indices, axis, "reduction_indices", "axis")
    keeps = bool(_either(keep_dims, keepdims, "keep_dims", "keepdims"))
    return _reduce("CountNonzero", as_node(input_tensor), axis, keeps, name or "count_nonzero", as_dtype(dtype))


@kernel_of("CountNonzero")
def _count_nonzero(node: Node) -> Any:
    dtype, zero = node.dtype.as_numpy_dtype, b"" if node.inputs[0].dtype.name == "string" else 0
    return _reducing(node, lambda v, axes: np.sum(v != zero, axis=axes, keepdims=True).astype(dtype))


def _position(op_type: str, find: Callable[..., Any]) -> Callable[..., Node]:
    word = "largest" if op_type == "ArgMax" else "smallest"
    doc = f"""Give the index of the {word} value along one axis; the first among equals.

    Args:
        input: Node or array.
        axis: The axis; default 0.
        name: Name of the node.
        dimension: Older name of `axis`.
        output_type: int32 or int64 (default).

    Returns:
        An integer node without that axis.
    """

    @named(op_type.lower(), doc)
    def function(
        input: Any, axis: Any = None, name: str | None = None, dimension: Any = None, output_type: Any = "int64"
    ) -> Node:
        node, wanted = as_node(input), as_dtype(output_type)
        chosen = _either(dimension, axis, "dimension", "axis")
        (place,) = normal_axes(0 if chosen is None else chosen, node)
        shape = _reduced_shape(node, (place,), False)
        return Node(op_type, (node,), name=name, dtype=wanted, shape=shape, attrs={"axis": place})

    @computes(op_type)
    def _found(value: Any, *, axis: int, dtype: Any) -> Any:
        return find(value, axis=axis).astype(dtype)

    return function


argmax = _position("ArgMax", np.argmax)
argmin = _position("ArgMin", np.argmin)


def cumsum(x: Any, axis: Any = 0, exclusive: bool = False, reverse: bool = False, name: str | None = None) -> Node:
    """Give running sums along an axis.

    Args:
        x: Node or array.
        axis: The axis.
        exclusive: Whether an element is left out of its own sum.
        reverse: Whether sums run from the end.
        name: Name of the node.

    Returns:
        A node of the shape and dtype of `x`.
    """
    node = as_node(x)
    (place,) = normal_axes(axis, node)
    return elementwise("Cumsum", node, name, axis=place, exclusive=exclusive, reverse=reverse)


@computes("Cumsum")
def _cumsum(value: Any, *, axis: int, exclusive: bool, reverse: bool) -> Any:
    turned = np.flip(value, axis) if reverse else value
    total = np.cumsum(turned, axis=axis, dtype=value.dtype)
    total = total - turned if exclusive else total
    return np.flip(total, axis) if reverse else total


@gradient_of("Cumsum")
def _cumsum_gradient(node: Node, grad: Node) -> Any:
    how = node.attrs
    return (cumsum(grad, how["axis"], how["exclusive"], not how["reverse"]),)


def norm(
    tensor: Any,
    ord: Any = "euclidean",
    axis: Any = None,
    keepdims: bool | None = None,
    name: str | None = None,
    keep_dims: bool | None = None,
) -> Node:
    """Give a norm over `axis` or all elements: a vector's, or with two axes a matrix's.

    Args:
        tensor: Node or array.
        ord: "euclidean", infinity or a positive number; of a matrix "fro" too, and no numbers but 1 and 2.
        axis: An axis, two of them for matrices, or None.
        keepdims: Whether the axes stay, with size 1.
        name: Name of the node.
        keep_dims: Older name of `keepdims`.

    Raises:
        ValueError: For another `ord`, or other axes.
    """
    x, keeps = as_node(tensor), bool(_either(keep_dims, keepdims, "keep_dims", "keepdims"))
    matrix, name = isinstance(axis, (list, tuple)), name or "norm"
    if matrix and not (len(axis) == 2 and all(isinstance(one, int) for one in axis) and axis[0] != axis[1]):
        raise ValueError(f"'axis' must be None, an integer, or a tuple of 2 unique integers, got {axis}")
    if ord not in (("euclidean", "fro", 1, 2, np.inf) if matrix else ("euclidean",)) and (
        matrix or not isinstance(ord, numbers.Real) or ord <= 0
    ):
        raise ValueError(f"'ord' must be a supported {'matrix' if matrix else 'vector'} norm, got {ord}")
    if ord in ("euclidean", "fro") or (ord == 2 and not matrix):
        return reduce_euclidean_norm(x, axis, keeps, name)
    if ord == 2:
        return _reduce("SpectralNorm", x, axis, keeps, name)
    size = math_ops.abs(x)
    if matrix:
        return reduce_max(reduce_sum(size, axis[int(ord != 1)], True), axis, keeps, name)
    if ord in (1, np.inf):
        return (reduce_sum if ord == 1 else reduce_max)(size, axis, keeps, name)
    return math_ops.pow(reduce_sum(size**ord, axis, keeps), 1.0 / ord, name)


kernel_of("SpectralNorm")(lambda node: _reducing(node, lambda v, axes: np.linalg.norm(v, 2, axes, keepdims=True)))


def bincount(
    arr: Any,
    weights: Any = None,
    minlength: Any = None,
    maxlength: Any = None,
    dtype: DTypeLike = "int32",
    name: str | None = None,
) -> Node:
    """Count how often each number occurs in an integer array.

    Args:
        arr: Integer node or array of any shape, not negative.
        weights: Node or array of the same shape: what each occurrence counts.
        minlength: Least length of the result.
        maxlength: Greatest length of the result; larger numbers are left out.
        dtype: Dtype of the counts without weights.
        name: Name of the node.

    Returns:
        A node [largest number + 1].
    """
    low = 0 if minlength is None else static_ints(minlength, "minlength")[0]
    high = None if maxlength is None else static_ints(maxlength, "maxlength")[0]
    inputs = [as_node(arr, None if is_node(arr) else "int32")] + ([] if weights is None else [as_node(weights)])
    kind = as_dtype(dtype) if weights is None else inputs[1].dtype
    return Node("Bincount", inputs, name=name, dtype=kind, shape=[None], attrs={"minlength": low, "maxlength": high})


@computes("Bincount")
def _bincount(numbers: Any, weights: Any = None, *, minlength: int, maxlength: int | None, dtype: Any) -> Any:
    flat = np.asarray(numbers).reshape(-1)
    flat = flat if maxlength is None else np.minimum(flat, maxlength)
    factors = None if weights is None else np.asarray(weights).reshape(-1)
    return np.bincount(flat, factors, minlength)[:maxlength].astype(dtype)
