"""The push protocol, as a program: docs/design/push-protocol.md once more, in plain Python without a library.

Nothing here is of the product: tests compare what PS tasks answer with what these functions answer. How to read it:

1. The words: `Part`, `Entry` and `Outcome` cross the wire. A `Shard` is one PS task; the one that orders all pushes,
   the sequencer, also keeps the `Book`.
2. A function for each message. It is given the shard as it is and what the message says, and gives the shard as it is
   afterwards, with the answer where there is one. What it raises (`Refused`) is an answer too, and changes nothing.
   Every message is looked at by `check` first, and the floors that come with PUSH and reads by `raise_floors`.
3. At the end the promises I1 to I5. They hold after every message, whatever was lost, came twice or came late.

Nothing is changed in place: shards, books and mappings are values. There is no time, no end of memory and no network:
whoever runs this decides which message comes next, and whether it comes at all. Left out are the policies for late and
for bad gradients, and who is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

Tensor = tuple[float, ...]
Values = Mapping[str, Tensor]
Steps = Mapping[str, int]
Shards = tuple[int, ...]
#: The hyper-parameters of a push, as the sequencer evaluated them; () where it uses none.
Numbers = tuple[float, ...]

#: What an entry is.
PUSH, SNAPSHOT, CONTRIBUTION, LAST_CONTRIBUTION, CLOSING = "push", "snapshot", "contribution", "last", "closing"
#: What becomes of a push.
ACCEPTED, REFUSED_DONE, LATE, ABANDONED = "accepted", "refused done", "late", "abandoned"
#: So many outcomes of each client are remembered.
WINDOW = 64


class Refused(Exception):  # noqa: N818 - an answer, as any other
    """A message is refused: LOST (nothing is held here), DENIED (a signature is missing), WRONG (it cannot be).

    Or ABORTED: it is of another incarnation, too old to be known, or leaves entries out.
    """


# ---- What crosses the wire ------------------------------------------------------------------------


class PushId(NamedTuple):
    """A client numbers its pushes 1, 2, ...; a retry bears the same number."""

    client: str
    number: int


class Change(NamedTuple):
    """What a push does to one Variable: "assign" it, "add" to it, or apply a "gradient" by the optimizer."""

    how: str
    name: str
    tensor: Tensor


class Part(NamedTuple):
    """What a push does on one shard, and the Variables that it reads there right afterwards."""

    changes: tuple[Change, ...] = ()
    reads: tuple[str, ...] = ()


class Increment(NamedTuple):
    """A push moves a step on. With `wanted` it is a contribution: so many of them make the step's next value.

    One of each client counts, or `most`; a `unit` of work counts once. What `closes` makes the step of those there.
    """

    step: str
    by: int = 1
    wanted: int = 0
    most: int = 1
    unit: int = 0
    closes: bool = False


class Asked(NamedTuple):
    """What is to be decided about a push; `seen` are the steps that its worker computed from."""

    increments: tuple[Increment, ...] = ()
    uses_optimizer: bool = False
    seen: Steps = {}
    nobody_is_waited_for: bool = True

    @property
    def contribution(self) -> Increment | None:
        """The increment by which it is a contribution, or closes a step; None for any other push."""
        return next((item for item in self.increments if item.wanted), None)


class Share(NamedTuple):
    """Of a contribution: its step, how many of them that has with this one, and its unit of work."""

    step: str
    contributions: int
    unit: int = 0


@dataclass(frozen=True)
class Entry:
    """What the sequencer decided, for one participant; `previous` is the index of that participant's entry before."""

    index: int
    kind: str
    push: PushId
    previous: int
    numbers: Numbers = ()
    share: Share | None = None
    #: Whether the sequencer has signed just this, for this shard in this incarnation.
    signed: bool = True


@dataclass(frozen=True)
class Outcome:
    """What became of a push, with the steps as of then. It is recorded under its id, and a retry hears the same."""

    kind: str
    index: int
    steps: Steps
    #: Of these two only the promises below speak.
    moved: Steps = field(default_factory=dict)
    participants: Shards = ()


