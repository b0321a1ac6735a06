"""What a shard keeps of a push, and what it answers.

Layer: ps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from globalstep.ps.ledger.ledger import Entry
from globalstep.ps.shard.layouts import PushParts
from globalstep.wire.declarations import Outcome, PushId, Read

__all__ = ["Admission", "Answer", "Kept", "Packing", "Staged"]

Array = npt.NDArray[Any]


@dataclass(slots=True)
class Staged:
    """A part of a push that waits for the decision."""

    parts: PushParts
    #: When it came, by the clock's monotonic reading.
    since: float


@dataclass(slots=True)
class Packing:
    """How the values of a planned push's reads lie in arrays of bytes, one behind the other."""

    #: (dtype, shape, first byte) of each.
    places: Sequence[tuple[str, tuple[int, ...], int]]
    #: Whether the worker knows that already.
    known: bool


@dataclass(slots=True)
class Kept:
    """The last applied push of a client, for the answer to it."""

    push: PushId
    index: int
    reads: Sequence[Read]
    #: As they were right after it. None once they were given out, if the push changed something here: no copy
    #: outlives its use, and a client that never got it reads anew. What only read is kept for that client.
    values: list[Array] | None
    packing: Packing | None = None
    #: How long making its changes took, seconds; 0 where it made none here.
    apply_secs: float = 0.0
    #: Whether it changed something here.
    changed: bool = True


@dataclass(slots=True)
class Answer:
    """The reads of a push, taken right after it."""

    reads: Sequence[Read] = ()
    values: Sequence[Array] = ()
    packing: Packing | None = None
    #: The entry that they are as of; 0 where there are none.
    as_of: int = 0
    #: The last entry that the shard has applied.
    applied: int = 0
    #: See Kept.
    apply_secs: float = 0.0
    #: Of `applied`, in the answer to a COMMIT.
    signature: bytes = b""


@dataclass(slots=True)
class Admission:
    """The sequencer's answer to an ADMIT."""

    outcome: Outcome
    #: Participant -> entries that it may not have applied yet.
    pending: Mapping[int, list[Entry]] = field(default_factory=dict[int, list[Entry]])
    #: The sequencer's own reads of the push.
    reads: Sequence[Read] = ()
    values: Sequence[Array] = ()
    packing: Packing | None = None
    apply_secs: float = 0.0
    #: The entry that the reads are as of; 0 where there are none.
    as_of: int = 0
