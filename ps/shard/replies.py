"""A shard's replies to pushes, and the cache of these replies for clients that try again.

Layer: ps. Threads: a ReplyCache is used under the shard's lock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy.typing as npt

from globalstep.ps.budget import Account, Budget, Kind, MemoryClaim
from globalstep.ps.ledger.ledger import Entry
from globalstep.wire.declarations import Outcome, PushId, Read

Array = npt.NDArray[Any]

#: Clients whose last reply is kept, where it is of a push that changed nothing; and of any.
_MOST_KEPT, _MOST_CLIENTS = 1024, 1 << 16
#: What a read takes besides the ids of its rows; of so few it is not counted.
_READ_BYTES, _FEW_READS = 256, 8


def bytes_of(reads: Sequence[Read]) -> int:
    """Give what reads take, with how their values lie."""
    nbytes = _READ_BYTES * len(reads) if len(reads) > _FEW_READS else 0
    for read in reads:
        if read.indices is not None:
            nbytes += read.indices.nbytes
    return nbytes


@dataclass(slots=True)
class StepWait:
    """The state of the contributions to a step's next value."""

    #: As visible.
    steps: Mapping[str, int]
    #: The step has another value, or will not be moved on any more.
    over: bool = False
    #: Contributions that are there, and that are wanted.
    contributions: int = 0
    wanted: int = 0
    #: Who may yet contribute, each with why it is waited for.
    waits_for: Sequence[str] = ()
    #: No contribution will come any more: a push that closes the aggregate is accepted.
    due: bool = False
    #: The unit of work that the caller is to compute, from 1; 0 for none.
    unit: int = 0


class StepMade(NamedTuple):
    """The values that a contribution reads of its step, which has been made."""

    #: As visible.
    steps: Mapping[str, int]
    #: Flat pieces, each value from a multiple of 8 bytes.
    values: Sequence[Array]
    #: (dtype, shape, first byte) of each value.
    places: Sequence[tuple[str, tuple[int, ...], int]]


class Awaited(NamedTuple):
    """A contributor that a step waits for."""

    #: The task; where it is not known, the client, or what else there is to say.
    who: str
    why: str

    def __str__(self) -> str:
        return f"{self.who}, {self.why}"


@dataclass(slots=True)
class OpenStep:
    """A step that has contributions to its next value, and not all of them."""

    step: str
    #: Its value.
    base: int
    contributions: int
    wanted: int
    #: For how long the oldest of them has waited, seconds.
    open_secs: float
    waits_for: Sequence[Awaited] = ()


@dataclass(slots=True)
class LeadWait:
    """Whether a worker may go on, or is too far ahead of the slowest."""

    #: It may.
    over: bool = True
    #: So many of its pushes may follow before it asks again.
    free_pushes: int = 0
    #: By how many pushes it is ahead.
    lead: int = 0
    #: It was too far ahead when its last push was decided.
    waited: bool = False
    #: Who is waited for, each with why.
    waits_for: Sequence[str] = ()
    #: Where it had been told to wait before, and may go on now: how long it waited, seconds.
    ended_secs: float | None = None


@dataclass(slots=True)
class Packing:
    """The places of the values of a planned push's reads, which lie in arrays of bytes, one behind the other."""

    #: (dtype, shape, first byte) of each.
    places: Sequence[tuple[str, tuple[int, ...], int]]
    #: Whether the worker knows that already.
    known: bool


@dataclass(slots=True)
class Kept:
    """The last applied push of a client, for the reply to it."""

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
    #: What it reads was forgotten, since there was no memory for that: its client reads by another push.
    forgotten: bool = False
    #: Bytes that its reads take.
    reads_bytes: int = 0
    #: The memory that it takes.
    claim: MemoryClaim | None = None


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
    #: Of `applied`, in the reply to a COMMIT.
    signature: bytes = b""
    #: See Pull.
    last: Mapping[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Admission:
    """The sequencer's reply to a PUSH."""

    outcome: Outcome
    #: Participant -> entries that it may not have applied yet.
    pending: Mapping[int, list[Entry]] = field(default_factory=dict)
    #: The sequencer's own reads of the push.
    answer: Answer = field(default_factory=Answer)


class ReplyCache:
    """The last reply to each client; the newest comes last.

    >>> cache = ReplyCache()
    >>> cache.keep(Kept(PushId("a", 1), 1, (), []))
    >>> PushId("a", 1) in cache, PushId("a", 2) in cache
    (True, False)
    """

    def __init__(self) -> None:
        #: Client -> its last reply.
        self.by_client: dict[str, Kept] = {}
        # Of these, the ones that have claimed memory.
        self._held: dict[str, Kept] = {}

    def __contains__(self, push: PushId) -> bool:
        kept = self.by_client.get(push.client)
        return kept is not None and kept.push == push

    def get(self, push: PushId) -> Kept | None:
        """Give what is kept of a push; None where it is not its client's last."""
        kept = self.by_client.get(push.client)
        return kept if kept is not None and kept.push == push else None

    def keep(self, kept: Kept) -> None:
        """Keep the reply to a client's newest push, and let go of the oldest where there are too many."""
        client = kept.push.client
        # As its newest it comes last.
        self.by_client.pop(client, None)
        self.by_client[client] = kept
        self._held.pop(client, None)
        while len(self.by_client) > (_MOST_CLIENTS if kept.changed else _MOST_KEPT):
            self.drop(next(iter(self.by_client)))

    def claim(self, kept: Kept, values: Sequence[Array], budget: Budget, account: Account) -> None:
        """Claim what a reply keeps, `values` among it; where there is no memory, the oldest ones are let go of.

        Who asks for values that are gone is given those of then; who has ids that are gone, nothing.
        """
        nbytes = kept.reads_bytes + sum(value.nbytes for value in values)
        while not budget.has_room(Kind.KEPT, account, nbytes) and self.let_go_oldest():
            pass
        # The newest is about to be given out.
        self.hold(kept, budget.keep(Kind.KEPT, account, values, kept.reads_bytes, forced=True))

    def hold(self, kept: Kept, claim: MemoryClaim | None) -> None:
        """Have a reply keep the memory of a claim."""
        kept.claim = claim
        self._held[kept.push.client] = kept

    def let_go_oldest(self) -> bool:
        """Let go of the oldest reply that has memory; gives whether there was one."""
        oldest = self._held.pop(next(iter(self._held), ""), None)
        if oldest is not None:
            oldest.values = oldest.claim = None
            if oldest.reads_bytes:
                oldest.reads, oldest.packing = (), None
                oldest.reads_bytes, oldest.forgotten = 0, True
        return oldest is not None

    def let_go(self, kept: Kept) -> None:
        """Let go of the values of a reply, which have been given out, or will not be."""
        kept.values = None
        if kept.claim is not None and not kept.reads_bytes:
            kept.claim = None
            self._held.pop(kept.push.client, None)

    def drop(self, client: str) -> None:
        """Drop a client's reply."""
        self.by_client.pop(client, None)
        self._held.pop(client, None)

    def trim(self, here: Collection[str], expired: Collection[str]) -> None:
        """Drop replies to clients that have expired, and the values for those that are not here."""
        for client in self.by_client.keys() - here:
            self.let_go(self.by_client[client])
        for client in self.by_client.keys() & expired:
            self.drop(client)
