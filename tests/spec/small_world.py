"""A world small enough to try all that may happen in it: 2 PS tasks, 2 clients, a scalar on each task.

The PS tasks are real: a state of one is the events that led to it, and each event of each state is carried out once, by
`Shard.handle`, and by the specification beside it. All else here is plain tuples, which can be compared and counted.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import push_protocol as spec
from recording import KINDS, OUTCOMES

from globalstep.errors import AbortedError, LostStateError, OpError, PermissionDeniedError
from globalstep.ps.budget import MemoryClaim
from globalstep.ps.ledger.ledger import AggregatePlace, Entry, EntryKind, HyperValues
from globalstep.ps.ledger.signatures import Floor, Signer
from globalstep.ps.shard import events
from globalstep.ps.shard.layouts import PushParts
from globalstep.ps.shard.shard import Shard
from globalstep.ps.store.store import VariableStore
from globalstep.wire.declarations import (
    Increment,
    Op,
    OpKind,
    OptimizerDecl,
    OptimizerUse,
    PushId,
    Read,
    StopLimit,
    VariableDecl,
)
from globalstep.wire.expressions import Expr, constant, step

__all__ = ["Setting", "Tasks", "swapped"]

KEY, STEP, LIAR, OTHER = bytes(32), "step", "liar", {"a": "b", "b": "a"}
#: What does not tell how a task goes on: signatures, which follow from all else, and what only counts or was prepared.
_SKIPPED = {"signature", "signer", "log", "policy", "run", "memory", "plan", "buffer", "journal", "leads", "apply_secs"}


@dataclass(frozen=True)
class Setting:
    """What may happen.

    Attributes:
        pushes: Of each client.
        limit: Where the step ends; 0 for nowhere.
        contributions: Of which a step is made; 0 for pushes that move it on by themselves.
        units: Whether those are units of work.
        crashes: How many PS tasks lose their state, after which a new incarnation begins.
        settles: How often a task asks what became of its parts.
        liar: Whether somebody forges, and leaves entries out.
    """

    pushes: int = 2
    limit: int = 0
    contributions: int = 0
    units: bool = False
    crashes: int = 1
    settles: int = 1
    liar: bool = False

    def unit(self, number: int) -> int:
        """Give which unit of work a push is, from the last one on; 0 for none."""
        return self.pushes + 1 - number if self.units else 0

    def gradient(self, number: int) -> float:
        """Give the gradient of a push. The sum of those of units is another one in another order."""
        return (1.0, -1e16, 1e16 + 6.0)[self.unit(number) - 1] if self.units else (1.0, 10.0, 100.0)[number - 1]


class _Standing:
    """A clock that stands still."""

    def monotonic(self) -> float:
        return 0.0

    def time(self) -> float:
        return 0.0


class Tasks:
    """All states of the PS tasks that have been met, and where each event leads from each.

    Attributes:
        histories: State -> its task, and the events that led to it.
        specified: State -> what the specification says it is.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.histories: list[tuple[int, tuple[Any, ...]]] = []
        self.specified: list[spec.Shard] = []
        self._ids: dict[Any, int] = {}
        self._forms: list[Any] = []
        self._live: dict[int, Shard] = {}
        self._steps: dict[tuple[int, Any], tuple[int, Any, str]] = {}
        self._swapped: dict[int, int] = {}

    def start(self, at: int) -> int:
        """Give the state of a task that has just been started."""
        return self._state(at, (), Shard(_Standing()), spec.Shard(_RUN, at))

    def step(self, state: int, event: Any) -> tuple[int, Any, str]:
        """Carry out an event; gives the state after it, the reply, and what is wrong with them."""
        found = self._steps.get((state, event))
        if found is None:
            found = self._steps[state, event] = self._carry_out(state, event)
        return found

    def swapped(self, state: int) -> int:
        """Give the state that it is with the clients' names exchanged."""
        found = self._swapped.get(state)
        if found is None:
            form = swapped(self._forms[state])
            found = self._ids.get(form, -1)
            if found < 0:
                at, history = self.histories[state]
                self._swapped[state] = found = self._add(form, at, swapped(history))
                self.specified[found] = self._specify(at, self.histories[found][1])
            self._swapped[state], self._swapped[found] = found, state
        return found

    def _specify(self, at: int, history: Any) -> spec.Shard:
        shard = spec.Shard(_RUN, at)
        for event in history:
            shard, _ = self._say(shard, event)
        return shard

    def _state(self, at: int, history: Any, shard: Shard, specified: spec.Shard) -> int:
        form = (at, frozen(shard.now), frozen(shard.resources.of_nothing))
        found = self._ids.get(form)
        if found is None:
            found = self._add(form, at, history)
            self.specified[found] = specified
        self._live[found] = shard
        return found

    def _add(self, form: Any, at: int, history: Any) -> int:
        found = self._ids[form] = len(self._forms)
        self._forms.append(form)
        self.histories.append((at, history))
        self.specified.append(spec.Shard(_RUN, at))
        return found

    def _carry_out(self, state: int, event: Any) -> tuple[int, Any, str]:
        at, history = self.histories[state]
        shard = self._live.pop(state, None)
        if shard is None:
            shard = Shard(_Standing())
            for before in history:
                _handle(shard, at, before, self.setting)
        if len(self._live) > 5000:
            self._live.clear()
        reply = _handle(shard, at, event, self.setting)
        specified, right = self._say(self.specified[state], event)
        wrong = "" if reply == right else f"it answers {reply}; to be answered is {right}"
        after = self._state(at, (*history, event), shard, specified)
        if not wrong and not spec.monotone(self.specified[state], specified):
            wrong = "I4: it goes back"
        if not wrong:
            is_, should = _seen(shard), _specified(specified)
            wrong = "" if is_ == should else f"afterwards it is {is_}; it should be {should}"
        return after, reply, wrong

    def _say(self, shard: spec.Shard, event: Any) -> tuple[spec.Shard, Any]:
        """Carry out an event by the specification."""
        kind, who, *said = event
        if kind == "crash":
            return spec.lose(shard), None
        if kind == "begin":
            return _begun(shard, said[0], self.setting), None
        try:
            spec.check(shard, 1, who)
            return _SAY[kind](self.setting, shard, who, *said)
        except spec.Refused as refused:
            fenced = refused.args == ("WRONG",) and kind == "push"
            after = spec.abandon(shard, spec.PushId(who, said[0]), (1,)) if fenced else shard
            return after, ("refused", *refused.args)


