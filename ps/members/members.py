"""Members: the clients of a run and their leases, the chief's lease, and whether this task is about to leave.

Pure of I/O: time comes from a clock.

Layer: ps.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from globalstep.ps.budget import Budget
from globalstep.ps.members.chief_lease import ChiefLease, ChiefLeaseView, Claim
from globalstep.ps.members.presence import ClientView, LostClient, Presence
from globalstep.runtime.clock import Clock
from globalstep.wire.known_progress import KnownProgress


class Members:
    """The members of a shard's run. Thread-safe: every public method takes the shard's lock.

    Args:
        clock: Tells how long clients have been silent.
        lock: The shard's.
        budget: What is remembered of clients is claimed from it.

    Attributes:
        presence: The clients and their leases. Guarded by the lock.
        lease: The chief's. Guarded by the lock.
        known_progress: How far incarnations came, as far as clients, and this task itself, know. Thread-safe.
    """

    def __init__(self, clock: Clock, lock: threading.Lock, budget: Budget) -> None:
        self._lock = lock
        self.presence = Presence(clock, budget)
        self.lease = ChiefLease(clock)
        self.known_progress = KnownProgress()
        self._draining = False

    def clients(self) -> list[ClientView]:
        """Clients with a live lease."""
        with self._lock:
            return self.presence.clients()

    def claim_chief(self, claim: Claim, term: int) -> tuple[bool, ChiefLeaseView, bool]:
        """Give the chief's lease, or take a sign of life of who holds it in `term`; see ChiefLease.

        Once the job is done, nobody takes a chief's place: there is nothing left to do, and the PS tasks end.

        Returns:
            Whether the caller has it, who has it, and whether the caller would get it if that one stayed silent.
        """
        with self._lock:
            self.lease.adopt(claim.known_term)
            if self.presence.finished and claim.after_secs and not term:
                return False, self.lease.view(), False
            granted = self.lease.claim_or_sign(claim, term)
            return granted, self.lease.view(), not (term or granted) and self.lease.contests(claim)

    def check_chief(self, term: int) -> None:
        """Refuse a chief that has been replaced; see ChiefLease.check."""
        with self._lock:
            self.lease.check(term)

    def find_losses(self) -> list[LostClient]:
        """Give the clients whose lease has run out since this was last asked."""
        with self._lock:
            return self.presence.find_losses()

    def trained(self, task: str) -> tuple[Mapping[str, int], int, Mapping[str, int]]:
        """Give what a task has trained in this incarnation; see Presence.trained."""
        with self._lock:
            return self.presence.trained(task)

    def drain(self) -> None:
        """Say from now on that this task is about to end, so that the chief saves a checkpoint before."""
        with self._lock:
            self._draining = True

    @property
    def draining(self) -> bool:
        """Whether this task is about to end."""
        return self._draining
