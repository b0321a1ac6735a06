"""Clocks that jump: what is measured goes by the monotonic clock, and what is numbered by the wall never goes back."""

from __future__ import annotations

import random

import pytest
from counting_run import expected, initialize, state, step_push

from globalstep.errors import UnavailableError
from globalstep.ps.local import LocalPS
from globalstep.ps.service.settler import LONGEST_SECS, OVERDUE_SECS
from globalstep.ps.shard import events
from globalstep.ps.shard.layouts import PushParts
from globalstep.ps.shard.shard import Shard
from globalstep.runtime.clock import ManualClock
from globalstep.wire.declarations import PushId
from globalstep.worker.client.calls import Retry

YEAR_SECS = 365 * 86400.0


class JumpingClock(ManualClock):
    """A clock whose wall time somebody sets, as administrators and NTP do. Wall time starts where it is told."""

    def __init__(self, wall: float = 1.7e9) -> None:
        super().__init__(100.0)
        self.wall = wall

    def time(self) -> float:
        return self.wall + self.monotonic()


@pytest.mark.parametrize("jump_secs", [YEAR_SECS, -YEAR_SECS], ids=["forward", "back"])
def test_nobody_is_taken_for_gone_and_no_part_for_overdue_when_the_wall_clock_jumps(connected, jump_secs):
    clock = JumpingClock()
    ps = LocalPS(2, clock=clock)
    client = connected(ps, clock=clock, task="/job:worker/task:0")
    client.begin(open=True, sequencer=1)
    initialize(client)
    shard = ps.controls[0].handler.shard
    shard.handle(events.Stage(client.incarnation, PushId(client.client_id, 50), PushParts()))
    clock.wall += jump_secs
    assert [view.task for view in shard.members.clients()] == ["/job:worker/task:0"]
    assert shard.members.find_losses() == []
    assert shard.overdue(OVERDUE_SECS, LONGEST_SECS) == []
    client.push(step_push())
    assert state(client) == expected(1)
    clock.advance(LONGEST_SECS + 1)
    assert shard.overdue(OVERDUE_SECS, LONGEST_SECS) == [PushId(client.client_id, 50)]


@pytest.mark.parametrize("jump_secs", [YEAR_SECS, -YEAR_SECS], ids=["forward", "back"])
def test_tries_go_on_for_as_long_as_they_should(jump_secs):
    clock = JumpingClock()
    retry = Retry("push", 10.0, clock, random.Random(1))
    retry.wait(UnavailableError("away"))
    clock.wall += jump_secs
    before = clock.monotonic()

    def try_for_ever():
        while True:
            retry.wait(UnavailableError("away"))

    with pytest.raises(UnavailableError, match="failed for 1"):
        try_for_ever()
    assert 9.0 < clock.monotonic() - before < 11.0


def test_a_ps_task_that_comes_back_in_the_past_gets_a_later_incarnation_all_the_same(connected):
    """Old messages would count as new ones, and journals be out of order."""
    client = connected(LocalPS(1, clock=JumpingClock()))
    old = client.begin(open=True)
    initialize(client)
    with client.snapshot() as cut:
        ledger = cut.ledger
    client.close()
    client = connected(LocalPS(1, clock=JumpingClock(1.7e9 - YEAR_SECS)))
    assert client.begin(open=True, ledger=ledger) > old


def test_a_client_begins_no_incarnation_that_it_was_a_member_of(connected):
    """All PS tasks came back in the past, and the last checkpoint is older than the incarnation that they lost."""
    clocks = [JumpingClock(), JumpingClock(1.7e9 - YEAR_SECS)]
    tasks = LocalPS(1, clock=clocks[0])
    client = connected(tasks)
    client.begin(open=True)
    initialize(client)
    with client.snapshot() as cut:
        ledger = cut.ledger
    second = client.begin(open=True, ledger=ledger)
    tasks.controls[0].handler.shard = Shard(clocks[1])
    later = connected(tasks)
    later.run.known_progress.hear_all(client.run.known_progress)  # the next session of the same process
    client.close()
    assert later.begin(open=True, ledger=ledger) > second