# ---- Events by the specification ------------------------------------------------------------------

_RUN = spec.Run(
    0, lambda steps: (steps[STEP] + 1.0,), lambda v, name, grad, n: {**v, name: (v[name][0] - n[0] * grad[0],)}
)
_FIRST = spec.PushId("chief", 1)


def _begun(shard: spec.Shard, incarnation: int, setting: Setting) -> spec.Shard:
    """An incarnation begins, and the chief's push gives every Variable its value."""
    changes = [spec.Change("assign", f"w{shard.at}", (0.0,)), spec.Change("assign", STEP, (0.0,))][: 2 - shard.at]
    shard = spec.declare(spec.begin(shard, incarnation, "chief", opened=False), [STEP])
    part = spec.Part(tuple(changes))
    if shard.at == 0:
        shard, _ = spec.push(shard, _FIRST, part, (1,), spec.Asked())
        shard = spec.raise_floors(shard, {1: 1})
    else:
        shard, _ = spec.commit(spec.stage(shard, _FIRST, part), _FIRST, [spec.Entry(1, spec.PUSH, _FIRST, 0)])
    return spec.open_to_all(shard, {STEP: setting.limit} if setting.limit else {})


def _say_part(setting: Setting, shard: spec.Shard, number: int) -> spec.Part:
    name = f"w{shard.at}"
    return spec.Part((spec.Change("gradient", name, (setting.gradient(number),)),), (name,))


