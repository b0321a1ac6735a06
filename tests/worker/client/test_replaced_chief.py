"""A chief that slept and was replaced: nothing that only a chief may ask for is carried out for it, heard or not."""

import pytest
from counting_run import expected, initialize, state, step_push
from stand_ins import StandingStill

from globalstep.errors import AbortedError
from globalstep.ps.local import LocalPS
from globalstep.ps.members.presence import State
from globalstep.wire.declarations import Increment, OutcomeKind, Push, StopLimit
from globalstep.worker.client.candidate import Candidate


@pytest.fixture
def ps():
    return LocalPS(2)


@pytest.fixture
def chiefs(ps, connected):
    """Two clients of which either may be the chief."""

    def make(failover_secs=0.0):
        for task in ("/job:chief/task:0", "/job:worker/task:0"):
            client = connected(ps, task=task, clock=StandingStill())
            client.chief_lease.candidate = Candidate(task, failover_secs, configured=task.startswith("/job:chief"))
            yield client

    return make


@pytest.fixture
def sleeper(chiefs):
    """The first chief, in whose place another one acts by now."""
    client, successor = chiefs()
    assert client.chief_lease.candidate.claim(client)
    initialize(client)
    client.push(step_push())
    assert successor.chief_lease.candidate.claim(successor)
    return client


def hear(client):
    """Wake up, and hear who acts as chief, as from a heartbeat."""
    client.chief_lease.candidate.heard(client.refresh()[0].chief)
    assert client.chief_lease.term == 0


@pytest.mark.parametrize("heard", [False, True], ids=["unheard", "heard"])
@pytest.mark.parametrize("call", ["finish", "open"])
def test_it_neither_ends_nor_opens_the_run(ps, sleeper, heard, call):
    if heard:
        hear(sleeper)
    with pytest.raises(AbortedError, match=r"chief of term \d+, which has been replaced: /job:worker/task:0"):
        getattr(sleeper, call)()
    assert [control.handler.shard.view().state for control in ps.controls] == [State.READY] * 2
    assert state(sleeper) == expected(1)


def test_it_ends_no_other_task_where_it_is_replaced_between_two(ps, sleeper, monkeypatch):
    """Asleep right after task 0 was told: it was still the chief there."""
    each, asked = sleeper._calls.each, []

    def first_told(method, requests, *more):
        if method == "Finish":
            asked.append(sorted(requests))
        if method == "Finish" and len(asked) == 1:  # carried out before the successor came
            hear(sleeper)
            return {}
        return each(method, requests, *more)

    monkeypatch.setattr(sleeper._calls, "each", first_told)
    # Task 1 has heard of the successor, from its sign of life.
    ps.controls[1].handler.shard.members.lease._known_term = ps.controls[0].handler.shard.members.lease._term
    with pytest.raises(AbortedError, match="which has been replaced"):
        sleeper.finish()
    assert asked == [[0], [1]]
    assert ps.controls[1].handler.shard.view().state is State.READY


def test_a_step_that_rises_by_three_ends_within_the_promise_over_a_takeover(ps, chiefs):
    """The push that steps over the limit is the last, whichever chief has stated it and whoever pushes."""
    first, successor = chiefs()
    limits, by_three = [StopLimit("global_step", 20)], Push(increments=[Increment("global_step", 3)])
    assert first.chief_lease.candidate.claim(first)
    first.begin(sequencer=1, open=False)
    initialize(first)
    first.open(limits)
    for _ in range(5):
        assert first.push(by_three).outcome.kind is OutcomeKind.ACCEPTED
    assert successor.chief_lease.candidate.claim(successor)
    successor.refresh()
    successor.open(limits)
    assert ps.controls[1].handler.shard.view().limits == {"global_step": 20}
    done = [client.push(by_three).outcome for client in (first, successor, first, successor)]
    assert [outcome.kind for outcome in done] == [OutcomeKind.ACCEPTED] * 2 + [OutcomeKind.REFUSED_DONE] * 2
    assert successor.global_steps() == {"global_step": 21}


def test_it_ends_no_ps_task(ps, sleeper):
    hear(sleeper)
    asked = []
    for transport in sleeper.run.transports:
        unary = transport.unary
        transport.unary = lambda method, request, secs, unary=unary: (
            asked.append(request),
            unary(method, request, secs),
        )[1]
    sleeper.membership.let_end([0])
    assert [request.chief_term > 0 for request in asked] == [True]


@pytest.mark.parametrize("heard", [False, True], ids=["unheard", "heard"])
def test_nobody_takes_the_place_of_a_chief_that_has_ended_the_job(ps, chiefs, heard):
    first, other = chiefs(3.0)
    assert first.chief_lease.candidate.claim(first)
    initialize(first)
    other.refresh()
    other.chief_lease.candidate.due = True  # of silence that it has heard of before
    first.finish()
    first.chief_lease.given_up_on_leaving = True
    first.close()
    if heard:
        other.heartbeat.beat()
        assert other.chief_lease.candidate.due, "the chief's lease is free"
    assert not other.chief_lease.candidate.try_to_claim(other)
    assert not ps.controls[0].handler.shard.members.lease.view().holder
