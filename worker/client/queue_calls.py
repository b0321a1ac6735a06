"""A client's calls to queues that live on PS tasks: each counts once, and waits as long as it must.

docs/design/queues.md is the law: calls that are made at the same time have slots, and each slot counts its calls.

Layer: worker. Threads: a QueueCalls is thread-safe; a call runs, and waits, in its caller's.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from globalstep.errors import AbortedError, CancelledError, InvalidArgumentError, JobDoneError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import Clock
from globalstep.runtime.waiting import SAY_SECS, secs_to_wait
from globalstep.worker.client.calls import ControlCalls
from globalstep.worker.client.heartbeat import Heartbeat
from globalstep.worker.client.joined_run import JoinedRun

_log = logging.getLogger("globalstep")

#: Bytes of an element, and of the elements of one message.
MOST_ELEMENT_BYTES = 60 << 20
_MESSAGE_BYTES = 16 << 20
#: Elements that wait for space go along each time if they are no more than this.
_SMALL_BYTES = 64 << 10
#: How long a call may wait within the PS task, and how long the client pauses where it may not.
_WAIT_MILLIS = 500
_FIRST_PAUSE_SECS = 0.002
_LONGEST_PAUSE_SECS = 0.05
#: A call that waits is given up so long after the end of the job.
_DONE_SECS = 2.0


@dataclass(slots=True)
class _Slot:
    """One of the calls that a client makes at a time."""

    index: int
    number: int = 0
    #: The last number whose answer is here.
    taken: int = 0


class _Task:
    """The calls to one PS task."""

    def __init__(self) -> None:
        #: As it says, and a heap of those of its slots that no call has.
        self.process = ""
        self.free: list[tuple[int, _Slot]] = []
        self.slots = 0


class QueueCalls:
    """Calls to queues on the PS tasks of a client's cluster.

    Args:
        joined: The cluster, as the client knows it.
        calls: Makes calls to the PS tasks.
        heartbeat: Hears how the run stands.
        clock: Time.
        task: Name of the client's task, such as "/job:ps/task:0"; "" where not known.
        shared: Whether other tasks see the queues; not where the PS is the session's own.
        while_waiting: Called now and then while a dequeue waits; what it raises ends that.

    Attributes:
        task: As given.
        shared: As given.
        while_waiting: As given.
    """

    def __init__(
        self,
        joined: JoinedRun,
        calls: ControlCalls,
        heartbeat: Heartbeat,
        clock: Clock,
        task: str = "",
        shared: bool = True,
        while_waiting: Callable[[], None] | None = None,
    ) -> None:
        self.task = task
        self.shared = shared
        self.while_waiting = while_waiting or _nothing
        self._joined = joined
        self._calls = calls
        self._heartbeat = heartbeat
        self._clock = clock
        # Guards what follows; a leaf.
        self._lock = threading.Lock()
        self._tasks: dict[int, _Task] = {}
        self._closed = False

    @property
    def shards(self) -> int:
        """The number of PS tasks."""
        return len(self._joined.transports)

    def close(self) -> None:
        """Have calls that wait give up: their client leaves."""
        with self._lock:
            self._closed = True

    def enqueue(self, shard: int, queue: pb.QueueAttributes, elements: Sequence[bytes]) -> None:
        """Put elements in, waiting while the queue is full.

        Args:
            shard: Index of the queue's PS task.
            queue: What it is made with.
            elements: As encode_element writes them.

        Raises:
            CancelledError: If the queue is closed, or the client is.
            InvalidArgumentError: If the queue was made otherwise, or an element is too large.
            JobDoneError: If it waits, and the job is done.
            AbortedError: If the PS task has lost its queues since the last call.
            DeadlineExceededError: If the run's limit passes while it waits; an enqueue may or may not have counted.
        """
        largest = max(map(len, elements), default=0)
        if largest > MOST_ELEMENT_BYTES:
            raise InvalidArgumentError(
                f"An element of {largest:,} bytes is too large for queue {queue.name!r} on a PS task: "
                f"{MOST_ELEMENT_BYTES:,} are the most. Put in smaller ones."
            )
        for some in _messages(elements):
            request = pb.QueueRequest(queue=queue, what=pb.QUEUE_ENQUEUE, total=len(some))
            self._carry_out(shard, request, some)

    def dequeue(self, shard: int, queue: pb.QueueAttributes, count: int, allow_fewer: bool) -> Sequence[bytes]:
        """Take elements, waiting until there are enough.

        Args:
            shard: Index of the queue's PS task.
            queue: What it is made with.
            count: How many.
            allow_fewer: Whether to give what is left, at least one, when the queue is closed.

        Raises:
            OutOfRangeError: If the queue is closed and has fewer; it keeps them.
            CancelledError: If the client is closed.
            InvalidArgumentError, JobDoneError, AbortedError: As `enqueue`.
        """
        if count < 0:
            raise InvalidArgumentError(f"Queue {queue.name!r}: {count} elements cannot be dequeued.")
        request = pb.QueueRequest(queue=queue, what=pb.QUEUE_DEQUEUE, count=count, allow_fewer=allow_fewer)
        self.while_waiting()
        return self._carry_out(shard, request).elements

    def close_queue(self, shard: int, queue: pb.QueueAttributes, cancel: bool) -> None:
        """Close a queue: once those that wait are in, or at once.

        Raises:
            CancelledError: If it is closed already, unless pending enqueues are to be cancelled.
            InvalidArgumentError, JobDoneError, AbortedError: As `enqueue`.
        """
        self._carry_out(shard, pb.QueueRequest(queue=queue, what=pb.QUEUE_CLOSE, cancel=cancel))

    def look(self, shard: int, queue: pb.QueueAttributes) -> tuple[int, bool]:
        """Give how many elements a queue holds, and whether it is closed; raises as `enqueue`."""
        reply = self._ask(shard, pb.QueueRequest(queue=queue, what=pb.QUEUE_LOOK))
        return reply.size, reply.closed

    def _carry_out(self, shard: int, request: pb.QueueRequest, elements: Sequence[bytes] = ()) -> pb.QueueReply:
        """Make a call, and ask again as long as it waits."""
        with self._slot(shard) as slot:
            request.client = self._joined.client
            slot.number += 1
            request.slot, request.number, request.taken = slot.index, slot.number, slot.taken
            small = sum(map(len, elements)) <= _SMALL_BYTES
            request.elements.extend(elements)
            wait = _Wait(self, request, self._clock)
            while True:
                began = self._clock.monotonic()
                reply = self._ask(shard, request)
                if not reply.waiting:
                    slot.taken = slot.number
                    return reply
                if not small:
                    del request.elements[:]
                if reply.space and not small:
                    request.elements.extend(elements)
                    continue
                wait.look(reply, self._clock.monotonic() - began)
                request.wait_millis = wait.millis(reply)

    def _ask(self, shard: int, request: pb.QueueRequest) -> pb.QueueReply:
        task = self._task(shard)
        request.process = task.process
        try:
            reply: pb.QueueReply = self._calls.one("Queue", shard, request)
        except AbortedError:
            # Perhaps its queues are lost with its process: that is said once.
            task.process = ""
            raise
        task.process = reply.process
        return reply

    def _task(self, shard: int) -> _Task:
        with self._lock:
            return self._tasks.setdefault(shard, _Task())

    @contextlib.contextmanager
    def _slot(self, shard: int) -> Iterator[_Slot]:
        """Have a slot for a call meanwhile: the lowest that is free."""
        task = self._task(shard)
        with self._lock:
            if not task.free:
                heapq.heappush(task.free, (task.slots, _Slot(task.slots)))
                task.slots += 1
            index, slot = heapq.heappop(task.free)
        try:
            yield slot
        finally:
            with self._lock:
                heapq.heappush(task.free, (index, slot))

    def check(self, done_for_secs: float, what: str) -> None:
        """Raise why a call is not to wait any longer, if there is a reason.

        Args:
            done_for_secs: How long the call has waited since the end of the job was seen.
            what: The call, for messages.
        """
        with self._lock:
            closed = self._closed
        if closed:
            raise CancelledError(f"{what} was cancelled: its session was closed.")
        if self._joined.shutdown.asked:
            raise CancelledError(f"{what} was cancelled: this process was asked to end.")
        if done_for_secs >= _DONE_SECS:
            raise JobDoneError(f"{what} would wait for ever: the job was declared done.", waited=True)

    @property
    def job_done(self) -> bool:
        """Whether the job was declared done, as last heard."""
        return self._heartbeat.job_done


class _Wait:
    """One call that waits: pauses, looks whether there is still a reason to, and says now and then what for."""

    def __init__(self, calls: QueueCalls, request: pb.QueueRequest, clock: Clock) -> None:
        self._calls = calls
        self._takes = request.what == pb.QUEUE_DEQUEUE
        self._wanted = request.count if self._takes else request.total
        self._title = f"{request.queue.kind} '{request.queue.name}'"
        self._clock = clock
        self._since = self._said = clock.monotonic()
        self._done_since: float | None = None
        self._pause = _FIRST_PAUSE_SECS

    def millis(self, reply: pb.QueueReply) -> int:
        """Give how long the PS task may wait with its next answer.

        Raises:
            DeadlineExceededError: If the run's limit has passed.
        """
        wanted = f"{self._wanted} elements of" if self._takes else "space in"
        secs = secs_to_wait(
            _WAIT_MILLIS / 1000,
            lambda: f"{wanted} {self._title} on a PS task, which holds {reply.size + reply.entered}.",
        )
        return max(1, int(secs * 1000))

    def look(self, reply: pb.QueueReply, secs: float) -> None:
        """Look once more.

        Args:
            reply: What the PS task said last.
            secs: How long it took to say so: if it has not waited itself, this does.
        """
        now = self._clock.monotonic()
        if self._calls.job_done and self._done_since is None:
            self._done_since = now
        verb = "Dequeue from" if self._takes else "Enqueue into"
        self._calls.check(0.0 if self._done_since is None else now - self._done_since, f"{verb} {self._title}")
        if self._takes:
            self._calls.while_waiting()
        if now - self._said >= SAY_SECS:
            self._said = now
            self._say(reply, now - self._since)
        if secs < _LONGEST_PAUSE_SECS:
            self._clock.sleep(self._pause)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECS)

    def _say(self, reply: pb.QueueReply, secs: float) -> None:
        """Say what is waited for: a full queue is as it should be, its consumers are the slower ones."""
        if self._takes:
            _log.warning(
                "Waiting for %.0f s now for %d elements of %s on a PS task, which holds %d. Most likely those that put "
                "them in have not come so far, have ended without closing the queue, or are slower.",
                secs,
                self._wanted,
                self._title,
                reply.size + reply.entered,
            )
        else:
            _log.info(
                "Waiting for %.0f s now for space in %s on a PS task, which holds %d. Most likely those that take from "
                "it are slower, stand still, or have ended.",
                secs,
                self._title,
                reply.size,
            )


def _messages(elements: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Give elements in portions that one message may have."""
    first, nbytes = 0, 0
    for at, element in enumerate(elements):
        if nbytes and nbytes + len(element) > _MESSAGE_BYTES:
            yield elements[first:at]
            first, nbytes = at, 0
        nbytes += len(element)
    yield elements[first:]


def _nothing() -> None:
    """Look at nothing while a call waits."""