class Answer(NamedTuple):
    """The reads of a push, as of its own entry; or of the last one applied, where they were given out before."""

    values: tuple[Tensor, ...] = ()
    as_of: int = 0


#: The answer to PUSH: the outcome, the entries that each other shard may not have applied, the sequencer's reads.
Admission = tuple[Outcome, Mapping[int, tuple[Entry, ...]], Answer]


# ---- What a PS task holds -------------------------------------------------------------------------


class Run(NamedTuple):
    """What a run is about: which shard is its sequencer, its hyper-parameters at given steps, and its optimizer."""

    sequencer: int
    numbers: Callable[[Steps], Numbers]
    #: The values after a gradient of one Variable.
    rule: Callable[[Values, str, Tensor, Numbers], Values]


class Open(NamedTuple):
    """The contributions to what follows the value `base` of a step: of each client, and which units."""

    base: int
    wanted: int
    given: Mapping[str, int]
    units: frozenset[int]


#: An entry that is not known to be applied everywhere: its index, the other participants, the steps after it.
Unfinished = tuple[int, Shards, Steps]


@dataclass(frozen=True)
class Book:
    """The sequencer's: who pushed what, in which order, and what every shard has seen of it."""

    index: int = 0
    #: After all admitted pushes, and after those that every participant has applied.
    steps: Steps = field(default_factory=dict)
    visible: Steps = field(default_factory=dict)
    limits: Steps = field(default_factory=dict)
    outcomes: Mapping[PushId, Outcome] = field(default_factory=dict)
    #: Client -> the number up to which its outcomes are forgotten.
    forgotten: Mapping[str, int] = field(default_factory=dict)
    #: Shard -> its last entry; up to which it has applied its own; its entries after that.
    last: Mapping[int, int] = field(default_factory=dict)
    floors: Mapping[int, int] = field(default_factory=dict)
    entries: Mapping[int, tuple[Entry, ...]] = field(default_factory=dict)
    unfinished: tuple[Unfinished, ...] = ()
    open: Mapping[str, Open] = field(default_factory=dict)


@dataclass(frozen=True)
class Kept:
    """The reads of a client's last push; without values once they were given out."""

    push: PushId
    index: int
    reads: tuple[str, ...]
    values: tuple[Tensor, ...] | None
    changed: bool


@dataclass(frozen=True)
class Snapshot:
    """What a checkpoint is made of: the values at an entry and, from the sequencer, the book before it."""

    index: int
    values: Values
    book: Book | None


@dataclass(frozen=True)
class Shard:
    """A PS task. As it is here it is vacant: its process has just started, or has lost what it had."""

    run: Run
    at: int = 0
    phase: str = "vacant"
    incarnation: int = 0
    owner: str = ""
    #: The last entry that it has applied.
    applied: int = 0
    values: Values = field(default_factory=dict)
    #: Parts that wait for a decision.
    staged: Mapping[PushId, Part] = field(default_factory=dict)
    kept: Mapping[str, Kept] = field(default_factory=dict)
    #: Step -> contributions to its next value, each with its unit.
    held: Mapping[str, tuple[tuple[int, Part], ...]] = field(default_factory=dict)
    snapshots: Mapping[PushId, Snapshot] = field(default_factory=dict)
    book: Book | None = None


# ---- The life of an incarnation -------------------------------------------------------------------


def begin(shard: Shard, incarnation: int, owner: str, opened: bool, saved: Book | None = None) -> Shard:
    """BEGIN: a new incarnation drops all that was there, and begins with a checkpoint's book, if there is one."""
    if incarnation <= shard.incarnation:
        return shard
    new = Shard(shard.run, shard.at, "ready" if opened else "initializing", incarnation, owner)
    if shard.at != shard.run.sequencer:
        return new
    before = saved or Book()
    book = Book(before.index, before.steps, before.steps, {}, before.outcomes, before.forgotten)
    return replace(new, applied=book.index, book=book)


