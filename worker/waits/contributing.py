"""Contributions: pushes that count for a step together with those of other workers, and the wait for that step.

docs/design/steps-of-several-workers.md, "Aggregates" and "Work units", is the specification.

Layer: worker. Threads: a Contributing is thread-safe; several threads may wait at once, without any lock.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import NamedTuple

from globalstep.errors import NotFiniteGradientError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.runtime.clock import Clock
from globalstep.wire.declarations import Increment, Outcome, OutcomeKind, Push
from globalstep.worker.client.joined_run import JoinedRun
from globalstep.worker.protocol.push_result import PushResult
from globalstep.worker.waits.asking import Asking, Ways

#: As the unit of an Increment: the one that the client was given last.
CLAIMED = -1

#: How long a question whether a step has moved on may wait for its answer; other calls of the client wait meanwhile.
_PATIENCE_MS = 20
#: After how long a worker first says for whom it waits.
_FIRST_SAID_SECS = 10.0


class UnitOfWork(NamedTuple):
    """What a client is to compute."""

    #: The step's value, from which it is to be computed.
    base: int
    #: Which of the step's units it is, from 1; 0 for none: the step has this value now, or moves on no more.
    unit: int


class Contributing:
    """Contributes for a client.

    Args:
        ways: The client's.
        run: What it knows of the run.
        clock: Time.
    """

    def __init__(self, ways: Ways, run: JoinedRun, clock: Clock) -> None:
        self._ways = ways
        self._run = run
        self._asking = Asking(ways, run, clock)
        # Guards _given; a leaf.
        self._lock = threading.Lock()
        # Step -> (incarnation, value that it was computed from, how many were given for what follows).
        self._given: dict[str, tuple[int, int, int]] = {}
        # Step -> (incarnation, the unit of it that is being computed).
        self._claimed: dict[str, tuple[int, UnitOfWork]] = {}
        # Layout and incarnation of the last contribution, and its way; replaced as a whole.
        self._last_way: tuple[object, tuple[tuple[int, ...], bool]] | None = None

    def take_unit(self, step: str, units: int, known: int) -> UnitOfWork:
        """Ask for a unit of work, and wait until there is one, or the step has moved on.

        The values that it is computed from must be read after this.

        Returns:
            What to compute.

        Raises:
            AbortedError: If the run's incarnation is over.
        """
        request = pb.Request()
        message = request.await_step
        message.incarnation, message.client = self._run.incarnation, self._run.client
        message.step, message.base, message.patience_ms, message.units = step, known, _PATIENCE_MS, units
        work, found = UnitOfWork(known, 0), pb.AwaitReply()

        def over(reply: pb.Reply) -> bool | None:
            nonlocal work, found
            found = reply.await_step
            base = found.steps.get(step, known)
            work = UnitOfWork(base, found.unit)
            if found.unit or base != known:
                return True
            return None if found.waited and not found.over else found.over

        self._asking.until(request, over, f"a unit of what follows step {known} of {step}", lambda: _why(found))
        with self._lock:
            self._claimed[step] = message.incarnation, work
        return work

    def contribute(self, push: Push) -> PushResult:
        """Push a contribution, exactly once, and wait until its step has been made.

        A client that may give several for one step waits after the last of them. Where the sequencer alone takes part,
        the answer to the push waits for the step, for a while, and brings the values.

        Returns:
            The outcome, with the steps as they are after the wait, and values as of then.

        Raises:
            AbortedError: If the run's incarnation is over: what was contributed to an open step is lost with it.
            OpError: As for a push.
        """
        wanted = self._with_share(*push.increments)
        beside, patient = self._way_of(push, wanted)
        patience_ms = _PATIENCE_MS if patient else 0
        part = push.of_ops(push.ops, push.reads if patient else [])
        part.increments = [wanted]
        part.beside, part.patience_ms = beside, patience_ms
        if wanted.unit:
            return self._bring_unit(part, wanted)
        base = part.seen_steps[wanted.step]
        result = self._ways.push(part)
        outcome = result.outcome
        made = outcome.kind is OutcomeKind.ACCEPTED and outcome.steps.get(wanted.step) != base
        if patient and made and len(result.values) == len(push.reads):
            return result
        waits = outcome.kind is OutcomeKind.LATE
        if outcome.kind is OutcomeKind.ACCEPTED and not self._may_give_more(wanted, base):
            waits = outcome.steps.get(wanted.step) == base
        if waits:
            outcome = replace(outcome, steps=self._await(part, wanted, base))
        if outcome.kind is not OutcomeKind.ACCEPTED:
            return PushResult(outcome, [], result.applied)
        return PushResult(outcome, self._ways.pull(push.reads) if push.reads else [], result.applied)

    def _with_share(self, wanted: Increment) -> Increment:
        """Let whoever is here give what a step needs, where the workers' shares do not make one together.

        So it is with more tokens than workers: programs add up several batches of each for a step.
        """
        workers = self._run.workers
        if wanted.unit or not workers or max(wanted.most_of_client, 1) * workers >= wanted.contributions:
            return wanted
        return replace(wanted, most_of_client=wanted.contributions)

    def _way_of(self, push: Push, wanted: Increment) -> tuple[tuple[int, ...], bool]:
        """Give the tasks that have a part, and whether the answer may wait; kept for pushes that are all alike."""
        alike = push.layout, self._run.incarnation
        last = self._last_way
        if push.layout is not None and last is not None and last[0] == alike:
            return last[1]
        shards = {shard for variable in push.variables for shard in self._ways.shards_of(variable)}
        patient = not wanted.unit and self._is_answered_once_made(push, wanted, shards)
        # Whichever rows of a partitioned Variable a worker has: all contributions have parts on the same tasks.
        way = tuple(sorted(shards)), patient
        self._last_way = alike, way
        return way

    def _is_answered_once_made(self, push: Push, wanted: Increment, shards: set[int]) -> bool:
        """Whether the answer to a contribution may wait for its step, and bring what is read of that."""
        read = {shard for item in push.reads for shard in self._ways.shards_of(item.variable)}
        return wanted.most_of_client <= 1 and shards | read <= {self._run.sequencer}

    def _bring_unit(self, part: Push, wanted: Increment) -> PushResult:
        """Push the unit of work that was claimed; waits for nobody, and reads nothing."""
        with self._lock:
            incarnation, work = self._claimed.pop(wanted.step, (0, UnitOfWork(0, 0)))
        seen = part.seen_steps[wanted.step]
        if incarnation != self._run.incarnation or not work.unit or work.base != seen:
            # Its step was made, or its run went back, while the values were read.
            return PushResult(Outcome(OutcomeKind.LATE, 0, {wanted.step: seen}), [], [])
        layout = None if part.layout is None else (part.layout, work.unit)
        result = self._ways.push(replace(part, increments=[replace(wanted, unit=work.unit)], layout=layout))
        if result.outcome.kind is OutcomeKind.DROPPED_NAN:
            raise NotFiniteGradientError(
                f"The gradient of Variable {result.outcome.not_finite!r} of unit {work.unit} of step {seen + 1} is not "
                "finite, and would not be on any other worker: the step cannot be made. Look at the unit's batches."
            )
        return PushResult(result.outcome, [], result.applied)

    def _may_give_more(self, wanted: Increment, base: int) -> bool:
        """Take note of an accepted contribution; says whether the client may give another one for the same step."""
        with self._lock:
            incarnation, of, count = self._given.get(wanted.step, (0, 0, 0))
            count = count + 1 if (incarnation, of) == (self._run.incarnation, base) else 1
            self._given[wanted.step] = self._run.incarnation, base, count
            return count < wanted.most_of_client

    def _await(self, part: Push, wanted: Increment, base: int) -> dict[str, int]:
        """Wait until a step has moved on from `base`, or will not; gives the steps."""
        request = pb.Request()
        message = request.await_step
        message.incarnation, message.client = self._run.incarnation, self._run.client
        message.step, message.base, message.patience_ms = wanted.step, base, _PATIENCE_MS
        found = pb.AwaitReply()

        def over(reply: pb.Reply) -> bool | None:
            nonlocal found
            found = reply.await_step
            if found.due and not found.over:
                self._close(part, wanted)
                return None
            return None if found.waited and not found.over else found.over

        what = f"step {base + 1} of {wanted.step}"
        self._asking.until(request, over, what, lambda: _why(found), _FIRST_SAID_SECS)
        return dict(found.steps)

    def _close(self, part: Push, wanted: Increment) -> Outcome:
        """Ask that the step be made of the contributions that are there: no other will come."""
        increments = [replace(wanted, closes=True)]
        closing = replace(part, ops=[], increments=increments, reads=[], layout=None, patience_ms=0)
        return self._ways.push(closing).outcome


def _why(found: pb.AwaitReply) -> str:
    """Say whom a wait is for."""
    names = "; ".join(found.waits_for) or "nobody: it is about to be made"
    return f"{found.contributions} of {found.wanted} contributions are there, and it waits for {names}"
