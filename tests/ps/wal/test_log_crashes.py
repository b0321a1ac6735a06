"""A run with a log whose machine fails at any system call that writes: what was told to anybody is there."""

import contextlib
import errno
import itertools
import logging
import os
import random
from contextlib import ExitStack
from dataclasses import dataclass
from unittest import mock

import pytest
from counting_run import declarations, expected, state, step_push
from crashing_disk import ERRORS, CrashingFiles, CrashingStorage, Disk, Killed, Moves, plant_rename_before_sync
from stand_ins import Stored

from globalstep.cluster.run_identity import RunIdentity
from globalstep.cluster.run_policy import RunPolicy
from globalstep.errors import AbortedError, GlobalStepError, OpError
from globalstep.files.storage import leave_probe
from globalstep.ps.local import LocalPS
from globalstep.ps.wal.log_file import SegmentWriter
from globalstep.runtime.clock import ManualClock
from globalstep.wire.declarations import Op, OpKind, Push
from globalstep.worker.client.client import ClusterClient

SHARDS = 2
RUN = "a1b2c3"
#: `make nightly` tries all points.
ALL = os.environ.get("GLOBALSTEP_CRASH_POINTS") == "all"


def some(points, most):
    """Give all points in `make nightly`, else so many of them, the same every time, spread over all."""
    points = list(points)
    return points if ALL or len(points) <= most else sorted(random.Random(len(points)).sample(points, most))


class LoggedRun:
    """A run of two PS tasks with a log, in this process, and a client that is all there is.

    Args:
        disk: Where its files are.

    Attributes:
        moves: Of its present processes.
        clients: Ids of the clients that it had.
    """

    def __init__(self, disk):
        self.disk = disk
        self.clients = []
        self._close = ExitStack()
        self._all_moves = []
        self.start()

    def start(self):
        """Start PS tasks that hold nothing, and their client."""
        self.moves = Moves()
        self._all_moves.append(self.moves)
        clock = ManualClock()
        self._files = CrashingFiles(self.moves, self.disk)
        self.ps = LocalPS(SHARDS, clock=clock, log_files=self._files)
        self.client = client_of(self.ps, clock)
        self.client.journal = Stored()
        self.clients.append(self.client.client_id)
        self._close.callback(close, self.ps, self.client)

    def close(self):
        """End all processes, also those that are dead: their files and threads are this one's."""
        for moves in self._all_moves:
            moves.dead, moves.at = False, 0
        self._close.close()

    def recording(self):
        """In this context all that is written through `storage_for` is written to the disk."""
        return mock.patch("globalstep.files.storage._LOCAL", CrashingStorage(self.moves, self.disk))

    def begin(self):
        """Begin the run and open it."""
        directory = str(self.disk.folder)
        self.client.begin(sequencer=SHARDS - 1, open=False, run=RunIdentity(RUN, "", directory))
        self.client.declare(*declarations(SHARDS))
        names = [decl.name for decl in declarations(SHARDS)[0]]
        self.client.push(Push(ops=[Op(OpKind.ASSIGN, name, fill=0.0) for name in names]))
        self.client.open()
        self.disk.told(0)

    def push(self):
        """Push once; gives the step, on which whoever is told of it may rely."""
        step = self.client.push(step_push()).outcome.steps["global_step"]
        self.disk.told(step)
        return step

    def save(self):
        """Take a snapshot, with which the log can begin anew; one task has its values in a file already."""
        with self.client.snapshot() as cut:
            names = {name: name for name, shard in self.client.where.items() if shard == 0}
            directory, storage = str(self.disk.folder), CrashingStorage(self.moves, self.disk)
            with leave_probe(storage, directory) as probe:
                cut.write(directory, {0: f"saved-{cut.index}"}, names, (probe.file, probe.text))

    def restart(self):
        """Start the PS tasks anew, and bring them back; gives whether there was a run to come back to."""
        self._files.end()
        self.start()
        with self.recording():
            found = self.client.membership.find_logs(str(self.disk.folder), RUN)
            if not found:
                return False
            self.client.membership.recover(*found[0], str(self.disk.folder), RUN)
            self.client.refresh()
            try:
                self.disk.told(state(self.client)["global_step"])
            except AbortedError:
                return False  # it was not opened
            return True


