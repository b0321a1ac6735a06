"""What simulated workers and the chief do: the loops of a MonitoredSession, around the real client and chief logic."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from greenlet import getcurrent
from recorded_history import RecordedHistory
from simulated_invariants import Checkpoint, Watch, starting_states
from simulated_network import Network, SimulatedTransport
from simulated_time import Process, ProcessClock
from simulated_workload import OTHER, STEP, Content, State, declarations, names_on, seen_values, start_push, step_push

from globalstep.chief.sessions.run_joining import RunOfTask
from globalstep.chief.sessions.session_making import SessionMaking
from globalstep.cluster.run_identity import RunIdentity
from globalstep.cluster.run_policy import RunPolicy
from globalstep.errors import AbortedError, DeadlineExceededError, JobDoneError, UnavailableError
from globalstep.wire.declarations import OutcomeKind, PushId, Read, StopLimit
from globalstep.wire.known_progress import KnownProgress
from globalstep.worker.client.client import ClusterClient

__all__ = ["Job", "Program", "transports_beside"]

_RETRY_SECS = 600.0
#: How long a worker waits for a chief.
_WAIT_SECS = 60.0


class Job(Protocol):
    """What programs share; see simulation.Simulation."""

    network: Network
    watch: Watch
    shards: int
    sequencer: int
    limit: int
    heartbeats: bool
    whole_pushes: bool
    contributions: int
    units: bool
    most_lead: int | None
    slow: frozenset[str]
    logged: bool
    save_every: int
    #: Set once the chief has declared the job done.
    finishing: bool
    #: What clients did and were told.
    history: RecordedHistory
    #: What the run's directory knows.
    newest_incarnation: int

    def next_number(self) -> int:
        """A number for a push, its own in this simulation."""
        ...


#: Of all programs of a simulation.
_RUN = RunIdentity("simulated")


@dataclass
class _Limit:
    """The hook that stops the job."""

    last_step: int

    def store_limit(self, step: str) -> StopLimit:
        return StopLimit(step, last_step=self.last_step)


@dataclass(frozen=True)
class _Step:
    """The global step, by its name."""

    op_name: str = STEP


@dataclass
class _Session:
    """As much of a session as the making of sessions needs."""

    cluster: ClusterClient
    program: Program

    def run(self, fetches: _Step) -> Any:
        return self.program.pull([fetches.op_name])[0]

    def close(self) -> None:
        self.cluster.close()


class _Model:
    """Every program here builds the same model."""

    step = _Step()
    restores = True

    def __init__(self, program: Program) -> None:
        self._program = program
        self.progress = KnownProgress()

    def session(self, target: Any, task: str, retry_secs: float) -> _Session:
        return _Session(self._program.connect(), self._program)

    def initialize(self, session: _Session) -> None:
        self._program.give_values(None)

    def restore(self, session: _Session, prefix: Any) -> None:
        self._program.give_values(prefix)

    def compare_with_run(self, session: _Session) -> None:
        """It is the same model."""

    def make_ready(self, session: _Session) -> None:
        """It is ready."""

    def initialize_own(self, session: _Session) -> str:
        return ""

    def why_not_ready(self, session: _Session) -> str:
        return ""


class _RunOfTask(RunOfTask):
    """What the run's directory is told, the simulation keeps."""

    def __init__(self, program: Program) -> None:
        super().__init__(program.clock, _RUN.id)
        self._job = program.job

    def opens(self, client: ClusterClient) -> None:
        """See RunOfTask."""
        self._job.newest_incarnation = max(self._job.newest_incarnation, client.incarnation)


class _Sessions(SessionMaking):
    """The real making of sessions, with checkpoints of the simulation."""

    def __init__(self, program: Program) -> None:
        super().__init__(_Model(program), clock=program.clock, run=_RunOfTask(program))  # type: ignore[arg-type]
        self._program = program
        self._newest = 0

    def _checkpoint_to_restore(self, *args: Any) -> Any:
        saved = self._program.job.watch.checkpoints
        return saved[-1] if saved else None

    def _begin(self, session: _Session, prefix: Any, expected_tasks: Sequence[str], *more: Any) -> None:
        ledger = b"" if prefix is None else prefix.ledger
        job = self._program.job
        # What the run's directory knows, and what the process itself has seen.
        self._newest = session.cluster.run.known_progress.newest = max(job.newest_incarnation, self._newest)
        with job.history.operation(session.cluster.client_id, "begin") as told:
            session.cluster.begin(
                sequencer=job.sequencer,
                open=False,
                ledger=ledger,
                run=replace(_RUN, directory="run" if job.logged else ""),
            )
            told["incarnation"] = session.cluster.incarnation
            told["from"] = None if prefix is None else [prefix.incarnation, prefix.index - 1]

    def _announce(self, *args: Any) -> None:
        """Said to people only."""


