"""A write-ahead log that is over its limit: the chief is asked for a checkpoint, which makes it short again."""

import logging

import numpy as np
import pytest
from stand_ins import Stored

from globalstep.cluster.run_identity import RunIdentity
from globalstep.cluster.run_policy import RunPolicy
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.local import LocalPS
from globalstep.wire.declarations import Increment, Op, OpKind, Push, VariableDecl
from globalstep.worker.client.client import ClusterClient

ADD = Push([Op(OpKind.ASSIGN_ADD, "w", value=np.ones(1000, np.float32))], [Increment("step")])


@pytest.fixture
def tasks():
    return LocalPS(1)


@pytest.fixture
def client(tasks, tmp_path):
    client = ClusterClient(tasks.transports(), policy=RunPolicy(durability="log"))
    client.begin(open=True, run=RunIdentity(directory=str(tmp_path)))
    client.journal = Stored()
    client.declare(
        [VariableDecl("w", "float32", (1000,), trainable=True), VariableDecl("step", "int64", (), is_step=True)], []
    )
    client.push(Push([Op(OpKind.ASSIGN, "w", fill=0.0), Op(OpKind.ASSIGN, "step", value=np.array(0))]))
    yield client
    tasks.controls[0].durability.close()
    client.close()


def asked(tasks, chief_term=1):
    """Give what the task answers to a chief's sign of life."""
    request = pb.HeartbeatRequest(client="chief", lease_secs=10, chief_term=chief_term)
    return tasks.controls[0].call("Heartbeat", request).save_asked


def test_the_chief_is_asked_once_and_only_when_the_log_is_long(tasks, client, caplog):
    durability = tasks.controls[0].durability
    durability.most_bytes = 100_000
    assert not asked(tasks)
    for _ in range(30):
        client.push(ADD)
    with caplog.at_level(logging.WARNING):
        assert not asked(tasks, chief_term=0), "workers are not asked"
        assert asked(tasks)
    assert not asked(tasks), "not in every reply"
    assert caplog.text.count("over --max-log-bytes 100,000") == 1


def test_a_checkpoint_makes_it_short(tasks, client):
    log = tasks.controls[0].handler.shard.log
    for _ in range(30):
        client.push(ADD)
    before = log.needed_bytes
    assert before > 30 * 4000
    with client.snapshot():
        pass
    assert log.needed_bytes < 10_000
