"""A log that cannot be read now is not one that is gone: the task is asked again, and nothing is given up."""

import errno
import os

import numpy as np
import pytest

from globalstep.chief.sessions.cluster_start import come_back
from globalstep.cluster.run_identity import RunIdentity
from globalstep.cluster.run_policy import RunPolicy
from globalstep.errors import AbortedError, UnavailableError
from globalstep.ps.local import LocalPS
from globalstep.ps.shard.shard import Shard
from globalstep.ps.wal import durability
from globalstep.ps.wal.recovery import Replay
from globalstep.runtime.clock import SYSTEM_CLOCK, ManualClock
from globalstep.wire.declarations import Op, OpKind, Push, Read, VariableDecl
from globalstep.worker.client.client import ClusterClient

RUN = "a" * 32
ADD = Push([Op(OpKind.ASSIGN_ADD, "w", value=np.ones(2, np.float32))])


class Tasks(LocalPS):
    def kill(self, *shards):
        for at in shards:
            self.controls[at].durability.close()
            self.controls[at].handler.shard = Shard(SYSTEM_CLOCK)


def started(tasks, directory):
    client = ClusterClient(tasks.transports(), policy=RunPolicy(durability="log"), retry_secs=5.0)
    client.begin(open=False, run=RunIdentity(RUN, directory=str(directory)))
    client.declare([VariableDecl("w", "float32", (2,), trainable=True)], [])
    client.push(Push([Op(OpKind.ASSIGN, "w", fill=0.0)]))
    client.open()
    client.push(ADD)
    return client


ERRORS = [OSError(code, os.strerror(code)) for code in (errno.EIO, errno.ESTALE, errno.EMFILE)] + [MemoryError()]


def failing(monkeypatch, owner, name, error, times):
    real, left = getattr(owner, name), [times]

    def fail(*args, **kwargs):
        if left[0]:
            left[0] -= 1
            raise error
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, fail)
    return left


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("where", [(Replay, "run"), (os, "pread"), (durability, "LogLock"), (durability, "_lives")])
def test_the_chief_asks_again_and_the_run_comes_back(tmp_path, monkeypatch, error, where):
    if where[0] is os and isinstance(error, MemoryError):
        where = (os, "fstat")
    tasks = Tasks(1)
    client = started(tasks, tmp_path)
    tasks.kill(0)
    left = failing(monkeypatch, *where, error, 2)
    statuses = come_back(client, client.refresh(), str(tmp_path), ManualClock(), 7200.0, RUN)
    assert left == [0]
    assert statuses[0].incarnation == client.incarnation
    assert client.pull([Read("w")])[0].tolist() == [1.0, 1.0]
    client.close()
    tasks.kill(0)


def test_a_call_that_meets_it_waits_and_is_answered(tmp_path, monkeypatch):
    tasks = Tasks(1)
    client = started(tasks, tmp_path)
    tasks.kill(0)
    left = failing(monkeypatch, Replay, "run", OSError(errno.EIO, os.strerror(errno.EIO)), 3)
    client.push(ADD)
    assert left == [0]
    assert client.pull([Read("w")])[0].tolist() == [2.0, 2.0]
    client.close()
    tasks.kill(0)


def test_a_search_that_fails_finds_not_nothing(tmp_path, monkeypatch):
    tasks = Tasks(1)
    client = started(tasks, tmp_path)
    tasks.kill(0)
    with monkeypatch.context() as patch:
        failing(patch, os, "listdir", OSError(errno.ESTALE, "Stale file handle"), 1)
        with pytest.raises(UnavailableError, match="cannot look for logs in .* now: .*Stale file handle"):
            client.membership.find_logs(str(tmp_path), RUN)
    assert client.membership.find_logs(str(tmp_path), RUN) == [(client.incarnation, 0)]
    client.close()
    tasks.kill(0)


