"""How a push lies in its message, and what a client and a shard need not tell each other twice.

Layer: worker. Threads: functions are pure; the classes belong to one PushProtocol.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from globalstep.wire.declarations import Op, OpKind, Push

if TYPE_CHECKING:
    from globalstep.worker.protocol.known_rows import KnownRows

__all__ = [
    "PIGGYBACK_BYTES",
    "KnownLayout",
    "Part",
    "Places",
    "Split",
    "bytes_of",
    "in_arena_order",
    "joined_bytes",
    "may_be_remembered",
]

Array = npt.NDArray[Any]
#: The sequencer's part comes with ADMIT up to this size: such a message is small over every transport.
PIGGYBACK_BYTES = 1 << 16
#: A value of so many bytes on average is worth no thought beside its copying, which numpy does without the interpreter.
SMALL_BYTES = 1 << 16


@dataclass(slots=True)
class Part:
    """What one shard gets of a push: positions of its ops, and of its reads."""

    ops: list[int] = field(default_factory=list[int])
    reads: list[int] = field(default_factory=list[int])


#: From so many arrays on to make them as rows is quicker.
_LONG_RUN = 8


class _Run(NamedTuple):
    """Arrays of one dtype and shape that lie at even distances."""

    length: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    stride: int


class Places:
    """Where arrays lie in one piece of memory.

    Many neighbours that are alike numpy makes as the rows of one array, in a third of the time of one by one.

    Args:
        dtypes: Of each array.
        shapes: Of each.
        offsets: The first byte of each.

    Attributes:
        nbytes: Bytes of all, without padding.

    >>> a, b = Places([np.dtype("int8")] * 2, [(2,), ()], [0, 2]).arrays(bytes(range(3)))
    >>> a, b
    (array([0, 1], dtype=int8), array(2, dtype=int8))
    """

    def __init__(
        self, dtypes: Sequence[np.dtype[Any]], shapes: Sequence[tuple[int, ...]], offsets: Sequence[int]
    ) -> None:
        self._each = dtypes, shapes, offsets
        self.nbytes = sum(dtype.itemsize * math.prod(shape) for dtype, shape in zip(dtypes, shapes, strict=True))
        self._runs: list[_Run] = []
        for dtype, shape, offset in zip(dtypes, shapes, offsets, strict=True):
            before = self._runs[-1] if self._runs else None
            if before is not None and shape and (before.dtype, before.shape) == (dtype, shape):
                stride = before.stride or offset - before.offset
                if stride > 0 and offset == before.offset + before.length * stride:
                    self._runs[-1] = before._replace(length=before.length + 1, stride=stride)
                    continue
            self._runs.append(_Run(1, dtype, shape, offset, 0))

    def arrays(self, memory: Array | memoryview | bytes) -> list[Array]:
        """Give the arrays that lie there."""
        dtypes, shapes, offsets = self._each
        if _LONG_RUN * len(self._runs) > len(offsets):
            make: Any = np.ndarray
            return list(map(make, shapes, dtypes, repeat(memory), offsets))
        found: list[Array] = []
        for length, dtype, shape, offset, stride in self._runs:
            first: Array = np.ndarray(shape, dtype, memory, offset)
            if length == 1:
                found.append(first)
            else:
                found.extend(np.ndarray((length, *shape), dtype, memory, offset, (stride, *first.strides)))
        return found


@dataclass(slots=True)
class KnownLayout:
    """What one shard and this client both know of pushes that are laid out alike."""

    number: int
    #: Positions, among the push's ops, of those that bring bytes, in the order of the bytes.
    order: list[int]
    #: How many bytes each of these brings.
    sizes: list[int]
    #: Bytes of all, padding included.
    nbytes: int
    #: Where the values that it reads lie in the answer; None until the shard has answered.
    places: Places | None = None
    #: Whether there is padding between the values.
    is_padded: bool = False
    #: Whether its next answer is to be looked at for `places`: it has come to none that had all values.
    lacks_places: bool = False
    #: Whether `order` is that of all ops of the push.
    is_all: bool = False
    #: The number under which the shard has promised to apply such pushes; 0 where it has not.
    promised: int = 0

    @property
    def is_of_many_small(self) -> bool:
        """Whether to copy the values is less work than to send them as they are, one by one, and needs no padding."""
        return self.nbytes <= SMALL_BYTES * len(self.sizes) and not self.is_padded


@dataclass(slots=True)
class Split:
    """How pushes that are laid out alike divide among the shards."""

    #: Shard -> its part, in order of shards.
    parts: dict[int, Part]
    #: How many ops and reads such a push has.
    counts: tuple[int, int]
    #: Of each read, in order, the place of its value among the answers of all shards, one shard behind the other.
    read_at: list[int]
    #: Shard -> the layout that it has been sent.
    known: dict[int, KnownLayout] = field(default_factory=dict[int, KnownLayout])
    #: Of pushes of rows: which Variables they change and read, in order; None for others.
    named: tuple[list[str], list[str]] | None = None
    #: Shard -> the layout of rows that it has been sent, in place of `known`.
    rows: dict[int, KnownRows] = field(default_factory=dict)


def may_be_remembered(push: Push) -> bool:
    """Whether a push is all alike but for its numbers, and for how many rows it has, as LayoutMemory has it."""
    return (
        push.layout is not None
        and all(op.kind is OpKind.APPLY and (op.indices is None or op.value is not None) for op in push.ops)
        and not any(use.overrides for use in push.uses)
    )


def bytes_of(value: Array | None) -> memoryview:
    """Give an operand's bytes, copied only if it is not contiguous."""
    assert value is not None
    return value.data if value.flags.c_contiguous else np.ascontiguousarray(value).data


def joined_bytes(values: Sequence[Array]) -> bytes:
    """Give the bytes of operands, one behind the other."""
    try:
        return b"".join(values)  # type: ignore[arg-type]
    except TypeError:  # one is not contiguous
        return b"".join(map(bytes_of, values))


def in_arena_order(ops: Sequence[Op], wanted: Sequence[int], where: Mapping[str, int]) -> list[int]:
    """Sort neighbouring dense gradients as the shard has their Variables, so that they form one run.

    Applies to different Variables are independent, and the sort is stable, so nothing else changes.

    Args:
        ops: All of a push.
        wanted: Positions of the shard's ops among them.
        where: Its keys are the Variables in order of declaration.

    Returns:
        The positions, sorted.
    """
    order = {name: at for at, name in enumerate(where)}
    out: list[int] = []
    group: list[int] = []
    for at in wanted:
        op = ops[at]
        if op.kind is OpKind.APPLY and op.indices is None and op.value is not None:
            group.append(at)
            continue
        out += sorted(group, key=lambda item: order[ops[item].variable])
        group = []
        out.append(at)
    return out + sorted(group, key=lambda item: order[ops[item].variable])
