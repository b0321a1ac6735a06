"""Events: everything that a shard can be asked to do, or is notified of, one dataclass each.

`Shard.handle(event)` is the one door for the wire, for the write-ahead log that is played again, and for the
simulation. The log holds events too: those of a class that `LOGGED` names, each as it was carried out. A bug that the
simulation finds is a list of events, and can be pasted into a test.

Layer: ps. Pure: nothing but data. An event is not changed once a shard has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy.typing as npt

from globalstep.cluster.run_identity import NO_RUN, RunIdentity
from globalstep.cluster.run_policy import RunPolicy
from globalstep.ps.budget import ReplyBuffer
from globalstep.ps.ledger.ledger import Entry, EntryKind, Ledger
from globalstep.ps.ledger.signatures import Floor
from globalstep.ps.members.chief_lease import ChiefLeaseView
from globalstep.ps.members.presence import NO_STANDING, Standing
from globalstep.ps.shard.event_log import NO_LOG, EventLog
from globalstep.ps.shard.layouts import Layout, PushParts
from globalstep.ps.shard.replies import Admission, Answer, Kept, LeadWait, OpenStep, StepMade, StepWait
from globalstep.wire.declarations import (
    Increment,
    OptimizerDecl,
    OptimizerUse,
    Outcome,
    PushId,
    Read,
    State,
    StopLimit,
    VariableDecl,
)

if TYPE_CHECKING:
    from globalstep.ps.aggregates.contributions import HeldOps
    from globalstep.ps.ledger.journal import JournalPart  # noqa: F401 (it is in a string)
    from globalstep.ps.shard.incarnation import Incarnation

Array = npt.NDArray[Any]
R = TypeVar("R", covariant=True)


class Event(Generic[R]):
    """Base of all events; `R` is what the shard replies."""

    __slots__ = ()


# ---- The life of an incarnation -------------------------------------------------------------------


@dataclass(slots=True)
class Begin(Event[tuple[int, str]]):
    """Start a new incarnation, unless its number is not above the present one's.

    Replies with the number and owner of the incarnation that is in force.
    """

    incarnation: int
    _: KW_ONLY
    shard: int
    shards: int
    sequencer: int
    #: Client that initializes; served alone until an Open.
    owner: str
    #: Whether all clients are served at once.
    opened: bool
    #: Where the sequencer is asked about parts in doubt; "" on the sequencer.
    sequencer_address: str = ""
    #: Names of client tasks that are to come.
    expected_tasks: Sequence[str] = ()
    #: A checkpoint's ledger, on the sequencer of a restore.
    ledger: bytes = b""
    policy: RunPolicy = field(default_factory=RunPolicy)
    #: What the tasks of the incarnation sign with.
    key: bytes = b""
    run: RunIdentity = NO_RUN
    #: Whether another run is dropped whose members are here.
    take_over: bool = False
    #: Where its events are written.
    log: EventLog = NO_LOG
    #: Made of `ledger` before the shard's lock is taken.
    loaded: Ledger | None = None


@dataclass(slots=True)
class Declare(Event[None]):
    """Make Variables and optimizers known; see VariableStore.declare."""

    incarnation: int
    client: str
    variables: Sequence[VariableDecl]
    optimizers: Sequence[OptimizerDecl]
    #: Whether the caller may only name what is declared already.
    nothing_new: bool = False


@dataclass(slots=True)
class Open(Event[dict[str, int]]):
    """Serve all clients, with these stop limits; replies with the limits in force, absolute, on the sequencer."""

    incarnation: int
    client: str
    limits: Sequence[StopLimit]
    run: RunIdentity = NO_RUN


@dataclass(slots=True)
class Finish(Event[list[str]]):
    """Declare the job done; replies with the tasks that are still here besides the caller.

    A task that lost its state takes it too, since the chief leaves; unless `not_meant` says why that is not for it.
    """

    incarnation: int
    client: str
    not_meant: str = ""


@dataclass(slots=True)
class Heartbeat(Event[tuple[State, int, ChiefLeaseView]]):
    """A client's sign of life; replies with state, incarnation, and who acts as chief."""

    client: str
    task: str
    lease_secs: float
    standing: Standing = NO_STANDING


@dataclass(slots=True)
class Leave(Event[None]):
    """A client is gone for good; and from the chief's lease if `candidate` holds it in `term`."""

    client: str
    candidate: str = ""
    task: str = ""
    unfinished: bool = False
    term: int = 0


