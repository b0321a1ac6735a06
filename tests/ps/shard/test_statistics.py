"""What a PS task counts of itself, under traffic that is known to the byte."""

from __future__ import annotations

import numpy as np
import pytest
from counting_run import SHAPES, FaultPlan, declarations, initialize, step_push

from globalstep.ps.local import LocalPS
from globalstep.ps.shard.statistics import STALENESS_BUCKETS
from globalstep.runtime.clock import ManualClock
from globalstep.runtime.faults import AFTER
from globalstep.wire.declarations import Increment, Op, OpKind, OutcomeKind, Push, Read, StopLimit
from globalstep.worker.client.client import ClusterClient

#: Bytes of a gradient of each Variable of `runs`, padded to a multiple of 8.
PADDED = {"w": 16, "b": 8, "e": 40}
TICK_SECS = 2.0**-10


class TickingClock(ManualClock):
    """Goes on by a fixed time with every reading."""

    def __init__(self, tick_secs: float) -> None:
        super().__init__()
        self._tick_secs = tick_secs

    def monotonic(self) -> float:
        self.advance(self._tick_secs)
        return super().monotonic()


def counted(client: ClusterClient) -> list:
    return [status.statistics for status in client.statuses(brief=True)]


def by_bucket(**counts: int) -> list[int]:
    """A histogram with `counts["b2"]` in bucket 2, and so on."""
    return [counts.get(f"b{bucket}", 0) for bucket in range(STALENESS_BUCKETS)]


def test_bytes_and_pushes_of_one_task_are_exact(connected):
    client = connected(LocalPS(1))
    initialize(client)
    (start,) = counted(client)
    assert (start.accepted, start.applied, start.bytes_in, start.bytes_out) == (1, 1, 0, 0)
    for _ in range(5):
        client.push(step_push(reads=("w", "e")))
    client.pull([Read("b")])
    (now,) = counted(client)
    assert (now.accepted, now.refused, now.duplicates, now.applied) == (6, 0, 0, 6)
    assert now.bytes_in == 5 * sum(PADDED.values())
    assert now.bytes_out == 5 * (PADDED["w"] + PADDED["e"]) + PADDED["b"]


def test_each_task_counts_its_own_part(connected):
    """Three Variables on three tasks, the step on the last, which is the sequencer."""
    client = connected(LocalPS(3))
    initialize(client)
    for _ in range(4):
        client.push(step_push())
    client.pull([Read("w"), Read("b")])
    counts = counted(client)
    assert [item.bytes_in for item in counts] == [4 * PADDED[name] for name in SHAPES]
    assert [item.bytes_out for item in counts] == [PADDED["w"], PADDED["b"], 0]
    # The read over two shards found no push between its parts, and was none itself.
    assert [item.accepted for item in counts] == [0, 0, 5]
    assert [item.applied for item in counts] == [5, 5, 5]


@pytest.mark.parametrize("shards", [1, 3])
def test_a_read_with_a_place_in_the_order_is_no_push(connected, shards):
    client = connected(LocalPS(shards))
    initialize(client)
    for _ in range(2):
        client.push(step_push())
        client.push(Push(reads=[Read("w"), Read("e", np.array([0]))]))
        client.push(Push([Op(OpKind.ASSIGN, "w", fill=1.0)]))
    (now,) = [item for item in counted(client) if item.accepted]
    # The assigns of the beginning, and each time a push and an assign, which has no part on the sequencer.
    assert (now.accepted, now.ordered_reads) == (5, 2)
    assert sum(item.ordered_reads for item in counted(client)) == 2


def test_retries_are_counted_as_duplicates_and_their_bytes_as_bytes(connected):
    faults = FaultPlan(AFTER, frozenset({"push"}))
    client = connected(LocalPS(1, faults=faults), clock=ManualClock(), member=False, retry_secs=1e9)
    initialize(client)
    for _ in range(10):
        client.push(step_push())
    (now,) = counted(client)
    assert (now.accepted, now.applied, now.duplicates) == (11, 11, faults.fired)
    # Every try brings its bytes; the assigns of the beginning have none.
    assert now.bytes_in == (faults.calls - 1) * sum(PADDED.values())
    assert faults.fired >= 10


def test_pushes_beyond_the_limit_are_refused(connected):
    client = connected(LocalPS(1))
    initialize(client)
    client.open([StopLimit("global_step", last_step=2)])
    kinds = [client.push(step_push()).outcome.kind for _ in range(5)]
    assert kinds == [OutcomeKind.ACCEPTED] * 2 + [OutcomeKind.REFUSED_DONE] * 3
    (now,) = counted(client)
    assert (now.accepted, now.refused, now.applied) == (3, 3, 3)


def test_a_snapshot_is_no_push(connected):
    client = connected(LocalPS(2))
    initialize(client)
    with client.snapshot():
        pass
    assert [(item.accepted, item.applied) for item in counted(client)] == [(0, 1), (1, 1)]


