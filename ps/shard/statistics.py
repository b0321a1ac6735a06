"""Status of a PS task: its state, and counters of pushes, staleness, the time of applying, tensor bytes.

Counters that only grow; who wants rates takes differences. They cover the life of the process, not of
an incarnation. `docs/status.md` shows what becomes of them.

Layer: ps.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from globalstep.cluster.run_identity import RunIdentity
from globalstep.cluster.run_policy import RunPolicy
from globalstep.ps.members.chief_lease import ChiefLeaseView
from globalstep.wire.declarations import OptimizerDecl, OutcomeKind, State, VariableDecl

#: Sums stay there: a message holds no more, and a step that a program sets far forward makes any staleness.
MOST_COUNTED = 2**64 - 1
#: Combinations of Variables that pushes without a layout are counted by, before they are added up.
_COMBINATIONS = 1024
#: Names in all of these; one combination may have more.
_NAMES = 1 << 20
#: How many buckets the histogram of staleness has; the last begins at 2^22 steps.
STALENESS_BUCKETS = 24


def staleness_bucket(staleness: int) -> int:
    """Give the bucket of a staleness: one for 0, then one for each power of two.

    Args:
        staleness: In steps. A step that the program has set back makes it negative, which counts as 0.

    >>> [staleness_bucket(staleness) for staleness in (0, 1, 2, 3, 4, 7, 8, 10**9)]
    [0, 1, 2, 2, 3, 3, 4, 23]
    """
    return min(max(staleness, 0).bit_length(), STALENESS_BUCKETS - 1)


@dataclass(slots=True)
class Statistics:
    """The counters of a shard. Single thread: `ps/shard/shard.py` uses them under its lock.

    Attributes:
        since: When counting began, by the clock's monotonic reading.
        accepted: Pushes that the sequencer accepted.
        ordered_reads: Reads that it gave a place in the order of pushes.
        refused: Pushes that it refused because the job was done.
        dropped_stale: Pushes that it dropped because they were too late, contributions among them.
        late: Contributions that came when their step was made, or had theirs already.
        dropped_nan: Pushes that it dropped because a gradient was not finite.
        duplicates: Retries that it answered with what was recorded.
        applied: Pushes whose changes were made to the values here.
        apply_secs: How long making them took, seconds.
        staleness: Accepted pushes that said what step they had seen, by `staleness_bucket`.
        staleness_sum: Of those, the sum of their staleness.
        staleness_squares: Of those, the sum of its squares.
        contributions: Contributions that it accepted.
        made: Values of steps that were made of contributions.
        waited: Those of these contributions whose time of arrival is known.
        waited_secs: Of those, the sum of the seconds that they waited until their step was made.
        lead_waits: Waits of workers that were too far ahead of slower ones; those that are over.
        lead_wait_secs: How long they took together, seconds.
    """

    since: float = 0.0
    accepted: int = 0
    ordered_reads: int = 0
    refused: int = 0
    dropped_stale: int = 0
    late: int = 0
    dropped_nan: int = 0
    duplicates: int = 0
    applied: int = 0
    apply_secs: float = 0.0
    staleness: list[int] = field(default_factory=lambda: [0] * STALENESS_BUCKETS)
    staleness_sum: int = 0
    staleness_squares: int = 0
    contributions: int = 0
    made: int = 0
    waited: int = 0
    waited_secs: float = 0.0
    lead_waits: int = 0
    lead_wait_secs: float = 0.0

    def accept(self, staleness: int | None) -> None:
        """Count an accepted push.

        Args:
            staleness: How many steps it lagged behind; None where that is not known.
        """
        self.accepted += 1
        if staleness is not None:
            self.staleness[staleness_bucket(staleness)] += 1
            if staleness > 0:
                self.staleness_sum = min(self.staleness_sum + staleness, MOST_COUNTED)
                self.staleness_squares = min(self.staleness_squares + staleness * staleness, MOST_COUNTED)

    def read(self) -> None:
        """Count a read that took a place in the order of pushes."""
        self.ordered_reads += 1

    def refuse(self, kind: OutcomeKind) -> None:
        """Count a push that was not accepted."""
        if kind is OutcomeKind.REFUSED_DONE:
            self.refused += 1
        elif kind in (OutcomeKind.DROPPED_STALE, OutcomeKind.LATE):
            self.dropped_stale += 1
        elif kind in (OutcomeKind.DROPPED_NAN, OutcomeKind.STOPPED_NAN):
            self.dropped_nan += 1

    def make(self, waited: int, waited_secs: float) -> None:
        """Count a value of a step that was made of contributions, which waited for it."""
        self.made += 1
        self.waited += waited
        self.waited_secs += waited_secs

    def waited_for_slower(self, secs: float) -> None:
        """Count a wait of a worker for slower ones that is over."""
        self.lead_waits += 1
        self.lead_wait_secs += secs

    def apply(self, secs: float) -> None:
        """Count a push whose changes were made here, in `secs` seconds."""
        self.applied += 1
        self.apply_secs += secs

    def copy(self) -> Statistics:
        """Give the counters as they are now."""
        return replace(self, staleness=self.staleness.copy())


@dataclass(slots=True)
class ChangeCount:
    """The number of pushes that changed the same Variables."""

    names: tuple[str, ...]
    pushes: int = 0
    #: Whether its keeper is to ask for another one: this one has been added up.
    over: bool = False


class ChangeCounts:
    """The numbers of pushes that changed each Variable. Single thread: used under the shard's lock.

    Counted by the Variables that a push changes together, and added up when a client asks: what keeps a
    ChangeCount, as a layout does, counts a push of any number of Variables by adding 1.

    >>> counts = ChangeCounts()
    >>> counts.of(("w", "b")).pushes += 2
    >>> counts.add(("w",))
    >>> sorted(counts.by_variable().items())
    [('b', 2), ('w', 3)]
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, ...], ChangeCount] = {}
        self._passing: Counter[tuple[str, ...]] = Counter()
        self._others: Counter[str] = Counter()
        # How many names the combinations have, those of `of` and those of `add`.
        self._kept_names = self._passing_names = 0

    def of(self, names: tuple[str, ...]) -> ChangeCount:
        """Give the count of pushes that change these Variables, to be kept and added to until it is `over`."""
        if names in self._kept:
            return self._kept[names]
        if len(self._kept) >= _COMBINATIONS or self._kept_names + len(names) > _NAMES:
            for count in self._kept.values():
                count.over = True
                for name in set(count.names):
                    self._others[name] += count.pushes
            self._kept.clear()
            self._kept_names = 0
        self._kept_names += len(names)
        changes = self._kept[names] = ChangeCount(names)
        return changes

    def add(self, names: tuple[str, ...]) -> None:
        """Count a push that changed these Variables."""
        if names not in self._passing:
            if len(self._passing) >= _COMBINATIONS or self._passing_names + len(names) > _NAMES:
                self._others = self.by_variable(kept=False)
                self._passing.clear()
                self._passing_names = 0
            self._passing_names += len(names)
        self._passing[names] += 1

    def by_variable(self, kept: bool = True) -> Counter[str]:
        """Give the pushes that changed each Variable so far; without `kept`, only those that `add` counted."""
        out = self._others.copy()
        counts = [*self._passing.items(), *((count.names, count.pushes) for count in self._kept.values() if kept)]
        for names, pushes in counts:
            for name in set(names):
                out[name] += pushes
        return out


