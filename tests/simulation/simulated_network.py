"""A simulated network: transports whose messages are late, lost, doubled and overtake each other.

A `SimulatedTransport` is a client process's way to one PS task (globalstep.wire.transports.Transport). As with a
stream or a socket, its data-plane calls share a connection, which breaks as a whole; what was sent before may still
arrive afterwards, and so may a second copy of it. That is more than TCP would do, and all of it is what
push-protocol.md says is harmless.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from greenlet import getcurrent, greenlet
from simulated_time import Hub, Process

from globalstep.errors import OpError, UnavailableError, error_from_code
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.members.presence import MAX_LEASE_SECS
from globalstep.wire.frames import Assembler, frames_of
from globalstep.wire.message import Message

__all__ = ["LATER", "PARKED", "Answer", "Call", "Connection", "Network", "SimulatedTransport", "Weather"]

_LIMIT_BYTES = 1 << 20
#: The reply, or the error, and the bytes of its tensors.
Answer = tuple[Any, pb.Error | None, Sequence[memoryview]]
#: What a task gives for a call that it answers later, by Network.answer.
PARKED: Answer = (None, None, ())
#: And for one that a thread of it carries out, which then calls Network.handled.
LATER: Answer = (None, None, [])


@dataclass(frozen=True)
class Weather:
    """What the network does to messages; probabilities are for each message.

    Attributes:
        delay_secs: Of most messages, on average.
        lost: Probability that a message is lost.
        doubled: Probability that a request arrives twice.
        late: Probability that a message is late, by up to `late_secs`.
        late_secs: May be longer than any deadline.
        deadline_secs: After which a data-plane call is broken off.
        notice_secs: How long it takes, at most, until a broken connection is noticed.
        serialize: Whether messages cross as bytes, in frames as on an Exchange stream.
        ordered: Whether the requests of a connection arrive in order, as over TCP.
    """

    delay_secs: float = 0.001
    lost: float = 0.0
    doubled: float = 0.0
    late: float = 0.0
    late_secs: float = 0.0
    deadline_secs: float = 60.0
    notice_secs: float = 0.05
    serialize: bool = False
    ordered: bool = True


@dataclass(eq=False)
class Connection:
    """What the data-plane calls of a transport share."""

    calls: list[Call] = field(default_factory=list)
    broken: OpError | None = None
    #: No request arrives before the one that was sent before it, where that is asked for.
    last_arrival: float = 0.0


class Call:
    """A call under way; see transports.Ticket and transports.Pending."""

    __slots__ = ("began_in", "client", "connection", "data", "error", "method", "request", "shard", "value", "waiter")

    def __init__(
        self, client: Process, shard: int, connection: Connection | None, method: str, request: Any, data: bytes
    ) -> None:
        self.client = client
        self.shard = shard
        #: None for a unary call.
        self.connection = connection
        self.method = method
        self.request = request
        self.data = data
        #: The task's incarnation when it began to carry it out; a task with threads may begin another one meanwhile.
        self.began_in = 0
        self.value: Any = None
        self.error: OpError | None = None
        self.waiter: greenlet | None = None

    @property
    def settled(self) -> bool:
        """Whether there is a reply, or an error instead of it."""
        return self.value is not None or self.error is not None

    def settle(self, value: Any, error: OpError | None) -> None:
        """Take the first reply; others come too late."""
        if self.settled:
            return
        self.value, self.error = value, error
        if self.waiter is not None:
            self.client.hub.after(0.0, self.client.wake, self.waiter)

    def result(self) -> Any:
        """See transports.Ticket."""
        if not self.settled:
            self.waiter = getcurrent()
            while not self.settled:
                self.client.park()
        if not self.client.alive:
            self.client.park()
        if self.error is not None:
            raise self.error
        return self.value


class Task(Protocol):
    """A PS task, as the network sees it."""

    #: Whether its process runs.
    up: bool
    process: Process

    def handle(self, call: Call, data: memoryview) -> Answer | None:
        """Carry out a call; gives the reply or the error, and the bytes of its tensors; None if it died over it."""
        ...


class Network:
    """Carries calls between client processes and PS tasks.

    Args:
        hub: Time.
        rng: Decides what becomes of each message.
        weather: How likely it is that something does.

    Attributes:
        tasks: The PS tasks, in order.
        calm: While set, messages are neither lost nor late nor doubled.
        cut: (client process, shard) -> until when no message passes between them.
        watchers: Called with (where, process, method) at each point where a fault may strike: "send" before a client
            sends, "arrive" before a task handles a request, "handled" after it did; "append" and "fsync", with the
            method "log", when a record of its log has been written, and when it is on the disk.
        lasting_leases: Whether one sign of life is to last, instead of one every two seconds.
        counts: How often each kind of trouble happened.
    """

    def __init__(self, hub: Hub, rng: random.Random, weather: Weather) -> None:
        self.hub = hub
        self.weather = weather
        self.tasks: list[Task] = []
        self.calm = False
        self.cut: dict[tuple[Process, int], float] = {}
        self.lasting_leases = False
        self.watchers: list[Callable[[str, Process, str], None]] = []
        self.counts = {"messages": 0, "lost": 0, "doubled": 0, "late": 0, "broken": 0}
        self._random = self.draw = rng.random

    def send(self, call: Call, deadline_secs: float) -> None:
        """Put a request on its way, once or twice."""
        hub, weather = self.hub, self.weather
        hub.after(deadline_secs, self._expire, call, deadline_secs)
        self.counts["messages"] += 1
        task = self.tasks[call.shard]
        process = task.process if task.up else None
        arrival = self.arrival()
        if arrival is None:
            self._notice(call, "the request was lost")
        else:
            if weather.ordered and call.connection is not None:
                arrival = call.connection.last_arrival = max(arrival, call.connection.last_arrival)
            hub.at(arrival, self._arrive, call, process)
        if not self.calm and self._random() < weather.doubled:
            copy = self.arrival()
            if copy is not None:
                self.counts["doubled"] += 1
                hub.at(copy, self._arrive, call, process)

    def arrival(self) -> float | None:
        """When a message that is sent now arrives; None if it never does."""
        weather, draw = self.weather, self._random
        secs = weather.delay_secs * (0.5 + draw())
        if not self.calm:
            fate = draw()
            if fate < weather.lost:
                self.counts["lost"] += 1
                return None
            if fate < weather.lost + weather.late:
                self.counts["late"] += 1
                secs += weather.late_secs * draw()
        return self.hub.now + secs

    def _arrive(self, call: Call, process: Process | None) -> None:
        """Bring a request to its task.

        Args:
            call: The request's.
            process: That its connection leads to: it reaches no later one. None for a request that waited for a
                connection, which it does until its deadline.
        """
        task = self.tasks[call.shard]
        gone = process is not task.process if process is not None else call.settled
        if gone or not task.up:
            self._notice(call, "nobody listens there")
            return
        if self._is_cut(call):
            self._notice(call, "the link is cut")
            return
        if self.hub.now < task.process.stopped_until:
            self.hub.at(task.process.stopped_until, self._arrive, call, process)
            return
        for watch in self.watchers:
            watch("arrive", task.process, call.method)
        if not task.process.alive or self.hub.now < task.process.stopped_until:
            self._arrive(call, process)
            return
        answer = task.handle(call, memoryview(bytearray(call.data)))
        if answer is not LATER:
            self.handled(call, task, answer)

    def handled(self, call: Call, task: Task, answer: Answer | None) -> None:
        """Bring what came of a call to its client, unless it is parked."""
        if answer is None:
            self._notice(call, "the task died")
        elif answer is PARKED:
            for watch in self.watchers:
                watch("handled", task.process, call.method)
        else:
            self.answer(call, task, answer)

    def answer(self, call: Call, task: Task, answer: Answer) -> None:
        """Bring a task's answer to its client."""
        reply = self._pack(call, *answer)
        for watch in self.watchers:
            watch("handled", task.process, call.method)
        arrival = self.arrival()
        if not task.up and self._random() < 0.5:
            arrival = None  # it died before the reply had left
        if arrival is None:
            self._notice(call, "the reply was lost")
        else:
            self.hub.at(arrival, self._reply, call, *reply)

    def _pack(
        self, call: Call, value: Any, error: pb.Error | None, pieces: Sequence[memoryview]
    ) -> tuple[Any, OpError | None]:
        """Give what the client will get: a copy of the task's bytes as they are now."""
        if error is not None:
            return None, error_from_code(error.code, error.message, error.type)
        if call.connection is None:
            return (type(value).FromString(value.SerializeToString()) if self.weather.serialize else value), None
        if self.weather.serialize:
            return _through_frames(reply=value, pieces=pieces), None
        return Message(0, None, value, memoryview(_joined(pieces))), None

    def _reply(self, call: Call, value: Any, error: OpError | None) -> None:
        if self._is_cut(call):
            self._notice(call, "the link is cut")
        elif call.connection is None or call.connection.broken is None:
            call.settle(value, error)

    def _is_cut(self, call: Call) -> bool:
        return self.cut.get((call.client, call.shard), 0.0) > self.hub.now

    def _notice(self, call: Call, why: str) -> None:
        """Let the client notice, now or later, that something went wrong."""
        if not call.settled:
            self.hub.after(self.weather.notice_secs * self._random(), self._fail, call, why)

    def _expire(self, call: Call, secs: float) -> None:
        self._fail(call, f"no answer for {secs:g} s")

    def _fail(self, call: Call, why: str) -> None:
        """Break a call off, and with it the connection that it is on."""
        if call.settled:
            return
        error = UnavailableError(f"{call.method} to task {call.shard}: {why}")
        connection = call.connection
        if connection is None:
            call.settle(None, error)
            return
        self.counts["broken"] += 1
        connection.broken = error
        for other in connection.calls:
            other.settle(None, error)
        connection.calls.clear()


