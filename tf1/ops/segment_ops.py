"""Functions of segments: sums, means, products and extremes of the rows that have one number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from globalstep.errors import InvalidArgumentError
from globalstep.tf1.gradients.registry import gradient_of
from globalstep.tf1.graph.graph import Node, as_node
from globalstep.tf1.graph.kernels import computes
from globalstep.tf1.graph.shapes import TensorShape
from globalstep.tf1.ops import math_ops
from globalstep.tf1.ops.building import static_value
from globalstep.tf1.ops.gradient_ops import again
from globalstep.tf1.ops.primitives import scatter_rows, take_rows

#: Of rows [n, ...], the segment of each [n], and the shape [segments, ...] of the result: the result.
_Combine = Callable[[Any, Any, tuple[int, ...]], Any]


def _counts(ids: Any, shape: tuple[int, ...]) -> Any:
    return np.bincount(ids, minlength=shape[0]).reshape((-1,) + (1,) * (len(shape) - 1))


def _mean(rows: Any, ids: Any, shape: tuple[int, ...]) -> Any:
    return scatter_rows(rows, ids, shape) / np.maximum(_counts(ids, shape), 1).astype(rows.dtype)


def _sqrt_n(rows: Any, ids: Any, shape: tuple[int, ...]) -> Any:
    return scatter_rows(rows, ids, shape) / np.sqrt(np.maximum(_counts(ids, shape), 1)).astype(rows.dtype)


def _extreme(rows: Any, ids: Any, shape: tuple[int, ...], largest: bool) -> Any:
    """Give the largest or smallest of each segment, 0 for one without rows."""
    limits = np.finfo(rows.dtype) if rows.dtype.kind == "f" else np.iinfo(rows.dtype)
    best = np.full(shape, limits.min if largest else limits.max, rows.dtype)
    (np.maximum if largest else np.minimum).at(best, ids, rows)
    return np.where(_counts(ids, shape) > 0, best, 0).astype(rows.dtype)


def _maximum(rows: Any, ids: Any, shape: tuple[int, ...]) -> Any:
    return _extreme(rows, ids, shape, largest=True)


def _minimum(rows: Any, ids: Any, shape: tuple[int, ...]) -> Any:
    return _extreme(rows, ids, shape, largest=False)


def _product(rows: Any, ids: Any, shape: tuple[int, ...]) -> Any:
    products = np.ones(shape, rows.dtype)
    np.multiply.at(products, ids, rows)
    return products


def _sorted(op_type: str, word: str, combine: _Combine) -> Callable[..., Node]:
    """Make the public function of segments whose numbers are sorted."""

    def evaluate(rows: Any, numbers: Any) -> Any:
        if numbers.size and (np.any(np.diff(numbers) < 0) or numbers[0] < 0):
            raise InvalidArgumentError("segment ids are not increasing")
        count = int(numbers[-1]) + 1 if numbers.size else 0
        return combine(rows, numbers, (count, *np.shape(rows)[1:]))

    def function(data: Any, segment_ids: Any, name: str | None = None) -> Node:
        values, ids = as_node(data), as_node(segment_ids)
        dims = values.shape.as_list() if values.shape.dims is not None else None
        shape = None if dims is None else [None, *dims[1:]]
        return Node(op_type, (values, ids), name=name, dtype=values.dtype, shape=TensorShape(shape))

    computes(op_type, evaluate)
    function.__name__ = function.__qualname__ = op_type.replace("Segment", "segment_").lower()
    function.__doc__ = f"""{word} rows that have one segment id.

    Args:
        data: Node or array [n, ...].
        segment_ids: Integer node or array [n], sorted; ids may be left out: 0 is there, 1 where rows are multiplied.
        name: Name of the node.

    Returns:
        A node [largest id + 1, ...].

    Raises:
        InvalidArgumentError: In the run, if the ids are not sorted.
    """
    return function


segment_sum = _sorted("SegmentSum", "Sum", scatter_rows)
segment_mean = _sorted("SegmentMean", "Average", _mean)
segment_max = _sorted("SegmentMax", "Give the largest of", _maximum)
segment_min = _sorted("SegmentMin", "Give the smallest of", _minimum)
segment_prod = _sorted("SegmentProd", "Multiply", _product)


def _unsorted(name: str, op_type: str, word: str, combine: _Combine, lowest: bool | None = None) -> Callable[..., Node]:
    """Make the public function of segments in any order.

    Args:
        name: Its name.
        op_type: TensorFlow's type of the operation.
        word: Beginning of its docstring.
        combine: See `_Combine`.
        lowest: Whether a segment without rows gets the dtype's lowest value, or its highest; by default 0, or
            what `combine` gives.
    """

    def evaluate(rows: Any, numbers: Any, size: Any) -> Any:
        flat = np.asarray(numbers).reshape(-1)
        if flat.size and flat.max() >= size:
            raise InvalidArgumentError(f"segment_ids contain {flat.max()}, which is not in [0, {int(size)})")
        rest = np.shape(rows)[np.ndim(numbers) :]
        valid = np.flatnonzero(flat >= 0)
        rows = np.reshape(rows, (flat.size, *rest))
        rows = rows if valid.size == flat.size else take_rows(rows, valid)
        shape = (int(size), *rest)
        results = combine(rows, flat[valid], shape)
        if lowest is None:
            return results
        limits = (np.finfo if results.dtype.kind == "f" else np.iinfo)(results.dtype)
        empty = _counts(flat[valid], shape) == 0
        return results + np.where(empty, limits.min if lowest else limits.max, 0).astype(results.dtype)

    def function(data: Any, segment_ids: Any, num_segments: Any, name: str | None = None) -> Node:
        values, ids, count = as_node(data), as_node(segment_ids), as_node(num_segments)
        shape = None
        if values.shape.dims is not None and ids.shape.ndims is not None:
            static = static_value(count)
            shape = [None if static is None else int(static), *values.shape.as_list()[ids.shape.ndims :]]
        return Node(op_type, (values, ids, count), name=name, dtype=values.dtype, shape=TensorShape(shape))

    computes(op_type, evaluate)
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""{word} rows that have one segment id; negative ids are left out.

    Args:
        data: Node or array [*ids.shape, ...].
        segment_ids: Integer node or array of a shape that begins that of `data`.
        num_segments: How many rows the result has.
        name: Name of the node.

    Returns:
        A node [num_segments, ...].

    Raises:
        InvalidArgumentError: In the run, if an id is not below `num_segments`.
    """
    return function


