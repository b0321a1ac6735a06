"""SIGTERM to this very process: what a monitored session makes of it, and what it leaves alone."""

import os
import signal
import socket
from types import SimpleNamespace

import pytest
from small_model import LocalCluster, build

from globalstep.chief.checkpoints.checkpoint_state import latest_checkpoint
from globalstep.chief.hooks.session_run_hook import SessionRunHook
from globalstep.chief.sessions.draining import EXIT_DRAINED, Drain
from globalstep.runtime.clock import ManualClock
from globalstep.tf1.hooks.step import StopAtStepHook
from globalstep.tf1.ops.summaries import SummaryWriterCache
from globalstep.tf1.sessions.session import Session
from globalstep.tf1.sessions.session_creators import ChiefSessionCreator
from globalstep.tf1.sessions.training_session import MonitoredTrainingSession
from globalstep.worker.client.joined_run import Shutdown
from globalstep.worker.waits.polling_wait import PollingWait

pytestmark = pytest.mark.usefixtures("soon")


class TermAfter(SessionRunHook):
    """Sends the signal within a run."""

    def after_run(self, run_context, run_values):
        os.kill(os.getpid(), signal.SIGTERM)


class InterruptAt(SessionRunHook):
    """Sends Ctrl-C within a run."""

    def __init__(self, run):
        self._left = run

    def after_run(self, run_context, run_values):
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(autouse=True)
def _handler():
    # Sessions of other tests that were never closed may watch still.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Tests that a shell has put into the background come with Ctrl-C ignored.
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, interrupt)
    SummaryWriterCache.clear()
    left = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert left is signal.SIG_DFL


def test_several_sessions_are_asked_and_leave_what_they_found():
    first, second, third = Drain(), Drain(), Drain()
    found = signal.getsignal(signal.SIGTERM)
    for drain in (first, second, third):
        drain.watch()
    second.unwatch()
    os.kill(os.getpid(), signal.SIGTERM)
    assert [drain.asked for drain in (first, second, third)] == [True, False, True]
    for drain in (first, third):
        drain.unwatch()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    signal.signal(signal.SIGTERM, found)


def test_sessions_that_end_out_of_order_leave_nothing():
    first, second = Drain(), Drain()
    found = signal.getsignal(signal.SIGTERM)
    first.watch()
    second.watch()
    first.unwatch()
    second.unwatch()
    assert signal.getsignal(signal.SIGTERM) == found


def test_the_step_is_finished_and_the_chief_saves(graph, tmp_path):
    model = build()
    runs = []

    def program():
        with MonitoredTrainingSession(checkpoint_dir=str(tmp_path), hooks=[TermAfter()]) as session:
            while not session.should_stop():
                runs.append(session.run([model.train, model.step], {model.by: 1.0}))

    with pytest.raises(SystemExit) as ended:
        program()
    assert ended.value.code == EXIT_DRAINED == 143
    assert len(runs) == 1
    assert latest_checkpoint(str(tmp_path)).endswith("-1")


class OtherPushes(SessionRunHook):
    """Has another task push at the end, after the step that this one has read last and before it saves."""

    def __init__(self, target, model):
        self._target, self._model = target, model

    def end(self, session):
        with Session(self._target, task="/job:worker/task:1") as other:
            other.run(self._model.train, {self._model.by: 1.0})


def test_the_step_that_is_told_at_the_end_is_the_one_that_was_saved(graph, tmp_path, caplog):
    """Others may have pushed after this task's last run: one number is told, not two."""
    cluster, model = LocalCluster(shards=1), build()
    others = [OtherPushes(cluster.target, model)]

    def program():
        with MonitoredTrainingSession(
            cluster.target, checkpoint_dir=str(tmp_path), chief_only_hooks=others, hooks=[TermAfter()]
        ) as session:
            while not session.should_stop():
                session.run(model.train, {model.by: 1.0})

    with caplog.at_level("INFO", "globalstep"), pytest.raises(SystemExit):
        program()
    cluster.close()
    assert f"stopped at step 2, saved {tmp_path}/model.ckpt-2; the same command continues" in caplog.messages


def interrupting(model, directory, asks, caught):
    """Train until Ctrl-C in the second run."""
    with MonitoredTrainingSession(checkpoint_dir=directory, hooks=[InterruptAt(2)]) as session:
        while not (asks and session.should_stop()):
            try:
                session.run(model.train, {model.by: 1.0})
            except KeyboardInterrupt:
                caught.append("within")
                raise


@pytest.mark.parametrize("asks", [True, False], ids=["asks", "never asks"])
def test_after_ctrl_c_the_step_is_finished_and_saved_and_the_exit_code_is_130(graph, tmp_path, asks, caplog, capfd):
    caught = []
    with caplog.at_level("INFO", "globalstep"), pytest.raises(SystemExit) as ended:
        interrupting(build(), str(tmp_path), asks, caught)
    assert ended.value.code == 130
    # What a program for TensorFlow does on Ctrl-C, it does here.
    assert isinstance(ended.value, KeyboardInterrupt)
    assert caught == ([] if asks else ["within"])
    assert latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-2")
    assert f"stopped at step 2, saved {tmp_path}/model.ckpt-2; the same command continues" in caplog.messages
    assert "press it again to end at once" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_step_that_fails_after_the_signal_leaves_what_is_there_saved(graph, tmp_path, number, caplog):
    """A signal to the whole group ends a DataLoader's processes too; torch raises, in the step and at their end."""
    model = build()

    def loader_died(*_):
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Terminated.")

    class SaysSo(SessionRunHook):
        def end(self, session):
            os.kill(os.getpid(), signal.SIGCHLD)

    def program():
        with MonitoredTrainingSession(checkpoint_dir=str(tmp_path), hooks=[SaysSo()]) as session:
            session.should_stop()
            session.run(model.train, {model.by: 1.0})
            os.kill(os.getpid(), number)
            loader_died()

    before = signal.signal(signal.SIGCHLD, loader_died)
    try:
        with pytest.raises(SystemExit) as ended:
            program()
        assert signal.getsignal(signal.SIGCHLD) is loader_died
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert ended.value.code == 128 + number
    assert latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-1")
    assert "did not finish: DataLoader worker (pid 7) is killed by signal" in caplog.text