def declare(shard: Shard, steps: Iterable[str]) -> Shard:
    """DECLARE: steps begin at 0; a Variable has no value before it is assigned one."""
    new, book = dict.fromkeys(steps, 0), shard.book
    book = book and replace(book, steps={**new, **book.steps}, visible={**new, **book.visible})
    return replace(shard, book=book)


def open_to_all(shard: Shard, limits: Steps) -> Shard:
    """OPEN: everybody is served, and the limits are in force, from the same moment."""
    book = shard.book and replace(shard.book, limits={**shard.book.limits, **limits})
    return replace(shard, book=book, phase="ready" if shard.phase == "initializing" else shard.phase)


def leave(shard: Shard, client: str) -> Shard:
    """LEAVE: a client is gone for good. Its outcomes are forgotten; none of its numbers is new again."""
    return replace(shard, kept=_without(shard.kept, client), book=shard.book and _forget(shard.book, client, 0))


def lose(shard: Shard) -> Shard:
    """The process dies, or drops its state: it serves nothing until the next BEGIN, or until its log is played."""
    return Shard(shard.run, shard.at)


def check(shard: Shard, incarnation: int, client: str) -> None:
    """Every message names its incarnation. Before OPEN only the owner is served."""
    if shard.phase == "vacant":
        raise Refused("LOST")
    another = incarnation != shard.incarnation or not incarnation  # what is told that the job is done may have none
    if another or (shard.phase == "initializing" and client != shard.owner):
        raise Refused("ABORTED")


# ---- Pushes ---------------------------------------------------------------------------------------


def stage(shard: Shard, push: PushId, part: Part) -> Shard:
    """STAGE: keep a part until it is decided. A copy of one that is kept, or was applied last, changes nothing."""
    if shard.book is not None:
        raise Refused("WRONG")  # the sequencer gets its part with PUSH
    kept = shard.kept.get(push.client)
    if push in shard.staged or (kept is not None and kept.push == push):
        return shard
    return replace(shard, staged={**shard.staged, push: part})


def push(
    shard: Shard, push: PushId, part: Part, others: Shards, asked: Asked, kind: str = PUSH
) -> tuple[Shard, Admission]:
    """PUSH: the point of no return. The push gets the next index, or is refused; either is recorded under its id.

    The sequencer's own part comes with it; the others' are staged. One that is WRONG is fenced besides: see `abandon`.
    """
    book, outcome = _book(shard), recorded(_book(shard), push)
    if outcome is None:
        if any(item.step not in book.steps for item in asked.increments):
            raise Refused("WRONG")
        refused = _refusal(book, push, asked)
        if refused:
            outcome = Outcome(refused, 0, book.steps)
            return replace(shard, book=_record(book, push, outcome)), (outcome, {}, Answer())
        shard, outcome = _accept(shard, push, part, kind, (shard.at, *others), asked)
    told = {
        other: tuple(entry for entry in _book(shard).entries.get(other, ()) if entry.index <= outcome.index)
        for other in others
    }
    shard, found = answer(shard, push)
    return shard, (outcome, told, found)


def _accept(
    shard: Shard, push: PushId, part: Part, kind: str, participants: Shards, asked: Asked
) -> tuple[Shard, Outcome]:
    """The next index is the push's: every other participant gets an entry, and the sequencer applies its own part."""
    before = book = _book(shard)
    share, numbers = None, Numbers()
    if asked.contribution:
        book, kind, share = _count(book, push, asked)
    if asked.uses_optimizer and kind != CONTRIBUTION:
        numbers = shard.run.numbers(book.steps)  # of the steps before this push's own increments
    index, moved = book.index + 1, {item.step: item.by for item in asked.increments if kind != CONTRIBUTION}
    steps = {name: value + moved.get(name, 0) for name, value in book.steps.items()}
    outcome = Outcome(ACCEPTED, index, steps, moved, participants)
    others, entries = tuple(other for other in participants if other != shard.at), dict(book.entries)
    for other in others:
        entry = Entry(index, kind, push, book.last.get(other, 0), numbers, share)
        entries[other] = (*entries.get(other, ()), entry)
    after = {**steps, **{name: int(tensor[0]) for _, name, tensor in part.changes if name in steps}}
    unfinished = (*book.unfinished, (index, others, after))
    last = {**book.last, **dict.fromkeys(participants, index)}
    book = replace(book, index=index, steps=after, last=last, entries=entries, unfinished=unfinished)
    shard = replace(shard, book=_record(_seen(book), push, outcome), staged={} if kind == SNAPSHOT else {push: part})
    return apply(shard, Entry(index, kind, push, 0, numbers, share), before), outcome


