"""Contributions on a PS task other than the sequencer: they take no more than they may have, whoever sends them."""

from __future__ import annotations

import random

import numpy as np
import pytest
from counting_run import RATE, SHAPES, USES, initialize, state, step_push

from globalstep.cluster.run_identity import RunIdentity
from globalstep.cluster.run_policy import RunPolicy
from globalstep.errors import ResourceExhaustedError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.ledger.aggregates import MOST_CONTRIBUTIONS
from globalstep.ps.local import LocalPS
from globalstep.ps.shard.layouts import LayoutMemory
from globalstep.ps.shard.shard import Shard
from globalstep.runtime.clock import ManualClock
from globalstep.wire.declarations import (
    Increment,
    Op,
    OpKind,
    OptimizerDecl,
    OptimizerUse,
    OutcomeKind,
    Push,
    VariableDecl,
)
from globalstep.wire.expressions import constant
from globalstep.worker.client.client import ClusterClient

MOST = 16 << 10
UNITS = 48
#: Of the tasks: the one that holds w and e, and the sequencer, which holds b and the step.
ELSEWHERE, SEQUENCER = 0, 1
#: What is kept of a unit that has nothing to add.
NOTHING_BYTES = 512
#: Rows of e in an attacker's gradient, most of them several times; its bytes.
ROWS = 256
ROWS_BYTES = np.ones((ROWS, 2), np.float32).tobytes() + (np.arange(ROWS) % 5).tobytes()


class Impatient(ManualClock):
    """A clock by which a client gives up what is refused when it has tried twice."""

    meanwhile = staticmethod(lambda: None)

    def wait(self, event, timeout_secs):
        self.meanwhile()
        return super().wait(event, max(timeout_secs, 1000.0))


class Job:
    """Two PS tasks, of which only one has little memory, and an honest client."""

    def __init__(self, directory=""):
        self.clock, self.impatient = ManualClock(), Impatient()
        self.ps = LocalPS(2, clock=self.clock)
        self.client = ClusterClient(
            self.ps.transports(), rng=random.Random(1), member=False, clock=self.impatient,
            policy=RunPolicy(durability="log") if directory else None,
        )  # fmt: skip
        self.client.begin(sequencer=SEQUENCER, open=True, run=RunIdentity("a" * 32, directory=directory))
        initialize(self.client)
        self.shard.resources.budget.limit_bytes = 2 * MOST
        self.streams = [LayoutMemory(), LayoutMemory()]
        self.directory = directory

    @property
    def shard(self):
        return self.ps.controls[ELSEWHERE].handler.shard

    def die_and_come_back(self):
        """The process of the task without the sequencer ends, and another comes back to what its log says."""
        control = self.ps.controls[ELSEWHERE]
        control.durability.close()
        control.handler.shard = Shard(ManualClock())
        control.handler.shard.resources.budget.limit_bytes = 2 * MOST
        request = pb.LogRequest(
            incarnation=self.client.incarnation, directory=self.directory, shard=ELSEWHERE, shards=2, run="a" * 32
        )
        control.call("Recover", request)

    def close(self):
        self.client.close()
        for control in self.ps.controls:
            control.durability.close()

    @property
    def held_bytes(self):
        return self.shard.now.contributions.nbytes

    @property
    def most_bytes(self):
        """What contributions may have: the limit, what the values have, and the one that went beyond."""
        return MOST + self.shard.value_bytes + 2 * len(ROWS_BYTES)

    def is_full(self):
        return self.shard.now.contributions.claimed_bytes > MOST

    def push(self, unit, base=0):
        """Push an honest unit of work; gives the outcome."""
        ops = [Op(OpKind.APPLY, name, np.ones(shape, np.float32), optimizer="sgd") for name, shape in SHAPES.items()]
        step = [Increment("global_step", 1, UNITS, UNITS, unit=unit)]
        push = Push(ops=ops, increments=step, uses=list(USES), seen_steps={"global_step": base})
        return self.client.push(push, at_once=True).outcome

    def contribute(self, unit, base=0):
        """Push an honest unit of work; says whether there was memory for it."""
        try:
            return self.push(unit, base).kind is OutcomeKind.ACCEPTED
        except ResourceExhaustedError:
            return False

    def fill(self, base=0, most=UNITS):
        """Contribute units that wait for the first, until there is no memory for another one; gives them."""
        waiting = []
        for unit in range(most, 1, -1):
            if not self.contribute(unit, base):
                break
            waiting.append(unit)
        assert len(waiting) < most - 1
        return waiting


