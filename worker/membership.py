"""A client as a member of a run: what it knows of the PS tasks, and how it begins, opens and leaves a run.

The lower half of `worker/client.py`, which adds values.

Floor: worker. Threads: a Membership is thread-safe, and owns a heartbeat thread.
"""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from globalstep import codec
from globalstep.clock import SYSTEM_CLOCK, Clock
from globalstep.credentials import new_client_id, new_signing_key
from globalstep.declarations import OptimizerDecl, StopLimit, VariableDecl
from globalstep.errors import AbortedError, OpError
from globalstep.lanes import Lane
from globalstep.proto import globalstep_pb2 as pb
from globalstep.run_policy import RunPolicy
from globalstep.wire_options import WireOptions
from globalstep.worker.attendance import Attendance
from globalstep.worker.control_calls import ControlCalls
from globalstep.worker.declared_alike import RunSide
from globalstep.worker.heartbeat import Heartbeat
from globalstep.worker.push_protocol import PushProtocol, Run
from globalstep.worker.recovering import find_logs, recover_lost
from globalstep.worker.splitting import Splitter, split_declaration, split_optimizer

__all__ = ["CONTROL_SECS", "RETRY_SECS", "Membership"]

#: How long an unreachable PS task is tried before the session is told.
RETRY_SECS = 30.0
#: Deadline of a control call.
CONTROL_SECS = 10.0


class JournalStore(Protocol):
    """Stores what the sequencer has written down; see globalstep.chief.journal_keeping. Thread-safe."""

    @property
    def stored_index(self) -> int:
        """The last entry that is stored."""
        ...

    def catch_up(self) -> bool:
        """Store all that there is now; gives whether that was possible."""
        ...

    def stop(self) -> None:
        """Store what there is now, and end."""
        ...


def _absolute(limit: StopLimit, steps: Mapping[str, int]) -> StopLimit:
    if limit.num_steps is None or limit.step not in steps:
        return limit
    return StopLimit(limit.step, last_step=steps[limit.step] + limit.num_steps)