unsorted_segment_sum = _unsorted("unsorted_segment_sum", "UnsortedSegmentSum", "Sum", scatter_rows)
unsorted_segment_mean = _unsorted("unsorted_segment_mean", "UnsortedSegmentMean", "Average", _mean)
unsorted_segment_sqrt_n = _unsorted(
    "unsorted_segment_sqrt_n", "UnsortedSegmentSqrtN", "Sum, and divide by the root of the count of,", _sqrt_n
)
unsorted_segment_max = _unsorted(
    "unsorted_segment_max", "UnsortedSegmentMax", "Give the largest of", _maximum, lowest=True
)
unsorted_segment_min = _unsorted(
    "unsorted_segment_min", "UnsortedSegmentMin", "Give the smallest of", _minimum, lowest=False
)
unsorted_segment_prod = _unsorted("unsorted_segment_prod", "UnsortedSegmentProd", "Multiply", _product)


def _of_segments(values: Node, ids: Node, like: Node) -> Node:
    """Give for each row that of its segment, 0 where it has none."""
    return Node("OfSegments", (values, ids, like), dtype=values.dtype, shape=like.shape)


@computes("OfSegments")
def _pick(of_segment: Any, numbers: Any, rows: Any) -> Any:
    flat = np.asarray(numbers).reshape(-1)
    # A segment that is left out is of no row.
    taken = of_segment[np.maximum(flat, 0)] if len(of_segment) else np.zeros((0, *of_segment.shape[1:]), rows.dtype)
    if flat.size and flat.min() < 0:
        taken[flat < 0] = 0
    return taken.reshape(np.shape(rows))