class Attacker:
    """A worker with messages of its own making."""

    def __init__(self, job):
        self.job = job
        self.sequence = 0
        self.part = pb.Request(stage=pb.StageRequest())
        op = self.part.stage.ops.add(kind=pb.OP_APPLY, variable="e", optimizer="sgd")
        op.value.dtype, op.value.shape[:] = "float32", [ROWS, 2]
        op.indices.dtype, op.indices.shape[:], op.indices.offset = "int64", [ROWS], ROWS * 8

    def send(self, shard, request, data=b""):
        message = getattr(request, request.WhichOneof("kind"))
        message.incarnation = self.job.client.incarnation
        # A client has 64 parts at most.
        message.id.client, message.id.sequence = f"attacker-{self.sequence // 32}", self.sequence
        handler = self.job.ps.controls[shard].handler
        reply, _ = handler.begin(request, memoryview(bytearray(data)), self.job.streams[shard])
        return reply

    def stage(self, unit, step="global_step"):
        """Stage rows of e as a unit's, or as no contribution's, under a new id; gives the error's type."""
        self.sequence += 1
        self.part.stage.step, self.part.stage.unit = step, unit
        return self.send(ELSEWHERE, self.part, ROWS_BYTES).error.type

    def contribute(self, unit, base=0, wanted=UNITS, of=None):
        """Have what was staged last, or as number `of`, admitted as a unit, and applied."""
        last, self.sequence = self.sequence, of or self.sequence
        request = pb.Request(push=pb.PushRequest(others=[ELSEWHERE]))
        request.push.increments.add(step="global_step", by=1, contributions=wanted, unit=unit)
        request.push.increments[0].most_of_client = wanted
        request.push.uses.add(optimizer="sgd")
        request.push.seen_steps["global_step"] = base
        answer = self.send(SEQUENCER, request)
        told = pb.Request(commit=pb.CommitRequest())
        for item in answer.push.pending:
            if item.shard == ELSEWHERE:
                told.commit.entries.extend(item.entries)
        error = self.send(ELSEWHERE, told).error
        assert not error.type, error
        self.sequence = last
        return OutcomeKind(answer.push.outcome.kind) if not answer.error.type else answer.error.type


@pytest.fixture
def job():
    made = Job()
    yield made
    made.close()


@pytest.fixture
def attacker(job):
    return Attacker(job)


def test_units_that_wait_are_refused_where_there_is_no_memory_and_the_next_one_is_taken(job):
    waiting = job.fill()
    assert MOST < job.held_bytes < job.most_bytes
    with pytest.raises(ResourceExhaustedError, match=rf"have {job.held_bytes:,} bytes on PS task {ELSEWHERE}, beyond"):
        job.push(2)
    for unit in range(1, UNITS + 1):
        if unit not in waiting:
            assert job.contribute(unit)
    assert state(job.client) == {"global_step": 1, **values_after(1)}
    assert not job.shard.now.contributions
    assert job.contribute(2, base=1)


def values_after(steps):
    return {name: np.full(shape, -RATE * steps, np.float32).tolist() for name, shape in SHAPES.items()}


@pytest.mark.parametrize("seed", [1, 2])
def test_units_that_come_in_any_order_make_the_step_all_the_same(job, seed):
    """Who is refused comes again later, as a client does that waits for its turn."""
    choice, refusals = random.Random(seed), 0
    for step in range(2):
        units = list(range(1, UNITS + 1))
        choice.shuffle(units)
        while units:
            unit = units.pop(0)
            if not job.contribute(unit, base=step):
                refusals += 1
                units.append(unit)
            assert job.held_bytes < job.most_bytes
        assert state(job.client) == {"global_step": step + 1, **values_after(step + 1)}
    assert refusals


@pytest.mark.parametrize("task", [ELSEWHERE, SEQUENCER])
def test_a_client_gives_up_after_a_while_where_there_is_no_memory_and_leaves_no_parts(job, task):
    """They would keep out the part of the unit that frees some."""
    shards = [control.handler.shard for control in job.ps.controls]
    job.shard.resources.budget.limit_bytes = 1 << 30
    shards[task].resources.budget.limit_bytes = 2 * MOST
    waits = []

    def meanwhile():
        waits.append(1)
        assert len(waits) < 10, "it waits for ever"

    job.impatient.meanwhile = meanwhile

    def fill():
        for unit in range(UNITS, 1, -1):
            job.push(unit)

    with pytest.raises(ResourceExhaustedError, match=f"on PS task {task}, beyond"):
        fill()
    assert not any(shard.now.staged for shard in shards)


def test_all_units_of_a_step_that_wait_for_its_first_are_refused_beyond_the_limit(job, attacker):
    taken = 0
    for unit in range(MOST_CONTRIBUTIONS, 1, -1):
        error = attacker.stage(unit)
        assert error == ("ResourceExhaustedError" if job.is_full() else "")
        if not error:
            assert attacker.contribute(unit, wanted=MOST_CONTRIBUTIONS) is OutcomeKind.ACCEPTED
            taken += 1
    assert 2 < taken < UNITS
    assert MOST < job.held_bytes < job.most_bytes
    assert not job.shard.now.staged


