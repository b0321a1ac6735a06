"""What a PS task counts of itself: pushes, staleness, the time of applying, and tensor bytes.

Pure counters that only grow; who wants rates takes differences. They cover the life of the process, not of
an incarnation. `docs/summaries.md` shows what becomes of them.

Floor: ps.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace

from globalstep.declarations import OutcomeKind

__all__ = ["STALENESS_BUCKETS", "Statistics", "Traffic", "staleness_bucket"]

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
    """The counters of a shard. Single thread: `ps/shard.py` uses them under its lock.

    Attributes:
        since: When counting began, by the clock's monotonic reading.
        accepted: Pushes that the sequencer accepted.
        refused: Pushes that it refused because the job was done.
        dropped_stale: Pushes that it dropped because they were too late.
        dropped_nan: Pushes that it dropped because a gradient was not finite.
        duplicates: Retries that it answered with what was recorded.
        applied: Pushes whose changes were made to the values here.
        apply_secs: How long making them took, seconds.
        staleness: Accepted pushes that said what step they had seen, by `staleness_bucket`.
        staleness_sum: Of those, the sum of their staleness.
        staleness_squares: Of those, the sum of its squares.
    """

    since: float = 0.0
    accepted: int = 0
    refused: int = 0
    dropped_stale: int = 0
    dropped_nan: int = 0
    duplicates: int = 0
    applied: int = 0
    apply_secs: float = 0.0
    staleness: list[int] = field(default_factory=lambda: [0] * STALENESS_BUCKETS)
    staleness_sum: int = 0
    staleness_squares: int = 0

    def accept(self, staleness: int | None) -> None:
        """Count an accepted push.

        Args:
            staleness: How many steps it lagged behind; None where that is not known.
        """
        self.accepted += 1
        if staleness is not None:
            self.staleness[staleness_bucket(staleness)] += 1
            if staleness > 0:
                self.staleness_sum += staleness
                self.staleness_squares += staleness * staleness

    def refuse(self, kind: OutcomeKind) -> None:
        """Count a push that was not accepted."""
        if kind is OutcomeKind.REFUSED_DONE:
            self.refused += 1
        elif kind is OutcomeKind.DROPPED_STALE:
            self.dropped_stale += 1
        elif kind in (OutcomeKind.DROPPED_NAN, OutcomeKind.STOPPED_NAN):
            self.dropped_nan += 1

    def apply(self, secs: float) -> None:
        """Count a push whose changes were made here, in `secs` seconds."""
        self.applied += 1
        self.apply_secs += secs

    def copy(self) -> Statistics:
        """Give the counters as they are now."""
        return replace(self, staleness=self.staleness.copy())


class Traffic:
    """The tensor bytes that a PS task received and sent. Thread-safe.

    Apart from the shard's Statistics, since a reply that is ready must not wait for the shard's lock.
    """

    def __init__(self) -> None:
        # Guards both numbers; a leaf.
        self._lock = threading.Lock()
        self._bytes_in = 0
        self._bytes_out = 0

    def count(self, bytes_in: int, bytes_out: int) -> None:
        """Count a request and its reply."""
        with self._lock:
            self._bytes_in += bytes_in
            self._bytes_out += bytes_out

    def view(self) -> tuple[int, int]:
        """Give the bytes received and the bytes sent so far."""
        with self._lock:
            return self._bytes_in, self._bytes_out
