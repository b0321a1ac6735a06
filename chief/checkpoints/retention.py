"""Retention of checkpoints: the last few, and one every so many hours for good. No I/O.

The rules are TensorFlow 1.15's (python/training/saver.py), but for two bugs of it: without a limit the
list holds every checkpoint, not only the latest (tensorflow#13381), and a Saver of a restarted program
goes on with the list of the one before it (tensorflow#16025), which gets no longer than it should be.

Layer: chief. Not thread-safe: its Saver calls it from one thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterable

from globalstep.runtime.clock import Clock

__all__ = ["Retention"]


class Retention:
    """The list of a Saver's checkpoints.

    Args:
        max_to_keep: How many to keep; None or 0 for all.
        keep_every_hours: Of those beyond, keep one every so many hours for good.
        clock: Where time comes from.

    Attributes:
        kept: (path, when it was written in seconds since the epoch), oldest first.
        last_preserved: When a checkpoint was last kept for good; at first, when this was made.

    Raises:
        ValueError: If `max_to_keep` is negative.
    """

    def __init__(self, max_to_keep: int | None, keep_every_hours: float, clock: Clock) -> None:
        if max_to_keep is not None and max_to_keep < 0:
            raise ValueError(f"max_to_keep must be at least 0 (which keeps all), or None; got {max_to_keep}.")
        self._max_to_keep = max_to_keep or 0
        self._keep_every_secs = keep_every_hours * 3600
        self._clock = clock
        self._evicted: list[tuple[str, float]] = []
        self.kept: list[tuple[str, float]] = []
        self.last_preserved = clock.time()

    @property
    def max_to_keep(self) -> int:
        """How many are kept; 0 for all."""
        return self._max_to_keep

    @property
    def paths(self) -> list[str]:
        """The checkpoints that are not deleted, oldest first."""
        return [path for path, _ in self.kept]

    def recover(self, kept: Iterable[tuple[str, float]], last_preserved: float = 0.0) -> None:
        """Go on with a list from before.

        Args:
            kept: Paths and times, oldest first.
            last_preserved: When a checkpoint was last kept for good; 0 if that is not known.
        """
        self.kept = list(kept)
        if last_preserved:
            self.last_preserved = last_preserved

    def record(self, path: str) -> None:
        """Put a checkpoint just written to the end of the list; the oldest may fall out of it."""
        self.kept = [entry for entry in self.kept if entry[0] != path]
        self.kept.append((path, self._clock.time()))
        # Two, where a list from before is too long: so it gets shorter, without much deleted at once.
        for _ in range(min(2, len(self.kept) - self._max_to_keep) if self._max_to_keep else 0):
            self._evicted.append(self.kept.pop(0))

    def to_delete(self) -> list[str]:
        """Give the checkpoints to delete now; one that is due to be kept for good is not."""
        evicted, self._evicted = self._evicted, []
        paths = []
        for path, written_at in evicted:
            if written_at > self.last_preserved + self._keep_every_secs:
                self.last_preserved += self._keep_every_secs
            else:
                paths.append(path)
        return paths
