"""The sequencer's part of a run's journal: every decision is written down in memory until the chief has stored it.

Compact and bounded: 44 bytes a record, and no more than `limit_records` of them. What has to go before anybody has
stored it leaves a gap in the numbers, so that it is never taken for nothing.

Layer: ps. Single thread: the caller's; `ps/ledger/ledger.py` writes and `refusal` reads under
    the shard's lock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from globalstep.files.journal_records import NO_STEP, RECORD, RECORD_DTYPE, EventKind, Fewer, first_after
from globalstep.ps.ledger.ledger import EntryKind, Ledger
from globalstep.ps.ledger.push_table import MAX_STALENESS
from globalstep.wire.declarations import Increment, Outcome, OutcomeKind, PushId

#: 176 MB, an hour of a thousand pushes a second.
LIMIT_RECORDS = 4 << 20
#: So many of the oldest go at once where there are too many.
_DROPPED_RECORDS = 1 << 14
_LIMIT_CLIENTS = 1 << 16
_MAX_PART_RECORDS = 1 << 14

_NOT_ACCEPTED = {
    OutcomeKind.REFUSED_DONE: EventKind.REFUSED_DONE,
    OutcomeKind.DROPPED_STALE: EventKind.DROPPED_STALE,
    OutcomeKind.DROPPED_NAN: EventKind.DROPPED_NAN,
    OutcomeKind.STOPPED_NAN: EventKind.DROPPED_NAN,
    OutcomeKind.ABANDONED: EventKind.ABANDONED,
    OutcomeKind.LATE: EventKind.LATE,
}


@dataclass(frozen=True, slots=True)
class JournalPart:
    """Some records, and what is needed to read them."""

    life: str
    #: Position of the first of them.
    first: int
    #: Position after the last that there is; more than these may be.
    end: int
    records: bytes
    #: (number, client id, task) of clients that the reader does not know.
    clients: Sequence[tuple[int, str, str]]
    #: Names of steps; a record's `step` is a place in it.
    steps: Sequence[str]
    #: Where the incarnation began.
    begin_index: int
    begin_steps: Mapping[str, int]
    #: The incarnation whose checkpoint it began from; 0 for none.
    parent: int


class Journal:
    """The decisions of one incarnation's sequencer, in order.

    Args:
        life: Names this journal among those of the sequencer's process and of others.
        ledger: The book that it begins with.
        task_of: Gives the task of a client, "" where that is not known.
        limit_records: How many are kept that the chief has not stored.

    Attributes:
        task_of: As given.
    """

    def __init__(
        self, life: str, ledger: Ledger, task_of: Callable[[str], str], limit_records: int = LIMIT_RECORDS
    ) -> None:
        self._life = life
        self.task_of = task_of
        self._begin_index, self._begin_steps, self._parent = ledger.index, dict(ledger.steps), ledger.parent
        # From position _first on; a bytearray gives up its beginning without a copy of the rest.
        self._records = bytearray()
        self._first = 0
        self._most_bytes = limit_records * RECORD.size
        self._numbers: OrderedDict[str, int] = OrderedDict()
        #: Clients that have a number, and whose task was not known then: it had come back, and heard no heartbeat yet.
        self._unnamed: set[str] = set()
        self._clients: deque[tuple[int, str, str]] = deque()
        self._client_count = 0
        self._steps: dict[str, int] = {}

    # ---- Writing ------------------------------------------------------------------------------

    def accepted(
        self,
        push: PushId,
        kind: EntryKind,
        index: int,
        increments: Sequence[Increment],
        steps: Mapping[str, int],
        staleness: int,
    ) -> None:
        """Write down an accepted push or a snapshot.

        Args:
            push: Its id.
            kind: What it is.
            index: Its place.
            increments: Steps that it moved on.
            steps: Their values after it.
            staleness: In steps.
        """
        client = self._number(push.client)
        staleness = max(min(staleness, MAX_STALENESS), -MAX_STALENESS)
        event, moved = EventKind.SNAPSHOT if kind is EntryKind.SNAPSHOT else EventKind.PUSH, dict[str, int]()
        for item in increments:
            moved[item.step] = moved.get(item.step, 0) + item.by
        if not moved:
            self._write(index, push.sequence, 0, 0, client, staleness, event, NO_STEP)
        for name, by in moved.items():
            self._write(index, push.sequence, steps[name], by, client, staleness, event, self._step(name))
            event = EventKind.CARRIED

    def assigned(self, push: PushId, index: int, step: str, value: int) -> None:
        """Write down that the last accepted push assigned a value to a step."""
        number = self._number(push.client)
        self._write(index, push.sequence, value, 0, number, 0, EventKind.ASSIGNED, self._step(step))

    def contributed(self, push: PushId, index: int, step: str, base: int, number: int) -> None:
        """Write down that the last accepted push is contribution `number` to what follows a step's value `base`."""
        client = self._number(push.client)
        self._write(index, push.sequence, base, number, client, 0, EventKind.CONTRIBUTED, self._step(step))

    def made(self, push: PushId, index: int, step: str, count: int, wanted: int, fewer: Fewer) -> None:
        """Write down of how many contributions the step is that the last accepted push made, and why of no more."""
        client = self._number(push.client)
        self._write(index, push.sequence, count, wanted, client, fewer, EventKind.MADE_OF, self._step(step))

    def not_accepted(self, push: PushId, kind: OutcomeKind, staleness: int, closes: bool = False) -> None:
        """Write down that a push was refused, dropped or abandoned; whether it only asked to close an aggregate."""
        staleness = max(min(staleness, MAX_STALENESS), -MAX_STALENESS)
        self._write(0, push.sequence, 0, closes, self._number(push.client), staleness, _NOT_ACCEPTED[kind], NO_STEP)

    def duplicate(self, push: PushId, outcome: Outcome) -> None:
        """Write down that a retry was answered with what is recorded."""
        number = self._number(push.client)
        self._write(outcome.index, push.sequence, 0, 0, number, outcome.staleness, EventKind.DUPLICATE, NO_STEP)

    def _write(self, *fields: int) -> None:
        self._records += RECORD.pack(*fields)
        if len(self._records) > self._most_bytes:
            self._drop(_DROPPED_RECORDS)

    def _drop(self, count: int) -> None:
        """Forget the oldest records, so many or all."""
        count = min(count, self._end - self._first)
        del self._records[: count * RECORD.size]
        self._first += count

    @property
    def _end(self) -> int:
        return self._first + len(self._records) // RECORD.size

    def _number(self, client: str) -> int:
        number = self._numbers.get(client)
        if number is None or (client in self._unnamed and self.task_of(client)):
            number = self._client_count
            self._client_count += 1
            self._numbers[client] = number
            task = self.task_of(client)
            self._clients.append((number, client, task))
            (self._unnamed.discard if task else self._unnamed.add)(client)
            # One that comes back after so many others gets a new number, and its name is sent again.
            if len(self._numbers) > _LIMIT_CLIENTS:
                self._unnamed.discard(self._numbers.popitem(last=False)[0])
            if len(self._clients) > 2 * _LIMIT_CLIENTS:
                self._clients.popleft()
        return number

    def _step(self, name: str) -> int:
        return self._steps.setdefault(name, min(len(self._steps), NO_STEP - 1))

    # ---- Reading ------------------------------------------------------------------------------

    def read(self, life: str, position: int, known_clients: int, after_index: int, max_records: int) -> JournalPart:
        """Give records from a position on; the caller has stored those before it, and they may go.

        Args:
            life: Of the position. Of another one it means nothing, and `after_index` is used.
            position: Of the first record wanted.
            known_clients: How many clients of that life the reader knows.
            after_index: Last entry that the reader knows of.
            max_records: At most so many; 0 for as many as one reply takes.
        """
        if life == self._life:
            self._drop(max(position - self._first, 0))
            while self._clients and self._clients[0][0] < known_clients:
                self._clients.popleft()
        else:
            known_clients = 0
            position = self._first
            if after_index > self._begin_index:
                position += first_after(np.frombuffer(self._records, RECORD_DTYPE), after_index)
        first = min(max(position, self._first), self._end)
        at = (first - self._first) * RECORD.size
        size = min(max_records or _MAX_PART_RECORDS, _MAX_PART_RECORDS) * RECORD.size
        clients = [item for item in self._clients if item[0] >= known_clients]
        return JournalPart(
            self._life,
            first,
            self._end,
            bytes(self._records[at : at + size]),
            clients,
            list(self._steps),
            self._begin_index,
            self._begin_steps,
            self._parent,
        )
