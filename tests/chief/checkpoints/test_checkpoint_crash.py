"""Saves that are cut short at every single move: what is left always has a whole latest checkpoint."""

import contextlib
import os
import random

import numpy as np
import pytest
from crashing_disk import ERRORS, CrashingStorage, Disk, Killed, Moves, plant_rename_before_sync
from pairwise import in_pairs

from globalstep.chief.checkpoints.checkpoint import CheckpointReader, verify
from globalstep.chief.checkpoints.checkpoint_state import latest_checkpoint
from globalstep.errors import OpError
from globalstep.tf1.sessions.saver import Saver
from globalstep.tf1.variables.variables import Variable

pytestmark = pytest.mark.usefixtures("graph")


#: `make nightly` tries all points.
ALL = os.environ.get("GLOBALSTEP_CRASH_POINTS") == "all"
BLIND = {"ps write": (), "chief writes": (0, 1)}
NUMBERED = {"m-N": True, "same path": False}


@pytest.fixture
def program(make_session):
    """Give a function that makes (session, storage) of a program started anew."""
    Variable(np.zeros(5, np.float32), name="w")
    Variable(np.zeros((2, 2), np.float32), name="v")
    step = Variable(np.int64(0), name="global_step", trainable=False, is_step=True)

    def start(blind, disk=None):
        storage = CrashingStorage(Moves(), disk)
        session = make_session(shards=2, storage=storage, blind=blind)
        session.initialize()
        return session, storage, step

    return start


def set_step(session, number):
    session.cluster.values["global_step"][...] = number
    session.cluster.values["w"][:] = number


def save(session, storage, saver, where, step, numbered):
    return saver.save(session, where, global_step=step if numbered else None)


def check(tmp_path, at_least, at_most):
    found = latest_checkpoint(str(tmp_path))
    assert found is not None
    verify(found)
    with CheckpointReader(found) as reader:
        number = reader.get_tensor("global_step")
        assert at_least <= number <= at_most
        np.testing.assert_array_equal(reader.get_tensor("w"), np.full(5, number, np.float32))
    return number


@pytest.mark.parametrize(("kill", "blind", "numbered"), in_pairs({"kill": True, "error": False}, BLIND, NUMBERED))
def test_at_every_move(program, tmp_path, kill, blind, numbered):
    """The third save, of a Saver that keeps two, fails at move 1, 2, 3, ... until it does not fail."""
    fail_at = 0
    while True:
        fail_at += 1
        directory = tmp_path / str(fail_at)
        directory.mkdir()
        where = str(directory / "m")
        session, storage, step = program(blind)
        saver = Saver(max_to_keep=2, storage=storage)
        for number in (1, 2):
            set_step(session, number)
            save(session, storage, saver, where, step, numbered)
        storage.moves.count, storage.moves.at, storage.moves.kill = 0, fail_at, kill
        storage.moves.error = ERRORS[fail_at % len(ERRORS)]
        set_step(session, 3)
        failed = True
        with contextlib.suppress(Killed if kill else OpError):
            save(session, storage, saver, where, step, numbered)
            failed = False
        if storage.moves.count < fail_at:
            break
        check(directory, 2 if failed else 3, 3)

        # The program goes on, or starts anew and restores; the next save succeeds and tidies up.
        if kill:
            session, storage, step = program(blind)
            saver = Saver(max_to_keep=2, storage=storage)
            saver.restore(session, latest_checkpoint(str(directory)))
        storage.moves.at = 0
        set_step(session, 4)
        save(session, storage, saver, where, step, numbered)
        assert check(directory, 4, 4) == 4
        leftovers = [name for name in os.listdir(directory) if ".tmp-" in name or "probe" in name]
        assert leftovers == [] or not kill
        shards = [name for name in os.listdir(directory) if "shard-" in name]
        assert len(shards) == (4 if numbered else 2) or not kill
    assert fail_at > 15


def found_in(folder):
    """Give the step of the latest checkpoint, having read all of it; None where there is none."""
    latest = latest_checkpoint(str(folder))
    return None if latest is None else check(folder, 0, 1 << 62)


def explore(disk, points):
    """Try what crashes leave: the latest checkpoint is whole, and none that was told of is lost; gives how many."""
    seen, count = {}, 0
    for point in points:
        told = disk.told_by(point)
        for how, left in disk.crashes(point):
            count += 1
            where = f"{how}, {disk.describe(point)}"
            if left not in seen:
                disk.lay_out(left, disk.folder)
                try:
                    seen[left] = found_in(disk.folder)
                except Exception as error:  # whatever it is: nothing of what a crash leaves may cause one
                    raise AssertionError(f"{where}: {error!r}") from error
            if told:
                assert seen[left] is not None, f"{where}: the checkpoint of step {told[-1]} is lost"
                assert seen[left] >= max(told), f"{where}: told of step {max(told)}, found {seen[left]}"
    return count


def points_of(disk, most):
    """All points in `make nightly`, else so many of them, the same every time."""
    points = range(len(disk) + 1)
    return points if ALL else sorted(random.Random(most).sample(points, min(most, len(points))))


@pytest.fixture
def saved(program, tmp_path):
    """Give a function that makes a disk with saves on it; each is told of when it has returned."""

    def make(blind=(), numbered=True, keep=2):
        disk = Disk(tmp_path / "run")
        session, storage, step = program(blind, disk)
        saver = Saver(max_to_keep=keep, storage=storage)
        for number in (1, 2, 3, 4):
            set_step(session, number)
            save(session, storage, saver, str(disk.folder / "m"), step, numbered)
            disk.told(number)
        disk.check()
        return disk

    return make


@pytest.mark.parametrize(("keep", "blind", "numbered"), in_pairs({"keep 1": 1, "keep 2": 2}, BLIND, NUMBERED))
def test_the_power_fails_at_any_move(saved, keep, blind, numbered, record_property):
    disk = saved(blind, numbered, keep)
    record_property("crashes", explore(disk, points_of(disk, 25)))


def rename_before_sync(monkeypatch):
    plant_rename_before_sync(
        monkeypatch,
        "globalstep.files.shard_file",
        "globalstep.chief.checkpoints.checkpoint_format",
        "globalstep.chief.checkpoints.checkpoint_state",
    )


def acknowledge_before_sync(monkeypatch):
    monkeypatch.setattr(CrashingStorage, "sync_directory", lambda self, directory: None)


@pytest.mark.parametrize("plant", [rename_before_sync, acknowledge_before_sync])
def test_a_planted_bug_is_found(plant, saved, monkeypatch):
    plant(monkeypatch)
    disk = saved(numbered=False)  # the checkpoint before is replaced, so that there is nothing to fall back to
    monkeypatch.undo()
    with pytest.raises(AssertionError, match=r"^power lost"):
        explore(disk, range(len(disk) + 1))
