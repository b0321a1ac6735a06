"""The life of a PS task's state: incarnations, declarations, who is served, when it is over.

The lower half of the shard's state machine; `ps/shard/shard.py` adds reads and pushes. Pure of I/O: time comes
from a clock.

Layer: ps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from globalstep.cluster.run_identity import NO_RUN, RunIdentity
from globalstep.cluster.run_policy import RunPolicy
from globalstep.errors import AbortedError, FailedPreconditionError, InvalidArgumentError, LostStateError
from globalstep.ps.ledger.journal import Journal
from globalstep.ps.ledger.ledger import LIMIT_SHARDS, Ledger
from globalstep.ps.ledger.signatures import Signer
from globalstep.ps.members.attendance import Attendance
from globalstep.ps.members.chief_lease import ChiefLeaseView
from globalstep.ps.members.presence import NO_STANDING, Absence, ClientView, Standing, State
from globalstep.ps.members.run_guard import opened_as, refuse_other
from globalstep.ps.rules import check_declaration, get_rule
from globalstep.ps.shard.declared import kernels
from globalstep.ps.shard.fail_stop import FailStop
from globalstep.ps.shard.shard_view import ShardView
from globalstep.ps.shard.statistics import Statistics
from globalstep.ps.store.cores import ONE_CORE
from globalstep.ps.store.store import VariableStore
from globalstep.ps.wal.witness import NO_WITNESS, Witness
from globalstep.runtime.clock import Clock
from globalstep.testing.faults import NO_FAULTS, Faults
from globalstep.wire.declarations import OptimizerDecl, StopLimit, VariableDecl

__all__ = ["Life"]


class Life(Attendance):
    """A PS task's state, without its data plane. Thread-safe: every public method takes the one lock.

    Args:
        clock: Tells how long clients have been silent.

    Attributes:
        faults: What a test makes fail.
        fail_stop: Drops the state where a change of it fails halfway.
        most_read_bytes: What may be read at a time; see `limit_reads`.
    """

    faults: Faults = NO_FAULTS
    most_read_bytes = 1 << 62

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._statistics = Statistics(since=clock.monotonic())
        #: Incarnations up to this one may have been those of lives that this process knows nothing of.
        self.spent_incarnations = int(clock.time() * 1000)
        self._state = State.VACANT
        self._incarnation = 0
        self._shard, self._shards, self._sequencer = 0, 1, 0
        self._owner = ""
        self.sequencer_address = ""
        self._policy, self._run, self._begun_at = RunPolicy(), RunIdentity(), 0.0
        #: Is told of everything that happens to this incarnation.
        self.witness: Witness = NO_WITNESS
        self.fail_stop = FailStop(self._lose)
        #: Share the work of applying a large push; whoever gave them ends them.
        self.cores = ONE_CORE
        self._drop()

    def _drop(self) -> None:
        """Forget every value. Caller holds the lock, or is the constructor."""
        self._store = VariableStore(most_read_bytes=self.most_read_bytes)
        self._ledger: Ledger | None = None
        self._applied, self._signer = 0, Signer(b"", 0)

    def view(self, brief: bool = False) -> ShardView:
        """Say what this shard is and holds.

        Args:
            brief: Leave out Variables and optimizers.
        """
        with self._lock:
            return ShardView(
                self._state,
                self._incarnation,
                self._shard,
                self._shards,
                self._sequencer,
                self._owner,
                self._applied,
                list(self._ledger.floors) if self._ledger else [],
                [] if brief else self._store.variables,
                [] if brief else self._store.optimizers,
                [] if brief else self._store.uninitialized(),
                dict(self._ledger.steps) if self._ledger else {},
                dict(self._ledger.limits) if self._ledger else {},
                self._statistics.copy(),
                self._clock.monotonic() - self._statistics.since,
                self._policy,
                self._run.directory,
                self._draining,
                self.lease.view(),
                self._run,
            )

    def begin(
        self,
        incarnation: int,
        *,
        shard: int,
        shards: int,
        sequencer: int,
        owner: str,
        opened: bool,
        sequencer_address: str = "",
        expected_tasks: Sequence[str] = (),
        ledger: bytes = b"",
        policy: RunPolicy | None = None,
        key: bytes = b"",
        run: RunIdentity = NO_RUN,
        take_over: bool = False,
        witness: Witness = NO_WITNESS,
    ) -> tuple[int, str]:
        """Start a new incarnation, unless it is not newer than the present one.

        Args:
            incarnation: Its number.
            shard: This task's index.
            shards: How many there are.
            sequencer: Index of the task that orders pushes.
            owner: Client that initializes; served alone until `open`.
            opened: Serve everybody at once.
            sequencer_address: Where to ask about staged parts; "" on the sequencer.
            expected_tasks: Names of client tasks that are to come.
            ledger: A checkpoint's ledger, on the sequencer of a restore.
            policy: How the run treats late pushes, bad gradients and lost PS tasks.
            key: What the tasks of the incarnation sign with.
            run: Which run begins.
            take_over: Drop another run all the same whose members are here.
            witness: Is told of all that happens from now on.

        Returns:
            (incarnation, owner) that is in force now.

        Raises:
            InvalidArgumentError: If the numbers do not fit together. Nothing is changed.
            FailedPreconditionError: If this task serves another run. Nothing is changed.
        """
        if not (0 <= shard < shards <= LIMIT_SHARDS and 0 <= sequencer < shards) or not owner:
            raise InvalidArgumentError(
                f"BEGIN of shard {shard} of {shards} with sequencer {sequencer} and owner {owner!r} cannot be."
            )
        loaded = None
        if shard == sequencer:
            loaded = Ledger.load(ledger, shards, sequencer) if ledger else Ledger(shards, sequencer)
        with self._lock:
            if incarnation > self._incarnation:
                if not (take_over or self._state in (State.VACANT, State.DONE)):
                    refuse_other(self._run, run, self._shard, self.presence)
                self.told.ended(self._incarnation, self._applied, self._ledger.steps if self._ledger else None)
                self._drop()
                self.witness = witness
                self._state = State.READY if opened else State.INITIALIZING
                self._incarnation, self._owner = incarnation, owner
                self._shard, self._shards, self._sequencer = shard, shards, sequencer
                self.sequencer_address = sequencer_address
                self._policy, self._run = policy or RunPolicy(), run
                self._begun_at = self._clock.monotonic()
                self._signer = Signer(key, incarnation)
                self._ledger = loaded
                if loaded is not None:
                    loaded.incarnation, loaded.signer = incarnation, self._signer
                    loaded.table.end_of_life()
                    if run.directory:
                        life = f"{self.spent_incarnations}.{incarnation}"
                        loaded.journal = Journal(life, loaded, self.presence.task_of)
                self._applied = loaded.index if loaded else 0
                self.presence.begin(expected_tasks)
                self.presence.takes_part(owner, run)
            return self._incarnation, self._owner

    def declare(
        self,
        incarnation: int,
        client: str,
        variables: Sequence[VariableDecl],
        optimizers: Sequence[OptimizerDecl],
        nothing_new: bool = False,
    ) -> None:
        """Make Variables and optimizers known; see VariableStore.declare.

        Raises:
            PermissionDeniedError: If something is new that must not be.
            InvalidArgumentError: If a Variable belongs to another shard, or an optimizer is incomplete.
        """
        for optimizer in optimizers:
            check_declaration(optimizer)
        with self._lock:
            self._check(incarnation, client)
            wanted = kernels(variables, optimizers, self._store)
        # Without the lock: a kernel that is not in the cache yet takes its time to compile.
        for kind, dtype in sorted(wanted):
            get_rule(kind).prepare(dtype)
        with self._lock:
            self._check(incarnation, client)
            for decl in variables:
                _check_place(decl, self._shard, self._sequencer)
            self._store.declare(variables, optimizers, nothing_new)
            with self.fail_stop.during("A declaration"):
                for decl in variables:
                    if decl.is_step and self._ledger is not None:
                        self._ledger.declare_step(decl.name)
                self.witness.declared(incarnation, client, variables, optimizers)

    def open(
        self,
        incarnation: int,
        client: str,
        limits: Sequence[StopLimit],
        run: RunIdentity = NO_RUN,
    ) -> dict[str, int]:
        """Let everybody into the run that is meant, with stop limits in force from the same moment.

        Returns:
            The limits in force, absolute; none on shards other than the sequencer.
        """
        with self._lock:
            self._check(incarnation, client)
            self._run = opened_as(self._run, run, self._shard, self.presence)
            if self._ledger is not None:
                self._ledger.set_limits(limits)
            if self._state is State.INITIALIZING:
                self._state = State.READY
            self.witness.opened(incarnation, client, limits)
            return dict(self._ledger.limits) if self._ledger else {}

    def finish(self, incarnation: int, client: str, not_meant: str = "") -> list[str]:
        """Declare the job done; say who is still here besides the caller.

        A task that lost its state takes it too, since the chief leaves; unless it is `not_meant`: why that is.
        """
        with self._lock:
            if self._state is not State.VACANT:
                self._check(incarnation, client)
                self.witness.finished(incarnation, client)
            elif not_meant:
                raise FailedPreconditionError(
                    f"This PS task holds no state, and is not told that it is done: {not_meant}"
                )
            self._state = State.DONE
            self.presence.finish()
            return self.presence.others(client)

    def heartbeat(
        self, client: str, task: str, lease_secs: float, standing: Standing = NO_STANDING
    ) -> tuple[State, int, ChiefLeaseView]:
        """Take note that a client is alive, with what its HeartbeatRequest says.

        Returns:
            State, incarnation, and who acts as chief.
        """
        with self._lock:
            self.presence.heard(client, task, lease_secs, standing)
            self.lease.adopt(standing.known_term)
            if standing.chief_term:
                self.lease.sign(standing.candidate, task, standing.chief_term, standing.process, standing.run)
            return self._state, self._incarnation, self.lease.view()

    def leave(self, client: str, candidate: str = "", task: str = "", unfinished: bool = False, term: int = 0) -> None:
        """Take note that a client is gone for good, and from the chief's lease if `candidate` holds it."""
        with self._lock:
            self.lease.leave(candidate, term)
            self.presence.left(client, task, unfinished)
            if self._ledger is not None:
                self._ledger.table.departed(client)
                if self._ledger.table.crowded(self._clock.monotonic()):  # no checkpoint has been taken for long
                    self._forget_gone(self._ledger)
            self._drop_kept(client)
            if self._state is not State.VACANT:
                self.witness.left(client)

    def _drop_kept(self, client: str) -> None:
        """Drop what is kept for the retries of a client that left. Caller holds the lock."""

    def _forget_gone(self, ledger: Ledger) -> None:
        """Forget clients that have been gone for long. Caller holds the lock."""
        here = {view.client for view in self.presence.clients()}
        expired = self.presence.expired()
        ledger.table.forget_gone(here, expired, self._clock.monotonic())
        self.presence.forget(list(expired))

    def secure(self, before: Witness) -> None:
        """Return once what a call did, and what it saw, will not be forgotten; `before` was the witness before it.

        Raises:
            LostStateError: If it was forgotten.
        """
        now = self.witness
        before.secure()
        if now is not before:
            now.secure()

    def lose(self, witness: Witness) -> None:
        """Forget all state, as a restart of the process would: what its witness forgot may be told to nobody.

        Args:
            witness: Which that was; nothing is done where it is another one's time.
        """
        with self._lock:
            if self.witness is witness:
                self._lose()

    def _lose(self) -> None:
        """See `lose`. Caller holds the lock. The witness is told of nothing more."""
        if self._state is not State.VACANT:
            self.spent_incarnations = max(self.spent_incarnations, self._incarnation)
            self._drop()
            self._state, self._incarnation, self._owner = State.VACANT, 0, ""

    def adopt(self, other: Life, witness: Witness, sequencer_address: str, floors: Mapping[int, int]) -> bool:
        """Become what another shard is, that a log was played to; gives False where this one holds a newer life.

        Args:
            other: Of which there will be no other use.
            witness: Is told of all that happens from now on.
            sequencer_address: As of `begin`; addresses may have changed.
            floors: On the sequencer: what the other shards have applied; see Ledger.check_floors.
        """
        with self._lock:
            if other._incarnation < self._incarnation:
                return False
            if other._ledger is not None:
                other._ledger.check_floors(floors)
                for shard, index in floors.items():
                    other._ledger.raise_floor(shard, index)
            self._take_over(other)
            self.witness, self.sequencer_address = witness, sequencer_address
            self.presence.begin(other.presence.expected)
            if self._state is State.DONE:
                self.presence.finish()
            if self._ledger is not None and self._ledger.journal is not None:
                self._ledger.journal.task_of = self.presence.task_of
            return True

    def _take_over(self, other: Life) -> None:
        """Take another shard's state. Caller holds the lock."""
        self._state, self._incarnation, self._owner = other._state, other._incarnation, other._owner
        self._shard, self._shards, self._sequencer = other._shard, other._shards, other._sequencer
        self._policy, self._run, self._signer = other._policy, other._run, other._signer
        self._store, self._ledger, self._applied = other._store, other._ledger, other._applied
        self._store.most_read_bytes = self.most_read_bytes

    def attendance(self) -> tuple[State, list[ClientView], Absence]:
        """Say in which state this task is, who is here, and who is not."""
        with self._lock:
            return self._state, self.presence.clients(), self.presence.absence()

    @property
    def done(self) -> bool:
        """Whether the job was declared done."""
        with self._lock:
            return self._state is State.DONE

    def _check(self, incarnation: int, client: str) -> None:
        """Refuse a call that does not belong to the life of this state. Caller holds the lock."""
        if self._state is State.VACANT:
            raise LostStateError(
                "This PS task holds no state: it has just started, or it was restarted and lost what it had. "
                "It serves nothing until the chief has initialized or restored all PS tasks."
            )
        if incarnation != self._incarnation:
            raise AbortedError(
                f"The call belongs to incarnation {incarnation}; the run is in incarnation "
                f"{self._incarnation} since the chief restored it. Start the run anew."
            )
        if self._state is State.INITIALIZING and client != self._owner:
            raise AbortedError(
                f"PS task {self._shard} is being initialized by client {self._owner}; wait until it is ready."
            )


def _check_place(decl: VariableDecl, shard: int, sequencer: int) -> None:
    """Refuse a Variable that is not this shard's."""
    if decl.shard != shard:
        raise InvalidArgumentError(f"Variable {decl.name!r} is of shard {decl.shard}; this is shard {shard}.")
    if decl.is_step and shard != sequencer:
        raise InvalidArgumentError(
            f"Step {decl.name!r} must be an integer scalar on the sequencer, shard {sequencer}; this is shard {shard}."
        )
