"""One budget for all that a PS task keeps on its callers' word.

Every byte is claimed before it is kept. A claim counts as long as something refers to it, or to memory that was given
out with it. So nothing has to be given back, whatever ends a call, a connection or an incarnation.

A call that needs memory for a request waits while there is none, and reads nothing from its socket meanwhile: so a PS
task that cannot keep up slows its clients down. All others are refused at once.

Shares: messages find room up to seven eighths of all, so that parts of pushes, and clients that come, find some too.
Shared memory, layouts, queues and contributions have three quarters together, so that messages pass; every kind but
messages has half. While calls wait, no other client has messages beyond a quarter. Where callers have roles, workers
leave an eighth to the others, and one of them has a quarter of each kind but messages.

Layer: ps. Threads: any number at once.
"""

from __future__ import annotations

import enum
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from globalstep.errors import ResourceExhaustedError
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock

Array = npt.NDArray[np.uint8]

#: Messages of fewer bytes are not counted: they are bounded by the number of connections.
SMALL_BYTES = 1 << 16
#: How long a call waits before it is sent away, and for how long it is sent away.
PATIENCE_SECS = 5.0
RETRY_SECS = 0.5
#: How often the first of those who wait looks whether memory has become free.
_LOOK_SECS = 0.002
#: How many may be given memory before the first of those who wait, because they want less.
_MOST_PASSED = 16
#: Blocks that wait for a use.
_MOST_IDLE = 4
#: For so long after a refusal memory counts as short.
_SHORT_SECS = 10.0


class Kind(enum.StrEnum):
    """The purposes that bytes are kept for. Requests and replies are messages under way."""

    REQUEST = "requests"
    REPLY = "replies"
    PART = "staged parts"
    KEPT = "kept replies"
    CONTRIBUTION = "contributions"
    LAYOUT = "layouts"
    SHARED = "shared memory"
    QUEUE = "queues"
    CLIENT = "clients"


#: What is kept for as long as a client wants, or a step takes.
_LASTING = (Kind.SHARED, Kind.LAYOUT, Kind.QUEUE, Kind.CONTRIBUTION)
#: The only one of its kind may be larger than the limits, up to half of what the machine has free.
_ONE_MAY_BE_LARGE = (Kind.REQUEST, Kind.REPLY, Kind.PART, Kind.KEPT, Kind.SHARED)


#: Of claims that nothing refers to any more: kind, whose they were, bytes, and their block.
_Gone = deque[tuple[Kind, str, int, Array | None]]


class MemoryClaim:
    """Bytes that are kept for somebody, as long as something refers to the claim, or to an array that was made of it.

    Attributes:
        kind: What for.
        whose: The account that it counts for.
        nbytes: How many.
        memory: They, where they lie in one block: `np.asarray(claim)` gives them, and refers to the claim.
    """

    __slots__ = ("_gone", "kind", "memory", "nbytes", "whose")

    def __init__(self, gone: _Gone, kind: Kind, whose: str, nbytes: int, memory: Array | None = None) -> None:
        self._gone, self.kind, self.whose, self.nbytes, self.memory = gone, kind, whose, nbytes, memory

    def is_of(self, gone: _Gone) -> bool:
        """Say whether it is of the budget to which `gone` belongs."""
        return self._gone is gone

    @property
    def __array_interface__(self) -> dict[str, Any]:
        assert self.memory is not None
        interface: dict[str, Any] = self.memory.__array_interface__
        return interface

    def __del__(self, shared: Kind = Kind.SHARED) -> None:
        # In whatever thread lets go of it, perhaps one that holds the budget's lock: so without it. At the very end of
        # the process, when modules have no names any more: so by a default.
        self._gone.append((self.kind, self.whose, self.nbytes, None if self.kind is shared else self.memory))


def claim_of(data: npt.NDArray[Any] | memoryview) -> MemoryClaim | None:
    """Give the claim that owns the memory that data lies in; None where there is none."""
    owner: Any = data
    while isinstance(owner, (np.ndarray, memoryview)):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    return owner if isinstance(owner, MemoryClaim) else None


