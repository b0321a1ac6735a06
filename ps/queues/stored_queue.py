"""One queue that tasks share: its elements, and the lines of the calls that wait.

docs/design/queues.md is the law. Pure: time and randomness are arguments, and an element is whatever its producer gave.

Layer: ps. Single thread: the caller's.
"""

from __future__ import annotations

import enum
import random
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from globalstep.errors import CancelledError, InvalidArgumentError, OutOfRangeError
from globalstep.ps.budget import Account, Kind, MemoryClaim

#: A call that waits, and has not been heard of for so long, loses its place.
PLACE_SECS = 3.0

#: Who has a place in a line: a client, and its slot.
Place = tuple[str, int]


class What(enum.Enum):
    """The operation that a call asks for."""

    ENQUEUE = 1
    DEQUEUE = 2
    CLOSE = 3
    LOOK = 4


@dataclass(frozen=True, slots=True)
class Attributes:
    """The options that a queue was made with."""

    name: str
    #: "FIFOQueue", "PaddingFIFOQueue" or "RandomShuffleQueue".
    kind: str
    #: Most elements that it holds; less than 0 for no limit.
    capacity: int
    dtypes: tuple[str, ...] = ()
    #: As texts; compared only.
    shapes: tuple[str, ...] = ()
    #: Of a RandomShuffleQueue: what a dequeue leaves as long as the queue is open, and the seed of its choices.
    min_after_dequeue: int = 0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Element:
    """An element, and the memory that it takes."""

    value: Any
    nbytes: int
    #: That memory, once it is inside, and until its consumer has it.
    claim: MemoryClaim | None = None


@dataclass(slots=True)
class SlotCall:
    """The last call of a client's slot."""

    number: int
    what: What
    queue: StoredQueue
    #: When it was last heard of, while it waits.
    heard: float
    #: Whether it is answered for good: the same answer again for the same number.
    over: bool = False
    #: How many elements it has put in.
    entered: int = 0
    #: What it took, kept until its consumer says that it has it; while it waits, what it has gathered.
    kept: list[Element] = field(default_factory=list)
    #: Its queue was closed with pending enqueues cancelled, while it waited.
    cancelled: bool = False


