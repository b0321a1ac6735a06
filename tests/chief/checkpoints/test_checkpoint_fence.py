"""A chief that is stopped at any move of a save, and wakes when its successor has saved: it harms nothing of that's."""

import contextlib
import errno
import itertools
import os

import numpy as np
import pytest
from crashing_disk import CrashingStorage, Disk, Moves
from greenlet import getcurrent, greenlet

from globalstep.chief.checkpoints.checkpoint import CheckpointReader, remove_leftovers, verify
from globalstep.chief.checkpoints.checkpoint_format import find_index, index_path, prefixes_in, read_index
from globalstep.chief.checkpoints.checkpoint_state import (
    get_checkpoint_state,
    latest_checkpoint,
    update_checkpoint_state,
)
from globalstep.errors import AbortedError, OpError, UnavailableError
from globalstep.files.storage import LocalStorage
from globalstep.ps.members.chief_lease import ChiefLease, Claim
from globalstep.runtime.clock import SYSTEM_CLOCK
from globalstep.tf1.sessions.saver import Saver
from globalstep.tf1.variables.variables import Variable

pytestmark = pytest.mark.usefixtures("graph")

#: `make nightly` tries all points.
ALL = os.environ.get("GLOBALSTEP_CRASH_POINTS") == "all"


class Chief:
    """A candidate as a Saver sees it, in one lease."""

    def __init__(self, lease, name):
        self.lease, self.id, self.chief, self.term = lease, name, name, 0

    def claim(self):
        assert self.lease.claim(Claim(self.id, take_over=True))
        self.term = self.lease.view().term

    def confirm(self, cluster, above=0):
        self.lease.adopt(above)
        if not self.lease.sign(self.id, "", self.term):
            cluster.chief_lease.term = 0
            raise AbortedError("replaced")


@pytest.fixture
def place(make_session):
    """Give a function that makes (session, storage, chief) of a chief in the one lease."""
    Variable(np.zeros(5, np.float32), name="w")
    Variable(np.zeros(3, np.float32), name="disc")
    step = Variable(np.int64(0), name="global_step", trainable=False, is_step=True)
    lease = ChiefLease(SYSTEM_CLOCK)

    def make(name, disk=None):
        storage = CrashingStorage(Moves(), disk)
        session = make_session(shards=2, storage=storage, blind=(0, 1) if name == "blind" else ())
        session.initialize()
        chief = Chief(lease, name)
        chief.claim()
        session.cluster.chief_lease.candidate, session.cluster.chief_lease.term = chief, chief.term
        return session, storage, step

    return make


def mark(session, number, index):
    """What is saved tells which save it was; the step may be the same in two of them."""
    session.cluster.values["global_step"][...] = number
    session.cluster.values["w"][:] = session.cluster.values["disc"][:] = index
    session.cluster.mutations = index


@pytest.mark.parametrize(
    ("keep", "succeeds", "name", "fails"),
    [
        pytest.param(1, 3, "ps write", False, id="the same step, one is kept"),
        pytest.param(2, 4, "ps write", False, id="another step", marks=pytest.mark.long),
        pytest.param(1, 4, "ps write", True, id="its snapshot is gone, one is kept", marks=pytest.mark.long),
        pytest.param(2, 3, "blind", True, id="its snapshot is gone, the chief writes"),
        pytest.param(1, 3, "blind", False, id="the same step, the chief writes", marks=pytest.mark.long),
    ],
)
def test_a_chief_that_slept_at_any_move_of_a_save(place, tmp_path, keep, succeeds, name, fails):
    sleep_at = 0
    while True:
        sleep_at += 1
        directory = tmp_path / str(sleep_at)
        directory.mkdir()
        where = str(directory / "m")
        session, storage, step = place(name)
        moves = storage.moves
        saver = Saver(max_to_keep=keep, storage=storage)
        for number in (1, 2):
            mark(session, number, number)
            saver.save(session, where, global_step=step)
        made = []

        def succeed(where=where, made=made, step=step):
            other, its_storage, _ = place("successor")
            successor = Saver(max_to_keep=keep, storage=its_storage)
            mark(other, succeeds, 10)
            made.append(successor.save(other, where, global_step=step))
            if fails:
                raise OSError(5, "the snapshot is gone")

        moves.count, moves.at, moves.meanwhile = 0, sleep_at, succeed
        mark(session, 3, 3)
        try:
            saver.save(session, where, global_step=step)
        except AbortedError:
            # Not that a file is gone: it was replaced.
            assert made
        if not made:
            break
        # What the state file says or not, the successor's is there, whole, and the latest.
        assert latest_checkpoint(str(directory)) == made[0] == f"{where}-{succeeds}"
        verify(made[0])
        with CheckpointReader(made[0]) as reader:
            np.testing.assert_array_equal(reader.get_tensor("disc"), np.full(3, 10, np.float32))
        whole(storage, directory)
        # It goes on: a save more, and a start from what the directory says.
        third, its_storage, _ = place("third")
        mark(third, 7, 20)
        saved = Saver(max_to_keep=keep, storage=its_storage).save(third, where, global_step=step)
        assert latest_checkpoint(str(directory)) == saved == get_checkpoint_state(str(directory)).model_checkpoint_path
        assert not [entry for entry in os.listdir(directory) if ".tmp-" in entry or "probe" in entry]
        whole(its_storage, directory)
    assert sleep_at > 15


