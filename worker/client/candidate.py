"""The chief's lease as workers have it: a process that may act as chief, and how a client asks for its lease.

PS task 0 gives the chief's lease (`ps/members/chief_lease.py`); docs/design/life-of-a-run.md, "The chief's lease", has
the rules. The client's heartbeat keeps it.

Layer: worker. Threads: a Candidate and a ChiefLeaseClient are thread-safe.
"""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING

from globalstep.cluster.cluster import is_chief
from globalstep.cluster.process_place import Process, is_gone, this_process
from globalstep.cluster.run_identity import TAKE_OVER_HOW, RunIdentity, other_run, takes_over
from globalstep.errors import AbortedError, FailedPreconditionError, OpError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import Clock

if TYPE_CHECKING:
    from globalstep.worker.client.calls import ControlCalls
    from globalstep.worker.client.client import ClusterClient
    from globalstep.worker.client.heartbeat import Heartbeat

_POLL_SECS = 0.2


class Candidate:
    """A process that may act as chief. It outlives the sessions, and the clients, of its process.

    Args:
        task: Name of its task, "/job:worker/task:1"; "" where it has none.
        failover_secs: It asks for the chief's lease when its holder has been silent for so long; None for a chief that
            takes it at once, even from another holder.
        configured: Whether it is the cluster's own chief, which gets a lease at once that no task has held.

    Attributes:
        id: Who this is, new with every process.
        task: As given; a session that learns its task later sets it.
        failover_secs: As given.
        configured: As given.
        take_over: Whether it takes the chief's lease from its present holder, as GLOBALSTEP_TAKE_OVER says.
        beside: Whether the chief's lease was not given because another task of this one's job has it, which says that
            it is the chief, too.
        term: Its term as chief; 0 while it is none, or was replaced.
        acting_term: The term in which it acts, or acted last: what only a chief may ask for is asked in this one. One
            that has heard that it was replaced asks for it no more; what was on its way by then is refused by its term.
        known_term: The greatest term that it knows of, its own or another's.
        due: Whether it is time to ask for the chief's lease, as last heard.
    """

    def __init__(self, task: str = "", failover_secs: float | None = None, configured: bool = False) -> None:
        self.id = uuid.uuid4().hex
        self.task = task
        self.failover_secs = failover_secs
        self.take_over = configured and takes_over()
        self.configured = configured
        self.beside = False
        self._process = this_process()
        # Guards the attributes below; a leaf.
        self._lock = threading.Lock()
        self.term = self.acting_term = 0
        self._lease = pb.ChiefLease()
        self._contested = False
        self.due = False
        self.known_term = 0

    def know(self, term: int) -> None:
        """Take note of a term that a chief has, or had: PS task 0 hears of it, and gives greater ones only."""
        with self._lock:
            self.known_term = max(self.known_term, term)

    @property
    def chief(self) -> str:
        """The name of the acting chief, as last heard; "" for none."""
        return self._lease.task or self._lease.holder

    @property
    def holder(self) -> str:
        """The acting chief, with its process."""
        return f"{self._lease.task or f'candidate {self._lease.holder}'} ({Process.decode(self._lease.process)})"

    def heard(self, lease: pb.ChiefLease) -> None:
        """Take note of who acts as chief."""
        with self._lock:
            self._lease = lease
            self.known_term = max(self.known_term, lease.term)
            if self.term:
                if lease.term > self.term:
                    self.term = 0
            elif self.failover_secs is not None:
                # A task that was started again does not know of a chief until that gives a sign of life.
                self.due = not lease.holder or lease.silent_secs >= self.failover_secs

    def claim(self, cluster: ClusterClient) -> bool:
        """Ask for the chief's lease, or make sure of it; says whether this is the chief.

        Raises:
            UnavailableError: If PS task 0 cannot be reached.
        """
        request = pb.ClaimChiefRequest(
            candidate=self.id,
            task=self.task,
            after_secs=self.failover_secs or 0.0,
            term=self.term,
            configured=self.configured,
            known_term=self.known_term,
            process=self._process.encode(),
            run=_run_of(cluster).encode(),
            take_over=self.take_over and not self._is_of_same_job(cluster),
        )
        reply: pb.ClaimChiefReply = cluster.chief_lease.claim(request)
        if reply.contested and is_gone(Process.decode(reply.chief.process)):
            # Seen from here: its process has ended. No candidate has to wait for what it will not say.
            request.gone = reply.chief.holder
            reply = cluster.chief_lease.claim(request)
        with self._lock:
            self.due = False
            self._lease, self._contested = reply.chief, reply.contested
            self.known_term = max(self.known_term, reply.chief.term)
            self.term = reply.chief.term if reply.granted else 0
            self.acting_term = self.term or self.acting_term
        return reply.granted

    def contend(self, cluster: ClusterClient, clock: Clock) -> bool:
        """Ask for the lease; where its holder may be dead, until it gives a sign of life or some seconds are over.

        Returns:
            Whether this is the chief; False where the holder is another task's and may keep the chief's lease, with
            `beside` set where that says as well that it is the chief.

        Raises:
            FailedPreconditionError: If the holder lives, and there can be only one: two processes are one task, or two
                tasks that are not known to be of one job say that they are the chief. Names both.
            UnavailableError: If PS task 0 cannot be reached.
        """
        began, had_term = clock.monotonic(), self.term
        if had_term and not self.claim(cluster) and self.failover_secs is not None:
            return False  # it was replaced, and goes on as a worker; else it asks anew, as one that has no term
        if self.take_over:
            self.heard(cluster.refresh()[0].chief)
        while not self.claim(cluster):
            holder = self._lease
            if not self._contested:
                return False
            if holder.silent_secs < clock.monotonic() - began:
                self.beside = self._is_of_same_job(cluster)
                if self.beside:
                    return False
                raise FailedPreconditionError(self._two_chiefs(cluster))
            clock.sleep(_POLL_SECS)
        return True

    def _is_of_same_job(self, cluster: ClusterClient) -> bool:
        """Whether the lease's holder is another task of this one's cluster, and of its run, as far as is known.

        The task of a cluster's own job "chief" is the chief, and none beside another.
        """
        holder, tasks = self._lease.task, cluster.run.session_tasks
        if self.task == holder or not {self.task, holder} <= set(tasks):
            return False
        if is_chief(self.task):
            return False
        mine, theirs = _run_of(cluster), RunIdentity.decode(self._lease.run)
        if mine.is_other(theirs):
            return False
        same_id, same_name = bool(mine.id) and mine.id == theirs.id, bool(mine.name) and mine.name == theirs.name
        return same_id or same_name or mine.directory == theirs.directory

    def _two_chiefs(self, cluster: ClusterClient) -> str:
        holder = self._lease
        mine, theirs = _run_of(cluster), RunIdentity.decode(holder.run)
        who = f"{self.holder}, chief of {theirs}"
        me = f"{self.task or f'candidate {self.id}'} ({self._process})"
        if theirs.is_other(mine) or (theirs.id != mine.id and theirs.directory != mine.directory):
            return other_run("the PS tasks", theirs, mine, [who])
        if self.task and self.task == holder.task:
            what = f"Two processes are {self.task}"
            todo = "Start each task once, or give the second one a task index of its own"
        else:
            what = "Two tasks say that they are the chief (is_chief=True)"
            todo = (
                "Give is_chief=True to one task of the job only; the others wait for it as workers. (Tasks that give "
                "the target of their gs.train.Server, which names them, may all say it)"
            )
        return (
            f"{what}: {who}, gave a sign of life {holder.silent_secs:.1f} s ago; this is {me}. Nothing was changed. "
            f"{todo}. Two jobs need PS tasks of their own. To replace the other one all the same, start this one with "
            f"{TAKE_OVER_HOW}."
        )

    def try_to_claim(self, cluster: ClusterClient) -> bool:
        """Ask for the chief's lease if that is due; where PS task 0 cannot be asked, it is not given.

        Nobody asks for it whose job is done: its chief has left it, and there is nothing left for another one to do.
        """
        # The client hears of the end of its job before, or with, its chief's leaving.
        if self.term or not self.due or cluster.job_done():
            return False
        try:
            return self.claim(cluster)
        except OpError:
            return False

    def confirm(self, cluster: ClusterClient, above: int = 0) -> None:
        """Make sure that this still is the chief, before something that only a chief may do.

        Args:
            cluster: A client of the PS tasks.
            above: A term found elsewhere: one that is not smaller is needed.

        Raises:
            AbortedError: If it has been replaced.
        """
        self.know(above)
        if not self.claim_holds(cluster):
            why = f": {self._lease.why}" if self._lease.why else ""
            raise AbortedError(f"This task has been replaced as chief, by {self.chief or 'no task yet'}{why}.")

    def claim_holds(self, cluster: ClusterClient) -> bool:
        """Say whether this is the chief, without asking for the chief's lease if it is not."""
        return bool(self.term) and self.claim(cluster)


def _run_of(cluster: ClusterClient) -> RunIdentity:
    """Give the run that a client takes part in, or means to."""
    run: RunIdentity = cluster.run.identity if cluster.run.identity.id else cluster.run.means
    return run


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
        """The term of this client's requests as chief; 0 where it never was the chief."""
        return self.candidate.acting_term if self.candidate is not None else 0

    def claim(self, request: pb.ClaimChiefRequest) -> pb.ClaimChiefReply:
        """Ask for the lease; see Candidate."""
        reply: pb.ClaimChiefReply = self._calls.one("ClaimChief", 0, request)
        return reply
