"""Faults that a test plans for other processes, through their environment."""

import json
import os
import signal
import threading

import pytest
from planned_faults import FAULTS_VARIABLE, TRACE_VARIABLE, PlannedFaults, faults_of_this_process, parse

from globalstep.errors import UnavailableError
from globalstep.runtime.clock import ManualClock
from globalstep.runtime.faults import AFTER, APPLY, BEFORE, NO_FAULTS, REPLY, SEND, ConnectionCutError, TransportFault


@pytest.fixture
def planned(tmp_path):
    """Make the faults of a task; all share one trace."""

    def make(plan, task):
        return PlannedFaults(parse(plan), task, str(tmp_path / "trace"), ManualClock())

    return make


def traced(tmp_path):
    return (tmp_path / "trace").read_text().splitlines()


def test_without_a_plan_there_are_no_faults():
    assert faults_of_this_process({}) is NO_FAULTS


def test_a_plan_is_that_of_the_task_of_tf_config(tmp_path):
    config = {"cluster": {"ps": ["h:1"], "worker": ["h:2"]}, "task": {"type": "worker", "index": 0}}
    environ = {
        "TF_CONFIG": json.dumps(config),
        FAULTS_VARIABLE: "worker:0 drop at stage.send; worker:1 drop at stage.send",
        TRACE_VARIABLE: str(tmp_path / "trace"),
    }
    faults = faults_of_this_process(environ)
    assert faults is faults_of_this_process(environ), "all clients of a process count together"
    with pytest.raises(UnavailableError, match="injected: worker:0 drop at stage.send"):
        faults.at(SEND, "stage")
    assert faults.at(SEND, "stage") is None
    assert traced(tmp_path) == [f"worker:0 drop at stage.send pid={os.getpid()}"]


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        ("ps:1 kill stage.before", "is not 'TASK ACTION at METHOD.POINT"),
        ("ps:1 kill at stage.before nth=x", "is not 'TASK ACTION"),
        ("ps:1 double at stage.before", r"at stage.before there may be \['cut', 'hold', 'kill', 'stop'\]"),
        ("ps:1 cut at apply.before", r"there may be \['hold', 'kill', 'stop'\]"),
        ("worker:0 late at stage.reply", "there may be"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(plan, text):
    with pytest.raises(ValueError, match=text):
        parse(plan)


def test_a_plan_needs_a_trace():
    with pytest.raises(ValueError, match=TRACE_VARIABLE):
        faults_of_this_process({FAULTS_VARIABLE: "ps:1 kill at stage.before"})


def test_a_fault_happens_at_the_nth_passing_and_never_again(planned, tmp_path):
    plan = "ps:1 cut at commit.before nth=3"
    faults = planned(plan, "ps:1")
    for _ in range(2):
        assert faults.at(BEFORE, "commit") is None
        assert faults.at(BEFORE, "stage") is None
        assert faults.at(AFTER, "commit") is None
    with pytest.raises(ConnectionCutError):
        faults.at(BEFORE, "commit")
    again = planned(plan, "ps:1")
    for _ in range(5):
        assert again.at(BEFORE, "commit") is None
    assert len(traced(tmp_path)) == 1


def test_faults_happen_in_the_order_of_the_plan_across_tasks(planned):
    plan = "worker:0 drop at push.send; worker:1 double at stage.send nth=2; worker:0 cut at push.reply"
    zero, one = planned(plan, "worker:0"), planned(plan, "worker:1")
    assert [one.at(SEND, "stage") for _ in range(3)] == [None] * 3, "the first has not happened"
    assert zero.at(REPLY, "push") is None
    with pytest.raises(UnavailableError):
        zero.at(SEND, "push")
    assert [one.at(SEND, "stage") for _ in range(3)] == [None, TransportFault.TWICE, None]
    assert zero.at(REPLY, "push") is TransportFault.CUT


def test_hold_waits_until_the_next_fault_has_happened(tmp_path):
    plan = parse("chief:0 hold at write_snapshot.send; worker:0 late at stage.send")
    worker = PlannedFaults(plan, "worker:0", str(tmp_path / "trace"))

    class Meeting(ManualClock):
        def wait(self, event, timeout_secs):
            assert worker.at(SEND, "stage") is TransportFault.LATE
            return super().wait(event, timeout_secs)

    chief = PlannedFaults(plan, "chief:0", str(tmp_path / "trace"), Meeting())
    assert chief.at(SEND, "write_snapshot") is None
    assert [line.partition(" pid")[0] for line in traced(tmp_path)] == [str(fault) for fault in plan]


def test_hold_gives_up(planned):
    chief = planned("chief:0 hold at begin.send; worker:0 drop at stage.send", "chief:0")
    assert chief.at(SEND, "begin") is None


@pytest.mark.parametrize(("action", "number"), [("kill", signal.SIGKILL), ("stop", signal.SIGSTOP)])
def test_kill_and_stop_are_signals_to_the_process_itself(planned, tmp_path, monkeypatch, action, number):
    sent = []
    monkeypatch.setattr(os, "kill", lambda pid, what: sent.append((pid, what, traced(tmp_path))))
    planned(f"ps:0 {action} at apply.before", "ps:0").at(BEFORE, APPLY)
    assert sent == [(os.getpid(), number, [f"ps:0 {action} at apply.before pid={os.getpid()}"])]


def test_threads_that_pass_at_once_make_one_fault(planned, tmp_path):
    faults = planned("ps:0 cut at stage.before nth=50", "ps:0")
    cut = []

    def passing():
        for _ in range(20):
            try:
                faults.at(BEFORE, "stage")
            except ConnectionCutError as error:
                cut.append(error)

    threads = [threading.Thread(target=passing, name="passing") for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(cut) == len(traced(tmp_path)) == 1
