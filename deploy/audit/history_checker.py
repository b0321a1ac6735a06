"""Judges what clients saw of a run, and its journal: whether all of it can have come of one order of its pushes.

It imports nothing of globalstep, so nothing that it judges can excuse itself, and any Python runs it as it is:
`python history_checker.py HISTORY ...`. docs/design/histories.md has the form of a history, and what is proven of it.

Layer: deploy. Single thread: the caller's. Imports nothing of globalstep.
"""

from __future__ import annotations

import gc
import json
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import inf
from operator import add, attrgetter
from typing import Any

PROVEN, NOT_PROVEN, UNREADABLE = 0, 1, 2
#: Ways in which pushes of unknown outcome may have counted that are followed at once.
_MOST_WAYS = 4096
#: How far back a push is looked for that explains a value.
_LOOK_BACK = 1000
_NONE: Mapping[str, Any] = {}


class BadHistoryError(ValueError):
    """A history is not of the form that docs/design/histories.md describes, or cannot be judged."""


class _RefutedError(Exception):
    """The clients' history contradicts itself, or the journal."""

    def __init__(self, text: str, *operations: ClientOperation | None) -> None:
        super().__init__(text)
        self.operations = [operation for operation in operations if operation is not None]


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on a history.

    Attributes:
        wrong: The first thing that cannot be, in words; "" where all is proven.
        operations: Those that show it.
        counts: How many operations there were, by kind and end.
    """

    wrong: str
    operations: Sequence[str]
    counts: Mapping[str, int]

    def lines(self) -> Iterator[str]:
        """Give it for people; the last line is PROVEN or NOT PROVEN."""
        yield "operations  " + ", ".join(f"{count} {kind}" for kind, count in sorted(self.counts.items()))
        if self.wrong:
            yield f"WRONG       {self.wrong}"
        yield from (f"  {text}" for text in self.operations)
        yield "NOT PROVEN" if self.wrong else "PROVEN"


@dataclass(eq=False, slots=True)
class ClientOperation:
    """An operation of a client: what it was to do, when, and what the client was told."""

    process: str
    f: str
    invoked: float
    given: Mapping[str, Any]
    incarnation: int
    ended: float = inf
    type: str = "info"
    told: Mapping[str, Any] = field(default_factory=lambda: _NONE)
    #: The entries between which it shows the run; of a push, its own.
    low: float = -1
    high: float = inf
    #: Entries that it cannot be before, or after, as other operations had ended, or had not begun.
    since: float = -1
    until: float = inf
    #: Of an unknown push: the same for all that do the same.
    effect: str = ""

    def __str__(self) -> str:
        end = "never ended" if self.ended == inf else f"{self.type} at {self.ended:.6f} {json.dumps(self.told)}"
        return f"{self.process}: {self.f} at {self.invoked:.6f} {json.dumps(self.given)}, {end}"

    @property
    def name(self) -> str:
        """Name it in a sentence."""
        place = f", entry {self.told['index']} of incarnation {self.incarnation}," if "index" in self.told else ""
        return f"the {self.f} of {self.process} at {self.invoked:.6f} s{place}"


class _History:
    """Operations put together from events, and what the run and its journal say."""

    def __init__(self, events: Iterable[Mapping[str, Any]]) -> None:
        self.run: dict[str, Any] = {}
        self.operations: list[ClientOperation] = []
        self.begins: list[ClientOperation] = []
        #: Incarnation -> its journal's entries, as they come.
        self.entries: dict[int, list[Mapping[str, Any]]] = {}
        self._under_way: dict[str, ClientOperation] = {}
        self._alike: dict[tuple[Any, ...], Mapping[str, Any]] = {}
        for event in events:
            try:
                self._take(event)
            except (KeyError, TypeError, AttributeError) as error:
                raise BadHistoryError(f"{event} is no event: {error!r}") from None

    def _take(self, event: Mapping[str, Any]) -> None:
        f, kind, value = event["f"], event.get("type"), event.get("value") or _NONE
        if f == "run":
            self.run.update(value)
        elif f == "entry":
            self.entries.setdefault(value["incarnation"], []).append(value)
        elif f not in ("push", "read", "look", "begin"):
            raise BadHistoryError(f"There is no operation {f!r}.")
        elif kind is None:
            # The journal's word on how an incarnation began.
            self.begins.append(ClientOperation("the journal", f, -inf, _NONE, value["incarnation"], -inf, "ok", value))
        elif kind == "invoke":
            self._invoke(event["process"], f, float(event["time"]), value)
        else:
            self._end(event["process"], f, kind, float(event["time"]), value)

    def _invoke(self, process: str, f: str, time: float, value: Mapping[str, Any]) -> None:
        if process in self._under_way:
            raise BadHistoryError(f"{process} began a {f} at {time:.6f} s, before its last operation had ended.")
        if value.keys() == {"incarnation", "add"}:
            # Most pushes are alike: a million of them need the memory of one.
            value = self._alike.setdefault((value["incarnation"], *value["add"].items()), value)
        operation = ClientOperation(process, f, time, value, value.get("incarnation", 0))
        self._under_way[process] = operation
        (self.begins if f == "begin" else self.operations).append(operation)

    def _end(self, process: str, f: str, kind: str, time: float, value: Mapping[str, Any]) -> None:
        operation = self._under_way.pop(process, None)
        if operation is None or operation.f != f or kind not in ("ok", "fail", "info") or time < operation.invoked:
            raise BadHistoryError(f"{process} ended a {f} as {kind!r} at {time:.6f} s that it had not begun.")
        if kind == "info":
            return
        operation.ended, operation.type, operation.told = time, kind, value
        operation.incarnation = value.get("incarnation", operation.incarnation)
        if "index" in value:
            operation.low = operation.high = value["index"]
        if kind == "ok" and value.get("then"):
            read = {"read": value["then"], **({"from": value["from"]} if "from" in value else {})}
            later = ClientOperation(process, "read", operation.invoked, _NONE, operation.incarnation, time, "ok", read)
            later.since = operation.low
            self.operations.append(later)


class _World:
    """One possible state so far: each name's value, and which of the unknown pushes counted."""

    __slots__ = ("held", "marks", "met", "used", "values")

    def __init__(self, values: Mapping[str, float]) -> None:
        self.values = dict(values)
        self.used: frozenset[ClientOperation] = frozenset()
        #: Contributions for what follows a step, in the order of their entries.
        self.held: list[ClientOperation] = []
        #: Reads under way that it has shown.
        self.met: set[ClientOperation] = set()
        #: Entry -> values, where another incarnation begins.
        self.marks: dict[int, dict[str, float]] = {}

    def copy(self, *used: ClientOperation) -> _World:
        """Give another world that goes on from here, perhaps with an unknown push more."""
        other = _World(self.values)
        other.used, other.held, other.met = self.used.union(used), list(self.held), set(self.met)
        other.marks = dict(self.marks)
        return other

    def key(self) -> object:
        """Give what is the same for worlds that cannot be told apart."""
        marks = [(index, frozenset(values.items())) for index, values in self.marks.items()]
        return self.used, frozenset(self.met), tuple(self.held), frozenset(self.values.items()), tuple(marks)

    def apply(self, changes: Mapping[str, Any], push: ClientOperation | None) -> str:
        """Change the values as a push does; gives what is wrong with that."""
        values, part = self.values, changes.get("part")
        if part is not None and push is not None:
            return self._contribute(part, push)
        values.update(changes.get("set", _NONE))
        for name, by in changes.get("add", _NONE).items():
            if name in values:
                values[name] += by
        return ""

    def _contribute(self, part: Mapping[str, Any], push: ClientOperation) -> str:
        step, base, unit = part["step"], part["base"], part.get("unit", 0)
        if self.values.setdefault(step, base) != base:
            return f"counts for what follows {step} = {base}, and {step} was {self.values[step]}"
        if unit and any(other.given["part"].get("unit") == unit for other in self.held):
            return f"counts as unit {unit} of what follows {step} = {base}, of which that unit was there"
        self.held.append(push)
        if len(self.held) == part["of"]:
            self.close()
        return ""

    def close(self) -> None:
        """Make the step of the contributions that are there: their mean is added."""
        parts = sorted(self.held, key=lambda item: item.given["part"].get("unit", 0))
        self.held = []
        self.values[parts[0].given["part"]["step"]] += 1
        for name in parts[0].given.get("add", _NONE):
            if name in self.values:
                self.values[name] += reduce(add, (item.given["add"][name] for item in parts)) / len(parts)

    def is_before(self, steps: Mapping[str, float]) -> bool:
        """Say whether a step has not come so far here."""
        return any(self.values.get(step, value) < value for step, value in steps.items())

    def differs(self, read: Mapping[str, float], adopt: bool) -> str:
        """Give a name whose value is another one here; what nobody has told of may be anything."""
        values = self.values
        for name, value in read.items():
            if values.get(name, value) != value:
                return name
            if adopt:
                values[name] = value
        return ""


