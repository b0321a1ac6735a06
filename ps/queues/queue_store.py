"""All queues of a PS task that tasks share, and what is remembered of the calls to them.

docs/design/queues.md is the law: slots, so that a call that comes twice counts once, and what becomes of the elements
of a consumer that is gone. Pure: time and randomness are arguments.

Layer: ps. Single thread: the caller's.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from globalstep.errors import AbortedError, InvalidArgumentError, ResourceExhaustedError
from globalstep.ps.budget import Account, Budget, Kind
from globalstep.ps.queues.stored_queue import Attributes, Element, SlotCall, StoredQueue, What

#: Queues of a task, calls of a client at a time, and calls that are remembered of all clients.
MOST_QUEUES = 1024
MOST_SLOTS = 256
MOST_CALLS = 1 << 16
#: What a queue takes besides its elements: at most, with the texts of dtypes and shapes.
_QUEUE_BYTES = 1 << 14
#: Bytes that one dequeue may take.
MOST_TAKEN_BYTES = 1 << 30
#: A client whose lease is over, and that has not called for so long, is gone.
GONE_SECS = 5.0
#: One that never had a lease, or that a call may still come of, is forgotten after so long: sessions give up before.
FORGOTTEN_SECS = 600.0
_DEPARTED_KEPT = 1024
#: What queues there are.
KINDS = ("FIFOQueue", "PaddingFIFOQueue", "RandomShuffleQueue")


@dataclass(frozen=True, slots=True)
class QueueCall:
    """A call to a queue."""

    queue: Attributes
    what: What
    client: str
    slot: int = 0
    number: int = 0
    #: The last number in this slot whose answer the client has.
    taken: int = 0
    #: Of an enqueue: its elements, or none to ask for space; and how many they are.
    elements: Sequence[Element] = ()
    total: int = 0
    #: Of a dequeue.
    count: int = 0
    allow_fewer: bool = False
    #: Of a close: cancel the enqueues that wait.
    cancel: bool = False
    #: See Account.
    limited: bool = False


@dataclass(frozen=True, slots=True)
class QueueAnswer:
    """The answer to a call."""

    #: It is to be asked again, under the same number.
    waiting: bool
    #: Of an enqueue that waits: its elements may come now.
    space: bool
    #: Of an enqueue: how many are in. Of a dequeue: those taken, while it waits those gathered.
    entered: int
    elements: Sequence[Element]
    size: int
    closed: bool


@dataclass(slots=True)
class _Caller:
    heard: float
    #: Whether it has been seen to have a lease.
    has_lease: bool = False
    slots: dict[int, SlotCall] = field(default_factory=dict)


class QueueStore:
    """The queues of a PS task.

    Args:
        budget: From which the memory of queues and elements is claimed.
        rng: Makes the choices of queues that have no seed of their own.

    Attributes:
        changes: Counts what may let a call that waits go on.
        queues: By name.
    """

    def __init__(self, budget: Budget, rng: random.Random) -> None:
        self.changes = 0
        self._rng = rng
        self._budget = budget
        self.queues: dict[str, StoredQueue] = {}
        self._clients: dict[str, _Caller] = {}
        self._departed: dict[str, None] = {}
        # How many slots all clients have together.
        self._remembered = 0

    def call(self, call: QueueCall, now: float) -> QueueAnswer:
        """Carry out a call, or go on with one that waits.

        Args:
            call: It.
            now: Time.

        Raises:
            OpError: What is wrong with it; nothing was changed.
        """
        if call.what is What.LOOK and call.queue.name not in self.queues:
            return QueueAnswer(waiting=False, space=False, entered=0, elements=(), size=0, closed=False)  # none is made
        account = Account(self._budget, call.client, call.limited)
        queue = self._queue_of(call, account)
        if call.what is What.LOOK:
            return self._answer(queue, SlotCall(0, What.LOOK, queue, now, over=True), call, account)
        _check(call, self._budget.half)
        if call.client in self._departed:
            raise AbortedError(f"Client {call.client} has left; this is a late copy of one of its calls.")
        mine = self._slot_call(queue, call, now)
        place = call.client, call.slot
        if not mine.over:
            if call.what is What.ENQUEUE:
                queue.enqueue(place, mine, call.elements, call.total, account, now)
            elif call.what is What.DEQUEUE:
                queue.dequeue(place, mine, call.count, call.allow_fewer, now)
                self._refuse_large(queue, mine, call)
            else:
                queue.close(place, mine, call.cancel, now)
            self.changes += 1
        return self._answer(queue, mine, call, account)

    def _slot_call(self, queue: StoredQueue, call: QueueCall, now: float) -> SlotCall:
        """Find the call in its client's slot; a new one takes the place of the one before.

        Raises:
            AbortedError: If it is a copy of an older call.
            ResourceExhaustedError: If too many are remembered.
        """
        client = self._clients.get(call.client)
        before = None if client is None else client.slots.get(call.slot)
        if before is not None and call.number < before.number:
            raise AbortedError(f"A call to {queue.title} is a late copy: its client has gone on to the next one.")
        if before is not None and call.number == before.number:
            assert client is not None
            if before.queue is not queue or before.what is not call.what:
                raise AbortedError(f"{queue.title} is not the one that this call began with: another run began.")
            client.heard = now
            return before
        if before is None and self._remembered >= MOST_CALLS:
            raise ResourceExhaustedError("Too many clients of queues are remembered by this PS task.", retry_secs=5.0)
        if client is None:
            client = self._clients[call.client] = _Caller(now)
        client.heard = now
        if before is None:
            self._remembered += 1
        else:
            self._settle((call.client, call.slot), before, before.number <= call.taken)
        mine = client.slots[call.slot] = SlotCall(call.number, call.what, queue, now)
        return mine

    def _settle(self, place: tuple[str, int], before: SlotCall, took: bool) -> None:
        """End the call before in a slot: its client has its answer, or has given it up."""
        if before.over and took:
            before.queue.release(before)
        else:
            before.queue.give_up(place, before)
        self.changes += 1

    def _queue_of(self, call: QueueCall, account: Account) -> StoredQueue:
        """Find the queue that a call means, or make it.

        Raises:
            InvalidArgumentError: If it was made otherwise.
            ResourceExhaustedError: If there are too many, or there is no memory.
        """
        asked = call.queue
        queue = self.queues.get(asked.name)
        if queue is not None:
            queue.check(asked)
            return queue
        if len(self.queues) >= MOST_QUEUES:
            raise ResourceExhaustedError(f"This PS task has {MOST_QUEUES} queues, and takes no more.")
        rng = random.Random(self._rng.random() if asked.seed is None else asked.seed)
        claim = self._budget.claim(Kind.QUEUE, account, _QUEUE_BYTES)
        queue = self.queues[asked.name] = StoredQueue(asked, rng, claim)
        return queue

    def _refuse_large(self, queue: StoredQueue, mine: SlotCall, call: QueueCall) -> None:
        """Refuse to gather more than fits into a reply, or so much that what is missing finds no space.

        Raises:
            InvalidArgumentError: If it would be; the elements are put back.
        """
        nbytes = sum(element.nbytes for element in mine.kept)
        most = min(MOST_TAKEN_BYTES, self._budget.half // 2)
        if nbytes > most and call.count > 1:
            queue.give_up((call.client, call.slot), mine)
            raise InvalidArgumentError(
                f"{call.count} elements of {queue.title} have more than {most:,} bytes; dequeue fewer at a time."
            )

    def _answer(self, queue: StoredQueue, mine: SlotCall, call: QueueCall, account: Account) -> QueueAnswer:
        waits = mine.what is What.ENQUEUE and not mine.over
        space = waits and queue.has_space_for((call.client, call.slot)) and self._budget.has_room(Kind.QUEUE, account)
        entered = mine.entered if mine.what is What.ENQUEUE else len(mine.kept)
        elements = mine.kept if mine.over else ()
        return QueueAnswer(not mine.over, space, entered, elements, len(queue.elements), queue.closed)

    # ---- Clients that are gone -----------------------------------------------------------------

    def drop_gone(self, alive: Collection[str], now: float) -> None:
        """Put back what is kept for clients that are gone, and forget those that have been for long.

        Args:
            alive: Those with a live lease.
            now: Time.
        """
        for name, client in list(self._clients.items()):
            if name in alive:
                client.heard, client.has_lease = now, True
                continue
            silent_secs = now - client.heard
            if silent_secs > (GONE_SECS if client.has_lease else FORGOTTEN_SECS):
                client.has_lease = False
                for slot, call in client.slots.items():
                    call.queue.give_up((name, slot), call)
                self.changes += 1
            if silent_secs > FORGOTTEN_SECS:
                self._remembered -= len(client.slots)
                del self._clients[name]

    def left(self, name: str, finished: bool) -> None:
        """Take note that a client has left.

        Args:
            name: Its id.
            finished: In good order: it has what it took. Else that is put back.
        """
        client = self._clients.pop(name, None)
        if client is None:
            return
        for slot, call in client.slots.items():
            self._settle((name, slot), call, took=finished)
        self._remembered -= len(client.slots)
        self._departed[name] = None
        if len(self._departed) > _DEPARTED_KEPT:
            del self._departed[next(iter(self._departed))]

    def clear(self) -> None:
        """Drop all queues, since another run begins; what is remembered of calls stays."""
        for client in self._clients.values():
            for call in client.slots.values():
                call.kept = []
        for queue in self.queues.values():
            queue.drop()
        self.queues.clear()
        self.changes += 1


def _check(call: QueueCall, most_bytes: int) -> None:
    """Refuse a call that cannot be.

    Raises:
        InvalidArgumentError: If it has no client, too high a slot, no number, or an element that never fits.
    """
    if not call.client:
        raise InvalidArgumentError("A call to a queue must name its client.")
    if not (0 <= call.slot < MOST_SLOTS and call.number > 0):
        raise InvalidArgumentError(f"A client makes {MOST_SLOTS} calls to queues at a time at most, numbered from 1.")
    if call.count < 0 or call.total < 0:
        raise InvalidArgumentError("A call to a queue is for no fewer than 0 elements.")
    if call.elements and len(call.elements) != call.total:
        raise InvalidArgumentError(f"An enqueue of {call.total} elements came with {len(call.elements)}.")
    largest = max((element.nbytes for element in call.elements), default=0)
    if largest > most_bytes:
        raise InvalidArgumentError(
            f"An element of {largest:,} bytes never fits into queue {call.queue.name!r}: the queues of this PS task "
            f"have {most_bytes:,} bytes together, half of --max-inflight-bytes. Raise it, or put smaller elements in."
        )
