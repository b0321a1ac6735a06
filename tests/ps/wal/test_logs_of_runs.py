"""Write-ahead logs of several runs under one --log-dir: none comes back as another, and none deletes another's."""

import numpy as np
import pytest

from globalstep.cluster.run_identity import RunIdentity
from globalstep.cluster.run_policy import RunPolicy
from globalstep.errors import FailedPreconditionError, NotFoundError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.local import LocalPS
from globalstep.ps.shard.shard import Shard
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.wire.declarations import Op, OpKind, Push, Read, VariableDecl
from globalstep.worker.client.client import ClusterClient

A, B = RunIdentity("a" * 32, directory="/runs/a"), RunIdentity("b" * 32, directory="/runs/b")


class Tasks(LocalPS):
    """A PS task in this process, with a --log-dir, that loses its state as a restart would make it."""

    def __init__(self, logs):
        super().__init__(1)
        self.controls[0].log_dir = str(logs)

    @property
    def durability(self):
        return self.controls[0].durability

    def kill(self):
        self.durability.close()
        self.controls[0].handler.shard = Shard(SYSTEM_CLOCK)

    def begin(self, run):
        client = ClusterClient(self.transports(), policy=RunPolicy(durability="log"))
        try:
            client.begin(open=False, run=run)
        except FailedPreconditionError:
            client.close()
            raise
        client.declare([VariableDecl("w", "float32", (2,))], [])
        client.open()
        client.push(Push(ops=[Op(OpKind.ASSIGN, "w", value=np.full(2, 7, np.float32))]))
        return client


def test_a_new_run_does_not_come_back_as_another(tmp_path):
    tasks = Tasks(tmp_path)
    first = tasks.begin(A)
    incarnation = first.incarnation
    tasks.kill()
    assert tasks.durability.find(B.directory, 0, 1, B.id) == {}
    assert tasks.durability.find(B.directory, 0, 1, "") == {}
    assert list(tasks.durability.find(A.directory, 0, 1, A.id)) == [incarnation]
    request = pb.LogRequest(incarnation=incarnation, directory=B.directory, shards=1, run=B.id)
    with pytest.raises(NotFoundError):
        tasks.durability.recover(request)
    first.close()


def test_a_run_that_opens_leaves_another_s_log_alone(tmp_path):
    tasks, others = Tasks(tmp_path), Tasks(tmp_path)
    first = tasks.begin(A)
    second = others.begin(B)
    assert second.incarnation >= first.incarnation
    tasks.kill()
    assert first.pull([Read("w")])[0].tolist() == [7.0, 7.0]
    for client in (first, second):
        client.close()


def test_a_log_of_another_run_in_a_run_s_own_directory_is_not_taken(tmp_path):
    """Its files were copied, or its directory was emptied but for them."""
    tasks = LocalPS(1)
    client = ClusterClient(tasks.transports(), policy=RunPolicy(durability="log"))
    incarnation = client.begin(open=True, run=RunIdentity(A.id, directory=str(tmp_path)))
    control = tasks.controls[0]
    control.durability.close()
    control.handler.shard = Shard(SYSTEM_CLOCK)
    assert control.durability.find(str(tmp_path), 0, 1, B.id) == {}
    request = pb.LogRequest(incarnation=incarnation, directory=str(tmp_path), shards=1, run=B.id)
    with pytest.raises(NotFoundError, match="is of the run of .*, not of the run 'bbbb"):
        control.durability.recover(request)
    request.run = A.id
    assert control.durability.recover(request).recovered
    client.close()


def test_a_run_that_is_refused_leaves_no_log(tmp_path):
    tasks = Tasks(tmp_path)
    first = tasks.begin(A)
    first.heartbeat.beat()
    with pytest.raises(FailedPreconditionError, match="Two runs on one address: PS task 0 serve"):
        tasks.begin(B)
    assert [folder.name for folder in tmp_path.iterdir()] == [A.id]
    assert first.pull([Read("w")])[0].tolist() == [7.0, 7.0]
    first.close()


def test_an_id_that_is_no_name_is_refused(tmp_path):
    tasks = Tasks(tmp_path / "logs")
    with pytest.raises(FailedPreconditionError, match="not the id of a run"):
        tasks.begin(RunIdentity("../../elsewhere"))
    assert list(tmp_path.iterdir()) == []
