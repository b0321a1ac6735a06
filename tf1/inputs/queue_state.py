"""Contents of a queue and the threads that wait for it: the part of a queue that knows no graph.

Enqueuers, and closers behind them, are served in the order in which they came; so are dequeuers. Texts
and order follow TensorFlow 1.15, core/kernels/{queue_base,fifo_queue,random_shuffle_queue_op}.cc.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from globalstep.errors import CancelledError, DeadlineExceededError, OutOfRangeError
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.runtime.waiting import Reminder

#: One element: an array for each component of the queue.
Element = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Made:
    """The options of a queue, besides the components of its elements.

    Attributes:
        kind: TensorFlow's name of the kind.
        capacity: Most elements that it holds; less than 0 for no limit.
        shuffle: Whether a dequeue takes a random element.
        min_after_dequeue: Elements that a dequeue leaves as long as the queue is open.
        seed: Of the random choice; None for another one each time.
    """

    kind: str
    capacity: int
    shuffle: bool = False
    min_after_dequeue: int = 0
    seed: int | None = None

    def state(self, title: str) -> QueueState:
        """Make what holds its elements in this process, under a name for messages."""
        return QueueState(self.kind, title, self.capacity, self.shuffle, self.min_after_dequeue, self.seed)


class QueueState:
    """A bounded queue of elements between threads. Thread-safe.

    Args:
        kind: For messages: "FIFOQueue", "RandomShuffleQueue", ...
        name: For messages, e.g. "_0_fifo_queue".
        capacity: Most elements that it holds; less than 0 for no limit.
        shuffle: Whether a dequeue takes a random element.
        min_after_dequeue: Elements that a dequeue leaves as long as the queue is open.
        seed: Of the random choice; None for another one each time.
        clock: Tells how long ago elements came and went.

    >>> state = QueueState("FIFOQueue", "_0_q", capacity=2)
    >>> state.enqueue([(1,), (2,)])
    >>> state.dequeue(1)
    [(1,)]
    """

    def __init__(
        self,
        kind: str,
        name: str,
        capacity: int,
        shuffle: bool = False,
        min_after_dequeue: int = 0,
        seed: int | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._clock = clock
        self._title = f"{kind} '{name}'"
        self._capacity = capacity if capacity >= 0 else float("inf")
        self._min_after_dequeue = min_after_dequeue
        self._seed = seed
        self._shuffle = shuffle
        # Guards all that follows; a leaf: nothing else is taken under it.
        self._changed = threading.Condition()
        self._rng = np.random.default_rng(seed)
        self._elements: deque[Element] = deque()
        self._entering: deque[object] = deque()
        self._leaving: deque[object] = deque()
        #: When the last element was put in, and taken; None before the first.
        self._put_at: float | None = None
        self._taken_at: float | None = None
        self._closed = False
        #: What cancelled enqueues had not put in; `resume` lets it in, so that no input is lost.
        self._carried: list[Element] = []
        #: Whether it was closed before its producers had come to their end.
        self._cancelled = False
        #: How often pending enqueues were cancelled; who waits compares it with what it was.
        self._cancels = 0

    def enqueue(self, elements: Sequence[Element]) -> None:
        """Append elements one by one, waiting while the queue is full.

        Raises:
            CancelledError: If the queue is closed, or pending enqueues are cancelled meanwhile.
            DeadlineExceededError: If the run's limit passes meanwhile; what is in by then stays.
        """
        place = object()
        with self._changed:
            if self._closed:
                raise CancelledError(f"{self._title} is closed.")
            cancels = self._cancels
            self._entering.append(place)
            # A full queue is as it should be: its consumers are the slower ones.
            reminder = Reminder(self._full, logging.INFO)
            try:
                for number, element in enumerate(elements):
                    while self._entering[0] is not place or len(self._elements) >= self._capacity:
                        reminder.wait(self._changed)
                        if self._cancels != cancels:
                            self._carried += elements[number:]
                            raise CancelledError(f"Enqueue operation was cancelled: {self._title} is closed.")
                        if self._closed:
                            raise CancelledError(f"{self._title} is closed.")
                    self._elements.append(element)
                    self._put_at = self._clock.monotonic()
                    self._changed.notify_all()
            finally:
                self._entering.remove(place)
                self._changed.notify_all()

    def dequeue(self, count: int, allow_fewer: bool = False) -> list[Element]:
        """Take elements, waiting until there are enough.

        Args:
            count: How many.
            allow_fewer: Whether to give what is left, at least one, when the queue is closed.

        Raises:
            OutOfRangeError: If the queue is closed and has fewer; it keeps them.
            DeadlineExceededError: If the run's limit passes meanwhile; the queue keeps what it has.
        """
        place = object()
        elements: list[Element] = []
        reminder = Reminder(lambda: self._wanted(count, len(elements)))
        with self._changed:
            self._leaving.append(place)
            try:
                while len(elements) < count:
                    if self._leaving[0] is place:
                        self._take(elements, count)
                        if len(elements) == count or (self._closed and allow_fewer and elements):
                            break
                        if self._closed:
                            self._elements.extendleft(reversed(elements))
                            raise OutOfRangeError(
                                f"{self._title} is closed and has insufficient elements (requested {count}, "
                                f"current size {len(self._elements)})"
                            )
                    reminder.wait(self._changed)
            except (KeyboardInterrupt, DeadlineExceededError):
                self._elements.extendleft(reversed(elements))
                raise
            finally:
                self._leaving.remove(place)
                self._changed.notify_all()
        return elements

    def _wanted(self, count: int, held: int) -> str:
        """Say what a dequeue waits for. Caller holds _changed."""
        before = len(self._leaving) - 1
        others = f" ({before} more wait for elements)" if before else ""
        holds = len(self._elements) + held
        wanted = f"{count} elements of {self._title}, which holds {holds}{others}"
        if self._put_at is None:
            return (
                f"{wanted}: no thread enqueues them. Most likely its queue runners were not started "
                "(tf.train.start_queue_runners, or a monitored session, does that), they have failed, or what they "
                "read first takes its time."
            )
        back = f" and keeps {self._min_after_dequeue} back (min_after_dequeue)" if self._min_after_dequeue else ""
        ago_secs = self._clock.monotonic() - self._put_at
        return (
            f"{wanted}{back}: none is enqueued; the last element came {ago_secs:.0f} s ago. Most likely its queue "
            "runners have ended without closing it, they wait for files or for another queue, or they are slower than "
            "what trains."
        )

    def _full(self) -> str:
        """Say what an enqueue waits for. Caller holds _changed."""
        space = f"space in {self._title}, which holds {len(self._elements)}"
        if self._taken_at is None:
            return (
                f"{space}: no thread has dequeued yet. Most likely training has not begun, or nothing uses this queue."
            )
        return (
            f"{space}: the last element was dequeued {self._clock.monotonic() - self._taken_at:.0f} s ago. Most likely "
            "training is slower than the input, stands still, or has ended without asking the queue runners to stop."
        )

    def _take(self, elements: list[Element], count: int) -> None:
        """Take what may be taken now. Caller holds _changed."""
        least = 0 if self._closed else self._min_after_dequeue
        while len(elements) < count and len(self._elements) > least:
            if self._shuffle:
                # The chosen one and the first change places: any element goes in constant time but for
                # the walk along the deque.
                index = int(self._rng.integers(len(self._elements)))
                self._elements[0], self._elements[index] = self._elements[index], self._elements[0]
            elements.append(self._elements.popleft())
            self._taken_at = self._clock.monotonic()
            self._changed.notify_all()

    def close(self, cancel_pending_enqueues: bool = False) -> None:
        """Refuse further elements; those inside can still be taken.

        Args:
            cancel_pending_enqueues: Whether to cancel enqueues that wait for space; else they are let in first.

        Raises:
            CancelledError: If it is closed already, unless pending enqueues are to be cancelled.
        """
        place = object()
        with self._changed:
            if cancel_pending_enqueues:
                self._cancelled = self._cancelled or not self._closed
                self._closed = True
                self._cancels += 1
                self._changed.notify_all()
                return
            cancels = self._cancels
            self._entering.append(place)
            reminder = Reminder(lambda: f"the enqueues into {self._title} that came before its close")
            try:
                while self._entering[0] is not place and self._cancels == cancels:
                    reminder.wait(self._changed)
                if self._closed:
                    raise CancelledError(f"{self._title} is already closed.")
                self._closed = True
            finally:
                self._entering.remove(place)
                self._changed.notify_all()

    def size(self) -> int:
        """Give how many elements it holds."""
        with self._changed:
            return len(self._elements)

    def is_closed(self) -> bool:
        """Say whether it takes no more elements."""
        with self._changed:
            return self._closed

    def is_drained(self) -> bool:
        """Say whether its producers came to their end and everything was taken."""
        with self._changed:
            return self._closed and not self._cancelled and not self._elements

    def resume(self) -> None:
        """Open it again if it was cancelled, with what it held and what was refused."""
        with self._changed:
            if self._cancelled:
                self._elements.extend(self._carried)
                self._carried = []
                self._closed = self._cancelled = False
                self._changed.notify_all()

    def restart(self) -> None:
        """Open it again, empty and with its random numbers from the start."""
        with self._changed:
            self._elements.clear()
            self._carried = []
            self._rng = np.random.default_rng(self._seed)
            self._closed = self._cancelled = False
            self._changed.notify_all()
