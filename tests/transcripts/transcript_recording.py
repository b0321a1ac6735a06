"""A scripted run of the simulation, written down line by line: who sends what to whom, and what a task then holds.

A `Recording` is a cluster without chance: every message takes 1 ms, and what goes wrong does so at a named message. A
script (`transcript_runs.py`) has its processes act. A transcript has three kinds of lines: a message, with both its
ends; what has changed in what a PS task holds; and, behind a "#", what the script says.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from simulated_disk import Disk
from simulated_network import Answer, Call, Network, SimulatedTransport, Weather
from simulated_task import SimulatedTask
from simulated_time import Hub, Process, ProcessClock
from transcript_words import ANSWERS, REQUESTS, STEP, Numbers, listed, number, push_name

from globalstep.cluster.run_identity import RunIdentity
from globalstep.cluster.run_policy import RunPolicy
from globalstep.errors import OpError, error_from_code
from globalstep.wire.declarations import (
    Increment,
    Op,
    OpKind,
    OptimizerDecl,
    OptimizerUse,
    Push,
    Read,
    State,
    StopLimit,
    VariableDecl,
)
from globalstep.wire.expressions import constant
from globalstep.worker.client.candidate import Candidate
from globalstep.worker.client.client import ClusterClient
from globalstep.worker.waits.contributing import CLAIMED

__all__ = ["Act", "Actor", "Recording"]

#: Of every message.
_DELAY_SECS = 0.001
#: What every Variable begins with, and each worker's gradient: a value shows whose pushes are in it.
_FIRST, _GRADIENTS = 1000.0, {"worker a": 1.0, "worker b": 10.0, "worker c": 100.0}
#: PS 0 holds the first of these Variables, PS 1 the next.
_NAMES = "uvw"
_MOST_EVENTS, _LONGEST_SECS = 100_000, 300.0
#: Where what is said begins.
_COLUMN = 21
_SERVES = {State.INITIALIZING: "serves only the chief", State.READY: "serves everybody", State.DONE: "the job is done"}


class _NoChance(random.Random):
    """Draws the same number every time."""

    def random(self) -> float:
        return 0.5


class Act:
    """Something that a process does.

    Args:
        process: It.
        what: What it does.

    Attributes:
        process: As given.
        result: What came of it, or its error.
    """

    def __init__(self, process: Process, what: Callable[[], Any]) -> None:
        self.process = process
        self.result: Any = None
        self._what = what
        self._done = False

    @property
    def over(self) -> bool:
        """Whether it is done, or never will be."""
        return self._done or not self.process.alive

    def run(self) -> None:
        """Do it."""
        try:
            self.result = self._what()
        except OpError as error:
            self.result = error
        self._done = True


@dataclass(slots=True)
class _Trouble:
    """What happens once: to a message, or to a process at a message."""

    who: str
    #: "keep", "lose answer", or a point of Network.watchers.
    where: str
    method: str
    #: At the how manieth of them from now on.
    count: int
    act: Callable[[], None] = lambda: None


@dataclass(slots=True)
class _Held:
    """What a PS task holds, as far as transcripts show it."""

    life: int = 0
    state: State = State.VACANT
    staged: tuple[str, ...] = ()
    applied: int = 0
    values: dict[str, str] = field(default_factory=dict)
    step: int | None = None
    visible: int | None = None
    contributions: str = ""
    snapshots: frozenset[str] = frozenset()

    def news(self, before: _Held) -> list[str]:
        """Say what is not as it was before, in words."""
        if self.life == 0 and before.life:
            return ["holds nothing"]
        said = []
        if self.life != before.life:
            said.append(f"life {self.life}")
            before = _Held(applied=self.applied) if self.state is State.INITIALIZING else before
        if self.state is not before.state:
            said.append(_SERVES[self.state])
        if new := [name for name in self.staged if name not in before.staged]:
            said.append(f"keeps {listed(new)}")
        moved = self.applied != before.applied
        if not moved and (gone := [name for name in before.staged if name not in self.staged]):
            said.append(f"drops {listed(gone)}")
        if moved:
            said.append(f"entry {self.applied}")
        said += [f"{name} = {value}" for name, value in self.values.items() if before.values.get(name) != value]
        if self.contributions and self.contributions != before.contributions:
            said.append(self.contributions)
        sees = bool(self.visible) and self.visible != before.visible
        if self.step is not None and self.step != before.step and not (sees and self.visible == self.step):
            said.append(f"step {self.step}")
        if sees:
            said.append(f"step {self.visible} is visible")
        if new := sorted(self.snapshots - before.snapshots):
            said.append(f"copies its values for {listed(new)}")
        if gone := sorted(before.snapshots - self.snapshots):
            said.append(f"frees {listed(gone)}")
        return said


class _RecordedTask(SimulatedTask):
    """Has what comes to a PS task written down."""

    recording: Recording

    def handle(self, call: Call, data: memoryview) -> Answer | None:
        """See simulated_network.Task."""
        self.recording.came(call)
        return super().handle(call, data)


class _RecordedNetwork(Network):
    """Loses, and keeps back, what the script says, and nothing else."""

    def __init__(self, hub: Hub, recording: Recording) -> None:
        super().__init__(hub, _NoChance(), Weather(delay_secs=_DELAY_SECS))
        self._recording = recording
        self._loses = False
        self._kept: list[tuple[Call, float]] = []

    def send(self, call: Call, deadline_secs: float) -> None:
        """See Network."""
        if self._recording.strikes(call.client.role, "keep", call.method):
            self._kept.append((call, deadline_secs))
        else:
            super().send(call, deadline_secs)

    def release(self) -> None:
        """Send what was kept back."""
        kept, self._kept = self._kept, []
        for call, deadline_secs in kept:
            super().send(call, deadline_secs)

    def arrival(self) -> float | None:
        """See Network."""
        loses, self._loses = self._loses, False
        return None if loses else self.hub.now + _DELAY_SECS

    def answer(self, call: Call, task: Any, answer: Answer) -> None:
        """See Network."""
        loses = self._recording.strikes(call.client.role, "lose answer", call.method)
        self._recording.answered(call, answer, loses)
        self._loses = loses
        super().answer(call, task, answer)


class Actor:
    """A process with a client: a worker, or the chief. Its methods give what it is to do, for `Recording.do`.

    Args:
        recording: Whose it is.
        name: "worker a".

    Attributes:
        name: As given.
        process: The one that runs, or ran last.
        client: Its client.
        step: As it heard last.
    """

    def __init__(self, recording: Recording, name: str) -> None:
        self.name = name
        self._recording = recording
        self._lives = 0
        self.process = Process(recording.hub, name, recording.failed)
        self.process.program = self
        self.renew()

    def renew(self) -> None:
        """Have another client from now on, as a session that is made anew."""
        recording = self._recording
        self.step = 0
        self.client = ClusterClient(
            self.transports(),
            task=f"/job:{self.name.replace(' ', '/task:')}",
            clock=ProcessClock(self.process),
            rng=_NoChance(),
            retry_secs=60.0,
            member=False,
            policy=recording.policy,
            # Of a session that is made anew: "worker x", whose pushes are x1, x2, ...
            client_id=self.name if not self._lives else f"worker {'xyz'[self._lives - 1]}",
        )
        self._lives += 1
        if recording.leases:
            self.process.start(self.client.heartbeat._run)

    def transports(self) -> list[SimulatedTransport]:
        """New ways to all PS tasks."""
        network, count = self._recording.network, len(self._recording.tasks)
        return [SimulatedTransport(network, self.process, shard) for shard in range(count)]

    def does(self, what: Callable[[], Any]) -> Act:
        """Do anything."""
        return Act(self.process, what)

    def joins(self) -> Act:
        """Learn how the run stands; give a sign of life."""
        return Act(self.process, lambda: (self.client.heartbeat.beat(), self.client.refresh()))

    def pushes(self, *names: str, reads: str = "", values: Any = None, **more: int) -> Act:
        """Push a gradient of each of these Variables.

        Args:
            names: The Variables.
            reads: Those that are read right after.
            values: Variable -> gradient, where that is not the worker's own.
            more: Of the increment, for contributions.
        """

        def push() -> Any:
            usual = np.array([_GRADIENTS.get(self.name, 1.0)])
            found = self.client.push(
                Push(
                    ops=[Op(OpKind.APPLY, name, (values or {}).get(name, usual), optimizer="sgd") for name in names],
                    increments=[Increment(STEP, 1, **more)],
                    uses=[OptimizerUse("sgd")],
                    reads=[Read(name) for name in reads],
                    seen_steps={STEP: self.step} if more else {},
                )
            )
            self.step = found.outcome.steps.get(STEP, self.step)
            return found

        return Act(self.process, push)

    def contributes(self, wanted: int, **more: int) -> Act:
        """Push a gradient of u and v, one of so many that make a step."""
        return self.pushes("u", "v", contributions=wanted, **more)

    def takes_unit(self, units: int) -> Act:
        """Ask for a unit of work."""

        def take() -> None:
            self.step = self.client.contributing.take_unit(STEP, units, self.step).base

        return Act(self.process, take)

    def brings_unit(self, units: int) -> Act:
        """Push the unit of work that it was given."""
        return self.contributes(units, unit=CLAIMED)

    def claims_chief(self, after_secs: float = 0.0) -> Act:
        """Ask for the chief's lease."""
        lease = self.client.chief_lease
        lease.candidate = Candidate(failover_secs=after_secs or None, configured=not after_secs)
        return Act(self.process, lambda: lease.candidate.claim(self.client))

    def pulls(self, *names: str) -> Act:
        """Read Variables."""
        return Act(self.process, lambda: self.client.pull([Read(name) for name in names]))