@dataclass(slots=True)
class Lose(Event[None]):
    """Forget all state, as a restart of the process would, if `log` is the shard's log and has lost something."""

    log: EventLog


# ---- Pushes ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Stage(Event[str]):
    """On a shard besides the sequencer: keep a part of a push until it is decided.

    It is refused where it could not be applied.

    Replies with the name of a Variable whose gradient is not finite, "" for none; such a part is not kept.
    """

    incarnation: int
    push: PushId
    parts: PushParts
    #: Of a contribution: whose step, and its unit of work; 0 for none.
    step: str = ""
    unit: int = 0
    #: As the reply; found before the shard's lock is taken.
    not_finite: str = ""


@dataclass(slots=True)
class Push(Event[Admission]):
    """On the sequencer: decide on a push, and apply its own part at once; or take a snapshot."""

    incarnation: int
    push: PushId
    #: The sequencer's own part.
    parts: PushParts
    increments: Sequence[Increment]
    #: Optimizers whose hyper-parameters are to be evaluated.
    uses: Sequence[OptimizerUse]
    #: Steps that the worker computed from.
    seen_steps: Mapping[str, int]
    #: The shards besides this one that have staged a part of it.
    others: Sequence[int] = ()
    #: What the caller knows the shards to have applied.
    floors: Mapping[int, Floor] | None = None
    #: A Variable whose gradient a participant has found not to be finite; "" for none.
    not_finite: str = ""
    #: No other shard changes anything.
    others_read: bool = True
    #: PUSH or SNAPSHOT.
    kind: EntryKind = EntryKind.PUSH


@dataclass(slots=True)
class CountTogether(Event[list[Outcome | Exception]]):
    """Admit pushes that only count, of several clients, in order.

    Replies with the outcome of each, or with what was wrong with it: then it has changed nothing.
    """

    pushes: Sequence[Push]


@dataclass(slots=True)
class Commit(Event[Answer]):
    """Apply what was admitted, in order; replies with the reads that were staged with `push`.

    Where `push` is not among the entries, and is not applied, it was refused: its part is dropped.
    """

    incarnation: int
    push: PushId
    entries: Sequence[Entry]


@dataclass(slots=True)
class AwaitStep(Event[StepWait]):
    """On the sequencer: how it stands with what follows a value of a step; see StepWait."""

    incarnation: int
    client: str
    step: str
    #: The value that the caller's contribution was computed from, or the last one that it knows of.
    base: int
    #: It asks for a unit of work to compute, of so many; 0 where it has contributed.
    units: int = 0


@dataclass(slots=True)
class ReadMade(Event[StepMade | None]):
    """On the sequencer: the values that a contribution reads of the step that it was for, as of now.

    Replies with None where the step has not moved on, or where AwaitStep and Pull are to be asked: there is no valid
    plan for the reads, or a step among them that other shards may not have applied yet.
    """

    incarnation: int
    client: str
    step: str
    #: The value that the contribution was computed from.
    base: int
    #: The contribution's; of the caller's stream.
    layout: Layout
    #: Where values are to be put.
    buffer: ReplyBuffer | None = None


@dataclass(slots=True)
class AwaitSlower(Event[LeadWait]):
    """On the sequencer: whether a worker may go on, or is too far ahead of the slowest; see Leads."""

    incarnation: int
    client: str


@dataclass(slots=True)
class GetLeads(Event[Mapping[str, tuple[int, float]]]):
    """Replies with how far each client is ahead of the slowest, and how long it has waited; see Leads.view."""


@dataclass(slots=True)
class GetOpenSteps(Event[Sequence[OpenStep]]):
    """Replies with the steps that wait for contributions, on the sequencer; elsewhere there are none."""


@dataclass(slots=True)
class Resolve(Event[list[Entry]]):
    """On the sequencer: tell a shard what became of parts whose client is silent; see Ledger.settle."""

    incarnation: int
    pushes: Sequence[PushId]
    shard: int
    applied: int


@dataclass(slots=True)
class Resolved(Event[int]):
    """On another shard: the sequencer's answer to a Resolve; replies with the last entry applied now."""

    incarnation: int
    asked: Sequence[PushId]
    entries: Sequence[Entry]


