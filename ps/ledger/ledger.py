"""The sequencer's book: who pushed what, in which order, and what every shard has seen of it.

A pure state machine: no I/O, no lock, no clock. `ps/shard/shard.py` owns it and calls it under its lock, in the
same critical section as the store. docs/design/push-protocol.md is its specification.

Layer: ps. Single thread: the caller's.
"""

from __future__ import annotations

import base64
import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from globalstep.cluster.run_policy import RunPolicy
from globalstep.errors import AbortedError, DataLossError, InvalidArgumentError, NotFoundError
from globalstep.ps.ledger.aggregates import Aggregates
from globalstep.ps.ledger.push_table import MAX_STALENESS, PushTable
from globalstep.ps.ledger.signatures import Signer
from globalstep.wire.declarations import Increment, Outcome, OutcomeKind, PushId, StopLimit

if TYPE_CHECKING:
    from globalstep.ps.ledger.journal import Journal

#: Shards of a run: the sequencer keeps a little of each.
LIMIT_SHARDS = 1 << 16
#: The largest value of a step.
_LAST_STEP = 2**63 - 1
#: What every rule calls its learning rate; a moving average has none.
LEARNING_RATE = "learning_rate"


class EntryKind(IntEnum):
    """The kind of an entry. The numbers are those of the wire."""

    PUSH = 1
    SNAPSHOT = 2
    #: A push whose gradients are added to those of its step's open aggregate.
    CONTRIBUTION = 3
    #: The same, and the last: the mean is applied.
    LAST_CONTRIBUTION = 4
    #: The mean of the contributions that are there is applied.
    CLOSING = 5

    @property
    def closes(self) -> bool:
        """Whether an aggregate's mean is applied."""
        return self in (EntryKind.LAST_CONTRIBUTION, EntryKind.CLOSING)


class AggregatePlace(NamedTuple):
    """The aggregate of a contribution, or of an entry that closes it."""

    #: Whose aggregate it is.
    step: str
    #: How many contributions that has with this one.
    contributions: int
    #: Of a contribution: its unit of work, from 1; 0 for none.
    unit: int = 0


@dataclass(slots=True)
class HyperValues:
    """Hyper-parameters of one optimizer for one push, as the sequencer evaluated them."""

    optimizer: str
    after_increment: bool
    values: Mapping[str, float]


@dataclass(slots=True)
class Entry:
    """An admitted mutation, as the sequencer sends it to one participant."""

    index: int
    kind: EntryKind
    push: PushId
    #: Index of the entry before it that this participant has a part in; 0 for none.
    previous: int
    hypers: tuple[HyperValues, ...] = ()
    #: Of the sequencer.
    signature: bytes = b""
    #: Of a contribution, and of what closes an aggregate.
    place: AggregatePlace | None = None


@dataclass(slots=True)
class Unfinished:
    """An admitted mutation that some participant is not known to have applied."""

    index: int
    waiting: set[int]
    steps: dict[str, int]
    #: Of the memory that is kept for it.
    claim: object = None