def client_of(ps, clock):
    policy = RunPolicy(durability="log")
    return ClusterClient(
        ps.transports(), policy=policy, clock=clock, rng=random.Random(1), member=False, retry_secs=3.0
    )


def close(ps, client):
    for control in ps.controls:
        control.durability.close()
    client.close()


def script(run, patient=False):
    """All that a log is written for; one who is patient goes on after an error."""
    steps = [run.begin, run.push, run.push, run.save, run.push, run.save, run.push]
    with run.recording():
        for step in steps:
            try:
                step()
            except OpError:
                if not patient or step == run.begin:
                    raise


@dataclass(frozen=True)
class Found:
    """What came back: the step, and those of which some client's outcome tells; or why nothing did."""

    step: int | None
    recorded: frozenset = frozenset()
    refused: str = ""


def come_back(folder, clients):
    """Start PS tasks anew on what is left, as a chief would; gives what they hold."""
    clock = ManualClock()
    ps = LocalPS(SHARDS, clock=clock)
    client = client_of(ps, clock)
    with ExitStack() as stack:
        stack.callback(close, ps, client)
        try:
            found = client.membership.find_logs(str(folder), RUN)
            if not found:
                return Found(None, refused="there is no log of a run that was opened")
            client.membership.recover(*found[0], str(folder), RUN)
            client.refresh()
            values = state(client)
        except OpError as error:
            return Found(None, refused=f"{type(error).__name__}: {error}")
        step = values["global_step"]
        assert values == expected(step), "the values are not those of any number of pushes"
        table = ps.controls[SHARDS - 1].handler.shard.now.ledger.table.copied()()
        outcomes = [outcome for client_id in clients if client_id in table for outcome in table[client_id]["outcomes"]]
        # It goes on: a push more counts once.
        client.push(step_push())
        assert state(client) == expected(step + 1)
        return Found(step, frozenset(steps["global_step"] for _, _, _, steps, _ in outcomes if "global_step" in steps))


class Explorer:
    """Tries what crashes may leave; what is alike is tried once.

    Attributes:
        points: Crashes tried.
    """

    def __init__(self, folder):
        self._folder = folder
        self.points = self.states = 0

    def explore(self, run, points):
        """Try all that a crash at each of these points may leave."""
        disk, seen = run.disk, {}
        for point in points:
            told = disk.told_by(point)
            for how, left in disk.crashes(point):
                self.points += 1
                where = f"{how}, {disk.describe(point)}"
                if left not in seen:
                    self.states += 1
                    disk.lay_out(left, self._folder)
                    try:
                        seen[left] = come_back(self._folder, run.clients)
                    except Exception as error:  # whatever it is: nothing of what a crash leaves may cause one
                        raise AssertionError(f"{where}: {error!r}") from error
                found = seen[left]
                if told:
                    assert found.step is not None, f"{where}: step {max(told)} is lost: {found.refused}"
                    assert found.step >= max(told), f"{where}: told of step {max(told)}, back at {found.step}"
                    assert found.recorded >= set(told), f"{where}: it is not known that {told} were pushed"


@pytest.fixture
def explorer(tmp_path, record_property):
    made = Explorer(tmp_path / "left")
    yield made
    record_property("crashes", made.points)
    print(f"{made.points} crashes, {made.states} states")


@pytest.fixture
def logged(tmp_path):
    """Give a function that starts a LoggedRun on a disk of its own."""
    runs = []

    def make(disk=None):
        runs.append(LoggedRun(disk or Disk(tmp_path / f"run{len(runs)}")))
        return runs[-1]

    logging.disable(logging.ERROR)
    yield make
    logging.disable(logging.NOTSET)
    for run in runs:
        run.close()


def moves_of(make):
    """How many moves the script takes."""
    run = make()
    script(run)
    run.disk.check()
    return run.moves.count


