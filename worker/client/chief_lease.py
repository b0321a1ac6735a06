"""The chief's lease as a client has it: who of its process asks for it, and in which term it acts.

PS task 0 gives the lease (`ps/members/chief_lease.py`), a Candidate says what its process knows of it, and the
client's heartbeat keeps it.

Layer: worker. Threads: a ChiefLeaseClient is thread-safe.
"""

from __future__ import annotations

from globalstep.proto import globalstep_pb2 as pb
from globalstep.worker.client.calls import ControlCalls
from globalstep.worker.client.candidate import Candidate
from globalstep.worker.client.heartbeat import Heartbeat

__all__ = ["ChiefLeaseClient"]


class ChiefLeaseClient:
    """Asks for the chief's lease, for a candidate that outlives the client.

    Args:
        calls: Makes calls to the PS tasks.
        heartbeat: Of the client; keeps the lease, and hears who has it.
        task: "/job:worker/task:1"; "" where not known.

    Attributes:
        given_up_on_leaving: Whether the client gives up the lease when it leaves the run.
    """

    def __init__(self, calls: ControlCalls, heartbeat: Heartbeat, task: str) -> None:
        self._calls = calls
        self._heartbeat = heartbeat
        self._task = task
        self.given_up_on_leaving = False

    @property
    def candidate(self) -> Candidate | None:
        """Set where this client's process may act as chief."""
        return self._heartbeat.candidate

    @candidate.setter
    def candidate(self, candidate: Candidate | None) -> None:
        if candidate is not None:
            candidate.task = candidate.task or self._task
        self._heartbeat.candidate = candidate

    @property
    def term(self) -> int:
        """This client's term as chief; 0 for none."""
        return self.candidate.term if self.candidate is not None else 0

    @property
    def acting_term(self) -> int:
        """In which term this client asks for what only a chief may ask for; 0 where it never was the chief."""
        return self.candidate.acting_term if self.candidate is not None else 0

    def claim(self, request: pb.ClaimChiefRequest) -> pb.ClaimChiefReply:
        """Ask for the lease; see Candidate."""
        reply: pb.ClaimChiefReply = self._calls.one("ClaimChief", 0, request)
        return reply