@dataclass(slots=True, eq=False)
class Account:
    """The owner of claims: one connection, or one client; see memory.Pool.

    Attributes:
        budget: From which they are.
        name: How messages call it: the client, or who is known to call.
        limited: Whether it has only a worker's share, since there are roles.
    """

    budget: Budget
    name: str = ""
    limited: bool = False

    def take(self, nbytes: int) -> Array:
        """See memory.Pool; waits for memory."""
        memory = self.budget.take(self, nbytes)
        if memory is None:
            raise self.budget.refusal(Kind.REQUEST, self, nbytes)
        return memory

    def take_at_once(self, nbytes: int) -> Array | None:
        """See memory.Pool."""
        return self.budget.take(self, nbytes, patient=False)

    def claim(self, nbytes: int) -> MemoryClaim:
        """See memory.Pool."""
        return self.budget.claim(Kind.REQUEST, self, nbytes)


@dataclass(slots=True, eq=False)
class _Waiter:
    """A call that waits for memory. The budget's lock guards it."""

    account: Account
    nbytes: int
    #: What it was given.
    given: Array | None = None
    #: How many that came after it were given some before it.
    passed: int = 0
    #: Set when it is the first, and looks for all, or was given some.
    turn: threading.Event = field(default_factory=threading.Event)


