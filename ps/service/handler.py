"""From messages to the shard's state machine and back: every RPC, without a transport.

The gRPC servicer and the in-process transport both call it, so no behaviour depends on the transport.

Layer: ps. Threads: any number at once; the shard's lock orders them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from globalstep.errors import GlobalStepError, InvalidArgumentError, ResourceExhaustedError, code_of
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.access.caller import Caller, Everybody, Role, TokenRevokedError
from globalstep.ps.aggregates.step_waits import OpenCall, ServedLine, StepWaits, await_slower
from globalstep.ps.budget import RETRY_SECS, Account, Budget, ReplyMemory
from globalstep.ps.ledger import entries
from globalstep.ps.ledger.ledger import EntryKind
from globalstep.ps.ledger.signatures import Floor
from globalstep.ps.service.packed_data import pack_reply, unpack_request
from globalstep.ps.service.push_decoding import Decision, counting_push, decision_of, parts_of
from globalstep.ps.shard import events
from globalstep.ps.shard.event_log import NO_LOG
from globalstep.ps.shard.layouts import LayoutMemory, PushParts
from globalstep.ps.shard.replies import Answer
from globalstep.ps.shard.shard import Shard
from globalstep.ps.shard.statistics import Traffic
from globalstep.runtime.faults import AFTER, BEFORE, NO_FAULTS, ConnectionCutError, Faults
from globalstep.wire import codec
from globalstep.wire.codec import TensorWriter
from globalstep.wire.declarations import ALIGNMENT, PushId, Read, padded
from globalstep.wire.text_limits import check_texts

if TYPE_CHECKING:
    from globalstep.ps.access.authorization import Authorization

_NO_PARTS = PushParts()
#: Characters of an error's text.
_MOST_SAID = 4096


class Handler:
    """Carries out requests on a shard.

    Args:
        shard: The state machine.
        faults: What a test makes fail.
        limit_bytes: Largest tensor bytes of one message, unpacked.

    Attributes:
        shard, faults: As given.
        authorization: Who may do what; everybody everything, until a server says otherwise.
        traffic: Counts the tensor bytes of all requests and replies.
        step_waits: Calls that wait for a step.
    """

    def __init__(self, shard: Shard, faults: Faults = NO_FAULTS, limit_bytes: int = 16 << 30) -> None:
        self.shard = shard
        self._limit_bytes = limit_bytes
        self.authorization: Authorization | Everybody = Everybody()
        self.traffic = Traffic()
        self.faults = shard.resources.faults = faults
        self.step_waits = StepWaits(shard, _encode_answer)
        self._methods: dict[str, Callable[[Any, memoryview, pb.Reply, TensorWriter, LayoutMemory], object]] = {
            "pull": self._pull,
            "stage": self._stage,
            "commit": self._commit,
            "await_slower": lambda *given: await_slower(self.shard, *given),
        }
        # They may have to wait.
        self._waiting_methods: dict[str, Callable[[Any, memoryview, pb.Reply, TensorWriter, OpenCall], None]] = {
            "await_step": self.step_waits.await_step,
            "push": self._push,
        }

    @property
    def budget(self) -> Budget:
        """What is kept for callers is claimed from it."""
        return self.shard.resources.budget

    def account(self, caller: Caller) -> Account:
        """Make an account of a caller; it bears the client's id as soon as that is known."""
        return Account(self.budget, str(caller), caller.role is Role.WORKER)

    def stream_memory(self, caller: Caller) -> LayoutMemory:
        """Make the memory of a new stream of a caller."""
        account = self.account(caller)
        return LayoutMemory(ReplyMemory(account), ReplyMemory(account), account, caller)

    def begin(
        self,
        request: pb.Request,
        data: memoryview,
        memory: LayoutMemory,
        shared: bool = False,
        line: ServedLine | None = None,
        number: int = 0,
    ) -> tuple[pb.Reply, list[memoryview]] | None:
        """Carry out a data-plane request.

        Args:
            request: The message.
            data: Bytes of its tensors.
            memory: What its stream remembers.
            shared: The client may write to `data` at any time.
            line: Its connection; None for one on which no call waits without a thread.
            number: Of the call on its connection.

        Returns:
            The reply and the bytes of its tensors; an error is a reply too, and has changed nothing unless
            a test injected it after the fact. None where the call is parked: `finish` gives its reply.

        Raises:
            ConnectionCutError: If a test ends the connection here.
            TokenRevokedError: If the connection is to be ended, since its token is none any more.
        """
        method = request.WhichOneof("kind") or ""
        tensors = TensorWriter()
        self.traffic.arrive()
        bytes_out, call = 0, None
        try:
            plain, waiting = self._methods.get(method), self._waiting_methods.get(method)
            if plain is None and waiting is None:
                raise InvalidArgumentError("A Request must hold one of the data-plane messages.")
            if data.nbytes % ALIGNMENT:
                raise InvalidArgumentError(
                    f"A message has {data.nbytes} bytes of data; every tensor must be padded to {ALIGNMENT} bytes."
                )
            if self.faults is not NO_FAULTS:
                self.faults.at(BEFORE, method)
            reply, message = pb.Reply(), getattr(request, method)
            check_texts(message)
            if memory.caller.role is not None:
                self.authorization.check_request(memory.caller, request)
            log = self.shard.now.log
            own = not (shared and log.keeps_data)  # what is logged must be what was checked and applied
            unpacked = data
            if request.spans or not own:
                unpacked = unpack_request(request, data, memory, self.shard.value_bytes, self._limit_bytes, own)
            if waiting is not None:
                call = OpenCall(request, memory, line, number)
                waiting(message, unpacked, reply, tensors, call)
                if call.parked is not None:
                    return None
            elif plain is not None:
                plain(message, unpacked, reply, tensors, memory)
            pieces = tensors.pieces
            if pieces and request.reply_form != pb.FORM_RAW:
                pieces = pack_reply(request, reply, tensors, memory.account)
            if not (log is self.shard.now.log is NO_LOG):
                self.shard.secure(log)
            bytes_out = sum(padded(piece.nbytes) for piece in pieces) if reply.spans else tensors.size
            if self.faults is not NO_FAULTS:
                self.faults.at(AFTER, method)
        except (ConnectionCutError, TokenRevokedError):
            raise
        except Exception as error:
            bytes_out = 0
            return pb.Reply(error=encode_error(error)), []
        finally:
            self.traffic.leave(data.nbytes, bytes_out)
        return reply, pieces

    def finish(self, call: OpenCall) -> tuple[pb.Reply, list[memoryview]]:
        """Give the reply to a call that was parked, and is resumed; raises as `begin`."""
        assert call.parked is not None
        assert call.parked.make is not None
        tensors, reply = TensorWriter(), pb.Reply()
        self.traffic.arrive()
        bytes_out = 0
        try:
            log = self.shard.log
            call.parked.make(reply, tensors)
            pieces = pack_reply(call.request, reply, tensors, call.memory.account)
            self.shard.secure(log)
            bytes_out = sum(padded(piece.nbytes) for piece in pieces) if reply.spans else tensors.size
        except Exception as error:
            bytes_out = 0
            return pb.Reply(error=encode_error(error)), []
        finally:
            self.traffic.leave(0, bytes_out)
        return reply, pieces

    def counts(self, request: pb.Request, memory: LayoutMemory) -> bool:
        """Whether a request is a push that only counts, of a layout that its stream knows: one for `count`."""
        message = request.push
        if not message.known_layout or message.others or not memory.only_counts(message.layout):
            return False
        return not self.authorization.revoked(memory.caller)

    def count(self, asked: Sequence[tuple[pb.Request, LayoutMemory]]) -> list[pb.Reply]:
        """Carry out such requests of several streams together; gives their replies, as `begin` would."""
        try:
            for _ in asked:
                self.traffic.arrive()
            return self._count(asked)
        except Exception as error:
            return [pb.Reply(error=encode_error(error)) for _ in asked]
        finally:
            for _ in asked:
                self.traffic.leave(0, 0)

    def _count(self, asked: Sequence[tuple[pb.Request, LayoutMemory]]) -> list[pb.Reply]:
        replies = [pb.Reply() for _ in asked]
        pushes: dict[int, events.Push] = {}
        log = self.shard.log
        for at, (request, memory) in enumerate(asked):
            try:
                check_texts(request.push)
                self.authorization.check_request(memory.caller, request)
                pushes[at] = counting_push(request.push, memory)
            except GlobalStepError as error:
                replies[at].error.CopyFrom(encode_error(error))
        for at, found in zip(pushes, self.shard.handle(events.CountTogether(list(pushes.values()))), strict=True):
            if isinstance(found, Exception):
                replies[at].error.CopyFrom(encode_error(found))
            else:
                codec.encode_outcome(found, replies[at].push.outcome)
        self.shard.secure(log)
        return replies

    def _decision(self, message: pb.PushRequest, caller: Caller) -> Decision:
        """Decode a decision, and refuse one that the caller may not ask for."""
        increments, uses = decision_of(message, self.shard)
        if self.authorization.restricts(caller):
            wrong = self.shard.undeclared(increments, uses)
            if wrong:
                raise self.authorization.denied(caller, f"{wrong} (--no-worker-assigns)")
        return increments, uses

    # ---- Data plane ---------------------------------------------------------------------------

    def _pull(
        self, message: pb.PullRequest, data: memoryview, reply: pb.Reply, tensors: TensorWriter, memory: LayoutMemory
    ) -> None:
        parts = parts_of(message, data, memory, self.shard)
        if message.HasField("snapshot"):
            _pull_snapshot(self.shard, message, parts.reads, reply.pull, tensors)
            return
        floors = floors_of(message.floors) if message.floors else None
        buffer, layout = memory.buffer, parts.layout
        pull = events.Pull(message.incarnation, message.client, parts.reads, floors, buffer, layout, parts.known)
        if message.cut_with:
            pull.shards = message.cut_with
        answer = self.shard.handle(pull)
        if answer.last:
            reply.pull.last.update(answer.last)
        if memory.told is not None:
            memory.remember()
        reply.pull.applied = answer.applied
        if answer.reads:
            _encode_answer(answer, reply.pull, tensors)

    def _push(
        self, message: pb.PushRequest, data: memoryview, reply: pb.Reply, tensors: TensorWriter, call: OpenCall
    ) -> None:
        memory = call.memory
        decision = None if message.known_layout else self._decision(message, memory.caller)
        parts = parts_of(message, data, memory, self.shard, decision)
        parts.buffer = memory.buffer
        known: Any = parts.layout or parts.rows
        increments, uses = decision or (known.increments, known.uses)
        push = codec.decode_push_id(message.id)
        event = events.Push(
            message.incarnation, push, parts, increments, uses, dict(message.seen_steps), not_finite=message.not_finite
        )
        if message.others:
            event.others, event.floors = sorted(set(message.others)), floors_of(message.floors)
            event.others_read = message.others_read
        if message.snapshot:
            event.kind, event.parts = EntryKind.SNAPSHOT, _NO_PARTS
        admission = self.shard.handle(event)
        if memory.told is not None:
            memory.remember()
        codec.encode_outcome(admission.outcome, reply.push.outcome)
        for shard, pending in admission.pending.items():
            reply.push.pending.add(shard=shard, entries=map(entries.encode, pending))
        reply.push.as_of, reply.push.apply_micros = admission.answer.as_of, admission.answer.apply_secs * 1e6
        _encode_answer(admission.answer, reply.push, tensors)
        if message.patience_ms:
            self.step_waits.await_made(increments, parts, reply, tensors, call)

    def _stage(
        self, message: pb.StageRequest, data: memoryview, reply: pb.Reply, tensors: TensorWriter, memory: LayoutMemory
    ) -> None:
        parts = parts_of(message, data, memory, self.shard)
        parts.buffer = memory.later
        push = codec.decode_push_id(message.id)
        event = events.Stage(message.incarnation, push, parts, message.step, message.unit)
        reply.stage.not_finite = self.shard.handle(event)
        reply.stage.SetInParent()
        if memory.told is not None:
            memory.remember()

    def _commit(
        self, message: pb.CommitRequest, data: memoryview, reply: pb.Reply, tensors: TensorWriter, memory: LayoutMemory
    ) -> None:
        decided = list(map(entries.decode, message.entries))
        answer = self.shard.handle(events.Commit(message.incarnation, codec.decode_push_id(message.id), decided))
        reply.commit.as_of, reply.commit.applied = answer.as_of, answer.applied
        reply.commit.signature, reply.commit.apply_micros = answer.signature, answer.apply_secs * 1e6
        _encode_answer(answer, reply.commit, tensors)


