"""Who contributes to the steps that are open: when contributions came, and which units of work are being computed.

It decides on speed alone, and is for those who watch: what a step is made of, the book of open aggregates decides. So
nothing of it is in a log. What a sequencer that came back from its log does not know of times, it does not count; units
it gives out anew.

Layer: ps. Single thread: the caller's, under the shard's lock.
"""

from __future__ import annotations

import math
from collections.abc import Set
from typing import NamedTuple

#: A claim that has taken so many times as long as its client's units do, and so many seconds more, counts for nothing:
#: its client is dead, stopped, or slower than it was.
_PATIENCE, _PATIENCE_SECS = 1.5, 0.05
#: How long a unit takes that nobody has computed yet.
_UNKNOWN_SECS = 1.0
#: A unit is computed by another client, too, if that takes less than this part of what its own would still need.
_OF_USE = 0.8
#: Claims, and clients whose speed is kept: more than a task has clients. The oldest go.
_MOST_CLAIMS = 1024


class _Claim(NamedTuple):
    """What a client computes."""

    step: str
    base: int
    unit: int
    at: float


class UnitClaims:
    """The claims of an incarnation. A client computes one unit at a time.

    A unit that nobody computes goes first, the lowest one. Then a client is a backup for the one that would be ready
    last, where it would be ready sooner itself.

    >>> claims = UnitClaims()
    >>> [claims.take(client, "step", 5, 2, set(), 0.0) for client in ("a", "b", "c")]
    [1, 2, 0]
    >>> claims.done("a", "step", 0.1)  # so c would take as long, and b is overdue at 0.3
    >>> claims.take("c", "step", 5, 2, {1}, 0.1), claims.take("c", "step", 5, 2, {1}, 0.3)
    (0, 2)
    """

    def __init__(self) -> None:
        # By client; the oldest first.
        self._claims: dict[str, _Claim] = {}
        # How long its units take, and the sum of all.
        self._usual: dict[str, float] = {}
        self._usual_sum = 0.0

    def take(self, client: str, step: str, base: int, units: int, there: Set[int], now: float) -> int:
        """Give the unit that a client is to compute; 0 for none at present.

        Args:
            client: Who asks, and computes nothing now.
            step: Which step.
            base: Its value.
            units: How many make the next value.
            there: Those that are in.
            now: Seconds, by any clock.
        """
        claims = {other: item for other, item in self._claims.items() if (item.step, item.base) == (step, base)}
        own = claims.pop(client, None)
        if own is not None and own.unit not in there:
            return own.unit  # the answer was lost
        ready_at: dict[int, float] = {}
        for other, item in claims.items():
            ready_at[item.unit] = min(ready_at.get(item.unit, math.inf), self._ready(other, item, now))
        best, latest = 0, now + self._usual_secs(client) / _OF_USE
        for unit in range(1, units + 1):
            if unit in there:
                continue
            ready = ready_at.get(unit)
            if ready is None:
                best = unit
                break
            if ready > latest:
                best, latest = unit, ready
        if best:
            self._claims.pop(client, None)
            self._claims[client] = _Claim(step, base, best, now)
            if len(self._claims) > _MOST_CLAIMS:
                del self._claims[next(iter(self._claims))]
        return best

    def done(self, client: str, step: str, now: float) -> None:
        """Take note that a client has brought what it computed, whether it counts or not."""
        claim = self._claims.pop(client, None)
        if claim is not None and claim.step == step:
            took = now - claim.at
            before = self._usual.pop(client, None)
            self._usual_sum -= before or 0.0
            self._usual[client] = took if before is None else (before + took) / 2
            self._usual_sum += self._usual[client]
            if len(self._usual) > _MOST_CLAIMS:
                self._usual_sum -= self._usual.pop(next(iter(self._usual)))

    def view(self, step: str, base: int, there: Set[int], now: float) -> dict[str, tuple[int, float]]:
        """Say who computes what is missing: by client the unit, and for how many seconds."""
        return {
            client: (item.unit, now - item.at)
            for client, item in self._claims.items()
            if (item.step, item.base) == (step, base) and item.unit not in there
        }

    def _usual_secs(self, client: str) -> float:
        secs = self._usual.get(client)
        if secs is not None:
            return secs
        return max(self._usual_sum, 0.0) / len(self._usual) if self._usual else _UNKNOWN_SECS

    def _ready(self, client: str, claim: _Claim, now: float) -> float:
        """When a claimed unit is likely to be in; infinity where its claim counts for nothing."""
        usual = self._usual_secs(client)
        overdue = now - claim.at > _PATIENCE * usual + _PATIENCE_SECS
        return math.inf if overdue else max(claim.at + usual, now)


class ArrivalTimes:
    """The times of an incarnation's contributions, by step; only those of the open value are kept.

    >>> times = ArrivalTimes()
    >>> for at in (10.0, 12.5):
    ...     times.came("step", 5, at)
    >>> times.open_secs("step", 5, 13.0), times.made("step", 5, 14.0), times.made("step", 6, 15.0)
    (3.0, (2, 5.5), (0, 0))
    """

    def __init__(self) -> None:
        # Step -> the value that its contributions were computed from, and when they came.
        self._open: dict[str, tuple[int, list[float]]] = {}

    def came(self, step: str, base: int, at: float) -> None:
        """Take note of a contribution that counts.

        Args:
            step: To which step.
            base: From which value of it.
            at: When it was decided, by the clock's monotonic reading.
        """
        found = self._open.get(step)
        if found is None or found[0] != base:
            found = self._open[step] = (base, [])
        found[1].append(at)

    def made(self, step: str, base: int, at: float) -> tuple[int, float]:
        """Take note that what follows a step's value `base` is made.

        Returns:
            How many contributions waited for it, and the sum of their seconds; without those that had come before a
            restart of the sequencer.
        """
        was, came = self._open.pop(step, (base, []))
        return (len(came), sum(at - since for since in came)) if was == base else (0, 0.0)

    def open_secs(self, step: str, base: int, at: float) -> float:
        """Give for how long the oldest contribution to what follows `base` has waited; 0 where there is none."""
        was, came = self._open.get(step, (base, []))
        return at - came[0] if was == base and came else 0.0


class Contributors:
    """What an incarnation knows of those who contribute to its steps.

    Attributes:
        claims: Which units of work are being computed, and by whom.
        arrivals: When the contributions to each step's open value came.
        gave: Step -> client -> when its last contribution was decided, by the clock.
        gave_first: Step -> when the first contribution of all was decided.
    """

    def __init__(self) -> None:
        self.claims = UnitClaims()
        self.arrivals = ArrivalTimes()
        self.gave: dict[str, dict[str, float]] = {}
        self.gave_first: dict[str, float] = {}