def test_a_save_whose_chief_hears_nothing_of_its_lease_is_saved(place, tmp_path, monkeypatch):
    """It was said not to be written, was there, and was never evaluated; found by the soak."""

    def confirm(chief, cluster, above=0):
        raise UnavailableError("The connection was cut after the claim.")

    monkeypatch.setattr(Chief, "confirm", confirm)
    session, storage, step = place("ps write")
    saved = Saver(storage=storage).save(session, str(tmp_path / "m"), global_step=step)
    assert latest_checkpoint(str(tmp_path)) == saved == get_checkpoint_state(str(tmp_path)).model_checkpoint_path


def whole(storage, directory):
    """Fail where a checkpoint lacks one of its files."""
    for prefix in prefixes_in(storage, str(directory)):
        verify(prefix)


def saved_by(directory):
    """Give the mark of the latest checkpoint, having read all of it."""
    latest = latest_checkpoint(str(directory))
    assert latest is not None, "there is no checkpoint"
    verify(latest)
    with CheckpointReader(latest) as reader:
        found = reader.get_tensor("disc")
        np.testing.assert_array_equal(reader.get_tensor("w"), np.full(5, found[0], np.float32))
    return found[0]


def chief_that_sleeps(place, disk, sleeps_at, wakes_at, keep, succeeds, fails):
    """Two chiefs on one disk: the first sleeps at a move of its third save, and wakes at one of the second one's save.

    Args:
        place: The fixture.
        disk: Empty.
        sleeps_at: Which move that is.
        wakes_at: Which move of the second one's; 0 for after its save.
        keep: How many checkpoints each keeps.
        succeeds: The step that the second one saves.
        fails: Whether the first one's save fails when it wakes, and is to be cleaned up after.

    Returns:
        Whether there are such moves.
    """
    where = str(disk.folder / "m")
    session, storage, step = place("first", disk)
    saver = Saver(max_to_keep=keep, storage=storage)
    for number in (1, 2):
        mark(session, number, number)
        saver.save(session, where, global_step=step)
    mark(session, 3, 3)
    second = getcurrent()

    def sleep():
        second.switch()
        if fails:
            raise OSError(5, "the snapshot is gone")

    def save():
        storage.moves.count, storage.moves.at, storage.moves.meanwhile = 0, sleeps_at, sleep
        with contextlib.suppress(OpError):
            saver.save(session, where, global_step=step)

    first = greenlet(save)
    first.switch()
    if first.dead:
        return False
    other, its_storage, _ = place("successor", disk)
    mark(other, succeeds, 10)
    its_moves = its_storage.moves
    its_moves.at, its_moves.meanwhile = wakes_at, first.switch
    Saver(max_to_keep=keep, storage=its_storage).save(other, where, global_step=step)
    disk.told(10)
    woken = first.dead
    if not woken:
        first.switch()
    disk.check()
    return woken or not wakes_at