@dataclass(frozen=True, slots=True)
class ShardView:
    """The status of a shard."""

    state: State
    incarnation: int
    shard: int
    shards: int
    sequencer: int
    #: Where the sequencer is asked about parts in doubt; "" on it.
    sequencer_address: str
    owner: str
    applied: int
    #: See Incarnation.
    #: On the sequencer, by shard: up to which entry it is known to have applied its own, and not to forget that.
    floors: list[int]
    variables: list[VariableDecl]
    optimizers: list[OptimizerDecl]
    uninitialized: list[str]
    steps: dict[str, int]
    limits: dict[str, int]
    statistics: Statistics
    #: Seconds that the statistics cover.
    secs: float
    policy: RunPolicy
    directory: str
    draining: bool
    chief: ChiefLeaseView
    run: RunIdentity


@dataclass(frozen=True, slots=True)
class LoadView:
    """The load of a shard: what it holds, and what waits there."""

    #: Bytes of all values and slots.
    value_bytes: int
    #: Parts of pushes that wait for their decision, and their tensor bytes.
    staged_parts: int
    staged_bytes: int
    #: Variable -> pushes that changed it.
    variable_pushes: Mapping[str, int]


class Traffic:
    """The requests that a PS task has, and the tensor bytes that it received and sent. Thread-safe.

    Apart from the shard's Statistics, since a reply that is ready must not wait for the shard's lock.
    """

    def __init__(self) -> None:
        # Guards all numbers; a leaf.
        self._lock = threading.Lock()
        self._bytes_in = 0
        self._bytes_out = 0
        #: How many requests have come and are not answered.
        self.under_way = 0

    def arrive(self) -> None:
        """Take note of a request; `leave` is to follow."""
        with self._lock:
            self.under_way += 1

    def leave(self, bytes_in: int, bytes_out: int) -> None:
        """Take note that a request is answered, or never will be, and count the tensor bytes of both."""
        with self._lock:
            self.under_way -= 1
            self._bytes_in += bytes_in
            self._bytes_out += bytes_out

    def view(self) -> tuple[int, int]:
        """Give the bytes received and the bytes sent so far."""
        with self._lock:
            return self._bytes_in, self._bytes_out
