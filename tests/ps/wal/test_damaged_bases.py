"""A log whose newest base is damaged: an older one is begun with where it is kept; else nothing is changed."""

import json

import numpy as np
import pytest
from stand_ins import Stored

from globalstep.cluster.run_identity import RunIdentity
from globalstep.cluster.run_policy import RunPolicy
from globalstep.errors import DataLossError, NotFoundError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.local import LocalPS
from globalstep.ps.shard.shard import Shard
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.wire.declarations import Increment, Op, OpKind, Push, Read, VariableDecl
from globalstep.worker.client.client import ClusterClient

ADD = Push([Op(OpKind.ASSIGN_ADD, "w", value=np.ones(2, np.float32))], [Increment("step")])


class SavedRun:
    """A run of one PS task with two pushes, a save, two pushes, a save and two pushes, whose task then dies."""

    def __init__(self, directory, keep_log):
        self.directory = str(directory)
        self.tasks = LocalPS(1)
        policy = RunPolicy(durability="log", keep_log=keep_log)
        self.client = client = ClusterClient(self.tasks.transports(), policy=policy, retry_secs=5.0)
        client.begin(open=False, run=RunIdentity(directory=self.directory))
        client.journal = Stored()
        client.declare(
            [VariableDecl("w", "float32", (2,), trainable=True), VariableDecl("step", "int64", (), is_step=True)], []
        )
        client.push(Push([Op(OpKind.ASSIGN, "w", fill=0.0), Op(OpKind.ASSIGN, "step", value=np.array(0))]))
        client.open()
        for pushes in (2, 2, 2):
            for _ in range(pushes):
                client.push(ADD)
            if client.global_steps()["step"] < 6:
                with client.snapshot():
                    pass
        control = self.tasks.controls[0]
        self.folder = control.handler.shard.log.directory
        control.durability.close()
        control.handler.shard = Shard(SYSTEM_CLOCK)

    def files(self):
        """All of the log but who writes it."""
        return {path.name: path.read_bytes() for path in self.folder.iterdir() if path.name not in ("lock", "writer")}

    def recover(self):
        request = pb.LogRequest(incarnation=self.client.incarnation, directory=self.directory, shards=1)
        return self.tasks.controls[0].call("Recover", request)

    def close(self):
        self.tasks.controls[0].durability.close()
        self.client.close()


@pytest.fixture
def saved(tmp_path):
    runs = []

    def make(keep_log):
        runs.append(SavedRun(tmp_path, keep_log))
        return runs[-1]

    yield make
    for run in runs:
        run.close()


def changed(folder):
    path = folder / "base-00000003.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def cut_off(folder):
    path = folder / "base-00000003.safetensors"
    path.write_bytes(path.read_bytes()[:-4])


def gone(folder):
    (folder / "base-00000003.safetensors").unlink()


def note_changed(folder):
    (folder / "base-00000003.json").write_text("{")


def other_note(folder):
    note = json.loads((folder / "base-00000003.json").read_text())
    (folder / "base-00000003.json").write_text(json.dumps({name: text + 1 for name, text in note.items()}))


@pytest.mark.parametrize("damage", [changed, cut_off, gone, note_changed, other_note])
def test_an_older_base_is_begun_with_where_the_log_is_kept(damage, saved, caplog):
    run = saved(keep_log=True)
    damage(run.folder)
    assert run.recover().applied == 9
    assert "base-00000003" in caplog.text
    assert "segment-00000002.log" in caplog.text
    assert run.client.pull([Read("w")])[0].tolist() == [6, 6]
    assert run.client.push(ADD).outcome.steps == {"step": 7}


@pytest.mark.parametrize("damage", [changed, cut_off, gone, note_changed, other_note])
def test_else_it_is_said_what_is_damaged_and_nothing_is_changed(damage, saved):
    run = saved(keep_log=False)
    damage(run.folder)
    before = run.files()
    with pytest.raises((DataLossError, NotFoundError), match="base-00000003") as refused:
        run.recover()
    assert "keep_log" in refused.value.message
    assert run.files() == before
    assert run.tasks.controls[0].handler.shard.view().incarnation == 0


def test_a_base_that_is_put_back_is_recovered_from(saved):
    run = saved(keep_log=False)
    whole = (run.folder / "base-00000003.safetensors").read_bytes()
    changed(run.folder)
    with pytest.raises(DataLossError):
        run.recover()
    (run.folder / "base-00000003.safetensors").write_bytes(whole)
    assert run.recover().applied == 9
    assert run.client.global_steps() == {"step": 6}
