"""Gradients that leave before their push does: each as soon as the backward pass has produced it.

A push of a layout that the PS knows is nothing but numbers, and where each lies is known beforehand. So a gradient
can be sent (AHEAD) while the others are still being computed; the push then only names what is there already. It
does so if every gradient was sent, and is what the push is to bring: one that was scaled or clipped afterwards is
another array, and then the push brings all of them itself.

Layer: worker. Threads: a GradientsAhead belongs to one PushProtocol, under its owner's lock; `sending` holds for the
thread that sets it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import numpy.typing as npt

from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.memory import address_of
from globalstep.wire.declarations import padded
from globalstep.wire.transports import Transport
from globalstep.worker.protocol.push_layout import KnownLayout, bytes_of

__all__ = ["GradientsAhead", "produced", "sending"]

Array = npt.NDArray[Any]
#: Takes a Variable's name and its gradient.
Take = Callable[[str, Array], None]

_take: ContextVar[Take | None] = ContextVar("globalstep_gradients_ahead", default=None)


@contextlib.contextmanager
def sending(take: Take) -> Iterator[None]:
    """Have gradients taken as they are produced, within a `with` block."""
    token = _take.set(take)
    try:
        yield
    finally:
        _take.reset(token)


def produced() -> Take | None:
    """Give what takes gradients as they are produced; None for nothing."""
    return _take.get()


class GradientsAhead:
    """What a client has sent early, before its next push."""

    def __init__(self) -> None:
        #: Number of a layout -> position in its order -> the array that was sent; kept, so that its memory is.
        self._sent: dict[int, dict[int, Array]] = {}

    def send(self, transport: Transport, known: KnownLayout, variable: str, gradient: Array) -> None:
        """Send a gradient, if the layout has a place for it; does not wait.

        Args:
            transport: To the task.
            known: What the task knows of the push.
            variable: Whose gradient it is.
            gradient: It; must not change any more.
        """
        if variable not in known.variables:
            return
        at = known.variables.index(variable)
        if known.sizes[at] != gradient.nbytes or not gradient.flags.c_contiguous:
            return
        request = pb.Request()
        request.ahead.layout = known.number
        request.ahead.offset = sum(padded(size) for size in known.sizes[:at])
        transport.send(request, [bytes_of(gradient)])
        self._sent.setdefault(known.number, {})[at] = gradient

    def has_begun(self, number: int) -> bool:
        """Whether something was sent of the next push of a layout; has_sent still tells whether it was all."""
        return number in self._sent

    def has_sent(self, number: int, values: Sequence[Array | None]) -> bool:
        """Whether these are the arrays that were sent, one at least, all of them; what was sent serves one push."""
        sent = self._sent.pop(number, {})
        return len(sent) == len(values) > 0 and all(
            value is not None and _same_memory(value, sent[at]) for at, value in enumerate(values)
        )

    def clear(self) -> None:
        """Forget what was sent."""
        self._sent.clear()


def _same_memory(one: Array, other: Array) -> bool:
    return address_of(one) == address_of(other) and one.nbytes == other.nbytes and one.flags.c_contiguous