@dataclass(slots=True)
class DropShort(Event[bool]):
    """Drop the state of a shard that has applied less than it once reported; replies whether it had."""

    incarnation: int
    floor: int


# ---- Reads, and snapshots -------------------------------------------------------------------------


@dataclass(slots=True)
class Pull(Event[Answer]):
    """Read values in one piece; replies with copies, as of the last entry that they include.

    The steps are those that are visible; where the values are to be consistent with those of other shards, as admitted.
    On the sequencer the answer has the last entry of each of these shards among those included, then: if that is just
    the last entry that the shard's values include, the read is consistent. None of them while pushes race.
    """

    incarnation: int
    client: str
    reads: Sequence[Read]
    floors: Mapping[int, Floor] | None = None
    #: Where values are to be put.
    buffer: ReplyBuffer | None = None
    #: The reads', where their stream remembers it.
    layout: Layout | None = None
    #: The worker knows where the values of the layout lie.
    known: bool = False
    #: The shards with whose values these are to be consistent; none for values by themselves.
    shards: Sequence[int] = ()


@dataclass(slots=True)
class GetSteps(Event[dict[str, int]]):
    """On the sequencer: the visible steps, after taking note of what shards have applied."""

    incarnation: int
    floors: Mapping[int, Floor] | None = None


@dataclass(slots=True)
class ReadJournal(Event["JournalPart"]):
    """On the sequencer: what it wrote down of pushes; see Journal.read."""

    incarnation: int
    client: str
    life: str
    position: int
    known_clients: int
    after_index: int
    most: int


@dataclass(slots=True)
class ReadSnapshot(Event[tuple[dict[str, Array], Callable[[], bytes]]]):
    """Replies with the values of a snapshot that was taken, and what gives its ledger; see Snapshots.get."""

    incarnation: int
    snapshot: PushId


@dataclass(slots=True)
class Release(Event[None]):
    """Free a snapshot; if it is not there, nothing happens."""

    incarnation: int
    snapshot: PushId


# ---- What only a log holds, or brings back --------------------------------------------------------


@dataclass(slots=True)
class Decided(Event[Outcome]):
    """A decision of the sequencer: what it was asked, and what it said.

    Replies with the outcome that it leads to when it is played again: the same, or the log is another one's.
    """

    incarnation: int
    push: PushId
    kind: EntryKind
    others: Sequence[int]
    increments: Sequence[Increment]
    uses: Sequence[OptimizerUse]
    seen_steps: Mapping[str, int]
    #: Low-water marks of shards that have risen since the decision before.
    floors: Mapping[int, int]
    #: The sequencer's own part; None of a push that was refused, and of a snapshot.
    parts: PushParts | None
    outcome: Outcome
    #: The client's task; "" where not known.
    task: str


@dataclass(slots=True)
class Applied(Event[int]):
    """Entries that another shard admitted were applied here, in order; then parts were dropped.

    Replies with the last entry applied.
    """

    #: The push whose COMMIT brought them; without a client where none did.
    brought_by: PushId
    entries: Sequence[Entry]
    dropped: Sequence[PushId] = ()


@dataclass(slots=True)
class Resume(Event[None]):
    """Take over what a shard held when a segment of its log began; its Begin has been handled."""

    state: State
    variables: Sequence[VariableDecl]
    optimizers: Sequence[OptimizerDecl]
    values: Mapping[str, Array]
    #: On the sequencer.
    ledger: Ledger | None
    applied: int
    kept: Sequence[Kept]
    #: What it held of open aggregates.
    contributions: Sequence[HeldOps] = ()


@dataclass(slots=True)
class Adopt(Event[bool]):
    """Become what a log was played to.

    Replies False, and changes nothing, where this shard holds a newer incarnation.
    """

    incarnation: Incarnation
    #: Tasks that its run expects.
    expected_tasks: Sequence[str]
    #: The last leaving of each task: its client, and whether it left before its work was done.
    left: Mapping[str, tuple[str, bool]]
    #: Where its events are written from now on.
    log: EventLog
    #: As of Begin; addresses may have changed.
    sequencer_address: str
    #: On the sequencer: what the other shards have applied; see Ledger.check_floors.
    floors: Mapping[int, int]


#: What a log holds, besides an incarnation's Begin and the images that its segments begin with.
LOGGED = (Declare, Open, Leave, Finish, Stage, Decided, Applied, Resolve, Release)
