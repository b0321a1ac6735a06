"""How a push lies in its message, and what a client and a shard need not tell each other twice.

Layer: worker. Threads: functions are pure; the classes belong to one PushProtocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from globalstep.wire.declarations import Op, OpKind, Push, Read

__all__ = [
    "PIGGYBACK_BYTES",
    "KnownLayout",
    "Part",
    "Places",
    "Split",
    "bytes_of",
    "in_arena_order",
    "may_be_remembered",
]

Array = npt.NDArray[Any]
#: The sequencer's part comes with ADMIT up to this size: such a message is small over every transport.
PIGGYBACK_BYTES = 1 << 16


@dataclass(slots=True)
class Part:
    """What one shard gets of a push: positions of its ops, and its reads."""

    ops: list[int] = field(default_factory=list[int])
    reads: list[Read] = field(default_factory=list[Read])


class Places(NamedTuple):
    """Where arrays lie in one piece of memory: of each its dtype, its shape and its first byte."""

    dtypes: list[np.dtype[Any]]
    shapes: list[tuple[int, ...]]
    offsets: list[int]

    def arrays(self, memory: Array | memoryview) -> list[Array]:
        """Give the arrays that lie there."""
        make: Any = np.ndarray
        return list(map(make, self.shapes, self.dtypes, repeat(memory), self.offsets))


@dataclass(slots=True)
class KnownLayout:
    """What one shard and this client both know of pushes that are laid out alike."""

    number: int
    #: Positions, among the push's ops, of those that bring bytes, in the order of the bytes.
    order: list[int]
    #: How many bytes each of these brings.
    sizes: list[int]
    #: The Variable that each is for.
    variables: list[str]
    #: Bytes of all, padding included.
    nbytes: int
    #: Where the values that it reads lie in the answer; None until the shard has answered.
    places: Places | None = None
    #: Whether `order` is that of all ops of the push.
    is_all: bool = False

    @property
    def is_padded(self) -> bool:
        """Whether there is padding between the values."""
        return self.nbytes != sum(self.sizes)


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


def may_be_remembered(push: Push) -> bool:
    """Whether a push is all alike but for its numbers, as LayoutMemory.layout has it."""
    return (
        push.layout is not None
        and all(op.kind is OpKind.APPLY and op.indices is None for op in push.ops)
        and all(read.indices is None for read in push.reads)
        and not any(use.overrides for use in push.uses)
    )


def bytes_of(value: Array | None) -> memoryview:
    """Give an operand's bytes, copied only if it is not contiguous."""
    assert value is not None
    return value.data if value.flags.c_contiguous else np.ascontiguousarray(value).data


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
