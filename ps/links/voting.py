"""The votes of one PS task: calls that wait for votes or decisions, whichever end of the links the task is.

docs/design/push-protocol.md, "Several shards: votes", is the specification.

Layer: ps. Threads: a Voting is thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from globalstep.errors import FailedPreconditionError, LostStateError, UnavailableError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.ledger.ledger import EntryKind
from globalstep.ps.links.parked_call import LONGEST_SECS, Make, OpenCall, ParkedCall, Waits, blocked_call
from globalstep.ps.links.vote_count import Asked, VoteCount, undecided
from globalstep.ps.links.voter import Voter, staged
from globalstep.ps.shard.events import Admit
from globalstep.ps.shard.replies import Answer
from globalstep.ps.shard.shard import Shard
from globalstep.wire import codec
from globalstep.wire.codec import TensorWriter
from globalstep.wire.declarations import PushId

__all__ = ["Voting"]


class _Decide(Protocol):
    """Has the ledger decide, tells those who have voted, and makes the reply."""

    def __call__(self, admit: Admit, reply: pb.Reply, tensors: TensorWriter, voters: Collection[int] = ...) -> None: ...


class Voting:
    """The votes of one PS task.

    Args:
        shard: Its state.
        encode: Writes an answer into a CommitReply.
        others: Calls that wait for something else, and are looked after together with these.

    Attributes:
        count: On the sequencer.
        voter: On another shard.
    """

    def __init__(
        self,
        shard: Shard,
        encode: Callable[[Answer, pb.CommitReply, TensorWriter], None],
        others: Waits,
    ) -> None:
        self._shard = shard
        self._others = others
        self.count = VoteCount(shard)
        self.voter = Voter(shard, encode)

    def stage(self, call: OpenCall, keep: Callable[[], str]) -> Make | None:
        """Keep a part of a push, and vote for it where its client asks for that.

        Args:
            call: The STAGE.
            keep: Keeps the part; gives a Variable whose gradient is not finite, "" for none.

        Returns:
            What makes the reply; None for a call that is parked.
        """
        message = call.request.stage
        link = self.voter.link(message.incarnation) if message.vote else None
        push, log = codec.decode_push_id(message.id), self._shard.log
        if link is None:
            not_finite = keep()
            if message.vote and not not_finite:
                self._shard.secure(log)
                self.voter.miss(push)
            return _kept(not_finite)
        # Nobody objects to a push whose client is to try again.
        self._shard.now.check(message.incarnation, message.id.client)
        try:
            not_finite = keep()
            self._shard.secure(log)
        except Exception:
            self.voter.object(link, push)
            raise
        if not_finite:
            self.voter.object(link, push, not_finite)
            return _kept(not_finite)
        if not self.voter.vote(link, push, lambda: self._park(call)):
            call.parked = None
            return staged
        return self._await(call, lambda: self.voter.cancel(push), staged)

    def admit(self, call: OpenCall, push: PushId, admission: Callable[[], Admit], decide: _Decide) -> Make | None:
        """Have a push decided once all other participants have voted.

        Args:
            call: The ADMIT.
            push: Its id.
            admission: Decodes it, and keeps the part that comes with it.
            decide: Has it decided.

        Returns:
            What makes the reply; None for a call that is parked.
        """
        message = call.request.admit
        others = set(message.participants) - {self._shard.now.sequencer}
        try:
            admit = admission()
        except Exception:
            known = self._refuse(message, push)
            if known is None:
                raise
            # A retry: what is wrong with its part does not matter any more.
            admit = known

        def decided(not_finite: str) -> Make:
            def make(reply: pb.Reply, tensors: TensorWriter) -> None:
                admit.not_finite = admit.not_finite or not_finite
                admit.floors = {**(admit.floors or {}), **self.count.floors()}
                try:
                    decide(admit, reply, tensors, others)
                except Exception as error:
                    self.count.give_up(push, others)
                    if not (isinstance(error, FailedPreconditionError) and self.count.has_left(push)):
                        raise
                    undecided(reply, tensors)  # its part went when a copy of this ADMIT was answered so

            return make

        asked, not_finite = self.count.ask(push, others, decided, lambda: self._park(call))
        if asked is Asked.READY:
            return decided(not_finite)
        if asked is Asked.UNDECIDED:
            self.check_life(call.request)
            return undecided
        return self._await(call, lambda: self.count.cancel(push), undecided)

    def refused(self, request: pb.Request, error: Exception) -> Admit | None:
        """Tell those who wait for a push of a STAGE or ADMIT by votes that was refused before it came here.

        Nobody is told of what the client is to try again under the same id.

        Args:
            request: Any; its push is known to be the caller's.
            error: Why it was refused.

        Returns:
            For an ADMIT of a push that was admitted before, what asks for its outcome; else None.

        Raises:
            GlobalStepError: Where nobody can be told, since the incarnation is over; to be answered instead.
        """
        if isinstance(error, (UnavailableError, LostStateError)):
            return None
        if request.stage.vote:
            message = request.stage
            if (link := self.voter.link(message.incarnation)) is not None:
                self._shard.now.check(message.incarnation, message.id.client)
                self.voter.object(link, codec.decode_push_id(message.id))
        elif request.admit.kind == pb.ENTRY_PUSH and request.admit.votes:
            return self._refuse(request.admit, codec.decode_push_id(request.admit.id))
        return None

    def _refuse(self, message: pb.AdmitRequest, push: PushId) -> Admit | None:
        """Fence a push whose ADMIT is wrong; gives what asks for its outcome where it was admitted before."""
        others = set(message.participants) - {self._shard.now.sequencer}
        if not self.count.refuse(message.incarnation, push, others):
            return None
        return Admit(message.incarnation, push, EntryKind.PUSH, sorted(others), (), (), {})

    def now(self) -> float:
        """Give the time, by the clock that parked calls are looked after by."""
        return self._shard.resources.clock.monotonic()

    def look_after_calls(self) -> float | None:
        """Answer calls that have been parked for too long; gives when to look again, seconds, None for not at all."""
        if self.count.is_idle and self.voter.is_idle and self._others.is_idle:
            return None
        now = self.now()
        waits = self.count.look_after(now), self.voter.look_after(now), self._others.look_after(now)
        return min((secs for secs in waits if secs is not None), default=None)

    def _park(self, call: OpenCall) -> ParkedCall:
        """Have a call wait: without a thread where its connection can, else with this one."""
        parked = call.line.park(call) if call.line is not None else None
        if parked is not None:
            call.parked = parked
            return parked
        waiting, call.resumed = blocked_call(self.now())
        call.parked = waiting
        return waiting

    def _await(self, call: OpenCall, cancel: Callable[[], bool], otherwise: Make) -> Make | None:
        """Wait with this thread, where the call has no other way to wait.

        Args:
            call: It.
            cancel: Has it wait no longer; gives False where it is being resumed.
            otherwise: Makes the reply of one that waits no longer.

        Returns:
            What makes the reply; None for a call that is parked.
        """
        if call.resumed is None or call.parked is None:
            return None
        parked, call.parked = call.parked, None
        if not call.resumed.wait(LONGEST_SECS) and cancel():
            self.check_life(call.request)
            return otherwise
        call.resumed.wait(LONGEST_SECS)
        self.check_life(call.request)
        return parked.make or otherwise

    def check_life(self, request: pb.Request) -> None:
        """Refuse a call whose incarnation has ended while it waited, if what makes its reply does not look."""
        if request.HasField("await_step"):
            return
        message = getattr(request, request.WhichOneof("kind") or "")
        self._shard.now.check(message.incarnation, message.id.client)


def _kept(not_finite: str) -> Make:
    """Make the reply to a STAGE without a vote."""

    def make(reply: pb.Reply, tensors: TensorWriter) -> None:
        reply.stage.not_finite = not_finite
        reply.stage.SetInParent()

    return make