def test_ctrl_c_twice_ends_at_once():
    drain = Drain()
    drain.watch()
    os.kill(os.getpid(), signal.SIGINT)
    assert drain.asked
    assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    drain.unwatch()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_at_pythons_prompt_is_left_alone(monkeypatch):
    monkeypatch.setattr("sys.ps1", ">>> ", raising=False)
    drain = Drain()
    drain.watch()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    drain.unwatch()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_forked_child_ends_as_if_there_were_no_session(monkeypatch, number):
    drain = Drain()
    drain.watch()
    sent = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    drain._pid += 1
    signal.getsignal(number)(number, None)
    assert sent == [(os.getpid(), number)]
    assert not drain.asked
    assert signal.getsignal(number) is (signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)
    drain.unwatch()


def test_a_program_that_never_asks_ends_at_its_next_run(graph, tmp_path):
    model = build()

    def program():
        with MonitoredTrainingSession(checkpoint_dir=str(tmp_path), hooks=[TermAfter()]) as session:
            for _ in range(10):
                session.run(model.train, {model.by: 1.0})

    with pytest.raises(SystemExit) as ended:
        program()
    assert ended.value.code == EXIT_DRAINED
    assert latest_checkpoint(str(tmp_path)).endswith("-1")


def test_a_job_that_is_done_ends_as_always(graph, tmp_path):
    model = build()
    hooks = [StopAtStepHook(last_step=1), TermAfter()]
    with MonitoredTrainingSession(checkpoint_dir=str(tmp_path), hooks=hooks) as session:
        while not session.should_stop():
            session.run(model.train, {model.by: 1.0})
    assert latest_checkpoint(str(tmp_path)).endswith("-1")


def test_a_handler_of_the_programs_own_is_left_alone(graph):
    caught = []
    signal.signal(signal.SIGTERM, lambda number, frame: caught.append(number))
    model = build()
    with MonitoredTrainingSession(hooks=[TermAfter()]) as session:
        session.run(model.train, {model.by: 1.0})
        assert not session.should_stop()
    assert caught == [signal.SIGTERM]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


class TermWhenDropped:
    """Sends the signal in a finalizer: what is raised there is lost."""

    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        # Python carries the handler out here.
        _ = list(map(str, range(100)))


@pytest.fixture
def nobody():
    """An address at which nobody answers."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"grpc://127.0.0.1:{held.getsockname()[1]}"


@pytest.mark.parametrize("lost", [False, True], ids=["heard", "lost in a finalizer"])
@pytest.mark.parametrize("is_chief", [True, False], ids=["chief", "worker"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_task_that_waits_for_ps_tasks_ends_and_says_why(graph, tmp_path, monkeypatch, caplog, nobody, is_chief, lost):
    build()
    pause, pauses = PollingWait.pause, []

    def struck(self, waiting_for, why=None):
        pauses.append(waiting_for)
        if len(pauses) == 1:
            dropped = TermWhenDropped() if lost else None
            if not lost:
                os.kill(os.getpid(), signal.SIGTERM)
            del dropped
        return pause(self, waiting_for, why)

    monkeypatch.setattr(PollingWait, "pause", struck)
    with caplog.at_level("WARNING", "globalstep"), pytest.raises(SystemExit) as ended:
        MonitoredTrainingSession(nobody, is_chief=is_chief, checkpoint_dir=str(tmp_path), max_wait_secs=30)
    assert ended.value.code == EXIT_DRAINED
    assert len(pauses) == 1
    told = (
        "The step that was running when SIGTERM came did not finish"
        if lost
        else "SIGTERM came while this task made its session"
    )
    assert told in caplog.text


def test_threads_that_do_not_end_are_not_waited_for_long(caplog):
    drain, waits = Drain(), []
    drain.watch()

    class Coord:
        def join(self, stop_grace_period_secs, ignore_live_threads):
            waits.append(stop_grace_period_secs)
            if len(waits) == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    with caplog.at_level("WARNING", "globalstep"):
        drain.join(Coord(), 120.0)
    assert waits == [120.0, 5.0]
    assert "SIGTERM came while this task waited for its threads" in caplog.text
    drain.join(Coord(), 2.0)
    assert waits[2:] == [2.0]
    drain.unwatch()


def test_a_chief_that_waits_for_the_others_to_leave_does_not_wait_any_longer(graph, caplog):
    clock = ManualClock()

    class Cluster:
        shutdown = Shutdown()

        incarnation = 1
        run = SimpleNamespace(labels=["/job:ps/task:0"])

        def statuses(self, brief):
            return [SimpleNamespace(incarnation=1, steps={}, limits={})]

        def finish(self):
            self.shutdown.asked = clock.monotonic() > 3.0
            return ["/job:worker/task:1"]

    creator = ChiefSessionCreator(clock=clock)
    creator.acts = True
    with caplog.at_level("WARNING", "globalstep"):
        creator.end_for_all(SimpleNamespace(cluster=Cluster()), 120.0)
    assert clock.monotonic() < 5.0
    assert "when this task was asked to end, /job:worker/task:1 had not left" in caplog.text