class Ledger:
    """Admits pushes, exactly once each, in one order, up to the limits.

    Args:
        shards: How many there are.
        sequencer: Which of them keeps this book.

    Attributes:
        index: Index of the last admitted mutation.
        steps: Value of each step after all admitted pushes.
        visible: Value of each step after the pushes that every participant is known to have applied.
        limits: Values of steps from which no push moves them on.
        table: What became of each client's last pushes.
        incarnation: The one that it is the book of; 0 where that does not matter.
        parent: The incarnation of the checkpoint that it was loaded from; 0 for none.
        aggregates: The contributions that were accepted for each step's next value. A checkpoint's ledger has none.
        stopped: Whether a gradient that was not finite has ended the job: limits do not count any more.
        signer: Signs entries for the other shards.
        journal: Where every decision is written down; None where no chief is going to store it.
    """

    def __init__(self, shards: int, sequencer: int) -> None:
        self.shards = shards
        self.sequencer = sequencer
        self.index = 0
        self.steps: dict[str, int] = {}
        self.visible: dict[str, int] = {}
        self.limits: dict[str, int] = {}
        self.incarnation = 0
        self.parent = 0
        self.signer = Signer(b"", 0)
        self.journal: Journal | None = None
        self.stopped = False
        self._last_push = PushId("", 0)
        self.table = PushTable()
        self.aggregates = Aggregates()
        self._last_of_shard = [0] * shards
        self._floors = [0] * shards
        self._pending: list[deque[Entry]] = [deque() for _ in range(shards)]
        self._unfinished: deque[Unfinished] = deque()

    def declare_step(self, name: str) -> None:
        """Make a step known; its value comes with the assign that initializes it."""
        self.steps.setdefault(name, 0)
        self.visible.setdefault(name, 0)

    def set_limits(self, limits: Sequence[StopLimit]) -> None:
        """Put limits in force, all or none; see `set_limit`."""
        before = dict(self.limits)
        try:
            for limit in limits:
                self.set_limit(limit)
        except NotFoundError:
            self.limits = before
            raise

    def set_limit(self, limit: StopLimit) -> int:
        """Put a limit in force.

        Args:
            limit: Absolute, or counted from the step's present value.

        Returns:
            The absolute limit.

        Raises:
            NotFoundError: If there is no such step.
        """
        if limit.step not in self.steps:
            raise NotFoundError(f"No step {limit.step!r} to limit; steps: {sorted(self.steps)}")
        if limit.last_step is not None:
            last = limit.last_step
        else:
            last = min(self.steps[limit.step] + (limit.num_steps or 0), _LAST_STEP)
        if self.stopped:
            last = min(last, self.steps[limit.step])
        self.limits[limit.step] = last
        return last

    def limit_reached(self) -> bool:
        """Whether some limited step stands at its limit or beyond."""
        return any(self.steps.get(step, 0) >= last for step, last in self.limits.items())

    def staleness(self, increments: Sequence[Increment], seen_steps: Mapping[str, int]) -> int | None:
        """Give how far the carried steps moved on since the worker read them; None where it did not say."""
        most: int | None = None
        for item in increments:
            if item.step in seen_steps:
                behind = self.steps[item.step] - seen_steps[item.step]
                most = behind if most is None else max(most, behind)
        return None if most is None else max(min(most, MAX_STALENESS), -MAX_STALENESS)

    def check_increments(self, increments: Iterable[Increment]) -> None:
        """Refuse increments of what is no step.

        Raises:
            InvalidArgumentError: If an increment names no step.
        """
        for item in increments:
            if item.step not in self.steps:
                raise InvalidArgumentError(
                    f"The push increments {item.step!r}, which is not a step of this run; steps: {sorted(self.steps)}"
                )

    def refuse(
        self, push: PushId, kind: OutcomeKind, staleness: int = 0, not_finite: str = "", closes: bool = False
    ) -> Outcome:
        """Record that a push was not accepted, so that its retries hear the same.

        After STOPPED_NAN no step moves on any more.
        """
        if kind is OutcomeKind.STOPPED_NAN:
            self.stopped = True
            self.limits.update(self.steps)
        outcome = Outcome(kind, 0, dict(self.steps), staleness, not_finite=not_finite)
        self.table.record(push, outcome)
        if self.journal is not None:
            self.journal.not_accepted(push, kind, staleness, closes)
        return outcome

    def over_limit(self, increments: Iterable[Increment]) -> bool:
        """Whether these increments come too late: a step that they move on stands at its limit, or beyond.

        An increment of one ends at the limit exactly. The first one that steps over it, from below, is accepted, as
        TensorFlow's is: to stop short of it would leave steps that no push can make, and no client could say that
        the last step has come.
        """
        for item in increments:
            limit = self.limits.get(item.step)
            if limit is not None and item.by > 0 and self.steps[item.step] >= limit:
                return True
        return False

    def admit(
        self,
        push: PushId,
        kind: EntryKind,
        participants: Sequence[int],
        increments: Sequence[Increment],
        hypers: tuple[HyperValues, ...],
        staleness: int,
        place: AggregatePlace | None = None,
    ) -> Outcome:
        """Accept a push: give it the next index, move the steps on, record the outcome.

        Args:
            push: Its id, which the table does not know.
            kind: What it is.
            participants: Shards with a part in it.
            increments: Steps to move on, checked by `check_increments` and `over_limit`.
            hypers: Evaluated hyper-parameters.
            staleness: As of `staleness`.
            place: Of a contribution, and of what closes an aggregate.

        Returns:
            The outcome, accepted.
        """
        self.index += 1
        for item in increments:
            self.steps[item.step] += item.by
        others = {*participants} - {self.sequencer}
        decision = self.signer.decision(self.index, kind, push, hypers, place) if others else None
        for shard in participants:
            previous, self._last_of_shard[shard] = self._last_of_shard[shard], self.index
            if decision is None or shard == self.sequencer:
                self._floors[shard] = self.index
            else:
                signature = decision.for_shard(shard, previous)
                self._pending[shard].append(Entry(self.index, kind, push, previous, hypers, signature, place))
        if others or self._unfinished:
            self._unfinished.append(Unfinished(self.index, others, dict(self.steps)))
        else:
            self.visible = dict(self.steps)
        outcome = Outcome(OutcomeKind.ACCEPTED, self.index, dict(self.steps), staleness)
        self.table.record(push, outcome)
        self._last_push = push
        if self.journal is not None:
            self.journal.accepted(push, kind, self.index, increments, self.steps, staleness)
        return outcome

    @property
    def unfinished(self) -> int:
        """The number of mutations that some participant is not known to have applied."""
        return len(self._unfinished)

    def hold(self, claim: object) -> None:
        """Keep a claim for memory until all participants have applied the entry that was just admitted."""
        self._unfinished[-1].claim = claim

    def assign_step(self, name: str, value: int) -> None:
        """Set a step: an assign of the program's own, part of the entry just admitted."""
        self.steps[name] = value
        if self._unfinished:
            self._unfinished[-1].steps[name] = value
        else:
            self.visible[name] = value
        if self.journal is not None:
            self.journal.assigned(self._last_push, self.index, name, value)

    def pending(self, shard: int, up_to: int) -> list[Entry]:
        """The entries that a shard is not known to have applied, in order, up to and with `up_to`."""
        pending = self._pending[shard]
        if not pending or pending[-1].index <= up_to:
            return list(pending)  # of the last push: each has as many as workers push at the same time
        return [entry for entry in pending if entry.index <= up_to]

    def last_of(self, shards: Iterable[int]) -> dict[int, int]:
        """Return the index of the last entry in which each of some shards takes part; 0 for none.

        Raises:
            InvalidArgumentError: If there is no such shard.
        """
        last: dict[int, int] = {}
        for shard in shards:
            if not 0 <= shard < self.shards:
                raise InvalidArgumentError(f"There is no shard {shard}; there are {self.shards}.")
            last[shard] = self._last_of_shard[shard]
        return last

    @property
    def floors(self) -> Sequence[int]:
        """By shard: up to which entry it is known to have applied its own, and not to forget that."""
        return self._floors

    def is_news(self, shard: int, index: int) -> bool:
        """Whether a shard is not yet known to have applied every entry of its own up to `index`.

        Raises:
            InvalidArgumentError: If there is no such shard or index.
        """
        if not 0 <= shard < self.shards or index > self.index:
            raise InvalidArgumentError(
                f"Shard {shard} cannot have applied entry {index}: there are {self.shards} shards and "
                f"{self.index} entries."
            )
        return index > self._floors[shard]

    def check_floors(self, floors: Mapping[int, int]) -> None:
        """Refuse a book that does not fit what shards say they have applied: its end, or a shard's, is missing.

        Args:
            floors: Shard -> the last entry that it has applied.

        Raises:
            DataLossError: If a shard has applied more than was admitted here, or less than it once said.
        """
        for shard, index in floors.items():
            if not 0 <= shard < self.shards:
                raise DataLossError(f"There is no shard {shard} in a log of {self.shards} shards.")
            if index > self.index:
                raise DataLossError(
                    f"PS task {shard} has applied entry {index}, and the log of the sequencer, PS task "
                    f"{self.sequencer}, ends at entry {self.index}: its end is missing, acknowledged pushes with it."
                )
            if index < self._floors[shard]:
                raise DataLossError(
                    f"PS task {shard} has come back at entry {index}, and had said before that it had applied entry "
                    f"{self._floors[shard]}: the end of its log is missing, acknowledged pushes with it."
                )

    def raise_floor(self, shard: int, applied: int) -> bool:
        """Take note that a shard has applied every entry of its own up to `applied`, and will not forget that.

        Returns:
            Whether that is news.

        Raises:
            InvalidArgumentError: If there is no such shard or index.
        """
        if not self.is_news(shard, applied):
            return False
        self._floors[shard] = applied
        for item in self._unfinished:
            if item.index > applied:
                break
            item.waiting.discard(shard)
        while self._unfinished and not self._unfinished[0].waiting:
            self.visible = self._unfinished.popleft().steps
        pending = self._pending[shard]
        while pending and pending[0].index <= applied:
            pending.popleft()
        return True

    def settle(self, pushes: Iterable[PushId], shard: int, applied: int) -> list[Entry]:
        """Tell a shard what became of parts that it holds; fence those that were never asked for.

        Args:
            pushes: Ids of parts staged there.
            shard: Which shard asks.
            applied: Last entry that it has applied.

        Returns:
            Entries for it after `applied`. A push asked for and not among them will never be admitted.
        """
        self.raise_floor(shard, applied)
        for push in pushes:
            try:
                known = self.table.recorded(push)
            except AbortedError:
                continue
            if known is None:
                self.refuse(push, OutcomeKind.ABANDONED)
        return self.pending(shard, self.index)

    def under_way(self) -> tuple[list[int], list[int], list[deque[Entry]], deque[Unfinished]]:
        """Floors, last entries and pending entries by shard, and what is unfinished: for `resume`."""
        return self._floors, self._last_of_shard, self._pending, self._unfinished

    def resume(
        self, floors: list[int], last_of_shard: list[int], pending: list[deque[Entry]], unfinished: deque[Unfinished]
    ) -> None:
        """Go on with what was under way; as of `under_way`."""
        self._floors, self._last_of_shard, self._pending = floors, last_of_shard, pending
        self._unfinished = unfinished

    def copied(self) -> Callable[[], dict[str, Any]]:
        """Copy the book as it stands, quickly; gives a function that makes of the copy what JSON has."""
        index, incarnation, steps, clients = self.index, self.incarnation, dict(self.steps), self.table.copied()
        return lambda: {"version": 1, "index": index, "incarnation": incarnation, "steps": steps, "clients": clients()}

    def dumped_later(self) -> Callable[[], bytes]:
        """Copy the book as it stands, for a checkpoint; gives a function that encodes the copy, once."""
        state = self.copied()
        return lru_cache(maxsize=None)(lambda: json.dumps(state(), sort_keys=True).encode())

    @classmethod
    def load(cls, dumped: bytes, shards: int, sequencer: int) -> Ledger:
        """Make a ledger from a checkpoint's; the other shards start at entry 0, limits are not kept.

        Raises:
            InvalidArgumentError: If it is not one.
        """
        ledger = cls(shards, sequencer)
        try:
            state = json.loads(dumped)
            if state["version"] != 1:
                raise InvalidArgumentError(f"The ledger has version {state['version']}; this is version 1.")
            ledger.index = int(state["index"])
            ledger.parent = int(state.get("incarnation", 0))
            ledger.steps = {str(name): int(value) for name, value in state["steps"].items()}
            if not all(-_LAST_STEP <= value <= _LAST_STEP for value in ledger.steps.values()):
                raise InvalidArgumentError(f"The ledger's steps {ledger.steps} are beyond int64.")
            if not (0 <= ledger.index <= _LAST_STEP and 0 <= ledger.parent < 1 << 64):
                raise InvalidArgumentError(f"The ledger has index {ledger.index} and incarnation {ledger.parent}.")
            ledger.table = PushTable.load(state["clients"])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            text = base64.b64encode(dumped[:60]).decode()
            raise InvalidArgumentError(f"Not a ledger: {error!r} in (base64) {text}...") from None
        ledger.visible = dict(ledger.steps)
        ledger._floors[sequencer] = ledger.index
        return ledger


