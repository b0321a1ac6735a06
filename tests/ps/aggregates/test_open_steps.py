"""What a PS task says of steps that wait for contributions, and counts of them, by a clock that is moved by hand."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from counting_run import SHAPES, USES, declarations, initialize, step_push

from globalstep.cluster.run_policy import RunPolicy
from globalstep.ps.local import LocalPS
from globalstep.ps.members.presence import Standing
from globalstep.ps.shard import events
from globalstep.ps.shard.layouts import PushParts
from globalstep.ps.shard.shard import Shard
from globalstep.runtime.clock import ManualClock
from globalstep.wire.declarations import Increment, Op, OpKind, OutcomeKind, Push, PushId
from globalstep.worker.client.client import ClusterClient

STEP = Increment("global_step", 1, 2)
TASKS = ["/job:worker/task:0", "/job:worker/task:1"]


class Run:
    """A PS task and two workers, none of which waits by itself."""

    def __init__(self, policy=None):
        self.clock = ManualClock()
        self.clients = []
        local = LocalPS(1, clock=self.clock)
        self.control, self.shard = local.controls[0], local.controls[0].handler.shard
        for seed in range(2):
            self.clients.append(
                ClusterClient(
                    local.transports(), rng=random.Random(seed), member=False, policy=policy, clock=self.clock
                )
            )
        self.clients[0].begin(open=True)
        initialize(self.clients[0])
        self.clients[1].refresh()
        self.heard(0, 1)

    def heard(self, *workers):
        for at in workers:
            standing = Standing(takes_task=True)
            self.shard.handle(events.Heartbeat(self.clients[at].client_id, TASKS[at], 15.0, standing))

    def contribute(self, worker, base, step=STEP):
        ops = [Op(OpKind.APPLY, name, np.ones(shape, np.float32), optimizer="sgd") for name, shape in SHAPES.items()]
        push = Push(
            ops=() if step.closes else ops, increments=[step], uses=list(USES), seen_steps={"global_step": base}
        )
        return self.clients[worker].push(push, at_once=True).outcome.kind

    def status(self):
        return self.control.brief_status()


@pytest.fixture
def begun():
    runs = []

    def begin(policy=None):
        runs.append(Run(policy))
        return runs[-1]

    yield begin
    for run in runs:
        for client in run.clients:
            client.close()


def test_an_open_step_says_what_it_has_whom_it_waits_for_and_since_when(begun):
    run = begun()
    run.clock.advance(1.0)
    run.contribute(0, 0)
    run.clock.advance(2.5)
    (found,) = run.status().open_steps
    assert (found.step, found.base, found.contributions, found.wanted, found.open_secs) == ("global_step", 0, 1, 2, 2.5)
    assert found.waits_for == {TASKS[1]: "which came 4 s ago and has not contributed yet"}
    run.contribute(1, 0)
    assert not run.status().open_steps
    run.contribute(1, 1)
    (found,) = run.status().open_steps
    assert (found.base, found.open_secs, [*found.waits_for]) == (1, 0.0, TASKS[:1])


def test_contributions_late_ones_steps_and_the_time_that_one_waits_are_counted(begun):
    run = begun()
    for base, secs in enumerate((2.0, 0.5)):
        run.contribute(0, base)
        run.clock.advance(secs)
        assert run.contribute(1, base) is OutcomeKind.ACCEPTED
    assert run.contribute(0, 0) is OutcomeKind.LATE
    counted = run.status().statistics
    assert (counted.contributions, counted.late, counted.made) == (4, 1, 2)
    assert (counted.waited, counted.waited_secs) == (4, 2.5)
    assert counted.dropped_stale == 1


def test_a_contribution_that_is_late_need_not_be_like_those_of_the_open_step(begun):
    """Other Variables may be synchronized by another step."""
    run = begun()
    for worker in range(2):
        run.contribute(worker, 0)
    run.contribute(0, 1)
    late = Push(increments=[STEP], seen_steps={"global_step": 0})
    assert run.clients[1].push(late, at_once=True).outcome.kind is OutcomeKind.LATE
    assert run.contribute(1, 0, replace(STEP, contributions=3)) is OutcomeKind.LATE
    assert run.contribute(1, 1) is OutcomeKind.ACCEPTED


def test_what_closes_a_step_is_no_contribution_and_none_that_is_late(begun):
    run = begun()
    closes = replace(STEP, closes=True)
    run.contribute(0, 0)
    assert run.contribute(0, 0, closes) is OutcomeKind.LATE  # the other one is here
    run.clock.advance(700.0)
    run.heard(0)
    assert run.contribute(0, 0, closes) is OutcomeKind.ACCEPTED
    counted = run.status().statistics
    assert (counted.contributions, counted.late, counted.made, counted.waited, counted.waited_secs) == (1, 0, 1, 1, 700)


def test_a_worker_that_slept_past_its_lease_is_waited_for_again_from_its_next_contribution_on(begun):
    """Its next sign of life may take long: its connection broke while it slept."""
    run = begun()
    for worker in range(2):
        run.contribute(worker, 0)
    run.clock.advance(20.0)
    run.heard(0)
    run.contribute(0, 1)
    assert run.contribute(0, 1, replace(STEP, closes=True)) is OutcomeKind.ACCEPTED
    assert run.contribute(1, 1) is OutcomeKind.LATE
    run.contribute(0, 2)
    assert run.contribute(0, 2, replace(STEP, closes=True)) is OutcomeKind.LATE
    (found,) = run.status().open_steps
    assert [*found.waits_for] == TASKS[1:]


def test_units_of_work_name_who_computes_them(begun):
    run = begun()
    ask = [events.AwaitStep(item.incarnation, item.client_id, "global_step", 0, units=2) for item in run.clients]
    first, second = (run.shard.handle(event).unit for event in ask)
    assert run.contribute(0, 0, replace(STEP, unit=first)) is OutcomeKind.ACCEPTED
    run.clock.advance(3.0)
    run.heard(0, 1)
    (found,) = run.status().open_steps
    assert found.waits_for == {TASKS[1]: f"which has computed unit {second} for 3.0 s"}


def test_a_job_that_is_done_keeps_nobody_whose_step_is_made_from_seeing_it():
    """The last step may be made, and the job declared done, before every shard has said that it has applied it."""
    shard, push = Shard(ManualClock()), PushId("a", 2)
    shard.handle(events.Begin(7, shard=0, shards=2, sequencer=0, owner="a", opened=True, key=bytes(range(32))))
    shard.handle(events.Declare(7, "a", *declarations(1)))
    begins = PushParts([Op(OpKind.ASSIGN, "global_step", fill=0.0)])
    shard.handle(events.Push(7, PushId("a", 1), begins, (), (), {}))
    contribution = Increment("global_step", 1, contributions=1)
    shard.handle(events.Push(7, push, PushParts(), (contribution,), (), {"global_step": 0}, [1]))
    shard.handle(events.Finish(7, "chief"))
    ask = events.AwaitStep(7, "a", "global_step", 0)
    assert not shard.handle(ask).over
    shard.handle(events.Resolve(7, (), 1, 2))  # the other shard has applied it
    wait = shard.handle(ask)
    assert wait.over
    assert wait.steps["global_step"] == 1


def test_pushes_of_one_worker_alone_open_no_step(begun):
    run = begun()
    run.clients[0].push(step_push())
    status = run.status()
    assert not status.open_steps
    assert (status.statistics.contributions, status.statistics.made, status.statistics.waited) == (0, 0, 0)


def test_waits_for_slower_workers_count_when_they_are_over(begun):
    run = begun(RunPolicy(staleness="wait", max_staleness=0))
    fast, slow = run.clients

    def may_go_on(client):
        return run.shard.handle(events.AwaitSlower(client.incarnation, client.client_id)).over

    for client, times in ((slow, 1), (fast, 2)):
        for _ in range(times):
            client.push(step_push(), at_once=True)
    assert not may_go_on(fast)
    run.clock.advance(1.5)
    assert run.status().statistics.lead_waits == 0
    slow.push(step_push(), at_once=True)
    assert may_go_on(fast)
    assert may_go_on(fast)
    counted = run.status().statistics
    assert (counted.lead_waits, counted.lead_wait_secs) == (1, 1.5)
