"""The memory for what is under way: requests on their way in, parts that are staged, and replies on their way out.

All connections of a PS task share it, and it has a limit. A connection that finds it used up waits, and reads
nothing from its socket meanwhile: so the client's sends come to a stop, and a PS task that cannot keep up slows its
workers down. A call that has waited for too long is answered with RESOURCE_EXHAUSTED, which says when to come back.

Who waits for much does not hold up those who wait for little, but only so many of them pass him. While others wait, no
connection gets more than a quarter of all.

How much is in use is not kept in a book that could be wrong: it is seen from who still refers to each block. So it
covers every holder of one, and nothing has to be given back.

Layer: ps. Threads: any number at once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from globalstep.errors import ResourceExhaustedError
from globalstep.ps.store.reading import ReplyBuffer
from globalstep.runtime.clock import Clock
from globalstep.runtime.machine_memory import available_bytes, memory_bytes
from globalstep.runtime.memory import fitting_block, unused_blocks

__all__ = ["BufferInFlight", "InFlightMemory", "ShareInFlight", "default_limit_bytes", "default_message_bytes"]

Array = npt.NDArray[np.uint8]

#: Below this, memory is not counted: it is bounded by the number of connections.
SMALL_BYTES = 1 << 16
#: Blocks that wait for a use.
_MOST_IDLE = 4
#: How often the first of those who wait looks whether memory has become free.
_LOOK_SECS = 0.002
#: How long a caller waits before it is sent away, and for how long it is sent away.
PATIENCE_SECS = 5.0
RETRY_SECS = 0.5


#: How many may be given memory before the first of those who wait, because they want less.
_MOST_PASSED = 16
#: What a connection may have at most while others wait: one part in so many of all.
_SHARE = 4
#: For so long after a refusal memory counts as short.
_SHORT_SECS = 10.0
#: The least that is taken for a limit, where memory is short already.
_LEAST_BYTES = 64 << 20


def default_message_bytes() -> int:
    """Give the default limit of a message's tensor bytes: half of the machine's memory, or 16 GiB."""
    return min(memory_bytes() // 2, 16 << 30)


def default_limit_bytes() -> int:
    """Give the default limit of a task: a quarter of the memory that is free now."""
    return max(available_bytes() // 4, _LEAST_BYTES)


class _Waiter:
    """A call that waits for memory. The memory's lock guards it."""

    def __init__(self, nbytes: int, holder: object) -> None:
        self.nbytes = nbytes
        self.holder = holder
        #: What he was given.
        self.block: Array | None = None
        #: Why he will never be given any.
        self.refused: ResourceExhaustedError | None = None
        #: How many were given some before him who came after him.
        self.passed = 0
        #: Set when he is the first, and looks for all, or was given some.
        self.turn = threading.Event()