@dataclass
class _Journal:
    """Stores nothing; of every other checkpoint, by chance, it says that all until then is stored."""

    rng: random.Random

    @property
    def stored_index(self) -> int:
        return self.rng.choice([0, 2**63])

    def catch_up(self) -> bool:
        return False

    def stop(self) -> None:
        """It has no thread."""


@dataclass(eq=False)
class Program:
    """A worker's program, or the chief's: train until the limit, whatever happens.

    Args:
        job: What it takes part in.
        process: In which it runs.
        rng: Its choices.
        chief: Whether it initializes, restores and saves.
    """

    job: Job
    process: Process
    rng: random.Random
    chief: bool = False
    clock: ProcessClock = field(init=False)
    client: ClusterClient = field(init=False)
    done: bool = False
    _clients: int = 0
    _content: Content | None = None
    _seen: int = 0
    _visible: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clock = ProcessClock(self.process)

    def transports(self) -> list[SimulatedTransport]:
        """New transports to all PS tasks."""
        return [
            SimulatedTransport(self.job.network, self.process, shard, self._sending) for shard in range(self.job.shards)
        ]

    def connect(self) -> ClusterClient:
        """A new client, as a new session has one."""
        self._clients += 1
        self._seen, self._visible, self._base = 0, {}, 0
        self.client = ClusterClient(
            self.transports(),
            task=f"/job:worker/{self.process.name}",
            clock=self.clock,
            rng=random.Random(self.rng.random()),
            retry_secs=_RETRY_SECS,
            member=False,
            policy=self._policy(),
            client_id=f"{self.process.name}.{self._clients}",
        )
        if self.chief and self.job.logged:
            self.client.journal = _Journal(random.Random(f"{self.client.client_id} journal"))
        self.client.heartbeat.beat()
        if self.job.heartbeats:
            self.process.start(self.client.heartbeat._run)
        return self.client

    def _policy(self) -> RunPolicy:
        durability = "log" if self.job.logged else "checkpoint"
        if self.job.most_lead is None:
            return RunPolicy(durability)
        return RunPolicy(durability, staleness="wait", max_staleness=self.job.most_lead)

    def _sending(self, method: str, request: Any) -> None:
        # What only reads has no content, as the client's own second look for a cut.
        if method == "push" and any(item.closes for item in request.increments):
            closes = Content(0, closes=True, base=request.seen_steps[STEP])
            self.job.watch.contents[PushId(request.id.client, request.id.sequence)] = closes
        elif method in ("stage", "push") and (request.ops or request.known_layout):
            self.job.watch.contents[PushId(request.id.client, request.id.sequence)] = self._content

    # ---- The loop -----------------------------------------------------------------------------

    def run(self) -> None:
        """Train until the job is done; begin anew after what a MonitoredSession would begin anew after."""
        sessions, had_session = _Sessions(self), False
        while True:
            try:
                if self.chief:
                    sessions.prepare("", hooks=[_Limit(self.job.limit)], had_session=had_session)
                else:
                    sessions.wait("", max_wait_secs=_WAIT_SECS, why_over=self._why_over)
                had_session = True
                self._train()
                if self.chief:
                    self._save()
                    self.job.finishing = True
                    self.client.finish()
                self.client.close()
                self.done = True
                return
            except (AbortedError, UnavailableError):
                self.client.close()
                self.process.sleep(0.1)
            except JobDoneError:
                self.done = True
                return
            except DeadlineExceededError:
                # A task that lost its state after the last save waits for nobody, and nobody comes to restore it.
                if self.client.job_done():
                    self.done = True
                    return

    def _why_over(self) -> str:
        """As WorkerSessionCreator has it: the last checkpoint is there."""
        saved = self.job.watch.checkpoints
        return "the last step is saved" if saved and saved[-1].steps[STEP] >= self.job.limit else ""

    def _train(self) -> None:
        pushes, secs = 0, 2.0 if self.process.role in self.job.slow else 0.01
        while not self.client.job_done():
            self.process.sleep(secs * self.rng.random())
            if not self._push():
                return
            pushes += 1
            if self.chief and pushes % self.job.save_every == 0:
                self._save()
            chance = self.rng.random()
            if chance < 0.15:
                self.pull([name for name in self._all_names() if self.rng.random() < 0.5])
            elif chance < 0.3:
                self._look_at_steps()

    def give_values(self, checkpoint: Checkpoint | None) -> None:
        """Declare everything, and assign first or restored values in one push."""
        job = self.job
        self.client.declare(*declarations(job.shards, job.sequencer))
        steps = {STEP: 0, OTHER: 0} if checkpoint is None else checkpoint.steps
        start = dict(starting_states(job.shards, checkpoint))
        self._do(Content(job.next_number(), tuple(start), start=start, steps=steps), ())

    def _push(self) -> bool:
        """Make a training push; says whether the job goes on."""
        job, rng = self.job, self.rng
        shards = tuple(range(job.shards))
        if not job.whole_pushes:
            shards = tuple(shard for shard in shards if rng.random() < 0.6) or (rng.randrange(job.shards),)
        increments = {STEP: 1} if rng.random() < 0.7 else {STEP: 1, OTHER: 2}
        content = Content(job.next_number(), shards, rng.random() < 0.5, increments)
        if job.units:
            return self._bring_unit(shards)
        if job.contributions:
            base = int(self.client.pull([Read(STEP)])[0])
            content = Content(content.number, shards, False, {STEP: 1}, contributes=job.contributions, base=base)
        reads: tuple[str, ...] = ()
        if rng.random() < 0.5:
            reads = tuple(name for shard in shards for name in names_on(shard))
        elif rng.random() < 0.5:
            reads = tuple(name for name in self._all_names() if rng.random() < 0.3)
        return self._do(content, reads)

    def _bring_unit(self, shards: tuple[int, ...]) -> bool:
        """Compute a unit of work, where there is one; says whether the job goes on."""
        work = self.client.contributing.take_unit(STEP, self.job.contributions, self._base)
        goes_on, self._base = work.unit > 0 or work.base != self._base, work.base
        if not work.unit:
            return goes_on
        content = Content(
            self.job.next_number(), shards, False, {STEP: 1}, None, {}, self.job.contributions, work.base,
            unit=work.unit,
        )  # fmt: skip
        return self._do(content, ())

    def _do(self, content: Content, reads: tuple[str, ...]) -> bool:
        push = step_push(content, reads, dict(self._visible)) if content.start is None else start_push(content)
        self._content = content
        given = {"incarnation": self.client.incarnation, **content.given()}
        with self.job.history.operation(self.client.client_id, "push", **given) as told:
            try:
                result = self.client.push(push)
            finally:
                self._content = None
            waits = content.contributes or (self.job.most_lead is not None and content.increments)
            if waits and len({self.client.where[name] for name in reads}) == 1:
                # Read by itself, after the wait: see `pull`.
                kept = [at for at, name in enumerate(reads) if name != STEP]
                reads = tuple(reads[at] for at in kept)
                result.values = [result.values[at] for at in kept if result.values]
            told["type"] = "ok" if result.outcome.index else "fail"
            if result.outcome.index:
                told["index"], told["then"] = result.outcome.index, seen_values(reads, result.values)
                told["read"] = {} if content.contributes else dict(result.outcome.steps)
                if content.contributes and not content.unit and content.base < self.job.limit:
                    told["from"] = {STEP: content.base + 1}  # it has waited for its step
        self.job.watch.pushed(self.client.incarnation, content, result, reads)
        self._seen = max(self._seen, result.outcome.index)
        return result.outcome.kind is not OutcomeKind.REFUSED_DONE

    def _all_names(self) -> list[str]:
        return [STEP, *(name for shard in range(self.job.shards) for name in names_on(shard))]

    def pull(self, names: list[str]) -> list[Any]:
        """Read Variables in one cut."""
        with self.job.history.operation(self.client.client_id, "read", incarnation=self.client.incarnation) as told:
            values = self.client.pull([Read(name) for name in names], layout=("reads", *names))
            told["read"] = seen_values(names, values)
            if len({self.client.where[name] for name in names}) == 1:
                told["read"].pop(STEP, None)
        # The step as a single task reads it is the visible one; there is no other value to compare it with.
        if len({self.client.where[name] for name in names}) > 1:
            self.job.watch.read(self.client.incarnation, names, values, self._seen)
        return values

    def _look_at_steps(self) -> None:
        with self.job.history.operation(self.client.client_id, "look", incarnation=self.client.incarnation) as told:
            steps = told["read"] = self.client.global_steps()
        self.job.watch.looked(self.client.incarnation, self._visible, steps, self._seen)
        self._visible = steps

    def _save(self) -> None:
        client = self.client
        names = [(shard, names_on(shard)) for shard in range(self.job.shards)]
        every = [STEP, *(name for _, on_shard in names for name in on_shard)]
        with self.job.history.operation(client.client_id, "read", incarnation=client.incarnation) as told:
            with client.snapshot() as cut:
                values = cut.read(every)
                found = iter(values)
                steps = {**cut.steps, STEP: int(next(found))}
                states = {shard: State.of([next(found) for _ in on_shard]) for shard, on_shard in names}
                checkpoint = Checkpoint(client.incarnation, cut.index, steps, states, cut.ledger)
            told["index"], told["read"] = cut.index, {**seen_values(every, values), **steps}
        self.job.watch.saved(checkpoint)


def transports_beside(target: str, transport: str | None = None) -> list[SimulatedTransport]:
    """Stand in for globalstep.wire.transports.transports_to: further transports of the process that asks."""
    transports: list[SimulatedTransport] = getcurrent().process.program.transports()
    return transports