class SimulatedTransport:
    """A client process's transport to one PS task; see globalstep.wire.transports.Transport.

    Args:
        network: Carries the calls.
        client: Whose transport it is.
        shard: Number of the task.
        sending: Told of every data-plane request before it is sent.
    """

    def __init__(
        self, network: Network, client: Process, shard: int, sending: Callable[[str, Any], None] | None = None
    ) -> None:
        self.label = f"/job:ps/task:{shard}"
        self.address = f"simulated:{shard}"
        self._network = network
        self._client = client
        self._shard = shard
        self._sending = sending
        self._connection = Connection()

    def send(self, request: pb.Request, pieces: Sequence[memoryview]) -> Call:
        """See Transport."""
        method = request.WhichOneof("kind") or ""
        self._before(method)
        if self._sending is not None:
            self._sending(method, getattr(request, method))
        if self._connection.broken is not None:
            self._connection = Connection()
        if self._network.weather.serialize:
            message = _through_frames(request=request, pieces=pieces)
            sent, data = message.request, bytes(message.data)
        else:
            sent, data = request, _joined(pieces)
        call = Call(self._client, self._shard, self._connection, method, sent, data)
        self._connection.calls = [other for other in self._connection.calls if not other.settled]
        self._connection.calls.append(call)
        self._network.send(call, self._network.weather.deadline_secs)
        return call

    def tell(self, request: pb.Request) -> None:
        """See Transport."""
        self.send(request, ())

    def unary(self, method: str, request: Any, timeout_secs: float) -> Call:
        """See Transport."""
        self._before(method)
        if method == "Heartbeat" and self._network.lasting_leases:
            request.lease_secs = MAX_LEASE_SECS
        if self._network.weather.serialize:
            request = type(request).FromString(request.SerializeToString())
        call = Call(self._client, self._shard, None, method, request, b"")
        self._network.send(call, timeout_secs)
        return call

    def _before(self, method: str) -> None:
        if not self._client.alive:
            self._client.park()
        for watch in self._network.watchers:
            watch("send", self._client, method)

    def buffer(self, nbytes: int) -> None:
        """See Transport; there is none."""

    def expire(self) -> None:
        """See Transport; the network does it."""

    def close(self) -> None:
        """See Transport. What is under way may still arrive."""


def _joined(pieces: Sequence[memoryview]) -> bytes:
    data = bytearray()
    for piece in pieces:
        data += piece
        data += bytes(-len(data) % 8)
    return bytes(data)


def _through_frames(**parts: Any) -> Message:
    assembler = Assembler(_LIMIT_BYTES)
    message = None
    for raw in frames_of(1, **parts):
        message = assembler.add(raw)
    assert message is not None
    return message
