"""The client's control calls when PS tasks do not answer (rung 2)."""

import numpy as np
import pytest
from counting_run import initialize, state, step_push
from stand_ins import LossyTransport, StandingStill

from globalstep.errors import InvalidArgumentError, UnavailableError
from globalstep.ps.local import LocalPS
from globalstep.runtime.clock import ManualClock

WORKER = "/job:worker/task:1"


class BeatenAt:
    """A transport before whose first Begin another client acts."""

    def __init__(self, transport, act):
        self._transport, self._act = transport, act

    def __getattr__(self, name):
        return getattr(self._transport, name)

    def unary(self, method, request, timeout_secs):
        if method == "Begin" and self._act is not None:
            act, self._act = self._act, None
            act()
        return self._transport.unary(method, request, timeout_secs)


@pytest.fixture
def joined(connected):
    """Makes a client of a new PS with two tasks, of which the second does not answer FINISH at first."""

    def make(times):
        ps = LocalPS(2)
        transports = ps.transports()
        transports[1] = LossyTransport(transports[1], "Finish", False, times)
        return ps, connected(transports, clock=ManualClock(), member=False)

    return make


def done(ps):
    return [control.handler.shard.done for control in ps.controls]


def test_every_task_hears_that_the_job_is_done(joined):
    ps, client = joined(times=5)
    initialize(client)
    assert client.finish() == []
    assert done(ps) == [True, True]


def test_a_task_that_cannot_be_told_is_named(joined):
    ps, client = joined(times=10_000)
    initialize(client)
    with pytest.raises(UnavailableError, match=r"^Finish failed for \d+ s .*/job:ps/task:1"):
        client.finish()
    assert done(ps)[0]


@pytest.fixture
def unheard(connected):
    """Makes a client that came before the PS tasks could hear its first signs of life."""

    def make(ps, times):
        transports = [LossyTransport(transport, "Heartbeat", True, times) for transport in ps.transports()]
        return connected(transports, task=WORKER, clock=StandingStill())

    return make


def test_who_is_quicker_than_its_heartbeat_is_known_by_its_task_before_it_pushes(unheard):
    ps = LocalPS(2)
    client = unheard(ps, times=1)
    shards = [control.handler.shard for control in ps.controls]
    assert [shard.members.clients() for shard in shards] == [[], []]
    initialize(client)
    assert [[view.task for view in shard.members.clients()] for shard in shards] == [[WORKER], [WORKER]]


def test_a_task_whose_signs_of_life_are_all_lost_has_come_once_it_leaves(unheard):
    ps = LocalPS(2)
    client = unheard(ps, times=10_000)
    client.begin(open=True, expected_tasks=[WORKER])
    client.finish()
    client.close()
    assert [control.handler.shard.over() for control in ps.controls] == [True, True]


def test_of_two_clients_that_find_no_run_the_second_joins_the_first_ones(connected):
    ps = LocalPS(2)
    one, two = (connected(ps, clock=ManualClock(), member=False) for _ in range(2))
    for client in (one, two):
        assert {status.incarnation for status in client.refresh()} == {0}
    one.membership.begin_first(1)
    initialize(one)
    two.membership.begin_first(0)
    assert (two.incarnation, two.sequencer) == (one.incarnation, 1)
    one.push(step_push())
    assert two.global_steps() == {"global_step": 1}


def test_who_is_beaten_while_it_begins_joins_the_other_run(connected):
    ps = LocalPS(2)
    one = connected(ps, clock=ManualClock(), member=False)
    late = [BeatenAt(transport, lambda: one.begin(open=True)) for transport in ps.transports()]
    two = connected(late, clock=ManualClock(), member=False)
    two.membership.begin_first(0)
    assert two.incarnation == one.incarnation


@pytest.fixture
def client(connected):
    client = connected(LocalPS(2), clock=ManualClock(), member=False)
    client.begin(sequencer=1, open=False)
    initialize(client)
    client.open()
    return client


def test_pushes_that_are_not_waited_for_come_in_order_and_before_what_follows(client):
    client.unanswered = 3
    tickets = [client.push(step_push(reads=("b", "global_step")), wait=False) for _ in range(20)]
    assert client.push(step_push(reads=("global_step",))).values[0] == 21
    assert [ticket.result().outcome.steps["global_step"] for ticket in tickets] == list(range(1, 21))
    assert [float(ticket.result().values[0]) for ticket in tickets] == [0.5 * count for count in range(1, 21)]
    client.push(step_push(), wait=False)
    assert state(client)["b"] == 11.0


def test_a_ticket_tells_what_went_wrong_and_the_next_push_goes_on(client):
    bad = step_push()
    bad.layout = None
    bad.ops[0].value = np.zeros(4, np.float32)
    ticket = client.push(bad, wait=False)
    with pytest.raises(InvalidArgumentError, match="w"):
        ticket.result()
    assert client.push(step_push(), wait=False).result().outcome.steps["global_step"] == 1


def test_what_nobody_asked_a_ticket_for_is_named_when_the_client_closes(client, caplog):
    bad = step_push()
    bad.layout = None
    bad.ops[0].value = np.zeros(4, np.float32)
    client.push(bad, wait=False)
    client.close()
    assert "A push that was not waited for has failed" in caplog.text
