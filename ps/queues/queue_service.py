"""Serves the queues that tasks share: messages in, messages out, and calls that wait a little.

Layer: ps. Threads: a QueueService is thread-safe; a call that waits holds its caller's thread for half a second at
most, and only so many do at a time.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection
from dataclasses import replace

from google.protobuf.message import DecodeError

from globalstep.errors import AbortedError, InvalidArgumentError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.budget import Budget
from globalstep.ps.queues.queue_store import KINDS, QueueAnswer, QueueCall, QueueStore
from globalstep.ps.queues.stored_queue import Attributes, Element, What
from globalstep.runtime.clock import Clock
from globalstep.wire.names import check_queue_name, shown
from globalstep.wire.queue_elements import check_dtype, check_element

#: Calls that wait within the task at a time, and how long each does.
MOST_PARKED = 32
PARKED_SECS = 0.5
#: How often clients that are gone are looked for.
_LOOK_SECS = 1.0
_MOST_TOLD = 100
_MOST_COMPONENTS = 64
_MOST_SHAPE = 256
#: What an element takes besides its bytes.
_BESIDES_BYTES = 256
_WHAT = {
    pb.QUEUE_ENQUEUE: What.ENQUEUE,
    pb.QUEUE_DEQUEUE: What.DEQUEUE,
    pb.QUEUE_CLOSE: What.CLOSE,
    pb.QUEUE_LOOK: What.LOOK,
}


class QueueService:
    """The queues of a PS task, for its control plane.

    Args:
        process: Identity of this process: queues live as long as it.
        alive: Gives the clients that have a live lease.
        clock: Time.
        budget: From which the memory of queues and elements is claimed.
        rng: Makes the choices of queues that have no seed.
    """

    def __init__(
        self,
        process: str,
        alive: Callable[[], Collection[str]],
        clock: Clock,
        budget: Budget,
        rng: random.Random | None = None,
    ) -> None:
        self._process = process
        self._alive = alive
        self._clock = clock
        # Guards what follows; a leaf. Notified when a call that waits may be able to go on.
        self._changed = threading.Condition()
        self._store = QueueStore(budget, rng or random.Random())
        self._parked = 0
        self._looked = clock.monotonic()
        self._run = ""

    def call(self, request: pb.QueueRequest, limited: bool = False) -> pb.QueueReply:
        """Carry out a call, or say that it waits.

        Args:
            request: The call.
            limited: See Account.

        Raises:
            OpError: What is wrong with it; nothing was changed.
            AbortedError: If the client used queues of a process that was here before.
        """
        if request.process and request.process != self._process:
            raise AbortedError(
                f"The PS task that had queue {request.queue.name!r} was started again: what was in its queues is lost. "
                "The next call makes the queue anew."
            )
        call = _decoded(request, limited)
        self._drop_gone()
        until = self._clock.monotonic() + min(request.wait_millis / 1000, PARKED_SECS)
        with self._changed:
            answer = self._carry_out(call)
            if answer.waiting and self._parked < MOST_PARKED:
                self._parked += 1
                try:
                    while answer.waiting and not answer.space:
                        left = until - self._clock.monotonic()
                        if left <= 0:
                            break
                        self._changed.wait(left)
                        answer = self._carry_out(call)
                finally:
                    self._parked -= 1
        return pb.QueueReply(
            waiting=answer.waiting,
            space=answer.space,
            entered=answer.entered,
            elements=[element.value for element in answer.elements],
            size=answer.size,
            closed=answer.closed,
            process=self._process,
        )

    def _carry_out(self, call: QueueCall) -> QueueAnswer:
        """Carry it out once. Caller holds _changed."""
        before = self._store.changes
        try:
            return self._store.call(call, self._clock.monotonic())
        finally:
            if self._store.changes != before:
                self._changed.notify_all()

    def _drop_gone(self) -> None:
        """Look now and then which clients are gone."""
        now = self._clock.monotonic()
        with self._changed:
            due = now - self._looked >= _LOOK_SECS
            if due:
                self._looked = now
        if due:
            alive = self._alive()
            with self._changed:
                self._store.drop_gone(alive, now)
                self._changed.notify_all()

    def left(self, client: str, finished: bool) -> None:
        """Take note that a client has left: in good order, or before its work was done."""
        with self._changed:
            self._store.left(client, finished)
            self._changed.notify_all()

    def begin(self, run: str) -> None:
        """Take note which run the task is of, by its id: the queues of another one are dropped."""
        with self._changed:
            if self._run and run != self._run:
                self._store.clear()
                self._changed.notify_all()
            self._run = run

    def infos(self) -> list[pb.QueueInfo]:
        """Say what queues there are."""
        with self._changed:
            return [
                pb.QueueInfo(
                    name=name,
                    kind=queue.attributes.kind,
                    size=len(queue.elements),
                    capacity=queue.attributes.capacity,
                    bytes=queue.nbytes,
                    closed=queue.closed,
                    entering=len(queue.entering),
                    leaving=len(queue.leaving),
                    kept=queue.kept,
                )
                for name, queue in sorted(self._store.queues.items())[:_MOST_TOLD]
            ]


def _decoded(request: pb.QueueRequest, limited: bool) -> QueueCall:
    """Read a request.

    Raises:
        InvalidArgumentError: If it is none.
    """
    queue, what = request.queue, _WHAT.get(request.what)
    if what is None:
        raise InvalidArgumentError("A call to a queue must enqueue, dequeue, close or look.")
    check_queue_name(queue.name)
    attributes = Attributes(
        queue.name,
        queue.kind,
        queue.capacity,
        tuple(queue.dtypes),
        tuple(queue.shapes),
        queue.min_after_dequeue,
        queue.seed if queue.HasField("seed") else None,
    )
    if queue.kind not in KINDS:
        raise InvalidArgumentError(f"{shown(queue.kind)} is no kind of queue; {', '.join(KINDS)} are.")
    if not 0 < len(attributes.dtypes) <= _MOST_COMPONENTS or len(attributes.shapes) != len(attributes.dtypes):
        raise InvalidArgumentError(
            f"Queue {queue.name!r} has {len(attributes.dtypes)} dtypes and {len(attributes.shapes)} shapes; as many of "
            f"both are needed, up to {_MOST_COMPONENTS}."
        )
    if attributes.min_after_dequeue < 0:
        raise InvalidArgumentError(f"Queue {queue.name!r}: min_after_dequeue {queue.min_after_dequeue} must be >= 0")
    for dtype in attributes.dtypes:
        check_dtype(dtype)
    if max(map(len, attributes.shapes)) > _MOST_SHAPE:
        raise InvalidArgumentError(f"Queue {queue.name!r} has a shape of more than {_MOST_SHAPE} characters.")
    call = QueueCall(
        attributes,
        what,
        request.client,
        request.slot,
        request.number,
        request.taken,
        (),
        request.total,
        request.count,
        request.allow_fewer,
        request.cancel,
        limited,
    )
    if what is not What.ENQUEUE:
        return call
    elements = []
    for raw in request.elements:
        try:
            check_element(raw, attributes.dtypes)
        except (DecodeError, InvalidArgumentError) as error:
            raise InvalidArgumentError(f"Queue {queue.name!r}: not one of its elements: {error}") from None
        elements.append(Element(raw, len(raw) + _BESIDES_BYTES))
    return replace(call, elements=elements)