def _say_stage(setting: Setting, shard: spec.Shard, who: str, number: int) -> Any:
    return spec.stage(shard, spec.PushId(who, number), _say_part(setting, shard, number)), ("staged",)


def _say_push(setting: Setting, shard: spec.Shard, who: str, number: int, floor: int, base: int) -> Any:
    shard = spec.raise_floors(shard, {1: floor})
    asked = spec.Asked((spec.Increment(STEP, 1, setting.contributions, 1, setting.unit(number)),), True, {STEP: base})
    part = _say_part(setting, shard, number)
    shard, (outcome, told, found) = spec.push(shard, spec.PushId(who, number), part, (1,), asked)
    plain = tuple(_plain(entry, entry.numbers, entry.share) for entry in told.get(1, ()))
    return shard, ("admitted", outcome.kind, outcome.index, outcome.steps[STEP], plain, found.as_of, found.values)


def _say_commit(setting: Setting, shard: spec.Shard, who: str, number: int, entries: Any) -> Any:
    shard, found = spec.commit(shard, spec.PushId(who, number), [_specified_entry(item) for item in entries])
    return shard, ("committed", shard.applied, found.as_of, found.values)


def _say_floor(setting: Setting, shard: spec.Shard, who: str, floor: int) -> Any:
    shard = spec.raise_floors(shard, {1: floor}, signed=who != LIAR)
    return shard, ("steps", int(spec.pull(shard, [STEP])[0][0]))


def _say_settle(setting: Setting, shard: spec.Shard, who: str, pushes: Any, of: int, applied: int) -> Any:
    shard, told = spec.settle(spec.raise_floors(shard, {of: applied}), [spec.PushId(*item) for item in pushes], of)
    return shard, ("told", tuple(_plain(entry, entry.numbers, entry.share) for entry in told))


def _say_settled(setting: Setting, shard: spec.Shard, who: str, pushes: Any, entries: Any) -> Any:
    told = [_specified_entry(item) for item in entries]
    return spec.settled(shard, [spec.PushId(*item) for item in pushes], told), ("settled",)


_SAY = {
    "stage": _say_stage, "push": _say_push, "commit": _say_commit, "floor": _say_floor,
    "settle": _say_settle, "settled": _say_settled,
}  # fmt: skip


def _specified_entry(item: Any) -> spec.Entry:
    index, kind, push, previous, numbers, share, signed = item
    share = spec.Share(*share) if share else None
    return spec.Entry(index, kind, spec.PushId(*push), previous, numbers, share, signed)


def _specified(shard: spec.Shard) -> Any:
    """What a task should hold, as far as `_seen` looks at it."""
    book, value = shard.book, shard.values.get(f"w{shard.at}", (0.0,))
    if shard.phase == "vacant":
        return "vacant"
    kept = sorted((kept.push, kept.index, kept.values) for kept in shard.kept.values())
    found = shard.applied, value, sorted(shard.staged), kept
    if book is None:
        return found
    outcomes = sorted((push, outcome.kind, outcome.index) for push, outcome in book.outcomes.items())
    return *found, book.index, book.steps[STEP], book.visible[STEP], book.floors.get(1, 0), outcomes


# ---- The same events by the product ---------------------------------------------------------------


def _handle(shard: Shard, at: int, event: Any, setting: Setting) -> Any:
    """Carry out an event by a real shard; gives the reply as plain tuples."""
    kind, who, *said = event
    if kind == "crash":
        shard.handle(events.Lose(shard.log))
        return None
    if kind == "begin":
        _begin(shard, at, said[0], setting)
        return None
    try:
        return _DO[kind](setting, shard, at, who, *said)
    except LostStateError:
        return ("refused", "LOST")
    except AbortedError:
        return ("refused", "ABORTED")
    except PermissionDeniedError:
        return ("refused", "DENIED")
    except OpError:
        return ("refused", "WRONG")
    except Exception as error:
        return ("failed", repr(error))