class StoredQueue:
    """A queue.

    Args:
        attributes: What it is made with.
        rng: Makes the choices of a RandomShuffleQueue.
        claim: The memory that it takes without elements.
    """

    def __init__(self, attributes: Attributes, rng: random.Random, claim: MemoryClaim | None = None) -> None:
        self.attributes = attributes
        self.closed = False
        self.elements: deque[Element] = deque()
        #: Enqueues and closes, and dequeues, that wait, in the order in which they came.
        self.entering: OrderedDict[Place, SlotCall] = OrderedDict()
        self.leaving: OrderedDict[Place, SlotCall] = OrderedDict()
        #: Bytes of the elements inside, and how many elements are kept for those that took them.
        self.nbytes = self.kept = 0
        self._rng = rng
        self._claim = claim

    @property
    def title(self) -> str:
        """Its name in messages."""
        return f"{self.attributes.kind} '{self.attributes.name}'"

    def check(self, asked: Attributes) -> None:
        """Refuse a call that means a queue with other attributes.

        Raises:
            InvalidArgumentError: If it does; TensorFlow's texts.
        """
        mine, name = self.attributes, self.attributes.name
        for what, own, other in (
            ("kind", mine.kind, asked.kind),
            ("capacity", mine.capacity, asked.capacity),
            ("component types", list(mine.dtypes), list(asked.dtypes)),
            ("component shapes", list(mine.shapes), list(asked.shapes)),
            ("min_after_dequeue", mine.min_after_dequeue, asked.min_after_dequeue),
            ("seed", mine.seed, asked.seed),
        ):
            if own != other:
                verb = "were" if what.endswith("s") else "was"
                raise InvalidArgumentError(
                    f"Shared queue '{name}' has {what} {own} but requested {what} {verb} {other}. Tasks that share a "
                    "queue must make it alike; give this one another shared_name if it is meant to be another."
                )

    # ---- Calls --------------------------------------------------------------------------------

    def enqueue(
        self, place: Place, call: SlotCall, elements: Sequence[Element], total: int, account: Account, now: float
    ) -> None:
        """Put in what there is space for.

        Args:
            place: Whose call it is.
            call: It; over once all its elements are in.
            elements: All of them; none to ask only whether there is space.
            total: How many they are.
            account: The caller that they are kept for.
            now: Time.

        Raises:
            CancelledError: If the queue is closed.
        """
        if self.closed:
            # Those that came before the close are in, unless they were cancelled.
            self.entering.pop(place, None)
            text = "Enqueue operation was cancelled: " if call.cancelled else ""
            raise CancelledError(f"{text}{self.title} is closed.")
        self._wait(self.entering, place, call, now)
        while elements and call.entered < total and self.has_space_for(place):
            element = elements[call.entered]
            claim = account.budget.try_claim(Kind.QUEUE, account, element.nbytes)
            if claim is None:
                break
            self.elements.append(Element(element.value, element.nbytes, claim))
            self.nbytes += element.nbytes
            call.entered += 1
        if call.entered == total:
            call.over = True
            del self.entering[place]

    def has_space_for(self, place: Place) -> bool:
        """Whether a call that waits is the first, and the queue holds fewer elements than it may."""
        capacity = self.attributes.capacity
        full = 0 <= capacity <= len(self.elements)
        return next(iter(self.entering), None) == place and not full

    def dequeue(self, place: Place, call: SlotCall, count: int, allow_fewer: bool, now: float) -> None:
        """Take what may be taken.

        Args:
            place: Whose call it is.
            call: It; over once it has what it asks for.
            count: How many elements.
            allow_fewer: Whether to give what is left, at least one, when the queue is closed.
            now: Time.

        Raises:
            OutOfRangeError: If the queue is closed and has fewer; it keeps them.
        """
        self._wait(self.leaving, place, call, now)
        if next(iter(self.leaving)) != place:
            return
        left = 0 if self.closed else self.attributes.min_after_dequeue
        while len(call.kept) < count and len(self.elements) > left:
            call.kept.append(self._taken())
        if len(call.kept) == count or (self.closed and allow_fewer and call.kept):
            call.over = True
            del self.leaving[place]
        elif self.closed:
            del self.leaving[place]
            self.put_back(call)
            raise OutOfRangeError(
                f"{self.title} is closed and has insufficient elements (requested {count}, current size "
                f"{len(self.elements)})"
            )

    def close(self, place: Place, call: SlotCall, cancel: bool, now: float) -> None:
        """Refuse further elements, once those that wait are in, or at once.

        Args:
            place: Whose call it is.
            call: It; over once the queue is closed.
            cancel: Whether to cancel enqueues that wait.
            now: Time.

        Raises:
            CancelledError: If it is closed already, unless pending enqueues are to be cancelled.
        """
        if cancel:
            self.closed = call.over = True
            for waiting in self.entering.values():
                waiting.cancelled = True
            return
        if self.closed:
            self.entering.pop(place, None)
            raise CancelledError(f"{self.title} is already closed.")
        self._wait(self.entering, place, call, now)
        if next(iter(self.entering)) == place:
            del self.entering[place]
            self.closed = call.over = True

    # ---- What becomes of calls that are given up -----------------------------------------------

    def give_up(self, place: Place, call: SlotCall) -> None:
        """Take a call out of its line, and put back what it has taken."""
        self.entering.pop(place, None)
        self.leaving.pop(place, None)
        self.put_back(call)

    def put_back(self, call: SlotCall) -> None:
        """Put what a dequeue has taken back at the front; the call begins anew if it comes again."""
        if call.kept:
            self.elements.extendleft(reversed(call.kept))
            self.nbytes += sum(element.nbytes for element in call.kept)
            self.kept -= len(call.kept)
            call.kept, call.over = [], False

    def release(self, call: SlotCall) -> None:
        """Forget what a dequeue has taken: its consumer has it."""
        self.kept -= len(call.kept)
        call.kept = []

    def drop(self) -> None:
        """Hold nothing any more: calls that are remembered may refer to the queue yet."""
        self.elements.clear()
        self._claim = None

    def _wait(self, line: OrderedDict[Place, SlotCall], place: Place, call: SlotCall, now: float) -> None:
        """Keep a call's place in the line, or give it the last one; clients that are silent lose theirs."""
        call.heard = now
        line[place] = call
        self.drop_silent(self.entering, now)
        self.drop_silent(self.leaving, now)

    def drop_silent(self, line: OrderedDict[Place, SlotCall], now: float) -> None:
        """Take calls out of a line that have not been heard of."""
        for place in [place for place, call in line.items() if now - call.heard > PLACE_SECS]:
            self.put_back(line.pop(place))

    def _taken(self) -> Element:
        if self.attributes.kind == "RandomShuffleQueue":
            at = self._rng.randrange(len(self.elements))
            self.elements[0], self.elements[at] = self.elements[at], self.elements[0]
        element = self.elements.popleft()
        self.nbytes -= element.nbytes
        self.kept += 1
        return element
