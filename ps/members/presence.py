"""Presence: the clients of a run, their leases, and whether the PS may end.

Pure: time comes from a clock; no lock of its own, since `ps/shard/shard.py` calls it under its lock.

Layer: ps. Single thread: the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from globalstep.cluster.process_place import NO_PROCESS, Process
from globalstep.cluster.run_identity import NO_RUN, RunIdentity, other_run
from globalstep.errors import FailedPreconditionError, ResourceExhaustedError
from globalstep.ps.budget import Account, Budget, Kind, MemoryClaim
from globalstep.ps.shard.statistics import MOST_COUNTED
from globalstep.runtime.clock import Clock
from globalstep.wire.declarations import State

__all__ = [
    "Absence",
    "ClientView",
    "LostClient",
    "NO_STANDING",
    "Presence",
    "Standing",
    "State",
    "opened_as",
    "refuse_other",
]

#: In place of a task's name.
UNNAMED = "a client that named no task"
#: How long a finished PS waits for tasks of the ClusterSpec that never showed up.
LINGER_SECS = 30.0
#: How long one does that was started again and holds no run, for those who have not found it yet: they give signs of
#: life each second. It is the one that tells them of the end.
UNMET_SECS = 5.0
#: Longest lease that a client may ask for.
MAX_LEASE_SECS = 600.0
#: The same once the job is done: one sign of life of a client that is none keeps a finished PS no longer.
MAX_DONE_LEASE_SECS = 60.0
#: How long a client is waited for, since its last push, that keeps no lease here: one of a PS task that was started
#: again, perhaps.
UNLEASED_SECS = 15.0
#: Silence after which a client tries nothing again: sessions give up before.
GONE_SECS = 600.0
#: How long a finished PS waits for those who are there to leave, however often they give signs of life.
MOST_DONE_SECS = 3600.0
#: Lease, since its last sign of life, of a client whose task another one has joined as, by the same token: a task that
#: was started again. A client that lives, and gives signs of it, keeps its own lease.
REPLACED_LEASE_SECS = 5.0
#: Tasks that are remembered to have been here; a run may come to expect some of them.
_MOST_SEEN = 1 << 14
#: What is remembered of a client: all that it says of itself, and what became of its last pushes.
_LEASE_BYTES = 40 << 10
#: Clients that left, whose last signs of life may still be on their way.
_DEPARTED_KEPT = 256


@dataclass(frozen=True, slots=True)
class Standing:
    """A client's description of itself, besides its task."""

    process: Process = NO_PROCESS
    #: Whether it trains as its task.
    takes_task: bool = False
    #: The run that it takes part in, as far as it knows.
    run: RunIdentity = NO_RUN
    #: Of the acting chief: its id, and its term.
    candidate: str = ""
    chief_term: int = 0
    #: The greatest term of a chief that it knows of.
    known_term: int = 0
    #: The name of the token that it was let in by; "" where tokens have none.
    token: str = ""


#: Of a client that says nothing.
NO_STANDING = Standing()


@dataclass(slots=True)
class _Lease:
    task: str
    lease_secs: float
    heard: float
    joined: float
    standing: Standing
    pushes: int = 0
    staleness: int = 0
    staleness_sum: int = 0
    steps: Mapping[str, int] = field(default_factory=dict)
    #: Of the pushes, those in incarnations before this one.
    pushes_before: int = 0
    lost: bool = False
    claim: MemoryClaim | None = None

    @property
    def trained(self) -> tuple[int, Mapping[str, int]]:
        """The pushes in this incarnation, and what the last one led to."""
        pushes = self.pushes - self.pushes_before
        return pushes, self.steps if pushes else {}


@dataclass(frozen=True, slots=True)
class ClientView:
    """A client with a live lease."""

    client: str
    task: str
    silent_secs: float
    #: Accepted pushes that moved a step on, since it joined.
    pushes: int
    #: Of those: how many steps the last one lagged behind, and all together.
    staleness: int = 0
    staleness_sum: int = 0
    #: Since its first sign of life.
    joined_secs: float = 0.0
    standing: Standing = NO_STANDING