def _begin(shard: Shard, at: int, incarnation: int, setting: Setting) -> None:
    """See `_begun`."""
    first = PushId("chief", 1)
    shard.handle(events.Begin(incarnation, shard=at, shards=2, sequencer=0, owner="chief", opened=False, key=KEY))
    variables = [VariableDecl(f"w{at}", "float64", (), at), VariableDecl(STEP, "int64", (), 0, is_step=True)][: 2 - at]
    rate = {"learning_rate": Expr("add", (step(STEP), constant(1.0)))}
    shard.handle(
        events.Declare(
            incarnation, "chief", variables, [OptimizerDecl("sgd", "gradient_descent", rate, {f"w{at}": ()})]
        )
    )
    changes = [Op(OpKind.ASSIGN, item.name, np.zeros((), item.dtype)) for item in variables]
    if at == 0:
        shard.handle(events.Push(incarnation, first, PushParts(changes), (), (), {}, (1,)))
        shard.handle(events.Pull(incarnation, "chief", (), {1: Floor(1, Signer(KEY, incarnation).floor(1, 1))}))
    else:
        entry = Entry(1, EntryKind.PUSH, first, 0)
        entry.signature = Signer(KEY, incarnation).decision(1, entry.kind, first, ()).for_shard(1, 0)
        shard.handle(events.Stage(incarnation, first, PushParts(changes)))
        shard.handle(events.Commit(incarnation, first, [entry]))
    limits = [StopLimit(STEP, last_step=setting.limit)] if setting.limit and at == 0 else []
    shard.handle(events.Open(incarnation, "chief", limits))


def _part(setting: Setting, at: int, number: int) -> PushParts:
    ops = [Op(OpKind.APPLY, f"w{at}", np.array(setting.gradient(number)), optimizer="sgd")]
    return PushParts(ops, [Read(f"w{at}")])


def _stage(setting: Setting, shard: Shard, at: int, who: str, number: int) -> Any:
    contributes = STEP if setting.contributions else ""
    part = _part(setting, at, number)
    shard.handle(events.Stage(1, PushId(who, number), part, contributes, setting.unit(number)))
    return ("staged",)


def _push(setting: Setting, shard: Shard, at: int, who: str, number: int, floor: int, base: int) -> Any:
    increments = [Increment(STEP, 1, setting.contributions, unit=setting.unit(number))]
    part, uses = _part(setting, at, number), [OptimizerUse("sgd")]
    event = events.Push(1, PushId(who, number), part, increments, uses, {STEP: base}, (1,), _floors(floor))
    admission = shard.handle(event)
    outcome, pending = admission.outcome, tuple(_told(entry) for entry in admission.pending.get(1, ()))
    answer = admission.answer
    return ("admitted", OUTCOMES[outcome.kind], outcome.index, outcome.steps[STEP], pending, *_values(answer))


def _commit(setting: Setting, shard: Shard, at: int, who: str, number: int, entries: Any) -> Any:
    answer = shard.handle(events.Commit(1, PushId(who, number), [_entry(item) for item in entries]))
    assert answer.signature == Signer(KEY, 1).floor(1, answer.applied)
    return ("committed", answer.applied, *_values(answer))


def _floor(setting: Setting, shard: Shard, at: int, who: str, floor: int) -> Any:
    answer = shard.handle(events.Pull(1, who, [Read(STEP)], _floors(floor, who != LIAR)))
    return ("steps", int(answer.values[0]))


def _settle(setting: Setting, shard: Shard, at: int, who: str, pushes: Any, of: int, applied: int) -> Any:
    told = shard.handle(events.Resolve(1, [PushId(*item) for item in pushes], of, applied))
    return ("told", tuple(_told(entry) for entry in told))


def _settled(setting: Setting, shard: Shard, at: int, who: str, pushes: Any, entries: Any) -> Any:
    shard.handle(events.Resolved(1, [PushId(*item) for item in pushes], [_entry(item) for item in entries]))
    return ("settled",)


_DO = {
    "stage": _stage, "push": _push, "commit": _commit, "floor": _floor, "settle": _settle, "settled": _settled,
}  # fmt: skip


_KIND_OF = {name: kind for kind, name in KINDS.items()}


