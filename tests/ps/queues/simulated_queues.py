"""Queues that tasks share, under simulated time: messages lost, doubled and late, clients that die and give up.

The pure core alone (`globalstep.ps.queues`), on one thread, from one seed; docs/design/queues.md says what must hold.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from globalstep.errors import AbortedError, OpError
from globalstep.ps.budget import Budget
from globalstep.ps.queues.queue_store import _QUEUE_BYTES, GONE_SECS, QueueCall, QueueStore
from globalstep.ps.queues.stored_queue import Attributes, Element, What

#: How long a client waits for an answer, and a PS task for a sign of life.
_RETRY_SECS, _LEASE_SECS, _SECS = 1.0, 5.0, 40.0
_CAPACITY = 4


@dataclass
class SimulatedClient:
    """A process that puts values in, or takes some; one call at a time in each of its slots."""

    name: str
    puts: bool
    numbers: dict[int, int] = field(default_factory=dict)
    taken: dict[int, int] = field(default_factory=dict)
    calls: dict[int, QueueCall] = field(default_factory=dict)
    #: How often the call of each slot was sent: what was to follow an earlier time is not done any more.
    sent: Counter[int] = field(default_factory=Counter)
    alive: bool = True
    #: Values that it was told are in, and those that it got.
    put: list[Any] = field(default_factory=list)
    got: list[Any] = field(default_factory=list)


class SimulatedQueues:
    """One run from one seed.

    Args:
        seed: Of everything that is random.
    """

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.store = QueueStore(Budget(2 * (10_000 + _QUEUE_BYTES)), random.Random(seed))
        self.queue = Attributes("q", "FIFOQueue", _CAPACITY, ("int32",), ("()",))
        self.now = 0.0
        self.names = itertools.count()
        self.values = itertools.count()
        self.loss, self.copies = rng.choice([0.0, 0.1, 0.3]), rng.choice([0.0, 0.2])
        self.deaths, self.surrender = rng.choice([0.0, 0.02]), rng.choice([0.0, 0.05])
        self.slots = rng.choice([1, 2])
        self.clients = [self._client(at % 2 == 0) for at in range(rng.choice([2, 4]))]
        self.gone: list[tuple[float, SimulatedClient]] = []
        #: (when, order, what to do)
        self._due: list[tuple[float, int, Any]] = []
        self._order = itertools.count()
        self.tried: Counter[Any] = Counter()

    def _client(self, puts: bool) -> SimulatedClient:
        return SimulatedClient(f"client-{next(self.names)}", puts)

    def _at(self, secs: float, action: Any) -> None:
        heapq.heappush(self._due, (self.now + secs, next(self._order), action))

    def run(self) -> str:
        """Run it; gives what is wrong, "" for nothing."""
        for client in self.clients:
            for slot in range(self.slots):
                self._begin(client, slot)
        while self._due:
            self.now, _, action = heapq.heappop(self._due)
            action()
            wrong = self._unsound()
            if wrong:
                return wrong
        return self._wrong_at_the_end()

    # ---- Clients ----------------------------------------------------------------------------

    def _begin(self, client: SimulatedClient, slot: int) -> None:
        """Make the next call in a slot."""
        if not client.alive or self.now > _SECS:
            return
        client.numbers[slot] = client.numbers.get(slot, 0) + 1
        who: dict[str, Any] = {"slot": slot, "number": client.numbers[slot], "taken": client.taken.get(slot, 0)}
        count = self.rng.choice([1, 1, 2, 3])
        if client.puts:
            elements = [Element((client.name, next(self.values)), 10) for _ in range(count)]
            self.tried.update(element.value for element in elements)
            call = QueueCall(self.queue, What.ENQUEUE, client.name, elements=elements, total=count, **who)
        else:
            call = QueueCall(self.queue, What.DEQUEUE, client.name, count=count, **who)
        client.calls[slot] = call
        self._send(client, call)

    def _send_later(self, secs: float, client: SimulatedClient, call: QueueCall) -> None:
        times = client.sent[call.slot]
        self._at(secs, lambda: times == client.sent[call.slot] and self._send(client, call))

    def _send(self, client: SimulatedClient, call: QueueCall) -> None:
        """Send a call, perhaps twice or never, and come back to it after a while."""
        if not client.alive or client.calls.get(call.slot) is not call or self.now > _SECS:
            return
        client.sent[call.slot] += 1
        if self.rng.random() < self.deaths:
            client.alive = False
            self.gone.append((self.now, client))
            successor = self._client(client.puts)
            self.clients.append(successor)
            for slot in range(self.slots):
                self._at(self.rng.random(), lambda slot=slot: self._begin(successor, slot))
        if self.rng.random() < self.surrender:
            client.calls.pop(call.slot)
            self._at(0.1, lambda: self._begin(client, call.slot))
        sent = replace(call, elements=()) if client.puts and self.rng.random() < 0.2 else call
        for copy in range(1 + (self.rng.random() < self.copies)):
            if self.rng.random() >= self.loss:
                late = self.rng.choice([0.0, 3.0, 20.0]) if copy else 0.0
                self._at(late + self.rng.random() * 0.1, lambda: self._arrive(client, sent, call))
        self._send_later(_RETRY_SECS, client, call)

    def _arrive(self, client: SimulatedClient, sent: QueueCall, call: QueueCall) -> None:
        """Have the PS task carry a message out, and send its answer."""
        alive = {one.name for one in self.clients if one.alive}
        alive |= {one.name for at, one in self.gone if self.now - at < _LEASE_SECS}
        self.store.drop_gone(alive, self.now)
        try:
            answer: Any = self.store.call(sent, self.now)
            # A message has the values alone.
            answer = replace(answer, elements=[Element(element.value, 0) for element in answer.elements])
        except OpError as error:
            answer = error
        if self.rng.random() >= self.loss:
            self._at(self.rng.random() * 0.1, lambda: self._answered(client, call, answer))

    def _answered(self, client: SimulatedClient, call: QueueCall, answer: Any) -> None:
        """Take an answer in."""
        if not client.alive or client.calls.get(call.slot) is not call:
            return
        if isinstance(answer, AbortedError):
            return  # to a copy that came late
        assert not isinstance(answer, Exception), answer
        if answer.waiting:
            self._send_later(0.2, client, call)
            return
        client.calls.pop(call.slot)
        client.taken[call.slot] = call.number
        if client.puts:
            client.put += [element.value for element in call.elements]
        else:
            client.got += [element.value for element in answer.elements]
        self._at(self.rng.random() * 0.3, lambda: self._begin(client, call.slot))

    # ---- What must hold -----------------------------------------------------------------------

    def _kept(self) -> list[Any]:
        return [
            element.value
            for client in self.store._clients.values()
            for call in client.slots.values()
            for element in call.kept
        ]

    def _unsound(self) -> str:
        """Say what of the state cannot be."""
        inside = [element for queue in self.store.queues.values() for element in queue.elements]
        held = 10 * (len(inside) + len(self._kept())) + _QUEUE_BYTES * len(self.store.queues)
        if held != self.store._budget.used_bytes:
            return f"{self.now:.2f}: {self.store._budget.used_bytes} bytes are counted, and {held} are held"
        most = _CAPACITY + 3 * self.slots * len(self.clients)
        return f"{self.now:.2f}: {len(inside)} elements are inside" if len(inside) > most else ""

    def _wrong_at_the_end(self) -> str:
        """Say which value was lost, or came twice."""
        self.store.drop_gone([one.name for one in self.clients if one.alive], self.now + 2 * (_LEASE_SECS + GONE_SECS))
        got: Counter[Any] = Counter(value for client in self.clients for value in client.got)
        again = {value for _, client in self.gone for value in client.got}
        left = {element.value for queue in self.store.queues.values() for element in queue.elements}
        for client in self.clients:
            for value in client.put:
                if not got[value] and value not in left and value not in self._kept():
                    return f"{value} was put in by {client.name}, and is lost"
        for value, count in got.items():
            if count > 1 and value not in again:
                return f"{value} was taken {count} times"
            if value in left and value not in again:
                return f"{value} was taken, and is in the queue"
            if value not in self.tried:
                return f"{value} was never put in"
        takers = [client for client in self.clients if not client.puts]
        if len(takers) == self.slots == 1:
            order = [value for value in takers[0].got if value[0] == takers[0].got[0][0]]
            if order != sorted(order):
                return f"elements came in another order than they were put in: {order[:20]}"
        return ""


def simulate(seed: int) -> str:
    """Run one seed; gives what is wrong, "" for nothing."""
    return SimulatedQueues(seed).run()
