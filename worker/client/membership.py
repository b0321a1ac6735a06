"""A client as a member of a run: how it begins, declares, opens, finishes and leaves one.

Layer: worker. Threads: a Membership is thread-safe.
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from globalstep.cluster.run_identity import NO_RUN, RunIdentity, new_run_id, run_name
from globalstep.cluster.run_policy import RunPolicy
from globalstep.errors import AbortedError, FailedPreconditionError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.wire import codec
from globalstep.wire.declarations import OptimizerDecl, StopLimit, VariableDecl
from globalstep.wire.known_progress import KnownProgress
from globalstep.wire.transports import ask_each
from globalstep.worker.client.calls import POLICIES, ControlCalls
from globalstep.worker.client.candidate import ChiefLeaseClient
from globalstep.worker.client.heartbeat import Heartbeat
from globalstep.worker.client.leaving import ends_unfinished
from globalstep.worker.client.run_view import RunView
from globalstep.worker.protocol.splitting import split_declaration, split_optimizer

#: How often Finish is sent to a PS task without its state: twice, more often if it is started again in between.
_FINISH_TRIES = 4
#: How often one looks whether another client has begun a run on all PS tasks, before it begins one itself.
_JOIN_TRIES = 200


def new_signing_key() -> bytes:
    """Make what the PS tasks of an incarnation sign with; see "What is signed" in docs/design/push-protocol.md."""
    return secrets.token_bytes(32)


def _absolute(limit: StopLimit, steps: Mapping[str, int]) -> StopLimit:
    if limit.num_steps is None or limit.step not in steps:
        return limit
    return StopLimit(limit.step, last_step=steps[limit.step] + limit.num_steps)


class Membership:
    """A client's part in a run. Thread-safe.

    Args:
        run: What the client knows of the run.
        calls: Makes calls to the PS tasks.
        heartbeat: Keeps the client's lease; its creator starts it.
        chief_lease: In which term the client acts as chief.
        policy: Of the runs that it begins.
    """

    def __init__(
        self, run: RunView, calls: ControlCalls, heartbeat: Heartbeat, chief_lease: ChiefLeaseClient, policy: RunPolicy
    ) -> None:
        self._run = run
        self._joined = run.joined
        self._lock = run.lock
        self._calls = calls
        self._heartbeat = heartbeat
        self._chief_lease = chief_lease
        self._policy = policy

    @property
    def has_task(self) -> bool:
        """Whether this client has said that it trains as its task."""
        return self._heartbeat.takes_task

    def take_task(self) -> None:
        """Say from now on, and now, that this client trains as its task, which no other process does."""
        self._heartbeat.takes_task = True
        self._heartbeat.beat()

    def begin(
        self,
        *,
        sequencer: int = 0,
        open: bool,
        expected_tasks: Sequence[str] = (),
        ledger: bytes = b"",
        run: RunIdentity = NO_RUN,
        take_over: bool = False,
        statuses: Sequence[pb.StatusReply] = (),
    ) -> int:
        """Begin a new incarnation on all PS tasks, dropping what they hold.

        Args:
            sequencer: Index of the task that orders pushes.
            open: Let everybody in at once; otherwise only this client is served until `open()`.
            expected_tasks: Names of client tasks that are to come, e.g. "/job:worker/task:0".
            ledger: The ledger of the checkpoint that is about to be restored.
            run: Which run begins, in which directory; without an id the one of this directory that the PS tasks hold,
                or a new one.
            take_over: Drop another run all the same that the PS tasks serve.
            statuses: What the PS tasks hold, by what it was decided to begin: what another client has begun since is
                not dropped. By default they are asked now.

        Returns:
            The incarnation.

        Raises:
            FailedPreconditionError: If the PS tasks serve another run whose members are there.
            AbortedError: If another client began one at the same time; wait for it instead.
        """
        template = pb.BeginRequest(
            sequencer=sequencer, expected_tasks=expected_tasks, open=open, ledger=ledger, take_over=take_over
        )
        with self._lock:
            return self._begin_after(statuses or self._run.refresh(), template, run)

    def begin_first(self, sequencer: int, expected_tasks: Sequence[str] = ()) -> None:
        """Begin a run, open to everybody, on PS tasks that hold nothing; join the one that another client began first.

        Raises:
            FailedPreconditionError: If the PS tasks serve a run that is not this client's.
        """
        template = pb.BeginRequest(sequencer=sequencer, expected_tasks=expected_tasks, open=True)
        with self._lock:
            statuses = self._run.refresh()
            for _ in range(_JOIN_TRIES):
                held = {status.incarnation for status in statuses}
                if held == {0}:
                    try:
                        self._begin_after(statuses, template, NO_RUN)
                        return
                    except AbortedError:
                        pass
                elif len(held) == 1:
                    if self._joined.incarnation:
                        return
                    break
                # Another client has told only some of the PS tasks yet.
                statuses = self._run.refresh()
            self._begin_after(statuses, template, NO_RUN)

    def _begin_after(self, statuses: Sequence[pb.StatusReply], template: pb.BeginRequest, run: RunIdentity) -> int:
        """Begin an incarnation after those that the PS tasks have had. Caller holds the lock."""
        same = [status.run.id for status in statuses if status.run.id and status.directory == run.directory]
        run = RunIdentity(run.id or next(iter(same), new_run_id()), run.name or run_name(), run.directory)
        newest = max(max(status.incarnation, status.spent_incarnations) for status in statuses)
        newest = max(newest, _newest_known(template.ledger, self._joined.known_progress))
        sequencer, key = template.sequencer, new_signing_key()
        for shard in range(len(self._joined.transports)):
            message = pb.BeginRequest(
                incarnation=newest + 1,
                shard=shard,
                shards=len(self._joined.transports),
                sequencer=sequencer,
                owner=self._joined.client,
                sequencer_address="" if shard == sequencer else self._joined.transports[sequencer].address,
                expected_tasks=template.expected_tasks,
                open=template.open,
                ledger=template.ledger if shard == sequencer else b"",
                policy=codec.encode_policy(self._policy),
                directory=run.directory,
                chief_term=self._chief_lease.acting_term,
                spent_incarnations=statuses[shard].spent_incarnations,
                key=key,
                run=pb.RunIdentity(id=run.id, name=run.name),
                take_over=template.take_over,
            )
            self._calls.one("Begin", shard, message)
        self._run.adopt(newest + 1, sequencer, run)
        self._joined.directory = run.directory
        self._joined.take_policy(self._policy)
        return newest + 1

    def recover(self, incarnation: int, sequencer: int, directory: str, run: str) -> None:
        """Bring PS tasks that hold nothing back to what their logs say; see recovering.recover_lost."""
        self._joined.recover(incarnation, sequencer, directory, run)

    def find_logs(self, directory: str, run: str) -> list[tuple[int, int]]:
        """Find the lives of a run that all PS tasks have a log of, the newest first; see recovering.find_logs.

        A client whose own policy is not durability="log" finds none: its run begins anew.
        """
        if self._policy.durability != "log":
            return []
        from globalstep.worker.client.recovering import find_logs

        return find_logs(self._joined.transports, directory, run)

    def declare(self, variables: Sequence[VariableDecl], optimizers: Sequence[OptimizerDecl]) -> None:
        """Make Variables and optimizers known to the PS tasks that hold them.

        On PS tasks that hold nothing this begins the run, open to everybody, as a plain session does.

        Args:
            variables: With the shard that each is to live on.
            optimizers: Sent to every PS task.

        Raises:
            AlreadyExistsError: If the run has one of them otherwise.
        """
        with self._lock:
            if not self._joined.incarnation and not any(status.incarnation for status in self._run.refresh()):
                steps = [decl.shard for decl in variables if decl.is_step]
                self.begin_first(steps[0] if steps else 0, self._run.session_tasks)
            where = self._joined.where
            by_shard: dict[int, list[VariableDecl]] = {shard: [] for shard in range(len(self._joined.transports))}
            split = {decl.name: len(decl.parts) for decl in variables}
            for decl in variables:
                held = self._run.variables.get(decl.name)
                if held is not None:  # it stays where the run has it, in as many parts
                    decl = replace(decl, parts=held.parts, shard=held.shard)
                    split[decl.name] = len(held.parts)
                for part in split_declaration(decl):
                    by_shard[where.get(part.name, part.shard)].append(part)
            split = {name: len(self._run.splitter.parts(name)) for name in where} | split
            messages = [
                codec.encode_optimizer(split_optimizer(decl, lambda name: split.get(name, 0))) for decl in optimizers
            ]
            requests = {}
            for shard, decls in by_shard.items():
                request = pb.DeclareRequest(
                    incarnation=self._joined.incarnation, client=self._joined.client, optimizers=messages
                )
                for decl in decls:
                    request.variables.append(codec.encode_variable(decl))
                    request.variables[-1].shard = shard
                requests[shard] = request
            self._calls.each("Declare", requests)
            for shard, decls in by_shard.items():
                for decl in decls:
                    self._run.know(replace(decl, shard=shard))

    def open(self, limits: Sequence[StopLimit] = ()) -> None:
        """Let everybody in, with these stop limits in force from that moment.

        Args:
            limits: At most one a step.
        """
        with self._lock:
            if any(limit.num_steps is not None for limit in limits):
                # A second try must mean the same step as the first.
                status: pb.StatusReply = self._calls.one("Status", self._joined.sequencer, pb.StatusRequest(brief=True))
                limits = [_absolute(limit, status.steps) for limit in limits]
            request = pb.OpenRequest(
                incarnation=self._joined.incarnation,
                client=self._joined.client,
                run=replace(self._joined.identity, name=run_name() or self._joined.identity.name).encode(),
                chief_term=self._chief_lease.acting_term,
            )
            codec.encode_limits(limits, request)
            # The sequencer first: a limit is in force before any other task serves.
            order = sorted(range(len(self._joined.transports)), key=lambda shard: shard != self._joined.sequencer)
            for shard in order:
                self._calls.one("Open", shard, request)

    # ---- The end ------------------------------------------------------------------------------

    def finish(self) -> list[str]:
        """Declare the job done; the client retries a PS task that does not answer for up to a minute.

        Returns:
            Tasks that are still there; the PS tasks end when the last of them has left.

        Raises:
            UnavailableError: If one could not be reached. The others know.
        """
        with self._lock:
            # Task 0 first, which knows for sure who is the chief. And a task that does not hear of it would wait
            # for its workers for ever.
            replies = self._finish(range(1)) + self._finish(range(1, len(self._joined.transports)))
            return sorted({name for reply in replies for name in reply.remaining})

    def _finish(self, shards: Sequence[int]) -> list[pb.FinishReply]:
        """Tell PS tasks that the job is done; one that has lost its state wants its process named."""
        request = pb.EndRequest(
            incarnation=self._joined.incarnation, client=self._joined.client, chief_term=self._chief_lease.acting_term
        )
        requests = dict.fromkeys(shards, request)
        for tries_left in reversed(range(_FINISH_TRIES)):
            try:
                return list(self._calls.each("Finish", requests).values())
            except FailedPreconditionError:
                if not tries_left:
                    raise
            statuses = self._calls.each("Status", dict.fromkeys(shards, pb.StatusRequest(brief=True)))
            for shard, status in statuses.items():
                requests[shard] = pb.EndRequest()
                requests[shard].CopyFrom(request)
                requests[shard].process = status.process
        return []

    def leave(self) -> None:
        """Stop the heartbeat and tell every PS task that this client leaves: with an exception on its way, or not."""
        self._heartbeat.stop()
        unfinished = self._joined.shutdown.asked or ends_unfinished(sys.exc_info()[1])
        self._heartbeat.goodbye(unfinished, self._chief_lease.given_up_on_leaving)

    def let_end(self, shards: Iterable[int]) -> None:
        """Tell PS tasks that are about to end that they need not wait any longer."""
        secs = POLICIES["Stop"].deadline_secs
        # The process that was heard to be draining: the one in its place later is to go on.
        requests = {
            shard: pb.EndRequest(
                force=True, process=self._heartbeat.processes.get(shard, ""), chief_term=self._chief_lease.acting_term
            )
            for shard in shards
        }
        for _ in ask_each(self._joined.transports, "Stop", requests, secs):
            pass  # one that cannot be reached ends by itself when its time is up


def _newest_known(ledger: bytes, progress: KnownProgress) -> int:
    """Give the newest incarnation that a client knows of by itself: clocks of PS tasks may have gone back since."""
    return max(progress.newest, _incarnation_of(ledger))


def _incarnation_of(ledger: bytes) -> int:
    """Give the incarnation that a checkpoint's ledger belongs to; 0 for none."""
    try:
        return max(int(json.loads(ledger)["incarnation"]), 0) if ledger else 0
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return 0  # the sequencer refuses it, and says why
