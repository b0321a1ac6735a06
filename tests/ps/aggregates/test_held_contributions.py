"""What contributions to steps that are not made yet may take: as much as the values, and --max-inflight-bytes."""

from __future__ import annotations

import random

import numpy as np
import pytest
from counting_run import SHAPES, initialize

from globalstep.errors import ResourceExhaustedError
from globalstep.ps.local import LocalPS
from globalstep.runtime.clock import ManualClock
from globalstep.wire.declarations import Increment, Op, OpKind, OptimizerDecl, OptimizerUse, OutcomeKind, Push
from globalstep.wire.expressions import constant
from globalstep.worker.client.client import ClusterClient

MOST = 16 << 10
UNITS = 64


@pytest.fixture
def job():
    clock = ManualClock()
    ps = LocalPS(1, clock=clock)
    client = ClusterClient(ps.transports(), rng=random.Random(1), member=False, clock=clock)
    client.begin(sequencer=0, open=True)
    initialize(client)
    shard = ps.controls[0].handler.shard
    shard.resources.budget.limit_bytes = 2 * MOST
    return client, shard


def contribute(client, unit=0, wanted=UNITS, optimizer="sgd", others=()):
    ops = [Op(OpKind.APPLY, name, np.ones(shape, np.float32), optimizer=optimizer) for name, shape in SHAPES.items()]
    step = [Increment("global_step", 1, wanted, wanted, unit=unit)]
    uses = [OptimizerUse(name) for name in (optimizer, *others)]
    return client.push(Push(ops=ops, increments=step, uses=uses, seen_steps={"global_step": 0}), at_once=True).outcome


def test_units_that_wait_are_refused_where_there_is_no_memory_and_the_next_one_is_taken(job):
    client, shard = job
    waiting: list[int] = []

    def wait_for_the_first():
        for unit in range(UNITS, 1, -1):
            contribute(client, unit)
            waiting.append(unit)

    with pytest.raises(ResourceExhaustedError, match=r"have 16,\d+ bytes on PS task 0, .* 16,384, half of --max-inf"):
        wait_for_the_first()
    one = shard.now.contributions.nbytes / len(waiting)
    assert MOST < shard.load().staged_bytes < MOST + shard.value_bytes + 2 * one
    for unit in range(1, UNITS + 1):
        if unit not in waiting:
            assert contribute(client, unit).kind is OutcomeKind.ACCEPTED
    assert client.global_steps() == {"global_step": 1}
    assert shard.load().staged_bytes == 0


def test_contributions_that_are_alike_take_the_memory_of_one(job):
    client, shard = job
    for _ in range(UNITS - 1):
        contribute(client)
    assert shard.load().staged_bytes < MOST // 4
    contribute(client)
    assert (client.global_steps(), shard.load().staged_bytes) == ({"global_step": 1}, 0)


@pytest.mark.parametrize("units", [False, True])
def test_contributions_by_ever_more_optimizers_are_refused_where_there_is_no_memory(job, units):
    client, shard = job
    rate, shapes = {"learning_rate": constant(1.0)}, dict.fromkeys(SHAPES, ())
    names = [f"mine{number}" for number in range(UNITS - 1)]
    client.declare([], [OptimizerDecl(name, "gradient_descent", rate, shapes) for name in names])

    def contribute_all():
        for number, name in enumerate(names):
            contribute(client, (number + 1) * units, optimizer=name, others=names[:number])

    with pytest.raises(ResourceExhaustedError, match="half of --max-inf"):
        contribute_all()
    assert shard.load().staged_bytes < MOST + 2048
