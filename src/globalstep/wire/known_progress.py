"""Known progress of incarnations: how far each had come, at least, as clients have heard from its sequencer.

A sequencer that is killed takes with it what was not stored. Its clients know better: each has heard what became of
its own pushes. They say so with every heartbeat, so that the chief that restores the run, and the journal, know how
far it had come. docs/audit.md says what becomes of it.

Layer: shared. Threads: safe without a lock: each change is one of a dict's or an attribute's, and of two at the same
time the one that is missed is made again with the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: Incarnations that are remembered, the newest ones.
MOST_INCARNATIONS = 8


@dataclass(frozen=True, slots=True)
class Known:
    """How far an incarnation came."""

    #: An entry that was decided.
    index: int = 0
    #: The steps right after an entry, and which that is: `index`, or one before it where the steps there are unknown.
    steps: Mapping[str, int] = field(default_factory=dict)
    steps_index: int = 0
    #: The sequencer itself said so when the incarnation ended: there is no later entry.
    last: bool = False

    def joined(self, other: Known) -> Known:
        """Give what both know together; where the sequencer itself said how it ended, nobody else knows more."""
        if self.last != other.last:
            return self if self.last else other
        newer = other if other.steps and other.steps_index >= self.steps_index else self
        return Known(max(self.index, other.index), newer.steps, newer.steps_index, self.last or other.last)


class KnownProgress:
    """The last decision of each incarnation that a client has heard of.

    >>> progress = KnownProgress()
    >>> progress.hear(7, Known(3, {"step": 3}, 3)), progress.hear(7, Known(2, {"step": 2}, 2))
    (True, False)
    >>> progress.of(7).steps
    {'step': 3}
    """

    def __init__(self) -> None:
        #: The newest incarnation that this process was a member of, or knows of from the run's directory: the next one
        #: has a greater number, wherever the clocks of PS tasks stand. What others say does not count.
        self.newest = 0
        self._known: dict[int, Known] = {}
        #: The last accepted push of one's own: incarnation, index, steps after it. Noted for every push; it is taken
        #: in when it is read, and before one of another incarnation is noted.
        self.own: tuple[int, int, Mapping[str, int]] = (0, 0, {})

    def take_in(self) -> None:
        """Take in the last accepted push of one's own."""
        incarnation, index, steps = self.own
        if incarnation:
            self.hear(incarnation, Known(index, steps, index))

    def hear(self, incarnation: int, news: Known) -> bool:
        """Take note of what another process knows of an incarnation; gives whether it was news."""
        known = self._known.get(incarnation)
        now = news if known is None else known.joined(news)
        if now == known:
            return False
        self._known[incarnation] = now
        if len(self._known) > MOST_INCARNATIONS:
            self._known.pop(min(list(self._known)), None)
        return True

    def ended(self, incarnation: int, index: int, steps: Mapping[str, int] | None) -> None:
        """Take note, on a PS task, of how far an incarnation came that ends now.

        Args:
            incarnation: It; 0 for none.
            index: The last entry there.
            steps: On the sequencer: the steps, after the last entry of all.
        """
        if incarnation and steps is not None:
            self.hear(incarnation, Known(index, dict(steps), index, last=True))
        elif incarnation:
            self.hear(incarnation, Known(index))

    def of(self, incarnation: int) -> Known | None:
        """Give what is known of an incarnation."""
        self.take_in()
        return self._known.get(incarnation)

    def before(self, incarnation: int) -> Mapping[int, Known]:
        """Give all that is known of incarnations before one."""
        self.take_in()
        return {number: known for number, known in list(self._known.items()) if number < incarnation}

    def all(self) -> Mapping[int, Known]:
        """Give all that is known, by incarnation."""
        self.take_in()
        return dict(self._known)

    def hear_all(self, other: KnownProgress) -> None:
        """Take note of all that another one of this process knows."""
        self.newest = max(self.newest, other.newest)
        for number, known in other.all().items():
            self.hear(number, known)