def test_staleness_of_pushes_that_say_what_they_saw(connected):
    ps = LocalPS(2)
    one, two = connected(ps), connected(ps)
    initialize(one)

    def pushes(client, count, saw):
        for _ in range(count):
            client.push(Push(increments=[Increment("global_step")], seen_steps={"global_step": saw}))

    pushes(one, 1, saw=0)
    pushes(two, 3, saw=0)  # 1, 2 and 3 behind
    pushes(one, 1, saw=4)
    pushes(one, 1, saw=99)  # a step that was set back meanwhile
    one.push(Push(increments=[Increment("global_step")]))
    one.push(Push(ops=[Op(OpKind.ASSIGN, "w", fill=1.0)], seen_steps={"global_step": 0}))
    other, sequencer = counted(one)
    assert list(sequencer.staleness) == by_bucket(b0=3, b1=1, b2=2)
    assert (sequencer.staleness_sum, sequencer.staleness_squares) == (6, 14)
    assert list(other.staleness) == by_bucket()


def test_pushes_of_each_client_with_a_lease(connected):
    clock = ManualClock()
    ps = LocalPS(1, clock=clock)
    one, two = connected(ps, task="/job:worker/task:0"), connected(ps, task="/job:worker/task:1")
    stranger = connected(ps, member=False)
    initialize(one)
    for client, count in ((one, 2), (two, 3), (stranger, 4)):
        for _ in range(count):
            client.push(step_push())
    # The assigns moved no step on; a later sign of life forgets nothing.
    two.heartbeat.beat()

    def pushes():
        (status,) = stranger.statuses(brief=True)
        return {client.task: client.pushes for client in status.clients}

    assert pushes() == {"/job:worker/task:0": 2, "/job:worker/task:1": 3}
    two.close()
    assert pushes() == {"/job:worker/task:0": 2}
    clock.advance(1000.0)
    assert pushes() == {}


def test_the_time_of_applying_and_its_place_in_the_push(connected):
    ps = LocalPS(1, clock=TickingClock(TICK_SECS))
    client = connected(ps, clock=TickingClock(1.0), member=False)
    initialize(client)
    results = [client.push(step_push()) for _ in range(4)]
    (now,) = counted(client)
    assert (now.applied, now.apply_secs) == (5, 5 * TICK_SECS)
    for result in results:
        (applied,) = result.applied
        assert applied.shard == 0
        assert applied.secs == pytest.approx(TICK_SECS)
        # The client's clock says that the call took a second.
        assert applied.after_secs == pytest.approx((1.0 - TICK_SECS) / 2)
    assert client.push(Push(increments=[Increment("global_step")])).applied == []


def test_every_task_tells_its_own_part_of_a_push(connected):
    ps = LocalPS(3, clock=TickingClock(TICK_SECS))
    client = connected(ps, clock=TickingClock(1.0), member=False)
    initialize(client)
    applied = client.push(step_push()).applied
    assert {item.shard for item in applied} == {0, 1, 2}
    assert [item.secs for item in applied] == pytest.approx([TICK_SECS] * 3)
    # Staged within the first second, admitted within the second, committed within the third.
    after = {item.shard: int(item.after_secs) for item in applied}
    assert after == {client.sequencer: 1} | dict.fromkeys({0, 1, 2} - {client.sequencer}, 2)


def test_counters_go_on_over_a_restore(connected):
    client = connected(LocalPS(1))
    initialize(client)
    client.push(step_push())
    client.begin(sequencer=0, open=True)
    initialize(client)
    (now,) = counted(client)
    assert (now.accepted, now.bytes_in) == (3, sum(PADDED.values()))


def test_a_brief_status_leaves_out_what_is_long(connected):
    clock = ManualClock()
    client = connected(LocalPS(1, clock=clock), member=False)
    clock.advance(2.0)
    client.declare(*declarations(1))
    (full,), (brief,) = client.statuses(), client.statuses(brief=True)
    assert len(full.variables) == len(full.uninitialized) == 4
    assert len(full.optimizers) == 1
    for name in ("variables", "optimizers", "uninitialized"):
        full.ClearField(name)
    # The process may have taken more memory between the two.
    full.load.resident_bytes = brief.load.resident_bytes
    assert full == brief
    assert brief.statistics.secs == 2.0


@pytest.mark.parametrize("seen", [0, -(2**63)])
def test_a_step_that_was_set_far_ahead_does_not_make_a_task_mute(connected, seen):
    """Found by fuzzing: the sum of the squares was larger than a message has room for, and Status failed for ever."""
    client = connected(LocalPS(1), task="/job:worker/task:0")
    client.begin(open=True)
    initialize(client)
    client.push(Push([Op(OpKind.ASSIGN, "global_step", value=np.array(2**62))]))
    for _ in range(5):
        client.push(Push(increments=[Increment("global_step")], seen_steps={"global_step": seen}))
    status = client.refresh()[0]
    assert status.statistics.staleness_squares == 2**64 - 1
    assert 5 * (2**31 - 1) <= status.statistics.staleness_sum < 2**64
    assert status.clients[0].staleness_sum == status.statistics.staleness_sum
    assert sum(status.statistics.staleness) == 5
