"""The client of a cluster: what a session, a saver or a tool uses to talk to the PS tasks.

Layer: worker. Threads: a ClusterClient is thread-safe; it takes one push, pull or snapshot at a time, and
owns a heartbeat thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from globalstep.cluster.run_policy import RunPolicy
from globalstep.errors import AbortedError, FailedPreconditionError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.runtime.metrics_port import can_be_open, port_of_environ
from globalstep.testing.faulty_transport import with_faults
from globalstep.testing.planned_faults import faults_of_this_process
from globalstep.wire.declarations import Push, Read
from globalstep.wire.transports import known_target, transports_to
from globalstep.wire.wire_options import WireOptions
from globalstep.worker.client.membership import RETRY_SECS, Membership
from globalstep.worker.client.own_clients import note_client
from globalstep.worker.client.snapshot import Snapshot
from globalstep.worker.protocol.gradient_room import GradientRoom
from globalstep.worker.protocol.push_result import PushResult
from globalstep.worker.protocol.row_merging import RowMerging
from globalstep.worker.protocol.splitting import whole_name

__all__ = ["ClusterClient", "connect"]

Array = npt.NDArray[Any]


class ClusterClient(Membership):
    """A member of a run that reads and changes its values. Make one with `connect`. Thread-safe.

    Arguments and attributes are those of Membership.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Used under _lock.
        self._rows = RowMerging(self._variables)
        self._room = self._protocol.messages.room = GradientRoom(self._run.transports)

    @property
    def closed(self) -> bool:
        """Whether this client has left."""
        return self._closed

    def pull(self, reads: Sequence[Read]) -> list[Array]:
        """Read values, all in one cut.

        Args:
            reads: Variables, or rows of them.

        Returns:
            Arrays, in order; not to be written to.

        Raises:
            FailedPreconditionError: For a Variable that has no value yet.
            AbortedError: If the run's incarnation is over.
        """
        with self._lock:
            self._learn(read.variable for read in reads)
            return self._rows.pull(reads, self._pull_stored)

    def push(self, push: Push) -> PushResult:
        """Push changes, exactly once; see PushProtocol.push."""
        with self._lock:
            try:
                if self._protocol.messages.remembers(push):
                    return self._push_stored(push)  # it has no rows that could be merged
                self._learn([op.variable for op in push.ops] + [read.variable for read in push.reads])
                return self._rows.push(push, self._push_stored)
            finally:
                self._room.forget()

    def room(self, variables: Sequence[str]) -> list[Array]:
        """Give arrays to write the gradients of the next push into, where the PS tasks will read them.

        With a PS task on this machine that saves a copy of every gradient. Ask anew for every push, write all of
        each array, and push them as dense gradients of these Variables: in it they are used up, and the values
        that come back may lie in their place, so an array that was pushed is not to be written to again.

        Args:
            variables: Names of declared Variables, each once.

        Returns:
            Arrays in order, each of its Variable's dtype and shape; what they contain is undefined.

        Raises:
            FailedPreconditionError: For a Variable that is not declared.
        """
        with self._lock:
            self._learn(variables)
            return self._room.arrays(variables, self.incarnation, self._variables, self._run.where)

    def send_ahead(self, layout: object, variable: str, gradient: Array) -> None:
        """Send a gradient before its push: see worker/protocol/gradients_ahead.py. Waits while another call is made.

        Args:
            layout: Of the push that is to bring it.
            variable: Whose gradient it is.
            gradient: It; must not change any more.
        """
        with self._lock:
            self._protocol.messages.send_ahead(layout, variable, gradient)

    def _pull_stored(self, reads: Sequence[Read]) -> list[Array]:
        """Read Variables as the PS tasks store them. Caller holds the lock."""
        if not self._splitter:
            return self._protocol.pull(reads)
        stored, joins = self._splitter.split_reads(reads)
        found = iter(self._protocol.pull(stored))
        return [join(found) for join in joins]

    def _push_stored(self, push: Push) -> PushResult:
        """Change Variables as the PS tasks store them. Caller holds the lock."""
        stored, joins = self._splitter.split_push(push)
        result = self._protocol.push(stored)
        if joins is not None and result.values:
            found = iter(result.values)
            result.values = [join(found) for join in joins]
        return result

    def _learn(self, names: Any) -> None:
        """Ask the PS tasks where Variables are that this client has not heard of."""
        unknown = next((name for name in names if name not in self._run.where), None)
        if unknown is not None or not self._run.incarnation:
            statuses = self.refresh()
            if unknown is not None and unknown not in self._run.where:
                if self._run.incarnation and any(status.incarnation != self._run.incarnation for status in statuses):
                    raise AbortedError("A PS task lost its state; wait until the chief has restored the run.")
                raise FailedPreconditionError(f"Attempting to use uninitialized value {unknown}")

    def uninitialized(self) -> list[str]:
        """Names of declared Variables that have no value yet."""
        missing = [name for status in self.refresh() for name in status.uninitialized]
        return list(dict.fromkeys(whole_name(name) for name in missing))

    def global_steps(self) -> dict[str, int]:
        """The authoritative value of every step, this client's own pushes included."""
        with self._lock:
            if not self._run.incarnation:
                self.refresh()
            request = pb.GetGlobalStepRequest(incarnation=self._run.incarnation, floors=self._protocol.floors)
            return dict(self._calls.one("GetGlobalStep", self._run.sequencer, request).steps)

    def snapshot(self) -> Snapshot:
        """Take a consistent cut of all shards; use it in a `with` block.

        Pushes, of this client too, wait only until the cut is taken. Another thread may write the snapshot
        while this one goes on.
        """
        with self._lock:
            if not self._run.incarnation:
                self.refresh()
            return Snapshot(self._protocol, self._calls, self._journal_index)

    def read_journal(self, request: pb.ReadJournalRequest, deadline_secs: float) -> pb.ReadJournalReply:
        """Ask the sequencer for what it has written down of pushes; see chief/journal/journal_keeping.py.

        Other calls of this client do not wait for it.
        """
        request.client = self.client_id
        reply: pb.ReadJournalReply = self._calls.one("ReadJournal", self._run.sequencer, request, deadline_secs)
        return reply

    def close(self) -> None:
        """Leave the run; see Membership.close. Nothing of the PS tasks' shared memory stays referred to here."""
        with self._lock:
            self._room.close()
            self._protocol.messages.start_over()
        super().close()

    @property
    def retries(self) -> dict[str, int]:
        """How often a call was tried again so far, by RPC; "Exchange" is all of the data plane."""
        counts = self._calls.count.view()
        exchanged = self._protocol.count.view()
        return {**counts, **exchanged}

    @property
    def traffic(self) -> tuple[int, int]:
        """Tensor bytes sent and received so far."""
        return self._protocol.bytes_sent, self._protocol.bytes_received


def connect(
    target: str = "",
    *,
    task: str = "",
    transport: str | None = None,
    clock: Clock = SYSTEM_CLOCK,
    retry_secs: float = RETRY_SECS,
    policy: RunPolicy | None = None,
    wire: WireOptions | None = None,
) -> ClusterClient:
    """Become a client of the PS tasks of a target.

    Args:
        target: As for transports.transports_to.
        task: "/job:worker/task:1", so that others can name this process; default what a Server's target knows.
        transport: What carries values and gradients: see transports.chosen_transport.
        clock: Time.
        retry_secs: How long an unreachable PS task is tried.
        policy: Of the runs that it begins.
        wire: How its numbers cross the wire.

    Returns:
        The client; close it.
    """
    transports = with_faults(transports_to(target, transport), faults_of_this_process())
    known = known_target(target)
    task = task or known.task
    client = ClusterClient(transports, task=task, clock=clock, retry_secs=retry_secs, policy=policy, wire=wire)
    client.session_tasks = known.session_tasks
    if target:
        note_client(known.target, client)
    if can_be_open(port := port_of_environ()):
        from globalstep.worker.metrics import watch

        watch(client, port)
    return client
