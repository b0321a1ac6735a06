"""The client's side of docs/design/push-protocol.md: push; stage, admit, commit, complete; and votes.

Layer: worker. Threads: a PushProtocol takes one push at a time; its owner's lock sees to that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

import numpy.typing as npt

from globalstep.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    LayoutUnknownError,
    NotFoundError,
    OpError,
    ResourceExhaustedError,
)
from globalstep.proto import globalstep_pb2 as pb
from globalstep.wire import codec
from globalstep.wire.codec import TensorWriter
from globalstep.wire.declarations import Outcome, OutcomeKind, Push, PushId, Read
from globalstep.wire.message import Message
from globalstep.wire.transports import Ticket, Transport
from globalstep.wire.wire_options import WireOptions
from globalstep.worker.client.calls import RETRIED, Retrying
from globalstep.worker.client.joined_run import JoinedRun
from globalstep.worker.client.retry import Retry
from globalstep.worker.protocol.error_feedback import Rest
from globalstep.worker.protocol.push_messages import PIGGYBACK_BYTES, Part, PushMessages
from globalstep.worker.protocol.push_result import Applied, PushResult

__all__ = ["PushByVotes", "PushProtocol"]

Array = npt.NDArray[Any]
#: A request and the bytes of its tensors.
_Sent = tuple[pb.Request, Sequence[memoryview]]

#: How often values of several shards are asked for at once before they are read as of a place in the sequence.
_READ_TRIES = 2
#: What a message of which no other shard's part waits is tried again after.
_RETRIED_PATIENTLY = (*RETRIED, ResourceExhaustedError)

#: What the sequencer answers to an ADMIT that it has not decided, and will not: it fences the push.
_REFUSES_ADMIT = (InvalidArgumentError, FailedPreconditionError, NotFoundError)


#: After a push that was not decided by votes, votes are not asked for so long: at first, and at most.
_FIRST_PAUSE_SECS = 0.05
_LONGEST_PAUSE_SECS = 5.0
_NO_PART = Part()


class PushProtocol:
    """Pushes and pulls, retried until they are answered.

    Args:
        run: Whose facts it uses; shared with the client.
        retrying: Tries its calls again.
        wire: How numbers cross the wire; as they are where not given.

    Attributes:
        bytes_sent: Tensor bytes of all requests, for statistics.
        bytes_received: Tensor bytes of all replies.
        run: As given.
        clock: Its time.
        messages: Puts its pushes into messages.
    """

    def __init__(self, run: JoinedRun, retrying: Retrying, wire: WireOptions | None = None) -> None:
        self.run = run
        self._retrying = retrying
        self.clock = retrying.clock
        self.messages = PushMessages(run, wire or WireOptions())
        self._packing = self.messages.packing
        self._sequence = 0
        # The newest floor of each shard, in its own signed word, to be passed on to the sequencer.
        self._floors: dict[int, pb.Floor] = {}
        self._by_votes = PushByVotes(self)
        self.bytes_sent = 0
        self.bytes_received = 0

    def beside(self, transports: Sequence[Transport] | None = None) -> PushProtocol:
        """Make one for calls of another thread, which shares nothing with this one but the client's name.

        Args:
            transports: Its transports; the same by default.

        Returns:
            A protocol for the run as it is known now; whatever this one learns later, it does not.
        """
        own = self.run.transports if transports is None else transports
        run = replace(self.run, transports=own, where=dict(self.run.where))
        return PushProtocol(run, self._retrying.beside(), self._packing.options)

    @property
    def floors(self) -> list[pb.Floor]:
        """What the shards are known to have applied, as messages."""
        return list(self._floors.values())

    def start_over(self) -> None:
        """Forget what belonged to another incarnation."""
        self._floors.clear()
        self.messages.start_over()

    # ---- Calls --------------------------------------------------------------------------------

    def call(self, requests: Mapping[int, _Sent], patient: bool = True, raises: bool = True) -> dict[int, Message]:
        """Send requests to several shards at once and wait for all replies; retry each that is not reached.

        Args:
            requests: Shard -> message and the bytes of its tensors.
            patient: Try again what a task had no memory for, too.
            raises: Raise the first error; else give each in the place of its shard's reply.

        Returns:
            Shard -> its reply.

        Raises:
            OpError: The first error that a shard answered; the others have been waited for.
        """
        packs = self._packing.active
        tickets: dict[int, Ticket] = {}
        for shard, (request, pieces) in requests.items():
            if packs:
                self._packing.ask(request)
            for piece in pieces:
                self.bytes_sent += piece.nbytes
            tickets[shard] = self.run.transports[shard].send(request, pieces)

        def again(shard: int) -> Ticket:
            return self.run.transports[shard].send(*requests[shard])

        def retry(shard: int) -> Retry:
            kind = requests[shard][0].WhichOneof("kind")
            return self._retrying.retry(f"{kind} to {self.run.transports[shard].label}")

        retried = _RETRIED_PATIENTLY if patient else RETRIED
        replies = self._retrying.outcomes(tickets, self.run, again, retry, retried)
        failed: Exception | None = None
        for shard, message in replies.items():
            if isinstance(message, Exception):
                failed, message = failed or message, None
                continue
            self.bytes_received += message.data.nbytes
            if packs:
                replies[shard] = self._packing.unpack(message)
        try:
            if raises and failed is not None:
                raise failed
            return replies
        finally:
            del failed, replies, tickets  # see ControlCalls.each

    def pull(self, reads: Sequence[Read]) -> list[Array]:
        """Read values of all shards in one consistent read."""
        shards = {self.messages.shard_of(read.variable) for read in reads}
        if not shards:
            return []
        if len(shards) > 1:
            tries = (self._pull_at_once(reads, shards) for _ in range(_READ_TRIES))
            return next(filter(None, tries), None) or self.push(Push(reads=list(reads))).values
        shard = shards.pop()
        return self._pulled(self.call({shard: self._pulling(reads)})[shard])

    def _pull_at_once(self, reads: Sequence[Read], shards: set[int]) -> list[Array] | None:
        """Ask all shards at the same time; gives None where pushes came between, and the values are not consistent."""
        asked = sorted(shards | {self.run.sequencer})
        wanted: dict[int, list[Read]] = {shard: [] for shard in asked}
        for read in reads:
            wanted[self.run.where[read.variable]].append(read)
        replies = self.call({shard: self._pulling(part, asked) for shard, part in wanted.items()})
        decided = replies[self.run.sequencer].reply
        assert decided is not None
        for shard in shards - {self.run.sequencer}:
            reply = replies[shard].reply
            assert reply is not None
            if shard not in decided.pull.last or reply.pull.applied != decided.pull.last[shard]:
                return None
        return self.messages.in_order(reads, {shard: self._pulled(replies[shard]) for shard in shards})

    def _pulling(self, reads: Sequence[Read], cut_with: Sequence[int] = ()) -> _Sent:
        """Write a PULL for one shard."""
        tensors, request = TensorWriter(), pb.Request()
        pull, run = request.pull, self.run
        pull.incarnation, pull.client = run.incarnation, run.client
        pull.cut_with.extend(cut_with)
        if not cut_with:  # its steps are as admitted, whatever is known to be applied
            pull.floors.extend(self._floors.values())
        for read in reads:
            codec.encode_read(read, pull.reads.add(), tensors)
        return request, tensors.pieces

    def _pulled(self, message: Message) -> list[Array]:
        """Read the answer to one."""
        assert message.reply is not None
        return [codec.decode_tensor(item.value, message.data) for item in message.reply.pull.values]

    # ---- Pushes -------------------------------------------------------------------------------

    def push(self, push: Push) -> PushResult:
        """Do a push: exactly once, whatever has to be retried on the way.

        Raises:
            UnavailableError: If a task could not be reached for the retry limit; the push may yet have been
                applied, once.
            AbortedError: If the run's incarnation is over.
            OpError: If the push was wrong; nothing was changed.
        """
        rest: Rest = {}
        if self._packing.active:
            push, rest = self._packing.thin(push)
        retry: Retry | None = None
        while True:
            self._sequence += 1
            push_id, shard = PushId(self.run.client, self._sequence), self.run.sequencer
            known = self.messages.known(push)
            parts = self.messages.split(push) if known is None else known.parts
            try:
                if not parts.keys() <= {shard}:
                    result = self._push_together(push_id, push, parts)
                else:  # the sequencer is the only participant: one message each way
                    part, began = parts.get(shard, _NO_PART), self.clock.monotonic()
                    try:
                        reply = self.call({shard: self._whole(push_id, push, part)})[shard]
                    except LayoutUnknownError:
                        reply = self.call({shard: self._whole(push_id, push, part, afresh=True)})[shard]
                    assert reply.reply is not None
                    answer = reply.reply.push
                    applied = _applied_of(shard, answer, 0.0, self.clock.monotonic() - began)
                    values = self.messages.values(push, shard, answer, reply.data)
                    result = PushResult(codec.decode_outcome(answer.outcome), values, applied)
                    accepted = result.outcome.kind is OutcomeKind.ACCEPTED
                    if accepted and len(values) < len(part.reads) and not push.patience_ms:
                        # A shard that has taken this client for gone since gives none on a retry.
                        result.values = self.push(Push(reads=push.reads)).values
            except ResourceExhaustedError as error:
                retry = retry or self._retrying.retry("push")
                retry.wait(self.run.recover_from(error, self.run.sequencer))
                continue
            except OpError:
                # What was wrong may be corrected, under the same layout.
                self.messages.forget(push.layout)
                raise
            if rest and result.outcome.kind is OutcomeKind.ACCEPTED:
                self._packing.keep(rest)
            # Only a worker that slept until its parts in doubt were resolved gets this outcome: it pushes anew.
            if result.outcome.kind is not OutcomeKind.ABANDONED:
                self.run.known_progress.outcome(self.run.incarnation, result.outcome.index, result.outcome.steps)
                return result

    def _whole(self, push_id: PushId, push: Push, part: Part, afresh: bool = False) -> _Sent:
        """Write a PUSH for the sequencer."""
        shard, request = self.run.sequencer, pb.Request()
        message = request.push
        message.incarnation = self.run.incarnation
        message.id.client, message.id.sequence = push_id.client, push_id.sequence
        pieces = self.messages.encode(message, push, shard, part, afresh)
        if self._packing.active:
            pieces = self._packing.pack(request, pieces)
        if not message.known_layout:
            message.increments.extend(codec.encode_increments(push.increments))
            message.uses.extend(codec.encode_use(use) for use in push.uses)
        message.seen_steps.update(push.seen_steps)
        if push.patience_ms:
            message.patience_ms = push.patience_ms
            message.knows_places = self.messages.knows_places(push, shard)
        return request, pieces

    def _push_together(self, push_id: PushId, push: Push, parts: Mapping[int, Part]) -> PushResult:
        """Several participants: by votes; or stage everywhere, have it admitted, tell the others."""
        if self._by_votes.is_open():
            result = self._by_votes.push(push_id, push, parts)
            if result is not None:
                return result

        def staging(shard: int, afresh: bool) -> _Sent:
            return self.staging(push_id, push, shard, parts[shard], afresh)

        began = self.clock.monotonic()
        requests = {shard: staging(shard, False) for shard in parts}
        own = self._piggybacked(requests)
        try:
            try:
                taken = self.call(requests, patient=False)
            except LayoutUnknownError:
                taken = self.call({shard: staging(shard, True) for shard in requests}, patient=False)
        except ResourceExhaustedError:
            # Parts that wait elsewhere for the one that found no memory would keep others' parts out meanwhile.
            _withdraw(self.run.transports, self.run.incarnation, push_id, requests)
            raise
        not_finite = _not_finite_in(taken.values())
        participants = list(parts)
        staged = self.clock.monotonic() - began
        others = [shard for shard in participants if shard != self.run.sequencer]
        try:
            try:
                admitted = self.admit(push_id, pb.ENTRY_PUSH, participants, push, not_finite, own)
            except LayoutUnknownError:
                again = staging(self.run.sequencer, True)
                admitted = self.admit(push_id, pb.ENTRY_PUSH, participants, push, not_finite, again)
        except _REFUSES_ADMIT:
            _withdraw(self.run.transports, self.run.incarnation, push_id, others)
            raise
        decided = self.clock.monotonic() - began
        assert admitted.reply is not None
        outcome = codec.decode_outcome(admitted.reply.admit.outcome)
        if outcome.kind is not OutcomeKind.ACCEPTED:
            _withdraw(self.run.transports, self.run.incarnation, push_id, others)
            return PushResult(outcome)
        applied = _applied_of(self.run.sequencer, admitted.reply.admit, staged, decided)
        committed = self.commit(push_id, admitted, participants)
        done = self.clock.monotonic() - began
        for shard, reply in committed.items():
            assert reply.reply is not None
            applied += _applied_of(shard, reply.reply.commit, decided, done)
        return self.gathered(push, parts, outcome, {self.run.sequencer: admitted} | committed, applied)

    def staging(self, push_id: PushId, push: Push, shard: int, part: Part, afresh: bool = False) -> _Sent:
        """Write a STAGE."""
        request = pb.Request()
        request.stage.incarnation = self.run.incarnation
        request.stage.id.client, request.stage.id.sequence = push_id.client, push_id.sequence
        pieces = self.messages.encode(request.stage, push, shard, part, afresh)
        return request, self._packing.pack(request, pieces) if self._packing.active else pieces

    def gathered(
        self,
        push: Push,
        parts: Mapping[int, Part],
        outcome: Outcome,
        answers: Mapping[int, Message],
        applied: list[Applied],
    ) -> PushResult:
        """Give the result of a push that was accepted: its values, from the answers of all participants."""
        found: dict[int, list[Array]] = {}
        # A shard that has given its values before, in a reply that was lost, gives those of now; one that has taken
        # this client for gone since gives none.
        as_of: dict[int, int] = {}
        for shard, message in answers.items():
            assert message.reply is not None
            answer = message.reply.admit if message.reply.HasField("admit") else message.reply.commit
            found[shard] = self.messages.values(push, shard, answer, message.data)
            as_of[shard] = answer.as_of
        places = [as_of[shard] for shard, part in parts.items() if part.reads]
        if 0 in places or (len(places) > 1 and any(place != outcome.index for place in places)):
            # Values of several places in the sequence are not consistent: read again.
            return PushResult(outcome, self.push(Push(reads=push.reads)).values, applied)
        return PushResult(outcome, self.messages.gather(push, found), applied)

    def _piggybacked(self, requests: dict[int, _Sent]) -> _Sent | None:
        """Take the sequencer's part out of what is to be staged if it is to come with ADMIT: a message less.

        A large part is sent at the same time as the others', unless it lies in memory that the sequencer sees.
        """
        own = requests.get(self.run.sequencer)
        if own is None or self._packing.active:
            return None
        if sum(piece.nbytes for piece in own[1]) <= PIGGYBACK_BYTES:
            return requests.pop(self.run.sequencer)
        if self.run.transports[self.run.sequencer].shares_memory:
            return requests.pop(self.run.sequencer)
        return None

    def admit(
        self,
        push_id: PushId,
        kind: pb.EntryKind.ValueType,
        participants: Sequence[int],
        push: Push,
        bad: str = "",
        part: _Sent | None = None,
    ) -> Message:
        """Have the sequencer decide, on a push whose own part comes along if it is given; gives its reply."""
        request = self.admission(push_id, kind, participants, push, bad, part)
        return self.call({self.run.sequencer: request})[self.run.sequencer]

    def admission(
        self,
        push_id: PushId,
        kind: pb.EntryKind.ValueType,
        participants: Sequence[int],
        push: Push,
        bad: str = "",
        part: _Sent | None = None,
    ) -> _Sent:
        """Write an ADMIT; see `admit`."""
        request = pb.Request()
        message = request.admit
        message.incarnation = self.run.incarnation
        message.id.CopyFrom(codec.encode_push_id(push_id))
        message.kind, message.not_finite = kind, bad
        message.reads_only = kind == pb.ENTRY_PUSH and not (push.ops or push.increments or push.uses)
        message.participants.extend(participants)
        if part is None or not part[0].stage.known_layout:
            message.increments.extend(codec.encode_increments(push.increments))
            message.uses.extend(codec.encode_use(use) for use in push.uses)
        message.seen_steps.update(push.seen_steps)
        message.floors.extend(self.floors)
        pieces: Sequence[memoryview] = ()
        if part is not None:
            message.part.CopyFrom(part[0].stage)
            request.spans.extend(part[0].spans)
            pieces = part[1]
        return request, pieces

    def commit(self, push_id: PushId, admitted: Message, participants: Sequence[int]) -> dict[int, Message]:
        """Tell the participants besides the sequencer what was admitted; gives their replies."""
        assert admitted.reply is not None
        pending = {item.shard: item.entries for item in admitted.reply.admit.pending}
        requests: dict[int, tuple[pb.Request, Sequence[memoryview]]] = {}
        for shard in participants:
            if shard != self.run.sequencer:
                request = pb.Request()
                request.commit.incarnation = self.run.incarnation
                request.commit.id.CopyFrom(codec.encode_push_id(push_id))
                request.commit.entries.extend(pending.get(shard, ()))
                requests[shard] = (request, ())
        replies = self.call(requests)
        for shard, reply in replies.items():
            assert reply.reply is not None
            self.learn_floor(shard, reply.reply.commit)
        self._complete()
        return replies

    def learn_floor(self, shard: int, answer: pb.CommitReply) -> None:
        """Take note of what a shard said in its answer to a COMMIT; an older one says nothing new."""
        known = self._floors.get(shard)
        if answer.applied and (known is None or answer.applied > known.index):  # without it nothing was done
            self._floors[shard] = pb.Floor(shard=shard, index=answer.applied, signature=answer.signature)

    def _complete(self) -> None:
        """Let the sequencer know what is applied, without waiting: every later message says it too."""
        request = pb.Request()
        request.complete.incarnation = self.run.incarnation
        request.complete.floors.extend(self.floors)
        self.run.transports[self.run.sequencer].send(request, ())

    def next_id(self) -> PushId:
        """A new push id, for a snapshot."""
        self._sequence += 1
        return PushId(self.run.client, self._sequence)


class PushByVotes:
    """Pushes over several PS tasks by votes: one message to each, and one answer of each.

    docs/design/push-protocol.md, "Several shards: votes", is the specification. What cannot be done so goes on by
    STAGE, ADMIT and COMMIT, under the same id.

    Args:
        protocol: Whose pushes they are.
    """

    def __init__(self, protocol: PushProtocol) -> None:
        self._protocol = protocol
        self._pause_secs = 0.0
        self._not_before = 0.0

    def is_open(self) -> bool:
        """Whether votes are to be asked for now."""
        if not self._protocol.run.votes:
            return False
        return not self._pause_secs or self._protocol.clock.monotonic() >= self._not_before

    def push(self, push_id: PushId, push: Push, parts: Mapping[int, Part]) -> PushResult | None:
        """Do a push, if it can be done by votes.

        Returns:
            What came of it; ABANDONED where the push is to be done under another id. None where nothing is decided,
            and the push is to go on under this one.

        Raises:
            OpError: If the push was wrong, or a task had no memory for it; nothing was changed.
        """
        protocol, sequencer = self._protocol, self._protocol.run.sequencer
        began = protocol.clock.monotonic()
        others = [shard for shard in parts if shard != sequencer]
        requests = {shard: protocol.staging(push_id, push, shard, parts[shard]) for shard in others}
        for request, _ in requests.values():
            request.stage.vote = True
        own = protocol.staging(push_id, push, sequencer, parts[sequencer]) if sequencer in parts else None
        asked = protocol.admission(push_id, pb.ENTRY_PUSH, list(parts), push, part=own)
        asked[0].admit.votes = True
        asked[0].admit.ClearField("floors")  # the participants say so themselves
        requests[sequencer] = asked
        found: dict[int, Any] = protocol.call(requests, patient=False, raises=False)
        decided = found.pop(sequencer)
        refused = next((error for error in found.values() if isinstance(error, Exception)), None)
        if isinstance(decided, Exception):
            if isinstance(decided, LayoutUnknownError):
                return self._anew(push)
            raise decided
        assert decided.reply is not None
        answer = decided.reply.admit
        if answer.undecided:
            self._pause_secs = min(max(2 * self._pause_secs, _FIRST_PAUSE_SECS), _LONGEST_PAUSE_SECS)
            self._not_before = protocol.clock.monotonic() + self._pause_secs
            return None
        self._pause_secs = 0.0
        outcome = codec.decode_outcome(answer.outcome)
        if outcome.kind is OutcomeKind.ACCEPTED:
            done = protocol.clock.monotonic() - began
            applied = _applied_of(sequencer, answer, 0.0, done)
            answers = self._committed(push_id, push, parts, decided, found)
            for shard, message in answers.items():
                assert message.reply is not None
                protocol.learn_floor(shard, message.reply.commit)
                applied += _applied_of(shard, message.reply.commit, 0.0, done)
            return protocol.gathered(push, parts, outcome, {sequencer: decided} | answers, applied)
        if outcome.kind is OutcomeKind.ABANDONED and refused is not None:
            if isinstance(refused, LayoutUnknownError):
                return self._anew(push)
            raise refused
        run = protocol.run
        kept = [shard for shard, message in found.items() if not _is_committed(message)]
        _withdraw(run.transports, run.incarnation, push_id, kept)
        return PushResult(outcome)

    def _anew(self, push: Push) -> PushResult:
        """Have a push sent in full, under another id: a connection is new, and its task knows no layout."""
        self._protocol.messages.forget(push.layout)
        return PushResult(Outcome(OutcomeKind.ABANDONED))

    def _committed(
        self,
        push_id: PushId,
        push: Push,
        parts: Mapping[int, Part],
        decided: Message,
        found: Mapping[int, Message | Exception],
    ) -> dict[int, Message]:
        """Give the participants' answers to a push that was admitted; ask those for theirs that answered without."""
        assert decided.reply is not None
        answers = {shard: message for shard, message in found.items() if _is_committed(message)}
        left = [shard for shard in found if shard not in answers]
        if left:
            # The reply has no entries for tasks that were told over their links; a part without its entry is dropped.
            if not {item.shard for item in decided.reply.admit.pending}.issuperset(left):
                decided = self._protocol.admit(push_id, pb.ENTRY_PUSH, list(parts), push)
            answers |= self._protocol.commit(push_id, decided, left)
        return answers