class Budget:
    """See the module's text. Thread-safe.

    Args:
        limit_bytes: Of all claims together.
        clock: Time, for those who wait.
        patience_secs: How long they do.
        available: Gives the memory that the machine has free.

    Attributes:
        limit_bytes: As given.
        refusals: How many calls were sent away.
    """

    def __init__(
        self,
        limit_bytes: int = 1 << 62,
        clock: Clock = SYSTEM_CLOCK,
        patience_secs: float = PATIENCE_SECS,
        available: Callable[[], int] = lambda: 1 << 62,
    ) -> None:
        self.limit_bytes = limit_bytes
        self.refusals = 0
        self._clock, self._patience_secs, self._available = clock, patience_secs, available
        # Guards the attributes below; a leaf.
        self._lock = threading.Lock()
        #: Bytes by kind and whose they are, by kind, and in all.
        self._held: dict[tuple[Kind, str], int] = {}
        self._of_kind = dict.fromkeys(Kind, 0)
        self._used = 0
        # Claims that nothing refers to any more. Appended to without the lock.
        self._gone: _Gone = deque()
        # Their blocks, longest unused first, for messages to come: fresh memory costs more than the copy into it.
        self._idle: list[Array] = []
        # Those who wait, in the order in which they came; the first one looks, and wakes the next when it leaves.
        self._line: list[_Waiter] = []
        self._refused: float | None = None

    # ---- Claims -------------------------------------------------------------------------------

    def claim(self, kind: Kind, account: Account, nbytes: int) -> MemoryClaim:
        """Claim bytes that are about to be kept; raises ResourceExhaustedError if there are none."""
        claim = self.try_claim(kind, account, nbytes)
        if claim is None:
            raise self.refusal(kind, account, nbytes)
        return claim

    def try_claim(
        self, kind: Kind, account: Account, nbytes: int, forced: bool = False, moved: Collection[MemoryClaim] = ()
    ) -> MemoryClaim | None:
        """Do the same; None where there is no memory, unless `forced`; counts no refusal.

        Claims that are `moved` are for the same kind from now on.
        """
        with self._lock:
            if self._lacks(kind, account, nbytes, moved) and not forced:
                return None
            for claim in moved:
                self._count(claim.kind, claim.whose, -claim.nbytes)
                claim.kind = kind
                self._count(kind, claim.whose, claim.nbytes)
            self._count(kind, account.name, nbytes)
        return MemoryClaim(self._gone, kind, account.name, nbytes)

    def keep(
        self, kind: Kind, account: Account, arrays: Iterable[npt.NDArray[Any] | memoryview], besides: int, forced: bool
    ) -> MemoryClaim | None:
        """Claim what is kept of messages: blocks of theirs are of this kind from now on, the rest is claimed anew."""
        moved: dict[int, MemoryClaim] = {}
        for array in arrays:
            claim = claim_of(array)
            if claim is None or not claim.is_of(self._gone):  # the second is another budget's
                besides += array.nbytes
            elif claim.kind is Kind.REQUEST or claim.kind is Kind.REPLY:
                moved[id(claim)] = claim
        return self.try_claim(kind, account, besides, forced, moved.values())

    @property
    def half(self) -> int:
        """The most that a kind may have, messages aside."""
        return self.limit_bytes // 2

    def has_room(self, kind: Kind, account: Account, nbytes: int = 1) -> bool:
        """Say whether there are so many bytes more."""
        with self._lock:
            return not self._lacks(kind, account, nbytes)

    def refusal(self, kind: Kind, account: Account, nbytes: int) -> ResourceExhaustedError:
        """Count a refusal, and give its error."""
        with self._lock:
            why = self._lacks(kind, account, nbytes) or "others were before it, or it is more than there ever is"
            self.refusals += 1
            self._refused = self._clock.monotonic()
        return ResourceExhaustedError(
            f"This PS task has no memory for {nbytes:,} bytes of {kind} of {account.name or 'a caller'}: {why}. The "
            f"limit is {self.limit_bytes:,} (--max-inflight-bytes): raise it, or wait until others have done.",
            retry_secs=RETRY_SECS,
        )

    # ---- What it says of itself ----------------------------------------------------------------

    @property
    def used_bytes(self) -> int:
        """Bytes of all claims."""
        with self._lock:
            self._collect()
            return self._used

    def view(self, most: int = 8) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Give the bytes of each kind that has some, and those of the greatest holders, `most` of them."""
        with self._lock:
            self._collect()
            kinds = {kind.value: nbytes for kind, nbytes in self._of_kind.items() if nbytes}
            holders: Counter[str] = Counter()
            for (_, whose), nbytes in self._held.items():
                holders[whose] += nbytes
            return kinds, dict(holders.most_common(most))

    def is_short(self) -> bool:
        """Say whether a call waits for memory, or was refused some lately."""
        refused = self._refused
        return bool(self._line) or (refused is not None and self._clock.monotonic() - refused < _SHORT_SECS)

    # ---- Memory for messages -------------------------------------------------------------------

    def take(self, account: Account, nbytes: int, patient: bool = True) -> Array | None:
        """Give uint8 [nbytes] for a request; None if there was none, as long as one waits who is `patient`.

        Raises:
            ResourceExhaustedError: If there would never be so much.
        """
        if nbytes < SMALL_BYTES:
            return np.empty(nbytes, np.uint8)
        if nbytes > self.limit_bytes and nbytes > self._available() // 2:
            raise self.refusal(Kind.REQUEST, account, nbytes)
        with self._lock:
            block = None if self._line else self._block(Kind.REQUEST, account, nbytes)
            if block is not None:
                return block
            waiter = _Waiter(account, nbytes)
            self._line.append(waiter)
            self._serve()
            if waiter.given is not None:
                return waiter.given
        try:
            return self._wait(waiter) if patient else None
        finally:
            with self._lock:
                if waiter in self._line:
                    self._line.remove(waiter)
                if self._line:
                    self._line[0].turn.set()

    def reply(self, account: Account, nbytes: int) -> Array:
        """Give memory for a reply; raises ResourceExhaustedError if there is none now."""
        with self._lock:
            block = self._block(Kind.REPLY, account, nbytes)
        if block is None:
            raise self.refusal(Kind.REPLY, account, nbytes)
        return block

    def _wait(self, waiter: _Waiter) -> Array | None:
        left = self._patience_secs
        until = self._clock.monotonic() + left
        while left > 0:
            with self._lock:
                waiter.turn.clear()
                first = self._line[:1] == [waiter]
                if first:
                    self._serve()
                if waiter.given is not None:
                    break
            self._clock.wait(waiter.turn, min(left, _LOOK_SECS) if first else left)
            left = until - self._clock.monotonic()
        return waiter.given

    def _serve(self) -> None:
        """Give memory to those waiters that there is some for. Caller holds the lock."""
        first = self._line[0]
        for waiter in list(self._line):
            if waiter is not first and first.passed >= _MOST_PASSED and first.given is None:
                return
            waiter.given = self._block(Kind.REQUEST, waiter.account, waiter.nbytes)
            if waiter.given is not None:
                first.passed += 1
                self._line.remove(waiter)
                waiter.turn.set()

    def _block(self, kind: Kind, account: Account, nbytes: int) -> Array | None:
        """Give a block, or None where there is no memory. Caller holds the lock."""
        if self._gone and not self._line:
            # Mostly it is what the same account had last, which counts yet: then the book stays as it is.
            last = self._gone.pop()
            if last[:2] == (kind, account.name) and last[3] is not None and nbytes <= last[2] <= 2 * nbytes:
                again: Array = np.asarray(MemoryClaim(self._gone, *last))
                return again[:nbytes]
            self._gone.append(last)
        self._collect()
        # That used last is in the processor's caches. A much larger one is left alone: a small view must not hold it.
        last_first = range(len(self._idle) - 1, -1, -1)
        at = next((at for at in last_first if nbytes <= self._idle[at].nbytes <= 2 * nbytes), None)
        size = nbytes if at is None else self._idle[at].nbytes
        if self._lacks(kind, account, size):
            return None
        memory = np.empty(size, np.uint8) if at is None else self._idle.pop(at)
        self._count(kind, account.name, size)
        block: Array = np.asarray(MemoryClaim(self._gone, kind, account.name, size, memory))
        return block[:nbytes]

    # ---- The book: the caller holds the lock ----------------------------------------------------

    def _collect(self) -> None:
        """Count claims no more that nothing refers to."""
        while self._gone:
            kind, whose, nbytes, memory = self._gone.popleft()
            self._count(kind, whose, -nbytes)
            if memory is not None:
                self._idle.append(memory)

    def _count(self, kind: Kind, whose: str, nbytes: int) -> None:
        self._used += nbytes
        self._of_kind[kind] += nbytes
        held = self._held[kind, whose] = self._held.get((kind, whose), 0) + nbytes
        if not held:
            del self._held[kind, whose]
        # What lies idle goes, longest unused first, until all is within the limit.
        while self._idle and (
            len(self._idle) > _MOST_IDLE or self._used + sum(one.nbytes for one in self._idle) > self.limit_bytes
        ):
            del self._idle[0]

    def _lacks(self, kind: Kind, account: Account, nbytes: int, moved: Collection[MemoryClaim] = ()) -> str:
        """Say why there are not so many bytes; "" where there are. `moved` claims are of another kind now."""
        if self._gone:
            self._collect()
        limit, of_kind = self.limit_bytes, self._of_kind
        flowing, flows = of_kind[Kind.REQUEST] + of_kind[Kind.REPLY], kind is Kind.REQUEST or kind is Kind.REPLY
        alone = not (flowing if flows else of_kind[kind]) and kind in _ONE_MAY_BE_LARGE
        if flows and of_kind[Kind.KEPT] + of_kind[Kind.PART] > limit // 2:
            alone = False  # of these many may be under way, too
        most = limit - limit // 8 * (flows + account.limited)
        if self._used + nbytes > most and not (alone and nbytes <= self._available() // 2):
            (of, whose), held = max(self._held.items(), key=lambda item: item[1], default=((kind, "nobody"), 0))
            return f"{self._used:,} bytes are kept for all callers, of {most:,}; {whose} has most, {held:,} of {of}"
        if flows:
            own = self._held.get((Kind.REQUEST, account.name), 0) + self._held.get((Kind.REPLY, account.name), 0)
            others = own + nbytes > limit // 4 and any(waiter.account.name != account.name for waiter in self._line)
            return f"it has {own:,}, and others wait" if own and others else ""
        if alone:
            return ""
        new = nbytes + sum(one.nbytes for one in moved)
        own = self._held.get((kind, account.name), 0)
        if of_kind[kind] + new > limit // 2:
            return f"{kind} have {of_kind[kind]:,}, and {limit // 2:,} at most"
        lasting = sum([of_kind[one] for one in _LASTING])
        if kind in _LASTING and lasting + new > limit - limit // 4:
            return f"all that lasts has {lasting:,}, and {limit - limit // 4:,} at most"
        if account.limited and own and own + new > limit // 4:
            return f"it has {own:,} of them, and one worker has {limit // 4:,} at most"
        return ""


class ReplyBuffer(Protocol):
    """Memory for the values of one reply."""

    def prepare(self, nbytes: Callable[[], int]) -> None:
        """Have as much ready as will be taken, so that `take` need not have any made; the lock is not held yet.

        Args:
            nbytes: Says how much that will be, where it needs to be known.
        """
        ...

    def take(self, nbytes: int) -> npt.NDArray[np.uint8] | None:
        """Give so many bytes; None where they may be taken anywhere.

        Raises:
            ResourceExhaustedError: If there are none.
        """
        ...


class ReplyMemory:
    """Memory for the values of an account's replies; see ReplyBuffer. It never waits: the shard is locked.

    Args:
        account: The caller's.
        first: Where it is taken from if there is some; None for nowhere else.
    """

    def __init__(self, account: Account, first: ReplyBuffer | None = None) -> None:
        self._account, self._first = account, first

    def prepare(self, nbytes: Callable[[], int]) -> None:
        """See ReplyBuffer."""
        if self._first is not None:
            self._first.prepare(nbytes)

    def take(self, nbytes: int) -> Array | None:
        """See ReplyBuffer."""
        memory = self._first.take(nbytes) if self._first is not None else None
        return self._account.budget.reply(self._account, nbytes) if memory is None and nbytes >= SMALL_BYTES else memory
