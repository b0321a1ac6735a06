"""The control plane: the unary RPCs that begin, open, watch and end a run, and write snapshots.

Like `ps/service/handler.py` without a transport: messages in, messages out, errors raised.

Layer: ps. Threads: any number at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from globalstep.cluster.process_place import Process
from globalstep.cluster.run_identity import RunIdentity
from globalstep.errors import (
    AbortedError,
    FailedPreconditionError,
    InvalidArgumentError,
    PermissionDeniedError,
    UnimplementedError,
)
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.access.caller import CALLER, Role
from globalstep.ps.ledger import entries
from globalstep.ps.members.chief_lease import ChiefLeaseView, Claim
from globalstep.ps.members.presence import Standing
from globalstep.ps.service.beginning import begin_with, check_begin
from globalstep.ps.service.handler import Handler, floors_of, push_ids
from globalstep.ps.service.load_report import LoadReport
from globalstep.ps.shard import events
from globalstep.ps.shard.event_log import NO_LOG
from globalstep.ps.shard.replies import OpenStep
from globalstep.ps.store.checking import check_step_count
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.runtime.faults import AFTER, BEFORE, method_name
from globalstep.wire import codec
from globalstep.wire.progress_messages import progress_messages, read_progress
from globalstep.wire.protocol_version import check_protocol, own_protocol
from globalstep.wire.text_limits import check_texts

if TYPE_CHECKING:
    from globalstep.ps.queues.queue_service import QueueService
    from globalstep.ps.wal.durability import Durability
    from globalstep.ps.wal.log_file import LogFiles

_log = logging.getLogger(__name__)

#: Of a client that has not pushed, or where nobody waits for others: see Leads.view.
_NO_LEAD = (0, 0.0)
#: Their replies tell nothing of pushes, or only what has been on disk: they need not wait for one.
_TELL_NOTHING = ("Begin", "ClaimChief", "FindLog", "Heartbeat", "Leave", "OpenLane", "Queue", "Recover", "Stop")


@dataclass(slots=True)
class Control:
    """Carries out control-plane requests. What only some runs need is loaded with the first that does: logs, queues.

    Args:
        handler: The data plane, for Pull and Push as unary calls and for the shard.
        process: Identity of this process, new with every start.
        host: Host name.
        ended: Set when the process is to end.
        log_dir: Where write-ahead logs are; "" for the run's directory.
        log_files: Writes them; None for this machine's.
        open_lane: Makes ready for a connection beside gRPC, as SocketServer.open; None where there are none.
        recovered: Called when the task has come back from its log.
    """

    handler: Handler
    process: str
    host: str
    ended: threading.Event = field(default_factory=threading.Event)
    log_dir: str = ""
    log_files: LogFiles | None = None
    open_lane: Callable[[pb.LaneKind.ValueType, bytes], tuple[str, bytes]] | None = None
    recovered: Callable[[], object] = lambda: None

    load: LoadReport = field(init=False)
    _durability: Durability | None = field(init=False, default=None)
    _queues: QueueService | None = field(init=False, default=None)
    # One BEGIN or RECOVER at a time; taken before the shard's lock.
    _changing: threading.Lock = field(init=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.load = LoadReport(self.handler, SYSTEM_CLOCK)

    @property
    def durability(self) -> Durability:
        """The task's write-ahead logs."""
        if self._durability is None:
            from globalstep.ps.wal.durability import Durability
            from globalstep.ps.wal.log_file import LOG_FILES

            files = LOG_FILES if self.log_files is None else self.log_files
            made = Durability(self.handler, SYSTEM_CLOCK, self.log_dir, files, self._changing)
            with self._changing:
                self._durability = self._durability or made
        return self._durability

    @property
    def queues(self) -> QueueService:
        """The queues that tasks share here."""
        if self._queues is None:
            from globalstep.ps.queues.queue_service import QueueService

            members, shard = self.handler.shard.members, self.handler.shard
            made = QueueService(
                self.process, lambda: {view.client for view in members.clients()}, SYSTEM_CLOCK, self.handler.budget
            )
            made.begin(shard.view(brief=True).run.id)
            with self._changing:
                self._queues = self._queues or made
        return self._queues

    def call(self, method: str, request: Any) -> Any:
        """Carry out the unary RPC `method` of the service.

        Raises:
            GlobalStepError: What went wrong; nothing was changed.
        """
        check_texts(request)
        name = method_name(method)
        self.handler.faults.at(BEFORE, name)
        log = self.handler.shard.log
        reply = getattr(self, f"_{method}")(request)
        if method not in _TELL_NOTHING and not (method == "Status" and not reply.incarnation):
            self.handler.shard.secure(log)
        self.handler.faults.at(AFTER, name)
        return reply

    def brief_status(self) -> pb.StatusReply:
        """Say what this task is and has counted, without its Variables."""
        reply: pb.StatusReply = self.call("Status", pb.StatusRequest(brief=True))
        return reply

    def _Status(self, request: pb.StatusRequest) -> pb.StatusReply:  # noqa: N802 - the RPC's own name
        if not request.brief:
            check_protocol(request.protocol, "this PS task", "the client")
        shard = self.handler.shard
        view = shard.view(request.brief)
        bytes_in, bytes_out = self.handler.traffic.view()
        counted, leads, absence = view.statistics, shard.handle(events.GetLeads()), shard.attendance()[2]
        reply = pb.StatusReply(
            state=int(view.state),  # type: ignore[arg-type]
            incarnation=view.incarnation,
            shard=view.shard,
            shards=view.shards,
            sequencer=view.sequencer,
            variables=[codec.encode_variable(decl) for decl in view.variables],
            optimizers=[codec.encode_optimizer(decl) for decl in view.optimizers],
            uninitialized=view.uninitialized,
            steps=view.steps,
            limits=view.limits,
            applied=view.applied,
            floors=[pb.Floor(shard=shard, index=index) for shard, index in enumerate(view.floors) if index],
            clients=[
                pb.ClientInfo(
                    client=item.client,
                    task=item.task,
                    silent_secs=item.silent_secs,
                    pushes=item.pushes,
                    staleness=item.staleness,
                    staleness_sum=item.staleness_sum,
                    process=item.standing.process.encode(),
                    takes_task=item.standing.takes_task,
                    joined_secs=item.joined_secs,
                    run=item.standing.run.id,
                    lead=leads.get(item.client, _NO_LEAD)[0],
                    waited_secs=leads.get(item.client, _NO_LEAD)[1],
                )
                for item in shard.members.clients()
            ],
            to_come=absence.to_come,
            gone=absence.gone,
            owner=view.owner,
            process=self.process,
            spent_incarnations=shard.spent_incarnations,
            host=self.host,
            policy=codec.encode_policy(view.policy),
            directory=view.directory,
            draining=view.draining,
            chief=_lease(view.chief),
            told=progress_messages(shard.members.known_progress),
            protocol=own_protocol(),
            open_steps=[_open_step(item) for item in shard.handle(events.GetOpenSteps())],
            run=view.run.encode(),
            statistics=pb.Statistics(
                secs=view.secs,
                accepted=counted.accepted,
                ordered_reads=counted.ordered_reads,
                refused=counted.refused,
                dropped_stale=counted.dropped_stale,
                dropped_nan=counted.dropped_nan,
                duplicates=counted.duplicates,
                applied=counted.applied,
                apply_secs=counted.apply_secs,
                bytes_in=bytes_in,
                bytes_out=bytes_out,
                staleness=counted.staleness,
                staleness_sum=counted.staleness_sum,
                staleness_squares=counted.staleness_squares,
                contributions=counted.contributions,
                late=counted.late,
                made=counted.made,
                waited=counted.waited,
                waited_secs=counted.waited_secs,
                lead_waits=counted.lead_waits,
                lead_wait_secs=counted.lead_wait_secs,
            ),
        )
        self.load.fill(reply, request.brief)
        if self._queues is not None:
            reply.queues.extend(self._queues.infos())
        return reply

    def _Begin(self, request: pb.BeginRequest) -> pb.Done:  # noqa: N802
        self.handler.shard.members.check_chief(request.chief_term)
        if self._durability or request.directory or self.log_dir or request.policy.durability == "log":
            incarnation, owner = self.durability.begin(request)
        else:
            incarnation, owner = self._begin_without_log(request)
        if (incarnation, owner) != (request.incarnation, request.owner):
            raise AbortedError(
                f"BEGIN of incarnation {request.incarnation} on PS task {request.shard}: client {owner} began "
                f"incarnation {incarnation}, which is in force. Join that one."
            )
        if self._queues is not None:
            self._queues.begin(request.run.id)
        return pb.Done()

    def _begin_without_log(self, request: pb.BeginRequest) -> tuple[int, str]:
        """Begin an incarnation of a run that has no directory, and so no log; see Durability.begin."""
        shard = self.handler.shard
        with self._changing:
            present = shard.view(brief=True)
            check_begin(request, shard)
            if request.incarnation <= present.incarnation:
                return present.incarnation, present.owner
            return begin_with(request, shard, present, NO_LOG)

    def _Declare(self, request: pb.DeclareRequest) -> pb.Done:  # noqa: N802
        authorization, caller = self.handler.authorization, CALLER.get()
        check_step_count(sum(item.is_step for item in request.variables))
        try:
            self.handler.shard.handle(
                events.Declare(
                    request.incarnation,
                    request.client,
                    [codec.decode_variable(item) for item in request.variables],
                    [codec.decode_optimizer(item) for item in request.optimizers],
                    authorization.restricts(caller),
                )
            )
        except PermissionDeniedError as error:
            raise authorization.denied(caller, f"declare: {error}") from None
        return pb.Done()

    def _Open(self, request: pb.OpenRequest) -> pb.Done:  # noqa: N802
        self.handler.shard.members.check_chief(request.chief_term)
        limits, run = codec.decode_limits(request), RunIdentity.decode(request.run)
        self.handler.shard.handle(events.Open(request.incarnation, request.client, limits, run))
        if self._durability is not None:
            self._durability.opened()
        return pb.Done()

    def _Heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatReply:  # noqa: N802
        if not request.client:
            raise InvalidArgumentError("A Heartbeat must name its client.")
        shard = self.handler.shard
        # Who may not be chief neither ends a chief's term, nor says how far incarnations came.
        known_term = request.known_term if CALLER.get().may_be_chief else 0
        run = RunIdentity.decode(request.run)
        process = Process.decode(request.process)
        line = CALLER.get().line
        token = line.name if line is not None else ""
        standing = Standing(process, request.takes_task, run, request.candidate, request.chief_term, known_term, token)
        heartbeat = events.Heartbeat(request.client, request.task, request.lease_secs, standing)
        state, incarnation, chief = shard.handle(heartbeat)
        if CALLER.get().may_be_chief:
            read_progress(shard.members.known_progress, request.told)
        reply = pb.HeartbeatReply(
            process=self.process,
            state=int(state),  # type: ignore[arg-type]
            incarnation=incarnation,
            draining=shard.members.draining,
            chief=_lease(chief),
        )
        if request.chief_term:
            reply.save_asked = self._durability is not None and self._durability.asks_for_save()
        return reply

    def _ClaimChief(self, request: pb.ClaimChiefRequest) -> pb.ClaimChiefReply:  # noqa: N802
        if not request.candidate:
            raise InvalidArgumentError("A ClaimChief must name its candidate.")
        claim = Claim(
            request.candidate,
            request.task,
            request.after_secs,
            request.configured,
            Process.decode(request.process),
            RunIdentity.decode(request.run),
            request.gone,
            request.take_over,
            request.known_term,
        )
        granted, chief, contested = self.handler.shard.members.claim_chief(claim, request.term)
        return pb.ClaimChiefReply(granted=granted, chief=_lease(chief), contested=contested)

    def _Leave(self, request: pb.LeaveRequest) -> pb.Done:  # noqa: N802
        self.handler.shard.handle(
            events.Leave(request.client, request.candidate, request.task, request.unfinished, request.chief_term)
        )
        if self._queues is not None:
            self._queues.left(request.client, not request.unfinished)
        self._end_log()
        return pb.Done()

    def _end_log(self) -> None:
        if self._durability is not None:
            self._durability.end()

    def _Finish(self, request: pb.EndRequest) -> pb.FinishReply:  # noqa: N802
        self.handler.shard.members.check_chief(request.chief_term)
        finish = events.Finish(request.incarnation, request.client, self._not_meant(request.process))
        remaining = self.handler.shard.handle(finish)
        self._end_log()
        return pb.FinishReply(remaining=remaining)

    def _not_meant(self, process: str) -> str:
        """Say for which other process a call is meant; "" for this one."""
        if process == self.process:
            return ""
        return (
            f"the call is meant for the process {process or 'that it does not name'}, and this is {self.process}. "
            "A task was started again since; ask it for its Status."
        )

    def _OpenLane(self, request: pb.OpenLaneRequest) -> pb.OpenLaneReply:  # noqa: N802
        if self.open_lane is None:
            raise UnimplementedError("This PS task has no transports but gRPC.")
        address, token = self.open_lane(request.kind, request.unused)
        return pb.OpenLaneReply(address=address, token=token)

    def _GetGlobalStep(self, request: pb.GetGlobalStepRequest) -> pb.GetGlobalStepReply:  # noqa: N802
        floors = floors_of(request.floors)
        reply = pb.GetGlobalStepReply(steps=self.handler.shard.handle(events.GetSteps(request.incarnation, floors)))
        if request.task:
            opened_with, reply.pushes, last_steps = self.handler.shard.members.trained(request.task)
            reply.opened_with.update(opened_with)
            reply.last_steps.update(last_steps)
        return reply

    def _Settle(self, request: pb.SettleRequest) -> pb.ShardEntries:  # noqa: N802
        resolve = events.Resolve(request.incarnation, push_ids(request.pushes), request.shard, request.applied)
        found = self.handler.shard.handle(resolve)
        floors = self.handler.shard.view(brief=True).floors
        floor = floors[request.shard] if request.shard < len(floors) else 0
        return pb.ShardEntries(shard=request.shard, entries=map(entries.encode, found), floor=floor)

    def _ReadJournal(self, request: pb.ReadJournalRequest) -> pb.ReadJournalReply:  # noqa: N802
        shard = self.handler.shard
        # Asked first: who comes after that comes later than the records that follow.
        alone = shard.moves_no_more(request.client)
        part = shard.handle(
            events.ReadJournal(
                request.incarnation,
                request.client,
                request.life,
                request.position,
                request.known_clients,
                request.after_index,
                request.max_records,
            )
        )
        view = shard.view(brief=True)
        return pb.ReadJournalReply(
            life=part.life,
            first=part.first,
            end=part.end,
            records=part.records,
            clients=[pb.ClientInfo(client=client, task=task) for _, client, task in part.clients],
            first_client=part.clients[0][0] if part.clients else 0,
            steps=part.steps,
            begin_index=part.begin_index,
            begin_steps=part.begin_steps,
            parent=part.parent,
            shards=view.shards,
            policy=codec.encode_policy(view.policy),
            told=progress_messages(shard.members.known_progress),
            alone=alone,
        )

    def _WriteSnapshot(self, request: pb.WriteSnapshotRequest) -> pb.WriteSnapshotReply:  # noqa: N802
        self.handler.shard.members.check_chief(request.chief_term)
        snapshot = codec.decode_push_id(request.snapshot)
        values, _ = self.handler.shard.handle(events.ReadSnapshot(request.incarnation, snapshot))
        from globalstep.ps.service.snapshot_writing import write_snapshot

        written = write_snapshot(request, values)
        if written is None:
            return pb.WriteSnapshotReply(shared=False)
        if self._durability is not None and written.keeps_names:
            self._durability.written(snapshot, written.path, written.tensors)
        return written.reply

    def _ReleaseSnapshot(self, request: pb.ReleaseSnapshotRequest) -> pb.Done:  # noqa: N802
        snapshot = codec.decode_push_id(request.snapshot)
        stored = request.journal_index if request.HasField("journal_index") else None
        if self._durability is not None:
            self._durability.releasing(request.incarnation, snapshot, stored)
        self.load.releasing(request.incarnation, snapshot)
        self.handler.shard.handle(events.Release(request.incarnation, snapshot))
        return pb.Done()

    def _FindLog(self, request: pb.LogRequest) -> pb.FindLogReply:  # noqa: N802
        found = self.durability.find(request.directory, request.shard, request.shards, request.run)
        return pb.FindLogReply(sequencers=found)

    def _Recover(self, request: pb.LogRequest) -> pb.RecoverReply:  # noqa: N802
        reply = self.durability.recover(request)
        self.recovered()
        return reply

    def _Queue(self, request: pb.QueueRequest) -> pb.QueueReply:  # noqa: N802
        return self.queues.call(request, CALLER.get().role is Role.WORKER)

    def _Stop(self, request: pb.EndRequest) -> pb.Done:  # noqa: N802
        shard = self.handler.shard
        shard.members.check_chief(request.chief_term)
        not_meant = self._not_meant(request.process)
        if (request.process or request.force) and not_meant:
            raise FailedPreconditionError(f"This PS task does not end: {not_meant}")
        if request.force and not (shard.members.draining or shard.done):
            raise FailedPreconditionError(
                "This PS task does not end: the job is not done, and no client asked it to end."
            )
        if not request.force and not shard.done:
            raise FailedPreconditionError(
                "The job is not done; a PS task that is draining ends with `force` and the name of its `process`."
            )
        self.ended.set()
        return pb.Done()


def _open_step(item: OpenStep) -> pb.OpenStep:
    return pb.OpenStep(
        step=item.step,
        base=item.base,
        contributions=item.contributions,
        wanted=item.wanted,
        open_secs=item.open_secs,
        waits_for=dict(item.waits_for),
    )


def _lease(view: ChiefLeaseView) -> pb.ChiefLease:
    return pb.ChiefLease(
        term=view.term,
        holder=view.holder,
        task=view.task,
        silent_secs=view.silent_secs,
        process=view.process.encode(),
        run=view.run.encode(),
        why=view.why,
    )
