"""Who acts as chief: the office that PS task 0 gives, to one candidate at a time, by terms.

Whoever holds it keeps it with signs of life, until it leaves, or is silent for as long as somebody who asks for the
office says. Each holder's term is greater than every one before it, so that one that was replaced while it slept is
told so when it wakes, and can be refused. The office is not stored: a task that was started again learns of it from
its holder's next sign of life, and counts the time of silence from there on. Everybody tells it of the greatest term
that he knows of, from before or from files: a clock that was set back makes no term smaller.

Pure: time comes from a clock; no lock of its own, since `ps/life.py` calls it under its lock.

Floor: ps. Single thread: the caller's.
"""

from __future__ import annotations

from dataclasses import dataclass

from globalstep.clock import Clock
from globalstep.errors import AbortedError

__all__ = ["Office", "OfficeView"]

#: Terms are milliseconds since the epoch and a few more: what is beyond this is none.
_BEYOND_TERMS = 1 << 62


@dataclass(frozen=True, slots=True)
class OfficeView:
    """Who acts as chief."""

    #: 0 while there has been no chief.
    term: int
    #: "" when the chief has left its office.
    holder: str
    task: str
    #: Since the holder was last heard of; without one, since somebody first asked.
    silent_secs: float


class Office:
    """The office of the chief.

    Args:
        clock: Tells how long its holder has been silent.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Terms of a process that was here before are smaller.
        self._next_term = int(clock.time() * 1000) + 1
        # The greatest that anybody knows of; there has been a chief with it.
        self._known_term = 0
        self._term = 0
        self._holder = ""
        self._task = ""
        self._heard: float | None = None

    def view(self) -> OfficeView:
        """Say who holds it."""
        silent_secs = 0.0 if self._heard is None else self._clock.monotonic() - self._heard
        return OfficeView(max(self._term, self._known_term), self._holder, self._task, silent_secs)

    def adopt(self, term: int) -> None:
        """Take note of a term that somebody knows of; a holder of a smaller one has it no longer, and may ask anew."""
        if not self._known_term < term < _BEYOND_TERMS:
            return
        self._known_term = term
        if 0 < self._term < term:
            self._holder = self._task = ""
            self._term = 0
            self._heard = self._clock.monotonic()

    def sign(self, candidate: str, task: str, term: int) -> bool:
        """Take note that a chief is alive; says whether it still is the chief.

        Args:
            candidate: Its id.
            task: Its name.
            term: Its term.
        """
        if term > self._term and term >= self._known_term:
            self._take(candidate, task, term)
        elif term == self._term and candidate == self._holder:
            self._heard = self._clock.monotonic()
        else:
            return False
        return True

    def claim(self, candidate: str, task: str, after_secs: float, configured: bool = False) -> bool:
        """Ask for the office; says whether the candidate has it now.

        It is given to whoever held it, to its task's next process, and to everybody else once its holder has been
        silent, or the office empty and somebody's wish, for `after_secs`. One that was left is given at once; one
        that nobody has held is given at once to the configured chief.

        Args:
            candidate: Who asks: an id of its own for each process.
            task: Its name; "" where it has none.
            after_secs: For how long the holder must have been silent.
            configured: Whether it is the cluster's own chief.
        """
        if self._heard is None:
            self._heard = self._clock.monotonic()
        if self._holder == candidate:
            self._heard = self._clock.monotonic()
            return True
        left = not self._holder and (configured or self._term > 0)
        successor = bool(task) and task == self._task
        if not (left or successor) and self._clock.monotonic() - self._heard < after_secs:
            return False
        self._take(candidate, task, max(self._term + 1, self._next_term, self._known_term + 1))
        return True

    def leave(self, candidate: str) -> None:
        """Take note that a chief gives its office up; nothing happens if it does not hold it."""
        if candidate and candidate == self._holder:
            self._holder = self._task = ""

    def check(self, term: int) -> None:
        """Refuse what a chief asks for that has been replaced; 0 is no chief's.

        Raises:
            AbortedError: If there has been a later one.
        """
        latest = max(self._term, self._known_term)
        if term and term < latest:
            raise AbortedError(
                f"This was asked by the chief of term {term}, which was silent for too long and has been replaced: "
                f"{self._task or self._holder or 'nobody'} acts as chief, in term {latest}. It goes on as a worker."
            )

    def _take(self, candidate: str, task: str, term: int) -> None:
        self._holder, self._task, self._term = candidate, task, term
        self._known_term = max(self._known_term, term)
        self._heard = self._clock.monotonic()