def test_parts_that_were_staged_while_there_was_memory_are_bounded_as_well(job, attacker):
    """They lie there, as many as there is memory for, and are admitted afterwards."""
    staged = []
    while not attacker.stage(UNITS - len(staged)):
        staged.append((UNITS - len(staged), attacker.sequence))
    assert 1 < len(staged) < UNITS - 1
    for unit, number in staged:
        assert attacker.contribute(unit, of=number) is OutcomeKind.ACCEPTED
    job.fill(most=UNITS - len(staged))
    assert job.held_bytes < MOST + job.most_bytes


def test_contributions_that_were_staged_as_plain_parts_are_not_kept_where_there_is_no_memory(job, attacker):
    waiting = job.fill()
    for unit in range(UNITS - len(waiting), 1, -1):
        before = job.held_bytes
        assert attacker.stage(0, step="") == ""
        assert attacker.contribute(unit) is OutcomeKind.ACCEPTED
        assert job.held_bytes <= before + NOTHING_BYTES
        assert not job.shard.now.staged
    assert job.contribute(1)
    assert job.client.global_steps() == {"global_step": 1}
    assert not job.shard.now.contributions
    job.client.push(step_push())
    assert job.client.global_steps() == {"global_step": 2}


def test_contributions_that_were_staged_as_the_next_unit_are_not_kept_as_others_where_there_is_no_memory(job, attacker):
    waiting = job.fill()
    for unit in range(UNITS - len(waiting), 1, -1):
        before = job.held_bytes
        assert attacker.stage(1) == ""
        assert attacker.contribute(unit) is OutcomeKind.ACCEPTED
        assert job.held_bytes <= before + NOTHING_BYTES
        assert not job.shard.now.staged
    assert job.contribute(1)


@pytest.mark.parametrize(("step", "units"), [("global_step", False), ("global_step", True), ("", False), ("", True)])
def test_contributions_by_ever_more_optimizers_are_not_kept_where_there_is_no_memory(job, attacker, step, units):
    """A worker declares as many as it likes; each has a sum of its own, of as many bytes as the Variable."""
    names = [f"mine{number}" for number in range(100)]
    rate = {"learning_rate": constant(RATE)}
    job.client.declare([], [OptimizerDecl(name, "gradient_descent", rate, {"e": ()}) for name in names])
    refused = 0
    for number, name in enumerate(names, 1):
        attacker.part.stage.ops[0].optimizer = name
        unit = number * units
        refused += bool(attacker.stage(unit, step))
        attacker.contribute(unit, wanted=1000)
    assert job.held_bytes < job.most_bytes
    assert bool(refused) == bool(step)


def test_a_task_that_comes_back_from_its_log_adds_no_contribution_that_it_has_not_kept(tmp_path):
    job = Job(str(tmp_path))
    try:
        attacker, waiting = Attacker(job), job.fill()
        for unit in range(UNITS - len(waiting), 1, -1):
            assert attacker.stage(0, step="") == ""
            assert attacker.contribute(unit) is OutcomeKind.ACCEPTED
        before, applied = job.held_bytes, job.shard.now.applied
        job.die_and_come_back()
        assert (job.held_bytes, job.shard.now.applied) == (before, applied)
    finally:
        job.close()


def test_the_first_unit_of_a_step_is_taken_though_those_of_a_step_that_will_not_be_made_have_the_memory(job):
    """The step was moved on by a push meanwhile, or set; what is held of it is dropped by the first of the next."""
    assert job.contribute(1)
    waiting = job.fill()
    assert waiting
    job.client.push(step_push(scale=0.0))
    for unit in range(1, UNITS + 1):
        assert job.contribute(unit, base=1)
    assert state(job.client) == {"global_step": 2, **values_after(1)}


def test_rows_of_two_bytes_take_what_their_table_does_however_many_contribute(job):
    """Such a contribution is never refused, also where units have all the memory."""
    decl = VariableDecl("table", "float16", (5, 2), ELSEWHERE, trainable=True)
    rate = OptimizerDecl("halves", "gradient_descent", {"learning_rate": constant(RATE)}, {"table": ()})
    job.client.declare([decl], [rate])
    job.client.push(Push([Op(OpKind.ASSIGN, "table", fill=0.0)]))
    gradient = np.ones((700, 2), np.float16)
    rows = Op(OpKind.APPLY, "table", gradient, indices=np.arange(700) % 5, optimizer="halves")

    def contribute(**more):
        step = [Increment("global_step", 1, UNITS, UNITS, **more)]
        ops = [] if more else [rows]
        push = Push(ops, step, [OptimizerUse("halves")], seen_steps={"global_step": 0}, beside=(ELSEWHERE,))
        return job.client.push(push, at_once=True).outcome.kind

    taken = []
    for _ in range(UNITS - 1):
        assert contribute() is OutcomeKind.ACCEPTED
        taken.append(job.held_bytes)
    assert max(taken) == taken[0] < MOST
    job.clock.advance(1000.0)
    assert contribute(closes=True) is OutcomeKind.ACCEPTED
    assert job.client.global_steps() == {"global_step": 1}
    assert not job.shard.now.contributions
    assert not job.shard.resources.of_nothing