def refusal(
    policy: RunPolicy,
    ledger: Ledger,
    increments: Sequence[Increment],
    staleness: int,
    not_finite: str,
    late: bool | None = None,
) -> OutcomeKind | None:
    """Say why a push is not accepted; None where it is.

    Args:
        policy: The run's.
        ledger: Its steps and limits.
        increments: Of the push.
        staleness: Of the push, in steps.
        not_finite: A Variable whose gradient was found not to be finite; "" for none.
        late: Of a contribution: whether it does not count. Lag is no question of the policy for it.
    """
    if ledger.over_limit(increments):
        return OutcomeKind.REFUSED_DONE
    if not_finite:
        return OutcomeKind.STOPPED_NAN if policy.on_nan == "stop" else OutcomeKind.DROPPED_NAN
    if late is not None:
        return OutcomeKind.LATE if late else None
    if policy.staleness == "drop" and staleness > policy.max_staleness:
        return OutcomeKind.DROPPED_STALE
    return None


def scaled(policy: RunPolicy, hypers: tuple[HyperValues, ...], staleness: int) -> tuple[HyperValues, ...]:
    """Multiply every learning rate by 1 / (1 + staleness), where the run wants that.

    Source: Zhang, Gupta, Lian and Liu, "Staleness-aware Async-SGD for Distributed Deep Learning" (2016), whose
    rate is divided by the staleness; here a push that is not late keeps its rate.
    """
    if policy.staleness != "scale" or staleness <= 0:
        return hypers
    factor = 1.0 / (1.0 + staleness)
    return tuple(
        replace(item, values={**item.values, LEARNING_RATE: item.values[LEARNING_RATE] * factor})
        if LEARNING_RATE in item.values
        else item
        for item in hypers
    )
