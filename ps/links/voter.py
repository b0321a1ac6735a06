"""A participant's end of its link: votes for the parts that it keeps, and applies what the sequencer decides.

docs/design/push-protocol.md, "Several shards: votes", is the specification.

Layer: ps. Threads: a Voter is thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.ledger import entries
from globalstep.ps.links.parked_call import LONGEST_SECS, Make, ParkedCall
from globalstep.ps.shard.event_log import NO_LOG
from globalstep.ps.shard.events import Commit, Resolved
from globalstep.ps.shard.replies import Answer
from globalstep.ps.shard.shard import Shard
from globalstep.wire import codec
from globalstep.wire.codec import TensorWriter
from globalstep.wire.declarations import PushId

__all__ = ["VoteLink", "Voter"]


#: Pushes that the next link votes for.
_MOST_MISSED = 64
#: How long a vote is waited for that can bring the sequencer what is applied.
_UNSAID_SECS = 0.001


class VoteLink(Protocol):
    """A connection to the sequencer."""

    #: In which it stands for this shard.
    incarnation: int

    def send(self, request: pb.VoteRequest) -> None:
        """Send votes; where they cannot be sent at once, the link ends. Thread-safe."""
        ...

    def end(self) -> None:
        """End it."""
        ...


class Voter:
    """Votes on a participant.

    Args:
        shard: It.
        encode: Writes an answer into a CommitReply.

    Attributes:
        wanted: Called when a link is missed, by any thread; must be quick.
    """

    def __init__(self, shard: Shard, encode: Callable[[Answer, pb.CommitReply, TensorWriter], None]) -> None:
        self._shard = shard
        self._encode = encode
        self.wanted: Callable[[], None] = _nothing
        # Guards the attributes below; a leaf.
        self._lock = threading.Lock()
        self._link: VoteLink | None = None
        self._parked: dict[PushId, ParkedCall] = {}
        #: Pushes that a vote was asked for while there was no link; the last ones.
        self._missed: dict[PushId, None] = {}
        #: When the sequencer is to be told what is applied here, if no vote has; 0 where it has heard.
        self._say_at = 0.0
        #: What it has heard over this link to be on the disk here.
        self._said_durable = 0
        #: Whether the sequencer keeps entries until they are on the disk here, as it last said over this link.
        self._kept = False
        #: Whether it has heard over this link that there is no memory here for more contributions.
        self._said_full = False
        self._look_at = 0.0

    # ---- The link -----------------------------------------------------------------------------

    def greeting(self) -> pb.VoteRequest:
        """Make the first message of a new link, for the incarnation of now."""
        now = self._shard.now
        return pb.VoteRequest(incarnation=now.number, shard=now.shard, greeting=now.signer.greeting(now.shard))

    def linked(self, link: VoteLink) -> None:
        """Use a link, which has sent its greeting."""
        with self._lock:
            self._link, self._said_durable, self._kept, self._said_full = link, 0, False, False
            missed, self._missed = list(self._missed), {}
        for push in missed:
            self._send(link, pb.Vote(push=codec.encode_push_id(push)))

    def miss(self, push: PushId) -> None:
        """Take note of a push whose part is kept, and that was answered without a vote: the next link brings it."""
        with self._lock:
            link = self._link
            if link is None:
                self._missed[push] = None
                if len(self._missed) > _MOST_MISSED:
                    del self._missed[next(iter(self._missed))]
        if link is not None:
            self._send(link, pb.Vote(push=codec.encode_push_id(push)))

    def ended(self, link: VoteLink) -> None:
        """A link is no more: what waits for its decisions is answered without."""
        with self._lock:
            if self._link is not link:
                return
            self._link = None
            calls, self._parked = list(self._parked.values()), {}
        for call in calls:
            call.resume(staged)

    def link(self, incarnation: int) -> VoteLink | None:
        """Give the link of an incarnation; where there is none, one is asked for."""
        link = self._link
        if link is not None and link.incarnation == incarnation:
            return link
        if link is not None and link.incarnation != self._shard.now.number:
            link.end()
        self.wanted()
        return None

    # ---- Votes --------------------------------------------------------------------------------

    def vote(self, link: VoteLink, push: PushId, park: Callable[[], ParkedCall]) -> bool:
        """Vote for a push whose part is kept, and have its call wait; gives False where the link has just ended."""
        call = park()
        with self._lock:
            if self._link is not link:
                return False
            older, self._parked[push] = self._parked.get(push), call
        if older is not None:
            older.resume(staged)
        self._send(link, pb.Vote(push=codec.encode_push_id(push)), self._shard.now.applied)
        return True

    def object(self, link: VoteLink, push: PushId, not_finite: str = "") -> None:
        """Vote against a push: for a gradient that is not finite, or since its part was refused."""
        self._send(link, pb.Vote(push=codec.encode_push_id(push), not_finite=not_finite, withheld=not not_finite))

    def _send(self, link: VoteLink, vote: pb.Vote, applied: int = 0) -> None:
        request = pb.VoteRequest(incarnation=link.incarnation, shard=self._shard.now.shard, votes=[vote])
        if applied and (self._say_at or self._shard.log.durable > self._said_durable):
            self._add_floor(request, applied)
        link.send(request)

    def _add_floor(self, request: pb.VoteRequest, applied: int) -> None:
        """Say what is applied here, and up to where it is on the disk; only that to a sequencer that forgets it."""
        self._say_at = 0.0
        now = self._shard.now
        if now.log is not NO_LOG:
            self._said_durable = request.durable = now.log.durable
        if self._kept:
            request.floor.signature = now.signer.applied(now.shard, applied)
        else:
            applied = applied if now.log is NO_LOG else now.log.durable
            request.floor.signature = now.signer.floor(now.shard, applied)
        request.floor.shard, request.floor.index = now.shard, applied
        self._said_full = request.full = self._shard.is_full

    # ---- Decisions ----------------------------------------------------------------------------

    def hear(self, link: VoteLink, decisions: Iterable[pb.Decisions]) -> None:
        """Apply what the sequencer has decided, answer what waits for it, and say what is applied.

        Raises:
            GlobalStepError: If an entry cannot be applied; the link is to be ended.
        """
        answered: list[tuple[ParkedCall, Make]] = []
        before, log = self._shard.now.applied, self._shard.log
        try:
            for message in decisions:
                self._carry_out(link.incarnation, message, answered)
            self._shard.secure(log)
        except BaseException:
            for call, _ in answered:
                call.resume(staged)  # its client asks for what became of it
            raise
        self.say_if_full()
        for call, make in answered:
            call.resume(make)
        if self._shard.now.applied != before:
            self._say_at = self._say_at or self._shard.resources.clock.monotonic() + _UNSAID_SECS

    def _carry_out(self, incarnation: int, message: pb.Decisions, answered: list[tuple[ParkedCall, Make]]) -> None:
        self._kept = self._kept or message.keeps
        for item in message.entries:
            entry = entries.decode(item)
            call = self._take(entry.push)
            if call is None:
                self._shard.handle(Resolved(incarnation, (), [entry], message.keeps))
            else:
                answered.append((call, staged))  # until it is applied
                commit = Commit(incarnation, entry.push, [entry], message.keeps)
                answered[-1] = call, self._answer(self._shard.handle(commit))
        for known in message.admitted:
            push = codec.decode_push_id(known)
            if (call := self._take(push)) is not None:
                answered.append((call, self._answer(self._shard.handle(Commit(incarnation, push, (), message.keeps)))))
        for left in message.undecided:
            if (call := self._take(codec.decode_push_id(left))) is not None:
                answered.append((call, staged))
        for refused in message.dropped:
            push = codec.decode_push_id(refused)
            call = self._take(push)
            self._shard.handle(Resolved(incarnation, [push], ()))
            if call is not None:
                answered.append((call, dropped))

    def _take(self, push: PushId) -> ParkedCall | None:
        """Give the call that waits for a push."""
        with self._lock:
            return self._parked.pop(push, None)

    def _answer(self, answer: Answer) -> Make:
        def make(reply: pb.Reply, tensors: TensorWriter) -> None:
            self._encode(answer, reply.commit, tensors)

        return make

    # ---- Ends ---------------------------------------------------------------------------------

    def look_after(self, now: float) -> float | None:
        """Say what is applied, if no vote has, and answer calls that have waited for too long.

        Args:
            now: The clock's monotonic reading.

        Returns:
            After how many seconds there is something to look after again; None for nothing.
        """
        if self._parked and now >= self._look_at:
            self._look_at = now + LONGEST_SECS / 4
            self._expire(now)
        if self._say_at:
            if self._say_at > now:
                return self._say_at - now
            self.say_applied()
        return LONGEST_SECS / 4 if self._parked else None

    def say_if_full(self) -> None:
        """Say what is applied here where that has filled, or freed, the memory that contributions may have."""
        if self._shard.is_full != self._said_full:
            self.say_applied()

    def say_applied(self) -> None:
        """Say what is applied here."""
        link, now = self._link, self._shard.now
        if link is None or link.incarnation != now.number:
            self._say_at = 0.0
            return
        request = pb.VoteRequest(incarnation=link.incarnation, shard=now.shard)
        applied, log = now.applied, now.log
        self._shard.secure(log, all_of_it=not self._kept)
        self._add_floor(request, applied)
        link.send(request)

    def _expire(self, now: float) -> None:
        with self._lock:
            late = [push for push, call in self._parked.items() if now - call.since > LONGEST_SECS]
            calls = [self._parked.pop(push) for push in late]
        for call in calls:
            call.resume(staged)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be looked after: no call waits, and nothing is to be said."""
        return not (self._parked or self._say_at)

    def cancel(self, push: PushId) -> bool:
        """Have a call wait no longer; gives False where it is resumed."""
        return self._take(push) is not None


def staged(reply: pb.Reply, tensors: object) -> None:
    """Make the reply that the part is kept, and no more is known."""
    reply.stage.SetInParent()


def dropped(reply: pb.Reply, tensors: object) -> None:
    """Make the reply that the push was refused."""
    reply.commit.SetInParent()


def _nothing() -> None:
    pass