@dataclass(frozen=True, slots=True)
class LostClient:
    """A client whose lease ran out: it died, hangs, or cannot be reached."""

    client: str
    task: str
    silent_secs: float
    #: Accepted pushes that moved a step on, since it joined.
    pushes: int
    #: What its last one led to.
    steps: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Absence:
    """The tasks that are not here."""

    #: No client has been here for so many seconds; where one is, and the job is done, it has been for `done_secs`.
    since_secs: float
    done_secs: float
    #: Whether any client has ever come.
    came: bool
    #: Tasks that the chief expects, and those of them that never did.
    expected: Sequence[str]
    missing: Sequence[str]
    #: Task -> how it left, where that was no good end and it has not come back.
    failed: Mapping[str, str]
    #: Who declared the job done, to several PS tasks, and is gone without having left; "" for none.
    herald: str = ""

    @property
    def to_come(self) -> list[str]:
        """Tasks that may come, or come back, where their names are known."""
        return sorted({*self.missing, *self.gone})

    @property
    def gone(self) -> Mapping[str, str]:
        """The absent tasks that were here, and how each went."""
        return {task: how for task, how in self.failed.items() if task != UNNAMED}

    def later(self, busy_secs: float) -> Absence:
        """The same, where a client that keeps no lease was here so many seconds ago."""
        return replace(self, since_secs=min(self.since_secs, busy_secs))


