"""Error feedback: what top-k leaves out of a gradient, and rounding takes away from it, is sent later.

It is kept and added to the next gradient of the same Variable (Seide et al. 2014, "1-bit SGD"; Stich et al. 2018,
"Sparsified SGD with memory"). A gradient keeps its shape, with zeros where nothing is sent; `globalstep.wire.packing`
sees to it that zeros cost nothing, and that what was rounded here arrives as it is.

Layer: worker. Threads: an ErrorFeedback belongs to one client, which calls it under its lock. Kernels are imported
when there is something to round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from globalstep.proto import globalstep_pb2 as pb
from globalstep.wire.declarations import Op, OpKind

Array = npt.NDArray[Any]
#: (optimizer, Variable) -> what was not sent yet.
Rest = Mapping[tuple[str, str], Array]

#: Smaller gradients go whole.
_WORTH_ELEMENTS = 1024
#: Elements that the threshold is estimated from, where a gradient has more.
_SAMPLE = 1 << 16


class ErrorFeedback:
    """Thins out and rounds the gradients of one client.

    Args:
        fraction: Of each gradient, how much of it to send; about, where it is large.
        form: What to round to; raw for not at all.
    """

    def __init__(self, fraction: float, form: pb.Form.ValueType = pb.FORM_RAW) -> None:
        self._fraction = fraction
        self._form = form
        self._rest: dict[tuple[str, str], Array] = {}

    def clear(self) -> None:
        """Forget what was not sent: the run was restored, and it belongs to what was lost."""
        self._rest.clear()

    def thin(self, ops: Sequence[Op]) -> tuple[list[Op], Rest]:
        """Give changes with what is to be sent of gradients; all that is no dense float32 gradient stays as it is.

        Returns:
            The changes, and what they leave to later ones: to be given to `keep` once they have been applied. What
            is refused or comes too late takes nothing of what was kept before with it.
        """
        rest: dict[tuple[str, str], Array] = {}
        return [self._thin_one(op, rest) if _is_dense_gradient(op) else op for op in ops], rest

    def keep(self, rest: Rest) -> None:
        """Keep what the changes that were applied did not send."""
        self._rest.update(rest)

    def _thin_one(self, op: Op, rest: dict[tuple[str, str], Array]) -> Op:
        value = op.value
        assert value is not None
        thins = self._fraction < 1.0 and value.size >= _WORTH_ELEMENTS
        if not thins and self._form == pb.FORM_RAW:
            return op
        key = (op.optimizer, op.variable)
        before = self._rest.get(key)
        whole = value + before if before is not None and before.shape == value.shape else value
        sent = whole
        if thins:
            size = np.abs(whole)
            # Not `>=`: what is no number is to be sent, and seen, as without thinning.
            sent = np.where(size < self._threshold(size.reshape(-1)), np.float32(0), whole)
        if self._form != pb.FORM_RAW:
            from globalstep.wire import packing

            sent = packing.rounded(sent, self._form)
        with np.errstate(invalid="ignore"):
            left = np.asarray(whole - sent)
        left[~np.isfinite(left)] = 0
        rest[key] = left
        return replace(op, value=sent)

    def _threshold(self, size: Array) -> Any:
        """The size from which on an element is sent."""
        # A stride that shares no factor with common row lengths: a column must not stand for all.
        sample = size if size.size <= 2 * _SAMPLE else size[:: size.size // _SAMPLE | 1]
        at = min(sample.size - 1, int(sample.size * (1.0 - self._fraction)))
        return np.partition(sample, at)[at]


def _is_dense_gradient(op: Op) -> bool:
    return op.kind is OpKind.APPLY and op.indices is None and op.value is not None and op.value.dtype == np.float32
