"""What a recovery adopts is on the disk first: power is lost at the worst moments, and syncs fail."""

import errno

import numpy as np
import pytest
from lossy_disk import LossyDisk

from globalstep.cluster.run_identity import RunIdentity
from globalstep.cluster.run_policy import RunPolicy
from globalstep.ps.local import LocalPS
from globalstep.ps.shard.shard import Shard
from globalstep.ps.wal.log_file import segments_in
from globalstep.ps.wal.write_ahead_log import WriteAheadLog
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.wire.declarations import Increment, Op, OpKind, OutcomeKind, Push, Read, VariableDecl
from globalstep.worker.client.client import ClusterClient


class Tasks(LocalPS):
    """A PS task in this process, on a disk that can lose what was not synced."""

    def __init__(self):
        self.disk = LossyDisk()
        super().__init__(1, log_files=self.disk)

    @property
    def log(self):
        return self.controls[0].handler.shard.log

    def start_again(self):
        self.controls[0].handler.shard = Shard(SYSTEM_CLOCK)

    def kill(self):
        self.disk.kill()
        self.start_again()

    def lose_power(self):
        self.disk.lose_power()
        self.start_again()


@pytest.fixture
def tasks():
    return Tasks()


@pytest.fixture
def client(tasks, tmp_path):
    client = ClusterClient(tasks.transports(), policy=RunPolicy(durability="log"), retry_secs=5.0)
    client.begin(open=False, run=RunIdentity(directory=str(tmp_path)))
    client.declare(
        [VariableDecl("w", "float32", (2,), trainable=True), VariableDecl("step", "int64", (), is_step=True)], []
    )
    client.push(Push([Op(OpKind.ASSIGN, "w", fill=0.0), Op(OpKind.ASSIGN, "step", value=np.array(0))]))
    client.open()
    yield client
    tasks.controls[0].durability.close()
    client.close()


ADD = Push([Op(OpKind.ASSIGN_ADD, "w", value=np.ones(2, np.float32))], [Increment("step")])


class Killed(BaseException):
    """The process was killed."""


def push_and_die_before_the_sync(tasks, client, monkeypatch):
    def die(file):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(tasks.disk, "sync_data", die)
        # A process that was killed drops nothing in good order.
        patch.setattr(tasks.log, "on_failure", lambda log: None)
        with pytest.raises(Killed):
            client.push(ADD)
    tasks.kill()
    client._protocol._sequence -= 1


def value(client):
    return client.pull([Read("w")])[0].tolist()


@pytest.mark.parametrize("later", [0, 2])
def test_what_came_back_without_ever_being_synced_outlives_a_loss_of_power(tasks, client, monkeypatch, later):
    """Killed between write and sync; the retry is told ACCEPTED by the recovered task; then the power fails."""
    client.push(ADD)
    push_and_die_before_the_sync(tasks, client, monkeypatch)
    assert client.push(ADD).outcome.kind is OutcomeKind.ACCEPTED
    for _ in range(later):
        client.push(ADD)
    assert value(client) == [2.0 + later] * 2
    tasks.lose_power()
    assert value(client) == [2.0 + later] * 2
    assert client.global_steps() == {"step": 2 + later}


@pytest.mark.parametrize("later", [0, 2])
def test_after_a_sync_that_failed_nothing_depends_on_its_pages(tasks, client, later):
    client.push(ADD)
    tasks.disk.failing.append(OSError(errno.EIO, "Input/output error"))
    assert client.push(ADD).outcome.kind is OutcomeKind.ACCEPTED
    assert not tasks.disk.failing
    for _ in range(later):
        client.push(ADD)
    tasks.lose_power()
    assert value(client) == [2.0 + later] * 2
    assert client.global_steps() == {"step": 2 + later}


def test_power_that_is_lost_in_the_middle_of_a_recovery_costs_nothing(tasks, client, monkeypatch):
    """At each system call of the recovery in turn; the next recovery finds all that was acknowledged."""
    names = ("create", "write", "sync", "link", "unlink", "sync_directory")
    for at in range(100):
        client.push(ADD)
        push_and_die_before_the_sync(tasks, client, monkeypatch)
        left = [at]

        def counted(name, left=left):
            real = getattr(tasks.disk, name)

            def call(*args):
                left[0] -= 1
                if left[0] < 0:
                    raise Killed
                return real(*args)

            return call

        with monkeypatch.context() as patch:
            for name in names:
                patch.setattr(tasks.disk, name, counted(name))
            try:
                value(client)
                finished = True
            except Killed:
                finished = False
        tasks.lose_power()
        client.push(ADD)
        # The retry of the push that was interrupted, under its own id: it counts once.
        assert value(client) == [2.0 * at + 2.0] * 2, at
        if finished:
            break
    assert finished
    assert at > 5


def test_a_recovery_leaves_old_segments_as_they_are(tasks, client, monkeypatch):
    client.push(ADD)
    push_and_die_before_the_sync(tasks, client, monkeypatch)
    folder = max(path.parent for path in tasks.disk._named if path.name == "segment-00000001.log")
    before = (folder / "segment-00000001.log").read_bytes()
    client.push(ADD)
    assert (folder / "segment-00000001.log").read_bytes() == before
    assert segments_in(folder) == [1, 2]
    assert isinstance(tasks.log, WriteAheadLog)