@pytest.mark.long
def test_the_process_is_killed_or_the_power_fails_at_any_move(logged, explorer):
    run = logged()
    script(run)
    run.disk.check()
    assert run.moves.count > 150
    explorer.explore(run, some(range(len(run.disk) + 1), 25))


@pytest.mark.long
def test_any_move_fails(logged, explorer):
    errors = itertools.cycle(ERRORS)
    for at in some(range(1, moves_of(logged) + 1), 10):
        for error in ERRORS if ALL else [next(errors)]:
            run = logged()
            run.moves.at, run.moves.error = at, error
            try:
                script(run, patient=True)
            except GlobalStepError:
                assert not run.disk.told_by(len(run.disk)), "an open run was lost"
            explorer.explore(run, [len(run.disk)])


@pytest.mark.long
def test_the_power_fails_after_a_recovery_from_a_kill_at_any_move(logged, explorer):
    """What a process had written and not synced is in the system's memory for the next one, and not on the disk."""
    for at in some(range(1, moves_of(logged) + 1), 4):
        run = logged()
        run.moves.at, run.moves.kill = at, True
        with contextlib.suppress(Killed):
            script(run)
        killed = len(run.disk)
        if run.restart():
            with run.recording():
                run.push()
                run.save()
                run.push()
        run.disk.check()
        explorer.explore(run, some(range(killed, len(run.disk) + 1), 5))


@pytest.mark.long
def test_the_power_fails_after_a_recovery_from_a_kill_right_after_a_segment_got_its_name(logged, explorer):
    """Nobody has synced that name: the next segment, which a recovery begins, may not come to the disk without it."""
    tried = 0
    for at in itertools.count(1):
        run = logged()
        run.moves.only, run.moves.at, run.moves.kill = ("unlink",), at, True
        with contextlib.suppress(Killed):
            script(run)
        if run.moves.count < at:
            break
        killed = len(run.disk)
        if "; link log/1/shard-1-of-2/segment-00000002.log" not in run.disk.describe(killed):
            continue
        tried += 1
        assert run.restart()
        run.disk.check()
        explorer.explore(run, some(range(killed, len(run.disk) + 1), 20))
    assert tried == 1


@pytest.mark.long
@pytest.mark.parametrize("locks", [True, False], ids=["with locks", "without locks"])
def test_a_process_that_slept_at_any_move_and_the_one_in_its_place(locks, logged, explorer, monkeypatch):
    """Both write to one folder, and both tell: no step is told of twice, and none that was told of is lost."""
    if not locks:
        monkeypatch.setattr(CrashingFiles, "lock", no_lock)
    met = 0
    for at in some(range(1, 40), 8):
        run = logged()
        with run.recording():
            run.begin()
            run.push()
            told = [1]

            def succeed(run=run, told=told):
                other = logged(run.disk)
                other.clients = run.clients
                with contextlib.suppress(OpError):  # the log belongs to a process that has not ended
                    if other.restart():
                        told.append(other.push())

            run.moves.count, run.moves.at, run.moves.meanwhile = 0, at, succeed
            for _ in range(3):
                with contextlib.suppress(OpError):
                    told.append(run.push())
        met += len(told) > 4
        assert len(set(told)) == len(told), f"move {at}: both were told of a step: {told}"
        explorer.explore(run, [len(run.disk)])
    assert met or locks


def no_lock(self, path):
    raise OSError(errno.ENOLCK, "No locks available")


def acknowledge_before_sync(monkeypatch):
    monkeypatch.setattr(SegmentWriter, "sync", lambda self: None)


def rename_before_sync(monkeypatch):
    plant_rename_before_sync(monkeypatch, "globalstep.files.shard_file", "globalstep.ps.wal.durability")


@pytest.mark.long
@pytest.mark.parametrize("plant", [acknowledge_before_sync, rename_before_sync])
def test_a_planted_bug_is_found(plant, logged, explorer, monkeypatch):
    plant(monkeypatch)
    run = logged()
    script(run)
    monkeypatch.undo()
    with pytest.raises(AssertionError, match="is lost|told of step|not whole|ValueError|the values are"):
        explorer.explore(run, range(len(run.disk) + 1))