def _floors(index: int, signed: bool = True) -> Mapping[int, Floor]:
    return {1: Floor(index, Signer(KEY, 1).floor(1, index) if signed else bytes(16))} if index else {}


def _entry(item: Any) -> Entry:
    """Make an entry as the sequencer has signed it, or, of a liar, has not."""
    index, kind, push, previous, numbers, share, signed = item
    hypers = (HyperValues("sgd", False, {"learning_rate": numbers[0]}),) if numbers else ()
    place = AggregatePlace(*share) if share else None
    entry = Entry(index, _KIND_OF[kind], PushId(*push), previous, hypers, bytes(16), place)
    return replace(entry, signature=_signature(entry)) if signed else entry


def _signature(entry: Entry) -> bytes:
    return (
        Signer(KEY, 1)
        .decision(entry.index, entry.kind, entry.push, entry.hypers, entry.place)
        .for_shard(1, entry.previous)
    )


def _told(entry: Entry) -> Any:
    """An entry of the sequencer's as a plain tuple."""
    numbers = tuple(item.values["learning_rate"] for item in entry.hypers)
    return *_plain(replace(entry, kind=KINDS[entry.kind]), numbers, entry.place)[:-1], entry.signature == _signature(
        entry
    )


def _plain(entry: Any, numbers: Any, share: Any) -> Any:
    return entry.index, entry.kind, tuple(entry.push), entry.previous, numbers, share and tuple(share), True


def _values(answer: Any) -> tuple[int, tuple[tuple[float, ...], ...]]:
    return answer.as_of, tuple((float(value),) for value in answer.values)


def _seen(shard: Shard) -> Any:
    """What a task holds."""
    now, ledger = shard.now, shard.now.ledger
    if not now.number:
        return "vacant"
    kept = sorted(
        (tuple(item.push), item.index, None if item.values is None else tuple((float(v),) for v in item.values))
        for item in now.replies.by_client.values()
    )
    found = now.applied, (float(now.store._held[f"w{now.shard}"].flat[0]),), sorted(map(tuple, now.staged)), kept
    if ledger is None:
        return found
    outcomes = sorted(
        ((name, number), OUTCOMES[outcome.kind], outcome.index)
        for name, client in ledger.table._clients.items()
        for number, outcome in client.outcomes.items()
    )
    return *found, ledger.index, ledger.steps[STEP], ledger.visible[STEP], ledger.floors[1], outcomes


# ---- States as plain tuples -----------------------------------------------------------------------


def frozen(item: Any) -> Any:
    """Give all that an object holds as plain tuples."""
    if item is None or isinstance(item, int | float | str | bytes) or callable(item):
        return None if callable(item) else int(item) if isinstance(item, enum.IntEnum) else item
    if isinstance(item, MemoryClaim):
        return None  # there is memory enough
    if isinstance(item, np.ndarray):
        return tuple(item.ravel().tolist())
    if isinstance(item, VariableStore):
        return tuple((name, tuple(held.flat.tolist())) for name, held in sorted(item._held.items()))
    if isinstance(item, enum.Enum):
        return item.name
    if isinstance(item, Mapping):
        return ("{}", *sorted(((frozen(key), frozen(value)) for key, value in item.items()), key=repr))
    if isinstance(item, Set):
        return ("{}", *sorted((frozen(one) for one in item), key=repr))
    if isinstance(item, tuple | list | deque):
        return tuple(frozen(one) for one in item)
    names = [name for kind in type(item).__mro__ for name in getattr(kind, "__slots__", ())]
    return tuple(
        frozen(getattr(item, name)) for name in (*names, *getattr(item, "__dict__", ())) if name not in _SKIPPED
    )


def swapped(item: Any) -> Any:
    """Give a plain tuple with the clients' names exchanged."""
    if isinstance(item, str):
        return OTHER.get(item, item)
    if not isinstance(item, tuple):
        return item
    found = tuple(swapped(one) for one in item)
    return ("{}", *sorted(found[1:], key=repr)) if found and found[0] == "{}" else found
