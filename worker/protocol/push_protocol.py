"""The client's side of docs/design/push-protocol.md: stage at the other PS tasks, push to the sequencer, commit.

A push in which the sequencer alone takes part is one message and its answer.

Layer: worker. Threads: a PushProtocol takes one push at a time; its owner's lock sees to that.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from globalstep.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    LayoutUnknownError,
    NotFoundError,
    OpError,
    PermissionDeniedError,
    ResourceExhaustedError,
)
from globalstep.proto import globalstep_pb2 as pb
from globalstep.wire import codec
from globalstep.wire.declarations import Outcome, OutcomeKind, Push, PushId
from globalstep.wire.message import Message
from globalstep.wire.transports import Ticket, Transport
from globalstep.wire.wire_options import WireOptions
from globalstep.worker.client.calls import RETRIED, Retry, Retrying
from globalstep.worker.client.joined_run import JoinedRun
from globalstep.worker.protocol.push_messages import Part, PushMessages, Split
from globalstep.worker.protocol.push_result import Applied, PushResult

if TYPE_CHECKING:
    from globalstep.worker.protocol.error_feedback import Rest

Array = npt.NDArray[Any]
#: A request and the bytes of its tensors.
_Sent = tuple[pb.Request, Sequence[memoryview]]

#: How often values of several shards are asked for at once before they are read as of a place in the sequence.
_READ_TRIES = 2
#: What a message of which no other shard's part waits is tried again after.
_RETRIED_PATIENTLY = (*RETRIED, ResourceExhaustedError)

#: What a PS task answers to a STAGE or a PUSH that is wrong, or not the caller's to make: the push is not admitted.
_REFUSALS = (InvalidArgumentError, FailedPreconditionError, NotFoundError, PermissionDeniedError)

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

    def call(self, requests: Mapping[int, _Sent], patient: bool = True) -> dict[int, Message]:
        """Send requests to several shards at once and wait for all replies; retry each that is not reached.

        Args:
            requests: Shard -> message and the bytes of its tensors.
            patient: Try again what a task had no memory for, too.

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
            if failed is not None:
                raise failed
            return replies
        finally:
            del failed, replies, tickets  # see ControlCalls.each

    def pull(self, wanted: Push, known: Split | None = None) -> list[Array]:
        """Read values of all shards in one consistent read.

        Args:
            wanted: A push that changes nothing.
            known: How such reads divide, where the caller has found that already.
        """
        known = known or self.messages.known(wanted)
        parts = self.messages.split(wanted) if known is None else known.parts
        # The sequencer's own values are as of all that it has decided; another shard may not have been told of it yet.
        asked = [] if parts.keys() <= {self.run.sequencer} else sorted({*parts, self.run.sequencer})
        if not parts:
            return []
        for _ in range(_READ_TRIES):
            try:
                replies = self.call(self._pulling(wanted, parts, asked))
            except LayoutUnknownError:
                replies = self.call(self._pulling(wanted, parts, asked, afresh=True))
            found: dict[int, list[Array]] = {}
            for shard in parts:
                message = replies[shard]
                assert message.reply is not None
                found[shard] = self.messages.values(wanted, shard, message.reply.pull, message.data)
            if not asked:
                return found[shard]
            if self._are_consistent(parts, replies):
                return self.messages.gather(wanted, found)
        return self.push(Push(reads=wanted.reads)).values

    def _are_consistent(self, shards: Collection[int], replies: Mapping[int, Message]) -> bool:
        """Whether each shard has applied all that the sequencer had decided, and, where there are several, no more."""
        sequencer = self.run.sequencer
        decided = replies[sequencer].reply
        assert decided is not None
        for shard in shards:
            reply = replies[shard].reply
            assert reply is not None
            last, applied = decided.pull.last.get(shard, 0), reply.pull.applied
            if shard != sequencer and (applied < last or (applied > last and len(shards) > 1)):
                return False
        return True

    def _pulling(
        self, wanted: Push, parts: Mapping[int, Part], cut_with: Sequence[int] = (), afresh: bool = False
    ) -> dict[int, _Sent]:
        """Write a PULL for each shard.

        Args:
            wanted: What is read.
            parts: Shard -> its part.
            cut_with: Whose values are to be consistent; empty for those of the sequencer alone.
            afresh: Whether to tell layouts anew.
        """
        requests: dict[int, _Sent] = {}
        run = self.run
        for shard in cut_with or parts:
            request, part = pb.Request(), parts.get(shard, _NO_PART)
            pull = request.pull
            pull.incarnation, pull.client = run.incarnation, run.client
            if cut_with:  # its steps are as admitted, whatever is known to be applied
                pull.cut_with.extend(cut_with)
            elif self._floors:
                pull.floors.extend(self._floors.values())
            requests[shard] = request, self.messages.encode(pull, wanted, shard, part, afresh) if part.reads else ()
        return requests

    # ---- Pushes -------------------------------------------------------------------------------

    def push(self, push: Push, known: Split | None = None) -> PushResult:
        """Do a push: exactly once, whatever has to be retried on the way.

        Args:
            push: It.
            known: How pushes like it divide, where its caller has found that already.

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
            known = known or self.messages.known(push)
            parts = self.messages.split(push) if known is None else known.parts
            known = None  # as found before the first try
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
                if result.outcome.index:
                    self.run.known_progress.own = self.run.incarnation, result.outcome.index, result.outcome.steps
                return result

    def _whole(
        self,
        push_id: PushId,
        push: Push,
        part: Part,
        afresh: bool = False,
        others: Sequence[int] = (),
        not_finite: str = "",
    ) -> _Sent:
        """Write a PUSH for the sequencer.

        Args:
            push_id: Its id.
            push: It.
            part: The sequencer's.
            afresh: Whether to tell its layout anew.
            others: The shards that have staged a part of it.
            not_finite: What one of them has found not to be finite.
        """
        shard, request = self.run.sequencer, pb.Request()
        message = request.push
        message.incarnation = self.run.incarnation
        message.id.client, message.id.sequence = push_id.client, push_id.sequence
        if others:
            message.others.extend(others)
            message.floors.extend(self._floors.values())
            message.not_finite, message.others_read = not_finite, not push.ops
        pieces = self.messages.encode(message, push, shard, part, afresh)
        if self._packing.active:
            pieces = self._packing.pack(request, pieces)
        if not message.known_layout:
            message.increments.extend(codec.encode_increments(push.increments))
            message.uses.extend(codec.encode_use(use) for use in push.uses)
        for step, seen in push.seen_steps.items():  # `update` of a message's map takes three times as long
            message.seen_steps[step] = seen
        if push.patience_ms and not others:  # else what comes next is a COMMIT
            message.patience_ms = push.patience_ms
            message.knows_places = self.messages.knows_places(push, shard)
        return request, pieces

    def _push_together(self, push_id: PushId, push: Push, parts: Mapping[int, Part]) -> PushResult:
        """Push to several participants: stage at the others, have the sequencer decide, tell the others."""
        sequencer, began = self.run.sequencer, self.clock.monotonic()
        others = sorted(parts.keys() - {sequencer})
        try:
            try:
                taken = self.call({shard: self._staging(push_id, push, shard, parts[shard]) for shard in others}, False)
            except LayoutUnknownError:
                anew = {shard: self._staging(push_id, push, shard, parts[shard], True) for shard in others}
                taken = self.call(anew, patient=False)
        except (*_REFUSALS, ResourceExhaustedError):
            # Parts that wait elsewhere for the one that was refused would keep others' parts out meanwhile.
            self._withdraw(push_id, others)
            raise
        staged, no_memory = self.clock.monotonic() - began, None
        part, bad = parts.get(sequencer, _NO_PART), _not_finite_in(taken.values())
        try:
            try:
                decided = self._decide(push_id, push, part, others, bad, patient=False)
            except ResourceExhaustedError as error:
                # The client asks again under the same id: a PUSH whose reply was lost may have been decided.
                no_memory = error
                decided = self._decide(push_id, push, part, others, bad)
        except _REFUSALS:
            self._withdraw(push_id, others)
            raise
        decided_at = self.clock.monotonic() - began
        assert decided.reply is not None
        outcome = codec.decode_outcome(decided.reply.push.outcome)
        if outcome.kind is not OutcomeKind.ACCEPTED:
            self._withdraw(push_id, others)
            if no_memory is not None and outcome.kind is OutcomeKind.ABANDONED:
                raise copy.copy(no_memory) from None  # refused for good: the push comes again, under another id
            return PushResult(outcome)
        applied = _applied_of(sequencer, decided.reply.push, staged, decided_at)
        committed = self.commit(push_id, decided, others)
        done = self.clock.monotonic() - began
        for shard, reply in committed.items():
            assert reply.reply is not None
            applied += _applied_of(shard, reply.reply.commit, decided_at, done)
        return self._gathered(push, parts, outcome, {sequencer: decided} | committed, applied)

    def _decide(
        self, push_id: PushId, push: Push, part: Part, others: Sequence[int], bad: str, patient: bool = True
    ) -> Message:
        """Have the sequencer decide on a push of which the others' parts are staged; gives its reply."""
        sequencer = self.run.sequencer
        try:
            whole = self._whole(push_id, push, part, False, others, bad)
            return self.call({sequencer: whole}, patient)[sequencer]
        except LayoutUnknownError:
            whole = self._whole(push_id, push, part, True, others, bad)
            return self.call({sequencer: whole}, patient)[sequencer]

    def _staging(self, push_id: PushId, push: Push, shard: int, part: Part, afresh: bool = False) -> _Sent:
        """Write a STAGE."""
        request = pb.Request()
        message = request.stage
        message.incarnation = self.run.incarnation
        message.id.client, message.id.sequence = push_id.client, push_id.sequence
        for item in push.increments:
            if item.contributions and not item.closes:
                message.step, message.unit = item.step, item.unit
        pieces = self.messages.encode(message, push, shard, part, afresh)
        return request, self._packing.pack(request, pieces) if self._packing.active else pieces

    def _gathered(
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
            answer = message.reply.push if message.reply.HasField("push") else message.reply.commit
            found[shard] = self.messages.values(push, shard, answer, message.data)
            as_of[shard] = answer.as_of
        if not push.reads:
            return PushResult(outcome, [], applied)
        places = [as_of[shard] for shard, part in parts.items() if part.reads]
        if 0 in places or (len(places) > 1 and any(place != outcome.index for place in places)):
            # Values of several places in the sequence are not consistent: read again.
            return PushResult(outcome, self.push(Push(reads=push.reads)).values, applied)
        return PushResult(outcome, self.messages.gather(push, found), applied)

    def next_id(self) -> PushId:
        """Return a new push id, for a snapshot."""
        self._sequence += 1
        return PushId(self.run.client, self._sequence)

    def snapshot(self, snapshot: PushId) -> Outcome:
        """Have all PS tasks take a snapshot, at one place in the sequence."""
        sequencer = self.run.sequencer
        others = [shard for shard in range(len(self.run.transports)) if shard != sequencer]
        request, pieces = self._whole(snapshot, Push(), _NO_PART, False, others)
        request.push.snapshot = True
        decided = self.call({sequencer: (request, pieces)})[sequencer]
        self.commit(snapshot, decided, others)
        assert decided.reply is not None
        return codec.decode_outcome(decided.reply.push.outcome)

    def commit(self, push_id: PushId, decided: Message, others: Sequence[int]) -> dict[int, Message]:
        """Tell the participants besides the sequencer what was decided; gives their replies."""
        assert decided.reply is not None
        requests: dict[int, _Sent] = {}
        for shard in others:
            request = pb.Request()
            request.commit.incarnation = self.run.incarnation
            request.commit.id.client, request.commit.id.sequence = push_id.client, push_id.sequence
            requests[shard] = request, ()
        for item in decided.reply.push.pending:
            requests[item.shard][0].commit.entries.extend(item.entries)
        replies = self.call(requests)
        for shard, reply in replies.items():
            assert reply.reply is not None
            answer, known = reply.reply.commit, self._floors.get(shard)
            if answer.applied and (known is None or answer.applied > known.index):  # a late answer says nothing new
                self._floors[shard] = pb.Floor(shard=shard, index=answer.applied, signature=answer.signature)
        if replies:
            # Every later message says what is applied; an empty read says it now, and is not answered.
            request = pb.Request()
            request.pull.incarnation, request.pull.client = self.run.incarnation, self.run.client
            request.pull.floors.extend(self._floors.values())
            self.run.transports[self.run.sequencer].tell(request)
        return replies

    def _withdraw(self, push_id: PushId, participants: Iterable[int]) -> None:
        """Have participants drop their parts of a push that was refused, without waiting; SETTLE does so at last."""
        for shard in participants:
            request = pb.Request()
            request.commit.incarnation = self.run.incarnation
            request.commit.id.client, request.commit.id.sequence = push_id.client, push_id.sequence
            self.run.transports[shard].tell(request)


def _applied_of(shard: int, answer: Any, sent: float, answered: float) -> list[Applied]:
    """Say when a task applied its part, from its answer to the call that made it do so; empty if it had none."""
    if not answer.apply_micros:
        return []
    secs = min(answer.apply_micros / 1e6, answered - sent)
    return [Applied(shard, (sent + answered - secs) / 2, secs)]


def _not_finite_in(staged: Iterable[Message]) -> str:
    """Return the Variable that a participant named in its answer to STAGE, because its gradient is not finite."""
    for message in staged:
        if message.reply is not None and message.reply.stage.not_finite:
            return message.reply.stage.not_finite
    return ""
