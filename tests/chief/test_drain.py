"""SIGTERM to this very process: what a monitored session makes of it, and what it leaves alone."""

import os
import signal

import pytest
from small_model import build

from globalstep.chief.checkpoint_state import latest_checkpoint
from globalstep.chief.draining import EXIT_DRAINED, Drain
from globalstep.chief.hooks_step import StopAtStepHook
from globalstep.chief.summaries import SummaryWriterCache
from globalstep.chief.training_session import MonitoredTrainingSession
from globalstep.worker.session_run_hook import SessionRunHook


class TermAfter(SessionRunHook):
    """Sends the signal within a run."""

    def after_run(self, run_context, run_values):
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(autouse=True)
def _handler():
    # Sessions of other tests that were never closed may watch still.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
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
