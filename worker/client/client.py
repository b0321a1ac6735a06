"""The client of a cluster: what a session, a saver or a tool uses to talk to the PS tasks.

A ClusterClient reads and changes values; its parts know the run (`run_view.py`), take part in it (`membership.py`),
hold the chief's lease (`chief_lease.py`) and keep the client's own (`heartbeat.py`).

Layer: worker. Threads: a ClusterClient is thread-safe; it takes one push, pull or snapshot at a time, and
owns a heartbeat thread.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload

import numpy.typing as npt

from globalstep.cluster.run_policy import RunPolicy
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import SYSTEM_CLOCK, Clock
from globalstep.runtime.faults import planned_faults
from globalstep.runtime.log_format import write_to_stderr
from globalstep.runtime.memory import seal
from globalstep.security.client_ids import new_client_id
from globalstep.wire.declarations import Push, Read
from globalstep.wire.transports import Transport, known_target, transports_to
from globalstep.wire.wire_options import WireOptions
from globalstep.worker.client.calls import ControlCalls, Retrying
from globalstep.worker.client.candidate import ChiefLeaseClient
from globalstep.worker.client.heartbeat import Heartbeat
from globalstep.worker.client.joined_run import JoinedRun
from globalstep.worker.client.leaving import note_client
from globalstep.worker.client.membership import Membership
from globalstep.worker.client.run_view import RunView
from globalstep.worker.protocol.push_protocol import PushProtocol
from globalstep.worker.protocol.push_result import PushResult
from globalstep.worker.protocol.row_merging import MergedReads, RowMerging
from globalstep.worker.protocol.splitting import Join

if TYPE_CHECKING:
    from globalstep.worker.client.queue_calls import QueueCalls
    from globalstep.worker.client.snapshot import Snapshot
    from globalstep.worker.protocol.push_messages import Split
    from globalstep.worker.protocol.pushes_in_flight import PushesInFlight, PushTicket
    from globalstep.worker.waits.asking import Ways
    from globalstep.worker.waits.bounded_lead import BoundedLead
    from globalstep.worker.waits.contributing import Contributing

Array = npt.NDArray[Any]
_P = TypeVar("_P")

_log = logging.getLogger("globalstep")

#: How long an unreachable PS task is tried before the session gets the error.
RETRY_SECS = 30.0


class JournalStore(Protocol):
    """Stores what the sequencer has written down; see globalstep.chief.journal.journal_keeping. Thread-safe."""

    @property
    def stored_index(self) -> int:
        """The last entry that is stored."""

    def catch_up(self) -> bool:
        """Store all that there is now; gives whether that was possible."""

    def stop(self) -> None:
        """Store what there is now, and end."""


class ClusterClient:
    """A member of a run that reads and changes its values. Make one with `connect`. Thread-safe.

    Args:
        transports: To every PS task, in order.
        task: "/job:worker/task:1", so that others can name it; "" where not known.
        clock: Time.
        rng: Jitter of retries.
        retry_secs: How long an unreachable PS task is tried.
        member: Whether PS tasks are to wait for it: it keeps a lease. A tool that only looks is none.
        policy: Of the runs that it begins; the default where not given.
        wire: How its numbers cross the wire; as they are where not given.
        client_id: One that no other client ever has; by default a random one, bound to this process's session secret.

    Attributes:
        client_id: Who this is in every push id; new with every client.
        task: As given.
        closed: Whether this client has left.
        run: What it knows of the run.
        where: Declared Variable -> index of its PS task; of a split one, that of its first part, and each part's too.
        variables: Declared Variables, as this client last heard of them.
        refresh, statuses: See RunView.
        membership: Its part in the run.
        begin, declare, open, finish: See Membership.
        heartbeat: Keeps its lease, and hears how the run stands.
        chief_lease: Its way to the chief's lease.
        shutdown: Whether its process has been asked to end, so that nothing is to be waited for any more.
        journal: Where this client is the chief's: who stores the run's journal. It is stopped before the client leaves.
        queue_options: What its calls to queues are made with.
        unanswered: How many pushes may be under way that nobody waits for; set it before the first of them.
        retries: How often a call was tried again so far, by RPC; "Exchange" is all of the data plane.
    """

    def __init__(
        self,
        transports: Sequence[Transport],
        *,
        task: str = "",
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
        retry_secs: float = RETRY_SECS,
        member: bool = True,
        policy: RunPolicy | None = None,
        wire: WireOptions | None = None,
        client_id: str = "",
    ) -> None:
        write_to_stderr()
        self.client_id = client_id or new_client_id()
        self.task = task
        self.closed = False
        policy = policy or RunPolicy()
        joined = JoinedRun(self.client_id, list(transports), policy=policy)
        retrying = Retrying(retry_secs, clock, rng or random.Random())
        self._calls = ControlCalls(joined, retrying)
        self._protocol = PushProtocol(joined, retrying, wire)
        self.heartbeat = Heartbeat(joined.transports, self.client_id, task, clock)
        self.heartbeat.known_progress, self.heartbeat.shutdown = joined.known_progress, joined.shutdown
        joined.gone = self.heartbeat.gone
        self.run = RunView(joined, self._calls, self._protocol, self.heartbeat, task)
        self.where: Mapping[str, int] = joined.where
        self.variables, self.refresh, self.statuses = self.run.variables, self.run.refresh, self.run.statuses
        self._clock = clock
        self.queue_options: dict[str, Any] = {"task": task}
        # What is made when it is first asked for, by name.
        self._parts: dict[str, Any] = {}
        self.chief_lease = ChiefLeaseClient(self._calls, self.heartbeat, task)
        self.membership = Membership(self.run, self._calls, self.heartbeat, self.chief_lease, policy)
        self.begin, self.declare = self.membership.begin, self.membership.declare
        self.open, self.finish = self.membership.open, self.membership.finish
        self.shutdown = joined.shutdown
        self.journal: JournalStore | None = None
        self.retries = retrying.count
        self.unanswered = 1
        self._lock = self.run.lock
        self._later: PushesInFlight | None = None
        self._joined = joined
        # Used under _lock.
        self._splitter = self.run.splitter
        self._rows = RowMerging(self.run.variables)
        if member:
            self.heartbeat.start()

    # ---- What it knows of the run ---------------------------------------------------------------

    @property
    def incarnation(self) -> int:
        """The incarnation that this client is a member of; 0 before it knows one."""
        return self._joined.incarnation

    @property
    def shards(self) -> int:
        """The number of PS tasks."""
        return len(self._joined.transports)

    @property
    def sequencer(self) -> int:
        """Index of the PS task that orders pushes."""
        return self._joined.sequencer

    @property
    def policy(self) -> RunPolicy:
        """The run's policy; before this client knows a run, that of the runs that it begins."""
        return self._joined.policy

    def job_done(self) -> bool:
        """Whether the job has been declared done, as last heard (at most some seconds ago)."""
        return self.heartbeat.job_done

    def global_steps(self) -> dict[str, int]:
        """The authoritative value of every step, this client's own pushes included."""
        return dict(self._ask_steps("").steps)

    def trained(self) -> pb.GetGlobalStepReply:
        """The steps that this client's task has made since the run was opened, with those of earlier clients."""
        return self._ask_steps(self.task)

    def _ask_steps(self, task: str) -> pb.GetGlobalStepReply:
        self._make_ready()
        with self._lock:
            if not self._joined.incarnation:
                self.run.refresh()
            incarnation, floors = self._joined.incarnation, self._protocol.floors
            request = pb.GetGlobalStepRequest(incarnation=incarnation, floors=floors, task=task)
            reply: pb.GetGlobalStepReply = self._calls.one("GetGlobalStep", self._joined.sequencer, request)
            return reply

    def close(self) -> None:
        """Leave the run, and the chief's lease where that was asked for. Safe to call twice.

        Nothing of the PS tasks' shared memory stays referred to here. Calls to queues that wait give up. Pushes that
        were not waited for are answered before; one that has failed, and whose ticket was not asked, is named in the
        log.
        """
        if os.getpid() != self._joined.pid:  # a forked child's
            self.closed = True  # the parent goes on: its lease, threads and connections are its own
            return
        if "queues" in self._parts:
            self.queues.close()
        if self._later is not None and (error := self._later.close()) is not None:
            _log.warning("A push that was not waited for has failed: %s", error)
        with self._lock:
            self._protocol.messages.start_over()
            if self.closed:
                return
            self.closed = True
        if self.journal is not None:
            self.journal.stop()
        self.membership.leave()
        for transport in self._joined.transports:
            transport.close()

    # ---- Values ---------------------------------------------------------------------------------

    def pull(self, reads: Sequence[Read], layout: object = None, at_once: bool = False) -> list[Array]:
        """Read values, all in one consistent read.

        Args:
            reads: Variables, or rows of them.
            layout: See Push: of reads that come again and again, so that they are described once.
            at_once: Wait for no push that was not waited for.

        Returns:
            Arrays, in order; not to be written to.

        Raises:
            FailedPreconditionError: For a Variable that has no value yet.
            AbortedError: If the run's incarnation is over.
        """
        if not at_once:
            self._make_ready()
        wanted = Push(reads=reads, layout=layout)
        with self._lock:
            stored, split, joins, merged = self._stored(wanted)
            values = self._protocol.pull(stored, split)
            return values if joins is None and merged is None else self._asked(values, joins, merged)

    def _make_ready(self) -> None:
        """Refuse a forked child, and wait for the pushes that nobody waits for: what is asked next comes after them."""
        if os.getpid() != self._joined.pid:
            self._joined.check_process()
        if self._later is not None:
            self._later.wait()

    def _stored(self, push: Push) -> tuple[Push, Split | None, Sequence[Join] | None, MergedReads | None]:
        """Give a push as the PS tasks store its Variables: rows named once, Variables in parts. Caller holds the lock.

        Returns:
            It; how it divides among the tasks, where that is known; what makes the values of its reads.
        """
        stored, merged, joins = push, None, None
        split = self._protocol.messages.known(push)
        if split is None:
            self.run.require([op.variable for op in push.ops] + [read.variable for read in push.reads])
        if split is None or split.named is not None:
            stored, merged = self._rows.merge(push)
        if self._splitter.wholes:
            stored, joins = self._splitter.split_push(stored)
        return stored, split if stored is push else None, joins, merged

    def _asked(self, values: Sequence[Array], joins: Sequence[Join] | None, merged: MergedReads | None) -> list[Array]:
        """Give the values of the original reads, from the values of Variables as the PS tasks store them."""
        if joins is not None:
            stored = iter(values)
            values = [join(stored) for join in joins]
        asked = list(values) if merged is None else self._rows.answers(merged, values)
        seal(asked)
        return asked

    @overload
    def push(self, push: Push, wait: Literal[True] = True, at_once: bool = False) -> PushResult: ...
    @overload
    def push(self, push: Push, wait: Literal[False]) -> PushTicket[PushResult]: ...

    def push(self, push: Push, wait: bool = True, at_once: bool = False) -> PushResult | PushTicket[PushResult]:
        """Push changes, exactly once; see PushProtocol.push.

        Args:
            push: What changes, and what is to be read right after. Without `wait` its arrays must not change before
                it is answered.
            wait: Whether to wait for the answer. Without it the push is sent in the background, after those before it
                that were not waited for; `unanswered` of them may be under way. A pull, and a push that is waited
                for, come after all of them.
            at_once: Wait for no other worker; else as Contributing and BoundedLead say, without any lock.

        Returns:
            What came of it; without `wait` a ticket that gives it.

        Raises:
            OpError: What went wrong with it; without `wait`, with an earlier one whose ticket was not asked.
        """
        if not wait:
            self._joined.check_process()
            if self._later is None:
                from globalstep.worker.client.causes import why_pushes_wait
                from globalstep.worker.protocol.pushes_in_flight import PushesInFlight

                with self._lock:
                    self._later = self._later or PushesInFlight(self.unanswered, lambda: why_pushes_wait(self))
            return self._later.submit(lambda: self.push(push))
        self._make_ready()
        if not at_once:
            for item in push.increments:
                if item.contributions:
                    return self.contributing.contribute(push)
        with self._lock:
            stored, split, joins, merged = self._stored(push)
            result = self._protocol.push(stored, split)
            if result.values and (joins is not None or merged is not None):
                result.values = self._asked(result.values, joins, merged)
        if at_once or self._joined.max_lead is None:
            return result
        return self._bounded_lead.follow(push, result)

    def _call(self, request: pb.Request, shards: Sequence[int]) -> list[pb.Reply]:
        """Have PS tasks answer a request without data, tried again until they do; raises what a pull would."""
        with self._lock:
            replies = self._protocol.call(dict.fromkeys(shards, (request, ())))
        return [message.reply for message in replies.values() if message.reply is not None]

    def _shards_of(self, variable: str) -> Sequence[int]:
        """The PS tasks that hold a Variable, or parts of it."""
        parts = self._splitter.parts(variable)
        if parts:
            return [rows.shard for rows in parts]
        shard = self._joined.where.get(variable)
        return [] if shard is None else [shard]

    @property
    def queues(self) -> QueueCalls:
        """Its calls to queues that tasks share; the code for them is loaded with the first."""
        return self._part("queues", self._queue_calls)

    def _queue_calls(self) -> QueueCalls:
        from globalstep.worker.client.queue_calls import QueueCalls

        made = QueueCalls(self._joined, self._calls, self.heartbeat, self._clock, **self.queue_options)
        if self.closed:
            made.close()
        return made

    @property
    def contributing(self) -> Contributing:
        """Its part in steps that several workers make together."""
        return self._part("contributing", self._contributing)

    def _contributing(self) -> Contributing:
        from globalstep.worker.waits.contributing import Contributing

        return Contributing(self._ways(), self._joined, self._clock)

    @property
    def _bounded_lead(self) -> BoundedLead:
        return self._part("lead", self._lead)

    def _lead(self) -> BoundedLead:
        from globalstep.worker.waits.bounded_lead import BoundedLead

        return BoundedLead(self._ways(), self._joined, self._clock)

    def _ways(self) -> Ways:
        """Give the calls that wait for no other worker."""
        from globalstep.worker.waits.asking import Ways

        return Ways(partial(self.push, at_once=True), partial(self.pull, at_once=True), self._call, self._shards_of)

    def _part(self, name: str, make: Callable[[], _P]) -> _P:
        """Give a part of the client, made now if nobody has asked for it; of two that threads make the first counts."""
        part: _P = self._parts.get(name) or self._parts.setdefault(name, make())
        return part

    def snapshot(self) -> Snapshot:
        """Take a consistent snapshot of all shards; use it in a `with` block.

        Pushes, of this client too, wait only until it is taken. Another thread may write the snapshot
        while this one goes on.
        """
        from globalstep.worker.client.snapshot import Releases, Snapshot

        self._make_ready()
        with self._lock:
            if not self._joined.incarnation:
                self.run.refresh()
            releases = self._part("releases", Releases)
            return Snapshot(self._protocol, self._calls, releases, self.heartbeat, self._journal_index)

    @property
    def traffic(self) -> tuple[int, int]:
        """Tensor bytes sent and received so far."""
        return self._protocol.bytes_sent, self._protocol.bytes_received

    def _journal_index(self) -> int | None:
        return None if self.journal is None else self.journal.stored_index


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
    transports: Sequence[Transport] = transports_to(target, transport)
    if (planned := planned_faults()) is not None:
        transports = planned.with_faults(transports)
    place = known_target(target)
    task = task or place.task
    client = ClusterClient(
        transports,
        task=task if place.program is None else "",
        clock=clock,
        retry_secs=retry_secs,
        # A PS task waits for its clients to leave; its own program is none of them.
        member=place.program is None,
        policy=policy,
        wire=wire,
    )
    client.run.session_tasks = place.session_tasks
    # PS tasks in this process are this session's alone.
    client.run.joined.workers = len(place.session_tasks) if target else 1
    client.queue_options["shared"] = bool(target)
    if place.program is not None:
        client.queue_options |= {"while_waiting": place.program, "task": task}
    if target:
        note_client(place.target, client)
    return client
