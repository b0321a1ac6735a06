"""The chief's lease, which PS task 0 gives to one candidate at a time, by terms.

Its holder keeps it with signs of life, until it leaves, or is silent for as long as a candidate that asks for the
lease says. Each holder's term is greater than every one before it, so that one that was replaced while it slept
hears so when it wakes, and can be refused. The chief's lease is not stored: a task that was started again learns of it
from its holder's next sign of life, and counts the time of silence from there on. Every client tells it of the greatest
term that he knows of, from before or from files: a clock that was set back makes no term smaller.

Pure: time comes from a clock; no lock of its own, since `ps/shard/life_cycle.py` calls it under its lock.

Layer: ps. Single thread: the caller's.
"""

from __future__ import annotations

from dataclasses import dataclass

from globalstep.cluster.process_place import ALIVE_SECS, NO_PROCESS, Process
from globalstep.cluster.run_identity import NO_RUN, TAKE_OVER_VARIABLE, RunIdentity
from globalstep.errors import AbortedError
from globalstep.runtime.clock import Clock

#: Terms are milliseconds since the epoch and a few more: what is beyond this is none.
_BEYOND_TERMS = 1 << 62


@dataclass(frozen=True, slots=True)
class ChiefLeaseView:
    """The holder of the chief's lease."""

    #: 0 while there has been no chief.
    term: int
    #: "" when the chief has left its lease.
    holder: str
    task: str
    #: Since the holder was last heard of; without one, since a candidate first asked.
    silent_secs: float
    #: The holder's.
    process: Process = NO_PROCESS
    run: RunIdentity = NO_RUN
    #: How it came to the chief's lease, for people.
    why: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """A candidate's request for the chief's lease."""

    #: An id of its own for each process.
    candidate: str
    #: "" where it has none.
    task: str = ""
    #: For how long the holder must have been silent.
    after_secs: float = 0.0
    #: Whether it is the cluster's own chief.
    configured: bool = False
    process: Process = NO_PROCESS
    run: RunIdentity = NO_RUN
    #: Id of a holder whose process the caller has seen to be gone.
    gone: str = ""
    #: The user wants it at once, even from a process that still has it.
    take_over: bool = False
    #: The greatest term that it knows of.
    known_term: int = 0


class ChiefLease:
    """The chief's lease.

    Args:
        clock: Tells how long its holder has been silent.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Terms of a process that was here before are smaller.
        self._next_term = int(clock.time() * 1000) + 1
        # The greatest that any client knows of; there has been a chief with it.
        self._known_term = 0
        self._term = 0
        self._holder = ""
        self._task = ""
        self._heard: float | None = None
        self._process = Process()
        self._run = RunIdentity()
        self._why = ""

    def view(self) -> ChiefLeaseView:
        """Say who holds it."""
        silent_secs = 0.0 if self._heard is None else self._clock.monotonic() - self._heard
        term = max(self._term, self._known_term)
        return ChiefLeaseView(term, self._holder, self._task, silent_secs, self._process, self._run, self._why)

    def adopt(self, term: int) -> None:
        """Take note of a term that a client knows of; a holder of a smaller one has it no longer, and may ask anew."""
        if not self._known_term < term < _BEYOND_TERMS:
            return
        self._known_term = term
        if 0 < self._term < term:
            self._holder = self._task = ""
            self._term = 0
            self._heard = self._clock.monotonic()

    def sign(
        self, candidate: str, task: str, term: int, process: Process = NO_PROCESS, run: RunIdentity = NO_RUN
    ) -> bool:
        """Take note that a chief is alive; says whether it still is the chief.

        Args:
            candidate: Its id.
            task: Its name.
            term: Its term.
            process: Its process.
            run: The run that it is chief of.
        """
        if term > self._term and term >= self._known_term:
            self._take(Claim(candidate, task, process=process, run=run), term, "it had the chief's lease already")
        elif term == self._term and candidate == self._holder:
            self._heard = self._clock.monotonic()
            self._run = run if run.id else self._run
        else:
            return False
        return True

    def claim(self, claim: Claim) -> bool:
        """Ask for the chief's lease; says whether the candidate has it now.

        It is given to its former holder, to the same process, and to every other candidate once its holder has been
        silent, or the chief's lease empty and a candidate's wish, for `after_secs`. One that was left, or whose holder
        is gone, is given at once; one that was never held is given at once to the configured chief. A chief that would
        not wait (`after_secs` 0), and the next process of the holder's task, is given it once the holder has given no
        sign of life for ALIVE_SECS: see `contests`.
        """
        now = self._clock.monotonic()
        if self._heard is None:
            self._heard = now
        if self._holder == claim.candidate:
            self._heard = now
            return True
        why = self._why_free(claim, now - self._heard)
        if why:
            self._take(claim, max(self._term + 1, self._next_term, self._known_term + 1), why)
        return bool(why)

    def claim_or_sign(self, claim: Claim, term: int) -> bool:
        """Take a claim for a sign of life where it names a term; see `claim` and `sign`."""
        if term:
            return self.sign(claim.candidate, claim.task, term, claim.process, claim.run)
        return self.claim(claim)

    def contests(self, claim: Claim) -> bool:
        """Say whether a claim that was not granted will be, if the holder stays silent for ALIVE_SECS."""
        return bool(self._holder) and (not claim.after_secs or self._is_task_of_holder(claim))

    def _is_task_of_holder(self, claim: Claim) -> bool:
        return bool(claim.task) and claim.task == self._task

    def _why_free(self, claim: Claim, silent_secs: float) -> str:
        """Say why the chief's lease may be given to a candidate, for people; "" where it may not."""
        if not self._holder and claim.configured and not self._term:
            return "no task had it"
        if not self._holder and self._term:
            return "the one before had left"
        if not self._holder:
            return f"no task had it for {silent_secs:.0f} s" if silent_secs >= claim.after_secs else ""
        before = f"the one before, {self._task or self._holder} ({self._process})"
        if claim.take_over:
            return f"it was taken from {before} on request ({TAKE_OVER_VARIABLE})"
        if claim.process and claim.process == self._process:
            return "its process had it already"
        if claim.gone == self._holder:
            return f"{before}, was gone"
        due = ALIVE_SECS if self.contests(claim) else claim.after_secs
        return f"{before}, had been silent for {silent_secs:.0f} s" if silent_secs >= due else ""

    def leave(self, candidate: str, term: int = 0) -> None:
        """Take note that a chief gives its lease up; nothing happens if it does not hold it, or in another term.

        Args:
            candidate: Its id.
            term: Which term it leaves; 0 where that is not known.
        """
        if candidate and candidate == self._holder and term in (0, self._term):
            self._holder = self._task = ""

    def check(self, term: int) -> None:
        """Refuse what a chief asks for that has been replaced; 0 is no chief's.

        Raises:
            AbortedError: If there has been a later one.
        """
        latest = max(self._term, self._known_term)
        if term and term < latest:
            raise AbortedError(
                f"This was asked by the chief of term {term}, which has been replaced: "
                f"{self._task or self._holder or 'no task'} acts as chief, in term {latest}; "
                f"{self._why or 'a client has reported that term'}."
            )

    def _take(self, claim: Claim, term: int, why: str) -> None:
        self._holder, self._task, self._term = claim.candidate, claim.task, term
        self._process, self._run, self._why = claim.process, claim.run, why
        self._known_term = max(self._known_term, term)
        self._heard = self._clock.monotonic()
