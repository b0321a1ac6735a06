"""What is not finite: found in the gradients of a push, and let be in arithmetic, as in TensorFlow.

One pass over the bytes of gradients finds it, as fast as memory gives them. Only what an update rule gets is a
gradient. An assigned value may be infinite: an initial value, a mask.

Layer: ps. Threads: functions of what they are given; the caller keeps the data as it is meanwhile.
"""

from __future__ import annotations

import bisect
import math
import threading
from collections.abc import Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from globalstep.wire.declarations import OpKind

if TYPE_CHECKING:
    from globalstep.ps.shard.layouts import Layout, PushParts

Array = npt.NDArray[Any]

#: Dtypes whose products BLAS adds up.
_OF_BLAS = (np.dtype(np.float32), np.dtype(np.float64))
# Elements looked at before the answers to them are: both stay in the processor's cache.
_BLOCK = 1 << 15


def find_not_finite(parts: PushParts) -> str:
    """Name a Variable whose gradient holds a NaN or an infinity; "" where there is none.

    Args:
        parts: What a shard gets of a push.

    Raises:
        InvalidArgumentError: If a gradient does not lie within the push's data.
    """
    if parts.ops:
        for op in parts.ops:
            if op.kind is OpKind.APPLY and op.value is not None and _first_bad(op.value.reshape(-1)) is not None:
                return op.variable
        return ""
    if parts.layout is None or parts.data is None:
        return ""
    if parts.layout.gradients is None:
        parts.layout.gradients = _spans(parts.layout, parts.data)
    for dtype, first, count, starts, names in parts.layout.gradients:
        place = _first_bad(np.frombuffer(parts.data, dtype, count, first))
        if place is not None:
            return names[bisect.bisect_right(starts, first + place * dtype.itemsize) - 1]
    return ""


def _spans(layout: Layout, data: memoryview) -> list[tuple[Any, int, int, Sequence[int], Sequence[str]]]:
    """Join gradients that lie one behind the other: a push of many small Variables is looked at in one piece."""
    spans: list[tuple[Any, int, int, list[int], list[str]]] = []
    for message, op in zip(layout.ops, layout.bind(data), strict=True):
        if op.kind is not OpKind.APPLY or op.value is None:
            continue
        dtype, offset = op.value.dtype, message.value.offset
        if spans and spans[-1][0] == dtype and spans[-1][1] + spans[-1][2] * dtype.itemsize == offset:
            _, first, count, starts, names = spans.pop()
        else:
            first, count, starts, names = offset, 0, [], []
        spans.append((dtype, first, count + op.value.size, [*starts, offset], [*names, op.variable]))
    return list(spans)


def _first_bad(values: Array) -> int | None:
    """Where the first element lies that is not finite."""
    if values.dtype.kind in "iub":
        return None
    # A sum of squares is finite only if all are; it takes half of the time. Large numbers' squares may be infinite.
    if values.dtype in _OF_BLAS and math.isfinite(ignoring_float_errors.call(np.dot, values, values)):
        return None
    answers = np.empty(min(_BLOCK, values.size), np.bool_)
    for at in range(0, values.size, _BLOCK):
        block = values[at : at + _BLOCK]
        finite = np.isfinite(block, out=answers[: block.size])
        if not finite.all():
            return at + int(finite.argmin())
    return None


class _Ignoring(threading.local):
    """Makes calls whose arithmetic ends in inf and NaN rather than in warnings or exceptions of numpy.

    As `numpy.errstate(all="ignore")` in a `with`, at a tenth of its cost: an apply takes as long as some ten of them.
    Each thread has its own context.

    >>> with np.errstate(all="raise"):
    ...     ignoring_float_errors.call(np.multiply, np.float32(3e38), np.float32(10))
    np.float32(inf)
    """

    def __init__(self) -> None:
        context = Context()
        context.run(np.seterr, all="ignore")
        #: Calls its first argument with the others; what overflows in that becomes inf. Not to be nested: what is
        #: called knows nothing of the context variables of its caller.
        self.call = context.run


ignoring_float_errors = _Ignoring()