def _refusal(book: Book, push: PushId, asked: Asked) -> str:
    """Say why a push is not accepted; "" where it is."""
    if any(item.by > 0 and book.steps[item.step] >= book.limits.get(item.step, 2**63) for item in asked.increments):
        return REFUSED_DONE
    wanted = asked.contribution
    if wanted is None:
        return ""
    there = _open(book, wanted)
    if wanted.closes:
        late = bool(there.units) or not there.given or not asked.nobody_is_waited_for
    elif wanted.unit:
        late = wanted.unit in there.units
    else:
        late = there.given.get(push.client, 0) >= wanted.most
    return LATE if late or asked.seen[wanted.step] != there.base else ""


def _open(book: Book, wanted: Increment) -> Open:
    base, found = book.steps[wanted.step], book.open.get(wanted.step)
    return found if found and found.base == base else Open(base, wanted.wanted, {}, frozenset())


def _count(book: Book, push: PushId, asked: Asked) -> tuple[Book, str, Share]:
    """Count a contribution, or close what there is of its step."""
    wanted = asked.contribution
    assert wanted is not None
    there = _open(book, wanted)
    if not wanted.closes:
        given = {**there.given, push.client: there.given.get(push.client, 0) + 1}
        there = there._replace(given=given, units=there.units | ({wanted.unit} - {0}))
    number = sum(there.given.values())
    kind = CLOSING if wanted.closes else LAST_CONTRIBUTION if number >= there.wanted else CONTRIBUTION
    left = {**book.open, wanted.step: there} if kind == CONTRIBUTION else _without(book.open, wanted.step)
    return replace(book, open=left), kind, Share(wanted.step, number, wanted.unit)


def abandon(shard: Shard, push: PushId, others: Shards) -> Shard:
    """Of a wrong PUSH: no copy of it is admitted later, where others hold parts of it."""
    book = _book(shard)
    if push in book.outcomes or not others:
        return shard
    return replace(shard, book=_record(book, push, Outcome(ABANDONED, 0, book.steps)))


def commit(shard: Shard, push: PushId, entries: Sequence[Entry]) -> tuple[Shard, Answer]:
    """COMMIT: another participant applies what is new to it, in order. A push that is not told of was not accepted."""
    refused = [push] if all(entry.push != push for entry in entries) else []
    return answer(settled(shard, refused, entries), push)


def settled(shard: Shard, dropped: Iterable[PushId], entries: Sequence[Entry]) -> Shard:
    """Apply the entries that are new here, all or none; then drop parts that are never admitted."""
    for entry in entries:
        if entry.index > shard.applied:
            if shard.book is not None:
                raise Refused("WRONG")  # the sequencer has applied all that there is
            if not entry.signed:
                raise Refused("DENIED")
            if entry.previous > shard.applied:
                raise Refused("ABORTED")
            shard = apply(shard, entry)
    return replace(shard, staged={push: part for push, part in shard.staged.items() if push not in dropped})