def _is_committed(message: Message | Exception) -> TypeGuard[Message]:
    """Whether a participant has answered with what came of the push."""
    return not isinstance(message, Exception) and message.reply is not None and message.reply.HasField("commit")


def _applied_of(shard: int, answer: Any, sent: float, answered: float) -> list[Applied]:
    """Say when a task applied its part, from its answer to the call that made it do so; empty if it had none."""
    if not answer.apply_micros:
        return []
    secs = min(answer.apply_micros / 1e6, answered - sent)
    return [Applied(shard, (sent + answered - secs) / 2, secs)]


def _not_finite_in(staged: Iterable[Message]) -> str:
    """Give the Variable that a participant named in its answer to STAGE, because its gradient is not finite."""
    return next((m.reply.stage.not_finite for m in staged if m.reply is not None and m.reply.stage.not_finite), "")


def _withdraw(transports: Sequence[Transport], incarnation: int, push: PushId, participants: Iterable[int]) -> None:
    """Let participants drop their parts of a push that was refused, without waiting; SETTLE does so at last.

    Args:
        transports: To all PS tasks.
        incarnation: The run's.
        push: The push's id.
        participants: Who has staged a part, the sequencer left out.
    """
    for shard in participants:
        request = pb.Request()
        request.commit.incarnation = incarnation
        request.commit.id.CopyFrom(codec.encode_push_id(push))
        transports[shard].send(request, ())
