"""Every call of the service is tried again as the table says, and survives what may happen to it (rung 2)."""

from __future__ import annotations

import math
import random
import re
from collections import Counter

import numpy as np
import pytest
from counting_run import declarations, expected, state, step_push
from stand_ins import LossyTransport

from globalstep.cluster.run_identity import RunIdentity
from globalstep.errors import ResourceExhaustedError, UnavailableError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.local import LocalPS
from globalstep.runtime.clock import ManualClock
from globalstep.wire.declarations import Op, OpKind, Push, StopLimit
from globalstep.worker.client.calls import POLICIES, Retry, RetryCount


def test_every_rpc_of_the_service_is_in_the_table():
    assert set(POLICIES) == {method.name for method in pb.DESCRIPTOR.services_by_name["ParameterServer"].methods}
    for name, policy in POLICIES.items():
        assert 0 < policy.deadline_secs < math.inf, name
        assert 0 < policy.first_secs <= policy.longest_secs, name


CALLED = ["Status", "Begin", "Declare", "Open", "Heartbeat", "GetGlobalStep", "Exchange", "WriteSnapshot",
          "ReleaseSnapshot", "ReadJournal", "Finish", "Leave"]  # fmt: skip


@pytest.mark.parametrize("before", [True, False], ids=["request lost", "reply lost"])
@pytest.mark.parametrize("method", CALLED)
def test_a_run_survives_the_loss_of_any_call(connected, tmp_path, method, before):
    ps = LocalPS(2)
    transports = [LossyTransport(transport, method, before, losses=3) for transport in ps.transports()]
    client = connected(transports, clock=ManualClock(), member=False)
    client.heartbeat.beat()
    variables, optimizers = declarations(2)
    client.begin(sequencer=1, open=False, run=RunIdentity(directory=str(tmp_path)))
    client.declare(variables, optimizers)
    client.push(Push(ops=[Op(OpKind.ASSIGN, decl.name, fill=0.0) for decl in variables]))
    client.open([StopLimit("global_step", num_steps=5)])
    assert ps.controls[1].handler.shard.view().limits == {"global_step": 5}
    for _ in range(5):
        client.push(step_push())
    assert client.global_steps() == {"global_step": 5}
    assert state(client) == expected(5)
    (tmp_path / ".globalstep-probe-1").write_text("yes")
    with client.snapshot() as cut:
        names = {decl.name: decl.name for decl in variables}
        written = cut.write(
            str(tmp_path), {0: "a.safetensors", 1: "b.safetensors"}, names, (".globalstep-probe-1", "yes")
        )
        assert sorted(t.name for shard in written.values() for t in shard.tensors) == sorted(names)
    request = pb.ReadJournalRequest(incarnation=client.incarnation)
    try:
        reply = client.run.read_journal(request, 1.0)
    except UnavailableError:
        assert method == "ReadJournal"
        reply = next(read for _ in range(9) if (read := _try(client, request)) is not None)
    assert reply.end >= 7
    assert client.finish() == []
    client.close()
    assert sum(transport.lost for transport in transports) > 0
    retried = Counter(client.retries.view())
    if POLICIES[method].limit_secs:
        assert retried == {method: sum(transport.lost for transport in transports)}
    else:
        assert not retried


@pytest.mark.parametrize("before", [True, False], ids=["request lost", "reply lost"])
def test_snapshots_whose_release_was_lost_are_freed_before_the_next_one(connected, before):
    """A PS task holds few: a chief that has lost so many releases could never save again."""
    ps = LocalPS(2)
    transports = [LossyTransport(transport, "ReleaseSnapshot", before, losses=4) for transport in ps.transports()]
    client = connected(transports, clock=ManualClock(), member=False)
    client.heartbeat.beat()
    client.begin(sequencer=1, open=True)
    client.declare(*declarations(2))
    for _ in range(8):
        with client.snapshot():
            pass
    assert [transport.lost for transport in transports] == [4, 4]
    assert not any(control.handler.shard.now.snapshots._taken for control in ps.controls)


def _try(client, request):
    try:
        return client.run.read_journal(request, 1.0)
    except UnavailableError:
        return None