def apply(shard: Shard, entry: Entry, before: Book | None = None) -> Shard:
    """Do what an entry says, and take its reads. A part that is not there, or lacks its numbers, changes nothing."""
    shard = replace(shard, applied=entry.index)
    if entry.kind == SNAPSHOT:
        taken = Snapshot(entry.index, shard.values, before)
        return replace(shard, snapshots={**shard.snapshots, entry.push: taken})
    part, held, values = shard.staged.get(entry.push, Part()), shard.held, shard.values
    needs = entry.kind != CONTRIBUTION and any(change.how == "gradient" for change in part.changes)
    part = Part() if needs and not entry.numbers else part
    changes, reads = part
    if entry.share is not None:
        step, number, unit = entry.share
        there = held.get(step, ())
        if entry.kind != CLOSING:
            there = ((unit, part),) if number == 1 else (*there, (unit, part))
        changes = _mean(there, number) if entry.kind != CONTRIBUTION else ()
        held = {**held, step: there} if entry.kind == CONTRIBUTION else _without(held, step)
        reads = reads if entry.kind != CONTRIBUTION else ()
    for how, name, tensor in changes:
        if shard.book and name in shard.book.steps:
            continue  # the book has taken it
        if how == "gradient":
            values = shard.run.rule(values, name, tensor, entry.numbers)
        else:
            values = {**values, name: _sum(values[name], tensor) if how == "add" else tensor}
    shard = replace(shard, values=values, held=held, staged=_without(shard.staged, entry.push))
    kept = Kept(entry.push, entry.index, reads, read(shard, reads), bool(changes))
    return replace(shard, kept={**shard.kept, entry.push.client: kept})


def _mean(there: Sequence[tuple[int, Part]], number: int) -> tuple[Change, ...]:
    """The mean of contributions, summed in the order of their units, else of their entries."""
    sums: dict[str, Tensor] = {}
    for _, part in sorted(there, key=lambda item: item[0]):
        for _, name, tensor in part.changes:
            sums[name] = _sum(sums[name], tensor) if name in sums else tensor
    return tuple(Change("gradient", name, tuple(x / number for x in total)) for name, total in sums.items())


def answer(shard: Shard, push: PushId) -> tuple[Shard, Answer]:
    """Give out the reads of a client's last push: once as they were right after it, then as they are."""
    kept = shard.kept.get(push.client)
    if kept is None or kept.push != push:
        return shard, Answer()
    if kept.values is None:
        return shard, Answer(read(shard, kept.reads), shard.applied)
    given = replace(kept, values=None if kept.changed else kept.values)
    return replace(shard, kept={**shard.kept, push.client: given}), Answer(kept.values, kept.index)


# ---- Reads, floors, and what nobody finished ------------------------------------------------------


def raise_floors(shard: Shard, floors: Mapping[int, int], signed: bool = True) -> Shard:
    """Take note of what shards have applied, as a client brings it; `signed`: every floor that is news is signed."""
    book = shard.book
    news = {at: floor for at, floor in floors.items() if book and floor > book.floors.get(at, 0)}
    if book is None or not news:
        return shard
    if max(news.values()) > book.index:
        raise Refused("WRONG")
    if not signed:
        raise Refused("DENIED")
    known = {**book.floors, **news}
    left = {at: tuple(e for e in told if e.index > known.get(at, 0)) for at, told in book.entries.items()}
    return replace(shard, book=_seen(replace(book, floors=known, entries=left)))


def pull(shard: Shard, reads: Sequence[str]) -> tuple[Tensor, ...]:
    """PULL: values as they are now, of the last entry applied; steps as they are visible."""
    return read(shard, reads, shard.book.visible if shard.book else {})


def pull_together(shard: Shard, reads: Sequence[str]) -> tuple[tuple[Tensor, ...], Mapping[int, int]]:
    """PULL of others than the sequencer: steps as admitted; the sequencer says which entry was the last of each."""
    return read(shard, reads), shard.book.last if shard.book else {}


def settle(shard: Shard, pushes: Iterable[PushId], of: int) -> tuple[Shard, tuple[Entry, ...]]:
    """SETTLE: a shard asks the sequencer about parts that it has held for long. What is unknown there is fenced."""
    book = _book(shard)
    for push in pushes:
        if push not in book.outcomes and push.number > book.forgotten.get(push.client, 0):
            book = _record(book, push, Outcome(ABANDONED, 0, book.steps))
    return replace(shard, book=book), book.entries.get(of, ())