def test_the_logs_of_some_tasks_only_are_named_and_kept(tmp_path, caplog):
    tasks = Tasks(2)
    client = started(tasks, tmp_path)
    tasks.kill(0, 1)
    folder = tmp_path / "log" / str(client.incarnation)
    (folder / "shard-1-of-2").rename(tmp_path / "elsewhere")
    statuses = come_back(client, client.refresh(), str(tmp_path), ManualClock(), 10.0, RUN)
    assert [status.incarnation for status in statuses] == [0, 0]
    assert f"life {client.incarnation} " in caplog.text
    assert "/job:ps/task:0 in this process has a log" in caplog.text
    assert "/job:ps/task:1 in this process has none" in caplog.text
    # A new life is opened from a checkpoint; what is left of the other is still there.
    again = started(tasks, tmp_path)
    assert again.incarnation > client.incarnation
    kept = tmp_path / "log" / f"abandoned-{client.incarnation}" / "shard-0-of-2"
    assert (kept / "segment-00000001.log").exists()
    client.close()
    again.close()
    tasks.kill(0, 1)


def test_a_worker_that_finds_a_task_gone_after_a_recovery_is_told_so_and_may_ask_again(tmp_path, monkeypatch):
    tasks = Tasks(2)
    client = started(tasks, tmp_path)
    tasks.kill(1)
    statuses, asked = client.refresh(), []

    def gone():
        asked.append(1)
        raise UnavailableError("/job:ps/task:0: Connection refused")

    with monkeypatch.context() as patched:
        patched.setattr(client, "refresh", gone)
        # Not DeadlineExceededError, which ends a worker's wait.
        with pytest.raises(UnavailableError, match="Connection refused"):
            come_back(client, statuses, None, ManualClock(), 0.0)
    assert asked == [1]
    assert come_back(client, client.refresh(), None, ManualClock(), 0.0)[1].incarnation == client.incarnation
    client.close()
    tasks.kill(0, 1)


def test_where_the_newest_life_is_damaged_the_one_before_is_tried(tmp_path, caplog):
    tasks, others = Tasks(1), Tasks(1)
    client = started(tasks, tmp_path)
    # A later life, whose process could not end the earlier one's log, since that one lived.
    others.controls[0].handler.shard.spent_incarnations = client.incarnation
    newer = started(others, tmp_path)
    tasks.kill(0)
    others.kill(0)
    path = tmp_path / "log" / str(newer.incarnation) / "shard-0-of-1" / "segment-00000001.log"
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    statuses = come_back(client, client.refresh(), str(tmp_path), ManualClock(), 10.0, RUN)
    assert statuses[0].incarnation == client.incarnation
    assert f"incarnation {newer.incarnation}; trying those of others" in caplog.text
    for one in (client, newer):
        one.close()
    tasks.kill(0)


def test_a_life_is_begun_above_all_logs_whatever_the_clocks_say(tmp_path):
    """A clock that was set back: the process spends no numbers as high as those of the logs that it finds."""
    tasks = Tasks(1)
    tasks.controls[0].handler.shard.spent_incarnations = 10**15
    client = started(tasks, tmp_path)
    tasks.kill(0)
    tasks.controls[0].handler.shard.spent_incarnations = 5
    newest = client.incarnation
    for policy in (RunPolicy(durability="log"), RunPolicy()):
        again = ClusterClient(tasks.transports(), policy=policy, retry_secs=5.0)
        identity = RunIdentity(RUN, directory=str(tmp_path))
        with pytest.raises(AbortedError, match=f"has a log of incarnation {newest}, and BEGIN has the number 6"):
            again.begin(open=True, run=identity)
        # As a session does when it is told so.
        again.begin(open=True, run=identity)
        assert again.incarnation > client.incarnation == 10**15 + 1
        again.close()
        newest = max(newest, again.incarnation if policy.durability == "log" else 0)
        tasks.kill(0)
        tasks.controls[0].handler.shard.spent_incarnations = 5
    client.close()
