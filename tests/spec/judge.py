"""Judges a recorded trace: every answer must be one that the specification gives, or leaves open.

What it leaves open: whether there is memory for a message (WRONG changes nothing), when a task loses its state, whom a
step waits for, and when the reads of a push are forgotten.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import push_protocol as spec
from recording import Seen

__all__ = ["Judge", "Rejected", "judge"]

STEP = "global_step"


class Rejected(Exception):
    """The specification does not allow a step of a trace."""


def judge(trace: Sequence[Seen]) -> None:
    """Go through a trace; raises Rejected at the first step that the specification does not allow."""
    court = Judge()
    for number, seen in enumerate(trace):
        try:
            court.hear(number, seen)
        except Rejected as verdict:
            raise Rejected(f"step {number}, {seen}\n    {verdict}") from verdict


def _rule(values: spec.Values, name: str, grad: spec.Tensor, numbers: spec.Numbers) -> spec.Values:
    """Momentum, as the simulation uses it."""
    rate, momentum, _ = numbers
    slot = tuple(momentum * was + g for was, g in zip(values[f"{name}/momentum"], grad, strict=True))
    moved = tuple(value - rate * by for value, by in zip(values[name], slot, strict=True))
    return {**values, name: moved, f"{name}/momentum": slot}


def _require(holds: bool, text: str, *more: Any) -> None:
    if not holds:
        raise Rejected(text.format(*more))


@dataclass
class _Life:
    """What is known of an incarnation beside the states of its tasks."""

    owner: str
    #: Shard and entry -> the entry as the sequencer told it, with its signature.
    told: dict[tuple[int, int], tuple[spec.Entry, bytes]] = field(default_factory=dict)
    #: Shard -> what it said it has applied, with the signature.
    floors: defaultdict[int, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    #: By entry: the steps and who takes part; by shard and entry: the values, and reads.
    unfinished: dict[int, spec.Unfinished] = field(default_factory=dict)
    pushes: dict[int, spec.PushId] = field(default_factory=dict)
    values: defaultdict[int, dict[int, spec.Values]] = field(default_factory=lambda: defaultdict(dict))
    reads: dict[tuple[int, spec.PushId], spec.Answer] = field(default_factory=dict)
    visible: spec.Steps = field(default_factory=dict)
    snapshots: dict[spec.PushId, dict[int, spec.Snapshot]] = field(default_factory=dict)
    opened: bool = False


class Judge:
    """Follows every process of a trace by the specification."""

    def __init__(self) -> None:
        self._shards: dict[int, spec.Shard] = {}
        self._lives: dict[int, _Life] = {}
        # Task -> what it was after each line of the trace, where it has a log; and what nobody may forget.
        self._logged: defaultdict[int, list[tuple[int, spec.Shard]]] = defaultdict(list)
        self._kept: defaultdict[int, int] = defaultdict(int)
        self._number, self._has_log = 0, False
        self._calls: dict[str, set[spec.PushId]] = {}
        self._seen: dict[tuple[str, int], int] = {}

    def hear(self, number: int, seen: Seen) -> None:
        """Take a line of the trace.

        Raises:
            Rejected: If the specification does not allow it.
        """
        self._number = number
        if isinstance(seen.process, str):
            getattr(self, f"_client_{seen.kind}")(seen.process, **seen.said)
            return
        shard = self._shards.get(seen.process, spec.Shard(spec.Run(0, lambda steps: (), _rule)))
        if seen.kind == "answered":
            if shard.incarnation:
                self._kept[shard.at] = max(self._kept[shard.at], seen.said["until"])
            return
        if seen.kind == "crash":
            self._shards[seen.process] = spec.lose(shard)
            return
        self._is_refused = False
        try:
            if "incarnation" in seen.said and seen.kind not in ("Begin", "Adopt", "Finish"):
                who = seen.said["push"].client if "push" in seen.said else seen.said.get("client", shard.owner)
                spec.check(shard, seen.said["incarnation"], who)
            after = getattr(self, f"_{seen.kind.lower()}")(shard, seen, **seen.said)
        except spec.Refused as refused:
            _require(seen.error in (refused.args[0], "died"), "{} is to be answered", refused.args[0])
            after = shard
        else:
            if self._is_refused:
                pass  # and its floors count
            elif seen.error == "LOST" and seen.kind != "Begin":
                after = spec.lose(shard)  # a task may drop its state at any time
            elif seen.error == "WRONG":
                after = self._wrong(shard, seen)
            else:
                _require(seen.error in ("", "died"), "it is not refused by the specification")
        _require(spec.monotone(shard, after) or seen.kind in ("Begin", "Adopt"), "I4: it goes back")
        self._shards[seen.process] = after
        self._note(after)

    def _wrong(self, shard: spec.Shard, seen: Seen) -> spec.Shard:
        if seen.kind != "Push":
            return shard
        shard = self._raised(shard, seen.said["floors"])
        if seen.said["kind"] == spec.SNAPSHOT:
            return shard
        return spec.abandon(shard, seen.said["push"], seen.said["others"])

    def _note(self, shard: spec.Shard) -> None:
        """Keep what later lines are compared with."""
        life = self._lives.get(shard.incarnation)
        if life is None:
            return
        if self._has_log:
            self._logged[shard.at].append((self._number, shard))
        life.values[shard.at][shard.applied] = shard.values
        for kept in shard.kept.values():
            if kept.values is not None:
                life.reads[shard.at, kept.push] = spec.Answer(kept.values, kept.index)
        for push, taken in shard.snapshots.items():
            parts = life.snapshots.setdefault(push, {})
            parts[shard.at] = taken
            _require(spec.consistent(list(parts.values())), "I3: the parts of snapshot {} are of several entries", push)
        if shard.book is None:
            return
        for unfinished in shard.book.unfinished:
            life.unfinished[unfinished[0]] = unfinished
        _require(spec.stops(shard), "I5: beyond the limit")
        for name, step in life.visible.items():
            _require(shard.book.visible[name] >= step, "I4: the visible step went back from {}", step)
        life.visible = shard.book.visible

    # ---- The life of an incarnation -----------------------------------------------------------

    def _begin(self, shard, seen, incarnation, owner, opened, at, shards, sequencer, saved, logged):
        if seen.error:
            return shard
        self._has_log |= logged
        if saved is not None and at == sequencer:
            before = [life for number, life in self._lives.items() if number < incarnation]
            taken = [
                snapshot.book for life in before for parts in life.snapshots.values() for snapshot in parts.values()
            ]
            same = any(book is not None and _same_book(book, saved) for book in taken)
            _require(same, "I4: no incarnation before it has saved this book")
        if incarnation > shard.incarnation:
            run = spec.Run(sequencer, lambda steps: (steps.get(STEP, 0) + 1.0, 1.0, 0.0), _rule)
            life = self._lives.get(incarnation)
            if life is None or (life.owner != owner and not life.opened):
                life = self._lives[incarnation] = _Life(owner)
            _require(life.owner == owner, "I4: incarnation {} was another one's", incarnation)
            shard = spec.begin(replace(shard, run=run, at=at), incarnation, owner, opened, saved)
            if shard.book is not None:
                life.visible = shard.book.visible
        _require(seen.reply == (shard.incarnation, shard.owner), "{} is in force", (shard.incarnation, shard.owner))
        return shard

    def _declare(self, shard, seen, incarnation, client, steps):
        return spec.declare(shard, steps)

    def _open(self, shard: spec.Shard, seen: Seen, incarnation: int, client: str, limits: spec.Steps) -> spec.Shard:
        self._lives[incarnation].opened = True
        shard = spec.open_to_all(shard, limits)
        self._same(seen, dict(shard.book.limits) if shard.book else {})
        return shard

    def _finish(self, shard: spec.Shard, seen: Seen, incarnation: int, client: str) -> spec.Shard:
        if seen.error:
            return shard
        if shard.incarnation:
            spec.check(shard, incarnation, client)
        return replace(shard, phase="done")

    def _leave(self, shard: spec.Shard, seen: Seen, client: str) -> spec.Shard:
        return spec.leave(shard, client)

    def _lose(self, shard: spec.Shard, seen: Seen) -> spec.Shard:
        return spec.lose(shard)

    def _dropshort(self, shard: spec.Shard, seen: Seen, incarnation: int) -> spec.Shard:
        return spec.lose(shard) if seen.reply else shard

    def _adopt(self, shard, seen, at, incarnation, applied, staged, phase, index=0, outcomes=None, floors=None):
        """A task comes back from its log, as it was: all that it had answered is there."""
        if seen.error or not seen.reply:
            return shard
        holders = [other for other in self._shards.values() if other.at == at and other.incarnation == incarnation]
        _require(not holders, "two processes hold the state of task {}", at)
        found = None
        for number, was in reversed(self._logged[at]):
            is_ = was.incarnation, was.phase, was.applied, set(was.staged)
            same = is_ == (incarnation, phase, applied, staged)
            if same and (was.book is None or (was.book.index == index and _known(was.book) == outcomes)):
                found = was
                break
            if number <= self._kept[at]:
                break
        if found is None:
            raise Rejected("it comes back without something that it had answered, or with something else")
        if found.book is not None and floors is not None:
            found = replace(found, book=self._raised_anew(found.book, incarnation, floors))
            assert found.book is not None
            old = [
                was for number, was in self._logged[at] if number <= self._kept[at] and was.incarnation == incarnation
            ]
            life = self._lives[incarnation]
            # What nobody had heard of yet is not there any more.
            life.pushes = {index: push for index, push in life.pushes.items() if index <= found.book.index}
            life.visible = old[-1].book.visible if old and old[-1].book else {}
        return found

    def _raised_anew(self, book: spec.Book, incarnation: int, floors: Mapping[int, int]) -> spec.Book:
        """The floors of a book that comes back may be lower than they were: what has not been written down."""
        life = self._lives[incarnation]
        entries: dict[int, tuple[spec.Entry, ...]] = {}
        for (at, index), (entry, _) in sorted(life.told.items()):
            if floors.get(at, 0) < index <= book.index:
                entries[at] = (*entries.get(at, ()), entry)
        there = [item for index, item in sorted(life.unfinished.items()) if index <= book.index]
        passed = [all(floors.get(other, 0) >= index for other in others) for index, others, _ in there]
        unfinished = tuple(there[passed.index(False) :]) if False in passed else ()
        visible = book.steps
        if unfinished:
            before = life.unfinished.get(unfinished[0][0] - 1)
            visible = before[2] if before else book.visible
        return replace(book, floors=dict(floors), entries=entries, unfinished=unfinished, visible=visible)

    # ---- Pushes -------------------------------------------------------------------------------

    def _stage(self, shard: spec.Shard, seen: Seen, incarnation: int, push: spec.PushId, part: spec.Part) -> spec.Shard:
        return spec.stage(shard, push, part)

    def _push(self, shard, seen, incarnation, push, part, kind, others, floors, asked):
        shard, asked = self._raised(shard, floors), _as_waited_for(seen, asked)
        try:
            after, admission = spec.push(shard, push, part, others, asked, kind)
        except spec.Refused as refused:
            _require(seen.error in (refused.args[0], "died"), "{} is to be answered", refused.args[0])
            self._is_refused = True
            return spec.abandon(shard, push, others) if refused.args == ("WRONG",) and shard.book else shard
        return self._admitted(shard, seen, push, after, admission)

    def _admitted(self, before, seen, push, after, admission):
        outcome, told, answer = admission
        assert before.book is not None
        assert after.book is not None
        life = self._lives[after.incarnation]
        new = after.book.index > before.book.index
        if new:
            life.pushes[after.book.index] = push
            if outcome.moved:
                for call in self._calls.values():
                    call.add(push)
            life.unfinished[after.book.index] = (after.book.index, tuple(told), after.book.steps)
        if seen.error:
            for at, entries in told.items():
                life.told.update({(at, entry.index): (entry, b"") for entry in entries[-1:] if new})
            return after
        (kind, index, steps), pending, found = seen.reply
        _require((kind, index, steps) == (outcome.kind, outcome.index, outcome.steps), "the outcome is {}", outcome)
        if outcome.kind == spec.ACCEPTED:
            _require(pending.keys() == told.keys(), "entries are for {}", sorted(told))
            for at, entries in told.items():
                self._told(life, at, entries, pending[at])
        self._answered(after, push, answer, found)
        return after

    def _told(self, life, at, right, told):
        """The sequencer says which entries a shard may not have applied."""
        right = list(right)
        _require([entry for entry, _ in told] == right, "the entries of task {} are {}", at, right)
        life.told.update({(at, entry.index): (entry, signature) for entry, signature in told})

    def _answered(self, shard: spec.Shard, push: spec.PushId, right: spec.Answer, found: spec.Answer) -> None:
        """The reads of a push, as of its own entry; or, where they are not kept any more, as they are, or none."""
        own = self._lives[shard.incarnation].reads.get((shard.at, push))
        kept = shard.kept.get(push.client)
        allowed = [own, right]
        if kept is not None and kept.push == push:
            allowed.append(spec.Answer(spec.read(shard, kept.reads), shard.applied))
        _require(not found.values or found in allowed, "the values are {}", right)

    def _commit(self, shard, seen, incarnation, push, entries):
        after, right = spec.commit(shard, push, self._signed(shard, entries))
        self._note_each(shard, entries)
        if not seen.error:
            found, applied, signature = seen.reply
            _require(applied == after.applied, "entry {} is the last that is applied", after.applied)
            self._lives[incarnation].floors[shard.at][applied] = signature
            self._answered(after, push, right, found)
        return after

    def _note_each(self, shard: spec.Shard, entries: Sequence[tuple[spec.Entry, bytes]]) -> None:
        """Keep what the shard is after each of several entries; a task may die between their records."""
        life = self._lives[shard.incarnation]
        for entry in self._signed(shard, entries):
            shard = spec.settled(shard, (), [entry])
            self._logged[shard.at].append((self._number, shard))
            life.values[shard.at][shard.applied] = shard.values
            kept = shard.kept.get(entry.push.client)
            if kept is not None and kept.values is not None:
                life.reads[shard.at, kept.push] = spec.Answer(kept.values, kept.index)

    def _signed(self, shard: spec.Shard, entries: Sequence[tuple[spec.Entry, bytes]]) -> list[spec.Entry]:
        told = self._lives[shard.incarnation].told
        return [replace(entry, signed=told.get((shard.at, entry.index)) == (entry, sign)) for entry, sign in entries]

    def _raised(self, shard: spec.Shard, floors: Mapping[int, tuple[int, bytes]]) -> spec.Shard:
        said = self._lives[shard.incarnation].floors
        old = shard.book.floors if shard.book else {}
        signed = all(
            said[at].get(index) == signature for at, (index, signature) in floors.items() if index > old.get(at, 0)
        )
        return spec.raise_floors(shard, {at: index for at, (index, _) in floors.items()}, signed)

    def _resolve(self, shard, seen, incarnation, pushes, of, applied):
        floors = {of: applied} if of != shard.at else {}
        shard, told = spec.settle(spec.raise_floors(shard, floors), pushes, of)
        if not seen.error:
            self._told(self._lives[incarnation], of, told, seen.reply)
        return shard

    def _resolved(self, shard, seen, incarnation, asked, entries):
        life = self._lives[incarnation]
        sequencer = next((s for s in self._shards.values() if s.incarnation == incarnation and s.book), None)
        for push in asked:
            applied = {entry.push for entry, _ in entries} | set(life.pushes.values())
            known = sequencer is None or sequencer.book is None or push in sequencer.book.outcomes
            gone = known or push.number <= sequencer.book.forgotten.get(push.client, 0)  # type: ignore[union-attr]
            _require(gone or push in applied, "part {} is dropped, and not fenced", push)
        after = spec.settled(shard, asked, self._signed(shard, entries))
        self._same(seen, after.applied)
        self._note_each(shard, entries)
        return after

    # ---- Reads --------------------------------------------------------------------------------

    def _pull(self, shard, seen, incarnation, client, reads, floors, shards):
        shard = self._raised(shard, floors)

        def right() -> Any:
            if not shards:
                return spec.pull(shard, reads), shard.applied, {}
            values, last = spec.pull_together(shard, reads)
            return values, shard.applied, {at: last.get(at, 0) for at in shards} if shard.book else {}

        self._same(seen, right)
        return shard

    def _getsteps(self, shard, seen, incarnation, floors):
        shard = self._raised(shard, floors)
        self._same(seen, lambda: shard.book and dict(shard.book.visible))
        return shard

    def _awaitstep(self, shard: spec.Shard, seen: Seen, incarnation: int, client: str) -> spec.Shard:
        self._same(seen, lambda: shard.book and dict(shard.book.visible))
        return shard

    def _readsnapshot(self, shard: spec.Shard, seen: Seen, incarnation: int, push: spec.PushId) -> spec.Shard:
        if not seen.error:
            values, book = seen.reply
            taken = shard.snapshots[push]
            right = {
                **taken.values,
                **{name: (float(step),) for name, step in (taken.book.steps if taken.book else {}).items()},
            }
            _require(values == right, "I3: the snapshot is {}", right)
            if taken.book is not None:
                _require(book is not None and _same_book(taken.book, book), "I3: the book is {}", taken.book)
        return shard

    def _same(self, seen: Seen, right: Any) -> None:
        if not seen.error:
            right = right() if callable(right) else right
            _require(seen.reply == right, "{} is to be answered", right)

    # ---- What clients were told ---------------------------------------------------------------

    def _client_calls(self, client: str) -> None:
        self._calls[client] = set()

    def _client_pushed(self, client, incarnation, reads, values, outcome, index, steps, base, waits):
        """A push counts once, under one id; its values are those of one place in the order, of after it."""
        counted = set(self._lives[incarnation].pushes.values())
        own = {push for push in self._calls.pop(client, set()) if push.client == client and push in counted}
        _require(len(own) <= 1, "one call was accepted as {}", sorted(own))
        if outcome != spec.ACCEPTED:
            _require(not own or base is not None, "{} was accepted, and its client was told {}", own, outcome)
            return
        life = self._lives[incarnation]
        _require(life.pushes[index].client == client, "entry {} is of {}", index, life.pushes[index])
        since = index
        if base is not None:  # a contribution waits for its step
            made = [at for at, item in life.unfinished.items() if at >= index and item[2][STEP] > base]
            since = min(made, default=index)
        self._cut(life, reads, values, since, visible=waits)
        self._seen[client, incarnation] = max(self._seen.get((client, incarnation), 0), index)

    def _client_pulled(self, client, incarnation, reads, values):
        life = self._lives.get(incarnation)
        if life is not None:
            self._cut(life, reads, values, self._seen.get((client, incarnation), 0), visible=True)

    def _cut(self, life, reads, values, since, visible):
        """Some place in the order, not before `since`, has just these values on all shards."""
        wanted = [item for item in zip(reads, values, strict=True) if item[1] and not (visible and "step" in item[0])]
        for index in range(since, max(life.pushes, default=0) + 1):
            steps = life.unfinished[index][2] if index in life.unfinished else {}
            cut = {name: (float(step),) for name, step in steps.items()}
            for by_entry in life.values.values():
                cut |= by_entry.get(max((at for at in by_entry if at <= index), default=0), {})
            if all(cut.get(name) == value for name, value in wanted):
                return
        _require(not wanted, "I2: no place since entry {} has these values", since)


def _as_waited_for(seen: Seen, asked: spec.Asked) -> spec.Asked:
    late = not seen.error and seen.reply[0][0] == spec.LATE
    return asked._replace(nobody_is_waited_for=not late)


def _known(book: spec.Book) -> dict[spec.PushId, tuple[str, int]]:
    return {push: (outcome.kind, outcome.index) for push, outcome in book.outcomes.items()}


def _same_book(right: spec.Book, found: spec.Book) -> bool:
    """Whether a checkpoint's book is one; outcomes may have been forgotten, but not that the pushes were decided."""
    known = _known(found)
    table = all(
        known.get(push) == (outcome.kind, outcome.index) or push.number <= found.forgotten.get(push.client, 0)
        for push, outcome in right.outcomes.items()
    )
    return table and right.index == found.index and dict(right.steps) == dict(found.steps)