def recorded(book: Book, push: PushId) -> Outcome | None:
    """The outcome of a push that came before; None if it is new. What is forgotten is refused, never guessed at."""
    if push not in book.outcomes and push.number <= book.forgotten.get(push.client, 0):
        raise Refused("ABORTED")
    return book.outcomes.get(push)


def _record(book: Book, push: PushId, outcome: Outcome) -> Book:
    return _forget(replace(book, outcomes={**book.outcomes, push: outcome}), push.client, WINDOW)


def _forget(book: Book, client: str, most: int) -> Book:
    """Forget all but a client's last outcomes; not that its pushes were decided."""
    own = sorted(push for push in book.outcomes if push.client == client)
    old = own[: max(len(own) - most, 0)]
    if not old:
        return book
    left = {push: outcome for push, outcome in book.outcomes.items() if push not in old}
    return replace(book, outcomes=left, forgotten={**book.forgotten, client: old[-1].number})


def _seen(book: Book) -> Book:
    """An increment is visible once every participant of it, and of all before it, has passed its index."""
    while book.unfinished:
        index, others, steps = book.unfinished[0]
        if any(book.floors.get(other, 0) < index for other in others):
            break
        book = replace(book, visible=steps, unfinished=book.unfinished[1:])
    return book


def _book(shard: Shard) -> Book:
    if shard.book is None:
        raise Refused("WRONG")  # this is not the sequencer
    return shard.book


def read(shard: Shard, reads: Sequence[str], steps: Steps | None = None) -> tuple[Tensor, ...]:
    """Values as they are now, and steps as they are said, or else as they are admitted."""
    known = shard.book.steps if steps is None and shard.book else steps or {}
    return tuple((float(known[name]),) if name in known else shard.values[name] for name in reads)


def _sum(one: Tensor, other: Tensor) -> Tensor:
    return tuple(a + b for a, b in zip(one, other, strict=True))


def _without(items: Mapping[Any, Any], key: object) -> Mapping[Any, Any]:
    return {name: item for name, item in items.items() if name != key} if key in items else items


# ---- The promises ---------------------------------------------------------------------------------


def exactly_once(sequencer: Shard) -> bool:
    """I1: each index is that of one accepted push, and a step, from 0, is the sum of what the accepted pushes carry."""
    book = _book(sequencer)
    accepted = [outcome for outcome in book.outcomes.values() if outcome.kind == ACCEPTED]
    sums = {name: sum(outcome.moved.get(name, 0) for outcome in accepted) for name in book.steps}
    return sorted(outcome.index for outcome in accepted) == list(range(1, book.index + 1)) and sums == book.steps


def in_order(sequencer: Shard, shard: Shard) -> bool:
    """I2: another shard has applied entries of its own only, and at least all those that are visible."""
    book = _book(sequencer)
    own = [0, *(outcome.index for outcome in book.outcomes.values() if shard.at in outcome.participants)]
    unseen = book.unfinished[0][0] if book.unfinished else book.index + 1
    return shard.applied in own and all(index <= shard.applied for index in own if index < unseen)


def consistent(taken: Sequence[Snapshot]) -> bool:
    """I3: the parts of one snapshot, one of each shard, are of the same entry."""
    return len({snapshot.index for snapshot in taken}) <= 1


def monotone(before: Shard, after: Shard) -> bool:
    """I4: only a new, higher incarnation goes back, or a shard that serves nothing."""
    if after.phase == "vacant" or before.incarnation != after.incarnation:
        return after.phase == "vacant" or after.incarnation > before.incarnation
    if before.book and after.book and any(after.book.visible[name] < at for name, at in before.book.visible.items()):
        return False
    return after.applied >= before.applied


def stops(sequencer: Shard) -> bool:
    """I5: with increments of one, no step is beyond its limit."""
    book = _book(sequencer)
    return all(book.steps.get(name, 0) <= limit for name, limit in book.limits.items())