def explore(disk, most):
    """Try what crashes leave, since the successor has saved: its checkpoint is the latest; gives how many."""
    seen, count = {}, 0
    points = [point for point in range(len(disk) + 1) if disk.told_by(point)]
    for point in points if ALL else points[:: max(len(points) // most, 1)]:
        for how, left in disk.crashes(point):
            count += 1
            if left not in seen:
                disk.lay_out(left, disk.folder)
                seen[left] = saved_by(disk.folder)
            assert seen[left] == 10, f"{how}, {disk.describe(point)}: the successor's is not the latest"
    return count


@pytest.mark.parametrize(
    ("keep", "succeeds", "fails"),
    [
        (1, 4, True),
        pytest.param(1, 3, False, marks=pytest.mark.long),
        pytest.param(2, 4, False, marks=pytest.mark.long),
    ],
)
def test_crashes_after_a_chief_that_slept_has_woken(place, tmp_path, keep, succeeds, fails, record_property):
    count, every = 0, 1 if ALL else 9
    for sleeps_at in itertools.count(every, every):
        for wakes_at in itertools.count(0, every):
            disk = Disk(tmp_path / f"{sleeps_at}.{wakes_at}")
            if not chief_that_sleeps(place, disk, sleeps_at, wakes_at, keep, succeeds, fails):
                break
            count += explore(disk, 4)
        if not wakes_at:
            break  # it did not sleep: there are no more moves
    assert sleeps_at > 15
    record_property("crashes", count)


def test_a_planted_clean_up_by_a_chief_that_was_replaced_is_found(place, tmp_path, monkeypatch):
    def remove_all(storage, prefix, files, term):
        remove_leftovers(storage, prefix, term=1 << 62)

    monkeypatch.setattr("globalstep.chief.checkpoints.checkpoint_save._remove", remove_all)
    for wakes_at in range(1, 40):
        disk = Disk(tmp_path / str(wakes_at))
        try:
            chief_that_sleeps(place, disk, 12, wakes_at, 1, 3, True)
            explore(disk, 1)
        except (AssertionError, OpError):  # the successor's checkpoint is gone, or its save has failed
            return
    pytest.fail("nobody noticed")


def test_clocks_set_back_between_two_programs_change_nothing(place, tmp_path):
    session, storage, step = place("before")
    mark(session, 1, 1)
    cluster = session.cluster
    cluster.chief_lease.term = cluster.chief_lease.candidate.term = cluster.chief_lease.term + 10**9
    cluster.chief_lease.candidate.lease.adopt(cluster.chief_lease.term - 1)
    Saver(storage=storage).save(session, str(tmp_path / "m"), global_step=step)

    # The next program's PS task has a clock that was set back.
    session.cluster.chief_lease.candidate = chief = Chief(ChiefLease(SYSTEM_CLOCK), "after")
    chief.claim()
    assert chief.term < cluster.chief_lease.term
    saver = Saver(storage=storage)
    session.cluster.chief_lease.term = chief.term
    mark(session, 2, 2)
    with pytest.raises(AbortedError):
        saver.save(session, str(tmp_path / "m"), global_step=step)
    chief.claim()
    session.cluster.chief_lease.term = chief.term
    saved = saver.save(session, str(tmp_path / "m"), global_step=step)
    assert latest_checkpoint(str(tmp_path)) == saved


def test_a_program_without_a_term_replaces_a_chiefs_checkpoint(place, make_session, tmp_path):
    session, storage, step = place("chief")
    mark(session, 5, 5)
    prefix = Saver(storage=storage).save(session, str(tmp_path / "m"), global_step=step)
    assert find_index(storage, prefix) == index_path(prefix, session.cluster.chief_lease.term)
    plain = make_session(storage=LocalStorage())
    plain.initialize()
    mark(plain, 5, 1)
    Saver().save(plain, str(tmp_path / "m"), global_step=5)
    assert read_index(storage, prefix).term == 0
    assert latest_checkpoint(str(tmp_path)) == prefix
    names = sorted(entry for entry in os.listdir(tmp_path) if not entry.startswith("."))
    assert names == ["checkpoint", "m-5.index.json", "m-5.meta", "m-5.shard-00000-of-00001.r1.safetensors"]


def test_a_state_file_that_was_written_or_edited_by_hand_is_believed(place, tmp_path):
    session, storage, step = place("chief")
    saver = Saver(storage=storage)
    for number in (1, 2, 3):
        mark(session, number, number)
        saver.save(session, str(tmp_path / "m"), global_step=step)
    state = tmp_path / "checkpoint"
    state.write_text(state.read_text().replace("m-3", "m-2", 1))
    assert latest_checkpoint(str(tmp_path)) == str(tmp_path / "m-2")
    update_checkpoint_state(str(tmp_path), str(tmp_path / "m-1"))
    assert latest_checkpoint(str(tmp_path)) == str(tmp_path / "m-1")


def test_a_checkpoint_that_cannot_be_read_now_is_no_leftover(place, tmp_path):
    """A successor's commit clears away what a replaced chief has left; a stale handle says nothing of a file."""

    class Stale(LocalStorage):
        def size(self, path):
            if "m-2" in path:
                raise OSError(errno.ESTALE, "Stale file handle")
            return super().size(path)

    session, storage, step = place("first")
    saver = Saver(storage=storage)
    for number in (1, 2):
        mark(session, number, number)
        saver.save(session, str(tmp_path / "m"), global_step=step)
    other, _, _ = place("successor")
    mark(other, 3, 3)
    # Its own list is empty: what the state file names is not in it.
    Saver(storage=Stale(), max_to_keep=None).save(other, str(tmp_path / "m"), global_step=step)
    for number in (1, 2, 3):
        verify(str(tmp_path / f"m-{number}"))


def test_the_next_save_clears_away_what_a_replaced_chief_left_that_was_killed_as_it_woke(place, tmp_path):
    """It had renamed its index into place, and the files that this names were deleted while it slept."""
    session, storage, step = place("first")
    mark(session, 1, 1)
    Saver(storage=storage).save(session, str(tmp_path / "m"), global_step=step)
    (index,) = tmp_path.glob("m-1.index.term-*")
    written = index.read_bytes()
    other, its_storage, _ = place("successor")
    successor = Saver(storage=its_storage, max_to_keep=1)
    mark(other, 2, 2)
    successor.save(other, str(tmp_path / "m"), global_step=step)
    left = tmp_path / index.name.replace("m-1", "m-3", 1)
    left.write_bytes(written)
    mark(other, 4, 4)
    successor.save(other, str(tmp_path / "m"), global_step=step)
    assert not left.exists()
