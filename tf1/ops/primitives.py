"""Functions of arrays that several ops are made of. All keep the dtype of their operands.

Layer: tf1, below every other module of `ops`.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from globalstep.errors import InvalidArgumentError

#: Smaller arrays are left to numpy, so that a small program need not load a kernel.
_KERNEL_BYTES = 1 << 15
_KERNEL_IDS = 1 << 10
_KERNEL_DTYPES = (np.float32, np.float64)


def sum_to_shape(x: Any, shape: tuple[int, ...]) -> Any:
    """Sum `x` over the axes that broadcasting from `shape` had made."""
    if x.shape == shape:
        return x
    while x.ndim > len(shape):
        x = x.sum(axis=0)
    for axis, size in enumerate(shape):
        if size == 1 != x.shape[axis]:
            x = x.sum(axis=axis, keepdims=True)
    return x


def broadcast(x: Any, shape: tuple[int, ...]) -> Any:
    """Broadcast `x` to `shape`."""
    value = np.asarray(x)
    if value.ndim:
        return np.array(np.broadcast_to(value, shape))
    # numpy takes several times as long over the general case.
    filled = np.empty(shape, value.dtype)
    filled[...] = value
    return filled


def product_of_others(x: Any, axis: tuple[int, ...]) -> Any:
    """Give for each element the product of all others over `axis`; right with zeros too."""
    moved = np.moveaxis(x, axis, tuple(range(-len(axis), 0)))
    flat = moved.reshape((*moved.shape[: moved.ndim - len(axis)], -1))
    one = np.ones_like(flat[..., :1])
    before = np.cumprod(np.concatenate([one, flat[..., :-1]], axis=-1), axis=-1)
    after = np.cumprod(np.concatenate([one, flat[..., :0:-1]], axis=-1), axis=-1)[..., ::-1]
    return np.moveaxis((before * after).reshape(moved.shape), tuple(range(-len(axis), 0)), axis)


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


def scatter_rows(rows: Any, indices: Any, shape: tuple[int, ...]) -> Any:
    """Add `rows` [*indices.shape, *shape[1:]] into zeros of `shape`; rows with one index add up."""
    out = np.full(shape, b"", object) if rows.dtype == object else np.zeros(shape, dtype=rows.dtype)
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