class Membership(Attendance):
    """A client's part in a run, without its values. Thread-safe.

    Args:
        lanes: To every PS task, in order.
        task: "/job:worker/task:1", so that others can name it; "" where not known.
        clock: Time.
        rng: Jitter of retries.
        retry_secs: How long an unreachable PS task is tried.
        member: Whether PS tasks are to wait for it: it keeps a lease. A tool that only looks is none.
        policy: Of the runs that it begins; the default where not given.
        wire: How its numbers cross the wire; as they are where not given.
        client_id: One that no other client ever has; by default a random one, bound to this process's session secret.

    Attributes:
        client_id: Who this is in every push id; new with every client.
        task: As given.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        *,
        task: str = "",
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
        retry_secs: float = RETRY_SECS,
        member: bool = True,
        policy: RunPolicy | None = None,
        wire: WireOptions | None = None,
        client_id: str = "",
    ) -> None:
        self.client_id = client_id or new_client_id()
        # Guards _run and _protocol: one push, pull or snapshot at a time. Calls are made under it: it is
        # what gives this client's pushes their order.
        self._lock = threading.RLock()
        self._run = Run(self.client_id, list(lanes))
        self._retry_secs = retry_secs
        self._clock = clock
        self._rng = rng or random.Random()
        self._protocol = PushProtocol(self._run, retry_secs, clock, self._rng, wire)
        self._calls = ControlCalls(self._run, retry_secs, clock, self._rng)
        self._policy = policy or RunPolicy()
        self._splitter = Splitter()
        self._variables: dict[str, VariableDecl] = {}
        # The run's, as a PS task has them, and who declared them.
        self._optimizers: Sequence[pb.OptimizerDecl] = ()
        self._declared_by = ""
        super().__init__(self._run, self._calls, Heartbeat(self._run.lanes, self.client_id, task, clock), task)
        self._run.gone, self._heartbeat.haste = self._heartbeat.gone, self._run.haste
        #: Where this client is the chief's: who stores the run's journal. It is stopped before the client leaves.
        self.journal: JournalStore | None = None
        self._closed = False
        if member:
            self._heartbeat.start()

    @property
    def shards(self) -> int:
        """How many PS tasks there are."""
        return len(self._run.lanes)

    @property
    def sequencer(self) -> int:
        """Index of the PS task that orders pushes."""
        return self._run.sequencer

    @property
    def incarnation(self) -> int:
        """The incarnation that this client is a member of; 0 before it knows one."""
        return self._run.incarnation

    @property
    def where(self) -> Mapping[str, int]:
        """Declared Variable -> index of its PS task; of a split one, that of its first part, and each part's too."""
        return self._run.where

    @property
    def variables(self) -> Mapping[str, VariableDecl]:
        """Declared Variables, as this client last heard of them."""
        return self._variables

    @property
    def labels(self) -> list[str]:
        """What messages call the PS tasks, in order."""
        return [lane.label for lane in self._run.lanes]

    @property
    def addresses(self) -> list[str]:
        """Where the PS tasks are reached, in order; "" in process."""
        return [lane.address for lane in self._run.lanes]

    # ---- The run ------------------------------------------------------------------------------

    def statuses(self, timeout_secs: float = CONTROL_SECS, brief: bool = False) -> list[pb.StatusReply | OpError]:
        """Ask every PS task what it is, at once.

        Args:
            timeout_secs: How long one may take.
            brief: Leave out Variables and optimizers.

        Returns:
            In order of tasks: its answer, or why there is none.
        """
        calls = [lane.unary("Status", pb.StatusRequest(brief=brief), timeout_secs) for lane in self._run.lanes]
        out: list[pb.StatusReply | OpError] = []
        for call in calls:
            try:
                out.append(call.result())
            except OpError as error:
                out.append(error)
        return out

    def refresh(self, timeout_secs: float = CONTROL_SECS) -> list[pb.StatusReply]:
        """Learn the run's incarnation and Variables from all PS tasks.

        Returns:
            Their statuses, in order.

        Raises:
            UnavailableError: If one cannot be reached.
        """
        asked = self._calls.each("Status", dict.fromkeys(range(self.shards), pb.StatusRequest()), timeout_secs)
        found = [asked[shard] for shard in range(self.shards)]
        self._heartbeat.introduce()
        with self._lock:
            incarnations = {status.incarnation for status in found}
            if len(incarnations) == 1 and found[0].incarnation:
                self._adopt(found[0].incarnation, found[0].sequencer)
                self._run.logged = found[0].policy.durability == "log"
                self._run.directory = found[0].directory
                for index, status in enumerate(found):
                    for message in status.variables:
                        self._know(replace(codec.decode_variable(message), shard=index))
                self._optimizers = found[0].optimizers
                self._declared_by = found[0].chief.task or f"client {found[0].owner}"
        return found

    def run_side(self) -> RunSide:
        """Give what the run has declared, as this client last heard, for a comparison with a program's graph."""
        with self._lock:
            mine = f"{self.task or f'client {self.client_id}'} on {socket.gethostname()}"
            theirs = self._declared_by or "another program"
            optimizers = [codec.decode_optimizer(item) for item in self._optimizers]
            return RunSide(mine, theirs, dict(self._variables), optimizers)

    def _know(self, decl: VariableDecl) -> None:
        """Take note of a Variable as a PS task has it. Caller holds the lock."""
        self._run.where[decl.name] = decl.shard
        whole = self._splitter.learn(decl)
        if whole is not None:
            self._run.where[whole.name] = whole.shard
        if whole is not None or not decl.whole:
            self._variables[(whole or decl).name] = whole or decl

    def _adopt(self, incarnation: int, sequencer: int) -> None:
        """Become a member of an incarnation. Caller holds the lock."""
        if incarnation != self._run.incarnation:
            self._run.where.clear()
            self._variables.clear()
            self._splitter.clear()
            self._protocol.start_over()
        self._run.incarnation = incarnation
        self._run.sequencer = self._heartbeat.sequencer = sequencer

    def begin(
        self,
        *,
        sequencer: int = 0,
        open: bool,
        expected_tasks: Sequence[str] = (),
        ledger: bytes = b"",
        directory: str = "",
    ) -> int:
        """Begin a new incarnation on all PS tasks, dropping what they hold.

        Args:
            sequencer: Index of the task that orders pushes.
            open: Let everybody in at once; otherwise only this client is served until `open()`.
            expected_tasks: Names of client tasks that are to come, e.g. "/job:worker/task:0".
            ledger: The ledger of the checkpoint that is about to be restored.
            directory: The run's, path or URL; "" where it has none.

        Returns:
            The incarnation.

        Raises:
            AbortedError: If another client began one at the same time; wait for it instead.
        """
        with self._lock:
            statuses = self.refresh()
            newest = max(max(status.incarnation, status.spent_incarnations) for status in statuses)
            newest = max(newest, _incarnation_of(ledger))
            key = new_signing_key()
            for shard, lane in enumerate(self._run.lanes):
                message = pb.BeginRequest(
                    incarnation=newest + 1,
                    shard=shard,
                    shards=self.shards,
                    sequencer=sequencer,
                    owner=self.client_id,
                    sequencer_address="" if shard == sequencer else self._run.lanes[sequencer].address,
                    expected_tasks=expected_tasks,
                    open=open,
                    ledger=ledger if shard == sequencer else b"",
                    policy=codec.encode_policy(self._policy),
                    directory=directory,
                    chief_term=self.chief_term,
                    spent_incarnations=statuses[shard].spent_incarnations,
                    key=key,
                )
                reply = self._calls.one("Begin", shard, message)
                if (reply.incarnation, reply.owner) != (newest + 1, self.client_id):
                    raise AbortedError(
                        f"Client {reply.owner} began incarnation {reply.incarnation} on {lane.label} at the same "
                        "time; this session joins that one."
                    )
            self._adopt(newest + 1, sequencer)
            self._run.logged, self._run.directory = self._policy.durability == "log", directory
            return newest + 1

    def recover(self, incarnation: int, sequencer: int, directory: str) -> None:
        """Bring PS tasks that hold nothing back to what their logs say; see recovering.recover_lost."""
        recover_lost(self._run.lanes, incarnation, sequencer, directory)

    def find_logs(self, directory: str) -> tuple[int, int] | None:
        """Find the newest run of a directory that all PS tasks have a log of; see recovering.find_logs.

        A client whose own policy is not durability="log" finds none: its run begins anew.
        """
        return find_logs(self._run.lanes, directory) if self._policy.durability == "log" else None

    def declare(self, variables: Sequence[VariableDecl], optimizers: Sequence[OptimizerDecl]) -> None:
        """Make Variables and optimizers known to the PS tasks that hold them.

        On PS tasks that hold nothing this begins the run, open to everybody, as a plain session does.

        Args:
            variables: With the shard that each is to live on.
            optimizers: Told to every PS task.

        Raises:
            AlreadyExistsError: If the run has one of them otherwise.
        """
        with self._lock:
            if not self._run.incarnation and not any(status.incarnation for status in self.refresh()):
                steps = [decl.shard for decl in variables if decl.is_step]
                try:
                    self.begin(sequencer=steps[0] if steps else 0, open=True, expected_tasks=self.session_tasks)
                except AbortedError:
                    self.refresh()
            known = self._run.where
            by_shard: dict[int, list[VariableDecl]] = {shard: [] for shard in range(self.shards)}
            split = {decl.name: len(decl.parts) for decl in variables}
            for decl in variables:
                held = self._variables.get(decl.name)
                if held is not None:  # it stays where the run has it, in as many parts
                    decl = replace(decl, parts=held.parts, shard=held.shard)
                    split[decl.name] = len(held.parts)
                for part in split_declaration(decl):
                    by_shard[known.get(part.name, part.shard)].append(part)
            split = {name: len(self._splitter.parts(name)) for name in known} | split
            messages = [
                codec.encode_optimizer(split_optimizer(decl, lambda name: split.get(name, 0))) for decl in optimizers
            ]
            requests = {}
            for shard, decls in by_shard.items():
                request = pb.DeclareRequest(
                    incarnation=self._run.incarnation, client=self.client_id, optimizers=messages
                )
                for decl in decls:
                    request.variables.append(codec.encode_variable(decl))
                    request.variables[-1].shard = shard
                requests[shard] = request
            self._calls.each("Declare", requests)
            for shard, decls in by_shard.items():
                for decl in decls:
                    self._know(replace(decl, shard=shard))

    def open(self, limits: Sequence[StopLimit] = ()) -> dict[str, int]:
        """Let everybody in, with these stop limits in force from that moment.

        Args:
            limits: At most one a step.

        Returns:
            The limits in force, absolute.
        """
        with self._lock:
            if any(limit.num_steps is not None for limit in limits):
                # A second try must mean the same step as the first.
                status: pb.StatusReply = self._calls.one("Status", self._run.sequencer, pb.StatusRequest(brief=True))
                limits = [_absolute(limit, status.steps) for limit in limits]
            request = pb.OpenRequest(
                incarnation=self._run.incarnation,
                client=self.client_id,
                limits=[codec.encode_limit(limit) for limit in limits],
            )
            # The sequencer first: a limit is in force before any other task serves.
            order = sorted(range(self.shards), key=lambda shard: shard != self._run.sequencer)
            replies = [self._calls.one("Open", shard, request) for shard in order]
            return dict(replies[0].limits)

    def set_limits(self, limits: Sequence[StopLimit]) -> dict[str, int]:
        """Put stop limits in force on a run that is open already; gives those in force."""
        return self.open(limits)

    def _journal_index(self) -> int | None:
        return None if self.journal is None else self.journal.stored_index

    # ---- The end ------------------------------------------------------------------------------

    def finish(self) -> list[str]:
        """Declare the job done; a PS task that does not answer is told again, for up to a minute.

        Returns:
            Tasks that are still there; the PS tasks end when the last of them has left.

        Raises:
            UnavailableError: If one could not be told. The others know.
        """
        with self._lock:
            request = pb.FinishRequest(
                incarnation=self._run.incarnation, client=self.client_id, chief_term=self.chief_term
            )
            # Task 0 first, which knows for sure who is the chief. And a task that does not hear of it would wait
            # for its workers for ever.
            replies = [self._calls.one("Finish", 0, request)]
            replies += self._calls.each("Finish", dict.fromkeys(range(1, self.shards), request)).values()
            return sorted({name for reply in replies for name in reply.remaining})

    def close(self) -> None:
        """Leave the run, and the chief's office where that was asked for. Safe to call twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self.journal is not None:
            self.journal.stop()
        self._heartbeat.stop()
        self.say_goodbye()
        for lane in self._run.lanes:
            lane.close()


def _incarnation_of(ledger: bytes) -> int:
    """Give the incarnation that a checkpoint's ledger belongs to: clocks may have gone back since. 0 for none."""
    try:
        return max(int(json.loads(ledger)["incarnation"]), 0) if ledger else 0
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return 0  # the sequencer refuses it, and says why