class DecidedPushes:
    """The numbers of each client's pushes that were decided, as stretches without holes."""

    def __init__(self) -> None:
        self._stretches: dict[str, list[list[float]]] = {}

    def add(self, client: str, number: int) -> str:
        """Take note of a decision; gives what is wrong with it."""
        stretches = self._stretches.setdefault(client, [[-inf, -inf]])
        at = len(stretches) - 1 if number > stretches[-1][1] else bisect_right(stretches, [number, inf]) - 1
        if number <= stretches[at][1]:
            return f"Push {number} of client {client} was decided twice"
        if number == stretches[at][1] + 1:
            stretches[at][1] = number
        else:
            stretches.insert(at + 1, [number, number])
        return ""


class JournalBook:
    """The entries of an incarnation as the run's journal has them, taken one after the other.

    Args:
        index: The entry after which it begins.
        values: The steps there.
        marks: Entries at which the steps are to be kept.
    """

    def __init__(self, index: int = 0, values: Mapping[str, int] = _NONE, marks: Iterable[int] = ()) -> None:
        self.index, self.values = index, dict(values)
        self._at = {mark: dict(values) for mark in marks}

    def entry(self, index: int) -> str:
        """Take an accepted push, or a snapshot; gives what is wrong with its place."""
        before, self.index = self.index, index
        for mark in self._at:
            if before <= mark < index:
                self._at[mark] = dict(self.values)
        if index == before + 1:
            return ""
        if index <= before:
            return f"Entry {index} comes after entry {before}: it is there twice, or out of order"
        if index == before + 2:
            return f"Entry {before + 1} is missing"
        return f"Entries {before + 1} to {index - 1} are missing"

    def step(self, index: int, name: str, value: int, by: int | None) -> str:
        """Take what an entry made of a step, which it moved on or, without `by`, assigned; gives what is wrong."""
        before, self.values[name] = self.values.get(name, 0), value
        if by is not None and before + by != value:
            return f"Entry {index} says {name} = {value}; it was {before} before, and moved on {by}"
        return ""

    def beside(self, index: int, values: Mapping[str, int], what: str, incarnation: int) -> str:
        """Hold the steps at a marked entry against those that somebody else says; gives what is wrong."""
        at = f"{what} after entry {index} of incarnation {incarnation}"
        if self.index < index:
            return f"{at}, but the journal ends at entry {self.index}."
        steps = self.values if self.index == index else self._at[index]
        if any(steps.get(name, 0) != value for name, value in values.items()):
            return f"{at} with {dict(values)}; the journal has {steps} there."
        return ""


