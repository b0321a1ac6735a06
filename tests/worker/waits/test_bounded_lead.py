"""The fast wait for the slow, over one and several PS tasks, in process: how far ahead, for whom, and what is read."""

from __future__ import annotations

import logging
import random
import threading

import numpy as np
import pytest
from counting_run import RATE, FaultPlan, expected, initialize, state, step_push

from globalstep.cluster.run_policy import RunPolicy
from globalstep.errors import LostStateError
from globalstep.ps.local import LocalPS
from globalstep.ps.members.presence import Standing
from globalstep.ps.shard import events
from globalstep.ps.shard.shard import Shard
from globalstep.ps.shard.validation import problems
from globalstep.runtime.clock import SYSTEM_CLOCK, ManualClock
from globalstep.runtime.faults import BEFORE
from globalstep.wire.declarations import OutcomeKind, Push, StopLimit
from globalstep.worker.client.client import ClusterClient

LEASE_SECS = 15.0
#: Longer than any test takes.
LONG_LEASE_SECS = 600.0


class Run:
    """PS tasks, and workers that keep leases there; where waits are to move the clock on, it is one of its own."""

    def __init__(self, shards, policy, clock=SYSTEM_CLOCK):
        self.clock = clock
        self.ps = LocalPS(shards, clock=self.clock)
        self._policy = policy
        self.clients = []
        chief = self.worker()
        chief.begin(sequencer=shards - 1, open=True)
        initialize(chief)

    def worker(self):
        clock, number = self.clock, len(self.clients)
        client = ClusterClient(
            self.ps.transports(), rng=random.Random(number), member=False, policy=self._policy, clock=clock
        )
        self.clients.append(client)
        client.refresh()
        self.heard(client)
        return client

    def heard(self, client, secs=None):
        secs = secs or (LONG_LEASE_SECS if self.clock is SYSTEM_CLOCK else LEASE_SECS)
        task = f"/job:worker/task:{self.clients.index(client)}"
        for control in self.ps.controls:
            control.handler.shard.handle(events.Heartbeat(client.client_id, task, secs, Standing(takes_task=True)))

    def close(self):
        for client in self.clients:
            client.close()
        for control in self.ps.controls:
            assert not problems(control.handler.shard.now)

    @property
    def sequencer(self):
        return self.ps.controls[-1].handler.shard

    def ask(self, client):
        return self.sequencer.handle(events.AwaitSlower(client.incarnation, client.client_id))

    def pushing(self, client, times, reads=()):
        """A thread in which a client pushes, and what it was given."""
        found = []

        def work():
            for _ in range(times):
                found.append(client.push(step_push(reads=reads)))

        thread = threading.Thread(target=work)
        thread.start()
        return thread, found


@pytest.fixture
def run(shards):
    """A run of two workers, of which one may be one push ahead."""
    made = Run(shards, RunPolicy(staleness="wait", max_staleness=1))
    made.worker()
    yield made
    made.close()


@pytest.fixture
def waiting(shards):
    """The same, where time passes while a worker waits; the second worker is as slow as can be."""
    made = Run(shards, RunPolicy(staleness="wait", max_staleness=1), ManualClock())
    made.worker().push(step_push())
    for _ in range(2):
        made.clients[0].push(step_push())
    yield made
    made.close()


def test_a_worker_that_is_too_far_ahead_waits_for_the_slowest(run):
    one, two = run.clients
    two.push(step_push())
    for _ in range(2):
        one.push(step_push())
    asked = FaultPlan(BEFORE, frozenset({"await_slower"}), every=1 << 30)
    run.ps.controls[-1].handler.faults = asked
    thread, found = run.pushing(one, 1, reads=("w", "global_step"))
    while asked.calls < 2:  # the first was answered: not yet
        thread.join(0.01)
    assert found == []
    two.push(step_push())
    thread.join()
    # What it is given is what is there after the wait: the other one's push is in it.
    (result,) = found
    assert result.outcome.kind is OutcomeKind.ACCEPTED
    assert result.outcome.steps == {"global_step": 4}
    w, step = result.values
    assert step == 5
    assert np.array_equal(w, np.full(3, 5 * RATE))


def test_the_log_says_for_whom_a_worker_waits(waiting, caplog):
    one, two = waiting.clients
    waiting.heard(two, 100.0)
    with caplog.at_level(logging.WARNING, "globalstep"):
        one.push(step_push())
    assert "Waiting for 30 s now for slower workers (max_staleness). Most likely it is 2 pushes ahead" in caplog.text
    assert "waits for /job:worker/task:1, which is behind by 2, pushed 30 s ago, and was heard of" in caplog.text


def test_nobody_waits_at_the_last_step(waiting):
    one, _ = waiting.clients
    one.open([StopLimit("global_step", last_step=4)])
    assert one.push(step_push()).outcome.kind is OutcomeKind.ACCEPTED
    assert one.push(step_push()).outcome.kind is OutcomeKind.REFUSED_DONE
    assert waiting.clock.monotonic() < 1.0


def test_a_process_that_is_to_end_waits_for_nobody(waiting):
    one, _ = waiting.clients
    one.shutdown.ask()
    for _ in range(5):
        one.push(step_push())
    assert not waiting.ask(one).over


def test_pushes_that_carry_no_step_do_not_count(run):
    one, _ = run.clients
    for _ in range(5):
        one.push(Push(ops=step_push().ops, uses=step_push().uses))
    assert run.sequencer.now.leads._clocks == {}


def test_a_dropped_gradient_is_an_iteration_all_the_same(shards):
    run = Run(shards, RunPolicy(staleness="wait", max_staleness=0, on_nan="drop"))
    one, two = run.clients[0], run.worker()
    thread, found = run.pushing(one, 3)
    for _ in range(3):
        assert two.push(step_push(float("nan"))).outcome.kind is OutcomeKind.DROPPED_NAN
    thread.join()
    assert [item.outcome.kind for item in found] == [OutcomeKind.ACCEPTED] * 3
    assert state(one) == expected(3)
    run.close()


def test_a_new_life_of_the_run_begins_at_zero(run):
    one, two = run.clients
    two.push(step_push())
    for _ in range(2):
        one.push(step_push())
    one.begin(sequencer=0, open=True, take_over=True)
    assert run.ps.controls[0].handler.shard.now.leads._clocks == {}
    assert one._bounded_lead._took_free() is False


@pytest.mark.parametrize("policy", [RunPolicy(), RunPolicy(staleness="drop", max_staleness=3)])
def test_without_the_policy_nobody_asks(shards, policy):
    run = Run(shards, policy)
    run.worker()
    plan = FaultPlan(BEFORE, frozenset({"await_slower"}))
    for control in run.ps.controls:
        control.handler.faults = plan
    for _ in range(5):
        run.clients[0].push(step_push())
    assert not plan.calls
    assert run.sequencer.now.leads is None
    run.close()


def test_who_waits_notices_that_any_ps_task_has_lost_its_state(waiting):
    one, two = waiting.clients
    waiting.heard(two, 100.0)
    one.push(step_push(), at_once=True)
    control = waiting.ps.controls[0]
    held, control.handler.shard = control.handler.shard, Shard(waiting.clock)
    with pytest.raises(LostStateError, match="holds no state"):
        one._bounded_lead._wait()
    control.handler.shard = held
