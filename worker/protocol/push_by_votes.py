"""A push over several PS tasks by votes, or through the sequencer: one message to each, and one answer of each.

docs/design/push-protocol.md, "Several shards: votes" and "Several shards: through the sequencer", is the specification.
What cannot be done so goes on by STAGE, ADMIT and COMMIT, under the same id.

Layer: worker. Threads: a PushByVotes belongs to one PushProtocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from globalstep.errors import LayoutUnknownError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.wire import codec
from globalstep.wire.declarations import MOST_CARRIED_BYTES, Outcome, OutcomeKind, Push, PushId
from globalstep.wire.frames import Message
from globalstep.worker.protocol.push_layout import Part
from globalstep.worker.protocol.push_result import PushResult, applied_of
from globalstep.worker.protocol.refused_pushes import withdraw

if TYPE_CHECKING:
    from globalstep.worker.protocol.push_protocol import PushProtocol

__all__ = ["PushByVotes"]

#: After a push that was not decided by votes, votes are not asked for so long: at first, and at most.
_FIRST_PAUSE_SECS = 0.05
_LONGEST_PAUSE_SECS = 5.0


class PushByVotes:
    """Pushes by votes.

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
        carried = self._carried(push, others)
        if carried is not None:
            requests = dict.fromkeys(others, self._waiting(push_id))
        else:
            requests = {shard: protocol.staging(push_id, push, shard, parts[shard]) for shard in others}
            for request, _ in requests.values():
                request.stage.vote = True
        own = protocol.staging(push_id, push, sequencer, parts[sequencer]) if sequencer in parts else None
        asked = protocol.admission(push_id, pb.ENTRY_PUSH, list(parts), push, part=own)
        if carried is not None:
            asked[0].admit.carried.extend(carried)
        else:
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
            applied = applied_of(sequencer, answer, 0.0, done)
            answers = self._committed(push_id, push, parts, decided, found)
            for shard, message in answers.items():
                assert message.reply is not None
                protocol.learn_floor(shard, message.reply.commit)
                applied += applied_of(shard, message.reply.commit, 0.0, done)
            return protocol.gathered(push, parts, outcome, {sequencer: decided} | answers, applied)
        if outcome.kind is OutcomeKind.ABANDONED and refused is not None:
            if isinstance(refused, LayoutUnknownError):
                return self._anew(push)
            raise refused
        run = protocol.run
        kept = [shard for shard, message in found.items() if not _is_committed(message)]
        withdraw(run.transports, run.incarnation, push_id, kept)
        return PushResult(outcome)

    def _carried(self, push: Push, others: Sequence[int]) -> list[pb.CarriedPart] | None:
        """Write the parts of a push that is small enough to go through the sequencer; None for another one."""
        protocol = self._protocol
        if not protocol.run.carries or protocol.messages.packing.active:
            return None
        carried: list[pb.CarriedPart] = []
        left = MOST_CARRIED_BYTES
        for shard in others:
            part = protocol.messages.carried(push, shard, left)
            if part is None:
                return None
            carried.append(part)
            left -= len(part.data)
        protocol.bytes_sent += MOST_CARRIED_BYTES - left
        return carried

    def _waiting(self, push_id: PushId) -> tuple[pb.Request, Sequence[memoryview]]:
        """Write the COMMIT that waits for what the sequencer brings."""
        request = pb.Request()
        message = request.commit
        message.incarnation, message.wait = self._protocol.run.incarnation, True
        message.id.client, message.id.sequence = push_id.client, push_id.sequence
        return request, ()

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
            # Of those that were told over their links the reply has no entries; without its entry a part is dropped.
            if not {item.shard for item in decided.reply.admit.pending}.issuperset(left):
                decided = self._protocol.admit(push_id, pb.ENTRY_PUSH, list(parts), push)
            answers |= self._protocol.commit(push_id, decided, left)
        return answers


def _is_committed(message: Message | Exception) -> TypeGuard[Message]:
    """Whether a participant has answered with what came of the push."""
    return not isinstance(message, Exception) and message.reply is not None and message.reply.HasField("commit")
