"""The few functions whose derivative `autograd.numpy` lacks, or gives in another way than TensorFlow.

Each is an autograd primitive: a plain numpy function and its vector-Jacobian product, written with
primitives again so that it can be differentiated once more. All keep the dtype of their operands:
autograd's own `where`, `maximum`, `mean` and `max` turn float32 gradients into float64.

Layer: tf1, below every other module of `ops`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.extend import defvjp, primitive

from globalstep.errors import InvalidArgumentError
from globalstep.tf1.gradients.vjps import Found, with_vjp

__all__ = [
    "broadcast",
    "cast",
    "distinct_ids",
    "flip",
    "largest",
    "maximum",
    "maximum_vjp",
    "minimum",
    "minimum_vjp",
    "product",
    "running_sum",
    "scatter_rows",
    "select",
    "sum_to_shape",
    "take_rows",
]

#: Smaller arrays are left to numpy, so that a small program need not load a kernel.
_KERNEL_BYTES = 1 << 15
_KERNEL_IDS = 1 << 10
_KERNEL_DTYPES = (np.float32, np.float64)


@primitive
def cast(x: Any, dtype: Any) -> Any:
    """Give `x` as `dtype`; its derivative comes back in the dtype of `x`."""
    return np.asarray(x).astype(dtype)


defvjp(cast, lambda ans, x, dtype: lambda g: cast(g, x.dtype))


@primitive
def sum_to_shape(x: Any, shape: tuple[int, ...]) -> Any:
    """Sum `x` over the axes that broadcasting from `shape` had made."""
    if np.shape(x) == shape:
        return x
    lead = np.ndim(x) - len(shape)
    axes = tuple(range(lead)) + tuple(
        lead + i for i, size in enumerate(shape) if size == 1 and np.shape(x)[lead + i] != 1
    )
    return np.sum(x, axis=axes).reshape(shape)


@primitive
def broadcast(x: Any, shape: tuple[int, ...]) -> Any:
    """Broadcast `x` to `shape`."""
    value = np.asarray(x)
    if value.ndim:
        return np.array(np.broadcast_to(value, shape))
    # numpy takes several times as long over the general case.
    filled = np.empty(shape, value.dtype)
    filled[...] = value
    return filled


defvjp(sum_to_shape, lambda ans, x, shape: lambda g: broadcast(g, np.shape(x)))
defvjp(broadcast, lambda ans, x, shape: lambda g: sum_to_shape(g, np.shape(x)))


@primitive
def select(condition: Any, x: Any, y: Any) -> Any:
    """Give `x` where `condition` holds and `y` elsewhere, with broadcasting."""
    return np.where(condition, x, y)


def _zero_like(g: Any) -> Any:
    return np.zeros((), dtype=g.dtype)


defvjp(
    select,
    None,
    lambda ans, c, x, y: lambda g: sum_to_shape(select(c, g, _zero_like(g)), np.shape(x)),
    lambda ans, c, x, y: lambda g: sum_to_shape(select(c, _zero_like(g), g), np.shape(y)),
)


@primitive
def maximum(x: Any, y: Any) -> Any:
    """Give the larger of each pair; where they are equal the gradient is all of `x`, as in TensorFlow."""
    return np.maximum(x, y)


@primitive
def minimum(x: Any, y: Any) -> Any:
    """Give the smaller of each pair; where they are equal the gradient is all of `x`, as in TensorFlow."""
    return np.minimum(x, y)


defvjp(
    maximum,
    lambda ans, x, y: lambda g: sum_to_shape(select(anp.greater_equal(x, y), g, _zero_like(g)), np.shape(x)),
    lambda ans, x, y: lambda g: sum_to_shape(select(anp.greater_equal(x, y), _zero_like(g), g), np.shape(y)),
)
defvjp(
    minimum,
    lambda ans, x, y: lambda g: sum_to_shape(select(anp.less_equal(x, y), g, _zero_like(g)), np.shape(x)),
    lambda ans, x, y: lambda g: sum_to_shape(select(anp.less_equal(x, y), _zero_like(g), g), np.shape(y)),
)


def maximum_vjp(x: Any, y: Any) -> Found:
    """The VJP of `maximum`."""
    first = np.greater_equal(x, y)
    return np.maximum(x, y), _of_pair(first, x, y)


def minimum_vjp(x: Any, y: Any) -> Found:
    """The VJP of `minimum`."""
    first = np.less_equal(x, y)
    return np.minimum(x, y), _of_pair(first, x, y)


def _of_pair(first: Any, x: Any, y: Any) -> tuple[Callable[[Any], Any], ...]:
    """The ways back from a choice between two values to each of them."""
    return (
        lambda g: sum_to_shape(np.where(first, g, _zero_like(g)), x.shape),
        lambda g: sum_to_shape(np.where(first, _zero_like(g), g), y.shape),
    )


with_vjp(maximum, maximum_vjp)
with_vjp(minimum, minimum_vjp)


@primitive
def largest(x: Any, axis: tuple[int, ...]) -> Any:
    """Give the maximum over `axis`, kept as size 1; equal maxima share the gradient evenly."""
    return np.max(x, axis=axis, keepdims=True)


def _largest_vjp(ans: Any, x: Any, axis: tuple[int, ...]) -> Any:
    chosen = cast(anp.equal(x, ans), ans.dtype)
    return lambda g: broadcast(g / anp.sum(chosen, axis=axis, keepdims=True), np.shape(x)) * chosen


defvjp(largest, _largest_vjp)


@primitive
def product(x: Any, axis: tuple[int, ...]) -> Any:
    """Give the product over `axis`, kept as size 1; the gradient is right with zeros too."""
    return np.prod(x, axis=axis, keepdims=True)


def _product_of_others(x: Any, axis: tuple[int, ...]) -> Any:
    moved = np.moveaxis(x, axis, tuple(range(-len(axis), 0)))
    flat = moved.reshape((*moved.shape[: moved.ndim - len(axis)], -1))
    one = np.ones_like(flat[..., :1])
    before = np.cumprod(np.concatenate([one, flat[..., :-1]], axis=-1), axis=-1)
    after = np.cumprod(np.concatenate([one, flat[..., :0:-1]], axis=-1), axis=-1)[..., ::-1]
    return np.moveaxis((before * after).reshape(moved.shape), tuple(range(-len(axis), 0)), axis)


def _product_vjp(ans: Any, x: Any, axis: tuple[int, ...]) -> Any:
    others = _product_of_others(x, axis) if isinstance(x, np.ndarray) else ans / x
    return lambda g: broadcast(g, np.shape(x)) * others


defvjp(product, _product_vjp)


@primitive
def flip(x: Any, axis: tuple[int, ...]) -> Any:
    """Reverse `x` along `axis`."""
    return np.flip(x, axis)


defvjp(flip, lambda ans, x, axis: lambda g: flip(g, axis))


@primitive
def running_sum(x: Any, axis: int) -> Any:
    """Give the cumulative sum along `axis`, in the dtype of `x`."""
    return np.cumsum(x, axis=axis, dtype=x.dtype)


defvjp(running_sum, lambda ans, x, axis: lambda g: flip(running_sum(flip(g, (axis,)), axis), (axis,)))


@primitive
def take_rows(params: Any, indices: Any, axis: int = 0) -> Any:
    """Give `params[indices]` along `axis`.

    Raises:
        InvalidArgumentError: If an index is negative or too large, with TensorFlow's text.
    """
    ids, size = np.asarray(indices), params.shape[axis]
    if ids.size and (ids.min() < 0 or ids.max() >= size):
        where = tuple(int(i) for i in np.argwhere((ids < 0) | (ids >= size))[0])
        place = ",".join(map(str, where))
        raise InvalidArgumentError(f"indices[{place}] = {ids[where]} is not in [0, {size})")
    return np.take(params, ids, axis=axis)


@primitive
def scatter_rows(rows: Any, indices: Any, shape: tuple[int, ...]) -> Any:
    """Add `rows` [*indices.shape, *shape[1:]] into zeros of `shape`; rows with one index add up."""
    out = np.zeros(shape, dtype=rows.dtype)
    ids = np.asarray(indices).reshape(-1)
    if ids.size == 0:
        return out
    rows = rows.reshape((ids.size, *shape[1:]))
    if rows.nbytes >= _KERNEL_BYTES and rows.dtype in _KERNEL_DTYPES:
        merged, sums = _kernels().merge_rows(ids.astype(np.int64, copy=False), rows.reshape(ids.size, -1))
        out[merged] = sums.reshape((merged.size, *shape[1:]))
        return out
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    out[ordered[starts]] = np.add.reduceat(rows[order], starts, axis=0)
    return out


def distinct_ids(ids: Any) -> tuple[Any, Any]:
    """Give each of some ids once, and for each of all its place among those.

    Args:
        ids: Integer [n].

    Returns:
        [m] of the same dtype, and int64 [n].
    """
    if ids.size < _KERNEL_IDS:
        distinct, position = np.unique(ids, return_inverse=True)
        return distinct, position.reshape(-1)
    groups = _kernels().group_rows(ids.astype(np.int64, copy=False))
    return groups.ids.astype(ids.dtype, copy=False), groups.of


def _kernels() -> Any:
    """The compiled kernels, whose import takes half a second; only large arrays are worth it."""
    return importlib.import_module("globalstep.wire.sparse_rows")


def _take_rows_vjp(ans: Any, params: Any, indices: Any, axis: int = 0) -> Any:
    shape, ids = np.shape(params), np.asarray(indices)
    if axis == 0:
        return lambda g: scatter_rows(g, ids, shape)
    moved = (shape[axis], *shape[:axis], *shape[axis + 1 :])
    source, target = tuple(range(axis, axis + ids.ndim)), tuple(range(ids.ndim))
    return lambda g: anp.moveaxis(scatter_rows(anp.moveaxis(g, source, target), ids, moved), 0, axis)


defvjp(take_rows, _take_rows_vjp)
defvjp(
    scatter_rows,
    lambda ans, rows, indices, shape: (
        lambda g: anp.reshape(take_rows(g, np.asarray(indices).reshape(-1)), np.shape(rows))
    ),
)
