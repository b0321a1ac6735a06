"""The journal and the run's identity, cut short at every move: what was stored once can be read, and is all there."""

import itertools
import os
import random
from unittest import mock

import pytest
from counting_run import initialize, step_push
from crashing_disk import ERRORS, CrashingStorage, Disk, Moves, plant_rename_before_sync

from globalstep.chief.journal import journal_keeping
from globalstep.chief.journal.journal_files import read_segment, segment_names
from globalstep.chief.journal.journal_keeping import JournalKeeper
from globalstep.chief.journal.run_directory import keep_identity, kept_identity
from globalstep.cluster.run_identity import RunIdentity
from globalstep.errors import OpError
from globalstep.files.journal_records import EventKind
from globalstep.ps.local import LocalPS
from globalstep.runtime.clock import ManualClock
from globalstep.worker.client.client import ClusterClient

#: `make nightly` tries all points.
ALL = os.environ.get("GLOBALSTEP_CRASH_POINTS") == "all"
RUN = "a1b2c3"


class JournaledRun:
    """A run whose chief keeps a journal on a disk that knows what a crash would leave."""

    def __init__(self, folder):
        self.disk = Disk(folder)
        self.moves = Moves()
        self._storage = CrashingStorage(self.moves, self.disk)
        self._ps = LocalPS(1)
        self._client = ClusterClient(self._ps.transports(), clock=ManualClock(), member=False)
        self.directory = str(self.disk.folder)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._client.close()

    def play(self, patient=False):
        """Begin, push and store, five times; a keeper that failed tries on, as its thread does."""
        with mock.patch("globalstep.files.storage._LOCAL", self._storage):
            for _ in range(2 if patient else 1):
                try:
                    keep_identity(RunIdentity(RUN, "", self.directory))
                    break
                except OpError:
                    assert patient
            self.disk.told("identity")
            self._client.begin(open=True, run=RunIdentity(RUN, "", self.directory))
            initialize(self._client)
            keeper = JournalKeeper(self._client, self.directory, ManualClock())
            for _ in range(5):
                self._client.push(step_push())
                for _ in range(2 if patient else 1):
                    keeper.catch_up()
                self.disk.told(keeper.stored_index)
            assert keeper.stored_index == 6


def entries_in(directory):
    """The places that the journal tells of, in order; every file of it can be read."""
    found = set()
    for name in segment_names(directory):
        for batch in read_segment(directory, name).batches:
            found.update(int(row["index"]) for row in batch.rows if row["kind"] <= EventKind.SNAPSHOT)
    return sorted(found)


def explore(run, folder, points):
    """Try what crashes leave at points; gives how many."""
    disk, seen, crashes = run.disk, {}, 0
    for point in points:
        told = disk.told_by(point)
        stored = max([index for index in told if index != "identity"], default=0)
        for how, left in disk.crashes(point):
            crashes += 1
            where = f"{how}, {disk.describe(point)}"
            if left not in seen:
                disk.lay_out(left, folder)
                try:
                    seen[left] = kept_identity(str(folder)).id, entries_in(str(folder))
                except Exception as error:  # whatever it is: nothing of what a crash leaves may cause one
                    raise AssertionError(f"{where}: {error!r}") from error
            identity, entries = seen[left]
            assert identity == RUN or not (told or identity), f"{where}: the directory is of {identity!r}"
            assert entries == list(range(1, len(entries) + 1)), f"{where}: the journal has a gap: {entries}"
            assert len(entries) >= stored, f"{where}: told that entry {stored} is stored; {entries} are"
    return crashes


@pytest.fixture(autouse=True)
def small_segments(monkeypatch):
    monkeypatch.setattr(journal_keeping, "SEGMENT_RECORDS", 4)


def some(points, most):
    points = list(points)
    return points if ALL or len(points) <= most else sorted(random.Random(1).sample(points, most))


def test_a_kill_or_a_loss_of_power_at_any_move(tmp_path, record_property):
    with JournaledRun(tmp_path / "run") as run:
        run.play()
        run.disk.check()
        assert len(segment_names(run.directory)) > 1
        record_property("crashes", explore(run, tmp_path / "left", some(range(len(run.disk) + 1), 40)))


def test_any_move_fails(tmp_path, record_property):
    with JournaledRun(tmp_path / "whole") as run:
        run.play()
        moves = run.moves.count
    errors, crashes = itertools.cycle(ERRORS), 0
    for at in some(range(1, moves + 1), 10):
        for error in ERRORS if ALL else [next(errors)]:
            with JournaledRun(tmp_path / f"{at}-{error}") as run:
                run.moves.at, run.moves.error = at, error
                run.play(patient=True)
                crashes += explore(run, tmp_path / "left", [len(run.disk)])
    record_property("crashes", crashes)


def rename_before_sync(monkeypatch):
    plant_rename_before_sync(
        monkeypatch, "globalstep.chief.journal.journal_files", "globalstep.chief.journal.run_directory"
    )


def stored_before_sync(monkeypatch):
    monkeypatch.setattr(CrashingStorage, "sync_directory", lambda self, directory: None)


@pytest.mark.parametrize("plant", [rename_before_sync, stored_before_sync])
def test_a_planted_bug_is_found(plant, tmp_path, monkeypatch):
    plant(monkeypatch)
    with JournaledRun(tmp_path / "run") as run:
        run.play()
        monkeypatch.undo()
        with pytest.raises(AssertionError, match=r"^power lost"):
            explore(run, tmp_path / "left", range(len(run.disk) + 1))