def test_a_second_open_means_the_same_step_as_the_first(connected):
    client = connected(LocalPS(1), clock=ManualClock(), member=False)
    variables, optimizers = declarations(1)
    client.declare(variables, optimizers)
    client.push(
        Push(ops=[Op(OpKind.ASSIGN, decl.name, value=np.full(decl.shape, 3, decl.dtype)) for decl in variables])
    )
    sent = []
    transport = client.run.transports[0]
    unary = transport.unary
    transport.unary = lambda method, request, secs: (sent.append((method, request)), unary(method, request, secs))[1]
    client.open([StopLimit("global_step", num_steps=4)])
    assert [request.last_steps for method, request in sent if method == "Open"] == [{"global_step": 7}]


def waits(retry, error=None):
    try:
        while True:
            retry.wait(error or UnavailableError("gone"))
    except UnavailableError as final:
        return final


def test_pauses_grow_to_a_limit_and_are_counted():
    clock, count = ManualClock(), RetryCount()
    final = waits(Retry("Finish", 1e9, clock, random.Random(1), "Finish", count))
    assert 60 <= clock.monotonic() < 61
    assert 120 < count.view()["Finish"] < 260
    assert "Finish failed for 60 s" in final.message


def test_the_session_may_give_up_before_the_method_does():
    clock = ManualClock()
    waits(Retry("a push", 5.0, clock, random.Random(1)))
    assert 5 <= clock.monotonic() < 6


def test_what_is_tried_once_raises_what_happened():
    error = UnavailableError("gone")
    final = waits(Retry("Leave", 30.0, ManualClock(), random.Random(1), "Leave"), error)
    assert (type(final), final.message) == (UnavailableError, "gone")


def test_each_stage_is_told(caplog):
    waits(Retry("a push", 25.0, ManualClock(), random.Random(1)))
    told = [record.message for record in caplog.records]
    assert len(told) == 3
    assert all("a push: trying again for up to" in text for text in told)


def test_a_task_that_is_busy_is_come_back_to_when_it_says_for_longer_than_one_that_is_away():
    clock = ManualClock()
    retry = Retry("push", 2.0, clock, random.Random(1))
    for _ in range(100):
        before = clock.monotonic()
        retry.wait(ResourceExhaustedError("no room", retry_secs=0.5))
        assert 0.5 <= clock.monotonic() - before <= 1.0
    assert clock.monotonic() > 50
    retry.wait(UnavailableError("away"))  # since now only
    clock.advance(3.0)
    with pytest.raises(UnavailableError, match="failed for 3 s"):
        retry.wait(UnavailableError("away"))

    def wait_long():
        for _ in range(2000):
            retry.wait(ResourceExhaustedError("no room", retry_secs=0.5))

    with pytest.raises(ResourceExhaustedError, match="failed for"):
        wait_long()


def test_what_waiting_does_not_help_is_not_waited_for():
    clock = ManualClock()
    with pytest.raises(ResourceExhaustedError, match="too large"):
        Retry("push", 2.0, clock, random.Random(1)).wait(ResourceExhaustedError("too large"))
    assert clock.monotonic() == 0.0


def test_a_task_is_named_once(caplog):
    error = UnavailableError("ps:1 at b:2: Connection refused at 10.0.0.2:2")
    waits(Retry("push to ps:1 at b:2", 5.0, ManualClock(), random.Random(1)), error)
    (record,) = caplog.records
    assert re.fullmatch(
        r"push to ps:1 at b:2: trying again for up to \d s more: Connection refused at 10.0.0.2:2", record.message
    )


def test_the_end_of_trouble_is_told_to_whoever_was_told_of_it(caplog):
    clock = ManualClock()
    retry = Retry("push to ps:1", 60.0, clock, random.Random(1))
    retry.wait(UnavailableError("gone"))
    retry.answered()
    assert not caplog.records  # it was soon over
    clock.advance(4.0)
    retry.wait(UnavailableError("gone"))
    retry.answered()
    assert [record.message for record in caplog.records][1:] == ["push to ps:1: answered after 4 s."]
