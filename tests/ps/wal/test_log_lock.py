"""One process writes a log: by a lock, and by the name of the writer where there are no locks."""

import errno
import os
import subprocess
import sys

import numpy as np
import pytest

from globalstep.cluster.run_identity import RunIdentity
from globalstep.cluster.run_policy import RunPolicy
from globalstep.errors import LostStateError, UnavailableError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.local import LocalPS
from globalstep.ps.shard import events
from globalstep.ps.shard.events import Leave
from globalstep.ps.wal.log_file import LogFiles
from globalstep.ps.wal.log_lock import LogLock
from globalstep.ps.wal.write_ahead_log import WriteAheadLog
from globalstep.wire.declarations import Increment, Op, OpKind, OutcomeKind, Push, Read, VariableDecl
from globalstep.worker.client.client import ClusterClient

ADD = Push([Op(OpKind.ASSIGN_ADD, "w", value=np.ones(2, np.float32))], [Increment("step")], reads=[Read("w")])


class NoLocks(LogFiles):
    """A file system without locks."""

    def lock(self, path):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def started(tasks, directory):
    client = ClusterClient(tasks.transports(), policy=RunPolicy(durability="log"), retry_secs=5.0)
    client.begin(open=False, run=RunIdentity("a" * 32, directory=str(directory)))
    client.declare(
        [VariableDecl("w", "float32", (2,), trainable=True), VariableDecl("step", "int64", (), is_step=True)], []
    )
    client.push(Push([Op(OpKind.ASSIGN, "w", fill=0.0), Op(OpKind.ASSIGN, "step", value=np.array(0))]))
    client.open()
    return client


def request_of(client, directory):
    return pb.LogRequest(incarnation=client.incarnation, directory=str(directory), shards=1, run="a" * 32)


def closed(*closing):
    for one in closing:
        if isinstance(one, LocalPS):
            one.controls[0].durability.close()
        else:
            one.close()


def test_a_successor_is_refused_while_the_first_process_lives_and_is_told_who_that_is(tmp_path):
    first, second = LocalPS(1), LocalPS(1)
    client = started(first, tmp_path)
    client.push(ADD)
    request = request_of(client, tmp_path)
    with pytest.raises(UnavailableError, match=rf"belongs to the PS task of pid {os.getpid()} on "):
        second.controls[0].durability.recover(request)
    # Nothing was changed: the first one goes on.
    assert client.push(ADD).outcome.steps == {"step": 2}
    first.controls[0].durability.close()
    assert second.controls[0].durability.recover(request).pushes == 3
    closed(second, client)