def _sums_of_segments(values: Node, ids: Node, like: Node) -> Node:
    """Give for each segment the sum of its rows: what `_of_segments` does, back."""
    # Also where the segments are sorted: their number is that of the rows of `like`.
    return Node("SumOfSegments", (values, ids, like), dtype=values.dtype, shape=like.shape)


@computes("SumOfSegments")
def _add_up(rows: Any, numbers: Any, of_segment: Any) -> Any:
    flat = np.asarray(numbers).reshape(-1)
    valid, shape = np.flatnonzero(flat >= 0), np.shape(of_segment)
    return scatter_rows(rows.reshape(flat.size, *shape[1:])[valid], flat[valid], shape)


@gradient_of("OfSegments")
def _of_segments_gradient(node: Node, grad: Node) -> Any:
    values, ids, _ = node.inputs
    return _sums_of_segments(grad, ids, values), None, None


@gradient_of("SumOfSegments")
def _sum_of_segments_gradient(node: Node, grad: Node) -> Any:
    rows, ids, _ = node.inputs
    return _of_segments(grad, ids, rows), None, None


@gradient_of(
    "ScatterRows", "SegmentSum", "UnsortedSegmentSum", "SegmentMean", "UnsortedSegmentMean", "UnsortedSegmentSqrtN"
)
def _segment_sum_gradient(node: Node, grad: Node) -> Any:
    rows, ids, *rest = node.inputs
    if node.op_type.endswith(("Mean", "SqrtN")):
        attrs = {"root": node.op_type.endswith("SqrtN")}
        grad = Node("DivideByCounts", (grad, ids), dtype=grad.dtype, shape=grad.shape, attrs=attrs)
    return _of_segments(grad, ids, rows), None, *[None] * len(rest)


@computes("DivideByCounts")
def _divide_by_counts(g: Any, numbers: Any, *, root: Any) -> Any:
    flat = np.asarray(numbers).reshape(-1)
    counts = np.maximum(_counts(flat[flat >= 0], np.shape(g)), 1)
    return g / (np.sqrt(counts) if root else counts).astype(g.dtype)


@gradient_of("DivideByCounts")
def _divide_by_counts_gradient(node: Node, grad: Node) -> Any:
    return again(node, (grad, node.inputs[1])), None


@gradient_of("SegmentMax", "SegmentMin", "UnsortedSegmentMax", "UnsortedSegmentMin")
def _segment_extreme_gradient(node: Node, grad: Node) -> Any:
    """Equal values of a segment share the gradient evenly."""
    rows, ids, *rest = node.inputs
    chosen = math_ops.cast(math_ops.equal(rows, _of_segments(node, ids, rows)), rows.dtype)
    share = math_ops.div_no_nan(grad, _sums_of_segments(chosen, ids, node))
    return chosen * _of_segments(share, ids, rows), None, *[None] * len(rest)


@gradient_of("SegmentProd", "UnsortedSegmentProd")
def _segment_product_gradient(node: Node, grad: Node) -> Any:
    rows, ids, *rest = node.inputs
    factor = Node("ProductOfOthersInSegment", (rows, ids, node), dtype=rows.dtype, shape=rows.shape)
    return _of_segments(grad, ids, rows) * factor, None, *[None] * len(rest)


@computes("ProductOfOthersInSegment")
def _product_of_others(values: Any, numbers: Any, products: Any) -> Any:
    flat, shape = np.asarray(numbers).reshape(-1), np.shape(products)
    valid = np.flatnonzero(flat >= 0)
    given, at = values.reshape(flat.size, *shape[1:])[valid], flat[valid]
    zero = given == 0
    zeros = np.zeros(shape, np.int64)
    np.add.at(zeros, at, zero)
    rest = _product(np.where(zero, 1, given).astype(given.dtype), at, shape)
    factors = np.zeros((flat.size, *shape[1:]), given.dtype)
    factors[valid] = np.where(zeros[at] - zero == 0, rest[at] / np.where(zero, 1, given), 0)
    return factors.reshape(np.shape(values))
