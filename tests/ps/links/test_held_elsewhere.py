"""Contributions that wait on a PS task other than the sequencer take no more memory than they may have there."""

from __future__ import annotations

import numpy as np
import pytest
from counting_run import SHAPES, USES, initialize, linked

from globalstep.errors import ResourceExhaustedError
from globalstep.runtime.clock import ManualClock
from globalstep.wire.declarations import Increment, Op, OpKind, OutcomeKind, Push

MOST = 16 << 10
UNITS = 256


def contribute(client, step, unit):
    ops = [Op(OpKind.APPLY, name, np.ones(shape, np.float32), optimizer="sgd") for name, shape in SHAPES.items()]
    wanted = [Increment("global_step", 1, UNITS, UNITS, unit=unit)]
    return client._push_once(
        Push(ops=ops, increments=wanted, uses=list(USES), seen_steps={"global_step": step})
    ).outcome


def test_units_that_wait_elsewhere_are_refused_where_there_is_no_memory(serving, joined):
    servers = serving(2)
    client = joined(servers, "unix", clock=ManualClock())  # it gives up at once
    initialize(client)
    step = linked(servers, client)
    shard = servers[1 - client.sequencer].control.handler.shard
    shard.resources.budget.limit_bytes = 2 * MOST
    waiting: list[int] = []

    def wait_for_the_first():
        for unit in range(UNITS, 1, -1):
            contribute(client, step, unit)
            waiting.append(unit)

    with pytest.raises(ResourceExhaustedError, match=rf"have more bytes on PS tasks \[{1 - client.sequencer}\]"):
        wait_for_the_first()
    one = shard.now.contributions.nbytes / len(waiting)
    assert shard.now.contributions.nbytes < MOST + shard.value_bytes + 3 * one
    for unit in range(1, UNITS + 1):
        if unit not in waiting:
            assert contribute(client, step, unit).kind is OutcomeKind.ACCEPTED
    assert client.global_steps() == {"global_step": step + 1}
    assert not shard.now.contributions
    assert contribute(client, step + 1, 2).kind is OutcomeKind.ACCEPTED
