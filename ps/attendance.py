"""Who takes part in a run: clients and their leases, the chief's office, and whether this task is about to leave.

The lowest part of the shard's state machine, with its lock; `ps/life.py` adds the run itself. Pure of I/O: time comes
from a clock.

Floor: ps.
"""

from __future__ import annotations

import threading

from globalstep.clock import Clock
from globalstep.ps.office import Office, OfficeView
from globalstep.ps.presence import ClientView, LostClient, Presence
from globalstep.told import Told

__all__ = ["Attendance"]


class Attendance:
    """Who takes part. Thread-safe: every public method takes the one lock.

    Args:
        clock: Tells how long clients have been silent.
    """

    def __init__(self, clock: Clock) -> None:
        # Guards all attributes of this class, of Life and of Shard, the presence and the office. A leaf: nothing
        # else is taken under it, and no I/O is done under it.
        self._lock = threading.Lock()
        self._clock = clock
        self.presence = Presence(clock)
        self.office = Office(clock)
        self._draining = False
        self.told = Told()  # how far incarnations came, as far as clients, and this task itself, know

    def clients(self) -> list[ClientView]:
        """Clients with a live lease."""
        with self._lock:
            return self.presence.clients()

    def claim_chief(
        self, candidate: str, task: str, after_secs: float, term: int, configured: bool, known_term: int = 0
    ) -> tuple[bool, OfficeView]:
        """Give the chief's office, or say that its holder still has it; see Office.

        Args:
            candidate: Who asks.
            task: Its name.
            after_secs: For how long the holder must have been silent.
            term: The caller's, if it holds the office; else 0.
            configured: Whether it is the cluster's own chief.
            known_term: The greatest term that the caller knows of.
        """
        with self._lock:
            self.office.adopt(known_term)
            if term:
                granted = self.office.sign(candidate, task, term)
            else:
                granted = self.office.claim(candidate, task, after_secs, configured)
            return granted, self.office.view()

    def check_chief(self, term: int) -> None:
        """Refuse a chief that has been replaced; see Office.check."""
        with self._lock:
            self.office.check(term)

    def find_losses(self) -> list[LostClient]:
        """Give the clients whose lease has run out since this was last asked."""
        with self._lock:
            return self.presence.find_losses()

    def losses_after(self, known: int) -> tuple[int, list[LostClient]]:
        """Give how many clients were lost so far, and those after the first `known`."""
        with self._lock:
            return self.presence.losses, self.presence.losses_after(known)

    def drain(self) -> None:
        """Say from now on that this task is about to end, so that the chief saves a checkpoint before."""
        with self._lock:
            self._draining = True

    @property
    def draining(self) -> bool:
        """Whether this task is about to end."""
        return self._draining
