"""Top-k with error feedback: of a dense gradient the largest elements go now, the rest later.

What is not sent is kept and added to the next gradient of the same Variable (Seide et al. 2014, "1-bit SGD";
Stich et al. 2018, "Sparsified SGD with memory"). A gradient keeps its shape, with zeros where nothing is sent;
`globalstep.wire.packing` sees to it that zeros cost nothing.

Layer: worker. Threads: a TopK belongs to one client, which calls it under its lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.wire.declarations import Op, OpKind

__all__ = ["TopK"]

Array = npt.NDArray[Any]

#: Smaller gradients go whole.
_WORTH_ELEMENTS = 1024
#: Elements that the threshold is estimated from, where a gradient has more.
_SAMPLE = 1 << 16


class TopK:
    """Thins out the gradients of one client.

    Args:
        fraction: Of each gradient, how much of it to send; about, where it is large.
    """

    def __init__(self, fraction: float) -> None:
        self._fraction = fraction
        #: (optimizer, Variable) -> what was not sent yet.
        self._rest: dict[tuple[str, str], Array] = {}

    def clear(self) -> None:
        """Forget what was not sent: the run was restored, and it belongs to what was lost."""
        self._rest.clear()

    def thin(self, ops: Sequence[Op]) -> list[Op]:
        """Give changes with thinned gradients; all that is no dense float32 gradient stays as it is."""
        return [self._thin_one(op) if _is_dense_gradient(op) else op for op in ops]

    def _thin_one(self, op: Op) -> Op:
        key = (op.optimizer, op.variable)
        assert op.value is not None
        rest = self._rest.get(key)
        whole = op.value + rest if rest is not None and rest.shape == op.value.shape else op.value.copy()
        size = np.abs(whole)
        # Not `>=`: what is no number is to be sent, and seen, as without thinning.
        goes = ~(size < self._threshold(size.reshape(-1)))
        sent = np.where(goes, whole, np.float32(0))
        whole[goes] = 0
        self._rest[key] = whole
        return replace(op, value=sent)

    def _threshold(self, size: Array) -> Any:
        """The size from which on an element is sent."""
        # A stride that shares no factor with common row lengths: a column must not stand for all.
        sample = size if size.size <= 2 * _SAMPLE else size[:: size.size // _SAMPLE | 1]
        at = min(sample.size - 1, int(sample.size * (1.0 - self._fraction)))
        return np.partition(sample, at)[at]


def _is_dense_gradient(op: Op) -> bool:
    return (
        op.kind is OpKind.APPLY
        and op.indices is None
        and op.value is not None
        and op.value.dtype == np.float32
        and op.value.size >= _WORTH_ELEMENTS
    )
