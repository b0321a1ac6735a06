"""A client's standing in its run: its sign of life, the chief's lease, tasks and processes that are about to end.

The lowest part of `worker/client/client.py`; `worker/client/membership.py` adds the run itself.

Layer: worker. Threads: an Attendance is thread-safe.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Sequence

from globalstep.errors import OpError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.wire.told import Told
from globalstep.worker.client.candidate import Candidate
from globalstep.worker.client.control_calls import ControlCalls
from globalstep.worker.client.heartbeat import Heartbeat
from globalstep.worker.client.joined_run import Run
from globalstep.worker.client.leaving import ends_unfinished
from globalstep.worker.client.retry import POLICIES

__all__ = ["Attendance"]


class Attendance:
    """A client's standing in its run.

    Args:
        run: The run.
        calls: Makes calls to its PS tasks.
        heartbeat: Keeps the client's lease; whoever made it starts and stops it.
        task: "/job:worker/task:1"; "" where not known.

    Attributes:
        task: As given.
        leaves_lease: Whether the client gives up the chief's lease when it leaves.
        session_tasks: Names of all tasks of the ClusterSpec that run sessions; empty where not known.
    """

    def __init__(self, run: Run, calls: ControlCalls, heartbeat: Heartbeat, task: str) -> None:
        self._run = run
        self._calls = calls
        self._heartbeat = heartbeat
        self.task = task
        self.leaves_lease = False
        heartbeat.told = run.told
        self.session_tasks: Sequence[str] = ()

    def job_done(self) -> bool:
        """Whether the job has been declared done, as last heard (at most some seconds ago)."""
        return self._heartbeat.job_done

    @property
    def told(self) -> Told:
        """What this process was told of the run's decisions, in this incarnation and those before it."""
        return self._run.told

    # ---- The chief's lease -------------------------------------------------------------------

    @property
    def candidate(self) -> Candidate | None:
        """Set where this client's process may act as chief."""
        return self._heartbeat.candidate

    @candidate.setter
    def candidate(self, candidate: Candidate | None) -> None:
        if candidate is not None:
            candidate.task = candidate.task or self.task
        self._heartbeat.candidate = candidate

    @property
    def chief_term(self) -> int:
        """This client's term as chief; 0 for none."""
        return self.candidate.term if self.candidate is not None else 0

    @property
    def acting_term(self) -> int:
        """In which term this client asks for what only a chief may ask for; 0 where it never was the chief."""
        return self.candidate.acting_term if self.candidate is not None else 0

    def claim_chief(self, request: pb.ClaimChiefRequest) -> pb.ClaimChiefReply:
        """Ask for the chief's lease; see Candidate."""
        reply: pb.ClaimChiefReply = self._calls.one("ClaimChief", 0, request)
        return reply

    def say_goodbye(self) -> None:
        """Tell every PS task that this client leaves, and whether that is because of an exception on its way."""
        unfinished = self._run.haste.asked or ends_unfinished(sys.exc_info()[1])
        self._heartbeat.goodbye(unfinished, self.leaves_lease)

    # ---- Those who are about to end -----------------------------------------------------------

    @property
    def draining(self) -> frozenset[int]:
        """Indices of PS tasks that are about to end and wait for a checkpoint, as last heard."""
        return self._heartbeat.draining

    def take_save_asked(self) -> frozenset[int]:
        """Give the indices of PS tasks that have asked for a checkpoint, once: their write-ahead logs are long."""
        asked, self._heartbeat.save_asked = self._heartbeat.save_asked, frozenset()
        return asked

    def let_end(self, shards: Iterable[int]) -> None:
        """Tell PS tasks that are about to end that they need not wait any longer."""
        secs = POLICIES["Stop"].deadline_secs
        calls = []
        for shard in shards:
            # The process that was heard to be draining: the one in its place later is to go on.
            process = self._heartbeat.processes.get(shard, "")
            request = pb.StopRequest(force=True, process=process, chief_term=self.acting_term)
            calls.append(self._run.transports[shard].unary("Stop", request, secs))
        for call in calls:
            with contextlib.suppress(OpError):  # it ends by itself when its time is up
                call.result()

    @property
    def hurried(self) -> bool:
        """Whether the process is about to end, so that nothing is to be waited for any more."""
        return self._run.haste.asked

    def hurry(self) -> None:
        """Try no call again, and wait for no task that is silent, since the process is about to end.

        Safe in a signal handler.
        """
        self._run.haste.asked = True