class Presence:
    """The clients of a run.

    Args:
        clock: Tells when a lease is over.
        budget: What is remembered of clients is claimed from it; nobody counts by default.
    """

    def __init__(self, clock: Clock, budget: Budget | None = None) -> None:
        self._clock = clock
        self._budget = budget or Budget()
        #: How many clients may be here; a server says.
        self.most_leases = 1 << 62
        self._leases: dict[str, _Lease] = {}
        self._seen_tasks: set[str] = set()
        self._expected: set[str] = set()
        # Clients that have left: what is still on its way of them brings none back.
        self._departed: dict[str, None] = {}
        self._finished_at: float | None = None
        self._finished_by = ""
        # Whether a run has begun here, so that it is known who is there.
        self._begun = False
        # The task's last client, and how it went where that was no good end. Clients that do not name their task
        # share one place.
        self._last_of: dict[str, str] = {}
        self._failed: dict[str, str] = {}
        self._last_leaves: dict[str, tuple[str, bool]] = {}
        # The steps that the incarnation was opened with, empty where pushes since may have gone unseen; and what tasks
        # have trained since by clients that keep no lease any more.
        self._opened_with: dict[str, int] = {}
        self._trained: dict[str, tuple[int, Mapping[str, int]]] = {}
        self._changed_at = clock.monotonic()
        self._came = False

    def begin(self, expected_tasks: Sequence[str]) -> None:
        """Start a new incarnation: clients that were here stay, the chief names the expected tasks anew."""
        self._expected, self._begun = set(expected_tasks), True
        self._finished_at = None
        self._came, self._changed_at = True, self._clock.monotonic()
        self._opened_with = {}
        self._trained.clear()
        for lease in self._leases.values():
            lease.pushes_before = lease.pushes

    def opened(self, steps: Mapping[str, int]) -> None:
        """Take note of the steps that the incarnation is opened with."""
        self._opened_with = dict(steps)

    def trained(self, task: str) -> tuple[Mapping[str, int], int, Mapping[str, int]]:
        """Give what a task has trained in this incarnation, all its clients together.

        Returns:
            The steps that the incarnation was opened with, empty where that is not known; how many pushes moved a step
            on since, and the steps that the last one led to.
        """
        parts = [lease.trained for lease in self._leases.values() if lease.task == task]
        parts.append(self._trained.get(task, (0, {})))
        last = max((steps for _, steps in parts), key=lambda steps: max(steps.values(), default=-1))
        return self._opened_with, sum(pushes for pushes, _ in parts), last

    def _drop(self, client: str) -> None:
        """Keep no lease of a client any more, but what its task has trained."""
        lease = self._leases.pop(client)
        pushes, steps = lease.trained
        if pushes and lease.task and self._remembers(lease.task):
            self._trained[lease.task] = self._trained.get(lease.task, (0, {}))[0] + pushes, steps

    @property
    def expected(self) -> list[str]:
        """Tasks that the chief expects."""
        return sorted(self._expected)

    @property
    def finished(self) -> bool:
        """Whether the job is done."""
        return self._finished_at is not None

    def finish(self, client: str = "") -> None:
        """Take note that the job is done; `client` says so, and is telling other PS tasks."""
        if self._finished_at is None:
            self._finished_at = self._clock.monotonic()
        self._finished_by = client
        for lease in self._leases.values():
            lease.lease_secs = min(lease.lease_secs, MAX_DONE_LEASE_SECS)

    def heard(self, client: str, task: str, lease_secs: float, standing: Standing = NO_STANDING) -> None:
        """Take note of a sign of life; one that arrives after its client has left does not count.

        Raises:
            ResourceExhaustedError: If too many others are here. Nothing is changed.
        """
        if client in self._departed:
            return
        lease = self._leases.get(client)
        claim = None if lease is not None else self._claimed(client)
        if lease is None and task:
            for other in self._leases.values():
                if (other.task, other.standing.token) == (task, standing.token):
                    other.lease_secs = min(other.lease_secs, REPLACED_LEASE_SECS)
        most = MAX_LEASE_SECS if self._finished_at is None else MAX_DONE_LEASE_SECS
        lease_secs = min(max(lease_secs, 0.1), most)
        now = self._clock.monotonic()
        if lease is None:
            lease = self._leases[client] = _Lease(task, lease_secs, now, now, standing, claim=claim)
        lease.task, lease.lease_secs, lease.heard, lease.lost = task, lease_secs, now, False
        lease.standing = standing
        self._came = True
        if self._remembers(task):
            self._last_of[task] = client
            self._failed.pop(task, None)

    def _remembers(self, task: str) -> bool:
        """Take note that a task has been here; says whether there is space for what becomes of it."""
        if task and (len(self._seen_tasks) < _MOST_SEEN or task in self._expected):
            self._seen_tasks.add(task)
        return not task or task in self._seen_tasks

    def _claimed(self, client: str) -> MemoryClaim:
        """Claim a lease more; where none more fits, the one goes that has been lost for longest."""
        account = Account(self._budget, client)
        while True:
            claim = self._budget.try_claim(Kind.CLIENT, account, _LEASE_BYTES)
            if claim is not None and len(self._leases) < self.most_leases:
                return claim
            lost = [name for name, lease in self._leases.items() if lease.lost]
            if not lost:
                break
            self._drop(min(lost, key=lambda name: self._leases[name].heard))
        if claim is None:
            raise self._budget.refusal(Kind.CLIENT, account, _LEASE_BYTES)
        raise ResourceExhaustedError(
            f"{len(self._leases)} clients are here, and give signs of life; {self.most_leases} are the most "
            "(four times --max-clients).",
            retry_secs=REPLACED_LEASE_SECS,
        )

    def takes_part(self, client: str, run: RunIdentity) -> None:
        """Take note that a client is of a run; it says so itself with its next sign of life."""
        lease = self._leases.get(client)
        if lease is not None:
            lease.standing = replace(lease.standing, run=run)

    def contributed(self, client: str) -> None:
        """Take note that a client has contributed to a step, which is as good a sign of life as any."""
        lease = self._leases.get(client)
        if lease is not None:
            lease.heard = self._clock.monotonic()

    def pushed(self, client: str, steps: Mapping[str, int], staleness: int = 0) -> None:
        """Count a client's push that moved a step on, to `steps`. Who keeps no lease is not counted."""
        lease = self._leases.get(client)
        if lease is not None:
            lease.pushes += 1
            lease.staleness = max(staleness, 0)
            lease.staleness_sum = min(lease.staleness_sum + lease.staleness, MOST_COUNTED)
            lease.steps = steps

    def find_losses(self) -> list[LostClient]:
        """Give the clients whose lease has run out since this was last asked, each once until it comes back."""
        now = self._clock.monotonic()
        losses = []
        for client, lease in self._leases.items():
            if not lease.lost and now - lease.heard > lease.lease_secs:
                lease.lost = True
                if self._last_of.get(lease.task) == client:
                    self._failed[lease.task] = "is gone, without having left"
                losses.append(LostClient(client, lease.task, now - lease.heard, lease.pushes, lease.steps))
        return losses

    def left(self, client: str, task: str = "", unfinished: bool = False) -> None:
        """Take note that a client is gone for good.

        Args:
            client: Its id.
            task: Its name, which may never have been heard before.
            unfinished: Its process failed, or was asked to end: its task may come back.
        """
        lease = self._leases.get(client)
        if lease is not None:
            self._drop(client)
        task = task or (lease.task if lease is not None else "")
        if lease is not None or task:
            self._came, self._changed_at = True, self._clock.monotonic()
        if task and self._remembers(task):
            self._last_leaves[task] = client, unfinished
        if self._remembers(task) and self._last_of.setdefault(task, client) == client:
            self._failed.pop(task, None)
            if unfinished:
                self._failed[task] = "left before the end of the job"
        self._departed[client] = None
        if len(self._departed) > _DEPARTED_KEPT:
            del self._departed[next(iter(self._departed))]

    @property
    def last_leaves(self) -> Mapping[str, tuple[str, bool]]:
        """The last leaving of each task: its client, and whether it left before its work was done."""
        return dict(self._last_leaves)

    def have_left(self, last_leaves: Mapping[str, tuple[str, bool]]) -> None:
        """Take note of those that left the process before this one, and need not be waited for."""
        for task, (client, unfinished) in last_leaves.items():
            if task not in self._last_of:  # else it has come back
                self.left(client, task, unfinished)

    def task_of(self, client: str) -> str:
        """Give a client's task; "" where it did not say."""
        lease = self._leases.get(client)
        return "" if lease is None else lease.task

    def has_been_here(self, client: str) -> bool:
        """Whether a client keeps a lease, has kept one that is over, or has left."""
        return client in self._leases or client in self._departed

    def expired(self) -> set[str]:
        """Clients that did not leave, and have been silent for longer than any session tries a call."""
        now = self._clock.monotonic()
        return {name for name, lease in self._leases.items() if now - lease.heard > max(lease.lease_secs, GONE_SECS)}

    def forget(self, clients: Sequence[str]) -> None:
        """Forget clients that are not here any more."""
        for client in self.expired().intersection(clients):
            self._drop(client)

    def silent_secs(self, client: str) -> float:
        """Give how long nothing has been heard of a client; infinity for one that keeps no lease."""
        lease = self._leases.get(client)
        return math.inf if lease is None else self._clock.monotonic() - lease.heard

    def clients(self) -> list[ClientView]:
        """Clients whose lease is not over."""
        now = self._clock.monotonic()
        return [
            ClientView(
                client,
                lease.task,
                now - lease.heard,
                lease.pushes,
                lease.staleness,
                lease.staleness_sum,
                now - lease.joined,
                lease.standing,
            )
            for client, lease in self._leases.items()
            if now - lease.heard <= lease.lease_secs
        ]

    def of_run(self, run: str) -> list[ClientView]:
        """Clients whose lease is not over and that take part in a run.

        Args:
            run: Its id.
        """
        return [view for view in self.clients() if view.standing.run.id == run]

    def others(self, client: str) -> list[str]:
        """Tasks (or ids) of live clients besides one."""
        return [view.task or view.client for view in self.clients() if view.client != client]

    def absence(self) -> Absence:
        """Give the tasks that are absent, and since when."""
        now = self._clock.monotonic()
        until = max([self._changed_at, *(lease.heard + lease.lease_secs for lease in self._leases.values())])
        return Absence(
            max(now - (self._changed_at if self.clients() else until), 0.0),
            now - (now if self._finished_at is None else self._finished_at),
            self._came,
            self.expected,
            sorted(self._expected - self._seen_tasks),
            {task or UNNAMED: how for task, how in self._failed.items()},
            self.herald,
        )

    @property
    def herald(self) -> str:
        """See Absence."""
        lease = self._leases.get(self._finished_by)
        if lease is None or self._clock.monotonic() - lease.heard <= lease.lease_secs:
            return ""
        is_back = lease.task and self._last_of.get(lease.task) != self._finished_by
        return "" if is_back else lease.task or self._finished_by

    def empty(self) -> bool:
        """Whether no client is here and none is waited for any longer."""
        waited = self._clock.monotonic() - (self._finished_at or 0.0)
        if self.clients():
            return waited > MOST_DONE_SECS
        if self.herald:
            return False
        missing = self._expected - self._seen_tasks
        if self._begun and not missing:
            return True
        return waited > (LINGER_SECS if missing else UNMET_SECS)


def refuse_other(held: RunIdentity, run: RunIdentity, shard: int, presence: Presence) -> None:
    """Refuse a BEGIN of another run while members of the held one are there.

    Args:
        held: The run that the task serves.
        run: The one that is to begin.
        shard: The task's index.
        presence: Who is there.

    Raises:
        FailedPreconditionError: Then.
    """
    if run.is_other(held) and presence.of_run(held.id):
        raise _other(held, run, shard, presence)


def opened_as(held: RunIdentity, run: RunIdentity, shard: int, presence: Presence) -> RunIdentity:
    """Give the run that is open after an OPEN: the same, by the name that its chief has for it now.

    Raises:
        FailedPreconditionError: If the caller means another run.
    """
    if run.is_other(held):
        raise _other(held, run, shard, presence)
    return replace(held, name=run.name) if run.id else held


def _other(held: RunIdentity, run: RunIdentity, shard: int, presence: Presence) -> FailedPreconditionError:
    members = [
        f"{view.task or view.client} ({view.standing.process}, for {view.joined_secs:.0f} s)"
        for view in presence.of_run(held.id)
    ]
    return FailedPreconditionError(other_run(f"PS task {shard}", held, run, members))
