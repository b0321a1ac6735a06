"""The log of a shard: what is on disk when a call is answered, who writes it, and what happens when nobody can."""

import errno
import os
import threading

import pytest

from globalstep.errors import LostStateError, ResourceExhaustedError
from globalstep.proto import globalstep_pb2 as pb
from globalstep.ps.shard.events import Leave
from globalstep.ps.wal import log_file
from globalstep.ps.wal.log_file import SegmentReader, segment_path
from globalstep.ps.wal.write_ahead_log import WriteAheadLog


@pytest.fixture
def log(tmp_path):
    log = WriteAheadLog(tmp_path, pb.BeginRequest(incarnation=7))
    yield log
    log.close()


def clients_in(log):
    found = [pb.LogRecord.FromString(record.head) for record in SegmentReader(segment_path(log.directory, 1)).records()]
    assert found[0].begin.incarnation == 7
    return [record.leave.client for record in found[1:]]


def test_nothing_is_written_before_somebody_waits_and_all_is_afterwards(log):
    for name in "abc":
        log.append(Leave(name))
    assert segment_path(log.directory, 1).stat().st_size == 32
    log.secure()
    assert clients_in(log) == ["a", "b", "c"]


def test_nothing_is_told_before_it_is_on_the_disk_once_another_process_has_the_log(log):
    told = []
    log.on_failure = told.append
    log.append(Leave("a"))
    log.secure()
    log.append(Leave("b"))
    (log.directory / "writer").write_text("another process\n")
    with pytest.raises(LostStateError, match="belongs to"):
        log.secure()
    assert told == [log]


def test_those_who_wait_together_share_one_write_to_the_disk(log, monkeypatch):
    """A first commit is held; what eight threads append meanwhile goes to the disk at once."""
    held, syncs, waiting = threading.Event(), [], threading.Semaphore(0)
    real = os.fdatasync

    def slow(file):
        if not syncs:
            waiting.release()
            assert held.wait(10.0)
        syncs.append(file)
        real(file)

    monkeypatch.setattr(log_file.os, "fdatasync", slow)
    first = threading.Thread(target=log.secure, name="first")
    first.start()
    assert waiting.acquire(timeout=10.0)
    names = [f"client-{at}" for at in range(8)]
    for name in names:
        log.append(Leave(name))
    others = [threading.Thread(target=log.secure, name=name) for name in names]
    for thread in others:
        thread.start()
    held.set()
    for thread in [first, *others]:
        thread.join(10.0)
        assert not thread.is_alive()
    assert clients_in(log) == names
    assert len(syncs) == 2


def test_the_place_in_the_log_is_the_place_in_which_it_happened(log):
    lock, order = threading.Lock(), []

    def work(worker):
        for number in range(50):
            with lock:
                order.append(f"{worker}.{number}")
                log.append(Leave(order[-1]))
            log.secure()

    threads = [threading.Thread(target=work, args=(at,), name=f"worker-{at}") for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert clients_in(log) == order


def test_a_disk_that_fails_fails_all_who_wait_and_all_who_come_later(log, monkeypatch):
    log.append(Leave("a"))
    log.secure()
    told = []
    log.on_failure = told.append

    def broken(file, buffers):
        os.write(file, b"half of it")
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(log_file.os, "writev", broken)
    log.append(Leave("b"))
    with pytest.raises(LostStateError, match="Input/output error"):
        log.secure()
    assert told == [log]
    monkeypatch.undo()
    log.append(Leave("c"))
    with pytest.raises(LostStateError, match="cannot be written"):
        log.secure()
    # What there is of it is cut off, and nobody was told of "b".
    reader = SegmentReader(segment_path(log.directory, 1))
    assert [pb.LogRecord.FromString(record.head).leave.client for record in reader.records()][1:] == ["a"]
    assert reader.cut_bytes == len(b"half of it")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT], ids=errno.errorcode.get)
def test_a_full_disk_lets_nothing_through_and_forgets_nothing(log, monkeypatch, caplog, code):
    log.append(Leave("a"))
    log.secure()
    told = []
    log.on_failure = told.append

    def full(file, buffers):
        os.write(file, b"half of it")
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(log_file.os, "writev", full)
        for name in "bc":
            log.append(Leave(name))
            with pytest.raises(
                ResourceExhaustedError, match=f"no room for the write-ahead log .*: .*{os.strerror(code)}"
            ) as e:
                log.secure()
            assert e.value.retry_secs
        assert clients_in(log) == ["a"]
    assert caplog.text.count("no room for the write-ahead log") == 1
    log.secure()
    assert clients_in(log) == ["a", "b", "c"]
    assert "There is room again" in caplog.text
    assert not told


def test_all_who_wait_are_told_at_once_that_there_is_no_room(log, monkeypatch):
    in_commit, go_on, found = threading.Semaphore(0), threading.Event(), []

    def full(file):
        in_commit.release()
        assert go_on.wait(10.0)
        raise OSError(errno.ENOSPC, "No space left on device")

    def wait():
        with pytest.raises(ResourceExhaustedError):
            log.secure()
        found.append(1)

    monkeypatch.setattr(log_file.os, "fdatasync", full)
    log.append(Leave("a"))
    first = threading.Thread(target=wait, name="commits")
    first.start()
    assert in_commit.acquire(timeout=10.0)
    others = [threading.Thread(target=wait, name=f"waits-{at}") for at in range(3)]
    for thread in others:
        thread.start()
    go_on.set()
    for thread in [first, *others]:
        thread.join(10.0)
        assert not thread.is_alive()
    assert len(found) == 4
    monkeypatch.undo()
    log.secure()
    assert clients_in(log) == ["a"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), ValueError("larger than 2 GiB")], ids=repr)
def test_whatever_a_commit_fails_with_nobody_waits_for_ever(log, monkeypatch, error):
    told, in_commit, interrupted = [], threading.Semaphore(0), threading.Event()
    log.on_failure = told.append

    def fail(file):
        in_commit.release()
        assert interrupted.wait(10.0)
        raise error

    monkeypatch.setattr(log_file.os, "fdatasync", fail)
    found = []

    def wait():
        try:
            log.secure()
        except BaseException as caught:
            found.append(type(caught))

    log.append(Leave("a"))
    committing = threading.Thread(target=wait, name="commits")
    committing.start()
    assert in_commit.acquire(timeout=10.0)
    log.append(Leave("b"))
    waiting = threading.Thread(target=wait, name="waits")
    waiting.start()
    interrupted.set()
    for thread in (committing, waiting):
        thread.join(10.0)
        assert not thread.is_alive()
    ended = type(error) if isinstance(error, KeyboardInterrupt) else LostStateError
    assert sorted(found, key=str) == sorted([ended, LostStateError], key=str)
    assert told == [log]
    monkeypatch.undo()
    with pytest.raises(LostStateError, match=type(error).__name__):
        log.secure()


def test_a_log_is_not_begun_over_another(log):
    log.close()
    with pytest.raises(FileExistsError):
        WriteAheadLog(log.directory, pb.BeginRequest(incarnation=8))