class InFlightMemory:
    """Gives out memory up to a limit, the same again once no array or view of it is left. Thread-safe.

    One block may be larger than the limit, where nothing else is in use, up to half of what is free then: handler.py
    enforces the limit per message.

    Args:
        limit_bytes: The limit.
        clock: Time, for those who wait.
        patience_secs: How long they do.
    """

    def __init__(self, limit_bytes: int, clock: Clock, patience_secs: float = PATIENCE_SECS) -> None:
        self.limit_bytes = limit_bytes
        self._clock = clock
        self._patience_secs = patience_secs
        # Guards the attributes below; a leaf. References to blocks are made under it only.
        self._lock = threading.Lock()
        # Longest unused first.
        self._blocks: list[Array] = []
        #: id of a block -> whose it was last.
        self._holders: dict[int, object] = {}
        # Those who wait, in the order in which they came; the first one looks, and wakes the next when it leaves.
        self._waiting: deque[_Waiter] = deque()
        #: How many were sent away.
        self.refusals = 0
        self._refused: float | None = None
        self._shared_bytes = 0
        # Sizes of shared memory that is gone. The garbage collector puts them here, in whatever thread it runs, perhaps
        # one that holds the lock: so without it.
        self._unshared: deque[int] = deque()
        # See `claim`.
        self._claims: list[Array] = []
        self._lasting: list[Array] = []

    @property
    def used_bytes(self) -> int:
        """Bytes that are still referred to."""
        with self._lock:
            return self._used()

    def is_short(self) -> bool:
        """Say whether a call waits for memory, or was refused some lately."""
        with self._lock:
            refused = self._refused is not None and self._clock.monotonic() - self._refused < _SHORT_SECS
            return bool(self._waiting) or refused

    def take(self, nbytes: int, holder: object = None) -> Array:
        """Give memory; wait for it, if need be.

        Args:
            nbytes: How much.
            holder: Who gets it, and no more than its share while others wait; None where nobody's share counts.

        Returns:
            uint8 [nbytes]; what it contains is undefined.

        Raises:
            ResourceExhaustedError: If there was none for as long as a call may wait.
        """
        if nbytes < SMALL_BYTES:
            return np.empty(nbytes, np.uint8)
        waiter = _Waiter(nbytes, holder)
        with self._lock:
            block = self._pass(nbytes, holder)
            if block is not None:
                return block
            self._waiting.append(waiter)
        try:
            return self._wait(waiter)
        finally:
            with self._lock:
                self._leave(waiter)

    def _leave(self, waiter: _Waiter) -> None:
        """Take a call out of the queue. Caller holds the lock."""
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        if self._waiting:
            self._waiting[0].turn.set()

    def take_at_once(self, nbytes: int, holder: object = None) -> Array | None:
        """Give memory, or None where `take` would wait."""
        if nbytes < SMALL_BYTES:
            return np.empty(nbytes, np.uint8)
        with self._lock:
            return self._pass(nbytes, holder)

    def take_now(self, nbytes: int, holder: object = None) -> Array | None:
        """Give memory if there is some; None for less than is counted, too.

        Raises:
            ResourceExhaustedError: If there is none.
        """
        if nbytes < SMALL_BYTES:
            return None
        with self._lock:
            block = self._try(nbytes, holder)
        if block is None:
            raise self._refusal(nbytes)
        return block

    def share(self, nbytes: int) -> bool:
        """Take note of memory that is to be shared with a client; says whether it may be: it has a limit as high.

        The first block may be larger, up to half of what is free.
        """
        with self._lock:
            while self._unshared:
                self._shared_bytes -= self._unshared.popleft()
            may = self._shared_bytes + nbytes <= self.limit_bytes
            if not may and not self._shared_bytes:
                may = nbytes <= available_bytes() // 2
            self._shared_bytes += nbytes * may
            return may

    def unshare(self, nbytes: int) -> None:
        """Take note that such memory is gone. Takes no lock: a finalizer may call it."""
        self._unshared.append(nbytes)

    def _wait(self, waiter: _Waiter) -> Array:
        until = self._clock.monotonic() + self._patience_secs
        never = threading.Event()
        while True:
            with self._lock:
                first = self._waiting[0] is waiter
                if first:
                    self._give_out()
                if waiter.block is not None:
                    return waiter.block
                if waiter.refused is not None:
                    raise waiter.refused
                now = self._clock.monotonic()
                if now >= until:
                    # At once: until then another thread may still give it some.
                    self._leave(waiter)
            if now >= until:
                raise self._refusal(waiter.nbytes)
            if first:
                self._clock.wait(never, _LOOK_SECS)
            else:
                self._clock.wait(waiter.turn, until - now)

    def _give_out(self) -> None:
        """Give memory to those who wait and for whom there is some. Caller holds the lock."""
        for waiter in self._waiting:
            if waiter.block is None and waiter.refused is None and self._may_pass(waiter):
                try:
                    waiter.block = self._try(waiter.nbytes, waiter.holder)
                except ResourceExhaustedError as error:
                    waiter.refused = error
                    waiter.turn.set()
                if waiter.block is not None:
                    self._waiting[0].passed += waiter is not self._waiting[0]
                    waiter.turn.set()

    def _may_pass(self, waiter: _Waiter) -> bool:
        first = self._waiting[0]
        return waiter is first or first.block is not None or first.passed < _MOST_PASSED

    def _pass(self, nbytes: int, holder: object) -> Array | None:
        """Give memory to a call that comes now, if that is fair to those who wait. Caller holds the lock."""
        if not self._waiting:
            return self._try(nbytes, holder)
        self._give_out()
        first = self._waiting[0]
        if first.block is None and (nbytes >= first.nbytes or first.passed >= _MOST_PASSED):
            return None
        block = self._try(nbytes, holder)
        first.passed += block is not None
        return block

    def _refusal(self, nbytes: int) -> ResourceExhaustedError:
        with self._lock:
            return self._refuse(nbytes)

    def _refuse(self, nbytes: int) -> ResourceExhaustedError:
        """Count a refusal, and give its error. Caller holds the lock."""
        used = self._used()
        self.refusals += 1
        self._refused = self._clock.monotonic()
        return ResourceExhaustedError(
            f"This PS task has {used:,} bytes under way, and no memory for {nbytes:,} more: the limit is "
            f"{self.limit_bytes:,} (--max-inflight-bytes). It is slower than its clients; they come again.",
            retry_secs=RETRY_SECS,
        )

    def _used(self) -> int:
        """See `used_bytes`. Caller holds the lock."""
        idle = sum(self._blocks[at].nbytes for at in unused_blocks(self._blocks))
        claimed = _claimed_in(self._claims) + _claimed_in(self._lasting)
        return sum(block.nbytes for block in self._blocks) - idle + claimed

    def _has_its_share(self, nbytes: int, holder: object) -> bool:
        """Whether others wait, and so much more were too much for a holder. Caller holds the lock."""
        if holder is None or all(waiter.block is not None or waiter.holder is holder for waiter in self._waiting):
            return False
        idle = set(unused_blocks(self._blocks))
        held = sum(
            block.nbytes
            for at, block in enumerate(self._blocks)
            if at not in idle and self._holders.get(id(block)) is holder
        )
        return held > 0 and held + nbytes > self.limit_bytes // _SHARE

    def _try(self, nbytes: int, holder: object) -> Array | None:
        """Give memory, if there is some. Caller holds the lock.

        Raises:
            ResourceExhaustedError: If there would never be so much.
        """
        if self._waiting and self._has_its_share(nbytes, holder):
            return None
        blocks = self._blocks
        idle = unused_blocks(blocks)
        fitting = fitting_block(blocks, idle, nbytes)
        if fitting is not None:
            block = blocks.pop(fitting)
        else:
            total = sum(block.nbytes for block in blocks)
            spare = sum(blocks[at].nbytes for at in idle)
            if self._claims or self._lasting:
                total += self._used() - (total - spare)
            if total - spare and total - spare + nbytes > self.limit_bytes:
                return None
            if nbytes > self.limit_bytes and nbytes > (available_bytes() + spare) // 2:
                raise self._refuse(nbytes)
            # What lies idle goes, oldest first, until there is enough.
            for gone, at in enumerate(idle):
                if total + nbytes <= self.limit_bytes and len(idle) - gone < _MOST_IDLE:
                    break
                total -= blocks[at - gone].nbytes
                self._holders.pop(id(blocks[at - gone]), None)
                del blocks[at - gone]
            block = np.empty(nbytes, np.uint8)
        blocks.append(block)
        self._holders[id(block)] = holder
        return block[:nbytes]

    def claim(self, nbytes: int, lasting: bool = False) -> Array:
        """Take note of memory that is about to be taken elsewhere; it counts while the result is referred to.

        Args:
            nbytes: How much.
            lasting: It is for as long as a connection: such claims have half of all together, so that the rest
                remains for what is under way.

        Returns:
            What stands for it: memory that no thread is to write to, so that it costs none.

        Raises:
            ResourceExhaustedError: If there is no memory.
        """
        with self._lock:
            used = self._used()
            if lasting and max(2 * _claimed_in(self._lasting) + 2 * nbytes, used + nbytes) > self.limit_bytes:
                # Its holder can do without: nobody is sent away, and memory is not short for that.
                raise ResourceExhaustedError(f"No memory for {nbytes:,} bytes as long as a connection is there.")
            if used + nbytes > self.limit_bytes and (used or nbytes > available_bytes() // 2):
                raise self._refuse(nbytes)
            claim = np.empty(nbytes, np.uint8)
            (self._lasting if lasting else self._claims).append(claim)
            return claim


def _claimed_in(claims: list[Array]) -> int:
    """Give the bytes of claims, without those that nobody has any more, which are dropped."""
    for at in reversed(unused_blocks(claims)) if claims else ():
        del claims[at]
    return sum(claim.nbytes for claim in claims)


class ShareInFlight:
    """The memory of one connection, or stream: what it takes is known to be its own; see memory.Pool.

    Args:
        memory: Where it comes from.
    """

    def __init__(self, memory: InFlightMemory) -> None:
        self._memory = memory

    def take(self, nbytes: int) -> Array:
        """See InFlightMemory."""
        return self._memory.take(nbytes, self)

    def take_at_once(self, nbytes: int) -> Array | None:
        """See InFlightMemory."""
        return self._memory.take_at_once(nbytes, self)

    def claim(self, nbytes: int, lasting: bool = False) -> Array:
        """See InFlightMemory."""
        return self._memory.claim(nbytes, lasting)


class BufferInFlight:
    """Memory for the values of replies; see reading.ReplyBuffer. It never waits: the caller holds the shard's lock.

    Args:
        memory: Where it comes from.
        first: Where it is taken from if there is some; None for nowhere else.
        holder: See InFlightMemory.take.
    """

    def __init__(self, memory: InFlightMemory, first: ReplyBuffer | None = None, holder: object = None) -> None:
        self._memory = memory
        self._holder = holder
        self._first = first

    def prepare(self, nbytes: Callable[[], int]) -> None:
        """See reading.ReplyBuffer."""
        if self._first is not None:
            self._first.prepare(nbytes)

    def take(self, nbytes: int) -> Array | None:
        """See reading.ReplyBuffer.

        Raises:
            ResourceExhaustedError: If there is no memory. Nothing has been read.
        """
        found = self._first.take(nbytes) if self._first is not None else None
        return self._memory.take_now(nbytes, self._holder) if found is None else found
