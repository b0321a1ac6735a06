"""An incarnation: all that a PS task holds of a run, from its BEGIN to the next one, or until it is lost.

It is state, without behaviour of its own; the parts of a Shard (sequencer, applier, reads) are given it and change
it. So to drop it, or to become what a log was played to, is one assignment. What only some runs need is made, and its
module loaded, when it is first asked for.

Layer: ps. Threads: used under the shard's lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from globalstep.cluster.run_identity import NO_RUN
from globalstep.cluster.run_policy import RunPolicy
from globalstep.errors import AbortedError, DataLossError, FailedPreconditionError, InvalidArgumentError, LostStateError
from globalstep.ps.ledger.ledger import Ledger
from globalstep.ps.ledger.signatures import Signer
from globalstep.ps.shard.event_log import NO_LOG, EventLog, Image
from globalstep.ps.shard.layouts import PushParts
from globalstep.ps.shard.replies import ReplyCache
from globalstep.ps.store.store import VariableStore
from globalstep.wire.declarations import PushId, State, VariableDecl

if TYPE_CHECKING:
    from globalstep.ps.aggregates.contributions import Contributions
    from globalstep.ps.aggregates.contributors import Contributors
    from globalstep.ps.members.leads import Leads
    from globalstep.ps.store.snapshots import Snapshots


@dataclass(slots=True)
class Staged:
    """A part of a push that waits for the decision."""

    parts: PushParts
    #: When it came, by the clock's monotonic reading.
    since: float
    #: As of Stage.
    step: str = ""
    unit: int = 0


class Incarnation:
    """The state of a PS task in one incarnation of a run; number 0, and vacant, where it holds none.

    Attributes:
        state: Vacant, initializing, ready or done.
        number: Of the incarnation.
        owner: Client that initializes it.
        shard: The task's index.
        shards: How many tasks there are.
        sequencer: Index of the task that orders pushes.
        sequencer_address: Where the sequencer is asked about parts in doubt; "" on the sequencer.
        policy: How the run treats late pushes, bad gradients and lost PS tasks.
        run: Which run it is.
        begun_at: When it began, by the clock's monotonic reading.
        signer: Signs, and checks, entries and low-water marks.
        log: Where its events are written.
        store: The Variables and slots.
        ledger: On the sequencer: what was admitted; else None.
        applied: The last entry applied here.
        staged: Parts that wait for the decision.
        replies: To each client's last push.
        fewer: Step -> of how many contributions it was made last, where those were fewer than wanted.
        leads: Where the fast are to wait for the slow: how far each worker is ahead, on the sequencer; else None.
        raised: Low-water marks that have risen since the last ones were logged: they come with the next decision.
    """

    __slots__ = (
        "_contributions", "_contributors", "_snapshots", "applied", "begun_at", "fewer", "leads", "ledger", "log",
        "number", "owner", "policy", "raised", "replies", "run", "sequencer", "sequencer_address",
        "shard", "shards", "signer", "staged", "state", "store",
    )  # fmt: skip

    def __init__(self, most_read_bytes: int) -> None:
        self.state = State.VACANT
        self.number, self.owner = 0, ""
        self.shard, self.shards, self.sequencer = 0, 1, 0
        self.sequencer_address = ""
        self.policy, self.run, self.begun_at = RunPolicy(), NO_RUN, 0.0
        self.signer = Signer(b"", 0)
        self.log: EventLog = NO_LOG
        self.store = VariableStore(most_read_bytes=most_read_bytes)
        self.ledger: Ledger | None = None
        self.applied = 0
        self.staged: dict[PushId, Staged] = {}
        self.replies = ReplyCache()
        self.fewer: dict[str, int] = {}
        self.leads: Leads | None = None
        self._snapshots: Snapshots | None = None
        self._contributions: Contributions | None = None
        self._contributors: Contributors | None = None
        self.raised: dict[int, int] = {}

    @property
    def snapshots(self) -> Snapshots:
        """Those that are not released."""
        if self._snapshots is None:
            from globalstep.ps.store.snapshots import Snapshots

            self._snapshots = Snapshots()
        return self._snapshots

    @property
    def contributions(self) -> Contributions:
        """What it holds of open aggregates."""
        if self._contributions is None:
            from globalstep.ps.aggregates.contributions import Contributions

            self._contributions = Contributions()
        return self._contributions

    @property
    def contributors(self) -> Contributors:
        """On the sequencer: who contributes, and when."""
        if self._contributors is None:
            from globalstep.ps.aggregates.contributors import Contributors

            self._contributors = Contributors()
        return self._contributors

    @property
    def held_bytes(self) -> int:
        """Bytes of all that it holds of open aggregates."""
        return 0 if self._contributions is None else self._contributions.nbytes

    def emptied(self, most_read_bytes: int) -> Incarnation:
        """Give the incarnation after a loss: vacant, but it knows its run and log."""
        left = Incarnation(most_read_bytes)
        left.shard, left.shards, left.sequencer = self.shard, self.shards, self.sequencer
        left.sequencer_address, left.log = self.sequencer_address, self.log
        left.policy, left.run, left.begun_at = self.policy, self.run, self.begun_at
        return left

    def check(self, number: int, client: str) -> None:
        """Refuse a call that does not belong to this incarnation.

        Args:
            number: The incarnation that the call says it belongs to.
            client: Of the call.

        Raises:
            LostStateError: If there is none here.
            AbortedError: If it is another one, or is being initialized by another client.
        """
        if self.state is State.VACANT:
            raise LostStateError(
                "This PS task holds no state: it has just started, or it was restarted and lost what it had. "
                "It serves nothing until the chief has initialized or restored all PS tasks."
            )
        if not self.number:
            raise AbortedError(
                f"The call belongs to incarnation {number}, and this PS task has none: it lost its state, and was told "
                "that the job is done. Start the run anew."
            )
        if number != self.number:
            raise AbortedError(
                f"The call belongs to incarnation {number}; the run is in incarnation "
                f"{self.number} since the chief restored it. Start the run anew."
            )
        if self.state is State.INITIALIZING and client != self.owner:
            raise AbortedError(
                f"PS task {self.shard} is being initialized by client {self.owner}; wait until it is ready."
            )

    def check_floors(self, floors: Mapping[int, int]) -> None:
        """Refuse a log whose end is missing, as far as that shows from what shards are known to have applied.

        Args:
            floors: On the sequencer: what the other shards have applied. On another shard: what it has
                reported to the sequencer that it had applied itself, and would not forget.

        Raises:
            DataLossError: If it is. Nothing is changed.
        """
        if self.ledger is not None:
            self.ledger.check_floors(floors)
        elif self.applied < floors.get(self.shard, 0):
            raise DataLossError(
                f"The log of PS task {self.shard} ends at entry {self.applied}, and the task had reported to "
                f"the sequencer that it had applied entry {floors[self.shard]}: the end of the log is missing, "
                "acknowledged pushes with it."
            )

    def check_place(self, decl: VariableDecl) -> None:
        """Refuse a Variable that is not this shard's."""
        if decl.shard != self.shard:
            raise InvalidArgumentError(f"Variable {decl.name!r} is of shard {decl.shard}; this is shard {self.shard}.")
        if decl.is_step and self.shard != self.sequencer:
            raise InvalidArgumentError(
                f"Step {decl.name!r} must be an integer scalar on the sequencer, shard {self.sequencer}; this is "
                f"shard {self.shard}."
            )

    def sequencing(self) -> Ledger:
        """Give the ledger; raises FailedPreconditionError where this is not the sequencer."""
        if self.ledger is None:
            raise FailedPreconditionError(
                f"PS task {self.shard} is not the sequencer of this run; PS task {self.sequencer} is."
            )
        return self.ledger

    def image(self) -> Image:
        """Give what it holds besides the values."""
        return Image(
            self.state, self.applied, self.store, self.ledger, self.staged, self.replies.by_client, self.contributions
        )
