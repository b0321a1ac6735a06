"""The sequencer's end of the links: which participants have voted for a push, and what they are told of decisions.

docs/design/push-protocol.md, "Several shards: votes", is the specification.

Layer: ps. Threads: a VoteCount is thread-safe.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from globalstep.errors import GlobalStepError, PermissionDeniedError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.access.log_limit import LogLimit
from globalstep.ps.ledger import entries
from globalstep.ps.ledger.ledger import Entry
from globalstep.ps.ledger.signatures import Floor
from globalstep.ps.links.parked_call import LONGEST_SECS, Line, Make, ParkedCall
from globalstep.ps.shard.events import GetSteps, Greet, Recorded, Resolve, Resolved
from globalstep.ps.shard.shard import Shard
from globalstep.wire import codec
from globalstep.wire.declarations import Outcome, OutcomeKind, PushId

__all__ = ["Asked", "VoteCount"]

_log = logging.getLogger(__name__)

#: Pushes that were voted for or asked for, and clients whose last ADMIT is known: what was not asked for is forgotten,
#: the oldest first, and beyond that none is counted. Their clients go on by COMMIT.
_MOST_ROUNDS = 1 << 12
_MOST_CLIENTS = 1 << 16
#: Pushes that were answered "undecided", of which a link that begins hears.
_MOST_LEFT = 1 << 10


class Asked(enum.Enum):
    """What becomes of an ADMIT that waits for votes."""

    #: All votes are there, or it was decided before: it can be decided.
    READY = enum.auto()
    #: It is parked.
    PARKED = enum.auto()
    #: Votes will not come: nothing is decided by votes any more.
    UNDECIDED = enum.auto()


class _LineOf:
    """The line of one shard in one incarnation."""

    def __init__(self, line: Line, incarnation: int, keeps: bool) -> None:
        self.line = line
        #: Whether entries are kept for the shard until they are on its disk.
        self._keeps = keeps
        self.incarnation = incarnation
        # Keeps entries in order on their way out, and guards `_sent`; a leaf but for the line's own.
        self._lock = threading.Lock()
        #: The last entry that was sent.
        self._sent = 0
        #: What the shard has said with a vote to have applied, for the next decision.
        self.floor: Floor | None = None
        #: Whether the shard has said to have no memory for more contributions to steps that are not made yet.
        self.is_full = False

    def send(self, pending: Sequence[Entry]) -> None:
        """Send the entries that were not sent before."""
        with self._lock:
            at = len(pending)  # of many that wait for a floor, the last one is new
            while at and pending[at - 1].index > self._sent:
                at -= 1
            new = pending[at:]
            if new:
                self._sent = new[-1].index
                sent = [entries.encode(entry) for entry in new]
                self.line.tell(pb.Decisions(entries=sent, keeps=self._keeps))

    def repeat(self, pending: Sequence[Entry], admitted: PushId) -> None:
        """Answer a vote for a push that was admitted before."""
        with self._lock:
            self._sent = max([self._sent, *(entry.index for entry in pending)])
            sent = [entries.encode(entry) for entry in pending]
            admissions = [codec.encode_push_id(admitted)]
            self.line.tell(pb.Decisions(entries=sent, admitted=admissions, keeps=self._keeps))

    def leave(self, *pushes: PushId) -> None:
        """Say that pushes are not decided by votes."""
        self.line.tell(pb.Decisions(undecided=[codec.encode_push_id(push) for push in pushes]))

    def drop(self, push: PushId) -> None:
        """Say that a push will never be admitted."""
        self.line.tell(pb.Decisions(dropped=[codec.encode_push_id(push)]))


@dataclass(slots=True, eq=False)
class _Round:
    """The votes for one push."""

    since: float
    voted: set[int] = field(default_factory=set[int])
    not_finite: str = ""
    #: Whether a part was refused: the push is known to the ledger as abandoned.
    fenced: bool = False
    #: Once its ADMIT has come: whose votes it waits for, the call, and what decides.
    needed: frozenset[int] = frozenset()
    call: ParkedCall | None = None
    decide: Callable[[str], Make] | None = None

    def is_complete(self) -> bool:
        """Whether its ADMIT and all votes are there."""
        return self.call is not None and self.needed <= self.voted


class VoteCount:
    """Counts votes on the sequencer.

    Args:
        shard: The sequencer.
    """

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._said = LogLimit(shard.resources.clock)
        # Guards the attributes below; a leaf.
        self._lock = threading.Lock()
        self._lines: dict[int, _LineOf] = {}
        self._rounds: dict[PushId, _Round] = {}
        #: Client -> its last push that was asked for with votes: each is counted once.
        self._asked: dict[str, int] = {}
        #: Pushes that were answered "undecided", the last ones.
        self._left: dict[PushId, None] = {}
        self._look_at = 0.0

    # ---- Votes --------------------------------------------------------------------------------

    def hear(self, message: pb.VoteRequest, line: Line | None) -> None:
        """Take in what a participant says.

        Raises:
            PermissionDeniedError: If the line is not known to be the shard's.
            GlobalStepError: As GetSteps, of its floor.
        """
        if message.greeting:
            self._greet(message, line)
        held = self._lines.get(message.shard)
        if held is None or held.line is not line or held.incarnation != message.incarnation:
            raise PermissionDeniedError(
                f"A vote of PS task {message.shard} in incarnation {message.incarnation} came on a connection that is "
                "not the task's link: a link begins with a greeting that is signed with the incarnation's key."
            )
        if message.HasField("floor"):
            floor = Floor(message.floor.index, message.floor.signature, message.durable)
            held.is_full = message.full
            if message.votes:
                held.floor = floor
            else:
                self._shard.handle(GetSteps(message.incarnation, {message.shard: floor}))
        for vote in message.votes:
            push = codec.decode_push_id(vote.push)
            if vote.withheld:
                self._withhold(message.incarnation, push)
            else:
                self._take(held, message.shard, push, vote.not_finite)

    def _greet(self, message: pb.VoteRequest, line: Line | None) -> None:
        """Make a connection a shard's line, and tell the shard what it may have missed."""
        if line is None or not self._shard.handle(Greet(message.incarnation, message.shard, message.greeting)):
            raise PermissionDeniedError(
                f"Who says to be PS task {message.shard} has not signed that with the key of incarnation "
                f"{message.incarnation}, or its connection carries no link."
            )
        held = _LineOf(line, message.incarnation, self._shard.now.policy.durability == "log")
        with self._lock:
            self._lines[message.shard] = held
            left = list(self._left)
        line.when_ended(lambda: self._ended(message.shard, held))
        if left:  # since the shard has dialled, calls for these may have begun to wait there
            held.leave(*left)
        held.send(self._pending(message.incarnation, message.shard))

    def _pending(self, incarnation: int, shard: int) -> list[Entry]:
        return self._shard.handle(Resolve(incarnation, (), shard, 0))

    def _take(self, held: _LineOf, shard: int, push: PushId, not_finite: str) -> None:
        """Count a vote; decide on the push if it was the last one."""
        with self._lock:
            found = self._rounds.get(push)
        if found is None and (outcome := self._shard.handle(Recorded(push))) is not None:
            self._say_again(held, shard, push, outcome)
            return
        with self._lock:
            # Its ADMIT may have come since the first look, from another thread.
            found = self._rounds.get(push)
            if found is not None or self._asked.get(push.client, 0) < push.sequence:
                found = self._voted(found, shard, push, not_finite)
                if found.is_complete():
                    del self._rounds[push]
                elif not found.fenced:
                    return
        if found is None:
            held.leave(push)
            return
        if found.fenced:
            if (outcome := self._shard.handle(Recorded(push))) is not None:
                self._say_again(held, shard, push, outcome)
            return
        assert found.call is not None
        assert found.decide is not None
        found.call.resume(found.decide(found.not_finite))

    def _voted(self, found: _Round | None, shard: int, push: PushId, not_finite: str) -> _Round:
        """Count a vote in its round, a new one where there is none. Caller holds the lock."""
        if found is None:
            found = self._rounds[push] = _Round(self._shard.resources.clock.monotonic())
            if len(self._rounds) > _MOST_ROUNDS:
                self._forget_oldest()
        found.voted.add(shard)
        found.not_finite = found.not_finite or not_finite
        return found

    def _say_again(self, held: _LineOf, shard: int, push: PushId, outcome: Outcome) -> None:
        """Answer a vote for a push that was decided before."""
        if outcome.kind is OutcomeKind.ACCEPTED:
            held.repeat(self._pending(held.incarnation, shard), push)
        else:
            held.drop(push)

    def _forget_oldest(self) -> None:
        """Drop the oldest round that no ADMIT waits for. Caller holds the lock."""
        oldest = next((push for push, found in self._rounds.items() if found.call is None), None)
        if oldest is not None:
            del self._rounds[oldest]

    def _withhold(self, incarnation: int, push: PushId) -> None:
        """Fence a push of which a participant has refused its part."""
        now = self._shard.now
        self._shard.handle(Resolve(incarnation, [push], now.shard, now.applied))
        with self._lock:
            found = self._rounds.pop(push, None)
            lines = [self._lines[shard] for shard in found.voted if shard in self._lines] if found is not None else []
            if found is None or found.call is None:
                self._rounds[push] = _Round(self._shard.resources.clock.monotonic(), fenced=True)
        outcome = self._shard.handle(Recorded(push))
        if found is not None and found.call is not None and found.decide is not None:
            found.call.resume(found.decide(""))
        elif outcome is not None and outcome.kind is not OutcomeKind.ACCEPTED:
            for held in lines:
                held.drop(push)

    # ---- Decisions ----------------------------------------------------------------------------

    def ask(
        self, push: PushId, needed: Collection[int], decide: Callable[[str], Make], park: Callable[[], ParkedCall]
    ) -> tuple[Asked, str]:
        """Have a push decided once all votes are there.

        Args:
            push: Its id.
            needed: Whose votes.
            decide: Makes the reply to its ADMIT, given a Variable whose gradient is not finite, or "".
            park: Has the ADMIT wait.

        Returns:
            What becomes of it; where it is ready, with the Variable.
        """
        number = self._shard.now.number
        is_first = self._asked.get(push.client, 0) < push.sequence
        if not is_first and self._shard.handle(Recorded(push)) is not None:
            return Asked.READY, ""
        with self._lock:
            is_first = self._is_first(push)
            found = self._rounds.get(push)
            lines = [self._lines.get(shard) for shard in needed]
            if len(self._rounds) >= _MOST_ROUNDS:
                self._forget_oldest()
            is_full = found is None and len(self._rounds) >= _MOST_ROUNDS
            if is_full or not is_first or any(held is None or held.incarnation != number for held in lines):
                # What was told so once must stay so: its client may push under another id.
                self._rounds.pop(push, None)
                again = found.call if found is not None else None
            else:
                if found is None:
                    found = self._rounds[push] = _Round(self._shard.resources.clock.monotonic())
                if not (found.fenced or found.voted.issuperset(needed)):
                    found.needed, found.decide, found.call = frozenset(needed), decide, park()
                    return Asked.PARKED, ""
                del self._rounds[push]
                return Asked.READY, found.not_finite
        self._close(push, again, needed)
        return Asked.UNDECIDED, ""

    def _is_first(self, push: PushId) -> bool:
        """Whether a push is asked for the first time: what was told so once must stay so. Caller holds the lock."""
        before = self._asked.pop(push.client, 0)
        # A late copy of an earlier ADMIT takes nothing back.
        self._asked[push.client] = max(before, push.sequence)
        if len(self._asked) > _MOST_CLIENTS:
            del self._asked[next(iter(self._asked))]
        return before < push.sequence

    def floors(self) -> dict[int, Floor]:
        """Give what shards have said with their votes to have applied, since the last decision."""
        said: dict[int, Floor] = {}
        for shard, held in list(self._lines.items()):
            if held.floor is not None:
                said[shard], held.floor = held.floor, None
        return said

    def full(self) -> list[int]:
        """Give the shards that have said to have no memory for more contributions to steps that are not made yet."""
        return [shard for shard, held in list(self._lines.items()) if held.is_full]

    def announce(self, push: PushId, outcome: Outcome, pending: Mapping[int, Sequence[Entry]]) -> set[int]:
        """Tell participants of a decision, which will not be forgotten.

        Args:
            push: Its id.
            outcome: It.
            pending: Participant -> the entries that it may not have applied yet.

        Returns:
            Those that have been told.
        """
        number = self._shard.now.number
        with self._lock:
            lines = {shard: self._lines[shard] for shard in pending if shard in self._lines}
        lines = {shard: held for shard, held in lines.items() if held.incarnation == number}
        for shard, held in lines.items():
            if outcome.kind is OutcomeKind.ACCEPTED:
                held.send(pending[shard])
            else:
                held.drop(push)
        return set(lines)

    def refuse(self, incarnation: int, push: PushId, needed: Iterable[int]) -> bool:
        """Fence a push of which the sequencer has refused its own part, and tell participants to drop theirs.

        Returns:
            Whether it was admitted before.

        Raises:
            GlobalStepError: Why it cannot be fenced; whether it was admitted is not known then.
        """
        self._withhold(incarnation, push)
        self.give_up(push, needed)
        outcome = self._shard.handle(Recorded(push))
        return outcome is not None and outcome.kind is OutcomeKind.ACCEPTED

    def give_up(self, push: PushId, needed: Iterable[int]) -> None:
        """Tell participants to drop a push that was refused with an error, if it is fenced."""
        outcome = self._shard.handle(Recorded(push))
        if outcome is not None and outcome.kind is not OutcomeKind.ACCEPTED:
            self.announce(push, outcome, dict.fromkeys(needed, ()))

    # ---- Ends ---------------------------------------------------------------------------------

    def _ended(self, shard: int, held: _LineOf) -> None:
        """A line is no more: what waits for its shard's votes is answered without."""
        with self._lock:
            if self._lines.get(shard) is not held:
                return
            del self._lines[shard]
            waiting = [push for push, found in self._rounds.items() if shard in found.needed]
            rounds = {push: self._rounds.pop(push) for push in waiting}
        for push, found in rounds.items():
            self._close(push, found.call, found.needed)

    def look_after(self, now: float) -> float | None:
        """Answer calls that have waited for too long, and forget votes for pushes that nobody asks for.

        Args:
            now: The clock's monotonic reading.

        Returns:
            After how many seconds there is something to look after again; None for nothing.
        """
        if not self._rounds:
            return None
        if now >= self._look_at:
            self._look_at = now + LONGEST_SECS / 4
            self._expire(now)
        return LONGEST_SECS / 4

    def _expire(self, now: float) -> None:
        with self._lock:
            late = [push for push, found in self._rounds.items() if now - found.since > LONGEST_SECS]
            rounds = {push: self._rounds.pop(push) for push in late}
        for push, found in rounds.items():
            if found.call is not None:
                self._say_late(push, found)
                self._close(push, found.call, found.needed)

    def _say_late(self, push: PushId, found: _Round) -> None:
        """Say in the log for whom a push has waited in vain."""
        if (left := self._said.due("late")) is None:
            return
        _log.warning(
            "Push %d of %s has waited for %.0f s for the votes of PS tasks %s, and goes on without. Those tasks, the "
            "worker's connections to them, or theirs to this task, are slow or stopped.%s",
            push.sequence, self._shard.resources.members.presence.task_of(push.client) or push.client, LONGEST_SECS,
            sorted(found.needed - found.voted), left,
        )  # fmt: skip

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be looked after: no vote or call waits."""
        return not self._rounds

    def has_left(self, push: PushId) -> bool:
        """Whether a copy of its ADMIT was answered "undecided", and the sequencer's own part dropped with it."""
        with self._lock:
            return push in self._left

    def cancel(self, push: PushId) -> bool:
        """Have an ADMIT wait no longer: nothing is decided by votes any more. Gives False where it is resumed."""
        with self._lock:
            found = self._rounds.pop(push, None)
        if found is None:
            return False
        self._close(push, None, found.needed)
        return True

    def _close(self, push: PushId, call: ParkedCall | None, needed: Iterable[int]) -> None:
        """Give up to decide on a push by votes: the sequencer's own part comes again, and may lie elsewhere then."""
        with self._lock:
            self._left[push] = None
            if len(self._left) > _MOST_LEFT:
                del self._left[next(iter(self._left))]
            lines = [self._lines[shard] for shard in needed if shard in self._lines]
        for held in lines:
            held.leave(push)
        with contextlib.suppress(GlobalStepError):  # the incarnation is over, and the part with it
            self._shard.handle(Resolved(self._shard.now.number, [push], ()))
        if call is not None:
            call.resume(undecided)


def undecided(reply: pb.Reply, tensors: object) -> None:
    """Make the reply to an ADMIT of which votes will not come."""
    reply.admit.undecided = True