def _pull_snapshot(
    shard: Shard, message: pb.PullRequest, reads: Sequence[Read], reply: pb.PullReply, tensors: TensorWriter
) -> None:
    snapshot = codec.decode_push_id(message.snapshot)
    values, ledger = shard.handle(events.ReadSnapshot(message.incarnation, snapshot))
    missing = [read.variable for read in reads if read.variable not in values]
    if missing:
        raise InvalidArgumentError(f"The snapshot does not hold {missing}: they had no value.")
    if any(read.indices is not None for read in reads):
        raise InvalidArgumentError("A snapshot is read by whole Variables, not by rows.")
    reply.SetInParent()
    if not reads:
        reply.ledger = ledger()
    codec.encode_values([values[read.variable] for read in reads], reply.values, tensors)


def encode_error(error: Exception) -> pb.Error:
    """Write an error for the wire; one that is not ours says so, since it is a bug here."""
    text = str(error) if isinstance(error, (GlobalStepError, ValueError)) else f"{type(error).__name__}: {error}"
    if len(text) > _MOST_SAID:  # it may name what the client sent
        text = f"{text[:_MOST_SAID]}..."
    retry_secs = error.retry_secs if isinstance(error, ResourceExhaustedError) else 0.0
    if isinstance(error, MemoryError):
        text, retry_secs = "This PS task's machine has no memory for this now. Give it more.", RETRY_SECS
    return pb.Error(
        code=code_of(error), message=text, type=type(error).__name__, retry_millis=math.ceil(retry_secs * 1000)
    )


def _encode_answer(answer: Answer, into: Any, tensors: TensorWriter) -> None:
    """Write the reads of a push: listed, or only their bytes where the receiver knows their places."""
    if answer.packing is None:
        codec.encode_values(answer.values, into.values, tensors)
        return
    packed = tensors.size
    for piece in answer.values:
        tensors.add_bytes(piece)
    if answer.packing.known:
        into.bare = True
        return
    for dtype, shape, offset in answer.packing.places:
        into.values.add(dtype=dtype, shape=shape, offset=packed + offset)


def floors_of(floors: Iterable[pb.Floor]) -> Mapping[int, Floor]:
    """Read what shards are said to have applied."""
    return {floor.shard: Floor(floor.index, floor.signature) for floor in floors}


def push_ids(messages: Iterable[pb.PushId]) -> list[PushId]:
    """Read push ids."""
    return [codec.decode_push_id(message) for message in messages]