class Recording:
    """A cluster, what is done on it, and the transcript of that.

    Use it in a `with` block, within `simulation.simulating()`.

    Args:
        title: The transcript's first line.
        ps: How many PS tasks. PS 0 is the sequencer and holds Variable u, PS 1 holds v.
        policy: The run's.
        limit: The last step; None for none.
        leases: Whether processes give signs of life, and leases end without them.
        begun: Whether the run has begun already: its first values are entry 1.

    Attributes:
        lines: The transcript.
        policy: As given.
        leases: As given.
        hub: Time.
        network: Carries the messages.
        tasks: The PS tasks.
        chief: The chief's process.
    """

    def __init__(
        self,
        title: str,
        *,
        ps: int = 2,
        policy: RunPolicy | None = None,
        limit: int | None = None,
        leases: bool = False,
        begun: bool = True,
    ) -> None:
        self.lines = [f"# {title}"]
        self.policy = policy or RunPolicy()
        self.hub = Hub()
        self.network = _RecordedNetwork(self.hub, self)
        self.network.lasting_leases = not leases
        self._numbers = Numbers()
        self._limit = limit
        self.leases = leases
        self._is_on = True
        self._troubles: list[_Trouble] = []
        self._failure: BaseException | None = None
        # Process -> what it asked last, and was answered.
        self._repeated: dict[Process, list[str]] = {}
        # Calls that are left out, with their answers.
        self._silent: set[Call] = set()
        self._folder = tempfile.TemporaryDirectory(prefix="transcript")
        self.tasks = [self._task(index) for index in range(ps)]
        self.network.tasks.extend(self.tasks)
        self.network.watchers.append(lambda where, process, method: self.strikes(process.role, where, method))
        self._held = [_Held() for _ in range(ps)]
        self._actors: dict[str, Actor] = {}
        self.chief = self._actor("chief")
        if begun:
            with self.unseen():
                self.do(self.chief.does(self.begin))

    def _task(self, index: int) -> _RecordedTask:
        disk = None
        if self.policy.durability == "log":
            disk = Disk(Path(self._folder.name, f"ps-{index}"), _NoChance())
        task = _RecordedTask(self.hub, self.network, index, 0.0, self.failed, _ignore, _ignore, disk)
        task.recording = self
        return task

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        for actor in self._actors.values():
            actor.process.kill()
        for task in self.tasks:
            task.crash(machine=False)
        self._folder.cleanup()

    # ---- What scripts do ----------------------------------------------------------------------

    def _actor(self, name: str) -> Actor:
        if name not in self._actors:
            self._actors[name] = Actor(self, name)
        return self._actors[name]

    def workers(self, count: int) -> list[Actor]:
        """Give workers a, b, ..., which have joined the run."""
        found = [self._actor(f"worker {letter}") for letter in "abc"[:count]]
        with self.unseen():
            self.do(*(actor.joins() for actor in found))
        return found

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """Leave out of the transcript what is done in the block."""
        is_on, self._is_on = self._is_on, False
        try:
            yield
            self._look()
        finally:
            self._is_on = is_on

    def begin(self, ledger: bytes = b"", values: Sequence[float] = (), step: int = 0) -> None:
        """Have the chief begin a life of the run.

        Args:
            ledger: Of a checkpoint that is restored.
            values: Of each PS task's Variable; the first ones where not given.
            step: The step's.
        """
        client, names = self.chief.client, _NAMES[: len(self.tasks)]
        directory = self._folder.name if self.policy.durability == "log" else ""
        client.begin(sequencer=0, open=False, ledger=ledger, run=RunIdentity("run", directory=directory))
        variables = [VariableDecl(STEP, "int64", (), 0, is_step=True)]
        variables += [VariableDecl(name, "float64", (1,), at, trainable=True) for at, name in enumerate(names)]
        hypers = {"learning_rate": constant(1.0)}
        client.declare(variables, [OptimizerDecl("sgd", "gradient_descent", hypers, dict.fromkeys(names, ()))])
        first = zip(names, values or [_FIRST] * len(names), strict=True)
        ops = [Op(OpKind.ASSIGN, name, np.array([value])) for name, value in first]
        client.push(Push(ops=[Op(OpKind.ASSIGN, STEP, np.array(step, np.int64)), *ops]))
        client.open([] if self._limit is None else [StopLimit(STEP, last_step=self._limit)])

    def save(self) -> tuple[bytes, list[float], int]:
        """Have the chief take a snapshot, read it, and free it; gives what `begin` takes."""
        names = _NAMES[: len(self.tasks)]
        with self.chief.client.snapshot() as taken:
            values = [float(value[0]) for value in taken.read(names)]
            return taken.ledger, values, taken.steps[STEP]

    def say(self, text: str) -> None:
        """Write down what no message says."""
        self._look()
        self.lines.append(f"# {text}")

    def start(self, *acts: Act) -> Sequence[Act]:
        """Have processes begin to act; what they do goes on while others do something."""
        for act in acts:
            act.process.start(act.run)
        return acts

    def finish(self, acts: Sequence[Act]) -> None:
        """Let time pass until all that was begun is done, or its process dead."""
        if not self._pass(_LONGEST_SECS, lambda: all(act.over for act in acts)):
            raise AssertionError("\n".join([*self.lines, "What was begun does not end."]))
        self.wait(3 * _DELAY_SECS)  # what nobody waits for

    def do(self, *acts: Act) -> Any:
        """Have processes act, all at the same time; gives what came of the first: its result, or its error."""
        self.finish(self.start(*acts))
        return acts[0].result

    def wait(self, secs: float) -> None:
        """Let time pass."""
        self._pass(secs, lambda: False)

    def _pass(self, secs: float, over: Callable[[], bool]) -> bool:
        def is_over() -> bool:
            self._look()
            return self._failure is not None or over()

        latest = self.hub.now + secs
        found = self.hub.run(is_over, latest, _MOST_EVENTS)
        if self._failure is not None:
            raise self._failure
        if not found:
            self.hub.now = latest
        return found

    def dies(self, actor: Actor, before: str) -> None:
        """Have a process die right before it sends a message."""

        def kill() -> None:
            self.hub.after(0.0, actor.process.kill)
            actor.process.park()

        self._before(actor, before, "dies", kill)

    def sleeps(self, actor: Actor, before: str, secs: float) -> None:
        """Have a process stand still right before it sends a message."""
        self._before(actor, before, "stands still", lambda: actor.process.stop_for(secs))

    def _before(self, actor: Actor, method: str, what: str, act: Callable[[], None]) -> None:
        def strike() -> None:
            self.say(f"{actor.name} {what}")
            act()

        self._troubles.append(_Trouble(actor.name, "send", method, 1, strike))

    def keeps(self, actor: Actor, method: str, count: int = 1) -> None:
        """Have a message wait in the network, until `network.release`."""
        self._troubles.append(_Trouble(actor.name, "keep", method, count))

    def loses_answer(self, actor: Actor, method: str) -> None:
        """Have the answer to a message be lost."""
        self._troubles.append(_Trouble(actor.name, "lose answer", method, 1))

    def crashes(self, ps: int) -> None:
        """Kill a PS task; another process takes its place."""
        self.say(f"ps {ps} dies, and is started again")
        self.tasks[ps].crash()
        self.tasks[ps].start()

    # ---- What is written down -----------------------------------------------------------------

    def came(self, call: Call) -> None:
        """Write down a request as it comes to its task."""
        words = REQUESTS[call.method](_asked(call), self._numbers) if call.method in REQUESTS else ""
        if call.method == "Settle" and not call.request.pushes:
            ledger = self.tasks[call.shard].shard.now.ledger
            if ledger is None or not ledger.is_news(call.request.shard, call.request.applied):
                words = ""
        if not words:
            self._silent.add(call)
        elif self._is_new(call, 0, words):
            self._line(f"{call.client.role} -> ps {call.shard}", words)

    def answered(self, call: Call, answer: Answer, lost: bool) -> None:
        """Write down what a task says."""
        self._look()
        value, error, pieces = answer
        if error is not None and call not in self._silent:
            words = type(error_from_code(error.code, error.message, error.type)).__name__
        elif error is None and call.method in ANSWERS:
            data = memoryview(b"".join(bytes(piece) + bytes(-len(piece) % 8) for piece in pieces))
            reply = getattr(value, call.method) if call.connection is not None else value
            words = ANSWERS[call.method](_asked(call), reply, data, self._numbers)
        else:
            words = "ok"
        if words and call not in self._silent and self._is_new(call, 1, words):
            self._line(f"ps {call.shard} -> {call.client.role}", words + (" (lost)" if lost else ""))

    def _is_new(self, call: Call, at: int, words: str) -> bool:
        """Whether a message was not sent just before, too: some questions are asked until the answer is another one."""
        last = self._repeated.setdefault(call.client, ["", ""])
        if last[at] == words and call.method.startswith("await_"):
            return False
        last[at] = words
        return True

    def _line(self, who: str, words: str) -> None:
        if self._is_on:
            self.lines.append(f"{who:{_COLUMN}}{words}")

    def _look(self) -> None:
        """Write down what has changed in what tasks hold."""
        for at, task in enumerate(self.tasks):
            held = self._held_by(task)
            if held != self._held[at]:
                before, self._held[at] = self._held[at], held
                if news := held.news(before):
                    self._line(f"ps {at}", ", ".join(news))

    def _held_by(self, task: SimulatedTask) -> _Held:
        now = task.shard.now
        ledger, store = now.ledger, now.store
        held = _Held(
            self._numbers.life(now.number),
            now.state,
            tuple(push_name(push) for push in now.staged),
            now.applied,
            {name: number(store.read([Read(name)])[0]) for name in _NAMES if _has(store, name)},
            snapshots=frozenset(push_name(push) for push in now.snapshots._taken),
        )
        if ledger is not None and STEP in ledger.steps:
            held.step, held.visible = ledger.steps[STEP], ledger.visible[STEP]
            if (book := ledger.aggregates.open(STEP, held.step)) is not None:
                held.contributions = f"{book.count} of {book.wanted} contributions"
        return held

    # ---- What goes wrong ----------------------------------------------------------------------

    def strikes(self, who: str, where: str, method: str) -> bool:
        """Whether something happens now to a message, which then is done with."""
        for trouble in self._troubles:
            if (trouble.who, trouble.where, trouble.method) == (who, where, method):
                trouble.count -= 1
                if not trouble.count:
                    self._troubles.remove(trouble)
                    trouble.act()
                    return True
        return False

    def failed(self, process: Process, error: BaseException) -> None:
        """Take note of an exception that nothing expects."""
        self._failure = self._failure or error


def _asked(call: Call) -> Any:
    """Give the message of a call."""
    return call.request if call.connection is None else getattr(call.request, call.method)


def _ignore(*_: Any) -> None:
    """Nothing here checks: the simulation does."""


def _has(store: Any, name: str) -> bool:
    return store.declaration(name) is not None and name not in store.uninitialized()
