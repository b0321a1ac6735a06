"""The invariants I1 to I5 of docs/design/push-protocol.md, checked after every message and every result.

A `Watch` sees all: what each PS task was asked, what it holds, what each client was told. It keeps its own book of
every incarnation, made from the requests alone, and compares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from simulated_network import Call
from simulated_task import SimulatedTask
from simulated_time import Violation
from simulated_workload import EMPTY, OTHER, STEP, Content, State, names_on

from globalstep.errors import AbortedError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.ledger.push_table import WINDOW
from globalstep.ps.members.presence import State as TaskState
from globalstep.wire.declarations import OutcomeKind, PushId

__all__ = ["Checkpoint", "Entry", "Life", "Onlooker", "Watch"]

Steps = dict[str, int]
_CHANGING = frozenset({"push", "stage", "commit"})
_DATA_PLANE = frozenset({"pull", "push", "stage", "commit"})


@dataclass(eq=False, slots=True)
class Entry:
    """An admitted mutation, and the state of the whole run right after it."""

    index: int
    push: PushId
    content: Content | None
    steps: Steps
    #: Of each shard; None before it has values.
    cut: tuple[State | None, ...]
    #: Of each shard: the last entry up to this one that it takes part in.
    last: tuple[int, ...]


@dataclass(eq=False, slots=True)
class Checkpoint:
    """What the chief saved."""

    incarnation: int
    index: int
    steps: Steps
    states: dict[int, State]
    ledger: bytes


@dataclass(eq=False, slots=True)
class Life:
    """The book of one incarnation."""

    number: int
    owner: str
    index: int
    steps: Steps
    cut: tuple[State | None, ...]
    last: tuple[int, ...]
    #: Index -> entry; those before a restored checkpoint are the saved life's.
    entries: dict[int, Entry] = field(default_factory=dict)
    pushes: set[PushId] = field(default_factory=set)
    contents: set[Content] = field(default_factory=set)
    #: Entries before this one came out of a checkpoint.
    base: int = 0
    limit: int | None = None
    visible: int = 0
    #: Shard -> the start of its process that began this life.
    began: dict[int, int] = field(default_factory=dict)
    #: Shards that were told more than to begin.
    told: set[int] = field(default_factory=set)
    #: Shards that began it once more, with nothing of what they had held.
    emptied: set[int] = field(default_factory=set)
    #: Shard -> the last entry that it was seen to have applied.
    applied: dict[int, int] = field(default_factory=dict)
    #: Contributions for the next value of the step.
    open: list[Content] = field(default_factory=list)
    #: Shards that let everybody in.
    opened: set[int] = field(default_factory=set)
    #: Live worker -> how many pushes each other one has made since its own last one.
    since: dict[str, dict[str, int]] = field(default_factory=dict)


class Watch:
    """Checks a simulated run.

    Args:
        shards: How many PS tasks.
        tasks: The tasks, filled later.
        run: Tells whether tasks have logs, and whether the job is about to end.

    Attributes:
        lives: Incarnation -> its book.
        contents: Push id -> what its client wanted.
        checkpoints: What was saved, in order.
        admitted: How many training pushes were accepted, in all lives.
    """

    def __init__(self, shards: int, tasks: Sequence[SimulatedTask], run: Any) -> None:
        self.lives: dict[int, Life] = {}
        self.contents: dict[PushId, Content | None] = {}
        self.checkpoints: list[Checkpoint] = []
        self.admitted = 0
        self._shards = shards
        self._tasks = tasks
        self._run = run
        # Task -> (incarnation, method, request) within which it died, until it is back: of what was decided there,
        # nobody has heard yet, and it may be on its disk.
        self._undecided: dict[int, tuple[int, str, Any]] = {}
        self._departed: set[str] = set()

    # ---- What a task did ----------------------------------------------------------------------

    def handled(self, task: SimulatedTask, call: Call | None, error: pb.Error | None) -> None:
        """Check a task right after it carried out a call; None for a message of a link."""
        shard = task.shard
        if call is None:
            life = self.lives.get(shard.now.number)
            if life is not None and task.index not in life.emptied:
                if shard.now.ledger is not None:
                    self._check_book(task, life)
                self._check_values(task, life)
            return
        request = _message_of(call)
        if error is None:
            if call.method == "Begin":
                self._begun(task, request)
            elif call.method == "Declare":
                self.lives[shard.now.number].told.add(task.index)
            elif call.method == "Leave":
                self._departed.add(request.client)
            elif call.method == "Open" and shard.now.ledger is not None:
                self.lives[shard.now.number].limit = shard.now.ledger.limits.get(STEP)
            elif call.method == "Recover":
                self._recovered(task)
            elif call.method in _DATA_PLANE:
                self._served(task, call, request)
        # One that is told that the job is done before it was begun has no incarnation.
        if shard.now.number:
            life = self.lives[shard.now.number]
            self._forget_gone(task, life)
            if shard.now.ledger is not None and task.index not in life.emptied:
                if call.method == "push" and shard.now.ledger.index != life.index:
                    self._admitted(task, life, request, call.method)
                self._check_book(task, life)
            if call.method == "Open" and error is None:
                life.opened.add(task.index)
            if call.method in _CHANGING and (error is None or not self._run.logged):
                self._check_values(task, life)

    def decided(self, task: SimulatedTask, call: Call) -> None:
        """Take note of what a call has had decided, before anything else is."""
        life, ledger = self.lives[task.shard.now.number], task.shard.now.ledger
        if ledger is not None and ledger.index != life.index and task.index not in life.emptied:
            self._admitted(task, life, _message_of(call), call.method)

    def interrupted(self, task: SimulatedTask, call: Call) -> None:
        """Take note that a task died over a call; it may find on its disk what came of it."""
        request = _message_of(call)
        # The call's, not the shard's: what a kill interrupts has dropped its state already.
        self._undecided[task.index] = (getattr(request, "incarnation", 0), call.method, request)

    def _recovered(self, task: SimulatedTask) -> None:
        """A task is back from its log: nothing that anybody was told of is lost, and nothing else came to it."""
        shard = task.shard
        incarnation, method, request = self._undecided.pop(task.index, (0, "", None))
        if incarnation == shard.now.number and method == "Begin":
            self._begun(task, request)
        life = self.lives[shard.now.number]
        life.began[task.index] = task.starts
        if shard.now.ledger is not None:
            life.limit = shard.now.ledger.limits.get(STEP)
            life.since = {}  # clocks begin anew
            if incarnation == life.number and method == "push" and shard.now.ledger.index == life.index + 1:
                self._admitted(task, life, request, method)
            self._check_book(task, life)
        self._check_values(task, life)

    def _begun(self, task: SimulatedTask, request: pb.BeginRequest) -> None:
        shard = task.shard
        if (shard.now.number, shard.now.owner) != (request.incarnation, request.owner):
            return
        life = self.lives.get(request.incarnation)
        if life is not None and life.owner != request.owner:
            if life.opened:
                raise Violation("I4", f"incarnation {life.number} was given to {life.owner} and to {request.owner}")
            # Only its owner was a member of one that was opened nowhere; its number may come again.
            life = None
        for lost in self.lives.values():
            given_up = self._run.logged and not self._run.damaged and not self._run.finishing
            if given_up and len(lost.opened) == self._shards and life is None:
                raise Violation("log", f"incarnation {lost.number}, which had a log, is given up at entry {lost.index}")
        if life is None:
            none: tuple[State | None, ...] = (None,) * self._shards
            life = Life(request.incarnation, request.owner, 0, {}, none, (0,) * self._shards)
            self.lives[life.number] = life
        if life.began.setdefault(task.index, task.starts) != task.starts:
            life.began[task.index] = task.starts
            # Where nothing had come after the first BEGIN, nothing is lost.
            if task.index in life.told:
                life.emptied.add(task.index)
        elif task.index == request.sequencer and request.ledger and not life.base:
            self._begun_from(task, life, request.ledger)

    def _begun_from(self, task: SimulatedTask, life: Life, ledger: bytes) -> None:
        """A life begins with the book of a checkpoint: all that was accepted before the cut is in it."""
        saved = next(checkpoint for checkpoint in self.checkpoints if checkpoint.ledger == ledger)
        before = self.lives[saved.incarnation]
        if life.number <= before.number:
            raise Violation(
                "I4", f"incarnation {life.number} begins with a checkpoint of {before.number}: it goes back"
            )
        life.base = saved.index
        life.index, life.steps = saved.index - 1, dict(saved.steps)
        life.visible = saved.steps[STEP]
        life.entries = {index: entry for index, entry in before.entries.items() if index < saved.index}
        life.pushes = {entry.push for entry in life.entries.values()}
        life.contents = {entry.content for entry in life.entries.values() if entry.content is not None}
        life.last = tuple(saved.index - 1 if at == task.index else 0 for at in range(self._shards))
        kept = task.shard.now.ledger
        assert kept is not None
        newest: dict[str, int] = {}
        for push in life.pushes:
            newest[push.client] = max(newest.get(push.client, 0), push.sequence)
        for entry in life.entries.values():
            push = entry.push
            # Of those that were gone already when that life began nothing need be known.
            if (
                entry.index < before.base
                or push.client in self._departed
                or push.sequence <= newest[push.client] - WINDOW
            ):
                continue
            try:
                outcome = kept.table.recorded(push)
            except AbortedError:
                outcome = None
            if outcome is None or outcome.index != entry.index:
                raise Violation("I3", f"push {push} is in the checkpoint, and not in its table of ids: {outcome}")

    def _served(self, task: SimulatedTask, call: Call, request: Any) -> None:
        shard = task.shard
        where = f"{call.method} on task {task.index}"
        if shard.now.state is TaskState.VACANT:
            raise Violation("I4", f"{where} was served, and it holds no state")
        if request.incarnation not in (shard.now.number, call.began_in):
            raise Violation("I4", f"{where} of incarnation {request.incarnation} was served in {shard.now.number}")
        if task.index in self.lives[shard.now.number].emptied:
            raise Violation("I4", f"{where} was served, and it has lost its state in incarnation {shard.now.number}")

    def _admitted(self, task: SimulatedTask, life: Life, request: Any, method: str) -> None:
        ledger = task.shard.now.ledger
        assert ledger is not None
        if ledger.index != life.index + 1:
            raise Violation("I2", f"entry {ledger.index} was given after {life.index}")
        push = PushId(request.id.client, request.id.sequence)
        content = None if request.snapshot else self.contents.get(push)
        # The sequencer has a part in each: the steps.
        participants = {task.index, *request.others}
        if push in life.pushes:
            raise Violation("I1", f"push {push} was admitted again, as entry {ledger.index}")
        if content is not None and content in life.contents:
            raise Violation("I1", f"what push {push} brings was admitted before, under another id")
        cut = list(life.cut)
        steps = dict(life.steps)
        if content is not None and (content.contributes or content.closes):
            self._contributed(life, content, cut, steps)
        elif content is not None:
            life.contents.add(content)
            rate = steps.get(STEP, 0) + 1.0
            if content.start is None:
                self.admitted += 1
                self._check_lead(life, push.client)
                for name, by in content.increments.items():
                    steps[name] += by
            else:
                steps = dict(content.steps)
            for shard in participants:
                state = cut[shard]
                if content.start is not None:
                    cut[shard] = content.start[shard]
                elif shard in content.shards:
                    assert state is not None
                    cut[shard] = state.after(content, rate)
        last = tuple(ledger.index if shard in participants else life.last[shard] for shard in range(self._shards))
        life.index, life.steps, life.cut, life.last = ledger.index, steps, tuple(cut), last
        life.entries[ledger.index] = Entry(ledger.index, push, content, steps, life.cut, last)
        life.pushes.add(push)

    def _forget_gone(self, task: SimulatedTask, life: Life) -> None:
        """Whose lease is over, or who has left, is not waited for."""
        if task.shard.now.ledger is not None and life.since:
            here = {view.client for view in task.shard.members.presence.clients()}
            life.since = {client: made for client, made in life.since.items() if client in here}

    def _check_lead(self, life: Life, client: str) -> None:
        """A live worker is passed by nobody too often: clocks differ by `most_lead` + 1, to either side."""
        if self._run.most_lead is None:
            return
        most = 2 * self._run.most_lead + 2
        for other, made in life.since.items():
            made[client] = made.get(client, 0) + 1
            if other != client and made[client] > most:
                raise Violation("lead", f"{client} made {made[client]} pushes after {other}'s last, which lives")
        life.since[client] = {}

    def _contributed(self, life: Life, content: Content, cut: list[State | None], steps: Steps) -> None:
        """A contribution was accepted, or what closes its step."""
        if content.base != life.steps[STEP]:
            raise Violation("I1", f"a contribution to what follows step {content.base} counts at {life.steps[STEP]}")
        if content.contributes:
            if content.unit and content.unit in {item.unit for item in life.open}:
                raise Violation("I1", f"unit {content.unit} of step {content.base + 1} counts twice")
            life.contents.add(content)
            life.open.append(content)
        if not life.open:
            raise Violation("I1", f"step {content.base + 1} is made of no contribution")
        if not content.closes and len(life.open) < content.contributes:
            return
        count = len(life.open)
        found = sorted(life.open, key=lambda item: item.unit)  # units in their order, others in that of entries
        # One by one, as the shard does: sum() of Python 3.12 and newer makes up for what rounding loses.
        mean = tuple(reduce(add, each) / count for each in zip(*(item.gradient for item in found), strict=True))
        life.open.clear()
        self.admitted += 1
        for shard, state in enumerate(cut):
            assert state is not None
            cut[shard] = state.moved(mean, steps[STEP] + 1.0)
        steps[STEP] += 1

    def _check_book(self, task: SimulatedTask, life: Life) -> None:
        """The sequencer's steps, limit and visible step."""
        ledger = task.shard.now.ledger
        assert ledger is not None
        if ledger.index != life.index:
            raise Violation("I2", f"the book is at entry {ledger.index}; {life.index} were admitted")
        if not life.steps:
            return
        if ledger.steps != life.steps:
            raise Violation("I1", f"the steps are {ledger.steps}; the accepted pushes make {life.steps}")
        if life.limit is not None and ledger.steps[STEP] > life.limit:
            raise Violation("I5", f"the step is {ledger.steps[STEP]}; the limit is {life.limit}")
        visible = ledger.visible[STEP]
        if visible == life.visible:
            return
        if visible < life.visible:
            raise Violation("I4", f"the visible step went back from {life.visible} to {visible}")
        life.visible = visible
        entry = next(
            life.entries[i] for i in range(life.base + 1, life.index + 1) if life.entries[i].steps[STEP] >= visible
        )
        for other, last in zip(self._tasks, entry.last, strict=True):
            now = other.shard.now
            if now.number == life.number and now.applied < last:
                raise Violation(
                    "I2", f"step {visible} is visible; task {other.index} has applied {now.applied} of {last}"
                )

    def _check_values(self, task: SimulatedTask, life: Life) -> None:
        """Every value of a shard is what the accepted pushes make of it, up to the last that it has applied."""
        applied = task.shard.now.applied
        if task.index in life.emptied:
            return
        if any(push.client != "intruder" for push in task.shard.resources.of_nothing):
            raise Violation("I1", f"task {task.index} applied nothing for {list(task.shard.resources.of_nothing)}")
        if applied < life.applied.get(task.index, 0):
            raise Violation("I2", f"task {task.index} went back from entry {life.applied[task.index]} to {applied}")
        life.applied[task.index] = applied
        entry = life.entries.get(applied)
        if applied < life.base or entry is None:
            if applied and applied != life.base - 1:
                raise Violation("I2", f"task {task.index} has applied entry {applied}, which nobody admitted")
            return
        expected = entry.cut[task.index]
        if entry.last[task.index] != applied:
            raise Violation("I2", f"task {task.index} has applied entry {applied}, in which it has no part")
        if expected is None:
            return
        held = task.shard.now.store._held
        found = State.of([held[name].flat for name in names_on(task.index)])
        if found != expected:
            raise Violation("I1", f"after entry {applied} task {task.index} holds {found}; it must hold {expected}")

    # ---- What a client was told ---------------------------------------------------------------

    def pushed(self, incarnation: int, content: Content, result: Any, reads: Sequence[str]) -> None:
        """Check the result of a push."""
        life, outcome = self.lives[incarnation], result.outcome
        if outcome.kind is OutcomeKind.REFUSED_DONE:
            if content in life.contents or life.limit is None or life.steps[STEP] < life.limit:
                raise Violation("I5", f"push {content.number} was refused at {life.steps}; the limit is {life.limit}")
            return
        if outcome.kind is OutcomeKind.LATE:
            if content in life.contents:
                raise Violation("I1", f"contribution {content.number} counts, and was told that it is late")
            return
        entry = life.entries.get(outcome.index)
        if outcome.kind is not OutcomeKind.ACCEPTED or entry is None or entry.content is not content:
            raise Violation("I1", f"push {content.number} was told {outcome}, and that is not so")
        since = outcome.index
        if content.contributes:
            # Its step was made with it, or later; a unit waits for nobody.
            made = (at for at, later in life.entries.items() if at >= since and later.steps[STEP] > content.base)
            since = since if content.unit else min(made, default=since)
            if not content.unit and outcome.steps[STEP] <= content.base and life.limit != content.base:
                raise Violation("I1", f"contribution {content.number} to step {content.base + 1} waited for nothing")
        elif dict(outcome.steps) != entry.steps:
            raise Violation(
                "I1", f"entry {outcome.index} was told steps {dict(outcome.steps)}; they were {entry.steps}"
            )
        self.read(incarnation, reads, result.values, since)

    def read(self, incarnation: int, names: Sequence[str], values: Sequence[Any], since: int) -> None:
        """Check that values are those of one place in the sequence, and not of one before `since`."""
        life = self.lives[incarnation]
        for index in range(max(since, life.base), life.index + 1):
            entry = life.entries.get(index)
            if entry is not None and _matches(entry, names, values):
                return
        found = [np.asarray(value).tolist() for value in values]
        raise Violation("I2", f"{list(names)} were read as {found}: no cut since entry {since} has these values")

    def looked(self, incarnation: int, before: Steps, now: Steps, last: int) -> None:
        """Check the visible steps that a client was told.

        Args:
            incarnation: In which.
            before: What it was told before, there.
            now: What it is told now.
            last: Its own last entry, which is visible to it where each push has a part everywhere.
        """
        own = self.lives[incarnation].entries.get(last) if self._run.whole_pushes else None
        for name, step in now.items():
            if step < before.get(name, 0):
                raise Violation("I4", f"a client saw {name} at {before[name]}, and then at {step}")
            if own is not None and step < own.steps.get(name, 0):
                raise Violation("I2", f"a client sees {name} at {step}; its own push made {own.steps[name]} of it")

    def saved(self, checkpoint: Checkpoint) -> None:
        """Check a checkpoint before it counts."""
        entry = self.lives[checkpoint.incarnation].entries[checkpoint.index]
        if checkpoint.steps != entry.steps:
            raise Violation("I3", f"the checkpoint at entry {entry.index} has {checkpoint.steps}, not {entry.steps}")
        for shard, state in checkpoint.states.items():
            if state != entry.cut[shard]:
                raise Violation("I3", f"the checkpoint at entry {entry.index} has {state}, not {entry.cut[shard]}")
        self.checkpoints.append(checkpoint)


class Onlooker(Watch):
    """Checks nothing, and keeps what programs ask for: what is wrong then only clients can tell."""

    def handled(self, *args: Any) -> None:
        """See Watch."""

    decided = interrupted = pushed = read = looked = handled

    def saved(self, checkpoint: Checkpoint) -> None:
        """See Watch."""
        self.checkpoints.append(checkpoint)


def _message_of(call: Call) -> Any:
    """Give what a call asks, without what it is wrapped in on a connection of the data plane."""
    return call.request if call.connection is None else getattr(call.request, call.method)


def _matches(entry: Entry, names: Sequence[str], values: Sequence[Any]) -> bool:
    for name, value in zip(names, values, strict=True):
        if name in (STEP, OTHER):
            if int(value) != entry.steps.get(name):
                return False
            continue
        shard = int(name[1])
        state = entry.cut[shard]
        if state is None or value.tolist() != state.arrays()[names_on(shard).index(name)].tolist():
            return False
    return True


def starting_states(shards: int, checkpoint: Checkpoint | None) -> Mapping[int, State]:
    """The states that a life begins with."""
    return dict.fromkeys(range(shards), EMPTY) if checkpoint is None else checkpoint.states