class _Judge:
    """Judges one history."""

    def __init__(self, history: _History) -> None:
        self._run = history.run
        self._operations = history.operations
        self._pushes: dict[int, dict[int, ClientOperation]] = {}
        self._reads: dict[int, list[ClientOperation]] = {}
        self._unknown: dict[int, list[ClientOperation]] = {}
        self._journal = _read_journal(history)
        self._steps: dict[tuple[int, str], tuple[list[float], list[int]]] = {}
        self._looks: dict[int, list[ClientOperation]] = {}
        #: Of a read that no entry shows: what is wrong with it where its first number, mostly a step, is right.
        self._near: dict[ClientOperation, _RefutedError] = {}
        for operation in self._operations:
            self._sort(operation)
        self._begins = self._begun(history.begins)

    def _sort(self, operation: ClientOperation) -> None:
        number = operation.incarnation
        if operation.type == "fail":
            return
        if operation.f == "push":
            if operation.type != "ok":
                operation.effect = json.dumps([operation.given.get(key) for key in ("add", "set", "part")])
                self._unknown.setdefault(number, []).append(operation)
                return
            other = self._pushes.setdefault(number, {}).setdefault(operation.told["index"], operation)
            if other is not operation:
                raise _RefutedError(f"Two pushes were given entry {operation.told['index']}.", other, operation)
        elif operation.type == "ok":
            (self._looks if operation.f == "look" else self._reads).setdefault(number, []).append(operation)

    def _begun(self, begins: list[ClientOperation]) -> dict[int, ClientOperation]:
        """Give the beginning of each incarnation: the entry, and the incarnation of it, that it went on from."""
        begun: dict[int, ClientOperation] = {}
        first = {number: min(item.ended for item in items.values()) for number, items in self._pushes.items()}
        for begin in sorted(begins, key=attrgetter("ended")):
            if begin.type != "ok":
                continue
            number, source = begin.incarnation, begin.told.get("from")
            # The journal and the chief may both say it.
            other = begun.get(number)
            if other is not None and other.told.get("from") != source and first.get(number, inf) < begin.invoked:
                raise _RefutedError(f"Incarnation {number} began twice.", other, begin)
            begun[number] = begin
            if source and source[0] >= number:
                raise _RefutedError(f"Incarnation {number} began from incarnation {source[0]}, a later one.", begin)
        return begun

    def _check_durable(self) -> None:
        """No incarnation begins without what clients had been told that it counts."""
        durable: list[ClientOperation] = []
        for number, begin in sorted(self._begins.items()):
            source, index = begin.told.get("from") or (0, 0)
            for push in durable:
                if (push.incarnation, push.low) > (source, index):
                    text = f"was to be durable, and incarnation {number} began without it"
                    raise _RefutedError(f"{push.name} {text}.", push, begin)
            durable = [push for push in self._pushes.get(number, {}).values() if "add" in push.given] or durable

    def judge(self) -> None:
        """Raise _RefutedError for the first thing that cannot be."""
        self._order()
        if self._run.get("durable"):
            self._check_durable()
        self._bound()
        worlds: dict[int, list[_World]] = {}
        for number in sorted({*self._pushes, *self._reads, *self._journal, *self._begins}):
            began: Mapping[str, Any] = self._begins[number].told if number in self._begins else {"from": "somewhere"}
            begun = worlds.get(number) or [_World(_NONE if began.get("from") else self._run.get("start", _NONE))]
            read = began.get("read", _NONE)
            if all(world.differs(read, adopt=True) for world in begun):
                raise _RefutedError(f"Incarnation {number} began with {read}, which no state before it had.")
            ends = self._sweep(number, begun)
            for child, begin in self._begins.items():
                source = begin.told.get("from")
                if source and source[0] == number:
                    begun = [_World(world.marks[source[1]]) for world in ends]
                    worlds[child] = list({world.key(): world for world in begun}.values())
        for operations in self._looks.values():
            for operation in operations:
                self._place_look(operation)
        self._order()
        self._check_looks()

    # ---- Time ---------------------------------------------------------------------------------

    def _order(self) -> None:
        """Require of operations that did not overlap that the earlier one comes first."""
        ended = [item for item in self._operations if item.type == "ok"]
        ended += [begin for begin in self._begins.values() if begin.ended > -inf]
        ended.sort(key=attrgetter("ended"))
        at, newest = 0, None
        done: dict[int, ClientOperation] = {}
        for operation in sorted(self._operations, key=attrgetter("invoked")):
            while at < len(ended) and ended[at].ended < operation.invoked:
                last, at = ended[at], at + 1
                if last.incarnation not in done or last.low > done[last.incarnation].low:
                    done[last.incarnation] = last
                if newest is None or self._follows(last, newest):
                    newest = last
            if newest is not None and operation.type == "ok" and self._follows(newest, operation):
                text = f"is of incarnation {operation.incarnation}, which was over, as {newest.name} had ended"
                raise _RefutedError(f"{operation.name} {text}.", newest, operation)
            before = done.get(operation.incarnation)
            if before is None:
                continue
            operation.since = max(operation.since, before.low)
            if operation.type == "ok" and operation.high < before.low + (operation.f == "push"):
                text = f"began when {before.name} had ended, and shows what was before: entry {operation.high}"
                raise _RefutedError(f"{operation.name} {text}.", before, operation)

    def _follows(self, operation: ClientOperation, other: ClientOperation) -> bool:
        """Whether the incarnation of one operation began after the other's.

        By when they began, where that is known. An incarnation that was lost before OPEN may have a greater number than
        the next one has: nobody but its chief knew it.
        """
        begin, before = (self._begins.get(one.incarnation) for one in (operation, other))
        if begin is None or before is None or begin.ended == -inf or before.ended == -inf:
            return operation.incarnation > other.incarnation
        return begin.ended > before.ended

    def _bound(self) -> None:
        """A read comes before the pushes that began when it had ended."""
        pushes = sorted((item for items in self._pushes.values() for item in items.values()), key=attrgetter("invoked"))
        reads = [item for table in (self._reads, self._looks) for items in table.values() for item in items]
        least: dict[int, float] = {}
        for read in sorted(reads, key=attrgetter("ended"), reverse=True):
            while pushes and pushes[-1].invoked > read.ended:
                push = pushes.pop()
                least[push.incarnation] = min(least.get(push.incarnation, inf), push.low)
            read.until = least.get(read.incarnation, inf) - 1

    # ---- The order of the entries -------------------------------------------------------------

    def _sweep(self, number: int, worlds: list[_World]) -> list[_World]:
        """Go through an incarnation's entries in order; gives the ways in which all of it can have come."""
        pushes, journal = self._pushes.get(number, {}), self._journal.get(number, {})
        begin = self._begins.get(number)
        source = begin.told.get("from") if begin is not None else None
        indices = (*pushes, *journal)
        first = source[1] if source else 0 if begin is not None else min(indices, default=1) - 1
        if pushes and min(pushes) <= first:
            text = f"was given entry {min(pushes)}, and incarnation {number} begins after entry {first}"
            raise _RefutedError(f"{pushes[min(pushes)].name} {text}.", pushes[min(pushes)], begin)
        marks = {item.told["from"][1] for item in self._begins.values() if (item.told.get("from") or [0])[0] == number}
        unknown = sorted(self._unknown.get(number, ()), key=attrgetter("since"))
        # Those may have come after all that is known, and the entry that makes a step after its contributions.
        contributes = any("part" in push.given for push in (*pushes.values(), *unknown))
        last = max((*indices, *marks), default=first) + len(unknown) + contributes * (len(unknown) + 1)
        starts: dict[float, list[ClientOperation]] = {}
        for read in self._reads.get(number, ()):
            starts.setdefault(max(read.since if read.low < 0 else read.low, first), []).append(read)
            last = max(last, int(read.low))
        looked = sorted({name for look in self._looks.get(number, ()) for name in look.told["read"]})
        changes = [(name, *self._steps.setdefault((number, name), ([], []))) for name in looked]
        under_way: list[ClientOperation] = []
        for index in range(first, int(last) + 1):
            if index > first:
                push, entry = pushes.get(index), journal.get(index)
                if push is not None:
                    worlds = self._push(worlds, push, entry)
                elif unknown or entry is not None or any(world.held for world in worlds):
                    worlds = self._gap(worlds, unknown, index, entry)
            for name, values, places in changes:
                value = max((world.values.get(name, -inf) for world in worlds), default=-inf)
                if not values or value > values[-1]:
                    values.append(value)
                    places.append(index)
            under_way += starts.get(index, ())
            if under_way:
                worlds, under_way = self._look(worlds, under_way, index, int(last))
            if index in marks:
                for world in worlds:
                    world.marks[index] = dict(world.values)
        return worlds

    def _push(self, worlds: list[_World], push: ClientOperation, entry: Mapping[str, Any] | None) -> list[_World]:
        if entry is not None and entry["client"] != push.process:
            text = f"the journal has a push of {entry['client']} there"
            raise _RefutedError(f"{push.name} was told that it counts; {text}.", push)
        left, wrong = [], _RefutedError("")
        for world in worlds:
            text = self._carry_out(world, push)
            name = "" if text else world.differs(push.told.get("read", _NONE), adopt=True)
            if not text and not name:
                left.append(world)
            elif text:
                wrong = _RefutedError(f"{push.name} {text}.", push)
            else:
                wrong = self._another_value(world, push, push.told["read"], name, int(push.low))
        if not left:
            raise wrong
        return left

    def _carry_out(self, world: _World, push: ClientOperation) -> str:
        """Have a push count; gives what is wrong with that."""
        most = self._run.get("max_staleness", inf)
        for step, seen in push.given.get("seen", _NONE).items():
            value = world.values.get(step, seen)
            if value > seen + most:
                return f"counts at {step} = {value}; its worker had read {seen}, and may lag by {most}"
        text = world.apply(push.given, push)
        for step, limit in self._run.get("limit", _NONE).items():
            if world.values.get(step, limit) > limit:
                return text or f"made {step} = {world.values[step]}, and the limit is {limit}"
        return text

    def _gap(
        self, worlds: list[_World], unknown: list[ClientOperation], index: int, entry: Mapping[str, Any] | None
    ) -> list[_World]:
        """An entry that no client was told of: it changed nothing, or is a push whose client does not know."""
        if len(worlds) == 1 and worlds[0].used:
            unknown[:] = [push for push in unknown if push not in worlds[0].used]
            worlds[0].used = frozenset()
        ways: dict[object, _World] = {}
        for world in worlds:
            tried: set[str] = set()
            for push in unknown[: bisect_left(unknown, index, key=attrgetter("since"))]:
                # Of several that do the same it is all the same which.
                if push.effect in tried or push in world.used or (entry and entry["client"] != push.process):
                    continue
                other = world.copy(push)
                if not self._carry_out(other, push):
                    tried.add(push.effect)
                    ways.setdefault(other.key(), other)
            if world.held:
                other = world.copy()
                other.close()
                ways.setdefault(other.key(), other)
            if entry is not None:
                world.apply(entry, None)
            ways.setdefault(world.key(), world)
        if len(ways) > _MOST_WAYS:
            raise BadHistoryError(f"Too much is unknown: at entry {index} there are {len(ways)} ways.")
        return list(ways.values())

    def _look(
        self, worlds: list[_World], reads: list[ClientOperation], index: int, last: int
    ) -> tuple[list[_World], list[ClientOperation]]:
        """Find reads that show the run as of an entry; gives the worlds that are left, and reads that may be later."""
        later = []
        for read in reads:
            seen, exact, name = read.told, read.told.get("index") == index, ""
            for world in worlds:
                name = world.differs(seen["read"], exact)
                if name and name != next(iter(seen["read"])):
                    self._near[read] = self._another_value(world, read, seen["read"], name, index)
                if not name and not ("from" in seen and world.is_before(seen["from"])):
                    world.met.add(read)
                    if not exact:
                        read.low = index if read.low < 0 else read.low
                        read.high = index
            if not exact and index < min(read.until, last):
                later.append(read)
                continue
            left = [world for world in worlds if read in world.met]
            if not left:
                raise self._near.get(read) or self._another_value(worlds[-1], read, seen["read"], name, index)
            for world in left:
                world.met.discard(read)
            worlds = left
        return worlds, later

    def _another_value(
        self, world: _World, operation: ClientOperation, read: Mapping[str, float], name: str, index: int
    ) -> _RefutedError:
        """Say that a value is not what the pushes make of it, and which of them explains that."""
        if not name:
            return _RefutedError(f"{operation.name} shows what was before {operation.told.get('from')}.", operation)
        shown, expected = read[name], world.values[name]
        text = f"{operation.name} shows {name} = {shown}; what came up to entry {index} makes {expected} of it"
        pushes, nearest = self._pushes.get(operation.incarnation, {}), None
        for at in range(index, max(index - _LOOK_BACK, 0), -1):
            other = pushes.get(at)
            by = other.given.get("add", _NONE).get(name) if other is not None else None
            if other is None or by is None:
                continue
            nearest = nearest or (other if other is not operation else None)
            if shown == expected - by or shown == expected + by:
                times = "did not count" if shown == expected - by else "counted twice"
                return _RefutedError(f"{text}, as if {other.name} {times}.", other, operation)
        return _RefutedError(f"{text}.", nearest, operation)

    # ---- Steps as clients saw them ------------------------------------------------------------

    def _place_look(self, look: ClientOperation) -> None:
        """A step that is visible has been made: what comes later shows all that it is made of."""
        for name, value in look.told["read"].items():
            values, places = self._steps.get((look.incarnation, name), ([], []))
            at = bisect_left(values, value)
            if values and (at == len(values) or places[at] > look.until):
                raise _RefutedError(f"{look.name} shows {name} = {value}, which no push had made.", look)
            if values and value > values[0]:
                look.low = max(look.low, places[at])

    def _check_looks(self) -> None:
        """No step goes back but by a restore."""
        for looks in self._looks.values():
            ended, at = sorted(looks, key=attrgetter("ended")), 0
            most: dict[str, ClientOperation] = {}
            for look in sorted(looks, key=attrgetter("invoked")):
                while ended[at].ended < look.invoked:
                    for name, value in ended[at].told["read"].items():
                        if name not in most or value > most[name].told["read"][name]:
                            most[name] = ended[at]
                    at += 1
                for name, value in look.told["read"].items():
                    if name in most and value < most[name].told["read"][name]:
                        before = most[name]
                        text = f"shows {name} = {value}, after {before.name} had shown {before.told['read'][name]}"
                        raise _RefutedError(f"{look.name} {text}: it went back.", before, look)


