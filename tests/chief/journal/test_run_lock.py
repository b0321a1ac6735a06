"""One job at a time trains in a directory; the second is told which one does."""

import contextlib
import errno
import fcntl
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from small_model import build

import globalstep as gs
from globalstep.chief.journal import run_lock
from globalstep.chief.journal.run_lock import FILE_NAME, hold, living_holder
from globalstep.cluster.process_place import NO_PROCESS, Process, this_process
from globalstep.errors import FailedPreconditionError
from globalstep.ps.server import PSOptions, PSServer
from globalstep.runtime.clock import ManualClock
from globalstep.tf1.graph.graph import Graph
from globalstep.tf1.sessions.training_session import MonitoredTrainingSession

#: A program that has the lock as another process of this machine would, says so, and waits to be ended.
HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "a+")
fcntl.flock(file, fcntl.LOCK_EX)
print("has it", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def other_process(directory, says=None):
    """Another process that has the lock, with what its file says."""
    directory.mkdir(exist_ok=True)
    path = directory / FILE_NAME
    with subprocess.Popen(
        [sys.executable, "-S", "-c", HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout.readline() == b"has it\n"
            mine = this_process()
            told = {"host": mine.host, "pid": process.pid, "place": mine.place, "started": "1", "since": 1e9}
            path.write_text(json.dumps(told | (says or {})))
            yield process
        finally:
            process.kill()


def session(directory, master=""):
    return MonitoredTrainingSession(
        master,
        checkpoint_dir=str(directory),
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        log_step_count_steps=None,
        progress=False,
    )


def test_a_second_program_is_refused_by_the_first_ones_name_and_changes_nothing(tmp_path):
    with other_process(tmp_path / "run") as first, Graph().as_default():
        build()
        before = sorted(os.listdir(tmp_path / "run"))
        with pytest.raises(FailedPreconditionError) as refused:
            session(tmp_path / "run")
        for part in (
            str(tmp_path / "run"),
            f"pid {first.pid} (",
            this_process().host,
            "since 2001-09-",
            f"`kill {first.pid}`",
        ):
            assert part in str(refused.value)
        assert sorted(os.listdir(tmp_path / "run")) == before


def test_a_program_that_was_killed_blocks_nobody(tmp_path):
    with other_process(tmp_path / "run") as first:
        first.kill()
        first.wait()
        with Graph().as_default():
            build()
            with session(tmp_path / "run"):
                assert json.loads((tmp_path / "run" / FILE_NAME).read_text())["pid"] == os.getpid()
    # It is free again, and names nobody.
    assert (tmp_path / "run" / FILE_NAME).read_text() == ""


HERS, MINE = ["one of hers", "another of hers"], ["one of mine"]


@pytest.mark.parametrize(("hers", "mine"), [(HERS, MINE), (HERS, []), ([], MINE)])
def test_a_job_and_a_program_keep_each_other_out(tmp_path, hers, mine):
    with other_process(tmp_path, {"ps": hers}) as first, pytest.raises(FailedPreconditionError) as refused:
        hold(str(tmp_path), ps=mine)
    assert f"pid {first.pid} (" in str(refused.value)
    assert ("chief of a job" in str(refused.value)) == bool(hers)


def test_a_second_job_in_a_directory_is_refused_before_it_begins_a_run(tmp_path):
    with (
        contextlib.closing(PSServer(PSOptions(grace_secs=0.2))) as server,
        other_process(tmp_path / "run", {"ps": HERS}),
        Graph().as_default(),
    ):
        server.start()
        build()
        with pytest.raises(FailedPreconditionError, match="Another program trains in"):
            session(tmp_path / "run", f"grpc://{server.address}")
        assert os.listdir(tmp_path / "run") == [FILE_NAME]


@pytest.mark.parametrize(
    ("says", "options"),
    [
        ({"ps": HERS}, {"ps": HERS[::-1]}),  # another chief of the same job: the PS tasks say which one is
        ({"ps": HERS}, {"ps": MINE, "take_over": True}),
        ({"ps": HERS, "place": "another boot"}, {"ps": MINE}),
        ({"pid": 0}, {"ps": MINE}),
    ],
)
def test_a_job_goes_on_without_the_lock(tmp_path, says, options):
    with other_process(tmp_path, says):
        said = (tmp_path / FILE_NAME).read_text()
        hold(str(tmp_path), **options)()
        assert (tmp_path / FILE_NAME).read_text() == said


def test_the_chief_of_a_job_is_no_program_with_a_ps_of_its_own(tmp_path):
    release = hold(str(tmp_path), ps=MINE)
    assert json.loads((tmp_path / FILE_NAME).read_text())["ps"] == MINE
    assert living_holder(str(tmp_path)) == NO_PROCESS
    release()


def test_the_sessions_of_one_process_share_it(tmp_path):
    releases = [hold(str(tmp_path)) for _ in range(2)]
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    releases.append(hold(str(link)))
    path = tmp_path / FILE_NAME
    with path.open() as file:
        for release in releases:
            with pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            release()
            release()
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_two_fits_of_one_process_do_not_train_in_one_directory(tmp_path):
    """The second one, in another thread, is refused while the first one trains, and goes on from its end afterwards."""

    one = np.ones(2, np.float32)

    def loss(w, x):
        return np.sum((w - x) ** 2), 2 * (w - x)

    def fit(steps, batches):
        sgd = gs.optim.SGD(0.1)
        return gs.fit(0 * one, loss, batches, optimizer=sgd, steps=steps, run_dir=str(tmp_path))

    def batches():
        yield (one,)
        with ThreadPoolExecutor(1) as other:
            refused = other.submit(fit, 5, [(one,)])
            with pytest.raises(
                FailedPreconditionError, match=r"Thread MainThread of this process trains in .* another run_dir"
            ):
                refused.result()
        yield (one,)

    assert fit(2, batches()).step == 2
    with ThreadPoolExecutor(1) as other:
        assert other.submit(fit, 5, [(one,)]).result().step == 5


def test_threads_that_are_alone_share_it_only_with_those_that_have_ended(tmp_path):
    """A thread that ended and did not close is in nobody's way; a session that is not alone may be beside."""
    with ThreadPoolExecutor(1) as ended:
        ended.submit(hold, str(tmp_path), alone=True).result()
    hold(str(tmp_path))
    release = hold(str(tmp_path), alone=True)
    with ThreadPoolExecutor(1) as other:
        with pytest.raises(FailedPreconditionError, match="Thread MainThread of this process trains in"):
            other.submit(hold, str(tmp_path), alone=True).result()
        beside = other.submit(hold, str(tmp_path)).result()
        release()
        other.submit(hold, str(tmp_path), alone=True).result()()
        beside()


def test_a_forked_child_does_not_keep_it(tmp_path):
    release = hold(str(tmp_path))
    (file, _) = run_lock._HELD[os.path.realpath(tmp_path / FILE_NAME)]
    copy = os.dup(file)  # as the child has it
    held = dict(run_lock._HELD)
    try:
        run_lock._HELD.clear()
        run_lock._HELD["child's"] = copy, [None]
        run_lock._forget_in_child()
        assert run_lock._HELD == {}
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(copy)
    finally:
        run_lock._HELD.update(held)
    release()


@pytest.fixture
def no_locks(monkeypatch):
    def flock(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)


def named(directory, process):
    told = {"host": process.host, "pid": process.pid, "place": process.place, "started": process.started}
    (directory / FILE_NAME).write_text(json.dumps({**told, "since": 1e9}))


def test_without_locks_a_living_process_of_this_machine_is_found_by_its_name(tmp_path, no_locks):
    mine = this_process()
    with open("/proc/1/stat") as file:
        started = file.read().rpartition(")")[2].split()[19]
    named(tmp_path, Process(mine.host, 1, mine.place, started))
    with pytest.raises(FailedPreconditionError, match="pid 1 "):
        hold(str(tmp_path))
    named(tmp_path, Process(mine.host, 1, mine.place, "another life of that pid"))
    hold(str(tmp_path))()


def test_without_locks_a_process_of_another_machine_is_warned_of(tmp_path, no_locks, caplog):
    named(tmp_path, Process("elsewhere", 7, "another boot", "1"))
    hold(str(tmp_path))()
    assert "host elsewhere, pid 7 trains there since 2001-09-" in caplog.text


def test_what_is_no_directory_of_this_machine_has_no_lock(tmp_path):
    hold("memory://bucket/run")()
    (tmp_path / "file").touch()
    hold(str(tmp_path / "file"))()


def test_nobody_else_may_take_it(tmp_path):
    """flock needs no right to write: whoever may open the file could keep the run from being started."""
    hold(str(tmp_path))()
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600


def test_a_holder_that_has_not_written_its_name_yet_is_waited_for(tmp_path):
    """A second job that found the file empty went on without the lock."""
    mine = this_process()
    other = Process(mine.host, 1, mine.place, "1")
    with (tmp_path / FILE_NAME).open("w+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

        class Writes(ManualClock):
            def wait(self, event, timeout=None):
                named(tmp_path, other)
                return super().wait(event, timeout)

        with pytest.raises(FailedPreconditionError, match="pid 1"):
            hold(str(tmp_path), Writes(), ps=["127.0.0.1:1"])


def test_what_killed_processes_had_begun_to_write_is_cleared_away(tmp_path):
    names = ("globalstep-run.json", "graph.pbtxt", "journal/0-1.gsj", "evaluations.json", "best/model.safetensors")
    clock = ManualClock()
    for name in (*names, "training.json", "mine"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        for path in (tmp_path / name, tmp_path / f"{name}.tmp-0a1b2c3d"):
            path.touch()
            os.utime(path, (clock.time() - 61, clock.time() - 61))
    # Others write as well: an evaluator's task, and a chief that has replaced this one.
    young = [tmp_path / f"{name}.tmp-ffffffff" for name in ("best/model.safetensors", "graph.pbtxt")]
    for path in young:
        path.touch()
        os.utime(path, (clock.time() - 5, clock.time() - 5))
    hold(str(tmp_path), clock)()
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.tmp-*")}
    assert left == {"mine.tmp-0a1b2c3d", "best/model.safetensors.tmp-ffffffff", "graph.pbtxt.tmp-ffffffff"}
    assert all((tmp_path / name).exists() for name in names)