def test_the_lock_is_one_between_processes_and_ends_with_them(tmp_path):
    code = (
        "import sys; from pathlib import Path; from globalstep.ps.wal.log_lock import LogLock\n"
        "held = LogLock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UnavailableError, match=f"pid {other.pid} on"):
            LogLock(tmp_path)
        other.kill()
        other.wait(30.0)
        LogLock(tmp_path).close()


def test_two_processes_without_locks_never_both_acknowledge(tmp_path):
    first, second = LocalPS(1, log_files=NoLocks()), LocalPS(1, log_files=NoLocks())
    client = started(first, tmp_path)
    client.push(ADD)
    other = ClusterClient(second.transports(), retry_secs=5.0)
    second.controls[0].durability.recover(request_of(client, tmp_path))
    other.refresh()
    # The first one slept meanwhile: it is told when it wants to acknowledge.
    shard = first.controls[0].handler.shard
    log = shard.log
    shard.handle(events.Leave("somebody"))
    with pytest.raises(LostStateError, match="belongs to the PS task of pid .* now, which took this process for dead"):
        log.secure()
    assert shard.view().incarnation == 0
    # A push that it is asked for now comes back from the log first, and takes the log over in its turn.
    told = [client.push(ADD).outcome.steps, other.push(ADD).outcome.steps, client.push(ADD).outcome.steps]
    assert told == [{"step": 2}, {"step": 3}, {"step": 4}]
    assert client.pull([Read("w")])[0].tolist() == [4.0, 4.0]
    closed(first, second, client, other)


@pytest.mark.parametrize("at", ["before the write", "after the write", "after the sync"])
def test_a_writer_that_sleeps_anywhere_in_a_commit_acknowledges_only_what_its_successor_read(tmp_path, at):
    woken = []

    class Sleeping(NoLocks):
        asleep = False

        def _sleep(self, point):
            if self.asleep and point == at:
                self.asleep = False
                # Its successor comes, reads what is there, and goes on.
                held = LogLock(folder, NoLocks())
                from globalstep.ps.wal.log_file import readers, segments_in

                for reader in readers(folder, segments_in(folder)):
                    woken.extend(
                        pb.LogRecord.FromString(record.head).leave.client
                        for record in reader.records()
                        if pb.LogRecord.FromString(record.head).HasField("leave")
                    )
                held.close()

        def write(self, file, buffers):
            self._sleep("before the write")
            written = super().write(file, buffers)
            self._sleep("after the write")
            return written

        def sync_data(self, file):
            super().sync_data(file)
            self._sleep("after the sync")

    folder, files = tmp_path, Sleeping()
    log = WriteAheadLog(folder, pb.BeginRequest(incarnation=7), files=files)
    log.secure()
    log.append(Leave("a"))
    files.asleep = True
    with pytest.raises(LostStateError, match="belongs to"):
        log.secure()
    assert woken == ([] if at == "before the write" else ["a"])
    log.close()


def test_a_log_that_a_living_process_writes_is_never_removed(tmp_path, caplog):
    """A later life is opened elsewhere; the process of the earlier one only looked dead."""
    first, second = LocalPS(1), LocalPS(1)
    client = started(first, tmp_path)
    folder = first.controls[0].handler.shard.log.directory
    second.controls[0].handler.shard.spent_incarnations = client.incarnation
    other = started(second, tmp_path)
    assert other.incarnation > client.incarnation
    assert (folder / "opened").exists()
    assert "is left as it is" in caplog.text
    assert f"pid {os.getpid()}" in caplog.text
    closed(first, second, client, other)


def test_the_log_of_an_earlier_life_is_moved_aside_and_its_writer_fenced(tmp_path, caplog):
    first, second = LocalPS(1, log_files=NoLocks()), LocalPS(1, log_files=NoLocks())
    client = started(first, tmp_path)
    client.push(ADD)
    log = first.controls[0].handler.shard.log
    second.controls[0].handler.shard.spent_incarnations = client.incarnation
    other = started(second, tmp_path)
    aside = tmp_path / "log" / f"abandoned-{client.incarnation}" / "shard-0-of-1"
    assert (aside / "segment-00000001.log").exists()
    assert not log.directory.exists()
    assert f"kept in {aside}" in caplog.text
    log.append(Leave("somebody"))
    with pytest.raises(LostStateError, match="was given up: a later life"):
        log.secure()
    closed(first, second, client, other)


def test_all_logs_that_were_moved_aside_are_kept(tmp_path):
    """The first of them may be the one that holds what was lost; the short lives after it change nothing of that."""
    tasks = LocalPS(1)
    clients = [started(tasks, tmp_path)]
    for _ in range(7):
        clients[0].push(ADD)
    for _ in range(5):
        clients.append(started(tasks, tmp_path))
    kept = sorted(path.name for path in (tmp_path / "log").iterdir())
    assert kept == sorted([str(clients[-1].incarnation), *(f"abandoned-{one.incarnation}" for one in clients[:-1])])
    # Room is set aside for the log that is written, and for no other.
    assert [path.parents[1].name for path in tmp_path.glob("log/*/*/reserve")] == [str(clients[-1].incarnation)]
    assert clients[-1].push(ADD).outcome.kind is OutcomeKind.ACCEPTED
    closed(tasks, *clients)
    # How the first one is taken back, as docs/recovery.md says.
    (tmp_path / "log" / str(clients[-1].incarnation)).rename(tmp_path / "log" / "abandoned-newest")
    first = clients[0].incarnation
    (tmp_path / "log" / f"abandoned-{first}").rename(tmp_path / "log" / str(first))
    again = LocalPS(1)
    assert again.controls[0].durability.find(str(tmp_path), 0, 1, "a" * 32) == {first: 0}
    assert again.controls[0].durability.recover(request_of(clients[0], tmp_path)).pushes == 8
    assert again.controls[0].handler.shard.view().steps == {"step": 7}
    closed(again)


def test_descriptors_are_closed_when_a_log_fails(tmp_path, monkeypatch):
    log = WriteAheadLog(tmp_path, pb.BeginRequest(incarnation=7))
    before = len(os.listdir("/proc/self/fd"))

    def fail(file):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        log.append(Leave("a"))
        with pytest.raises(LostStateError):
            log.secure()
    assert len(os.listdir("/proc/self/fd")) == before - 2
    LogLock(tmp_path).close()
    log.close()