def _read_journal(history: _History) -> dict[int, dict[int, Mapping[str, Any]]]:
    """Check the journal's entries by themselves; gives them by incarnation and index."""
    decided = DecidedPushes()
    begins = {begin.incarnation: begin.told for begin in history.begins if begin.ended == -inf}
    for number, items in sorted(history.entries.items()):
        begun = begins.get(number, _NONE)
        book = JournalBook((begun.get("from") or (0, 0))[1], begun.get("read", _NONE))
        for item in items:
            index, read = item["index"], item.get("read", _NONE)
            wrong = [decided.add(item["client"], item["number"]), index and book.entry(index)]
            wrong += [book.step(index, name, value, item.get("add", _NONE).get(name)) for name, value in read.items()]
            for text in filter(None, wrong):
                raise _RefutedError(f"{text} (the journal, incarnation {number}).")
    return {n: {item["index"]: item for item in items if item["index"]} for n, items in history.entries.items()}


def judge(events: Iterable[Mapping[str, Any]]) -> Judgement:
    """Judge a history.

    Args:
        events: In any order, but for those of one process.

    Raises:
        BadHistoryError: If it is none, or too much of it is unknown.
    """
    history = _History(events)
    counts: dict[str, int] = {}
    for operation in history.operations:
        kind = f"{operation.f} {operation.type}"
        counts[kind] = counts.get(kind, 0) + 1
    if not history.operations:
        raise BadHistoryError("There is no operation.")
    try:
        _Judge(history).judge()
    except _RefutedError as refuted:
        text = str(refuted)
        return Judgement(text[0].upper() + text[1:], list(map(str, refuted.operations)), counts)
    return Judgement("", (), counts)


def events_of(path: str) -> Iterator[Mapping[str, Any]]:
    """Read the events of a history's file."""
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                yield json.loads(line)
            except ValueError as error:
                raise BadHistoryError(f"{path}, line {number}: {error}") from None


def main(paths: Sequence[str]) -> int:
    """Judge the histories of some files together; the exit code is 0 for proven, 1 if not, 2 if it cannot be judged."""
    gc.disable()  # nothing here refers to itself, and millions of operations would be looked through again and again
    try:
        judgement = judge(event for path in paths for event in events_of(path))
    except (BadHistoryError, OSError) as error:
        print(f"UNREADABLE  {error}\nNOT PROVEN")
        return UNREADABLE
    print("\n".join(judgement.lines()))
    return NOT_PROVEN if judgement.wrong else PROVEN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
