"""When the contributions of each step's open value came: how long they wait for the others.

It is for those who watch: what a step is made of, the book of open aggregates decides. So nothing of it is in a log,
and what a sequencer that came back from its log does not know, it does not count.

Layer: ps. Single thread: the caller's, under the shard's lock.
"""

from __future__ import annotations

__all__ = ["ArrivalTimes"]


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
