"""Blocks of memory that two processes share: no name, no trace, no way to take them away."""

import contextlib
import errno
import fcntl
import gc
import os
import sys
import tempfile

import numpy as np
import pytest

from globalstep.wire import shared_memory
from globalstep.wire.shared_memory import SLACK_BYTES, attach, block_bytes, create, is_offered

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
SIZE = 16 * SLACK_BYTES


@contextlib.contextmanager
def block(nbytes=SIZE):
    descriptor, array = create(nbytes)
    try:
        yield descriptor, array
    finally:
        os.close(descriptor)


def mappings():
    with open("/proc/self/maps") as maps:
        return sum("memfd:globalstep" in line for line in maps)


def test_what_one_side_writes_the_other_sees():
    with block() as (descriptor, mine):
        theirs = attach(descriptor, SIZE)
        mine[5] = 7
        theirs[-1] = 9
        assert (theirs[5], mine[-1]) == (7, 9)


def test_it_has_no_name_and_leaves_nothing_behind():
    gc.collect()  # what tests before it have left must not go meanwhile
    before = mappings()
    descriptors = len(os.listdir("/proc/self/fd"))
    with block() as (descriptor, mine):
        theirs = attach(descriptor, SIZE)
        assert not any("globalstep" in name for name in os.listdir("/dev/shm"))
        assert mappings() == before + 2
    view = theirs[3:5]
    del mine, theirs
    gc.collect()
    assert mappings() == before + 1, "what is looked at stays"
    assert view.tolist() == [0, 0]
    del view
    gc.collect()
    assert mappings() == before
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_its_size_cannot_be_changed_by_either_side():
    with block() as (descriptor, _):
        for size in (0, 2 * SIZE):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, size)
        with pytest.raises(PermissionError):
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_what_could_be_taken_away_is_not_attached():
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, SIZE)
        with pytest.raises(OSError, match="not sealed"):
            attach(descriptor, SIZE)
    finally:
        os.close(descriptor)
    with tempfile.TemporaryFile() as file, pytest.raises(OSError):
        attach(file.fileno(), SIZE)


@pytest.mark.parametrize("nbytes", [0, SIZE - SLACK_BYTES, 2 * SIZE, 1 << 60])
def test_another_size_than_was_said_is_not_attached(nbytes):
    with block() as (descriptor, _), pytest.raises(OSError, match="not"):
        attach(descriptor, nbytes)


def test_memory_that_is_not_there_is_an_error_at_once(monkeypatch):
    """Not a signal when it is touched."""
    monkeypatch.setattr(shared_memory, "available_bytes", lambda: 2 * SIZE - 2)
    with pytest.raises(OSError, match=f"{SIZE} bytes to share are more than half"):
        create(SIZE)


def test_memory_that_is_refused_leaves_no_descriptor(monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(shared_memory.os, "posix_fallocate", full)
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="no space"):
        create(SIZE)
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_machine_that_forbids_it_does_not_offer_it(monkeypatch):
    assert is_offered()

    def forbidden(*args):
        raise OSError(errno.EPERM, "not permitted")

    monkeypatch.setattr(shared_memory.os, "memfd_create", forbidden)
    assert not is_offered()


@pytest.mark.parametrize("nbytes", [1, SLACK_BYTES, SLACK_BYTES + 1])
def test_a_block_has_room_before_and_behind(nbytes):
    size = block_bytes(nbytes)
    assert size % SLACK_BYTES == 0
    assert size - 2 * SLACK_BYTES >= nbytes
    assert size - 3 * SLACK_BYTES < nbytes


def test_pages_are_there_from_the_beginning():
    with block() as (_, array):
        assert np.count_nonzero(array) == 0
